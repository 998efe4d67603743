"""One rank fails: the others raise or end too, within seconds, and say why."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from tests.mpi.launched import Finished, launch

_BEGIN = """
import os, signal, sys, time
import numpy as np
import zipccl

comm = zipccl.init(timeout=float(os.environ.get("TEST_TIMEOUT", "20")))
x = np.arange(1 << 20, dtype=np.float32)
comm.all_reduce(x, compress="always")
"""


def run(tmp_path: Path, ranks: int, script: str, **options) -> Finished:
    program = tmp_path / "program.py"
    program.write_text(_BEGIN + textwrap.dedent(script))
    return launch(ranks, [str(program)], timeout=60, **options)


def test_an_exception_outside_a_call_ends_the_job(tmp_path: Path) -> None:
    finished = run(
        tmp_path,
        3,
        """
        if comm.rank == 1:
            raise RuntimeError("the reason")
        comm.all_reduce(x)
        print("not reached")
    """,
    )
    assert finished.status not in (0, None), finished.output
    assert "RuntimeError: the reason" in finished.output
    assert "not reached" not in finished.output


def test_an_exception_inside_a_call_ends_the_job(tmp_path: Path) -> None:
    finished = run(
        tmp_path,
        3,
        """
        comm.all_reduce(x if comm.rank != 1 else x.astype(complex))
        print("not reached")
    """,
    )
    assert finished.status not in (0, None), finished.output
    assert "UnsupportedArrayError: x has dtype complex128" in finished.output
    assert "not reached" not in finished.output


@pytest.mark.parametrize("compress", ["always", "never"])
def test_a_missing_rank_is_named(tmp_path: Path, compress: str) -> None:
    finished = run(
        tmp_path,
        2,
        f"""
        if comm.rank == 1:
            time.sleep(6)
            os._exit(0)
        try:
            comm.all_reduce(x, compress="{compress}")
        except zipccl.CollectiveTimeoutError as error:
            print("raised:", error, flush=True)
        try:
            comm.barrier()
        except zipccl.TransportError as error:
            print("then:", error, flush=True)
        os._exit(0)
        """,
        environment={"TEST_TIMEOUT": "2"},
    )
    assert "raised: rank 0 of 2 waited 2 s for" in finished.output
    assert "then: the communicator cannot be used: all_reduce failed" in finished.output


@pytest.mark.parametrize("compress", ["always", "never"])
def test_a_rank_that_ends_early(tmp_path: Path, compress: str) -> None:
    finished = run(
        tmp_path,
        3,
        f"""
        comm.all_reduce(x, compress="{compress}")
        if comm.rank == 1:
            sys.exit(0)
        try:
            comm.all_reduce(x, compress="{compress}")
        except zipccl.PeerFailedError as error:
            print("raised:", error, flush=True)
        """,
        environment={"TEST_TIMEOUT": "300"},
    )
    assert finished.output.count("takes no part: its program has ended") == 2, finished.output


def test_init_names_a_missing_rank(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, time\nimport zipccl\nfrom mpi4py import MPI\n"
        "if MPI.COMM_WORLD.rank == 1:\n    time.sleep(8)\n    os._exit(0)\n"
        "zipccl.init(timeout=1.0)\n"
    )
    finished = launch(3, [str(program)], timeout=60)
    assert "CollectiveTimeoutError: rank 0 of 3 waited 1 s in init() for rank 1" in finished.output


def test_a_forked_child_is_no_rank(tmp_path: Path) -> None:
    finished = run(
        tmp_path,
        2,
        """
        if comm.rank == 1:
            child = os.fork()
            if child == 0:
                try:
                    raise RuntimeError("in the child")
                except RuntimeError:
                    sys.excepthook(*sys.exc_info())
                    os._exit(0)  # a child that ends as Python programs do finalises MPI for its parent
            os.waitpid(child, 0)
        comm.all_reduce(x)
        print("done", flush=True)
        """,
    )
    assert finished.status == 0, finished.output
    assert finished.output.count("done") == 2


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_killed_rank(tmp_path: Path, ranks: int) -> None:
    finished = run(
        tmp_path,
        ranks,
        """
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        comm.all_reduce(x, compress="always")
        print("not reached")
    """,
    )
    assert finished.status not in (0, None), finished.output
    assert "not reached" not in finished.output


@pytest.mark.parametrize(
    "end",
    ["pass", "comm.close()", "sys.exit(0)", "del comm", "y = comm.all_gather(x)"],
)
def test_exit_without_care(tmp_path: Path, end: str) -> None:
    finished = run(tmp_path, 2, f"{end}\n")
    assert finished.status == 0, finished.output
    assert finished.output == ""


def test_the_status_of_a_failed_check_is_kept(tmp_path: Path) -> None:
    finished = run(tmp_path, 2, "sys.exit(3)")
    assert finished.status == 3, finished.output


def test_mpi4py_is_missing(tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").write_text("raise ImportError('there is no mpi4py here')")
    finished = launch(
        1,
        ["-c", "import zipccl; zipccl.init()"],
        timeout=60,
        environment={"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])},
    )
    assert 'TransportError: zipccl needs mpi4py and an MPI library: pip install "zipccl[mpi]"' in finished.output


def test_a_failed_exchange_of_counts_meets_no_later_call(tmp_path: Path) -> None:
    """What one rank had begun is not there when another begins its next call."""
    finished = run(
        tmp_path,
        2,
        """
        y = np.arange(8, dtype=np.int32)
        comm.all_to_all(y, send_counts=[4, 4])
        try:
            comm.all_to_all(y, send_counts=[4, 4 + comm.rank])
        except (zipccl.ArgumentError, zipccl.PeerFailedError) as error:
            print(f"first: {type(error).__name__}\\n", end="", flush=True)
        try:
            print("wrong:", comm.all_gather(np.full(4, 77, np.int32)))
        except zipccl.TransportError as error:
            print(f"second: {type(error).__name__}\\n", end="", flush=True)
        comm.close()
    """,
    )
    assert finished.output.count("first:") == 2, finished.output
    assert finished.output.count("second:") == 2, finished.output
    assert "wrong" not in finished.output


@pytest.mark.parametrize("call", ["reduce", "gather"])
def test_a_root_that_failed_takes_nothing_for_its_next_call(tmp_path: Path, call: str) -> None:
    """The others may have finished the call that the root failed in, and what they sent is still there."""
    finished = run(
        tmp_path,
        2,
        f"""
        comm.{call}(np.full(4, 1, np.int32))
        try:
            comm.{call}(np.full(4, 100, np.int32), out=np.ones(1) if comm.rank == 0 else None)
        except zipccl.ZipcclError as error:
            print(f"first: {{type(error).__name__}}\\n", end="", flush=True)
        time.sleep(0.5 * comm.rank)
        try:
            print("wrong:", comm.{call}(np.full((2, 2), 1 + comm.rank, np.int32)))
        except zipccl.TransportError as error:
            print(f"second: {{type(error).__name__}}\\n", end="", flush=True)
        comm.close()
    """,
    )
    assert "first: ArgumentError" in finished.output, finished.output
    assert finished.output.count("second:") == 2, finished.output
    assert "wrong" not in finished.output


def test_ranks_that_failed_once_still_decide_the_same(tmp_path: Path) -> None:
    finished = run(
        tmp_path,
        2,
        """
        try:
            comm.all_reduce(np.ones(8192, "f4"), out=np.ones(3, "f4") if comm.rank else None)
        except zipccl.ZipcclError as error:
            print(f"first: {type(error).__name__}\\n", end="", flush=True)
        for count in (8300, 8192, 8300):
            assert (comm.all_reduce(np.ones(count, "f4")) == 2).all()
        print("all right", flush=True)
    """,
    )
    assert finished.output.count("first:") == 2, finished.output
    assert finished.output.count("all right") == 2, finished.output


def test_a_peer_that_has_ended_sends_nothing(tmp_path: Path) -> None:
    finished = run(
        tmp_path,
        2,
        """
        if comm.rank == 0:
            try:
                comm.recv(x, 1)
            except zipccl.PeerFailedError as error:
                print("raised:", error, flush=True)
    """,
    )
    assert "raised: rank 1 takes no part: its program has ended" in finished.output, finished.output


@pytest.mark.parametrize(
    ("variable", "error"),
    [("ZIPCCL_NUM_THREADS", "ArgumentError"), ("ZIPCCL_PROFILE", "MismatchError")],
)
def test_a_variable_of_one_rank_only(tmp_path: Path, variable: str, error: str) -> None:
    finished = run(
        tmp_path,
        2,
        f"""
        comm.close()
        rank = comm.rank
        if rank:
            os.environ["{variable}"] = "0"
        try:
            zipccl.init(timeout=20)
        except zipccl.ZipcclError as error:
            print(f"raised: {{type(error).__name__}} {{error}}\\n", end="", flush=True)
    """,
    )
    assert finished.output.count("raised: ") == 2, finished.output
    assert error in finished.output
    assert "Timeout" not in finished.output
