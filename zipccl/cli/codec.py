"""zipccl bench codec: each instruction set's encoder and decoder against memcpy, on one thread."""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

import zipccl
from zipccl.arrays import numpy_dtype
from zipccl.cli import data, table
from zipccl.cli import options as common
from zipccl.cli.table import Column
from zipccl.codec import wire
from zipccl.codec.base import Codec
from zipccl.codec.reference import ReferenceCodec
from zipccl.errors import ArgumentError, ZipcclError

if TYPE_CHECKING:
    from zipccl.cli.options import Subparsers

_REFERENCE_MAX_NBYTES = 64 << 10
"""Size up to which --isa all includes the reference codec, which is some thousand times slower."""

_MIN_TURN_NBYTES = 4 << 20
"""Bytes that are coded before it is the next one's turn."""

_MAX_TURN_CALLS = 256

_COLUMNS = (
    Column("size", "(B)", 12),
    Column("count", "(elements)", 13),
    Column("type", "", 13),
    Column("isa", "", 10),
    *(
        column
        for group in ("encode", "decode")
        for column in (
            Column("time", "(us)", 8, group),
            Column("bw", "(GB/s)", 7, group),
            Column("/memcpy", "", 8, group),
        )
    ),
    Column("#wrong", "", 7),
    Column("ratio", "", 7),
    Column("payload", "(B)", 12),
    Column("memcpy", "(GB/s)", 7),
)


@dataclass
class Row:
    """What was measured at one size with one instruction set; seconds are of each iteration."""

    nbytes: int
    count: int
    type: str
    isa: str
    encode_seconds: list[float]
    decode_seconds: list[float]
    memcpy_seconds: list[float]
    wrong: int | None
    body_nbytes: int

    def line(self) -> str:
        """Return the table's line."""
        memcpy = median(self.memcpy_seconds)
        cells = [str(self.nbytes), str(self.count), self.type, self.isa]
        for seconds in (median(self.encode_seconds), median(self.decode_seconds)):
            cells += [
                table.microseconds(seconds),
                table.gigabytes_per_second(self.nbytes / 1e9 / seconds),
                table.quotient(memcpy / seconds),
            ]
        cells += [
            table.number(self.wrong),
            table.quotient(self.nbytes / self.body_nbytes if self.body_nbytes else None),
            str(self.body_nbytes),
            table.gigabytes_per_second(self.nbytes / 1e9 / memcpy),
        ]
        return table.row(_COLUMNS, cells)


def add_parser(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "codec",
        help="the encoder and the decoder of each instruction set",
        description="Measure encoder and decoder on one thread, in turns with a memcpy of the same bytes; times are "
        "medians, rates are of uncompressed bytes, and the decoded bits are compared.",
        epilog="Columns: /memcpy is the codec's rate per memcpy's; ratio is size per payload, without its header. "
        "Exit status: 1 if a value is wrong.",
    )
    common.add_size_options(parser, "512K")
    common.add_run_options(parser, "bfloat16", iters=20, warmup_iters=5)
    parser.add_argument(
        "--isa", default="all", metavar="NAME",
        help=f"{', '.join(_native_isas())}{', ' * bool(_native_isas())}reference, or all; all has the reference only "
        "for sizes up to 64K (default: %(default)s)",
    )  # fmt: skip
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Measure, print and return the exit status."""
    sizes = common.sizes(options)
    try:
        codecs = _codecs(options.isa)
        tile = data.load(options.data, options.datatype, max(sizes) // options.datatype.itemsize)
        common.check_output_file(options)
    except ZipcclError as error:
        options.parser.error(str(error))
    facts = {
        "zipccl": zipccl.__version__,
        "bench": "codec, one thread",
        "sizes": common.describe(options),
        "data": tile.description,
        "times": "medians over iterations; encode, decode and memcpy take turns, of 4 MiB or one call",
    }
    for name, value in facts.items():
        print(f"# {name:<6}  {value}")
    print("#", *table.header(_COLUMNS), sep="\n", flush=True)
    rows = []
    for nbytes in sizes:
        for codec in codecs:
            if codec.name == "reference" and len(codecs) > 1 and nbytes > _REFERENCE_MAX_NBYTES:
                continue
            rows.append(_measure(codec, tile, nbytes // options.datatype.itemsize, options))
            print(rows[-1].line(), flush=True)
    wrong = sum(row.wrong or 0 for row in rows) if options.check else None
    print(*table.footer(wrong), sep="\n")
    if options.output_file is not None:
        document = {"facts": facts, "wrong": wrong, "rows": [asdict(row) for row in rows]}
        Path(options.output_file).write_text(json.dumps(document, indent=1) + "\n")
    return 1 if wrong else 0


def _native_isas() -> tuple[str, ...]:
    try:
        from zipccl.codec.native import supported_isas
    except ImportError:
        return ()
    return supported_isas()


def _codecs(isa: str) -> list[Codec]:
    names = (*_native_isas(), ReferenceCodec.name)
    if isa not in (*names, "all"):
        raise ArgumentError(f"argument --isa: expected one of {', '.join(names)} or all, found {isa!r}")
    return [_codec(name) for name in names if isa in (name, "all")]


def _codec(name: str) -> Codec:
    if name == ReferenceCodec.name:
        return ReferenceCodec()
    from zipccl.codec.native import NativeCodec

    return NativeCodec(name)


def _measure(codec: Codec, tile: data.Tile, count: int, options: argparse.Namespace) -> Row:
    dtype = options.datatype
    source = np.empty(count, numpy_dtype(dtype))
    tile.fill(source, 0)
    target = np.zeros_like(source)
    body = np.zeros(wire.body_nbytes_bound(count, dtype), np.uint8)
    copied = np.zeros_like(source)
    body_nbytes = 0

    addresses = [array.ctypes.data for array in (source, body, target, copied)]
    source_address, body_address, target_address, copied_address = addresses

    def encode() -> None:
        nonlocal body_nbytes
        body_nbytes = codec.encode_body(dtype, source_address, count, body_address)

    def decode() -> None:
        # A body as large as the values is not coded, and what receives one copies it.
        if body_nbytes == source.nbytes:
            ctypes.memmove(target_address, body_address, body_nbytes)
        else:
            codec.decode_body(dtype, body_address, body_nbytes, target_address, count)

    def copy() -> None:
        ctypes.memmove(copied_address, source_address, source.nbytes)

    turns: tuple[Callable[[], None], ...] = (encode, decode, copy)
    seconds: list[list[float]] = [[] for _ in turns]
    # Small arrays are done several times in a row, so that they are in the cache that they fit in.
    calls = min(max(1, _MIN_TURN_NBYTES // max(1, source.nbytes)), _MAX_TURN_CALLS)
    for iteration in range(options.warmup_iters + options.iters):
        for call, measured in zip(turns, seconds, strict=True):
            begin = time.perf_counter()
            for _ in range(calls):
                call()
            duration = (time.perf_counter() - begin) / calls
            if iteration >= options.warmup_iters:
                measured.append(duration)
    wrong = 0
    for _ in range(options.check):
        target.view(np.uint8).fill(0xA5)
        encode()
        decode()
        wrong += tile.count_wrong(target, 0)
    return Row(
        nbytes=source.nbytes,
        count=count,
        type=dtype.name,
        isa=codec.name,
        encode_seconds=seconds[0],
        decode_seconds=seconds[1],
        memcpy_seconds=seconds[2],
        wrong=wrong if options.check else None,
        body_nbytes=body_nbytes,
    )
