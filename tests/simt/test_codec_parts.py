"""Many parts at once: each is coded as if it were alone, whatever the order in which threads run."""

from __future__ import annotations

import numpy as np
import pytest

from tests.simt import codec
from tests.simt.device import SimtDevice, SimtMemory, array_at
from tests.unit import codecs
from tests.unit.codecs import Bytes, every_dtype
from zipccl.codec import base, wire
from zipccl.codec.cuda import CudaCodec, DecodePart, EncodePart, PackEncodePart
from zipccl.codec.native import NativeCodec
from zipccl.codec.wire import DType
from zipccl.errors import ArgumentError, CorruptPayloadError

pytestmark = pytest.mark.skipif(not codec.codecs(), reason="needs g++ and an x86-64 processor")

BFLOAT16 = wire.dtype_named("bfloat16")
FLOAT32 = wire.dtype_named("float32")
NATIVE = NativeCodec()
KINDS = ["gaussian", "sparse", "zero", "constant", "symmetric", "random bits", "escaping"]


def cuda(seed: int | None = 5) -> CudaCodec:
    return CudaCodec(SimtDevice(seed=seed))


def on_device(values: Bytes) -> SimtMemory:
    memory = SimtMemory(values.size)
    content(memory)[:] = values
    return memory


def content(memory: SimtMemory) -> Bytes:
    return array_at(memory.address, memory.nbytes)


def ragged(dtype: DType, seed: int) -> list[Bytes]:
    """Return arrays of no, few and many values, of several tiles and of incompressible blocks."""
    sources = [codecs.mixture(KINDS[:number], dtype, seed + number, tail=number * 37) for number in (0, 1, 3, 7)]
    sources.append(codecs.mixture(KINDS * 10, dtype, seed, tail=100))
    sources.append(codecs.mixture(["random bits"] * 3, dtype, seed))
    sources.append(codecs.mixture([], dtype, seed, tail=255))
    return sources


