"""Run the kernels' SASS, the machine code that NVRTC makes for sm_90, on the CPU, and count what is executed.

A warp's lanes are run together, as NumPy arrays. Lanes that part at a branch go on in groups, the one whose next
instruction comes first in the code before the others, and meet again where the code makes them (BSYNC, WARPSYNC). The
warps of a thread block take turns at its barriers, and thread blocks run one after the other. So an instruction's
count is how often a GPU's scheduler issues it, but for the loops in which one thread block waits for another.

Some ten thousand warp instructions a second: for counting, and as evidence that what NVRTC makes is right.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tests.cuda import disassembly
from tests.cuda.disassembly import Instruction
from tests.cuda.sass_instructions import Run, decode
from tests.cuda.sass_operands import LANES, PT, Flags, Words, flag, source
from zipccl.codec.wire import DType
from zipccl.devices import modules

ARCHITECTURE = 90

_INSTRUCTION_NBYTES = 16
_PARAMETERS_OFFSET = 0x210
_BLOCK_DIM_OFFSET, _GRID_DIM_OFFSET = 0x0, 0xC
_SHARED_NBYTES = 228 << 10
_GAP_NBYTES = 256
_MEMORY_NBYTES = 1 << 28
_SHARED_WINDOW = 0xFFFF0000


class KernelFaultError(Exception):
    """A kernel did what ends it on a GPU: an access outside of what is allocated, or one that is not aligned."""


class Memory:
    """Bytes, of which those that are allocated may be used, at aligned addresses from ``base``."""

    def __init__(self, nbytes: int, base: int | None = None) -> None:
        self._room = np.zeros(nbytes + _GAP_NBYTES, np.uint8)
        start = -self._room.ctypes.data % _GAP_NBYTES
        self._bytes = self._room[start : start + nbytes]
        self._allocated = np.zeros(nbytes, bool)
        self.base = self._bytes.ctypes.data if base is None else base
        self._end = 0

    def allocate(self, nbytes: int) -> int:
        """Return the address of so many more bytes, away from all others."""
        start = self._end
        self._end = start + nbytes + -nbytes % _GAP_NBYTES + _GAP_NBYTES
        if self._end > self._bytes.size:
            raise MemoryError(f"{self._end} bytes of {self._bytes.size}")
        self._allocated[start : start + nbytes] = True
        return self.base + start

    def free(self, address: int, nbytes: int) -> None:
        start = address - self.base
        self._allocated[start : start + nbytes] = False
        if not self._allocated.any():
            self._end = 0

    def load(self, addresses: NDArray[np.uint64], nbytes: int, lanes: Flags) -> NDArray[np.uint8]:
        """Return a row of bytes for each lane."""
        result = np.zeros((LANES, nbytes), np.uint8)
        result[lanes] = self._rows(nbytes)[self._places(addresses[lanes], nbytes)]
        return result

    def store(self, addresses: NDArray[np.uint64], values: NDArray[np.uint8], lanes: Flags) -> None:
        nbytes = values.shape[1]
        self._rows(nbytes)[self._places(addresses[lanes], nbytes)] = values[lanes]

    def _rows(self, nbytes: int) -> NDArray[np.uint8]:
        return self._bytes[: self._bytes.size // nbytes * nbytes].reshape(-1, nbytes)

    def _places(self, addresses: NDArray[np.uint64], nbytes: int) -> NDArray[np.int64]:
        offsets = addresses.astype(np.int64) - self.base
        if np.any(addresses % np.uint64(nbytes)):
            raise KernelFaultError(f"{nbytes} bytes at addresses that are no multiples: {offsets}")
        if np.any(offsets < 0) or np.any(offsets >= self._bytes.size):
            raise KernelFaultError(f"{nbytes} bytes outside of all memory, at {offsets}")
        if not np.all(self._allocated[offsets]) or not np.all(self._allocated[offsets + nbytes - 1]):
            raise KernelFaultError(f"{nbytes} bytes that are not allocated, at {offsets}")
        return offsets // nbytes


@dataclass(eq=False)
class Generic:
    """Both memories: addresses with a certain high half are of shared memory."""

    memory: Memory
    shared: Memory

    def load(self, addresses: NDArray[np.uint64], nbytes: int, lanes: Flags) -> NDArray[np.uint8]:
        in_shared = lanes & (addresses >> np.uint64(32) == _SHARED_WINDOW)
        if not in_shared.any():
            return self.memory.load(addresses, nbytes, lanes)
        result = self.memory.load(addresses, nbytes, lanes & ~in_shared)
        return result | self.shared.load(addresses & np.uint64(0xFFFFFFFF), nbytes, in_shared)

    def store(self, addresses: NDArray[np.uint64], values: NDArray[np.uint8], lanes: Flags) -> None:
        in_shared = lanes & (addresses >> np.uint64(32) == _SHARED_WINDOW)
        self.memory.store(addresses, values, lanes & ~in_shared)
        self.shared.store(addresses & np.uint64(0xFFFFFFFF), values, in_shared)


class Kernel:
    """A kernel's instructions, and how often each was issued."""

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        self.instructions = instructions
        self.runs: list[Run | None] = [None] * len(instructions)
        self.counts = np.zeros(len(instructions), np.int64)
        self.guards = [flag(one.guard[1:]) if one.guard else None for one in instructions]
        self.control = [one.opcode.split(".")[0] in _CONTROL for one in instructions]
        self.known = list(self.control)

    def run(self, number: int, warp: Warp) -> None:
        if not self.known[number]:
            self.runs[number] = decode(self.instructions[number])
            self.known[number] = True
        run = self.runs[number]
        if run is not None:
            run(warp)


