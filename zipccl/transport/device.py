"""The transport of arrays in a device's memory: headers and sizes go by MPI, then the bodies by links.

What receives must know sizes beforehand, and only a sender knows them. They are on the host already, which has waited
for them; so they go from host to host, which takes microseconds, and no kernel of the device is needed. That also lets
a rank find out about another's different arguments, or that one has failed, before its device waits for it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from zipccl.codec import wire
from zipccl.devices.base import Device, Memory
from zipccl.transport.base import Receive, Send, Step, Transfer

if TYPE_CHECKING:
    from zipccl.transport.mpi import MpiTransport

_SIZE = struct.Struct("<Q")
_NOTE_NBYTES = wire.FLAT_HEADER_NBYTES + _SIZE.size


class Message(NamedTuple):
    """What goes to a peer: a payload's header, and its body of nbytes bytes at an address."""

    header: wire.Header
    address: int
    nbytes: int


class Arrival(NamedTuple):
    """What came from a peer, likewise."""

    receive: Receive
    header: wire.Header
    address: int
    nbytes: int


class DeviceCoder(Protocol):
    """Makes messages of pieces, and pieces of messages, in the order of a stream."""

    stream: int

    def encode(self, sends: Sequence[Send]) -> list[Message]:
        """Return the messages of sends."""

    def place(self, receive: Receive, header: wire.Header, nbytes: int) -> int:
        """Return the address for the body of a message that has been announced."""

    def decode(self, arrivals: Sequence[Arrival]) -> None:
        """Take messages that are there."""


class Links(Protocol):
    """Moves bytes between devices in the order of a stream. All ranks call the same method in the same order."""

    def move(self, sends: Sequence[Transfer], receives: Sequence[Transfer], stream: int) -> None:
        """Send and receive, all at once."""

    def all_gather(self, source: int, nbytes: int, target: int, stream: int) -> None:
        """Gather nbytes bytes from each rank in rank order; source may be their place at target."""

    def broadcast(self, address: int, nbytes: int, root: int, stream: int) -> None:
        """Send nbytes bytes from the root to all."""

    def check(self) -> None:
        """Raise TransportError if something that was to be moved cannot be."""

    def abort(self) -> None:
        """Give up what is under way, on this rank; nothing can be moved after it."""

    def close(self) -> None:
        """Free the links."""


