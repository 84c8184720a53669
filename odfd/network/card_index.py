"""Finds cards by words: a full-text index over all cards that this node keeps, on disk and in memory.

The index is an SQLite FTS5 table in memory. Each search first brings it up to date, reading only cards that came or
went since the last one. It holds what the stores of statements hold, which have their own bounds. Safe to use from any
thread.

``likeness`` maps names that readers may confuse to one text, by the confusables of Unicode (UTS 39). UTS 39 maps each
confusable character to a prototype. Here characters are grouped instead: any two that are connected by mappings count
as equal. Names are compared without case, and a capital I looks like a small l, so i and l are equal too. More names
match than really look alike; matches are shown to a person, and nothing is refused.
"""

from __future__ import annotations

import functools
import json
import re
import sqlite3
import threading
import unicodedata
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.resources import files
from typing import Final

import msgspec

from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements.card import Card
from odfd.store.ledger.cards import Cards

_CASELESS: Final = {"i": "l"}


def likeness(name: str) -> str:
    """Folds width, case, marks, punctuation, and characters that look alike in any script."""
    plain = unicodedata.normalize("NFKD", name).casefold()
    prototypes = _prototypes()
    folded = "".join(prototypes.get(each, each) for each in plain)
    letters = unicodedata.normalize("NFKD", folded).casefold()
    return "".join(_CASELESS.get(letter, letter) for letter in letters if letter.isalnum())


@functools.cache
def _prototypes() -> Mapping[str, str]:
    """Returns one text for each group of confusable characters; the table is read on first use."""
    table = json.loads(files("confusable_homoglyphs").joinpath("confusables.json").read_bytes())
    groups = _Groups()
    for text, others in table.items():
        for other in others:
            groups.join(text, other["c"])
    return {text: groups.prototype(text) for text in table if len(text) == 1}


class _Groups:
    """Groups of equal texts (union-find). A group's prototype is of ASCII letters if possible; else the longest."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}

    def join(self, one: str, other: str) -> None:
        first, second = sorted((self.prototype(one), self.prototype(other)), key=_rank)
        if first != second:
            self._parents[second] = first

    def prototype(self, text: str) -> str:
        while (parent := self._parents.get(text, text)) != text:
            self._parents[text] = self._parents.get(parent, parent)
            text = parent
        return text


def _rank(text: str) -> tuple[bool, bool, int, str]:
    return not text.isascii(), not text.isalpha(), -len(text), text


MAX_MATCHES: Final = 200
"""Matching cards that one search returns at most: the best, by the caller's ranking."""
MAX_WORDS: Final = 16
_SCRIPT: Final = """
CREATE VIRTUAL TABLE words USING fts5(
    name, title, publisher, place, keywords, description, columns, tokenize='unicode61'
);
CREATE TABLE cards (
    number INTEGER PRIMARY KEY,
    dataset BLOB NOT NULL UNIQUE,
    license TEXT NOT NULL,
    columns TEXT NOT NULL,
    updated INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    likeness TEXT NOT NULL,
    titled TEXT NOT NULL
) STRICT;
CREATE INDEX likenesses ON cards (likeness);
CREATE INDEX titles ON cards (titled) WHERE titled != '';
"""
_ALIKE: Final = """
SELECT COUNT(*) FROM (
    SELECT number FROM cards WHERE likeness IN (?1, ?2) AND dataset != ?3
    UNION SELECT number FROM cards WHERE titled != '' AND titled IN (?1, ?2) AND dataset != ?3
)
"""
_WORD: Final = re.compile(r"\w+")

Tables = Callable[[], AbstractContextManager[sqlite3.Connection]]
"""Opens the ledger's tables for reading."""


class CardQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A search for cards; empty fields do not restrict it."""

    words: str = ""
    license: str = ""
    column: str = ""
    updated_after: Instant | None = None


class CardIndex:
    """The index of one node. ``sources``: the stores of cards; if two have a dataset's card, the first one's counts."""

    def __init__(self, sources: Sequence[Tables]) -> None:
        self._sources = sources
        self._lock = threading.Lock()
        self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._db.close)
        self._db.executescript(_SCRIPT)
        self._known: dict[DatasetId, Multihash] = {}

    def card(self, dataset: DatasetId) -> Card | None:
        """Returns the kept card of a dataset, also a withdrawn one."""
        for tables in self._sources:
            with tables() as connection:
                found = Cards(connection).of(dataset)
            if found is not None:
                return found
        return None

    def latest(self, dataset: DatasetId) -> Card | None:
        """Brings the index up to date, and returns the dataset's card as ``card`` does."""
        with self._lock:
            self._bring_up_to_date()
        return self.card(dataset)

    def search(self, query: CardQuery, now: Instant) -> tuple[list[Card], int]:
        """Finds at most ``MAX_MATCHES`` cards, best match first; also returns how many cards were searched.

        Withdrawn and expired cards are left out. Raises Environment.
        """
        with self._lock:
            self._bring_up_to_date()
            found, known = self._matches(query, now), len(self._known)
        cards = (self.card(dataset) for dataset in found)
        return [card for card in cards if card is not None and not card.is_withdrawal], known

    def namesakes(self, card: Card) -> int:
        """Counts other datasets with a name or title that looks like this one's, as of the last ``search`` or
        ``latest``."""
        with self._lock:
            row = self._db.execute(_ALIKE, (*_likenesses(card), card.dataset)).fetchone()
        return int(row[0])

    def _bring_up_to_date(self) -> None:
        there: dict[DatasetId, Multihash] = {}
        for tables in reversed(self._sources):
            with tables() as connection:
                there |= Cards(connection).list_shown()
        for dataset in self._known.keys() - there.keys():
            self._forget(dataset)
        for dataset, sid in there.items():
            if self._known.get(dataset) != sid:
                self._forget(dataset)
                card = self.card(dataset)
                if card is not None and not card.is_withdrawal:
                    if card.shards is None or card.shards.ids[0] == dataset:
                        self._keep(card)  # a collection is found once, by its first shard
                    self._known[dataset] = sid

    def _keep(self, card: Card) -> None:
        facts, claims = card.chain, card.claims
        assert facts is not None, "it was not taken back"
        assert claims is not None, "it was not taken back"
        names = " ".join(column.name for column in facts.columns)
        keywords = " ".join(facts.keywords)
        texts = (claims.name, claims.title, claims.publisher, claims.place, keywords, facts.description, names)
        made = self._db.execute("INSERT INTO words VALUES (?, ?, ?, ?, ?, ?, ?)", texts)
        columns = "".join(f"/{column.name.casefold()}" for column in facts.columns) + "/"
        row = (made.lastrowid, card.dataset, facts.license.casefold(), columns, card.updated, card.expires)
        self._db.execute("INSERT INTO cards VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*row, *_likenesses(card)))

    def _forget(self, dataset: DatasetId) -> None:
        self._known.pop(dataset, None)
        row = self._db.execute("DELETE FROM cards WHERE dataset = ? RETURNING number", (dataset,)).fetchone()
        if row is not None:
            self._db.execute("DELETE FROM words WHERE rowid = ?", row)

    def _matches(self, query: CardQuery, now: Instant) -> list[DatasetId]:
        terms, values = ["expires > ?"], [int(now)]
        parameters: list[object] = []
        if query.license:
            terms, parameters = [*terms, "license = ?"], [*parameters, query.license.casefold()]
        if query.column:
            terms, parameters = [*terms, "instr(cards.columns, ?)"], [*parameters, f"/{query.column.casefold()}/"]
        if query.updated_after is not None:
            terms, parameters = [*terms, "updated >= ?"], [*parameters, int(query.updated_after)]
        words = _WORD.findall(query.words)[:MAX_WORDS]
        source, order = "cards", "updated DESC, dataset"
        if words:
            source = "words JOIN cards ON cards.number = words.rowid"
            order = "bm25(words, 4, 4, 2, 2, 3, 1, 1), dataset"
            # Quoted, since FTS5 takes NEAR, OR and NOT for operators.
            terms, parameters = [*terms, "words MATCH ?"], [*parameters, " ".join(f'"{word}"*' for word in words)]
        rows = self._db.execute(
            f"SELECT dataset FROM {source} WHERE {' AND '.join(terms)} ORDER BY {order} LIMIT ?",  # noqa: S608
            (*values, *parameters, MAX_MATCHES),
        )
        return [DatasetId(dataset) for (dataset,) in rows]


def _likenesses(card: Card) -> tuple[str, str]:
    """Returns what names that look like the dataset's, and titles that look like its own, are mapped to."""
    assert card.claims is not None
    return likeness(card.claims.name), likeness(card.claims.title)
