"""Finds datasets of other nodes by words, and shows their publishers' descriptions before a mirror is added.

Results are ranked by what this node knows and never by the publisher's claims: how far a dataset may be relied on, in
how many blocks of addresses peers serve it, how many peers do, then how well its card matches the words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from chain.errors import Invalid, NotFound
from chain.ids import DatasetId
from chain.instant import SECOND, Instant
from chain.statements.card import Card
from chain.store.base import ChainReader
from odfd.control import wire
from odfd.control.operations import NODE_PATH, Permission, operation
from odfd.network.card_index import CardIndex, CardQuery, Tables
from odfd.network.node_names import NodeNames
from odfd.network.unheld_statements import UnheldStatements
from odfd.policy.policy import Policy
from odfd.runtime.clock import Clock
from odfd.services.peers.node_views import publisher_node
from odfd.services.views.holder_counts import HolderCounts, Spread
from odfd.services.views.views import DatasetViews, rows_on, words_view
from odfd.store import collections
from odfd.store.catalog import DatasetEntry
from odfd.store.directory import StateDirectory
from odfd.store.ledger.cards import Cards
from odfd.store.ledger.log import Ledger
from odfd.store.ledger.proofs import Proofs
from odfd.trust.judgement.suspensions import Suspensions
from odfd.trust.judgement.trust_evaluator import held_to_pins
from odfd.trust.judgement.verdicts import VerdictKind, verdicts_of

MAX_FOUND: Final = 200
MAX_PUBLISHER: Final = 40
"""Characters of a publisher's name that become part of a dataset's."""
ANNOUNCED: Final = "announced"
STANDINGS: Final = (
    ANNOUNCED, "chain", "data", "observed", "attested", "reproduced", "accused", "refuted", "forked", "damaged",
)  # fmt: skip
"""First words of standings, by which a search can be restricted."""
_FORKED: Final = "forked"
_ACCUSED: Final = "accused"
_STOPS: Final = frozenset({_FORKED, _ACCUSED, "refuted", "damaged"})


def _as_name(text: str) -> str:
    """Returns what a part of a dataset's name may have of a text: ``Universität Graz`` gives ``Universitat-Graz``."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9]+", "-", plain).strip("-")[:MAX_PUBLISHER].rstrip("-")


class CardStanding(NamedTuple):
    """How far a dataset may be relied on, as far as this node knows. ``rank`` is for sorting: higher is better."""

    rank: int
    text: str

    @property
    def word(self) -> str:
        """Its first word: ``attested`` of ``attested 2/3``."""
        return re.split(r"[ :]", self.text, maxsplit=1)[0]


