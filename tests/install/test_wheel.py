"""The wheel: what it holds, and that it works where no compiler does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_NOT_SOURCES = shutil.ignore_patterns(".*", "build", "*.egg-info", "*.so", "__pycache__")


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Return a copy of the checkout without what was built in it; building leaves its results there."""
    return Path(shutil.copytree(ROOT, tmp_path / "sources", ignore=_NOT_SOURCES))


def build_wheel(sources: Path, directory: Path, **environment: str) -> Path:
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(directory), str(sources)],
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )
    if "No matching distribution found for setuptools" in built.stderr:
        pytest.skip("pip cannot reach PyPI for setuptools, which builds the wheel")
    assert built.returncode == 0, built.stderr
    (wheel,) = directory.glob("*.whl")
    return wheel


def test_what_the_wheel_holds(sources: Path, tmp_path: Path) -> None:
    names = zipfile.ZipFile(build_wheel(sources, tmp_path)).namelist()
    assert "zipccl/_native.abi3.so" in names
    assert "zipccl/py.typed" in names
    assert "zipccl/_native.pyi" in names
    assert "zipccl/data/sample_gradient.npy" in names
    assert any(name.startswith("zipccl/cuda_kernels/") for name in names)
    packages = {str(path.parent.relative_to(ROOT)) for path in (ROOT / "zipccl").rglob("__init__.py")}
    assert packages <= {str(Path(name).parent) for name in names}, "a package is missing in setup.cfg"


def test_without_a_compiler(sources: Path, tmp_path: Path) -> None:
    wheel = build_wheel(sources, tmp_path, CC="false", CXX="false")
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    script = """
import sys
# An editable install of this checkout would lend the wheel the extension that it lacks.
sys.meta_path[:] = [finder for finder in sys.meta_path if not finder.__module__.startswith("__editable__")]
import numpy as np, zipccl
x = np.linspace(-1, 1, 5000, dtype=np.float32)
assert (zipccl.decode(zipccl.encode(x)).view("u4") == x.view("u4")).all()
zipccl.encode(x)
"""
    ran = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(site)},
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("install a C++ compiler and reinstall zipccl") == 1
