"""The native codec with the interface of a device's, fast enough to test what is around it with many values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zipccl.codec.cuda import DecodePart, EncodePart
from zipccl.codec.native import NativeCodec
from zipccl.codec.wire import DType
from zipccl.errors import CorruptPayloadError


class _Known:
    """What was found: sizes, or the error that is raised when it is asked for."""

    def __init__(self, sizes: Sequence[int] = (), error: CorruptPayloadError | None = None) -> None:
        self._sizes = list(sizes)
        self._error = error

    def get(self) -> list[int]:
        return self._sizes

    def check(self) -> None:
        if self._error:
            raise self._error


class HostCodec(NativeCodec):
    """What is used of CudaCodec, for devices whose memory is the host's and whose streams run at once."""

    def encode_parts(self, dtype: DType, parts: Sequence[EncodePart], stream: int) -> _Known:  # noqa: ARG002
        return _Known([self.encode_body(dtype, part.source, part.count, part.body) for part in parts])

    def decode_parts(self, dtype: DType, parts: Sequence[DecodePart], stream: int) -> _Known:  # noqa: ARG002
        def decode() -> None:
            for part in parts:
                self.decode_body(dtype, part.body, part.nbytes, part.target, part.count)

        return _run(decode)

    def decode_reduce_parts(
        self,
        dtype: DType,
        op: int,
        parts: Sequence[DecodePart],
        stream: int,  # noqa: ARG002
    ) -> _Known:
        def decode() -> None:
            for part in parts:
                self.decode_reduce(dtype, op, part.body, part.nbytes, part.target, part.count)

        return _run(decode)

    def accumulate_on(
        self,
        dtype: DType,
        op: int,
        source: int,
        accumulator: int,
        count: int,
        stream: int,  # noqa: ARG002
    ) -> None:
        self.accumulate(dtype, op, source, accumulator, count)

    def pack_on(
        self,
        dtype: DType,
        accumulator: int,
        target: int,
        count: int,
        divisor: int,
        stream: int,  # noqa: ARG002
    ) -> None:
        self.pack(dtype, accumulator, target, count, divisor)


def _run(decode: Callable[[], None]) -> _Known:
    try:
        decode()
    except CorruptPayloadError as error:
        return _Known(error=error)
    return _Known()
