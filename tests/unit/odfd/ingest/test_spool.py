"""Pushes that come at the same time: each is kept once under a number of its own, and they share one transaction."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.errors import Conflict, Environment, Fault, Refused
from chain.instant import Instant
from chain.store import durable
from chain.store.database import Database
from odfd.store.directory import open_state_directory
from odfd.store.spool import SMALL, Buffer, OverflowPolicy, Pushed, PushSpool, Receipt
from worlds.eventually import PATIENCE

NOW = Instant(1)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[tuple[PushSpool, Path]]:
    with open_state_directory(tmp_path / "state") as home:
        for source in ("one", "two"):
            (tmp_path / "spool" / source).mkdir(parents=True)
        yield PushSpool(home.database, tmp_path / "spool", lambda: 1 << 20), tmp_path / "spool"


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
        def extend(self, items: Any) -> None:
            super().extend(items)
            queued.release()

    with spool._lock:
        spool._queue = Told()
        for each in threads:
            each.start()
            assert queued.acquire(timeout=PATIENCE)
    for each in threads:
        each.join()
    return answers


def adding(spool: PushSpool, data: bytes, push_id: str | None = None, source: str = "one") -> Callable[[], Receipt]:
    return lambda: spool.add(source, data, 1, NOW, None, push_id)


def numbers(answers: Sequence[Any]) -> list[int]:
    return [each.number for each in answers]


def bodies(spool: PushSpool, source: str = "one") -> list[bytes]:
    """As a dataset takes them."""
    return [each.path.read_bytes() for each in spool.after(source, 0, 1000, 1 << 30)[0]]


def large(text: bytes) -> bytes:
    return text.ljust(SMALL + 1)


@pytest.mark.parametrize("is_large", [False, True])
def test_pushes_that_wait_are_kept_in_one_transaction(
    kept: tuple[PushSpool, Path], monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    spool, folder = kept
    writes, synced, write, sync = [], [], Database.write, durable.sync_folder
    monkeypatch.setattr(Database, "write", lambda self: (writes.append(1), write(self))[1])
    monkeypatch.setattr(durable, "sync_folder", lambda path: (synced.append(path.name), sync(path))[1])
    content = large if is_large else bytes
    made = [adding(spool, content(b"%d" % each), source="one" if each % 2 else "two") for each in range(8)]
    answers = together(spool, *made)
    assert numbers(answers) == [1, 1, 2, 2, 3, 3, 4, 4]
    assert all(each.durable for each in answers)
    assert (len(writes), sorted(synced)) == (1, ["one", "two"] if is_large else [])
    assert len(list(folder.glob("*/*"))) == (8 if is_large else 0)
    assert [each.strip() for each in bodies(spool, "two")] == [b"0", b"2", b"4", b"6"]
    assert spool.waiting("one").pushes == spool._held_of("one").pushes == 4
    assert spool.add("one", b"9", 1, NOW, None).number == 5


def test_an_id_counts_once_among_pushes_that_wait(kept: tuple[PushSpool, Path]) -> None:
    spool, _ = kept
    answers = together(spool, adding(spool, b"a", "x"), adding(spool, b"a", "x"), adding(spool, b"b", "x"))
    assert [(each.number, each.repeated) for each in answers[:2]] == [(1, False), (1, True)]
    assert isinstance(answers[2], Conflict)
    assert bodies(spool) == [b"a"]
    assert adding(spool, b"a", "x")().repeated


def test_pushes_that_wait_take_no_more_room_than_there_is(kept: tuple[PushSpool, Path]) -> None:
    spool, _ = kept
    spool._limit = lambda: 100
    answers = together(spool, *[adding(spool, b"x" * 40) for _ in range(3)])
    assert numbers(answers[:2]) == [1, 2]
    assert isinstance(answers[2], Refused)
    assert len(bodies(spool)) == 2
    with pytest.raises(Refused, match="2 pushes of 80 B wait: 100 B is the most"):
        adding(spool, b"x" * 40)()
    spool.drop("one", 1)
    assert adding(spool, b"x" * 40)().number == 3


def test_pushes_whose_rows_cannot_be_written_are_all_told_and_come_again(
    kept: tuple[PushSpool, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    spool, folder = kept

    a = large(b"a")

    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(durable, "sync_folder", full)
        answers = together(spool, adding(spool, a, "x"), adding(spool, a, "x"), adding(spool, b"b"))
        assert [type(each) for each in answers] == [Environment] * 3
    assert spool.waiting("one").pushes == 0
    assert numbers([adding(spool, a, "x")(), adding(spool, b"b")()]) == [1, 2]
    assert bodies(spool) == [a, b"b"]
    assert spool.sweep() == 0
    assert [each.name for each in folder.glob("*/*")] == [f"{1:012d}"], "what is in the database is made again"
    assert bodies(spool) == [a, b"b"]


IDS = st.sampled_from([None, "x", "y"])
BODIES = st.sampled_from([b"a", b"bb", large(b"c")])
PUSHES = st.lists(st.tuples(st.sampled_from(["one", "two"]), BODIES, IDS, st.booleans()), max_size=8)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PushSpool]:
    folder = tmp_path_factory.mktemp("spool")
    with open_state_directory(folder / "state") as home:
        yield PushSpool(home.database, folder / "spool", lambda: SMALL + 40)


@pytest.mark.slow
@given(PUSHES, st.lists(st.integers(1, 4), min_size=8, max_size=8))
@settings(max_examples=20, deadline=None)
def test_pushes_together_are_answered_as_one_by_one(
    shared: PushSpool, pushes: list[tuple[str, bytes, str | None, bool]], cuts: list[int]
) -> None:
    """Also where some have a buffer, bodies are large, ids repeat, and a body does not fit."""
    case = secrets.token_hex(8)
    made = [
        Pushed(source, data, 1, Buffer(2, OverflowPolicy.DROP_OLDEST) if is_buffered else None, push_id)
        for source, data, push_id, is_buffered in pushes
        if not is_buffered or source == "two"
    ]
    for start, end in pairwise([0, *accumulate(cuts)]):
        some = sorted(made[start:end], key=lambda each: each.buffer is None)  # those with a buffer come first
        alone = [shared.add_all([each._replace(source=f"{case}-a-{each.source}")], NOW)[0] for each in some]
        together = shared.add_all([each._replace(source=f"{case}-t-{each.source}") for each in some], NOW)
        assert [told(each) for each in together] == [told(each) for each in alone]
    for source in ("one", "two"):
        one, other = f"{case}-a-{source}", f"{case}-t-{source}"
        assert bodies(shared, one) == bodies(shared, other)
        assert shared.waiting(one) == shared.waiting(other)
        assert shared._held_of(one).bytes == shared.waiting(one).bytes == shared._held_of(other).bytes
    for push in made:
        shared.remove(f"{case}-a-{push.source}")
        shared.remove(f"{case}-t-{push.source}")


def told(answer: Receipt | Exception) -> object:
    """Without the number of pushes that wait: a body without room may be refused before others of its batch count."""
    return answer if isinstance(answer, Receipt) else (type(answer), getattr(answer, "rule", ""))
