"""What the codec tests share: the codecs, buffers that notice strangers, and blocks of every kind."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.cuda import on_device
from tests.simt import codec as simt
from tests.unit import foreign
from zipccl.codec import base, reference, wire
from zipccl.codec.native import NativeCodec, supported_isas
from zipccl.codec.wire import DType

Bytes = NDArray[np.uint8]

REFERENCE = reference.ReferenceCodec()
NATIVE: list[base.Codec] = [
    *(NativeCodec(isa) for isa in supported_isas()),
    *foreign.codecs(),
    *(on_device.codecs() or simt.codecs()),
]
CODECS: list[base.Codec] = [REFERENCE, *NATIVE]
FLOATS = [dtype for dtype in wire.DTYPES if dtype.is_float]
WHOLES = [dtype for dtype in wire.DTYPES if not dtype.is_float]

every_float = pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
every_dtype = pytest.mark.parametrize("dtype", wire.DTYPES, ids=lambda dtype: dtype.name)
every_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
native = pytest.mark.parametrize("codec", NATIVE, ids=lambda codec: codec.name)

GUARD_NBYTES = 128
PROT_NONE = 0


class GuardBytes:
    """Memory at an address of a given offset from a multiple of 64, between bytes that must not change."""

    def __init__(self, nbytes: int, offset: int = 0) -> None:
        size = 2 * GUARD_NBYTES + 64 + offset + nbytes
        self._memory = (np.arange(size) * 37 + 11).astype(np.uint8)
        self._before = self._memory.copy()
        start = GUARD_NBYTES + -(self._memory.ctypes.data + GUARD_NBYTES) % 64 + offset
        self._inside = slice(start, start + nbytes)
        self.bytes = self._memory[self._inside]
        self.address = self._memory.ctypes.data + start

    def check(self) -> None:
        """Fail if a byte outside was written."""
        outside = np.ones(self._memory.size, bool)
        outside[self._inside] = False
        strange = np.flatnonzero(outside & (self._memory != self._before)) - self._inside.start
        assert strange.size == 0, f"bytes written outside the buffer of {self.bytes.size}: {strange[:10]}"


class GuardPages:
    """Memory between two pages whose use ends the process; a reader or writer outside cannot hide."""

    def __init__(self, nbytes: int) -> None:
        page = mmap.PAGESIZE
        self._inside = -(-nbytes // page) * page
        self._mapping = mmap.mmap(-1, self._inside + 2 * page)
        first = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        self._start = first + page
        libc = ctypes.CDLL(None, use_errno=True)
        for guard in (first, self._start + self._inside):
            if libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), PROT_NONE):
                raise OSError(ctypes.get_errno(), "mprotect")

    def place(self, content: Bytes | int, at_end: bool) -> tuple[int, Bytes]:
        """Put bytes, or room for so many, flush with the first or last guard page; return their address and them."""
        nbytes = content if isinstance(content, int) else content.size
        address = self._start + (self._inside - nbytes if at_end else 0)
        view = np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8)
        if not isinstance(content, int):
            view[:] = content
        return address, view


def encode(codec: base.Codec, dtype: DType, source: Bytes, source_offset: int = 0, body_offset: int = 0) -> Bytes:
    """Encode into a body of exactly the bound; check that nothing else was written and the source was kept."""
    count = source.size // dtype.itemsize
    given = GuardBytes(source.size, source_offset)
    given.bytes[:] = source
    body = GuardBytes(wire.body_nbytes_bound(count, dtype), body_offset)
    nbytes = codec.encode_body(dtype, given.address, count, body.address)
    given.check()
    body.check()
    assert np.array_equal(given.bytes, source)
    return body.bytes[:nbytes].copy()


def decode(codec: base.Codec, dtype: DType, body: Bytes, count: int, body_offset: int = 0, offset: int = 0) -> Bytes:
    """Decode into a target of exactly the values' size; check that nothing else was written."""
    given = GuardBytes(body.size, body_offset)
    given.bytes[:] = body
    target = GuardBytes(count * dtype.itemsize, offset)
    try:
        codec.decode_body(dtype, given.address, body.size, target.address, count)
    finally:
        given.check()
        target.check()
        assert np.array_equal(given.bytes, body)
    return target.bytes.copy()


