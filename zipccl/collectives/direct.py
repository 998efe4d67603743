"""Direct schedules: every rank sends every other what that one needs, in pieces that overlap coding and the wire.

A value crosses the wire once (twice in an all-reduce) and is compressed as often. Reductions combine in rank order:
the result has the same bits on every rank, whatever the size, the pieces and the compression.

All functions work on addresses; counts are of values, and a plan is the same on all ranks.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from zipccl.codec import wire
from zipccl.codec.base import SET, accumulator_itemsize
from zipccl.collectives.messages import Messages, Piece, Values, in_turns
from zipccl.errors import MismatchError
from zipccl.strategy import Plan
from zipccl.transport.base import Receive, Send

_SCATTER, _GATHER, _POINT_TO_POINT = range(3)
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


@dataclass(frozen=True, slots=True)
class Parcel:
    """What goes to or comes from one peer."""

    peer: int
    address: int
    count: int
    plan: Plan


def all_gather(messages: Messages, source: int, target: int, counts: Sequence[int], plan: Plan) -> None:
    """Gather counts[r] values from each rank r at target, in rank order; source may be their place there."""
    rank, peers = messages.transport.rank, _others(messages)
    starts = _starts(messages, target, counts)

    own = messages.pieces(source, counts[rank], plan)
    parts = [(peer, messages.pieces(starts[peer], counts[peer], plan)) for peer in peers]

    def keep(piece: Piece) -> None:
        copy(piece.address, starts[rank] + piece.address - source, piece.count * messages.dtype.itemsize)

    messages.transport.exchange(
        (messages.send(peers, piece, _GATHER) for piece in own),
        (messages.receive(peer, piece, _GATHER) for peer, piece in in_turns(parts)),
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

    def parts(starts: Sequence[int], counts: Sequence[int], peers: Sequence[int]) -> Iterator[tuple[int, Piece]]:
        return in_turns([(peer, messages.pieces(starts[peer], counts[peer], plan_for(counts[peer]))) for peer in peers])

    def keep(piece: Piece) -> None:
        target = targets[rank] + piece.address - sources[rank]
        copy(piece.address, target, piece.count * messages.dtype.itemsize)

    messages.transport.exchange(
        (messages.send((peer,), piece, _SCATTER) for peer, piece in parts(sources, send_counts, after)),
        (messages.receive(peer, piece, _SCATTER) for peer, piece in parts(targets, receive_counts, after[::-1])),
        (partial(keep, piece) for _, piece in parts(sources, send_counts, [rank])),
    )


def broadcast(messages: Messages, address: int, count: int, root: int, plan: Plan) -> None:
    """Send count values from the root to all."""
    pieces = messages.pieces(address, count, plan)
    if messages.transport.rank == root:
        peers = _others(messages)
        messages.transport.exchange((messages.send(peers, piece, _GATHER) for piece in pieces), ())
    else:
        messages.transport.exchange((), (messages.receive(root, piece, _GATHER) for piece in pieces))


def reduce_scatter(
    messages: Messages, source: int, target: int, counts: Sequence[int], reduction: Reduction, plan: Plan
) -> None:
    """Reduce over ranks the p-th part at source, counts[p] values, and leave it at rank p's target."""
    shards = _Shards(messages, source, counts, target, reduction, plan)
    steps = range(shards.steps)
    messages.transport.exchange(
        (send for step in steps for send in shards.sends(step)),
        (receive for step in steps for receive in shards.receives(step)),
    )
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

    def sends() -> Iterator[Send]:
        for step in range(shards.steps + _LAG):
            yield from shards.sends(step)
            for index, piece in _at(reduced[rank], step - _LAG):
                yield messages.send(peers, piece, _GATHER, partial(shards.has_reduced, index))

    def receives() -> Iterator[Receive]:
        for step in range(shards.steps + _LAG):
            yield from shards.receives(step)
            for peer in peers:
                for _, piece in _at(reduced[peer], step - _LAG):
                    yield messages.receive(peer, piece, _GATHER)

    messages.transport.exchange(sends(), receives())
    shards.close()


def reduce_gathered(
    messages: Messages, gathered: int, target: int, count: int, ranks: int, reduction: Reduction
) -> None:
    """Reduce count values of each of ranks ranks, which stand at gathered in rank order, to target."""
    accumulator = messages.pool.take(count * accumulator_itemsize(messages.dtype))
    for rank, start in enumerate(_starts(messages, gathered, [count] * ranks)):
        messages.combine(reduction.op_of(rank), Values(start, count), accumulator.address)
    messages.codec.pack(messages.dtype, accumulator.address, target, count, reduction.divisor)
    messages.pool.give_back(accumulator)


