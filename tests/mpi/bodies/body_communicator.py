"""What a communicator tells about itself and its calls, and how it ends."""

from __future__ import annotations

import numpy as np
import pytest

import zipccl
from tests.tensors import BFLOAT16, make


def test_identity(comm: zipccl.Communicator) -> None:
    assert 0 <= comm.rank < comm.size
    assert comm.local_rank == comm.rank
    assert (comm.node, comm.device) == (0, "cpu")
    ranks = comm.all_gather(np.array([comm.rank]))
    assert ranks.tolist() == list(range(comm.size))


def test_record_of_a_compressed_call(comm: zipccl.Communicator) -> None:
    x = make(BFLOAT16, (100_000,), comm.rank)
    comm.all_gather(x, compress="always")
    assert comm.last is not None
    assert (comm.last.op, comm.last.algorithm, comm.last.compressed) == ("all_gather", "direct", comm.size > 1)
    assert comm.last.raw_nbytes == x.nbytes * (comm.size - 1)
    assert comm.last.seconds > 0
    assert comm.last.ratio > 1.4 or comm.size == 1


def test_random_bits_are_not_made_larger(comm: zipccl.Communicator) -> None:
    x = np.random.default_rng(comm.rank).integers(0, 1 << 16, 1 << 20, dtype=np.uint16).view(BFLOAT16)
    comm.all_gather(x, compress="always")
    assert comm.last is not None
    assert comm.last.wire_nbytes <= comm.last.raw_nbytes * 1.001


def test_zeros_take_almost_nothing(comm: zipccl.Communicator) -> None:
    comm.all_gather(np.zeros(1 << 20, BFLOAT16), compress="always")
    assert comm.last is not None
    assert comm.last.ratio > 100 or comm.size == 1


def test_totals(comm: zipccl.Communicator) -> None:
    before = comm.stats().get("all_to_all", zipccl.Totals()).calls
    comm.all_to_all(np.arange(comm.size))
    assert comm.stats()["all_to_all"].calls == before + 1


def test_the_reason_is_told(comm: zipccl.Communicator) -> None:
    comm.all_gather(make(BFLOAT16, (1 << 20,), comm.rank))
    assert comm.last is not None
    assert comm.last.reason.startswith(("predicted: ", "tried: ", "2097152 bytes"))
    comm.all_gather(make(BFLOAT16, (10,), comm.rank), compress="never")
    assert comm.last.reason == 'compress is "never"'


def test_closed() -> None:
    comm = zipccl.init()
    comm.close()
    comm.close()
    with pytest.raises(zipccl.TransportError, match="it is closed"):
        comm.barrier()


def test_one_rank_never_calls_the_transport(comm: zipccl.Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    if comm.size > 1:
        pytest.skip("needs a single rank")
    monkeypatch.setattr(comm, "_transport", None)
    x = make(BFLOAT16, (1000,))
    calls = (comm.all_gather, comm.all_reduce, comm.reduce_scatter, comm.all_to_all, comm.broadcast)
    for call in (*calls, comm.reduce, comm.gather, comm.scatter):
        result = call(x)
        assert result is not x
        assert (result == x).all()
    comm.barrier()
