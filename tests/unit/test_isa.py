"""Code for one instruction set stays in its file, so that a processor without it never meets it."""

from __future__ import annotations

import ast
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
NATIVE = ROOT / "zipccl" / "native"
ISA_FILES = sorted(path.stem for path in NATIVE.glob("avx*.cpp"))
# module.cpp needs nothing of an instruction set either, and is the only one that needs Python's headers.
BASELINE_FILES = sorted({path.stem for path in NATIVE.glob("*.cpp")} - {*ISA_FILES, "module"})
# What the files of an instruction set run before it is known that there is one.
BASELINE_FUNCTIONS = ("supported", "cpu_features", "has_all")

CXX = os.environ.get("CXX", "g++")

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the instruction sets are those of x86-64"),
    pytest.mark.skipif(
        not all(map(shutil.which, (CXX, "objdump", "nm"))), reason="needs a C++ compiler and GNU binutils"
    ),
]


def compile_args() -> list[str]:
    """Return what setup.py compiles with, without running it."""
    for statement in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "COMPILE_ARGS":
            return [str(argument) for argument in ast.literal_eval(statement.value)]
    raise AssertionError("setup.py has no COMPILE_ARGS")


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the object of each file, as setup.py compiles it."""
    return compile_files([*ISA_FILES, *BASELINE_FILES], tmp_path_factory.mktemp("objects"))


def compile_files(names: list[str], folder: Path, *more_arguments: str) -> dict[str, Path]:
    command = [CXX, *compile_args(), *more_arguments, "-fPIC", "-w", "-c"]
    compilers = [subprocess.Popen([*command, NATIVE / f"{name}.cpp"], cwd=folder) for name in names]
    assert [compiler.wait() for compiler in compilers] == [0] * len(names)
    return {name: folder / f"{name}.o" for name in names}


def run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def is_beyond_baseline(code: bytes) -> bool:
    """Return whether an instruction is one that the first x86-64 processors did not have."""
    opcode = code.lstrip(b"\x66\xf2\xf3\x2e\x36\x3e\x26\x64\x65")
    vex_or_evex = opcode[:1] in (b"\xc4", b"\xc5", b"\x62")
    unprefixed = opcode[1:] if opcode[:1] and 0x40 <= opcode[0] < 0x50 else opcode
    # The maps of SSSE3, SSE4, AES, SHA, MOVBE; POPCNT and LZCNT. TZCNT does there what BSF did.
    newer_map = unprefixed[:2] in (b"\x0f\x38", b"\x0f\x3a")
    counts = b"\xf3" in code[:3] and unprefixed[:2] in (b"\x0f\xb8", b"\x0f\xbd")
    return vex_or_evex or newer_map or counts


def functions_beyond_baseline(objfile: Path) -> dict[str, str]:
    """Return the functions with such an instruction, and the first of them in each."""
    found: dict[str, str] = {}
    function = ""
    for line in run("objdump", "--disassemble", "--demangle", "--insn-width=15", objfile).splitlines():
        if start := re.fullmatch(r"[0-9a-f]+ <(.*)>:", line):
            function = start[1]
            continue
        instruction = re.fullmatch(r" +[0-9a-f]+:\t((?:[0-9a-f]{2} )+) *\t(.*)", line)
        if instruction and is_beyond_baseline(bytes.fromhex(instruction[1])):
            found.setdefault(function, instruction[2])
    return found


def test_the_check_sees_newer_instructions() -> None:
    for code in ("c5f877", "62f17c48100a", "c4e270f2c1", "660f3800c1", "f30fb8c1", "f3480fb8c1", "66440f3a0fc101"):
        assert is_beyond_baseline(bytes.fromhex(code))
    for code in ("0f10c1", "f30fbcc1", "660fefc0", "f30f1efa", "48c1e810", "4489c5", "90"):
        assert not is_beyond_baseline(bytes.fromhex(code))


@pytest.mark.parametrize("name", BASELINE_FILES)
def test_other_files_need_no_instruction_set(objects: dict[str, Path], name: str) -> None:
    assert functions_beyond_baseline(objects[name]) == {}


@pytest.mark.parametrize("name", ISA_FILES)
def test_support_is_asked_for_without_the_instruction_set(objects: dict[str, Path], name: str) -> None:
    found = functions_beyond_baseline(objects[name])
    assert found, f"{name}.cpp was compiled to nothing newer than the baseline"
    asking = re.compile(rf"\b({'|'.join(BASELINE_FUNCTIONS)})\(")
    assert {function for function in found if asking.search(function)} == set()
    # Nothing of the file runs when the library is loaded.
    assert not re.search(r"\.(init_array|ctors)", run("objdump", "--section-headers", objects[name]))


@pytest.mark.parametrize("name", ISA_FILES)
def test_no_code_of_an_instruction_set_can_be_linked_into_other_files(
    objects: dict[str, Path], tmp_path: Path, name: str
) -> None:
    # A weak symbol stands for one in all files; the linker takes any file's. Without optimisation none is inlined.
    unoptimised = compile_files([name], tmp_path, "-O0")[name]
    for objfile in (objects[name], unoptimised):
        symbols = [line.split(maxsplit=2) for line in run("nm", "--demangle", "--defined-only", objfile).splitlines()]
        assert [symbol for _, kind, symbol in symbols if kind in "WwVvu"] == []
        assert [symbol for _, kind, symbol in symbols if kind.isupper()] == [f"zipccl::{name}"]


def test_the_build_keeps_to_the_baseline_and_to_ieee_754() -> None:
    build = (ROOT / "setup.py").read_text()
    for flag in ("-march", "-mtune=native", "-mavx", "-ffast-math", "-Ofast", "-funsafe-math", "-flto"):
        assert flag not in build
