"""Arrays in a device's memory: dtypes, strides, streams, and payloads made there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mpi4py", reason="mpi4py is not installed", exc_type=ImportError)

import zipccl
from tests.simt.array import DEVICES, SimtArray
from tests.simt.device import SimtDevice
from tests.simt.kind import SimtKind, register
from tests.tensors import BFLOAT16, CODED, FLOAT8, assert_same_bits, make
from zipccl.arrays import join_streams, view_input, view_output


@pytest.fixture(autouse=True, params=["host", "kernels"])
def kind(request: pytest.FixtureRequest) -> None:
    register(SimtKind(None, kernels=request.param == "kernels"))


@pytest.mark.parametrize("shape", [(0,), (), (1,), (13, 30), (2000,)], ids=str)
@pytest.mark.parametrize("dtype", [*CODED, *FLOAT8, np.float64, np.int32, bool], ids=lambda d: np.dtype(d).name)
def test_payload(dtype: Any, shape: tuple[int, ...]) -> None:
    x = make(dtype, shape)
    payload = zipccl.encode(SimtArray.of(x, 3))
    assert isinstance(payload, SimtArray)
    assert payload.index == 3
    assert_same_bits(payload.get(), zipccl.encode(x))
    y = zipccl.decode(payload)
    assert y.index == 3
    assert_same_bits(y.get(), x)
    out = SimtArray.empty(shape, dtype, 3)
    assert zipccl.decode(payload, out=out) is out
    assert_same_bits(out.get(), x)


def test_payload_in_a_buffer() -> None:
    x = make(BFLOAT16, (900,))
    out = SimtArray.empty((zipccl.encoded_nbytes_bound(900, "bfloat16"),), np.uint8)
    assert_same_bits(zipccl.encode(SimtArray.of(x), out=out).get(), zipccl.encode(x))
    with pytest.raises(zipccl.ArgumentError, match="out is on simt:1; expected simt:0"):
        zipccl.encode(SimtArray.of(x), out=SimtArray.empty(out.shape, np.uint8, 1))
    with pytest.raises(zipccl.ArgumentError, match="out is on cpu; expected simt:0"):
        zipccl.decode(zipccl.encode(SimtArray.of(x)), out=x)


@pytest.mark.parametrize("damaged", [0, 20, 40, 49])
def test_corrupt_payload(damaged: int) -> None:
    payload = zipccl.encode(make(BFLOAT16, (900,)))
    payload[damaged] ^= 0xFF
    with pytest.raises(zipccl.CorruptPayloadError):
        zipccl.decode(SimtArray.of(payload))
    with pytest.raises(zipccl.CorruptPayloadError):
        zipccl.decode(SimtArray.of(payload[:7]))


@pytest.mark.parametrize(
    "strided",
    [lambda x: x[:, 1], lambda x: x[::2], lambda x: x[::-1], lambda x: x.T, lambda x: x[1:, 2:], lambda x: x[:1]],
    ids=["column", "step 2", "reversed", "transposed", "inner", "first row"],
)
def test_strides(strided: Any) -> None:
    x = make(BFLOAT16, (60, 40))
    assert_same_bits(zipccl.decode(zipccl.encode(strided(SimtArray.of(x)))).get(), strided(x))


def test_an_output_is_contiguous_and_writable() -> None:
    x = SimtArray.of(make(BFLOAT16, (6, 4)))
    with pytest.raises(zipccl.UnsupportedArrayError, match=r"out of shape \(4, 6\) with strides \(2, 8\) is not C-"):
        view_output(x.T)
    x._values.flags.writeable = False
    with pytest.raises(zipccl.UnsupportedArrayError, match="out is read-only"):
        view_output(x)


class Bare(SimtArray):
    """An array of a library that tells its dtype only by the interface."""

    dtype = None  # type: ignore[assignment]


def test_dtypes_are_not_guessed() -> None:
    assert view_input(SimtArray.of(make(BFLOAT16, (3,)))).dtype.name == "bfloat16"
    assert view_input(Bare.of(make(np.float16, (3,)))).dtype.name == "float16"
    with pytest.raises(zipccl.UnsupportedArrayError, match="x has dtype"):
        view_input(Bare.of(make(BFLOAT16, (3,))))
    with pytest.raises(zipccl.UnsupportedArrayError, match="x has dtype complex64"):
        view_input(SimtArray.of(np.zeros(3, np.complex64)))


class Recorder(SimtDevice):
    """A device that notes which stream waits for which."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[tuple[int, object]] = []

    def current_stream(self) -> int:
        return 77

    def record(self, stream: int) -> object:
        return f"event of {stream}"

    def wait(self, stream: int, event: object) -> None:
        self.waits.append((stream, event))


@pytest.mark.parametrize(
    ("of_x", "of_out", "expected", "waits"),
    [
        (None, None, 77, []),
        (5, None, 5, []),
        (5, 5, 5, []),
        (1, 1, 0, []),
        (5, 6, 5, [(5, "event of 6")]),
        (1, 2, 0, [(0, "event of 2")]),
        (None, 6, 77, [(77, "event of 6")]),
    ],
)
def test_streams_of_the_interface(
    of_x: int | None, of_out: int | None, expected: int, waits: list[tuple[int, object]]
) -> None:
    x, out = SimtArray.of(make(BFLOAT16, (3,))), SimtArray.of(make(BFLOAT16, (3,)))
    x.stream, out.stream = of_x, of_out
    device = Recorder()
    assert join_streams(device, view_input(x), view_output(out)) == expected
    assert device.waits == waits


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the first device's streams be captured."""

    def refuse(stream: int) -> None:
        raise zipccl.ArgumentError(f"stream {stream} is being captured")

    with monkeypatch.context() as patch:
        patch.setattr(DEVICES[0], "check_stream", refuse)
        yield


@pytest.mark.usefixtures("captured")
def test_a_captured_stream_is_refused() -> None:
    with pytest.raises(zipccl.ArgumentError, match="stream 0 is being captured"):
        zipccl.encode(SimtArray.of(make(BFLOAT16, (300,))))
