"""Which way a call is done: predicted by the cost model, then tried, and looked at again now and then.

All ranks decide the same: from what they have in common, which are a call's arguments, the profile that they agreed
on, and times that they agree on at the end of the few calls at which something is decided.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from zipccl.codec.wire import BLOCK_COUNT, DType
from zipccl.config import Config
from zipccl.errors import ArgumentError
from zipccl.strategy import model
from zipccl.strategy.choice import Choice
from zipccl.strategy.model import Topology
from zipccl.strategy.plan import GATHER, NATIVE, Plan, Way
from zipccl.strategy.profile import Agree, Profile

_MIN_TRIED_NBYTES = 32 << 10
"""Bytes between two ranks up to which a call is not compressed, and nothing is tried: latency decides."""

_GATHERED_NBYTES = 64 << 10
"""Bytes over all ranks up to which a reduction gathers everything everywhere: one message time instead of two."""

_MIN_CHUNK_NBYTES = 64 << 10
_MAX_CHUNK_NBYTES = 1 << 20
_CHUNKS = 16
"""Pieces that an array is cut into, if they are not too small or too large for the caches: more pieces overlap
better, fewer cost less per piece."""

_WORTH_TRYING = 2.0
"""How many times the shortest predicted time a way may take to be tried: the model is not exact."""

_MAX_TRIED = 3

_MAX_SETTLED = 1 << 12
"""Plans that are kept, of calls that can be done in one way only: small ones should cost little."""

# Ratios to expect of values that are near a Gaussian, until there are some to learn from.
_EXPECTED_RATIO = {"bfloat16": 1.48, "float16": 1.15, "float32": 1.19, "float64": 1.14, "float8_e5m2": 1.35,
                   "float8_e4m3fn": 1.15}  # fmt: skip

SCHEDULES = {
    "all_gather": ("direct", "ring", "hierarchical"),
    "all_to_all": ("direct", "hierarchical"),
    "broadcast": ("direct", "tree"),
    "gather": ("direct", "tree"),
    "scatter": ("direct", "tree"),
    "send": ("direct",),
    "all_reduce": ("direct", "ring", "tree", "hierarchical"),
    "reduce_scatter": ("direct", "ring", "hierarchical"),
    "reduce": ("direct", "tree"),
}
"""For each op the schedules that there are."""

_HAS_NATIVE = ("all_gather", "all_to_all", "broadcast")
_CAN_GATHER = ("all_reduce", "reduce_scatter")

log = logging.getLogger("zipccl")


class Strategy:
    """Decides on the calls of one communicator's arrays in one place.

    Args:
        profile: the same on all ranks.
        agree: see profile.py; called at the end of some calls.
        in_pieces: cut arrays for the caches, and to overlap coding with the wire; a device takes whole ones, since
            its kernels start late and ranks exchange sizes for each piece.
    """

    def __init__(
        self,
        nodes: Sequence[int],
        config: Config,
        profile: Profile,
        agree: Agree,
        *,
        in_pieces: bool = True,
    ) -> None:
        self.topology = Topology.of(nodes)
        self._config = config
        self.profile = profile
        self._agree = agree
        self._in_pieces = in_pieces
        self._choices: dict[tuple[object, ...], Choice] = {}
        self._settled: dict[tuple[object, ...], Plan] = {}

    def plan(
        self,
        op: str,
        compress: str,
        algorithm: str,
        dtype: DType,
        count: int,
        *,
        even: bool = True,
        alone: bool = False,
    ) -> Plan:
        """Decide on a call that moves count values, or at most so many, between each two ranks.

        Args:
            op: one of SCHEDULES.
            even: whether all ranks have as many values, which the transport's own collectives need.
            alone: whether only some ranks make such a call, so that nothing can be agreed on.

        Raises:
            ArgumentError: compress or algorithm is not one of its values, or the op has no such schedule.
        """
        request = (op, compress, algorithm, dtype.code, count, even, alone)
        try:
            settled = self._settled.get(request)
        except TypeError:  # something that cannot be a key is no name
            raise ArgumentError(f"compress is {compress!r} and algorithm {algorithm!r}; expected strings") from None
        if settled is not None:
            return settled
        nbytes = count * dtype.itemsize
        kind = (op, compress, algorithm, dtype.code, _size_class(nbytes), even, alone)
        choice = self._choices.get(kind)
        if choice is None:
            # By the class alone: a rank that failed in a call may not have seen the class's first size.
            least = _least_of(_size_class(nbytes))
            choice = self._choices[kind] = self._choose(op, compress, algorithm, dtype, least, even, alone)
        way = choice.way
        plan = Plan(way.algorithm, way.compress, self._chunk_count(dtype, nbytes), choice.reason, choice)
        if len(choice.ways) == 1:
            if len(self._settled) >= _MAX_SETTLED:
                self._settled.clear()
            self._settled[request] = plan
        return plan

    def record(self, plan: Plan, seconds: float) -> None:
        """Learn from a call that all ranks have made; there is nothing to learn from those that some make alone."""
        if plan.choice is not None and plan.choice.record(seconds):
            plan.choice.settle(self._agree(plan.choice.seconds()))
            log.info("stays with %s; %s", plan.choice.way, plan.choice.reason)

    def _choose(
        self, op: str, compress: str, algorithm: str, dtype: DType, nbytes: int, even: bool, alone: bool
    ) -> Choice:
        """Return the ways that a call can be done, the best as far as is known first."""
        if compress not in ("auto", "always", "never"):
            raise ArgumentError(f'compress is {compress!r}; expected "auto", "always" or "never"')
        if algorithm not in ("auto", *SCHEDULES[op]):
            known = ", ".join(("auto", *SCHEDULES[op]))
            raise ArgumentError(f"algorithm is {algorithm!r}; expected one of {known} for {op}")
        raw = self._raw_ways(op, algorithm, nbytes, even)
        if not dtype.is_float:
            return Choice(raw[:1], f"{dtype.name} has no coding")
        if compress != "auto":
            ways = [Way(raw[-1].algorithm, True)] if compress == "always" else raw[:1]
            return Choice(ways, f'compress is "{compress}"')
        if nbytes < _MIN_TRIED_NBYTES or self.topology.size == 1:
            return Choice(raw[:1], f"{nbytes} bytes between ranks are too few to compress")
        return self._predicted(op, algorithm, raw, dtype, nbytes, alone)

    def _raw_ways(self, op: str, algorithm: str, nbytes: int, even: bool) -> list[Way]:
        """Return the ways without compression, the simplest first; the last is a schedule's."""
        if algorithm != "auto":
            return [Way(algorithm, False)]
        ways = [Way("direct", False)]
        if even and op in _HAS_NATIVE:
            ways.insert(0, Way(NATIVE, False))
        if even and op in _CAN_GATHER and nbytes * self.topology.size**2 <= _GATHERED_NBYTES:
            ways.insert(0, Way(GATHER, False))
        return ways

    def _predicted(self, op: str, algorithm: str, raw: list[Way], dtype: DType, nbytes: int, alone: bool) -> Choice:
        """Return the ways that may be the fastest, by the cost model."""
        profile, ratio = self.profile, _EXPECTED_RATIO[dtype.name]
        names = [raw[-1].algorithm]
        # Where it changes no bits.
        if algorithm == "auto" and op not in model.REDUCTIONS and "hierarchical" in SCHEDULES[op] and self._has_levels:
            names.append("hierarchical")
        # The transport's own collective and a direct schedule take as long, where values are as they are.
        ways = [raw[0], *(Way(name, True) for name in names)]
        predicted = {way: model.seconds(op, way, dtype, nbytes, self.topology, profile, ratio) for way in ways}
        ways.sort(key=predicted.__getitem__)
        worth = [way for way in ways if predicted[way] <= _WORTH_TRYING * predicted[ways[0]]][:_MAX_TRIED]
        even_at = model.break_even_bandwidth(op, Way(names[0], True), dtype, self.topology, profile)
        told = "; ".join(f"{way} {1e3 * predicted[way]:.3g} ms" for way in ways)
        reason = (
            f"predicted: {told}; coding keeps up with {8e-9 * even_at:.3g} Gbit/s between nodes, "
            f"which have {8e-9 * profile.between.bandwidth:.3g}"
        )
        log.info("%s of %d bytes: %s", op, nbytes, reason)
        return Choice(ways[:1] if alone else worth, reason)

    @property
    def _has_levels(self) -> bool:
        return self.topology.spans_nodes and self.topology.local_size > 1

    def _chunk_count(self, dtype: DType, nbytes: int) -> int:
        if self._in_pieces:
            piece_nbytes = min(max(nbytes // _CHUNKS, _MIN_CHUNK_NBYTES), _MAX_CHUNK_NBYTES)
        else:
            piece_nbytes = nbytes + dtype.block_nbytes
        blocks = (self._config.chunk_nbytes or piece_nbytes) // dtype.block_nbytes
        return max(blocks, 1) * BLOCK_COUNT


def _size_class(nbytes: int) -> int:
    """Return a number for sizes that are alike: two for each power of two."""
    bits = nbytes.bit_length()
    return 2 * bits + (nbytes >> max(bits - 2, 0) & 1)


def _least_of(size_class: int) -> int:
    """Return the least size of a class."""
    bits, upper = divmod(size_class, 2)
    return (2 + upper) << bits - 2 if bits > 1 else bits
