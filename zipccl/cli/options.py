"""What the benchmarks' options have in common: nccl-tests' letters, sizes and names of dtypes."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from zipccl.codec import wire
from zipccl.codec.wire import DType
from zipccl.errors import ArgumentError

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_NCCL_NAMES = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
}


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[Parser]


def add_size_options(parser: Parser, *default: str) -> None:
    """Add -b, -e, -i and -f; ``sizes`` reads them.

    Args:
        default: the sizes where none is asked for.
    """
    parser.add_argument(
        "-b", "--minbytes", type=nbytes, default=default[0] if len(default) == 1 else None, metavar="SIZE",
        help=f"first size in bytes; K, M and G are binary (default: {', '.join(default)})",
    )  # fmt: skip
    parser.add_argument("-e", "--maxbytes", type=nbytes, metavar="SIZE", help="last size (default: the first)")
    step = parser.add_mutually_exclusive_group()
    step.add_argument(
        "-i", "--stepbytes", type=positive_nbytes, default="1M", metavar="SIZE",
        help="what a size adds to the one before (default: %(default)s)",
    )  # fmt: skip
    step.add_argument("-f", "--stepfactor", type=_factor, metavar="N", help="what it is multiplied by instead")
    parser.set_defaults(default_sizes=[nbytes(size) for size in default])


def add_run_options(parser: Parser, dtype: str, iters: int, warmup_iters: int) -> None:
    """Add -n, -w, -c, -d, -J and --data."""
    parser.add_argument(
        "-n", "--iters", type=positive, default=iters, metavar="N", help="timed iterations (default: %(default)s)"
    )
    parser.add_argument(
        "-w", "--warmup_iters", type=count, default=warmup_iters, metavar="N",
        help="iterations before them that are not timed (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "-c", "--check", type=count, default=1, metavar="N",
        help="iterations after them whose results are checked bit for bit, 0 for none (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "-d", "--datatype", type=datatype, default=dtype, metavar="TYPE",
        help=f"one of {', '.join(dtype.name for dtype in wire.DTYPES)}, or nccl-tests' names "
        f"{', '.join(_NCCL_NAMES)} (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("-J", "--output_file", metavar="FILE", help="write all that was measured to FILE as JSON")
    parser.add_argument(
        "--data", default="sample", metavar="SOURCE",
        help="sample (gradients of a language model, shipped with zipccl), normal, random (bits), zeros, FILE.npy "
        "(floats; uint16 are bfloat16 bit patterns) or FILE.safetensors (its float tensors); values repeat up to the "
        "size, and each rank starts at another one (default: %(default)s)",
    )  # fmt: skip


def sizes(options: argparse.Namespace) -> list[int]:
    """Return the sizes in bytes that the options ask for."""
    if options.minbytes is None:
        if options.maxbytes is not None:
            options.parser.error("argument -e: expected with -b, the first size")
        return list(options.default_sizes)
    first: int = options.minbytes
    last: int = first if options.maxbytes is None else options.maxbytes
    if first > last:
        options.parser.error(f"argument -b: {first} bytes is more than {last}, the last size (-e)")
    if options.stepfactor is None:
        return list(range(first, last + 1, options.stepbytes))
    if first == 0:
        options.parser.error("argument -b: 0 cannot be multiplied by -f; expected at least 1")
    result = []
    while first <= last:
        result.append(first)
        first *= options.stepfactor
    return result


def check_output_file(options: argparse.Namespace) -> None:
    """Find out whether results can be written before they are measured.

    Raises:
        ArgumentError: they cannot.
    """
    if options.output_file is not None:
        try:
            Path(options.output_file).open("a").close()
        except OSError as error:
            raise ArgumentError(f"argument -J: {error}") from None


def describe(options: argparse.Namespace) -> str:
    """Return the line of a table's header that tells the sizes and iterations."""
    asked = sizes(options)
    step = f"{options.stepbytes}(bytes)" if options.stepfactor is None else f"{options.stepfactor}(factor)"
    which = f"minBytes {options.minbytes} maxBytes {asked[-1]} step: {step}"
    if options.minbytes is None:
        which = f"{' '.join(map(str, asked))} bytes"
    return f"{which} warmup iters: {options.warmup_iters} iters: {options.iters} validation: {options.check}"


def nbytes(text: str) -> int:
    """Read a size such as 512, 64K or 1.5G."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)", text.upper(), re.ASCII)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected bytes such as 512, 64K, 64M or 1G, found {text!r}")
    return int(float(match[1]) * _UNITS[match[2]])


def positive_nbytes(text: str) -> int:
    """Read a size of at least one byte."""
    value = nbytes(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1 byte, found {text!r}")
    return value


def count(text: str) -> int:
    """Read a whole number that is not negative."""
    return _integer(text, 0)


def positive(text: str) -> int:
    """Read a whole number of at least 1."""
    return _integer(text, 1)


def seconds(text: str) -> float:
    """Read a time of more than 0 seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"expected seconds, more than 0, found {text!r}")
    return value


def datatype(text: str) -> DType:
    """Read the name of a dtype, zipccl's or nccl-tests'."""
    name = _NCCL_NAMES.get(text, text)
    for dtype in wire.DTYPES:
        if dtype.name == name:
            return dtype
    names = ", ".join([*(dtype.name for dtype in wire.DTYPES), *_NCCL_NAMES])
    raise argparse.ArgumentTypeError(f"expected one of {names}, found {text!r}")


def _factor(text: str) -> int:
    return _integer(text, 2)


def _integer(text: str, least: int) -> int:
    if not re.fullmatch(r"\d+", text, re.ASCII) or int(text) < least:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least {least}, found {text!r}")
    return int(text)
