"""Hierarchical schedules: values travel as they are inside a node, and compressed, once to each node, between nodes.

Any layout will do: nodes may have different numbers of ranks, in any order. Where all ranks are on one node, a schedule
is the direct one, without compression. See docs/algorithms.md for the order in which a reduction combines, and where it
rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from zipccl.collectives import direct
from zipccl.collectives.messages import Messages
from zipccl.collectives.schedule import LAG, Combiner, Reduction, Schedule, shard_counts, starts_of
from zipccl.strategy import Plan
from zipccl.transport.base import Piece, Receive, Transport


class Layout:
    """Where the ranks are, as one of them sees it.

    Attributes:
        nodes: each node's ranks.
        node: the number of this rank's.
        local: this rank's number among the ranks of its node.
        ranks: the ranks of its node.
        fellows: those without this one.
    """

    def __init__(self, transport: Transport) -> None:
        self._node_of = transport.nodes
        numbers = range(max(transport.nodes) + 1)
        self.nodes = [[r for r in range(transport.size) if transport.nodes[r] == number] for number in numbers]
        self.node = transport.nodes[transport.rank]
        self.ranks = self.nodes[self.node]
        self.local = self.ranks.index(transport.rank)
        self.fellows = [rank for rank in self.ranks if rank != transport.rank]

    def partner(self, node: int, rank: int) -> int:
        """Return the rank of a node through which what a rank sends to that node, or receives from it, goes.

        On its own node a rank is its own partner.
        """
        local = self.nodes[self._node_of[rank]].index(rank)
        return self.nodes[node][local % len(self.nodes[node])]

    def partners(self, rank: int) -> list[int]:
        """Return a rank's partner on each node."""
        return [self.partner(node, rank) for node in range(len(self.nodes))]

    def elsewhere(self, rank: int) -> list[int]:
        """Return the ranks of other nodes than this rank's whose partner here is a rank of this node."""
        return [
            other
            for other, node in enumerate(self._node_of)
            if node != self.node and self.partner(self.node, other) == rank
        ]


def all_gather(messages: Messages, source: int, target: int, counts: Sequence[int], plan: Plan) -> None:
    """Gather counts[r] values from each rank r at target, in rank order; source may be their place there.

    Each rank sends its values to one rank of every other node, which passes them on inside that.
    """
    rank = messages.transport.rank
    layout = Layout(messages.transport)
    inside = replace(plan, compress=False)
    starts = starts_of(messages, target, counts)
    own = messages.pieces(source, counts[rank], inside)
    schedule = Schedule()
    for step, piece in enumerate(messages.pieces(source, counts[rank], plan)):
        schedule.send(step, [other for other in layout.partners(rank) if other != rank], piece)
    for step, piece in enumerate(own):
        schedule.send(step, layout.fellows, piece)
    for other in layout.elsewhere(rank):
        for step, piece in enumerate(messages.pieces(starts[other], counts[other], plan)):
            receive = schedule.receive(step, other, piece)
            schedule.send(step + LAG, layout.fellows, replace(piece, compress=False), [receive])
    for fellow in layout.fellows:
        for first, others in ((0, [fellow]), (LAG, layout.elsewhere(fellow))):
            for other in others:
                for step, piece in enumerate(messages.pieces(starts[other], counts[other], inside), first):
                    schedule.receive(step, fellow, piece)
    messages.exchange(schedule.steps(), messages.copies(own, starts[rank]))


