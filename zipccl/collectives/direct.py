"""Direct schedules: every rank sends every other what that one needs, in pieces that overlap coding and the wire.

A value crosses the wire once (twice in an all-reduce) and is compressed as often. Reductions combine in rank order:
the result has the same bits on every rank, whatever the size, the pieces and the compression.

All functions work on addresses; counts are of values, and a plan is the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from zipccl.codec.base import SET, accumulator_itemsize
from zipccl.collectives.messages import Messages, Parcel
from zipccl.strategy import Plan
from zipccl.transport.base import Piece, Receive, Send, Step, Values

_SCATTER, _GATHER = range(2)
"""Tags: messages of one tag between two ranks stay in order."""

_LAG = 2
"""Pieces by which an all-reduce's second half follows its first."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction over ranks: an op of codec/base.py, and what its result is divided by."""

    op: int
    divisor: int = 1

    def op_of(self, rank: int) -> int:
        """Return how a rank's values go into the accumulator: ranks come in order, and rank 0 starts it."""
        return SET if rank == 0 else self.op


def all_gather(messages: Messages, source: int, target: int, counts: Sequence[int], plan: Plan) -> None:
    """Gather counts[r] values from each rank r at target, in rank order; source may be their place there."""
    rank, peers = messages.transport.rank, _others(messages)
    starts = _starts(messages, target, counts)

    own = messages.pieces(source, counts[rank], plan)
    parts = {peer: messages.pieces(starts[peer], counts[peer], plan) for peer in peers}

    def keep(piece: Piece) -> None:
        messages.copy(piece.address, starts[rank] + piece.address - source, piece.count * messages.dtype.itemsize)

    messages.exchange(
        (
            Step(
                [Send(peers, piece, _GATHER) for piece in _at(own, index)],
                [Receive(peer, piece, _GATHER) for peer in peers for piece in _at(parts[peer], index)],
            )
            for index in range(_most([own, *parts.values()]))
        ),
        (partial(keep, piece) for piece in own),
    )


def all_to_all(
    messages: Messages,
    source: int,
    send_counts: Sequence[int],
    target: int,
    receive_counts: Sequence[int],
    plan_for: Callable[[int], Plan],
) -> None:
    """Send the p-th part at source, send_counts[p] values, to each rank p and receive its part for this rank.

    Args:
        plan_for: the plan for a part of a given count; sender and receiver know no other part.
    """
    rank, size = messages.transport.rank, messages.transport.size
    sources = _starts(messages, source, send_counts)
    targets = _starts(messages, target, receive_counts)
    # Each rank starts with its neighbour, so that not all send to rank 0 at once.
    after = [(rank + distance) % size for distance in range(1, size)]

    def cut(starts: Sequence[int], counts: Sequence[int]) -> list[list[Piece]]:
        return [messages.pieces(start, count, plan_for(count)) for start, count in zip(starts, counts, strict=True)]

    outgoing, incoming = cut(sources, send_counts), cut(targets, receive_counts)

    def keep(piece: Piece) -> None:
        target = targets[rank] + piece.address - sources[rank]
        messages.copy(piece.address, target, piece.count * messages.dtype.itemsize)

    messages.exchange(
        (
            Step(
                [Send((peer,), piece, _SCATTER) for peer in after for piece in _at(outgoing[peer], index)],
                [Receive(peer, piece, _SCATTER) for peer in after[::-1] for piece in _at(incoming[peer], index)],
            )
            for index in range(_most([*outgoing, *incoming]))
        ),
        (partial(keep, piece) for piece in outgoing[rank]),
    )


def broadcast(messages: Messages, address: int, count: int, root: int, plan: Plan) -> None:
    """Send count values from the root to all."""
    pieces = messages.pieces(address, count, plan)
    if messages.transport.rank == root:
        peers = _others(messages)
        messages.exchange(Step([Send(peers, piece, _GATHER)], []) for piece in pieces)
    else:
        messages.exchange(Step([], [Receive(root, piece, _GATHER)]) for piece in pieces)


def reduce_scatter(
    messages: Messages, source: int, target: int, counts: Sequence[int], reduction: Reduction, plan: Plan
) -> None:
    """Reduce over ranks the p-th part at source, counts[p] values, and leave it at rank p's target."""
    shards = _Shards(messages, source, counts, target, reduction, plan)
    messages.exchange(Step(shards.sends(index), shards.receives(index)) for index in range(shards.pieces))
    shards.close()


def all_reduce(
    messages: Messages, source: int, target: int, counts: Sequence[int], reduction: Reduction, plan: Plan
) -> None:
    """Reduce all values over ranks: each rank r reduces its shard of counts[r] values and sends it to all others.

    A piece is sent on as soon as it is reduced. target may be source: what comes from a rank overwrites only values
    that this rank had sent it before.
    """
    rank, peers = messages.transport.rank, _others(messages)
    starts = _starts(messages, target, counts)
    shards = _Shards(messages, source, counts, starts[rank], reduction, plan)
    reduced = [messages.pieces(start, count, plan) for start, count in zip(starts, counts, strict=True)]

    def steps() -> Iterator[Step]:
        for index in range(shards.pieces + _LAG):
            before = index - _LAG
            sends = [
                Send(peers, piece, _GATHER, partial(shards.has_reduced, before)) for piece in _at(reduced[rank], before)
            ]
            receives = [Receive(peer, piece, _GATHER) for peer in peers for piece in _at(reduced[peer], before)]
            yield Step(shards.sends(index) + sends, shards.receives(index) + receives)

    messages.exchange(steps())
    shards.close()


