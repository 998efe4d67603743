"""The codecs agree byte for byte, keep every bit, stay inside their buffers and refuse what no encoder writes."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.unit import codecs
from tests.unit.codecs import BLOCKS, CODECS, CODED, NATIVE, REFERENCE, Bytes, assert_all_agree, decode, encode
from zipccl.codec import base, wire
from zipccl.codec.native import NativeCodec, supported_isas
from zipccl.codec.wire import DType
from zipccl.errors import ArgumentError, CorruptPayloadError

FIXTURES = Path(__file__).parent.parent / "fixtures" / "wire_v1"
BFLOAT16 = wire.dtype_named("bfloat16")

coded = pytest.mark.parametrize("dtype", CODED, ids=lambda dtype: dtype.name)
every_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
native = pytest.mark.parametrize("codec", NATIVE, ids=lambda codec: codec.name)


def as_bytes(array: NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(array).view(np.uint8)


def near_gaussian(count: int, dtype: DType, seed: int = 0) -> Bytes:
    blocks = -(-count // wire.BLOCK_COUNT)
    return codecs.mixture(["gaussian"] * blocks, dtype, seed)[: count * dtype.itemsize]


# --- What goes in comes out ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.parametrize("order", ["ascending", "shuffled", "exponents interleaved"])
def test_all_16_bit_patterns_survive(name: str, order: str) -> None:
    values = np.arange(1 << 16, dtype=np.uint16)
    if order == "shuffled":
        values = np.random.default_rng(1).permutation(values)
    elif order == "exponents interleaved":
        values = values.reshape(512, 128).T.ravel()
    assert_all_agree(wire.dtype_named(name), as_bytes(values))


def test_special_float32_patterns_survive() -> None:
    specials = [0x00000000, 0x80000000, 0x00000001, 0x807FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0xFF800000]
    specials += [sign | 0x7F800000 | payload for sign in (0, 1 << 31) for payload in (1, 0xFFFF, 0x8000, 0x10000)]
    specials += [0x7FC00000, 0xFFC00001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FBFFFFF]
    values = near_gaussian(2048, wire.dtype_named("float32")).view(np.uint32)
    values[3 :: len(specials)][: len(specials)] = specials
    values[256:512] = 0x7F800001
    values[512:768] = np.resize(np.array(specials, np.uint32), 256)
    body = assert_all_agree(wire.dtype_named("float32"), as_bytes(values))
    assert body.size < values.nbytes


@pytest.mark.parametrize("start", range(0, 4097, 256))
def test_every_bfloat16_length_survives(start: int) -> None:
    source = codecs.mixture([*BLOCKS, *BLOCKS], BFLOAT16, seed=start)
    for count in range(start, min(start + 256, 4097)):
        assert_all_agree(BFLOAT16, source[: 2 * count], NATIVE)


@coded
def test_lengths_survive_in_all_codecs(dtype: DType) -> None:
    source = codecs.mixture(["gaussian", "zero", "symmetric", "escaping"] * 5, dtype, seed=2)
    for count in [*range(0, 20), *range(250, 262), *range(500, 520, 3), 768, 1023, 1024, 1025, 4095, 4096, 5000]:
        assert_all_agree(dtype, source[: count * dtype.itemsize])


@coded
@pytest.mark.parametrize("blocks", [63, 64, 65, 128, 200])
def test_tiles_survive(dtype: DType, blocks: int) -> None:
    kinds = [list(BLOCKS)[block * 7 % len(BLOCKS)] for block in range(blocks)]
    assert_all_agree(dtype, codecs.mixture(kinds, dtype, seed=blocks, tail=blocks % 3))


@coded
def test_every_kind_of_block_is_written(dtype: DType) -> None:
    kinds = [kind for kind in BLOCKS for _ in range(4)]
    source = codecs.mixture([*kinds, *["gaussian"] * 40], dtype, seed=3)
    body = assert_all_agree(dtype, source)
    code, mask = codecs.directory_of(body, dtype, source.size // dtype.itemsize)
    assert {wire.CODE_RAW, wire.CODE_ZERO, wire.CODE_CONSTANT} < set(code.tolist())
    assert np.any(code < wire.CODE_RAW)
    assert np.any(code >= wire.CODE_SYMMETRIC)
    written = set(mask[code < wire.CODE_RAW].tolist())
    assert len(written) > 1 if dtype.low_plane_nbytes else written == {0}


@coded
def test_many_values_reach_the_deeper_levels(dtype: DType) -> None:
    assert_all_agree(dtype, codecs.mixture(["all in level 2"] * 9, dtype, seed=4))
    rng = np.random.default_rng(5)
    middle = codecs.middle_exponent(dtype)
    for reach_1, reach_2, reach_3 in [(0, 0, 0), (63, 63, 63), (64, 64, 0), (65, 1, 1), (128, 64, 30), (129, 65, 20)]:
        for _ in range(8):
            exponent = np.repeat(middle, 256)
            exponent[:reach_1] = middle - 3
            exponent[:reach_2] = middle - 5
            exponent[:reach_3] = middle - 9
            exponent[128:] -= rng.integers(0, 2, 128) * (exponent[128:] == middle)
            assert_all_agree(dtype, codecs.values_of(np.tile(rng.permutation(exponent), 3), dtype, rng))


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from(CODED),
    kinds=st.lists(st.sampled_from(list(BLOCKS)), max_size=20),
    seed=st.integers(0, 1 << 30),
    tail=st.integers(0, 255),
)
def test_random_mixtures_survive(dtype: DType, kinds: list[str], seed: int, tail: int) -> None:
    assert_all_agree(dtype, codecs.mixture(kinds, dtype, seed, tail))


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from(CODED),
    seed=st.integers(0, 1 << 30),
    weights=st.lists(st.integers(0, 40), min_size=16, max_size=16).filter(any),
    lowest=st.integers(0, 255),
)
def test_random_exponents_survive(dtype: DType, seed: int, weights: list[int], lowest: int) -> None:
    rng = np.random.default_rng(seed)
    exponent = lowest + rng.choice(16, 1024, p=np.array(weights) / sum(weights))
    assert_all_agree(dtype, codecs.values_of(exponent % (32 if dtype.name == "float16" else 256), dtype, rng))


@pytest.mark.parametrize("dtype", [dtype for dtype in wire.DTYPES if not dtype.coded], ids=lambda dtype: dtype.name)
@every_codec
def test_other_dtypes_stay_raw(codec: base.Codec, dtype: DType) -> None:
    source = (np.arange(1000 * dtype.itemsize) % 251 % 2).astype(np.uint8)
    assert np.array_equal(encode(codec, dtype, source), source)
    with pytest.raises(CorruptPayloadError, match="no blocks layout"):
        decode(codec, dtype, source, 1000)


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.npz")), ids=lambda path: path.stem)
@every_codec
def test_committed_bodies_pin_the_format(codec: base.Codec, path: Path) -> None:
    dtype = wire.dtype_named(path.stem.split("-")[0])
    with np.load(path) as fixture:
        source, body = fixture["source"], fixture["body"]
    assert np.array_equal(encode(codec, dtype, source), body)
    assert np.array_equal(decode(codec, dtype, body, source.size // dtype.itemsize), source)


# --- Buffers ---------------------------------------------------------------------------------------------------------


@coded
@native
def test_every_alignment_works(codec: base.Codec, dtype: DType) -> None:
    source = codecs.mixture(["gaussian", "escaping", "zero", "constant", "random bits", "symmetric"], dtype, 6, tail=9)
    count = source.size // dtype.itemsize
    body = encode(codec, dtype, source)
    for offset in [*range(16), 31, 33, 63]:
        assert np.array_equal(encode(codec, dtype, source, offset, 0), body)
        assert np.array_equal(encode(codec, dtype, source, 0, offset), body)
        assert np.array_equal(decode(codec, dtype, body, count, offset, 0), source)
        assert np.array_equal(decode(codec, dtype, body, count, 0, offset), source)


@coded
@native
def test_the_bound_is_enough_for_incompressible_values(codec: base.Codec, dtype: DType) -> None:
    values = np.random.default_rng(7).integers(0, 256, 600 * dtype.itemsize, dtype=np.uint8)
    for count in range(601):
        source = values[: count * dtype.itemsize]
        assert np.array_equal(encode(codec, dtype, source), source)


@coded
@every_codec
def test_nothing_outside_the_buffers_is_touched(codec: base.Codec, dtype: DType) -> None:
    pages = [codecs.GuardPages(1 << 16) for _ in range(3)]
    for kinds in (["gaussian"], ["zero"] * 3, ["random bits"] * 2, ["all in level 2"] * 4, ["escaping", *BLOCKS]):
        for tail in (0, 1, 100):
            source = codecs.mixture(kinds, dtype, 8, tail)
            count = source.size // dtype.itemsize
            for at_end in (False, True):
                given, _ = pages[0].place(source, at_end)
                room, written = pages[1].place(wire.body_nbytes_bound(count, dtype), at_end)
                nbytes = codec.encode_body(dtype, given, count, room)
                if nbytes == source.size:
                    continue
                body, _ = pages[0].place(written[:nbytes].copy(), at_end)
                target, decoded = pages[2].place(source.size, at_end)
                codec.decode_body(dtype, body, nbytes, target, count)
                assert np.array_equal(decoded, source)


# --- Hostile bodies --------------------------------------------------------------------------------------------------


def outcomes(dtype: DType, body: Bytes, count: int, pages: list[codecs.GuardPages], at_end: bool) -> list[Bytes | None]:
    """Decode with every codec, between guard pages; None stands for a refusal."""
    results: list[Bytes | None] = []
    for codec in CODECS:
        address, _ = pages[0].place(body, at_end)
        target, decoded = pages[1].place(count * dtype.itemsize, at_end)
        try:
            codec.decode_body(dtype, address, body.size, target, count)
        except CorruptPayloadError:
            results.append(None)
        else:
            results.append(decoded.copy())
    return results


def assert_same_outcome(results: list[Bytes | None]) -> bool:
    """Return whether all codecs accepted, and decoded the same; fail if they disagree."""
    accepted = [result is not None for result in results]
    assert len(set(accepted)) == 1, dict(zip([codec.name for codec in CODECS], accepted, strict=True))
    for result in results[1:]:
        assert np.array_equal(result, results[0])  # type: ignore[arg-type]
    return accepted[0]


@pytest.fixture(scope="module")
def pages() -> list[codecs.GuardPages]:
    return [codecs.GuardPages(1 << 15) for _ in range(2)]


HOSTILE_KINDS = ["gaussian", "zero", "escaping", "constant", "symmetric", "without low planes", "gaussian"]


@coded
def test_truncated_bodies_are_refused(dtype: DType, pages: list[codecs.GuardPages]) -> None:
    source = codecs.mixture(HOSTILE_KINDS[:4], dtype, 9, tail=5)
    body = encode(REFERENCE, dtype, source)
    for nbytes in range(body.size):
        assert not assert_same_outcome(outcomes(dtype, body[:nbytes], source.size // dtype.itemsize, pages, True))


@coded
def test_bodies_of_another_count_are_refused(dtype: DType, pages: list[codecs.GuardPages]) -> None:
    source = codecs.mixture(HOSTILE_KINDS, dtype, 10)
    body = encode(REFERENCE, dtype, source)
    count = source.size // dtype.itemsize
    for other in (0, 1, 255, count - 256, count - 1, count + 1, count + 256):
        assert not assert_same_outcome(outcomes(dtype, body, other, pages, False))


@coded
def test_codecs_agree_on_altered_bodies(dtype: DType, pages: list[codecs.GuardPages]) -> None:
    rng = np.random.default_rng([11, dtype.code])
    source = codecs.mixture(HOSTILE_KINDS, dtype, 11, tail=3)
    body = encode(REFERENCE, dtype, source)
    layout = wire.BlocksLayout.of(source.size // dtype.itemsize, dtype)
    accepted = 0
    for trial in range(4000):
        altered = body.copy()
        for _ in range(rng.integers(1, 4)):
            # Half of the changes hit the tile ends and the directory, which are few of the bytes.
            where = rng.integers(layout.static_offset if rng.random() < 0.5 else body.size)
            altered[where] = rng.integers(256) if rng.random() < 0.5 else altered[where] ^ 1 << rng.integers(8)
        results = outcomes(dtype, altered, source.size // dtype.itemsize, pages, trial % 2 == 0)
        accepted += assert_same_outcome(results)
    assert 400 < accepted < 3600


def made_up_body(dtype: DType, rng: np.random.Generator, blocks: int) -> Bytes:
    """Return a valid body whose codes are random bits, of all densities, with garbage in everything unused."""
    layout = wire.BlocksLayout.of(blocks * wire.BLOCK_COUNT, dtype)
    entries, static, variable = [], [], []
    for _ in range(blocks):
        while True:
            planes = rng.random((2, 256)) < rng.random((2, 1))
            parts = []
            reached = int(np.count_nonzero(planes[0] & planes[1]))
            for _ in range(2):
                density = rng.random()
                codes = rng.random((2, reached)) < density
                rows = [codes[:, start : start + 32].ravel() for start in range(0, reached, 32)]
                bits = np.concatenate([*rows, rng.random(-2 * reached % 8) < 0.5])
                parts.append(np.packbits(bits.astype(bool), bitorder="little"))
                reached = int(np.count_nonzero(codes[0] & codes[1]))
            parts.append(rng.integers(0, 256, reached, dtype=np.uint8))
            used = sum(part.size for part in parts)
            parts.append(rng.integers(0, 256, used % 2, dtype=np.uint8))
            if used + used % 2 < dtype.raw_variable_nbytes:
                break
        mask = int(rng.integers(1 << len(dtype.low_plane_nbytes)))
        low_nbytes = sum(nbytes for plane, nbytes in enumerate(dtype.low_plane_nbytes) if mask >> plane & 1)
        static += [rng.integers(0, 256, 256, dtype=np.uint8), np.packbits(planes, axis=1, bitorder="little").ravel()]
        static += [rng.integers(0, 256, low_nbytes, dtype=np.uint8)]
        variable += parts
        entries.append((rng.integers(256), (used + used % 2) // 2 + wire.CODE_SYMMETRIC * rng.integers(2), mask))
    directory = np.array(entries, np.uint8).T[: dtype.directory_entry_nbytes].ravel()
    padding = rng.integers(0, 256, layout.static_offset - layout.directory_offset - directory.size, dtype=np.uint8)
    ends = np.array([sum(part.size for part in parts) for parts in (static, variable)], "<u8").view(np.uint8)
    return np.concatenate([ends, directory, padding, *static, *variable])


@coded
def test_codecs_decode_made_up_bodies_alike(dtype: DType, pages: list[codecs.GuardPages]) -> None:
    rng = np.random.default_rng([12, dtype.code])
    for trial in range(200):
        blocks = 1 + trial % 9
        body = made_up_body(dtype, rng, blocks)
        assert assert_same_outcome(outcomes(dtype, body, blocks * wire.BLOCK_COUNT, pages, trial % 2 == 0))


@every_codec
def test_sizes_near_the_end_of_64_bits_are_refused(codec: base.Codec) -> None:
    source = codecs.mixture(["gaussian"] * 2, BFLOAT16, 13)
    body = encode(codec, BFLOAT16, source)
    for ends in ((1 << 64) - 1, 0), (0, (1 << 64) - 1), ((1 << 63), (1 << 63)), ((1 << 64) - 640, 1280):
        body[:16] = np.array(ends, "<u8").view(np.uint8)
        with pytest.raises(CorruptPayloadError):
            decode(codec, BFLOAT16, body, 512)


# --- Reductions ------------------------------------------------------------------------------------------------------

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


@pytest.mark.parametrize("dtype", wire.DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("op", OPS)
@native
def test_reductions_equal_the_reference(codec: base.Codec, dtype: DType, op: str) -> None:
    inputs = [random_patterns(dtype, 1 << 16, seed) for seed in range(3)]
    for divisor in (1, 2, 3, 1000):
        found = reduce(codec, dtype, OPS[op], inputs, divisor)
        expected = reduce(REFERENCE, dtype, OPS[op], inputs, divisor)
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("dtype", wire.DTYPES, ids=lambda dtype: dtype.name)
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


# --- Choosing an implementation --------------------------------------------------------------------------------------


def test_an_isa_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert supported_isas()[-1] == "portable"
    assert NativeCodec().name == supported_isas()[0]
    monkeypatch.setenv("ZIPCCL_FORCE_ISA", "portable")
    assert NativeCodec().name == "portable"
    monkeypatch.setenv("ZIPCCL_FORCE_ISA", "mmx")
    with pytest.raises(ArgumentError, match=r"mmx.*portable"):
        NativeCodec()
