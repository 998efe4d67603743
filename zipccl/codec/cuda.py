"""The codec of a device: starts the kernels of ``cuda_kernels/`` and gives them their scratch memory.

Each method that ends in ``_parts`` does many arrays with the same few kernel launches, whose work is put on a stream;
the host waits only when it asks for what they found. What a part's memory must be is said in ``codec/base.py``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zipccl.codec import base, status, wire
from zipccl.codec.wire import DType
from zipccl.devices.base import Device, Memory

# As in cuda_kernels/memory.cuh.
_THREADS = 256
_DECODE_THREADS = 128
_FINISH_THREADS = 64
_WARPS = 8

_TILE_STATE_NBYTES = 32
_WORD_NBYTES = 8

Words = NDArray[np.uint64]


@dataclass(frozen=True)
class EncodePart:
    """Values to encode into a body, which has ``wire.body_nbytes_bound`` bytes."""

    source: int
    count: int
    body: int


@dataclass(frozen=True)
class PackEncodePart:
    """An accumulator to round to values at target, which are encoded into a body."""

    accumulator: int
    count: int
    target: int
    body: int


@dataclass(frozen=True)
class DecodePart:
    """A body in the blocks layout to decode to a target: values, or an accumulator to combine them with."""

    body: int
    nbytes: int
    target: int
    count: int


class _Found:
    """Words that kernels write on the device, one for each part, and their copy on the host."""

    def __init__(self, device: Device, count: int, stream: int) -> None:
        self._device = device
        self._stream = stream
        self._count = count
        nbytes = max(count, 1) * _WORD_NBYTES
        self._memory = device.allocate(nbytes, stream)
        self._host = device.allocate_host(nbytes)
        device.fill(self._memory.address, 0, nbytes, stream)

    @property
    def address(self) -> int:
        """Address of the words in device memory."""
        return self._memory.address

    def fetch(self) -> None:
        """Put the copy to the host on the stream."""
        self._device.copy(self._host.address, self._memory.address, self._count * _WORD_NBYTES, self._stream)

    def words(self) -> list[int]:
        """Wait for the stream and return the words."""
        self._device.synchronize(self._stream)
        return [int(word) for word in _host_words(self._host, self._count)]


class Sizes:
    """The sizes of the bodies that were encoded, in the parts' order."""

    def __init__(self, found: _Found) -> None:
        self._found = found

    @property
    def address(self) -> int:
        """Address of the sizes in device memory, 64 bits each; there when what is on the stream so far is done."""
        return self._found.address

    def get(self) -> list[int]:
        """Wait for the stream and return the sizes, in bytes."""
        return self._found.words()


class Status:
    """Whether the bodies that were decoded were right."""

    def __init__(self, found: _Found, dtype: DType, parts: Sequence[DecodePart]) -> None:
        self._found = found
        self._dtype = dtype
        self._parts = parts

    def check(self) -> None:
        """Wait for the stream.

        Raises:
            CorruptPayloadError: no encoder writes such a body as one of them; its target's content is then undefined.
        """
        for word, part in zip(self._found.words(), self._parts, strict=True):
            status.check(word, self._dtype, part.nbytes, part.count)


