"""The walk through a folder of blocks: guessed or read, whole or damaged, it finds the same names."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chain.codec.blocks import MAX_BLOCK, encode_block
from chain.ids import DatasetId
from chain.instant import SECOND, Instant
from chain.model.block import Block, MetadataBlock
from chain.model.events import AddData, DatasetKind, Seed, SetInfo
from chain.multihash import Multihash
from chain.store import blockfiles
from chain.store.blockfiles import BlockFiles, walk

SIZE = 40


def chain() -> list[Block]:
    """Most blocks of one shape, some of another."""
    blocks: list[Block] = []
    for number in range(SIZE):
        event: Seed | SetInfo | AddData = AddData(new_watermark=Instant(number * SECOND))
        if number == 0:
            event = Seed(dataset_id=DatasetId.from_public_key(bytes(32)), dataset_kind=DatasetKind.ROOT)
        elif number % 9 == 0:
            event = SetInfo(description="n" * (number % 4))
        previous = blocks[-1].hash if blocks else None
        content = MetadataBlock(
            system_time=Instant(number * SECOND), prev_block_hash=previous, sequence_number=number, event=event
        )
        blocks.append(encode_block(content))
    return blocks


CHAIN = chain()
DAMAGE = st.one_of(
    st.tuples(st.just("gone"), st.just(0)),
    st.tuples(st.just("short"), st.integers(0, 250)),
    st.tuples(st.just("flipped"), st.integers(0, 8 * len(CHAIN[1].raw) - 1)),
)


def write(folder: Path, damage: dict[int, tuple[str, int]]) -> None:
    for file in folder.iterdir():
        file.unlink()
    for block in CHAIN:
        raw = bytearray(block.raw)
        kind, place = damage.get(block.sequence_number, ("", 0))
        if kind == "short":
            del raw[place:]
        elif kind == "flipped":
            raw[place // 8 % len(raw)] ^= 1 << place % 8
        if kind != "gone":
            (folder / str(block.hash)).write_bytes(raw)


def test_the_walk_goes_from_the_head_to_the_seed(tmp_path: Path) -> None:
    write(tmp_path, {})
    assert walk(BlockFiles(tmp_path), CHAIN[-1].hash) == (0, [block.hash for block in CHAIN])


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=st.dictionaries(st.integers(0, SIZE - 1), DAMAGE, max_size=4))
def test_guesses_lose_nothing(damage: dict[int, tuple[str, int]], tmp_path: Path) -> None:
    write(tmp_path, damage)
    _, guessed = walk(BlockFiles(tmp_path), CHAIN[-1].hash)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blockfiles, "_MAX_PLACES", 0)
        _, read = walk(BlockFiles(tmp_path), CHAIN[-1].hash)
    assert guessed[len(guessed) - len(read) :] == read


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(number=st.integers(1, SIZE - 2), damage=DAMAGE)
def test_one_damaged_block_does_not_end_the_walk(number: int, damage: tuple[str, int], tmp_path: Path) -> None:
    write(tmp_path, {number: damage})
    assert walk(BlockFiles(tmp_path), CHAIN[-1].hash) == (0, [block.hash for block in CHAIN])


def test_what_is_kept_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {})
    monkeypatch.setattr(blockfiles, "KEPT", 3 * len(CHAIN[2].raw))
    files = BlockFiles(tmp_path)
    walk(files, CHAIN[-1].hash)
    for file in tmp_path.iterdir():
        file.unlink()
    left = [block.sequence_number for block in CHAIN if files.read(block.hash) is not None]
    assert left == [0, 1, 2], "those where a reading begins"


def test_no_more_is_read_than_a_block_may_have(tmp_path: Path) -> None:
    name = Multihash.sha3_256(b"")
    with (tmp_path / str(name)).open("wb") as file:
        file.truncate(1 << 32)
    raw = BlockFiles(tmp_path).read(name)
    assert raw is not None
    assert len(raw) == MAX_BLOCK + 1
