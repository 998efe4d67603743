"""The messages of arrays in a device's memory, in the order of a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from zipccl.codec import wire
from zipccl.codec.cuda import CudaCodec, DecodePart, EncodePart, Status
from zipccl.codec.wire import DType
from zipccl.collectives.messages import Messages, Parcel
from zipccl.devices.base import Device, Memory
from zipccl.errors import CorruptPayloadError, MismatchError
from zipccl.payload import check_body_nbytes
from zipccl.transport.base import Piece, Receive, Send, Step, Values
from zipccl.transport.device import Arrival, DeviceTransport, Message


class DeviceMessages(Messages):
    """Makes the messages of one call in the order of a stream. A message is a payload's header and its body.

    The header is made by the host, and goes ahead of the body by another way; so a message that is not compressed has
    one too, and what a rank expects is compared with what comes before any values move.
    """

    transport: DeviceTransport

    def __init__(self, transport: DeviceTransport, device: Device, codec: CudaCodec, dtype: DType, stream: int) -> None:
        super().__init__(dtype)
        self.transport = transport
        self.stream = stream
        self._device = device
        self._codec = codec
        self._held: list[Memory] = []
        self._statuses: list[Status] = []

    def exchange(self, steps: Iterable[Step], local: Iterable[Callable[[], None]] = ()) -> None:
        for work in local:
            work()
        for step in steps:
            self.transport.exchange(step, self)

    def introduce(self, outgoing: Parcel | None, incoming: Parcel | None) -> None:
        """Do nothing: the header of each message says what comes."""

    def combine(self, op: int, values: Values, accumulator: int) -> None:
        address, count, nbytes = values.address, values.count, values.body_nbytes
        if nbytes is None:
            self._codec.accumulate_on(self.dtype, op, address, accumulator, count, self.stream)
        else:
            parts = [DecodePart(address, nbytes, accumulator, count)]
            self._statuses.append(self._codec.decode_reduce_parts(self.dtype, op, parts, self.stream))

    def pack(self, accumulator: int, target: int, count: int, divisor: int) -> None:
        self._codec.pack_on(self.dtype, accumulator, target, count, divisor, self.stream)

    def finish(self) -> None:
        self.transport.wait(self.stream)
        for status in self._statuses:
            status.check()

    def copy(self, source: int, target: int, nbytes: int) -> None:
        if source != target and nbytes:
            self._device.copy(target, source, nbytes, self.stream)

    def all_gather(self, source: int, nbytes: int, target: int) -> None:
        self.transport.all_gather(source, nbytes, target, self.stream)

    def all_to_all(self, source: int, nbytes: int, target: int) -> None:
        self.transport.all_to_all(source, nbytes, target, self.stream)

    def broadcast(self, address: int, nbytes: int, root: int) -> None:
        self.transport.broadcast(address, nbytes, root, self.stream)

    def take(self, nbytes: int) -> Memory:
        return self._device.allocate(nbytes, self.stream)

    def give_back(self, memory: Memory) -> None:
        self._held.append(memory)

    def encode(self, sends: Sequence[Send]) -> list[Message]:
        """Return the messages of sends, all encoded at once; waits until their sizes are known."""
        coded = [send.piece for send in sends if send.piece.compress]
        bodies = iter(self._encode(coded) if coded else ())
        messages = []
        for send in sends:
            raw_nbytes = send.piece.count * self.dtype.itemsize
            address, nbytes = next(bodies) if send.piece.compress else (send.piece.address, raw_nbytes)
            layout = wire.LAYOUT_RAW if nbytes == raw_nbytes else wire.LAYOUT_BLOCKS
            header = wire.Header(self.dtype, (send.piece.count,), layout)
            messages.append(Message(header, address, nbytes))
            wire_nbytes = nbytes + (header.nbytes if send.piece.compress else 0)
            self.add_sent(raw_nbytes * len(send.peers), wire_nbytes * len(send.peers))
        return messages

    def place(self, receive: Receive, header: wire.Header, nbytes: int) -> int:
        """Return the address for a message's body of nbytes bytes that has this header, if it is what is expected."""
        expected = wire.Header(self.dtype, (receive.piece.count,), header.layout)
        if header != expected:
            raise MismatchError(
                f"rank {receive.peer} sends {header.count} values of {header.dtype.name}; "
                f"rank {self.transport.rank} expects {expected.count} of {expected.dtype.name}: "
                "the ranks' arguments differ"
            )
        check_body_nbytes(header, header.nbytes + nbytes)
        if nbytes > header.raw_nbytes:
            raise CorruptPayloadError(f"rank {receive.peer} sends a body of {nbytes} bytes for {header.raw_nbytes}")
        if header.layout == wire.LAYOUT_RAW and not receive.use:
            return receive.piece.address
        self._held.append(self.take(nbytes))
        return self._held[-1].address

    def decode(self, arrivals: Sequence[Arrival]) -> None:
        """Decode messages, all at once, or give their values to what uses them, in the order given."""
        parts = [
            DecodePart(arrival.address, arrival.nbytes, arrival.receive.piece.address, arrival.header.count)
            for arrival in arrivals
            if arrival.header.layout == wire.LAYOUT_BLOCKS and not arrival.receive.use
        ]
        if parts:
            self._statuses.append(self._codec.decode_parts(self.dtype, parts, self.stream))
        for arrival in arrivals:
            if arrival.receive.use:
                coded = arrival.header.layout == wire.LAYOUT_BLOCKS
                arrival.receive.use(Values(arrival.address, arrival.header.count, arrival.nbytes if coded else None))

    def _encode(self, pieces: Sequence[Piece]) -> list[tuple[int, int]]:
        """Return (address, nbytes) of the pieces' bodies."""
        bodies = [self.take(wire.body_nbytes_bound(piece.count, self.dtype)) for piece in pieces]
        self._held += bodies
        pairs = zip(pieces, bodies, strict=True)
        parts = [EncodePart(piece.address, piece.count, body.address) for piece, body in pairs]
        sizes = self._codec.encode_parts(self.dtype, parts, self.stream)
        self.transport.wait(self.stream)
        return [(body.address, nbytes) for body, nbytes in zip(bodies, sizes.get(), strict=True)]
