"""All patterns of a type, in orders that make blocks of different kinds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zipccl.codec import base, wire

FLOAT32 = wire.dtype_named("float32")
PATTERNS = 1 << 32

# Pattern i is i * step (mod 2**32); a step is odd, so that every pattern comes once. A block's exponents are then
# all one, spread over six (2**23 patterns have one exponent, so 256 steps make 6 * 2**23), over eleven, over all.
STEPS = (1, 6 * (1 << 15) + 5, 11 * (1 << 15) + 3, 0x9E3779B1)


def check_patterns(codecs: Sequence[base.Codec], start: int, count: int, step: int) -> int:
    """Encode and decode float32 patterns start to start + count of an order; return the size of their body.

    Every codec's body must equal the first one's, and every codec must decode it to the patterns.
    """
    patterns = np.arange(start, start + count, dtype=np.uint64) * np.uint64(step)
    source = patterns.astype(np.uint32)
    room = np.empty(wire.body_nbytes_bound(count, FLOAT32), np.uint8)
    target = np.empty_like(source)
    first: bytes | None = None
    for codec in codecs:
        nbytes = codec.encode_body(FLOAT32, source.ctypes.data, count, room.ctypes.data)
        body = room[:nbytes].tobytes()
        first = body if first is None else first
        assert body == first, f"{codec.name} encodes patterns from {start} in steps of {step} otherwise"
        if nbytes == source.nbytes:
            assert body == source.tobytes(), f"{codec.name} leaves patterns from {start} raw, but not as they are"
            continue
        target.fill(0x55555555)
        codec.decode_body(FLOAT32, room.ctypes.data, nbytes, target.ctypes.data, count)
        different = np.flatnonzero(target != source)
        assert different.size == 0, (
            f"{codec.name} changes pattern {source[different[0]]:#010x}, {different.size} in all"
        )
    return len(first or b"")
