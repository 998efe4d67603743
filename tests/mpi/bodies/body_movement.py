"""Collectives that move values: every bit arrives, compressed or not."""

from __future__ import annotations

import numpy as np
import pytest

import zipccl
from tests.tensors import BFLOAT16, assert_same_bits, make

DTYPES = [BFLOAT16, np.float16, np.float32, np.float64, np.int32, np.uint8, bool]
SHAPES = [(0,), (1,), (7, 3), (0, 5), (3, 0, 2), (300, 5), (70_000,)]
COMPRESS = ["auto", "always", "never"]

pytestmark = [
    pytest.mark.parametrize("compress", COMPRESS),
    pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_all_gather(comm: zipccl.Communicator, dtype, shape, compress) -> None:
    inputs = [make(dtype, shape, rank) for rank in range(comm.size)]
    expected = np.concatenate(inputs)
    assert_same_bits(comm.all_gather(inputs[comm.rank], compress=compress), expected)
    out = np.empty_like(expected)
    assert comm.all_gather(inputs[comm.rank], out=out, compress=compress) is out
    assert_same_bits(out, expected)


@pytest.mark.parametrize("rows", [5, 9000])
def test_all_gather_in_place(comm: zipccl.Communicator, dtype, rows, compress) -> None:
    inputs = [make(dtype, (rows, 3), rank) for rank in range(comm.size)]
    out = np.zeros((rows * comm.size, 3), dtype)
    own = out[rows * comm.rank : rows * (comm.rank + 1)]
    own[:] = inputs[comm.rank]
    comm.all_gather(own, out=out, compress=compress)
    assert_same_bits(out, np.concatenate(inputs))


@pytest.mark.parametrize("step", [0, 1, 40_000])
def test_all_gather_uneven(comm: zipccl.Communicator, dtype, step, compress) -> None:
    counts = [step * (comm.size - 1 - rank) for rank in range(comm.size)]
    inputs = [make(dtype, (count, 2), rank) for rank, count in enumerate(counts)]
    found = comm.all_gather(inputs[comm.rank], counts=counts, compress=compress)
    assert_same_bits(found, np.concatenate(inputs))


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 2), (30_000, 2)], ids=str)
def test_all_to_all(comm: zipccl.Communicator, dtype, shape, compress) -> None:
    rows = shape[0]
    inputs = [make(dtype, (rows * comm.size, *shape[1:]), rank) for rank in range(comm.size)]
    expected = np.concatenate([x[rows * comm.rank : rows * (comm.rank + 1)] for x in inputs])
    assert_same_bits(comm.all_to_all(inputs[comm.rank], compress=compress), expected)


@pytest.mark.parametrize("tell", [True, False])
@pytest.mark.parametrize("step", [0, 1, 20_000])
def test_all_to_all_uneven(comm: zipccl.Communicator, dtype, step, tell, compress) -> None:
    counts = [[step * ((source + 2 * target) % 3) for target in range(comm.size)] for source in range(comm.size)]
    inputs = [make(dtype, (sum(row), 2), rank) for rank, row in enumerate(counts)]
    starts = [np.cumsum([0, *row]) for row in counts]
    expected = np.concatenate([x[s[comm.rank] : s[comm.rank + 1]] for x, s in zip(inputs, starts, strict=True)])
    received = [row[comm.rank] for row in counts]
    found = comm.all_to_all(
        inputs[comm.rank], send_counts=counts[comm.rank], recv_counts=received if tell else None, compress=compress
    )
    assert_same_bits(found, expected)


@pytest.mark.parametrize("shape", [(0,), (), (1,), (333, 7), (90_000,)], ids=str)
def test_broadcast(comm: zipccl.Communicator, dtype, shape, compress) -> None:
    for root in range(comm.size):
        expected = make(dtype, shape, root)
        x = make(dtype, shape, comm.rank)
        assert_same_bits(comm.broadcast(x, root=root, compress=compress), expected)
        assert_same_bits(x, make(dtype, shape, comm.rank))
        comm.broadcast(x, root=root, out=x, compress=compress)
        assert_same_bits(x, expected)


@pytest.mark.parametrize("shape", [(0,), (1,), (11, 3), (200_000,)], ids=str)
def test_send_to_the_next_rank(comm: zipccl.Communicator, dtype, shape, compress) -> None:
    x = make(dtype, shape, comm.rank)
    for source in range(comm.size - 1):
        if comm.rank == source:
            comm.send(x, source + 1, compress=compress)
        elif comm.rank == source + 1:
            out = np.empty(shape, dtype)
            assert comm.recv(out, source, compress=compress) is out
            assert_same_bits(out, make(dtype, shape, source))


@pytest.mark.parametrize(
    "strided",
    [
        lambda x: x[:, 1],
        lambda x: x[::2],
        lambda x: x[::-1],
        lambda x: x.T,
        lambda x: np.broadcast_to(x[:1], x.shape),
        np.asfortranarray,
        lambda x: x[1:, 2:],
    ],
    ids=["column", "step 2", "reversed", "transposed", "broadcast", "Fortran order", "inner"],
)
def test_strided_input(comm: zipccl.Communicator, dtype, strided, compress) -> None:
    inputs = [strided(make(dtype, (600, 40), rank)) for rank in range(comm.size)]
    assert_same_bits(comm.all_gather(inputs[comm.rank], compress=compress), np.concatenate(inputs))


@pytest.mark.parametrize("shape", [(0,), (1,), (200_000,)], ids=str)
def test_send_around_the_ring(comm: zipccl.Communicator, dtype, shape, compress) -> None:
    if comm.size == 1:
        pytest.skip("needs several ranks")
    before, after = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    out = np.empty(shape, dtype)
    assert comm.send_recv(make(dtype, shape, comm.rank), out, after, before, compress=compress) is out
    assert_same_bits(out, make(dtype, shape, before))
