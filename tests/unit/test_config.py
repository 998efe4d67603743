"""The environment variables."""

from __future__ import annotations

import pytest

from zipccl.codec.wire import dtype_named
from zipccl.config import Config
from zipccl.errors import ArgumentError
from zipccl.strategy import Strategy

BFLOAT16 = dtype_named("bfloat16")


def test_defaults() -> None:
    assert Config.from_environment() == Config(600.0, 1, None, 1 << 30)


def test_an_argument_comes_before_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZIPCCL_TIMEOUT", "7")
    assert Config.from_environment().timeout == 7
    assert Config.from_environment(8.5).timeout == 8.5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ZIPCCL_TIMEOUT", "soon"),
        ("ZIPCCL_TIMEOUT", "-1"),
        ("ZIPCCL_TIMEOUT", "nan"),
        ("ZIPCCL_CHECK", "yes"),
        ("ZIPCCL_CHUNK_NBYTES", "0"),
        ("ZIPCCL_CHUNK_NBYTES", "1.5"),
        ("ZIPCCL_MAX_MESSAGE_NBYTES", "1G"),
    ],
)
def test_a_wrong_value_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ArgumentError, match=f"{name} is '?{value}.*; expected "):
        Config.from_environment()


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan")])
def test_a_wrong_timeout(timeout: float) -> None:
    with pytest.raises(ArgumentError, match="timeout is"):
        Config.from_environment(timeout)


def test_what_is_compressed() -> None:
    config = Config.from_environment()
    across, inside = Strategy([0, 1], config), Strategy([0, 0], config)
    large, small = 1 << 24, 1 << 10
    assert across.plan("auto", BFLOAT16, large).compress
    assert not across.plan("auto", BFLOAT16, small).compress
    assert not inside.plan("auto", BFLOAT16, large).compress
    assert inside.plan("always", BFLOAT16, small).compress
    assert not across.plan("never", BFLOAT16, large).compress
    assert not across.plan("always", dtype_named("int32"), large).compress


@pytest.mark.parametrize("name", ["bfloat16", "float32", "float64", "uint8"])
@pytest.mark.parametrize("count", [0, 1, 255, 256, 1 << 20, 1 << 33])
def test_pieces_are_whole_blocks(name: str, count: int) -> None:
    plan = Strategy([0, 1], Config.from_environment()).plan("auto", dtype_named(name), count)
    assert plan.chunk_count > 0
    assert plan.chunk_count % 256 == 0
