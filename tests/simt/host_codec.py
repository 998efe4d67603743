"""The native codec with the interface of a device's, fast enough to test what is around it with many values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zipccl.codec.batch import DecodePart, Part, ReducePart
from zipccl.codec.native import NativeCodec
from zipccl.codec.wire import DType
from zipccl.errors import CorruptPayloadError


class _Known:
    """What a batch gave: sizes, or the error that is raised when it is asked for."""

    def __init__(self, sizes: Sequence[int] = (), error: CorruptPayloadError | None = None) -> None:
        self._sizes = list(sizes)
        self._error = error

    def get(self) -> list[int]:
        return self._sizes

    def check(self) -> None:
        if self._error:
            raise self._error


class HostBatchCodec(NativeCodec):
    """Implements BatchCodec where the device's memory is the host's."""

    def encode_parts(self, dtype: DType, parts: Sequence[Part], stream: int) -> _Known:
        return _Known([self.encode_body(dtype, part.source, part.count, part.body) for part in parts])

    def decode_parts(self, dtype: DType, parts: Sequence[DecodePart], stream: int) -> _Known:
        def decode() -> None:
            for part in parts:
                self.decode_body(dtype, part.body, part.nbytes, part.target, part.count)

        return _status(decode)

    def decode_reduce_parts(self, dtype: DType, parts: Sequence[ReducePart], stream: int) -> _Known:
        def decode() -> None:
            for op, source, nbytes, accumulator, count in parts:
                if nbytes is None:
                    self.accumulate(dtype, op, source, accumulator, count)
                else:
                    self.decode_reduce(dtype, op, source, nbytes, accumulator, count)

        return _status(decode)

    def pack_on(self, dtype: DType, accumulator: int, target: int, count: int, divisor: int, stream: int) -> None:
        self.pack(dtype, accumulator, target, count, divisor)


def _status(decode: Callable[[], None]) -> _Known:
    try:
        decode()
    except CorruptPayloadError as error:
        return _Known(error=error)
    return _Known()
