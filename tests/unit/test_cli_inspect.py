"""zipccl inspect FILE: reports, tables, plots, and what is wrong in one line with exit status 2."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import zipccl
from tests.tensors import BFLOAT16, make
from zipccl.cli import main


def save(path: Path, array: np.ndarray) -> str:
    np.save(path, array)
    return str(path)


def save_tensors(path: Path, **tensors: np.ndarray) -> str:
    pytest.importorskip("safetensors.numpy").save_file(tensors, path)
    return str(path)


def test_one_tensor_gives_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = make(BFLOAT16, (3000,))
    path = save(tmp_path / "grad.npy", x.view(np.uint16))
    assert main(["inspect", path, "-d", "bfloat16"]) == 0
    assert capsys.readouterr().out == f"{path}\n{zipccl.inspect(x)}\n"
    assert main(["inspect", path]) == 0
    assert "uint16, 3000 values" in capsys.readouterr().out
    assert main(["inspect", save(tmp_path / "own.npy", x)]) == 0
    assert "bfloat16, 3000 values" in capsys.readouterr().out


def test_several_tensors_give_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = {"a": make(BFLOAT16, (700,)), "b" * 80: make(np.float32, (9, 100)), "steps": np.arange(40)}
    path = save_tensors(tmp_path / "model.safetensors", **tensors)
    assert main(["inspect", path]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert {line[0] for line in lines} == {"a", "..." + "b" * 41, "steps", "all"}
    payloads = {name: zipccl.encode(x).size for name, x in tensors.items()}
    found = {line[0]: line for line in lines}
    assert found["a"][1:5] == ["bfloat16", "700", "1400", str(payloads["a"])]
    assert found["steps"][7:9] == ["N/A", "N/A"]
    nbytes = sum(x.nbytes for x in tensors.values())
    assert found["all"][1:5] == ["several", "1640", str(nbytes), str(sum(payloads.values()))]


def test_one_tensor_of_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = make(np.float16, (700,))
    path = save_tensors(tmp_path / "model.safetensors", a=a, b=make(np.float32, (9,)))
    assert main(["inspect", path, "--tensor", "a"]) == 0
    assert capsys.readouterr().out == f"{path}: a\n{zipccl.inspect(a)}\n"


@pytest.mark.parametrize(
    "array",
    [make(BFLOAT16, (3000,)), make(np.float32, (100,)), np.arange(600), np.zeros(600, BFLOAT16), np.zeros(0)],
    ids=["bfloat16", "tail only", "int64", "zeros", "empty"],
)
@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_plot(array: np.ndarray, suffix: str, start: bytes, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason='plots need matplotlib: pip install "zipccl[plot]"')
    plot = tmp_path / f"plot{suffix}"
    assert main(["inspect", save(tmp_path / "x.npy", array), "--plot", str(plot)]) == 0
    assert plot.read_bytes().startswith(start)


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["inspect", *words])
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_what_cannot_be_inspected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(tmp_path / "x.npy", np.zeros(3, np.float32))
    assert "FILE" in refused([], capsys)
    assert ".safetensors" in refused(["x.bin"], capsys)
    assert "missing.npy cannot be read" in refused([str(tmp_path / "missing.npy")], capsys)
    assert "of 4 bytes a value; bfloat16 has 2" in refused([path, "-d", "bfloat16"], capsys)
    assert "no tensor 'y'" in refused([path, "--tensor", "y"], capsys)
    assert "complex64" in refused([save(tmp_path / "c.npy", np.zeros(3, np.complex64))], capsys)


def test_what_cannot_be_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "x.npy", np.zeros(3, np.float32))
    assert ".png" in refused([path, "--plot", "plot.jpeg"], capsys)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert 'pip install "zipccl[plot]"' in refused([path, "--plot", str(tmp_path / "plot.png")], capsys)


def test_only_one_tensor_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason='plots need matplotlib: pip install "zipccl[plot]"')
    path = save_tensors(tmp_path / "model.safetensors", a=np.zeros(9), b=np.zeros(9))
    plot = tmp_path / "plot.png"
    assert "--tensor" in refused([path, "--plot", str(plot)], capsys)
    assert not plot.exists()
    assert "cannot be written" in refused([path, "--plot", str(tmp_path / "none" / "plot.png")], capsys)
