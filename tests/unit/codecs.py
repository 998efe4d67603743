"""What the codec tests share: the codecs, buffers that notice strangers, and blocks of every kind."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.unit import foreign
from zipccl.codec import base, reference, wire
from zipccl.codec.native import NativeCodec, supported_isas
from zipccl.codec.wire import DType

Bytes = NDArray[np.uint8]

REFERENCE = reference.ReferenceCodec()
NATIVE: list[base.Codec] = [*(NativeCodec(isa) for isa in supported_isas()), *foreign.codecs()]
CODECS: list[base.Codec] = [REFERENCE, *NATIVE]
CODED = [dtype for dtype in wire.DTYPES if dtype.coded]

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


def directory_of(body: Bytes, dtype: DType, count: int) -> tuple[Bytes, Bytes]:
    """Return the codes and the masks of a body's blocks."""
    layout = wire.BlocksLayout.of(count, dtype)
    entries = body[layout.directory_offset :][: layout.blocks * dtype.directory_entry_nbytes]
    entries = entries.reshape(dtype.directory_entry_nbytes, layout.blocks)
    return entries[1], entries[2] if dtype.low_plane_nbytes else np.zeros(layout.blocks, np.uint8)


def values_of(exponent: NDArray[Any], dtype: DType, rng: np.random.Generator, low_planes: int = -1) -> Bytes:
    """Return values with the given exponent fields, random signs and mantissas, and only those low planes."""
    low = np.zeros(exponent.size, np.uint32)
    for plane, nbytes in enumerate(dtype.low_plane_nbytes):
        if low_planes >> plane & 1:
            width = 8 if nbytes == wire.BLOCK_COUNT else 1
            low |= rng.integers(0, 1 << width, exponent.size, dtype=np.uint32) << np.uint32(plane * width)
    top = 31 if dtype.name == "float16" else 255
    rest = rng.integers(0, 256, exponent.size, dtype=np.uint8)
    return reference.join(np.clip(exponent, 0, top).astype(np.uint8), rest, low, dtype).view(np.uint8)


def middle_exponent(dtype: DType) -> int:
    return 17 if dtype.name == "float16" else 120


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
    return values_of(exponent, dtype, rng, low_planes=int(rng.integers(0, 8)))


def _sparse(rng: np.random.Generator, dtype: DType) -> Bytes:
    values = _gaussian(rng, dtype).reshape(256, dtype.itemsize).copy()
    values[rng.random(256) < rng.random()] = 0
    return values.ravel()


def _raw_without_low_planes(rng: np.random.Generator, dtype: DType) -> Bytes:
    top = 32 if dtype.name == "float16" else 256
    return values_of(rng.integers(0, top, 256), dtype, rng, low_planes=int(rng.integers(0, 8)))


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
    "sparse": _sparse,
}


def mixture(kinds: list[str], dtype: DType, seed: int, tail: int = 0) -> Bytes:
    """Return blocks of the given kinds, in that order, and so many values more."""
    rng = np.random.default_rng([seed, dtype.code])
    parts = [BLOCKS[kind](rng, dtype) for kind in kinds]
    parts.append(rng.integers(0, 256, tail * dtype.itemsize, dtype=np.uint8))
    return np.concatenate(parts)
