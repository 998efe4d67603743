"""Test data that depend on rank and position, and how to compare them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
CODED = (BFLOAT16, np.dtype(np.float16), np.dtype(np.float32))
CANONICAL_NAN = {2: {BFLOAT16: 0x7FC0, np.dtype(np.float16): 0x7E00}, 4: 0x7FC00000, 8: 0x7FF8000000000000}


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


def reduced(inputs: list[NDArray[Any]], op: str) -> NDArray[Any]:
    """Reduce arrays in rank order, floats in fp32 (fp64 in fp64), rounded once, NaN made the canonical one."""
    dtype = inputs[0].dtype
    narrow = dtype in CODED
    combine = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[op]
    with np.errstate(all="ignore"):
        result = inputs[0].astype(np.float32) if narrow else inputs[0].copy()
        for values in inputs[1:]:
            result = combine(result, values.astype(result.dtype))
        if op == "avg":
            result = result / result.dtype.type(len(inputs))
        return result.astype(dtype)
