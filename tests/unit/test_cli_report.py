"""The bench's table: snapshots of what is printed, with no MPI."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zipccl.cli import report, table
from zipccl.cli.report import Place, Row, Side

HEADER = """\
#                                                                 out-of-place                       in-place
#        size         count          type  redop   root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong   ratio         wire      MPI  vs raw
#         (B)    (elements)                                 (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)                          (B)     (us)"""  # noqa: E501


def make_row(*, nbytes: int = 1 << 20, ranks: int = 2, in_place: bool = True, checked: bool = True) -> Row:
    """Make the row of an all-reduce whose times are known; the median is not the mean."""
    sides = []
    for microseconds in ([900.0, 1000.0, 5000.0], [500.0, 512.0, 520.0], [2000.0, 2100.0, 9000.0]):
        side = Side([value / 1e6 for value in microseconds], wrong=0 if checked else None)
        side.set_bandwidths(nbytes, 2 * (ranks - 1) / ranks if ranks > 1 else None)
        sides.append(side)
    return Row(
        nbytes=nbytes,
        count=nbytes // 2,
        type="bfloat16",
        op="sum",
        root=-1,
        out_of_place=sides[0],
        in_place=sides[1] if in_place else None,
        mpi=sides[2],
        raw_nbytes=nbytes * (ranks - 1),
        wire_nbytes=nbytes * (ranks - 1) * 2 // 3,
        most_wire_nbytes=nbytes // 3 if ranks > 1 else 0,
    )


def test_header() -> None:
    lines = list(report.head({"zipccl": "1.0", "data": "zeros"}, [Place(0, "alpha", 41), Place(1, "beta", 42)]))
    assert lines[:6] == [
        "# zipccl  1.0",
        "# data    zeros",
        "#",
        "# Using ranks",
        "#  Rank  0 on node  0 (alpha) pid 41",
        "#  Rank  1 on node  1 (beta) pid 42",
    ]
    assert "\n".join(lines[7:]) == HEADER


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            make_row(),
            "      1048576        524288      bfloat16    sum     -1   1000.0    1.05    1.05       0    512.0    2.05"
            "    2.05       0   1.500       349525   2100.0   2.100",
        ),
        (
            make_row(in_place=False, checked=False),
            "      1048576        524288      bfloat16    sum     -1   1000.0    1.05    1.05     N/A      N/A     N/A"
            "     N/A     N/A   1.500       349525   2100.0   2.100",
        ),
        (
            make_row(ranks=1),
            "      1048576        524288      bfloat16    sum     -1   1000.0    1.05     N/A       0    512.0    2.05"
            "     N/A       0     N/A            0   2100.0   2.100",
        ),
        (
            make_row(nbytes=0),
            "            0             0      bfloat16    sum     -1   1000.0    0.00    0.00       0    512.0    0.00"
            "    0.00       0     N/A            0   2100.0   2.100",
        ),
    ],
    ids=["usual", "neither in place nor checked", "one rank", "no bytes"],
)
def test_rows(row: Row, expected: str) -> None:
    assert row.line() == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.0, "0.00"),
        (1.234e-6, "1.23"),
        (99.99e-6, "99.99"),
        (123.46e-6, "123.5"),
        (0.012346, "12346"),
        (9.0, "9000000"),
    ],
)
def test_times_keep_their_width(seconds: float, expected: str) -> None:
    assert table.microseconds(seconds) == expected


def test_footer() -> None:
    assert table.footer(0) == ["# Out of bounds values : 0 OK", "#"]
    assert table.footer(3)[0] == "# Out of bounds values : 3 FAILED"
    assert table.footer(None)[0] == "# Out of bounds values : not checked"


def test_wrong_values_of_all_rows_and_sides_are_added() -> None:
    rows = [make_row(), make_row()]
    rows[0].out_of_place.wrong = 2
    assert rows[1].in_place
    rows[1].in_place.wrong = 3
    assert report.count_wrong(rows) == 5
    assert report.count_wrong([make_row(checked=False)]) is None


def test_json_has_every_iteration(tmp_path: Path) -> None:
    report.write_json(tmp_path / "results.json", {"data": "zeros"}, [Place(0, "alpha", 41)], [make_row(in_place=False)])
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["facts"] == {"data": "zeros"}
    assert written["ranks"] == [{"rank": 0, "node": 0, "host": "alpha", "pid": 41}]
    assert written["wrong"] == 0
    (row,) = written["rows"]
    assert row["out_of_place"]["seconds"] == pytest.approx([900e-6, 1000e-6, 5000e-6])
    assert row["mpi"]["median_seconds"] == pytest.approx(2100e-6)
    assert row["in_place"] is None
    assert row["versus_raw"] == pytest.approx(2.1)
    assert row["ratio"] == pytest.approx(1.5, rel=1e-5)
