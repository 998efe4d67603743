"""What a call does: compress or not, and in pieces of which size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zipccl.codec.wire import BLOCK_COUNT, DType
from zipccl.config import Config
from zipccl.errors import ArgumentError

_MIN_COMPRESS_NBYTES = 128 << 10
"""Array size from which compressing pays on a network of up to 10 Gbit/s; below, latency decides."""

_MIN_CHUNK_NBYTES = 64 << 10
_MAX_CHUNK_NBYTES = 1 << 20
_CHUNKS = 16
"""Pieces that an array is cut into, if they are not too small or too large for the caches: more pieces overlap
better, fewer cost less per piece."""

_SMALL_NBYTES = 64 << 10
"""Bytes over all ranks up to which a reduction gathers everything everywhere: one message time instead of two."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How one call is done.

    Attributes:
        chunk_count: values in a piece, the same on all ranks.
    """

    compress: bool
    chunk_count: int

    def __str__(self) -> str:
        return f"compress={self.compress}, pieces of {self.chunk_count}"


class Strategy:
    """Decides the same on all ranks: only from what they have in common."""

    def __init__(self, nodes: Sequence[int], config: Config, *, in_pieces: bool = True) -> None:
        """Make a strategy.

        Args:
            in_pieces: cut arrays for the caches, and to overlap coding with the wire; a device takes whole ones, since
                its kernels start late and ranks exchange sizes for each piece.
        """
        self._size = len(nodes)
        self._across_nodes = len(set(nodes)) > 1
        self._config = config
        self._in_pieces = in_pieces

    def plan(self, compress: str, dtype: DType, count: int) -> Plan:
        """Decide on a call that moves count values, or at most so many, between each two ranks.

        Raises:
            ArgumentError: compress is not one of its values.
        """
        nbytes = count * dtype.itemsize
        if compress == "auto":
            # Inside a node, shared memory is faster than the codec.
            compressed = dtype.is_float and self._across_nodes and nbytes >= _MIN_COMPRESS_NBYTES
        elif compress in ("always", "never"):
            compressed = dtype.is_float and compress == "always"
        else:
            raise ArgumentError(f'compress is {compress!r}; expected "auto", "always" or "never"')
        if self._in_pieces:
            piece_nbytes = min(max(nbytes // _CHUNKS, _MIN_CHUNK_NBYTES), _MAX_CHUNK_NBYTES)
        else:
            piece_nbytes = nbytes + dtype.block_nbytes
        blocks = (self._config.chunk_nbytes or piece_nbytes) // dtype.block_nbytes
        return Plan(compressed, max(blocks, 1) * BLOCK_COUNT)

    def gathers(self, nbytes: int) -> bool:
        """Tell whether an uncompressed reduction of nbytes bytes a rank gathers everything everywhere."""
        return nbytes * self._size <= _SMALL_NBYTES
