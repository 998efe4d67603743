"""A choice between ways of doing calls of one kind, by the times that they take."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from zipccl.strategy.plan import Way

_TRIES = 3
"""Times that each way is tried; the first does not count, for memory that it touches first."""

_FIRST_REVIEW = 256
"""Calls after which the other ways are tried again; from then on each time after twice as many."""

_CLEARLY = 0.95
"""Share of the present way's time that another's must be below to take its place at a review."""

_KEPT = 8
"""The latest times of the present way that count at a review."""

_NEVER = 1e9
"""Seconds of a way that was not tried."""


class Choice:
    """Tries each way in turns, then stays with the fastest, and looks at the others again now and then.

    Ranks that record the same calls are at the same way at each call; what they settle on is the same if they settle
    with the same seconds.

    Attributes:
        ways: at least one, that to begin with first.
        reason: why the present way, in words for people.
    """

    def __init__(self, ways: Sequence[Way], reason: str) -> None:
        self.ways = ways
        self.reason = reason
        self._present = 0
        self._turns = [index for _ in range(_TRIES) for index in range(len(ways))] if len(ways) > 1 else []
        self._uncounted = len(ways)
        self._times: list[deque[float]] = [deque(maxlen=_KEPT) for _ in ways]
        self._calls_left = 0
        self._review_after = _FIRST_REVIEW

    @property
    def way(self) -> Way:
        """The way of the next call."""
        return self.ways[self._turns[0] if self._turns else self._present]

    def record(self, seconds: float) -> bool:
        """Take the time of a call that was done by ``way``; return whether it is time to settle."""
        if len(self.ways) == 1:
            return False
        if not self._turns:
            self._times[self._present].append(seconds)
            self._calls_left -= 1
            if self._calls_left == 0:
                others = [index for index in range(len(self.ways)) if index != self._present]
                self._turns = others * (_TRIES - 1)
                self._uncounted = len(others)
            return False
        index = self._turns.pop(0)
        if self._uncounted > 0:
            self._uncounted -= 1
        else:
            self._times[index].append(seconds)
        return not self._turns

    def seconds(self) -> list[float]:
        """Return this rank's time of each way."""
        return [min(times, default=_NEVER) for times in self._times]

    def settle(self, seconds: Sequence[float]) -> None:
        """Choose by times that all ranks agree on."""
        fastest = min(range(len(self.ways)), key=seconds.__getitem__)
        is_review = self._calls_left == 0 and self._review_after > _FIRST_REVIEW
        if not is_review or seconds[fastest] < _CLEARLY * seconds[self._present]:
            self._present = fastest
        told = "; ".join(f"{way} {1e3 * each:.3g} ms" for way, each in zip(self.ways, seconds, strict=True))
        self.reason = f"tried: {told}"
        for index, times in enumerate(self._times):
            if index != self._present:
                times.clear()
        self._calls_left = self._review_after
        self._review_after *= 2
