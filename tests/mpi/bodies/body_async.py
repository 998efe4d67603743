"""Calls in the background: their order, their results, and their failures."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import zipccl
from tests.tensors import BFLOAT16
from zipccl import Communicator


def data(comm: Communicator, number: int, count: int = 5000) -> np.ndarray:
    return np.random.default_rng([comm.rank, number]).standard_normal(count).astype(BFLOAT16)


def test_a_handle_gives_the_result(comm: Communicator) -> None:
    x = data(comm, 0)
    handle = comm.all_reduce(x, async_op=True)
    assert isinstance(handle, zipccl.Handle)
    result = handle.wait()
    assert handle.done()
    assert handle.wait() is result
    assert np.array_equal(result.view(np.uint16), comm.all_reduce(x).view(np.uint16))


def test_calls_stay_in_their_order(comm: Communicator) -> None:
    arrays = [data(comm, number, 1000 * (number + 1)) for number in range(8)]
    handles = [comm.all_gather(x, compress=("always", "never")[x.size % 2000 > 0], async_op=True) for x in arrays]
    # A call that is made at once comes after those in the background.
    last = comm.all_gather(data(comm, 99))
    assert all(handle.done() for handle in handles)
    for handle, x in zip(handles, arrays, strict=True):
        assert np.array_equal(handle.wait().view(np.uint16), comm.all_gather(x).view(np.uint16))
    assert np.array_equal(last.view(np.uint16), comm.all_gather(data(comm, 99)).view(np.uint16))


def test_the_result_goes_to_out(comm: Communicator) -> None:
    x, out = data(comm, 1), np.zeros(5000, BFLOAT16)
    assert comm.all_reduce(x, out=out, async_op=True).wait() is out
    assert np.array_equal(out.view(np.uint16), comm.all_reduce(x).view(np.uint16))


def test_a_group_is_done_at_its_end(comm: Communicator) -> None:
    arrays = [data(comm, number) for number in range(5)]
    outs = [np.zeros_like(x) for x in arrays]
    with comm.group():
        handles = [comm.all_reduce(x, out=out) for x, out in zip(arrays, outs, strict=True)]
        with pytest.raises(zipccl.ArgumentError, match=r"group\(\) is open already"), comm.group():
            pass
    assert all(handle.done() for handle in handles)
    for x, out in zip(arrays, outs, strict=True):
        assert np.array_equal(out.view(np.uint16), comm.all_reduce(x).view(np.uint16))


def test_a_neighbour_in_the_background(comm: Communicator) -> None:
    if comm.size == 1:
        pytest.skip("needs another rank")
    x, out = data(comm, 2), np.zeros(5000, BFLOAT16)
    handle = comm.send_recv(x, out, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size, async_op=True)
    assert handle.wait() is out
    gathered = comm.all_gather(x).reshape(comm.size, -1)
    assert np.array_equal(out.view(np.uint16), gathered[comm.rank - 1].view(np.uint16))


def test_an_error_is_raised_where_it_is_waited_for(comm: Communicator) -> None:
    handle = comm.all_reduce(np.zeros(3, complex), async_op=True)
    with pytest.raises(zipccl.UnsupportedArrayError, match="complex128"):
        handle.wait()
    with pytest.raises(zipccl.UnsupportedArrayError, match="complex128"), comm.group():
        comm.all_reduce(np.zeros(3, complex))
    assert comm.all_reduce(np.ones(3)).tolist() == [comm.size] * 3


def test_a_handle_that_is_not_done_can_be_waited_for_again(comm: Communicator) -> None:
    begun = threading.Event()
    handle = comm._background.submit("nothing", begun.wait)
    with pytest.raises(zipccl.CollectiveTimeoutError, match=r"nothing is not done after 0\.01 s"):
        handle.wait(0.01)
    begun.set()
    assert handle.wait() is True


def test_communicators_work_side_by_side(comm: Communicator) -> None:
    x = data(comm, 3)
    with zipccl.init(device="cpu", timeout=60) as other:
        handles = [each.all_reduce(x, compress="always", async_op=True) for each in (comm, other, comm, other)]
        results = [handle.wait().view(np.uint16) for handle in handles]
    for result in results[1:]:
        assert np.array_equal(result, results[0])
