"""Wrong calls: the documented error, on every rank that made one or waited for it, and the communicator goes on."""

from __future__ import annotations

import re

import numpy as np
import pytest

import zipccl
from tests.tensors import BFLOAT16, assert_same_bits, make
from zipccl.collectives import messages as messages_module

several_ranks = pytest.mark.skipif("__import__('mpi4py.MPI').MPI.COMM_WORLD.size == 1", reason="needs several ranks")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda c: c.all_gather([1, 2]), zipccl.UnsupportedArrayError, "x is a list; expected an array"),
        (lambda c: c.all_gather(np.zeros(3, complex)), zipccl.UnsupportedArrayError, "x has dtype complex128"),
        (lambda c: c.all_gather(np.zeros(3, ">f4")), zipccl.UnsupportedArrayError, "native byte order"),
        (lambda c: c.all_gather(np.zeros(())), zipccl.ArgumentError, "x has no axis"),
        (lambda c: c.all_gather(np.zeros(3), compress="yes"), zipccl.ArgumentError, "compress is 'yes'"),
        (lambda c: c.all_gather(np.zeros(3), counts=[3] * (c.size + 1)), zipccl.ArgumentError, "counts is"),
        (lambda c: c.all_gather(np.zeros(3), counts=[4] * c.size), zipccl.ArgumentError, "but x has 3 rows"),
        (lambda c: c.all_gather(np.zeros(3), out=np.zeros(1)), zipccl.ArgumentError, "out has shape (1,); expected"),
        (
            lambda c: c.all_gather(np.zeros(3), out=np.zeros(3 * c.size, np.float32)),
            zipccl.ArgumentError,
            "out has dtype float32; expected float64",
        ),
        (
            lambda c: c.all_reduce(np.zeros((4, 4)), out=np.zeros((4, 4)).T),
            zipccl.UnsupportedArrayError,
            "out of shape (4, 4) with strides (8, 32) is not C-contiguous",
        ),
        (lambda c: c.all_reduce(np.zeros(3), op="mean"), zipccl.ArgumentError, "op is 'mean'; expected one of sum"),
        (lambda c: c.all_reduce(np.zeros(3, int), op="avg"), zipccl.ArgumentError, "expected a float dtype"),
        (lambda c: c.broadcast(np.zeros(3), root=c.size), zipccl.ArgumentError, "root is"),
        (lambda c: c.broadcast(np.zeros(3), root=-1), zipccl.ArgumentError, "root is -1"),
        (lambda c: c.send(np.zeros(3), c.rank), zipccl.ArgumentError, "expected another rank"),
        (lambda c: c.recv(np.zeros(3), c.size), zipccl.ArgumentError, "peer is"),
        (lambda c: c.recv(np.zeros(3), None), zipccl.ArgumentError, "peer is None; expected a rank"),
        (lambda c: c.send(np.zeros(3), None), zipccl.ArgumentError, "peer is None; expected a rank"),
        (lambda c: c.broadcast(np.zeros(3), root="0"), zipccl.ArgumentError, "root is '0'; expected a rank"),
        (lambda c: c.broadcast(np.zeros(3), root=0.0), zipccl.ArgumentError, "root is 0.0; expected a rank"),
        (lambda c: c.all_gather(np.zeros(3), counts=3), zipccl.ArgumentError, "counts is 3; expected"),
        (lambda c: c.all_gather(np.zeros(3), counts="3" * c.size), zipccl.ArgumentError, "expected"),
        (lambda c: c.all_gather(np.zeros(3), counts=[3.9] * c.size), zipccl.ArgumentError, "whole numbers"),
        (lambda c: c.all_reduce(np.zeros(3), op=["sum"]), zipccl.ArgumentError, "op is ['sum']"),
        (lambda c: c.all_reduce(np.ma.zeros(3)), zipccl.UnsupportedArrayError, "x is a masked array"),
        (
            lambda c: c.all_reduce(np.float32(2), out=np.float32(0)),
            zipccl.UnsupportedArrayError,
            "out is a float32; expected an array",
        ),
        (
            lambda c: c.all_to_all(np.zeros(3), send_counts=[1] * c.size + [2]),
            zipccl.ArgumentError,
            "send_counts is",
        ),
        (lambda c: c.all_to_all(np.zeros(7), send_counts=[8] * c.size), zipccl.ArgumentError, "but x has 7 rows"),
    ],
)
def test_argument(comm: zipccl.Communicator, call, error, message) -> None:
    with pytest.raises(error, match=re.escape(message)):
        call(comm)
    assert_same_bits(comm.all_gather(np.arange(3)), np.tile(np.arange(3), comm.size))


