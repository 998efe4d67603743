"""``tools/gpu_check``: steps are told apart, and one that fails stops no other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cuda.steps import ROOT


def gpu_check(path: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    command = [sys.executable, str(ROOT / "tools" / "gpu_check"), *arguments, "--json", str(path)]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return run.returncode, json.loads(path.read_text()), run.stdout


def test_steps_that_pass(tmp_path: Path) -> None:
    status, report, output = gpu_check(tmp_path / "report.json", "--device", "simt", "device", "sanitizer", "speed")
    assert status == 0, output
    assert report["ok"]
    assert [(one["step"], one["status"]) for one in report["steps"]] == [
        ("device", "passed"),
        ("sanitizer", "skipped"),
        ("speed", "passed"),
    ]
    (row,) = report["steps"][2]["rows"]
    assert row["nbytes"] == 65536
    assert 1.4 < row["ratio"] < 1.5
    assert "all steps passed" in output


def test_steps_that_fail(tmp_path: Path) -> None:
    try:
        import cupy

        if cupy.cuda.runtime.getDeviceCount():
            pytest.skip("there is a GPU, on which they would pass")
    except Exception:  # no CuPy, no driver or no device: so they fail
        pass
    status, report, output = gpu_check(tmp_path / "report.json", "--device", "cuda", "device", "speed")
    assert status == 1
    assert not report["ok"]
    assert [one["status"] for one in report["steps"]] == ["failed", "failed"]
    assert all(one["log"] for one in report["steps"]), "the traceback is kept"
    assert "failed: device, speed" in output