class DeviceTransport:
    """Moves messages and bytes between the devices of the ranks, in the order of a stream.

    All ranks call the same method in the same order. When something fails, the links are aborted.
    """

    def __init__(self, host: MpiTransport, device: Device, links: Links) -> None:
        self._host = host
        self._device = device
        self._links = links
        self.rank = host.rank
        self.size = host.size
        self.nodes = host.nodes

    def exchange(self, step: Step, coder: DeviceCoder) -> None:
        """Do one step of a schedule: encode all, send all and receive all, decode all.

        Raises:
            MismatchError: a message is not what this rank expects.
        """
        with self._failing():
            outgoing = coder.encode(step.sends)
            notes = self._host.exchange_notes(
                [
                    (peer, message.header.pack() + _SIZE.pack(message.nbytes))
                    for send, message in zip(step.sends, outgoing, strict=True)
                    for peer in send.peers
                ],
                [receive.peer for receive in step.receives],
                _NOTE_NBYTES,
            )
            arrivals = []
            for receive, note in zip(step.receives, notes, strict=True):
                header = wire.Header.unpack(memoryview(note))
                (nbytes,) = _SIZE.unpack_from(note, wire.FLAT_HEADER_NBYTES)
                arrivals.append(Arrival(receive, header, coder.place(receive, header, nbytes), nbytes))
            self._links.move(
                [
                    Transfer(peer, message.address, message.nbytes)
                    for send, message in zip(step.sends, outgoing, strict=True)
                    for peer in send.peers
                ],
                [Transfer(arrival.receive.peer, arrival.address, arrival.nbytes) for arrival in arrivals],
                coder.stream,
            )
            coder.decode(arrivals)

    def all_gather(self, source: int, nbytes: int, target: int, stream: int) -> None:
        """Gather nbytes bytes from each rank, as they are, in rank order."""
        with self._failing():
            self._links.all_gather(source, nbytes, target, stream)

    def all_to_all(self, source: int, nbytes: int, target: int, stream: int) -> None:
        """Exchange nbytes bytes with each rank, as they are."""
        with self._failing():
            peers = [(self.rank + distance) % self.size for distance in range(1, self.size)]
            self._links.move(
                [Transfer(peer, source + peer * nbytes, nbytes) for peer in peers],
                [Transfer(peer, target + peer * nbytes, nbytes) for peer in peers],
                stream,
            )
            own = self.rank * nbytes
            if nbytes:
                self._device.copy(target + own, source + own, nbytes, stream)

    def broadcast(self, address: int, nbytes: int, root: int, stream: int) -> None:
        """Send nbytes bytes from the root to all, as they are."""
        with self._failing():
            self._links.broadcast(address, nbytes, root, stream)

    def wait(self, stream: int) -> None:
        """Wait for what was put on a stream, while listening to the other ranks.

        Raises:
            CollectiveTimeoutError: it was not done within the time-out.
            PeerFailedError: another rank gave up.
            TransportError: the links or the device failed.
        """
        with self._failing():
            event = self._device.record(stream)

            def done() -> bool:
                self._links.check()
                return self._device.done(event)

            self._host.wait(done, lambda: f"{self._device.kind}:{self._device.index} to do what was put on its stream")

    def close(self) -> None:
        self._links.close()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Let the device wait for no other rank any more when something fails."""
        try:
            yield
        except BaseException:
            self._links.abort()
            raise


class StagedLinks:
    """Links through host memory: pinned buffers, and MPI between the hosts. For where there is no NCCL.

    Args:
        direct: give MPI the device's addresses, because the user says that it takes them.
    """

    def __init__(self, host: MpiTransport, device: Device, *, direct: bool = False) -> None:
        self._host = host
        self._device = device
        self._direct = direct

    def move(self, sends: Sequence[Transfer], receives: Sequence[Transfer], stream: int) -> None:
        if self._direct:
            self._device.synchronize(stream)  # MPI knows no streams
            self._host.transfer(sends, receives)
            return
        leaving = [self._stage(transfer) for transfer in sends]
        coming = [self._stage(transfer) for transfer in receives]
        for memory, transfer in zip(leaving, sends, strict=True):
            self._device.copy(memory.address, transfer.address, transfer.nbytes, stream)
        self._device.synchronize(stream)
        self._host.transfer(
            [transfer._replace(address=memory.address) for memory, transfer in zip(leaving, sends, strict=True)],
            [transfer._replace(address=memory.address) for memory, transfer in zip(coming, receives, strict=True)],
            (leaving, coming),
        )
        for memory, transfer in zip(coming, receives, strict=True):
            self._device.copy(transfer.address, memory.address, transfer.nbytes, stream)
        self._device.synchronize(stream)  # before the pinned buffers are freed

    def all_gather(self, source: int, nbytes: int, target: int, stream: int) -> None:
        own = target + self._host.rank * nbytes
        if source != own and nbytes:
            self._device.copy(own, source, nbytes, stream)
        peers = [peer for peer in range(self._host.size) if peer != self._host.rank]
        self.move(
            [Transfer(peer, source, nbytes) for peer in peers],
            [Transfer(peer, target + peer * nbytes, nbytes) for peer in peers],
            stream,
        )

    def broadcast(self, address: int, nbytes: int, root: int, stream: int) -> None:
        peers = [peer for peer in range(self._host.size) if peer != root]
        if self._host.rank == root:
            self.move([Transfer(peer, address, nbytes) for peer in peers], [], stream)
        else:
            self.move([], [Transfer(root, address, nbytes)], stream)

    def check(self) -> None:
        """Do nothing: what fails is raised by the call itself."""

    def abort(self) -> None:
        """Do nothing: no device waits for another."""

    def close(self) -> None:
        """Do nothing."""

    def _stage(self, transfer: Transfer) -> Memory:
        return self._device.allocate_host(transfer.nbytes)
