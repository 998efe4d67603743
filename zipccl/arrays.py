"""Any framework's array as an address, a count and a dtype, and results of the caller's own kind.

Types are recognised by identity of their dtype objects, never by a format string: NumPy reports bfloat16 as "<f2" or
"<V2" to those who ask in strings.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np

from zipccl import devices
from zipccl.codec import wire
from zipccl.codec.wire import DType
from zipccl.devices.base import Device
from zipccl.errors import ArgumentError, UnsupportedArrayError

_ML_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
_NUMPY_NAMES = tuple(dtype.name for dtype in wire.DTYPES if dtype.name not in _ML_DTYPES)


@dataclass(slots=True)
class ArrayView:
    """A C-contiguous array.

    Attributes:
        place: "cpu", or a device such as "cuda:0" in whose memory it is.
        stream: the device's stream in whose order the array is written and read; None if there is none.
        address: of the first byte.
        owner: the array itself, or a contiguous copy of it; it keeps the memory alive.
        empty: makes a new array of the same framework with a given shape and dtype.
    """

    address: int
    count: int
    shape: tuple[int, ...]
    dtype: DType
    owner: Any
    empty: Callable[[tuple[int, ...], DType], Any]
    place: str = "cpu"
    stream: int | None = None

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.itemsize


def view_input(array: Any) -> ArrayView:
    """Describe an array to be read; a strided one is copied to a contiguous one first.

    Raises:
        UnsupportedArrayError: it is no array, or of a device or dtype that zipccl does not know.
    """
    return _view(array, "x", copy=True)


def view_output(array: Any) -> ArrayView:
    """Describe an array to be written.

    Raises:
        UnsupportedArrayError: as for view_input, or the array is not C-contiguous or is read-only.
    """
    return _view(array, "out", copy=False)


def check_output(out: ArrayView, place: str, dtype: DType, shape: tuple[int, ...]) -> None:
    """Raise ArgumentError unless out has the given place, dtype and shape."""
    if out.place != place:
        raise ArgumentError(f"out is on {out.place}; expected {place}")
    if out.dtype is not dtype:
        raise ArgumentError(f"out has dtype {out.dtype.name}; expected {dtype.name}")
    if out.shape != shape:
        raise ArgumentError(f"out has shape {out.shape}; expected {shape}")


def check_separate(view: ArrayView, out: ArrayView) -> None:
    """Raise ArgumentError if two arrays have memory in common."""
    if view.address < out.address + out.nbytes and out.address < view.address + view.nbytes:
        raise ArgumentError("out overlaps the input; pass separate memory")


def join_streams(device: Device, view: ArrayView, target: ArrayView) -> int:
    """Return the stream in whose order two arrays on a device can be used.

    Raises:
        ArgumentError: it is being captured to a graph.
    """
    stream = device.current_stream() if view.stream is None else view.stream
    device.check_stream(stream)
    if target.stream not in (None, stream):
        device.wait(stream, device.record(target.stream))
    return stream


def new(view: ArrayView, shape: tuple[int, ...], dtype: DType) -> Any:
    """Make an array of a view's framework.

    Raises:
        ArgumentError: the framework cannot make one of that shape.
    """
    try:
        return view.empty(shape, dtype)
    except UnsupportedArrayError:
        raise
    except (OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise ArgumentError(f"an array of shape {shape} cannot be made: {error}") from None


def result(array: Any, like: Any) -> Any:
    """Return an array that came from a view's ``empty`` in the framework of what the view was made of."""
    if (jax := sys.modules.get("jax")) and isinstance(like, jax.Array):
        return jax.numpy.asarray(array) if isinstance(array, np.ndarray) else jax.dlpack.from_dlpack(array)
    return array


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """Return the NumPy dtype for an element type.

    Raises:
        UnsupportedArrayError: it needs the package ml_dtypes, which is not installed.
    """
    if dtype.name not in _ML_DTYPES:
        return np.dtype(dtype.name)
    try:
        return np.dtype(getattr(importlib.import_module("ml_dtypes"), dtype.name))
    except ModuleNotFoundError:
        raise UnsupportedArrayError(
            f"NumPy needs the package ml_dtypes for {dtype.name} arrays: pip install ml_dtypes"
        ) from None


