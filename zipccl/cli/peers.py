"""Other lossless compressors, as their Python packages call them on one thread, to measure zipccl against.

Each is an adapter that imports its package when it is made. What they return is memory of their own making.
"""

from __future__ import annotations

import ctypes
import importlib
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from zipccl.codec.wire import DType

Bytes = NDArray[np.uint8]

# Of <malloc.h>.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4

_CODED_TYPES = ("bfloat16", "float16", "float32")


class PeerUnavailableError(Exception):
    """A peer's package is not installed, or does not take the dtype."""


class Peer:
    """A compressor of another package.

    Args:
        dtype: of the values whose bytes it is given.

    Raises:
        PeerUnavailableError: it cannot be used for that.
    """

    name: ClassVar[str]
    package: ClassVar[str]
    dtypes: ClassVar[tuple[str, ...] | None] = None
    """Names of the dtypes that it takes; None for all."""

    overwrites_source: ClassVar[bool] = False
    """Whether encode changes the bytes that it is given."""

    def __init__(self, dtype: DType) -> None:
        if self.dtypes is not None and dtype.name not in self.dtypes:
            raise PeerUnavailableError(f"takes {', '.join(self.dtypes)}, not {dtype.name}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._set_up(dtype)
        except ImportError as error:
            raise PeerUnavailableError(f'not installed ({error}): pip install "zipccl[peers]"') from None

    def _set_up(self, dtype: DType) -> None:
        raise NotImplementedError

    @property
    def version(self) -> str:
        return metadata.version(self.package)

    def encode(self, source: Bytes) -> bytes:
        """Compress."""
        raise NotImplementedError

    def decode(self, payload: bytes) -> Any:
        """Return the bytes that were compressed, in an object that has the buffer protocol."""
        raise NotImplementedError


class ZipNN(Peer):
    """Huffman coding of the exponents: https://github.com/zipnn/zipnn."""

    name = "zipnn"
    package = "zipnn"
    dtypes = _CODED_TYPES
    overwrites_source = True

    def _set_up(self, dtype: DType) -> None:
        zipnn = importlib.import_module("zipnn")
        self._zipnn = zipnn.ZipNN(input_format="byte", bytearray_dtype=dtype.name, threads=1)

    def encode(self, source: Bytes) -> bytes:
        payload: bytes = self._zipnn.compress(source.data)
        return payload

    def decode(self, payload: bytes) -> Any:
        return self._zipnn.decompress(payload)


class Blosc2(Peer):
    """Zstandard behind a byte shuffle: https://www.blosc.org."""

    name = "blosc2"
    package = "blosc2"

    def _set_up(self, dtype: DType) -> None:
        self._blosc2 = blosc2 = importlib.import_module("blosc2")
        self._parameters = {
            "codec": blosc2.Codec.ZSTD,
            "clevel": 1,
            "typesize": dtype.itemsize,
            "filters": [blosc2.Filter.SHUFFLE],
            "nthreads": 1,
        }

    def encode(self, source: Bytes) -> bytes:
        payload: bytes = self._blosc2.compress2(source, **self._parameters)
        return payload

    def decode(self, payload: bytes) -> Any:
        return self._blosc2.decompress2(payload, nthreads=1)


class Zstd(Peer):
    """Zstandard at level 1, on the bytes as they are."""

    name = "zstd -1"
    package = "zstandard"

    def _set_up(self, dtype: DType) -> None:  # noqa: ARG002  it does not matter
        zstandard = importlib.import_module("zstandard")
        self._compressor = zstandard.ZstdCompressor(level=1)
        self._decompressor = zstandard.ZstdDecompressor()

    def encode(self, source: Bytes) -> bytes:
        payload: bytes = self._compressor.compress(source)
        return payload

    def decode(self, payload: bytes) -> Any:
        return self._decompressor.decompress(payload)


class OpenZL(Peer):
    """Its own split of floats, with entropy coding of the exponents: https://openzl.org."""

    name = "openzl"
    package = "openzl"
    dtypes = _CODED_TYPES

    def _set_up(self, dtype: DType) -> None:
        self._openzl = openzl = importlib.import_module("openzl.ext")
        nodes, graphs = openzl.nodes, openzl.graphs
        self._compressor = compressor = openzl.Compressor()
        entropy = graphs.Entropy()(compressor)
        if dtype.name == "bfloat16":
            split, rest = nodes.BFloat16Deconstruct(), graphs.Store()(compressor)
        else:
            split = nodes.Float16Deconstruct() if dtype.name == "float16" else nodes.Float32Deconstruct()
            rest = nodes.TransposeSplit()(compressor, entropy)
        compressor.set_parameter(openzl.CParam.FormatVersion, openzl.MAX_FORMAT_VERSION)
        compressor.select_starting_graph(split(compressor, rest, entropy))
        self._words = np.dtype(f"u{dtype.itemsize}")

    def encode(self, source: Bytes) -> bytes:
        context = self._openzl.CCtx()
        context.ref_compressor(self._compressor)
        context.set_parameter(self._openzl.CParam.FormatVersion, self._openzl.MAX_FORMAT_VERSION)
        payload: bytes = context.compress([self._openzl.Input(self._openzl.Type.Numeric, source.view(self._words))])
        return payload

    def decode(self, payload: bytes) -> Any:
        return self._openzl.DCtx().decompress(payload)[0].content.as_nparray()


PEERS: tuple[type[Peer], ...] = (ZipNN, OpenZL, Blosc2, Zstd)


def available(dtype: DType, report: Callable[[str], None]) -> Iterator[Peer]:
    """Yield the peers that can be used for a dtype, and report why the others cannot."""
    for kind in PEERS:
        try:
            yield kind(dtype)
        except PeerUnavailableError as error:
            report(f"{kind.name}: {error}")


def keep_memory() -> None:
    """Have the C library keep memory that is freed, so that a peer's new result is not made of new pages every time.

    Page faults would take most of the time of those that decode fast.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
