"""zipccl bench COLLECTIVE on real ranks: all bits right, wrong ones counted, failures not hidden."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mpi.launched import Finished, launch

COLLECTIVES = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
CORRUPTION = """
import ctypes, sys
from zipccl.cli import main
from zipccl.collectives import direct

name = sys.argv[1]
original = getattr(direct, name)
target_argument = {"broadcast": 0, "all_to_all": 2}.get(name, 1)

def corrupt(messages, *arguments):
    original(messages, *arguments)
    if messages.transport.rank == 1:
        ctypes.c_uint8.from_address(arguments[target_argument]).value ^= 1

setattr(direct, name, corrupt)
sys.exit(main(["bench", name, "-b", "64K", "-n", "2", "-w", "0", "-d", "half", "--compress", "always"]))
"""
FAILURE = """
import sys
from zipccl.cli import collectives, main

run_mpi = collectives.AllGather.run_mpi

def fail(self, x, out):
    if self.rank == 1:
        raise RuntimeError("the reason")
    run_mpi(self, x, out)

collectives.AllGather.run_mpi = fail
sys.exit(main(["bench", "all_gather", "-b", "64K"]))
"""
ENDLESS_CALL = """
import sys
from zipccl.cli import collectives, main

def wait(self, x, out):
    while True:
        pass

collectives.AllGather.run_mpi = wait
sys.exit(main(["bench", "all_gather", "-b", "64K", "-T", "3"]))
"""


def bench(words: str) -> Finished:
    """Run the command as a user does, which starts its own ranks."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed", exc_type=ImportError)
    finished = subprocess.run(
        [sys.executable, "-m", "zipccl", "bench", *words.split()], capture_output=True, text=True, timeout=240
    )
    return Finished(finished.returncode, finished.stdout + finished.stderr)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_is_right(collective: str, ranks: int, tmp_path: Path) -> None:
    if collective == "send_recv" and ranks == 1:
        pytest.skip("a rank alone has no peer")
    path = tmp_path / "results.json"
    finished = bench(
        f"{collective} --ranks {ranks} -b 300 -e 600K -f 45 -n 3 -w 1 -d bfloat16 --compress always -J {path}"
    )
    assert finished.status == 0, finished.output
    assert "# Out of bounds values : 0 OK\n" in finished.output
    assert "\r" not in finished.output, "a pipe gets no progress line"
    written = json.loads(path.read_text())
    assert len(written["ranks"]) == ranks
    assert [row["nbytes"] for row in written["rows"]] == [300, 13500, 607500]
    for row in written["rows"]:
        assert row["count"] == row["nbytes"] // 2 // (
            ranks if collective in ("all_gather", "all_to_all", "reduce_scatter") else 1
        )
        assert len(row["mpi"]["seconds"]) == 3
        assert (row["out_of_place"]["busbw"] is None) == (ranks == 1)
        assert (row["in_place"] is not None) == (collective in ("all_gather", "all_reduce", "broadcast"))
    if ranks > 1:
        assert written["rows"][-1]["ratio"] > 1.4


@pytest.mark.parametrize("options", ["-d int32 -o prod", "-d half -o avg --data normal", "-d double -o min", "-d bool"])
def test_reductions_of_other_kinds_are_right(options: str) -> None:
    finished = bench(f"all_reduce -b 100K -n 1 -w 0 --compress always {options}")
    assert finished.status == 0, finished.output


def test_special_values_are_right() -> None:
    for collective in ("all_gather", "all_reduce"):
        finished = bench(f"{collective} -b 1M -n 1 -w 0 -d half --data random -u 3 -c 2 --compress always")
        assert finished.status == 0, finished.output


@pytest.mark.parametrize("collective", ["all_gather", "all_reduce", "all_to_all", "broadcast", "reduce_scatter"])
def test_wrong_values_are_counted(collective: str) -> None:
    finished = launch(2, ["-c", CORRUPTION, collective], timeout=120)
    assert finished.status == 1, finished.output
    sides = 2 if collective in ("all_gather", "all_reduce", "broadcast") else 1
    assert f"# Out of bounds values : {sides} FAILED" in finished.output


def test_errors_of_other_ranks_are_shown() -> None:
    finished = launch(2, ["-c", FAILURE], timeout=120)
    assert finished.status not in (0, None), finished.output
    assert "RuntimeError: the reason" in finished.output


def test_time_limit_tells_where_the_ranks_were() -> None:
    finished = launch(2, ["-c", ENDLESS_CALL], timeout=120)
    assert finished.status not in (0, None), finished.output
    assert "Timeout (0:00:03)!" in finished.output
    assert "in wait" in finished.output


def test_ranks_that_are_there_are_used() -> None:
    finished = launch(2, ["-m", "zipccl", "bench", "all_gather", "-b", "64K", "-n", "1"], timeout=120)
    assert finished.status == 0, finished.output
    assert finished.output.count("# Out of bounds values") == 1
    finished = launch(2, ["-m", "zipccl", "bench", "all_gather", "-b", "64K", "--ranks", "3"], timeout=120)
    assert finished.status == 2, finished.output
    assert "2 ranks are there already" in finished.output
