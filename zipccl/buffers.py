"""Pooled memory for messages: touching fresh pages costs more than coding what goes into them."""

from __future__ import annotations

import ctypes
from collections import defaultdict

import numpy as np

_GRANULARITY = 1 << 16
_CACHE_LINE = 64


class Buffer:
    """A piece of memory whose pages are mapped; address is aligned to a cache line."""

    __slots__ = ("_memory", "address", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self._memory = np.empty(nbytes + _CACHE_LINE, np.uint8)
        self._memory.fill(1)  # map the pages now
        self.address: int = -(-self._memory.ctypes.data // _CACHE_LINE) * _CACHE_LINE
        self.nbytes = nbytes


class BufferPool:
    """Lends buffers and keeps those that come back."""

    def __init__(self) -> None:
        self._free: dict[int, list[Buffer]] = defaultdict(list)

    def take(self, nbytes: int) -> Buffer:
        """Return a buffer of at least nbytes bytes; give it back with ``give_back``."""
        rounded = -(-nbytes // _GRANULARITY) * _GRANULARITY
        free = self._free[rounded]
        return free.pop() if free else Buffer(rounded)

    def give_back(self, buffer: Buffer) -> None:
        self._free[buffer.nbytes].append(buffer)

    def clear(self) -> None:
        """Free all buffers that are not lent."""
        self._free.clear()


def never_free(owner: object) -> None:
    """Keep an object, and the memory it owns, until the process has ended.

    For what a failed call may leave behind: messages that are under way to or from memory, which the library below
    goes on reading and writing even while it is finalised, after Python's objects are gone.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))
