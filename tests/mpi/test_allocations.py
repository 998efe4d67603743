"""In steady state a call allocates no memory for data: buffers come from the pool, results go to out."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.mpi.launched import launch

CC = os.environ.get("CC", "cc")

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or not shutil.which(CC), reason="needs a C compiler and glibc"
)

PROGRAM = """
import ctypes
import sys

import ml_dtypes
import numpy as np

import zipccl

COUNT = 1 << 19
counter = ctypes.c_long.in_dll(ctypes.CDLL(None), "large_allocations")
with zipccl.init(timeout=60) as comm:
    rng = np.random.default_rng(comm.rank)
    x = rng.standard_normal(comm.size * COUNT).astype(ml_dtypes.bfloat16)
    same, gathered, shard = np.empty_like(x), np.empty(comm.size * x.size, x.dtype), np.empty(COUNT, x.dtype)
    for compress in ("always", "never"):
        calls = {
            "all_reduce": lambda: comm.all_reduce(x, out=same, compress=compress),
            "reduce_scatter": lambda: comm.reduce_scatter(x, out=shard, compress=compress),
            "all_gather": lambda: comm.all_gather(x, out=gathered, compress=compress),
            "all_to_all": lambda: comm.all_to_all(x, out=same, compress=compress),
            "broadcast": lambda: comm.broadcast(x, out=same, compress=compress),
        }
        for name, call in calls.items():
            for _ in range(4):
                call()
                comm.barrier()
            before = counter.value
            for _ in range(6):
                call()
                comm.barrier()
            print(f"{name} {compress}: {counter.value - before} allocations on rank {comm.rank}", flush=True)
    before = counter.value
    large = bytearray(1 << 20)
    print(f"counted {counter.value - before} of 1 on rank {comm.rank}", flush=True)
"""


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("counter") / "count_allocations.so"
    source = Path(__file__).parent / "count_allocations.c"
    subprocess.run([CC, "-O1", "-shared", "-fPIC", source, "-o", library], check=True)
    return library


@pytest.mark.parametrize("threads", ["1", "2"])
def test_steady_state_allocates_nothing(counter: Path, threads: str) -> None:
    environment = {"LD_PRELOAD": str(counter), "ZIPCCL_NUM_THREADS": threads, "ZIPCCL_CHUNK_NBYTES": str(4 << 20)}
    finished = launch(2, ["-c", PROGRAM], timeout=120, environment=environment)
    assert finished.status == 0, finished.output
    counts = re.findall(r"(\w+ \w+): (\d+) allocations on rank \d", finished.output)
    assert len(counts) == 20, finished.output
    assert [count for count in counts if count[1] != "0"] == []
    assert finished.output.count("counted 1 of 1") == 2, finished.output
