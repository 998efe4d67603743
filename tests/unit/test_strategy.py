"""The strategy: what it predicts, tries and settles on, the same on all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from zipccl.buffers import Buffer
from zipccl.codec import default_codec
from zipccl.codec.wire import DTYPES, dtype_named
from zipccl.config import Config
from zipccl.errors import ArgumentError
from zipccl.strategy import Plan, Strategy, model
from zipccl.strategy.choice import Choice
from zipccl.strategy.model import Topology
from zipccl.strategy.plan import GATHER, NATIVE, Way
from zipccl.strategy.profile import CodecSpeed, Link, Profile, measure_codec, measure_links
from zipccl.strategy.selection import SCHEDULES, _least_of, _size_class

BFLOAT16 = dtype_named("bfloat16")
RAW, COMPRESSED = Way("direct", False), Way("direct", True)
CONFIG = Config(600.0, 1, None, 1 << 30)
TWO_NODES = [0, 0, 1, 1]


def profile(gigabits: float) -> Profile:
    return Profile(Link(1e-6, 10e9), Link(20e-6, gigabits / 8 * 1e9), {"bfloat16": CodecSpeed(10e9, 15e9, 8e9, 10e9)})


def strategy(gigabits: float = 1, nodes: list[int] | None = None) -> Strategy:
    return Strategy(nodes or TWO_NODES, CONFIG, profile(gigabits), list)


def plan(
    made_by: Strategy, op: str = "all_gather", count: int = 1 << 22, compress: str = "auto", algorithm: str = "auto"
) -> Plan:
    return made_by.plan(op, compress, algorithm, BFLOAT16, count)


def run(choice: Choice, seconds: dict[Way, float], calls: int) -> list[Way]:
    """Make calls that take so long each, and return the ways that they went."""
    ways = []
    for _ in range(calls):
        way = choice.way
        ways.append(way)
        if choice.record(seconds[way]):
            choice.settle(choice.seconds())
    return ways


def test_each_way_is_tried_and_the_fastest_stays() -> None:
    choice = Choice([RAW, COMPRESSED], "")
    ways = run(choice, {RAW: 2.0, COMPRESSED: 1.0}, 50)
    assert ways[:6] == [RAW, COMPRESSED] * 3
    assert set(ways[6:]) == {COMPRESSED}
    assert "direct raw 2e+03 ms; direct compressed 1e+03 ms" in choice.reason


def test_the_first_call_of_a_way_does_not_count() -> None:
    choice = Choice([RAW, COMPRESSED], "")
    run(choice, {RAW: 0.1, COMPRESSED: 5.0}, 2)
    assert set(run(choice, {RAW: 2.0, COMPRESSED: 1.0}, 20)[4:]) == {COMPRESSED}


def test_the_others_are_looked_at_again() -> None:
    choice = Choice([RAW, COMPRESSED], "")
    run(choice, {RAW: 2.0, COMPRESSED: 1.0}, 6 + 256)
    now = {RAW: 0.5, COMPRESSED: 1.0}
    assert run(choice, now, 3) == [RAW, RAW, RAW]
    assert set(run(choice, now, 500)) == {RAW}
    assert COMPRESSED in run(choice, now, 20)


def test_a_review_changes_nothing_for_little() -> None:
    choice = Choice([RAW, COMPRESSED], "")
    run(choice, {RAW: 2.0, COMPRESSED: 1.0}, 6 + 256)
    assert run(choice, {RAW: 0.97, COMPRESSED: 1.0}, 3) == [RAW, RAW, COMPRESSED]


def test_one_way_needs_no_times() -> None:
    choice = Choice([RAW], "")
    assert not any(choice.record(1.0) for _ in range(1000))


def test_ranks_with_other_times_decide_the_same() -> None:
    ranks = [Choice([RAW, COMPRESSED], "") for _ in range(2)]
    times = [{RAW: 1.0, COMPRESSED: 2.0}, {RAW: 4.0, COMPRESSED: 3.0}]
    for _ in range(1000):
        assert ranks[0].way == ranks[1].way
        settle = [choice.record(seconds[choice.way]) for choice, seconds in zip(ranks, times, strict=True)]
        assert settle[0] == settle[1]
        if settle[0]:
            agreed = [max(pair) for pair in zip(*(choice.seconds() for choice in ranks), strict=True)]
            for choice in ranks:
                choice.settle(agreed)
    assert ranks[0].way == COMPRESSED


def test_a_slow_network_compresses_and_a_fast_one_does_not() -> None:
    assert plan(strategy(1)).compress
    assert not plan(strategy(400)).compress
    assert plan(strategy(400)).algorithm == NATIVE


def test_inside_a_node_the_first_way_is_raw() -> None:
    assert not plan(strategy(1, [0, 0])).compress


def test_small_messages_are_raw_without_a_trial() -> None:
    made = strategy(1)
    first = plan(made, count=1 << 10)
    assert (first.algorithm, first.compress) == (NATIVE, False)
    assert first.choice is not None
    assert first.choice.ways == [Way(NATIVE, False)]
    assert plan(made, "all_reduce", 100).algorithm == GATHER
    assert plan(made, "all_reduce", 10000).algorithm == "direct"


def test_what_has_no_coding_is_raw() -> None:
    made = strategy(1)
    for dtype in DTYPES:
        if not dtype.is_float:
            assert not made.plan("all_gather", "always", "auto", dtype, 1 << 22).compress


def test_what_is_asked_for_is_done() -> None:
    made = strategy(400)
    assert plan(made, compress="always").compress
    assert not plan(strategy(1), compress="never").compress
    for op, algorithms in SCHEDULES.items():
        for algorithm in algorithms:
            assert plan(made, op, algorithm=algorithm).algorithm == algorithm
            assert plan(made, op, compress="always", algorithm=algorithm).compress


def test_auto_changes_no_bits_of_a_reduction() -> None:
    for gigabits in (1, 10, 100):
        choice = plan(strategy(gigabits), "all_reduce").choice
        assert choice is not None
        assert {way.algorithm for way in choice.ways} <= {"direct", GATHER}


def test_a_wrong_argument_is_named() -> None:
    with pytest.raises(ArgumentError, match='compress is \'yes\'; expected "auto", "always" or "never"'):
        plan(strategy(), compress="yes")
    with pytest.raises(
        ArgumentError, match="algorithm is 'tree'; expected one of auto, direct, ring, hierarchical for"
    ):
        plan(strategy(), algorithm="tree")


def test_calls_that_some_ranks_make_alone_try_nothing() -> None:
    made = strategy(1)
    choice = made.plan("send", "auto", "auto", BFLOAT16, 1 << 22, alone=True).choice
    assert choice is not None
    assert choice.ways == [COMPRESSED]


def test_the_break_even_bandwidth_is_where_both_take_as_long() -> None:
    topology = Topology.of([0, 1])
    even_at = model.break_even_bandwidth("all_gather", COMPRESSED, BFLOAT16, topology, profile(1))
    # Both ranks encode what they send and decode what comes.
    assert even_at == pytest.approx(1 / (1 / 10e9 + 1 / 15e9))
    at = Profile(profile(1).inside, Link(1e-9, even_at), profile(1).codec)
    raw, compressed = (
        model.seconds("all_gather", way, BFLOAT16, 1 << 26, topology, at, 1.5) for way in (RAW, COMPRESSED)
    )
    assert raw < compressed < 1.15 * raw


def test_a_profile_is_kept_in_a_file(tmp_path: Path) -> None:
    profile(5).save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == profile(5)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"inside": 1}', None])
def test_a_profile_that_is_none_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "profile.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ArgumentError, match=r"profile .* cannot be read .*; make one with: zipccl calibrate -o"):
        Profile.load(path)


def test_a_rank_alone_has_links_too() -> None:
    def exchange(*_: int) -> None:
        raise AssertionError("there is nobody to exchange with")

    inside, between = measure_links(0, [0], exchange, Buffer, list)
    assert inside == between


def test_the_codec_is_measured() -> None:
    speeds = measure_codec(default_codec(1), list)
    assert set(speeds) == {"bfloat16", "float32"}
    assert all(speed.encode > 1e6 and speed.decode_reduce > 1e6 for speed in speeds.values())


def test_ranks_measure_both_links_in_pairs() -> None:
    peers = []

    def exchange(peer: int, source: int, target: int, nbytes: int) -> None:  # noqa: ARG001
        peers.append(peer)

    met = []
    for rank in range(4):
        measure_links(rank, TWO_NODES, exchange, Buffer, list)
        met.append(sorted(set(peers)))
        peers.clear()
    assert met == [[1, 2], [0], [0, 3], [2]]


@pytest.mark.parametrize("name", ["bfloat16", "float32", "float64", "uint8"])
@pytest.mark.parametrize("count", [0, 1, 255, 256, 1 << 20, 1 << 33])
def test_pieces_are_whole_blocks(name: str, count: int) -> None:
    plan = strategy().plan("all_gather", "never", "auto", dtype_named(name), count)
    assert plan.chunk_count > 0
    assert plan.chunk_count % 256 == 0


def test_sizes_of_a_class_are_done_the_same_ways() -> None:
    for nbytes in [*range(5000), *(3 << bits for bits in range(40))]:
        least = _least_of(_size_class(nbytes))
        assert 2 * nbytes <= 3 * least
        assert least <= nbytes
        assert _size_class(least) == _size_class(nbytes)
    for first, second in ((8192, 8300), (8300, 8192), (16384, 24575), (24575, 16384)):
        made = strategy(1)
        choices = [plan(made, "all_reduce", count).choice for count in (first, second)]
        assert choices[0] is choices[1]
        other = plan(strategy(1), "all_reduce", second).choice
        assert other is not None
        assert choices[0] is not None
        assert choices[0].ways == other.ways
