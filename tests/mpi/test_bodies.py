"""Runs the test bodies of ``bodies/`` on 1 to 4 ranks, and a little of them on more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mpi.launched import launch

BODIES = sorted((Path(__file__).parent / "bodies").glob("body_*.py"))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.stem.removeprefix("body_"))
def test_body(body: Path, ranks: int) -> None:
    run(body, ranks)


def test_more_ranks() -> None:
    run(Path(__file__).parent / "bodies" / "body_algorithms.py", 5, "-k", "bfloat16 and (rooted or ring or avg)")


def run(body: Path, ranks: int, *options: str) -> None:
    command = ["-m", "pytest", "-q", "-o", "python_files=body_*.py", "-p", "no:cacheprovider", str(body), *options]
    finished = launch(ranks, command, timeout=240)
    assert finished.status == 0, finished.output
    assert finished.output.count(" passed") == ranks, finished.output
