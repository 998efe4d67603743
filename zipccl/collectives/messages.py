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

_UINT8 = wire.dtype_named("uint8")


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
    def copy(self, source: int, target: int, nbytes: int) -> None:
        """Copy bytes unless they are already there."""

    @abstractmethod
    def take(self, nbytes: int) -> Any:
        """Return memory, with its address, for values of this call; ``give_back`` ends its use."""

    @abstractmethod
    def give_back(self, memory: Any) -> None:
        """End the use of memory."""

    def header_of(self, parcel: Parcel) -> wire.Header:
        """Return what introduces a parcel: the header of a payload of all its values."""
        return wire.Header(self.dtype, (parcel.count,), int(parcel.plan.compress))

    def unexpected(self, parcel: Parcel, found: wire.Header) -> MismatchError:
        """Return the error for a parcel that was introduced by another header."""
        return MismatchError(
            f"rank {parcel.peer} sends {found.count} values of {found.dtype.name}, compressed: {bool(found.layout)}; "
            f"rank {self.transport.rank} expects {parcel.count} of {self.dtype.name}, "
            f"compressed: {parcel.plan.compress}"
        )


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
        headers = HostMessages(self.transport, self._codec, _UINT8, self._pool)
        buffer = self.take(2 * wire.FLAT_HEADER_NBYTES)
        memory = bytes_at(buffer.address, 2 * wire.FLAT_HEADER_NBYTES)

        def piece(part: int) -> Piece:
            start = part * wire.FLAT_HEADER_NBYTES
            return Piece(buffer.address + start, wire.FLAT_HEADER_NBYTES, compress=False)

        sends, receives = [], []
        if outgoing:
            memory[: wire.FLAT_HEADER_NBYTES] = self.header_of(outgoing).pack()
            sends = [Send((outgoing.peer,), piece(0))]
        if incoming:
            receives = [Receive(incoming.peer, piece(1))]
        headers.exchange([Step(sends, receives)])
        self.add_sent(0, headers.wire_nbytes)
        if incoming and memory[wire.FLAT_HEADER_NBYTES :] != self.header_of(incoming).pack():
            raise self.unexpected(incoming, wire.Header.unpack(memory[wire.FLAT_HEADER_NBYTES :]))
        self.give_back(buffer)

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
