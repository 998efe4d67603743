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
import sys, numpy
from zipccl.cli import main
from zipccl.collectives import direct

def corrupt(original):
    def call(messages, *arguments):
        original(messages, *arguments)
        if messages.transport.rank == 1:
            target = arguments[1] if original is not direct.broadcast else arguments[0]
            numpy.ctypeslib.as_array((numpy.ctypeslib.ctypes.c_uint8 * 1).from_address(target))[0] ^= 1
    return call

name = sys.argv[1]
setattr(direct, name, corrupt(getattr(direct, name)))
sys.exit(main(["bench", name, "-b", "64K", "-n", "2", "-w", "0", "-d", "half", "--compress", "always", *sys.argv[2:]]))
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
def test_wrong_values_are_counted(collective: str, tmp_path: Path) -> None:
    program = tmp_path / "corrupt.py"
    program.write_text(CORRUPTION)
    finished = launch(2, [str(program), collective], timeout=120)
    assert finished.status == 1, finished.output
    wrong = 2 if collective in ("all_gather", "all_reduce", "broadcast") else 1
    assert f"# Out of bounds values : {wrong} FAILED" in finished.output


def test_errors_of_other_ranks_are_shown(tmp_path: Path) -> None:
    program = tmp_path / "fail.py"
    program.write_text(
        "import os, sys\n"
        "from zipccl.cli import collectives, main\n"
        "run_mpi = collectives.AllGather.run_mpi\n"
        "def fail(self, x, out):\n"
        "    if self.rank == 1: raise RuntimeError('the reason')\n"
        "    run_mpi(self, x, out)\n"
        "collectives.AllGather.run_mpi = fail\n"
        "sys.exit(main(['bench', 'all_gather', '-b', '64K']))\n"
    )
    finished = launch(2, [str(program)], timeout=120)
    assert finished.status not in (0, None), finished.output
    assert "RuntimeError: the reason" in finished.output


def test_time_limit_tells_where_the_ranks_were(tmp_path: Path) -> None:
    program = tmp_path / "wait.py"
    program.write_text(
        "import sys\n"
        "from zipccl.cli import collectives, main\n"
        "def wait(self, x, out):\n"
        "    while True: pass\n"
        "collectives.AllGather.run_mpi = wait\n"
        "sys.exit(main(['bench', 'all_gather', '-b', '64K', '-T', '1']))\n"
    )
    finished = launch(2, [str(program)], timeout=120)
    assert finished.status not in (0, None), finished.output
    assert "Timeout (0:00:01)!" in finished.output
    assert "wait.py" in finished.output


def test_ranks_that_are_there_are_used() -> None:
    finished = launch(2, ["-m", "zipccl", "bench", "all_gather", "-b", "64K", "-n", "1"], timeout=120)
    assert finished.status == 0, finished.output
    assert finished.output.count("# Out of bounds values") == 1
    finished = launch(2, ["-m", "zipccl", "bench", "all_gather", "-b", "64K", "--ranks", "3"], timeout=120)
    assert finished.status == 2, finished.output
    assert "2 ranks are there already" in finished.output
