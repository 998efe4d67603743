"""What schedules are made of: messages by the number of their step, and pieces that are combined as they come."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

from zipccl.codec.base import SET, accumulator_itemsize
from zipccl.codec.wire import BLOCK_COUNT
from zipccl.transport.base import Piece, Receive, Send, Step, Values

if TYPE_CHECKING:
    from zipccl.collectives.messages import Messages

LAG = 2
"""Steps by which what is made of a piece follows its receive: the piece between keeps the wire busy meanwhile."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction over ranks: an op of codec/base.py, and what its result is divided by."""

    op: int
    divisor: int = 1

    def op_of(self, position: int) -> int:
        """Return how the values that come at that position of the order go into the accumulator: the first start it."""
        return self.op if position else SET


class Schedule:
    """One rank's sends and receives, by the number of their step; in a step they stay in the order of the calls."""

    def __init__(self) -> None:
        self._sends: dict[int, list[Send]] = defaultdict(list)
        self._receives: dict[int, list[Receive]] = defaultdict(list)

    def send(
        self, step: int, peers: Sequence[int], piece: Piece, after: Sequence[Receive] = (), *, relay: bool = False
    ) -> None:
        """Add a send, if there is any peer.

        Args:
            relay: pass on the message of the one receive that it comes after.
        """
        if peers:
            self._sends[step].append(Send(peers, piece, after, after[0] if relay else None))

    def receive(
        self,
        step: int,
        peer: int,
        piece: Piece,
        use: Callable[[Values], None] | None = None,
        *,
        keep: bool = False,
    ) -> Receive:
        """Add a receive and return it."""
        self._receives[step].append(Receive(peer, piece, use, keep))
        return self._receives[step][-1]

    def steps(self) -> Iterator[Step]:
        """Return the steps in their order, those without messages too."""
        for number in range(max([*self._sends, *self._receives], default=-1) + 1):
            yield Step(self._sends.get(number, ()), self._receives.get(number, ()))


class Combiner:
    """Combines pieces of several ranks, one piece at a time, in an accumulator; ``close`` frees that.

    Args:
        largest: values of the largest piece.
    """

    def __init__(self, messages: Messages, schedule: Schedule, largest: int) -> None:
        self._messages = messages
        self._schedule = schedule
        self._accumulator = messages.take(largest * accumulator_itemsize(messages.dtype))

    def close(self) -> None:
        self._messages.give_back(self._accumulator)

    def receive(
        self, step: int, ranks: Sequence[int], own: Piece, target: int, reduction: Reduction
    ) -> Sequence[Receive]:
        """Receive the other ranks' like of this rank's piece, combine all in the order of ranks and round to target.

        Args:
            ranks: this one and at least one other.

        Returns:
            What a send of the result comes after.
        """
        messages, accumulator = self._messages, self._accumulator.address

        def use(positions: Sequence[int], received: Values) -> None:
            for position in positions:
                values = Values(own.address, own.count) if ranks[position] == messages.transport.rank else received
                messages.combine(reduction.op_of(position), values, accumulator)
            if positions[-1] == len(ranks) - 1:
                messages.pack(accumulator, target, own.count, reduction.divisor)

        # This rank's own values are combined together with those before them, or with the first others.
        at = ranks.index(messages.transport.rank)
        turns = [[position] for position in range(len(ranks)) if position != at]
        turns[max(at - 1, 0)].insert(1 if at else 0, at)
        peers = [rank for rank in ranks if rank != messages.transport.rank]
        receives = [
            self._schedule.receive(step, peer, own, partial(use, turn)) for peer, turn in zip(peers, turns, strict=True)
        ]
        return receives[-1:]


def shard_counts(count: int, shards: int) -> list[int]:
    """Share count values among shards, in whole blocks as long as there are any; the first are the largest."""
    share = -(-count // (shards * BLOCK_COUNT)) * BLOCK_COUNT
    return [min(share, max(0, count - shard * share)) for shard in range(shards)]


def starts_of(messages: Messages, address: int, counts: Sequence[int]) -> list[int]:
    """Return the addresses of parts that stand one behind the other."""
    nbytes = (count * messages.dtype.itemsize for count in counts)
    return list(accumulate(nbytes, initial=address))[:-1]
