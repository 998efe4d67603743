"""Reductions: every codec's equal the reference's, and those what arithmetic says."""

from __future__ import annotations

import ctypes
import platform

import ml_dtypes
import numpy as np
import pytest

from tests.unit import codecs
from tests.unit.codecs import REFERENCE, Bytes, as_bytes, every_codec, every_dtype, native
from zipccl.codec import base, wire
from zipccl.codec.wire import DType
from zipccl.errors import CorruptPayloadError

BFLOAT16 = wire.dtype_named("bfloat16")
OPS = {"sum": base.SUM, "prod": base.PROD, "min": base.MIN, "max": base.MAX}


def reduce(codec: base.Codec, dtype: DType, op: int, inputs: list[Bytes], divisor: int = 1, offset: int = 0) -> Bytes:
    count = inputs[0].size // dtype.itemsize
    accumulator = codecs.GuardBytes(count * base.accumulator_itemsize(dtype), offset)
    target = codecs.GuardBytes(count * dtype.itemsize, offset)
    for number, values in enumerate(inputs):
        source = codecs.GuardBytes(values.size, offset)
        source.bytes[:] = values
        if number == 0:
            codec.widen(dtype, source.address, accumulator.address, count)
        else:
            codec.accumulate(dtype, op, source.address, accumulator.address, count)
    codec.pack(dtype, accumulator.address, target.address, count, divisor)
    accumulator.check()
    target.check()
    return target.bytes.copy()


