"""zipccl.inspect: what it counts, and what it computes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import zipccl
import zipccl.inspection
from tests.tensors import BFLOAT16, make
from zipccl.codec import wire
from zipccl.inspection import code_bits, entropy, gaussian, window_bits

FLOATS = [
    BFLOAT16,
    *(np.dtype(name) for name in ("float16", "float32", "float64")),
    np.dtype(ml_dtypes.float8_e4m3fn),
    np.dtype(ml_dtypes.float8_e5m2),
]
ALL = [*FLOATS, *(np.dtype(name) for name in ("bool", "int8", "uint16", "int32", "uint64"))]


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (255,), (256,), (70, 71), (1,) * 60 + (700,)], ids=str)
def test_parts_add_up_to_the_payload(dtype, shape) -> None:
    x = make(dtype, shape)
    found = zipccl.inspect(x)
    assert (found.dtype, found.count, found.nbytes) == (dtype.name, x.size, x.nbytes)
    assert found.payload_nbytes == zipccl.encode(x).size
    parts = sum(kind.nbytes for kind in found.kinds)
    assert found.header_nbytes + found.directory_nbytes + parts == found.payload_nbytes
    assert sum(kind.values for kind in found.kinds) == found.count
    assert sum(kind.blocks for kind in found.kinds) == found.count // 256
    assert found.ratio == found.nbytes / found.payload_nbytes
    assert (found.exponents is None) == (dtype not in FLOATS or x.size == 0)
    assert f"{found.count} values" in str(found)


def test_kinds_of_block() -> None:
    normal = np.random.default_rng(1).standard_normal(256).astype(BFLOAT16)
    sparse = normal.copy()
    sparse[::3] = 0
    random = np.random.default_rng(2).integers(0, 1 << 16, 256, np.uint16).view(BFLOAT16)
    constant = np.full(256, 3, BFLOAT16)
    x = np.concatenate([normal, sparse, random, constant, np.zeros(512, BFLOAT16), normal[:10]])
    found = zipccl.inspect(x)
    kinds = {kind.name.split(",")[0]: kind for kind in found.kinds}
    assert {name: kind.blocks for name, kind in kinds.items()} == {
        "coded": 1, "sparse": 1, "zero": 2, "constant": 1, "raw": 1, "tail": 0,
    }  # fmt: skip
    assert [kinds[name].nbytes for name in ("zero", "constant", "raw", "tail")] == [0, 2, 512, 20]
    assert [kinds[name].bits_per_value for name in ("zero", "raw", "tail")] == [0, 16, 16]
    assert found.directory_nbytes == wire.BlocksLayout.of(x.size, wire.dtype_named("bfloat16")).static_offset
    assert [found.blocks_of(kind) for kind in ("coded", "zero", "nothing")] == [1, 2, 0]


@pytest.mark.parametrize(
    ("name", "deeper"),
    [("skewed", {1: 20, -3: 16}), ("falling", {-3: 16, -4: 12, -5: 8}), ("symmetric", {1: 16, 2: 12, -3: 8})],
)
def test_tables_are_told_apart(name, deeper) -> None:
    offsets = np.concatenate([np.full(count, o) for o, count in deeper.items()])
    offsets = np.concatenate([offsets, np.arange(256 - offsets.size) % 3 - 2])
    found = zipccl.inspect(np.ldexp(np.float32(1), offsets))
    assert [kind.name for kind in found.kinds] == [f"coded, {name}"]


def test_low_planes_that_are_left_out() -> None:
    x = np.random.default_rng(1).standard_normal(1024).astype(np.float32)
    words = x.view(np.uint32)
    words[:512] &= 0xFFFF0000
    words[512:768] &= 0xFFFFFF00
    planes = zipccl.inspect(x).low_planes
    assert [(plane.first_bit, plane.bits, plane.stored, plane.left_out) for plane in planes] == [
        (0, 8, 1, 3),
        (8, 8, 2, 2),
    ]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_histogram_is_of_the_exponent_field(dtype) -> None:
    known = wire.dtype_named(dtype.name)
    bias = (1 << known.exponent_bits - 1) - 1
    x = np.array([0, -0.0, 1, -1.5, 1.75, 2, -0.5, 0.25], dtype)
    histogram = zipccl.inspect(x).exponents.histogram
    assert histogram.size == 1 << known.exponent_bits
    expected = {0: 2, bias: 3, bias + 1: 1, bias - 1: 1, bias - 2: 1}
    assert {int(field): int(histogram[field]) for field in np.flatnonzero(histogram)} == expected


def test_entropies() -> None:
    """Four exponents that are as frequent as each other make two bits; where each has its own blocks, none."""
    x = np.repeat(np.array([1, 2, 4, 8], BFLOAT16), 512)
    exponents = zipccl.inspect(x).exponents
    assert (exponents.entropy, exponents.block_entropy) == (2, 0)
    mixed = zipccl.inspect(x.reshape(4, 512).T)
    assert (mixed.exponents.entropy, mixed.exponents.block_entropy) == (2, 2)
    assert (mixed.limit_bits_per_value, mixed.block_limit_bits_per_value, mixed.limit_ratio) == (10, 10, 1.6)
    partial = zipccl.inspect(np.concatenate([x, np.array([1, 2], BFLOAT16)])).exponents
    assert partial.block_entropy == pytest.approx(2 / 2050)
    assert entropy(np.array([0, 5, 0])) == 0


def test_histogram_of_more_values_than_one_pass_takes(monkeypatch) -> None:
    x = make(BFLOAT16, (5000,))
    whole = zipccl.inspect(x).exponents
    monkeypatch.setattr(zipccl.inspection, "_CHUNK_COUNT", 512)
    parts = zipccl.inspect(x).exponents
    assert np.array_equal(whole.histogram, parts.histogram)
    assert parts.block_entropy == pytest.approx(whole.block_entropy)


def test_window_code() -> None:
    histogram = np.zeros(256, np.int64)
    histogram[100:107] = 10
    assert window_bits(histogram, 8) == 3
    histogram[107] = 10
    assert window_bits(histogram, 8) == 4
    x = np.repeat(np.ldexp(1.0, np.arange(8)).astype(BFLOAT16), 64)
    assert zipccl.inspect(x).window_bits_per_value == 8 + 3 + 8 / 8


@pytest.mark.parametrize("deviation", [1e-6, 0.013, 1.0, 300.0])
def test_a_gaussians_exponents(deviation) -> None:
    probabilities = gaussian(wire.dtype_named("bfloat16"), deviation)
    assert probabilities.sum() == pytest.approx(1)
    assert entropy(probabilities) == pytest.approx(2.545, abs=0.01)
    assert code_bits(probabilities) == pytest.approx(2.64, abs=0.05)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_gaussian_is_predicted(dtype) -> None:
    x = np.random.default_rng(1).standard_normal(1 << 14).astype(np.float32).astype(dtype)
    if dtype == np.float64:
        x = np.random.default_rng(1).standard_normal(1 << 14)
    found = zipccl.inspect(x)
    assert found.gaussian_ratio == pytest.approx(found.ratio, rel=0.01)
    assert found.exponents.gaussian_entropy == pytest.approx(found.exponents.entropy, rel=0.02)
    shares = found.exponents.histogram / x.size
    assert np.abs(found.exponents.gaussian - shares).max() < 0.04


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("value", [0, -0.0, np.nan, np.inf, 1e-7])
def test_arrays_without_a_scale(dtype, value) -> None:
    with np.errstate(all="ignore"):
        x = np.full(300, value).astype(dtype)
    found = zipccl.inspect(x)
    assert np.isfinite([found.limit_bits_per_value, found.window_bits_per_value, found.gaussian_bits_per_value]).all()
    assert "constant" in str(found) or "zero" in str(found)


def test_report() -> None:
    report = str(zipccl.inspect(make(np.float16, (40, 128))))
    for words in ("zipccl", "limit of one table", "7-window", "Gaussian", "coded, ", "directory", "header", "bit 2"):
        assert words in report
    assert "no exponents" in str(zipccl.inspect(np.arange(1000)))
    assert "no values" in str(zipccl.inspect(np.zeros(0)))


def test_what_is_no_array_is_refused() -> None:
    with pytest.raises(zipccl.UnsupportedArrayError, match="list"):
        zipccl.inspect([1.0])