def _view(array: Any, argument: str, *, copy: bool) -> ArrayView:
    if isinstance(array, np.ndarray):
        return _view_numpy(array, argument, copy=copy)
    if (torch := sys.modules.get("torch")) and isinstance(array, torch.Tensor):
        return _view_torch(torch, array, argument, copy=copy)
    if (jax := sys.modules.get("jax")) and isinstance(array, jax.Array):
        return _view_jax(jax, array, argument, copy=copy)
    if hasattr(array, "__cuda_array_interface__"):
        return _view_device_array(array, argument, copy=copy)
    if hasattr(array, "__dlpack__"):
        return _view_numpy(_from_dlpack(array, argument), argument, copy=copy)
    if hasattr(array, "__array_interface__") and (copy or not isinstance(array, np.generic)):
        return _view_numpy(np.asarray(array), argument, copy=copy)
    raise UnsupportedArrayError(
        f"{argument} is a {type(array).__name__}; expected an array of NumPy, PyTorch or JAX, or one that has "
        "__dlpack__ or __array_interface__"
    )


def _unsupported_dtype(argument: str, name: object) -> UnsupportedArrayError:
    supported = ", ".join(dtype.name for dtype in wire.DTYPES)
    return UnsupportedArrayError(f"{argument} has dtype {name}; supported are {supported} in native byte order")


def _not_contiguous(argument: str, shape: object, strides: object) -> UnsupportedArrayError:
    return UnsupportedArrayError(
        f"{argument} of shape {shape} with strides {strides} is not C-contiguous; pass a contiguous array"
    )


_NUMPY_DTYPES = {np.dtype(name): wire.dtype_named(name) for name in _NUMPY_NAMES}


def _find_numpy_dtype(dtype: np.dtype[Any]) -> DType | None:
    if (known := _NUMPY_DTYPES.get(dtype)) is not None:
        return known
    # An array of a dtype of ml_dtypes exists only where that package is imported, which takes long.
    ml_dtypes = sys.modules.get("ml_dtypes")
    for name in _ML_DTYPES if ml_dtypes else ():
        if dtype == getattr(ml_dtypes, name):
            return _NUMPY_DTYPES.setdefault(dtype, wire.dtype_named(name))
    return None


def _view_numpy(array: np.ndarray[Any, Any], argument: str, *, copy: bool) -> ArrayView:
    if isinstance(array, np.ma.MaskedArray):
        raise UnsupportedArrayError(f"{argument} is a masked array; pass {argument}.data or {argument}.filled()")
    if type(array) is not np.ndarray:
        array = array.view(np.ndarray)
    dtype = _find_numpy_dtype(array.dtype)
    if dtype is None:
        raise _unsupported_dtype(argument, array.dtype)
    if not array.flags.c_contiguous:
        if not copy:
            raise _not_contiguous(argument, array.shape, array.strides)
        array = array.copy(order="C")
    if not copy and not array.flags.writeable:
        raise UnsupportedArrayError(f"{argument} is read-only; pass a writeable array")
    address: int = array.__array_interface__["data"][0]
    return ArrayView(address, array.size, array.shape, dtype, array, _empty_numpy)


def _empty_numpy(shape: tuple[int, ...], dtype: DType) -> np.ndarray[Any, Any]:
    return np.empty(shape, numpy_dtype(dtype))


@cache
def _torch_dtypes() -> dict[Any, DType]:
    torch = sys.modules["torch"]
    return {getattr(torch, dtype.name): dtype for dtype in wire.DTYPES if hasattr(torch, dtype.name)}


