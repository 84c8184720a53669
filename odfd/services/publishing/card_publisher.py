"""Signs and gossips a card, the public description, of each published dataset; withdraws those of private ones.

Works while its ``loop`` runs. A dataset is touched when it moves or is published or unpublished. A card that is not due
yet waits, so that a busy dataset costs at most one check a minute. Spec: docs/spec/trust.md#cards.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from chain import instant
from chain.data.partition import FUNCTION
from chain.errors import Fault
from chain.ids import DatasetId
from chain.instant import Instant
from chain.state import ChainState, load_state
from chain.statements import card as cards
from chain.statements import envelope, statement
from chain.statements.card import Card, CardSample, CardShards, PublisherClaims
from chain.statements.envelope import Signed
from chain.statements.keys import SigningKey
from chain.wording import plural
from odfd.control.assembly import Context
from odfd.datasets.local_data import held_from
from odfd.network.peer_cards import SharedCards
from odfd.runtime.hanging_calls import end_if_unwanted, in_loop
from odfd.runtime.reconcile_loop import UNTIL_POKED, KeyedReconcileLoop
from odfd.runtime.subjects import about
from odfd.services.publishing.card_drafts import LEAST, LIFETIME, MAX_PAYLOAD, due, fit
from odfd.services.publishing.card_facts import (
    EventExtents,
    EventSpan,
    Measured,
    cut,
    extent_in,
    facts_of,
    interval_of,
    list_shortened,
    render_span,
    sample_of,
)
from odfd.store import collections
from odfd.store.card_choices import CardChoices, CardSamples
from odfd.store.collections import Member
from odfd.store.directory import StateDirectory
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.cards import Cards
from odfd.store.ledger.log import Ledger
from odfd.store.visibility import Visibility

ALL_SECONDS: Final = 3600.0
"""Seconds between two checks of all datasets, since cards age."""
START_SECONDS: Final = 10.0
"""Seconds until the first check of all datasets, so that requests right after a start do not wait for it."""


_NEVER: Final = Instant(1 << 63)
_ALL_BLOCKS: Final = 1 << 62


class _Draft(NamedTuple):
    key: SigningKey
    before: Card | None
    card: Card
    shortened: tuple[str, ...] = ()
    """Names of the texts and lists of which the card has a part only."""


class CardPublisher:
    """Signs the cards of one node's datasets."""

    def __init__(
        self,
        home: StateDirectory,
        visibility: Visibility,
        announce: Callable[[Signed], None],
        publisher: str,
        context: Context,
        served: Callable[[DatasetId], int],
        names_node: Callable[[], bool] = lambda: False,
        shared: SharedCards | None = None,
    ) -> None:
        """``publisher``: the node's name for itself; ``names_node``: whether cards name this node, with its signature.

        ``announce``: called with each card, withdrawals too. ``shared``: keeps cards of shards that only some may have.
        ``served``: counts the blocks that policy gives to others, of which the rows of samples are.
        """
        self._served = served
        self._shared = shared or SharedCards()
        self._extents = EventExtents(partial(extent_in, home.objects.path))
        self._unmeasured: set[DatasetId] = set()
        """Datasets of whose event times the next check measures more."""
        self._home = home
        self._visibility = visibility
        self._announce = announce
        self._publisher, self._names_node = publisher, names_node
        self._clock, self._events, self._logger = context.clock, context.events, context.logger
        self.loop: KeyedReconcileLoop[DatasetId] = KeyedReconcileLoop(
            self._round, ALL_SECONDS, start_after=START_SECONDS
        )
        self._looked: dict[DatasetId, Instant] = {}
        """The time of the last check of each dataset of this node."""
        self._next: dict[DatasetId, Instant] = {}
        """The time of the next check of each dataset; the heap may have outdated entries."""
        self._due: list[tuple[Instant, DatasetId]] = []

    @in_loop
    def visibility_changed(self, dataset: DatasetId) -> None:
        """Signs the card again after a change of visibility."""
        self._looked.pop(dataset, None)
        self.loop.touch(dataset)

    def _round(self) -> float:
        touched = self.loop.take()
        if touched is None:
            touched = set(self._home.chains.datasets())
        now = self._clock.now()
        for dataset in filter(self._home.keys.has_dataset_key, touched):
            # A card costs all nodes of the network a verification, so a busy dataset gets at most one per LEAST.
            self._schedule(dataset, max(now, Instant(self._looked.get(dataset, -LEAST) + LEAST)))
        while self._due and self._due[0][0] <= now:
            at, dataset = heapq.heappop(self._due)
            if self._next.get(dataset) == at:
                end_if_unwanted()
                self._publish_if_changed(dataset, now)
        return max(0.0, (self._due[0][0] - now) / instant.SECOND) if self._due else UNTIL_POKED

    def _publish_if_changed(self, dataset: DatasetId, now: Instant) -> None:
        self._next.pop(dataset)
        # Before it is settled: a change of visibility that comes meanwhile removes it, and is looked at at once.
        self._looked[dataset] = now
        following = self._settle(dataset)
        if following is not None:
            self._schedule(dataset, max(following, Instant(now + LEAST)))

    def _schedule(self, dataset: DatasetId, at: Instant) -> None:
        if at < self._next.get(dataset, _NEVER):
            self._next[dataset] = at
            heapq.heappush(self._due, (at, dataset))

    def _settle(self, dataset: DatasetId) -> Instant | None:
        """Signs the card of a dataset if it is due. Returns when to check again; ``None`` without a card."""
        try:
            until = self._settle_shared(dataset)
            draft = self._draft(dataset)
            if draft is None:
                return until
            at, now = due(draft.before, draft.card), self._clock.now()
            if at > now:
                return now if dataset in self._unmeasured else at
            self._sign(draft)
            card = draft.card
            text = "taken back" if card.is_withdrawal else f"of {plural(card.size, 'block')}{_without(draft.shortened)}"
            self._events.emit("card.signed", self._home.name_of(dataset), text, about=about(dataset))
            return None if card.is_withdrawal else now
        except Fault as fault:
            name = self._home.name_of(dataset)
            self._logger.error("card not signed", dataset=name, fault=str(fault), rule=fault.rule, hint=fault.hint)
            return self._clock.now()

    def _settle_shared(self, dataset: DatasetId) -> Instant | None:
        """Keeps the card of a shard that is shared with some peers; returns when to look again, if there is one."""
        with self._home.database.read() as connection:
            is_shard = collections.member_of(connection, dataset) is not None
        is_shared = is_shard and not self._visibility.is_told(dataset) and bool(self._visibility.shared_with(dataset))
        signing = self._signing(dataset, self._shared.of(dataset)) if is_shared else None
        card = None if signing is None else self._card(dataset, signing[1], signing[2])
        if signing is None or card is None:
            self._shared.drop(dataset)
            return None
        card, before, now = fit(card), self._shared.of(dataset), self._clock.now()
        if (at := due(before, card)) > now:
            return at
        self._shared.keep(card, self._seal(card, signing[0]))
        return now

    def _draft(self, dataset: DatasetId) -> _Draft | None:
        """Drafts the card to publish now, or a withdrawal; ``None``: neither is needed. Raises Environment, Invalid."""
        if not self._home.keys.has_dataset_key(dataset):
            return None
        is_public = self._visibility.is_told(dataset)
        with self._home.database.read() as connection:
            before = Cards(connection).of(dataset)
        made = self._signing(dataset, before)
        if made is None:
            return None
        key, epoch, signing = made
        if not is_public:
            if before is None or before.is_withdrawal:
                return None
            self._extents.forget(dataset)
            # The dataset may be deleted: the published card is all that a withdrawal needs.
            return _Draft(key, before, _withdraw(before, signing))
        card = self._card(dataset, epoch, signing)
        if card is None:
            return None
        state = load_state(self._home.chains.chain(dataset))
        whole, card = card.claims, fit(msgspec.structs.replace(card, sample=self._sample(card, before, state)))
        short = () if card.chain is None else list_shortened(card.chain, state)
        if card.claims != whole:
            short = (*short, "title and place")
        missing = 0 if card.sample is None else card.sample.left_out
        return _Draft(key, before, card, (*short, f"sample ({plural(missing, 'row')} left out)") if missing else short)

    def _sample(self, card: Card, before: Card | None, state: ChainState) -> CardSample | None:
        """Returns the rows that a person wants shown. None are read while the card is not due for another reason."""
        dataset, head = card.dataset, state.head
        with self._home.database.read() as connection:
            asked, member = CardSamples(connection).of(dataset), collections.member_of(connection, dataset)
        if not asked or head is None or (member is not None and member.dataset != dataset):
            return None
        if before is not None and before.sample is not None and before.sample.total == min(asked, state.next_offset):
            same = fit(msgspec.structs.replace(card, sample=before.sample))
            if due(before, same) > self._clock.now():
                return before.sample
        chain, first = self._home.chains.chain(dataset), held_from(self._home, dataset)
        served = min(card.size, self._served(dataset))
        try:
            return sample_of(chain, self._home.slices.of(dataset), state, asked, first=first, before=served)
        except Fault as fault:
            name = self._home.name_of(dataset)
            self._logger.error("card without its sample", dataset=name, fault=str(fault), rule=fault.rule)
            return CardSample(left_out=min(asked, state.next_offset))

    def _signing(self, dataset: DatasetId, before: Card | None) -> tuple[SigningKey, int, Mapping[str, Any]] | None:
        """Returns the key that signs the next card, the chain's epoch, and what the card says of its signature.

        ``None`` if no key here may write.
        """
        with self._home.database.read() as connection:
            rights, epoch = Authorities(connection).rights(dataset), Ledger(connection).chain(dataset).epoch
        now = self._clock.now()
        key = next((each for each in self._home.keys.keys_for(dataset) if rights.may_write(each.did, now)), None)
        if key is None:
            return None
        # Receivers keep the card that was issued last: after the clock was set back, a new one must still be later.
        issued = now if before is None else max(now, Instant(before.issued + instant.SECOND))
        signing = {
            "author": key.did,
            "authority": rights.version,
            "issued_at": statement.when(issued),
            "expires_at": statement.when(Instant(issued + LIFETIME)),
        }
        return key, epoch, signing

    def _card(self, dataset: DatasetId, epoch: int, signing: Mapping[str, Any]) -> Card | None:
        """Makes a card of the dataset as it is now; ``None`` if it has no block."""
        chain = self._home.chains.chain(dataset)
        head = chain.head()
        if head is None:
            return None
        claims = PublisherClaims(
            name=cut(self._home.name_of(dataset), cards.MAX_NAME), publisher=cut(self._publisher, cards.MAX_NAME)
        )
        with self._home.database.read() as connection:
            member = collections.member_of(connection, dataset)
            if member is None or member.dataset == dataset:
                claims = CardChoices(connection).words_of(dataset).onto(claims)
        if self._names_node():
            node = self._home.keys.node_key()
            signature = cards.vouch(node, dataset, signing["author"])
            claims = msgspec.structs.replace(claims, node=node.did, node_signature=signature)
        state = load_state(chain, head.size)
        facts = facts_of(state, chain.block_at(0).system_time)
        shards, others = self._shards(dataset, member)
        records = sum(each.next_offset for each in (state, *others))
        facts = msgspec.structs.replace(facts, records=records, **self._times(state, others))
        return Card(
            **signing,
            dataset=dataset,
            epoch=epoch,
            size=head.size,
            head=head.hash,
            chain=facts,
            claims=claims,
            shards=shards,
        )

    def _shards(self, dataset: DatasetId, member: Member | None) -> tuple[CardShards | None, list[ChainState]]:
        """Returns the shards of the dataset's collection, and for the first the states of the others."""
        if member is None:
            return None, []
        keys = b"".join(shard.public_key for shard in member.shards)
        others = member.shards[1:] if member.dataset == dataset else ()
        states = [load_state(self._home.chains.chain(other)) for other in others]
        return CardShards(function=FUNCTION, by=member.row.by, keys=keys), states

    def _times(self, state: ChainState, others: Sequence[ChainState]) -> dict[str, Any]:
        """Returns what a card says of times and bytes: of all shards together, except for the time between updates."""
        dataset, states = state.dataset, (state, *others)
        if dataset is None:  # its blocks were purged meanwhile
            return {}
        measured = [self._measure(each) for each in states]
        is_whole = all(each.is_whole for each in measured)
        known: EventSpan | None = EventSpan()
        for each in measured:
            known = None if known is None or each.extent is None else known.union(each.extent)
        is_sized = all(found.bytes or not each.next_offset for found, each in zip(measured, states, strict=True))
        size = sum(each.bytes for each in measured) if is_sized else 0
        (self._unmeasured.discard if is_whole else self._unmeasured.add)(dataset)
        first, last = render_span(known)
        with self._home.database.read() as connection:
            before = Cards(connection).of(dataset)
        interval = before.chain.update_interval if before and before.chain and before.head == state.head else 0
        interval = interval or interval_of(self._home.chains.chain(dataset))
        return {"first_event": first, "last_event": last, "update_interval": interval, "bytes": size}

    def _measure(self, state: ChainState) -> Measured:
        dataset = state.dataset
        if dataset is None:
            return Measured(None)
        with self._home.database.read() as connection:
            epoch, before = Ledger(connection).chain(dataset).epoch, Cards(connection).of(dataset)
        chain, first = self._home.chains.chain(dataset), held_from(self._home, dataset)
        return self._extents.measure(chain, state, epoch, first, before)

    def _sign(self, draft: _Draft) -> None:
        """Signs and stores a draft. Raises Invalid if others would refuse the card."""
        card, signed = draft.card, self._seal(draft.card, draft.key)
        with self._home.database.write() as connection:
            Cards(connection).keep(card, signed, "signed", "", self._clock.now())
        self._announce(signed)

    def _seal(self, card: Card, key: SigningKey) -> Signed:
        payload = statement.encode(card)
        # What peers would refuse is not sent: they count it against this node.
        statement.decode_any(payload)
        return envelope.unseal(envelope.seal(payload, key), card.MAX_ENVELOPE)


def _without(parts: Sequence[str]) -> str:
    """Says what a card has no room for, and what its publisher can do."""
    if not parts:
        return ""
    which = f"; without all of its {', '.join(parts)}"
    return f"{which}: shorten what others shall see whole, a card has {MAX_PAYLOAD:,} bytes"


def _withdraw(before: Card, signing: Mapping[str, Any]) -> Card:
    return msgspec.structs.replace(before, **signing, chain=None, claims=None, shards=None, sample=None)
