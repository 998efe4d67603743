"""The codec in NumPy: the wire format's specification in code.

It is what runs where the native codec could not be built, and what every other codec must equal byte for byte.
All blocks of a body are coded at once, one NumPy operation per step; read ``encode_body`` and ``decode_body`` from
the top. The layout is drawn in wire.py.
"""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from zipccl.codec import base as protocol
from zipccl.codec import reductions, wire
from zipccl.errors import CorruptPayloadError

Bytes = NDArray[np.uint8]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


class ReferenceCodec:
    """The Codec protocol in NumPy, for machines without the native extension and for the tests."""

    name = "reference"

    def encode_body(self, dtype: wire.DType, source: int, count: int, body: int) -> int:
        room = _bytes_at(body, wire.body_nbytes_bound(count, dtype))
        return encode_body(_bytes_at(source, count * dtype.itemsize), dtype, room)

    def decode_body(self, dtype: wire.DType, body: int, nbytes: int, target: int, count: int) -> None:
        if not dtype.coded:
            raise CorruptPayloadError(f"dtype {dtype.name} has no blocks layout")
        decode_body(_bytes_at(body, nbytes), dtype, _bytes_at(target, count * dtype.itemsize))

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


# Entry o of a table is the code of o = E - base (mod 256) in a level.
_CODE_TABLES = np.full((2, 3, 256), wire.DEEPER, dtype=np.uint8)
for _symmetric, _levels in enumerate((wire.SKEWED, wire.SYMMETRIC)):
    for _level, _offsets in enumerate(_levels):
        for _code, _offset in enumerate(_offsets):
            _CODE_TABLES[_symmetric, _level, _offset % 256] = _code
# Entry (symmetric, level, code) is the o that a code stands for.
_OFFSETS = np.array([wire.SKEWED, wire.SYMMETRIC]).astype(np.uint8)


def encode_body(source: Bytes, dtype: wire.DType, body: Bytes) -> int:
    """Encode the bytes of an array and return how many bytes of body were filled.

    Args:
        source: the array's bytes, 1-D.
        body: room for at least ``wire.body_nbytes_bound`` bytes.

    Returns:
        The body's size; equal to the array's own size if and only if the body is in the raw layout.
    """
    blocks = source.size // dtype.block_nbytes
    if dtype.coded and blocks:
        encoded = _encode_blocks(source, dtype, blocks)
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
    directory = body[layout.directory_offset :]
    base = directory[: layout.blocks]
    code = directory[layout.blocks : 2 * layout.blocks]
    mask = directory[2 * layout.blocks : 3 * layout.blocks] if dtype.low_plane_nbytes else np.zeros_like(base)
    static_sizes, variable_sizes = _part_sizes(code, mask, dtype)
    static_ends = np.cumsum(static_sizes)
    variable_ends = np.cumsum(variable_sizes)
    if not np.array_equal(ends, _tile_ends(static_ends, variable_ends)):
        raise CorruptPayloadError("the tile ends differ from the directory's sizes")
    static_nbytes, variable_nbytes = (int(ends[-1, 0]), int(ends[-1, 1])) if layout.tiles else (0, 0)
    expected = layout.static_offset + static_nbytes + variable_nbytes + layout.tail_nbytes
    if body.size != expected:
        raise CorruptPayloadError(f"body has {body.size} bytes; its directory tells {expected}")
    static = body[layout.static_offset :][:static_nbytes]
    variable = body[layout.static_offset + static_nbytes :][:variable_nbytes]
    static_starts = static_ends - static_sizes
    variable_starts = variable_ends - variable_sizes

    out = target[: layout.blocks * dtype.block_nbytes].reshape(layout.blocks, dtype.block_nbytes)
    target[out.size :] = body[body.size - layout.tail_nbytes :]
    out[code == wire.CODE_ZERO] = 0
    for block in np.flatnonzero(code == wire.CODE_CONSTANT):
        value = variable[variable_starts[block] :][: dtype.itemsize]
        out[block] = np.tile(value, wire.BLOCK_COUNT)
    raw = np.flatnonzero(code == wire.CODE_RAW)
    out[raw, : dtype.full_static_nbytes] = _rows(static, static_starts[raw], dtype.full_static_nbytes)
    out[raw, dtype.full_static_nbytes :] = _rows(variable, variable_starts[raw], dtype.raw_variable_nbytes)
    for symmetric, first_code in enumerate((0, wire.CODE_SYMMETRIC)):
        chosen = np.flatnonzero((code >= first_code) & (code < first_code + wire.CODE_RAW))
        if chosen.size:
            exponent = _decode_exponents(
                _rows(static, static_starts[chosen] + wire.REST_NBYTES, 2 * wire.LEVEL_0_PLANE_NBYTES),
                variable,
                variable_starts[chosen],
                variable_sizes[chosen],
                base[chosen],
                symmetric,
            )
            rest = _rows(static, static_starts[chosen], wire.REST_NBYTES)
            low = _decode_low(static, static_starts[chosen] + wire.CODED_STATIC_NBYTES, mask[chosen], dtype)
            out[chosen] = join(exponent, rest, low, dtype).view(np.uint8)


