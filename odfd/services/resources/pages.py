"""Lists declared resources of a type in pages, in the order of their names.

Pages are no snapshot. All pages of a list carry the version at which the first began, so a watch from that version
tells what changed while they were read.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from odfd.control import wire
from odfd.errors import Usage
from odfd.resources.reader import place
from odfd.resources.resource import Resource
from odfd.resources.selectors import first_equality, matches, parse_selector
from odfd.resources.store import ResourceStore
from odfd.services.resources.watches import position
from odfd.store.directory import StateDirectory

PAGE: Final = 500
MOST: Final = 5_000


class ResourcePage(msgspec.Struct, frozen=True):
    """One page of a list of resources."""

    version: str
    """The version of the log when the first page was read."""
    views: tuple[wire.ResourceView, ...]
    rest: str | None
    """The token that asks for the next page; ``None`` on the last one."""
    type: str
    """The name of the type that is listed."""
    deleting: tuple[wire.ResourceView, ...] = ()
    """On the first page: deleted ones whose effects are not undone yet."""


class _Token(msgspec.Struct, frozen=True, array_like=True):
    """The position in a list after which its next page begins; clients get it encoded."""

    version: str
    after: str
    query: str
    """A hash of the type and selector that the list is of."""


class ResourcePages:
    """Reads pages of declared resources. Blocking."""

    def __init__(
        self,
        home: StateDirectory,
        *,
        views: Callable[[Sequence[Resource]], Sequence[wire.ResourceView]],
        labels: Callable[[Resource], Mapping[str, Any]],
        system: frozenset[str],
    ) -> None:
        """``labels`` returns all labels of a resource; ``system``: names of the labels that are in no index."""
        self._home, self._views = home, views
        self._labels, self._system = labels, system
        self._last: tuple[object, ResourcePage] | None = None
        """The page that was read last, by the writes before it and what was asked."""

    def page(self, type_: str, labels: str | None, limit: int, rest: str | None) -> ResourcePage:
        """Returns the first page, or the one that the token ``rest`` of another page asks for.

        Raises Usage for a token of another list, Invalid for one of another log and for a bad selector.
        """
        asked = (self._home.database.writes, type_, labels, limit, rest)
        last = self._last
        if last is None or last[0] != asked:
            last = self._last = asked, self._read_page(type_, labels, limit, rest)
        return last[1]

    def _read_page(self, type_: str, labels: str | None, limit: int, rest: str | None) -> ResourcePage:
        selector = None if labels is None else parse_selector(labels)
        query = _query(type_, labels)
        token = _Token("", "", query) if rest is None else _parse(rest, query)
        found: list[Resource] = []
        more = True
        while more and len(found) <= limit:
            token, read = self._read(token, type_, selector, limit + 1 - len(found))
            more = bool(read)
            found += [each for each in read if selector is None or matches(selector, each.name, self._labels(each))]
        shown = found[:limit]
        after = (
            None
            if len(found) <= limit
            else rest_after(token.version, (type_, labels), place(shown[-1].name, shown[-1].id))
        )
        with self._home.database.read() as connection:
            deleting = ResourceStore(connection).all_held_back(type_) if rest is None else ()
        views = tuple(self._views(shown))
        return ResourcePage(token.version, views, after, type_, tuple(self._views(deleting)))

    def _read(
        self, token: _Token, type_: str, selector: dict[str, Any] | None, limit: int
    ) -> tuple[_Token, list[Resource]]:
        """Reads some resources; returns them and the token of the position after them."""
        label = None if selector is None else first_equality(selector)
        indexed = None if label is None or label[0] in self._system else label
        with self._home.database.read() as connection:
            store = ResourceStore(connection)
            if token.version:
                position(store, token.version)
            version = token.version or f"{store.epoch()}-{store.newest()}"
            found = store.page(type_, token.after, limit, indexed)
        after = place(found[-1].name, found[-1].id) if found else token.after
        return _Token(version, after, token.query), found


def rest_after(version: str, asked: tuple[str, str | None], after: str) -> str:
    """Returns the token for the page after a place; ``asked``: the type, and the selector of labels."""
    return _text(_Token(version, after, _query(*asked)))


def page_after(rest: str, asked: tuple[str, str | None]) -> str:
    """Returns the place in a token after which the list goes on. Raises Usage."""
    return _parse(rest, _query(*asked)).after


def _query(type_: str, labels: str | None) -> str:
    return hashlib.sha256(msgspec.json.encode([type_, labels])).hexdigest()[:16]


def _text(token: _Token) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).decode().rstrip("=")


def _parse(text: str, query: str) -> _Token:
    """Returns the position that a token holds. Raises Usage if it is not of this list."""
    try:
        found = msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=_Token)
    except (binascii.Error, msgspec.DecodeError, UnicodeError, ValueError):
        found = None
    if found is None or found.query != query or not found.version:
        raise no_page(text)
    return found


def no_page(rest: str) -> Usage:
    """Returns the fault for a token that asks for no page of this list."""
    hint = "leave it out to begin again; type and labels stay as they were"
    return Usage(f"continue={rest[:40]!r} does not belong to this list", rule="continue", hint=hint)
