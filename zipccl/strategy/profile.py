"""How fast the links between ranks and the codec are: measured, or read from a file."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from zipccl.codec.base import SUM, Codec, accumulator_itemsize
from zipccl.codec.wire import DType, body_nbytes_bound, dtype_named
from zipccl.errors import ArgumentError

_LARGE_NBYTES = 2 << 20
_SMALL_NBYTES = 8
_REPETITIONS = 3
_CODEC_NBYTES = 1 << 20
_CODED = ("bfloat16", "float32")
"""What the codec is measured on; other types are taken for the one of these that is nearer in size."""


@dataclass(frozen=True, slots=True)
class Link:
    """What two nodes, or two ranks of a node, have between them.

    Attributes:
        latency: seconds that a small message takes.
        bandwidth: bytes per second, in each direction while the other is used as well.
    """

    latency: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class CodecSpeed:
    """Bytes of values per second that a rank encodes, decodes, decodes into an accumulator, and adds to it raw."""

    encode: float
    decode: float
    decode_reduce: float
    accumulate: float


@dataclass(frozen=True, slots=True)
class Profile:
    """What the cost model knows of a machine.

    Attributes:
        inside: between ranks of a node.
        between: between nodes, whose ranks share it.
        codec: by the name of a dtype.
    """

    inside: Link
    between: Link
    codec: dict[str, CodecSpeed]

    def codec_of(self, dtype: DType) -> CodecSpeed:
        """Return the codec's speed for a dtype, or for the one most like it."""
        if dtype.name in self.codec:
            return self.codec[dtype.name]
        return self.codec[min(self.codec, key=lambda name: abs(dtype_named(name).itemsize - dtype.itemsize))]

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Profile:
        """Read what ``save`` wrote.

        Raises:
            ArgumentError: there is no such file, or something else is in it.
        """
        try:
            stored = json.loads(path.read_text())
            codec = {dtype_named(name).name: CodecSpeed(**speeds) for name, speeds in stored["codec"].items()}
            profile = cls(Link(**stored["inside"]), Link(**stored["between"]), codec)
            numbers = [*asdict(profile.inside).values(), *asdict(profile.between).values()]
            numbers += [number for speeds in codec.values() for number in asdict(speeds).values()]
            if not codec or not all(type(number) in (int, float) and 0 < number < math.inf for number in numbers):
                raise ValueError("what should be a number, more than 0, is not")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ArgumentError(
                f"profile {path} cannot be read ({error}); make one with: zipccl calibrate -o {path}"
            ) from None
        return profile


Exchange = Callable[[int, int, int, int], None]
"""Send nbytes bytes at an address to a peer while as many come from it: (peer, source, target, nbytes)."""

Agree = Callable[[Sequence[float]], list[float]]
"""Return the greatest of all ranks' numbers, one for one; all ranks call it."""


class Memory(Protocol):
    """Memory that an exchange can use, as long as the object is there."""

    address: int


def measure_links(
    rank: int, nodes: Sequence[int], exchange: Exchange, allocate: Callable[[int], Memory], agree: Agree
) -> tuple[Link, Link]:
    """Measure the links inside a node and between nodes; all ranks must call it, and get the same."""
    memory = [allocate(_LARGE_NBYTES) for _ in range(2)]
    times = [seconds for peer in _partners(rank, nodes) for seconds in _link_seconds(exchange, peer, memory)]
    times = agree(times)
    inside, between = _link(*times[:2]), _link(*times[2:])
    # Where all ranks are on one node, or each on its own, one link stands for both.
    inside, between = inside or between, between or inside
    return inside or Link(1e-6, 1e10), between or Link(1e-6, 1e10)


def measure_codec(codec: Codec, agree: Agree) -> dict[str, CodecSpeed]:
    """Measure a codec of CPU memory in some milliseconds; all ranks must call it, and get the slowest one's speeds."""
    return {name: CodecSpeed(*(1 / seconds for seconds in agree(_codec_seconds(codec, name)))) for name in _CODED}


def _partners(rank: int, nodes: Sequence[int]) -> tuple[int | None, int | None]:
    """Return with whom a rank measures: the ranks of a node in pairs, and the first ranks of the nodes in pairs."""
    local = [peer for peer in range(len(nodes)) if nodes[peer] == nodes[rank]]
    firsts = [nodes.index(node) for node in sorted(set(nodes))]

    def partner(group: list[int]) -> int | None:
        if rank not in group:
            return None
        at = group.index(rank) ^ 1
        return group[at] if at < len(group) else None

    return partner(local), partner(firsts)


def _link_seconds(exchange: Exchange, peer: int | None, memory: Sequence[Memory]) -> list[float]:
    """Return how long a small and a large message take; zeros for a rank that has no partner."""
    if peer is None:
        return [0.0, 0.0]
    source, target = (part.address for part in memory)
    return [
        _least_seconds(partial(exchange, peer, source, target, nbytes)) for nbytes in (_SMALL_NBYTES, _LARGE_NBYTES)
    ]


def _link(small_seconds: float, large_seconds: float) -> Link | None:
    if large_seconds == 0:
        return None
    return Link(small_seconds, _LARGE_NBYTES / max(large_seconds - small_seconds, large_seconds / 4))


def _codec_seconds(codec: Codec, name: str) -> list[float]:
    """Return the seconds for each byte of what CodecSpeed lists, in its order."""
    dtype = dtype_named(name)
    count = _CODEC_NBYTES // dtype.itemsize
    bits = np.random.default_rng(0).standard_normal(count).astype(np.float32).view(np.uint32)
    values = (bits >> 16).astype(np.uint16) if dtype.itemsize == 2 else bits
    body = np.zeros(body_nbytes_bound(count, dtype), np.uint8)
    target, total = np.zeros_like(values), np.zeros(count * accumulator_itemsize(dtype), np.uint8)
    source, coded, out, accumulator = (array.ctypes.data for array in (values, body, target, total))
    nbytes = codec.encode_body(dtype, source, count, coded)
    calls = (
        partial(codec.encode_body, dtype, source, count, coded),
        partial(codec.decode_body, dtype, coded, nbytes, out, count),
        partial(codec.decode_reduce, dtype, SUM, coded, nbytes, accumulator, count),
        partial(codec.accumulate, dtype, SUM, source, accumulator, count),
    )
    return [_least_seconds(call) / _CODEC_NBYTES for call in calls]


def _least_seconds(work: Callable[[], object]) -> float:
    """Return the least time of some repetitions, the first left out; never zero."""
    work()
    seconds = []
    for _ in range(_REPETITIONS):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return max(min(seconds), 1e-9)
