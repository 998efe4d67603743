"""The benchmarks' data: every rank has its own, wrong values are found, and what a reduction of them must be."""

from __future__ import annotations

import math
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import zipccl
from tests.tensors import BFLOAT16, assert_same_bits, bits
from zipccl.arrays import numpy_dtype
from zipccl.cli import data
from zipccl.codec import wire
from zipccl.errors import ArgumentError

SOURCES = ("sample", "normal", "random", "zeros")
DTYPES = [dtype.name for dtype in wire.DTYPES]


def load(source: str, dtype: str = "bfloat16", max_count: int = 10_000) -> data.Tile:
    return data.load(source, wire.dtype_named(dtype), max_count)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("source", SOURCES)
def test_every_source_has_every_dtype(source: str, dtype: str) -> None:
    tile = load(source, dtype)
    assert tile.values.dtype == numpy_dtype(wire.dtype_named(dtype))
    assert tile.values.size > 30_000
    assert math.gcd(tile.values.size, data.start_of(1) * 2**20) == 1
    assert np.any(bits(tile.values)) == (source != "zeros")


def test_ranks_and_pieces_hold_different_values() -> None:
    tile = load("sample")
    starts = [data.start_of(rank) + offset for rank in range(8) for offset in (0, 1 << 18, 1 << 19, 3 << 19)]
    heads = []
    for start in starts:
        values = np.empty(4096, BFLOAT16)
        tile.fill(values, start)
        heads.append(values.tobytes())
    assert len(set(heads)) == len(starts)


def test_the_sample_compresses_as_gradients_do() -> None:
    payload = zipccl.encode(load("sample").values)
    assert 1.47 < load("sample").values.nbytes / payload.size < 1.50


def test_widened_samples_have_the_same_values() -> None:
    original = load("sample").values
    for dtype in ("float32", "float64"):
        assert_same_bits(load("sample", dtype).values, original.astype(dtype))
    scaled = (original.astype(np.float32) * 1024).astype(np.float16)
    assert_same_bits(load("sample", "float16").values, scaled)


@pytest.mark.parametrize("size", [0, 1, 6, 7, 8, 50])
@pytest.mark.parametrize("start", [0, 3, 6, 7, 100])
def test_fill_repeats_the_values(size: int, start: int) -> None:
    tile = data.Tile(np.arange(7, dtype=np.int32), "seven")
    target = np.empty(size, np.int32)
    tile.fill(target, start)
    assert target.tolist() == [(start + i) % 7 for i in range(size)]
    assert tile.count_wrong(target, start) == 0


def test_wrong_bits_are_counted() -> None:
    tile = load("random", "float32")
    found = np.empty(300_000, np.float32)
    tile.fill(found, 5)
    assert tile.count_wrong(found, 5) == 0, "a NaN equals itself here"
    pattern = found.view(np.uint32)
    for position in (0, 131_070, 131_071, 299_999):
        pattern[position] ^= 1
    assert tile.count_wrong(found, 5) == 4
    assert tile.count_wrong(found, 6) > 290_000


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "avg"])
def test_reductions_of_floats_round_once(op: str, dtype: str) -> None:
    special = [0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan, -math.nan, 3e-8, 60000.0, 0.3]
    target = numpy_dtype(wire.dtype_named(dtype))
    values = np.array([a for a in special for _ in special] + [0.1], target)
    tile = data.Tile(values, "special values")
    result = data.reduced(tile, op, 3)
    wide = np.float64 if dtype == "float64" else np.float32
    expected = []
    with np.errstate(all="ignore"):
        for i in range(values.size):
            total, *others = (wide(values[(data.start_of(rank) + i) % values.size]) for rank in range(3))
            for value in others:
                total = {
                    "sum": lambda a, b: a + b,
                    "avg": lambda a, b: a + b,
                    "prod": lambda a, b: a * b,
                    "min": lambda a, b: min(a, b, key=ieee_order),
                    "max": lambda a, b: max(a, b, key=lambda x: (math.isnan(x), *ieee_order(x)[1:])),
                }[op](total, value)
            expected.append(math.nan if math.isnan(total) else total / wide(3) if op == "avg" else total)
        rounded = np.array(expected, wide).astype(target)
    rounded[np.isnan(rounded)] = np.array(np.nan, target)
    assert_same_bits(result.values, rounded)