def _view_torch(torch: Any, tensor: Any, argument: str, *, copy: bool) -> ArrayView:
    if tensor.device.type not in ("cpu", "cuda"):
        raise UnsupportedArrayError(f"{argument} is on {tensor.device}; expected a tensor on a CPU or a CUDA device")
    if tensor.layout is not torch.strided or tensor.is_nested:
        raise UnsupportedArrayError(f"{argument} is sparse, nested or of another layout; expected a dense tensor")
    dtype = _torch_dtypes().get(tensor.dtype)
    if dtype is None:
        raise _unsupported_dtype(argument, tensor.dtype)
    if copy:
        tensor = tensor.detach().resolve_neg().resolve_conj().contiguous()
    elif tensor.is_neg() or not tensor.is_contiguous():
        raise _not_contiguous(argument, tuple(tensor.shape), tensor.stride())
    elif tensor.requires_grad and torch.is_grad_enabled():
        raise UnsupportedArrayError(
            f"{argument} requires grad; pass {argument}.detach(), or call under torch.no_grad()"
        )
    else:
        torch.autograd.graph.increment_version(tensor)
    return ArrayView(
        _torch_address(tensor, argument, tensor.numel() * dtype.itemsize),
        tensor.numel(),
        tuple(tensor.shape),
        dtype,
        tensor,
        lambda shape, dtype: torch.empty(shape, dtype=getattr(torch, dtype.name), device=tensor.device),
        str(tensor.device),
        torch.cuda.current_stream(tensor.device).cuda_stream if tensor.is_cuda else None,
    )


def _torch_address(tensor: Any, argument: str, nbytes: int) -> int:
    """Return the address of a contiguous tensor, whose storage may be missing or too small, as FSDP leaves it."""
    try:
        address: int = tensor.data_ptr()
        stored = tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.element_size()
    except (RuntimeError, NotImplementedError) as error:
        raise UnsupportedArrayError(f"{argument} has no memory of its own: {error}") from None
    if nbytes and (address == 0 or stored < nbytes):
        raise UnsupportedArrayError(
            f"{argument} is a {type(tensor).__name__} of {nbytes} bytes whose storage holds {max(stored, 0)}; "
            "expected a tensor with memory of its own (of a DTensor pass its local tensor)"
        )
    return address


def _view_jax(jax: Any, array: Any, argument: str, *, copy: bool) -> ArrayView:
    if isinstance(array, jax.core.Tracer):
        raise UnsupportedArrayError(f"{argument} is traced by a JAX transformation; call zipccl outside of it")
    if not copy:
        raise UnsupportedArrayError(f"{argument} is a JAX array, which cannot be written; leave {argument} out")
    if array.is_deleted():
        raise UnsupportedArrayError(f"{argument} is a deleted JAX array")
    platforms = {device.platform for device in array.devices()}
    if platforms - {"cpu", "gpu", "cuda"}:
        raise UnsupportedArrayError(
            f"{argument} is on {', '.join(sorted(platforms))}; expected an array on a CPU or a CUDA device"
        )
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended):
        raise _unsupported_dtype(argument, array.dtype)
    if array.dtype.itemsize == 8 and not jax.config.jax_enable_x64:
        raise UnsupportedArrayError(f"{argument} has dtype {array.dtype}, which JAX makes only with jax_enable_x64")
    if platforms == {"cpu"}:
        return _view_numpy(np.asarray(array), argument, copy=copy)
    if len(array.devices()) > 1:
        raise UnsupportedArrayError(f"{argument} is spread over several devices; pass one of its addressable shards")
    dtype = _find_numpy_dtype(array.dtype)
    if dtype is None:
        raise _unsupported_dtype(argument, array.dtype)
    array.block_until_ready()  # it has no stream that could be waited for
    (device,) = array.devices()
    index = device.local_hardware_id
    return ArrayView(
        array.unsafe_buffer_pointer(), array.size, array.shape, dtype, array, _empty_on("cuda", index), f"cuda:{index}"
    )


_LEGACY_DEFAULT_STREAM = 1
"""In the CUDA array interface, where 0 is not allowed."""


