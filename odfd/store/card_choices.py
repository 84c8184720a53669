"""Stores what cards say by a user's decision: the rows of a sample, and the publisher's words about a dataset.

Both last until another decision, or until the dataset is private again. A damaged row counts as none. ADR 85.
"""

from __future__ import annotations

import sqlite3
from typing import Final

import msgspec

from chain.errors import Invalid
from chain.ids import DatasetId
from chain.instant import Instant
from chain.statements.area import Area
from chain.statements.card import FREQUENCIES, MAX_NAME, PublisherClaims
from chain.store.seals import Sealed

SAMPLES: Final = Sealed(
    "card_samples", ("dataset", "rows", "at"), "until then its card shows no rows: odfctl publish NAME --sample N"
)
_CARD_SAMPLES: Final = (
    """
    CREATE TABLE card_samples (
        dataset BLOB PRIMARY KEY,
        rows INTEGER NOT NULL,
        at INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    """,
    SAMPLES.step,
)
WORDS: Final = Sealed(
    "card_words",
    ("dataset", "title", "place", "area", "frequency", "at"),
    "until then its card has no title and no area: odfctl publish NAME --title TEXT --area W,S,E,N",
)
_CARD_WORDS: Final = (
    """
    CREATE TABLE card_words (
        dataset BLOB PRIMARY KEY,
        title TEXT NOT NULL,
        place TEXT NOT NULL,
        area TEXT NOT NULL,
        frequency TEXT NOT NULL,
        at INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    """,
    WORDS.step,
)


class ChosenWords(msgspec.Struct, frozen=True, kw_only=True):
    """A publisher's words about a dataset; empty where it says nothing."""

    title: str = ""
    place: str = ""
    area: str = ""
    """As ``chain.statements.area`` writes it."""
    frequency: str = ""

    def onto(self, claims: PublisherClaims) -> PublisherClaims:
        return msgspec.structs.replace(claims, **msgspec.structs.asdict(self))


NO_WORDS: Final = ChosenWords()


class CardChange(msgspec.Struct, frozen=True, kw_only=True):
    """A decision about a card; ``None`` where it stays as it is, and an empty text for none any more."""

    rows: int | None = None
    title: str | None = None
    place: str | None = None
    area: str | None = None
    frequency: str | None = None

    @property
    def words(self) -> dict[str, str]:
        return {name: value for name in ChosenWords.__struct_fields__ if (value := getattr(self, name)) is not None}

    def __bool__(self) -> bool:
        return self.rows is not None or bool(self.words)

    def check(self) -> CardChange:
        """Returns it with its area as cards write it. Raises Invalid for what no card can say."""
        for field, text in (("title", self.title), ("place", self.place)):
            if len(text or "") > MAX_NAME:
                hint = f"at most {MAX_NAME}"
                raise Invalid(f"a {field} of {len(text or ''):,} characters", rule="card-text", hint=hint)
        if self.frequency and self.frequency not in FREQUENCIES:
            raise Invalid(
                f"{self.frequency[:60]!r} is no frequency that a card can state",
                rule="card-frequency",
                hint=f"one of {', '.join(FREQUENCIES)}",
            )
        change = msgspec.structs.replace(self, area=str(Area.parse(self.area))) if self.area else self
        ChosenWords(**change.words).onto(PublisherClaims(name="-")).check()
        return change


class CardSamples:
    """Reads and writes the decisions, over one SQLite connection."""

    ROOM: Final = "card_samples"
    STEPS: Final = _CARD_SAMPLES

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def of(self, dataset: DatasetId) -> int:
        """Returns the number of rows that the card of a dataset shows; 0 without a decision."""
        row, whole = SAMPLES.look(self._db, "dataset = ?", (dataset,))
        return 0 if row is None or not whole else int(row[1])

    def put(self, dataset: DatasetId, rows: int, now: Instant) -> None:
        """Stores a decision; 0: the card shows none."""
        if rows:
            SAMPLES.put(self._db, dataset, rows, now)
        else:
            self.clear(dataset)

    def clear(self, dataset: DatasetId) -> None:
        self._db.execute("DELETE FROM card_samples WHERE dataset = ?", (dataset,))


class CardChoices:
    """Reads and writes the decisions, over one SQLite connection."""

    ROOM: Final = "card_words"
    STEPS: Final = _CARD_WORDS

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def words_of(self, dataset: DatasetId) -> ChosenWords:
        row, whole = WORDS.look(self._db, "dataset = ?", (dataset,))
        return (
            NO_WORDS
            if row is None or not whole
            else ChosenWords(**dict(zip(WORDS.columns[1:-1], row[1:], strict=False)))
        )

    def put(self, dataset: DatasetId, change: CardChange, now: Instant) -> None:
        """Stores a decision, which was checked."""
        if change.rows is not None:
            CardSamples(self._db).put(dataset, change.rows, now)
        if change.words:
            self._put_words(dataset, msgspec.structs.replace(self.words_of(dataset), **change.words), now)

    def follow(self, old: DatasetId, new: DatasetId, now: Instant) -> None:
        """Gives ``new`` the decisions about ``old``."""
        samples = CardSamples(self._db)
        samples.put(new, samples.of(old), now)
        self._put_words(new, self.words_of(old), now)

    def clear(self, dataset: DatasetId) -> None:
        CardSamples(self._db).clear(dataset)
        self._put_words(dataset, NO_WORDS, Instant(0))

    def _put_words(self, dataset: DatasetId, words: ChosenWords, now: Instant) -> None:
        if words == NO_WORDS:
            self._db.execute("DELETE FROM card_words WHERE dataset = ?", (dataset,))
        else:
            WORDS.put(self._db, dataset, words.title, words.place, words.area, words.frequency, now)
