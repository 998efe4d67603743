"""The decision on one call."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zipccl.strategy.choice import Choice

NATIVE = "native"
"""The transport's own collective, on values as they are."""

GATHER = "gather"
"""A reduction that first gathers everything everywhere, by the transport's own collective."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way of doing a call: by a schedule of zipccl/collectives, NATIVE or GATHER, compressed or not."""

    algorithm: str
    compress: bool

    def __str__(self) -> str:
        return f"{self.algorithm} {'compressed' if self.compress else 'raw'}"


@dataclass(frozen=True)
class Plan:
    """How one call is done.

    Attributes:
        chunk_count: values in a piece, the same on all ranks.
        reason: why, in words for people.
        choice: what learns from the call's time; None where there is no choice.
    """

    algorithm: str
    compress: bool
    chunk_count: int
    reason: str = ""
    choice: Choice | None = None

    @cached_property
    def text(self) -> str:
        """What ranks compare."""
        return f"{Way(self.algorithm, self.compress)}, pieces of {self.chunk_count}"
