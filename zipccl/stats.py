"""What calls did: the record of one, and totals."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CallRecord:
    """What one call of a collective did, as this rank saw it.

    Attributes:
        raw_nbytes: bytes that this rank's messages would have taken without compression.
        wire_nbytes: bytes that they took, headers included.
        reason: why it was done by this algorithm, and compressed or not, in words for people.
    """

    op: str
    algorithm: str
    compressed: bool
    raw_nbytes: int
    wire_nbytes: int
    seconds: float
    reason: str = ""

    @property
    def ratio(self) -> float:
        """Raw bytes per byte on the wire; 1 where nothing was sent."""
        return self.raw_nbytes / self.wire_nbytes if self.wire_nbytes else 1.0


@dataclass(slots=True)
class Totals:
    """Sums over the calls of one op."""

    calls: int = 0
    raw_nbytes: int = 0
    wire_nbytes: int = 0
    seconds: float = 0.0

    def add(self, record: CallRecord) -> None:
        self.calls += 1
        self.raw_nbytes += record.raw_nbytes
        self.wire_nbytes += record.wire_nbytes
        self.seconds += record.seconds