def ieee_order(value: float) -> tuple[bool, float, float]:
    """Order values as IEEE 754-2019's minimum does: NaN first, then -0 before +0."""
    return (not math.isnan(value), 0.0 if math.isnan(value) else float(value), math.copysign(1, value))


@pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
def test_reductions_of_integers_wrap(op: str) -> None:
    tile = load("random", "int8")
    result = data.reduced(tile, op, 2).values
    other = np.roll(tile.values, -data.start_of(1))
    exact = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[op]
    assert_same_bits(result, exact(tile.values.astype(np.int64), other.astype(np.int64)).astype(np.int8))


def test_npy_of_patterns_and_floats(tmp_path: Path) -> None:
    floats = np.random.default_rng(1).standard_normal((10, 11)).astype(np.float32)
    np.save(tmp_path / "floats.npy", floats)
    np.save(tmp_path / "patterns.npy", floats.astype(BFLOAT16).view(np.uint16))
    np.save(tmp_path / "own.npy", floats.astype(BFLOAT16))
    np.save(tmp_path / "fortran.npy", np.asfortranarray(floats))
    assert_same_bits(load(str(tmp_path / "floats.npy"), "float32").values, floats.ravel()[:109])
    for name in ("floats", "patterns", "own"):
        assert_same_bits(load(str(tmp_path / f"{name}.npy")).values, floats.astype(BFLOAT16).ravel()[:109])
    assert_same_bits(load(str(tmp_path / "fortran.npy"), "float32").values, floats.ravel(order="F")[:109])
    assert "cast from float32 to bfloat16" in load(str(tmp_path / "floats.npy")).description
    assert "cast" not in load(str(tmp_path / "patterns.npy")).description
    assert load(str(tmp_path / "floats.npy"), max_count=20).values.size == 21


def test_safetensors_are_concatenated(tmp_path: Path) -> None:
    numpy_files = pytest.importorskip("safetensors.numpy")
    first = np.random.default_rng(1).standard_normal((4, 5)).astype(BFLOAT16)
    second = np.random.default_rng(2).standard_normal(10).astype(np.float32)
    path = tmp_path / "model.safetensors"
    numpy_files.save_file({"a": first, "b": second, "steps": np.arange(3)}, path)
    tile = load(str(path), "float32")
    values = {first.tobytes(): first.ravel().astype(np.float32), second.tobytes(): second}
    orders = [np.concatenate(order)[:29] for order in (list(values.values()), list(values.values())[::-1])]
    assert any(np.array_equal(bits(tile.values), bits(order)) for order in orders)
    assert "cast from bfloat16, float32 to float32" in tile.description


def test_a_missing_safetensors_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ArgumentError, match=r"pip install"):
        load("model.safetensors")


@pytest.mark.parametrize(
    ("array", "dtype", "reason"),
    [
        (np.zeros(0, np.float32), "float32", "no values"),
        (np.array(["a"]), "float32", "numbers"),
        (np.zeros(3, np.float32), "int32", "float32"),
    ],
)
def test_files_that_cannot_serve(tmp_path: Path, array: np.ndarray, dtype: str, reason: str) -> None:
    path = tmp_path / "array.npy"
    np.save(path, array)
    with pytest.raises(ArgumentError, match=reason):
        load(str(path), dtype)


@pytest.mark.parametrize("name", ["broken.npy", "broken.safetensors", "missing.npy", "missing.safetensors"])
def test_files_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    if name.endswith("safetensors"):
        pytest.importorskip("safetensors")
    if name.startswith("broken"):
        (tmp_path / name).write_text("no such format")
    with pytest.raises(ArgumentError, match=name):
        load(str(tmp_path / name))


def test_starts_differ_for_many_ranks() -> None:
    size = load("sample").values.size
    starts = sorted(data.start_of(rank) % size for rank in range(1000))
    assert all(a < b for a, b in pairwise(starts))
