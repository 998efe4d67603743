"""Starting ranks: who started this process, which mpiexec is taken, how a run ends."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lifeline import Lifeline
from zipccl import launch
from zipccl.errors import ArgumentError, TransportError
from zipccl.netlab import Link

ROOT = Path(launch.__file__).resolve().parent.parent
SECONDS = 60.0

needs_mpi = pytest.mark.skipif(
    shutil.which("mpiexec", path=launch._path_of_ranks()) is None, reason="mpiexec is not installed"
)


def write_program(path: Path, shell_text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{shell_text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def pretend_mpiexec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put an mpiexec in place that says it is Open MPI and prints what it is given."""
    path = write_program(
        tmp_path / "mpi" / "mpiexec",
        'if [ "$1" = --version ]; then echo "mpiexec (Open MPI) 5.0.11"; else echo "$OMPI_ALLOW_RUN_AS_ROOT" "$@"; fi',
    )
    monkeypatch.setattr(launch, "find_mpiexec", lambda: str(path))
    return path


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"PMI_RANK": "0"}, True),
        ({"PMI_SIZE": "1"}, True),
        ({"PMIX_RANK": "3"}, True),
        ({"OMPI_COMM_WORLD_RANK": "1"}, True),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "2"}, True),
        ({"SLURM_PROCID": "0", "SLURM_JOB_ID": "77"}, False),
        ({"SLURM_STEP_ID": "batch", "SLURM_PROCID": "0"}, False),
        ({"SLURM_STEP_ID": "4294967291", "SLURM_PROCID": "0"}, False),
        ({"SLURM_STEP_ID": "0"}, False),
    ],
)
def test_under_launcher_reads_the_launchers_variables(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: bool
) -> None:
    for name in list(os.environ):
        if name.startswith(("PMI", "OMPI_", "SLURM_")):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launch.under_launcher() is expected


def test_find_mpiexec_prefers_this_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = tmp_path / "environment" / "mpiexec"
    other = write_program(tmp_path / "other" / "mpiexec", "")
    monkeypatch.setattr(sys, "executable", str(ours.with_name("python")))
    monkeypatch.setenv("PATH", str(other.parent))
    assert launch.find_mpiexec() == str(other)
    write_program(ours, "")
    assert launch.find_mpiexec() == str(ours)


def test_find_mpiexec_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(TransportError, match=r'pip install "zipccl\[mpi\]"'):
        launch.find_mpiexec()


@pytest.mark.parametrize("ranks", [0, -2])
def test_rank_counts_out_of_range_are_refused(ranks: int) -> None:
    with pytest.raises(ArgumentError, match=f"at least 1, found {ranks}"):
        launch.run_ranks(["true"], ranks)


def test_hosts_without_a_link_are_refused() -> None:
    with pytest.raises(ArgumentError, match="hosts: expected None without a link, found 2"):
        launch.run_ranks(["true"], 2, hosts=2)


def test_open_mpi_gets_the_options_it_needs(pretend_mpiexec: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert launch.run_ranks(["program"], 3, timeout=SECONDS) == 0
    as_root = "1" if os.geteuid() == 0 else ""
    assert capfd.readouterr().out.strip() == f"{as_root} --map-by :OVERSUBSCRIBE -n 3 program".strip()
    assert pretend_mpiexec.exists()


def test_an_emulated_network_refuses_open_mpi(pretend_mpiexec: Path) -> None:
    with pytest.raises(TransportError, match=f"needs MPICH's mpiexec, found {pretend_mpiexec}: mpiexec .Open MPI."):
        launch.run_ranks(["true"], 2, link=Link(1e9))


def test_a_signal_gives_the_shells_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = write_program(tmp_path / "mpiexec", '[ "$1" = --version ] || kill -KILL $$')
    monkeypatch.setattr(launch, "find_mpiexec", lambda: str(killed))
    assert launch.run_ranks(["true"], 2, timeout=SECONDS) == 137


@needs_mpi
class TestRealLauncher:
    """What the installed mpiexec does with real processes."""

    def test_every_rank_runs_this_python(self, capfd: pytest.CaptureFixture[str]) -> None:
        text = "import os, sys; os.write(1, (sys.executable + '\\n').encode())"
        assert launch.run_ranks(["python", "-c", text], 3, timeout=SECONDS) == 0
        assert capfd.readouterr().out.splitlines() == 3 * [str(Path(sys.executable).with_name("python"))]

    def test_a_rank_knows_that_a_launcher_started_it(self) -> None:
        text = "import sys; from zipccl import launch; sys.exit(not launch.under_launcher())"
        assert (
            launch.run_ranks(
                [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {text}"], 2, timeout=SECONDS
            )
            == 0
        )

    def test_the_exit_status_is_the_programs(self) -> None:
        assert launch.run_ranks(["sh", "-c", "exit 3"], 2, timeout=SECONDS) == 3

    def test_the_bound_in_time_ends_ranks_that_ignore_requests(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(launch, "_GRACE_SECONDS", 0.5)
        lifeline = Lifeline(tmp_path / "lifeline")
        words = ["sh", "-c", f"trap '' TERM; {lifeline.hold}; exec sleep 100"]
        with pytest.raises(TransportError, match=r"2 ranks did not end within 2 s and were killed: sh .*sleep 100"):
            launch.run_ranks(words, 2, timeout=2)
        lifeline.wait_for_holders(2, seconds=0)
        lifeline.wait_for_end(SECONDS)
        lifeline.close()

    @pytest.mark.skipif(not launch._tie_to_this_process("KILL"), reason="util-linux's setpriv is not here")
    def test_a_run_ends_with_its_killed_caller(self, tmp_path: Path) -> None:
        lifeline = Lifeline(tmp_path / "lifeline")
        words = ["sh", "-c", f"{lifeline.hold}; exec sleep 100"]
        text = f"from zipccl import launch; launch.run_ranks({words!r}, 2)"
        with subprocess.Popen([sys.executable, "-c", text], cwd=ROOT) as caller:
            lifeline.wait_for_holders(2, SECONDS)
            caller.kill()
        lifeline.wait_for_end(SECONDS)
        lifeline.close()


def test_importing_the_launcher_does_not_start_mpi() -> None:
    text = "import sys, zipccl.launch; sys.exit('mpi4py.MPI' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", text], cwd=ROOT, timeout=SECONDS).returncode == 0
