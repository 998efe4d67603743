"""The codec in NumPy: the wire format's specification in code.

It is what runs where the native codec could not be built, and what every other codec must equal byte for byte.
The steps that all values go through are done for all blocks at once; what differs from block to block is done in
a loop. Read ``encode_body`` and ``decode_body`` from the top. The layout is drawn in wire.py.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zipccl.codec import base as protocol
from zipccl.codec import reductions, wire
from zipccl.errors import CorruptPayloadError

Bytes = NDArray[np.uint8]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Words = NDArray[np.uint64]


class ReferenceCodec:
    """The Codec protocol in NumPy, for machines without the native extension and for the tests."""

    name = "reference"

    def encode_body(self, dtype: wire.DType, source: int, count: int, body: int) -> int:
        room = _bytes_at(body, wire.body_nbytes_bound(count, dtype))
        return encode_body(_bytes_at(source, count * dtype.itemsize), dtype, room)

    def decode_body(self, dtype: wire.DType, body: int, nbytes: int, target: int, count: int) -> None:
        decode_body(_bytes_at(body, nbytes), dtype, _bytes_at(target, count * dtype.itemsize))

    def decode_reduce(self, dtype: wire.DType, op: int, body: int, nbytes: int, accumulator: int, count: int) -> None:
        values = np.empty(count * dtype.itemsize, np.uint8)
        decode_body(_bytes_at(body, nbytes), dtype, values)
        self.accumulate(dtype, op, values.ctypes.data, accumulator, count)

    def pack_encode(self, dtype: wire.DType, accumulator: int, count: int, divisor: int, target: int, body: int) -> int:
        self.pack(dtype, accumulator, target, count, divisor)
        return self.encode_body(dtype, target, count, body)

    def widen(self, dtype: wire.DType, source: int, accumulator: int, count: int) -> None:
        values = reductions.widen(dtype, _bytes_at(source, count * dtype.itemsize))
        _bytes_at(accumulator, values.nbytes)[:] = values.view(np.uint8)

    def accumulate(self, dtype: wire.DType, op: int, source: int, accumulator: int, count: int) -> None:
        stored = _bytes_at(accumulator, count * protocol.accumulator_itemsize(dtype))
        total = stored.view(reductions.accumulator_type(dtype))
        total[:] = reductions.accumulate(dtype, op, _bytes_at(source, count * dtype.itemsize), total)

    def pack(self, dtype: wire.DType, accumulator: int, target: int, count: int, divisor: int) -> None:
        stored = _bytes_at(accumulator, count * protocol.accumulator_itemsize(dtype))
        total = stored.view(reductions.accumulator_type(dtype))
        _bytes_at(target, count * dtype.itemsize)[:] = reductions.pack(dtype, total, divisor)


def _bytes_at(address: int, nbytes: int) -> Bytes:
    if nbytes == 0:
        return np.zeros(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


_MIN_SPARSE_ZEROS = 16
"""Values of a block that must be zero for the bitmap of a sparse block to pay."""

# Entry (table, level, o) is the code of o = E - base (mod 256).
_CODES = np.full((3, 3, 256), wire.DEEPER, dtype=np.uint8)
for _table, _levels in enumerate(wire.TABLES):
    for _level, _offsets in enumerate(_levels):
        for _code, _offset in enumerate(_offsets):
            _CODES[_table, _level, _offset % 256] = _code
# Entry (table, level, code) is the o that a code stands for.
_OFFSETS = np.pad(np.array(wire.TABLES), [(0, 0), (0, 0), (0, 1)]).astype(np.uint8)


class _Parts(NamedTuple):
    """A block's values split as wire.py says."""

    exponent: Bytes
    rest: Bytes
    low: Words
    origin: int = 0


def encode_body(source: Bytes, dtype: wire.DType, body: Bytes) -> int:
    """Encode the bytes of an array and return how many bytes of body were filled.

    Args:
        source: the array's bytes, 1-D.
        body: room for at least ``wire.body_nbytes_bound`` bytes.

    Returns:
        The body's size; equal to the array's own size if and only if the body is in the raw layout.
    """
    if source.size >= dtype.block_nbytes:
        encoded = _encode_blocks(source, dtype)
        if encoded.size < source.size:
            body[: encoded.size] = encoded
            return encoded.size
    body[: source.size] = source
    return source.size


