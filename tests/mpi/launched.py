"""Starts ranks for tests, under a hard time-out, and keeps what every one of them printed."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

_RUN = "import sys; from zipccl.launch import run_ranks; sys.exit(run_ranks(sys.argv[2:], int(sys.argv[1])))"


@dataclass(frozen=True)
class Finished:
    """How a launched job ended; status is None if it ran past its time-out."""

    status: int | None
    output: str


def launch(ranks: int, arguments: list[str], *, timeout: float, environment: dict[str, str] | None = None) -> Finished:
    """Run Python with arguments on ranks and wait for it; at the time-out all ranks are killed."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed", exc_type=ImportError)
    try:
        finished = subprocess.run(
            [sys.executable, "-c", _RUN, str(ranks), sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | (environment or {}),
            timeout=timeout,
        )
    except subprocess.TimeoutExpired as expired:
        return Finished(None, (expired.stdout or b"").decode(errors="replace"))
    return Finished(finished.returncode, finished.stdout)
