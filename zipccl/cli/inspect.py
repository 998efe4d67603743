"""zipccl inspect FILE: what a file's tensors compress to, and why."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import zipccl
from zipccl.arrays import numpy_dtype
from zipccl.cli import files, plots, table
from zipccl.cli import options as common
from zipccl.cli.table import Column
from zipccl.codec import wire
from zipccl.codec.wire import DType
from zipccl.errors import ArgumentError, UnsupportedArrayError
from zipccl.inspection import Inspection

if TYPE_CHECKING:
    from zipccl.cli.options import Subparsers

_NAME_WIDTH = 44
_COLUMNS = (
    Column("type", "", 13),
    Column("count", "(elements)", 13),
    Column("size", "(B)", 13),
    Column("payload", "(B)", 13),
    Column("ratio", "", 7),
    Column("zipccl", "", 7, "bits a value"),
    Column("one table", "(limit)", 9, "bits a value"),
    Column("7-window", "", 8, "bits a value"),
    Column("zero", "(%)", 6, "blocks that are"),
    Column("sparse", "(%)", 6, "blocks that are"),
    Column("raw", "(%)", 6, "blocks that are"),
)


def add_parser(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "inspect",
        help="show what a file's tensors compress to, and why",
        description="Show what the tensors of a .npy or .safetensors file compress to, and why: the entropy of their "
        "exponents, the kinds of block in their payloads, and what a Gaussian and the 7-window code would take.",
        epilog='One tensor gives a report, several a table. "one table" is the bits a value at the entropy of the '
        "whole tensor's exponents, which no code with one table for a tensor gets below unless it finds more than the "
        "exponents.",
    )
    parser.add_argument("file", metavar="FILE", help="FILE.npy or FILE.safetensors")
    parser.add_argument(
        "-d", "--datatype", type=common.datatype, metavar="TYPE",
        help="take the values for bits of TYPE: bfloat16 where a .npy file holds them as uint16",
    )  # fmt: skip
    parser.add_argument("--tensor", metavar="NAME", help="only this tensor of the file")
    parser.add_argument(
        "--plot", metavar="FILE", help="draw one tensor's exponents and blocks to FILE, by its ending a PNG, SVG or PDF"
    )
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Print what there is to know of each tensor."""
    try:
        if options.plot is not None:
            plots.check(options.plot)
        _inspect(options)
    except (ArgumentError, UnsupportedArrayError) as error:
        options.parser.error(str(error))
    return 0


def _inspect(options: argparse.Namespace) -> None:
    if not options.file.endswith(files.SUFFIXES):
        raise ArgumentError(f"argument FILE: expected a name that ends in .npy or .safetensors, found {options.file!r}")
    found = _inspections(options.file, options.tensor, options.datatype)
    first = next(found, None)
    if first is None:
        missing = "numbers" if options.tensor is None else f"tensor {options.tensor!r}"
        raise ArgumentError(f"{options.file} holds no {missing}")
    second = next(found, None)
    if second is None:
        name, inspection = first
        print(f"{options.file}: {name}" if options.file.endswith(".safetensors") else options.file)
        print(inspection)
        if options.plot is not None:
            plots.inspection(inspection, name, Path(options.plot))
        return
    if options.plot is not None:
        raise ArgumentError(f"argument --plot: {options.file} holds several tensors; choose one with --tensor")
    print(f"# {options.file}")
    for line in table.header(_COLUMNS):
        print(f"#{'tensor' if 'type' in line else '':<{_NAME_WIDTH - 1}} {line[1:]}".rstrip())
    total = _Total()
    for name, inspection in (first, second, *found):
        total.add(inspection)
        print(f"{_shortened(name):<{_NAME_WIDTH}}{table.row(_COLUMNS, _cells(inspection))}", flush=True)
    print(f"{'all':<{_NAME_WIDTH}}{table.row(_COLUMNS, total.cells())}")


def _inspections(source: str, tensor: str | None, dtype: DType | None) -> Iterator[tuple[str, Inspection]]:
    for name, array in files.tensors(source):
        if tensor in (None, name):
            yield name, zipccl.inspect(array if dtype is None else _as_bits_of(array, dtype, name))


def _as_bits_of(array: NDArray[Any], dtype: DType, name: str) -> NDArray[Any]:
    if array.itemsize != dtype.itemsize:
        raise ArgumentError(
            f"argument -d: {name} holds {array.dtype}, of {array.itemsize} bytes a value; {dtype.name} has "
            f"{dtype.itemsize}"
        )
    return np.ascontiguousarray(array).view(numpy_dtype(dtype))


class _Total:
    """The sums of a table's columns."""

    def __init__(self) -> None:
        self._nbytes = self._payload_nbytes = self._count = self._blocks = 0
        self._limit_bits = self._window_bits = 0.0
        self._kinds: dict[str, int] = {}
        self._dtypes: set[str] = set()

    def add(self, inspection: Inspection) -> None:
        self._dtypes.add(inspection.dtype)
        self._nbytes += inspection.nbytes
        self._payload_nbytes += inspection.payload_nbytes
        self._count += inspection.count
        plain = 8 * inspection.nbytes / max(1, inspection.count)
        self._limit_bits += inspection.count * (inspection.limit_bits_per_value or plain)
        self._window_bits += inspection.count * (inspection.window_bits_per_value or plain)
        self._blocks += inspection.count // wire.BLOCK_COUNT
        for kind in ("zero", "sparse", "raw"):
            self._kinds[kind] = self._kinds.get(kind, 0) + inspection.blocks_of(kind)

    def cells(self) -> list[str]:
        count = max(1, self._count)
        return [
            self._dtypes.pop() if len(self._dtypes) == 1 else "several",
            str(self._count),
            str(self._nbytes),
            str(self._payload_nbytes),
            table.quotient(self._nbytes / max(1, self._payload_nbytes)),
            table.quotient(8 * self._payload_nbytes / count),
            table.quotient(self._limit_bits / count),
            table.quotient(self._window_bits / count),
            *(_percent(blocks, self._blocks) for blocks in self._kinds.values()),
        ]


def _cells(inspection: Inspection) -> list[str]:
    blocks = inspection.count // wire.BLOCK_COUNT
    return [
        inspection.dtype,
        str(inspection.count),
        str(inspection.nbytes),
        str(inspection.payload_nbytes),
        table.quotient(inspection.ratio),
        table.quotient(inspection.bits_per_value),
        table.quotient(inspection.limit_bits_per_value),
        table.quotient(inspection.window_bits_per_value),
        *(_percent(inspection.blocks_of(kind), blocks) for kind in ("zero", "sparse", "raw")),
    ]


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}" if whole else table.NOT_AVAILABLE


def _shortened(name: str) -> str:
    return name if len(name) <= _NAME_WIDTH else f"...{name[3 - _NAME_WIDTH :]}"
