"""Averages gradients over ranks, compressed and raw, and proves that the result is the same to the last bit.

Run it with:  mpiexec -n 2 python examples/01_all_reduce.py
"""

from __future__ import annotations

import sys
import zlib

import ml_dtypes
import numpy as np

import zipccl


def main() -> int:
    with zipccl.init() as comm:
        # A gradient of 8 million values, another one on each rank.
        rng = np.random.default_rng(comm.rank)
        gradient = (rng.standard_normal(8 << 20, dtype=np.float32) * 1e-3).astype(ml_dtypes.bfloat16)

        compressed = comm.all_reduce(gradient, op="avg", compress="always")
        record = comm.last
        raw = comm.all_reduce(gradient, op="avg", compress="never")

        same = np.array_equal(compressed.view(np.uint16), raw.view(np.uint16))
        # The sum is defined: in rank order, in fp32, rounded once. So every rank has the same bits.
        digests = comm.all_gather(np.array([zlib.crc32(compressed)]))
        agreed = len(set(digests.tolist())) == 1

        if comm.rank == 0 and record is not None:
            print(f"{comm.size} ranks, {gradient.nbytes >> 20} MiB of {gradient.dtype} each")
            print(f"sent {record.wire_nbytes:,} bytes instead of {record.raw_nbytes:,}: ratio {record.ratio:.3f}")
            print(f"compressed and raw results have the same bits: {same}")
            print(f"all ranks have the same bits: {agreed}")
    return 0 if same and agreed else 1


if __name__ == "__main__":
    sys.exit(main())