def encode_parts(dtype: DType, sources: list[Bytes], seed: int | None = 5) -> list[Bytes]:
    given = [on_device(source) for source in sources]
    counts = [source.size // dtype.itemsize for source in sources]
    bodies = [SimtMemory(wire.body_nbytes_bound(count, dtype)) for count in counts]
    parts = [
        EncodePart(values.address, count, body.address)
        for values, count, body in zip(given, counts, bodies, strict=True)
    ]
    sizes = cuda(seed).encode_parts(dtype, parts, stream=0).get()
    return [content(body)[:nbytes].copy() for body, nbytes in zip(bodies, sizes, strict=True)]


@every_dtype
def test_parts_are_encoded_as_if_alone(dtype: DType) -> None:
    sources = ragged(dtype, 30)
    for source, body in zip(sources, encode_parts(dtype, sources), strict=True):
        assert np.array_equal(body, codecs.encode(NATIVE, dtype, source))


def test_no_parts_are_no_work() -> None:
    assert encode_parts(BFLOAT16, []) == []
    cuda().decode_parts(BFLOAT16, [], stream=0).check()
    cuda().decode_reduce_parts(BFLOAT16, base.SUM, [], stream=0).check()


@pytest.mark.parametrize("seed", [None, *range(6)])
def test_the_bytes_do_not_depend_on_the_order_of_threads(seed: int | None) -> None:
    # Tiles of very different work, so that some have to wait for others.
    rng = np.random.default_rng(31)
    kinds = [kind for _ in range(9) for kind in [rng.choice(["zero", "sparse", "gaussian"])] * 50]
    source = codecs.mixture(kinds, BFLOAT16, 31, tail=3)
    (body,) = encode_parts(BFLOAT16, [source], seed)
    assert np.array_equal(body, codecs.encode(NATIVE, BFLOAT16, source))


def test_a_tile_looks_back_over_more_tiles_than_a_warp_has_lanes() -> None:
    dtype = wire.dtype_named("float8_e5m2")
    source = codecs.mixture((["zero"] * 90 + ["constant", "gaussian", "sparse"]) * 30, dtype, 32)
    assert source.size > 40 * wire.TILE_BLOCKS * wire.BLOCK_COUNT
    (body,) = encode_parts(dtype, [source], seed=3)
    assert np.array_equal(body, codecs.encode(NATIVE, dtype, source))


@every_dtype
def test_parts_are_decoded_as_if_alone(dtype: DType) -> None:
    sources = [source for source in ragged(dtype, 33) if codecs.encode(NATIVE, dtype, source).size < source.size]
    bodies = [on_device(codecs.encode(NATIVE, dtype, source)) for source in sources]
    targets = [SimtMemory(source.size) for source in sources]
    parts = [
        DecodePart(body.address, body.nbytes, target.address, target.nbytes // dtype.itemsize)
        for body, target in zip(bodies, targets, strict=True)
    ]
    cuda().decode_parts(dtype, parts, stream=0).check()
    for source, target in zip(sources, targets, strict=True):
        assert np.array_equal(content(target), source)


def test_one_corrupt_part_is_refused_and_the_others_are_decoded() -> None:
    sources = [codecs.mixture(KINDS * 12, BFLOAT16, seed) for seed in range(34, 37)]
    bodies = [on_device(codecs.encode(NATIVE, BFLOAT16, source)) for source in sources]
    targets = [SimtMemory(source.size) for source in sources]
    content(bodies[1])[8] ^= 2
    parts = [
        DecodePart(body.address, body.nbytes, target.address, target.nbytes // 2)
        for body, target in zip(bodies, targets, strict=True)
    ]
    status = cuda().decode_parts(BFLOAT16, parts, stream=0)
    with pytest.raises(CorruptPayloadError, match="tile ends"):
        status.check()
    assert np.array_equal(content(targets[0]), sources[0])
    assert np.array_equal(content(targets[2]), sources[2])


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT32], ids=lambda dtype: dtype.name)
def test_parts_of_one_accumulator_are_added_in_their_order(dtype: DType) -> None:
    rng = np.random.default_rng(37)
    scale = np.repeat(np.float32(2.0) ** rng.integers(-9, 9, (6, 8)), 250, axis=1)
    values = (rng.standard_normal((6, 2000)) * scale).astype(np.float32)
    if dtype == BFLOAT16:
        values = (values.view(np.uint32) >> 16).astype(np.uint16)
    sources = [codecs.as_bytes(row) for row in values]
    bodies = [on_device(codecs.encode(NATIVE, dtype, source)) for source in sources]
    accumulators = [SimtMemory(4 * 2000) for _ in range(2)]
    expected = [np.zeros(2000, np.float32) for _ in range(2)]
    order = [(0, 0), (1, 1), (2, 0), (3, 0), (4, 1), (5, 0)]
    for memory in accumulators:
        content(memory)[:] = 0
    parts = [DecodePart(bodies[i].address, bodies[i].nbytes, accumulators[to].address, 2000) for i, to in order]
    cuda().decode_reduce_parts(dtype, base.SUM, parts, stream=0).check()
    for i, to in order:
        NATIVE.accumulate(dtype, base.SUM, sources[i].ctypes.data, expected[to].ctypes.data, 2000)
    for found, wanted in zip(accumulators, expected, strict=True):
        assert np.array_equal(content(found), wanted.view(np.uint8))


@every_dtype
def test_parts_are_rounded_and_encoded_as_if_alone(dtype: DType) -> None:
    sources = ragged(dtype, 38)
    counts = [source.size // dtype.itemsize for source in sources]
    accumulators = [SimtMemory(count * base.accumulator_itemsize(dtype)) for count in counts]
    for source, count, memory in zip(sources, counts, accumulators, strict=True):
        NATIVE.widen(dtype, source.ctypes.data, memory.address, count)
    targets = [SimtMemory(source.size) for source in sources]
    bodies = [SimtMemory(wire.body_nbytes_bound(count, dtype)) for count in counts]
    parts = [
        PackEncodePart(accumulator.address, count, target.address, body.address)
        for accumulator, count, target, body in zip(accumulators, counts, targets, bodies, strict=True)
    ]
    sizes = cuda().pack_encode_parts(dtype, parts, 3, stream=0).get()
    for number, count in enumerate(counts):
        expected = np.zeros(count * dtype.itemsize, np.uint8)
        NATIVE.pack(dtype, accumulators[number].address, expected.ctypes.data, count, 3)
        assert np.array_equal(content(targets[number]), expected)
        assert np.array_equal(content(bodies[number])[: sizes[number]], codecs.encode(NATIVE, dtype, expected))
    with pytest.raises(ArgumentError, match="divisor is 0"):
        cuda().pack_encode_parts(dtype, parts, 0, stream=0)
