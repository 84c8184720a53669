"""Collects the statements published next to a dataset's blocks: its newest signed head, and the authority versions.

``trust/collection``, in the folder of a collection's name, says which shards belong together. It holds statements as
their authors signed them, each with its length before it (``u32``, network order): the card of the first shard, which
lists all shards, then the head of each shard in the card's order. So one file, replaced as a whole, names the shards
and a cut of them. Each shard is a dataset in a folder of its id beside the folder of the name. ADR 42.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from chain.errors import Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements import envelope, statement
from chain.statements.card import MAX_SHARDS, Card
from chain.statements.statement import HeadStatement
from chain.store.base import ChainStore
from chain.store.database import Database
from chain.store.files import disk, make_folder
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.log import Ledger
from odfd.store.ledger.tables import CARDS
from p2p.wire.frames import PREFIX, frame

TRUST: Final = "trust"
SIGNED_HEAD: Final = f"{TRUST}/head"
MAX_AUTHORITIES: Final = 256
"""Most versions of an authority (docs/spec/trust.md#authorities)."""
MAX_STATEMENT: Final = 64 << 10


def authority_file(version: int) -> str:
    return f"{TRUST}/authority-{version}"


class SignedState(NamedTuple):
    """The signed state of one dataset. An unsigned one has no ``files``."""

    size: int
    """Number of blocks up to the head."""
    head: Multihash
    files: tuple[tuple[str, bytes], ...]
    """Statements by their path in the layout; the head last."""
    is_here: bool
    """Whether the blocks of the head are here."""


def signed_state(database: Database, chains: ChainStore, dataset: DatasetId) -> SignedState:
    """Returns the signed state of a dataset. Raises NotFound when no block of it is here."""
    chain = chains.chain(dataset)
    here = chain.head()
    if here is None:
        raise NotFound(f"no block of {dataset.short} is here", rule="dataset-unknown", hint="odfctl get datasets")
    with database.read() as connection:
        newest = Ledger(connection).newest_head(dataset)
        versions = Authorities(connection).versions(dataset)
    if newest is None:
        return SignedState(here.size, here.hash, (), is_here=True)
    head, signed = newest
    walk = [(authority_file(said.version), each.envelope) for said, each in versions]
    is_here = head.size <= here.size and chain.block_at(head.size - 1).hash == head.head
    return SignedState(head.size, head.head, (*walk, (SIGNED_HEAD, signed.envelope)), is_here)


def read_statements(folder: Path) -> tuple[bytes, ...]:
    """Reads the statements of a folder, the head last; none for an unsigned one. Raises Invalid, Environment."""
    raw = _read(folder, SIGNED_HEAD)
    if raw is None:
        return ()
    head = head_in(raw, str(folder))
    walk = [_read(folder, authority_file(version)) for version in range(1, head.authority + 1)]
    if None in walk:
        file = authority_file(walk.index(None) + 1)
        raise Invalid(f"{folder} has no {file}, which its head names", rule="published-tree", hint="export it again")
    return (*[each for each in walk if each is not None], raw)


def head_in(raw: bytes, root: str) -> HeadStatement:
    """Decodes the signed head published under ``root``. Raises Invalid."""
    head = statement.decode_any(envelope.unseal(raw, statement.MAX_ANY).payload)
    if not isinstance(head, HeadStatement) or head.authority > MAX_AUTHORITIES:
        raise Invalid(f"{SIGNED_HEAD} under {root} is not a signed head", rule="published-tree")
    return head


def _read(folder: Path, file: str) -> bytes | None:
    path = folder / file
    if not path.is_file():
        return None
    with disk(path), path.open("rb") as opened:
        return opened.read(statement.MAX_ANY + 1)


def write_statements(folder: Path, signed: SignedState) -> None:
    """Writes statements next to a dataset's folders, each file under a staging name first. Raises Environment."""
    if signed.files:
        make_folder(folder / TRUST)
    for path, raw in signed.files:
        target = folder / path
        staged = target.with_name("." + target.name)
        with disk(target):
            staged.write_bytes(raw)
            staged.rename(target)


COLLECTION: Final = f"{TRUST}/collection"
CARD: Final = f"{TRUST}/card"
"""The card alone, in the folder of the first shard's id, where a mirror of it looks that knows no name."""
MAX_COLLECTION: Final = PREFIX + Card.MAX_ENVELOPE + MAX_SHARDS * (PREFIX + HeadStatement.MAX_ENVELOPE)
SHARD_MISSING: Final = "shard-missing"


class PublishedCollection(NamedTuple):
    """A card and the heads of all shards that it lists; signatures and rights are not judged here."""

    card: Card
    heads: tuple[HeadStatement, ...]
    """In the card's order."""
    raws: tuple[bytes, ...]
    """The envelopes: of the card, then of the heads."""

    @property
    def ids(self) -> tuple[DatasetId, ...]:
        assert self.card.shards is not None, "checked when it was made"
        return self.card.shards.ids

    @property
    def content(self) -> bytes:
        """The content of the file."""
        return b"".join(map(frame, self.raws))

    def newer(self, there: PublishedCollection) -> PublishedCollection:
        """Returns the newer statement of each of two collections of the same shards, so that no frontier goes back.

        Raises Invalid if these are different shards.
        """
        if there.ids != self.ids:
            raise Invalid("other shards are there under this name", rule="shard-other")
        pairs = list(zip(self.heads, there.heads, self.raws[1:], there.raws[1:], strict=True))
        heads = tuple(ours if ours.order >= theirs.order else theirs for ours, theirs, _, _ in pairs)
        raws = tuple(raw if ours.order >= theirs.order else other for ours, theirs, raw, other in pairs)
        mine = (self.card.authority, self.card.issued) >= (there.card.authority, there.card.issued)
        newest = self if mine else there
        return PublishedCollection(newest.card, heads, (newest.raws[0], *raws))


def collection_in(raw: bytes, place: str) -> PublishedCollection:
    """Decodes the file of a collection. Raises Invalid, which names a shard whose head does not belong.

    Signatures are verified; whether the signers may write is for the board.
    """
    raws = _split(raw, place)
    first = statement.decode_any(envelope.unseal(raws[0], Card.MAX_ENVELOPE).payload)
    if not isinstance(first, Card) or first.shards is None or first.dataset != first.shards.ids[0]:
        raise Invalid(f"{COLLECTION} of {place} does not begin with the card of a first shard", rule="published-tree")
    ids = first.shards.ids
    heads = []
    for number, dataset in enumerate(ids):
        if number + 1 >= len(raws):
            raise Invalid(f"{place} has no head of its shard {dataset}", rule=SHARD_MISSING, hint="push it again")
        said = statement.decode_any(envelope.unseal(raws[number + 1], statement.MAX_ANY).payload)
        if not isinstance(said, HeadStatement) or said.dataset != dataset or said.collection != ids[0]:
            hint = "its publisher pushes it again; until then read single shards by their ids"
            raise Invalid(
                f"the head of {dataset} does not say that it is a shard of {place}", rule=SHARD_MISSING, hint=hint
            )
        heads.append(said)
    return PublishedCollection(first, tuple(heads), raws)


def check_card(raw: bytes, dataset: DatasetId, place: str) -> None:
    """Raises Invalid unless these bytes are a card of the dataset; whether its signer may is for the board."""
    said = statement.decode_any(envelope.unseal(raw, Card.MAX_ENVELOPE).payload)
    if not isinstance(said, Card) or said.dataset != dataset:
        raise Invalid(f"{CARD} of {place} is no card of {dataset}", rule="published-tree", hint="push it again")


def collection_state(
    database: Database, chains: ChainStore, shards: Sequence[DatasetId]
) -> tuple[PublishedCollection, tuple[SignedState, ...]]:
    """Returns what is signed of a collection, and the signed state of each shard, whose blocks are here.

    Raises NotFound, Refused if no head or card says yet that these shards belong together.
    """
    with database.read() as connection:
        row = CARDS.one(connection, "dataset = ?", (shards[0],))
    states = tuple(signed_state(database, chains, shard) for shard in shards)
    behind = next((each for each, state in zip(shards, states, strict=True) if not state.is_here), None)
    if behind is not None:
        raise Refused(
            f"shard {behind} is not here up to its signed head", rule=SHARD_MISSING, hint="pull it, and push again"
        )
    if row is None or not all(state.files for state in states):
        raise _unsigned_fault(shards[0])
    raws = [bytes(row[6]), *(state.files[-1][1] for state in states)]
    try:
        found = collection_in(b"".join(map(frame, raws)), str(shards[0]))
    except Invalid:
        raise _unsigned_fault(shards[0]) from None
    if found.ids != tuple(shards):
        raise _unsigned_fault(shards[0])
    return found, states


def beside(path: str, dataset: DatasetId) -> str:
    """Returns the folder of a shard, by that of its collection's name."""
    folder, slash, _ = path.rpartition("/")
    return f"{folder}{slash}{dataset.multibase}"


def _unsigned_fault(first: DatasetId) -> Refused:
    return Refused(
        f"no card or head says yet which shards belong to {first}",
        rule="shard-card",
        hint="odfctl publish NAME signs them; a published collection has its card within seconds: push it again",
    )


def _split(raw: bytes, place: str) -> tuple[bytes, ...]:
    found: list[bytes] = []
    at = 0
    while at < len(raw) and len(found) <= MAX_SHARDS:
        length, at = int.from_bytes(raw[at : at + PREFIX], "big"), at + PREFIX
        if not 0 < length <= len(raw) - at:
            break
        found.append(raw[at : at + length])
        at += length
    if at != len(raw) or not found:
        raise Invalid(f"{COLLECTION} of {place} is damaged", rule="published-tree", hint="push it again")
    return tuple(found)
