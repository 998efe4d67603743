"""Schedules, for many numbers of ranks: their steps fit, and every bit is what it must be, in whatever order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests import models
from tests.tensors import BFLOAT16, assert_same_bits, make, reduced
from tests.unit.world import World
from zipccl.codec.base import MAX, MIN, PROD, SUM
from zipccl.collectives import direct, hierarchical, ring, tree
from zipccl.collectives.schedule import Reduction
from zipccl.strategy import Plan

Array = NDArray[Any]

SIZES = [2, 3, 4, 5, 6, 7, 8, 9, 13, 16]
OPS = {"sum": SUM, "prod": PROD, "min": MIN, "max": MAX, "avg": SUM}
DTYPES = [BFLOAT16, np.float16, np.float32, np.float64, np.int32]
LAYOUTS = [
    (0, 0),
    (0, 1),
    (0, 0, 1, 1),
    (0, 1, 0, 1),
    (0, 0, 0, 1),
    (0, 1, 1, 0, 0, 1, 1),
    (0, 1, 1, 2, 2, 2),
    (0, 1, 2, 0, 1),
    (0, 0, 1, 2, 1, 0, 2, 2, 2),
    (0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 3, 4, 5),
    tuple(rank // 4 for rank in range(16)),
    tuple(rank % 4 for rank in range(16)),
]
PIECE = 256

compressed = pytest.mark.parametrize("compress", [False, True], ids=["raw", "compressed"])
sizes = pytest.mark.parametrize("size", SIZES)


def name_of(parameter: Any) -> str | None:
    """Name a module, or the nodes of ranks."""
    if isinstance(parameter, ModuleType):
        return parameter.__name__.rpartition(".")[2]
    return "".join(map(str, parameter)) if isinstance(parameter, tuple) else None


layouts = pytest.mark.parametrize("nodes", LAYOUTS, ids=name_of)


def plan(compress: bool) -> Plan:
    return Plan("direct", compress, PIECE)


def address(array: Array) -> int:
    return array.ctypes.data


def uneven(size: int) -> list[int]:
    """Return counts of no, one, and several pieces."""
    return [(0, 700, 1, 256, 513)[rank % 5] for rank in range(size)]


def inputs_of(size: int, count: int, dtype: Any = BFLOAT16) -> list[Array]:
    return [make(dtype, (count,), rank) for rank in range(size)]


def reduction_of(op: str, size: int) -> Reduction:
    return Reduction(OPS[op], size if op == "avg" else 1)


def all_reduce_model(module: Any, inputs: list[Array], op: str, nodes: Sequence[int]) -> Array:
    if module is hierarchical:
        return models.hierarchical(inputs, op, nodes)
    if module is tree:
        return models.double_binary_tree(inputs, op)
    if module is ring:
        return np.concatenate(models.ring(inputs, op, models.shares(len(inputs[0]), len(inputs))))
    return reduced(inputs, op)


def check_all_reduce(
    module: Any, world: World, inputs: list[Array], op: str, compress: bool, *, in_place: bool = False
) -> None:
    reduction = reduction_of(op, world.size)
    sources = [x.copy() for x in inputs]
    targets = sources if in_place else [np.zeros_like(x) for x in inputs]

    def schedule(messages) -> None:
        source, target = (address(arrays[messages.transport.rank]) for arrays in (sources, targets))
        module.all_reduce(messages, source, target, len(inputs[0]), reduction, plan(compress))

    world.run(inputs[0].dtype, schedule)
    expected = all_reduce_model(module, inputs, op, world.nodes)
    for source, target, x in zip(sources, targets, inputs, strict=True):
        assert_same_bits(target, expected)
        assert_same_bits(source, expected if in_place else x)


@compressed
@pytest.mark.parametrize("in_place", [False, True], ids=["out of place", "in place"])
@pytest.mark.parametrize("count", [0, 1, 700, 5000])
@pytest.mark.parametrize(
    ("module", "nodes"),
    [(module, (0,) * size) for module in (direct, ring, tree) for size in SIZES]
    + [(hierarchical, nodes) for nodes in LAYOUTS],
    ids=name_of,
)
def test_all_reduce(module, nodes, count, in_place, compress) -> None:
    size = len(nodes)
    check_all_reduce(module, World(size, nodes, seed=count), inputs_of(size, count), "avg", compress, in_place=in_place)


@compressed
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("nodes", [(0, 0, 0), (0, 1, 1, 0, 0, 1, 1)], ids=name_of)
@pytest.mark.parametrize("module", [direct, ring, tree, hierarchical], ids=name_of)
def test_all_reduce_of_each_kind(module, nodes, dtype, op, compress) -> None:
    if op == "avg" and np.dtype(dtype).kind == "i":
        pytest.skip("an average of integers is an error")
    check_all_reduce(module, World(len(nodes), nodes), inputs_of(len(nodes), 2000, dtype), op, compress)


def check_reduce_scatter(module: Any, world: World, counts: list[int], compress: bool, expected: list[Array]) -> None:
    inputs = inputs_of(world.size, sum(counts))
    targets = [np.zeros(count, BFLOAT16) for count in counts]
    reduction = reduction_of("avg", world.size)

    def schedule(messages) -> None:
        rank = messages.transport.rank
        source, target = address(inputs[rank]), address(targets[rank])
        module.reduce_scatter(messages, source, target, counts, reduction, plan(compress))

    world.run(BFLOAT16, schedule)
    for found, shard in zip(targets, expected, strict=True):
        assert_same_bits(found, shard)


@compressed
@sizes
@pytest.mark.parametrize("module", [direct, ring], ids=name_of)
def test_reduce_scatter(module, size, compress) -> None:
    counts = uneven(size)
    inputs = inputs_of(size, sum(counts))
    ways = {
        direct: lambda: models.cut(reduced(inputs, "avg"), counts),
        ring: lambda: models.ring(inputs, "avg", counts),
    }
    check_reduce_scatter(module, World(size), counts, compress, ways[module]())


@compressed
@layouts
def test_hierarchical_reduce_scatter(nodes, compress) -> None:
    counts = uneven(len(nodes))
    expected = models.cut(models.hierarchical(inputs_of(len(nodes), sum(counts)), "avg", nodes), counts)
    check_reduce_scatter(hierarchical, World(len(nodes), nodes), counts, compress, expected)


def check_all_gather(module: Any, world: World, compress: bool, *, in_place: bool) -> None:
    counts = uneven(world.size)
    inputs = [make(BFLOAT16, (count,), rank) for rank, count in enumerate(counts)]
    expected = np.concatenate(inputs)
    targets = [np.zeros_like(expected) for _ in inputs]
    sources = [models.cut(x, counts)[rank] for rank, x in enumerate(targets)] if in_place else inputs
    for source, x in zip(sources, inputs, strict=True):
        source[:] = x

    def schedule(messages) -> None:
        rank = messages.transport.rank
        module.all_gather(messages, address(sources[rank]), address(targets[rank]), counts, plan(compress))

    world.run(BFLOAT16, schedule)
    for target in targets:
        assert_same_bits(target, expected)


@compressed
@sizes
@pytest.mark.parametrize("module", [direct, ring], ids=name_of)
def test_all_gather(module, size, compress) -> None:
    for in_place in (False, True):
        world = World(size)
        check_all_gather(module, world, compress, in_place=in_place)
        encoded = [codec.values["encode"] for codec in world.codecs]
        assert encoded == (uneven(size) if compress else [0] * size)


@compressed
@layouts
def test_hierarchical_all_gather(nodes, compress) -> None:
    for in_place in (False, True):
        world = World(len(nodes), nodes)
        check_all_gather(hierarchical, world, compress, in_place=in_place)
        encodes = compress and len(set(nodes)) > 1
        assert [codec.values["encode"] for codec in world.codecs] == (
            uneven(len(nodes)) if encodes else [0] * len(nodes)
        )


def check_all_to_all(run: Callable[..., None], world: World, counts: list[list[int]]) -> None:
    size = world.size
    inputs = [make(BFLOAT16, (sum(row),), rank) for rank, row in enumerate(counts)]
    parts = [models.cut(x, row) for x, row in zip(inputs, counts, strict=True)]
    expected = [np.concatenate([parts[origin][rank] for origin in range(size)]) for rank in range(size)]
    targets = [np.zeros_like(x) for x in expected]

    def schedule(messages) -> None:
        rank = messages.transport.rank
        run(messages, address(inputs[rank]), address(targets[rank]))

    world.run(BFLOAT16, schedule)
    for found, x in zip(targets, expected, strict=True):
        assert_same_bits(found, x)


def counts_between(size: int) -> list[list[int]]:
    return [[(0, 1, 300, 700)[(origin + 2 * target) % 4] for target in range(size)] for origin in range(size)]


@compressed
@sizes
def test_all_to_all(size, compress) -> None:
    counts = counts_between(size)

    def run(messages, source: int, target: int) -> None:
        rank = messages.transport.rank
        received = [row[rank] for row in counts]
        direct.all_to_all(messages, source, counts[rank], target, received, lambda _: plan(compress))

    check_all_to_all(run, World(size), counts)


@compressed
@layouts
def test_hierarchical_all_to_all(nodes, compress) -> None:
    counts = counts_between(len(nodes))

    def run(messages, source: int, target: int) -> None:
        hierarchical.all_to_all(messages, source, target, counts, plan(compress))

    check_all_to_all(run, World(len(nodes), nodes), counts)


@compressed
@sizes
@pytest.mark.parametrize("count", [0, 1, 1500])
@pytest.mark.parametrize("module", [direct, tree], ids=name_of)
def test_broadcast(module, count, size, compress) -> None:
    for root in range(size):
        arrays = inputs_of(size, count)
        expected = arrays[root].copy()
        world = World(size, seed=root)

        def schedule(messages, arrays=arrays, root=root) -> None:
            module.broadcast(messages, address(arrays[messages.transport.rank]), count, root, plan(compress))

        world.run(BFLOAT16, schedule)
        for array in arrays:
            assert_same_bits(array, expected)
        encoded = [codec.values["encode"] for codec in world.codecs]
        assert encoded == [count if rank == root and compress else 0 for rank in range(size)]


@compressed
@sizes
@pytest.mark.parametrize("count", [0, 1, 1500])
@pytest.mark.parametrize("module", [direct, tree], ids=name_of)
def test_reduce(module, count, size, compress) -> None:
    inputs = inputs_of(size, count)
    for root in range(size):
        target = np.zeros(count, BFLOAT16)
        sources = [x.copy() for x in inputs]

        def schedule(messages, target=target, sources=sources, root=root) -> None:
            rank = messages.transport.rank
            place = address(target) if rank == root else 0
            reduction = reduction_of("avg", size)
            module.reduce(messages, address(sources[rank]), place, count, root, reduction, plan(compress))

        World(size, seed=root).run(BFLOAT16, schedule)
        expected = reduced(inputs, "avg") if module is direct else models.binomial_tree(inputs, "avg", root)
        assert_same_bits(target, expected)
        for found, x in zip(sources, inputs, strict=True):
            assert_same_bits(found, x)


@compressed
@sizes
@pytest.mark.parametrize("module", [direct, tree], ids=name_of)
def test_gather(module, size, compress) -> None:
    counts = uneven(size)
    inputs = [make(BFLOAT16, (count,), rank) for rank, count in enumerate(counts)]
    for root in range(size):
        target = np.zeros(sum(counts), BFLOAT16)
        world = World(size, seed=root)

        def schedule(messages, target=target, root=root) -> None:
            rank = messages.transport.rank
            place = address(target) if rank == root else 0
            module.gather(messages, address(inputs[rank]), place, counts, root, plan(compress))

        world.run(BFLOAT16, schedule)
        assert_same_bits(target, np.concatenate(inputs))
        for rank, codec in enumerate(world.codecs):
            assert codec.values["encode"] == (counts[rank] if compress and rank != root else 0)
            assert rank == root or codec.values["decode"] == 0


@compressed
@sizes
@pytest.mark.parametrize("module", [direct, tree], ids=name_of)
def test_scatter(module, size, compress) -> None:
    counts = uneven(size)
    source = make(BFLOAT16, (sum(counts),))
    for root in range(size):
        targets = [np.zeros(count, BFLOAT16) for count in counts]
        world = World(size, seed=root)

        def schedule(messages, targets=targets, root=root) -> None:
            rank = messages.transport.rank
            place = address(source) if rank == root else 0
            module.scatter(messages, place, address(targets[rank]), counts, root, plan(compress))

        world.run(BFLOAT16, schedule)
        for found, x in zip(targets, models.cut(source, counts), strict=True):
            assert_same_bits(found, x)
        for rank, codec in enumerate(world.codecs):
            assert codec.values["encode"] == (sum(counts) - counts[root] if compress and rank == root else 0)
            assert codec.values["decode"] <= counts[rank]


def test_the_tree_of_nccl() -> None:
    first, second = tree.double_binary(14)
    assert first.parents == [None, 2, 4, 2, 8, 6, 4, 6, 0, 10, 12, 10, 8, 12]
    assert second.parents == [13 - parent if parent is not None else None for parent in first.parents[::-1]]
    assert tree.double_binary(5)[1].parents == [1, None, 3, 0, 3]


@pytest.mark.parametrize("size", range(1, 40))
def test_double_binary_trees_share_no_inner_rank(size) -> None:
    trees = tree.double_binary(size)
    for rank, children in enumerate(zip(trees[0].children, trees[1].children, strict=True)):
        assert not all(children) or (rank == 0 and size % 2 and list(map(len, children)) == [1, 1])
    for each in trees:
        assert sorted(each.below(each.parents.index(None))) == list(range(size))
        assert each.height <= size.bit_length()
        assert max(map(len, each.children)) <= 2


def test_a_tree_gathers_what_is_not_compressed_in_few_messages() -> None:
    world = World(16)
    counts = [10] * 16
    source, target = np.zeros(10, BFLOAT16), np.zeros(160, BFLOAT16)
    world.run(BFLOAT16, lambda m: tree.gather(m, address(source), address(target), counts, 0, plan(False)))
    assert world.received == [4, 0, 1, 0, 2, 0, 1, 0, 3, 0, 1, 0, 2, 0, 1, 0]


def test_no_more_is_encoded_in_a_reduction_than_must_be() -> None:
    size, count = 8, 8 * 512
    inputs = inputs_of(size, count)

    def encoded(module: Any) -> int:
        world = World(size)
        check_all_reduce(module, world, inputs, "sum", True)
        return sum(codec.values["encode"] for codec in world.codecs)

    # Every partial result on its way up or round, and the result once.
    assert encoded(direct) == encoded(ring) == encoded(tree) == (size - 1) * count + count
