"""Links by NCCL, through CuPy's module ``cupy.cuda.nccl`` or one with the same functions."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Thread
from typing import TYPE_CHECKING, Any

from zipccl.devices.base import Device
from zipccl.errors import TransportError
from zipccl.transport.base import Transfer

if TYPE_CHECKING:
    from zipccl.transport.mpi import MpiTransport

_ID_NOTE_NBYTES = 4096


def connect(nccl: Any, host: MpiTransport, device: Device, max_message_nbytes: int) -> NcclLinks:
    """Connect the devices of all ranks; all must call it.

    Args:
        nccl: ``cupy.cuda.nccl``.
        max_message_nbytes: what one call of NCCL may carry.

    Raises:
        CollectiveTimeoutError: not all ranks came in time; it names those that are missing.
        PeerFailedError: another rank failed in it.
        TransportError: NCCL failed.
    """
    peers = [peer for peer in range(host.size) if peer != host.rank]
    if host.rank == 0:
        with _errors(nccl, "make a unique id"):
            unique_id = nccl.get_unique_id()
        note = pickle.dumps(unique_id).ljust(_ID_NOTE_NBYTES, b"\0")
        host.exchange_notes([(peer, note) for peer in peers], [], _ID_NOTE_NBYTES)
    else:
        unique_id = pickle.loads(host.exchange_notes([], [0], _ID_NOTE_NBYTES)[0])
    # NCCL waits for a missing rank without end and does not name it: come together before.
    host.exchange_notes([(peer, b"") for peer in peers], peers, 0)

    made: list[Any] = []

    def make() -> None:
        try:
            device.activate()
            with _errors(nccl, "connect the devices"):
                made.append(nccl.NcclCommunicator(host.size, unique_id, host.rank))
        except BaseException as error:
            made.append(error)

    # In a thread, because it does not return when a rank fails in it.
    Thread(target=make, name="zipccl connects NCCL", daemon=True).start()
    host.wait(lambda: bool(made), lambda: "NCCL to connect the devices (its variable NCCL_DEBUG=INFO tells more)")
    if isinstance(made[0], BaseException):
        raise made[0]
    return NcclLinks(nccl, made[0], max_message_nbytes)


class NcclLinks:
    """Implements Links by an NCCL communicator."""

    def __init__(self, nccl: Any, communicator: Any, max_message_nbytes: int) -> None:
        self._nccl = nccl
        self._communicator = communicator
        self._max_message_nbytes = max_message_nbytes

    def move(self, sends: Sequence[Transfer], receives: Sequence[Transfer], stream: int) -> None:
        with self._call("send and receive") as communicator, self._group():
            for operation, transfers in ((communicator.send, sends), (communicator.recv, receives)):
                for transfer in transfers:
                    for at in range(0, transfer.nbytes, self._max_message_nbytes):
                        nbytes = min(self._max_message_nbytes, transfer.nbytes - at)
                        operation(transfer.address + at, nbytes, self._nccl.NCCL_UINT8, transfer.peer, stream)

    def all_gather(self, source: int, nbytes: int, target: int, stream: int) -> None:
        if nbytes:
            with self._call("all-gather") as communicator:
                communicator.allGather(source, target, nbytes, self._nccl.NCCL_UINT8, stream)

    def broadcast(self, address: int, nbytes: int, root: int, stream: int) -> None:
        if nbytes:
            with self._call("broadcast") as communicator:
                communicator.broadcast(address, address, nbytes, self._nccl.NCCL_UINT8, root, stream)

    def check(self) -> None:
        with self._call("move what was asked for") as communicator:
            communicator.check_async_error()

    def abort(self) -> None:
        communicator, self._communicator = self._communicator, None
        if communicator is not None:
            with suppress(Exception):  # what made this necessary is what to tell
                communicator.abort()

    def close(self) -> None:
        communicator, self._communicator = self._communicator, None
        if communicator is not None:
            with _errors(self._nccl, "close"):
                communicator.destroy()

    @contextmanager
    def _call(self, what: str) -> Iterator[Any]:
        if self._communicator is None:
            raise TransportError("NCCL was given up or closed")
        with _errors(self._nccl, what):
            yield self._communicator

    @contextmanager
    def _group(self) -> Iterator[None]:
        """Make one operation of those within; the group is closed whatever happens, or later calls would join it."""
        self._nccl.groupStart()
        try:
            yield
        except BaseException:
            with suppress(Exception):
                self._nccl.groupEnd()
            raise
        self._nccl.groupEnd()


@contextmanager
def _errors(nccl: Any, what: str) -> Iterator[None]:
    """Raise TransportError for an error of NCCL."""
    try:
        yield
    except nccl.NcclError as error:
        raise TransportError(f"NCCL cannot {what}: {error}") from error
    except KeyError as error:  # by which CuPy tells codes that it does not know
        raise TransportError(f"NCCL cannot {what}: error code {error}") from error
