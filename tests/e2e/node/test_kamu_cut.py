"""What a real kamu-cli and a node transfer is cut off in the middle: nothing is half there, and the next try ends it.

Lines are cut by a proxy between the two, or one of them is killed. ``ODF_KAMU`` names the program of kamu-cli.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from chain.multihash import Multihash
from worlds.between import Between
from worlds.eventually import PATIENCE
from worlds.kamu_program import NEEDS_KAMU, Node, Workspace, started

pytestmark = [pytest.mark.e2e, pytest.mark.slow, NEEDS_KAMU]
FILES: Final = 40
"""Slices of the dataset, each an object that is transferred by itself."""
LARGE: Final = 80 << 10
"""Bytes of each at least. Smaller ones than 64 KiB are not on the disk before a block names them."""
CUT_AT: Final = 25
"""The object whose request is not passed on. Those before it are under way, or came."""
ASKED: Final = r"GET /cities/data/(\w+)"
SENT: Final = r"PUT /cities/data/(\w+)"


@pytest.fixture
def node(make_daemon: Callable[..., Any]) -> Node:
    return started(make_daemon)


@pytest.fixture
def kamu(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "kamu")


def filled(node: Node) -> Node:
    node.begin_files("cities")
    node.add_files("cities", range(FILES), LARGE)
    return node


def whole(kamu: Workspace) -> set[str]:
    """The slices that kamu has; each is what its name says. What it was writing when it was cut off has no name yet."""
    files = kamu.folder.glob(".kamu/datasets/*/data/[!.]*")
    found = {file.name: file.read_bytes() for file in files}
    for name, raw in found.items():
        assert str(Multihash.sha3_256(raw)) == name
    return set(found)


def pulled_to_the_end(node: Node, kamu: Workspace, lines: Between, url: str) -> None:
    """Kamu asks for what it lacks alone, and has all in the end.

    Of the dataset it has the first block. Its next command puts that into its database; a pull that is that command is
    refused by kamu itself, as its database and its folder have different heads.
    """
    had, since = whole(kamu), lines.mark()
    assert had, "some came before"
    kamu.did("list")
    kamu.did("pull", f"{url}/cities", "--as", "cities")
    asked = lines.seen(ASKED, since)
    assert len(asked) == FILES - len(had)
    assert not had & set(asked)
    assert len(whole(kamu)) == FILES
    assert kamu.head("cities") == node.head("cities")
    kamu.did("verify", "cities")


def test_the_line_is_cut_while_kamu_pulls(node: Node, kamu: Workspace) -> None:
    filled(node)
    with node.behind_proxy() as (url, lines):
        lines.when(b"GET /cities/data/", CUT_AT, lines.cut)
        kamu.refused("pull", f"{url}/cities", "--as", "cities")
        pulled_to_the_end(node, kamu, lines, url)


def test_the_line_is_cut_while_kamu_reads_blocks(node: Node, kamu: Workspace) -> None:
    filled(node)
    with node.behind_proxy() as (url, lines):
        lines.when(b'"payload":[', 1, lines.cut)
        kamu.refused("pull", f"{url}/cities", "--as", "cities")
        assert not whole(kamu)
        assert "cities" not in kamu.did("list", "-o", "csv"), "nothing of it is there"
        kamu.did("pull", f"{url}/cities", "--as", "cities")
        assert kamu.head("cities") == node.head("cities")


def test_kamu_is_killed_while_it_pulls(node: Node, kamu: Workspace) -> None:
    filled(node)
    with node.behind_proxy() as (url, lines):
        begun = []
        lines.when(b"GET /cities/data/", CUT_AT, lambda: begun[0].kill())
        begun.append(kamu.begun("pull", f"{url}/cities", "--as", "cities"))
        begun[0].communicate(timeout=PATIENCE)
        assert begun[0].returncode == -signal.SIGKILL
        pulled_to_the_end(node, kamu, lines, url)


def pushed_to_the_end(node: Node, kamu: Workspace, lines: Between, url: str, sent: set[str]) -> None:
    since = lines.mark()
    kamu.did("push", "cities", "--to", f"{url}/cities")
    again = lines.seen(SENT, since)
    assert len(again) == len(set(again)) < FILES, "what was there was not sent again"
    assert sent | set(again) == whole(kamu)
    assert kamu.head("cities") == node.head("cities")
    assert node.holds("cities")


@pytest.fixture
def full(make_daemon: Callable[..., Any], kamu: Workspace) -> Workspace:
    """A workspace with a dataset of many slices."""
    source = filled(started(make_daemon, "source"))
    kamu.did("pull", f"{source.url}/cities", "--as", "cities")
    source.daemon.kill()
    return kamu


def test_the_line_is_cut_while_kamu_pushes(node: Node, full: Workspace) -> None:
    with node.behind_proxy() as (url, lines):
        full.log_in(node, url)
        lines.when(b"PUT /cities/data/", CUT_AT, lines.cut)
        full.refused("push", "cities", "--to", f"{url}/cities")
        sent = set(lines.seen(SENT))
        assert not node.has("cities")
        pushed_to_the_end(node, full, lines, url, sent)


def test_a_node_is_killed_while_kamu_pushes_to_it(node: Node, full: Workspace) -> None:
    with node.behind_proxy() as (url, lines):
        full.log_in(node, url)
        lines.when(b"PUT /cities/data/", CUT_AT, node.daemon.kill)
        full.refused("push", "cities", "--to", f"{url}/cities")
        sent = set(lines.seen(SENT))
        lines.sprung()
        node.daemon.start()
        assert not node.has("cities")
        pushed_to_the_end(node, full, lines, url, sent)


def test_the_line_is_cut_while_a_node_pulls_from_kamu(node: Node, full: Workspace) -> None:
    """The node asks again by itself for an object of which some came. Where nothing came of one, it says what to do."""
    with node.repository(full, through_proxy=True) as served:
        assert served.lines is not None
        served.lines.when(b"GET /cities/data/", CUT_AT, served.lines.cut)
        first = node.daemon.said("pull", "kamu/cities")
        if first.code:
            assert "what came is kept" in first.err
            node.daemon.ask("pull", "kamu/cities")
        asked = served.lines.seen(ASKED)
        assert set(asked) == whole(full)
        assert FILES < len(asked) < FILES + CUT_AT
    assert node.head("cities") == full.head("cities")
    assert node.holds("cities")


def test_kamu_is_killed_while_a_node_pulls_from_it(node: Node, full: Workspace) -> None:
    with node.repository(full, through_proxy=True) as served:
        assert served.lines is not None
        served.lines.when(b"GET /cities/data/", CUT_AT, served.kill)
        assert node.daemon.said("pull", "kamu/cities").code != 0
        assert not node.has("cities")
    with node.repository(full, "again", through_proxy=True) as served:
        assert served.lines is not None
        node.daemon.ask("pull", "again/cities")
        assert 0 < len(served.lines.seen(ASKED)) < FILES, "what came is not asked for again"
    assert node.head("cities") == full.head("cities")
    assert node.holds("cities")


def test_the_line_is_cut_while_a_node_pushes_to_kamu(node: Node, kamu: Workspace) -> None:
    filled(node)
    with node.repository(kamu, through_proxy=True) as served:
        assert served.lines is not None
        served.lines.when(b"PUT /cities/data/", CUT_AT, served.lines.cut)
        assert node.daemon.said("push", "cities", "--to", "kamu/cities", "--private").code != 0
        first, had, since = served.lines.seen(SENT), whole(kamu), served.lines.mark()
        node.push("cities", "kamu")
        again = served.lines.seen(SENT, since)
        assert not had & set(again), "what is there is not sent again"
        assert {*first, *again} == whole(kamu)
    assert kamu.head("cities") == node.head("cities")
    kamu.did("verify", "cities")


def test_kamu_is_killed_while_a_node_pushes_to_it(node: Node, kamu: Workspace) -> None:
    filled(node)
    with node.repository(kamu, through_proxy=True) as served:
        assert served.lines is not None
        served.lines.when(b"PUT /cities/data/", CUT_AT, served.kill)
        assert node.daemon.said("push", "cities", "--to", "kamu/cities", "--private").code != 0
    had = whole(kamu)
    with node.repository(kamu, "again", through_proxy=True) as served:
        assert served.lines is not None
        node.push("cities", "again")
        assert not had & set(served.lines.seen(SENT)), "what is there is not sent again"
    assert kamu.head("cities") == node.head("cities")
    kamu.did("verify", "cities")
