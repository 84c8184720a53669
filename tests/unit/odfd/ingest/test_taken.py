"""Files that come or change too late to be taken are told; files that are being written are not taken."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from chain import instant
from chain.errors import Remote
from chain.ids import DatasetId
from chain.state import load_state
from odfd.ingest import consumed_files as module
from odfd.ingest.consumed_files import ConsumedFileIndex, ConsumedFiles
from odfd.ingest.driver import WRITTEN_TO, Ingested, NothingNew, pull_root
from odfd.ingest.fetch import files
from odfd.ingest.fetch.files import no_writer
from worlds.fake_engine import FakeEngine

DATASET = DatasetId.from_public_key(bytes(32))
JANUARY = "2020-01-01T00:00:00Z,A,1"
FEBRUARY = "2020-02-01T00:00:00Z,A,3"


def dated(path: Path, time: str) -> Path:
    moment = instant.parse(time)
    os.utime(path, ns=(moment, moment))
    return path


@pytest.fixture
def followed(polling: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A folder of which 02 and 04 were taken on the first of January 2024; its clock stands on the second.

    The file system stamps changes of names with the time of the machine, which a test cannot set: it is left out.
    """
    bench = polling()
    for name in ("02.csv", "04.csv"):
        dated(bench.write(name, JANUARY), "2023-12-31T00:00:00Z")
    stat = Path.stat

    def by_content(path: Path, **options: Any) -> Any:
        found = stat(path, **options)
        values, moment = list(found), found.st_mtime_ns
        return os.stat_result([*values[:9], 0], {"st_ctime_ns": moment, "st_mtime_ns": moment})

    monkeypatch.setattr(Path, "stat", by_content)
    return bench


async def told(bench: Any) -> dict[str, str]:
    outcome = await pull_root(bench.deps, DATASET)
    return {each.name: each.reason for each in outcome.counts.skipped}


def later(bench: Any) -> None:
    bench.clock = instant.parse("2024-01-02T00:00:00Z")


async def test_what_comes_or_changes_too_late_is_told_each_time(followed: Any) -> None:
    assert await told(followed) == {}
    later(followed)
    dated(followed.write("03.csv", FEBRUARY), "2024-01-01T12:00:00Z")
    dated(followed.write("02.csv", JANUARY, FEBRUARY), "2024-01-01T12:00:00Z")
    for _ in range(2):
        reasons = await told(followed)
        assert reasons == {
            "02.csv": "it changed at 2024-01-01T12:00:00Z, after it was taken; give what is new a name behind 04.csv",
            "03.csv": "it came after 04.csv was taken, and sorts before it; give what is new a name behind 04.csv",
        }
    assert followed.counts[-1].skipped[0].name in reasons


async def test_it_is_told_beside_what_is_taken(followed: Any) -> None:
    await told(followed)
    later(followed)
    dated(followed.write("01.csv", FEBRUARY), "2024-01-01T12:00:00Z")
    dated(followed.write("05.csv", FEBRUARY), "2024-01-01T12:00:00Z")
    outcome = await pull_root(followed.deps, DATASET)
    assert isinstance(outcome, Ingested)
    assert (outcome.rows, [each.name for each in outcome.counts.skipped]) == (1, ["01.csv"])


async def test_an_untouched_folder_has_nothing_to_tell_after_a_restart(followed: Any) -> None:
    await told(followed)
    later(followed)
    assert await told(followed) == {}
    again = ConsumedFileIndex().of(followed.chains.chain(DATASET), load_state(followed.chains.chain(DATASET)))
    assert again.names == ["02.csv", "04.csv"]


async def test_times_of_the_future_tell_nothing(followed: Any) -> None:
    await told(followed)
    dated(followed.write("02.csv", FEBRUARY), "2030-01-01T00:00:00Z")
    assert await told(followed) == {}


def test_what_a_compacted_chain_does_not_name_was_taken_with_its_neighbour(tmp_path: Path) -> None:
    chain = ConsumedFiles()
    chain.add("05.csv", instant.Instant(2**62))
    paths = [tmp_path / f"{number:02}.csv" for number in range(1, 6)]
    for path in paths:
        path.touch()
    assert chain.passed_over([str(path) for path in paths], instant.Instant(2**63)) == ()


