"""Threads change no byte and no refusal, and survive a fork."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.unit import codecs
from tests.unit.codecs import Bytes, as_bytes, decode, encode, every_dtype
from zipccl.codec import wire
from zipccl.codec.base import SUM, accumulator_itemsize
from zipccl.codec.native import NativeCodec
from zipccl.codec.wire import DType
from zipccl.config import codec_threads
from zipccl.errors import ArgumentError, CorruptPayloadError

BFLOAT16 = wire.dtype_named("bfloat16")
ALONE = NativeCodec()
TEAMS = [NativeCodec(threads=threads) for threads in (2, 3, 4, 5)]
KINDS = ["gaussian"] * 9 + ["zero", "constant", "falling", "sparse", "sparse", "escaping", "without low planes"]


def large(dtype: DType, kinds: list[str] = KINDS, tail: int = 7) -> Bytes:
    """Return enough values for five threads: stretches of blocks of each kind, and some after the last block."""
    stretch = 5 * (1 << 20) // (dtype.block_nbytes * 4 * len(kinds)) + 1
    once = codecs.mixture([kind for kind in kinds for _ in range(4)], dtype, 3)
    blocks = once.reshape(len(kinds), 4, dtype.block_nbytes)
    return np.concatenate([np.repeat(blocks, stretch, axis=0).ravel(), codecs.mixture([], dtype, 4, tail)])


@every_dtype
def test_threads_encode_the_same_bytes(dtype: DType) -> None:
    source = large(dtype)
    body = encode(ALONE, dtype, source)
    for team in TEAMS:
        assert np.array_equal(encode(team, dtype, source), body), team.name


@pytest.mark.parametrize("kinds", [["sparse"], ["sparse", "random bits"], ["zero", "random bits"], ["random bits"]])
def test_threads_encode_the_same_bytes_whatever_the_room(kinds: list[str]) -> None:
    source = large(BFLOAT16, kinds)
    body = encode(ALONE, BFLOAT16, source)
    for team in TEAMS:
        assert np.array_equal(encode(team, BFLOAT16, source), body), team.name


@every_dtype
def test_threads_decode_the_same_values(dtype: DType) -> None:
    source = large(dtype)
    body = encode(ALONE, dtype, source)
    for team in TEAMS:
        assert np.array_equal(decode(team, dtype, body, source.size // dtype.itemsize), source), team.name


@every_dtype
def test_threads_reduce_and_pack_the_same(dtype: DType) -> None:
    source = large(dtype)
    count = source.size // dtype.itemsize
    body = encode(ALONE, dtype, source)
    results = []
    for codec in (ALONE, TEAMS[1]):
        accumulator = np.full(count * accumulator_itemsize(dtype), 0x40, np.uint8)
        packed = np.zeros_like(source)
        packed_body = np.zeros(wire.body_nbytes_bound(count, dtype), np.uint8)
        codec.decode_reduce(dtype, SUM, body.ctypes.data, body.size, accumulator.ctypes.data, count)
        nbytes = codec.pack_encode(
            dtype, accumulator.ctypes.data, count, 3, packed.ctypes.data, packed_body.ctypes.data
        )
        results.append((accumulator, packed, packed_body[:nbytes]))
    for alone, shared in zip(*results, strict=True):
        assert np.array_equal(alone, shared)


@pytest.mark.parametrize("seed", range(20))
def test_threads_refuse_the_same_bodies_for_the_same_reason(seed: int) -> None:
    rng = np.random.default_rng(seed)
    source = large(BFLOAT16)
    count = source.size // 2
    body = encode(ALONE, BFLOAT16, source)
    layout = wire.BlocksLayout.of(count, BFLOAT16)
    # Anywhere in the head, and tile ends between two threads' shares again and again.
    at = int(rng.integers(layout.static_offset))
    if seed % 2:
        tile = layout.tiles * int(rng.integers(1, 5)) // 5
        at = (tile - 1) * wire.TILE_ENTRY_NBYTES + int(rng.integers(16))
    body[at] ^= rng.integers(1, 256)

    def outcome(codec: NativeCodec) -> str:
        try:
            return str(decode(codec, BFLOAT16, body, count).tobytes().__hash__())
        except CorruptPayloadError as error:
            return str(error)

    expected = outcome(ALONE)
    assert [outcome(team) for team in TEAMS] == [expected] * len(TEAMS)


def test_calls_at_the_same_time_are_right() -> None:
    rng = np.random.default_rng(0)
    sources = [as_bytes(rng.standard_normal(1 << 20).astype(np.float32)) for _ in range(3)]
    dtype = wire.dtype_named("float32")
    expected = [encode(ALONE, dtype, source) for source in sources]
    wrong = []

    def work(source: Bytes, body: Bytes) -> None:
        for _ in range(5):
            if not np.array_equal(encode(TEAMS[0], dtype, source), body):
                wrong.append("encoded")
            if not np.array_equal(decode(TEAMS[0], dtype, body, source.size // 4), source):
                wrong.append("decoded")

    threads = [threading.Thread(target=work, args=pair) for pair in zip(sources, expected, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


FORKING = """
import os, sys
import numpy as np
from zipccl.codec import wire
from zipccl.codec.native import NativeCodec

dtype = wire.dtype_named("float32")
source = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)
codec = NativeCodec(threads=3)

def encoded():
    body = np.zeros(wire.body_nbytes_bound(source.size, dtype), np.uint8)
    return body[: codec.encode_body(dtype, source.ctypes.data, source.size, body.ctypes.data)].tobytes()

before = encoded()
child = os.fork()
if child == 0:
    os._exit(encoded() != before)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or encoded() != before)
"""


def test_a_forked_child_has_threads_of_its_own() -> None:
    root = Path(__file__).parents[2]
    finished = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING], timeout=60, cwd=root, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr


def test_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("ZIPCCL_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
    assert codec_threads() == 12
    assert codec_threads(local_size=5) == 2
    assert codec_threads(local_size=64) == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert codec_threads() == 3
    assert codec_threads(local_size=2) == 6
    monkeypatch.setenv("ZIPCCL_NUM_THREADS", "7")
    assert codec_threads() == codec_threads(local_size=2) == 7
    for wrong in ("0", "-1", "two"):
        monkeypatch.setenv("ZIPCCL_NUM_THREADS", wrong)
        with pytest.raises(ArgumentError, match=r"ZIPCCL_NUM_THREADS is '?(0|-1|two)'?; expected a number of threads"):
            codec_threads()
