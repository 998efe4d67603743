"""zipccl bench codec and zipccl info, as they are called."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import zipccl
from zipccl.cli import codec, main
from zipccl.codec.reference import ReferenceCodec

HEADER = """\
#                                                             encode                    decode
#        size         count          type        isa     time      bw  /memcpy     time      bw  /memcpy  #wrong   ratio      payload  memcpy
#         (B)    (elements)                              (us)  (GB/s)              (us)  (GB/s)                                   (B)  (GB/s)"""  # noqa: E501


def test_header_and_row() -> None:
    assert "\n".join(codec.table.header(codec._COLUMNS)) == HEADER
    row = codec.Row(
        nbytes=1 << 20,
        count=1 << 19,
        type="bfloat16",
        isa="portable",
        encode_seconds=[1e-3, 2e-3, 9e-3],
        decode_seconds=[1e-3],
        memcpy_seconds=[1e-4],
        wrong=None,
        body_nbytes=1 << 19,
    )
    assert row.line() == (
        "      1048576        524288      bfloat16   portable   2000.0    0.52    0.050   1000.0    1.05    0.100"
        "     N/A   2.000       524288   10.49"
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "half", "float", "int8"])
@pytest.mark.parametrize("source", ["sample", "random", "zeros"])
def test_every_implementation_is_right(
    dtype: str, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.json"
    words = f"bench codec -b 1000 -e 8000 -f 8 -n 2 -w 0 -d {dtype} --data {source} -J {path}"
    assert main(words.split()) == 0
    assert "# Out of bounds values : 0 OK" in capsys.readouterr().out
    rows = json.loads(path.read_text())["rows"]
    assert {row["isa"] for row in rows} == {*codec._native_isas(), "reference"}
    assert [row["wrong"] for row in rows] == [0] * len(rows)
    assert all(len(row["encode_seconds"]) == 2 for row in rows)
    assert len({(row["nbytes"], row["body_nbytes"]) for row in rows}) == 2, "all must write payloads of the same size"


def test_wrong_values_fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(ReferenceCodec, "decode_body", lambda *_: None)
    assert main(["bench", "codec", "-b", "4K", "-n", "1", "-w", "0", "--isa", "reference"]) == 1
    assert "# Out of bounds values : 2048 FAILED" in capsys.readouterr().out


def test_unchecked_values_are_not_counted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(ReferenceCodec, "decode_body", lambda *_: None)
    assert main(["bench", "codec", "-b", "4K", "-n", "1", "-w", "0", "-c", "0", "--isa", "reference"]) == 0
    printed = capsys.readouterr().out
    assert " N/A " in printed
    assert "# Out of bounds values : not checked" in printed


def test_info() -> None:
    program = [sys.executable, "-m", "zipccl", "info"]
    finished = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert finished.returncode == 0, finished.stderr
    facts = {line.split()[0]: line for line in finished.stdout.splitlines()}
    assert facts["zipccl"].endswith(zipccl.__version__)
    assert {"Python", "numpy", "mpi4py", "MPI", "codec", "link", "variables"} <= facts.keys()


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"zipccl {zipccl.__version__}\n"
