"""Start-up over MPI: ranks, nodes, and that one failing rank ends the job instead of leaving the others waiting."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from zipccl.errors import PeerFailedError, TransportError

_GRACE_SECONDS = 2.0
"""Time that a rank which failed first has to print its traceback before those that it made fail end the job."""


@dataclass(frozen=True)
class World:
    """Where this process stands among the others.

    Attributes:
        communicator: an MPI communicator for zipccl alone.
        nodes: for each rank the number of its node, counted from 0 in the order of ranks.
        local_rank: this rank's number among those of its node.
    """

    communicator: Any
    nodes: Sequence[int]
    local_rank: int


def connect() -> World:
    """Initialise MPI if need be and find out where this process stands. All processes must call it.

    Raises:
        TransportError: mpi4py or the MPI library is missing.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise TransportError(f'zipccl needs mpi4py and an MPI library: pip install "zipccl[mpi]" ({error})') from error
    communicator = MPI.COMM_WORLD.Dup()
    local = communicator.Split_type(MPI.COMM_TYPE_SHARED, key=communicator.rank)
    first_rank = local.bcast(communicator.rank)
    local_rank = local.rank
    local.Free()
    first_ranks = communicator.allgather(first_rank)
    numbers = {first: number for number, first in enumerate(sorted(set(first_ranks)))}
    if communicator.size > 1:
        _abort_on_exception(MPI)
    return World(communicator, [numbers[first] for first in first_ranks], local_rank)


def _abort_on_exception(mpi: Any) -> None:
    """Make an exception that ends this rank end the whole job, after its traceback is printed."""
    previous = sys.excepthook
    if getattr(previous, "aborts_mpi", False):
        return

    def hook(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
        previous(kind, value, traceback)
        sys.stdout.flush()
        sys.stderr.flush()
        if isinstance(value, PeerFailedError):
            time.sleep(_GRACE_SECONDS)
        if not mpi.Is_finalized():
            mpi.COMM_WORLD.Abort(1)

    hook.aborts_mpi = True  # type: ignore[attr-defined]
    sys.excepthook = hook
