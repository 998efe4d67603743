"""The stand-in for ``cupy.cuda.nccl`` is like it, and NcclLinks uses it right."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mpi4py", reason="mpi4py is not installed", exc_type=ImportError)

from tests.simt import nccl
from zipccl.errors import TransportError
from zipccl.transport.base import Transfer
from zipccl.transport.nccl import NcclLinks


@pytest.fixture(scope="module")
def real() -> ModuleType:
    """Return CuPy's module."""
    pytest.importorskip("cupy", reason="CuPy is not installed", exc_type=ImportError)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from cupy.cuda import nccl as module
    if not module.available:
        pytest.skip("NCCL is not installed")
    return module


@pytest.fixture
def alone() -> Iterator[nccl.NcclCommunicator]:
    """Return a communicator of this process alone."""
    nccl._queue.clear()
    yield nccl.NcclCommunicator(1, nccl.get_unique_id(), 0)
    nccl._depth = 0


def documented_arguments(described: str) -> list[tuple[str, str]]:
    """Return names and Python types of the arguments in the first line of Cython's documentation."""
    names = re.search(r"\((.*)\)", described.splitlines()[0])[1].split(", ")
    integers = ("int", "size_t", "intptr_t")
    arguments = [name.split("=")[0].rpartition(" ")[::2] for name in names if name not in ("", "self")]
    return [(name, "int" if kind in integers else kind) for kind, name in arguments]


def own_arguments(function: Any) -> list[tuple[str, str]]:
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, str(p.annotation).split(" | ")[0]) for p in parameters if p.name != "self"]


def test_the_stand_in_has_the_same_arguments(real: ModuleType) -> None:
    compared = 0
    for name, function in vars(nccl.NcclCommunicator).items():
        if not name.startswith("_"):
            described = getattr(real.NcclCommunicator, name).__doc__
            assert own_arguments(function) == documented_arguments(described), name
            compared += 1
    assert compared >= 12
    made = own_arguments(nccl.NcclCommunicator)
    assert made == documented_arguments(real.NcclCommunicator.__doc__)
    for name in ("groupStart", "groupEnd", "get_unique_id", "get_version"):
        assert own_arguments(getattr(nccl, name)) == documented_arguments(getattr(real, name).__doc__)


def test_the_stand_in_has_the_same_constants_and_errors(real: ModuleType) -> None:
    constants = {name for name in vars(real) if name.startswith("NCCL_")}
    assert {name: getattr(nccl, name) for name in constants} == {name: getattr(real, name) for name in constants}
    assert type(real.get_unique_id()) is type(nccl.get_unique_id())
    assert len(real.get_unique_id()) == len(nccl.get_unique_id())
    assert issubclass(real.NcclError, RuntimeError)
    for status, text in nccl._STATUS.items():
        assert str(real.NcclError(status)).startswith(text)
    with pytest.raises(KeyError):
        real.NcclError(77)
    with pytest.raises(KeyError):
        nccl.NcclError(77)


def test_the_stand_in_refuses_what_nccl_does(alone: nccl.NcclCommunicator) -> None:
    with pytest.raises(nccl.NcclError, match="INVALID_USAGE"):
        alone.send(0, 0, nccl.NCCL_UINT8, 0, 0)
    with pytest.raises(nccl.NcclError, match="INVALID_USAGE"):
        nccl.groupEnd()
    with pytest.raises(nccl.NcclError, match="INVALID_ARGUMENT"):
        alone.broadcast(0, 0, 1, 99, 0, 0)
    alone.abort()
    for call in (alone.abort, alone.destroy, alone.check_async_error):
        with pytest.raises(nccl.NcclError, match="INVALID_ARGUMENT"):
            call()


def test_a_rank_sends_itself_parts_of_another_size(alone: nccl.NcclCommunicator) -> None:
    x, y = np.arange(10, dtype=np.uint8), np.zeros(10, np.uint8)
    nccl.groupStart()
    alone.send(x.ctypes.data, 10, nccl.NCCL_UINT8, 0, 0)
    alone.recv(y.ctypes.data, 9, nccl.NCCL_UINT8, 0, 0)
    with pytest.raises(nccl.NcclError, match="INVALID_USAGE"):
        nccl.groupEnd()


def test_links_split_what_one_call_does_not_carry(alone: nccl.NcclCommunicator, monkeypatch) -> None:
    sent = []
    send = alone.send
    monkeypatch.setattr(alone, "send", lambda *arguments: (sent.append(arguments[1]), send(*arguments)))
    links = NcclLinks(nccl, alone, 1000)
    x, y = np.arange(2500, dtype=np.uint8), np.zeros(2500, np.uint8)
    links.move([Transfer(0, x.ctypes.data, 2500)], [Transfer(0, y.ctypes.data, 2500)], 0)
    assert sent == [1000, 1000, 500]
    assert (x == y).all()
    links.move([Transfer(0, 0, 0)], [Transfer(0, 0, 0)], 0)
    assert sent == [1000, 1000, 500]


def test_links_close_the_group_when_a_call_fails(alone: nccl.NcclCommunicator, monkeypatch) -> None:
    def fail(*arguments: Any) -> None:  # noqa: ARG001
        raise nccl.NcclError(2)

    monkeypatch.setattr(alone, "recv", fail)
    links = NcclLinks(nccl, alone, 1000)
    with pytest.raises(TransportError, match="NCCL cannot send and receive: NCCL_ERROR_SYSTEM_ERROR"):
        links.move([], [Transfer(0, 0, 10)], 0)
    assert nccl._depth == 0


def test_links_keep_codes_that_cupy_does_not_know(alone: nccl.NcclCommunicator, monkeypatch) -> None:
    monkeypatch.setattr(nccl, "asynchronous_error", 77)
    with pytest.raises(TransportError, match="error code 77"):
        NcclLinks(nccl, alone, 1000).check()


def test_links_are_closed_once(alone: nccl.NcclCommunicator) -> None:
    links = NcclLinks(nccl, alone, 1000)
    links.abort()
    links.abort()
    links.close()
    with pytest.raises(TransportError, match="given up or closed"):
        links.check()
    with pytest.raises(nccl.NcclError):
        alone.check_async_error()


def test_a_failed_abort_does_not_hide_its_reason() -> None:
    def fail() -> None:
        raise RuntimeError("abort")

    NcclLinks(nccl, SimpleNamespace(abort=fail), 1000).abort()
