"""What the bodies share: communicators of SIMT devices, and that a failing rank ends the whole job."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import zipccl
from tests.mpi.bodies.conftest import pytest_runtest_logreport
from tests.simt import nccl
from tests.simt.kind import SimtKind, register

__all__ = ["pytest_runtest_logreport"]

KINDS = {
    "nccl": SimtKind(nccl, kernels=False),
    "staged": SimtKind(None, kernels=False),
    "kernels": SimtKind(nccl),
}


@pytest.fixture(scope="module", params=["nccl", "staged"])
def comm(request: pytest.FixtureRequest) -> Iterator[zipccl.Communicator]:
    """Return a communicator of devices that are connected by NCCL's stand-in, or through host memory."""
    register(KINDS[request.param])
    with zipccl.init(device="simt", timeout=60.0) as communicator:
        yield communicator


@pytest.fixture(scope="module")
def with_kernels() -> Iterator[zipccl.Communicator]:
    """Return a communicator whose devices code with the CUDA kernels."""
    register(KINDS["kernels"])
    with zipccl.init(device="simt", timeout=60.0) as communicator:
        yield communicator
