"""A device that runs ``cuda_kernels/`` on the CPU, thread by thread, and checks what the kernels do; see simt.cpp."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zipccl.codec.wire import DType

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "cuda_kernels"

# Unlike the runtime, kernels are compiled for the sanitizer whose calls the runtime answers.
_COMMON = ("-std=c++17", "-O2", "-g", "-fPIC", "-shared", "-ffp-contract=off", "-fno-strict-aliasing")
_KERNEL = (
    "-fsanitize=thread",
    "--param=tsan-instrument-func-entry-exit=0",
    "-Wno-unknown-pragmas",
    "-Wno-tsan",
    "-nostdlib",  # without the sanitizer's library
    "-mpopcnt",  # which without a library is not a call
)
_ALIGNMENT = 256


class SimtError(Exception):
    """A kernel did what it must not do on a GPU."""


def _cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "zipccl" / "simt"


def build(name: str, sources: Sequence[Path], options: Sequence[str], depends: Sequence[Path] = ()) -> Path:
    """Compile sources as one unit to a shared library, unless the cache has it; any number of processes may.

    Args:
        depends: files that the sources include.

    Raises:
        SimtError: the compiler rejects them.
    """
    text = b"".join(path.read_bytes() for path in (*sources, *depends))
    key = hashlib.sha256(repr((options, _COMMON)).encode() + text).hexdigest()[:16]
    library = _cache_directory() / f"{name}-{key}.so"
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=".", dir=library.parent)
    os.close(descriptor)
    command = ["g++", *_COMMON, *options, f"-I{HERE}", f"-I{KERNELS}", "-x", "c++", "-", "-o", temporary]
    unit = "".join(f'#include "{path}"\n' for path in sources)
    done = subprocess.run(command, input=unit, capture_output=True, text=True, check=False)
    if done.returncode:
        Path(temporary).unlink()
        raise SimtError(f"{' '.join(command)}\n{done.stderr}")
    return Path(temporary).replace(library)


@cache
def _runtime() -> ctypes.CDLL:
    path = build("runtime", [HERE / "simt.cpp"], [], [HERE / "simt.hpp"])
    runtime = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    integers = [ctypes.c_uint64] * 2
    runtime.simt_allow.argtypes = integers
    runtime.simt_forbid.argtypes = integers[:1]
    runtime.simt_launch.restype = ctypes.c_char_p
    pointer = ctypes.c_void_p
    runtime.simt_launch.argtypes = [pointer, *integers, pointer, ctypes.c_uint64, pointer, pointer, ctypes.c_int64]
    return runtime


@cache
def load_kernels(sources: tuple[Path, ...], options: tuple[str, ...] = ()) -> ctypes.CDLL:
    """Compile kernels with the header and load them."""
    _runtime()
    depends = [HERE / "simt.hpp", *sorted(KERNELS.glob("*.cuh"))]
    header = ["-include", str(HERE / "simt.hpp")]
    path = build("-".join(source.stem for source in sources), sources, [*_KERNEL, *header, *options], depends)
    return ctypes.CDLL(str(path))


class SimtMemory:
    """Memory that kernels may use until the object goes."""

    def __init__(self, nbytes: int) -> None:
        self._bytes = np.full(nbytes + _ALIGNMENT, 0xA5, np.uint8)
        self.address = -(-self._bytes.ctypes.data // _ALIGNMENT) * _ALIGNMENT
        self.nbytes = nbytes
        _runtime().simt_allow(self.address, nbytes)

    def __del__(self) -> None:
        _runtime().simt_forbid(self.address)


class SimtDevice:
    """The Device protocol, on the CPU. What is put on a stream is done at once.

    Args:
        seed: of the order in which threads run, another one for each launch; by default it is that of their numbers.
        any_memory: whether kernels may use all memory of the process, not only what was allocated here or lent.
    """

    kind = "simt"
    multiprocessors = 2

    def __init__(self, index: int = 0, seed: int | None = None, any_memory: bool = False) -> None:
        self.index = index
        self._seed = seed
        self._any_memory = any_memory

    def allocate(self, nbytes: int, stream: int) -> SimtMemory:  # noqa: ARG002
        return SimtMemory(nbytes)

    def allocate_host(self, nbytes: int) -> SimtMemory:
        return SimtMemory(nbytes)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:  # noqa: ARG002
        ctypes.memmove(target, source, nbytes)

    def fill(self, target: int, byte: int, nbytes: int, stream: int) -> None:  # noqa: ARG002
        ctypes.memset(target, byte, nbytes)

    def launch(
        self,
        kernel: str,
        dtype: DType,
        grid: int,
        block: int,
        arguments: Sequence[int],
        stream: int,  # noqa: ARG002
    ) -> None:
        """Run a kernel.

        Raises:
            SimtError: it did what it must not.
        """
        macro = f"-DZIPCCL_DTYPE_{dtype.name.upper()}"
        self.run(load_kernels(tuple(sorted(KERNELS.glob("*.cu"))), (macro,)), kernel, grid, block, arguments)

    def run(self, module: ctypes.CDLL, kernel: str, grid: int, block: int, arguments: Sequence[int]) -> None:
        """Run a kernel of a module; see ``launch``."""
        shared = (ctypes.c_void_p * 2)()
        module.simt_shared_memory(ctypes.byref(shared, 0), ctypes.byref(shared, ctypes.sizeof(ctypes.c_void_p)))
        values = (ctypes.c_uint64 * max(len(arguments), 1))(*arguments)
        runtime = _runtime()
        runtime.simt_allow_any(int(self._any_memory))
        seed = -1
        if self._seed is not None:
            seed = self._seed
            self._seed += 1
        address = ctypes.cast(module[kernel], ctypes.c_void_p)
        fault = runtime.simt_launch(address, grid, block, values, len(arguments), shared[0], shared[1], seed)
        if fault:
            raise SimtError(f"{kernel}: {_with_source_line(fault.decode())}")

    def synchronize(self, stream: int) -> None:
        pass

    def current_stream(self) -> int:
        return 0

    def check_stream(self, stream: int) -> None:
        pass

    def activate(self) -> None:
        pass

    def record(self, stream: int) -> object:  # noqa: ARG002
        return None

    def done(self, event: object) -> bool:  # noqa: ARG002
        return True

    def wait(self, stream: int, event: object) -> None:
        pass

    @contextmanager
    def lent(self, *memory: tuple[int, int]) -> Iterator[None]:
        """Let kernels use memory, given by address and size, for a while."""
        for address, nbytes in memory:
            _runtime().simt_allow(address, nbytes)
        try:
            yield
        finally:
            for address, _ in memory:
                _runtime().simt_forbid(address)


def _with_source_line(fault: str) -> str:
    """Replace the place in a fault's description, a library and an offset, by the lines of source code."""
    text, at, place = fault.rpartition(" at /")
    library, plus, offset = place.rpartition("+")
    if not (at and plus):
        return fault
    command = ["addr2line", "-i", "-e", f"/{library}", offset]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        return fault
    return f"{text} at {' <- '.join(line.rpartition('/')[2] for line in lines)}"


def array_at(address: int, nbytes: int) -> NDArray[np.uint8]:
    """Return bytes of this process as an array."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
