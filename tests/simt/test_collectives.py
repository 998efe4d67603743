"""Runs the test bodies of ``bodies/`` on ranks with a SIMT device each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mpi.launched import launch

BODIES = sorted((Path(__file__).parent / "bodies").glob("body_*.py"))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.stem.removeprefix("body_"))
def test_body(body: Path, ranks: int) -> None:
    finished = launch(
        ranks, ["-m", "pytest", "-q", "-o", "python_files=body_*.py", "-p", "no:cacheprovider", str(body)], timeout=400
    )
    assert finished.status == 0, finished.output
    assert finished.output.count(" passed") == ranks, finished.output