def split(values: Bytes, dtype: wire.DType) -> tuple[Bytes, Bytes, NDArray[np.unsignedinteger]]:
    """Split blocks of values, given as bytes (blocks, block_nbytes), into exponent, rest and low mantissa bits."""
    if dtype.itemsize == 4:
        word = values.view("<u4")
        high, low = word >> 16, word & 0xFFFF
    else:
        high = values.view("<u2").astype(np.uint32)
        low = high & 7
    if dtype.name == "float16":
        exponent, mantissa, sign = high >> 10 & 31, high >> 3 & 127, high >> 15
    else:
        exponent, mantissa, sign = high >> 7 & 255, high & 127, high >> 15
    return exponent.astype(np.uint8), (mantissa << 1 | sign).astype(np.uint8), low.astype(np.uint16)


def join(
    exponent: Bytes, rest: Bytes, low: NDArray[np.unsignedinteger], dtype: wire.DType
) -> NDArray[np.unsignedinteger]:
    """Undo split; exponent bits that the dtype does not have are dropped."""
    wide = exponent.astype(np.uint32)
    mantissa, sign = rest.astype(np.uint32) >> 1, rest.astype(np.uint32) & 1
    if dtype.name == "float16":
        return (sign << 15 | (wide & 31) << 10 | mantissa << 3 | low).astype("<u2")
    high = sign << 15 | wide << 7 | mantissa
    if dtype.name == "float32":
        return (high << 16 | low).astype("<u4")
    return high.astype("<u2")


def choose_base(exponent: Bytes) -> Bytes:
    """Return the base exponent of each row of block exponents.

    The first guess needs no histogram: the middle between the mean and the greatest exponent of the values that are
    not zero or subnormal. It then moves by one if level 0 holds more values there.
    """
    normal = np.count_nonzero(exponent, axis=1)
    total = exponent.sum(axis=1, dtype=np.int64)
    greatest = exponent.max(axis=1).astype(np.int64)
    guess = (2 * total + (2 * greatest + 3) * normal) // np.maximum(4 * normal, 1)
    down = _occurrences(exponent, guess - 3) > _occurrences(exponent, guess)
    up = ~down & (_occurrences(exponent, guess + 1) > _occurrences(exponent, guess - 2))
    return (guess - down + up).astype(np.uint8)


def choose_symmetric(exponent: Bytes, base: Bytes) -> Bools:
    """Return for each block whether its deeper levels use the symmetric table."""
    return _occurrences(exponent, base + np.int64(2)) > _occurrences(exponent, base - np.int64(4))


def _occurrences(exponent: Bytes, wanted: Ints) -> Ints:
    return np.count_nonzero(exponent == (wanted % 256).astype(np.uint8)[:, None], axis=1)


