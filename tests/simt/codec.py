"""The CUDA codec on the CPU, for the tests of all codecs: its kernels may touch the memory of each call and no more."""

from __future__ import annotations

import platform
import shutil

from tests.simt.device import SimtDevice
from zipccl.codec import base, wire
from zipccl.codec.cuda import CudaCodec
from zipccl.codec.wire import DType


def codecs() -> list[base.Codec]:
    """Return the codec, with threads in a random order; none if this machine cannot compile and run it."""
    if platform.machine() != "x86_64" or shutil.which("g++") is None:
        return []
    return [SimtCodec(SimtDevice(seed=1))]


class SimtCodec(CudaCodec):
    """CudaCodec on any memory of the process, of which each call lends the kernels exactly what it says."""

    def __init__(self, device: SimtDevice) -> None:
        super().__init__(device)
        self._simt = device

    def encode_body(self, dtype: DType, source: int, count: int, body: int) -> int:
        room = wire.body_nbytes_bound(count, dtype)
        with self._simt.lent((source, count * dtype.itemsize), (body, room)):
            return super().encode_body(dtype, source, count, body)

    def decode_body(self, dtype: DType, body: int, nbytes: int, target: int, count: int) -> None:
        with self._simt.lent((body, nbytes), (target, count * dtype.itemsize)):
            super().decode_body(dtype, body, nbytes, target, count)

    def decode_reduce(self, dtype: DType, op: int, body: int, nbytes: int, accumulator: int, count: int) -> None:
        with self._simt.lent((body, nbytes), _accumulator(dtype, accumulator, count)):
            super().decode_reduce(dtype, op, body, nbytes, accumulator, count)

    def pack_encode(self, dtype: DType, accumulator: int, count: int, divisor: int, target: int, body: int) -> int:
        room = wire.body_nbytes_bound(count, dtype)
        memory = _accumulator(dtype, accumulator, count), (target, count * dtype.itemsize), (body, room)
        with self._simt.lent(*memory):
            return super().pack_encode(dtype, accumulator, count, divisor, target, body)

    def widen(self, dtype: DType, source: int, accumulator: int, count: int) -> None:
        with self._simt.lent((source, count * dtype.itemsize), _accumulator(dtype, accumulator, count)):
            super().widen(dtype, source, accumulator, count)

    def accumulate(self, dtype: DType, op: int, source: int, accumulator: int, count: int) -> None:
        with self._simt.lent((source, count * dtype.itemsize), _accumulator(dtype, accumulator, count)):
            super().accumulate(dtype, op, source, accumulator, count)

    def pack(self, dtype: DType, accumulator: int, target: int, count: int, divisor: int) -> None:
        with self._simt.lent(_accumulator(dtype, accumulator, count), (target, count * dtype.itemsize)):
            super().pack(dtype, accumulator, target, count, divisor)


def _accumulator(dtype: DType, address: int, count: int) -> tuple[int, int]:
    return address, count * base.accumulator_itemsize(dtype)