def reduce_scatter(
    messages: Messages, source: int, target: int, counts: Sequence[int], reduction: Reduction, plan: Plan
) -> None:
    """Reduce over ranks the p-th part at source, counts[p] values, and leave it at rank p's target.

    The ranks of a node share the work on its sums, each on those of its partners, and send them there.
    """
    rank = messages.transport.rank
    layout = Layout(messages.transport)
    inside = replace(plan, compress=False)
    if len(layout.nodes) == 1:
        direct.reduce_scatter(messages, source, target, counts, reduction, inside)
        return
    sources = starts_of(messages, source, counts)
    mine = [rank, *layout.elsewhere(rank)]
    mine_counts = [counts[other] for other in mine]
    memory = messages.take(sum(mine_counts) * messages.dtype.itemsize if layout.fellows else 0)
    schedule = Schedule()
    combiner = Combiner(messages, schedule, min(plan.chunk_count, max(mine_counts)))
    for fellow in layout.fellows:
        for other in (fellow, *layout.elsewhere(fellow)):
            for step, piece in enumerate(messages.pieces(sources[other], counts[other], inside)):
                schedule.send(step, [fellow], piece)
    for other, place in zip(mine, starts_of(messages, memory.address, mine_counts), strict=True):
        values = messages.pieces(sources[other], counts[other], inside)
        places = [piece.address for piece in messages.pieces(place, counts[other], plan)]
        sums, summed = _sum_inside(combiner, layout, values, places, reduction)
        for index, piece in enumerate(sums):
            own = replace(piece, compress=plan.compress)
            if other == rank:
                result = target + values[index].address - values[0].address
                combiner.receive(index + LAG, layout.partners(rank), own, result, reduction)
            else:
                schedule.send(index + LAG, [other], own, summed[index])
    messages.exchange(schedule.steps())
    combiner.close()
    messages.give_back(memory)


def all_reduce(messages: Messages, source: int, target: int, count: int, reduction: Reduction, plan: Plan) -> None:
    """Reduce count values over ranks; target may be source.

    The array is cut into as many shards as the smallest node has ranks, and these into as many parts as there are
    nodes. On each node one rank sums up a shard; its like on the other nodes and it then make a direct all-reduce of
    their sums, each for one part; and each passes the result on inside its node.
    """
    rank = messages.transport.rank
    layout = Layout(messages.transport)
    inside = replace(plan, compress=False)
    if len(layout.nodes) == 1:
        direct.all_reduce(messages, source, target, count, reduction, inside)
        return
    shards = min(map(len, layout.nodes))
    counts = [part for shard in shard_counts(count, shards) for part in shard_counts(shard, len(layout.nodes))]

    def cut(address: int) -> list[list[Piece]]:
        starts = starts_of(messages, address, counts)
        return [messages.pieces(start, count, inside) for start, count in zip(starts, counts, strict=True)]

    def parts_of(local: int) -> range:
        """Return the numbers of the parts of the shard that ranks of that number on their nodes sum up."""
        return range(local * len(layout.nodes), (local + 1) * len(layout.nodes)) if local < shards else range(0)

    values, results = cut(source), cut(target)
    schedule = Schedule()
    combiner = Combiner(messages, schedule, min(plan.chunk_count, max(counts)))
    for local, fellow in enumerate(layout.ranks):
        for number in parts_of(local) if fellow != rank else ():
            for step, piece in enumerate(values[number]):
                schedule.send(step, [fellow], piece)
    for node, number in enumerate(parts_of(layout.local)):
        rail = [ranks[layout.local] for ranks in layout.nodes]
        others = [other for other in rail if other != rank]
        places = [piece.address for piece in results[number]]
        sums, summed = _sum_inside(combiner, layout, values[number], places, reduction)
        for index, result in enumerate(results[number]):
            own, coded = (replace(piece, compress=plan.compress) for piece in (sums[index], result))
            if node == layout.node:
                there = combiner.receive(index + LAG, rail, own, result.address, reduction)
                schedule.send(index + 2 * LAG, others, coded, there)
            else:
                schedule.send(index + LAG, [rail[node]], own, summed[index])
                there = [schedule.receive(index + 2 * LAG, rail[node], coded)]
            schedule.send(index + 3 * LAG, layout.fellows, result, there)
    for local, fellow in enumerate(layout.ranks):
        for number in parts_of(local) if fellow != rank else ():
            for step, piece in enumerate(results[number], 3 * LAG):
                schedule.receive(step, fellow, piece)
    messages.exchange(schedule.steps())
    combiner.close()


