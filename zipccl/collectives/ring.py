"""Ring schedules: every rank receives from the one before it and sends to the one after it, piece by piece.

What a rank sends and receives does not grow with the number of ranks, and no link carries more than one stream. See
docs/algorithms.md for the order in which a reduction combines, and where it rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

from zipccl.collectives.messages import Messages
from zipccl.collectives.schedule import Combiner, Reduction, Schedule, shard_counts, starts_of
from zipccl.strategy import Plan
from zipccl.transport.base import Piece, Receive


def all_gather(messages: Messages, source: int, target: int, counts: Sequence[int], plan: Plan) -> None:
    """Gather counts[r] values from each rank r at target, in rank order; source may be their place there.

    A message goes all the way round as its first sender made it.
    """
    rank = messages.transport.rank
    starts = starts_of(messages, target, counts)
    shards = [messages.pieces(start, count, plan) for start, count in zip(starts, counts, strict=True)]
    own = messages.pieces(source, counts[rank], plan)
    schedule = Schedule()
    _pass_round(messages, schedule, 0, own, shards, [()] * len(own))
    messages.exchange(schedule.steps(), messages.copies(own, starts[rank]))


def reduce_scatter(
    messages: Messages, source: int, target: int, counts: Sequence[int], reduction: Reduction, plan: Plan
) -> None:
    """Reduce over ranks the p-th part at source, counts[p] values, and leave it at rank p's target."""
    sources = starts_of(messages, source, counts)
    partials = messages.take(sum(counts) * messages.dtype.itemsize)
    targets = starts_of(messages, partials.address, counts)
    targets[messages.transport.rank] = target
    schedule = Schedule()
    combiner = Combiner(messages, schedule, min(plan.chunk_count, max(counts)))
    _reduce_round(messages, schedule, combiner, sources, targets, counts, reduction, plan)
    messages.exchange(schedule.steps())
    combiner.close()
    messages.give_back(partials)


def all_reduce(messages: Messages, source: int, target: int, count: int, reduction: Reduction, plan: Plan) -> None:
    """Reduce count values over ranks: the r-th shard goes round until rank r has the result, and once more.

    target may be source: a shard passes each rank once before its result comes.
    """
    rank = messages.transport.rank
    counts = shard_counts(count, messages.transport.size)
    sources, targets = starts_of(messages, source, counts), starts_of(messages, target, counts)
    schedule = Schedule()
    combiner = Combiner(messages, schedule, min(plan.chunk_count, max(counts)))
    reduced = _reduce_round(messages, schedule, combiner, sources, targets, counts, reduction, plan)
    shards = [messages.pieces(start, count, plan) for start, count in zip(targets, counts, strict=True)]
    first = (messages.transport.size - 1) * max(map(len, shards))
    _pass_round(messages, schedule, first, shards[rank], shards, reduced)
    messages.exchange(schedule.steps())
    combiner.close()


def _reduce_round(
    messages: Messages,
    schedule: Schedule,
    combiner: Combiner,
    sources: Sequence[int],
    targets: Sequence[int],
    counts: Sequence[int],
    reduction: Reduction,
    plan: Plan,
) -> Sequence[Sequence[Receive]]:
    """Combine shard s at the ranks s + 1, s + 2 and so on, to rank s; each leaves its partial result at targets[s].

    Returns:
        For each piece of this rank's shard, what a send of the result comes after.
    """
    rank, size = messages.transport.rank, messages.transport.size
    before, following = _neighbours(messages)
    values = [messages.pieces(start, count, plan) for start, count in zip(sources, counts, strict=True)]
    partials = [messages.pieces(start, count, plan) for start, count in zip(targets, counts, strict=True)]
    most = max(map(len, values))
    sent = (rank - 1) % size
    for step, piece in enumerate(values[sent]):
        schedule.send(step, [following], piece)
    reduced: Sequence[Sequence[Receive]] = ()
    for hop in range(size - 1):
        first = hop * most
        if hop:
            for step, piece in enumerate(partials[sent], first):
                schedule.send(step, [following], piece, reduced[step - first])
        shard = (sent - 1) % size
        last = shard == rank
        reduced = [
            combiner.receive(
                first + index,
                (rank, before),
                piece,
                partials[shard][index].address,
                reduction if last else Reduction(reduction.op),
            )
            for index, piece in enumerate(values[shard])
        ]
        sent = shard
    return reduced


def _pass_round(
    messages: Messages,
    schedule: Schedule,
    first: int,
    own: Sequence[Piece],
    shards: Sequence[Sequence[Piece]],
    after: Sequence[Sequence[Receive]],
) -> None:
    """Pass this rank's pieces to the next one, and on what comes from the one before, until all have them.

    Args:
        first: the number of the first step.
        after: for each of this rank's pieces, what its send comes after.
    """
    rank, size = messages.transport.rank, messages.transport.size
    before, following = _neighbours(messages)
    most = max(map(len, shards))
    for index, piece in enumerate(own):
        schedule.send(first + index, [following], piece, after[index])
    for hop in range(size - 1):
        for index, piece in enumerate(shards[(rank - 1 - hop) % size]):
            step = first + hop * most + index
            passes_on = hop < size - 2
            receive = schedule.receive(step, before, piece, keep=passes_on)
            if passes_on:
                schedule.send(step + most, [following], piece, [receive], relay=True)


def _neighbours(messages: Messages) -> tuple[int, int]:
    rank, size = messages.transport.rank, messages.transport.size
    return (rank - 1) % size, (rank + 1) % size
