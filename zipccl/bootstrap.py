"""Start-up over MPI: ranks, nodes, and that one failing rank ends the job instead of leaving the others waiting."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from zipccl.errors import CollectiveTimeoutError, PeerFailedError, TransportError

_GRACE_SECONDS = 2.0
"""Time that a rank which failed first has to print its traceback before those that it made fail end the job."""

_FORWARD_SECONDS = 0.3
"""Time that the launcher has to read the traceback: when a rank aborts, it drops what it has not read."""

_HELLO_TAG = 0x5A43
"""Of the messages on MPI's world communicator by which ranks learn that all are there."""

_POLL_SECONDS = 1e-3


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


def connect(timeout: float) -> World:
    """Initialise MPI if need be and find out where this process stands. All processes must call it.

    Raises:
        TransportError: mpi4py or the MPI library is missing, or MPI fails.
        CollectiveTimeoutError: some processes did not call it within timeout seconds.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise TransportError(f'zipccl needs mpi4py and an MPI library: pip install "zipccl[mpi]" ({error})') from error
    _meet(MPI, timeout)
    try:
        communicator = MPI.COMM_WORLD.Dup()
        local = communicator.Split_type(MPI.COMM_TYPE_SHARED, key=communicator.rank)
        first_rank = local.bcast(communicator.rank)
        local_rank = local.rank
        local.Free()
        first_ranks = communicator.allgather(first_rank)
    except MPI.Exception as error:
        raise TransportError(
            f"MPI cannot make another communicator: {error.Get_error_string()}; close() those no longer needed"
        ) from error
    numbers = {first: number for number, first in enumerate(sorted(set(first_ranks)))}
    if communicator.size > 1:
        _abort_on_exception(MPI)
    return World(communicator, [numbers[first] for first in first_ranks], local_rank)


def _meet(mpi: Any, timeout: float) -> None:
    """Wait until all processes are here: MPI's own calls would wait for a missing one without end."""
    world = mpi.COMM_WORLD
    peers = [peer for peer in range(world.size) if peer != world.rank]
    requests = [world.Isend([b"", mpi.BYTE], peer, _HELLO_TAG) for peer in peers]
    waiting = {peer: world.Irecv([bytearray(), mpi.BYTE], peer, _HELLO_TAG) for peer in peers}
    deadline = time.monotonic() + timeout
    while True:
        waiting = {peer: request for peer, request in waiting.items() if not request.Test()}
        if not waiting and mpi.Request.Testall(requests):
            return
        if time.monotonic() > deadline:
            missing = ", ".join(map(str, waiting))
            raise CollectiveTimeoutError(
                f"rank {world.rank} of {world.size} waited {timeout:g} s in init() for rank {missing}"
            )
        time.sleep(_POLL_SECONDS)


def _abort_on_exception(mpi: Any) -> None:
    """Make an exception that ends this rank end the whole job, after its traceback is printed."""
    previous = sys.excepthook
    if getattr(previous, "aborts_mpi", False):
        return
    rank_process = os.getpid()

    def hook(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
        previous(kind, value, traceback)
        sys.stdout.flush()
        sys.stderr.flush()
        if os.getpid() != rank_process:  # a forked child is no rank
            return
        time.sleep(_GRACE_SECONDS if isinstance(value, PeerFailedError) else _FORWARD_SECONDS)
        if not mpi.Is_finalized():
            mpi.COMM_WORLD.Abort(1)

    hook.aborts_mpi = True  # type: ignore[attr-defined]
    sys.excepthook = hook
