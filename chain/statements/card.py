"""Declares cards: a publisher's signed description of a dataset, for those who search and do not hold it.

Facts that the chain contains (``ChainFacts``, which can be checked against it) are kept apart from the publisher's own
claims (``PublisherClaims``). A card without either withdraws the one before. Spec: docs/spec/trust.md#cards.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar, Final, Literal

import msgspec

from chain import instant
from chain.errors import Invalid
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import canonical, keys
from chain.statements.area import Area
from chain.statements.envelope import preauth
from chain.statements.keys import SigningKey
from chain.statements.node_card import ID_LIKE
from chain.statements.predicate import NS, Count, Expiring, StatementPart, When
from chain.terminal_text import is_one_line

CARD: Final = NS + "card/v1"
VOUCHED: Final = "application/vnd.odf.publisher.v1+json"
"""Type of the payload that a node signs to confirm that it is named as a publisher."""
MAX_COLUMNS: Final = 64
MAX_INPUTS: Final = 16
MAX_KEYWORDS: Final = 16
MAX_DESCRIPTION: Final = 1024
MAX_WORD: Final = 64
"""Most characters of a keyword, of the name or the type of a column, of a licence's short name."""
MAX_NAME: Final = 128
MAX_URL: Final = 256
MAX_SHARDS: Final = 64
MAX_BY: Final = 16
"""Most columns that decide the shard of a row."""
KEY_SIZE: Final = 32
MAX_SAMPLE: Final = 20
"""Most rows of a sample."""
MAX_CELL: Final = 64
"""Most characters of a value in a sample."""
FREQUENCIES: Final = (
    "continuous", "hourly", "daily", "weekly", "monthly", "quarterly", "annual", "irregular", "never",
)  # fmt: skip
"""Words by which a publisher says how often it adds rows; later versions may have more."""

Label = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_WORD)]
Cell = Annotated[str, msgspec.Meta(max_length=MAX_CELL)] | bool


class CardColumn(StatementPart, frozen=True, kw_only=True):
    name: Label
    type: Label


class ChainFacts(StatementPart, frozen=True, kw_only=True):
    """Facts that the blocks contain, up to the block that is the card's subject. Longer texts and lists are cut."""

    kind: Literal["root", "derivative"]
    records: Count
    created_at: When
    updated_at: When
    watermark: When | None = None
    description: Annotated[str, msgspec.Meta(max_length=MAX_DESCRIPTION)] = ""
    keywords: Annotated[tuple[Label, ...], msgspec.Meta(max_length=MAX_KEYWORDS)] = ()
    license: Annotated[str, msgspec.Meta(max_length=MAX_WORD)] = ""
    license_url: Annotated[str, msgspec.Meta(max_length=MAX_URL)] = ""
    columns: Annotated[tuple[CardColumn, ...], msgspec.Meta(max_length=MAX_COLUMNS)] = ()
    more_columns: Count = 0
    """Number of columns that are not listed."""
    inputs: Annotated[tuple[DatasetId, ...], msgspec.Meta(max_length=MAX_INPUTS)] = ()
    portal: Annotated[str, msgspec.Meta(max_length=MAX_URL)] = ""
    """The rule by which rows of a private dataset are published, in words; empty if the dataset is no portal."""
    first_event: When | None = None
    """The least event time of its rows, by the statistics of its slices; ``None``: not known, or in no year of four
    digits."""
    last_event: When | None = None
    bytes: Count = 0
    """Size of its slices; 0: not known."""
    update_interval: Count = 0
    """Usual number of seconds between its newest blocks with rows; 0: not known."""


class PublisherClaims(StatementPart, frozen=True, kw_only=True):
    """Claims of the publisher that nothing can check."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]
    """The dataset's name on its publisher's node."""
    publisher: Annotated[str, msgspec.Meta(max_length=MAX_NAME)] = ""
    """The name that the publisher's node gives itself."""
    node: KeyDid | None = None
    """The publisher's node, which confirms this by ``node_signature``."""
    node_signature: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{128})?$")] = ""
    title: Annotated[str, msgspec.Meta(max_length=MAX_NAME)] = ""
    """A name for people, of one line."""
    place: Annotated[str, msgspec.Meta(max_length=MAX_NAME)] = ""
    """The place that the rows are about, in words of one line."""
    area: Annotated[str, msgspec.Meta(max_length=MAX_WORD)] = ""
    """The area that the rows are about, as ``chain.statements.area`` writes it."""
    frequency: Annotated[str, msgspec.Meta(pattern=r"^([a-z]{1,32})?\Z")] = ""
    """How often rows are added, one of ``FREQUENCIES`` or a word of a later version."""

    def check(self) -> None:
        """Raises Invalid for texts that do not appear as they are, a title that looks like an id, and no area."""
        for field, text in (("title", self.title), ("place", self.place)):
            if not is_one_line(text):
                raise Invalid(
                    f"the {field} of a dataset is not one line of visible characters with single spaces",
                    rule="card-text",
                    hint="no control characters, no marks that turn the direction of text, no spaces at its ends",
                )
        if self.title.casefold().startswith(ID_LIKE):
            raise Invalid(
                f"the title {self.title!r} looks like an id", rule="card-text", hint="choose a title of words"
            )
        if self.area and str(Area.parse(self.area)) != self.area:
            raise Invalid(f"the area {self.area} is not written as cards write it", rule="card-area")


