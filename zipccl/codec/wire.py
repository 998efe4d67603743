"""Wire format, version 1: the constants and the layout, drawn once.

A payload is a header and a body. All integers are little-endian.

    header  offset  size  field
            0       4     magic "zccl"
            4       1     version (1)
            5       1     dtype code (DTYPES)
            6       1     layout of the body: 0 raw, 1 blocks
            7       1     predictor (0: none; others are reserved)
            8       2     values in a block (256)
            10      1     ndim
            11      5     zero
            16      8     count of values, the product of the shape
            24      8*n   shape
            ..      ..    zero, up to a multiple of 16

    raw     the array's bytes in C order.

    blocks  tile ends     per tile of 64 blocks: u64 static end, u64 variable end
            directory     per block: u8 code;
                          then, for floats, per block: u8 base;
                          then, for floats that have low planes, per block: u8 mask
            (zero)        up to a multiple of 16
            static        per block, of a size that its directory entry tells
            variable      per block, of a size that its directory entry tells
            tail          the last count % 256 values as they are

A *tile end* is the offset, from the start of the static (variable) region, at which the tile's last block ends.
So a reader can start at any tile, and the last tile's ends are the sizes of the two regions.

A float is split into three parts (``split`` in reference.py):

    exponent E    the exponent field, one byte. float64's has eleven bits: there E is the field less the block's origin,
                  where the field is not zero, and zero where it is; the origin is the block's greatest field less
                  255, or zero if that is negative. A block with a field in 1..origin is raw.
    rest R        (the seven highest mantissa bits, or all if there are fewer) << 1 | sign
    low           mantissa bits below those

R and low are stored as planes, lowest bits first: *byte planes* (one byte per value) where there are whole bytes,
else *bit planes* (value i in bit i % 8 of byte i // 8). R is a byte plane, or 3 or 4 bit planes of a float8. Low is
3 bit planes (float16), 2 byte planes (float32), or 5 byte planes and a group of 5 bit planes (float64).

A *coded* block has a base exponent b. Each value's o = E - b (mod 256) is looked up in three levels of four codes;
code 3 means that the value is handed to the next level, and what leaves the third is an escape:

    level    code 0  code 1  code 2
    0           0      -1      -2
    1, 2     by the block's table:  skewed      +1  -3  -4,  then  -5  -6  -7
                                    falling     -3  -4  -5,  then  +1  -6  -7
                                    symmetric   +1  +2  -3,  then  -4  -5  -6

    static part     R
                    level 0, first bits of the codes: 32 bytes, value i in bit i % 8 of byte i // 8
                    level 0, second bits: 32 bytes
                    low planes (groups) whose bit in the mask is set
    variable part   float64: origin, u16
                    level 1, level 2: the codes of the values that reached the level, in order, in rows of 32;
                    a row of r codes is the r first bits, then the r second bits, lowest bit first;
                    a level of m codes takes ceil(m / 4) bytes, unused bits zero
                    escapes: one byte E each
                    one zero byte if the size is odd

A *sparse* block holds only its n values that have a bit set. Everything is in the variable part:

                    float64: origin, u16
                    base, u8
                    which values are not zero: 32 bytes, value i in bit i % 8 of byte i // 8
                    R of the n values: n bytes, or bit planes of ceil(n / 8) bytes
                    level 0, in rows like the deeper levels; level 1, level 2, escapes: as in a coded block
                    low planes (bits of ceil(n / 8) bytes, bytes of n) whose bit in the mask is set
                    zero bytes up to a multiple of the itemsize

What the codes of a directory entry mean, where t is a table's number (0 skewed, 1 falling, 2 symmetric):

    code          block       static part     variable part
    64 t + s      coded       as above        2 s bytes; s < 64
    192           raw         the block's own bytes: the first ones in the static part, which is as large as a coded
                              block's with all low planes, the last ones in the variable part
    193           zero        none            none: every bit of the block is zero
    194           constant    none            one value, then a zero byte if its size is odd
    196 + t       sparse      none            base * itemsize bytes: of a sparse block, that is what base means

Base and mask are zero where they have no meaning; the mask of a raw block has all its bits. A mask bit may be clear
only where the whole plane is zero. Integers and bool have no exponents: their blocks are raw (all static), zero or
constant.

Why this order (the "communication-aware layout" of the ZipCCL paper, arXiv 2604.27844): for data without zero blocks
everything up to the end of the static region, about 94 % of a dense bf16 payload, has a size that is known before the
data are seen. A transport that must know sizes beforehand can send it while the size of the rest is on its way.
The size of every block stands in the directory, so threads, SIMD code and GPU warps decode blocks independently.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from zipccl.errors import CorruptPayloadError, UnsupportedArrayError

MAGIC = b"zccl"
VERSION = 1
LAYOUT_RAW = 0
LAYOUT_BLOCKS = 1

BLOCK_COUNT = 256
TILE_BLOCKS = 64
TILE_ENTRY_NBYTES = 16
ALIGNMENT = 16
MAX_NDIM = 64

BIT_PLANE_NBYTES = BLOCK_COUNT // 8
BYTE_PLANE_NBYTES = BLOCK_COUNT
ORIGIN_NBYTES = 2

DEEPER = 3
SKEWED, FALLING, SYMMETRIC = range(3)
TABLES = (
    ((0, -1, -2), (1, -3, -4), (-5, -6, -7)),
    ((0, -1, -2), (-3, -4, -5), (1, -6, -7)),
    ((0, -1, -2), (1, 2, -3), (-4, -5, -6)),
)
"""For each table and level, what o codes 0, 1 and 2 mean."""

TABLE_SHIFT = 6
"""A coded block's code is table << TABLE_SHIFT | variable_nbytes / 2."""

