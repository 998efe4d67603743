"""What makes an array compress as it does: its exponents' distribution, and what its payload consists of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zipccl.arrays import ArrayView, view_input
from zipccl.codec import wire
from zipccl.codec.directory import Directory
from zipccl.codec.wire import DType
from zipccl.payload import bytes_at, encode

Histogram = NDArray[np.int64]

_CHUNK_COUNT = 1 << 20
_CODE_BITS = 2
_WINDOW_CODE_BITS = 3
_WINDOW = 7
_TABLE_NAMES = ("skewed", "falling", "symmetric")
_MEDIAN_OF_GAUSSIAN = 0.6744897501960817
"""Median of the magnitude of a Gaussian of standard deviation 1."""


@dataclass(frozen=True)
class BlockKind:
    """The blocks of one kind in a payload.

    Attributes:
        nbytes: what they take, without their directory entries.
    """

    name: str
    blocks: int
    values: int
    nbytes: int

    @property
    def bits_per_value(self) -> float:
        return _bits(self.nbytes, self.values)


@dataclass(frozen=True)
class LowPlane:
    """Low mantissa bits that are stored or left out together.

    Attributes:
        first_bit, bits: which bits of a value.
        stored, left_out: coded and sparse blocks that have the plane, and that need none because its bits are zero.
    """

    first_bit: int
    bits: int
    stored: int
    left_out: int


@dataclass(frozen=True)
class Exponents:
    """The distribution of an array's exponent fields, in bits a value.

    Attributes:
        histogram: how often each value of the field occurs.
        entropy: of the field over the whole array.
        block_entropy: mean over the blocks of 256 values of the entropy within each.
        window_bits: by the 7-window code, with its best base: 3 bits for one of 7 exponents that follow each other, or
            for an escape, which is one byte more (two for float64).
        gaussian: probability of each value of the field in the Gaussian that has the array's median magnitude.
        gaussian_entropy: of that.
        gaussian_code_bits: expected by zipccl's coded blocks for that, without the directory.
    """

    histogram: Histogram
    entropy: float
    block_entropy: float
    window_bits: float
    gaussian: NDArray[np.float64]
    gaussian_entropy: float
    gaussian_code_bits: float


@dataclass(frozen=True)
class Inspection:
    """What ``inspect`` found out; as a string, a report.

    Attributes:
        nbytes: size of the array.
        payload_nbytes: size of its payload, of which the header and the directory (with tile ends) take
            header_nbytes and directory_nbytes, and kinds the rest.
        exponents: None where there are none: of integers and bool, and of empty arrays.
    """

    dtype: str
    count: int
    nbytes: int
    payload_nbytes: int
    header_nbytes: int
    directory_nbytes: int
    kinds: tuple[BlockKind, ...]
    low_planes: tuple[LowPlane, ...]
    exponents: Exponents | None

    @property
    def bits_per_value(self) -> float:
        """Bits of the payload for each value, all included."""
        return _bits(self.payload_nbytes, self.count)

    @property
    def ratio(self) -> float:
        """Size of the array per size of its payload."""
        return self.nbytes / self.payload_nbytes

    @property
    def other_bits(self) -> int:
        """Bits of a value that are not its exponent's."""
        dtype = wire.dtype_named(self.dtype)
        return 8 * dtype.itemsize - dtype.exponent_bits

    @property
    def limit_bits_per_value(self) -> float | None:
        """Bits a value with the exponents at the whole array's entropy and all others as they are."""
        return None if self.exponents is None else self.other_bits + self.exponents.entropy

    @property
    def limit_ratio(self) -> float | None:
        """The ratio that this limits one table for the whole array to; tables for parts of it can do better."""
        return self._ratio(self.limit_bits_per_value)

    @property
    def block_limit_bits_per_value(self) -> float | None:
        """The same at the entropy within each block, if the blocks' tables took no room."""
        return None if self.exponents is None else self.other_bits + self.exponents.block_entropy

    @property
    def window_bits_per_value(self) -> float | None:
        """Bits a value by the 7-window code, computed."""
        return None if self.exponents is None else self.other_bits + self.exponents.window_bits

    @property
    def gaussian_bits_per_value(self) -> float | None:
        """Bits a value that zipccl would take for a Gaussian of this dtype and magnitude, computed."""
        if self.exponents is None:
            return None
        entry = 8 * wire.dtype_named(self.dtype).directory_entry_nbytes / wire.BLOCK_COUNT
        tile = 8 * wire.TILE_ENTRY_NBYTES / (wire.TILE_BLOCKS * wire.BLOCK_COUNT)
        return min(8 * self.nbytes / self.count, self.other_bits + self.exponents.gaussian_code_bits + entry + tile)

    @property
    def gaussian_ratio(self) -> float | None:
        """The ratio that zipccl would reach for a Gaussian of this dtype and magnitude, computed."""
        return self._ratio(self.gaussian_bits_per_value)

    def blocks_of(self, kind: str) -> int:
        """Return how many blocks are of a kind: "coded", "sparse", "zero", "constant" or "raw"."""
        return sum(found.blocks for found in self.kinds if found.name.split(",")[0] == kind)

    def _ratio(self, bits_per_value: float | None) -> float | None:
        return None if bits_per_value is None else 8 * self.nbytes / self.count / bits_per_value

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.dtype}, {self.count} values, {self.nbytes} bytes"
        yield ""
        yield f"{'':50}{'bits/value':>12}{'ratio':>9}"
        yield _measure("zipccl", self.bits_per_value, self.ratio)
        if self.exponents is None:
            yield "no exponents, so only blocks of zeros or of one value shrink" if self.count else "no values"
        else:
            gaussian_limit = self.other_bits + self.exponents.gaussian_entropy
            for name, bits in (
                ("limit of one table: entropy of the exponents", self.limit_bits_per_value),
                ("limit within blocks of 256, their tables free", self.block_limit_bits_per_value),
                ("7-window code (ZipCCL, ZipServ), one base, computed", self.window_bits_per_value),
                ("a Gaussian: zipccl, computed", self.gaussian_bits_per_value),
                ("a Gaussian: limit", gaussian_limit),
            ):
                yield _measure(name, bits, self._ratio(bits))
        yield ""
        yield f"{'part':30}{'blocks':>10}{'values':>13}{'bytes':>13}{'bits/value':>12}"
        for kind in self.kinds:
            yield _part(kind.name, str(kind.blocks), kind.values, kind.nbytes)
        yield _part("directory", "", self.count, self.directory_nbytes)
        yield _part("header", "", self.count, self.header_nbytes)
        yield _part("all", str(self.count // wire.BLOCK_COUNT), self.count, self.payload_nbytes)
        if self.low_planes:
            yield ""
            yield "low mantissa bits left out, where they are zero in a whole block:"
        for plane in self.low_planes:
            last = plane.first_bit + plane.bits - 1
            name = f"bit {last}" if plane.bits == 1 else f"bits {plane.first_bit} to {last}"
            yield f"  {name:28}{plane.left_out:>10} of {plane.left_out + plane.stored} blocks"


def inspect(x: Any) -> Inspection:
    """Encode an array, and tell what its payload consists of and what the array's exponents allow.

    Args:
        x: an array that ``zipccl.encode`` takes.

    Raises:
        UnsupportedArrayError: x cannot be encoded.
    """
    view = view_input(x)
    payload = encode(view.owner)
    header = wire.Header.unpack(payload.data)
    directory_nbytes, kinds, low_planes = _contents(header, payload[header.nbytes :])
    return Inspection(
        dtype=view.dtype.name,
        count=view.count,
        nbytes=view.nbytes,
        payload_nbytes=payload.size,
        header_nbytes=header.nbytes,
        directory_nbytes=directory_nbytes,
        kinds=kinds,
        low_planes=low_planes,
        exponents=_exponents(view) if view.dtype.is_float and view.count else None,
    )


def entropy(histogram: NDArray[Any]) -> float:
    """Return the entropy of a distribution in bits, given as counts or as probabilities."""
    present = histogram[histogram > 0]
    shares = present / present.sum()
    return float(-(shares * np.log2(shares)).sum())


def window_bits(histogram: Histogram, escape_bits: int) -> float:
    """Return the bits a value of the 7-window code of ZipCCL and ZipServ, with the best base for these exponents."""
    width = min(_WINDOW, histogram.size)
    inside = np.convolve(histogram, np.ones(width, np.int64), "valid").max()
    return float(_WINDOW_CODE_BITS + escape_bits * (1 - inside / histogram.sum()))


def gaussian(dtype: DType, deviation: float) -> NDArray[np.float64]:
    """Return the probability of each value of the exponent field in a Gaussian of that standard deviation."""
    fields = 1 << dtype.exponent_bits
    bias = fields // 2 - 1
    # Field e starts at the magnitude 2 ** (e - bias); zero and the subnormals, of field 0, at zero.
    with np.errstate(over="ignore"):
        starts = np.concatenate([[0.0], np.ldexp(1.0, np.arange(1, fields) - bias)])
        relative = starts / (deviation * math.sqrt(2))
    below = np.array([math.erf(start) for start in relative])
    return np.diff(below, append=1.0)


def code_bits(probabilities: NDArray[np.float64]) -> float:
    """Return the expected bits a value of a coded block's codes, with the best base and table for these exponents."""
    present = np.flatnonzero(probabilities > 0)
    least = math.inf
    for levels in wire.TABLES:
        for base in range(int(present[0]), int(present[-1]) + 8):
            total, escaped = 0.0, 1.0
            for level, offsets in enumerate(levels):
                total += _CODE_BITS * escaped
                escaped -= sum(_at(probabilities, base + offset) for offset in offsets)
                if level == len(levels) - 1:
                    total += 8 * escaped
            least = min(least, total)
    return least


def _at(probabilities: NDArray[np.float64], field: int) -> float:
    return float(probabilities[field]) if 0 <= field < probabilities.size else 0.0


def _contents(header: wire.Header, body: NDArray[np.uint8]) -> tuple[int, tuple[BlockKind, ...], tuple[LowPlane, ...]]:
    dtype = header.dtype
    blocks, tail = divmod(header.count, wire.BLOCK_COUNT)
    if header.layout == wire.LAYOUT_RAW:
        kinds = [
            BlockKind("raw, as the whole array", blocks, blocks * wire.BLOCK_COUNT, blocks * dtype.block_nbytes),
            BlockKind("tail", 0, tail, tail * dtype.itemsize),
        ]
        return 0, tuple(kind for kind in kinds if kind.values), ()
    directory = Directory.read(body, header.count, dtype)
    coded = directory.table_of(0, 1 << wire.TABLE_SHIFT)
    sparse = directory.table_of(wire.CODE_SPARSE, 1)
    masks = {f"coded, {name}": coded == table for table, name in enumerate(_TABLE_NAMES)} | {
        "sparse": sparse >= 0,
        "zero": directory.codes == wire.CODE_ZERO,
        "constant": directory.codes == wire.CODE_CONSTANT,
        "raw": directory.codes == wire.CODE_RAW,
    }
    kinds = []
    for name, mask in masks.items():
        number = int(np.count_nonzero(mask))
        if number:
            nbytes = int(directory.block_nbytes[mask].sum())
            kinds.append(BlockKind(name, number, number * wire.BLOCK_COUNT, nbytes))
    if tail:
        kinds.append(BlockKind("tail", 0, tail, directory.tail_nbytes))
    with_planes = directory.masks[(coded >= 0) | (sparse >= 0)]
    planes = []
    for number, plane in enumerate(dtype.low_planes):
        stored = int(np.count_nonzero(with_planes >> number & 1))
        planes.append(LowPlane(plane.first_bit, plane.bits, stored, with_planes.size - stored))
    return directory.nbytes, tuple(kinds), tuple(planes)


def _exponents(view: ArrayView) -> Exponents:
    dtype = view.dtype
    words = np.frombuffer(bytes_at(view.address, view.nbytes), f"<u{dtype.itemsize}")
    fields = 1 << dtype.exponent_bits
    histogram = np.zeros(fields, np.int64)
    bits_within = 0.0
    for start in range(0, words.size, _CHUNK_COUNT):
        field = words[start : start + _CHUNK_COUNT] >> dtype.mantissa_bits & (fields - 1)
        blocks = _block_histograms(field.astype(np.int64), fields)
        histogram += blocks.sum(axis=0)
        bits_within += _total_bits(blocks)
    expected = gaussian(dtype, _median_magnitude(words, dtype) / _MEDIAN_OF_GAUSSIAN)
    return Exponents(
        histogram=histogram,
        entropy=entropy(histogram),
        block_entropy=bits_within / view.count,
        window_bits=window_bits(histogram, 16 if dtype.has_origin else 8),
        gaussian=expected,
        gaussian_entropy=entropy(expected),
        gaussian_code_bits=code_bits(expected),
    )


def _block_histograms(field: NDArray[np.int64], fields: int) -> Histogram:
    """Return a histogram for each block of 256 values; the last one may be of fewer."""
    blocks = -(-field.size // wire.BLOCK_COUNT)
    place = np.arange(field.size) // wire.BLOCK_COUNT * fields + field
    return np.bincount(place, minlength=blocks * fields).reshape(blocks, fields)


def _total_bits(histograms: Histogram) -> float:
    """Return the bits of all values, at the entropy within each block."""
    table = np.arange(wire.BLOCK_COUNT + 1, dtype=np.float64)
    table[1:] *= np.log2(table[1:])  # n log2 n
    return float(table[histograms.sum(axis=1)].sum() - table[histograms].sum())


def _median_magnitude(words: NDArray[Any], dtype: DType) -> float:
    """Return the median magnitude of the values that are not zero; 1 if all are, or if it is no number.

    It only fits a Gaussian, so of many values a million, evenly spaced, are enough.
    """
    words = words[:: -(-words.size // _CHUNK_COUNT)]
    magnitudes = words & np.array((1 << 8 * dtype.itemsize - 1) - 1, words.dtype)
    magnitudes = magnitudes[magnitudes > 0]
    if magnitudes.size == 0:
        return 1.0
    # The bits of positive floats are in the order of their values.
    middle = int(np.partition(magnitudes, magnitudes.size // 2)[magnitudes.size // 2])
    field, mantissa = middle >> dtype.mantissa_bits, middle & (1 << dtype.mantissa_bits) - 1
    bias = (1 << dtype.exponent_bits - 1) - 1
    if field == (1 << dtype.exponent_bits) - 1 and dtype.name != "float8_e4m3fn":
        return 1.0
    significand = mantissa / (1 << dtype.mantissa_bits) + (field > 0)
    return math.ldexp(significand, max(field, 1) - bias)


def _bits(nbytes: int, values: int) -> float:
    return 8 * nbytes / values if values else 0.0


def _measure(name: str, bits_per_value: float | None, ratio: float | None) -> str:
    return f"{name:50}{bits_per_value:>12.3f}{ratio:>9.3f}"


def _part(name: str, blocks: str, values: int, nbytes: int) -> str:
    return f"{name:30}{blocks:>10}{values:>13}{nbytes:>13}{_bits(nbytes, values):>12.3f}"
