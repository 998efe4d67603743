"""What the CuPy adapter uses is there, in the installed CuPy; calling it needs a GPU."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path

import pytest

import zipccl.devices.cupy


def chains(tree: ast.AST) -> set[str]:
    """Return the dotted names that begin with CuPy's module, or its runtime."""
    found = set()
    for node in ast.walk(tree):
        text = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
        for start, module in (("self._cupy.", "cupy."), ("self._runtime.", "cupy.cuda.runtime."), ("cupy.", "cupy.")):
            if text.startswith(start) and text.replace(".", "").replace("_", "").isalnum():
                found.add(module + text.removeprefix(start))
                break
    return found


def test_names_are_there() -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed", exc_type=ImportError)
    names = chains(ast.parse(Path(zipccl.devices.cupy.__file__).read_text()))
    assert len(names) > 15
    for name in names:
        found = cupy
        for part in name.split(".")[1:]:
            found = getattr(found, part)


def test_without_a_device_there_is_none() -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed", exc_type=ImportError)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            count = cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError:
            count = 0
        assert zipccl.devices.cupy.CudaKind().count() == count
