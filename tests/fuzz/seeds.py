"""Write the inputs that fuzzing starts with: bodies of blocks of every kind, and the fixtures'; see ``run``."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from tests.fixtures.make_wire_v1 import fixtures, read_fixture
from tests.unit import codecs
from tests.unit.codecs import Bytes
from zipccl.codec import wire
from zipccl.codec.wire import DType


def decoder_input(dtype: DType, count: int, body: Bytes) -> bytes:
    """Return a body with the head that decode_body.cpp expects."""
    return bytes([wire.DTYPES.index(dtype), count % 256, count // 256, 0]) + body.tobytes()


def decoder_inputs() -> list[bytes]:
    inputs = []
    for path in fixtures():
        dtype, count, body, _ = read_fixture(path)
        inputs.append(decoder_input(dtype, count, body))
    for dtype in wire.DTYPES:
        kinds = list(codecs.BLOCKS)
        for some in ([kinds[0], kind] for kind in kinds):
            source = codecs.mixture(some, dtype, seed=len(inputs), tail=3)
            body = codecs.encode(codecs.REFERENCE, dtype, source)
            inputs.append(decoder_input(dtype, source.size // dtype.itemsize, body))
        source = codecs.mixture([*["zero"] * 60, *kinds], dtype, seed=1)
        body = codecs.encode(codecs.REFERENCE, dtype, source)
        inputs.append(decoder_input(dtype, source.size // dtype.itemsize, body))
    return inputs


def other_inputs(head_nbytes: int, nbytes: int) -> list[bytes]:
    """Return random bytes for every dtype; the other targets make something of any."""
    rng = np.random.default_rng(head_nbytes)
    return [
        bytes([number]) + rng.integers(0, 256, head_nbytes - 1 + blocks * nbytes, dtype=np.uint8).tobytes()
        for number in range(len(wire.DTYPES))
        for blocks in (1, 2, 9, 20)
    ]


def main() -> None:
    for target, inputs in {
        "decode_body": decoder_inputs(),
        "encode_body": other_inputs(head_nbytes=3, nbytes=8),
        "reduce": other_inputs(head_nbytes=7, nbytes=3 * 8 * 17),
    }.items():
        folder = Path(sys.argv[1]) / target
        folder.mkdir(parents=True, exist_ok=True)
        for number, content in enumerate(inputs):
            (folder / f"{number:04}").write_bytes(content)


if __name__ == "__main__":
    main()