def all_to_all(messages: Messages, source: int, target: int, counts: Sequence[Sequence[int]], plan: Plan) -> None:
    """Send the p-th part at source to each rank p and receive its part for this rank.

    What the ranks of a node send to one rank elsewhere is brought together first, so that it goes in few messages.

    Args:
        counts: counts[r][p] values go from rank r to rank p.
    """
    rank = messages.transport.rank
    layout = Layout(messages.transport)
    inside = replace(plan, compress=False)
    sources = starts_of(messages, source, counts[rank])
    targets = starts_of(messages, target, [row[rank] for row in counts])
    mine = layout.elsewhere(rank)
    brought = [(origin, other) for other in mine for origin in layout.ranks]
    brought_counts = [counts[origin][other] for origin, other in brought]
    memory = messages.take(sum(brought_counts) * messages.dtype.itemsize if layout.fellows else 0)
    places = dict(zip(brought, starts_of(messages, memory.address, brought_counts), strict=True))
    if not layout.fellows:
        places = {(rank, other): sources[other] for other in mine}

    schedule = Schedule()
    for fellow in layout.fellows:
        for other in (fellow, *layout.elsewhere(fellow)):
            for step, piece in enumerate(messages.pieces(sources[other], counts[rank][other], inside)):
                schedule.send(step, [fellow], piece)
        for other in (rank, *mine):
            place = targets[fellow] if other == rank else places[fellow, other]
            for step, piece in enumerate(messages.pieces(place, counts[fellow][other], inside)):
                schedule.receive(step, fellow, piece)
    own = messages.pieces(sources[rank], counts[rank][rank], inside)
    copies = messages.copies(own, targets[rank])
    for other in mine:
        own = messages.pieces(sources[other], counts[rank][other], inside)
        copies += messages.copies(own, places[rank, other])
    messages.exchange(schedule.steps(), copies)

    schedule = Schedule()
    for other in mine:
        for origins in _consecutive(layout.ranks):
            count = sum(counts[origin][other] for origin in origins)
            for step, piece in enumerate(messages.pieces(places[origins[0], other], count, plan)):
                schedule.send(step, [other], piece)
    for node, partner in enumerate(layout.partners(rank)):
        for origins in _consecutive(layout.nodes[node]) if node != layout.node else ():
            count = sum(counts[origin][rank] for origin in origins)
            for step, piece in enumerate(messages.pieces(targets[origins[0]], count, plan)):
                schedule.receive(step, partner, piece)
    messages.exchange(schedule.steps())
    messages.give_back(memory)


def _sum_inside(
    combiner: Combiner, layout: Layout, values: Sequence[Piece], places: Sequence[int], reduction: Reduction
) -> tuple[Sequence[Piece], Sequence[Sequence[Receive]]]:
    """Combine pieces of the ranks of this node, in their order.

    Args:
        places: where the sums of the pieces go; a rank that is alone on its node leaves its values where they are.

    Returns:
        The sums, and for each what a send of it comes after.
    """
    if not layout.fellows:
        return values, [()] * len(values)
    sums = [replace(piece, address=place) for piece, place in zip(values, places, strict=True)]
    partial = Reduction(reduction.op)
    return sums, [
        combiner.receive(index, layout.ranks, piece, places[index], partial) for index, piece in enumerate(values)
    ]


def _consecutive(ranks: Sequence[int]) -> list[list[int]]:
    """Cut ranks into runs of consecutive ones, whose parts of an array stand one behind the other."""
    runs: list[list[int]] = []
    for rank in ranks:
        if not runs or runs[-1][-1] != rank - 1:
            runs.append([])
        runs[-1].append(rank)
    return runs
