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
from chain.store.blockfiles import BlockFiles, Names, walk
from worlds.depth import share

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


def named(walked: tuple[int, Names]) -> tuple[int, list[Multihash]]:
    return walked[0], list(walked[1])


def test_the_walk_goes_from_the_head_to_the_seed(tmp_path: Path) -> None:
    write(tmp_path, {})
    assert named(walk(BlockFiles(tmp_path), CHAIN[-1].hash)) == (0, [block.hash for block in CHAIN])


@pytest.mark.slow
@settings(max_examples=share(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=st.dictionaries(st.integers(0, SIZE - 1), DAMAGE, max_size=4))
def test_guesses_lose_nothing(damage: dict[int, tuple[str, int]], tmp_path: Path) -> None:
    write(tmp_path, damage)
    _, guessed = walk(BlockFiles(tmp_path), CHAIN[-1].hash)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blockfiles, "_MAX_PLACES", 0)
        _, read = walk(BlockFiles(tmp_path), CHAIN[-1].hash)
    assert list(guessed[len(guessed) - len(read) :]) == list(read)


@pytest.mark.slow
@settings(max_examples=share(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(number=st.integers(1, SIZE - 2), damage=DAMAGE)
def test_one_damaged_block_does_not_end_the_walk(number: int, damage: tuple[str, int], tmp_path: Path) -> None:
    write(tmp_path, {number: damage})
    assert named(walk(BlockFiles(tmp_path), CHAIN[-1].hash)) == (0, [block.hash for block in CHAIN])


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


@pytest.mark.slow
@settings(max_examples=share(60))
@given(ahead=st.integers(0, 9), ring=st.integers(1, 9), look=st.integers(1, 12))
def test_files_that_name_each_other_in_a_ring_are_walked_once(ahead: int, ring: int, look: int) -> None:
    names = [Multihash.sha3_256(bytes([number])) for number in range(ahead + ring)]

    class Rings(BlockFiles):
        """Files that hold other blocks than their names say, each naming the next."""

        def read(self, name: Multihash) -> bytes:
            return name

    class Walk(blockfiles._Walk):
        def _next(self, name: Multihash, number: int | None) -> tuple[int, Multihash]:
            place = names.index(name)
            above = 1000 if number is None else number
            return above - 1, names[place + 1] if place + 1 < len(names) else names[ahead]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blockfiles, "_FIRST_LOOK", look)
        first, found = Walk(Rings(Path("nowhere"))).run(names[0])
    assert list(found) == names[::-1]
    assert first == 1000 - len(names) + 1


def test_names_are_a_sequence() -> None:
    names = Names(b"".join(block.hash for block in CHAIN))
    assert len(names) == len(CHAIN)
    assert list(names) == [block.hash for block in CHAIN]
    assert names[-1] == CHAIN[-1].hash
    assert list(names[3:5]) == [CHAIN[3].hash, CHAIN[4].hash]
    assert not names[5:3]
    with pytest.raises(IndexError):
        names[len(CHAIN)]