def random_patterns(dtype: DType, count: int, seed: int) -> Bytes:
    """Return all patterns of a small type, and random ones of a large type with zeros, infinities and NaNs."""
    rng = np.random.default_rng([seed, dtype.code])
    if dtype.name == "bool":
        return rng.integers(0, 2, count, dtype=np.uint8)
    values = rng.integers(0, 256, count * dtype.itemsize, dtype=np.uint8)
    if dtype.name in ("float32", "float64"):
        specials = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-310, 1e-40, 1.0, -1.0], dtype.name)
        values.view(dtype.name)[seed :: 2 + seed] = np.resize(specials, values.view(dtype.name)[seed :: 2 + seed].size)
    elif dtype.itemsize <= 2:
        every = np.arange(1 << 8 * dtype.itemsize).astype(f"u{dtype.itemsize}")
        values.view(every.dtype)[: every.size] = np.roll(rng.permutation(every), seed)[: values.size // dtype.itemsize]
    return values


@every_dtype
@pytest.mark.parametrize("op", OPS)
@native
def test_reductions_equal_the_reference(codec: base.Codec, dtype: DType, op: str) -> None:
    inputs = [random_patterns(dtype, 1 << 16, seed) for seed in range(3)]
    for divisor in (1, 2, 3, 1000):
        found = reduce(codec, dtype, OPS[op], inputs, divisor)
        expected = reduce(REFERENCE, dtype, OPS[op], inputs, divisor)
        assert np.array_equal(found, expected)


@every_dtype
@native
def test_reductions_work_for_every_length_and_alignment(codec: base.Codec, dtype: DType) -> None:
    inputs = [random_patterns(dtype, 300, seed) for seed in range(2)]
    expected = reduce(REFERENCE, dtype, base.SUM, inputs, 3).reshape(300, dtype.itemsize)
    for count in [*range(70), 255, 256, 257]:
        some = [values[: count * dtype.itemsize] for values in inputs]
        assert np.array_equal(reduce(codec, dtype, base.SUM, some, 3, offset=count % 7), expected[:count].ravel())


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("op", OPS)
@every_codec
def test_float_reductions_round_once(codec: base.Codec, name: str, op: str) -> None:
    dtype = wire.dtype_named(name)
    numpy_dtype = np.dtype(getattr(ml_dtypes, name, name))
    rng = np.random.default_rng(14)
    inputs = [(rng.standard_normal(5000) * (1 + np.arange(5000) % 5)).astype(numpy_dtype) for _ in range(4)]
    wide = np.float64 if name == "float64" else np.float32
    expected = inputs[0].astype(wide)
    for values in inputs[1:]:
        ufunc = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[op]
        expected = ufunc(expected, values.astype(wide))
    with np.errstate(over="ignore"):
        expected = (expected / wide(3)).astype(numpy_dtype)
    found = reduce(codec, dtype, OPS[op], [as_bytes(values) for values in inputs], divisor=3)
    nan = np.isnan(expected.astype(wide))  # float8_e4m3fn has no infinity to overflow to
    found_values = found.view(numpy_dtype)
    assert np.array_equal(as_bytes(found_values[~nan]), as_bytes(expected[~nan]))
    assert np.all(np.isnan(found_values[nan].astype(wide)))


@pytest.mark.parametrize("name", ["int8", "uint16", "int32", "int64", "uint64"])
@every_codec
def test_integer_reductions_wrap_and_divide_toward_zero(codec: base.Codec, name: str) -> None:
    dtype = wire.dtype_named(name)
    inputs = [random_patterns(dtype, 1000, seed).view(name) for seed in range(3)]
    with np.errstate(over="ignore"):
        total = inputs[0] + inputs[1] + inputs[2]
    quotient = np.array([abs(int(value)) // 300 * (1 if value >= 0 else -1) for value in total]).astype(name)
    found = reduce(codec, dtype, base.SUM, [as_bytes(values) for values in inputs], divisor=300)
    assert np.array_equal(found.view(name), quotient)


@every_codec
def test_minimum_and_maximum_order_zeros_and_keep_nan(codec: base.Codec) -> None:
    dtype = wire.dtype_named("float32")
    a = np.array([0.0, -0.0, 0.0, -0.0, np.nan, 1.0, -np.inf], np.float32)
    b = np.array([-0.0, 0.0, 0.0, -0.0, 1.0, -np.nan, 1.0], np.float32)
    for op, expected in (
        (base.MIN, [0x80000000, 0x80000000, 0, 0x80000000, 0x7FC00000, 0x7FC00000, 0xFF800000]),
        (base.MAX, [0, 0, 0, 0x80000000, 0x7FC00000, 0x7FC00000, 0x3F800000]),
    ):
        assert reduce(codec, dtype, op, [as_bytes(a), as_bytes(b)]).view(np.uint32).tolist() == expected


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the rounding mode's code is that of x86-64")
@native
def test_results_do_not_depend_on_the_threads_rounding_mode(codec: base.Codec) -> None:
    fe_upward = 0x800
    inputs = [random_patterns(BFLOAT16, 1000, seed) for seed in range(3)]
    expected = reduce(codec, BFLOAT16, base.SUM, inputs, 3)
    libm = ctypes.CDLL("libm.so.6")
    try:
        assert libm.fesetround(fe_upward) == 0
        found = reduce(codec, BFLOAT16, base.SUM, inputs, 3)
        assert libm.fegetround() == fe_upward
    finally:
        libm.fesetround(0)
    assert np.array_equal(found, expected)


# --- Fused with the codec --------------------------------------------------------------------------------------------


@every_dtype
@pytest.mark.parametrize("op", [*OPS, "set"])
@native
def test_decode_reduce_is_decoding_and_accumulating(codec: base.Codec, dtype: DType, op: str) -> None:
    number = {**OPS, "set": base.SET}[op]
    for kinds, tail in ((["gaussian", "zero", "sparse"] * 7, 0), (["constant", "random bits", "zero"], 5), ([], 255)):
        source = codecs.mixture(kinds, dtype, 20, tail)
        count = source.size // dtype.itemsize
        body = codecs.encode(codec, dtype, source)
        if body.size == source.size:
            continue
        first = random_patterns(dtype, count, 1)
        expected = codecs.GuardBytes(count * base.accumulator_itemsize(dtype))
        found = codecs.GuardBytes(expected.bytes.size, offset=dtype.code % 5)
        given = codecs.GuardBytes(body.size, offset=1)
        given.bytes[:] = body
        for accumulator in (expected, found):
            REFERENCE.widen(dtype, first.ctypes.data, accumulator.address, count)
        codec.accumulate(dtype, number, source.ctypes.data, expected.address, count)
        codec.decode_reduce(dtype, number, given.address, body.size, found.address, count)
        found.check()
        given.check()
        assert np.array_equal(found.bytes, expected.bytes)


@every_dtype
@every_codec
def test_decode_reduce_refuses_what_decoding_refuses(codec: base.Codec, dtype: DType) -> None:
    rng = np.random.default_rng([21, dtype.code])
    source = codecs.mixture(["gaussian", "zero", "sparse", "constant", "zero"], dtype, 21, tail=3)
    count = source.size // dtype.itemsize
    body = codecs.encode(codec, dtype, source)
    accumulator = codecs.GuardBytes(count * base.accumulator_itemsize(dtype))
    accumulator.bytes[:] = 0
    for _ in range(60):
        altered = body.copy()
        altered[rng.integers(wire.BlocksLayout.of(count, dtype).static_offset)] ^= 1 << rng.integers(8)
        try:
            values = codecs.decode(codec, dtype, altered, count)
        except CorruptPayloadError:
            with pytest.raises(CorruptPayloadError):
                codec.decode_reduce(dtype, base.SET, altered.ctypes.data, altered.size, accumulator.address, count)
        else:
            expected = np.empty_like(accumulator.bytes)
            codec.widen(dtype, values.ctypes.data, expected.ctypes.data, count)
            codec.decode_reduce(dtype, base.SET, altered.ctypes.data, altered.size, accumulator.address, count)
            assert np.array_equal(accumulator.bytes, expected)
        accumulator.check()


@every_dtype
@native
def test_pack_encode_is_packing_and_encoding(codec: base.Codec, dtype: DType) -> None:
    for kinds, tail in ((["gaussian", "zero", "sparse"] * 7, 9), (["constant", "random bits"], 0), ([], 255), ([], 0)):
        source = codecs.mixture(kinds, dtype, 22, tail)
        count = source.size // dtype.itemsize
        accumulator = codecs.GuardBytes(count * base.accumulator_itemsize(dtype))
        codec.widen(dtype, source.ctypes.data, accumulator.address, count)
        for divisor in (1, 3):
            target = codecs.GuardBytes(source.size, offset=1)
            body = codecs.GuardBytes(wire.body_nbytes_bound(count, dtype), offset=3)
            nbytes = codec.pack_encode(dtype, accumulator.address, count, divisor, target.address, body.address)
            target.check()
            body.check()
            expected = np.empty_like(source)
            REFERENCE.pack(dtype, accumulator.address, expected.ctypes.data, count, divisor)
            assert np.array_equal(target.bytes, expected)
            assert np.array_equal(body.bytes[:nbytes], codecs.encode(REFERENCE, dtype, expected))
