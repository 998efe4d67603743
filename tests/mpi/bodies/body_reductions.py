"""Reductions: in rank order, in fp32, rounded once, the same bits on every rank."""

from __future__ import annotations

import numpy as np
import pytest

import zipccl
from tests.tensors import BFLOAT16, CODED, FLOAT8, assert_same_bits, make, reduced

DTYPES = [*CODED, *FLOAT8, np.float64, np.int16, np.uint8, np.int64]
COMPRESS = ["auto", "always", "never"]
OPS = ["sum", "prod", "min", "max", "avg"]


def skip_meaningless(dtype, op: str) -> None:
    if op == "avg" and np.dtype(dtype).kind in "iu":
        pytest.skip("an average of integers is an error")


@pytest.mark.parametrize("compress", COMPRESS)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("shape", [(0,), (), (1,), (13, 3), (100_001,)], ids=str)
def test_all_reduce(comm: zipccl.Communicator, dtype, shape, op, compress) -> None:
    skip_meaningless(dtype, op)
    inputs = [make(dtype, shape, rank) for rank in range(comm.size)]
    expected = reduced(inputs, op)
    x = inputs[comm.rank].copy()
    assert_same_bits(comm.all_reduce(x, op=op, compress=compress), expected)
    assert_same_bits(x, inputs[comm.rank])
    assert comm.all_reduce(x, op=op, out=x, compress=compress) is x
    assert_same_bits(x, expected)


@pytest.mark.parametrize("compress", COMPRESS)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("rows", [0, 1, 5, 40_000])
def test_reduce_scatter(comm: zipccl.Communicator, dtype, rows, op, compress) -> None:
    skip_meaningless(dtype, op)
    inputs = [make(dtype, (rows * comm.size, 2), rank) for rank in range(comm.size)]
    expected = reduced(inputs, op)[rows * comm.rank : rows * (comm.rank + 1)]
    assert_same_bits(comm.reduce_scatter(inputs[comm.rank], op=op, compress=compress), expected)


@pytest.mark.parametrize("compress", COMPRESS)
@pytest.mark.parametrize("step", [1, 30_000])
def test_reduce_scatter_uneven(comm: zipccl.Communicator, step, compress) -> None:
    counts = [step * rank for rank in range(comm.size)]
    inputs = [make(BFLOAT16, (sum(counts), 2), rank) for rank in range(comm.size)]
    start = sum(counts[: comm.rank])
    expected = reduced(inputs, "sum")[start : start + counts[comm.rank]]
    assert_same_bits(comm.reduce_scatter(inputs[comm.rank], counts=counts, compress=compress), expected)


@pytest.mark.parametrize("compress", COMPRESS)
@pytest.mark.parametrize("op", ["sum", "min", "max"])
@pytest.mark.parametrize(
    ("dtype", "patterns", "nan"),
    [
        (BFLOAT16, [0x7F80, 0xFF80, 0x7F81, 0xFFC1, 0x0001, 0x8001, 0x8000, 0x0000, 0x7F7F, 0x3F80], 0x7FC0),
        (np.float16, [0x7C00, 0xFC00, 0x7C01, 0xFE01, 0x0001, 0x8001, 0x8000, 0x0000, 0x7BFF, 0x3C00], 0x7E00),
        (
            np.float32,
            [0x7F800000, 0xFF800000, 0x7F800001, 0xFFC00001, 1, 0x80000001, 0x80000000, 0, 0x7F7FFFFF, 0x3F800000],
            0x7FC00000,
        ),
    ],
    ids=["bfloat16", "float16", "float32"],
)
def test_special_values(comm: zipccl.Communicator, dtype, patterns, nan, op, compress) -> None:
    word = np.dtype(f"u{np.dtype(dtype).itemsize}")
    size, n = comm.size, len(patterns)
    # Position i holds every combination of two patterns: one on rank 0, the other on the last rank, ones between.
    inputs = [np.full(n * n, patterns[-1], word) for _ in range(size)]
    inputs[0] = np.repeat(np.array(patterns, word), n)
    inputs[-1] = np.tile(np.array(patterns, word), n)
    expected = reduced([x.view(dtype) for x in inputs], op)
    assert (expected.view(word)[np.isnan(expected.astype(np.float32))] == nan).all()
    assert_same_bits(comm.all_reduce(inputs[comm.rank].view(dtype), op=op, compress=compress), expected)
