"""A stand-in for ``cupy.cuda.nccl``: the same names and arguments, on host memory, over MPI.

It refuses what NCCL refuses, or would wait for without end. What NCCL does in the order of a stream is done here when
it is asked for (at the end of the group), since the streams of the SIMT device do the same.
"""

from __future__ import annotations

import ctypes
import secrets
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from mpi4py import MPI

NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN, NCCL_AVG = range(5)
NCCL_INT8 = NCCL_CHAR = 0
NCCL_UINT8 = 1
NCCL_INT32 = NCCL_INT = 2
NCCL_UINT32 = 3
NCCL_INT64 = 4
NCCL_UINT64 = 5
NCCL_FLOAT16 = NCCL_HALF = 6
NCCL_FLOAT32 = NCCL_FLOAT = 7
NCCL_FLOAT64 = NCCL_DOUBLE = 8
NCCL_BFLOAT16 = 9

available = True

patience = 20.0
"""Seconds after which an operation that the peer does not match fails, instead of waiting without end."""


def while_waiting() -> None:
    """Do nothing; for tests to replace."""


asynchronous_error = 0
"""A status that check_async_error finds, for tests of what its user does."""

_STATUS = {
    1: "NCCL_ERROR_UNHANDLED_CUDA_ERROR",
    2: "NCCL_ERROR_SYSTEM_ERROR",
    3: "NCCL_ERROR_INTERNAL_ERROR",
    4: "NCCL_ERROR_INVALID_ARGUMENT",
    5: "NCCL_ERROR_INVALID_USAGE",
    6: "NCCL_ERROR_REMOTE_ERROR",
}
_INVALID_ARGUMENT, _INVALID_USAGE, _REMOTE_ERROR = 4, 5, 6

_TYPES = {
    NCCL_INT8: np.int8,
    NCCL_UINT8: np.uint8,
    NCCL_INT32: np.int32,
    NCCL_UINT32: np.uint32,
    NCCL_INT64: np.int64,
    NCCL_UINT64: np.uint64,
    NCCL_FLOAT16: np.float16,
    NCCL_FLOAT32: np.float32,
    NCCL_FLOAT64: np.float64,
    NCCL_BFLOAT16: ml_dtypes.bfloat16,
}
_COMBINE: dict[int, Callable[..., Any]] = {NCCL_SUM: np.add, NCCL_PROD: np.multiply, NCCL_MAX: np.maximum}
_COMBINE |= {NCCL_MIN: np.minimum, NCCL_AVG: np.add}

_ID_NBYTES = 128
_FIRST_TAG = 1 << 12
_TAGS = 1 << 10


class NcclError(RuntimeError):
    """As CuPy's: of a status that it does not know, KeyError is raised instead."""

    def __init__(self, status: int) -> None:
        super().__init__(_STATUS[status])
        self.status = status


class NcclConfig:
    """Of no effect here."""


communicators: list[NcclCommunicator] = []
"""All that were made, for tests of what became of them."""

_depth = 0
_queue: list[tuple[NcclCommunicator, list[_Transfer], list[_Transfer], Callable[[], None]]] = []

_Transfer = tuple[int, int, int]
"""Peer, address, bytes."""


def get_unique_id() -> bytes:
    return secrets.token_bytes(_ID_NBYTES)


def get_version() -> int:
    return 22800


get_build_version = get_version


def groupStart() -> None:  # noqa: N802
    global _depth
    _depth += 1


def groupEnd() -> None:  # noqa: N802
    global _depth
    if _depth == 0:
        raise NcclError(_INVALID_USAGE)
    _depth -= 1
    if _depth == 0:
        _run()


