"""What ``zipccl bench COLLECTIVE`` prints and writes of what it measured."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

from zipccl.cli import table
from zipccl.cli.table import NOT_AVAILABLE, Column

_SIDES = ("out-of-place", "in-place")
COLUMNS = (
    Column("size", "(B)", 12),
    Column("count", "(elements)", 13),
    Column("type", "", 13),
    Column("redop", "", 6),
    Column("root", "", 6),
    *(
        column
        for side in _SIDES
        for column in (
            Column("time", "(us)", 8, side),
            Column("algbw", "(GB/s)", 7, side),
            Column("busbw", "(GB/s)", 7, side),
            Column("#wrong", "", 7, side),
        )
    ),
    Column("ratio", "", 7),
    Column("wire", "(B)", 12),
    Column("MPI", "(us)", 8),
    Column("vs raw", "", 7),
)


@dataclass
class Side:
    """What was measured of one way to call a collective.

    Attributes:
        seconds: of each iteration on its slowest rank.
        algbw, busbw: GB/s at the median; None where they mean nothing.
        wrong: values that differ from what they must be, over all ranks; None where they were not checked.
    """

    seconds: list[float]
    algbw: float | None = None
    busbw: float | None = None
    wrong: int | None = None
    median_seconds: float = field(init=False)

    def __post_init__(self) -> None:
        self.median_seconds = median(self.seconds)

    def set_bandwidths(self, nbytes: int, bus_factor: float | None) -> None:
        """Set them from what the median iteration moved; a single rank's bus has none."""
        self.algbw = nbytes / 1e9 / self.median_seconds
        self.busbw = None if bus_factor is None else self.algbw * bus_factor


@dataclass
class Row:
    """What was measured at one size.

    Attributes:
        count: values of one rank's part, as nccl-tests counts.
        raw_nbytes, wire_nbytes: what all ranks sent, before and after compression.
        most_wire_nbytes: what the rank sent that sent most.
    """

    nbytes: int
    count: int
    type: str
    op: str
    root: int
    out_of_place: Side
    in_place: Side | None
    mpi: Side
    raw_nbytes: int
    wire_nbytes: int
    most_wire_nbytes: int

    @property
    def ratio(self) -> float | None:
        return self.raw_nbytes / self.wire_nbytes if self.wire_nbytes else None

    @property
    def versus_raw(self) -> float:
        return self.mpi.median_seconds / self.out_of_place.median_seconds

    def line(self) -> str:
        """Return the table's line."""
        cells = [str(self.nbytes), str(self.count), self.type, self.op, str(self.root)]
        for side in (self.out_of_place, self.in_place):
            cells += [NOT_AVAILABLE] * 4 if side is None else _cells(side)
        cells += [
            table.quotient(self.ratio),
            str(self.most_wire_nbytes),
            table.microseconds(self.mpi.median_seconds),
            table.quotient(self.versus_raw),
        ]
        return table.row(COLUMNS, cells)


class Place(NamedTuple):
    """Where a rank runs."""

    node: int
    host: str
    pid: int


def count_wrong(rows: Sequence[Row]) -> int | None:
    """Return how many values were wrong; None where none was checked."""
    sides = [side for row in rows for side in (row.out_of_place, row.in_place) if side]
    counts = [side.wrong for side in sides if side.wrong is not None]
    return sum(counts) if counts else None


def head(facts: Mapping[str, str], places: Sequence[Place]) -> Iterator[str]:
    """Yield the lines above the first row."""
    width = max(map(len, facts))
    for name, value in facts.items():
        yield f"# {name:<{width}}  {value}"
    yield "#"
    yield "# Using ranks"
    for rank, place in enumerate(places):
        yield f"#  Rank {rank:2} on node {place.node:2} ({place.host}) pid {place.pid}"
    yield "#"
    yield from table.header(COLUMNS)


def write_json(path: Path, facts: Mapping[str, str], places: Sequence[Place], rows: Sequence[Row]) -> None:
    """Write all that was measured."""
    ranks = [{"rank": rank, **place._asdict()} for rank, place in enumerate(places)]
    results = [asdict(row) | {"ratio": row.ratio, "versus_raw": row.versus_raw} for row in rows]
    document = {"facts": dict(facts), "ranks": ranks, "wrong": count_wrong(rows), "rows": results}
    path.write_text(json.dumps(document, indent=1) + "\n")


def _cells(side: Side) -> list[str]:
    return [
        table.microseconds(side.median_seconds),
        table.gigabytes_per_second(side.algbw),
        table.gigabytes_per_second(side.busbw),
        table.number(side.wrong),
    ]
