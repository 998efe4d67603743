"""Why decoding refuses a body: the codes that the native codec and the CUDA kernels return."""

from __future__ import annotations

from zipccl.codec.wire import DType
from zipccl.errors import CorruptPayloadError

OK = 0
# By the status codes of zipccl/native/codec.hpp and cuda_kernels/format.cuh.
_REASONS = (
    "",
    "body of {nbytes} bytes ends before its directory",
    "body of {nbytes} bytes for {count} values of {dtype} does not have the size that its tile ends tell",
    "a directory entry has a code or mask that this version does not write",
    "the tile ends differ from the directory's sizes",
    "a block's codes take another size than its directory entry tells",
)


def check(status: int, dtype: DType, nbytes: int, count: int) -> None:
    """Raise what a status stands for.

    Raises:
        CorruptPayloadError: it is not OK.
    """
    if status != OK:
        raise CorruptPayloadError(_REASONS[status].format(dtype=dtype.name, nbytes=nbytes, count=count))
