"""The steps of ``tools/gpu_check``. Each runs in a process of its own and returns what to tell, or raises."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.cuda.nvrtc import missing
from tests.cuda.on_device import open_device
from tests.unit import codecs
from zipccl.codec import base, wire
from zipccl.codec.cuda import CudaCodec, DecodePart, EncodePart
from zipccl.codec.native import NativeCodec
from zipccl.codec.wire import DType, dtype_named
from zipccl.devices import modules
from zipccl.devices.base import Device, Memory
from zipccl.launch import run_ranks

ROOT = Path(__file__).parents[2]
BFLOAT16 = dtype_named("bfloat16")

_SPEED_NBYTES = {"cuda": [64 << 10 << 2 * step for step in range(8)], "simt": [64 << 10]}
_ROUNDS = 5
_ROUND_SECONDS = {"cuda": 0.02, "simt": 0.0}
_SAMPLE_BLOCKS = 4096

# Of the codec's tests, those that one core can run thread by thread in a few seconds.
_SIMT_TESTS = "bfloat16 and (test_tiles_survive or test_truncated_bodies or test_every_alignment)"
_SANITIZER_TESTS = "(bfloat16 or float32) and (test_tiles_survive or test_truncated_bodies)"


class SkippedError(Exception):
    """The step does not apply here; the text says why."""


@dataclass
class Result:
    """What a step found.

    Attributes:
        summary: a line.
        rows: of a table, each with the same keys.
        details: for the JSON.
    """

    summary: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)


def device(kind: str) -> Result:
    """Tell what there is: the device, and versions."""
    details: dict[str, Any] = {"python": sys.version.split()[0]}
    for name in ("zipccl", "numpy", "mpi4py", "cupy-cuda12x", "cupy-cuda13x", "nvidia-nccl-cu12", "nvidia-nccl-cu13"):
        try:
            details[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if kind == "simt":
        return Result(f"the kernels on this CPU, {os.cpu_count()} cores", details=details)
    import cupy

    with cupy.cuda.Device(0):
        properties = cupy.cuda.runtime.getDeviceProperties(0)
        details |= {
            "name": properties["name"].decode(),
            "compute_capability": cupy.cuda.Device(0).compute_capability,
            "multiprocessors": properties["multiProcessorCount"],
            "memory_nbytes": properties["totalGlobalMem"],
            "driver": cupy.cuda.runtime.driverGetVersion(),
            "runtime": cupy.cuda.runtime.runtimeGetVersion(),
            "nvrtc": ".".join(map(str, cupy.cuda.nvrtc.getVersion())),
        }
    try:
        from cupy.cuda import nccl

        details["nccl"] = nccl.get_version()
    except ImportError as error:
        details["nccl"] = f"none: {error}"
    memory = details["memory_nbytes"] >> 30
    return Result(
        f"{details['name']}, {memory} GiB, driver {details['driver']}, NCCL {details['nccl']}", details=details
    )


def compile_modules(kind: str) -> Result:
    """Compile the kernels for all element types, unless the cache has them."""
    if reason := missing():
        raise SkippedError(reason)
    capability = 90
    if kind == "cuda":
        import cupy

        capability = int(cupy.cuda.Device(0).compute_capability)

    def compile_one(dtype: DType) -> dict[str, Any]:
        begin = time.perf_counter()
        path = modules.cubin_file(dtype, capability)
        return {"dtype": dtype.name, "seconds": time.perf_counter() - begin, "nbytes": path.stat().st_size}

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        compiled = list(pool.map(compile_one, wire.DTYPES))
    slowest = max(compiled, key=lambda one: one["seconds"])
    return Result(
        f"{len(compiled)} modules for sm_{capability}, the slowest {slowest['dtype']} in {slowest['seconds']:.1f} s",
        details={"modules": compiled},
    )


def codec(kind: str) -> Result:
    """Run the codecs' tests with the device's codec among them: against the reference, of all types and kinds."""
    return Result(_run_tests(kind, [], _SIMT_TESTS if kind == "simt" else None))


def sanitizer(kind: str) -> Result:
    """Run some of them under compute-sanitizer."""
    if kind == "simt":
        raise SkippedError("a tool for GPUs; the SIMT runs check accesses themselves")
    path = shutil.which("compute-sanitizer", path=f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin")
    if path is None:
        raise SkippedError("compute-sanitizer is not installed")
    told = []
    for tool in ("memcheck", "racecheck", "synccheck"):
        told.append(f"{tool}: {_run_tests(kind, [path, '--tool', tool, '--error-exitcode', '9'], _SANITIZER_TESTS)}")
    return Result("; ".join(told))


def _run_tests(kind: str, prefix: list[str], selected: str | None) -> str:
    files = [f"tests/unit/test_codec{suffix}.py" for suffix in ("", "_hostile", "_reductions")]
    command = [*prefix, sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files]
    if selected:
        command += ["-k", selected]
    environment = os.environ | {"ZIPCCL_TEST_DEVICE": kind}
    run = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    print(run.stdout)
    if run.returncode:
        raise AssertionError(f"{' '.join(command)} ended with status {run.returncode}")
    return run.stdout.strip().splitlines()[-1]


def speed(kind: str) -> Result:
    """Encode and decode bf16 values like a gradient's, of several sizes; check every bit and measure."""
    gpu = open_device(kind)
    on_gpu = CudaCodec(gpu)
    sample = codecs.mixture(["gaussian"] * _SAMPLE_BLOCKS, BFLOAT16, seed=1)
    rows = []
    for nbytes in _SPEED_NBYTES[kind]:
        source = np.resize(sample, nbytes)
        try:
            rows.append(_measure(gpu, on_gpu, source, _ROUND_SECONDS[kind]))
        except MemoryError as error:
            print(f"no memory for {nbytes} bytes: {error}")
    largest = rows[-1]
    rates = ", ".join(f"{name} {largest[f'{name} GB/s']:.4g} GB/s" for name in ("encode", "decode", "copy"))
    return Result(f"{largest['nbytes'] >> 10} KiB: {rates}", rows)


