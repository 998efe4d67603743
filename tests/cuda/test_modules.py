"""Compiling modules without a device, and the cache of what was compiled."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from tests.cuda.nvrtc import needs_nvrtc
from zipccl.codec.wire import dtype_named
from zipccl.devices import modules
from zipccl.errors import DeviceError

pytestmark = needs_nvrtc

BFLOAT16 = dtype_named("bfloat16")
SOURCES = {
    "double.cu": """
#include "one.cuh"
extern "C" __global__ void __launch_bounds__(128) twice(unsigned long long address) {
    reinterpret_cast<unsigned*>(address)[threadIdx.x] *= 2 * one();
}
""",
    "one.cuh": """
#pragma once
#ifndef ZIPCCL_DTYPE_BFLOAT16
#error the element type is missing
#endif
__device__ unsigned one() { return 1; }
""",
    "triple.cu": """
#include "one.cuh"
extern "C" __global__ void thrice(unsigned long long address) {
    reinterpret_cast<unsigned*>(address)[threadIdx.x] *= 3 * one();
}
""",
}


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZIPCCL_CACHE_DIR", str(tmp_path))
    return tmp_path / "cubin"


def cubin_file() -> Path:
    return modules.cubin_file(BFLOAT16, 90, SOURCES)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Return the options of each compilation from now on."""
    seen: list[tuple[str, ...]] = []
    compile_module = modules.compile_module

    def noting(sources, options):  # type: ignore[no-untyped-def]
        seen.append(options)
        return compile_module(sources, options)

    monkeypatch.setattr(modules, "compile_module", noting)
    return seen


def test_a_module_holds_all_kernels_and_is_a_whole_file() -> None:
    cubin = cubin_file().read_bytes()
    assert cubin.startswith(b"\x7fELF")
    assert b".text.twice" in cubin
    assert b".text.thrice" in cubin
    program_headers_end = int.from_bytes(cubin[32:40], "little") + 56 * int.from_bytes(cubin[56:58], "little")
    assert len(cubin) == program_headers_end


def test_what_was_compiled_is_kept(directory: Path, compilations: list[tuple[str, ...]]) -> None:
    path = cubin_file()
    assert path.parent == directory
    assert cubin_file() == path
    assert len(compilations) == 1


def test_every_source_option_and_architecture_counts(compilations: list[tuple[str, ...]]) -> None:
    changed = SOURCES | {"one.cuh": SOURCES["one.cuh"].replace("return 1", "return 5")}
    paths = [cubin_file(), modules.cubin_file(BFLOAT16, 90, changed), modules.cubin_file(BFLOAT16, 80, SOURCES)]
    assert len(set(paths)) == 3
    assert len({path.read_bytes() for path in paths}) == 3
    assert len(compilations) == 3


@pytest.mark.parametrize("damage", [b"", b"\x7fELF", None], ids=["empty", "cut off", "a bit"])
def test_damage_is_noticed_and_mended(damage: bytes | None, compilations: list[tuple[str, ...]]) -> None:
    path = cubin_file()
    content = path.read_bytes()
    path.write_bytes(content[:-100] + bytes([content[-100] ^ 1]) + content[-99:] if damage is None else damage)
    assert cubin_file() == path
    assert path.read_bytes() == content
    assert len(compilations) == 2


def test_a_cache_that_cannot_be_written_stops_nobody(directory: Path) -> None:
    directory.write_text("a file where the folder should be")
    path = cubin_file()
    assert path.parent != directory
    assert path.read_bytes().startswith(b"\x7fELF")
    assert directory.is_file()


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ZIPCCL_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert cubin_file().read_bytes().startswith(b"\x7fELF")


def _compile_in(directory: str) -> bytes:
    os.environ["ZIPCCL_CACHE_DIR"] = directory
    return cubin_file().read_bytes()


def test_many_at_once(directory: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        contents = pool.map(_compile_in, [str(directory.parent)] * 8, chunksize=1)
    assert len(set(contents)) == 1
    assert [path.suffix for path in directory.iterdir()] == [".cubin"], "something half done was left"


def test_an_error_in_the_sources_says_where() -> None:
    with pytest.raises(DeviceError, match=r"wrong\.cu\(2\): error: identifier \"nothing\" is undefined"):
        modules.cubin_file(BFLOAT16, 90, {"wrong.cu": "\n__device__ int wrong() { return nothing; }"})


def test_the_architecture_for_a_device() -> None:
    assert modules.cubin_architecture(80) == 80
    assert modules.cubin_architecture(90) == 90
    assert modules.cubin_architecture(99) == 90, "code for 9.0 runs on every 9.x"
    with pytest.raises(DeviceError, match=r"NVRTC \d+\.\d+ cannot compile .* compute capability 999\.0"):
        modules.cubin_architecture(9990)
