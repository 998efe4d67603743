"""Test data that depend on rank and position, and how to compare them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
CODED = (BFLOAT16, np.dtype(np.float16), np.dtype(np.float32))
FLOAT8 = (np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2))


def make(dtype: Any, shape: tuple[int, ...], rank: int = 0, seed: int = 0) -> NDArray[Any]:
    """Return random values; of floats, near-Gaussian ones with zero blocks and special values among them."""
    dtype = np.dtype(dtype)
    rng = np.random.default_rng([rank, seed])
    count = int(np.prod(shape))
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    values = (rng.standard_normal(count) * 0.02 * (1 + np.arange(count) % 3)).astype(dtype)
    values[300:900] = 0
    values[5::97] = -0.0
    return values.reshape(shape)


def bits(array: Any) -> NDArray[Any]:
    """Return an array's values as unsigned integers, with its shape."""
    array = np.asarray(array)
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").reshape(array.shape)


def assert_same_bits(found: Any, expected: Any) -> None:
    """Compare shape, dtype and every bit."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    different = np.flatnonzero(bits(found).ravel() != bits(expected).ravel())
    assert different.size == 0, f"{different.size} of {found.size} values differ, the first at {different[0]}"


def reduced(inputs: list[NDArray[Any]], op: str, divisor: int | None = None) -> NDArray[Any]:
    """Reduce arrays in their order, floats in fp32 (fp64 in fp64), rounded once, NaN made the canonical one.

    Args:
        divisor: of an average; by default the number of arrays.
    """
    dtype = inputs[0].dtype
    narrow = dtype in (*CODED, *FLOAT8)
    combine = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": _minimum, "max": _maximum}[op]
    with np.errstate(all="ignore"):
        result = inputs[0].astype(np.float32) if narrow else inputs[0].copy()
        for values in inputs[1:]:
            result = combine(result, values.astype(result.dtype))
        if op == "avg":
            result = result / result.dtype.type(divisor or len(inputs))
        if result.dtype.kind == "f":
            result = np.where(np.isnan(result), result.dtype.type(np.nan), result)
        return result.astype(dtype)


def _minimum(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Do what IEEE 754-2019 calls minimum: NaN wins, and -0 is less than +0."""
    return (
        np.where(a == b, np.where(np.signbit(a), a, b), np.minimum(a, b)) if a.dtype.kind == "f" else np.minimum(a, b)
    )


def _maximum(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    return (
        np.where(a == b, np.where(np.signbit(a), b, a), np.maximum(a, b)) if a.dtype.kind == "f" else np.maximum(a, b)
    )
