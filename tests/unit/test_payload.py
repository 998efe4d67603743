"""encode, decode and encoded_nbytes_bound: what users call."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import zipccl
from tests.tensors import BFLOAT16, CODED, assert_same_bits, make
from zipccl.codec import wire

ALL = [
    *CODED,
    *(np.dtype(name) for name in ("float64", "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32")),
    *(np.dtype(name) for name in ("int64", "uint64")),
    np.dtype(ml_dtypes.float8_e4m3fn),
    np.dtype(ml_dtypes.float8_e5m2),
]
SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (5, 0, 3), (255,), (256,), (40, 50, 3), (1,) * 60 + (700,)], ids=str)
def test_round_trip(dtype, shape) -> None:
    x = make(dtype, shape)
    payload = zipccl.encode(x)
    assert payload.dtype == np.uint8
    assert payload.ndim == 1
    assert payload.size <= zipccl.encoded_nbytes_bound(x.size, dtype)
    assert payload.size <= x.nbytes + wire.header_nbytes(x.ndim)
    assert_same_bits(zipccl.decode(payload), x)
    assert_same_bits(zipccl.decode(payload.tobytes()), x)
    out = np.empty_like(x)
    assert zipccl.decode(payload, out=out) is out
    assert_same_bits(out, x)


@settings(deadline=None, max_examples=200)
@given(hnp.arrays(np.uint16, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=40)), st.data())
def test_round_trip_of_any_bits(words, data) -> None:
    x = words.view(data.draw(st.sampled_from([BFLOAT16, np.dtype(np.float16)])))
    assert_same_bits(zipccl.decode(zipccl.encode(x)), x)


@pytest.mark.parametrize(
    "strided",
    [lambda x: x[:, 1], lambda x: x[::2], lambda x: x[::-1], lambda x: x.T, np.asfortranarray],
    ids=["column", "step 2", "reversed", "transposed", "Fortran order"],
)
def test_strided_input(strided) -> None:
    x = strided(make(BFLOAT16, (300, 40)))
    assert_same_bits(zipccl.decode(zipccl.encode(x)), x)


def test_out() -> None:
    x = make(BFLOAT16, (3000,))
    bound = zipccl.encoded_nbytes_bound(x.size, x.dtype)
    out = np.full(bound, 0xA5, np.uint8)
    payload = zipccl.encode(x, out=out)
    assert np.shares_memory(payload, out)
    assert_same_bits(zipccl.decode(payload), x)
    with pytest.raises(zipccl.ArgumentError, match=f"expected a 1-D uint8 array of at least {bound} bytes"):
        zipccl.encode(x, out=out[:-1])
    with pytest.raises(zipccl.ArgumentError, match="out is a float32 array of shape"):
        zipccl.encode(x, out=out.view(np.float32)[: bound // 4])
    with pytest.raises(zipccl.ArgumentError, match="out overlaps the input"):
        zipccl.encode(out[:64], out=out)
    with pytest.raises(zipccl.UnsupportedArrayError, match=r"out of shape .* is not C-contiguous"):
        zipccl.encode(x, out=np.zeros(4 * bound, np.uint8)[::2])
    with pytest.raises(zipccl.ArgumentError, match=r"out has shape \(2999,\); expected \(3000,\)"):
        zipccl.decode(payload, out=x[:-1])
    with pytest.raises(zipccl.ArgumentError, match="out has dtype float16; expected bfloat16"):
        zipccl.decode(payload, out=x.view(np.float16))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", np.float32, np.dtype(np.float32), BFLOAT16])
def test_bound_takes_names_and_dtypes(dtype) -> None:
    assert zipccl.encoded_nbytes_bound(1000, dtype) > 2000


def test_bound_refuses() -> None:
    with pytest.raises(zipccl.UnsupportedArrayError, match="dtype complex64 is not supported; supported are bfloat16"):
        zipccl.encoded_nbytes_bound(1, np.complex64)
    for count in (-1, 1.5, None):
        with pytest.raises(zipccl.ArgumentError, match=f"count is {count}"):
            zipccl.encoded_nbytes_bound(count, "bfloat16")
    with pytest.raises(zipccl.UnsupportedArrayError, match="dtype None is not supported"):
        zipccl.encoded_nbytes_bound(1, None)


@pytest.mark.parametrize("dtype", CODED, ids=str)
@pytest.mark.parametrize("shape", [(0,), (77,), (5000,)], ids=str)
def test_truncated(dtype, shape) -> None:
    payload = zipccl.encode(make(dtype, shape))
    for nbytes in range(payload.size):
        with pytest.raises(zipccl.CorruptPayloadError):
            zipccl.decode(payload[:nbytes].copy())
    with pytest.raises(zipccl.CorruptPayloadError):
        zipccl.decode(np.append(payload, np.uint8(0)))


def test_damaged_headers() -> None:
    """A damaged header is refused, or it tells another dtype or shape of the same size; nothing else happens."""
    x = make(BFLOAT16, (700, 3))
    payload = zipccl.encode(x)
    accepted = 0
    for position, bit in itertools.product(range(wire.header_nbytes(2)), range(8)):
        damaged = payload.copy()
        damaged[position] ^= 1 << bit
        try:
            accepted += zipccl.decode(damaged).nbytes != x.nbytes
        except zipccl.CorruptPayloadError:
            continue
    assert accepted == 0


def test_huge_shapes_are_not_allocated() -> None:
    for shape in [(1 << 62,), (1 << 40, 1 << 40), (0, 1 << 63), (1 << 63, 0, 1 << 63), ((1 << 64) - 1,)]:
        for layout in (wire.LAYOUT_RAW, wire.LAYOUT_BLOCKS):
            header = wire.Header(wire.dtype_named("bfloat16"), (1,) * len(shape), layout).pack()
            count = np.prod(np.array(shape, object)) % (1 << 64)
            hostile = header[:16] + int(count).to_bytes(8, "little")
            hostile += b"".join(length.to_bytes(8, "little") for length in shape)
            with pytest.raises(zipccl.CorruptPayloadError):
                zipccl.decode(hostile.ljust(wire.header_nbytes(len(shape)), b"\0"))


def test_decode_refuses() -> None:
    with pytest.raises(zipccl.ArgumentError, match="payload has dtype float32; expected uint8"):
        zipccl.decode(np.zeros(100, np.float32))
    with pytest.raises(zipccl.CorruptPayloadError, match="payload starts with"):
        zipccl.decode(bytes(100))
    with pytest.raises(zipccl.CorruptPayloadError, match="a header has at least"):
        zipccl.decode(b"")


@pytest.mark.parametrize("name", ["bfloat16", "float32", "float8_e5m2", "uint16"])
def test_torch(name) -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(3000).reshape(60, 50).to(torch.uint8).to(getattr(torch, name)).T
    payload = zipccl.encode(x)
    assert isinstance(payload, torch.Tensor)
    y = zipccl.decode(payload)
    assert isinstance(y, torch.Tensor)
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    assert torch.equal(y.view(torch.uint8), x.contiguous().view(torch.uint8))
    assert_same_bits(zipccl.decode(bytes(payload.numpy())).view(np.uint8), y.view(torch.uint8).numpy())


def test_jax() -> None:
    jax = pytest.importorskip("jax")
    x = jax.numpy.asarray(make(BFLOAT16, (30, 40)))
    payload = zipccl.encode(x)
    assert isinstance(payload, jax.Array)
    y = zipccl.decode(payload)
    assert isinstance(y, jax.Array)
    assert_same_bits(y, x)


def test_bfloat16_without_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = zipccl.encode(make(BFLOAT16, (300,)))
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(zipccl.UnsupportedArrayError, match="pip install ml_dtypes"):
        zipccl.decode(payload)


def test_decode_into_its_own_payload() -> None:
    memory = np.zeros(20_000, np.uint8)
    payload = zipccl.encode(make(BFLOAT16, (3000,)), out=memory)
    with pytest.raises(zipccl.ArgumentError, match="out overlaps the input"):
        zipccl.decode(payload, out=memory[1000:7000].view(BFLOAT16))
    with pytest.raises(zipccl.ArgumentError, match="payload is a memoryview that cannot be read"):
        zipccl.decode(memoryview(payload)[::2])


def test_random_bits_and_zeros() -> None:
    random = np.random.default_rng(0).integers(0, 1 << 16, 1 << 20, dtype=np.uint16).view(BFLOAT16)
    assert zipccl.encode(random).size < 1.001 * random.nbytes
    assert zipccl.encode(np.zeros(1 << 20, BFLOAT16)).size < random.nbytes / 100


@pytest.mark.skipif(not SHARED.is_dir(), reason="the captured tensors are not here")
@pytest.mark.parametrize("name", ["s200_grad", "s200_param", "s20_grad", "s200_act_hidden"])
def test_ratio_of_captured_tensors(name) -> None:
    x = np.load(SHARED / f"{name}.npy").view(BFLOAT16)
    assert x.nbytes / zipccl.encode(x).size > 1.45
