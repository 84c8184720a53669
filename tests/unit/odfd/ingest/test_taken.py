"""Which files of this machine a source may name, and which of them are taken."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.errors import Environment, Invalid, NotFound, Remote
from chain.ids import DatasetId
from chain.model.source import FetchFilesGlob, FetchStep, FetchUrl
from chain.state import load_state
from odfd.ingest import consumed_files as module
from odfd.ingest.consumed_files import ConsumedFileIndex, ConsumedFiles
from odfd.ingest.driver import WRITTEN_TO, Ingested, NothingNew, pull_root
from odfd.ingest.fetch import files
from odfd.ingest.fetch.dispatch import check_fetch
from odfd.ingest.fetch.files import no_writer
from odfd.ingest.fetch.source import Fetched, FetchJob
from odfd.ingest.local_files import LocalFiles
from odfd.ingest.settings import IngestSettings
from worlds.fake_engine import FakeEngine
from worlds.faults import breaks
from worlds.sources import fetch

# Files that come or change too late to be taken are told; files that are being written are not taken.

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
    with pytest.raises(Remote, match=r"01\.csv changed while it was read, and no part of it was kept") as caught:
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


# Which files of this machine a source may name: by every way that leads to one.

NOW = instant.parse("2050-01-01T12:00:00Z")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """``state`` is the node's own, ``open`` is allowed, ``shut`` is neither."""
    here = tmp_path.resolve()
    for name in ("state/keys", "open/below", "shut", "work"):
        (here / name).mkdir(parents=True)
    for name in ("state/keys/node.key", "open/a.csv", "open/below/b.csv", "shut/c.csv"):
        (here / name).write_text("x\n1\n")
    return here


def settings(place: Path, folders: tuple[str, ...] = (), base: Path | None = None) -> IngestSettings:
    readable = LocalFiles((place / "state",), tuple(place / each for each in folders))
    return IngestSettings(staging=place / "work", readable=readable, base=base)


def taken(step: FetchStep, given: IngestSettings) -> str:
    found = fetch(step, FetchJob(state=None, now=NOW, folder=given.staging, settings=given))
    assert isinstance(found, Fetched)
    return found.path.read_text()


WAYS: tuple[Callable[[Path], FetchStep], ...] = (
    lambda path: FetchUrl(url=f"file://{path}"),
    lambda path: FetchFilesGlob(path=str(path)),
    lambda path: FetchFilesGlob(path=f"{path.parent}/*{path.name[1:]}"),
    lambda path: FetchFilesGlob(path=f"{path.parent.parent}/**/{path.name}"),
)


@pytest.mark.parametrize("way", WAYS)
def test_nothing_of_the_node_is_read(place: Path, way: Callable[[Path], FetchStep]) -> None:
    """Attack T-SOURCE-02: a manifest that names the node's keys, or a link to them, to publish them.

    Defence: links are resolved first; files in the node's own directory are not read, nor outside `[ingest] folders` if
    these are set; refused when applied and when read.
    """
    with breaks("source-own", Invalid):
        taken(way(place / "state/keys/node.key"), settings(place))


@pytest.mark.parametrize("way", WAYS[:3])
def test_what_names_the_node_s_own_is_refused_when_it_is_applied(place: Path, way: Callable[[Path], FetchStep]) -> None:
    for path in (place / "state/keys/node.key", place / "open/../state/keys/node.key"):
        with breaks("source-own", Invalid):
            check_fetch(way(path), settings(place))


@pytest.mark.parametrize("way", WAYS[:2])
def test_a_link_is_judged_by_where_it_leads(place: Path, way: Callable[[Path], FetchStep]) -> None:
    (place / "open/link.csv").symlink_to(place / "state/keys/node.key")
    (place / "open/folder").symlink_to(place / "state/keys")
    (place / "open/out.csv").symlink_to(place / "shut/c.csv")
    for name in ("open/link.csv", "open/folder/node.key"):
        with pytest.raises(Invalid, match="own directory"):
            taken(way(place / name), settings(place, ("open",)))
    with pytest.raises(Invalid, match="outside the folders") as told:
        taken(way(place / "open/out.csv"), settings(place, ("open",)))
    assert str(place / "shut/c.csv") in told.value.message
    assert taken(way(place / "open/out.csv"), settings(place)) == "x\n1\n"


def test_a_relative_pattern_leads_nowhere_else(place: Path) -> None:
    step = FetchFilesGlob(path="../state/keys/*.key")
    for ask in (lambda: check_fetch(step, settings(place, base=place / "open")),
                lambda: taken(step, settings(place, base=place / "open"))):  # fmt: skip
        with pytest.raises(Invalid, match="own directory"):
            ask()


@pytest.mark.parametrize("way", WAYS)
def test_folders_that_are_allowed(place: Path, way: Callable[[Path], FetchStep]) -> None:
    for name in ("open/a.csv", "open/below/b.csv"):
        check_fetch(way(place / name), settings(place, ("open",)))
        assert taken(way(place / name), settings(place, ("open",))) == "x\n1\n"
    with pytest.raises(Invalid) as told:
        taken(way(place / "shut/c.csv"), settings(place, ("open",)))
    assert (told.value.rule, str(place / "open") in told.value.hint) == ("source-folder", True)


def test_a_pattern_above_the_folders_waits_for_its_files(place: Path) -> None:
    """It may match allowed files alone; what cannot be is refused at once."""
    allowed = settings(place, ("open",))
    check_fetch(FetchFilesGlob(path=f"{place}/*/a.csv"), allowed)
    assert taken(FetchFilesGlob(path=f"{place}/*/a.csv"), allowed) == "x\n1\n"
    with pytest.raises(Invalid, match="outside the folders"):
        check_fetch(FetchFilesGlob(path=f"{place}/shut/*.csv"), allowed)