def test_read_only_output(comm: zipccl.Communicator) -> None:
    out = np.zeros(4)
    out.flags.writeable = False
    with pytest.raises(zipccl.UnsupportedArrayError, match="out is read-only"):
        comm.all_reduce(np.zeros(4), out=out)


def test_overlapping_output(comm: zipccl.Communicator) -> None:
    memory = np.zeros(100)
    with pytest.raises(zipccl.ArgumentError, match="out overlaps the input"):
        comm.all_reduce(memory[:50], out=memory[1:51])


@several_ranks
def test_uneven_rows(comm: zipccl.Communicator) -> None:
    with pytest.raises(zipccl.ArgumentError, match="cannot share evenly; pass counts"):
        comm.reduce_scatter(np.zeros(comm.size + 1))


@several_ranks
@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.all_reduce(make(np.float32, (1000 + (c.rank == 1),))),
        lambda c: c.all_gather(make(np.float32, (1000 * (1 + (c.rank == 1)), 5))),
        lambda c: c.all_gather(make(np.float32, (1000 * (1 + 79 * (c.rank == 1)),))),
        lambda c: c.all_gather(make(np.float32 if c.rank else np.float64, (1000,))),
        lambda c: c.broadcast(make(np.float32, (1000,)), root=c.rank),
        lambda c: c.all_reduce(make(np.float32, (1000,)), op="max" if c.rank else "sum"),
        lambda c: c.all_reduce(make(np.float32, (1000,)), compress="always" if c.rank else "never"),
        lambda c: c.reduce_scatter(make(np.float32, (c.size,)), counts=np.roll([1] * (c.size - 2) + [0, 2], c.rank)),
        lambda c: c.barrier() if c.rank else c.all_reduce(make(np.float32, (1000,))),
    ],
    ids=["count + 1", "count x 2", "count x 80", "dtype", "root", "op", "compress", "counts", "collective"],
)
def test_mismatch(comm: zipccl.Communicator, call) -> None:
    with pytest.raises(zipccl.MismatchError) as raised:
        call(comm)
    assert "the ranks make different calls" in str(raised.value)
    assert all(f"rank {rank}: " in str(raised.value) for rank in range(comm.size))
    assert_same_bits(comm.all_gather(np.arange(3)), np.tile(np.arange(3), comm.size))


@several_ranks
def test_one_rank_has_a_bad_argument(comm: zipccl.Communicator) -> None:
    if comm.rank == 1:
        with pytest.raises(zipccl.UnsupportedArrayError):
            comm.all_reduce(np.zeros(7, complex))
    else:
        with pytest.raises(zipccl.PeerFailedError, match="rank 1 raised UnsupportedArrayError in all_reduce"):
            comm.all_reduce(np.zeros(7))
    assert_same_bits(comm.all_gather(np.arange(3)), np.tile(np.arange(3), comm.size))


@several_ranks
def test_all_ranks_but_one_have_a_bad_argument(comm: zipccl.Communicator) -> None:
    error = zipccl.UnsupportedArrayError if comm.rank else zipccl.PeerFailedError
    with pytest.raises(error):
        comm.all_reduce(np.zeros(11, complex if comm.rank else float))
    for _ in range(3):
        assert_same_bits(comm.all_gather(np.arange(3)), np.tile(np.arange(3), comm.size))


