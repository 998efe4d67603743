"""Operands of SASS instructions, read and written for all lanes of a warp at once.

A register holds a word for each of 32 lanes, a uniform register one for all; values are arrays of 32 words or of one,
which NumPy broadcasts.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tests.cuda.sass import Warp

Words = NDArray[np.uint32]
Flags = NDArray[np.bool_]
Source = Callable[["Warp"], Words]
FlagSource = Callable[["Warp"], Flags]

LANES = 32
RZ, URZ, PT = 255, 63, 7


def source(text: str, offset: int = 0) -> Source:
    """Return what reads a 32-bit operand: a register, a constant or a number, with - or ~ before it.

    Args:
        offset: of a register's number, or of a constant in words: 1 reads the high half of a pair.
    """
    if text[0] in "-~" and not text[1:2].isdigit():
        inner = source(text[1:], offset)
        if text[0] == "-":
            return lambda warp: (~inner(warp) + np.uint32(1)).astype(np.uint32)
        return lambda warp: ~inner(warp)
    if text.startswith("|"):
        inner = source(text.strip("|"), offset)
        return lambda warp: np.abs(inner(warp).view(np.int32)).view(np.uint32)
    if match := re.fullmatch(r"(U?)R(Z|\d+)(?:\.reuse|\.64|\.U32|\.H0_H0|\.X\d+)*", text):
        number = (URZ if match[1] else RZ) if match[2] == "Z" else int(match[2]) + offset
        return (lambda warp: warp.uniform[number]) if match[1] else (lambda warp: warp.registers[number])
    if match := re.fullmatch(r"c\[(\w+)\]\[(\w+)\](?:\.64)?", text):
        if int(match[1], 16) != 0:
            raise NotImplementedError(f"constant bank of {text}")
        start = int(match[2], 16) + 4 * offset
        return lambda warp: warp.block.constant(start)
    return constant(number_of(text))


def constant(value: int) -> Source:
    word = np.array([value & 0xFFFFFFFF], np.uint32)
    return lambda _: word


def number_of(text: str) -> int:
    """Return an immediate operand; a decimal fraction stands for its bits in fp32."""
    if re.fullmatch(r"-?(0x[0-9a-f]+|\d+)", text):
        return int(text, 0)
    return int(struct.unpack("<I", struct.pack("<f", float(text.removesuffix("+QNAN") or "nan")))[0])


def is_number(text: str) -> bool:
    return re.fullmatch(r"-?(0x[0-9a-f]+|\d+)", text) is not None


def half_of(text: str) -> int:
    """Return the bits in fp16 of an immediate operand of HFMA2."""
    return int(np.array([float(text.replace("+QNAN", "nan").replace("+INF", "inf"))], np.float16).view(np.uint16)[0])


def flag(text: str) -> FlagSource:
    """Return what reads a predicate, with ! before it."""
    if text.startswith("!"):
        inner = flag(text[1:])
        return lambda warp: ~inner(warp)
    match = re.fullmatch(r"(U?)P(T|\d)", text)
    if match is None:
        raise NotImplementedError(f"predicate {text}")
    number = PT if match[2] == "T" else int(match[2])
    return (lambda warp: warp.uniform_flags[number]) if match[1] else (lambda warp: warp.flags[number])


def is_flag(text: str) -> bool:
    return re.fullmatch(r"!?U?P(T|\d)", text) is not None


def write(text: str, offset: int = 0) -> Callable[[Warp, Words], None]:
    """Return what writes a register in the active lanes."""
    match = re.fullmatch(r"(U?)R(Z|\d+)(?:\.64)?", text)
    if match is None:
        raise NotImplementedError(f"destination {text}")
    if match[2] == "Z":
        return lambda *_: None
    number = int(match[2]) + offset
    if match[1]:

        def write_uniform(warp: Warp, value: Words) -> None:
            warp.uniform[number] = value[0]

        return write_uniform

    def write_register(warp: Warp, value: Words) -> None:
        if warp.all_active:
            warp.registers[number] = value
        else:
            np.copyto(warp.registers[number], value, where=warp.active)

    return write_register


def write_flag(text: str) -> Callable[[Warp, Flags], None]:
    match = re.fullmatch(r"(U?)P(T|\d)", text)
    if match is None:
        raise NotImplementedError(f"destination {text}")
    if match[2] == "T":
        return lambda *_: None
    number = int(match[2])
    if match[1]:

        def write_uniform(warp: Warp, value: Flags) -> None:
            warp.uniform_flags[number] = value[0]

        return write_uniform
    return lambda warp, value: np.copyto(warp.flags[number], value, where=warp.active)


def address(text: str, wide: bool) -> Callable[[Warp], NDArray[np.uint64]]:
    """Return what works out the addresses of ``desc[UR4][R2.64+UR6+0x10]`` or ``[R5+UR4+0x10]``.

    Args:
        wide: whether they are of 64 bits: global memory's, of which a register's pair is meant.
    """
    inner = text[text.rindex("[") + 1 : -1]
    parts = []
    for term in re.sub(r"\+-", "+-", inner).split("+"):
        if is_number(term):
            value = np.array([int(term, 0) & (2**64 - 1)], np.uint64)
            parts.append(lambda _, value=value: value)
            continue
        scale = int(match[1]) if (match := re.search(r"\.X(\d+)", term)) else 1
        low = source(term)
        pair = wide and ".U32" not in term and not term.startswith(("RZ", "URZ"))
        high = source(term, 1) if pair else constant(0)
        parts.append(
            lambda warp, low=low, high=high, scale=scale: (
                (high(warp).astype(np.uint64) << np.uint64(32) | low(warp)) * np.uint64(scale)
            )
        )

    def total(warp: Warp) -> NDArray[np.uint64]:
        result = np.zeros(LANES, np.uint64)
        for part in parts:
            result = result + part(warp)
        return result if wide else result & np.uint64(0xFFFFFFFF)

    return total
