"""Arrays cut into pieces, and pieces as messages, compressed or as they are."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zipccl.buffers import Buffer, BufferPool
from zipccl.codec import wire
from zipccl.codec.base import Codec
from zipccl.codec.wire import DType
from zipccl.errors import MismatchError
from zipccl.payload import bytes_at, check_body_nbytes, decode_from, encode_to
from zipccl.strategy import Plan
from zipccl.transport.base import Piece, Receive, Send, Step, Transport, Values

if TYPE_CHECKING:
    from zipccl.transport.mpi import MpiTransport


@dataclass(frozen=True, slots=True)
class Parcel:
    """What goes to or comes from one peer."""

    peer: int
    address: int
    count: int
    plan: Plan


class Messages(ABC):
    """Makes the messages of one call, and does what else a schedule does with values where they are.

    Attributes:
        raw_nbytes: bytes that this rank's messages would have without compression, over all peers.
        wire_nbytes: bytes that they have.
        compressed: whether any message of this rank, sent or received, is compressed.
    """

    transport: Transport

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype
        self.raw_nbytes = 0
        self.wire_nbytes = 0
        self.compressed = False

    def pieces(self, address: int, count: int, plan: Plan) -> list[Piece]:
        """Cut count values at an address into pieces."""
        self.compressed |= plan.compress and count > 0
        return [
            Piece(address + start * self.dtype.itemsize, min(plan.chunk_count, count - start), plan.compress)
            for start in range(0, count, plan.chunk_count)
        ]

    def add_sent(self, raw_nbytes: int, wire_nbytes: int | None = None) -> None:
        """Count bytes that this rank sends, as they are if not said otherwise."""
        self.raw_nbytes += raw_nbytes
        self.wire_nbytes += raw_nbytes if wire_nbytes is None else wire_nbytes

    @abstractmethod
    def exchange(self, steps: Iterable[Step], local: Iterable[Callable[[], None]] = ()) -> None:
        """Send and receive the messages of a schedule's steps, each rank its own.

        Args:
            local: what else is to be done, in small steps, in no order with the messages.
        """

    @abstractmethod
    def introduce(self, outgoing: Parcel | None, incoming: Parcel | None) -> None:
        """Let a rank that receives from another know whether that one sends what it expects.

        Raises:
            MismatchError: it sends another count or dtype, or compresses where this rank does not.
        """

    @abstractmethod
    def combine(self, op: int, values: Values, accumulator: int) -> None:
        """Combine values with an accumulator; those that are encoded go from the decoder straight into it."""

    @abstractmethod
    def pack(self, accumulator: int, target: int, count: int, divisor: int) -> None:
        """Divide an accumulator, round it and put the values at target."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until all that was asked for is done.

        Raises:
            CorruptPayloadError: a message that came is not what an encoder makes.
        """

    @abstractmethod
    def copy(self, source: int, target: int, nbytes: int) -> None:
        """Copy bytes unless they are already there."""

    @abstractmethod
    def all_gather(self, source: int, nbytes: int, target: int) -> None:
        """Gather nbytes bytes from each rank, as they are, in rank order."""

    @abstractmethod
    def all_to_all(self, source: int, nbytes: int, target: int) -> None:
        """Exchange nbytes bytes with each rank, as they are."""

    @abstractmethod
    def broadcast(self, address: int, nbytes: int, root: int) -> None:
        """Send nbytes bytes from the root to all, as they are."""

    @abstractmethod
    def take(self, nbytes: int) -> Any:
        """Return memory, with its address, for values of this call; ``give_back`` ends its use."""

    @abstractmethod
    def give_back(self, memory: Any) -> None:
        """End the use of memory."""


class HostMessages(Messages):
    """The messages of arrays in CPU memory; a compressed one is a payload, another the values alone."""

    transport: MpiTransport

    def __init__(self, transport: MpiTransport, codec: Codec, dtype: DType, pool: BufferPool) -> None:
        super().__init__(dtype)
        self.transport = transport
        self._codec = codec
        self._pool = pool
        self._taken: list[Buffer] = []  # kept from being freed as long as this object is there

    def exchange(self, steps: Iterable[Step], local: Iterable[Callable[[], None]] = ()) -> None:
        self.transport.exchange(steps, self, local)

    def introduce(self, outgoing: Parcel | None, incoming: Parcel | None) -> None:
        sends = [(outgoing.peer, self._header_of(outgoing).pack())] if outgoing else []
        receives = [incoming.peer] if incoming else []
        notes = self.transport.exchange_notes(sends, receives, wire.FLAT_HEADER_NBYTES)
        self.add_sent(0, wire.FLAT_HEADER_NBYTES * len(sends))
        if incoming and notes[0] != self._header_of(incoming).pack():
            found = wire.Header.unpack(memoryview(notes[0]))
            raise MismatchError(
                f"rank {incoming.peer} sends {found.count} values of {found.dtype.name}, "
                f"compressed: {bool(found.layout)}; rank {self.transport.rank} expects {incoming.count} "
                f"of {self.dtype.name}, compressed: {incoming.plan.compress}"
            )

    def combine(self, op: int, values: Values, accumulator: int) -> None:
        if values.body_nbytes is None:
            self._codec.accumulate(self.dtype, op, values.address, accumulator, values.count)
        else:
            self._codec.decode_reduce(self.dtype, op, values.address, values.body_nbytes, accumulator, values.count)

    def pack(self, accumulator: int, target: int, count: int, divisor: int) -> None:
        self._codec.pack(self.dtype, accumulator, target, count, divisor)

    def copy(self, source: int, target: int, nbytes: int) -> None:
        if source != target:
            ctypes.memmove(target, source, nbytes)

    def finish(self) -> None:
        """Do nothing: all is done when it is asked for."""

    def all_gather(self, source: int, nbytes: int, target: int) -> None:
        self.transport.all_gather(source, nbytes, target)

    def all_to_all(self, source: int, nbytes: int, target: int) -> None:
        self.transport.all_to_all(source, nbytes, target)

    def broadcast(self, address: int, nbytes: int, root: int) -> None:
        self.transport.broadcast(address, nbytes, root)

    def take(self, nbytes: int) -> Buffer:
        self._taken.append(self._pool.take(nbytes))
        return self._taken[-1]

    def give_back(self, memory: Buffer) -> None:
        self._taken.remove(memory)
        self._pool.give_back(memory)

    def capacity(self, piece: Piece) -> int:
        """Return the greatest size of a piece's message."""
        if not piece.compress:
            return piece.count * self.dtype.itemsize
        return wire.FLAT_HEADER_NBYTES + wire.body_nbytes_bound(piece.count, self.dtype)

    def prepare(self, send: Send, buffer: int) -> tuple[int, int]:
        """Return (address, nbytes) of a message, encoded to a buffer if it is to be compressed."""
        piece, peers = send.piece, len(send.peers)
        nbytes = piece.count * self.dtype.itemsize
        message = (piece.address, nbytes)
        if piece.compress:
            message = (buffer, encode_to(self._codec, self.dtype, (piece.count,), piece.address, buffer))
        self.add_sent(nbytes * peers, message[1] * peers)
        return message

    def consume(self, receive: Receive, address: int, nbytes: int) -> None:
        """Decode a message, or give its values to what uses them."""
        piece, peer = receive.piece, receive.peer
        if not piece.compress:
            self._check_raw(peer, nbytes, piece.count)
            if receive.use:
                receive.use(Values(address, piece.count))
            return
        header = self._header(peer, address, nbytes, piece.count)
        if receive.use:
            coded = header.layout == wire.LAYOUT_BLOCKS
            receive.use(Values(address + header.nbytes, piece.count, nbytes - header.nbytes if coded else None))
        else:
            decode_from(self._codec, header, address, nbytes, piece.address)

    def _header_of(self, parcel: Parcel) -> wire.Header:
        """Return what introduces a parcel: the header of a payload of all its values."""
        return wire.Header(self.dtype, (parcel.count,), int(parcel.plan.compress))

    def _header(self, peer: int, payload: int, nbytes: int, count: int) -> wire.Header:
        """Return the header of a payload that a peer sent, if it is of so many values."""
        header = wire.Header.unpack(bytes_at(payload, nbytes))
        if header.dtype is not self.dtype or header.shape != (count,):
            raise MismatchError(
                f"rank {peer} sent {header.count} values of {header.dtype.name}; "
                f"expected {count} of {self.dtype.name}: the ranks' arguments differ"
            )
        check_body_nbytes(header, nbytes)
        return header

    def _check_raw(self, peer: int, nbytes: int, count: int) -> None:
        if nbytes != count * self.dtype.itemsize:
            raise MismatchError(
                f"rank {peer} sent {nbytes} bytes; expected {count} values of {self.dtype.name}, "
                f"{count * self.dtype.itemsize} bytes: the ranks' arguments differ"
            )
