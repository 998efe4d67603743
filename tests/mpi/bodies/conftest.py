"""What the bodies share: the communicator, and that a failing rank ends the whole job after its report."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from mpi4py import MPI

import zipccl


@pytest.fixture(scope="session")
def comm() -> Iterator[zipccl.Communicator]:
    with zipccl.init(timeout=60.0) as communicator:
        yield communicator


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and MPI.COMM_WORLD.size > 1:
        print(f"rank {MPI.COMM_WORLD.rank}: {report.nodeid} failed\n{report.longreprtext}", file=sys.stderr, flush=True)
        MPI.COMM_WORLD.Abort(1)
