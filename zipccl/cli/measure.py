"""What each rank does in ``zipccl bench COLLECTIVE``: all ways to call a collective in turns, then the checks."""

from __future__ import annotations

import argparse
import faulthandler
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import zipccl
from zipccl import Communicator
from zipccl.arrays import numpy_dtype
from zipccl.cli import data, report, table
from zipccl.cli import options as common
from zipccl.cli.collectives import COLLECTIVES, Collective
from zipccl.cli.report import Place, Row, Side
from zipccl.codec import default_codec
from zipccl.codec.wire import DType
from zipccl.config import codec_threads

Array = NDArray[Any]
Way = tuple[Callable[[], None], Callable[[], None]]
"""What prepares a call, and the call that is timed."""

_CACHE_LINE = 64
_POISON = 0xA5
"""What every byte of an output is before a call whose result is checked."""

_PROGRESS_DELAY = 2.0
"""Seconds after which a sweep is long enough for a progress line."""


def measure(communicator: Communicator, options: argparse.Namespace) -> int:
    """Measure what the options say, print it on rank 0, and return how many values were wrong, on all ranks."""
    mpi = MPI.COMM_WORLD.Dup()
    asked = common.sizes(options)
    tile = data.load(options.data, options.datatype, max_count=max(asked) // options.datatype.itemsize)
    collective = COLLECTIVES[options.collective](
        communicator, mpi, options.datatype, tile, options.op, options.root, options.compress
    )
    bench = _Bench(collective, options)
    facts = _facts(collective, options)
    places = mpi.allgather(Place(communicator.node, socket.gethostname(), os.getpid()))
    started_for = options.started_for or "pipe"
    printing = communicator.rank == 0
    # A line of the table takes the place of a progress line on the same terminal.
    clear = "\r\033[K" if started_for == "progress+table" else ""
    if printing:
        print(*report.head(facts, places), sep="\n", flush=True)
    rows = []
    with _progress(bench.rounds * len(asked), shown=printing and started_for != "pipe") as advance:
        for nbytes in asked:
            if options.timeout is not None:
                faulthandler.dump_traceback_later(options.timeout, exit=True)
            rows.append(bench.row(nbytes, advance))
            if printing:
                print(clear + rows[-1].line(), flush=True)
    faulthandler.cancel_dump_traceback_later()
    wrong = report.count_wrong(rows)
    if printing:
        print(clear + "\n".join(table.footer(wrong)), flush=True)
        if options.output_file is not None:
            report.write_json(Path(options.output_file), facts, places, rows)
    mpi.Free()
    return wrong or 0


class _Bench:
    """The arrays of a run, made and touched once, and how a row is measured on them."""

    def __init__(self, collective: Collective, options: argparse.Namespace) -> None:
        self._collective = collective
        self._mpi = collective.mpi
        self._options = options
        self.rounds: int = options.warmup_iters + options.iters + options.check
        largest = collective.part_count(max(common.sizes(options)))
        self._x = _array(collective.dtype, collective.x_count(largest), options.unalign)
        self._out = _array(collective.dtype, collective.out_count(largest), options.unalign)
        collective.tile.fill(self._x, data.start_of(collective.rank))

    def row(self, nbytes: int, advance: Callable[[], None]) -> Row:
        """Measure one size; all ranks must call it."""
        collective, options = self._collective, self._options
        part = collective.part_count(nbytes)
        x, out = self._x[: collective.x_count(part)], self._out[: collective.out_count(part)]
        x_bytes, out_bytes = x.view(np.uint8), out.view(np.uint8)
        ours: list[Way] = [(_nothing, lambda: collective.run(x, out))]
        if collective.in_place:
            ours.append((lambda: collective.prepare_in_place(x, out), lambda: collective.run_in_place(out)))
        ways = [*ours, (_nothing, lambda: collective.run_mpi(x_bytes, out_bytes))]

        seconds: list[list[float]] = [[] for _ in ways]
        for iteration in range(options.warmup_iters + options.iters):
            for way, measured in zip(ways, seconds, strict=True):
                duration = self._time(way)
                if iteration >= options.warmup_iters:
                    measured.append(duration)
            advance()
        wrong = [0 if options.check else None for _ in ways]
        for _ in range(options.check):
            for number, way in enumerate(ours):
                out_bytes.fill(_POISON)
                self._time(way)
                wrong[number] = (wrong[number] or 0) + self._count_wrong(part, out)
            advance()
        sides = [Side(measured, wrong=count) for measured, count in zip(seconds, wrong, strict=True)]
        moved = max(x.nbytes, out.nbytes)
        for side in sides:
            side.set_bandwidths(moved, collective.bus_factor if collective.ranks > 1 else None)
        sent, most = self._sent()
        return Row(
            nbytes=moved,
            count=part,
            type=collective.dtype.name,
            op=collective.op,
            root=collective.root,
            out_of_place=sides[0],
            in_place=sides[1] if collective.in_place else None,
            mpi=sides[-1],
            raw_nbytes=int(sent[0]),
            wire_nbytes=int(sent[1]),
            most_wire_nbytes=int(most[1]),
        )

    def _time(self, way: Way) -> float:
        """Return the time that a call takes on the slowest rank."""
        prepare, call = way
        prepare()
        self._mpi.Barrier()
        begin = time.perf_counter()
        call()
        seconds = np.array(time.perf_counter() - begin)
        self._mpi.Allreduce(MPI.IN_PLACE, seconds, MPI.MAX)
        return float(seconds)

    def _count_wrong(self, part: int, out: Array) -> int:
        wrong = np.zeros(1, np.int64)
        for first, count, tile, start in self._collective.expected(part):
            wrong += tile.count_wrong(out[first : first + count], start)
        self._mpi.Allreduce(MPI.IN_PLACE, wrong, MPI.SUM)
        return int(wrong[0])

    def _sent(self) -> tuple[Array, Array]:
        """Return raw and wire bytes of the last call, over all ranks and of the rank that sent most."""
        last = self._collective.communicator.last
        own = np.array([last.raw_nbytes, last.wire_nbytes] if last else [0, 0], np.int64)
        total, most = np.empty_like(own), np.empty_like(own)
        self._mpi.Allreduce(own, total, MPI.SUM)
        self._mpi.Allreduce(own, most, MPI.MAX)
        return total, most


def _nothing() -> None:
    pass


def _array(dtype: DType, count: int, unalign: int) -> Array:
    """Return an array whose pages are mapped and that starts unalign elements after a cache line's start."""
    memory = np.empty((count + unalign) * dtype.itemsize + _CACHE_LINE, np.uint8)
    memory.fill(_POISON)
    start = -memory.ctypes.data % _CACHE_LINE + unalign * dtype.itemsize
    return memory[start : start + count * dtype.itemsize].view(numpy_dtype(dtype))


def _facts(collective: Collective, options: argparse.Namespace) -> dict[str, str]:
    nodes = len(set(collective.mpi.allgather(collective.communicator.node)))
    library = " ".join(MPI.Get_library_version().splitlines()[0].replace("\0", "").split())
    return {
        "zipccl": f"{zipccl.__version__}, codec {default_codec(codec_threads()).name}",
        "MPI": library,
        "bench": f"{options.collective}, {collective.ranks} ranks, {nodes} {'node' if nodes == 1 else 'nodes'}",
        "sizes": common.describe(options),
        "link": f"{options.link}, emulated" if options.link else "what there is between the ranks",
        "data": collective.tile.description,
        "compress": collective.compress,
        "baseline": collective.baseline,
        "times": "medians over iterations, each the slowest rank's; ours and MPI's take turns",
    }


@contextmanager
def _progress(total: int, *, shown: bool) -> Iterator[Callable[[], None]]:
    """Show a progress line while the context lasts, and give what advances it."""
    if shown:
        try:
            from tqdm import tqdm
        except ModuleNotFoundError:
            shown = False
    if not shown:
        yield _nothing
        return
    tqdm.monitor_interval = 0  # no thread beside what is measured
    with tqdm(total=total, file=sys.stderr, leave=False, ncols=80, delay=_PROGRESS_DELAY, unit="round") as bar:
        yield lambda: (bar.update(), None)[1]
