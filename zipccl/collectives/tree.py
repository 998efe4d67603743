"""Tree schedules: values go up to a root, down from it, or both, in pieces that overlap along the way.

Their latency grows with the logarithm of the number of ranks. See docs/algorithms.md for the trees, the order in which
a reduction combines, and where it rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from zipccl.collectives.messages import Messages
from zipccl.collectives.schedule import LAG, Combiner, Reduction, Schedule, shard_counts, starts_of
from zipccl.strategy import Plan
from zipccl.transport.base import Piece, Receive, Values


class Tree:
    """A tree of ranks. Each stands at a position, and the root at position 0.

    Attributes:
        parents: each rank's parent, None for the root.
        children: each rank's children, in the order of positions.
        families: each rank and its children, in the order of positions.
        heights: each rank's distance to the farthest leaf below it.
        depths: each rank's distance to the root.
        height: that of the root.
    """

    def __init__(self, parents: Sequence[int], order: Sequence[int]) -> None:
        """Make a tree.

        Args:
            parents: the position of the parent of each position but 0.
            order: the ranks by position.
        """
        size = len(order)
        self.parents: list[int | None] = [None] * size
        self.children: list[list[int]] = [[] for _ in range(size)]
        for position, parent in enumerate(parents, 1):
            self.parents[order[position]] = order[parent]
            self.children[order[parent]].append(order[position])
        self.families = [sorted([rank, *self.children[rank]], key=order.index) for rank in range(size)]
        self.heights = [self._height(rank) for rank in range(size)]
        self.depths = [self._depth(rank) for rank in range(size)]
        self.height = self.heights[order[0]]

    def below(self, rank: int) -> list[int]:
        """Return a rank and all below it, each before those below it, child by child."""
        return [rank, *(other for child in self.children[rank] for other in self.below(child))]

    def _height(self, rank: int) -> int:
        return max((self._height(child) + 1 for child in self.children[rank]), default=0)

    def _depth(self, rank: int) -> int:
        parent = self.parents[rank]
        return 0 if parent is None else self._depth(parent) + 1


def binomial(size: int, root: int) -> Tree:
    """Return the binomial tree: a position's parent is that number without its lowest bit, and ranks follow the root.

    Those below a position are the ones that follow it, so that their ranks are consecutive but for one wrap.
    """
    return Tree([position & position - 1 for position in range(1, size)], _rotated(size, root))


def double_binary(size: int) -> tuple[Tree, Tree]:
    """Return two binary trees. No rank has children in both, but rank 0 has one in each if their number is odd.

    After P. Sanders, J. Speck, J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan"
    (Parallel Computing 35, 2009), in the form that NCCL uses: in the first tree, even ranks are inner ones.
    """

    def parent(position: int) -> int:
        bit = position & -position
        up = position ^ bit | bit << 1
        return up if up < size else position ^ bit

    parents = [parent(position) for position in range(1, size)]
    mirrored = range(size - 1, -1, -1) if size % 2 == 0 else _rotated(size, 1)
    return Tree(parents, range(size)), Tree(parents, mirrored)


def all_reduce(messages: Messages, source: int, target: int, count: int, reduction: Reduction, plan: Plan) -> None:
    """Reduce count values over ranks: up one of two trees and down again, each with a half. target may be source."""
    halves = shard_counts(count, 2)
    schedule = Schedule()
    combiner = Combiner(messages, schedule, min(plan.chunk_count, halves[0]))
    places = zip(starts_of(messages, source, halves), starts_of(messages, target, halves), halves, strict=True)
    for tree, (values, results, half) in zip(double_binary(messages.transport.size), places, strict=True):
        own = messages.pieces(values, half, plan)
        reduced = _go_up(messages, schedule, combiner, tree, own, results, reduction)
        _go_down(messages, schedule, LAG * tree.height, tree, messages.pieces(results, half, plan), reduced)
    messages.exchange(schedule.steps())
    combiner.close()


def broadcast(messages: Messages, address: int, count: int, root: int, plan: Plan) -> None:
    """Send count values from the root to all."""
    tree = binomial(messages.transport.size, root)
    pieces = messages.pieces(address, count, plan)
    schedule = Schedule()
    _go_down(messages, schedule, 0, tree, pieces, [()] * len(pieces))
    messages.exchange(schedule.steps())


def reduce(
    messages: Messages, source: int, target: int, count: int, root: int, reduction: Reduction, plan: Plan
) -> None:
    """Reduce count values over ranks to the root's target."""
    rank = messages.transport.rank
    tree = binomial(messages.transport.size, root)
    inner = rank != root and bool(tree.children[rank])
    partial = messages.take(count * messages.dtype.itemsize if inner else 0)
    schedule = Schedule()
    combiner = Combiner(messages, schedule, min(plan.chunk_count, count))
    own = messages.pieces(source, count, plan)
    _go_up(messages, schedule, combiner, tree, own, partial.address if inner else target, reduction)
    messages.exchange(schedule.steps())
    combiner.close()
    messages.give_back(partial)


