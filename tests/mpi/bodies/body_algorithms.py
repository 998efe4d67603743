"""Every algorithm of every collective: the bits of its NumPy model, compressed or not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import zipccl
from tests import models
from tests.tensors import BFLOAT16, assert_same_bits, make, reduced
from zipccl import bootstrap

DTYPES = [BFLOAT16, np.float16, np.float32, np.float64, np.int32]
OPS = ["sum", "prod", "min", "max", "avg"]
LAYOUTS = {
    "halves": lambda size: [rank * 2 // size for rank in range(size)],
    "alternating": lambda size: [rank % 2 for rank in range(size)],
    "one and others": lambda size: [0] + [1] * (size - 1),
}

compressed = pytest.mark.parametrize("compress", ["always", "never"])
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)


@pytest.fixture(scope="module", params=LAYOUTS)
def across(request: pytest.FixtureRequest) -> Iterator[zipccl.Communicator]:
    """Return a communicator whose ranks seem to be on two nodes, and whose pieces are small."""
    connect = bootstrap.connect

    def pretend(timeout: float) -> bootstrap.World:
        world = connect(timeout)
        return replace(world, nodes=LAYOUTS[request.param](world.communicator.size))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZIPCCL_CHUNK_NBYTES", "2048")
        patch.setattr(bootstrap, "connect", pretend)
        communicator = zipccl.init(timeout=60.0)
    with communicator:
        yield communicator


def nodes_of(comm: zipccl.Communicator) -> list[int]:
    return comm.all_gather(np.array([comm.node])).tolist()


def expected_all_reduce(algorithm: str, inputs, op: str, nodes):
    if algorithm == "direct":
        return reduced(inputs, op)
    if algorithm == "tree":
        return models.double_binary_tree(inputs, op)
    if algorithm == "hierarchical":
        return models.hierarchical(inputs, op, nodes)
    return np.concatenate(models.ring(inputs, op, models.shares(len(inputs[0]), len(inputs))))


@compressed
@pytest.mark.parametrize("count", [1, 30_000])
@pytest.mark.parametrize("op", OPS)
@dtypes
@pytest.mark.parametrize("algorithm", ["direct", "ring", "tree"])
def test_all_reduce(comm: zipccl.Communicator, algorithm, dtype, op, count, compress) -> None:
    if op == "avg" and dtype is np.int32:
        pytest.skip("an average of integers is an error")
    inputs = [make(dtype, (count,), rank) for rank in range(comm.size)]
    expected = inputs[0] if comm.size == 1 else expected_all_reduce(algorithm, inputs, op, ())
    assert_same_bits(comm.all_reduce(inputs[comm.rank], op=op, compress=compress, algorithm=algorithm), expected)
    assert comm.last is not None
    assert comm.last.algorithm == algorithm
    x = inputs[comm.rank].copy()
    comm.all_reduce(x, op=op, out=x, compress=compress, algorithm=algorithm)
    assert_same_bits(x, expected)


@compressed
@pytest.mark.parametrize("op", OPS)
@dtypes
def test_across_nodes(across: zipccl.Communicator, dtype, op, compress) -> None:
    if op == "avg" and dtype is np.int32:
        pytest.skip("an average of integers is an error")
    size, rank, nodes = across.size, across.rank, nodes_of(across)
    options = {"compress": compress, "algorithm": "hierarchical"}
    inputs = [make(dtype, (300 * size, 5), each) for each in range(size)]
    expected = models.hierarchical(inputs, op, nodes)
    assert_same_bits(across.all_reduce(inputs[rank], op=op, **options), expected)
    own = slice(rank * 300, rank * 300 + 300)
    assert_same_bits(across.reduce_scatter(inputs[rank], op=op, **options), expected[own])
    assert_same_bits(across.all_gather(inputs[rank], **options), np.concatenate(inputs))
    assert across.last is not None
    assert across.last.compressed == (len(set(nodes)) > 1 and compress == "always" and dtype is not np.int32)
    assert_same_bits(across.all_to_all(inputs[rank], **options), np.concatenate([x[own] for x in inputs]))


@compressed
def test_uneven_all_to_all_across_nodes(across: zipccl.Communicator, compress) -> None:
    size, rank = across.size, across.rank
    counts = [[700 * ((origin + 2 * target) % 3) for target in range(size)] for origin in range(size)]
    inputs = [make(BFLOAT16, (sum(row), 2), each) for each, row in enumerate(counts)]
    parts = [models.cut(x, row) for x, row in zip(inputs, counts, strict=True)]
    found = across.all_to_all(inputs[rank], send_counts=counts[rank], compress=compress, algorithm="hierarchical")
    assert_same_bits(found, np.concatenate([part[rank] for part in parts]))


@compressed
@dtypes
def test_ring(comm: zipccl.Communicator, dtype, compress) -> None:
    counts = [20_000 * (rank % 3) for rank in range(comm.size)]
    inputs = [make(dtype, (count,), rank) for rank, count in enumerate(counts)]
    found = comm.all_gather(inputs[comm.rank], counts=counts, compress=compress, algorithm="ring")
    assert_same_bits(found, np.concatenate(inputs))
    inputs = [make(dtype, (sum(counts),), rank) for rank in range(comm.size)]
    found = comm.reduce_scatter(inputs[comm.rank], counts=counts, compress=compress, algorithm="ring")
    assert_same_bits(found, models.ring(inputs, "sum", counts)[comm.rank] if comm.size > 1 else inputs[0])


@compressed
@dtypes
@pytest.mark.parametrize("algorithm", ["direct", "tree"])
def test_rooted(comm: zipccl.Communicator, algorithm, dtype, compress) -> None:
    options = {"compress": compress, "algorithm": algorithm}
    inputs = [make(dtype, (3000, 7), rank) for rank in range(comm.size)]
    x = inputs[comm.rank]
    counts = [500 * (rank % 3) for rank in range(comm.size)]
    whole = make(dtype, (sum(counts), 3))
    parts = models.cut(whole, counts)
    for root in range(comm.size):
        assert_same_bits(comm.broadcast(x, root=root, **options), inputs[root])
        found = comm.reduce(x, root=root, op="max", **options)
        gathered = comm.gather(x, root=root, **options)
        uneven = comm.gather(parts[comm.rank], root=root, counts=counts, **options)
        if comm.rank == root:
            assert_same_bits(found, reduced(inputs, "max"))
            assert_same_bits(gathered, np.concatenate(inputs))
            assert_same_bits(uneven, whole)
        else:
            assert found is gathered is uneven is None
        assert_same_bits(comm.scatter(whole, root=root, counts=counts, **options), parts[comm.rank])
        out = np.zeros_like(x)
        everything = np.concatenate(inputs) if comm.rank == root else None
        assert comm.scatter(everything, root=root, out=out, **options) is out
        assert_same_bits(out, x)


@pytest.mark.parametrize("op", ["sum", "avg"])
@dtypes
def test_reduce(comm: zipccl.Communicator, dtype, op) -> None:
    if op == "avg" and dtype is np.int32:
        pytest.skip("an average of integers is an error")
    inputs = [make(dtype, (9000,), rank) for rank in range(comm.size)]
    for root in range(comm.size):
        expected = {"direct": reduced(inputs, op), "tree": inputs[0]}
        if comm.size > 1:
            expected["tree"] = models.binomial_tree(inputs, op, root)
        for algorithm, values in expected.items():
            x = inputs[comm.rank].copy()
            comm.reduce(x, root=root, op=op, out=x, algorithm=algorithm, compress="always")
            assert_same_bits(x, values if comm.rank == root else inputs[comm.rank])


def test_algorithms_that_there_are_not(comm: zipccl.Communicator) -> None:
    x = np.zeros(comm.size, np.float32)
    for call, known in (
        (comm.all_gather, "auto, direct, ring, hierarchical"),
        (comm.all_to_all, "auto, direct, hierarchical"),
        (comm.broadcast, "auto, direct, tree"),
    ):
        with pytest.raises(zipccl.ArgumentError, match=f"algorithm is 'bus'; expected one of {known} for"):
            call(x, algorithm="bus")
    with pytest.raises(zipccl.ArgumentError, match="algorithm is 'tree'; expected one of"):
        comm.reduce_scatter(x, algorithm="tree")


def test_ranks_that_choose_differently(comm: zipccl.Communicator) -> None:
    if comm.size == 1:
        pytest.skip("needs several ranks")
    with pytest.raises(zipccl.MismatchError, match="ring"):
        comm.all_reduce(np.zeros(1000, np.float32), algorithm="ring" if comm.rank else "tree")


def test_arguments_of_rooted_calls(comm: zipccl.Communicator) -> None:
    x = np.zeros((comm.size, 2), np.float32)
    for call in (comm.reduce, comm.gather, comm.scatter):
        with pytest.raises(zipccl.ArgumentError, match="root is"):
            call(x, root=comm.size)
    with pytest.raises(zipccl.ArgumentError, match="x has 3 rows" if comm.size != 3 else "counts add up"):
        comm.scatter(np.zeros((3, 2), np.float32), counts=[0] * comm.size if comm.size in (1, 3) else None)
    with pytest.raises(zipccl.ArgumentError, match=r"counts\[\d\] is 7"):
        comm.gather(x, counts=[7] * comm.size)
