"""The interface between zipccl and a device with memory, streams and kernels of its own, in CUDA's terms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from zipccl.codec.wire import DType


class Memory(Protocol):
    """Memory that is freed when the object goes; device memory stream-ordered, to a pool.

    Attributes:
        address: of the first byte, aligned to 256 bytes.
    """

    address: int
    nbytes: int


class Device(Protocol):
    """One device. A stream is an int: the address of a cudaStream_t, and 0 for the default stream.

    Addresses are of this device's memory, or of host memory where said so. Work on a stream is done in order, while
    the host goes on; only what says so waits.

    Attributes:
        kind: "cuda", or another kind that is registered.
        index: its number among the devices of its kind that this process sees.
    """

    kind: str
    index: int
    multiprocessors: int

    def check_stream(self, stream: int) -> None:
        """Raise ArgumentError if the host cannot wait for a stream, because it is being captured to a graph."""

    def activate(self) -> None:
        """Make this the calling thread's current device, for libraries that ask for it."""

    def allocate(self, nbytes: int, stream: int) -> Memory:
        """Allocate device memory for use on a stream; freed, it goes to what is next allocated on that stream.

        Raises:
            MemoryError: there is not as much.
        """

    def allocate_host(self, nbytes: int) -> Memory:
        """Allocate pinned host memory, which copies to and from the device do not wait for. Wait before freeing it."""

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy bytes between device or host memory, in any direction."""

    def fill(self, target: int, byte: int, nbytes: int, stream: int) -> None:
        """Set device memory to a byte."""

    def launch(self, kernel: str, dtype: DType, grid: int, block: int, arguments: Sequence[int], stream: int) -> None:
        """Start a kernel of ``cuda_kernels/``, compiled for a dtype, with grid thread blocks of block threads.

        Args:
            arguments: as many as the kernel has parameters, each of which is a 64-bit integer.
        """

    def synchronize(self, stream: int) -> None:
        """Wait until what was put on a stream is done.

        Raises:
            DeviceError: something on the device failed.
        """

    def current_stream(self) -> int:
        """Return the calling thread's current stream on this device."""

    def record(self, stream: int) -> object:
        """Return an event that happens when what was put on a stream so far is done."""

    def done(self, event: object) -> bool:
        """Tell whether an event has happened.

        Raises:
            DeviceError: something on the device failed.
        """

    def wait(self, stream: int, event: object) -> None:
        """Make what is put on a stream from now on wait for an event."""