def gather(messages: Messages, source: int, target: int, counts: Sequence[int], root: int, plan: Plan) -> None:
    """Gather counts[r] values from each rank r at the root's target, in rank order.

    On their way values are put together, so that the root gets few messages; what is compressed is passed on as it
    came.
    """
    rank = messages.transport.rank
    bundles = _Bundles(messages, binomial(messages.transport.size, root), counts, plan)
    tree, relays = bundles.tree, plan.compress and rank != root
    memory = bundles.take(rank)
    places = bundles.places(rank, source, target, memory.address)
    messages.copy(source, places[rank], counts[rank] * messages.dtype.itemsize)
    schedule = Schedule()
    arrived: dict[tuple[int, int], Receive] = {}
    for child in tree.children[rank]:
        first = bundles.most_pieces * tree.heights[child]
        for origin, index, piece in bundles.pieces(child, places):
            use = _leave if relays else None
            arrived[origin, index] = schedule.receive(first + index, child, piece, use, keep=relays)
    parent = tree.parents[rank]
    if parent is not None:
        first = bundles.most_pieces * tree.heights[rank]
        for origin, index, piece in bundles.pieces(rank, places):
            _pass_on(schedule, first + index, parent, piece, arrived, (origin, index) if relays else None)
    messages.exchange(schedule.steps())
    messages.give_back(memory)


def scatter(messages: Messages, source: int, target: int, counts: Sequence[int], root: int, plan: Plan) -> None:
    """Send the p-th part at the root's source, counts[p] values, to each rank p's target; the reverse of gather."""
    rank = messages.transport.rank
    bundles = _Bundles(messages, binomial(messages.transport.size, root), counts, plan)
    tree, relays = bundles.tree, plan.compress and rank != root
    memory = bundles.take(rank)
    places = bundles.places(rank, target, source, memory.address)
    schedule = Schedule()
    arrived: dict[tuple[int, int], Receive] = {}
    parent = tree.parents[rank]
    if parent is not None:
        first = bundles.most_pieces * (tree.depths[rank] - 1)
        for origin, index, piece in bundles.pieces(rank, places):
            passes = relays and origin != rank
            arrived[origin, index] = schedule.receive(
                first + index, parent, piece, _leave if passes else None, keep=passes
            )
    for child in reversed(tree.children[rank]):
        first = bundles.most_pieces * tree.depths[rank]
        for origin, index, piece in bundles.pieces(child, places):
            _pass_on(schedule, first + index, child, piece, arrived, (origin, index) if relays else None)
    messages.exchange(schedule.steps())
    messages.copy(places[rank], target, counts[rank] * messages.dtype.itemsize)
    messages.give_back(memory)


def _rotated(size: int, first: int) -> list[int]:
    """Return all ranks, from the first on."""
    return [(first + position) % size for position in range(size)]


