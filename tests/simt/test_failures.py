"""A rank of several with devices ends, dies or is missing: the others raise or end too, and say why."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.mpi.launched import Finished, launch

_BEGIN = """
import os, signal, sys, time
import zipccl
from tests.simt import nccl
from tests.simt.array import SimtArray
from tests.simt.kind import SimtKind, register
from tests.tensors import BFLOAT16, make

register(SimtKind({stand_in}, kernels=False))
comm = zipccl.init(device="simt", timeout={timeout})
x = SimtArray.of(make(BFLOAT16, (100_000,), comm.rank), comm.rank)
comm.all_reduce(x, compress="always")
"""

links = pytest.mark.parametrize("stand_in", ["nccl", "None"], ids=["nccl", "staged"])


def run(tmp_path: Path, ranks: int, stand_in: str, script: str, timeout: float = 20.0) -> Finished:
    program = tmp_path / "program.py"
    program.write_text(_BEGIN.format(stand_in=stand_in, timeout=timeout) + textwrap.dedent(script))
    here = str(Path(__file__).parents[2])
    return launch(ranks, [str(program)], timeout=60, environment={"PYTHONPATH": here})


@links
@pytest.mark.parametrize("compress", ["always", "never"])
def test_a_missing_rank_is_named(tmp_path: Path, stand_in: str, compress: str) -> None:
    finished = run(
        tmp_path,
        2,
        stand_in,
        f"""
        if comm.rank == 1:
            time.sleep(6)
            os._exit(0)
        try:
            comm.all_reduce(x, compress="{compress}")
        except zipccl.CollectiveTimeoutError as error:
            print("raised:", error, flush=True)
        os._exit(0)
        """,
        timeout=2.0,
    )
    assert "raised: rank 0 of 2 waited 2 s for" in finished.output
    assert "rank 1" in finished.output


@links
def test_an_exception_inside_a_call_ends_the_job(tmp_path: Path, stand_in: str) -> None:
    finished = run(
        tmp_path,
        3,
        stand_in,
        """
        comm.all_reduce(x, op="sum" if comm.rank != 1 else "median", compress="always")
        print("not reached")
        """,
    )
    assert finished.status not in (0, None), finished.output
    assert "ArgumentError: op is 'median'" in finished.output
    assert "not reached" not in finished.output


@links
@pytest.mark.parametrize("end", ["sys.exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"], ids=["ends", "dies"])
def test_a_rank_that_is_gone(tmp_path: Path, stand_in: str, end: str) -> None:
    finished = run(
        tmp_path,
        3,
        stand_in,
        f"""
        if comm.rank == 1:
            {end}
        comm.all_reduce(x, compress="always")
        print("not reached")
        """,
    )
    assert finished.status not in (0, None), finished.output
    assert "not reached" not in finished.output


@links
@pytest.mark.parametrize("end", ["pass", "comm.close()", "sys.exit(0)", "del comm", "y = comm.all_gather(x)"])
def test_exit_without_care(tmp_path: Path, stand_in: str, end: str) -> None:
    finished = run(tmp_path, 2, stand_in, end)
    assert finished.status == 0, finished.output
    assert finished.output == ""


@pytest.mark.parametrize(("status", "reason"), [(2, "NCCL_ERROR_SYSTEM_ERROR"), (77, "error code 77")])
def test_nccl_does_not_connect_one_rank(tmp_path: Path, status: int, reason: str) -> None:
    finished = run(
        tmp_path,
        3,
        "nccl",
        f"""
        class Failing:
            def __init__(self, *arguments):
                raise nccl.NcclError({status})

        if comm.rank == 1:
            nccl.NcclCommunicator = Failing
        try:
            zipccl.init(device="simt", timeout=20)
        except zipccl.TransportError as error:
            os.write(1, f"{{type(error).__name__}} {{error}}\\n".encode())
        comm.barrier()
        os._exit(0)  # a thread still waits for NCCL
        """,
    )
    told = f"TransportError in init(device=simt, profile measured): NCCL cannot connect the devices: {reason}"
    assert finished.output.count(f"PeerFailedError rank 1 raised {told}") == 2, finished.output
    assert finished.output.count(f"TransportError NCCL cannot connect the devices: {reason}") == 1, finished.output