_CONTROL = {"BRA", "EXIT", "BAR", "BSSY", "BSYNC", "BREAK", "WARPSYNC", "CALL", "RET", "BMOV"}


@dataclass(eq=False)
class Block:
    """One thread block: what its warps share."""

    shared: Memory
    generic: Generic
    index: int
    constants: Words

    def constant(self, offset: int) -> Words:
        return self.constants[offset // 4 : offset // 4 + 1]


@dataclass(eq=False)
class _Group:
    """Lanes that are at the same instruction."""

    place: int
    lanes: Flags


@dataclass(eq=False)
class Warp:
    """32 lanes: their registers, and where they are."""

    block: Block
    first_thread: int
    lanes: Flags
    active: Flags = field(init=False)
    all_active: bool = False

    def __post_init__(self) -> None:
        self.active = self.lanes
        self.registers = np.zeros((256, LANES), np.uint32)
        self.uniform = np.zeros((64, 1), np.uint32)
        self.flags = np.zeros((8, LANES), bool)
        self.uniform_flags = np.zeros((8, 1), bool)
        self.flags[PT] = self.uniform_flags[PT] = True
        self._groups = [_Group(0, self.lanes.copy())]
        self._waiting: list[tuple[str, _Group]] = []
        self._barriers: dict[str, Flags] = {}
        self.alive = self.lanes.copy()

    def special(self, name: str) -> Words:
        """Return a special register."""
        lane = np.arange(LANES, dtype=np.uint32)
        if name == "SR_TID.X":
            return lane + np.uint32(self.first_thread)
        if name == "SR_LANEID":
            return lane
        if name == "SR_LTMASK":
            return (np.uint32(1) << lane) - np.uint32(1)
        values = {"SR_CTAID.X": self.block.index, "SRZ": 0, "SR_CgaCtaId": 0, "SR_TID.Y": 0, "SR_TID.Z": 0}
        values |= {"SR_SWINHI": _SHARED_WINDOW}
        return np.array([values[name]], np.uint32)

    def run(self, kernel: Kernel) -> bool:
        """Run all lanes up to the thread block's next barrier or their end; return whether any is left."""
        while self._groups or self._release():
            group = self._next_group()
            self._step(kernel, group)
            if not group.lanes.any():
                self._groups.remove(group)
        if self._waiting and all(barrier == "BAR" for barrier, _ in self._waiting):
            self._groups = [group for _, group in self._waiting]
            self._waiting = []
            return True
        if self.alive.any():
            raise KernelFaultError(f"lanes wait for each other: {self._waiting}")
        return False

    def _next_group(self) -> _Group:
        if len(self._groups) == 1:
            return self._groups[0]
        first = min(self._groups, key=lambda group: group.place)
        for other in [group for group in self._groups if group.place == first.place and group is not first]:
            first.lanes = first.lanes | other.lanes
            self._groups.remove(other)
        return first

    def _step(self, kernel: Kernel, group: _Group) -> None:
        number = group.place
        kernel.counts[number] += 1
        guard = kernel.guards[number]
        active = group.lanes if guard is None else group.lanes & guard(self)
        group.place = number + 1
        if not active.any():
            return
        self.active, self.all_active = active, bool(active.all())
        if kernel.control[number]:
            self._control(kernel.instructions[number], group, active)
            return
        try:
            kernel.run(number, self)
        except KernelFaultError as fault:
            raise KernelFaultError(f"{kernel.instructions[number]}: {fault}") from None

    def _control(self, instruction: Instruction, group: _Group, active: Flags) -> None:
        name, *modifiers = instruction.opcode.split(".")
        operands = [text for text in instruction.operands if not text.startswith(("P", "!P", "UP", "!UP"))]
        if name in ("BRA", "CALL"):
            taken = active.copy()
            conditions = [text for text in instruction.operands if text not in operands]
            for text in conditions:
                taken &= np.broadcast_to(flag(text)(self), LANES)
            if "DIV" in modifiers:
                together = np.unpackbits(source(operands[0])(self).view(np.uint8), bitorder="little").astype(bool)
                taken &= not np.array_equal(together, active)
            self._jump(group, taken, int(operands[-1], 0) // _INSTRUCTION_NBYTES)
        elif name == "RET":
            places = np.broadcast_to(source(operands[0].split()[0])(self), LANES)[active] // _INSTRUCTION_NBYTES
            self._jump(group, active.copy(), int(places[0]))
        elif name == "EXIT":
            self.alive = self.alive & ~active
            group.lanes = group.lanes & ~active
        elif name == "BSSY":
            self._barriers[operands[0]] = active.copy()
        elif name == "BREAK":
            self._barriers[operands[-1]] = self._barriers[operands[-1]] & ~active
        elif name in ("BSYNC", "WARPSYNC", "BAR"):
            key = operands[0] if name == "BSYNC" else name
            if name == "WARPSYNC":
                mask = np.full(1, 0xFFFFFFFF, np.uint32) if "ALL" in modifiers else source(operands[0])(self)
                self._barriers[name] = np.unpackbits(mask[:1].view(np.uint8), bitorder="little").astype(bool)
                if np.array_equal(self._barriers[name] & self.alive, active):
                    return
            self._waiting.append((key, _Group(group.place, active.copy())))
            group.lanes = group.lanes & ~active
        else:
            raise NotImplementedError(str(instruction))

    def _jump(self, group: _Group, taken: Flags, place: int) -> None:
        group.lanes = group.lanes & ~taken
        if taken.any():
            self._groups.append(_Group(place, taken))

    def _release(self) -> bool:
        """Let the lanes go on that wait where all the others of their barrier are, or where those have ended."""
        for barrier in {barrier for barrier, _ in self._waiting if barrier != "BAR"}:
            here = [group for name, group in self._waiting if name == barrier]
            arrived = np.logical_or.reduce([group.lanes for group in here])
            if np.array_equal(arrived, self._barriers[barrier] & self.alive):
                self._waiting = [(name, group) for name, group in self._waiting if name != barrier]
                self._groups.extend(here)
        return bool(self._groups)


class SassDevice:
    """The Device protocol, as far as a codec needs it, over the SASS of sm_90.

    Attributes:
        counts: of each kernel launched, how often each of its instructions was issued.
    """

    kind = "sass"
    index = 0
    multiprocessors = 1

    def __init__(self) -> None:
        self._memory = Memory(_MEMORY_NBYTES)
        self._modules: dict[str, dict[str, Kernel]] = {}
        self.launches: Counter[str] = Counter()

    def kernels(self, dtype: DType) -> dict[str, Kernel]:
        if dtype.name not in self._modules:
            options = (*modules.compile_options(dtype, ARCHITECTURE), "-lineinfo")
            cubin = modules.compile_module(modules.kernel_sources(), options).cubin
            self._modules[dtype.name] = {
                name: Kernel(instructions) for name, instructions in disassembly.instructions(cubin).items()
            }
        return self._modules[dtype.name]

    def allocate(self, nbytes: int, stream: int) -> Allocation:
        del stream
        return Allocation(self._memory, nbytes)

    def allocate_host(self, nbytes: int) -> Allocation:
        return Allocation(self._memory, nbytes)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        del stream
        ctypes.memmove(target, source, nbytes)

    def fill(self, target: int, byte: int, nbytes: int, stream: int) -> None:
        del stream
        ctypes.memset(target, byte, nbytes)

    def launch(self, kernel: str, dtype: DType, grid: int, block: int, arguments: Sequence[int], stream: int) -> None:
        del stream
        self.launches[kernel] += 1
        constants = np.zeros((_PARAMETERS_OFFSET + 8 * len(arguments)) // 4, np.uint32)
        constants[_BLOCK_DIM_OFFSET // 4 :][:3] = block, 1, 1
        constants[_GRID_DIM_OFFSET // 4 :][:3] = grid, 1, 1
        constants[_PARAMETERS_OFFSET // 4 :] = np.array(arguments, np.uint64).view(np.uint32)
        code = self.kernels(dtype)[kernel]
        for index in range(grid):
            shared = Memory(_SHARED_NBYTES, base=0)
            shared.allocate(_SHARED_NBYTES - _GAP_NBYTES)
            place = Block(shared, Generic(self._memory, shared), index, constants)
            threads = np.arange(block + -block % LANES).reshape(-1, LANES)
            warps = [Warp(place, int(row[0]), row < block) for row in threads]
            with np.errstate(all="ignore"):  # as on a GPU
                while warps:
                    warps = [warp for warp in warps if warp.run(code)]

    def synchronize(self, stream: int) -> None:
        del stream

    def current_stream(self) -> int:
        return 0

    def record(self, stream: int) -> object:
        return stream

    def wait(self, stream: int, event: object) -> None:
        del stream, event


class Allocation:
    """The Memory protocol."""

    def __init__(self, memory: Memory, nbytes: int) -> None:
        self._memory = memory
        self.nbytes = nbytes
        self.address = memory.allocate(nbytes)

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self._memory.free(self.address, self.nbytes)
