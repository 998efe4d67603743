"""What the benchmarks move: values from a sample, a generator or a file, repeated without end.

Every rank starts at another place of the same endless row of values, so each knows what every other has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zipccl.arrays import numpy_dtype
from zipccl.cli import files
from zipccl.codec import wire
from zipccl.codec.wire import DType
from zipccl.errors import ArgumentError

Array = NDArray[Any]

_GENERATED_COUNT = 131_071
_RANK_STRIDE = 40_507
"""Places between the starts of two ranks; it shares no factor with the lengths of the sample and what is generated."""

_LOSS_SCALE = 1024
"""What gradients are multiplied by where small ones would be lost, as in mixed-precision training."""


@dataclass(frozen=True)
class Tile:
    """Values that are repeated without end.

    Their number is odd wherever it can be: two places that lie a power of two apart, as pieces of a message do, then
    never hold the same, and a piece that arrives at a wrong place is noticed.
    """

    values: Array
    description: str

    def fill(self, target: Array, start: int) -> None:
        """Set target to the values from a place on."""
        for piece, values in self._pieces(target, start):
            piece[:] = values

    def count_wrong(self, found: Array, start: int) -> int:
        """Return how many values differ in any bit from those from a place on."""
        return sum(int(np.count_nonzero(_bits(piece) != _bits(values))) for piece, values in self._pieces(found, start))

    def _pieces(self, array: Array, start: int) -> Iterator[tuple[Array, Array]]:
        done = 0
        while done < array.size:
            at = (start + done) % self.values.size
            values = self.values[at : at + array.size - done]
            yield array[done : done + values.size], values
            done += values.size


def start_of(rank: int) -> int:
    """Return the place of a tile at which a rank's data start."""
    return rank * _RANK_STRIDE


def load(source: str, dtype: DType, max_count: int) -> Tile:
    """Return the values that the option --data asks for.

    Args:
        max_count: no more values of a file are needed.

    Raises:
        ArgumentError: they cannot be had.
    """
    if source.endswith((".npy", ".safetensors")):
        try:
            return _from_file(source, dtype, max_count)
        except ArgumentError as error:
            raise ArgumentError(f"argument --data: {error}") from None
    if source == "sample":
        return _sample(dtype)
    if source not in ("normal", "random", "zeros"):
        raise ArgumentError(
            f"argument --data: expected sample, normal, random, zeros, FILE.npy or FILE.safetensors, found {source!r}"
        )
    generator = np.random.default_rng(2)
    target = numpy_dtype(dtype)
    if source == "zeros":
        return Tile(np.zeros(_GENERATED_COUNT, target), "zeros")
    if source == "random":
        return Tile(_from_bytes(generator.bytes(_GENERATED_COUNT * dtype.itemsize), target), "random bits")
    values = generator.standard_normal(_GENERATED_COUNT)
    if _is_float(target):
        return Tile(values.astype(target), "normal, standard deviation 1")
    return Tile((16 * values).astype(np.int64).astype(target), "normal, standard deviation 16")


def reduced(tile: Tile, op: str, ranks: int) -> Tile:
    """Return what reducing the data of all ranks gives, as the library defines it.

    It is computed in rank order, in fp32 for floats that are narrower, and rounded once; -0 is less than +0, and a NaN
    is the positive quiet one.
    """
    dtype = tile.values.dtype
    wide = np.dtype(np.float32) if _is_float(dtype) and dtype.itemsize < 4 else dtype
    with np.errstate(all="ignore"):
        total = tile.values.astype(wide)
        for rank in range(1, ranks):
            total = _combine(op, total, np.roll(tile.values, -start_of(rank)).astype(wide))
        if op == "avg":
            total = total / wide.type(ranks)
        values = total.astype(dtype)
    if _is_float(dtype):
        values[np.isnan(total)] = np.array(np.nan, dtype)
    return Tile(values, f"{op} of {tile.description}")


def _combine(op: str, total: Array, values: Array) -> Array:
    if op == "prod":
        return total * values
    if op == "min":
        equal = np.where(np.signbit(total), total, values) if _is_float(total.dtype) else total
        return np.where(total == values, equal, np.minimum(total, values))
    if op == "max":
        equal = np.where(np.signbit(total), values, total) if _is_float(total.dtype) else total
        return np.where(total == values, equal, np.maximum(total, values))
    return total + values


def _bits(array: Array) -> Array:
    return array.view(f"u{array.itemsize}")


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or "float" in dtype.name


def _odd(values: Array) -> Array:
    return values[: values.size - (values.size + 1) % 2] if values.size > 1 else values


def _from_bytes(data: bytes, dtype: np.dtype[Any]) -> Array:
    if dtype == np.bool_:
        return (np.frombuffer(data, np.uint8) & 1).view(dtype)
    return np.frombuffer(data, dtype)


def _sample(dtype: DType) -> Tile:
    with resources.as_file(resources.files("zipccl") / "data" / "sample_gradient.npy") as path:
        patterns = np.load(path)
    target = numpy_dtype(dtype)
    what = "sample: gradients of a language model"
    if dtype.name == "bfloat16":
        return Tile(_odd(patterns.view(target)), what)
    if not _is_float(target):
        return Tile(_odd(_from_bytes(patterns.tobytes(), target)), f"{what}, their bytes as {dtype.name}")
    # Every bfloat16 is a float32.
    values = (patterns.astype(np.uint32) << 16).view(np.float32)
    if target.itemsize >= 4:
        return Tile(_odd(values.astype(target)), f"{what}, as {dtype.name}")
    return Tile(_odd((_LOSS_SCALE * values).astype(target)), f"{what}, times {_LOSS_SCALE}, as {dtype.name}")


def _from_file(source: str, dtype: DType, max_count: int) -> Tile:
    target = numpy_dtype(dtype)
    parts: list[Array] = []
    held = set()
    missing = max_count + 1
    for _, array in files.tensors(source, files.FLOATS):
        part = array.reshape(-1, order="A")[:missing]
        if part.dtype == np.uint16 and _is_float(target):
            part = part.view(numpy_dtype(wire.dtype_named("bfloat16")))
        if part.dtype != target and not _is_float(target):
            raise ArgumentError(f"{source} holds {part.dtype}; expected {target} for -d {dtype.name}")
        held.add(part.dtype.name)
        with np.errstate(all="ignore"):
            parts.append(np.ascontiguousarray(part, target))
        missing -= part.size
        if missing <= 0:
            break
    values = _odd(np.concatenate(parts)) if parts else np.empty(0, target)
    if values.size == 0:
        raise ArgumentError(f"{source} holds no values")
    names = ", ".join(sorted(held))
    cast = "" if held == {dtype.name} else f", cast from {names} to {dtype.name}"
    return Tile(values, f"{source}, {values.size} values{cast}")
