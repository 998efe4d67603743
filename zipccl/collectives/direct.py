"""Direct schedules: every rank sends every other what that one needs, in pieces that overlap coding and the wire.

A value crosses the wire once (twice in an all-reduce) and is compressed as often. Reductions combine in rank order:
the result has the same bits on every rank, whatever the size, the pieces and the compression.

All functions work on addresses; counts are of values, and a plan is the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zipccl.codec.base import accumulator_itemsize
from zipccl.collectives.messages import Messages, Parcel
from zipccl.collectives.schedule import LAG, Combiner, Reduction, Schedule, shard_counts, starts_of
from zipccl.strategy import Plan
from zipccl.transport.base import Receive, Values


def all_gather(messages: Messages, source: int, target: int, counts: Sequence[int], plan: Plan) -> None:
    """Gather counts[r] values from each rank r at target, in rank order; source may be their place there."""
    rank, peers = messages.transport.rank, _others(messages)
    starts = starts_of(messages, target, counts)
    own = messages.pieces(source, counts[rank], plan)
    schedule = Schedule()
    for step, piece in enumerate(own):
        schedule.send(step, peers, piece)
    for peer in peers:
        _receive(messages, schedule, peer, starts[peer], counts[peer], plan)
    messages.exchange(schedule.steps(), messages.copies(own, starts[rank]))


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
    sources, targets = starts_of(messages, source, send_counts), starts_of(messages, target, receive_counts)
    schedule = Schedule()
    for peer in _after(messages):
        _send(messages, schedule, peer, sources[peer], send_counts[peer], plan_for(send_counts[peer]))
    for distance in range(1, size):
        peer = (rank - distance) % size
        _receive(messages, schedule, peer, targets[peer], receive_counts[peer], plan_for(receive_counts[peer]))
    own = messages.pieces(sources[rank], send_counts[rank], plan_for(send_counts[rank]))
    messages.exchange(schedule.steps(), messages.copies(own, targets[rank]))


def broadcast(messages: Messages, address: int, count: int, root: int, plan: Plan) -> None:
    """Send count values from the root to all."""
    schedule = Schedule()
    if messages.transport.rank == root:
        for step, piece in enumerate(messages.pieces(address, count, plan)):
            schedule.send(step, _others(messages), piece)
    else:
        _receive(messages, schedule, root, address, count, plan)
    messages.exchange(schedule.steps())


def gather(messages: Messages, source: int, target: int, counts: Sequence[int], root: int, plan: Plan) -> None:
    """Gather counts[r] values from each rank r at the root's target, in rank order."""
    rank = messages.transport.rank
    schedule = Schedule()
    if rank != root:
        _send(messages, schedule, root, source, counts[rank], plan)
        messages.exchange(schedule.steps())
        return
    starts = starts_of(messages, target, counts)
    for peer in _others(messages):
        _receive(messages, schedule, peer, starts[peer], counts[peer], plan)
    messages.exchange(schedule.steps(), messages.copies(messages.pieces(source, counts[root], plan), starts[root]))


def scatter(messages: Messages, source: int, target: int, counts: Sequence[int], root: int, plan: Plan) -> None:
    """Send the p-th part at the root's source, counts[p] values, to each rank p's target."""
    rank = messages.transport.rank
    schedule = Schedule()
    if rank != root:
        _receive(messages, schedule, root, target, counts[rank], plan)
        messages.exchange(schedule.steps())
        return
    starts = starts_of(messages, source, counts)
    for peer in _after(messages):
        _send(messages, schedule, peer, starts[peer], counts[peer], plan)
    messages.exchange(schedule.steps(), messages.copies(messages.pieces(starts[root], counts[root], plan), target))


def reduce(
    messages: Messages, source: int, target: int, count: int, root: int, reduction: Reduction, plan: Plan
) -> None:
    """Reduce count values over ranks to the root's target."""
    counts = [count if rank == root else 0 for rank in range(messages.transport.size)]
    reduce_scatter(messages, source, target, counts, reduction, plan)


def reduce_scatter(
    messages: Messages, source: int, target: int, counts: Sequence[int], reduction: Reduction, plan: Plan
) -> None:
    """Reduce over ranks the p-th part at source, counts[p] values, and leave it at rank p's target."""
    schedule = Schedule()
    combiner = Combiner(messages, schedule, min(plan.chunk_count, counts[messages.transport.rank]))
    _reduce_shards(messages, schedule, combiner, source, target, counts, reduction, plan)
    messages.exchange(schedule.steps())
    combiner.close()


