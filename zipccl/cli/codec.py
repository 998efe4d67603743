"""zipccl bench codec: each instruction set's encoder and decoder, memcpy, and other compressors."""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import zipccl
from zipccl.arrays import numpy_dtype
from zipccl.cli import data, peers, plots, table
from zipccl.cli import options as common
from zipccl.cli.peers import Peer
from zipccl.cli.table import Column
from zipccl.codec import wire
from zipccl.codec.base import Codec
from zipccl.codec.reference import ReferenceCodec
from zipccl.codec.wire import DType
from zipccl.errors import ArgumentError, ZipcclError

if TYPE_CHECKING:
    from zipccl.cli.options import Subparsers

_SIZES = ("256K", "8M", "128M")
"""What is measured by default: what fits in a level 2 cache, in a level 3 cache, and in neither."""

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")

_REFERENCE_MAX_NBYTES = 64 << 10
"""Size up to which --isa all includes the reference codec, which is some thousand times slower."""

_MIN_TURN_NBYTES = 4 << 20
"""Bytes that are coded before it is the next one's turn."""

_MAX_CACHED_NBYTES = 32 << 20
"""Size up to which a turn starts with a call that is not measured, for what the others left in the caches."""

_LEAST_COUNTED_NBYTES = 1 << 10
"""What a smaller array counts as, so that a turn ends."""