class CardSample(StatementPart, frozen=True, kw_only=True):
    """Rows that the publisher shows on purpose to those who have none: the newest of the card's blocks, as text."""

    columns: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MAX_COLUMNS)] = ()
    """The columns of the rows, as places in the card's list of columns, in ascending order."""
    rows: Annotated[tuple[tuple[Cell, ...], ...], msgspec.Meta(max_length=MAX_SAMPLE)] = ()
    """In the order of the dataset; a value is a text, cut where it is long, or ``False`` where there is none."""
    left_out: Count = 0
    """Number of further rows that the publisher wanted to show and that have no room in a card."""

    @property
    def total(self) -> int:
        return len(self.rows) + self.left_out


class CardShards(StatementPart, frozen=True, kw_only=True):
    """The shards of a collection, all with one card text: the card of each shard lists all of them in order."""

    function: Label
    """The hash that decides the shard of a row, over the columns ``by`` and modulo the number of shards."""
    by: Annotated[tuple[Label, ...], msgspec.Meta(min_length=1, max_length=MAX_BY)]
    keys: bytes
    """The public keys that the ids of the shards are made of, 32 bytes each; the first is the collection's."""

    @property
    def ids(self) -> tuple[DatasetId, ...]:
        starts = range(0, len(self.keys), KEY_SIZE)
        return tuple(DatasetId.from_public_key(self.keys[start : start + KEY_SIZE]) for start in starts)


class Card(Expiring, frozen=True, kw_only=True):
    """A dataset's public description, for search. Replaced by the next card; its subject is block size-1."""

    KIND: ClassVar[str] = CARD
    MAX_ENVELOPE: ClassVar[int] = 8 << 10

    dataset: DatasetId
    author: KeyDid
    authority: Count
    """Version of the authority under which the author may write."""
    epoch: Count
    size: Count
    chain: ChainFacts | None = None
    claims: PublisherClaims | None = None
    shards: CardShards | None = None
    """The shards of the collection that the dataset is a shard of; ``None``: it is one chain."""
    sample: CardSample | None = None
    """``None``: the publisher shows no rows before somebody mirrors the dataset."""
    head: Annotated[Multihash, "subject"]

    @property
    def is_withdrawal(self) -> bool:
        return self.chain is None

    @property
    def updated(self) -> Instant:
        """The time of the last block that the card covers; for a withdrawal the time of its signature."""
        return self.issued if self.chain is None else instant.parse(self.chain.updated_at)

    def times(self) -> Iterable[str]:
        yield self.issued_at
        yield self.expires_at
        if self.chain is not None:
            yield self.chain.created_at
            yield self.chain.updated_at
            facts = self.chain
            yield from (each for each in (facts.watermark, facts.first_event, facts.last_event) if each is not None)

    def check(self) -> None:
        if not self.size:
            raise Invalid("a card is of a chain with at least one block", rule="card-size")
        if (self.chain is None) != (self.claims is None):
            raise Invalid("a card has facts and claims, or neither", rule="card-parts")
        if self.chain is not None and (self.chain.first_event or "") > (self.chain.last_event or ""):
            raise Invalid("the events of a card end before they begin", rule="card-events")
        if self.claims is not None:
            self.claims.check()
        if self.shards is not None:
            self._check_shards(self.shards)
        if self.sample is not None:
            self._check_sample(self.sample)
        if self.claims is not None and not _is_vouched(self.claims, self.dataset, self.author):
            raise Invalid("the node that a card names as the publisher's did not sign that", rule="card-node")

    def _check_sample(self, sample: CardSample) -> None:
        known = 0 if self.chain is None else len(self.chain.columns)
        places = sample.columns
        if self.chain is None or places != tuple(sorted(set(places))) or (places and places[-1] >= known):
            raise Invalid("the sample of a card is of columns that the card lists, each once", rule="card-sample")
        if any(len(row) != len(places) or True in row for row in sample.rows):
            raise Invalid("each row of a card's sample has a text for each column, or false", rule="card-sample")

    def _check_shards(self, shards: CardShards) -> None:
        if self.is_withdrawal or len(shards.keys) % KEY_SIZE or len(shards.keys) > KEY_SIZE * MAX_SHARDS:
            raise Invalid(f"a card lists 2 to {MAX_SHARDS} shards by their keys", rule="card-shards")
        ids = shards.ids
        if len(ids) < 2 or len(set(ids)) < len(ids) or self.dataset not in ids:
            raise Invalid("a card lists different shards, and its dataset among them", rule="card-shards")


def vouch(node: SigningKey, dataset: DatasetId, author: KeyDid) -> str:
    """Returns the signature by which a node confirms that ``author``, a writer of ``dataset``, publishes from it."""
    return node.sign(_vouched(dataset, author)).hex()


def _is_vouched(claims: PublisherClaims, dataset: DatasetId, author: KeyDid) -> bool:
    if claims.node is None:
        return not claims.node_signature
    return keys.verify(claims.node.public_key, _vouched(dataset, author), bytes.fromhex(claims.node_signature))


def _vouched(dataset: DatasetId, author: KeyDid) -> bytes:
    return preauth(canonical.encode({"author": str(author), "dataset": str(dataset)}), VOUCHED)
