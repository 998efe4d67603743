"""Every ZIPCCL_ environment variable. A communicator reads them when it is made, the other functions at each call.

ZIPCCL_FORCE_ISA          instruction set of the native codec: avx512, avx2, portable (default: the best supported)
ZIPCCL_NUM_THREADS        threads of a process that share the coding of a large array (default: the cores that it may
                          run on, divided by its node's ranks)
ZIPCCL_TIMEOUT            seconds without any progress after which a call gives up (default 600)
ZIPCCL_CHECK              when ranks compare their arguments: 0 never, 1 on the first call of each kind, 2 on every
                          call (default 1)
ZIPCCL_CHUNK_NBYTES       bytes of a pipelined message's chunk before compression (default: chosen by size)
ZIPCCL_PROFILE            file that `zipccl calibrate` wrote, with the speed of links and codec (default: they are
                          measured when a communicator is made)
ZIPCCL_LOG                info to tell on rank 0 what is decided and why; warning for less (default: as the program sets
                          up Python's logger "zipccl")
ZIPCCL_MAX_MESSAGE_NBYTES bytes that one uncompressed MPI call may carry; more goes in chunks (default 1 GiB)
ZIPCCL_SHARE_GPU          1 if ranks on a node may have the same GPU (default 0)
ZIPCCL_CUDA_AWARE_MPI     1 to give GPU addresses to MPI where NCCL is missing, which MPI must have been built for
                          (default 0: through host memory)
ZIPCCL_CACHE_DIR          where compiled kernels are kept (default: zipccl in XDG_CACHE_HOME, or in ~/.cache)
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from zipccl.errors import ArgumentError

T = TypeVar("T")

_SWITCH = {"0": False, "1": True}


@dataclass(frozen=True)
class Config:
    timeout: float
    check: int
    chunk_nbytes: int | None
    max_message_nbytes: int
    share_gpu: bool = False
    cuda_aware_mpi: bool = False
    profile: Path | None = None

    @classmethod
    def from_environment(cls, timeout: float | None = None) -> Config:
        """Read the variables; an argument that is given comes before its variable.

        Raises:
            ArgumentError: a value cannot be read or is out of range.
        """
        if timeout is not None and not timeout > 0:
            raise ArgumentError(f"timeout is {timeout}; expected seconds, more than 0")
        return cls(
            timeout=timeout or _positive("ZIPCCL_TIMEOUT", float, 600.0, "seconds, more than 0"),
            check=_variable("ZIPCCL_CHECK", {"0": 0, "1": 1, "2": 2}.__getitem__, 1, "0, 1 or 2"),
            chunk_nbytes=_positive("ZIPCCL_CHUNK_NBYTES", int, None, "a number of bytes, more than 0"),
            max_message_nbytes=_positive("ZIPCCL_MAX_MESSAGE_NBYTES", int, 1 << 30, "a number of bytes, more than 0"),
            share_gpu=_variable("ZIPCCL_SHARE_GPU", _SWITCH.__getitem__, False, "0 or 1"),
            cuda_aware_mpi=_variable("ZIPCCL_CUDA_AWARE_MPI", _SWITCH.__getitem__, False, "0 or 1"),
            profile=_variable("ZIPCCL_PROFILE", Path, None, "a file"),
        )


def forced_isa() -> str | None:
    """Return the instruction set that the environment asks for."""
    return os.environ.get("ZIPCCL_FORCE_ISA") or None


def log_level() -> int | None:
    """Return the level of what is told about decisions, as logging has it; None to leave it to the program."""
    return _variable(
        "ZIPCCL_LOG", {"info": logging.INFO, "warning": logging.WARNING}.__getitem__, None, "info or warning"
    )


def cache_directory() -> Path | None:
    """Return the folder for what one process makes and others can use, or None if the user has no home for one.

    It need not exist or be writable.
    """
    if chosen := os.environ.get("ZIPCCL_CACHE_DIR"):
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "zipccl"
    except RuntimeError:
        return None


_LOCAL_SIZE_VARIABLES = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE")
"""Where MPICH, Open MPI, torchrun and Slurm tell a process how many of the job's run on its node."""


_MAX_THREADS = 1 << 10
"""More are of no use to anybody."""


def codec_threads(local_size: int | None = None) -> int:
    """Return how many threads this process's codec may use.

    Args:
        local_size: processes of the job on this node; by default what the launcher told, or one.

    Raises:
        ArgumentError: ZIPCCL_NUM_THREADS is no number, or less than 1.
    """
    threads = _positive("ZIPCCL_NUM_THREADS", int, None, "a number of threads, 1 or more")
    if threads is not None:
        return min(threads, _MAX_THREADS)
    if local_size is None:
        told = (os.environ.get(name, "") for name in _LOCAL_SIZE_VARIABLES)
        local_size = next((int(text) for text in told if text.isdigit() and int(text) > 0), 1)
    return max(1, len(os.sched_getaffinity(0)) // local_size)


def _variable(name: str, parse: Callable[[str], T], default: T, expected: str) -> T:
    text = os.environ.get(name)
    if not text:
        return default
    try:
        return parse(text)
    except (ValueError, KeyError):
        raise ArgumentError(f"environment variable {name} is {text!r}; expected {expected}") from None


def _positive(name: str, parse: Callable[[str], T], default: T, expected: str) -> T:
    value = _variable(name, parse, default, expected)
    if value is not None and not value > 0:  # type: ignore[operator]
        raise ArgumentError(f"environment variable {name} is {value}; expected {expected}")
    return value
