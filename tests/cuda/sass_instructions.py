"""What SASS instructions do, for the ones that the kernels use on sm_90.

NVIDIA documents no more than their names. That what is here is right shows in its results: the kernels' output,
run this way, has to equal the native codec's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tests.cuda.disassembly import Instruction
from tests.cuda.sass_operands import (
    LANES,
    Source,
    Words,
    address,
    constant,
    flag,
    half_of,
    is_flag,
    source,
    write,
    write_flag,
)

if TYPE_CHECKING:
    from tests.cuda.sass import Warp

Run = Callable[["Warp"], None]
Make = Callable[[list[str], tuple[str, ...]], Run]
Wide = NDArray[np.uint64]

_32 = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint32(0xFFFF)
_LANE = np.arange(LANES, dtype=np.uint32)

_MAKERS: dict[str, Make] = {}


def decode(instruction: Instruction) -> Run | None:
    """Return what runs an instruction on a warp's active lanes; None if it does nothing that shows.

    Raises:
        NotImplementedError: it is not known here.
    """
    name, *modifiers = instruction.opcode.split(".")
    if name in _NOTHING:
        return None
    # What runs on the uniform registers differs in its operands only.
    make = _MAKERS.get(name) or _MAKERS.get(name.removeprefix("U"))
    if make is None:
        raise NotImplementedError(str(instruction))
    try:
        return make(modifiers, instruction.operands)
    except (NotImplementedError, ValueError, IndexError, TypeError) as error:
        raise NotImplementedError(f"{instruction}: {error}") from error


_NOTHING = {
    "NOP",
    "MEMBAR",
    "ERRBAR",
    "CGAERRBAR",
    "CCTL",
    "DEPBAR",
    "NANOSLEEP",
    "YIELD",
    "LDGDEPBAR",
    "WARPGROUP",
    "PREFETCH",
    "ENDCOLLECTIVE",
}


def _makes(*names: str) -> Callable[[Make], Make]:
    def register(make: Make) -> Make:
        _MAKERS.update(dict.fromkeys(names, make))
        return make

    return register


def _wide(text: str) -> Callable[[Warp], Wide]:
    low, high = source(text), source(text, 1)
    if text.endswith("RZ") or re.fullmatch(r"-?(0x)?[0-9a-f]+", text):
        high = constant(0)
    return lambda warp: high(warp).astype(np.uint64) << _32 | low(warp)


def _write_wide(text: str) -> Callable[[Warp, Wide], None]:
    low, high = write(text), write(text, 1)

    def write_both(warp: Warp, value: Wide) -> None:
        low(warp, value.astype(np.uint32))
        high(warp, (value >> _32).astype(np.uint32))

    return write_both


def _split(operands: tuple[str, ...]) -> tuple[str, list[str], list[str]]:
    """Return a destination, the predicates that follow it (carries out), and the other operands."""
    count = 1
    while count < len(operands) and is_flag(operands[count]) and not operands[count].startswith("!"):
        count += 1
    return operands[0], list(operands[1:count]), list(operands[count:])


def _only(modifiers: list[str], *known: str) -> None:
    if unknown := set(modifiers) - set(known):
        raise NotImplementedError(f"{unknown}")


def _signed(words: Words) -> NDArray[np.int64]:
    return words.view(np.int32).astype(np.int64)


def _extended(words: Words, unsigned: bool) -> NDArray[np.int64]:
    return words.astype(np.int64) if unsigned else _signed(words)


# --- Moves and selections ---------------------------------------------------------------------------------------------


@_makes("MOV", "R2UR", "LDC", "ULDC")
def _move(modifiers: list[str], operands: tuple[str, ...]) -> Run:
    _only(modifiers, "U", "64", "32", "U32")
    pairs = [(write(operands[0], word), source(operands[-1], word)) for word in range(1 + ("64" in modifiers))]
    if operands[0].startswith("UR") and operands[-1].startswith("R"):

        def first_lane(warp: Warp) -> None:
            lane = int(np.argmax(warp.active))
            for put, get in pairs:
                put(warp, get(warp)[lane : lane + 1])

        return first_lane

    def run(warp: Warp) -> None:
        for put, get in pairs:
            put(warp, get(warp))

    return run


@_makes("S2R", "S2UR", "CS2R")
def _special(modifiers: list[str], operands: tuple[str, ...]) -> Run:
    put, put_high, name = write(operands[0]), write(operands[0], 1), operands[1]
    wide = operands[0].startswith("R") and operands[1] == "SRZ" and "32" not in modifiers

    def run(warp: Warp) -> None:
        put(warp, warp.special(name))
        if wide:
            put_high(warp, warp.special(name))

    return run


@_makes("HFMA2")
def _half(_: list[str], operands: tuple[str, ...]) -> Run:
    if operands[1:3] != ("-RZ", "RZ"):
        raise NotImplementedError("HFMA2 other than to set a register")
    put, value = write(operands[0]), constant(half_of(operands[3]) << 16 | half_of(operands[4]))
    return lambda warp: put(warp, value(warp))


@_makes("SEL", "FSEL")
def _select(_: list[str], operands: tuple[str, ...]) -> Run:
    put, a, b, which = write(operands[0]), source(operands[1]), source(operands[2]), flag(operands[3])
    return lambda warp: put(warp, np.where(which(warp), a(warp), b(warp)))


@_makes("PRMT")
def _permute(modifiers: list[str], operands: tuple[str, ...]) -> Run:
    if modifiers:
        raise NotImplementedError("a mode of PRMT")
    put, a, selector, c = (write(operands[0]), *map(source, operands[1:4]))

    def run(warp: Warp) -> None:
        both = c(warp).astype(np.uint64) << _32 | a(warp)
        select = selector(warp)
        result = np.zeros(np.broadcast_shapes(both.shape, select.shape), np.uint32)
        for byte in range(4):
            nibble = select >> np.uint32(4 * byte) & np.uint32(15)
            value = (both >> (nibble & np.uint32(7)).astype(np.uint64) * np.uint64(8)).astype(np.uint32)
            value &= np.uint32(255)
            value = np.where(nibble & np.uint32(8), (value >> np.uint32(7)) * np.uint32(255), value)
            result |= value << np.uint32(8 * byte)
        put(warp, result)

    return run


# --- Integer arithmetic -----------------------------------------------------------------------------------------------


def _addend(text: str) -> Callable[[Warp], Wide]:
    """Return what reads a term of a sum whose carry counts: -x is ~x and 1 more."""
    if text.startswith("-") and not text[1:2].isdigit():
        inner = source(text[1:])
        return lambda warp: (~inner(warp)).astype(np.uint64) + np.uint64(1)
    inner = source(text)
    return lambda warp: inner(warp).astype(np.uint64)


def _sum(terms: list[Callable[[Warp], Wide]], carries_in: list[str]) -> Callable[[Warp], Wide]:
    flags = [flag(text) for text in carries_in]

    def run(warp: Warp) -> Wide:
        total = terms[0](warp)
        for term in terms[1:]:
            total = total + term(warp)
        for carry in flags:
            total = total + carry(warp)
        return total

    return run


def _put_sum(target: str, carries_out: list[str], total: Callable[[Warp], Wide]) -> Run:
    put, flags = write(target), [write_flag(text) for text in carries_out]

    def run(warp: Warp) -> None:
        value = total(warp)
        put(warp, value.astype(np.uint32))
        carry = value >> _32
        for number, put_flag in enumerate(flags, 1):
            put_flag(warp, carry >= np.uint64(number))

    return run


@_makes("IADD3", "VIADD", "IADD")
def _add(modifiers: list[str], operands: tuple[str, ...]) -> Run:
    _only(modifiers, "X", "3")
    target, carries_out, rest = _split(operands)
    terms = [text for text in rest if not is_flag(text)]
    carries_in = [text for text in rest if is_flag(text)] if "X" in modifiers else []
    return _put_sum(target, carries_out, _sum([_addend(text) for text in terms], carries_in))


@_makes("IMAD")
def _multiply_add(modifiers: list[str], operands: tuple[str, ...]) -> Run:
    _only(modifiers, "MOV", "U32", "IADD", "SHL", "X", "WIDE", "HI", "S32")
    target, carries_out, rest = _split(operands)
    a, b = source(rest[0]), source(rest[1])
    carries_in = [text for text in rest[3:] if is_flag(text)] if "X" in modifiers else []
    unsigned = "U32" in modifiers
    if "WIDE" in modifiers or "HI" in modifiers:
        c, put = _wide(rest[2]), _write_wide(target)
        put_high = write(target)
        flags = [flag(text) for text in carries_in]
        puts = [write_flag(text) for text in carries_out]

        def run_wide(warp: Warp) -> None:
            product = (
                _extended(a(warp), unsigned).astype(object) * _extended(b(warp), unsigned).astype(object)
            ) % 2**64
            total = product + c(warp).astype(object) + sum(carry(warp).astype(object) for carry in flags)
            value = (total % 2**64).astype(np.uint64)
            if "HI" in modifiers:
                put_high(warp, (value >> _32).astype(np.uint32))
            else:
                put(warp, value)
            for put_flag in puts:
                put_flag(warp, total >= 2**64)

        return run_wide
    c = source(rest[2])

    def product(warp: Warp) -> Wide:
        return (a(warp) * b(warp)).astype(np.uint64)

    if not carries_in and not carries_out:
        put_low = write(target)
        return lambda warp: put_low(warp, a(warp) * b(warp) + c(warp))
    return _put_sum(target, carries_out, _sum([product, _addend(rest[2])], carries_in))


@_makes("LEA")
def _shift_add(modifiers: list[str], operands: tuple[str, ...]) -> Run:
    _only(modifiers, "X", "HI", "SX32")
    target, carries_out, rest = _split(operands)
    carries_in = [rest.pop()] if "X" in modifiers else []
    a, b = source(rest[0].lstrip("-")), _addend(rest[1])
    shift = np.uint64(int(rest[-1], 0))
    negative = rest[0].startswith("-")
    if "HI" not in modifiers:

        def low(warp: Warp) -> Wide:
            shifted = a(warp).astype(np.uint64) << shift & _LOW
            return (_LOW ^ shifted) + np.uint64(1) if negative else shifted

        return _put_sum(target, carries_out, _sum([low, b], carries_in))
    if negative:
        raise NotImplementedError("LEA.HI of a negative number")
    if "SX32" in modifiers:
        high: Source = lambda warp: (a(warp).view(np.int32) >> 31).view(np.uint32)  # noqa: E731
    else:
        high = source(rest[2]) if len(rest) > 3 else constant(0)

    def shifted(warp: Warp) -> Wide:
        return (high(warp).astype(np.uint64) << _32 | a(warp)) << shift >> _32

    return _put_sum(target, carries_out, _sum([shifted, b], carries_in))


@_makes("SHF", "SHL", "SHR")
def _shift(modifiers: list[str], operands: tuple[str, ...]) -> Run:
    _only(modifiers, "L", "R", "U32", "S32", "U64", "S64", "HI", "W")
    put, low, amount = write(operands[0]), source(operands[1]), source(operands[2])
    high = source(operands[3])
    wide = bool({"U64", "S64"} & set(modifiers))
    limit = np.uint32(64 if wide else 32)
    left, signed, upper = "L" in modifiers, bool({"S32", "S64"} & set(modifiers)), "HI" in modifiers

    def run(warp: Warp) -> None:
        by = amount(warp)
        by = by & (limit - np.uint32(1)) if "W" in modifiers else np.minimum(by, limit)
        value = high(warp).astype(np.uint64) << _32 | low(warp)
        # NumPy, like C, cannot shift by 64.
        most, last = np.minimum(by, np.uint32(63)).astype(np.uint64), (by == 64).astype(np.uint64)
        if left:
            value = value << most << last
        elif signed:
            value = (value.view(np.int64) >> most.view(np.int64) >> last.view(np.int64)).view(np.uint64)
        else:
            value = value >> most >> last
        put(warp, (value >> _32 if upper else value).astype(np.uint32))

    return run


@_makes("LOP3")
def _logic(modifiers: list[str], operands: tuple[str, ...]) -> Run:
    _only(modifiers, "LUT")
    inputs = list(operands)
    put_flag = write_flag(inputs.pop(0)) if is_flag(inputs[0]) else None
    other = flag(inputs[-1])
    put, a, b, c = (write(inputs[0]), *map(source, inputs[1:4]))
    table = int(inputs[4], 0)

    def run(warp: Warp) -> None:
        value = _look_up(table, a(warp), b(warp), c(warp))
        put(warp, value)
        if put_flag is not None:
            put_flag(warp, (value != 0) | other(warp))

    return run


def _look_up(table: int, a: NDArray, b: NDArray, c: NDArray) -> NDArray:  # type: ignore[type-arg]
    """Combine bits by the table of their eight combinations."""
    result = a & ~a
    for index in range(8):
        if table >> index & 1:
            result = result | (a if index & 4 else ~a) & (b if index & 2 else ~b) & (c if index & 1 else ~c)
    return result


@_makes("PLOP3")
def _flag_logic(_: list[str], operands: tuple[str, ...]) -> Run:
    puts = [write_flag(text) for text in operands[:2]]
    a, b, c = (flag(text) for text in operands[2:5])
    tables = [int(text, 0) for text in operands[5:7]]

    def run(warp: Warp) -> None:
        values = a(warp), b(warp), c(warp)
        results = [_look_up(table, *values) for table in tables]
        for put, result in zip(puts, results, strict=True):
            put(warp, result)

    return run


@_makes("ISETP")
def _compare(modifiers: list[str], operands: tuple[str, ...]) -> Run:
    _only(modifiers, "LT", "LE", "GT", "GE", "EQ", "NE", "U32", "AND", "OR", "EX")
    put, put_opposite = write_flag(operands[0]), write_flag(operands[1])
    a, b, combined = source(operands[2]), source(operands[3]), flag(operands[4])
    relation = _RELATIONS[modifiers[0]]
    unsigned = "U32" in modifiers
    combine = np.logical_or if "OR" in modifiers else np.logical_and
    lower = flag(operands[5]) if "EX" in modifiers else None

    def run(warp: Warp) -> None:
        left, right = _extended(a(warp), unsigned), _extended(b(warp), unsigned)
        result = relation(left, right)
        if lower is not None:
            # The high halves decide, and the low ones, which were compared before, where those are equal.
            low = lower(warp)
            if modifiers[0] == "NE":
                result = result | low
            elif modifiers[0] == "EQ":
                result = result & low
            else:
                strictly = np.less if modifiers[0] in ("LT", "LE") else np.greater
                result = strictly(left, right) | (left == right) & low
        other = combined(warp)
        both = combine(result, other), combine(~result, other)
        put(warp, both[0])
        put_opposite(warp, both[1])

    return run


_RELATIONS = {
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "EQ": np.equal,
    "NE": np.not_equal,
}


@_makes("VIMNMX", "VIMNMX3", "IMNMX")
def _extreme(modifiers: list[str], operands: tuple[str, ...]) -> Run:
    _only(modifiers, "U32", "U16x2")
    put, values, least = write(operands[0]), [source(text) for text in operands[1:-1]], flag(operands[-1])
    unsigned, halves = "U32" in modifiers, "U16x2" in modifiers

    def extreme(warp: Warp, words: list[Words]) -> Words:
        numbers = np.broadcast_arrays(*(_extended(word, unsigned) for word in words))
        return np.where(least(warp), np.minimum.reduce(numbers), np.maximum.reduce(numbers)).astype(np.uint32)

    def run(warp: Warp) -> None:
        words = [value(warp) for value in values]
        if halves:
            high, low = (extreme(warp, [word >> np.uint32(by) & _HALF for word in words]) for by in (16, 0))
            put(warp, high << np.uint32(16) | low)
        else:
            put(warp, extreme(warp, words))

    return run


@_makes("VIADDMNMX")
def _extreme_of_sum(modifiers: list[str], operands: tuple[str, ...]) -> Run:
    _only(modifiers, "U32")
    put, (a, b, c), least = write(operands[0]), map(source, operands[1:4]), flag(operands[4])
    unsigned = "U32" in modifiers

    def run(warp: Warp) -> None:
        total, other = _extended(a(warp) + b(warp), unsigned), _extended(c(warp), unsigned)
        put(warp, np.where(least(warp), np.minimum(total, other), np.maximum(total, other)).astype(np.uint32))

    return run


@_makes("IABS")
def _absolute(_: list[str], operands: tuple[str, ...]) -> Run:
    put, value = write(operands[0]), source(operands[1])
    return lambda warp: put(warp, np.abs(_signed(value(warp))).astype(np.uint32))


@_makes("IDP")
def _dot_product(modifiers: list[str], operands: tuple[str, ...]) -> Run:
    if modifiers not in (["4A", "U8", "U8"], ["4A", "S8", "S8"]):
        raise NotImplementedError("IDP of other types")
    byte = np.dtype(np.int8 if "S8" in modifiers else np.uint8)
    put, a, b, c = (write(operands[0]), *map(source, operands[1:4]))

    def run(warp: Warp) -> None:
        total, left, right = c(warp), a(warp), b(warp)
        for shift in np.arange(0, 32, 8, dtype=np.uint32):
            total = total + _byte_of(left, shift, byte) * _byte_of(right, shift, byte)
        put(warp, total)

    return run


def _byte_of(words: Words, shift: np.uint32, kind: np.dtype[Any]) -> Words:
    return (words >> shift).astype(np.uint8).view(kind).astype(np.int32).view(np.uint32)


@_makes("P2R")
def _from_flags(modifiers: list[str], operands: tuple[str, ...]) -> Run:
    if modifiers:
        raise NotImplementedError("P2R to another byte")
    put, kept, mask = write(operands[0]), source(operands[2]), np.uint32(int(operands[3], 0))

    def run(warp: Warp) -> None:
        bits = np.packbits(warp.flags[:7], axis=0, bitorder="little")[0].astype(np.uint32)
        put(warp, kept(warp) & ~mask | bits & mask)

    return run


# --- Floating point, which only reductions and quotients use ----------------------------------------------------------


def _float(text: str) -> Callable[[Warp], NDArray[np.float64]]:
    """Return what reads an fp32 operand, as fp64, in which the sum and the product of two are rounded harmlessly."""
    if re.fullmatch(r"[-+]?(\d.*|INF|QNAN)", text):
        number = np.array([float(text.replace("QNAN", "nan"))])
        return lambda _: number
    inner = text.removeprefix("-") if text.startswith(("-R", "-c", "-|", "-U")) else text
    negative = inner != text
    absolute = inner.startswith("|")
    value = source(inner.strip("|"))

    def read(warp: Warp) -> NDArray[np.float64]:
        number = value(warp).view(np.float32).astype(np.float64)
        number = np.abs(number) if absolute else number
        return -number if negative else number

    return read


def _write_float(text: str, rounding: str = "") -> Callable[[Warp, NDArray[np.float64]], None]:
    put = write(text)
    toward = {"RZ": np.float32(0), "RP": np.float32(np.inf), "RM": np.float32(-np.inf)}.get(rounding)

    def round_once(warp: Warp, value: NDArray[np.float64]) -> None:
        number = value.astype(np.float32)
        if toward is not None:
            away = np.abs(number) > np.abs(value) if rounding == "RZ" else (number - value) * toward < 0
            number = np.where(away, np.nextafter(number, toward), number)
        put(warp, np.where(np.isnan(value), np.uint32(0x7FFFFFFF), number.view(np.uint32)))

    return round_once


@_makes("FADD")
def _float_add(modifiers: list[str], operands: tuple[str, ...]) -> Run:
    _only(modifiers, "FTZ")
    put, a, b = _write_float(operands[0]), _float(operands[1]), _float(operands[2])
    flushed = _flushed if modifiers else lambda value: value

    def run(warp: Warp) -> None:
        put(warp, flushed(flushed(a(warp)) + flushed(b(warp))))

    return run


def _flushed(value: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.abs(value) < 2.0**-126, np.copysign(0, value), value)


@_makes("FMUL")
def _float_multiply(modifiers: list[str], operands: tuple[str, ...]) -> Run:
    _only(modifiers)
    put, a, b = _write_float(operands[0]), _float(operands[1]), _float(operands[2])

    def run(warp: Warp) -> None:
        put(warp, a(warp) * b(warp))

    return run


@_makes("FFMA")
def _float_multiply_add(modifiers: list[str], operands: tuple[str, ...]) -> Run:
    _only(modifiers, "RZ", "RP", "RM")
    put, a, b, c = _write_float(operands[0], *modifiers), *map(_float, operands[1:4])

    def run(warp: Warp) -> None:
        product, addend = np.broadcast_arrays(a(warp) * b(warp), c(warp))
        total = product + addend
        # What fp64 lost makes its last bit odd, so that fp32 is rounded as from the exact sum.
        part = total - product
        lost = (product - (total - part)) + (addend - part)
        bits = total.view(np.int64)
        even = np.isfinite(total) & (lost != 0) & (bits & 1 == 0)
        toward_zero = (lost < 0) == (total > 0)
        put(warp, np.where(even, np.where(toward_zero, bits - 1, bits + 1), bits).view(np.float64))

    return run


@_makes("FSETP")
def _float_compare(modifiers: list[str], operands: tuple[str, ...]) -> Run:
    put, put_opposite = write_flag(operands[0]), write_flag(operands[1])
    a, b, combined = _float(operands[2]), _float(operands[3]), flag(operands[4])
    # A U at the end: also if one of them is NaN. FTZ: subnormals count as zeros.
    relation = _RELATIONS[modifiers[0].removesuffix("U") if len(modifiers[0]) > 2 else modifiers[0]]
    unordered = len(modifiers[0]) > 2
    flush = "FTZ" in modifiers
    combine = np.logical_or if "OR" in modifiers else np.logical_and

    def run(warp: Warp) -> None:
        left, right = np.broadcast_arrays(a(warp), b(warp))
        if flush:
            left, right = _flushed(left), _flushed(right)
        nan = np.isnan(left) | np.isnan(right)
        result = np.where(nan, unordered, relation(left, right))
        other = combined(warp)
        both = combine(result, other), combine(~result, other)
        put(warp, both[0])
        put_opposite(warp, both[1])

    return run


@_makes("FCHK")
def _check_quotient(_: list[str], operands: tuple[str, ...]) -> Run:
    put, a, b = write_flag(operands[0]), source(operands[1]), source(operands[2])

    def run(warp: Warp) -> None:
        top, bottom = (word(warp).astype(np.int64) >> 23 & 255 for word in (a, b))
        near = (top > 24) & (top < 254) & (bottom > 0) & (bottom < 253) & (np.abs(top - bottom) < 125)
        put(warp, ~near)

    return run


@_makes("I2F")
def _to_float(modifiers: list[str], operands: tuple[str, ...]) -> Run:
    _only(modifiers, "U32", "U64", "RP")
    put, value = write(operands[0]), _wide(operands[1]) if "U64" in modifiers else source(operands[1])

    def run(warp: Warp) -> None:
        exact = value(warp)
        number = exact.astype(np.float32)
        if "RP" in modifiers:
            low = number.astype(np.float64) < exact.astype(np.float64)
            number = np.where(low, np.nextafter(number, np.float32(np.inf)), number)
        put(warp, number.view(np.uint32))

    return run


@_makes("MUFU")
def _reciprocal(modifiers: list[str], operands: tuple[str, ...]) -> Run:
    _only(modifiers, "RCP", "RSQ")
    put, value = write(operands[0]), source(operands[1])

    def run(warp: Warp) -> None:
        number = value(warp).view(np.float32)
        result = np.float32(1) / (np.sqrt(number) if "RSQ" in modifiers else number)
        put(warp, np.where(np.isnan(result), np.uint32(0x7FFFFFFF), result.view(np.uint32)))

    return run


@_makes("F2I")
def _to_integer(modifiers: list[str], operands: tuple[str, ...]) -> Run:
    _only(modifiers, "FTZ", "U32", "U64", "TRUNC", "NTZ")
    value = source(operands[1])
    put = _write_wide(operands[0]) if "U64" in modifiers else None
    put_low = write(operands[0])
    most = 2.0**64 - 2.0**40 if put else 2.0**32 - 1

    def run(warp: Warp) -> None:
        number = np.clip(np.nan_to_num(value(warp).view(np.float32).astype(np.float64)), 0, most).astype(np.uint64)
        if put is not None:
            put(warp, number)
        else:
            put_low(warp, number.astype(np.uint32))

    return run


# --- Bits -------------------------------------------------------------------------------------------------------------


@_makes("POPC")
def _count_bits(_: list[str], operands: tuple[str, ...]) -> Run:
    put, value = write(operands[0]), source(operands[1])
    return lambda warp: put(warp, np.bitwise_count(value(warp)).astype(np.uint32))


@_makes("FLO")
def _highest_bit(modifiers: list[str], operands: tuple[str, ...]) -> Run:
    _only(modifiers, "U32", "SH")
    if "U32" not in modifiers:
        raise NotImplementedError("FLO of signed words")
    put, value = write(operands[0]), source(operands[1])

    def run(warp: Warp) -> None:
        words = value(warp)
        place = np.frexp(words.astype(np.float64))[1].astype(np.int64) - 1
        place = 31 - place if "SH" in modifiers else place
        put(warp, np.where(words == 0, 0xFFFFFFFF, place).astype(np.uint32))

    return run


@_makes("BREV")
def _reverse(_: list[str], operands: tuple[str, ...]) -> Run:
    put, value = write(operands[0]), source(operands[1])

    def run(warp: Warp) -> None:
        word = value(warp)
        bits = np.unpackbits(np.ascontiguousarray(word).view(np.uint8), bitorder="little").reshape(-1, 32)
        put(warp, np.packbits(bits[:, ::-1], axis=1, bitorder="little").view(np.uint32).ravel())

    return run


@_makes("BMSK")
def _mask(_: list[str], operands: tuple[str, ...]) -> Run:
    put, place, width = write(operands[0]), source(operands[1]), source(operands[2])

    def run(warp: Warp) -> None:
        start = np.minimum(place(warp), 32).astype(np.uint64)
        ones = (np.uint64(1) << np.minimum(width(warp), 32).astype(np.uint64)) - np.uint64(1)
        put(warp, (ones << start).astype(np.uint32))

    return run


@_makes("SGXT")
def _extend(modifiers: list[str], operands: tuple[str, ...]) -> Run:
    _only(modifiers, "U32")
    put, value, width = write(operands[0]), source(operands[1]), source(operands[2])

    def run(warp: Warp) -> None:
        unused = (np.uint32(32) - np.minimum(width(warp), 32)).astype(np.int64)
        shifted = (value(warp).astype(np.int64) << unused).astype(np.uint32)
        result = shifted.astype(np.int64) if "U32" in modifiers else _signed(shifted)
        put(warp, (result >> unused).astype(np.uint32))

    return run


@_makes("R2P")
def _to_flags(_: list[str], operands: tuple[str, ...]) -> Run:
    name, _, byte = operands[1].partition(".B")
    value, first = source(name), 8 * int(byte or 0)
    puts = [(bit, write_flag(f"P{bit}")) for bit in range(7) if int(operands[2], 0) >> bit & 1]

    def run(warp: Warp) -> None:
        word = value(warp)
        for bit, put in puts:
            put(warp, (word >> np.uint32(first + bit) & np.uint32(1)).astype(bool))

    return run


# --- Between lanes ----------------------------------------------------------------------------------------------------


def _bits_of(flags: NDArray[np.bool_]) -> int:
    return int(np.packbits(flags, bitorder="little").view(np.uint32)[0])


@_makes("VOTE", "VOTEU")
def _vote(modifiers: list[str], operands: tuple[str, ...]) -> Run:
    _only(modifiers, "ANY", "ALL")
    inputs = list(operands)
    put = None if is_flag(inputs[0]) else write(inputs.pop(0))
    put_flag, what = write_flag(inputs[0]), flag(inputs[1])

    def run(warp: Warp) -> None:
        ballot = np.broadcast_to(what(warp), LANES) & warp.active
        if put is not None:
            put(warp, np.array([_bits_of(ballot)], np.uint32))
        decided = np.array_equal(ballot, warp.active) if "ALL" in modifiers else ballot.any()
        put_flag(warp, np.array([decided]))

    return run


@_makes("SHFL")
def _shuffle(modifiers: list[str], operands: tuple[str, ...]) -> Run:
    _only(modifiers, "UP", "DOWN", "BFLY", "IDX")
    put_flag, put = write_flag(operands[0]), write(operands[1])
    value, distance, bounds = map(source, operands[2:5])

    def run(warp: Warp) -> None:
        by, bound = distance(warp) & np.uint32(31), bounds(warp)
        segment, clamp = bound >> np.uint32(8) & np.uint32(31), bound & np.uint32(31)
        most = _LANE & segment | clamp & ~segment
        least = _LANE & segment
        place = _LANE.astype(np.int64)
        if modifiers[0] == "UP":
            place = place - by
            inside = place >= most
        elif modifiers[0] == "DOWN":
            place = place + by
            inside = place <= most
        elif modifiers[0] == "BFLY":
            place = place ^ by
            inside = place <= most
        else:
            place = (least | by & ~segment).astype(np.int64)
            inside = place <= most
        given = np.broadcast_to(value(warp), LANES)
        put(warp, given[np.where(inside, place, _LANE)])
        put_flag(warp, inside)

    return run


@_makes("MATCH")
def _match(_: list[str], operands: tuple[str, ...]) -> Run:
    put, value = write(operands[-2]), source(operands[-1])

    def run(warp: Warp) -> None:
        words = np.broadcast_to(value(warp), LANES)
        same = (words[:, None] == words) & warp.active
        put(warp, np.packbits(same, axis=1, bitorder="little").view(np.uint32).ravel())

    return run


@_makes("REDUX")
def _reduce(modifiers: list[str], operands: tuple[str, ...]) -> Run:
    _only(modifiers, "SUM", "OR", "AND", "XOR", "MIN", "MAX", "S32")
    put, value = write(operands[0]), source(operands[1])
    operation = {"SUM": np.add, "OR": np.bitwise_or, "AND": np.bitwise_and, "XOR": np.bitwise_xor}
    operation |= {"MIN": np.minimum, "MAX": np.maximum}
    function = next((operation[name] for name in modifiers if name in operation), np.bitwise_and)
    signed = "S32" in modifiers

    def run(warp: Warp) -> None:
        words = np.broadcast_to(value(warp), LANES)[warp.active]
        result = function.reduce(words.view(np.int32) if signed else words)
        put(warp, np.array([int(result) & 0xFFFFFFFF], np.uint32))

    return run


# --- Memory -----------------------------------------------------------------------------------------------------------

_NBYTES = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}


def _access(modifiers: list[str]) -> tuple[int, bool]:
    """Return how many bytes a lane reads or writes and whether they are extended by their sign."""
    return next(((_NBYTES[name], name[0] == "S") for name in modifiers if name in _NBYTES), (4, False))


def _make_load(shared: bool) -> Make:
    def make(modifiers: list[str], operands: tuple[str, ...]) -> Run:
        nbytes, signed = _access(modifiers)
        where = address(operands[-1], wide=not shared)
        puts = [write(operands[0], word) for word in range(max(nbytes // 4, 1))]

        def run(warp: Warp) -> None:
            memory = warp.block.shared if shared else warp.block.generic
            content = memory.load(where(warp), nbytes, warp.active)
            if nbytes < 4:
                words = content.view(f"{'i' if signed else 'u'}{nbytes}").astype(np.int64).astype(np.uint32)
            else:
                words = content.view(np.uint32)
            for put, column in zip(puts, words.T, strict=True):
                put(warp, column)

        return run

    return make


def _make_store(shared: bool) -> Make:
    def make(modifiers: list[str], operands: tuple[str, ...]) -> Run:
        nbytes, _ = _access(modifiers)
        where = address(operands[0], wide=not shared)
        words = [source(operands[1], word) for word in range(max(nbytes // 4, 1))]

        def run(warp: Warp) -> None:
            memory = warp.block.shared if shared else warp.block.generic
            values = np.stack([np.broadcast_to(word(warp), LANES) for word in words], axis=1)
            memory.store(where(warp), values.view(np.uint8)[:, :nbytes], warp.active)

        return run

    return make


def _make_atomic(shared: bool) -> Make:
    def make(modifiers: list[str], operands: tuple[str, ...]) -> Run:
        place = next(number for number, text in enumerate(operands) if "[" in text)
        where = address(operands[place], wide=not shared)
        nbytes = 8 if "64" in modifiers else 4
        word = np.dtype(f"u{nbytes}")
        targets = [text for text in operands[:place] if not is_flag(text)]
        puts = [_write_wide(text) if nbytes == 8 else write(text) for text in targets]
        values = [_wide(text) if nbytes == 8 else source(text) for text in operands[place + 1 :]]
        kind = next(name for name in modifiers if name in _ATOMICS)

        def run(warp: Warp) -> None:
            memory = warp.block.shared if shared else warp.block.generic
            given = [np.broadcast_to(value(warp), LANES) for value in values]
            addresses, before = where(warp), np.zeros(LANES, word)
            for lane in np.flatnonzero(warp.active):
                only = np.arange(LANES) == lane
                before[lane] = memory.load(addresses, nbytes, only).view(word)[lane, 0]
                new = _ATOMICS[kind](int(before[lane]), *(int(value[lane]) for value in given)) % 2 ** (8 * nbytes)
                memory.store(addresses, np.full((LANES, 1), new, word).view(np.uint8), only)
            for put in puts:
                put(warp, before)

        return run

    return make


_ATOMICS: dict[str, Callable[..., int]] = {
    "ADD": lambda old, value: old + value,
    "MAX": max,
    "MIN": min,
    "OR": lambda old, value: old | value,
    "AND": lambda old, value: old & value,
    "XOR": lambda old, value: old ^ value,
    "EXCH": lambda _, value: value,
    "CAS": lambda old, expected, value: value if old == expected else old,
    "INC": lambda old: old + 1,  # ATOMS.POPC.INC
}

_MAKERS |= {"LDG": _make_load(False), "LD": _make_load(False), "LDS": _make_load(True)}
_MAKERS |= {"STG": _make_store(False), "ST": _make_store(False), "STS": _make_store(True)}
_MAKERS |= dict.fromkeys(("ATOMG", "ATOM", "RED", "REDG"), _make_atomic(False)) | {"ATOMS": _make_atomic(True)}
