"""The header that runs kernels on the CPU: it computes what a GPU would, and reports what must not be done on one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.simt import codec
from tests.simt.device import HERE, SimtDevice, SimtError, SimtMemory, array_at, load_kernels

pytestmark = pytest.mark.skipif(not codec.codecs(), reason="needs g++ and an x86-64 processor")

orders = pytest.mark.parametrize("seed", [None, 1, 2], ids=lambda seed: f"order {seed}")


def run(kernel: str, grid: int, block: int, *arguments: int, seed: int | None = None) -> None:
    SimtDevice(seed=seed).run(load_kernels((HERE / "faults.cu",)), kernel, grid, block, arguments)


def words(memory: SimtMemory) -> NDArray[np.uint32]:
    return array_at(memory.address, memory.nbytes).view(np.uint32)


@pytest.fixture
def source() -> SimtMemory:
    memory = SimtMemory(4 * 2 * 128)
    words(memory)[:] = np.arange(2 * 128) * 7 + 3
    return memory


@pytest.fixture
def target() -> SimtMemory:
    return SimtMemory(4 * 2 * 128)


@orders
def test_a_missing_syncthreads_is_found(source: SimtMemory, target: SimtMemory, seed: int | None) -> None:
    run("reverse", 2, 128, source.address, target.address, 1, seed=seed)
    assert np.array_equal(words(target).reshape(2, 128), words(source).reshape(2, 128)[:, ::-1])
    with pytest.raises(SimtError, match=r"shared memory.*without synchronisation at faults\.cu:[0-9]"):
        run("reverse", 2, 128, source.address, target.address, 0, seed=seed)


@orders
def test_a_missing_syncwarp_is_found(source: SimtMemory, target: SimtMemory, seed: int | None) -> None:
    run("reverse_warp", 1, 32, source.address, target.address, 1, seed=seed)
    assert np.array_equal(words(target)[:32], words(source)[:32][::-1])
    with pytest.raises(SimtError, match="without synchronisation"):
        run("reverse_warp", 1, 32, source.address, target.address, 0, seed=seed)
    run("shift", 1, 32, source.address, 1, seed=seed)
    assert words(source)[:4].tolist() == [0, 3, 10, 17]
    with pytest.raises(SimtError, match="without synchronisation"):
        run("shift", 1, 32, source.address, 0, seed=seed)


@orders
def test_divergent_votes_are_reported(target: SimtMemory, seed: int | None) -> None:
    for kernel, message in (
        ("vote", "has ended"),
        ("vote_or_shuffle", "lanes diverge"),
        ("vote_or_wait", "__syncthreads"),
    ):
        run(kernel, 1, 32, target.address, 1, seed=seed)
        with pytest.raises(SimtError, match=message):
            run(kernel, 1, 32, target.address, 0, seed=seed)


def test_accesses_outside_memory_are_reported(target: SimtMemory) -> None:
    run("write_at", 1, 1, target.address, target.nbytes - 4)
    assert words(target)[-1] == 1
    for offset in (target.nbytes, target.nbytes + 4096, 2**64 - 4):
        with pytest.raises(SimtError, match=r"written at .* outside all memory of the device at faults\.cu"):
            run("write_at", 1, 1, target.address, offset)
    with pytest.raises(SimtError, match="not aligned"):
        run("write_at", 1, 1, target.address, 2)


def test_memory_that_was_freed_or_returned_is_outside() -> None:
    memory = SimtMemory(64)
    address = memory.address
    run("write_at", 1, 1, address, 0)
    del memory
    with pytest.raises(SimtError, match="outside"):
        run("write_at", 1, 1, address, 0)
    array = np.zeros(4, np.uint32)
    with SimtDevice().lent((array.ctypes.data, 12)):
        run("write_at", 1, 1, array.ctypes.data, 8)
        with pytest.raises(SimtError, match="outside"):
            run("write_at", 1, 1, array.ctypes.data, 12)
    with pytest.raises(SimtError, match="outside"):
        run("write_at", 1, 1, array.ctypes.data, 8)
    assert array.tolist() == [0, 0, 1, 0]


def test_vectors_must_be_aligned_and_inside(target: SimtMemory) -> None:
    run("read_vector_at", 1, 32, target.address, 16)
    with pytest.raises(SimtError, match="not aligned"):
        run("read_vector_at", 1, 32, target.address, 8)
    with pytest.raises(SimtError, match="outside"):
        run("read_vector_at", 1, 32, target.address, target.nbytes)


@orders
def test_blocks_may_wait_for_each_other(target: SimtMemory, seed: int | None) -> None:
    words(target)[:] = 0
    run("wait_for_next", 3, 32, target.address, 1, seed=seed)
    assert words(target)[:3].tolist() == [1, 1, 1]


@orders
def test_lanes_work_together_as_on_a_gpu(seed: int | None) -> None:
    memory = SimtMemory(4 * 32 * 11)
    run("together", 1, 32, memory.address, seed=seed)
    lane = np.arange(32)
    expected: list[Any] = [
        25,
        np.where(lane < 3, lane, lane - 3),
        np.where(lane > 28, lane, lane + 3),
        lane ^ 3,
        sum(1 << i for i in range(0, 32, 5)),
        496,
        31,
        7,
        6,
        lane + 1 * 3 + 2 * 2 + 3 * 255 + 4 * 1,
        0x77115533,
    ]
    for row, values in zip(words(memory).reshape(11, 32), expected, strict=True):
        assert np.array_equal(row, np.broadcast_to(values, 32))
