"""Start the ranks of a program on this machine, side by side or as hosts of an emulated network."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from zipccl import netlab
from zipccl.errors import ArgumentError, TransportError

_RANK_VARIABLES = ("PMI_RANK", "PMI_SIZE", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
_SLURM_MAX_NORMAL_STEP = 0xFFFFFFF0  # slurm.h: from here on a step is a batch script, an interactive shell, ...

# Open MPI refuses root without these, and more ranks than cores without the option.
_OPEN_MPI_OPTIONS = ["--map-by", ":OVERSUBSCRIBE"]
_OPEN_MPI_AS_ROOT = {
    f"{prefix}_{suffix}": "1"
    for prefix in ("OMPI", "PRTE")
    for suffix in ("ALLOW_RUN_AS_ROOT", "ALLOW_RUN_AS_ROOT_CONFIRM")
}

_GRACE_SECONDS = 5.0


def under_launcher() -> bool:
    """Tell whether mpiexec or srun started this process as a rank."""
    if any(name in os.environ for name in _RANK_VARIABLES):
        return True
    step = os.environ.get("SLURM_STEP_ID", "")
    return "SLURM_PROCID" in os.environ and step.isdecimal() and int(step) < _SLURM_MAX_NORMAL_STEP


def find_mpiexec() -> str:
    """Find the launcher of this Python's environment, or else the one in PATH.

    Raises:
        TransportError: There is none.
    """
    path = shutil.which("mpiexec", path=_path_of_ranks())
    if path is None:
        raise TransportError(
            f"expected mpiexec in {Path(sys.executable).parent} or in PATH, found none; "
            'install MPI with: pip install "zipccl[mpi]"'
        )
    return path


def run_ranks(
    program: Sequence[str],
    ranks: int,
    *,
    link: netlab.Link | None = None,
    hosts: int | None = None,
    timeout: float | None = None,
) -> int:
    """Run a program as MPI ranks on this machine and wait for it; its output goes where this process's goes.

    The ranks inherit the environment; the word "python" in the program means this Python. They read no input. They end
    when this call ends or this process dies.

    Args:
        program: The program of every rank and its arguments.
        ranks: Number of ranks.
        link: Put the ranks on hosts of an emulated network with such links (needs Linux and MPICH).
        hosts: Number of those hosts; one for each rank by default.
        timeout: Seconds after which the ranks are killed; None for no bound.

    Returns:
        The exit status: the program's, or 128 + n when signal n ended the run.

    Raises:
        ArgumentError: A count is out of range, or hosts is given without a link.
        TransportError: MPI or what the network needs is missing, or the time is up.
    """
    if ranks < 1:
        raise ArgumentError(f"ranks: expected at least 1, found {ranks}")
    if link is None and hosts is not None:
        raise ArgumentError(f"hosts: expected None without a link, found {hosts}; pass link as well")
    mpiexec = find_mpiexec()
    version = subprocess.run([mpiexec, "--version"], capture_output=True, text=True).stdout
    open_mpi = "Open MPI" in version or "OpenRTE" in version
    environment = os.environ | {"PATH": _path_of_ranks()}
    if link is not None:
        if "HYDRA" not in version:
            raise TransportError(
                f"an emulated network needs MPICH's mpiexec, found {mpiexec}: {(version.splitlines() or ['?'])[0]}; "
                'in a new environment: pip install "zipccl[mpi]"'
            )
        command = netlab.command(mpiexec, program, ranks=ranks, hosts=ranks if hosts is None else hosts, link=link)
    elif open_mpi:
        command = [mpiexec, *_OPEN_MPI_OPTIONS, "-n", str(ranks), *program]
        if os.geteuid() == 0:
            environment |= _OPEN_MPI_AS_ROOT
    else:
        command = [mpiexec, "-n", str(ranks), *program]

    # Killed, Hydra and a lab take their ranks with them; Open MPI does so only when it is asked to end.
    tie = _tie_to_this_process("TERM" if open_mpi else "KILL")
    with subprocess.Popen(
        [*tie, *command], env=environment, stdin=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TransportError(
                f"{ranks} ranks did not end within {timeout:g} s and were killed: {shlex.join(program)}"
            ) from None
        finally:
            _end(process)
    return status if status >= 0 else 128 - status


def _path_of_ranks() -> str:
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def _tie_to_this_process(signal_name: str) -> list[str]:
    """Return the words before a command that have Linux signal it when the calling thread ends; none elsewhere."""
    tie = ["setpriv", "--pdeathsig", signal_name]
    if shutil.which("setpriv") is None or subprocess.run([*tie, "true"], capture_output=True).returncode != 0:
        return []
    return tie


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a launcher and its ranks: first with a request, which lets it clean up, then by force."""
    for request, patience in ((signal.SIGTERM, _GRACE_SECONDS), (signal.SIGKILL, None)):
        if process.poll() is not None:
            return
        os.killpg(process.pid, request)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
