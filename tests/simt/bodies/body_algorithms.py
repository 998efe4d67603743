"""Every algorithm gives the bits on arrays of devices that it gives on arrays in CPU memory, as the same messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import zipccl
from tests.simt.array import SimtArray
from tests.simt.bodies.conftest import KINDS
from tests.simt.kind import register
from tests.tensors import BFLOAT16, assert_same_bits, make
from zipccl import bootstrap

CALLS: dict[str, tuple[str, ...]] = {
    "all_gather": ("direct", "ring", "hierarchical"),
    "all_to_all": ("direct", "hierarchical"),
    "reduce_scatter": ("direct", "ring", "hierarchical"),
    "all_reduce": ("direct", "ring", "tree", "hierarchical"),
    "broadcast": ("direct", "tree"),
    "reduce": ("direct", "tree"),
    "gather": ("direct", "tree"),
    "scatter": ("direct", "tree"),
}
ROOTED = ("broadcast", "reduce", "gather", "scatter")


@pytest.fixture(scope="module", params=["two nodes", "two nodes, small pieces", "kernels"])
def across(request: pytest.FixtureRequest) -> Iterator[zipccl.Communicator]:
    """Return a communicator of devices whose ranks seem to be on two nodes, the first of them alone on one."""
    connect = bootstrap.connect

    def pretend(timeout: float) -> bootstrap.World:
        world = connect(timeout)
        return replace(world, nodes=[min(rank, 1) for rank in range(world.communicator.size)])

    register(KINDS["kernels" if request.param == "kernels" else "nccl"])
    with pytest.MonkeyPatch.context() as patch:
        if request.param.endswith("small pieces"):
            patch.setenv("ZIPCCL_CHUNK_NBYTES", "1024")
        patch.setattr(bootstrap, "connect", pretend)
        communicator = zipccl.init(device="simt", timeout=60.0)
    with communicator:
        yield communicator


def check(comm: zipccl.Communicator, run: Callable[[Any], Any], dtype: Any, rows: int) -> None:
    x = make(dtype, (rows * comm.size, 2), comm.rank)
    expected = run(x)
    record = comm.last
    found = run(SimtArray.of(x, int(comm.device.removeprefix("simt:"))))
    if expected is None:
        assert found is None
    else:
        assert isinstance(found, SimtArray)
        assert_same_bits(found.get(), expected)
    assert comm.last is not None
    assert record is not None
    assert comm.last.algorithm == record.algorithm
    assert (comm.last.compressed, comm.last.raw_nbytes) == (record.compressed, record.raw_nbytes)


@pytest.mark.parametrize("compress", ["always", "never"])
@pytest.mark.parametrize("rows", [0, 1, 900])
@pytest.mark.parametrize(("name", "algorithm"), [(name, each) for name, known in CALLS.items() for each in known])
def test_algorithm(across: zipccl.Communicator, name, algorithm, rows, compress) -> None:
    call = partial(getattr(across, name), algorithm=algorithm, compress=compress)
    if name in ROOTED:
        for root in range(across.size):
            check(across, partial(call, root=root), BFLOAT16, rows)
    else:
        check(across, call, BFLOAT16, rows)


def test_a_part_of_the_ranks() -> None:
    register(KINDS["staged"])  # the stand-in for NCCL connects all ranks only
    with zipccl.init(device="simt", timeout=60.0) as comm, comm.split(comm.rank % 2) as part:
        assert part.device == comm.device
        check(part, partial(part.all_reduce, algorithm="ring"), np.float32, 500)