_COLUMNS = (
    Column("size", "(B)", 12),
    Column("count", "(elements)", 13),
    Column("type", "", 13),
    Column("codec", "", 11),
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
    """What was measured of one codec at one size; seconds are of each iteration."""

    nbytes: int
    count: int
    type: str
    codec: str
    encode_seconds: list[float]
    decode_seconds: list[float]
    memcpy_seconds: list[float]
    wrong: int | None
    payload_nbytes: int

    @property
    def ratio(self) -> float | None:
        return self.nbytes / self.payload_nbytes if self.payload_nbytes else None

    def line(self) -> str:
        """Return the table's line."""
        memcpy = median(self.memcpy_seconds)
        cells = [str(self.nbytes), str(self.count), self.type, self.codec]
        for seconds in (median(self.encode_seconds), median(self.decode_seconds)):
            cells += [
                table.microseconds(seconds),
                table.gigabytes_per_second(self.rate(seconds)),
                table.quotient(memcpy / seconds),
            ]
        cells += [
            table.number(self.wrong),
            table.quotient(self.ratio),
            str(self.payload_nbytes),
            table.gigabytes_per_second(self.rate(memcpy)),
        ]
        return table.row(_COLUMNS, cells)

    def rate(self, seconds: float) -> float:
        """Return the GB/s of uncompressed bytes at that time."""
        return self.nbytes / 1e9 / seconds


def add_parser(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "codec",
        help="the encoder and the decoder of each instruction set, and other compressors",
        description="Measure encoder and decoder in turns with a memcpy of the same bytes; times are "
        "medians, rates are of uncompressed bytes, and the decoded bits are compared.",
        epilog="Columns: /memcpy is the codec's rate per memcpy's; ratio is size per payload, without zipccl's header. "
        "Exit status: 1 if a value is wrong.",
    )
    common.add_size_options(parser, *_SIZES)
    common.add_run_options(parser, "bfloat16", iters=20, warmup_iters=5)
    parser.add_argument(
        "--isa", default="all", metavar="NAME",
        help=f"{', '.join(_native_isas())}{', ' * bool(_native_isas())}reference, or all; all has the reference only "
        "for sizes up to 64K (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--threads", type=_thread_counts, default=[1], metavar="N[,N...]",
        help="threads of the native codecs, each number in its turn (default: 1; peers and memcpy have one)",
    )  # fmt: skip
    parser.add_argument(
        "--peers", action="store_true",
        help=f"measure {', '.join(peer.name for peer in peers.PEERS)} as well, where they are installed, by their "
        "Python calls",
    )  # fmt: skip
    parser.add_argument(
        "--plot", metavar="FILE", help="draw speed against ratio to FILE, by its ending a PNG, SVG or PDF"
    )
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Measure, print and return the exit status."""
    sizes = common.sizes(options)
    try:
        codecs = _codecs(options.isa, options.threads)
        tile = data.load(options.data, options.datatype, max(sizes) // options.datatype.itemsize)
        common.check_output_file(options)
        if options.plot is not None:
            plots.check(options.plot)
    except ZipcclError as error:
        options.parser.error(str(error))
    missing: list[str] = []
    others = list(peers.available(options.datatype, missing.append)) if options.peers else []
    if others:
        peers.keep_memory()
    facts = {
        "zipccl": zipccl.__version__,
        "bench": f"codec, threads: {', '.join(map(str, options.threads))}",
        "sizes": common.describe(options),
        "caches": _caches(),
        "data": tile.description,
        "times": "medians over iterations; encoders, decoders and memcpy take turns, of 4 MiB or one call",
    }
    if options.peers:
        facts["peers"] = ", ".join(f"{peer.name} {peer.version}" for peer in others) or "none"
    for name, value in facts.items():
        print(f"# {name:<6}  {value}")
    for reason in missing:
        print(f"# left out: {reason}")
    print("#", *table.header(_COLUMNS), sep="\n", flush=True)
    rows = []
    for nbytes in sizes:
        few = [codec for codec in codecs if not _is_too_slow(codec, codecs, nbytes)]
        for row in _measure(few, others, tile, nbytes // options.datatype.itemsize, options):
            rows.append(row)
            print(row.line(), flush=True)
    wrong = sum(row.wrong or 0 for row in rows) if options.check else None
    print(*table.footer(wrong), sep="\n")
    if options.output_file is not None:
        document = {"facts": facts, "wrong": wrong, "rows": [asdict(row) for row in rows]}
        Path(options.output_file).write_text(json.dumps(document, indent=1) + "\n")
    if options.plot is not None:
        plots.speeds([_point(row) for row in rows], f"{options.datatype.name}, {tile.description}", Path(options.plot))
    return 1 if wrong else 0


def _native_isas() -> tuple[str, ...]:
    try:
        from zipccl.codec.native import supported_isas
    except ImportError:
        return ()
    return supported_isas()


def _thread_counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise argparse.ArgumentTypeError(f"expected numbers of threads, 1 or more, with commas; found {text!r}")
    return counts


def _codecs(isa: str, threads: Sequence[int]) -> list[Codec]:
    names = (*_native_isas(), ReferenceCodec.name)
    if isa not in (*names, "all"):
        raise ArgumentError(f"argument --isa: expected one of {', '.join(names)} or all, found {isa!r}")
    return [codec for name in names if isa in (name, "all") for codec in _codecs_named(name, threads)]


def _codecs_named(name: str, threads: Sequence[int]) -> list[Codec]:
    if name == ReferenceCodec.name:
        return [ReferenceCodec()]
    from zipccl.codec.native import NativeCodec

    return [NativeCodec(name, count) for count in threads]


def _is_too_slow(codec: Codec, codecs: Sequence[Codec], nbytes: int) -> bool:
    return codec.name == ReferenceCodec.name and len(codecs) > 1 and nbytes > _REFERENCE_MAX_NBYTES


def _caches() -> str:
    """Return the sizes of the first core's caches, as Linux tells them."""
    found = []
    for index in sorted(_CACHES.glob("index*")):
        try:
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        if kind != "Instruction":
            found.append(f"L{level} {size}")
    return ", ".join(found) or "not known"


@dataclass
class _Buffers:
    """The memory that one size is measured in: zipccl's codecs use the same, peers only read source."""

    source: NDArray[Any]
    body: NDArray[np.uint8]
    target: NDArray[Any]

    @classmethod
    def of(cls, tile: data.Tile, count: int, dtype: DType) -> _Buffers:
        source = np.empty(count, numpy_dtype(dtype))
        tile.fill(source, 0)
        return cls(source, np.zeros(wire.body_nbytes_bound(count, dtype), np.uint8), np.zeros_like(source))


class _Contender:
    """One of zipccl's codecs on the buffers of a size."""

    def __init__(self, codec: Codec, buffers: _Buffers, dtype: DType) -> None:
        self.name = codec.name
        self.payload_nbytes = 0
        self._codec = codec
        self._dtype = dtype
        self._buffers = buffers
        self._source, self._body, self._target = (
            array.ctypes.data for array in (buffers.source, buffers.body, buffers.target)
        )
        self._nbytes, self._count = buffers.source.nbytes, buffers.source.size

    def prepare(self) -> None:
        """Do what must precede an encode and is not measured."""

    def encode(self) -> None:
        self.payload_nbytes = self._codec.encode_body(self._dtype, self._source, self._count, self._body)

    def decode(self) -> None:
        # A body as large as the values is not coded, and what receives one copies it.
        if self.payload_nbytes == self._nbytes:
            ctypes.memmove(self._target, self._body, self._nbytes)
        else:
            self._codec.decode_body(self._dtype, self._body, self.payload_nbytes, self._target, self._count)

    def decoded(self) -> NDArray[Any]:
        """Encode and decode once more, and return the values."""
        self._buffers.target.view(np.uint8).fill(0xA5)
        self.encode()
        self.decode()
        return self._buffers.target


class _PeerContender:
    """A peer on the buffers of a size."""

    def __init__(self, peer: Peer, buffers: _Buffers) -> None:
        self.name = peer.name
        self.payload_nbytes = 0
        self._peer = peer
        self._original = buffers.source.view(np.uint8)
        self._source = self._original.copy() if peer.overwrites_source else self._original
        self._payload = b""
        self._result: Any = None
        self._dtype = buffers.source.dtype

    def prepare(self) -> None:
        if self._peer.overwrites_source:
            self._source[:] = self._original

    def encode(self) -> None:
        self._payload = self._peer.encode(self._source)
        self.payload_nbytes = len(self._payload)

    def decode(self) -> None:
        self._result = self._peer.decode(self._payload)

    def decoded(self) -> NDArray[Any]:
        self.prepare()
        self.encode()
        self.decode()
        return np.frombuffer(self._result, np.uint8).view(self._dtype)


def _measure(
    codecs: Sequence[Codec], others: Sequence[Peer], tile: data.Tile, count: int, options: argparse.Namespace
) -> list[Row]:
    dtype = options.datatype
    buffers = _Buffers.of(tile, count, dtype)
    nbytes = buffers.source.nbytes
    contenders: list[_Contender | _PeerContender] = [_Contender(codec, buffers, dtype) for codec in codecs]
    contenders += [_PeerContender(peer, buffers) for peer in others]
    # Small arrays are done several times in a row, so that they are in the cache that they fit in.
    several = max(1, _MIN_TURN_NBYTES // max(_LEAST_COUNTED_NBYTES, nbytes))
    memcpy: list[float] = []
    encode: list[list[float]] = [[] for _ in contenders]
    decode: list[list[float]] = [[] for _ in contenders]
    source, target = buffers.source.ctypes.data, buffers.target.ctypes.data

    def copy() -> None:
        ctypes.memmove(target, source, nbytes)

    for iteration in range(options.warmup_iters + options.iters):
        is_measured = iteration >= options.warmup_iters
        for contender, encode_seconds, decode_seconds in zip(contenders, encode, decode, strict=True):
            calls = 1 if contender.name == ReferenceCodec.name else several
            if nbytes <= _MAX_CACHED_NBYTES:
                contender.prepare()
                contender.encode()
                contender.decode()
            encoding = _time_prepared(contender, calls)
            decoding = _time(contender.decode, calls)
            if is_measured:
                encode_seconds.append(encoding)
                decode_seconds.append(decoding)
        if nbytes <= _MAX_CACHED_NBYTES:
            copy()
        copying = _time(copy, several)
        if is_measured:
            memcpy.append(copying)
    return [
        Row(
            nbytes=nbytes,
            count=count,
            type=dtype.name,
            codec=contender.name,
            encode_seconds=encode_seconds,
            decode_seconds=decode_seconds,
            memcpy_seconds=memcpy,
            wrong=_count_wrong(contender, tile, options.check),
            payload_nbytes=contender.payload_nbytes,
        )
        for contender, encode_seconds, decode_seconds in zip(contenders, encode, decode, strict=True)
    ]


def _time(call: Callable[[], None], calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls


def _time_prepared(contender: _Contender | _PeerContender, calls: int) -> float:
    if isinstance(contender, _Contender):
        return _time(contender.encode, calls)
    total = 0.0
    for _ in range(calls):
        contender.prepare()
        total += _time(contender.encode, 1)
    return total / calls


def _count_wrong(contender: _Contender | _PeerContender, tile: data.Tile, times: int) -> int | None:
    if times == 0:
        return None
    return sum(tile.count_wrong(contender.decoded(), 0) for _ in range(times))


def _point(row: Row) -> plots.Speed:
    encode, decode, memcpy = (
        row.rate(median(seconds)) for seconds in (row.encode_seconds, row.decode_seconds, row.memcpy_seconds)
    )
    return plots.Speed(row.nbytes, row.codec, row.ratio or 1.0, encode, decode, memcpy)
