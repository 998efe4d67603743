"""What each schedule's reduction must give, in plain NumPy; see docs/algorithms.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.tensors import reduced

Array = NDArray[Any]

BLOCK = 256


def shares(count: int, parts: int) -> list[int]:
    """Return how many values the parts of an array have: whole blocks, as many in each as in the first."""
    each = -(-count // (parts * BLOCK)) * BLOCK
    return [max(0, min(each, count - part * each)) for part in range(parts)]


def cut(array: Array, counts: Sequence[int]) -> list[Array]:
    return np.split(array, np.cumsum(counts)[:-1])


def partial(inputs: list[Array], op: str) -> Array:
    """Combine arrays in their order and round; an average is divided only at last."""
    return reduced(inputs, "sum" if op == "avg" else op)


def ring(inputs: list[Array], op: str, counts: Sequence[int]) -> list[Array]:
    """Return the shards: that of rank s begins at the rank after s, and each adds its own to what comes."""
    size = len(inputs)
    parts = [cut(x, counts) for x in inputs]
    shards = []
    for shard in range(size):
        total = parts[(shard + 1) % size][shard]
        for distance in range(2, size):
            total = partial([parts[(shard + distance) % size][shard], total], op)
        shards.append(reduced([parts[shard][shard], total], op, size))
    return shards


def double_binary_tree(inputs: list[Array], op: str) -> Array:
    size = len(inputs)
    second = inputs[::-1] if size % 2 == 0 else inputs[1:] + inputs[:1]
    halves = shares(len(inputs[0]), 2)
    return np.concatenate(
        [_binary([cut(x, halves)[half] for x in order], op) for half, order in enumerate((inputs, second))]
    )


def _binary(values: list[Array], op: str) -> Array:
    """Combine up the tree in which 0 has one child, the greatest power of two, and others have those beside them."""
    size = len(values)

    def up(position: int, step: int) -> Array:
        family = [values[position]]
        if step:
            family.insert(0, up(position - step, step // 2))
            while step and position + step >= size:
                step //= 2
            if step:
                family.append(up(position + step, step // 2))
        return partial(family, op) if len(family) > 1 else family[0]

    top = 1 << (size - 1).bit_length() - 1
    return reduced([values[0], up(top, top // 2)], op, size)


def binomial_tree(inputs: list[Array], op: str, root: int) -> Array:
    size = len(inputs)
    values = inputs[root:] + inputs[:root]

    def family(position: int, below: int) -> list[Array]:
        """Return what meets at a position; those below it have fewer than that many more."""
        steps = [1 << bit for bit in range(below.bit_length() - 1) if position + (1 << bit) < size]
        return [values[position], *(up(position + step, step) for step in steps)]

    def up(position: int, below: int) -> Array:
        met = family(position, below)
        return partial(met, op) if len(met) > 1 else met[0]

    return reduced(family(0, 1 << (size - 1).bit_length()), op, size)


def hierarchical(inputs: list[Array], op: str, nodes: Sequence[int]) -> Array:
    """Combine inside each node, then between the nodes."""
    sums = []
    for node in range(max(nodes) + 1):
        values = [x for x, number in zip(inputs, nodes, strict=True) if number == node]
        sums.append(partial(values, op) if len(values) > 1 else values[0])
    return reduced(sums, op, len(inputs)) if len(sums) > 1 else reduced(inputs, op)