def assert_all_agree(dtype: DType, source: Bytes, codecs: list[Any] | None = None) -> Bytes:
    """Encode with every codec and decode with every other one; return the body."""
    codecs = CODECS if codecs is None else codecs
    count = source.size // dtype.itemsize
    bodies = [encode(codec, dtype, source) for codec in codecs]
    for codec, body in zip(codecs[1:], bodies[1:], strict=True):
        assert body.size == bodies[0].size, f"{codec.name} encodes {count} values to another size than {codecs[0].name}"
        different = np.flatnonzero(body != bodies[0])
        assert different.size == 0, f"{codec.name} encodes byte {different[0]} otherwise than {codecs[0].name}"
    if bodies[0].size == source.size:
        assert np.array_equal(bodies[0], source)
        return bodies[0]
    for codec in codecs:
        assert np.array_equal(decode(codec, dtype, bodies[0], count), source), f"{codec.name} decodes {count} wrongly"
    return bodies[0]


def as_bytes(array: NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(array).view(np.uint8)


def directory_of(body: Bytes, dtype: DType, count: int) -> tuple[Bytes, Bytes]:
    """Return the codes and the masks of a body's blocks."""
    layout = wire.BlocksLayout.of(count, dtype)
    entries = body[layout.directory_offset :][: layout.blocks * dtype.directory_entry_nbytes]
    entries = entries.reshape(dtype.directory_entry_nbytes, layout.blocks)
    return entries[0], entries[2] if dtype.low_planes else np.zeros(layout.blocks, np.uint8)


def values_of(
    exponent: NDArray[Any], dtype: DType, rng: np.random.Generator, low_planes: int = -1, origin: int = 900
) -> Bytes:
    """Return values with given exponents, random signs and mantissas, and only those low planes.

    Args:
        origin: of float64, what the exponents that are not zero are less than the exponent fields.
    """
    low = np.zeros(exponent.size, np.uint64)
    for number, plane in enumerate(dtype.low_planes):
        if low_planes >> number & 1:
            low |= rng.integers(0, 1 << plane.bits, exponent.size, dtype=np.uint64) << np.uint64(plane.first_bit)
    rest = rng.integers(0, 1 << dtype.rest_bits, exponent.size, dtype=np.uint8)
    fields = np.clip(exponent, 0, top_exponent(dtype)).astype(np.uint8)
    return reference.join(reference._Parts(fields, rest, low, origin if dtype.has_origin else 0), dtype)


def top_exponent(dtype: DType) -> int:
    return min((1 << dtype.exponent_bits) - 1, 255)


def middle_exponent(dtype: DType) -> int:
    return {4: 10, 5: 17}.get(dtype.exponent_bits, 120)


def _gaussian(rng: np.random.Generator, dtype: DType) -> Bytes:
    return values_of(middle_exponent(dtype) + np.floor(np.log2(np.abs(rng.standard_normal(256)))), dtype, rng)


def _symmetric(rng: np.random.Generator, dtype: DType) -> Bytes:
    return values_of(middle_exponent(dtype) + rng.choice(np.arange(-4, 3), 256), dtype, rng)


def _escaping(rng: np.random.Generator, dtype: DType) -> Bytes:
    exponent = middle_exponent(dtype) - rng.integers(0, 3, 256)
    exponent[rng.random(256) < 0.1] -= 12
    return values_of(exponent, dtype, rng)


def _all_in_level_2(rng: np.random.Generator, dtype: DType) -> Bytes:
    # One great value draws the base up, half the way.
    exponent = middle_exponent(dtype) - rng.integers(11, 13, 256)
    exponent[rng.integers(256)] = middle_exponent(dtype)
    return values_of(exponent, dtype, rng)


def _without_low_planes(rng: np.random.Generator, dtype: DType) -> Bytes:
    exponent = middle_exponent(dtype) - rng.geometric(0.6, 256)
    return values_of(exponent, dtype, rng, low_planes=int(rng.integers(0, 64)))


def _falling(rng: np.random.Generator, dtype: DType) -> Bytes:
    return values_of(middle_exponent(dtype) + 1 - rng.integers(0, 7, 256), dtype, rng)


def sparse(rng: np.random.Generator, dtype: DType, present: int) -> Bytes:
    """Return a block of values like Gaussian ones of which all but so many are zero."""
    values = _gaussian(rng, dtype).reshape(256, dtype.itemsize).copy()
    values[:, 0] |= 1
    values[rng.permutation(256)[present:]] = 0
    return values.ravel()


def _subnormal(rng: np.random.Generator, dtype: DType) -> Bytes:
    """Exponents of 0 and little more, with zeros among them: what stands for nothing must not be counted."""
    values = values_of(rng.integers(0, 4, 256), dtype, rng, origin=0).reshape(256, dtype.itemsize).copy()
    values[rng.random(256) < 0.3] = 0
    return values.ravel()


def _far_apart(rng: np.random.Generator, dtype: DType) -> Bytes:
    """Exponents around what float64 can hold with one origin; other types have no such limit."""
    values = _gaussian(rng, dtype).reshape(256, dtype.itemsize).copy()
    distance = int(rng.integers(100, 300))
    few = rng.permutation(256)[: rng.integers(1, 9)]
    lowest = np.full(few.size, middle_exponent(dtype))
    values[few] = values_of(lowest, dtype, rng, origin=900 - distance).reshape(few.size, dtype.itemsize)
    return values.ravel()


def _raw_without_low_planes(rng: np.random.Generator, dtype: DType) -> Bytes:
    return values_of(rng.integers(0, top_exponent(dtype) + 1, 256), dtype, rng, low_planes=int(rng.integers(0, 64)))


def _constant(rng: np.random.Generator, dtype: DType) -> Bytes:
    return np.tile(rng.integers(1, 256, dtype.itemsize, dtype=np.uint8), 256)


BLOCKS: dict[str, Callable[[np.random.Generator, DType], Bytes]] = {
    "zero": lambda _, dtype: np.zeros(dtype.block_nbytes, np.uint8),
    "negative zero": lambda _, dtype: np.tile(np.array([0] * (dtype.itemsize - 1) + [128], np.uint8), 256),
    "constant": _constant,
    "random bits": lambda rng, dtype: rng.integers(0, 256, dtype.block_nbytes, dtype=np.uint8),
    "gaussian": _gaussian,
    "symmetric": _symmetric,
    "escaping": _escaping,
    "all in level 2": _all_in_level_2,
    "without low planes": _without_low_planes,
    "raw without low planes": _raw_without_low_planes,
    "falling": _falling,
    "sparse": lambda rng, dtype: sparse(rng, dtype, int(rng.integers(257))),
    "subnormal": _subnormal,
    "far apart": _far_apart,
}
WHOLE_BLOCKS = ("zero", "negative zero", "constant", "random bits")


def mixture(kinds: list[str], dtype: DType, seed: int, tail: int = 0) -> Bytes:
    """Return blocks of the given kinds, in that order, and so many values more; of integers, random bits for most."""
    rng = np.random.default_rng([seed, dtype.code])
    possible = BLOCKS if dtype.is_float else WHOLE_BLOCKS
    parts = [BLOCKS[kind if kind in possible else "random bits"](rng, dtype) for kind in kinds]
    parts.append(rng.integers(0, 256, tail * dtype.itemsize, dtype=np.uint8))
    return np.concatenate(parts)
