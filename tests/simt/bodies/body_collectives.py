"""Collectives on arrays of devices give the bits that they give on arrays in CPU memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import zipccl
from tests.simt.array import SimtArray
from tests.tensors import BFLOAT16, assert_same_bits, make

DTYPES = [BFLOAT16, np.float16, np.float32, np.float64, np.int32, np.uint8]
ROWS = [0, 1, 300, 20_000]
KERNEL_DTYPES = [BFLOAT16, np.float32]
KERNEL_ROWS = [0, 1, 700]


def all_gather(comm, data, rows):
    return comm.all_gather(data((rows, 3)))


def all_gather_uneven(comm, data, rows):
    counts = [rows * rank for rank in range(comm.size)]
    return comm.all_gather(data((counts[comm.rank], 2)), counts=counts)


def all_gather_in_place(comm, data, rows):
    out = data((rows * comm.size,))
    return comm.all_gather(out[rows * comm.rank : rows * (comm.rank + 1)], out=out)


def all_to_all(comm, data, rows):
    return comm.all_to_all(data((rows * comm.size, 2)))


def all_to_all_uneven(comm, data, rows):
    counts = [[rows * ((source + 2 * target) % 3) for target in range(comm.size)] for source in range(comm.size)]
    return comm.all_to_all(data((sum(counts[comm.rank]),)), send_counts=counts[comm.rank])


def broadcast(comm, data, rows):
    return comm.broadcast(data((rows, 3)), root=comm.size - 1)


def reduce_scatter(comm, data, rows):
    return comm.reduce_scatter(data((rows * comm.size, 2)))


def reduce_scatter_uneven(comm, data, rows):
    counts = [rows * rank for rank in range(comm.size)]
    return comm.reduce_scatter(data((sum(counts),)), counts=counts, op="max")


def all_reduce(comm, data, rows):
    return comm.all_reduce(data((rows, 5)))


def all_reduce_in_place(comm, data, rows):
    x = data((rows,))
    assert comm.all_reduce(x, op="prod", out=x) is x
    return x


def all_reduce_strided(comm, data, rows):
    return comm.all_reduce(data((5, rows)).T)


def send_recv(comm, data, rows):
    out = data((rows,))
    return comm.send_recv(data((rows,)), out, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size)


def send_and_recv(comm, data, rows):
    x = data((rows,))
    if comm.rank == 0:
        comm.send(x, 1)
    elif comm.rank == 1:
        comm.recv(x, 0)
    return x


CALLS: list[Callable[..., Any]] = [
    all_gather,
    all_gather_uneven,
    all_gather_in_place,
    all_to_all,
    all_to_all_uneven,
    broadcast,
    reduce_scatter,
    reduce_scatter_uneven,
    all_reduce,
    all_reduce_in_place,
    all_reduce_strided,
    send_recv,
    send_and_recv,
]


class Compressing:
    """A communicator whose calls have one value of compress."""

    def __init__(self, comm: zipccl.Communicator, compress: str) -> None:
        self._comm = comm
        self._compress = compress
        self.rank, self.size = comm.rank, comm.size

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: getattr(self._comm, name)(*args, **kwargs, compress=self._compress)


def check(comm: zipccl.Communicator, call: Callable[..., Any], dtype: Any, rows: int, compress: str) -> None:
    if comm.size == 1 and call in (send_recv, send_and_recv):
        pytest.skip("needs several ranks")
    compressing = Compressing(comm, compress)
    expected = call(compressing, lambda shape: make(dtype, shape, comm.rank), rows)
    record = comm.last
    found = call(compressing, lambda shape: SimtArray.of(make(dtype, shape, comm.rank), comm.rank), rows)
    assert isinstance(found, SimtArray)
    assert found.index == comm.rank
    assert_same_bits(found.get(), expected)
    if comm.last and record:
        assert (comm.last.compressed, comm.last.raw_nbytes) == (record.compressed, record.raw_nbytes)


@pytest.mark.parametrize("compress", ["always", "never"])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_collective(comm: zipccl.Communicator, call, dtype, rows, compress) -> None:
    check(comm, call, dtype, rows, compress)


@pytest.mark.parametrize("rows", KERNEL_ROWS)
@pytest.mark.parametrize("dtype", KERNEL_DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_collective_with_kernels(with_kernels: zipccl.Communicator, call, dtype, rows) -> None:
    check(with_kernels, call, dtype, rows, "always")


@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "avg"])
def test_reduction_with_kernels(with_kernels: zipccl.Communicator, op) -> None:
    check(with_kernels, lambda comm, data, rows: comm.all_reduce(data((rows,)), op=op), BFLOAT16, 900, "always")


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_in_many_pieces(monkeypatch: pytest.MonkeyPatch, call) -> None:
    monkeypatch.setenv("ZIPCCL_CHUNK_NBYTES", "1024")
    monkeypatch.setenv("ZIPCCL_MAX_MESSAGE_NBYTES", "1000")
    with zipccl.init(device="simt", timeout=60.0) as comm:
        for compress in ("always", "never"):
            for rows in (1, 1100):
                check(comm, call, BFLOAT16, rows, compress)


def test_a_call_is_one_batch(comm: zipccl.Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes are exchanged once, and all parts of an all-to-all are encoded together."""
    lane = comm._lanes[f"simt:{comm.rank}"]
    batches = []
    encode_parts = lane._codec.encode_parts

    def counted(dtype, parts, stream):
        batches.append(len(parts))
        return encode_parts(dtype, parts, stream)

    monkeypatch.setattr(lane._codec, "encode_parts", counted)
    comm.all_to_all(SimtArray.of(make(BFLOAT16, (3000 * comm.size,)), comm.rank), compress="always")
    assert batches == ([comm.size - 1] if comm.size > 1 else [])