class NcclCommunicator:
    """One rank's end; the others make theirs with the same id."""

    def __init__(self, ndev: int, commId: bytes, rank: int, config: NcclConfig | None = None) -> None:  # noqa: N803, ARG002
        if len(commId) != _ID_NBYTES or not 0 <= rank < ndev or ndev != MPI.COMM_WORLD.size:
            raise NcclError(_INVALID_ARGUMENT)
        self._open = True
        self._rank, self._size = rank, ndev
        self._tag = _FIRST_TAG + int.from_bytes(commId[:8], "little") % _TAGS
        everyone = [(peer, 0, 0) for peer in self._peers()]
        _move([(self, everyone, everyone)], 3 * patience)
        communicators.append(self)

    def size(self) -> int:
        return self._size

    def rank_id(self) -> int:
        return self._rank

    def device_id(self) -> int:
        return 0

    def check_async_error(self) -> None:
        self._check_open()
        if asynchronous_error:
            raise NcclError(asynchronous_error)

    def abort(self) -> None:
        self._check_open()
        self._open = False

    def destroy(self) -> None:
        self._check_open()
        self._open = False

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._check_grouped(peer)
        self._put([(peer, sendbuf, self._nbytes(count, datatype, stream))], [])

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._check_grouped(peer)
        self._put([], [(peer, recvbuf, self._nbytes(count, datatype, stream))])

    def allGather(  # noqa: N802
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int
    ) -> None:
        nbytes = self._nbytes(count, datatype, stream)
        self._put(
            [(peer, sendbuf, nbytes) for peer in self._peers()],
            [(peer, recvbuf + peer * nbytes, nbytes) for peer in self._peers()],
            lambda: _copy(recvbuf + self._rank * nbytes, sendbuf, nbytes),
        )

    def broadcast(self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, stream: int) -> None:
        nbytes = self._nbytes(count, datatype, stream)
        if self._rank == root:
            sends = [(peer, sendbuff, nbytes) for peer in self._peers()]
            self._put(sends, [], lambda: _copy(recvbuff, sendbuff, nbytes))
        else:
            self._put([], [(root, recvbuff, nbytes)])

    def bcast(self, buff: int, count: int, datatype: int, root: int, stream: int) -> None:
        self.broadcast(buff, buff, count, datatype, root, stream)

    def allReduce(  # noqa: N802
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int
    ) -> None:
        nbytes = self._nbytes(count, datatype, stream)
        gathered = np.empty((self._size, nbytes), np.uint8)

        def reduce() -> None:
            gathered[self._rank] = _bytes(sendbuf, nbytes)
            values = gathered.view(_TYPES[datatype])
            total = values[0]
            for others in values[1:]:
                total = _COMBINE[op](total, others)
            if op == NCCL_AVG:
                total = (total / self._size).astype(values.dtype)
            _bytes(recvbuf, nbytes)[:] = total.view(np.uint8)

        self._put(
            [(peer, sendbuf, nbytes) for peer in self._peers()],
            [(peer, gathered[peer].ctypes.data, nbytes) for peer in self._peers()],
            reduce,
        )

    def _put(self, sends: list[_Transfer], receives: list[_Transfer], then: Callable[[], None] = lambda: None) -> None:
        _queue.append((self, sends, receives, then))
        if _depth == 0:
            _run()

    def _peers(self) -> list[int]:
        return [peer for peer in range(self._size) if peer != self._rank]

    def _nbytes(self, count: int, datatype: int, stream: int) -> int:
        self._check_open()
        if count < 0 or datatype not in _TYPES or not isinstance(stream, int):
            raise NcclError(_INVALID_ARGUMENT)
        return count * np.dtype(_TYPES[datatype]).itemsize

    def _check_open(self) -> None:
        if not self._open:
            raise NcclError(_INVALID_ARGUMENT)

    def _check_grouped(self, peer: int) -> None:
        """Refuse what waits for a peer that waits likewise."""
        if not 0 <= peer < self._size:
            raise NcclError(_INVALID_ARGUMENT)
        if _depth == 0:
            raise NcclError(_INVALID_USAGE)


def _run() -> None:
    queue, _queue[:] = list(_queue), []
    _move([(communicator, sends, receives) for communicator, sends, receives, _ in queue], patience)
    for _, _, _, then in queue:
        then()


def _move(batch: list[tuple[NcclCommunicator, list[_Transfer], list[_Transfer]]], seconds: float) -> None:
    """Send and receive all of a batch at once."""
    world = MPI.COMM_WORLD
    requests, kept = [], []
    incoming = []
    for communicator, sends, receives in batch:
        for peer, address, nbytes in sends:
            data = _bytes(address, nbytes).copy()
            kept.append(data)
            requests.append(world.Isend([data, MPI.BYTE], peer, communicator._tag))
        incoming += [(communicator, *receive) for receive in receives]
    deadline = time.monotonic() + seconds
    while incoming:
        waiting: set[int] = set()
        for entry in list(incoming):
            communicator, peer, address, nbytes = entry
            if peer in waiting:  # its messages come in order
                continue
            status = MPI.Status()
            message = world.Improbe(peer, communicator._tag, status)
            if message is None:
                waiting.add(peer)
                continue
            data = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            message.Recv([data, MPI.BYTE])
            incoming.remove(entry)
            if data.size != nbytes:
                raise NcclError(_INVALID_USAGE)
            _bytes(address, nbytes)[:] = data
        _wait_a_moment(deadline)
    while not MPI.Request.Testall(requests):
        _wait_a_moment(deadline)


def _wait_a_moment(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise NcclError(_REMOTE_ERROR)
    while_waiting()
    time.sleep(0)


def _bytes(address: int, nbytes: int) -> np.ndarray[Any, Any]:
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8) if nbytes else np.empty(0, np.uint8)


def _copy(target: int, source: int, nbytes: int) -> None:
    ctypes.memmove(target, source, nbytes)
