"""Bodies that no encoder writes: all codecs accept and refuse the same, and nothing outside the buffers is touched."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit import codecs
from tests.unit.codecs import CODECS, REFERENCE, Bytes, decode, encode, every_codec, every_dtype, every_float
from zipccl.codec import base, wire
from zipccl.codec.wire import DType
from zipccl.errors import CorruptPayloadError

BFLOAT16 = wire.dtype_named("bfloat16")


def outcomes(dtype: DType, body: Bytes, count: int, pages: list[codecs.GuardPages], at_end: bool) -> list[Bytes | None]:
    """Decode with every codec, between guard pages; None stands for a refusal."""
    results: list[Bytes | None] = []
    for codec in CODECS:
        address, _ = pages[0].place(body, at_end)
        target, decoded = pages[1].place(count * dtype.itemsize, at_end)
        try:
            codec.decode_body(dtype, address, body.size, target, count)
        except CorruptPayloadError:
            results.append(None)
        else:
            results.append(decoded.copy())
    return results


def assert_same_outcome(results: list[Bytes | None]) -> bool:
    """Return whether all codecs accepted, and decoded the same; fail if they disagree."""
    accepted = [result is not None for result in results]
    assert len(set(accepted)) == 1, dict(zip([codec.name for codec in CODECS], accepted, strict=True))
    for result in results[1:]:
        assert np.array_equal(result, results[0])  # type: ignore[arg-type]
    return accepted[0]


@pytest.fixture(scope="module")
def pages() -> list[codecs.GuardPages]:
    return [codecs.GuardPages(1 << 15) for _ in range(2)]


HOSTILE_KINDS = ["gaussian", "zero", "sparse", "constant", "escaping", "symmetric", "without low planes"]


@every_dtype
def test_truncated_bodies_are_refused(dtype: DType, pages: list[codecs.GuardPages]) -> None:
    source = codecs.mixture(HOSTILE_KINDS[:4], dtype, 9, tail=5)
    body = encode(REFERENCE, dtype, source)
    for nbytes in [*range(0, body.size, 1 + body.size // 700), body.size - 1]:
        assert not assert_same_outcome(outcomes(dtype, body[:nbytes], source.size // dtype.itemsize, pages, True))


@every_dtype
def test_bodies_of_another_count_are_refused(dtype: DType, pages: list[codecs.GuardPages]) -> None:
    source = codecs.mixture(HOSTILE_KINDS, dtype, 10)
    body = encode(REFERENCE, dtype, source)
    count = source.size // dtype.itemsize
    for other in (0, 1, 255, count - 256, count - 1, count + 1, count + 256):
        assert not assert_same_outcome(outcomes(dtype, body, other, pages, False))


@every_dtype
def test_codecs_agree_on_altered_bodies(dtype: DType, pages: list[codecs.GuardPages]) -> None:
    rng = np.random.default_rng([11, dtype.code])
    source = codecs.mixture(HOSTILE_KINDS, dtype, 11, tail=3)
    body = encode(REFERENCE, dtype, source)
    layout = wire.BlocksLayout.of(source.size // dtype.itemsize, dtype)
    accepted = 0
    for trial in range(1000):
        altered = body.copy()
        for _ in range(rng.integers(1, 4)):
            # Half of the changes hit the tile ends and the directory, which are few of the bytes.
            where = rng.integers(layout.static_offset if rng.random() < 0.5 else body.size)
            altered[where] = rng.integers(256) if rng.random() < 0.5 else altered[where] ^ 1 << rng.integers(8)
        results = outcomes(dtype, altered, source.size // dtype.itemsize, pages, trial % 2 == 0)
        accepted += assert_same_outcome(results)
    assert 30 < accepted < 970


def random_codes(rng: np.random.Generator, count: int) -> tuple[Bytes, int]:
    """Return count random codes, of any density, in rows, with garbage behind them; and how many are DEEPER."""
    codes = rng.random((2, count)) < rng.random((2, 1))
    rows = [codes[:, start : start + 32].ravel() for start in range(0, count, 32)]
    bits = np.concatenate([*rows, rng.random(-2 * count % 8) < 0.5])
    return np.packbits(bits.astype(bool), bitorder="little"), int(np.count_nonzero(codes[0] & codes[1]))


def random_part(dtype: DType, rng: np.random.Generator) -> tuple[tuple[int, int, int], list[Bytes], list[Bytes]]:
    """Return a directory entry, static and variable part of a coded or sparse block, garbage in unused bits."""

    def garbage(nbytes: int) -> Bytes:
        return rng.integers(0, 256, nbytes, dtype=np.uint8)

    def planes(count: int) -> Bytes:
        kept = [plane.bits for number, plane in enumerate(dtype.low_planes) if mask >> number & 1]
        return garbage(sum(count if bits == 8 else bits * -(-count // 8) for bits in kept))

    def rest(count: int) -> Bytes:
        return garbage(count if dtype.rest_bits == 8 else dtype.rest_bits * -(-count // 8))

    mask = int(rng.integers(1 << len(dtype.low_planes)))
    table = int(rng.integers(3))
    head = [garbage(2 * dtype.has_origin)]
    if sparse := rng.random() < 0.5:
        present = rng.random(256) < rng.choice([0, 1 / 256, rng.random(), 1])
        count = int(np.count_nonzero(present))
        level_0, reached = random_codes(rng, count)
        head += [garbage(1), np.packbits(present, bitorder="little"), rest(count), level_0]
    else:
        level_0, reached = random_codes(rng, 256)
        level_0 = np.concatenate([level_0.reshape(8, 2, 4)[:, plane].ravel() for plane in range(2)])
    level_1, reached = random_codes(rng, reached)
    level_2, reached = random_codes(rng, reached)
    variable = [*head, level_1, level_2, garbage(reached), *([planes(count)] if sparse else [])]
    multiple = dtype.itemsize if sparse else 2
    variable.append(garbage(-sum(part.size for part in variable) % multiple))
    units = sum(part.size for part in variable) // multiple
    if sparse:
        if units > wire.MAX_SPARSE_UNITS:
            return random_part(dtype, rng)
        return (wire.CODE_SPARSE + table, units, mask), [], variable
    if 2 * units > min(wire.MAX_CODED_VARIABLE_NBYTES, dtype.raw_variable_nbytes - 1):
        return random_part(dtype, rng)
    return (
        (table << wire.TABLE_SHIFT | units, int(rng.integers(256)), mask),
        [rest(256), level_0, planes(256)],
        variable,
    )


def made_up_body(dtype: DType, rng: np.random.Generator, blocks: int) -> Bytes:
    """Return a valid body of random parts."""
    layout = wire.BlocksLayout.of(blocks * wire.BLOCK_COUNT, dtype)
    entries, static, variable = zip(*(random_part(dtype, rng) for _ in range(blocks)), strict=True)
    static_parts, variable_parts = ([part for parts in group for part in parts] for group in (static, variable))
    directory = np.array(entries, np.uint8).T[: dtype.directory_entry_nbytes].ravel()
    padding = rng.integers(0, 256, layout.static_offset - layout.directory_offset - directory.size, dtype=np.uint8)
    ends = np.array([sum(part.size for part in parts) for parts in (static_parts, variable_parts)], "<u8")
    return np.concatenate([ends.view(np.uint8), directory, padding, *static_parts, *variable_parts])


@every_float
def test_codecs_decode_made_up_bodies_alike(dtype: DType, pages: list[codecs.GuardPages]) -> None:
    rng = np.random.default_rng([12, dtype.code])
    for trial in range(100):
        blocks = 1 + trial % 9
        body = made_up_body(dtype, rng, blocks)
        assert assert_same_outcome(outcomes(dtype, body, blocks * wire.BLOCK_COUNT, pages, trial % 2 == 0))


@every_float
def test_sparse_blocks_of_another_size_are_refused(dtype: DType, pages: list[codecs.GuardPages]) -> None:
    rng = np.random.default_rng([18, dtype.code])
    for present in (0, 1, 100, 200, 240, 256):
        bits = np.packbits(np.arange(256) < present, bitorder="little")
        content = rng.integers(0, 256, 256 * dtype.itemsize, dtype=np.uint8)
        start = 1 + 2 * dtype.has_origin
        content[start:][:32] = bits
        accepted = []
        for units in range(256):
            layout = wire.BlocksLayout.of(wire.BLOCK_COUNT, dtype)
            entry = np.array([wire.CODE_SPARSE, units, 0], np.uint8)[: dtype.directory_entry_nbytes]
            body = np.zeros(layout.static_offset + units * dtype.itemsize, np.uint8)
            body[8:16] = np.array([units * dtype.itemsize], "<u8").view(np.uint8)
            body[layout.directory_offset :][: entry.size] = entry
            body[layout.static_offset :] = content[: units * dtype.itemsize]
            if assert_same_outcome(outcomes(dtype, body, wire.BLOCK_COUNT, pages, units % 2 == 0)):
                accepted.append(units)
        assert len(accepted) <= 1
        if present == 0:
            assert accepted == [-(-(start + 32) // dtype.itemsize)]


@every_dtype
def test_entries_of_every_code_and_mask_are_judged_alike(dtype: DType, pages: list[codecs.GuardPages]) -> None:
    source = codecs.mixture(["constant", "constant", "gaussian"], dtype, 19)
    body = encode(REFERENCE, dtype, source)
    directory = wire.BlocksLayout.of(768, dtype).directory_offset
    for field in range(dtype.directory_entry_nbytes):
        for value in range(256):
            for block in (0, 2):
                altered = body.copy()
                altered[directory + 3 * field + block] = value
                assert_same_outcome(outcomes(dtype, altered, 768, pages, False))


@every_codec
def test_sizes_near_the_end_of_64_bits_are_refused(codec: base.Codec) -> None:
    source = codecs.mixture(["gaussian"] * 2, BFLOAT16, 13)
    body = encode(codec, BFLOAT16, source)
    for ends in ((1 << 64) - 1, 0), (0, (1 << 64) - 1), ((1 << 63), (1 << 63)), ((1 << 64) - 640, 1280):
        body[:16] = np.array(ends, "<u8").view(np.uint8)
        with pytest.raises(CorruptPayloadError):
            decode(codec, BFLOAT16, body, 512)