@pytest.fixture(params=["a FIFO", "a socket", "a folder", "a device"])
def odd(request: pytest.FixtureRequest, place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    path = place / "open/odd.csv"
    with socket.socket(socket.AF_UNIX) as listening:
        match request.param:
            case "a FIFO":
                os.mkfifo(path)
            case "a socket":
                monkeypatch.chdir(place / "open")  # the path of a socket is short
                listening.bind("odd.csv")
            case "a folder":
                path.mkdir()
            case _:
                path.symlink_to("/dev/zero")
        yield request.param, path


def test_only_regular_files_are_opened(place: Path, odd: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack T-SOURCE-02: a FIFO or a device in a folder of files, to block a pull.

    Defence: only regular files are opened; others are refused, also when the manifest is applied.
    """
    kind, path = odd
    opened: list[Any] = []
    monkeypatch.setattr(os, "open", lambda *given: opened.append(given))
    ways = WAYS[:1] if kind == "a folder" else WAYS[:2]
    for way in ways:
        with pytest.raises(Invalid, match="no file of a disk" if kind == "a device" else kind):
            taken(way(path), settings(place))
    assert not opened


@pytest.mark.parametrize("way", WAYS)
def test_what_is_no_regular_file_is_refused_when_it_is_applied(
    place: Path, odd: tuple[str, Path], way: Callable[[Path], FetchStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, path = odd
    opened: list[Any] = []
    monkeypatch.setattr(os, "open", lambda *given: opened.append(given))
    if kind == "a folder" and isinstance(way(path), FetchFilesGlob):
        check_fetch(way(path), settings(place))  # folders that match are passed over
    else:
        with pytest.raises(Invalid) as told:
            check_fetch(way(path), settings(place))
        rule = "source-kernel" if kind == "a device" else "source-file"
        assert (told.value.rule, opened) == (rule, [])


KERNEL = (
    "/proc/self/environ", "/proc/1/../self/environ", "/proc/self/root/proc/self/environ", "/dev/null", "/dev/zero",
    "/sys/kernel/uevent_seqnum", "/dev/../proc/meminfo",
)  # fmt: skip
PATTERNS = FetchFilesGlob(path="/*/meminfo"), FetchFilesGlob(path="/proc/*/environ")


@pytest.mark.parametrize("step", [*(way(Path(path)) for path in KERNEL for way in WAYS[:2]), *PATTERNS])
def test_what_the_kernel_makes_up_is_no_file(place: Path, step: FetchStep) -> None:
    """Attack T-SOURCE-02: a manifest that names `/proc/self/environ`, with the daemon's secrets.

    Defence: files in `/proc`, `/sys` and `/dev` are not read; refused when applied and when read.
    """
    for ask in (lambda: check_fetch(step, settings(place)), lambda: taken(step, settings(place))):
        with breaks("source-kernel", Invalid):
            ask()


@pytest.mark.parametrize("way", WAYS)
def test_links_are_followed_when_a_source_is_applied(place: Path, way: Callable[[Path], FetchStep]) -> None:
    (place / "open/environ").symlink_to("/proc/self/environ")
    (place / "open/key.csv").symlink_to(place / "state/keys/node.key")
    (place / "open/out.csv").symlink_to(place / "shut/c.csv")
    (place / "open/later.csv").symlink_to(place / "open/below/later.csv")
    for name, rule in (("environ", "source-kernel"), ("key.csv", "source-own"), ("out.csv", "source-folder")):
        with breaks(rule, Invalid):
            check_fetch(way(place / "open" / name), settings(place, ("open",)))
    check_fetch(way(place / "open/later.csv"), settings(place, ("open",)))


def test_two_files_of_one_name_are_refused_when_a_source_is_applied(place: Path) -> None:
    (place / "shut/a.csv").write_text("x\n2\n")
    with pytest.raises(Invalid, match="have one name"):
        check_fetch(FetchFilesGlob(path=f"{place}/*/a.csv"), settings(place))


def test_what_is_not_there_or_may_not_be_read(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "open/gone.csv").symlink_to(place / "open/nothing.csv")
    (place / "open/round.csv").symlink_to(place / "open/round.csv")
    for name in ("gone.csv", "nothing.csv"):
        with pytest.raises(NotFound):
            taken(FetchUrl(url=f"file://{place}/open/{name}"), settings(place))
    with pytest.raises((Invalid, Environment)):
        taken(FetchUrl(url=f"file://{place}/open/round.csv"), settings(place))

    def refused(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(Environment, match="Permission denied") as told:
        taken(FetchUrl(url=f"file://{place}/open/a.csv"), settings(place))
    assert "daemon's user" in told.value.hint


PARTS = st.lists(st.sampled_from(["..", ".", "state", "keys", "open", "node.key", "*", "**", "a b", "é"]), max_size=6)


@pytest.mark.slow
@given(PARTS)
def test_no_spelling_of_a_path_leads_into_the_node(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    # So deep that no spelling leads out of the folder of the tests, where `**` would be all that the machine has.
    here = tmp_path_factory.getbasetemp().resolve() / "spelled/1/2/3/4/5/6"
    (here / "state/keys").mkdir(parents=True, exist_ok=True)
    (here / "open").mkdir(exist_ok=True)
    key = here / "state/keys/node.key"
    key.write_text("secret")
    given = IngestSettings(staging=here, readable=LocalFiles((here / "state",)))
    step = FetchFilesGlob(path="/".join([str(here), *parts]))
    try:
        found = fetch(step, FetchJob(state=None, now=NOW, folder=here, settings=given))
    except (Invalid, NotFound, Environment):
        return
    assert isinstance(found, Fetched)
    assert not found.path.samefile(key)
