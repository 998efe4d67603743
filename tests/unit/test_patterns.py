"""Bit patterns survive; tools/all_float32 tries all those of float32, this file a part of them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit import codecs
from tests.unit.patterns import PATTERNS, STEPS, check_patterns
from zipccl.codec import wire
from zipccl.codec.wire import DType

SMALL = [dtype for dtype in wire.DTYPES if dtype.itemsize <= 2]


@pytest.mark.parametrize("step", STEPS)
def test_many_float32_patterns_survive(step: int) -> None:
    count = 1 << 18
    for part in range(16):
        check_patterns(codecs.NATIVE, part * (PATTERNS // 16) + part * 4096, count, step)


@pytest.mark.parametrize("dtype", SMALL, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("step", [1, 5, 127, 641, 40503])
def test_all_patterns_of_small_types_survive(dtype: DType, step: int) -> None:
    count = 1 << 8 * dtype.itemsize
    every = np.arange(count, dtype=np.uint32) * np.uint32(step) % np.uint32(count)
    codecs.assert_all_agree(dtype, np.tile(every, 2048 // count + 1).astype(f"u{dtype.itemsize}").view(np.uint8))
