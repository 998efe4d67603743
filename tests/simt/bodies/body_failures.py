"""One rank's device, arrays or messages are wrong: the documented error on every rank, and no waiting."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest

import zipccl
from tests.simt import nccl
from tests.simt.array import DEVICES, SimtArray
from tests.simt.kind import SimtKind, register
from tests.tensors import BFLOAT16, assert_same_bits, make

several_ranks = pytest.mark.skipif("__import__('mpi4py.MPI').MPI.COMM_WORLD.size == 1", reason="needs several ranks")


@pytest.fixture(params=["nccl", "staged"])
def comm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[zipccl.Communicator]:
    """Return a communicator that may be broken."""
    register(SimtKind(nccl if request.param == "nccl" else None, kernels=False))
    communicator = zipccl.init(device="simt", timeout=60.0)
    # NCCL does not make the host wait, which listens then; its stand-in does.
    monkeypatch.setattr(nccl, "while_waiting", communicator._transport._control.listen)
    yield communicator
    communicator.close()


def array(comm: zipccl.Communicator, count: int = 5000) -> SimtArray:
    return SimtArray.of(make(BFLOAT16, (count,), comm.rank), comm.rank)


def make_another_call(comm: zipccl.Communicator) -> None:
    """Make a call that ranks compare first: where it fails, MPI has nothing under way that would disturb its end."""
    comm.all_gather(array(comm, 7))


@several_ranks
def test_a_bad_argument_on_one_rank(comm: zipccl.Communicator) -> None:
    x = SimtArray.of(np.zeros(7, complex), comm.rank) if comm.rank == 1 else array(comm)
    with pytest.raises(zipccl.UnsupportedArrayError if comm.rank == 1 else zipccl.PeerFailedError, match="complex128"):
        comm.all_reduce(x)
    assert comm.all_reduce(array(comm), compress="always").shape == (5000,)


@several_ranks
@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.all_reduce(array(c, 5000 + (c.rank == 1))),
        lambda c: c.all_reduce(array(c) if c.rank else make(BFLOAT16, (5000,))),
        lambda c: c.all_reduce(array(c), compress="always" if c.rank else "never"),
    ],
    ids=["count", "place", "compress"],
)
def test_mismatch(comm: zipccl.Communicator, call) -> None:
    with pytest.raises(zipccl.MismatchError, match="the ranks make different calls"):
        call(comm)
    assert comm.all_reduce(array(comm), compress="always").shape == (5000,)


@several_ranks
def test_receive_of_another_count(comm: zipccl.Communicator) -> None:
    if comm.rank == 0:
        with suppress(zipccl.PeerFailedError):
            comm.send(array(comm, 100), 1)
    elif comm.rank == 1:
        with pytest.raises(zipccl.MismatchError, match=r"sends 100 values of bfloat16.* expects 90 of float32"):
            comm.recv(SimtArray.of(np.zeros(90, np.float32), comm.rank), 0)


@several_ranks
@pytest.mark.parametrize("op", ["all_gather", "all_reduce"])
def test_corrupt_payload(comm: zipccl.Communicator, monkeypatch: pytest.MonkeyPatch, op) -> None:
    codec = comm._lanes[comm.device]._codec
    encode_parts = codec.encode_parts

    def corrupt(dtype, parts, stream):
        sizes = encode_parts(dtype, parts, stream)
        ctypes.c_uint8.from_address(parts[0].body + 20).value ^= 0xFF
        return sizes

    if comm.rank == 0:
        monkeypatch.setattr(codec, "encode_parts", corrupt)
    with pytest.raises((zipccl.CorruptPayloadError, zipccl.PeerFailedError), match=r"directory|tile ends|codes"):  # noqa: PT012
        getattr(comm, op)(array(comm, 50_000), compress="always")
        make_another_call(comm)  # rank 0 may have got nothing that was wrong
    with pytest.raises(zipccl.TransportError):
        comm.barrier()


@several_ranks
def test_one_device_is_out_of_memory(comm: zipccl.Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    x = array(comm)

    def allocate(nbytes: int, stream: int) -> object:  # noqa: ARG001
        raise MemoryError(f"no {nbytes} bytes")

    out = SimtArray.empty((5000,), BFLOAT16, comm.rank)
    if comm.rank == 1:
        monkeypatch.setattr(DEVICES[1], "allocate", allocate)
    with pytest.raises(MemoryError if comm.rank == 1 else zipccl.PeerFailedError, match=r"no \d+ bytes"):
        comm.all_reduce(x, out=out, compress="always")


@several_ranks
def test_an_asynchronous_error(comm: zipccl.Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    if type(comm._lanes[comm.device]._transport._links).__name__ != "NcclLinks":
        pytest.skip("is NCCL's")
    if comm.rank == 0:
        monkeypatch.setattr(nccl, "asynchronous_error", 6)
    with pytest.raises(zipccl.TransportError, match="NCCL_ERROR_REMOTE_ERROR"):  # noqa: PT012
        comm.all_gather(array(comm))
        make_another_call(comm)
    with pytest.raises(zipccl.TransportError, match="the communicator cannot be used"):
        comm.barrier()


@several_ranks
def test_a_device_that_waits_for_another_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    register(SimtKind(nccl, kernels=False))
    comm = zipccl.init(device="simt", timeout=1.0 if zipccl.init(device="cpu").rank == 0 else 60.0)
    x = array(comm)
    comm.all_gather(x)
    monkeypatch.setattr(DEVICES[comm.rank], "done", lambda event: False)  # noqa: ARG005
    expected = {
        0: (zipccl.CollectiveTimeoutError, "waited 1 s for simt:0 to do what was put on its stream"),
        1: (zipccl.PeerFailedError, "rank 0 raised CollectiveTimeoutError in all_gather"),
    }
    error, message = expected[min(comm.rank, 1)]
    with pytest.raises(error, match=message):
        comm.all_gather(x)
    with pytest.raises(nccl.NcclError, match="INVALID_ARGUMENT"):
        nccl.communicators[-1].check_async_error()
    with pytest.raises(zipccl.TransportError, match="the communicator cannot be used"):
        comm.barrier()


@several_ranks
def test_ranks_that_share_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shared(SimtKind):
        def identity(self, index: int) -> str:
            return f"device {index}"

    register(Shared(nccl, kernels=False))
    # A rank may hear of another's error before it comes to its own.
    with pytest.raises(
        (zipccl.ArgumentError, zipccl.PeerFailedError),
        match=r"ranks 0, 1.*\(node 0 .*ZIPCCL_SHARE_GPU=1",
    ):
        zipccl.init(device="simt:0", timeout=60.0)
    monkeypatch.setenv("ZIPCCL_SHARE_GPU", "1")
    with zipccl.init(device="simt:0", timeout=60.0) as comm:
        x = make(BFLOAT16, (3000,))
        assert_same_bits(comm.broadcast(SimtArray.of(x), compress="always").get(), x)


@several_ranks
def test_kinds_of_devices_differ() -> None:
    register(SimtKind(nccl, kernels=False))
    with pytest.raises(
        zipccl.MismatchError,
        match=r"rank 0: init\(device=cpu, profile measured\); rank 1: init\(device=simt, profile measured\)",
    ):
        zipccl.init(device="simt" if zipccl.init(device="cpu").rank else "cpu", timeout=60.0)


@pytest.mark.parametrize(
    ("device", "message"),
    [("gpu", "device is 'gpu'; expected one of cpu, cuda, simt"), ("simt:8", "expected a number from 0 to 7")],
)
def test_there_is_no_such_device(device: str, message: str) -> None:
    register()
    with pytest.raises(zipccl.ArgumentError, match=message):
        zipccl.init(device=device, timeout=60.0)


def test_an_array_of_another_device(comm: zipccl.Communicator) -> None:
    with pytest.raises(
        zipccl.UnsupportedArrayError, match=r"x is on simt:7; this communicator moves arrays on cpu and simt:"
    ):
        comm.all_reduce(SimtArray.of(np.zeros(3), 7))
    with pytest.raises(zipccl.ArgumentError, match=rf"out is on cpu; expected simt:{comm.rank}"):
        comm.all_reduce(SimtArray.of(np.zeros(3), comm.rank), out=np.zeros(3))
