"""Tensors from .npy and .safetensors files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zipccl.arrays import numpy_dtype
from zipccl.codec import wire
from zipccl.errors import ArgumentError

FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
"""The dtypes of safetensors that are floats and that zipccl knows."""

SUFFIXES = (".npy", ".safetensors")
_NUMBERS = (*FLOATS, "BOOL", "I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64")


def tensors(source: str, dtypes: Sequence[str] = _NUMBERS) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the names and tensors of a file; a .npy file's only one has the file's name.

    Args:
        dtypes: those that are taken of a .safetensors file, by its names for them.

    Raises:
        ArgumentError: it cannot be read.
    """
    if source.endswith(".npy"):
        yield Path(source).stem, _open_npy(source)
    else:
        yield from _open_safetensors(source, dtypes)


def _open_npy(source: str) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.lib.format.open_memmap(source, mode="r")
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ArgumentError(f"{source} cannot be read: {reason}") from None
    if array.dtype == np.dtype("V2"):  # which is how NumPy stores bfloat16
        return array.view(numpy_dtype(wire.dtype_named("bfloat16")))
    if array.dtype.kind not in "fiub":
        raise ArgumentError(f"{source} holds {array.dtype}; expected numbers")
    return array


def _open_safetensors(source: str, dtypes: Sequence[str]) -> Iterator[tuple[str, NDArray[Any]]]:
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError:
        raise ArgumentError(f'{source} needs the package safetensors: pip install "zipccl[safetensors]"') from None
    numpy_dtype(wire.dtype_named("bfloat16"))  # NumPy knows it from here on
    if not Path(source).is_file():
        raise ArgumentError(f"{source} is not a file")
    try:
        with safe_open(source, framework="np") as file:
            for name in file.keys():  # noqa: SIM118  it is no mapping
                if file.get_slice(name).get_dtype() in dtypes:
                    yield name, file.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise ArgumentError(f"{source} cannot be read: {error}") from None
