"""Tables in the style of nccl-tests: lines that are no data start with #."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

NOT_AVAILABLE = "N/A"


class Column(NamedTuple):
    title: str
    unit: str
    width: int
    group: str = ""


def header(columns: Sequence[Column]) -> list[str]:
    """Return the lines above a table: groups of columns, titles and units."""
    groups = ""
    start = 0
    while start < len(columns):
        group = columns[start].group
        end = start + 1
        while end < len(columns) and columns[end].group == group:
            end += 1
        groups += group.center(sum(column.width + 1 for column in columns[start:end]))
        start = end
    titles = row(columns, [column.title for column in columns])
    units = row(columns, [column.unit for column in columns])
    return [("#" + line[1:]).rstrip() for line in (groups, titles, units)]


def row(columns: Sequence[Column], cells: Sequence[str]) -> str:
    """Return one line of a table."""
    return "".join(f" {cell:>{column.width}}" for column, cell in zip(columns, cells, strict=True))


def footer(wrong: int | None) -> list[str]:
    """Return the lines below a table.

    Args:
        wrong: how many values were wrong; None where none was checked.
    """
    verdict = "not checked" if wrong is None else f"{wrong} {'FAILED' if wrong else 'OK'}"
    return [f"# Out of bounds values : {verdict}", "#"]


def microseconds(seconds: float) -> str:
    """Format a time in at most seven characters, as long as it is below 10 s."""
    value = 1e6 * seconds
    return f"{value:.{0 if value >= 10000 else 1 if value >= 100 else 2}f}"


def gigabytes_per_second(value: float | None) -> str:
    """Format a bandwidth in units of 1e9 bytes per second."""
    return NOT_AVAILABLE if value is None else f"{value:.{2 if value < 1000 else 0}f}"


def number(value: int | None) -> str:
    """Format a count."""
    return NOT_AVAILABLE if value is None else str(value)


def quotient(value: float | None) -> str:
    """Format a ratio of two numbers."""
    return NOT_AVAILABLE if value is None else f"{value:.3f}"
