"""Kinds of arrays: a call takes and returns those of each framework."""

from __future__ import annotations

import numpy as np
import pytest

import zipccl
from tests.tensors import BFLOAT16, assert_same_bits, bits, make


class Exporter:
    """An array of a framework that zipccl does not know, which offers only DLPack."""

    def __init__(self, exporter) -> None:
        self._exporter = exporter

    def __dlpack__(self, **options):
        return self._exporter.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._exporter.__dlpack_device__()


class Interface:
    """An array that offers only the array interface."""

    def __init__(self, array) -> None:
        self.__array_interface__ = array.__array_interface__
        self._array = array


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
@pytest.mark.parametrize("kind", [Exporter, Interface])
def test_protocols(comm: zipccl.Communicator, kind, dtype) -> None:
    inputs = [make(dtype, (1000, 3), rank) for rank in range(comm.size)]
    assert_same_bits(comm.all_gather(kind(inputs[comm.rank])), np.concatenate(inputs))


@pytest.mark.parametrize("compress", ["always", "never"])
@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32", "int64"])
def test_torch(comm: zipccl.Communicator, name, compress) -> None:
    torch = pytest.importorskip("torch")
    inputs = [torch.randn(3000, 4).mul(100).to(getattr(torch, name)) for _ in range(comm.size)]
    inputs = [comm.broadcast(x, root=rank) for rank, x in enumerate(inputs)]
    found = comm.all_gather(inputs[comm.rank], compress=compress)
    assert isinstance(found, torch.Tensor)
    assert found.dtype == inputs[0].dtype
    assert torch.equal(found, torch.cat(inputs))
    assert torch.equal(
        comm.all_gather(inputs[comm.rank].T[1:], compress=compress), torch.cat([x.T[1:] for x in inputs])
    )
    out = torch.empty_like(inputs[0])
    assert comm.all_reduce(inputs[comm.rank], out=out, op="max", compress=compress) is out
    assert torch.equal(out, torch.stack(inputs).amax(0))


@pytest.mark.parametrize("compress", ["always", "never"])
def test_dlpack_bfloat16(comm: zipccl.Communicator, compress) -> None:
    torch = pytest.importorskip("torch")
    words = [bits(make(BFLOAT16, (700, 6), rank)).view(np.int16) for rank in range(comm.size)]
    x = Exporter(torch.from_numpy(words[comm.rank]).view(torch.bfloat16)[::2, 1:])
    expected = np.concatenate([np.ascontiguousarray(word[::2, 1:]).view(BFLOAT16) for word in words])
    assert_same_bits(comm.all_gather(x, compress=compress), expected)


@pytest.mark.parametrize("name", ["bfloat16", "float32"])
def test_jax(comm: zipccl.Communicator, name) -> None:
    jax = pytest.importorskip("jax")
    inputs = [jax.numpy.asarray(make(BFLOAT16, (1000, 3), rank)).astype(name) for rank in range(comm.size)]
    found = comm.all_gather(inputs[comm.rank], compress="always")
    assert isinstance(found, jax.Array)
    assert_same_bits(found, np.concatenate([np.asarray(x) for x in inputs]))


def broken_tensors(torch) -> dict:
    freed, partly_freed = torch.zeros(1000), torch.zeros(1000)
    freed.untyped_storage().resize_(0)
    partly_freed.untyped_storage().resize_(16)
    return {
        "meta": torch.zeros(1000, device="meta"),
        "freed": freed,
        "partly freed": partly_freed,
        "sparse": torch.zeros(1000).to_sparse(),
        "complex": torch.zeros(1000, dtype=torch.complex64),
        "without storage": torch._efficientzerotensor((1000,), dtype=torch.float32),
    }


@pytest.mark.parametrize("kind", ["meta", "freed", "partly freed", "sparse", "complex", "without storage"])
def test_torch_without_memory(comm: zipccl.Communicator, kind) -> None:
    tensor = broken_tensors(pytest.importorskip("torch"))[kind]
    with pytest.raises(zipccl.UnsupportedArrayError, match=r"^x "):
        comm.all_gather(tensor)
    with pytest.raises(zipccl.UnsupportedArrayError, match=r"^out "):
        comm.broadcast(np.zeros(1000, np.float32), out=tensor)


def test_torch_out(comm: zipccl.Communicator) -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(10)
    out = torch.zeros(10, requires_grad=True)
    with pytest.raises(zipccl.UnsupportedArrayError, match="out requires grad"):
        comm.all_reduce(x, out=out)
    with torch.no_grad():
        comm.all_reduce(x, out=out)
    assert out.tolist() == [comm.size] * 10
    negated = torch.complex(torch.zeros(10), torch.ones(10)).conj().imag
    assert torch.equal(comm.all_reduce(negated), torch.full((10,), -float(comm.size)))
    with pytest.raises(zipccl.UnsupportedArrayError, match="out of shape"):
        comm.all_reduce(x, out=negated)
    # Autograd must notice that what it saved for the backward pass was overwritten.
    leaf = torch.ones(10, requires_grad=True)
    saved = leaf * 2
    loss = (saved * saved).sum()
    with torch.no_grad():
        comm.all_reduce(x, out=saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_torch_subclass(comm: zipccl.Communicator) -> None:
    torch = pytest.importorskip("torch")

    class Tagged(torch.Tensor):
        pass

    x = torch.ones(10).as_subclass(Tagged)
    assert isinstance(comm.all_gather(x), torch.Tensor)
    assert isinstance(comm.all_gather(torch.nn.Parameter(torch.ones(10))), torch.Tensor)


def test_jax_is_refused_where_it_has_no_values(comm: zipccl.Communicator) -> None:
    jax = pytest.importorskip("jax")
    with pytest.raises(zipccl.UnsupportedArrayError, match="traced by a JAX transformation"):
        jax.jit(comm.all_gather)(jax.numpy.zeros(3))
    with pytest.raises(zipccl.UnsupportedArrayError, match="x has dtype key"):
        comm.all_gather(jax.random.split(jax.random.key(0), 3))
    out = np.zeros(3, np.float32)
    assert comm.all_reduce(jax.numpy.ones(3), out=out) is out
    assert out.tolist() == [comm.size] * 3


def test_a_gpu_array_is_refused(comm: zipccl.Communicator) -> None:
    array = Interface(np.zeros(3))
    array.__cuda_array_interface__ = array.__array_interface__
    with pytest.raises(zipccl.UnsupportedArrayError, match="x is in GPU memory"):
        comm.all_gather(array)
