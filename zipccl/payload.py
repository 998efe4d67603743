"""Payloads: self-describing compressed arrays, in one piece."""

from __future__ import annotations

import ctypes
import math
from operator import index
from typing import Any, SupportsIndex

import numpy as np

from zipccl import config, devices
from zipccl.arrays import ArrayView, check_output, check_separate, join_streams, new, result, view_input, view_output
from zipccl.codec import default_codec, wire
from zipccl.codec.base import Codec
from zipccl.codec.cuda import DecodePart, EncodePart
from zipccl.errors import ArgumentError, CorruptPayloadError

_UINT8 = wire.dtype_named("uint8")


def encoded_nbytes_bound(count: int, dtype: Any) -> int:
    """Return the buffer size with which ``encode`` of count values never fails.

    Args:
        count: number of values.
        dtype: a name such as "bfloat16", or a dtype of NumPy, ml_dtypes, PyTorch or JAX.
    """
    if not isinstance(count, SupportsIndex) or index(count) < 0:
        raise ArgumentError(f"count is {count}; expected a whole number, 0 or more")
    return wire.MAX_HEADER_NBYTES + wire.body_nbytes_bound(count, wire.dtype_named(_dtype_name(dtype)))


def encode(x: Any, *, out: Any = None) -> Any:
    """Compress an array without loss.

    Args:
        x: an array of NumPy, CuPy, PyTorch or JAX, or any with ``__dlpack__``, ``__array_interface__`` or
            ``__cuda_array_interface__``.
        out: a 1-D uint8 array of at least ``encoded_nbytes_bound`` bytes to write to; a new one if not given.

    Returns:
        The payload, a 1-D uint8 array of x's framework; the filled part of out if that was given.

    Raises:
        UnsupportedArrayError: x cannot be encoded.
        ArgumentError: out is too small or of another dtype, or overlaps x.
    """
    view = view_input(x)
    if out is None:
        room = wire.header_nbytes(len(view.shape)) + wire.body_nbytes_bound(view.count, view.dtype)
        target = view_output(view.empty((room,), _UINT8))
    else:
        target = view_output(out)
        bound = encoded_nbytes_bound(view.count, view.dtype.name)
        if target.dtype is not _UINT8 or len(target.shape) != 1 or target.count < bound:
            raise ArgumentError(
                f"out is a {target.dtype.name} array of shape {target.shape}; "
                f"expected a 1-D uint8 array of at least {bound} bytes"
            )
        if target.place != view.place:
            raise ArgumentError(f"out is on {target.place}; expected {view.place}")
        check_separate(view, target)
    if view.place == "cpu":
        codec = default_codec(config.codec_threads())
        nbytes = encode_to(codec, view.dtype, view.shape, view.address, target.address)
    else:
        nbytes = _encode_on_device(view, target)
    return result(target.owner[:nbytes], x)


def decode(payload: Any, *, out: Any = None) -> Any:
    """Restore the array that a payload was made from, bit for bit.

    Args:
        payload: what ``encode`` returned, or its bytes.
        out: an array of the same dtype and shape to write to.

    Returns:
        out if it was given, else a new array of the payload's framework; of NumPy if that is bytes.

    Raises:
        CorruptPayloadError: the payload is not one that encode makes; out's content is then undefined.
        ArgumentError: out has another dtype or shape, or overlaps the payload.
    """
    source = payload
    if isinstance(payload, (bytes, bytearray, memoryview)):
        try:
            source = np.frombuffer(payload, np.uint8)
        except (BufferError, ValueError) as error:
            raise ArgumentError(f"payload is a {type(payload).__name__} that cannot be read: {error}") from None
    view = view_input(source)
    if view.dtype is not _UINT8:
        raise ArgumentError(f"payload has dtype {view.dtype.name}; expected uint8")
    header = wire.Header.unpack(_start_of(view))
    check_body_nbytes(header, view.nbytes)
    if out is None:
        try:
            target = view_output(new(view, header.shape, header.dtype))
        except ArgumentError as error:  # an empty array may have lengths that no framework takes
            raise CorruptPayloadError(str(error)) from None
    else:
        target = view_output(out)
        check_output(target, view.place, header.dtype, header.shape)
        check_separate(view, target)
    if view.place == "cpu":
        decode_from(default_codec(config.codec_threads()), header, view.address, view.nbytes, target.address)
    else:
        _decode_on_device(header, view, target)
    return result(target.owner, source) if out is None else out


