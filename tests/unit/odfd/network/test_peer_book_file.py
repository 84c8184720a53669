"""Peers met before are met again; a damaged file costs a line in the log and nothing else."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from odfd.network import peer_book_file
from p2p.peers.book import PeerBook
from p2p.ports import PeerId

PEER = PeerId("12D3KooWpeer")
ADDRESS = "/ip4/203.0.113.7/tcp/4150/p2p/12D3KooWpeer"


class Lines:
    def __init__(self) -> None:
        self.said: list[str] = []

    def info(self, event: str, **fields: Any) -> None:
        self.said.append(event)

    error = warning = info


def met() -> PeerBook:
    book = PeerBook(Random(0))
    book.learn(PEER, [ADDRESS])
    book.note_connected(PEER, 5)
    book.note_disconnected(PEER, 7)
    return book


async def test_who_was_met_is_met_again(tmp_path: Path, autojump_clock: Any) -> None:
    path, lines = tmp_path / "demo.json", Lines()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer_book_file.keep_saved, met(), path, lines)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    again = PeerBook(Random(0))
    peer_book_file.recall(again, path, 0.0, lines)
    assert [entry.peer for entry in again.acquaintances(0.0)] == [PEER]
    assert again.get(PEER).addresses == (ADDRESS,)
    assert not lines.said
    assert [each.name for each in tmp_path.iterdir()] == ["demo.json"]  # noqa: ASYNC240


async def test_a_new_peer_is_saved_soon_and_a_crash_does_not_forget_it(
    tmp_path: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(work: Any, *args: Any) -> Any:
        return work(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)  # virtual time does not wait for threads
    path, book, again = tmp_path / "demo.json", PeerBook(Random(0)), PeerBook(Random(0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer_book_file.keep_saved, book, path, Lines())
        await trio.sleep(3.5 * peer_book_file.FOUND_SECONDS)
        book.note_connected(PEER, 5)
        book.learn(PEER, [ADDRESS])
        await trio.sleep(peer_book_file.FOUND_SECONDS)
        peer_book_file.recall(again, path, 0.0, Lines())  # while the other still runs
        nursery.cancel_scope.cancel()
    assert again.get(PEER).addresses == (ADDRESS,)


@pytest.mark.parametrize("content", [b"", b"{", b'[{"peer":5}]', b"\xff" * 9, b" " * (peer_book_file.MAX_FILE + 1)])
def test_a_damaged_book_is_told_of(tmp_path: Path, content: bytes) -> None:
    path, lines = tmp_path / "demo.json", Lines()
    path.write_bytes(content)
    book = PeerBook(Random(0))
    peer_book_file.recall(book, path, 0.0, lines)
    assert len(book) == 0
    assert lines.said == ["the peers met before are forgotten"]


async def test_a_full_disk_is_told_of_once_a_try(tmp_path: Path, autojump_clock: Any) -> None:
    lines = Lines()
    with trio.move_on_after(peer_book_file.SAVE_SECONDS * 1.5):
        await peer_book_file.keep_saved(met(), tmp_path / "absent" / "demo.json", lines)
    assert lines.said == ["the peers we know cannot be saved"] * 2
