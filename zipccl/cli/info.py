"""zipccl info: what is installed, and what this machine can do."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Iterator
from importlib import metadata
from typing import TYPE_CHECKING

import zipccl
from zipccl import netlab
from zipccl.config import codec_threads
from zipccl.errors import ArgumentError

if TYPE_CHECKING:
    from zipccl.cli.options import Subparsers

_PACKAGES = ("numpy", "ml_dtypes", "mpi4py", "safetensors", "tqdm", "torch", "jax")


def add_parser(subparsers: Subparsers) -> None:
    """Add the command."""
    summary = "show versions, the codec, and whether networks can be emulated here"
    parser = subparsers.add_parser("info", help=summary, description=f"{summary.capitalize()}.")
    parser.set_defaults(run=run)


def run(_: argparse.Namespace) -> int:
    """Print what there is."""
    for name, value in _facts():
        print(f"{name:<12} {value}")
    return 0


def _facts() -> Iterator[tuple[str, str]]:
    yield "zipccl", zipccl.__version__
    yield "Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    for package in _PACKAGES:
        yield package, _version(package)
    yield "MPI", _mpi_library()
    yield "codec", _codec()
    yield "link", netlab.unavailable() or "networks can be emulated here (zipccl bench COLLECTIVE --link)"
    variables = {name: value for name, value in sorted(os.environ.items()) if name.startswith("ZIPCCL_")}
    yield "variables", " ".join(f"{name}={value}" for name, value in variables.items()) or "none of ZIPCCL_* is set"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _mpi_library() -> str:
    """Return the MPI library's name, which it tells before it is started."""
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        return f'none: {error}; pip install "zipccl[mpi]"'
    return " ".join(MPI.Get_library_version().splitlines()[0].replace("\0", "").split())


def _codec() -> str:
    try:
        from zipccl.codec.native import NativeCodec, supported_isas

        return f"{NativeCodec(threads=codec_threads()).name} (this machine can run {', '.join(supported_isas())})"
    except ImportError as error:
        return f"reference: the native extension is missing ({error}); install a C++ compiler and reinstall zipccl"
    except ArgumentError as error:
        return f"none: {error}"