def _view_device_array(array: Any, argument: str, *, copy: bool) -> ArrayView:
    """Describe an array that has the CUDA array interface."""
    interface = array.__cuda_array_interface__
    place = devices.find(array)
    if place is None:
        raise UnsupportedArrayError(
            f"{argument} is in GPU memory, for which zipccl needs a GPU that CuPy sees: "
            'pip install "zipccl[cuda12]" or "zipccl[cuda13]"'
        )
    # The interface's own type string calls a bfloat16 "<V2", or "<f2" as if it were a float16.
    numpy_type = getattr(array, "dtype", None)
    try:
        if not isinstance(numpy_type, np.dtype):
            numpy_type = np.dtype(str(interface["typestr"]))
        address, read_only = interface["data"]
        shape, strides = tuple(interface["shape"]), interface.get("strides")
        stream = interface.get("stream")
        if not all(isinstance(number, int) for number in (address, *shape, *(strides or ()), stream or 0)):
            raise TypeError("a number is none")
        if strides is not None and len(strides) != len(shape):
            raise ValueError(f"strides {strides} do not fit shape {shape}")
        if address == 0 and 0 not in shape:
            raise ValueError("it has no address")
    except (KeyError, TypeError, ValueError) as error:
        raise UnsupportedArrayError(f"{argument} has a __cuda_array_interface__ that is none: {error}") from None
    dtype = _find_numpy_dtype(numpy_type)
    if dtype is None:
        raise _unsupported_dtype(argument, numpy_type)
    kind, _, index = place.partition(":")
    if not _is_contiguous(shape, strides, dtype.itemsize):
        if not copy:
            raise _not_contiguous(argument, shape, strides)
        return _view_device_array(devices.kind_named(kind).contiguous(array), argument, copy=copy)
    if not copy and read_only:
        raise UnsupportedArrayError(f"{argument} is read-only; pass a writeable array")
    if stream == _LEGACY_DEFAULT_STREAM:
        stream = 0
    return ArrayView(address, prod(shape), shape, dtype, array, _empty_on(kind, int(index)), place, stream)


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...] | None, itemsize: int) -> bool:
    if strides is None or 0 in shape:
        return True
    expected = [itemsize * prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return all(n == 1 or found == e for n, found, e in zip(shape, strides, expected, strict=True))


def _empty_on(kind: str, index: int) -> Callable[[tuple[int, ...], DType], Any]:
    return lambda shape, dtype: devices.kind_named(kind).empty(shape, numpy_dtype(dtype), index)


class _DLDevice(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


class _DLTensor(ctypes.Structure):
    """DLTensor of dlpack.h, which DLManagedTensor starts with."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_DLPACK_CPU = 1
_DLPACK_BFLOAT16 = (4, 16, 1)


def _from_dlpack(array: Any, argument: str) -> np.ndarray[Any, Any]:
    device_type, _ = array.__dlpack_device__()
    if device_type != _DLPACK_CPU:
        raise UnsupportedArrayError(
            f"{argument} is on DLPack device type {device_type}; expected CPU memory (1), or an array that has "
            "__cuda_array_interface__ too"
        )
    try:
        return np.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError):
        return _bfloat16_from_dlpack(array, argument)


def _bfloat16_from_dlpack(array: Any, argument: str) -> np.ndarray[Any, Any]:
    """Do what np.from_dlpack does for the one dtype that NumPy does not know."""
    capsule = array.__dlpack__()
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype = ctypes.c_void_p
    get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    tensor = _DLTensor.from_address(get_pointer(capsule, b"dltensor"))
    if (tensor.code, tensor.bits, tensor.lanes) != _DLPACK_BFLOAT16:
        raise _unsupported_dtype(argument, f"DLPack (code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes)")
    shape = tuple(tensor.shape[: tensor.ndim])
    if tensor.strides:
        strides = tuple(2 * stride for stride in tensor.strides[: tensor.ndim])
    else:
        strides = tuple(2 * prod(shape[axis + 1 :]) for axis in range(len(shape)))
    if prod(shape) == 0:
        return np.empty(shape, numpy_dtype(wire.dtype_named("bfloat16")))
    lowest = sum(min(0, stride * (length - 1)) for stride, length in zip(strides, shape, strict=True))
    highest = sum(max(0, stride * (length - 1)) for stride, length in zip(strides, shape, strict=True))
    memory = (ctypes.c_uint8 * (highest - lowest + 2)).from_address(tensor.data + tensor.byte_offset + lowest)
    # The capsule is not renamed to "used_dltensor": it stays ours, and its destructor frees the tensor when the
    # last array that refers to the memory is gone.
    memory.capsule = capsule
    return np.ndarray(shape, numpy_dtype(wire.dtype_named("bfloat16")), memory, -lowest, strides)
