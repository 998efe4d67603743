"""The environment variables."""

from __future__ import annotations

import pytest

from zipccl.config import Config
from zipccl.errors import ArgumentError


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
