"""CUDA devices, by CuPy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np

from zipccl.codec.cuda import CudaCodec
from zipccl.codec.wire import DType
from zipccl.devices.base import Device
from zipccl.devices.modules import cubin_file
from zipccl.errors import ArgumentError, DeviceError, UnsupportedArrayError


class CupyMemory:
    """Memory of one of CuPy's pools."""

    def __init__(self, pointer: Any, nbytes: int) -> None:
        self._pointer = pointer
        self.address: int = pointer.ptr
        self.nbytes = nbytes


class CupyDevice:
    """The Device protocol for a CUDA device. Memory comes from CuPy's pools, which are ordered by streams."""

    kind = "cuda"

    def __init__(self, index: int) -> None:
        import cupy

        self._cupy = cupy
        self._runtime = cupy.cuda.runtime
        self.index = index
        self._device = cupy.cuda.Device(index)
        self.multiprocessors: int = self._device.attributes["MultiProcessorCount"]
        self._modules: dict[DType, Any] = {}
        self._kernels: dict[tuple[str, DType], Any] = {}

    def check_stream(self, stream: int) -> None:
        with self._errors(), self._device:
            if self._runtime.streamIsCapturing(stream):
                raise ArgumentError(
                    "the stream is being captured to a CUDA graph, which cannot hold a call of zipccl: "
                    "sizes of messages depend on the data; call it outside of the capture"
                )

    def activate(self) -> None:
        self._device.use()

    def allocate(self, nbytes: int, stream: int) -> CupyMemory:
        with self._errors(), self._device, self._stream(stream):
            return CupyMemory(self._cupy.cuda.alloc(max(nbytes, 1)), nbytes)

    def allocate_host(self, nbytes: int) -> CupyMemory:
        with self._errors(), self._device:
            return CupyMemory(self._cupy.cuda.alloc_pinned_memory(max(nbytes, 1)), nbytes)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        with self._errors(), self._device:
            self._runtime.memcpyAsync(target, source, nbytes, self._runtime.memcpyDefault, stream)

    def fill(self, target: int, byte: int, nbytes: int, stream: int) -> None:
        with self._errors(), self._device:
            self._runtime.memsetAsync(target, byte, nbytes, stream)

    def launch(self, kernel: str, dtype: DType, grid: int, block: int, arguments: Sequence[int], stream: int) -> None:
        with self._errors(), self._device, self._stream(stream):
            self._kernel(kernel, dtype)((grid,), (block,), tuple(arguments))

    def synchronize(self, stream: int) -> None:
        with self._errors(), self._device:
            self._runtime.streamSynchronize(stream)

    def current_stream(self) -> int:
        return self._cupy.cuda.get_current_stream(self.index).ptr

    def record(self, stream: int) -> Any:
        with self._errors(), self._device:
            event = self._cupy.cuda.Event(disable_timing=True)
            event.record(self._stream(stream))
            return event

    def done(self, event: Any) -> bool:
        with self._errors():
            return event.done

    def wait(self, stream: int, event: Any) -> None:
        with self._errors(), self._device:
            self._runtime.streamWaitEvent(stream, event.ptr)

    def _stream(self, stream: int) -> Any:
        return self._cupy.cuda.ExternalStream(stream, self.index) if stream else self._cupy.cuda.Stream.null

    def _kernel(self, name: str, dtype: DType) -> Any:
        """Return a kernel's function; a Python int that it is given arrives as 64 bits."""
        if (name, dtype) not in self._kernels:
            if dtype not in self._modules:
                path = cubin_file(dtype, int(self._device.compute_capability))
                self._modules[dtype] = self._cupy.RawModule(path=str(path))
            self._kernels[name, dtype] = self._modules[dtype].get_function(name)
        return self._kernels[name, dtype]

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise DeviceError for an error of CUDA's; MemoryError stays as it is."""
        try:
            yield
        except (self._runtime.CUDARuntimeError, self._cupy.cuda.driver.CUDADriverError) as error:
            raise DeviceError(f"CUDA device {self.index} failed: {error}") from error


class CudaKind:
    """CUDA's kind of device."""

    @cached_property
    def nccl(self) -> Any | None:
        from cupy.cuda import nccl

        return nccl if nccl.available else None

    def count(self) -> int:
        try:
            import cupy

            return cupy.cuda.runtime.getDeviceCount()
        except ImportError:
            return 0
        except Exception:  # CuPy's, when there is no driver or no device
            return 0

    def identity(self, index: int) -> str:
        import cupy

        return cupy.cuda.Device(index).pci_bus_id

    def open(self, index: int) -> CupyDevice:
        return CupyDevice(index)

    def codec(self, device: Device) -> CudaCodec:
        return CudaCodec(device)

    def locate(self, array: Any) -> int | None:
        try:
            import cupy
        except ImportError:
            return None
        if isinstance(array, cupy.ndarray):
            return array.device.id
        address = array.__cuda_array_interface__["data"][0]
        try:
            # An empty array may have no address.
            return cupy.cuda.runtime.pointerGetAttributes(address).device if address else cupy.cuda.Device().id
        except cupy.cuda.runtime.CUDARuntimeError as error:
            if self.count() == 0:
                return None
            raise DeviceError(f"CUDA does not know where an array is: {error}") from error

    def contiguous(self, array: Any) -> Any:
        import cupy

        return cupy.ascontiguousarray(cupy.asarray(array))

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], index: int) -> Any:
        import cupy

        try:
            with cupy.cuda.Device(index):
                return cupy.empty(shape, dtype)
        except ValueError as error:
            raise UnsupportedArrayError(f"CuPy cannot make the result: {error}") from None
