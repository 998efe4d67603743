"""The kind of device "simt", for ``zipccl.init(device="simt")``."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from mpi4py import MPI

import zipccl.devices
from tests.simt import nccl
from tests.simt.array import DEVICES, SimtArray
from tests.simt.device import SimtDevice
from tests.simt.host_codec import HostCodec
from zipccl.codec.cuda import CudaCodec
from zipccl.devices.base import Device


class SimtKind:
    """Every process has eight devices of its own.

    Args:
        stand_in: for ``cupy.cuda.nccl``; None if there is to be none.
        kernels: code with the CUDA kernels, a thousand times slower than with the native codec.
    """

    def __init__(self, stand_in: ModuleType | None = nccl, *, kernels: bool = True) -> None:
        self.nccl = stand_in
        self._kernels = kernels

    def count(self) -> int:
        return len(DEVICES)

    def identity(self, index: int) -> str:
        return f"rank {MPI.COMM_WORLD.rank} device {index}"

    def open(self, index: int) -> SimtDevice:
        return DEVICES[index]

    def codec(self, device: Device) -> CudaCodec | HostCodec:
        return CudaCodec(device) if self._kernels else HostCodec()

    def locate(self, array: Any) -> int | None:
        return array.index if isinstance(array, SimtArray) else None

    def contiguous(self, array: SimtArray) -> SimtArray:
        return SimtArray.of(array.get(), array.index)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], index: int) -> SimtArray:
        return SimtArray.empty(shape, dtype, index)


def register(kind: SimtKind | None = None) -> None:
    """Let zipccl know the kind."""
    zipccl.devices.register("simt", lambda: kind or SimtKind())
