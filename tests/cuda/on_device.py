"""A codec of device memory as one of host memory, so that the tests of the codecs run on it.

The environment variable ZIPCCL_TEST_DEVICE names the device for the tests in ``tests/unit``: cuda, a GPU; or sass,
the machine code run on the CPU; see ``tools/gpu_check``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from zipccl.codec import base, wire
from zipccl.codec.cuda import CudaCodec
from zipccl.codec.wire import DType
from zipccl.devices.base import Device

_GUARD_NBYTES = 256
_GUARD = (np.arange(_GUARD_NBYTES + 64) * 37 + 11).astype(np.uint8)


def open_device(kind: str) -> Device:
    """Return the first device of a kind: cuda, simt or sass."""
    if kind == "cuda":
        from zipccl.devices.cupy import CupyDevice

        return CupyDevice(0)
    if kind == "simt":
        from tests.simt.device import SimtDevice

        return SimtDevice()
    from tests.cuda.sass import SassDevice

    return SassDevice()


class OnDevice:
    """The Codec protocol on host addresses: copies to the device what a call reads, and from it what it writes.

    On the device, memory has the same offset from a multiple of 64 as on the host, and what is around it must not
    change.
    """

    def __init__(self, codec: base.Codec, device: Device) -> None:
        self.name = f"{codec.name}-{device.kind}"
        self._codec = codec
        self._device = device

    def encode_body(self, dtype: DType, source: int, count: int, body: int) -> int:
        room = wire.body_nbytes_bound(count, dtype)
        with self._lend(source, count * dtype.itemsize) as values, self._lend(body, room, written=True) as target:
            return self._codec.encode_body(dtype, values, count, target)

    def decode_body(self, dtype: DType, body: int, nbytes: int, target: int, count: int) -> None:
        with self._lend(body, nbytes) as payload, self._lend(target, count * dtype.itemsize, written=True) as values:
            self._codec.decode_body(dtype, payload, nbytes, values, count)

    def decode_reduce(self, dtype: DType, op: int, body: int, nbytes: int, accumulator: int, count: int) -> None:
        room = count * base.accumulator_itemsize(dtype)
        with self._lend(body, nbytes) as payload, self._lend(accumulator, room, written=True) as total:
            self._codec.decode_reduce(dtype, op, payload, nbytes, total, count)

    def pack_encode(self, dtype: DType, accumulator: int, count: int, divisor: int, target: int, body: int) -> int:
        with (
            self._lend(accumulator, count * base.accumulator_itemsize(dtype)) as total,
            self._lend(target, count * dtype.itemsize, written=True) as values,
            self._lend(body, wire.body_nbytes_bound(count, dtype), written=True) as payload,
        ):
            return self._codec.pack_encode(dtype, total, count, divisor, values, payload)

    def widen(self, dtype: DType, source: int, accumulator: int, count: int) -> None:
        room = count * base.accumulator_itemsize(dtype)
        with self._lend(source, count * dtype.itemsize) as values, self._lend(accumulator, room, written=True) as total:
            self._codec.widen(dtype, values, total, count)

    def accumulate(self, dtype: DType, op: int, source: int, accumulator: int, count: int) -> None:
        room = count * base.accumulator_itemsize(dtype)
        with self._lend(source, count * dtype.itemsize) as values, self._lend(accumulator, room, written=True) as total:
            self._codec.accumulate(dtype, op, values, total, count)

    def pack(self, dtype: DType, accumulator: int, target: int, count: int, divisor: int) -> None:
        room = count * base.accumulator_itemsize(dtype)
        with self._lend(accumulator, room) as total, self._lend(target, count * dtype.itemsize, written=True) as values:
            self._codec.pack(dtype, total, values, count, divisor)

    @contextmanager
    def _lend(self, address: int, nbytes: int, written: bool = False) -> Iterator[int]:
        before = _GUARD_NBYTES + address % 64
        around = np.empty(before + nbytes + _GUARD_NBYTES, np.uint8)
        around[:before] = _GUARD[:before]
        around[before + nbytes :] = _GUARD[:_GUARD_NBYTES]
        memory = self._device.allocate(around.size, 0)
        self._device.copy(memory.address, around.ctypes.data, around.size, 0)
        self._device.copy(memory.address + before, address, nbytes, 0)
        try:
            yield memory.address + before
        finally:
            self._device.copy(around.ctypes.data, memory.address, around.size, 0)
            if written:
                self._device.copy(address, memory.address + before, nbytes, 0)
            self._device.synchronize(0)
            assert np.array_equal(around[:before], _GUARD[:before]), "bytes before the buffer were written"
            assert np.array_equal(around[before + nbytes :], _GUARD[:_GUARD_NBYTES]), "bytes behind it were written"


def codecs() -> list[Any]:
    """Return the codec of the device that the environment names, if it does."""
    kind = os.environ.get("ZIPCCL_TEST_DEVICE")
    if not kind:
        return []
    device = open_device(kind)
    return [OnDevice(CudaCodec(device), device)]
