"""Packs of blocks, and places that are peers as long as their last answer stands."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid, Remote
from chain.ids import DatasetId
from odfd.published import packs
from odfd.published.packs import number_in, pack, pack_file, read_pack, write_packs
from odfd.published.replication import Replication

# Packs of blocks: what is written is read, no bytes are more than blocks or a refusal, and files are kept in order.


def test_the_bytes_of_the_decision_record() -> None:
    raw = bytes.fromhex("00000003 616263 00000001 64")
    assert pack([b"abc", b"d"]) == raw
    assert read_pack(raw) == [b"abc", b"d"]


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=20))
def test_prop_a_pack_holds_what_was_put_in(blocks: list[bytes]) -> None:
    assert read_pack(pack(blocks)) == blocks


@given(st.binary(max_size=200))
def test_prop_any_bytes_are_blocks_or_refused(raw: bytes) -> None:
    try:
        blocks = read_pack(raw)
    except Invalid:
        return
    assert pack(blocks) == raw


def test_a_pack_ends_at_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "PACK", 3)
    monkeypatch.setattr(packs, "MAX_PACK", 40)
    assert len(read_pack(pack([b"x"] * 9))) == 3
    assert read_pack(pack([bytes(20), bytes(11), bytes(1)])) == [bytes(20), bytes(11)]
    assert pack([bytes(37)]) == b""
    with pytest.raises(Invalid, match="packed"):
        read_pack(b"\0\0\0\1x" * 4)


@pytest.mark.parametrize("path", ["packs", "packs/", "packs/01", "packs/-1", "packs/0/1", "trust/0", "packs/²"])
def test_what_names_no_pack(path: str) -> None:
    assert number_in(path) is None
    assert number_in(pack_file(0)) == 0
    assert number_in(pack_file(1234)) == 1234


class Chain:
    """Blocks, and who asked for which."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.asked: list[tuple[int, int]] = []

    def raw_blocks(self, start: int, stop: int) -> Any:
        self.asked.append((start, stop))
        return (b"%d" % number for number in range(start, stop))


def test_only_what_grew_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "PACK", 10)
    chain: Any = Chain(25)
    write_packs(tmp_path, chain, 25)
    (tmp_path / "packs" / "stray").write_bytes(b"?")
    chain.asked.clear()
    write_packs(tmp_path, chain, 31)
    assert chain.asked == [(20, 30), (30, 31)]
    found = [read_pack((tmp_path / pack_file(number)).read_bytes()) for number in range(4)]
    assert [int(raw) for pack in found for raw in pack] == list(range(31))
    assert len(list((tmp_path / "packs").iterdir())) == 5


# A place is a peer as long as its last answer stands.

CITIES = DatasetId(bytes(32))
PLACE = "https://example.org/cities"


class Source:
    """A place that answers when it is let, or not at all."""

    def __init__(self) -> None:
        self.begun, self.let = trio.Event(), trio.Event()
        self.is_gone = False
        self._edition = SimpleNamespace(root=PLACE, head=SimpleNamespace(dataset=CITIES), statements=(), card=None)

    async def resolve(self, place: str, _now: object) -> str:
        self.begun.set()
        await self.let.wait()
        if self.is_gone:
            raise Remote("nobody answers")
        return place

    async def edition(self, _root: str, _known: object) -> Any:
        return self._edition


async def test_a_place_that_is_asked_again_is_still_a_peer_until_it_fails() -> None:
    """Mirrors are shown with their number of peers, also while one of these is asked."""
    source: Any = Source()
    nobody: Any = SimpleNamespace(peers=list)
    replication = Replication(nobody, lambda _: source, nobody, lambda: 0)
    source.let.set()
    await replication.inquire(CITIES, PLACE)
    source.let, source.begun = trio.Event(), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replication.inquire, CITIES, PLACE)
        await source.begun.wait()
        assert [view.peer for view in replication.peers()] == [PLACE]
        source.let.set()
    source.is_gone = True
    with pytest.raises(Remote):
        await replication.inquire(CITIES, PLACE)
    assert replication.peers() == []
