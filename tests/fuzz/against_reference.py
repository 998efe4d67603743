"""Compare the native codecs with the reference on the bodies that fuzzing has kept; run after ``tests/fuzz/run``.

The native implementations share what is around their kernels, and fuzzing compares them with each other only. Run as
``python -m tests.fuzz.against_reference FOLDER COUNT``; it takes that many bodies at random. Status 1 on a difference.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np

from tests.unit import codecs
from tests.unit.codecs import Bytes
from zipccl.codec import wire
from zipccl.errors import CorruptPayloadError

MAX_COUNT = (2 * wire.TILE_BLOCKS + 3) * wire.BLOCK_COUNT


def check(content: bytes) -> bool:
    """Decode an input of decode_body.cpp with every codec, and encode what comes out; return whether it was accepted.

    Raises:
        AssertionError: two codecs differ.
    """
    dtype = wire.DTYPES[content[0] % len(wire.DTYPES)]
    count = (content[1] | content[2] << 8) % MAX_COUNT
    body = np.frombuffer(content, np.uint8, offset=4)
    results: list[Bytes | None] = []
    for codec in codecs.CODECS:
        try:
            results.append(codecs.decode(codec, dtype, body, count))
        except CorruptPayloadError:
            results.append(None)
    expected = results[0]
    for codec, found in zip(codecs.CODECS, results, strict=True):
        assert (found is None) == (expected is None), f"{codec.name} {'refuses' if found is None else 'accepts'} it"
        if found is not None and expected is not None:
            assert np.array_equal(found, expected), f"{codec.name} decodes it otherwise"
    if expected is None:
        return False
    codecs.assert_all_agree(dtype, expected)
    return True


def main() -> int:
    paths = sorted(Path(sys.argv[1]).iterdir())
    paths = random.sample(paths, min(len(paths), int(sys.argv[2])))
    accepted, differing = 0, 0
    for path in paths:
        content = path.read_bytes()
        if len(content) < 4:
            continue
        try:
            accepted += check(content)
        except AssertionError as error:
            differing += 1
            print(f"{path}: {error}")
    print(f"{len(paths)} bodies, {accepted} accepted, {differing} treated differently")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
