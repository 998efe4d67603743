"""What NVIDIA's binary utilities, which need no GPU, tell about compiled kernels."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Resources(NamedTuple):
    """What one kernel takes.

    Attributes:
        registers: of each thread.
        stack_nbytes: of each thread, in local memory: more than 0 means spilled registers or indexed arrays.
        shared_nbytes: of each thread block, what the system keeps for itself included.
    """

    registers: int
    stack_nbytes: int
    shared_nbytes: int


class Bounds(NamedTuple):
    """What a kernel's ``__launch_bounds__`` promise; 0 where they say nothing."""

    threads: int
    blocks: int


class Instruction(NamedTuple):
    """One instruction of SASS, the machine code: ``@guard opcode operands``.

    Attributes:
        lines: file and number of the source line that it is for, the one into which that was inlined, and so on; where
            compiled with ``-lineinfo``.
    """

    address: int
    guard: str
    opcode: str
    operands: tuple[str, ...]
    lines: tuple[tuple[str, int], ...] = ()


def find_tool(name: str) -> str | None:
    """Return the path of cuobjdump or nvdisasm: of the CUDA toolkit or of the wheels that bring each."""
    for distribution in (f"nvidia-cuda-{name}", f"nvidia-cuda-{name}-cu12"):
        try:
            files = importlib.metadata.files(distribution) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name == name:
                return str(file.locate())
    return shutil.which(name)


def resources(cubin: bytes) -> dict[str, Resources]:
    """Return what each kernel of a module takes."""
    text = _run("cuobjdump", ["--dump-resource-usage"], cubin)
    found = re.findall(r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", text)
    return {name: Resources(int(registers), int(stack) + int(local), int(shared))
            for name, registers, stack, shared, local in found}  # fmt: skip


def launch_bounds(ptx: str) -> dict[str, Bounds]:
    """Return what each kernel promises of its launches."""
    bounds = {}
    for name, directives in re.findall(r"\.entry (\w+)\(.*?\)(.*?)\{", ptx, re.DOTALL):
        threads = re.search(r"\.maxntid (\d+)", directives)
        blocks = re.search(r"\.minnctapersm (\d+)", directives)
        bounds[name] = Bounds(int(threads[1]) if threads else 0, int(blocks[1]) if blocks else 0)
    return bounds


def instructions(cubin: bytes) -> dict[str, list[Instruction]]:
    """Return the SASS of each kernel of a module, without what pads it at its end."""
    text = _run("nvdisasm", ["-c", "-gi"], cubin)
    return {
        name: list(_parse(body)) for name, body in re.findall(r"^\.text\.(\w+):\n(.*?)(?=^//-|\Z)", text, re.M | re.S)
    }


def _parse(text: str) -> Iterator[Instruction]:
    labels: dict[str, int] = {}
    waiting: list[str] = []
    found: list[Instruction] = []
    lines: list[tuple[str, int]] = []
    fresh = True
    for line in text.splitlines():
        if match := re.match(r'\s*//## File "([^"]+)", line (\d+)', line):
            lines = [] if fresh else lines
            lines.append((Path(match[1]).name, int(match[2])))
            fresh = False
        elif label := re.fullmatch(r"(\.\w+):", line.strip()):
            waiting.append(label[1])
        elif match := re.match(r"\s+/\*([0-9a-f]+)\*/\s+(?:(@!?U?P\d) )?([\w.]+)\s*([^;]*);", line):
            address = int(match[1], 16)
            labels |= dict.fromkeys(waiting, address)
            waiting = []
            operands = match[4].partition("(*")[0].strip()
            split = tuple(re.split(r",\s*(?![^\[]*\])", operands)) if operands else ()
            found.append(Instruction(address, match[2] or "", match[3], split, tuple(lines)))
            fresh = True
    while found and found[-1].opcode == "NOP":
        found.pop()
    for one in found:
        resolved = [re.sub(r"`\((\.\w+)\)", lambda match: hex(labels[match[1]]), text) for text in one.operands]
        yield one._replace(operands=tuple(resolved))


def _run(tool: str, options: list[str], cubin: bytes) -> str:
    path = find_tool(tool)
    if path is None:
        raise FileNotFoundError(f"{tool} is not installed: pip install nvidia-cuda-{tool}")
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "module.cubin")
        file.write_bytes(cubin)
        return subprocess.run([path, *options, str(file)], capture_output=True, text=True, check=True).stdout
