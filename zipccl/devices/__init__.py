"""The kinds of devices beside the CPU, and those of them that this process has opened."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from zipccl.codec.cuda import CudaCodec
from zipccl.devices.base import Device
from zipccl.errors import ArgumentError


class Kind(Protocol):
    """A kind of device, as the library that makes arrays for it shows it."""

    @property
    def nccl(self) -> Any | None:
        """``cupy.cuda.nccl`` or a module with its functions; None if there is none."""

    def count(self) -> int:
        """Return how many devices this process sees; 0 if the library is missing."""

    def identity(self, index: int) -> str:
        """Return a text that is the same for two processes on a node if they see the same device."""

    def open(self, index: int) -> Device:
        """Return a device."""

    def codec(self, device: Device) -> CudaCodec:
        """Return a codec for a device of this kind."""

    def locate(self, array: Any) -> int | None:
        """Return the index of the device whose memory an array with ``__cuda_array_interface__`` is in.

        None if it is of another kind, or there is no such device.
        """

    def contiguous(self, array: Any) -> Any:
        """Return a C-contiguous copy of an array."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], index: int) -> Any:
        """Make an array on a device."""


class Opened(NamedTuple):
    """A device in use."""

    device: Device
    codec: CudaCodec


def _cuda() -> Kind:
    from zipccl.devices.cupy import CudaKind

    return CudaKind()


_KINDS: dict[str, Callable[[], Kind]] = {"cuda": _cuda}


def register(name: str, make: Callable[[], Kind]) -> None:
    """Let ``zipccl.init`` and arrays know another kind of device."""
    _KINDS[name] = make
    kind_named.cache_clear()
    opened.cache_clear()


@cache
def kind_named(name: str) -> Kind:
    """Return the kind of that name.

    Raises:
        ArgumentError: there is none.
    """
    if name not in _KINDS:
        raise ArgumentError(f"device is {name!r}; expected one of cpu, {', '.join(_KINDS)}")
    return _KINDS[name]()


def choose(device: str | None, local_rank: int) -> tuple[str, int]:
    """Return (kind, index) of what a user asks for with a device such as "cpu", "cuda" or "cuda:0".

    By default that is "cuda" if there is such a device.

    Raises:
        ArgumentError: there is no such kind or no such device.
    """
    if device is not None and not isinstance(device, str):
        raise ArgumentError(f'device is {device!r}; expected a text such as "cpu", "cuda" or "cuda:0"')
    if device == "cpu" or (device is None and kind_named("cuda").count() == 0):
        return "cpu", 0
    name, colon, number = (device or "cuda").partition(":")
    count = kind_named(name).count()
    if count == 0:
        raise ArgumentError(f"device is {device!r}, but this process sees no such device (CUDA's are seen by CuPy)")
    if not colon:
        return name, local_rank % count
    if not (number.isascii() and number.isdecimal()) or int(number) >= count:
        raise ArgumentError(f"device is {device!r}; expected a number from 0 to {count - 1} after {name}:")
    return name, int(number)


def find(array: Any) -> str | None:
    """Return the place of an array with ``__cuda_array_interface__``, such as "cuda:0"; None if no kind knows it."""
    # CUDA's kind takes any such array, so others are asked first.
    for name in reversed(_KINDS):
        index = kind_named(name).locate(array)
        if index is not None:
            return f"{name}:{index}"
    return None


@cache
def opened(place: str) -> Opened:
    """Return the device at a place, such as "cuda:0", and its codec."""
    name, _, index = place.partition(":")
    kind = kind_named(name)
    device = kind.open(int(index))
    return Opened(device, kind.codec(device))
