"""Pushes that come at the same time: each is kept once under a number of its own, and they share one transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from chain.errors import Conflict, Environment, Fault, Refused
from chain.instant import Instant
from chain.store.database import Database
from odfd.ingest import spool as module
from odfd.ingest.spool import PushSpool, Receipt
from odfd.state.directory import open_state_directory

NOW = Instant(1)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[tuple[PushSpool, Path]]:
    with open_state_directory(tmp_path / "state") as home:
        yield PushSpool(home.database, tmp_path / "spool", lambda: 100), tmp_path / "spool"


def together(spool: PushSpool, *pushes: Callable[[], Receipt]) -> list[Any]:
    """The answers of pushes that all wait while another thread has the lock."""
    answers: list[Any] = [None] * len(pushes)

    def run(number: int) -> None:
        try:
            answers[number] = pushes[number]()
        except Fault as error:
            answers[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(pushes))]
    queued = threading.Semaphore(0)

    class Told(list[Any]):
        def append(self, item: Any) -> None:
            super().append(item)
            queued.release()

    with spool._lock:
        spool._queue = Told()
        for each in threads:
            each.start()
            assert queued.acquire(timeout=20)
    for each in threads:
        each.join()
    return answers


def adding(spool: PushSpool, data: bytes, push_id: str | None = None, source: str = "one") -> Callable[[], Receipt]:
    return lambda: spool.add(source, data, 1, NOW, None, push_id)


def numbers(answers: Sequence[Any]) -> list[int]:
    return [each.number for each in answers]


def files(folder: Path, source: str = "one") -> list[bytes]:
    return [each.read_bytes() for each in sorted((folder / source).iterdir())]


def test_pushes_that_wait_are_kept_in_one_transaction(
    kept: tuple[PushSpool, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    spool, folder = kept
    writes, synced, write, sync = [], [], Database.write, module.sync_folder
    monkeypatch.setattr(Database, "write", lambda self: (writes.append(1), write(self))[1])
    monkeypatch.setattr(module, "sync_folder", lambda path: (synced.append(path.name), sync(path))[1])
    made = [adding(spool, b"%d" % each, source="one" if each % 2 else "two") for each in range(8)]
    answers = together(spool, *made)
    assert numbers(answers) == [1, 1, 2, 2, 3, 3, 4, 4]
    assert all(each.durable for each in answers)
    assert (len(writes), sorted(synced)) == (1, ["one", "two"])
    assert files(folder, "two") == [b"0", b"2", b"4", b"6"]
    assert spool.waiting("one").pushes == spool._held_of("one").pushes == 4
    assert spool.add("one", b"9", 1, NOW, None).number == 5


def test_an_id_counts_once_among_pushes_that_wait(kept: tuple[PushSpool, Path]) -> None:
    spool, folder = kept
    answers = together(spool, adding(spool, b"a", "x"), adding(spool, b"a", "x"), adding(spool, b"b", "x"))
    assert [(each.number, each.repeated) for each in answers[:2]] == [(1, False), (1, True)]
    assert isinstance(answers[2], Conflict)
    assert files(folder) == [b"a"]
    assert adding(spool, b"a", "x")().repeated


def test_pushes_that_wait_take_no_more_room_than_there_is(kept: tuple[PushSpool, Path]) -> None:
    spool, folder = kept
    answers = together(spool, *[adding(spool, b"x" * 40) for _ in range(3)])
    assert numbers(answers[:2]) == [1, 2]
    assert isinstance(answers[2], Refused)
    assert len(files(folder)) == 2
    with pytest.raises(Refused, match="2 pushes of 80 B wait: 100 B is the most"):
        adding(spool, b"x" * 40)()
    spool.drop("one", 1)
    assert adding(spool, b"x" * 40)().number == 3


def test_pushes_whose_rows_cannot_be_written_are_all_told_and_come_again(
    kept: tuple[PushSpool, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    spool, folder = kept

    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(module, "sync_folder", full)
        answers = together(spool, adding(spool, b"a", "x"), adding(spool, b"a", "x"), adding(spool, b"b"))
        assert [type(each) for each in answers] == [Environment] * 3
    assert spool.waiting("one").pushes == 0
    assert numbers([adding(spool, b"a", "x")(), adding(spool, b"b")()]) == [1, 2]
    assert files(folder) == [b"a", b"b"]
    assert spool.sweep() == 0
