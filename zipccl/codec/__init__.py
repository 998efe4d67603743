"""The codecs: one wire format (wire.py), and the implementations that agree on it byte for byte."""

from __future__ import annotations

import warnings
from functools import cache

from zipccl.codec.base import Codec
from zipccl.codec.reference import ReferenceCodec


@cache
def default_codec(threads: int) -> Codec:
    """Return this process's codec: the native one, or the reference where the native one was not built."""
    try:
        from zipccl.codec.native import NativeCodec
    except ImportError as error:
        warnings.warn(
            f"zipccl runs on its NumPy reference codec, about a thousand times slower than the native one, because "
            f"the native extension is missing ({error}); install a C++ compiler and reinstall zipccl",
            RuntimeWarning,
            stacklevel=2,
        )
        return ReferenceCodec()
    return NativeCodec(threads=threads)