class CudaCodec:
    """The Codec protocol on a device, and the same for many parts at once.

    The methods of the Codec protocol use the device's current stream and wait for it.
    """

    name = "cuda"

    def __init__(self, device: Device) -> None:
        self._device = device

    def encode_parts(self, dtype: DType, parts: Sequence[EncodePart], stream: int) -> Sizes:
        """Encode parts as ``encode_body`` does."""
        rows = [(part.source, part.count, part.body, 0) for part in parts]
        return self._encode(dtype, rows, "encode_tiles", (), stream)

    def pack_encode_parts(self, dtype: DType, parts: Sequence[PackEncodePart], divisor: int, stream: int) -> Sizes:
        """Round and encode parts as ``pack_encode`` does."""
        base.check_divisor(divisor)
        rows = [(part.target, part.count, part.body, part.accumulator) for part in parts]
        return self._encode(dtype, rows, "encode_packed_tiles", (divisor,), stream)

    def decode_parts(self, dtype: DType, parts: Sequence[DecodePart], stream: int) -> Status:
        """Decode parts as ``decode_body`` does."""
        found = _Found(self._device, len(parts), stream)
        self._decode(dtype, "decode_tiles", (), parts, found.address, stream)
        found.fetch()
        return Status(found, dtype, parts)

    def decode_reduce_parts(self, dtype: DType, op: int, parts: Sequence[DecodePart], stream: int) -> Status:
        """Decode and accumulate parts as ``decode_reduce`` does.

        Several parts may have the same accumulator, or overlapping ones; they are accumulated in the order given.
        """
        found = _Found(self._device, len(parts), stream)
        start = 0
        for end in _ends_of_disjoint_runs(dtype, parts):
            address = found.address + start * _WORD_NBYTES
            self._decode(dtype, "decode_reduce_tiles", (op,), parts[start:end], address, stream)
            start = end
        found.fetch()
        return Status(found, dtype, parts)

    def widen_on(self, dtype: DType, source: int, accumulator: int, count: int, stream: int) -> None:
        """Do as ``widen`` does on a stream."""
        self.accumulate_on(dtype, base.SET, source, accumulator, count, stream)

    def accumulate_on(self, dtype: DType, op: int, source: int, accumulator: int, count: int, stream: int) -> None:
        """Do as ``accumulate`` does on a stream."""
        self._launch_over(dtype, "accumulate_values", (source, accumulator, count, op), count, stream)

    def pack_on(self, dtype: DType, accumulator: int, target: int, count: int, divisor: int, stream: int) -> None:
        """Do as ``pack`` does on a stream."""
        base.check_divisor(divisor)
        self._launch_over(dtype, "pack_values", (accumulator, target, count, divisor), count, stream)

    def encode_body(self, dtype: DType, source: int, count: int, body: int) -> int:
        return self.encode_parts(dtype, [EncodePart(source, count, body)], self._device.current_stream()).get()[0]

    def decode_body(self, dtype: DType, body: int, nbytes: int, target: int, count: int) -> None:
        parts = [DecodePart(body, nbytes, target, count)]
        self.decode_parts(dtype, parts, self._device.current_stream()).check()

    def decode_reduce(self, dtype: DType, op: int, body: int, nbytes: int, accumulator: int, count: int) -> None:
        parts = [DecodePart(body, nbytes, accumulator, count)]
        self.decode_reduce_parts(dtype, op, parts, self._device.current_stream()).check()

    def pack_encode(self, dtype: DType, accumulator: int, count: int, divisor: int, target: int, body: int) -> int:
        parts = [PackEncodePart(accumulator, count, target, body)]
        return self.pack_encode_parts(dtype, parts, divisor, self._device.current_stream()).get()[0]

    def widen(self, dtype: DType, source: int, accumulator: int, count: int) -> None:
        stream = self._device.current_stream()
        self.widen_on(dtype, source, accumulator, count, stream)
        self._device.synchronize(stream)

    def accumulate(self, dtype: DType, op: int, source: int, accumulator: int, count: int) -> None:
        stream = self._device.current_stream()
        self.accumulate_on(dtype, op, source, accumulator, count, stream)
        self._device.synchronize(stream)

    def pack(self, dtype: DType, accumulator: int, target: int, count: int, divisor: int) -> None:
        stream = self._device.current_stream()
        self.pack_on(dtype, accumulator, target, count, divisor, stream)
        self._device.synchronize(stream)

    def _encode(
        self,
        dtype: DType,
        rows: Sequence[tuple[int, int, int, int]],
        kernel: str,
        more_arguments: tuple[int, ...],
        stream: int,
    ) -> Sizes:
        """Encode parts, of each of which its values, count, body and accumulator are given."""
        found = _Found(self._device, len(rows), stream)
        if rows:
            values, counts, bodies, accumulators = np.array(rows, np.uint64).T
            work, first_work = _work_of(counts)
            # Variable regions are moved to bodies in whole vectors, if they are aligned as these; and are at even
            # addresses.
            capacity = counts // np.uint64(wire.BLOCK_COUNT) * np.uint64(_variable_nbytes_bound(dtype))
            room = capacity // np.uint64(wire.ALIGNMENT) * np.uint64(wire.ALIGNMENT) + np.uint64(2 * wire.ALIGNMENT)
            scratch = self._device.allocate(int(room.sum()), stream)
            variable = np.uint64(scratch.address) + np.cumsum(room) - room + bodies % np.uint64(wire.ALIGNMENT) // 2 * 2
            table = self._upload(np.stack([values, counts, bodies, first_work, variable, accumulators], axis=1), stream)
            # The states of the tiles, and the ticket that the next thread block draws.
            states_nbytes = work * _TILE_STATE_NBYTES
            states = self._device.allocate(states_nbytes + _WORD_NBYTES, stream)
            self._device.fill(states.address, 0, states.nbytes, stream)
            arguments = (table.address, len(rows), states.address, states.address + states_nbytes, *more_arguments)
            self._device.launch(kernel, dtype, work, _THREADS, arguments, stream)
            arguments = (table.address, len(rows), states.address, found.address)
            self._device.launch("finish_bodies", dtype, work, _FINISH_THREADS, arguments, stream)
        found.fetch()
        return Sizes(found)

    def _decode(
        self,
        dtype: DType,
        kernel: str,
        more_arguments: tuple[int, ...],
        parts: Sequence[DecodePart],
        statuses: int,
        stream: int,
    ) -> None:
        if not parts:
            return
        rows = [(part.body, part.nbytes, part.target, part.count) for part in parts]
        bodies, nbytes, targets, counts = np.array(rows, np.uint64).T
        work, first_work = _work_of(counts)
        table = self._upload(np.stack([bodies, nbytes, targets, counts, first_work], axis=1), stream)
        arguments = (table.address, len(parts), statuses, *more_arguments)
        self._device.launch(kernel, dtype, work, _DECODE_THREADS, arguments, stream)

    def _launch_over(self, dtype: DType, kernel: str, arguments: tuple[int, ...], count: int, stream: int) -> None:
        blocks = -(-count // (_WARPS * wire.BLOCK_COUNT))
        if blocks:
            self._device.launch(kernel, dtype, blocks, _THREADS, arguments, stream)

    def _upload(self, table: Words, stream: int) -> Memory:
        """Copy a table to the device; from pageable memory, so that the host's copy may go at once."""
        table = np.ascontiguousarray(table)
        memory = self._device.allocate(table.nbytes, stream)
        self._device.copy(memory.address, table.ctypes.data, table.nbytes, stream)
        return memory


def _work_of(counts: Words) -> tuple[int, Words]:
    """Return the number of work items of parts of so many values, and each part's first one; see parts.cuh."""
    blocks = counts // np.uint64(wire.BLOCK_COUNT)
    items = np.maximum((blocks + np.uint64(wire.TILE_BLOCKS - 1)) // np.uint64(wire.TILE_BLOCKS), np.uint64(1))
    ends = np.cumsum(items)
    return int(ends[-1]), ends - items


def _variable_nbytes_bound(dtype: DType) -> int:
    """Return the greatest size of a block's variable part."""
    constant_nbytes = dtype.itemsize + dtype.itemsize % 2
    if not dtype.is_float:
        return constant_nbytes
    return wire.MAX_SPARSE_UNITS * dtype.itemsize


def _ends_of_disjoint_runs(dtype: DType, parts: Sequence[DecodePart]) -> list[int]:
    """Cut parts into runs, as long as they can be, of which no two have a byte of an accumulator in common."""
    itemsize = base.accumulator_itemsize(dtype)
    ends = []
    start = 0
    for number, part in enumerate(parts):
        stop = part.target + part.count * itemsize
        if any(
            part.target < other.target + other.count * itemsize and other.target < stop for other in parts[start:number]
        ):
            ends.append(number)
            start = number
    return [*ends, len(parts)] if parts else []


def _host_words(memory: Memory, count: int) -> Words:
    if count == 0:
        return np.zeros(0, np.uint64)
    return np.ctypeslib.as_array((ctypes.c_uint64 * count).from_address(memory.address))
