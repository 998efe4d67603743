"""The same results with limits lowered so far that small arrays take the paths of huge ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import zipccl
from tests.tensors import BFLOAT16, assert_same_bits, make, reduced

COUNTS = [0, 1, 255, 256, 257, 1023, 5000]


@pytest.fixture(scope="module")
def tiny() -> Iterator[zipccl.Communicator]:
    """Return a communicator whose pieces have 256 values and whose uncompressed calls carry 1000 bytes at most."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZIPCCL_CHUNK_NBYTES", "512")
        patch.setenv("ZIPCCL_MAX_MESSAGE_NBYTES", "1000")
        communicator = zipccl.init(timeout=60.0)
    with communicator:
        yield communicator


@pytest.mark.parametrize("compress", ["always", "never"])
@pytest.mark.parametrize("count", COUNTS)
def test_movement(tiny: zipccl.Communicator, count, compress) -> None:
    inputs = [make(BFLOAT16, (count * tiny.size,), rank) for rank in range(tiny.size)]
    mine = inputs[tiny.rank]
    own = slice(tiny.rank * count, (tiny.rank + 1) * count)
    assert_same_bits(tiny.all_gather(mine, compress=compress), np.concatenate(inputs))
    assert_same_bits(tiny.all_to_all(mine, compress=compress), np.concatenate([x[own] for x in inputs]))
    root = tiny.size - 1
    assert_same_bits(tiny.broadcast(mine, root=root, compress=compress), inputs[root])


@pytest.mark.parametrize("compress", ["always", "never"])
@pytest.mark.parametrize("count", COUNTS)
def test_reductions(tiny: zipccl.Communicator, count, compress) -> None:
    inputs = [make(BFLOAT16, (count * tiny.size,), rank) for rank in range(tiny.size)]
    mine = inputs[tiny.rank]
    own = slice(tiny.rank * count, (tiny.rank + 1) * count)
    expected = reduced(inputs, "sum")
    assert_same_bits(tiny.reduce_scatter(mine, compress=compress), expected[own])
    assert_same_bits(tiny.all_reduce(mine, out=mine, compress=compress), expected)