@several_ranks
def test_mismatch_after_the_first_call() -> None:
    """A rank that knows its call and does not compare it learns that another makes a new one."""
    comm = zipccl.init(timeout=60.0)
    comm.all_reduce(make(BFLOAT16, (5000,)), compress="always")
    with pytest.raises(zipccl.MismatchError):
        comm.all_reduce(make(BFLOAT16, (5000 + (comm.rank == 0),)), compress="always")
    with pytest.raises(zipccl.TransportError):
        comm.all_reduce(make(BFLOAT16, (5000,)), compress="always")


@several_ranks
def test_bad_argument_after_the_first_call() -> None:
    comm = zipccl.init(timeout=60.0)
    x = make(BFLOAT16, (5000,))
    comm.all_reduce(x, compress="always")
    with pytest.raises((zipccl.ArgumentError, zipccl.PeerFailedError), match="op is 'median'"):
        comm.all_reduce(x, compress="always", op="sum" if comm.rank else "median")
    with pytest.raises(zipccl.TransportError):
        comm.all_reduce(x, compress="always")


@several_ranks
def test_a_rank_that_failed_is_not_a_call_behind() -> None:
    """A root does not wait for the others, so it may be calls ahead of one that failed and went on."""
    comm = zipccl.init(timeout=60.0)
    comm.broadcast(np.full(10, -1.0))
    with pytest.raises((zipccl.ArgumentError, zipccl.TransportError)):  # noqa: PT012 - at one of these calls
        for number in range(4):
            x = np.full(10, float(number))
            out = np.zeros(9 if number == 1 and comm.rank == 1 else 10)
            assert comm.broadcast(x, out=out).tolist() == x.tolist()
        comm.barrier()
    with pytest.raises(zipccl.TransportError):
        comm.barrier()


@several_ranks
def test_every_call_is_compared_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZIPCCL_CHECK", "2")
    comm = zipccl.init(timeout=60.0)
    x = make(np.float32, (10,))
    for op in ("sum", "max", "sum"):
        comm.all_reduce(x, op=op)
    with pytest.raises(zipccl.MismatchError, match="the ranks make different calls"):
        comm.all_reduce(x, op="max" if comm.rank else "sum")
    comm.all_reduce(x)


@several_ranks
def test_receive_counts_differ(comm: zipccl.Communicator) -> None:
    send_counts = [2] * comm.size
    wrong = [2] * (comm.size - 1) + [3]
    with pytest.raises((zipccl.MismatchError, zipccl.PeerFailedError), match="recv_counts"):
        comm.all_to_all(
            np.zeros(2 * comm.size), send_counts=send_counts, recv_counts=wrong if comm.rank == 0 else send_counts
        )


@several_ranks
def test_receive_of_another_count() -> None:
    comm = zipccl.init(timeout=60.0)
    if comm.rank == 0:
        comm.send(make(BFLOAT16, (100,)), 1)
    elif comm.rank == 1:
        with pytest.raises(zipccl.MismatchError, match=r"sends 100 values of bfloat16.* expects 90 of float32"):
            comm.recv(np.zeros(90, np.float32), 0)


@several_ranks
def test_corrupt_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    comm = zipccl.init(timeout=60.0)
    encode_to = messages_module.encode_to

    def corrupt(codec, dtype, shape, source, payload) -> int:
        nbytes = encode_to(codec, dtype, shape, source, payload)
        messages_module.bytes_at(payload, nbytes)[60] ^= 0xFF
        return nbytes

    if comm.rank == 0:
        monkeypatch.setattr(messages_module, "encode_to", corrupt)
    with pytest.raises((zipccl.CorruptPayloadError, zipccl.PeerFailedError), match=r"directory|tile ends|codes"):
        comm.all_gather(make(BFLOAT16, (50_000,), comm.rank), compress="always")