def decode_body(body: Bytes, dtype: wire.DType, target: Bytes) -> None:
    """Decode a body in the blocks layout into the bytes of an array.

    Raises:
        CorruptPayloadError: the body is not one that an encoder could have written for that many bytes.
    """
    layout = wire.BlocksLayout.of(target.size // dtype.itemsize, dtype)
    if body.size < layout.static_offset:
        raise CorruptPayloadError(f"body of {body.size} bytes ends before its directory")
    ends = body[: layout.directory_offset].view("<u8").reshape(layout.tiles, 2)
    entries = body[layout.directory_offset :][: layout.blocks * dtype.directory_entry_nbytes]
    entries = entries.reshape(dtype.directory_entry_nbytes, layout.blocks)
    absent = np.zeros(layout.blocks, np.uint8)
    code, base, mask = (entries[i] if i < len(entries) else absent for i in range(3))
    static_sizes, variable_sizes = part_sizes(code, base, mask, dtype)
    static_ends, variable_ends = np.cumsum(static_sizes), np.cumsum(variable_sizes)
    if not np.array_equal(ends, _tile_ends(static_ends, variable_ends)):
        raise CorruptPayloadError("the tile ends differ from the directory's sizes")
    static_nbytes, variable_nbytes = int(static_sizes.sum()), int(variable_sizes.sum())
    expected = layout.static_offset + static_nbytes + variable_nbytes + layout.tail_nbytes
    if body.size != expected:
        raise CorruptPayloadError(f"body has {body.size} bytes; its directory tells {expected}")

    out = target[: layout.blocks * dtype.block_nbytes].reshape(layout.blocks, dtype.block_nbytes)
    target[out.size :] = body[body.size - layout.tail_nbytes :]
    static_starts = layout.static_offset + static_ends - static_sizes
    variable_starts = layout.static_offset + static_nbytes + variable_ends - variable_sizes
    for block in range(layout.blocks):
        static = body[static_starts[block] :][: static_sizes[block]]
        variable = body[variable_starts[block] :][: variable_sizes[block]]
        if code[block] == wire.CODE_RAW:
            out[block] = np.concatenate([static, variable])
        elif code[block] == wire.CODE_ZERO:
            out[block] = 0
        elif code[block] == wire.CODE_CONSTANT:
            out[block] = np.tile(variable[: dtype.itemsize], wire.BLOCK_COUNT)
        elif code[block] >= wire.CODE_SPARSE:
            table = code[block] - wire.CODE_SPARSE
            out[block] = _decode_sparse(_Reader(variable), int(table), int(mask[block]), dtype)
        else:
            table = code[block] >> wire.TABLE_SHIFT
            parts = _decode_coded(
                _Reader(static), _Reader(variable), int(table), int(base[block]), int(mask[block]), dtype
            )
            out[block] = join(parts, dtype)


def split(values: Bytes, dtype: wire.DType) -> _Parts | None:
    """Split a block of a float dtype, given as bytes; return None if its exponents are too far apart."""
    word = values.view(f"<u{dtype.itemsize}").astype(np.uint64)
    sign = word >> (8 * dtype.itemsize - 1)
    field = (word >> dtype.mantissa_bits & (1 << dtype.exponent_bits) - 1).astype(np.int64)
    low = word & (1 << dtype.low_bits) - 1
    high = word >> dtype.low_bits & (1 << dtype.rest_bits - 1) - 1
    origin = max(int(field.max()) - 255, 0)
    if ((field > 0) & (field <= origin)).any():
        return None
    exponent = np.where(field > 0, field - origin, 0).astype(np.uint8)
    return _Parts(exponent, (high << 1 | sign).astype(np.uint8), low.astype(np.uint64), origin)


def join(parts: _Parts, dtype: wire.DType) -> Bytes:
    """Undo split; exponent bits that the dtype does not have are dropped."""
    field = np.where(parts.exponent > 0, parts.exponent.astype(np.uint64) + parts.origin, 0).astype(np.uint64)
    field &= (1 << dtype.exponent_bits) - 1
    rest = parts.rest.astype(np.uint64)
    word = (rest & 1) << (8 * dtype.itemsize - 1) | field << dtype.mantissa_bits
    word |= rest >> 1 << dtype.low_bits | parts.low
    return word.astype(f"<u{dtype.itemsize}").view(np.uint8)


def choose_base(exponent: Bytes) -> int:
    """Return the base exponent of a block's exponents.

    The first guess needs no histogram: the middle between the mean and the greatest exponent of the values that are
    not zero or subnormal. It then moves by one if level 0 holds more values there.
    """
    normal = int(np.count_nonzero(exponent))
    total, greatest = int(exponent.sum(dtype=np.int64)), int(exponent.max())
    guess = (2 * total + (2 * greatest + 3) * normal) // max(4 * normal, 1)
    count = _counts_around(exponent, guess)
    if count[-3] > count[0]:
        return (guess - 1) % 256
    if count[1] > count[-2]:
        return (guess + 1) % 256
    return guess


def choose_table(exponent: Bytes, base: int) -> int:
    """Return the table that takes the fewest bits, all escapes taken for o = 2 or o = -7."""
    count = _counts_around(exponent, base)
    if 5 * count[2] > count[-4] + 4 * count[-7]:
        return wire.SYMMETRIC
    return wire.FALLING if count[-5] > count[1] else wire.SKEWED


def _counts_around(exponent: Bytes, base: int) -> dict[int, int]:
    return {o: int(np.count_nonzero(exponent == (base + o) % 256)) for o in range(-7, 3)}


def _encode_blocks(source: Bytes, dtype: wire.DType) -> Bytes:
    layout = wire.BlocksLayout.of(source.size // dtype.itemsize, dtype)
    values = source[: layout.blocks * dtype.block_nbytes].reshape(layout.blocks, dtype.block_nbytes)
    items = values.reshape(layout.blocks, wire.BLOCK_COUNT, dtype.itemsize)
    constant: Bools = (items == items[:, :1]).all(axis=(1, 2))
    present: Bools = np.count_nonzero(items, axis=2) > 0

    entries = np.zeros((3, layout.blocks), np.uint8)
    static: list[Bytes] = []
    variable: list[Bytes] = []
    for block in range(layout.blocks):
        if constant[block] and present[block, 0]:
            entry = (wire.CODE_CONSTANT, 0, 0)
            variable.append(_padded(values[block, : dtype.itemsize], 2))
        elif constant[block]:
            entry = (wire.CODE_ZERO, 0, 0)
        else:
            encoded = _encode_float(values[block], present[block], dtype) if dtype.is_float else None
            if encoded is None:
                entry = (wire.CODE_RAW, 0, (1 << len(dtype.low_planes)) - 1)
                static.append(values[block, : dtype.full_static_nbytes])
                variable.append(values[block, dtype.full_static_nbytes :])
            else:
                entry, static_part, variable_part = encoded
                static.append(static_part)
                variable.append(variable_part)
        entries[:, block] = entry

    static_sizes, variable_sizes = part_sizes(entries[0], entries[1], entries[2], dtype)
    ends = _tile_ends(np.cumsum(static_sizes), np.cumsum(variable_sizes))
    directory = entries[: dtype.directory_entry_nbytes].ravel()
    padding = np.zeros(layout.static_offset - layout.directory_offset - directory.size, np.uint8)
    tail = source[values.size :]
    return np.concatenate([ends.view(np.uint8).ravel(), directory, padding, *static, *variable, tail])


def _encode_float(values: Bytes, present: Bools, dtype: wire.DType) -> tuple[tuple[int, int, int], Bytes, Bytes] | None:
    """Return a block's directory entry, static and variable part, coded or sparse; None if it is to be raw."""
    parts = split(values, dtype)
    if parts is None:
        return None
    exponent, rest, low, origin = parts
    sparse = wire.BLOCK_COUNT - np.count_nonzero(present) >= _MIN_SPARSE_ZEROS
    if sparse:
        exponent, rest, low = exponent[present], rest[present], low[present]
    base = choose_base(exponent)
    table = choose_table(exponent, base)
    codes = _CODES[table][:, exponent - np.uint8(base)]
    deeper = [_pack_rows(codes[0])] if sparse else []
    reached = codes[0] == wire.DEEPER
    for level in (1, 2):
        deeper.append(_pack_rows(codes[level][reached]))
        reached &= codes[level] == wire.DEEPER
    deeper.append(exponent[reached])
    kept = [number for number, plane in enumerate(dtype.low_planes) if _pack_plane(low, plane).any()]
    planes = [_pack_plane(low, dtype.low_planes[number]) for number in kept]
    mask = sum(1 << number for number in kept)
    origin_part = np.frombuffer(origin.to_bytes(2, "little") if dtype.has_origin else b"", np.uint8)
    packed_rest = _pack_plane(rest.astype(np.uint64), wire.Plane(0, dtype.rest_bits))
    if sparse:
        head = [origin_part, np.array([base], np.uint8), np.packbits(present, bitorder="little"), packed_rest]
        variable = _padded(np.concatenate([*head, *deeper, *planes]), dtype.itemsize)
        units = variable.size // dtype.itemsize
        if units > wire.MAX_SPARSE_UNITS:
            return None
        return (wire.CODE_SPARSE + table, units, mask), np.zeros(0, np.uint8), variable
    variable = _padded(np.concatenate([origin_part, *deeper]), 2)
    if variable.size > min(wire.MAX_CODED_VARIABLE_NBYTES, dtype.raw_variable_nbytes - 1):
        return None
    level_0 = [np.packbits(bits, bitorder="little") for bits in (codes[0] & 1, codes[0] >> 1)]
    static = np.concatenate([packed_rest, *level_0, *planes])
    return (table << wire.TABLE_SHIFT | variable.size // 2, base, mask), static, variable


class _Reader:
    """Reads a part from its start on."""

    def __init__(self, part: Bytes) -> None:
        self._part = part
        self._position = 0

    def take(self, nbytes: int) -> Bytes:
        if nbytes > self._part.size - self._position:
            raise CorruptPayloadError(f"a block's codes take more than the {self._part.size} bytes of its entry")
        self._position += nbytes
        return self._part[self._position - nbytes : self._position]

    def close(self, multiple: int) -> None:
        """Check that only padding up to a multiple of bytes is left."""
        taken = -(-self._position // multiple) * multiple
        if taken != self._part.size:
            raise CorruptPayloadError(f"a block's codes take {taken} bytes; its entry tells {self._part.size}")


def _decode_coded(static: _Reader, variable: _Reader, table: int, base: int, mask: int, dtype: wire.DType) -> _Parts:
    rest = _unpack_plane(static.take(dtype.rest_bits * wire.BIT_PLANE_NBYTES), wire.Plane(0, dtype.rest_bits))
    bits = [np.unpackbits(static.take(wire.BIT_PLANE_NBYTES), bitorder="little") for _ in range(2)]
    low = _decode_low(static, mask, wire.BLOCK_COUNT, dtype)
    origin = _decode_origin(variable, dtype)
    exponent = _decode_exponents(variable, bits[0] | bits[1] << np.uint8(1), table, base)
    variable.close(2)
    return _Parts(exponent, rest.astype(np.uint8), low, origin)


def _decode_sparse(reader: _Reader, table: int, mask: int, dtype: wire.DType) -> Bytes:
    origin = _decode_origin(reader, dtype)
    base = int(reader.take(1)[0])
    present = np.unpackbits(reader.take(wire.BIT_PLANE_NBYTES), bitorder="little").astype(bool)
    count = int(np.count_nonzero(present))
    rest_plane = wire.Plane(0, dtype.rest_bits)
    rest = _unpack_plane(reader.take(_packed_nbytes(rest_plane, count)), rest_plane, count)
    codes = _unpack_rows(reader.take(-(-count // 4)), count)
    exponent = _decode_exponents(reader, codes, table, base)
    low = _decode_low(reader, mask, count, dtype)
    reader.close(dtype.itemsize)
    items = np.zeros((wire.BLOCK_COUNT, dtype.itemsize), np.uint8)
    items[present] = join(_Parts(exponent, rest.astype(np.uint8), low, origin), dtype).reshape(count, dtype.itemsize)
    return items.ravel()


def _decode_origin(reader: _Reader, dtype: wire.DType) -> int:
    return int.from_bytes(reader.take(wire.ORIGIN_NBYTES).tobytes(), "little") if dtype.has_origin else 0


def _decode_exponents(reader: _Reader, codes: Bytes, table: int, base: int) -> Bytes:
    """Decode the exponents of values whose codes of level 0 are given."""
    exponent = np.uint8(base) + _OFFSETS[table, 0][codes]
    reached = np.flatnonzero(codes == wire.DEEPER)
    for level in (1, 2):
        codes = _unpack_rows(reader.take(-(-reached.size // 4)), reached.size)
        exponent[reached] = np.uint8(base) + _OFFSETS[table, level][codes]
        reached = reached[codes == wire.DEEPER]
    exponent[reached] = reader.take(reached.size)
    return exponent


def _decode_low(reader: _Reader, mask: int, count: int, dtype: wire.DType) -> Words:
    low = np.zeros(count, np.uint64)
    for number, plane in enumerate(dtype.low_planes):
        if mask >> number & 1:
            low |= _unpack_plane(reader.take(_packed_nbytes(plane, count)), plane, count) << plane.first_bit
    return low


def part_sizes(code: Bytes, base: Bytes, mask: Bytes, dtype: wire.DType) -> tuple[Ints, Ints]:
    """Return the sizes of the blocks' static and variable parts.

    Raises:
        CorruptPayloadError: an entry is not one that this version writes.
    """
    all_planes = (1 << len(dtype.low_planes)) - 1
    nbytes = 2 * (code.astype(np.int64) & (1 << wire.TABLE_SHIFT) - 1)
    raw, zero, constant = (code == special for special in (wire.CODE_RAW, wire.CODE_ZERO, wire.CODE_CONSTANT))
    coded = (code < wire.CODE_RAW) & (nbytes < dtype.raw_variable_nbytes) & dtype.is_float
    sparse = (code >= wire.CODE_SPARSE) & (code < wire.CODE_SPARSE + len(wire.TABLES)) & dtype.is_float
    good_mask = np.where(coded | sparse, mask <= all_planes, np.where(raw, mask == all_planes, mask == 0))
    bad = np.flatnonzero(~(coded | raw | zero | constant | sparse) | ~good_mask)
    if bad.size:
        block = bad[0]
        raise CorruptPayloadError(f"directory entry of block {block} has code {code[block]} and mask {mask[block]}")
    static_sizes = np.where(coded, dtype.coded_static_nbytes, 0)
    for number, plane in enumerate(dtype.low_planes):
        static_sizes += np.where(coded & (mask >> number & 1 == 1), plane.nbytes, 0)
    static_sizes[raw] = dtype.full_static_nbytes
    variable_sizes = np.where(coded, nbytes, 0)
    variable_sizes[raw] = dtype.raw_variable_nbytes
    variable_sizes[constant] = dtype.itemsize + dtype.itemsize % 2
    variable_sizes[sparse] = base[sparse].astype(np.int64) * dtype.itemsize
    return static_sizes, variable_sizes


def _tile_ends(static_ends: Ints, variable_ends: Ints) -> Words:
    last = np.minimum(
        np.arange(wire.TILE_BLOCKS, static_ends.size + wire.TILE_BLOCKS, wire.TILE_BLOCKS), static_ends.size
    )
    return np.stack([static_ends[last - 1], variable_ends[last - 1]], axis=1).astype("<u8")


def _padded(part: Bytes, multiple: int) -> Bytes:
    return np.pad(part, (0, -part.size % multiple))


def _packed_nbytes(plane: wire.Plane, count: int) -> int:
    return count if plane.bits == 8 else plane.bits * -(-count // 8)


def _pack_plane(values: Words, plane: wire.Plane) -> Bytes:
    """Store some bits of values as a byte plane, if they are eight, or as bit planes, lowest first."""
    bits = values >> plane.first_bit
    if plane.bits == 8:
        return bits.astype(np.uint8)
    planes = [np.packbits((bits >> bit & 1).astype(np.uint8), bitorder="little") for bit in range(plane.bits)]
    return np.concatenate(planes)


def _unpack_plane(packed: Bytes, plane: wire.Plane, count: int = wire.BLOCK_COUNT) -> Words:
    """Undo _pack_plane; the bits come from bit 0 on."""
    if plane.bits == 8:
        return packed.astype(np.uint64)
    values = np.zeros(count, np.uint64)
    for bit, stored in enumerate(packed.reshape(plane.bits, -1)):
        values |= np.unpackbits(stored, count=count, bitorder="little").astype(np.uint64) << bit
    return values


def _pack_rows(codes: Bytes) -> Bytes:
    rows = [codes[start : start + 32] for start in range(0, codes.size, 32)]
    bits = [bits for row in rows for bits in (row & 1, row >> 1)]
    return np.packbits(np.concatenate(bits), bitorder="little") if bits else np.zeros(0, np.uint8)


def _unpack_rows(packed: Bytes, count: int) -> Bytes:
    bits = np.unpackbits(packed, count=2 * count, bitorder="little")
    codes = np.zeros(count, np.uint8)
    for start in range(0, count, 32):
        row = min(32, count - start)
        first, second = bits[2 * start :][:row], bits[2 * start + row :][:row]
        codes[start : start + row] = first | second << 1
    return codes
