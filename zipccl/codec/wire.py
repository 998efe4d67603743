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
            directory     per block: u8 base; then per block: u8 code;
                          then, for dtypes that have low planes, per block: u8 mask
            (zero)        up to a multiple of 16
            static        per block, of a size that its directory entry tells
            variable      per block, of a size that its directory entry tells
            tail          the last count % 256 values as they are

A *tile end* is the offset, from the start of the static (variable) region, at which the tile's last block ends.
So a reader can start at any tile, and the last tile's ends are the sizes of the two regions.

A float is split into three parts (``split`` in reference.py):

    exponent E    the exponent field, one byte
    rest R        one byte: (seven highest mantissa bits) << 1 | sign
    low           mantissa bits below those, as planes: bytes (one per value) or bits (one per value,
                  value i in bit i % 8 of byte i // 8); plane 0 holds the lowest bits

A *coded* block has a base exponent b. Each value's o = E - b (mod 256) is looked up in three levels of four codes;
code 3 means that the value is handed to the next level, and what leaves the third is an escape:

    level       code 0  code 1  code 2
    0             0      -1      -2
    1  skewed    +1      -3      -4       symmetric  +1  +2  -3
    2  skewed    -5      -6      -7       symmetric  -4  -5  -6

    static part     R: 256 bytes
                    level 0, first bits of the codes: 32 bytes, value i in bit i % 8 of byte i // 8
                    level 0, second bits: 32 bytes
                    low planes whose bit in the mask is set, lowest first
    variable part   level 1, level 2: the codes of the values that reached the level, in order, in rows of 32;
                    a row of r codes is the r first bits, then the r second bits, lowest bit first;
                    a level of m codes takes ceil(m / 4) bytes, unused bits zero
                    escapes: one byte E each
                    one zero byte if the size is odd

What the codes of a directory entry mean, where var is the size of the variable part in bytes:

    code          block               static part     variable part
    0..95         coded, skewed       as above        2 * code bytes
    96            raw                 the block's own bytes: the first ones in the static part, which is as large
                                      as a coded block's with all low planes, the last ones in the variable part
    97            zero                none            none: every bit of the block is zero
    98            constant            none            one value, then a zero byte if its size is odd
    99, 100       sparse              none            2 * base bytes (reserved, not written by this version)
    128..223      coded, symmetric    as above        2 * (code - 128) bytes

Base and mask are zero where they have no meaning. A mask bit may be clear only where the whole plane is zero.

Why this order (the "communication-aware layout" of the ZipCCL paper, arXiv 2604.27844): for data without zero blocks
everything up to the end of the static region, about 94 % of a dense bf16 payload, has a size that is known before the
data are seen. A transport that must know sizes beforehand can send it while the size of the rest is on its way.
The size of every block stands in the directory, so threads, SIMD code and GPU warps decode blocks independently.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

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

REST_NBYTES = BLOCK_COUNT
LEVEL_0_PLANE_NBYTES = BLOCK_COUNT // 8
CODED_STATIC_NBYTES = REST_NBYTES + 2 * LEVEL_0_PLANE_NBYTES
"""Size of a coded block's static part without its low planes."""

CODE_RAW = 96
CODE_ZERO = 97
CODE_CONSTANT = 98
CODE_SPARSE_SKEWED = 99
CODE_SPARSE_SYMMETRIC = 100
CODE_SYMMETRIC = 128
"""First code of the coded, symmetric blocks."""

DEEPER = 3
SKEWED = ((0, -1, -2), (1, -3, -4), (-5, -6, -7))
SYMMETRIC = ((0, -1, -2), (1, 2, -3), (-4, -5, -6))


@dataclass(frozen=True)
class DType:
    """An element type that payloads can carry.

    Attributes:
        low_plane_nbytes: size of one block's plane of low mantissa bits, for each plane, lowest bits first.
        coded: whether this version codes values of the type in blocks; if not, they travel as they are.
    """

    name: str
    code: int
    itemsize: int
    coded: bool = False
    low_plane_nbytes: tuple[int, ...] = ()

    @property
    def directory_entry_nbytes(self) -> int:
        return 3 if self.low_plane_nbytes else 2

    @property
    def full_static_nbytes(self) -> int:
        """Size of a block's static part with all its low planes."""
        return CODED_STATIC_NBYTES + sum(self.low_plane_nbytes)

    @property
    def block_nbytes(self) -> int:
        return BLOCK_COUNT * self.itemsize

    @property
    def raw_variable_nbytes(self) -> int:
        """Size of a raw block's variable part; a coded block's is smaller."""
        return self.block_nbytes - self.full_static_nbytes


DTYPES = (
    DType("bfloat16", 1, 2, coded=True),
    DType("float16", 2, 2, coded=True, low_plane_nbytes=(32, 32, 32)),
    DType("float32", 3, 4, coded=True, low_plane_nbytes=(256, 256)),
    DType("float64", 4, 8),
    DType("float8_e4m3fn", 5, 1),
    DType("float8_e5m2", 6, 1),
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
    if not dtype.coded:
        return count * dtype.itemsize
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
        if layout not in (LAYOUT_RAW, LAYOUT_BLOCKS) or (layout == LAYOUT_BLOCKS and not dtype.coded):
            raise CorruptPayloadError(f"payload has the unknown layout {layout} for dtype {dtype.name}")
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
