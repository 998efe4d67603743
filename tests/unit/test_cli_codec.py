"""zipccl bench codec and zipccl info, as they are called."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import zipccl
from tests.tensors import CODED, make
from zipccl.cli import codec, main, options, peers
from zipccl.cli.peers import Peer, PeerUnavailableError
from zipccl.codec import wire
from zipccl.codec.reference import ReferenceCodec
from zipccl.codec.wire import DType

HEADER = """\
#                                                              encode                    decode
#        size         count          type       codec     time      bw  /memcpy     time      bw  /memcpy  #wrong   ratio      payload  memcpy
#         (B)    (elements)                               (us)  (GB/s)              (us)  (GB/s)                                   (B)  (GB/s)"""  # noqa: E501


def test_header_and_row() -> None:
    assert "\n".join(codec.table.header(codec._COLUMNS)) == HEADER
    row = codec.Row(
        nbytes=1 << 20,
        count=1 << 19,
        type="bfloat16",
        codec="portable",
        encode_seconds=[1e-3, 2e-3, 9e-3],
        decode_seconds=[1e-3],
        memcpy_seconds=[1e-4],
        wrong=None,
        payload_nbytes=1 << 19,
    )
    assert row.line() == (
        "      1048576        524288      bfloat16    portable   2000.0    0.52    0.050   1000.0    1.05    0.100"
        "     N/A   2.000       524288   10.49"
    )


def test_numbers_of_threads(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "codec", "-b", "3M", "-e", "3M", "-n", "1", "-w", "0", "--isa", "portable", "--threads"]
    assert main([*words, "1,3"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "portable" in line]
    assert ["portable x3" in line for line in lines] == [False, True]
    with pytest.raises(SystemExit):
        main([*words, "1,0"])
    assert "expected numbers of threads, 1 or more, with commas; found '1,0'" in capsys.readouterr().err


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
    assert {row["codec"] for row in rows} == {*codec._native_isas(), "reference"}
    assert [row["wrong"] for row in rows] == [0] * len(rows)
    assert all(len(row["encode_seconds"]) == 2 for row in rows)
    assert len({(row["nbytes"], row["payload_nbytes"]) for row in rows}) == 2, (
        "all must write payloads of the same size"
    )


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


def test_default_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    parser = options.Parser()
    options.add_size_options(parser, *codec._SIZES)
    assert options.sizes(parser.parse_args([])) == [256 << 10, 8 << 20, 128 << 20]
    assert options.sizes(parser.parse_args(["-b", "1K"])) == [1024]
    with pytest.raises(SystemExit):
        main(["bench", "codec", "-e", "1M"])
    assert "-b" in capsys.readouterr().err


class Copying(Peer):
    """A peer that stores the bytes as they are, and destroys what it was given."""

    name = "copying"
    package = "numpy"
    overwrites_source = True

    def _set_up(self, dtype: DType) -> None:
        assert dtype.name == "bfloat16"

    def encode(self, source: NDArray[np.uint8]) -> bytes:
        payload = source.tobytes()
        source[:] = 0
        return payload

    def decode(self, payload: bytes) -> bytes:
        return payload


class Wrong(Copying):
    name = "wrong"

    def decode(self, payload: bytes) -> bytes:
        return b"\x55" + payload[1:]


class Missing(Copying):
    name = "missing"

    def _set_up(self, dtype: DType) -> None:
        raise ModuleNotFoundError(f"no package for {dtype.name}")


def test_peers_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(peers, "PEERS", (Copying, Missing))
    path = tmp_path / "results.json"
    words = f"bench codec --peers --isa reference -b 2000 -e 4000 -f 2 -n 2 -w 0 -J {path}"
    assert main(words.split()) == 0
    printed = capsys.readouterr().out
    assert f"copying {np.__version__}\n" in printed
    assert '# left out: missing: not installed (no package for bfloat16): pip install "zipccl[peers]"\n' in printed
    rows = json.loads(path.read_text())["rows"]
    assert [(row["nbytes"], row["codec"]) for row in rows] == [
        (2000, "reference"),
        (2000, "copying"),
        (4000, "reference"),
        (4000, "copying"),
    ]
    assert [row["payload_nbytes"] for row in rows if row["codec"] == "copying"] == [2000, 4000]
    assert all(len(row[f"{what}_seconds"]) == 2 for row in rows for what in ("encode", "decode", "memcpy"))


def test_wrong_values_of_a_peer_fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(peers, "PEERS", (Copying, Wrong))
    assert main(["bench", "codec", "--peers", "-b", "2000", "-n", "1", "-w", "0", "--isa", "reference"]) == 1
    assert "# Out of bounds values : 1 FAILED" in capsys.readouterr().out


@pytest.mark.parametrize("kind", peers.PEERS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("dtype", CODED, ids=str)
def test_a_peers_adapter(kind: type[Peer], dtype: np.dtype[Any]) -> None:
    try:
        peer = kind(wire.dtype_named(dtype.name))
    except PeerUnavailableError as error:
        pytest.skip(f"{kind.name} is {error}")
    source = make(dtype, (5001,)).view(np.uint8)
    given = source.copy()
    payload = peer.encode(given)
    assert len(payload) < source.size
    for _ in range(2):
        assert np.array_equal(np.frombuffer(peer.decode(payload), np.uint8), source)
    assert kind.overwrites_source or np.array_equal(given, source)
    assert peer.version


def test_peers_refuse_other_dtypes() -> None:
    with pytest.raises(PeerUnavailableError, match="takes bfloat16, float16, float32, not int8"):
        peers.ZipNN(wire.dtype_named("int8"))


def test_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason='plots need matplotlib: pip install "zipccl[plot]"')
    monkeypatch.setattr(peers, "PEERS", (Copying,))
    path = tmp_path / "speeds.png"
    words = f"bench codec --peers --isa reference -b 0 -e 4000 -i 2000 -n 1 -w 0 --plot {path}"
    assert main(words.split()) == 0
    assert path.read_bytes().startswith(b"\x89PNG")


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
