"""A node is killed while it gives or takes a dataset: nothing is half there, and little comes again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from worlds.kamu_program import SECRETS, Node, started

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
FILES: Final = 16
LARGE: Final = 80 << 10
"""Bytes of each slice at least. Smaller ones than 64 KiB are not on the disk before a block names them."""
CUT_AT: Final = 11
"""The object whose request is not passed on; up to eight are under way then."""


@pytest.fixture
def source(make_daemon: Callable[..., Any]) -> Node:
    """A node with a dataset of several large slices."""
    made = started(make_daemon, "source")
    made.begin_files("cities")
    made.add_files("cities", range(FILES), LARGE)
    return made


@pytest.fixture
def other(make_daemon: Callable[..., Any]) -> Node:
    return started(make_daemon, "other")


def test_who_gives_is_killed_while_it_is_pulled_from(source: Node, other: Node) -> None:
    asked = r"GET /cities/data/(\w+)"
    with source.behind_proxy() as (url, lines):
        lines.when(b"GET /cities/data/", CUT_AT, source.daemon.kill)
        assert other.daemon.said("pull", f"{url}/cities").code != 0
        assert not other.has("cities")
        lines.sprung()
        source.daemon.start()
        first, since = set(lines.seen(asked)), lines.mark()
        other.daemon.ask("pull", f"{url}/cities")
        again = lines.seen(asked, since)
    assert len(first | set(again)) == FILES
    assert len(again) < FILES, "what came is not asked for again"
    assert other.head("cities") == source.head("cities")
    assert other.holds("cities")


def test_who_takes_is_killed_while_it_is_pushed_to(source: Node, other: Node) -> None:
    sent = r"PUT /cities/data/(\w+)"
    with other.behind_proxy() as (url, lines):
        source.apply("secrets.yaml", SECRETS.format(token=other.token()))
        source.daemon.ask("repo", "add", "house", url, "--credentials", "token")
        lines.when(b"PUT /cities/data/", CUT_AT, other.daemon.kill)
        assert source.daemon.said("push", "cities", "--to", "house/cities", "--private").code != 0
        lines.sprung()
        other.daemon.start()
        assert not other.has("cities")
        first, since = set(lines.seen(sent)), lines.mark()
        source.push("cities", "house")
        again = lines.seen(sent, since)
    assert len(first | set(again)) == FILES
    assert len(again) < FILES, "what was there is not sent again"
    assert other.head("cities") == source.head("cities")
    assert other.holds("cities")
