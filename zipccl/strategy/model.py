"""The cost model: how long a way of doing a call takes.

It counts what the busiest rank sends, encodes and decodes, and takes for the time what is longer, the wire's or the
processor's, since the pieces of a call overlap. It need not be exact: it rules out what cannot be the fastest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from zipccl.codec.wire import DType
from zipccl.strategy.plan import GATHER, NATIVE, Way
from zipccl.strategy.profile import Profile

REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")


@dataclass(frozen=True, slots=True)
class Topology:
    """How ranks are spread over nodes.

    Attributes:
        size: ranks in all.
        local_size: the most ranks of a node.
    """

    size: int
    local_size: int

    @classmethod
    def of(cls, nodes: Sequence[int]) -> Topology:
        return cls(len(nodes), max(Counter(nodes).values()))

    @property
    def spans_nodes(self) -> bool:
        return self.local_size < self.size


@dataclass(frozen=True, slots=True)
class Work:
    """What the busiest rank does, in bytes of values, for each byte between two ranks of a direct schedule.

    Attributes:
        between, inside: sent to ranks of other nodes, and of the own one.
        encoded, decoded: where messages are compressed.
        combined: of those that are decoded, or come raw, what goes into an accumulator.
        messages: that follow one another.
    """

    between: float
    inside: float
    encoded: float
    decoded: float
    combined: float
    messages: float


def seconds(op: str, way: Way, dtype: DType, nbytes: int, topology: Topology, profile: Profile, ratio: float) -> float:
    """Predict the time of a call.

    Args:
        op: the name of the communicator's method.
        nbytes: bytes that a direct schedule moves between each two ranks, and twice in an all-reduce.
        ratio: of compression, where the way compresses.
    """
    work = _work(op, way, topology)
    codec = profile.codec_of(dtype)
    shrink = ratio if way.compress else 1.0
    # A hierarchical schedule compresses only between nodes.
    inside_shrink = 1.0 if way.algorithm == "hierarchical" else shrink
    between = nbytes * work.between * topology.local_size / profile.between.bandwidth
    inside = nbytes * work.inside / profile.inside.bandwidth
    wire = max(between / shrink, inside / inside_shrink)
    processor = nbytes * work.combined / codec.accumulate
    if way.compress:
        plain = work.decoded - work.combined
        processor = nbytes * (work.encoded / codec.encode + plain / codec.decode + work.combined / codec.decode_reduce)
    link = profile.between if topology.spans_nodes else profile.inside
    return work.messages * link.latency + max(wire, processor) + 0.1 * min(wire, processor)


def break_even_bandwidth(op: str, way: Way, dtype: DType, topology: Topology, profile: Profile) -> float:
    """Return the bandwidth between nodes, in bytes per second, above which compressing this way is slower than not."""
    work = _work(op, way, topology)
    codec = profile.codec_of(dtype)
    coding = work.encoded / codec.encode + (work.decoded - work.combined) / codec.decode
    coding += work.combined / codec.decode_reduce
    return work.between * topology.local_size / coding if coding else float("inf")


def _work(op: str, way: Way, topology: Topology) -> Work:
    size, local = topology.size, topology.local_size
    peers, outside, neighbours = size - 1, size - local, local - 1
    if way.algorithm == GATHER:
        # Everything is sent to all: size times as much as a shard.
        return Work(size * outside, size * neighbours, 0, 0, size * size, 1)
    combined = peers if op in REDUCTIONS else 0
    if op in ("all_gather", "gather", "broadcast", "scatter", "send"):
        direct = Work(outside, neighbours, 1, peers if op in ("all_gather", "gather") else 1, 0, 1)
    elif op == "all_reduce":
        direct = Work(2 * outside, 2 * neighbours, peers + 1, 2 * peers, combined, 2)
    else:
        direct = Work(outside, neighbours, peers, peers, combined, 1)
    if way.algorithm in ("direct", NATIVE):
        return direct
    rounds = 2 if op == "all_reduce" else 1
    if way.algorithm == "ring":
        # Of a node's ranks one sends to another node.
        share = 1 / local if topology.spans_nodes else 0
        return Work(rounds * peers * share, rounds * peers * (1 - share), peers, rounds * peers, combined,
                    rounds * peers)  # fmt: skip
    if way.algorithm == "tree":
        depth = max(1, (size - 1).bit_length())
        return Work(rounds * size / local, rounds * size, 2, 2 * rounds, size * rounds, rounds * depth)
    nodes = -(-size // local)
    return Work(rounds * (nodes - 1), rounds * neighbours * nodes, nodes - 1, rounds * (nodes - 1), combined, 3)