CODE_RAW = 192
CODE_ZERO = 193
CODE_CONSTANT = 194
CODE_SPARSE = 196
"""Code of a sparse block of the first table."""

MAX_CODED_VARIABLE_NBYTES = 2 * ((1 << TABLE_SHIFT) - 1)
MAX_SPARSE_UNITS = 255
"""Greatest size of a sparse block, in values."""


@dataclass(frozen=True)
class DType:
    """An element type that payloads can carry.

    Attributes:
        exponent_bits, mantissa_bits: of a float; 0 of other types.
    """

    name: str
    code: int
    itemsize: int
    exponent_bits: int = 0
    mantissa_bits: int = 0

    @property
    def is_float(self) -> bool:
        return self.exponent_bits > 0

    @property
    def has_origin(self) -> bool:
        return self.exponent_bits > 8

    @property
    def rest_bits(self) -> int:
        return min(self.mantissa_bits, 7) + 1

    @property
    def low_bits(self) -> int:
        return self.mantissa_bits - (self.rest_bits - 1)

    @cached_property
    def low_planes(self) -> tuple[Plane, ...]:
        """The planes of low bits, lowest first; bits that do not fill a byte are one group, or each one of its own."""
        planes = [Plane(bit, 8) for bit in range(0, self.low_bits - 7, 8)]
        rest = range(8 * len(planes), self.low_bits)
        planes += [Plane(rest.start, len(rest))] if planes and rest else [Plane(bit, 1) for bit in rest]
        return tuple(planes)

    @property
    def directory_entry_nbytes(self) -> int:
        return 1 + self.is_float + bool(self.low_planes)

    @property
    def coded_static_nbytes(self) -> int:
        """Size of a coded block's static part without its low planes."""
        return (self.rest_bits + 2) * BIT_PLANE_NBYTES

    @property
    def full_static_nbytes(self) -> int:
        """Size of a raw block's static part, and of a coded block's with all its low planes."""
        if not self.is_float:
            return self.block_nbytes
        return self.coded_static_nbytes + self.low_bits * BIT_PLANE_NBYTES

    @property
    def block_nbytes(self) -> int:
        return BLOCK_COUNT * self.itemsize

    @property
    def raw_variable_nbytes(self) -> int:
        """Size of a raw block's variable part; a coded block's is smaller."""
        return self.block_nbytes - self.full_static_nbytes


class Plane(NamedTuple):
    """Low bits that are stored or left out together."""

    first_bit: int
    bits: int

    @property
    def nbytes(self) -> int:
        return self.bits * BIT_PLANE_NBYTES


DTYPES = (
    DType("bfloat16", 1, 2, exponent_bits=8, mantissa_bits=7),
    DType("float16", 2, 2, exponent_bits=5, mantissa_bits=10),
    DType("float32", 3, 4, exponent_bits=8, mantissa_bits=23),
    DType("float64", 4, 8, exponent_bits=11, mantissa_bits=52),
    DType("float8_e4m3fn", 5, 1, exponent_bits=4, mantissa_bits=3),
    DType("float8_e5m2", 6, 1, exponent_bits=5, mantissa_bits=2),
    DType("bool", 16, 1),
    DType("int8", 17, 1),
    DType("uint8", 18, 1),
    DType("int16", 19, 2),
    DType("uint16", 20, 2),
    DType("int32", 21, 4),
    DType("uint32", 22, 4),
    DType("int64", 23, 8),
    DType("uint64", 24, 8),
)
_BY_NAME = {dtype.name: dtype for dtype in DTYPES}
_BY_CODE = {dtype.code: dtype for dtype in DTYPES}