class SearchService:
    """The API service that searches cards."""

    def __init__(
        self,
        home: StateDirectory,
        views: DatasetViews,
        unheld: UnheldStatements,
        holders: HolderCounts,
        policy: Callable[[], Policy],
        clock: Clock,
        names: Callable[[], NodeNames],
    ) -> None:
        """``names``: returns what nodes call themselves; called in a worker thread."""
        self._home = home
        self._views = views
        self._unheld = unheld
        self._holders = holders
        self._policy = policy
        self._clock = clock
        self._names = names
        self.index = CardIndex((home.database.read, unheld.read))

    @operation("POST", NODE_PATH + "/search", needs=Permission.BY_RULE)
    def search(self, request: wire.SearchRequest) -> wire.SearchView:
        """Searches cards and ranks what is found. Raises Invalid."""
        if not 0 < request.limit <= MAX_FOUND:
            raise Invalid(f"a search for {request.limit:,}", rule="search-limit", hint=f"1 to {MAX_FOUND}")
        if unknown := [each for each in request.standing if each not in STANDINGS]:
            hint = f"one of {', '.join(STANDINGS)}"
            raise Invalid(f"no trust level is called {unknown[0][:60]!r}", rule="search-standing", hint=hint)
        now = self._clock.now()
        since = None if request.updated_within is None else Instant(now - request.updated_within * SECOND)
        query = CardQuery(words=request.words, license=request.license, column=request.column, updated_after=since)
        found, known = self.index.search(query, now)
        with self._home.database.read() as connection:
            # A collection is found once, by the rendition that its name means here; a card stays valid for long.
            cards = [card for card in found if collections.of(connection, card.dataset).active.dataset == card.dataset]
        counts = self._holders.spread([card.dataset for card in cards])
        shown = self._rank(cards, counts, request.attested, request.standing)
        return wire.SearchView(
            found=shown[: request.limit],
            more=len(shown[request.limit :]),
            cards=known,
            withdrawn=self._find_withdrawn(request),
        )

    @operation("GET", NODE_PATH + "/cards/{ref}", needs=Permission.BY_RULE)
    def card(self, ref: str) -> wire.CardView:
        """Shows the card of one dataset, held here or not. Raises Invalid, NotFound."""
        dataset = DatasetId.parse(ref)
        card = self.index.latest(dataset)
        if card is None or card.is_withdrawal:
            reason = "no card describes it" if card is None else f"its publisher withdrew it on {card.issued_at[:10]}"
            hint = f"odfctl mirror add {ref} takes it, if a peer has it"
            raise NotFound(f"{dataset.short}: {reason}", rule="card", hint=hint)
        counts = self._holders.spread([dataset])
        (shown,) = self._rank([card], counts, 0)
        return shown

    def _find_withdrawn(self, request: wire.SearchRequest) -> tuple[wire.WithdrawnCopy, ...]:
        """Lists copies here that a search by words finds by their names, as a card that withdraws has no others."""
        if (
            request.license
            or request.column
            or request.updated_within is not None
            or request.attested
            or request.standing
        ):
            return ()
        words = request.words.casefold().split()
        views = (self._views.dataset(entry) for entry in self._withdrawn_entries(words))
        found = (
            wire.WithdrawnCopy(name=view.name, id=view.id, withdrawn_at=view.withdrawn_at)
            for view in views
            if view.withdrawn_at is not None
        )
        return tuple(islice(found, request.limit))

    def _withdrawn_entries(self, words: Sequence[str]) -> Sequence[DatasetEntry]:
        with self._home.database.read() as connection:
            withdrawn = Cards(connection).list_withdrawn()
        entries = self._views.cache.entries() if withdrawn else ()
        return [
            entry for entry in entries if entry.id in withdrawn and all(word in entry.name.casefold() for word in words)
        ]

    def suggested_names(self, dataset: DatasetId) -> Sequence[str]:
        """Returns names by what a dataset's publisher says: its own, then one with the publisher's, as two datasets may
        have one name. Call from a worker thread."""
        card = self.index.card(dataset)
        if card is None or card.claims is None:
            return ()
        publisher = _as_name(card.claims.publisher or "")
        return (card.claims.name, f"{publisher}.{card.claims.name}") if publisher else (card.claims.name,)

    def _rank(
        self, cards: Sequence[Card], counts: Mapping[DatasetId, Spread], attested: int, standing: Sequence[str] = ()
    ) -> tuple[wire.CardView, ...]:
        found = {card.dataset for card in cards}
        entries = {entry.id: entry for entry in self._views.cache.entries() if entry.id in found}
        names = {dataset: entry.name for dataset, entry in entries.items()}
        held = {dataset: self._views.dataset(entry) for dataset, entry in entries.items()}
        standings = {card.dataset: self._standing(card.dataset, held.get(card.dataset)) for card in cards}
        wanted = [card for card in cards if not attested or standings[card.dataset].rank >= attested]
        wanted = [card for card in wanted if not standing or standings[card.dataset].word in standing]
        wanted.sort(key=lambda card: (standings[card.dataset].rank, *reversed(counts[card.dataset])), reverse=True)
        nodes = self._names()
        return tuple(
            msgspec.structs.replace(
                self._view(card, standings[card.dataset].text, counts[card.dataset], names.get(card.dataset)),
                node=publisher_node(card, nodes),
            )
            for card in wanted
        )

    def node_of(self, dataset: DatasetId) -> wire.PeerName | None:
        """Returns the node that publishes a dataset, if it signed that it does. Call from a worker thread."""
        return publisher_node(self.index.card(dataset), self._names())

    def _standing(self, dataset: DatasetId, held: wire.DatasetView | None) -> CardStanding:
        if held is None:
            return self._vouching(self._unheld.read, dataset)
        if held.state in _STOPS or held.rely_on is None:
            return CardStanding(-1, held.state)
        chain = self._home.chains.chain(dataset)
        return CardStanding(self._vouching(self._home.database.read, dataset, chain).rank, held.rely_on.fact)

    def _vouching(self, tables: Tables, dataset: DatasetId, chain: ChainReader | None = None) -> CardStanding:
        """Returns the standing by the attestations of groups whose word counts here, one vote for each group.

        They are held to the pins of ``chain``; of one that is not here, they are the only word.
        """
        policy = self._policy()
        with self._home.database.read() as connection:
            suspended = Suspensions(connection).groups()
        with tables() as connection:
            forked = Proofs(connection).is_forked(dataset)
            said = Ledger(connection).attestations(dataset)
        if forked:
            return CardStanding(-1, _FORKED)
        groups, accusing = set[str](), False
        for key, attestation in said.items():
            group = policy.group_of(key)
            if group is not None and group not in suspended:
                told = attestation if chain is None else held_to_pins(chain, attestation)
                kinds = {verdict.kind for verdict in verdicts_of(told)}
                accusing |= VerdictKind.MISMATCH in kinds
                groups |= {group} if VerdictKind.REPRODUCED in kinds else set()
        if accusing:
            return CardStanding(-1, _ACCUSED)
        return CardStanding(len(groups), f"attested {len(groups)}/{len(policy.groups)}" if groups else ANNOUNCED)

    def _view(self, card: Card, standing: str, spread: Spread, local_name: str | None) -> wire.CardView:
        facts, claims = card.chain, card.claims
        assert facts is not None, "cards that were taken back are not shown"
        assert claims is not None, "cards that were taken back are not shown"
        return wire.CardView(
            id=str(card.dataset),
            name=claims.name,
            local_name=local_name,
            publisher=claims.publisher,
            author=str(card.author),
            kind=facts.kind,
            standing=standing,
            peers=spread.peers,
            places=spread.places,
            namesakes=self.index.namesakes(card),
            description=facts.description,
            keywords=facts.keywords,
            license=facts.license,
            license_url=facts.license_url,
            columns=tuple(wire.CardColumn(name=column.name, type=column.type) for column in facts.columns),
            more_columns=facts.more_columns,
            inputs=tuple(map(str, facts.inputs)),
            portal=facts.portal,
            sample=rows_on(card),
            words=words_view(claims),
            first_event=facts.first_event,
            last_event=facts.last_event,
            bytes=facts.bytes,
            update_interval=facts.update_interval,
            shards=() if card.shards is None else tuple(map(str, card.shards.ids)),
            shard_by=() if card.shards is None else card.shards.by,
            blocks=card.size,
            records=facts.records,
            created_at=facts.created_at,
            updated_at=facts.updated_at,
            watermark=facts.watermark,
            signed_at=card.issued_at,
            expires_at=card.expires_at,
        )