def send_receive(messages: Messages, outgoing: Parcel | None, incoming: Parcel | None) -> None:
    """Send to one peer and receive from one that calls this too: an envelope each, then the pieces.

    The envelope is the header of a payload of all values.

    Raises:
        MismatchError: the peer sends another count or dtype, or compresses where this rank does not.
    """
    messages.transport.exchange(
        _parcel_sends(messages, outgoing) if outgoing else (),
        _parcel_receives(messages, incoming) if incoming else (),
    )


def _parcel_sends(messages: Messages, parcel: Parcel) -> Iterator[Send]:
    envelope = wire.Header(messages.dtype, (parcel.count,), int(parcel.plan.compress)).pack()

    def prepare(buffer: int) -> tuple[int, int]:
        ctypes.memmove(buffer, envelope, len(envelope))
        messages.add_sent(0, len(envelope))
        return buffer, len(envelope)

    yield Send((parcel.peer,), len(envelope), prepare, tag=_POINT_TO_POINT)
    for piece in messages.pieces(parcel.address, parcel.count, parcel.plan):
        yield messages.send((parcel.peer,), piece, _POINT_TO_POINT)


def _parcel_receives(messages: Messages, parcel: Parcel) -> Iterator[Receive]:
    expected = wire.Header(messages.dtype, (parcel.count,), int(parcel.plan.compress))

    def check(buffer: int, nbytes: int) -> None:
        found = ctypes.string_at(buffer, nbytes)
        if found != expected.pack():
            sent = wire.Header.unpack(memoryview(found))
            raise MismatchError(
                f"rank {parcel.peer} sends {sent.count} values of {sent.dtype.name}, compressed: {bool(sent.layout)}; "
                f"rank {messages.transport.rank} expects {parcel.count} of {messages.dtype.name}, "
                f"compressed: {parcel.plan.compress}"
            )

    yield Receive(parcel.peer, expected.nbytes, check, None, _POINT_TO_POINT)
    for piece in messages.pieces(parcel.address, parcel.count, parcel.plan):
        yield messages.receive(parcel.peer, piece, _POINT_TO_POINT)


def copy(source: int, target: int, nbytes: int) -> None:
    """Copy bytes unless they are already there."""
    if source != target:
        ctypes.memmove(target, source, nbytes)


class _Shards:
    """The first half of a reduction: rank p gets all ranks' values of shard p and combines them in rank order.

    Attributes:
        steps: the greatest number of pieces in a shard.
    """

    def __init__(
        self, messages: Messages, source: int, counts: Sequence[int], target: int, reduction: Reduction, plan: Plan
    ) -> None:
        self._messages = messages
        self._rank, self._size = messages.transport.rank, messages.transport.size
        self._target = target
        self._reduction = reduction
        largest_piece = min(plan.chunk_count, max(counts))
        self._accumulator = messages.pool.take(largest_piece * accumulator_itemsize(messages.dtype))
        starts = _starts(messages, source, counts)
        self._start = starts[self._rank]
        self._shards = [messages.pieces(start, count, plan) for start, count in zip(starts, counts, strict=True)]
        self.steps = max(len(shard) for shard in self._shards)
        self._reduced = 0

    def close(self) -> None:
        self._messages.pool.give_back(self._accumulator)

    def has_reduced(self, index: int) -> bool:
        """Tell whether the piece of that index of this rank's shard stands reduced at target."""
        return self._reduced > index

    def sends(self, step: int) -> Iterator[Send]:
        """Yield this rank's messages with the other shards' pieces of that step."""
        for distance in range(1, self._size):
            peer = (self._rank + distance) % self._size
            for _, piece in _at(self._shards[peer], step):
                yield self._messages.send((peer,), piece, _SCATTER)

    def receives(self, step: int) -> Iterator[Receive]:
        """Yield the messages with the other ranks' values of this shard's piece of that step, in rank order."""
        for _, piece in _at(self._shards[self._rank], step):
            for peer in _others(self._messages):
                yield self._messages.receive_values(peer, piece, self._combiner(peer, piece), _SCATTER)

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
                self._messages.codec.pack(
                    self._messages.dtype, self._accumulator.address, target, piece.count, self._reduction.divisor
                )
                self._reduced += 1

        return combine


def _at(pieces: Sequence[Piece], index: int) -> Sequence[tuple[int, Piece]]:
    """Return ((index, piece),), or nothing where there is none."""
    return ((index, pieces[index]),) if 0 <= index < len(pieces) else ()


def _others(messages: Messages) -> list[int]:
    return [peer for peer in range(messages.transport.size) if peer != messages.transport.rank]


def _starts(messages: Messages, address: int, counts: Sequence[int]) -> list[int]:
    """Return the addresses of parts that stand one behind the other."""
    nbytes = (count * messages.dtype.itemsize for count in counts)
    return list(accumulate(nbytes, initial=address))[:-1]
