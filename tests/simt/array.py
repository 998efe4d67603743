"""Arrays in the memory of SIMT devices, as GPU arrays look to other libraries."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tests.simt.device import SimtDevice, SimtMemory

DEVICES = [SimtDevice(index) for index in range(8)]


class SimtArray:
    """An array with ``__cuda_array_interface__``. It is a device's as far as its users know, so it has no values here.

    Args:
        values: a NumPy array over memory of the device.
        stream: what the interface tells of it.
    """

    def __init__(self, values: np.ndarray[Any, Any], memory: SimtMemory, index: int, stream: int | None = None) -> None:
        self._values = values
        self._memory = memory
        self.index = index
        self.stream = stream

    @classmethod
    def empty(cls, shape: tuple[int, ...], dtype: Any, index: int = 0) -> SimtArray:
        dtype = np.dtype(dtype)
        count = int(np.prod(shape))
        memory = DEVICES[index].allocate(count * dtype.itemsize, 0)
        bytes_ = (ctypes.c_uint8 * memory.nbytes).from_address(memory.address)
        values = np.frombuffer(bytes_, np.uint8).view(dtype).reshape(shape)
        return cls(values, memory, index)

    @classmethod
    def of(cls, values: Any, index: int = 0) -> SimtArray:
        """Copy a NumPy array to a device."""
        values = np.asarray(values)
        array = cls.empty(values.shape, values.dtype, index)
        array._values[...] = values
        return array

    def get(self) -> np.ndarray[Any, Any]:
        """Copy to a NumPy array."""
        return self._values.copy()

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._values.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self._values.shape

    @property
    def T(self) -> SimtArray:  # noqa: N802
        return SimtArray(self._values.T, self._memory, self.index, self.stream)

    def __getitem__(self, index: Any) -> SimtArray:
        return SimtArray(self._values[index], self._memory, self.index, self.stream)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        interface = dict(self._values.__array_interface__)
        interface["strides"] = None if self._values.flags.c_contiguous else self._values.strides
        return interface | {"version": 3, "stream": self.stream}