def reduce_gathered(
    messages: Messages, gathered: int, target: int, count: int, ranks: int, reduction: Reduction
) -> None:
    """Reduce count values of each of ranks ranks, which stand at gathered in rank order, to target."""
    accumulator = messages.take(count * accumulator_itemsize(messages.dtype))
    for rank, start in enumerate(_starts(messages, gathered, [count] * ranks)):
        messages.combine(reduction.op_of(rank), Values(start, count), accumulator.address)
    messages.pack(accumulator.address, target, count, reduction.divisor)
    messages.give_back(accumulator)


def send_receive(messages: Messages, outgoing: Parcel | None, incoming: Parcel | None) -> None:
    """Send to one peer and receive from one that calls this too.

    Raises:
        MismatchError: the peer sends another count or dtype, or compresses where this rank does not.
    """
    messages.introduce(outgoing, incoming)

    def cut(parcel: Parcel | None) -> list[Piece]:
        return messages.pieces(parcel.address, parcel.count, parcel.plan) if parcel else []

    sent, received = cut(outgoing), cut(incoming)
    messages.exchange(
        Step(
            [Send((outgoing.peer,), piece) for piece in _at(sent, index) if outgoing],
            [Receive(incoming.peer, piece) for piece in _at(received, index) if incoming],
        )
        for index in range(_most([sent, received]))
    )


class _Shards:
    """The first half of a reduction: rank p gets all ranks' values of shard p and combines them in rank order.

    Attributes:
        pieces: the greatest number of pieces in a shard.
    """

    def __init__(
        self, messages: Messages, source: int, counts: Sequence[int], target: int, reduction: Reduction, plan: Plan
    ) -> None:
        self._messages = messages
        self._rank, self._size = messages.transport.rank, messages.transport.size
        self._target = target
        self._reduction = reduction
        largest_piece = min(plan.chunk_count, max(counts))
        self._accumulator = messages.take(largest_piece * accumulator_itemsize(messages.dtype))
        starts = _starts(messages, source, counts)
        self._start = starts[self._rank]
        self._shards = [messages.pieces(start, count, plan) for start, count in zip(starts, counts, strict=True)]
        self.pieces = _most(self._shards)
        self._reduced = 0

    def close(self) -> None:
        self._messages.give_back(self._accumulator)

    def has_reduced(self, index: int) -> bool:
        """Tell whether the piece of that index of this rank's shard stands reduced at target."""
        return self._reduced > index

    def sends(self, index: int) -> list[Send]:
        """Return this rank's messages with the other shards' pieces of that index."""
        after = [(self._rank + distance) % self._size for distance in range(1, self._size)]
        return [Send((peer,), piece, _SCATTER) for peer in after for piece in _at(self._shards[peer], index)]

    def receives(self, index: int) -> list[Receive]:
        """Return the messages with the other ranks' values of this shard's piece of that index, in rank order."""
        return [
            Receive(peer, piece, _SCATTER, self._combiner(peer, piece))
            for piece in _at(self._shards[self._rank], index)
            for peer in _others(self._messages)
        ]

    def _combiner(self, peer: int, piece: Piece) -> Callable[[Values], None]:
        """Return what combines a peer's values when they are there, and this rank's own when it is their turn."""
        last = self._size - 1
        turn = [peer]
        if self._rank == peer - 1:
            turn = [self._rank, peer]
        elif self._rank == last == peer + 1:
            turn = [peer, self._rank]

        def combine(received: Values) -> None:
            for rank in turn:
                values = Values(piece.address, piece.count) if rank == self._rank else received
                self._messages.combine(self._reduction.op_of(rank), values, self._accumulator.address)
            if turn[-1] == last:
                target = self._target + piece.address - self._start
                self._messages.pack(self._accumulator.address, target, piece.count, self._reduction.divisor)
                self._reduced += 1

        return combine


def _at(pieces: Sequence[Piece], index: int) -> Sequence[Piece]:
    """Return the piece of that index alone, or nothing where there is none."""
    return pieces[index : index + 1] if index >= 0 else ()


def _most(lists: Sequence[Sequence[Piece]]) -> int:
    return max(map(len, lists))


def _others(messages: Messages) -> list[int]:
    return [peer for peer in range(messages.transport.size) if peer != messages.transport.rank]


def _starts(messages: Messages, address: int, counts: Sequence[int]) -> list[int]:
    """Return the addresses of parts that stand one behind the other."""
    nbytes = (count * messages.dtype.itemsize for count in counts)
    return list(accumulate(nbytes, initial=address))[:-1]
