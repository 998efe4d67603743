"""The reductions in NumPy, on arrays of bytes; values are widened and rounded in integers, which say exactly what
every codec must give.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zipccl.codec import base
from zipccl.codec.wire import DType

Array = NDArray[Any]
Bytes = NDArray[np.uint8]
Bits = NDArray[np.uint32]

_QUIET_NAN = {4: np.uint32(0x7FC00000), 8: np.uint64(0x7FF8000000000000)}

# Exponent and mantissa bits of the floats that are accumulated in fp32.
_WIDENED = {
    "bfloat16": (8, 7),
    "float16": (5, 10),
    "float8_e4m3fn": (4, 3),
    "float8_e5m2": (5, 2),
}


def widen(dtype: DType, source: Bytes) -> Array:
    """Return an accumulator that holds the values."""
    if dtype.name in _WIDENED:
        bits = source.view(f"<u{dtype.itemsize}").astype(np.uint32)
        return _widen(bits, *_WIDENED[dtype.name], _has_infinity(dtype)).view(np.float32)
    if dtype.name == "bool":
        return (source != 0).astype(np.uint8)
    return source.view(accumulator_type(dtype))


def accumulate(dtype: DType, op: int, source: Bytes, accumulator: Array) -> Array:
    """Return op(accumulator, values), element by element."""
    if op == base.SET:
        return widen(dtype, source)
    with np.errstate(all="ignore"):
        return _combine(op, accumulator, widen(dtype, source), dtype.name == "bool")


def pack(dtype: DType, accumulator: Array, divisor: int) -> Bytes:
    """Return the values that an accumulator, divided by divisor, rounds to."""
    with np.errstate(all="ignore"):
        total = accumulator if divisor == 1 else _divide(accumulator, divisor)
    if total.dtype.kind == "f":
        bits = total.view(f"<u{total.dtype.itemsize}")
        bits = np.where(np.isnan(total), _QUIET_NAN[total.dtype.itemsize], bits)
        if dtype.name in _WIDENED:
            bits = _narrow(bits, *_WIDENED[dtype.name], _has_infinity(dtype)).astype(f"<u{dtype.itemsize}")
        return bits.view(np.uint8)
    return total.view(np.uint8)


def accumulator_type(dtype: DType) -> np.dtype[Any]:
    """Return the NumPy type of a dtype's accumulator."""
    if dtype.name in _WIDENED:
        return np.dtype(np.float32)
    return np.dtype(np.uint8 if dtype.name == "bool" else dtype.name)


def _has_infinity(dtype: DType) -> bool:
    return dtype.name != "float8_e4m3fn"


def _widen(bits: Bits, exponent_bits: int, mantissa_bits: int, has_infinity: bool) -> Bits:
    """Return the binary32 patterns of the values with the given patterns of a smaller format."""
    top = (1 << exponent_bits) - 1
    sign = bits >> (exponent_bits + mantissa_bits)
    exponent = (bits >> mantissa_bits & top).astype(np.int64)
    mantissa = (bits & (1 << mantissa_bits) - 1).astype(np.int64)
    bias_difference = 127 - ((1 << exponent_bits - 1) - 1)
    subnormal = (exponent == 0) & (mantissa != 0) & (bias_difference > 0)
    # A subnormal value's leading bit becomes the implicit one.
    shift = mantissa_bits + 1 - np.frexp(mantissa.astype(np.float64))[1].astype(np.int64)
    mantissa = np.where(subnormal, mantissa << np.where(subnormal, shift, 0) & (1 << mantissa_bits) - 1, mantissa)
    exponent = np.where(subnormal, 1 - shift, exponent)
    zero = (bits & (1 << exponent_bits + mantissa_bits) - 1) == 0
    special = (exponent == top) & (has_infinity | (mantissa == (1 << mantissa_bits) - 1))
    widened = np.where(zero, 0, np.where(special, 255, exponent + bias_difference))
    if not has_infinity:
        mantissa = np.where(special, 1 << mantissa_bits - 1, mantissa)
    return (sign.astype(np.int64) << 31 | widened << 23 | mantissa << 23 - mantissa_bits).astype(np.uint32)


def _narrow(bits: Bits, exponent_bits: int, mantissa_bits: int, has_infinity: bool) -> Bits:
    """Round binary32 patterns to the nearest value of a smaller format, ties to even."""
    top = (1 << exponent_bits) - 1
    sign = (bits >> 31).astype(np.int64) << exponent_bits + mantissa_bits
    magnitude = (bits & 0x7FFFFFFF).astype(np.int64)
    # Subnormal results lose one more bit for each exponent below the least.
    exponent = np.maximum(magnitude >> 23, 1)
    significand = (magnitude & 0x7FFFFF) | ((magnitude >> 23 > 0).astype(np.int64) << 23)
    exponent -= 127 - ((1 << exponent_bits - 1) - 1)
    drop = np.minimum(23 - mantissa_bits + np.maximum(1 - exponent, 0), 30)
    kept = significand >> drop
    remainder = significand - (kept << drop)
    half = np.int64(1) << drop - 1
    kept += (remainder > half) | ((remainder == half) & (kept & 1 == 1))
    # The leading one adds to the exponent; so does a carry out of the rounding.
    result = (np.maximum(exponent, 1) - 1 << mantissa_bits) + kept
    infinite = top << mantissa_bits
    nan = infinite | 1 << mantissa_bits - 1 if has_infinity else infinite | (1 << mantissa_bits) - 1
    if has_infinity:
        result = np.minimum(result, infinite)
        is_nan = magnitude > 0x7F800000
    else:
        is_nan = (magnitude > 0x7F800000) | (result >= nan)
    return np.where(is_nan, nan, sign | result).astype(np.uint32)


def _combine(op: int, total: Array, value: Array, logical: bool) -> Array:
    if op == base.SUM:
        return np.logical_or(total, value) if logical else total + value
    if op == base.PROD:
        return np.logical_and(total, value) if logical else total * value
    least = op == base.MIN
    if total.dtype.kind != "f":
        return np.minimum(total, value) if least else np.maximum(total, value)
    # NumPy leaves open which of -0 and +0 is less; here -0 is, as in IEEE 754-2019's minimum and maximum.
    bits = np.dtype(f"<u{total.dtype.itemsize}")
    join: Callable[[Array, Array], Array] = np.bitwise_or if least else np.bitwise_and
    zeros = join(total.view(bits), value.view(bits)).view(total.dtype)
    chosen = np.minimum(total, value) if least else np.maximum(total, value)
    return np.where(total == value, zeros, chosen)


def _divide(total: Array, divisor: int) -> Array:
    if total.dtype.kind == "f":
        return total / total.dtype.type(divisor)
    wide = np.dtype(np.int64) if total.dtype.kind == "i" else np.dtype(np.uint64)
    values = total.astype(wide)
    by = wide.type(divisor)
    quotient = values // by
    quotient += ((values % by != 0) & (values < 0)).astype(wide)  # toward zero
    return quotient.astype(total.dtype)
