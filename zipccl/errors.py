"""The errors that zipccl raises; every one derives from ZipcclError."""

from __future__ import annotations


class ZipcclError(Exception):
    """Base class of all errors raised by zipccl."""


class CorruptPayloadError(ZipcclError, ValueError):
    """A payload is not what encode() produces: truncated, altered or of another version."""


class UnsupportedArrayError(ZipcclError, TypeError):
    """An array has a dtype, layout or device that the call cannot take."""


class ArgumentError(ZipcclError, ValueError):
    """An argument has a value that the call cannot take."""


class MismatchError(ZipcclError):
    """The ranks of a communicator called different collectives, or the same one with different arguments."""


class CollectiveTimeoutError(ZipcclError, TimeoutError):
    """A peer did not answer in time."""


class TransportError(ZipcclError):
    """The layer that moves bytes between ranks is missing or failed."""


class DeviceError(ZipcclError):
    """What an accelerator needs is missing or failed: its driver, its compiler or the device itself."""


class PeerFailedError(TransportError):
    """Another rank raised an error in the same call."""