def all_reduce(messages: Messages, source: int, target: int, count: int, reduction: Reduction, plan: Plan) -> None:
    """Reduce count values over ranks: each rank reduces its shard and sends it to all others.

    A piece is sent on as soon as it is reduced. target may be source: what comes from a rank overwrites only values
    that this rank had sent it before.
    """
    rank, peers = messages.transport.rank, _others(messages)
    counts = shard_counts(count, messages.transport.size)
    starts = starts_of(messages, target, counts)
    schedule = Schedule()
    combiner = Combiner(messages, schedule, min(plan.chunk_count, counts[rank]))
    reduced = _reduce_shards(messages, schedule, combiner, source, starts[rank], counts, reduction, plan)
    for index, piece in enumerate(messages.pieces(starts[rank], counts[rank], plan)):
        schedule.send(index + LAG, peers, piece, reduced[index])
    for peer in peers:
        _receive(messages, schedule, peer, starts[peer], counts[peer], plan, LAG)
    messages.exchange(schedule.steps())
    combiner.close()


def reduce_gathered(
    messages: Messages, gathered: int, target: int, count: int, ranks: int, reduction: Reduction
) -> None:
    """Reduce count values of each of ranks ranks, which stand at gathered in rank order, to target."""
    accumulator = messages.take(count * accumulator_itemsize(messages.dtype))
    for rank, start in enumerate(starts_of(messages, gathered, [count] * ranks)):
        messages.combine(reduction.op_of(rank), Values(start, count), accumulator.address)
    messages.pack(accumulator.address, target, count, reduction.divisor)
    messages.give_back(accumulator)


def send_receive(messages: Messages, outgoing: Parcel | None, incoming: Parcel | None) -> None:
    """Send to one peer and receive from one that calls this too.

    Raises:
        MismatchError: the peer sends another count or dtype, or compresses where this rank does not.
    """
    messages.introduce(outgoing, incoming)
    schedule = Schedule()
    if outgoing:
        _send(messages, schedule, outgoing.peer, outgoing.address, outgoing.count, outgoing.plan)
    if incoming:
        _receive(messages, schedule, incoming.peer, incoming.address, incoming.count, incoming.plan)
    messages.exchange(schedule.steps())


def _reduce_shards(
    messages: Messages,
    schedule: Schedule,
    combiner: Combiner,
    source: int,
    target: int,
    counts: Sequence[int],
    reduction: Reduction,
    plan: Plan,
) -> list[Sequence[Receive]]:
    """Send each other rank its shard, and combine all ranks' values of this one's shard in rank order.

    Returns:
        For each piece of this rank's shard, what a send of the result comes after.
    """
    rank, size = messages.transport.rank, messages.transport.size
    starts = starts_of(messages, source, counts)
    for peer in _after(messages):
        _send(messages, schedule, peer, starts[peer], counts[peer], plan)
    return [
        combiner.receive(step, range(size), piece, target + piece.address - starts[rank], reduction)
        for step, piece in enumerate(messages.pieces(starts[rank], counts[rank], plan))
    ]


def _send(messages: Messages, schedule: Schedule, peer: int, address: int, count: int, plan: Plan) -> None:
    """Send values to one peer, the n-th piece in the n-th step."""
    for step, piece in enumerate(messages.pieces(address, count, plan)):
        schedule.send(step, (peer,), piece)


def _receive(
    messages: Messages, schedule: Schedule, peer: int, address: int, count: int, plan: Plan, first: int = 0
) -> None:
    """Receive values from one peer, the n-th piece in the n-th step from the first."""
    for step, piece in enumerate(messages.pieces(address, count, plan), first):
        schedule.receive(step, peer, piece)


def _others(messages: Messages) -> list[int]:
    return [peer for peer in range(messages.transport.size) if peer != messages.transport.rank]


def _after(messages: Messages) -> list[int]:
    """Return the other ranks, the neighbour first, so that not all send to rank 0 at once."""
    size = messages.transport.size
    return [(messages.transport.rank + distance) % size for distance in range(1, size)]
