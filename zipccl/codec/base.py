"""The interface between the codecs and what uses them."""

from __future__ import annotations

from typing import Protocol

from zipccl.codec.wire import DType
from zipccl.errors import ArgumentError

SUM, PROD, MIN, MAX, SET = range(5)
"""Codes of what a codec can do with an accumulator: the reductions, and to replace it, with which a reduction starts.
An average is a sum with a divisor when it is packed."""


class Codec(Protocol):
    """What a codec does for the collectives, on memory of one kind of device.

    All memory is given by address and size, and the caller keeps it alive; nothing outside it is read or written.
    Every codec gives the same bytes for the same input. The element type of accumulators is
    ``accumulator_itemsize(dtype)`` bytes wide: fp32 for floats of at most four bytes, else the dtype itself.
    """

    name: str

    def encode_body(self, dtype: DType, source: int, count: int, body: int) -> int:
        """Encode count values at source into a body and return its size.

        Args:
            body: address of ``wire.body_nbytes_bound(count, dtype)`` bytes, not overlapping the source.

        Returns:
            The number of bytes written; equal to the values' own size if and only if the layout is raw.
        """

    def decode_body(self, dtype: DType, body: int, nbytes: int, target: int, count: int) -> None:
        """Decode a body in the blocks layout into count values at target.

        Raises:
            CorruptPayloadError: no encoder writes such a body; the target's content is then undefined.
        """

    def decode_reduce(self, dtype: DType, op: int, body: int, nbytes: int, accumulator: int, count: int) -> None:
        """Decode as ``decode_body`` does and ``accumulate`` the values, without a place for them in between.

        Raises:
            CorruptPayloadError: no encoder writes such a body; the accumulator's content is then undefined.
        """

    def pack_encode(self, dtype: DType, accumulator: int, count: int, divisor: int, target: int, body: int) -> int:
        """``pack`` count values to target, encode them as ``encode_body`` does and return the body's size."""

    def widen(self, dtype: DType, source: int, accumulator: int, count: int) -> None:
        """Set an accumulator to the values at source."""

    def accumulate(self, dtype: DType, op: int, source: int, accumulator: int, count: int) -> None:
        """Replace each accumulator element a by op(a, value at source); with SET this is ``widen``."""

    def pack(self, dtype: DType, accumulator: int, target: int, count: int, divisor: int) -> None:
        """Divide an accumulator by divisor, round once to dtype and store it; NaN becomes the positive quiet NaN."""


def accumulator_itemsize(dtype: DType) -> int:
    """Return the bytes that one accumulator element of a dtype takes."""
    return 4 if dtype.name in ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2") else dtype.itemsize


def check_divisor(divisor: int) -> None:
    """Raise if an accumulator cannot be divided by that.

    Raises:
        ArgumentError: it is less than 1.
    """
    if divisor < 1:
        raise ArgumentError(f"divisor is {divisor}; expected 1 or more")
