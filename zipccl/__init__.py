"""Collective communication with lossless compression for distributed training."""

from zipccl.background import Handle
from zipccl.communicator import Communicator, init
from zipccl.errors import (
    ArgumentError,
    CollectiveTimeoutError,
    CorruptPayloadError,
    DeviceError,
    MismatchError,
    PeerFailedError,
    TransportError,
    UnsupportedArrayError,
    ZipcclError,
)
from zipccl.inspection import Inspection, inspect
from zipccl.payload import decode, encode, encoded_nbytes_bound
from zipccl.stats import CallRecord, Totals

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "CallRecord",
    "CollectiveTimeoutError",
    "Communicator",
    "CorruptPayloadError",
    "DeviceError",
    "Handle",
    "Inspection",
    "MismatchError",
    "PeerFailedError",
    "Totals",
    "TransportError",
    "UnsupportedArrayError",
    "ZipcclError",
    "decode",
    "encode",
    "encoded_nbytes_bound",
    "init",
    "inspect",
]