def _measure(gpu: Device, on_gpu: CudaCodec, source: codecs.Bytes, round_seconds: float) -> dict[str, Any]:
    count = source.size // BFLOAT16.itemsize
    bound = wire.body_nbytes_bound(count, BFLOAT16)
    expected = np.empty(bound, np.uint8)
    nbytes = NativeCodec().encode_body(BFLOAT16, source.ctypes.data, count, expected.ctypes.data)

    values, body, other = (gpu.allocate(size, 0) for size in (source.size, bound, source.size))
    accumulator = gpu.allocate(count * base.accumulator_itemsize(BFLOAT16), 0)
    gpu.copy(values.address, source.ctypes.data, source.size, 0)

    assert on_gpu.encode_parts(BFLOAT16, [EncodePart(values.address, count, body.address)], 0).get() == [nbytes]
    _assert_holds(gpu, body, expected[:nbytes], "encode")
    decode_part = DecodePart(body.address, nbytes, other.address, count)
    on_gpu.decode_parts(BFLOAT16, [decode_part], 0).check()
    _assert_holds(gpu, other, source, "decode")
    wide = np.empty(accumulator.nbytes, np.uint8)
    NativeCodec().widen(BFLOAT16, source.ctypes.data, wide.ctypes.data, count)
    reduce_part = DecodePart(body.address, nbytes, accumulator.address, count)
    on_gpu.decode_reduce_parts(BFLOAT16, base.SET, [reduce_part], 0).check()
    _assert_holds(gpu, accumulator, wide, "decode_reduce")

    calls: dict[str, Callable[[], Any]] = {
        "copy": lambda: gpu.copy(other.address, values.address, source.size, 0),
        "encode": lambda: on_gpu.encode_parts(BFLOAT16, [EncodePart(values.address, count, body.address)], 0),
        "decode": lambda: on_gpu.decode_parts(BFLOAT16, [decode_part], 0),
        "decode_reduce": lambda: on_gpu.decode_reduce_parts(BFLOAT16, base.SUM, [reduce_part], 0),
    }
    row: dict[str, Any] = {"nbytes": source.size, "ratio": source.size / nbytes}
    for name, call in calls.items():
        row[f"{name} GB/s"] = source.size / _seconds(lambda: gpu.synchronize(0), call, round_seconds) / 1e9
    if gpu.kind == "cuda":
        row |= _nvcomp_ans(source, round_seconds)
    return row