def test_a_bounded_number_of_files_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many were taken; all of them in turn."""
    monkeypatch.setattr(module, "LOOKED_AT", 3)
    chain = ConsumedFiles()
    paths = []
    for number in range(20):
        path = tmp_path / f"{number:02}.csv"
        path.touch()
        chain.add(path.name, instant.Instant(0))
        paths.append(str(path))
    seen: set[str] = set()
    for _ in range(6):
        found = {each.name for each in chain.passed_over(paths, instant.Instant(2**63))}
        assert len(found) <= 6
        assert {"17.csv", "18.csv", "19.csv"} <= found
        seen |= found
    assert len(seen) == 20


async def test_the_index_follows_a_chain_that_is_cut_back(polling: Callable[..., Any]) -> None:
    bench = polling()
    bench.write("01.csv", JANUARY)
    await pull_root(bench.deps, DATASET)
    files = ConsumedFileIndex()
    reader = bench.chains.chain(DATASET)
    state = load_state(reader)
    asked: list[int] = []
    last_of = type(reader).last_of

    class Counting(type(reader)):  # type: ignore[misc]
        def last_of(self, kinds: Any, before: int) -> Any:
            asked.append(before)
            return last_of(self, kinds, before)

    counting = Counting.__new__(Counting)
    counting.__dict__.update(reader.__dict__)
    assert files.of(counting, state).names == ["01.csv"]
    first = len(asked)
    assert files.of(counting, state).names == ["01.csv"]
    assert len(asked) - first == 1
    files._known[DATASET].block = None
    files._known[DATASET].add("99.csv", instant.Instant(0))
    assert files.of(counting, state).names == ["01.csv"]


async def test_a_file_that_changes_while_it_is_read_is_not_kept(polling: Callable[..., Any]) -> None:
    bench = polling()

    class Slow(FakeEngine):
        """Somebody goes on copying while it computes."""

        async def ingest(self, request: Any, on_progress: Any = lambda: None) -> Any:
            answer = await super().ingest(request, on_progress)
            if self.written is not None:
                with self.written.open("a") as file:
                    file.write(FEBRUARY + "\n")
                self.written = None
            return answer

    bench.engine = Slow()
    bench.engine.written = bench.write("01.csv", JANUARY)
    with pytest.raises(Remote, match=r"01\.csv changed while it was read, and nothing of it was kept") as caught:
        await pull_root(bench.deps, DATASET)
    assert (caught.value.rule, bench.commits) == ("source-changed", 0)
    assert bench.leftovers() == []
    outcome = await pull_root(bench.deps, DATASET)
    assert outcome.rows == 2


async def test_a_file_that_is_still_being_copied_waits(
    polling: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing behind it is taken either: the names taken would have passed it."""
    bench = polling()
    bench.settle = 60.0
    bench.clock = instant.parse("2200-01-01T00:00:00Z")
    dated(bench.write("01.csv", JANUARY), "2199-12-31T00:00:00Z")
    young = dated(bench.write("02.csv", JANUARY), "2200-01-01T00:00:01Z")
    dated(bench.write("03.csv", FEBRUARY), "2199-12-31T00:00:00Z")
    waits: list[float] = []

    async def copying(seconds: float) -> None:
        waits.append(seconds)
        file.write(FEBRUARY + "\n")
        file.flush()

    monkeypatch.setattr(trio, "sleep", copying)
    with young.open("a") as file:
        outcome = await pull_root(bench.deps, DATASET)
    assert isinstance(outcome, Ingested)
    assert outcome.files == 1
    assert [(each.name, each.reason) for each in outcome.counts.skipped] == [("02.csv", WRITTEN_TO)]
    assert load_state(bench.chains.chain(DATASET)).source_state.value == "01.csv"
    dated(young, "2200-01-01T00:00:01Z")
    outcome = await pull_root(bench.deps, DATASET)
    assert (outcome.files, outcome.rows) == (2, 1)
    assert len(waits) == 1
    assert 0 < waits[0] <= 60


@pytest.mark.parametrize("held", [True, False])
async def test_a_file_that_nobody_can_write_to_is_hardly_waited_for(
    held: bool, polling: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that a program has open may be written to at any time, and is waited for."""
    bench = polling()
    bench.settle, bench.settle_closed = 60.0, 0.05
    bench.clock = instant.parse("2200-01-01T00:00:00Z")
    young = dated(bench.write("01.csv", JANUARY), "2200-01-01T00:01:00Z")
    waits: list[float] = []

    async def waited(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(trio, "sleep", waited)
    with young.open("a") if held else contextlib.nullcontext():
        assert isinstance(await pull_root(bench.deps, DATASET), Ingested)
    assert waits == [0.05, 60.0] if held else [0.05]


def test_the_kernel_says_whether_somebody_can_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    assert not no_writer(path)
    path.write_text("x")
    with path.open():
        assert no_writer(path)
    for mode in ("a", "r+"):
        with path.open(mode):
            assert not no_writer(path)
    link = tmp_path / "link"
    link.symlink_to(path)
    assert not no_writer(link)
    assert no_writer(path)
    monkeypatch.setattr(files, "_LOCAL", frozenset({"nfs"}))
    assert not no_writer(path)


def test_a_writer_that_comes_while_the_kernel_is_asked_ends_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal that tells of it would end this process if it were the usual one."""
    path = tmp_path / "file"
    path.write_text("x")
    asked, came = fcntl.fcntl, []

    def meanwhile(descriptor: int, command: int, argument: int) -> Any:
        answer = asked(descriptor, command, argument)
        if (command, argument) == (fcntl.F_SETLEASE, fcntl.F_RDLCK):
            with pytest.raises(BlockingIOError):
                os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            came.append(path)
        return answer

    monkeypatch.setattr(files.fcntl, "fcntl", meanwhile)
    assert no_writer(path)
    assert came
    with path.open("a") as file:
        file.write("y")


async def test_a_file_that_was_left_alone_is_not_waited_for(
    polling: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = polling()
    bench.settle = 1000.0
    bench.clock = instant.parse("2200-01-01T00:00:00Z")
    bench.write("01.csv", JANUARY)
    monkeypatch.setattr(trio, "sleep", None)
    assert isinstance(await pull_root(bench.deps, DATASET), Ingested)
    assert isinstance(await pull_root(bench.deps, DATASET), NothingNew)
