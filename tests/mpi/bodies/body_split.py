"""Communicators of some of the ranks."""

from __future__ import annotations

import numpy as np
import pytest

import zipccl
from tests.tensors import BFLOAT16, assert_same_bits, make, reduced


def test_every_other_rank(comm: zipccl.Communicator) -> None:
    part = comm.split(comm.rank % 2)
    assert part is not None
    with part:
        ranks = list(range(comm.rank % 2, comm.size, 2))
        assert (part.size, part.rank) == (len(ranks), ranks.index(comm.rank))
        assert (part.node, part.local_rank, part.device) == (0, part.rank, "cpu")
        inputs = [make(BFLOAT16, (50_000,), rank) for rank in ranks]
        assert_same_bits(part.all_reduce(inputs[part.rank], compress="always"), reduced(inputs, "sum"))
        assert_same_bits(part.all_gather(inputs[part.rank], algorithm="ring"), np.concatenate(inputs))


def test_key_orders_the_ranks(comm: zipccl.Communicator) -> None:
    with comm.split(0, key=-comm.rank) as part:
        assert part.rank == comm.size - 1 - comm.rank
        assert part.all_gather(np.array([comm.rank])).tolist() == list(range(comm.size))[::-1]


def test_no_color(comm: zipccl.Communicator) -> None:
    part = comm.split(None if comm.rank == 0 else 5)
    assert (part is None) == (comm.rank == 0)
    if part:
        with part:
            assert part.size == comm.size - 1
            part.barrier()


def test_wrong_arguments(comm: zipccl.Communicator) -> None:
    for color in (-1, "a", 1 << 40):
        with pytest.raises(zipccl.ArgumentError, match="color is"):
            comm.split(color)
    with pytest.raises(zipccl.ArgumentError, match="key is"):
        comm.split(0, key=1.5)
    comm.barrier()


def test_the_whole_lives_on_without_the_part(comm: zipccl.Communicator) -> None:
    part = comm.split(0)
    part.close()
    with pytest.raises(zipccl.TransportError, match="it is closed"):
        part.barrier()
    assert comm.all_gather(np.array([comm.rank])).tolist() == list(range(comm.size))
