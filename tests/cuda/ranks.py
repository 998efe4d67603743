"""The program of a rank in ``tools/gpu_check``: collectives on one device that all ranks share, by NCCL.

Usage: python -m tests.cuda.ranks KIND FILE; rank 0 writes what was measured to the file.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import zipccl
from tests.simt import kind as simt
from tests.simt.array import SimtArray
from tests.simt.bodies.body_collectives import CALLS, Compressing
from tests.tensors import BFLOAT16, assert_same_bits, make
from zipccl import devices

DTYPES = {"cuda": [BFLOAT16, np.float32, np.int32], "simt": [BFLOAT16]}
ROWS = {"cuda": [0, 1, 700, 100_000], "simt": [300]}
TIMED_COUNT = {"cuda": 8 << 20, "simt": 1 << 12}
TIMED = {
    "all_gather": lambda comm, x: comm.all_gather(x),
    "all_to_all": lambda comm, x: comm.all_to_all(x),
    "reduce_scatter": lambda comm, x: comm.reduce_scatter(x),
    "all_reduce": lambda comm, x: comm.all_reduce(x),
}
LINKS = {"cuda": "NCCL", "simt": "a stand-in for NCCL"}
ROUNDS = {"cuda": 5, "simt": 1}

# NCCL refuses two ranks on one GPU of one host; as hosts of their own, they use sockets.
NCCL = {
    "NCCL_HOSTID": f"zipccl-{MPI.COMM_WORLD.rank}",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    "ZIPCCL_SHARE_GPU": "1",
}


def main() -> None:
    kind, path = sys.argv[1:]
    os.environ.update(NCCL)
    if kind == "simt":
        simt.register()
    with zipccl.init(device=f"{kind}:0", timeout=40) as comm:
        calls = sum(check(comm, kind, dtype, rows) for dtype in DTYPES[kind] for rows in ROWS[kind])
        rows = [measure(comm, kind, name, call) for name, call in TIMED.items()]
        if comm.rank == 0:
            links = LINKS[kind] if devices.kind_named(kind).nccl else "host memory, for CuPy has no NCCL"
            Path(path).write_text(json.dumps({"calls": calls, "links": links, "rows": rows}))


def check(comm: zipccl.Communicator, kind: str, dtype: Any, rows: int) -> int:
    """Compare all collectives on the device with those on CPU memory, compressed and not; return how many calls."""
    for call in CALLS:
        expected = call(Compressing(comm, "never"), lambda shape: make(dtype, shape, comm.rank), rows)
        for compress in ("always", "never"):
            data = call(Compressing(comm, compress), lambda shape: place(kind, make(dtype, shape, comm.rank)), rows)
            try:
                assert_same_bits(fetch(data), expected)
            except AssertionError as error:
                raise AssertionError(f"{call.__name__}, {np.dtype(dtype)}, {rows} rows, {compress}: {error}") from None
    return 2 * len(CALLS)


def measure(comm: zipccl.Communicator, kind: str, name: str, call: Callable[..., Any]) -> dict[str, Any]:
    """Measure a collective of gradient-like bf16 values, compressed and not, in turns."""
    x = place(kind, make(BFLOAT16, (TIMED_COUNT[kind] // comm.size * comm.size,), comm.rank))
    seconds: dict[str, list[float]] = {"always": [], "never": []}
    for _ in range(ROUNDS[kind] + 1):
        for compress, taken in seconds.items():
            comm.barrier()
            begin = time.perf_counter()
            fetch(call(Compressing(comm, compress), x)[:1])  # waits for the device
            taken.append(time.perf_counter() - begin)
    always, never = (float(np.median(taken[1:])) for taken in seconds.values())
    return {
        "ranks": comm.size,
        "collective": name,
        "nbytes": int(np.prod(x.shape)) * BFLOAT16.itemsize,
        "never ms": 1e3 * never,
        "always ms": 1e3 * always,
    }


def place(kind: str, values: Any) -> Any:
    """Copy a NumPy array to the device."""
    if kind == "simt":
        return SimtArray.of(values)
    import cupy

    try:
        return cupy.asarray(values)
    except (TypeError, ValueError):  # this CuPy knows no bfloat16
        import torch

        return torch.from_numpy(values.view(np.int16)).cuda().view(torch.bfloat16)


def fetch(array: Any) -> Any:
    """Copy an array from the device."""
    if hasattr(array, "get"):
        return array.get()
    import torch

    return array.view(torch.int16).cpu().numpy().view(BFLOAT16)


if __name__ == "__main__":
    main()
