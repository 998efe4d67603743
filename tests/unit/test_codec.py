"""The codecs agree byte for byte, keep every bit, stay inside their buffers and refuse what no encoder writes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.make_wire_v1 import fixtures, read_fixture
from tests.unit import codecs
from tests.unit.codecs import (
    BLOCKS,
    FLOATS,
    NATIVE,
    Bytes,
    as_bytes,
    assert_all_agree,
    decode,
    encode,
    every_codec,
    every_dtype,
    every_float,
    native,
)
from zipccl.codec import base, wire
from zipccl.codec.native import NativeCodec, supported_isas
from zipccl.codec.wire import DType
from zipccl.errors import ArgumentError

BFLOAT16 = wire.dtype_named("bfloat16")


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


@every_dtype
def test_lengths_survive_in_all_codecs(dtype: DType) -> None:
    source = codecs.mixture(["gaussian", "zero", "symmetric", "escaping"] * 5, dtype, seed=2)
    for count in [*range(0, 20), *range(250, 262), *range(500, 520, 5), 768, 1023, 1025, 4096, 5000]:
        assert_all_agree(dtype, source[: count * dtype.itemsize])


@every_dtype
@pytest.mark.parametrize("blocks", [63, 64, 65, 130])
def test_tiles_survive(dtype: DType, blocks: int) -> None:
    kinds = [list(BLOCKS)[block * 7 % len(BLOCKS)] for block in range(blocks)]
    assert_all_agree(dtype, codecs.mixture(kinds, dtype, seed=blocks, tail=blocks % 3))


@every_dtype
def test_every_kind_of_block_is_written(dtype: DType) -> None:
    kinds = [kind for kind in BLOCKS for _ in range(4)]
    source = codecs.mixture([*kinds, *["gaussian", "constant"] * 20], dtype, seed=3)
    body = assert_all_agree(dtype, source)
    code, mask = codecs.directory_of(body, dtype, source.size // dtype.itemsize)
    assert {wire.CODE_RAW, wire.CODE_ZERO, wire.CODE_CONSTANT} <= set(code.tolist())
    if not dtype.is_float:
        return
    coded = code < wire.CODE_RAW
    assert set((code[coded] >> wire.TABLE_SHIFT).tolist()) == {wire.SKEWED, wire.FALLING, wire.SYMMETRIC}
    assert np.any(code >= wire.CODE_SPARSE)
    written = set(mask[coded].tolist())
    assert len(written) > 1 if dtype.low_planes else written == {0}


@every_float
def test_sparse_blocks_of_every_count_survive(dtype: DType) -> None:
    rng = np.random.default_rng([15, dtype.code])
    source = np.concatenate([codecs.sparse(rng, dtype, present) for present in range(257)])
    body = assert_all_agree(dtype, source)
    code, _ = codecs.directory_of(body, dtype, 257 * 256)
    assert code[0] == wire.CODE_ZERO
    assert np.all(code[2:200] >= wire.CODE_SPARSE)
    assert np.all(code[241:] < wire.CODE_ZERO)


@every_float
@pytest.mark.parametrize("present", [100, 160, 200, 230, 240])
def test_sparse_blocks_may_take_more_than_the_variable_region(dtype: DType, present: int) -> None:
    rng = np.random.default_rng([16, dtype.code, present])
    blocks = [codecs.sparse(rng, dtype, present) for _ in range(150)]
    blocks[60:90] = [BLOCKS[kind](rng, dtype) for kind in ("gaussian", "random bits", "constant") * 10]
    assert_all_agree(dtype, np.concatenate([*blocks, blocks[0][: 5 * dtype.itemsize]]))


def float64_block(fields: list[int]) -> Bytes:
    """Return a block of values with these exponent fields, again and again, and different mantissas."""
    mantissa = np.random.default_rng(17).integers(0, 1 << 52, 256, dtype=np.uint64)
    return as_bytes(np.resize(np.array(fields, np.uint64), 256) << np.uint64(52) | mantissa)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ([255, 254, 253], "coded"),  # origin 0
        ([256, 255, 255], "coded"),  # origin 1; 1 would be too low
        ([256, 256, 1], "raw"),
        ([256, 256, 2], "raw"),  # not too low, but too many escapes
        ([1000, 1000, 0], "coded"),  # of a subnormal value the exponent is 0
        ([2047, 2046, 2045], "coded"),
        ([1023] * 255 + [1023 - 254], "coded"),
        ([1023] * 255 + [1023 - 255], "raw"),
        ([1023] * 255 + [0], "coded"),
    ],
)
def test_float64_exponents_far_apart_make_a_block_raw(fields: list[int], kind: str) -> None:
    dtype = wire.dtype_named("float64")
    source = np.concatenate([float64_block(fields), np.zeros(2048, np.uint8)])
    code, _ = codecs.directory_of(assert_all_agree(dtype, source), dtype, 512)
    assert ("coded" if code[0] < wire.CODE_RAW else "raw") == kind


@every_dtype
def test_constant_blocks_of_every_bit_survive(dtype: DType) -> None:
    values = np.uint64(1) << np.arange(8 * dtype.itemsize, dtype=np.uint64)
    source = as_bytes(np.repeat(values.astype(f"u{dtype.itemsize}"), 256))
    body = assert_all_agree(dtype, source)
    code, _ = codecs.directory_of(body, dtype, values.size * 256)
    assert np.all(code == wire.CODE_CONSTANT)


@every_float
def test_many_values_reach_the_deeper_levels(dtype: DType) -> None:
    assert_all_agree(dtype, codecs.mixture(["all in level 2"] * 9, dtype, seed=4))
    rng = np.random.default_rng(5)
    middle = codecs.middle_exponent(dtype)
    for reach_1, reach_2, reach_3 in [(0, 0, 0), (63, 63, 63), (64, 64, 0), (65, 1, 1), (128, 64, 30), (129, 65, 20)]:
        for _ in range(8):
            exponent = np.repeat(middle, 256)
            exponent[:reach_1] = middle - 3
            exponent[:reach_2] = middle - 5
            exponent[:reach_3] = max(middle - 9, 0)
            exponent[128:] -= rng.integers(0, 2, 128) * (exponent[128:] == middle)
            assert_all_agree(dtype, codecs.values_of(np.tile(rng.permutation(exponent), 3), dtype, rng))


@settings(max_examples=100, deadline=None)
@given(
    dtype=st.sampled_from(wire.DTYPES),
    kinds=st.lists(st.sampled_from(list(BLOCKS)), max_size=20),
    seed=st.integers(0, 1 << 30),
    tail=st.integers(0, 255),
)
def test_random_mixtures_survive(dtype: DType, kinds: list[str], seed: int, tail: int) -> None:
    assert_all_agree(dtype, codecs.mixture(kinds, dtype, seed, tail))


@settings(max_examples=100, deadline=None)
@given(
    dtype=st.sampled_from(FLOATS),
    seed=st.integers(0, 1 << 30),
    weights=st.lists(st.integers(0, 40), min_size=16, max_size=16).filter(any),
    lowest=st.integers(0, 255),
    origin=st.sampled_from([0, 1, 2, 900, 1792]),
)
def test_random_exponents_survive(dtype: DType, seed: int, weights: list[int], lowest: int, origin: int) -> None:
    rng = np.random.default_rng(seed)
    exponent = lowest + rng.choice(16, 1024, p=np.array(weights) / sum(weights))
    assert_all_agree(dtype, codecs.values_of(exponent % (codecs.top_exponent(dtype) + 1), dtype, rng, origin=origin))


@pytest.mark.parametrize("path", fixtures(), ids=lambda path: path.stem)
@every_codec
def test_committed_bodies_pin_the_format(codec: base.Codec, path: Path) -> None:
    dtype, count, body, digest = read_fixture(path)
    source = decode(codec, dtype, body, count)
    assert hashlib.sha256(source).digest() == digest
    assert np.array_equal(encode(codec, dtype, source), body)


# --- Buffers ---------------------------------------------------------------------------------------------------------


@every_dtype
@native
def test_every_alignment_works(codec: base.Codec, dtype: DType) -> None:
    source = codecs.mixture(
        ["gaussian", "escaping", "zero", "constant", "random bits", "sparse", "symmetric"], dtype, 6, tail=9
    )
    count = source.size // dtype.itemsize
    body = encode(codec, dtype, source)
    for offset in [*range(16), 31, 33, 63]:
        assert np.array_equal(encode(codec, dtype, source, offset, 0), body)
        assert np.array_equal(encode(codec, dtype, source, 0, offset), body)
        assert np.array_equal(decode(codec, dtype, body, count, offset, 0), source)
        assert np.array_equal(decode(codec, dtype, body, count, 0, offset), source)


@every_dtype
@native
def test_the_bound_is_enough_for_incompressible_values(codec: base.Codec, dtype: DType) -> None:
    values = np.random.default_rng(7).integers(0, 256, 600 * dtype.itemsize, dtype=np.uint8)
    for count in range(601):
        source = values[: count * dtype.itemsize]
        assert np.array_equal(encode(codec, dtype, source), source)


@every_dtype
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


# --- Choosing an implementation --------------------------------------------------------------------------------------


def test_an_isa_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert supported_isas()[-1] == "portable"
    assert NativeCodec().name == supported_isas()[0]
    monkeypatch.setenv("ZIPCCL_FORCE_ISA", "portable")
    assert NativeCodec().name == "portable"
    monkeypatch.setenv("ZIPCCL_FORCE_ISA", "mmx")
    with pytest.raises(ArgumentError, match=r"mmx.*portable"):
        NativeCodec()