def _encode_blocks(source: Bytes, dtype: wire.DType, blocks: int) -> Bytes:
    values = source[: blocks * dtype.block_nbytes].reshape(blocks, dtype.block_nbytes)
    zero: Bools = np.count_nonzero(values, axis=1) == 0
    items = values.reshape(blocks, wire.BLOCK_COUNT, dtype.itemsize)
    constant: Bools = (items == items[:, :1]).all(axis=(1, 2)) & ~zero
    exponent, rest, low = split(values, dtype)
    base = choose_base(exponent)
    symmetric = choose_symmetric(exponent, base)
    level_0, variable_parts = _encode_exponents(exponent, base, symmetric)
    planes = [_low_plane(low, plane, dtype) for plane in range(len(dtype.low_plane_nbytes))]
    present = np.array([plane.any(axis=1) for plane in planes], dtype=bool).reshape(len(planes), blocks)
    mask = np.zeros(blocks, np.uint8)
    for plane in range(len(planes)):
        mask |= present[plane].astype(np.uint8) << plane

    variable_sizes = np.array([part.size for part in variable_parts])
    raw: Bools = (variable_sizes >= dtype.raw_variable_nbytes) & ~zero & ~constant
    code = (variable_sizes // 2 + symmetric * wire.CODE_SYMMETRIC).astype(np.uint8)
    for where, special in ((zero, wire.CODE_ZERO), (constant, wire.CODE_CONSTANT), (raw, wire.CODE_RAW)):
        code[where] = special
        base[where] = 0
        mask[where] = (1 << len(planes)) - 1 if special == wire.CODE_RAW else 0

    static: list[Bytes] = []
    variable: list[Bytes] = []
    for block in range(blocks):
        if raw[block]:
            static.append(values[block, : dtype.full_static_nbytes])
            variable.append(values[block, dtype.full_static_nbytes :])
        elif constant[block]:
            variable.append(values[block, : dtype.itemsize])
            variable.append(np.zeros(dtype.itemsize % 2, np.uint8))
        elif not zero[block]:
            static += [rest[block], level_0[block]]
            static += [plane[block] for plane, kept in zip(planes, present[:, block], strict=True) if kept]
            variable.append(variable_parts[block])

    static_sizes, variable_sizes = _part_sizes(code, mask, dtype)
    ends = _tile_ends(np.cumsum(static_sizes), np.cumsum(variable_sizes))
    directory = [base, code, mask] if planes else [base, code]
    layout = wire.BlocksLayout.of(source.size // dtype.itemsize, dtype)
    padding = np.zeros(layout.static_offset - layout.directory_offset - blocks * dtype.directory_entry_nbytes, np.uint8)
    tail = source[values.size :]
    return np.concatenate([ends.view(np.uint8).ravel(), *directory, padding, *static, *variable, tail])


def _part_sizes(code: Bytes, mask: Bytes, dtype: wire.DType) -> tuple[Ints, Ints]:
    """Return the sizes of the blocks' static and variable parts.

    Raises:
        CorruptPayloadError: an entry is not one that this version writes.
    """
    all_planes = (1 << len(dtype.low_plane_nbytes)) - 1
    in_table = code & ~np.uint8(wire.CODE_SYMMETRIC)
    coded = (in_table < wire.CODE_RAW) & (2 * in_table.astype(np.int64) < dtype.raw_variable_nbytes)
    raw, zero, constant = (code == special for special in (wire.CODE_RAW, wire.CODE_ZERO, wire.CODE_CONSTANT))
    good_mask = np.where(coded, mask <= all_planes, np.where(raw, mask == all_planes, mask == 0))
    bad = np.flatnonzero(~(coded | raw | zero | constant) | ~good_mask)
    if bad.size:
        block = bad[0]
        raise CorruptPayloadError(f"directory entry of block {block} has code {code[block]} and mask {mask[block]}")
    static_sizes = np.where(coded, wire.CODED_STATIC_NBYTES, 0)
    for plane, nbytes in enumerate(dtype.low_plane_nbytes):
        static_sizes += np.where(coded & (mask >> plane & 1 == 1), nbytes, 0)
    static_sizes[raw] = dtype.full_static_nbytes
    variable_sizes = np.where(coded, 2 * in_table.astype(np.int64), 0)
    variable_sizes[raw] = dtype.raw_variable_nbytes
    variable_sizes[constant] = dtype.itemsize + dtype.itemsize % 2
    return static_sizes, variable_sizes


def _tile_ends(static_ends: Ints, variable_ends: Ints) -> NDArray[np.uint64]:
    last = np.minimum(
        np.arange(wire.TILE_BLOCKS, static_ends.size + wire.TILE_BLOCKS, wire.TILE_BLOCKS), static_ends.size
    )
    return np.stack([static_ends[last - 1], variable_ends[last - 1]], axis=1).astype("<u8")


def _rows(region: Bytes, starts: Ints, nbytes: int) -> Bytes:
    """Gather nbytes bytes from each start into one row per start."""
    return region[starts[:, None] + np.arange(nbytes)]


def _low_plane(low: NDArray[np.unsignedinteger], plane: int, dtype: wire.DType) -> Bytes:
    if dtype.low_plane_nbytes[plane] == wire.BLOCK_COUNT:
        return (low >> (8 * plane)).astype(np.uint8)
    return np.packbits((low >> plane & 1).astype(np.uint8), axis=1, bitorder="little")


def _decode_low(static: Bytes, starts: Ints, mask: Bytes, dtype: wire.DType) -> NDArray[np.unsignedinteger]:
    low = np.zeros((starts.size, wire.BLOCK_COUNT), np.uint32)
    for plane, nbytes in enumerate(dtype.low_plane_nbytes):
        kept = (mask >> plane & 1).astype(np.int64)
        present = np.flatnonzero(kept)
        stored = _rows(static, starts[present], nbytes)
        if nbytes == wire.BLOCK_COUNT:
            low[present] |= stored.astype(np.uint32) << (8 * plane)
        else:
            low[present] |= np.unpackbits(stored, axis=1, bitorder="little").astype(np.uint32) << plane
        starts = starts + nbytes * kept
    return low


def _encode_exponents(exponent: Bytes, base: Bytes, symmetric: Bools) -> tuple[Bytes, list[Bytes]]:
    """Return level 0's planes (blocks, 64) and each block's variable part."""
    offset = exponent - base[:, None]
    tables = symmetric.astype(np.intp)[:, None]
    codes = [_CODE_TABLES[tables, level, offset] for level in range(3)]
    level_0 = np.concatenate(
        [np.packbits(bits, axis=1, bitorder="little") for bits in (codes[0] & 1, codes[0] >> 1)], axis=1
    )
    variable_parts = []
    for block in range(len(exponent)):
        parts = []
        reached = codes[0][block] == wire.DEEPER
        for level in (1, 2):
            parts.append(_pack_rows(codes[level][block][reached]))
            reached &= codes[level][block] == wire.DEEPER
        parts.append(exponent[block][reached])
        parts.append(np.zeros(sum(part.size for part in parts) % 2, np.uint8))
        variable_parts.append(np.concatenate(parts))
    return level_0, variable_parts


def _decode_exponents(level_0: Bytes, variable: Bytes, starts: Ints, sizes: Ints, base: Bytes, symmetric: int) -> Bytes:
    bits = np.unpackbits(level_0, axis=1, bitorder="little").reshape(len(base), 2, wire.BLOCK_COUNT)
    codes = bits[:, 0] | bits[:, 1] << 1
    offsets = np.append(_OFFSETS[symmetric], np.zeros((3, 1), np.uint8), axis=1)
    exponent = base[:, None] + offsets[0][codes]
    for block in range(len(base)):
        part = variable[starts[block] :][: sizes[block]]
        reached = np.flatnonzero(codes[block] == wire.DEEPER)
        position = 0
        for level in (1, 2):
            nbytes = -(-reached.size // 4)
            level_codes = _unpack_rows(part[position : position + nbytes], reached.size)
            position += nbytes
            exponent[block, reached] = base[block] + offsets[level][level_codes]
            reached = reached[level_codes == wire.DEEPER]
        end = position + reached.size
        if end + end % 2 != part.size:
            raise CorruptPayloadError(f"a block's codes take {end + end % 2} bytes; its directory tells {part.size}")
        exponent[block, reached] = part[position:end]
    return exponent


def _pack_rows(codes: Bytes) -> Bytes:
    full, rest = divmod(codes.size, 32)
    rows = [codes[: full * 32].reshape(full, 32)] if full else []
    bits = [np.concatenate([row & 1, row >> 1], axis=1).ravel() for row in rows]
    if rest:
        bits.append(np.concatenate([codes[full * 32 :] & 1, codes[full * 32 :] >> 1]))
    return np.packbits(np.concatenate(bits), bitorder="little") if bits else np.zeros(0, np.uint8)


def _unpack_rows(packed: Bytes, count: int) -> Bytes:
    if packed.size != -(-count // 4):
        raise CorruptPayloadError("a block's codes end before their level does")
    bits = np.unpackbits(packed, bitorder="little")[: 2 * count]
    full = count // 32
    rows = bits[: full * 64].reshape(full, 2, 32)
    last = bits[full * 64 :].reshape(2, count - full * 32)
    return np.concatenate([(rows[:, 0] | rows[:, 1] << 1).ravel(), last[0] | last[1] << 1])