def dtype_named(name: str) -> DType:
    """Return the element type of that name.

    Raises:
        UnsupportedArrayError: there is none.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        raise UnsupportedArrayError(f"dtype {name} is not supported; supported are {', '.join(_BY_NAME)}") from None


def align(offset: int) -> int:
    """Round an offset up to a multiple of ALIGNMENT."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class BlocksLayout:
    """Where the parts of a body in the blocks layout stand, as far as dtype and count decide it."""

    blocks: int
    tiles: int
    tail_nbytes: int
    directory_offset: int
    static_offset: int

    @classmethod
    def of(cls, count: int, dtype: DType) -> BlocksLayout:
        blocks, tail = divmod(count, BLOCK_COUNT)
        tiles = -(-blocks // TILE_BLOCKS)
        directory_offset = tiles * TILE_ENTRY_NBYTES
        static_offset = align(directory_offset + blocks * dtype.directory_entry_nbytes)
        return cls(blocks, tiles, tail * dtype.itemsize, directory_offset, static_offset)


def body_nbytes_bound(count: int, dtype: DType) -> int:
    """Return the space that encoding a body may use; a finished body never takes more than the array's own bytes."""
    return BlocksLayout.of(count, dtype).static_offset + count * dtype.itemsize


_FIXED = struct.Struct("<4sBBBBHB5xQ")
FLAT_HEADER_NBYTES = align(_FIXED.size + 8)
MAX_HEADER_NBYTES = align(_FIXED.size + 8 * MAX_NDIM)


@dataclass(frozen=True)
class Header:
    """A payload's header."""

    dtype: DType
    shape: tuple[int, ...]
    layout: int

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def raw_nbytes(self) -> int:
        return self.count * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return header_nbytes(len(self.shape))

    def pack(self) -> bytes:
        fixed = _FIXED.pack(MAGIC, VERSION, self.dtype.code, self.layout, 0, BLOCK_COUNT, len(self.shape), self.count)
        shape = struct.pack(f"<{len(self.shape)}Q", *self.shape)
        return (fixed + shape).ljust(self.nbytes, b"\0")

    @classmethod
    def unpack(cls, payload: memoryview) -> Header:
        """Read and check the header at the start of a payload.

        Raises:
            CorruptPayloadError: it is not a header of this version.
        """
        if len(payload) < _FIXED.size:
            raise CorruptPayloadError(f"payload has {len(payload)} bytes; a header has at least {_FIXED.size}")
        magic, version, code, layout, predictor, block_count, ndim, count = _FIXED.unpack_from(payload)
        if magic != MAGIC:
            raise CorruptPayloadError(f"payload starts with {bytes(magic)!r}; expected {MAGIC!r}")
        if version != VERSION:
            raise CorruptPayloadError(f"payload is of version {version}; this zipccl reads version {VERSION}")
        if code not in _BY_CODE:
            raise CorruptPayloadError(f"payload has the unknown dtype code {code}")
        dtype = _BY_CODE[code]
        if layout not in (LAYOUT_RAW, LAYOUT_BLOCKS):
            raise CorruptPayloadError(f"payload has the unknown layout {layout}")
        if predictor != 0:
            raise CorruptPayloadError(f"payload needs predictor {predictor}, which this zipccl does not have")
        if block_count != BLOCK_COUNT:
            raise CorruptPayloadError(f"payload has blocks of {block_count} values; expected {BLOCK_COUNT}")
        if ndim > MAX_NDIM or len(payload) < header_nbytes(ndim):
            raise CorruptPayloadError(f"payload of {len(payload)} bytes is too short for its header of ndim {ndim}")
        shape = struct.unpack_from(f"<{ndim}Q", payload, _FIXED.size)
        header = cls(dtype, shape, layout)
        if header.count != count:
            raise CorruptPayloadError(f"payload has count {count} but shape {shape}")
        return header


def header_nbytes(ndim: int) -> int:
    """Return the size of a header for an array of that many dimensions."""
    return align(_FIXED.size + 8 * ndim)
