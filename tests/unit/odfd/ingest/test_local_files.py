"""Which files of this machine a source may name: by every way that leads to one."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.errors import Environment, Invalid, NotFound
from chain.model.source import FetchFilesGlob, FetchStep, FetchUrl
from odfd.ingest.fetch.dispatch import check_fetch
from odfd.ingest.fetch.source import Fetched, FetchJob
from odfd.ingest.local_files import LocalFiles
from odfd.ingest.settings import IngestSettings
from worlds.sources import fetch

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
    with pytest.raises(Invalid) as told:
        taken(way(place / "state/keys/node.key"), settings(place))
    assert told.value.rule == "source-own"


@pytest.mark.parametrize("way", WAYS[:3])
def test_what_names_the_node_s_own_is_refused_when_it_is_applied(place: Path, way: Callable[[Path], FetchStep]) -> None:
    for path in (place / "state/keys/node.key", place / "open/../state/keys/node.key"):
        with pytest.raises(Invalid) as told:
            check_fetch(way(path), settings(place))
        assert told.value.rule == "source-own"


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
    for ask in (lambda: check_fetch(step, settings(place)), lambda: taken(step, settings(place))):
        with pytest.raises(Invalid) as told:
            ask()
        assert told.value.rule == "source-kernel"


@pytest.mark.parametrize("way", WAYS)
def test_links_are_followed_when_a_source_is_applied(place: Path, way: Callable[[Path], FetchStep]) -> None:
    (place / "open/environ").symlink_to("/proc/self/environ")
    (place / "open/key.csv").symlink_to(place / "state/keys/node.key")
    (place / "open/out.csv").symlink_to(place / "shut/c.csv")
    (place / "open/later.csv").symlink_to(place / "open/below/later.csv")
    for name, rule in (("environ", "source-kernel"), ("key.csv", "source-own"), ("out.csv", "source-folder")):
        with pytest.raises(Invalid) as told:
            check_fetch(way(place / "open" / name), settings(place, ("open",)))
        assert told.value.rule == rule
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
