"""The benchmarks' options: sizes as nccl-tests takes them, and what is wrong in one line with exit status 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from zipccl.cli import main, options
from zipccl.cli.options import Parser


@pytest.mark.parametrize(
    ("text", "expected"), [("0", 0), ("512", 512), ("64K", 65536), ("1.5m", 3 << 19), ("2G", 2 << 30)]
)
def test_sizes_are_binary(text: str, expected: int) -> None:
    assert options.nbytes(text) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], [32 << 20]),
        (["-b", "64M"], [64 << 20]),
        (["-b", "1M", "-e", "3M"], [1 << 20, 2 << 20, 3 << 20]),
        (["-b", "8", "-e", "100", "-f", "3"], [8, 24, 72]),
        (["-b", "0", "-e", "1K", "-i", "512"], [0, 512, 1024]),
    ],
)
def test_which_sizes_are_measured(words: list[str], expected: list[int]) -> None:
    parser = Parser()
    options.add_size_options(parser, "32M")
    assert options.sizes(parser.parse_args(words)) == expected


@pytest.mark.parametrize(("name", "expected"), [("half", "float16"), ("f8e4m3", "float8_e4m3fn"), ("int8", "int8")])
def test_datatypes_have_both_names(name: str, expected: str) -> None:
    assert options.datatype(name).name == expected


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("", "COMMAND"),
        ("bench", "WHAT"),
        ("bench nothing", "invalid choice: 'nothing'"),
        ("bench all_gather -b 64Q", "64K"),
        ("bench all_gather -b 2M -e 1M", "2097152"),
        ("bench all_gather -b 0 -e 8 -f 2", "-f"),
        ("bench all_gather -f 1", "at least 2"),
        ("bench all_gather -i 1K -f 2", "not allowed"),
        ("bench all_gather -n 0", "at least 1"),
        ("bench all_gather -d float4", "found 'float4'"),
        ("bench all_gather -o sum", "unrecognized"),
        ("bench all_reduce -o mean", "'mean'"),
        ("bench all_reduce -o avg -d int32", "float"),
        ("bench broadcast -r 2 --ranks 2", "from 0 to 1"),
        ("bench send_recv --ranks 1", "at least 2"),
        ("bench all_gather --link 5", "5gbit"),
        ("bench all_gather -T 0", "seconds"),
        ("bench all_gather --data nothing", "'nothing'"),
        ("bench all_gather -J /nonexistent/file", "/nonexistent/file"),
        ("bench codec --isa nothing", "reference"),
        ("bench codec --data missing.npy", "missing.npy"),
    ],
)
def test_bad_options_end_with_one_line(words: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("zipccl")
    assert reason in printed.err


def test_ranks_that_are_there_cannot_get_a_link(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PMI_RANK", "0")
    with pytest.raises(SystemExit):
        main(["bench", "all_gather", "--link", "5gbit"])
    assert "--link" in capsys.readouterr().err


def test_help_tells_which_letters_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "all_reduce", "--help"])
    assert ended.value.code == 0
    assert "-G" in capsys.readouterr().out


def test_the_ranks_get_the_same_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started = []

    def run_ranks(program: list[str], ranks: int, link: object) -> int:
        started.append((program, ranks, link))
        return 5

    monkeypatch.setattr("zipccl.launch.run_ranks", run_ranks)
    monkeypatch.setattr("zipccl.launch.under_launcher", lambda: False)
    words = ["bench", "broadcast", "-r", "1", "-J", str(tmp_path / "results.json")]
    assert main(words) == 5
    program, ranks, link = started[0]
    assert program[: 3 + len(words)] == ["python", "-m", "zipccl", *words]
    assert (ranks, link) == (2, None)