def encode_to(codec: Codec, dtype: wire.DType, shape: tuple[int, ...], source: int, payload: int) -> int:
    """Write the payload for an array at an address to another and return its size."""
    count = math.prod(shape)
    nbytes = codec.encode_body(dtype, source, count, payload + wire.header_nbytes(len(shape)))
    layout = wire.LAYOUT_RAW if nbytes == count * dtype.itemsize else wire.LAYOUT_BLOCKS
    header = wire.Header(dtype, shape, layout).pack()
    ctypes.memmove(payload, header, len(header))
    return len(header) + nbytes


def decode_from(codec: Codec, header: wire.Header, payload: int, nbytes: int, target: int) -> None:
    """Decode the payload of that header, at an address, to another."""
    body = payload + header.nbytes
    if header.layout == wire.LAYOUT_RAW:
        ctypes.memmove(target, body, header.raw_nbytes)
    else:
        codec.decode_body(header.dtype, body, nbytes - header.nbytes, target, header.count)


def _encode_on_device(view: ArrayView, target: ArrayView) -> int:
    """Write the payload of an array on a device and return its size."""
    device, codec = devices.opened(view.place)
    stream = join_streams(device, view, target)
    header_nbytes = wire.header_nbytes(len(view.shape))
    part = EncodePart(view.address, view.count, target.address + header_nbytes)
    (nbytes,) = codec.encode_parts(view.dtype, [part], stream).get()
    layout = wire.LAYOUT_RAW if nbytes == view.nbytes else wire.LAYOUT_BLOCKS
    header = np.frombuffer(wire.Header(view.dtype, view.shape, layout).pack(), np.uint8)
    device.copy(target.address, header.ctypes.data, header_nbytes, stream)
    device.synchronize(stream)
    return header_nbytes + nbytes


def _decode_on_device(header: wire.Header, view: ArrayView, target: ArrayView) -> None:
    """Decode a payload on a device."""
    device, codec = devices.opened(view.place)
    stream = join_streams(device, view, target)
    body = view.address + header.nbytes
    if header.layout == wire.LAYOUT_BLOCKS:
        part = DecodePart(body, view.nbytes - header.nbytes, target.address, header.count)
        codec.decode_parts(header.dtype, [part], stream).check()
    elif header.raw_nbytes:
        device.copy(target.address, body, header.raw_nbytes, stream)
        device.synchronize(stream)


def _start_of(view: ArrayView) -> memoryview:
    """Return a payload's bytes, or if it is on a device as many as a header may have."""
    if view.place == "cpu":
        return bytes_at(view.address, view.nbytes)
    device = devices.opened(view.place).device
    start = np.empty(min(view.nbytes, wire.MAX_HEADER_NBYTES), np.uint8)
    stream = join_streams(device, view, view)
    if start.size:
        device.copy(start.ctypes.data, view.address, start.size, stream)
        device.synchronize(stream)
    return start.data


def check_body_nbytes(header: wire.Header, nbytes: int) -> None:
    """Raise CorruptPayloadError if a payload of that many bytes cannot hold what its header tells."""
    body_nbytes = nbytes - header.nbytes
    if header.layout == wire.LAYOUT_RAW:
        if body_nbytes != header.raw_nbytes:
            raise CorruptPayloadError(f"payload has {body_nbytes} bytes of body; its header tells {header.raw_nbytes}")
    elif body_nbytes < wire.BlocksLayout.of(header.count, header.dtype).static_offset:
        raise CorruptPayloadError(f"payload's body of {body_nbytes} bytes ends before its directory")


def _dtype_name(dtype: Any) -> str:
    if dtype is None or isinstance(dtype, str):
        return str(dtype)
    try:
        return np.dtype(dtype).name
    except TypeError:
        return str(dtype).removeprefix("torch.")


def bytes_at(address: int, nbytes: int) -> memoryview:
    """Return the memory at an address as bytes that can be written."""
    return memoryview((ctypes.c_uint8 * nbytes).from_address(address)).cast("B") if nbytes else memoryview(b"")
