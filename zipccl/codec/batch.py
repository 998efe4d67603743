"""The interface of a codec that works in the order of a device's stream, on many arrays at once.

Starting a kernel costs as much as coding a megabyte, so all the messages of a step are coded by one launch; and the
host need not wait, except where it must know a size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from zipccl.codec.base import Codec
from zipccl.codec.wire import DType


class Part(NamedTuple):
    """Values to encode: count of them at source, to ``wire.body_nbytes_bound(count, dtype)`` bytes at body."""

    source: int
    count: int  # type: ignore[assignment]  # tuple.count is not wanted
    body: int


class DecodePart(NamedTuple):
    """A body of nbytes bytes in the blocks layout to decode, to count values at target."""

    body: int
    nbytes: int
    target: int
    count: int  # type: ignore[assignment]  # tuple.count is not wanted


class ReducePart(NamedTuple):
    """Values to combine with count elements at accumulator by an op of codec/base.py.

    They are the body of nbytes bytes at source, or stand there as they are if nbytes is None.
    """

    op: int
    source: int
    nbytes: int | None
    accumulator: int
    count: int  # type: ignore[assignment]  # tuple.count is not wanted


class Sizes(Protocol):
    def get(self) -> list[int]:
        """Return the sizes of the bodies, after waiting for them."""


class Status(Protocol):
    def check(self) -> None:
        """Wait until all is decoded.

        Raises:
            CorruptPayloadError: no encoder writes one of the bodies.
        """


class BatchCodec(Codec, Protocol):
    """A codec for memory of a device. The memory is used until what was put on the stream is done."""

    def encode_parts(self, dtype: DType, parts: Sequence[Part], stream: int) -> Sizes:
        """Encode values; a body is as large as its values if and only if its layout is raw."""

    def decode_parts(self, dtype: DType, parts: Sequence[DecodePart], stream: int) -> Status:
        """Decode bodies."""

    def decode_reduce_parts(self, dtype: DType, parts: Sequence[ReducePart], stream: int) -> Status:
        """Combine values with accumulators, those of one accumulator in the order given."""

    def pack_on(self, dtype: DType, accumulator: int, target: int, count: int, divisor: int, stream: int) -> None:
        """Do what ``pack`` does, in the order of a stream."""
