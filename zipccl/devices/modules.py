"""The kernels' compiled code: a module for each element type, made by NVRTC and kept for later processes.

A module is all of ``cuda_kernels/*.cu`` as one translation unit, compiled with ``-DZIPCCL_DTYPE_<NAME>`` to a cubin.
CuPy's RawModule loads it from its file, so that no option of CuPy's reaches the compiler: CuPy appends
``-ftz=true`` to what it compiles itself, and float additions would lose their subnormal results.

Many processes may start at once. Each compiles what it does not find and publishes it by renaming, so a reader sees
whole files only; the name holds a digest of the content, so a damaged one is noticed and made anew.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from zipccl import config
from zipccl.codec.wire import DType
from zipccl.errors import DeviceError

KERNELS = Path(__file__).parents[1] / "cuda_kernels"

_ELF_PROGRAM_HEADER_NBYTES = 56


class Compiled(NamedTuple):
    """What NVRTC makes of a translation unit."""

    cubin: bytes
    ptx: str


def kernel_sources() -> dict[str, str]:
    """Return the text of every file of ``cuda_kernels/`` by its name."""
    return {path.name: path.read_text() for path in sorted(KERNELS.iterdir()) if path.suffix in (".cu", ".cuh")}


def compile_options(dtype: DType, architecture: int) -> tuple[str, ...]:
    """Return NVRTC's options for a module.

    Args:
        architecture: a compute capability without its point, such as 90.
    """
    # As in setup.py: a product and a sum are rounded each for itself, as the native codec's are.
    return ("-std=c++17", "-fmad=false", f"-DZIPCCL_DTYPE_{dtype.name.upper()}", f"-arch=sm_{architecture}")


def compile_module(sources: Mapping[str, str], options: Sequence[str]) -> Compiled:
    """Compile all ``.cu`` files among the sources as one translation unit; no device is needed.

    Raises:
        ImportError: CuPy is not installed.
        DeviceError: the compiler is missing or rejects the sources.
    """
    nvrtc = _nvrtc()
    unit = "".join(f'#include "{name}"\n' for name in sources if name.endswith(".cu"))
    texts, names = [text.encode() for text in sources.values()], [name.encode() for name in sources]
    program = nvrtc.createProgram(unit, "zipccl.cu", texts, names)
    try:
        try:
            nvrtc.compileProgram(program, tuple(options))
        except nvrtc.NVRTCError as error:
            log = nvrtc.getProgramLog(program)
            raise DeviceError(f"NVRTC cannot compile the kernels with {' '.join(options)}: {error}\n{log}") from error
        return Compiled(_whole(nvrtc.getCUBIN(program)), nvrtc.getPTX(program).decode())
    finally:
        nvrtc.destroyProgram(program)


def cubin_architecture(capability: int) -> int:
    """Return the architecture to compile for so that the code runs on a device of a compute capability, such as 90.

    That is the capability itself, or an older one of the same generation where this NVRTC does not know it.

    Raises:
        DeviceError: this NVRTC knows none.
    """
    nvrtc = _nvrtc()
    known = [known for known in nvrtc.getSupportedArchs() if known <= capability and known // 10 == capability // 10]
    if not known:
        version = ".".join(map(str, nvrtc.getVersion()))
        raise DeviceError(
            f"NVRTC {version} cannot compile for a device of compute capability {capability / 10}; "
            'install the one for its CUDA version: pip install "zipccl[cuda13]" or "zipccl[cuda12]"'
        )
    return max(known)


def cubin_file(dtype: DType, capability: int, sources: Mapping[str, str] | None = None) -> Path:
    """Return the file that holds the module for an element type and a device, compiling it if there is none yet.

    It is in the user's cache, or in a folder of this process where that cannot be written.

    Args:
        capability: the device's compute capability without its point, such as 90.
        sources: those of ``kernel_sources()`` if not given.

    Raises:
        ImportError: CuPy is not installed.
        DeviceError: the module cannot be compiled.
    """
    sources = kernel_sources() if sources is None else sources
    options = compile_options(dtype, cubin_architecture(capability))
    key = _digest(repr((_nvrtc().getVersion(), options, sorted(sources.items()))).encode())
    shared = config.cache_directory()
    directory = shared / "cubin" if shared else Path(_own_directory().name)
    path = _find(directory, key)
    if path is not None:
        return path
    cubin = compile_module(sources, options).cubin
    name = f"{key}-{_digest(cubin)}.cubin"
    try:
        return _publish(directory, name, cubin)
    except OSError:
        return _publish(Path(_own_directory().name), name, cubin)


def _nvrtc() -> Any:
    """Return CuPy's bindings of NVRTC, which need no device.

    Raises:
        ImportError: CuPy is not installed.
        DeviceError: CuPy finds no NVRTC.
    """
    from cupy.cuda import nvrtc

    try:
        nvrtc.getVersion()
    except Exception as error:
        raise DeviceError(
            f"CuPy finds no NVRTC, which compiles the kernels: {error}; install a CUDA toolkit, "
            'or CuPy 14 and NVRTC\'s wheel: pip install -U "zipccl[cuda12]" or "zipccl[cuda13]"'
        ) from error
    return nvrtc


def _whole(cubin: bytes) -> bytes:
    """Return a cubin with the last byte that CuPy takes off, as if it were the zero that ends a text.

    An ELF file of this kind ends with its program headers, and the last byte is of an alignment's high bits: zero.
    """
    offset, count = int.from_bytes(cubin[32:40], "little"), int.from_bytes(cubin[56:58], "little")
    missing = offset + count * _ELF_PROGRAM_HEADER_NBYTES - len(cubin)
    return cubin + b"\0" if missing == 1 else cubin


def _find(directory: Path, key: str) -> Path | None:
    """Return an undamaged file of that key."""
    with suppress(OSError):
        for path in directory.glob(f"{key}-*.cubin"):
            if path.name == f"{key}-{_digest(path.read_bytes())}.cubin":
                return path
    return None


def _publish(directory: Path, name: str, content: bytes) -> Path:
    """Write a file so that others see it whole or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=".", dir=directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        return Path(temporary).replace(directory / name)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


@cache
def _own_directory() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that goes when the process ends."""
    return tempfile.TemporaryDirectory(prefix="zipccl-")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