class _Bundles:
    """The values of a rank and of those below it in a binomial tree, as they travel between it and its parent.

    Those of consecutive ranks travel together as they are, and each rank's own way when they are compressed.

    Attributes:
        most_pieces: of a bundle, anywhere in the tree.
    """

    def __init__(self, messages: Messages, tree: Tree, counts: Sequence[int], plan: Plan) -> None:
        self.tree = tree
        self._messages = messages
        self._counts = counts
        self._plan = plan
        bundles = (
            bundle for rank, parent in enumerate(tree.parents) if parent is not None for bundle in self._of(rank)
        )
        self.most_pieces = max(-(-self._count(bundle) // plan.chunk_count) for bundle in bundles)

    def take(self, rank: int) -> Any:
        """Return memory for what a rank keeps of others: none if they are at the root, or passed on as they came."""
        inner = self.tree.parents[rank] is not None and self.tree.children[rank] and not self._plan.compress
        count = self._count(self.tree.below(rank)) if inner else 0
        return self._messages.take(count * self._messages.dtype.itemsize)

    def places(self, rank: int, own: int, all_of_root: int, memory: int) -> dict[int, int]:
        """Return the addresses on a rank of the values that it has; 0 for those that it only passes on.

        Args:
            own: where its own values are, or are to go.
            all_of_root: where all ranks' values are at the root.
            memory: what was taken.
        """
        ranks = self.tree.below(rank)
        if self.tree.parents[rank] is None:
            return dict(enumerate(starts_of(self._messages, all_of_root, self._counts)))
        if len(ranks) > 1 and not self._plan.compress:
            counts = [self._counts[other] for other in ranks]
            return dict(zip(ranks, starts_of(self._messages, memory, counts), strict=True))
        return dict.fromkeys(ranks, 0) | {rank: own}

    def pieces(self, rank: int, places: Mapping[int, int]) -> Iterator[tuple[int, int, Piece]]:
        """Yield the pieces between a rank and its parent, each with the first rank of its bundle, and its index."""
        for bundle in self._of(rank):
            pieces = self._messages.pieces(places[bundle[0]], self._count(bundle), self._plan)
            yield from ((bundle[0], index, piece) for index, piece in enumerate(pieces))

    def _of(self, rank: int) -> list[list[int]]:
        ranks = self.tree.below(rank)
        if self._plan.compress:
            return [[other] for other in ranks]
        wrap = ranks.index(0) if 0 in ranks else 0
        return [bundle for bundle in (ranks[:wrap], ranks[wrap:]) if bundle]

    def _count(self, ranks: Sequence[int]) -> int:
        return sum(self._counts[rank] for rank in ranks)


def _pass_on(
    schedule: Schedule,
    step: int,
    peer: int,
    piece: Piece,
    arrived: Mapping[tuple[int, int], Receive],
    message: tuple[int, int] | None,
) -> None:
    """Send a piece as the message that arrived, if it did, or else when all has arrived that it may be made of."""
    if message is None:
        schedule.send(step, [peer], piece, list(arrived.values()))
    elif message in arrived:
        schedule.send(step, [peer], piece, [arrived[message]], relay=True)
    else:
        schedule.send(step, [peer], piece)


def _leave(values: Values) -> None:
    """Use no values: the message is passed on."""


def _go_up(
    messages: Messages,
    schedule: Schedule,
    combiner: Combiner,
    tree: Tree,
    own: Sequence[Piece],
    results: int,
    reduction: Reduction,
) -> list[Sequence[Receive]]:
    """Combine this rank's pieces with those of its children, to results, and send them to its parent.

    Returns:
        For each piece, what a send of the result comes after.
    """
    rank = messages.transport.rank
    parent = tree.parents[rank]
    reduced: list[Sequence[Receive]] = [()] * len(own)
    up = list(own)
    if tree.children[rank]:
        first = LAG * (tree.heights[rank] - 1)
        partial = reduction if parent is None else Reduction(reduction.op)
        for index, piece in enumerate(own):
            up[index] = replace(piece, address=results + piece.address - own[0].address)
            reduced[index] = combiner.receive(first + index, tree.families[rank], piece, up[index].address, partial)
    if parent is not None:
        # A child that is less high than its brother waits, so that a piece is combined in one step.
        first = LAG * (tree.heights[parent] - 1)
        for index, piece in enumerate(up):
            schedule.send(first + index, [parent], piece, reduced[index])
    return reduced


def _go_down(
    messages: Messages,
    schedule: Schedule,
    first: int,
    tree: Tree,
    pieces: Sequence[Piece],
    after: Sequence[Sequence[Receive]],
) -> None:
    """Pass the root's pieces down; each message as the root made it.

    Args:
        first: the number of the step in which the root begins.
        after: at the root, for each piece what its send comes after.
    """
    rank = messages.transport.rank
    parent, children = tree.parents[rank], tree.children[rank]
    begin = first + LAG * tree.depths[rank]
    for index, piece in enumerate(pieces):
        if parent is None:
            schedule.send(begin + index, children, piece, after[index])
        else:
            receive = schedule.receive(begin - LAG + index, parent, piece, keep=bool(children))
            schedule.send(begin + index, children, piece, [receive], relay=True)
