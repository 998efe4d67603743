"""What a payload's directory tells of its blocks, without decoding them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zipccl.codec import wire
from zipccl.codec.reference import part_sizes
from zipccl.errors import CorruptPayloadError


@dataclass(frozen=True)
class Directory:
    """The entries of a body in the blocks layout, one for each block.

    Attributes:
        nbytes: what tile ends, entries and their padding take.
        codes, masks: as stored; what they mean is drawn in wire.py.
        block_nbytes: size of each block's static and variable part together.
        tail_nbytes: size of the values behind the last block.
    """

    nbytes: int
    codes: NDArray[np.uint8]
    masks: NDArray[np.uint8]
    block_nbytes: NDArray[np.int64]
    tail_nbytes: int

    @classmethod
    def read(cls, body: NDArray[np.uint8], count: int, dtype: wire.DType) -> Directory:
        """Read the directory of a body.

        Raises:
            CorruptPayloadError: it is not one that an encoder writes, or the body does not have the size it tells.
        """
        layout = wire.BlocksLayout.of(count, dtype)
        if body.size < layout.static_offset:
            raise CorruptPayloadError(f"body of {body.size} bytes ends before its directory")
        entries = body[layout.directory_offset :][: layout.blocks * dtype.directory_entry_nbytes]
        entries = entries.reshape(dtype.directory_entry_nbytes, layout.blocks)
        absent = np.zeros(layout.blocks, np.uint8)
        code, base, mask = (entries[i] if i < len(entries) else absent for i in range(3))
        static_nbytes, variable_nbytes = part_sizes(code, base, mask, dtype)
        block_nbytes = static_nbytes + variable_nbytes
        expected = layout.static_offset + int(block_nbytes.sum()) + layout.tail_nbytes
        if body.size != expected:
            raise CorruptPayloadError(f"body has {body.size} bytes; its directory tells {expected}")
        return cls(layout.static_offset, code.copy(), mask.copy(), block_nbytes, layout.tail_nbytes)

    def table_of(self, first_code: int, codes_of_a_table: int) -> NDArray[np.int64]:
        """Return each block's table, where its kind has one code, or a run of them, for each table; else -1."""
        table = (self.codes.astype(np.int64) - first_code) // codes_of_a_table
        return np.where((table >= 0) & (table < len(wire.TABLES)), table, -1)
