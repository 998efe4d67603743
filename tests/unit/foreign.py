"""The native codec on an emulated processor, as a further codec for the tests; ``tools/foreign_cpu`` builds and runs.

The environment variable ZIPCCL_TEST_FOREIGN holds the command that serves it: tests/foreign/codec_main.cpp, built for
the processor, with what emulates the processor before it.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import shlex
import struct
import subprocess

from zipccl.codec import base, wire
from zipccl.codec.wire import DType
from zipccl.errors import CorruptPayloadError

_REQUEST = struct.Struct("<9Q")
_ANSWER = struct.Struct("<2Q")


class ForeignCodec:
    """The Codec protocol, over pipes.

    Args:
        command: starts the program and tells it the implementation, which is also the last word of its name.
    """

    def __init__(self, command: str) -> None:
        words = shlex.split(command)
        self.name = f"foreign-{words[-1]}"
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        atexit.register(self._process.communicate)

    def encode_body(self, dtype: DType, source: int, count: int, body: int) -> int:
        bound = wire.body_nbytes_bound(count, dtype)
        return self._call("e", dtype, count, (source, count * dtype.itemsize), (body, bound))

    def decode_body(self, dtype: DType, body: int, nbytes: int, target: int, count: int) -> None:
        status = self._call("d", dtype, count, (body, nbytes), (target, count * dtype.itemsize))
        self._check(status, nbytes, count)

    def decode_reduce(self, dtype: DType, op: int, body: int, nbytes: int, accumulator: int, count: int) -> None:
        room = (accumulator, count * base.accumulator_itemsize(dtype))
        status = self._call("r", dtype, count, (body, nbytes), room, second=room, op=op)
        self._check(status, nbytes, count)

    def pack_encode(self, dtype: DType, accumulator: int, count: int, divisor: int, target: int, body: int) -> int:
        source = (accumulator, count * base.accumulator_itemsize(dtype))
        values_nbytes = count * dtype.itemsize
        both = ctypes.create_string_buffer(values_nbytes + wire.body_nbytes_bound(count, dtype))
        room = (ctypes.addressof(both), len(both))
        nbytes = self._call("k", dtype, count, source, room, divisor=divisor)
        ctypes.memmove(target, both, values_nbytes)
        ctypes.memmove(body, room[0] + values_nbytes, nbytes)
        return nbytes

    def widen(self, dtype: DType, source: int, accumulator: int, count: int) -> None:
        room = (accumulator, count * base.accumulator_itemsize(dtype))
        self._call("w", dtype, count, (source, count * dtype.itemsize), room)

    def accumulate(self, dtype: DType, op: int, source: int, accumulator: int, count: int) -> None:
        room = (accumulator, count * base.accumulator_itemsize(dtype))
        self._call("a", dtype, count, (source, count * dtype.itemsize), room, second=room, op=op)

    def pack(self, dtype: DType, accumulator: int, target: int, count: int, divisor: int) -> None:
        source = (accumulator, count * base.accumulator_itemsize(dtype))
        self._call("p", dtype, count, source, (target, count * dtype.itemsize), divisor=divisor)

    def _check(self, status: int, nbytes: int, count: int) -> None:
        if status:
            raise CorruptPayloadError(f"{self.name} refuses {nbytes} bytes for {count} values: status {status}")

    def _call(
        self,
        function: str,
        dtype: DType,
        count: int,
        source: tuple[int, int],
        target: tuple[int, int],
        second: tuple[int, int] = (0, 0),
        op: int = 0,
        divisor: int = 1,
    ) -> int:
        """Send addresses' contents, put what comes back at the target's address, and return the function's result."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        sizes = (source[1], second[1], target[1])
        values_nbytes = count * dtype.itemsize
        self._process.stdin.write(_REQUEST.pack(ord(function), dtype.code, op, count, divisor, values_nbytes, *sizes))
        for address, nbytes in (source, second):
            self._process.stdin.write(ctypes.string_at(address, nbytes) if nbytes else b"")
        self._process.stdin.flush()
        head = self._process.stdout.read(_ANSWER.size)
        assert len(head) == _ANSWER.size, f"{self.name} ended with status {self._process.wait()}"
        result, written = _ANSWER.unpack(head)
        assert written <= target[1]
        ctypes.memmove(target[0], self._process.stdout.read(written), written)
        return int(result)


def codecs() -> list[ForeignCodec]:
    """Return the foreign codec that the environment names, if it does."""
    command = os.environ.get("ZIPCCL_TEST_FOREIGN")
    return [ForeignCodec(command)] if command else []