def _assert_holds(gpu: Device, memory: Memory, expected: codecs.Bytes, what: str) -> None:
    found = np.empty_like(expected)
    gpu.copy(found.ctypes.data, memory.address, found.size, 0)
    gpu.synchronize(0)
    different = np.flatnonzero(found != expected)
    assert different.size == 0, f"{what}: {different.size} of {found.size} bytes differ, the first at {different[0]}"


def _seconds(wait: Callable[[], Any], call: Callable[[], Any], round_seconds: float) -> float:
    """Return the median of what one call takes, of many that follow one another without the host waiting."""
    call()
    wait()
    begin = time.perf_counter()
    call()
    wait()
    repeats = max(1, min(1000, int(round_seconds / (time.perf_counter() - begin))))
    rounds = []
    for _ in range(_ROUNDS if round_seconds else 1):
        begin = time.perf_counter()
        for _ in range(repeats):
            call()
        wait()
        rounds.append((time.perf_counter() - begin) / repeats)
    return float(np.median(rounds))


def _nvcomp_ans(source: codecs.Bytes, round_seconds: float) -> dict[str, Any]:
    """Measure nvCOMP's ANS on the same values, where it is installed (nvidia-nvcomp-cu12) and works."""
    try:
        import cupy
        from nvidia import nvcomp

        ans = nvcomp.Codec(algorithm="ANS")
        values = nvcomp.as_array(cupy.asarray(source))
        encoded = ans.encode(values)
        decoded = cupy.asarray(ans.decode(encoded)).view(np.uint8).ravel()
        assert np.array_equal(decoded.get(), source), "its decoder gives other bytes"
        # It uses a stream of its own.
        wait = cupy.cuda.Device().synchronize
        return {
            "ANS ratio": source.size / encoded.buffer_size,
            "ANS encode GB/s": source.size / _seconds(wait, lambda: ans.encode(values), round_seconds) / 1e9,
            "ANS decode GB/s": source.size / _seconds(wait, lambda: ans.decode(encoded), round_seconds) / 1e9,
        }
    except Exception as error:
        print(f"nvCOMP's ANS is not measured: {error}")
        return {}


def collectives(kind: str) -> Result:
    """Run the collectives on 2 and 4 ranks that share the device, and compare them with uncompressed ones."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        for ranks in (2, 4):
            path = Path(directory, f"{ranks}.json")
            status = run_ranks([sys.executable, "-m", "tests.cuda.ranks", kind, str(path)], ranks, timeout=50)
            if status:
                raise AssertionError(f"{ranks} ranks ended with status {status}")
            found.append(json.loads(path.read_text()))
    calls = sum(one["calls"] for one in found)
    return Result(
        f"{calls} calls on 2 and 4 ranks by {found[0]['links']}: bits as on the CPU, compressed and not",
        [row for one in found for row in one["rows"]],
    )


STEPS: dict[str, tuple[Callable[[str], Result], float]] = {
    "device": (device, 20),
    "modules": (compile_modules, 60),
    "codec": (codec, 150),
    "speed": (speed, 90),
    "sanitizer": (sanitizer, 60),
    "collectives": (collectives, 100),
}
"""Each step and the seconds that it may take: less than 8 minutes in all."""
