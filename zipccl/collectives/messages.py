"""Arrays cut into pieces, and pieces as messages, compressed or as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from zipccl.buffers import BufferPool
from zipccl.codec import wire
from zipccl.codec.base import Codec
from zipccl.codec.wire import DType
from zipccl.errors import MismatchError
from zipccl.payload import bytes_at, check_body_nbytes, decode_from, encode_to
from zipccl.strategy import Plan
from zipccl.transport.base import Receive, Send, Transport, always


@dataclass(frozen=True, slots=True)
class Piece:
    """Values that are one message."""

    address: int
    count: int
    compress: bool


@dataclass(frozen=True, slots=True)
class Values:
    """Values as they are, at an address, or the body of body_nbytes bytes that they were encoded to."""

    address: int
    count: int
    body_nbytes: int | None = None


class Messages:
    """Makes the messages of one call.

    Attributes:
        raw_nbytes: bytes that this rank's messages would have without compression, over all peers.
        wire_nbytes: bytes that they have.
        compressed: whether any message of this rank, sent or received, is compressed.
    """

    def __init__(self, transport: Transport, codec: Codec, dtype: DType, pool: BufferPool) -> None:
        self.transport = transport
        self.codec = codec
        self.dtype = dtype
        self.pool = pool
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

    def send(self, peers: Sequence[int], piece: Piece, tag: int, ready: Callable[[], bool] = always) -> Send:
        """Return the message that carries a piece to peers."""
        nbytes = piece.count * self.dtype.itemsize

        def prepare(buffer: int) -> tuple[int, int]:
            message = (piece.address, nbytes)
            if piece.compress:
                message = (buffer, encode_to(self.codec, self.dtype, (piece.count,), piece.address, buffer))
            self.add_sent(nbytes * len(peers), message[1] * len(peers))
            return message

        return Send(peers, self._capacity(piece) if piece.compress else 0, prepare, ready, tag)

    def receive(self, peer: int, piece: Piece, tag: int) -> Receive:
        """Return the message that brings a piece, which is put where the piece says."""

        def consume(address: int, nbytes: int) -> None:
            if piece.compress:
                header = self._header(peer, address, nbytes, piece.count)
                decode_from(self.codec, header, address, nbytes, piece.address)
            else:
                self._check_raw(peer, nbytes, piece.count)

        return Receive(peer, self._capacity(piece), consume, None if piece.compress else piece.address, tag)

    def receive_values(self, peer: int, piece: Piece, use: Callable[[Values], None], tag: int) -> Receive:
        """Return the message that brings a piece's like, which is given to use."""

        def consume(address: int, nbytes: int) -> None:
            if not piece.compress:
                self._check_raw(peer, nbytes, piece.count)
                use(Values(address, piece.count))
                return
            header = self._header(peer, address, nbytes, piece.count)
            coded = header.layout == wire.LAYOUT_BLOCKS
            use(Values(address + header.nbytes, piece.count, nbytes - header.nbytes if coded else None))

        return Receive(peer, self._capacity(piece), consume, None, tag)

    def combine(self, op: int, values: Values, accumulator: int) -> None:
        """Combine values with an accumulator; those that are encoded go from the decoder straight into it."""
        if values.body_nbytes is None:
            self.codec.accumulate(self.dtype, op, values.address, accumulator, values.count)
        else:
            self.codec.decode_reduce(self.dtype, op, values.address, values.body_nbytes, accumulator, values.count)

    def add_sent(self, raw_nbytes: int, wire_nbytes: int | None = None) -> None:
        """Count bytes that this rank sends, as they are if not said otherwise."""
        self.raw_nbytes += raw_nbytes
        self.wire_nbytes += raw_nbytes if wire_nbytes is None else wire_nbytes

    def _capacity(self, piece: Piece) -> int:
        if not piece.compress:
            return piece.count * self.dtype.itemsize
        return wire.FLAT_HEADER_NBYTES + wire.body_nbytes_bound(piece.count, self.dtype)

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


def in_turns(parts: Sequence[tuple[int, Sequence[Piece]]]) -> Iterator[tuple[int, Piece]]:
    """Yield (peer, piece) of all peers' first pieces, then of all second ones, and so on."""
    for index in range(max((len(pieces) for _, pieces in parts), default=0)):
        for peer, pieces in parts:
            if index < len(pieces):
                yield peer, pieces[index]
