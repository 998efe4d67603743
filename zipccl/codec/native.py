"""The native codec: C++ for the instruction sets of the machine it runs on."""

from __future__ import annotations

from zipccl import _native, config
from zipccl.codec import base, status
from zipccl.codec.wire import DType
from zipccl.errors import ArgumentError

_IMPLEMENTATIONS = {name: number for number, (name, supported) in enumerate(_native.implementations()) if supported}


def supported_isas() -> tuple[str, ...]:
    """Return the names of the implementations that this machine can run, best first."""
    return tuple(_IMPLEMENTATIONS)


class NativeCodec:
    """The Codec protocol in native code.

    Args:
        isa: one of ``supported_isas()``; by default what the environment variable ZIPCCL_FORCE_ISA says, or the best.
        threads: how many threads share the coding of a large array; the bytes do not depend on it. A process keeps
            its threads, and those of a fork are its own. Of calls at the same time only one has them.

    Raises:
        ArgumentError: there is no such implementation, or this machine cannot run it; or threads is no such number.
    """

    def __init__(self, isa: str | None = None, threads: int = 1) -> None:
        chosen = isa or config.forced_isa() or supported_isas()[0]
        if chosen not in _IMPLEMENTATIONS:
            raise ArgumentError(f"isa {chosen!r} is not supported on this machine; supported are {supported_isas()}")
        self.name = chosen if threads == 1 else f"{chosen} x{threads}"
        self._threads = threads
        if not isinstance(threads, int) or not 1 <= threads < 1 << 31:
            raise ArgumentError(f"threads is {threads!r}; expected a whole number, 1 or more")
        self._number = _IMPLEMENTATIONS[chosen]

    def encode_body(self, dtype: DType, source: int, count: int, body: int) -> int:
        return _native.encode_body(self._number, dtype.code, source, count, body, self._threads)

    def decode_body(self, dtype: DType, body: int, nbytes: int, target: int, count: int) -> None:
        found = _native.decode_body(self._number, dtype.code, body, nbytes, target, count, self._threads)
        status.check(found, dtype, nbytes, count)

    def decode_reduce(self, dtype: DType, op: int, body: int, nbytes: int, accumulator: int, count: int) -> None:
        found = _native.decode_reduce(self._number, dtype.code, op, body, nbytes, accumulator, count, self._threads)
        status.check(found, dtype, nbytes, count)

    def pack_encode(self, dtype: DType, accumulator: int, count: int, divisor: int, target: int, body: int) -> int:
        base.check_divisor(divisor)
        return _native.pack_encode(self._number, dtype.code, accumulator, count, divisor, target, body, self._threads)

    def widen(self, dtype: DType, source: int, accumulator: int, count: int) -> None:
        _native.widen(self._number, dtype.code, source, accumulator, count)

    def accumulate(self, dtype: DType, op: int, source: int, accumulator: int, count: int) -> None:
        _native.accumulate(self._number, dtype.code, op, source, accumulator, count)

    def pack(self, dtype: DType, accumulator: int, target: int, count: int, divisor: int) -> None:
        base.check_divisor(divisor)
        _native.pack(self._number, dtype.code, accumulator, target, count, divisor)
