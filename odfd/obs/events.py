"""Keeps the node's events for ``odfctl watch``, numbered in a ring, and lists their kinds.

Events are news, not records: the chain and the ledger are the records. The log is made with the daemon, and its numbers
begin anew with it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import trio

from chain.instant import MICROSECOND, Instant
from odfd.runtime.clock import Clock
from odfd.runtime.hanging_calls import in_loop
from odfd.runtime.ring import Lagged, Ring
from odfd.runtime.subjects import NODE, Subjects

RING: Final = 4096
"""Number of events kept: at the busiest (one per commit, ten a second) some minutes."""


@dataclass(frozen=True, slots=True)
class Event:
    sequence: int
    time: Instant
    kind: str
    subject: str = ""
    message: str = ""
    data: Mapping[str, object] = field(default_factory=dict)
    about: Subjects = NODE
    tick: int = 0
    """The event's time in microseconds, always later than that of the one before: a number that counts no events."""


News: TypeAlias = Event | Lagged


class EventLog:
    """The events of one node. ``emit`` is for the trio thread only; others use ``trio.from_thread``."""

    def __init__(self, clock: Clock, ring: int = RING, heard: Callable[[Event], None] = lambda _: None) -> None:
        """Starts an empty log. ``heard`` is called with each event, before any reader sees it."""
        self._clock = clock
        self._heard = heard
        self._ring: Ring[Event] = Ring(ring)
        self._began = self._tick = clock.now() // MICROSECOND

    @property
    def name(self) -> str:
        """The name of this log: numbers of another one, from before a restart, mean nothing here."""
        return f"{self._began:x}"

    @property
    def last(self) -> int:
        """The number of the last event; 0 before the first."""
        return self._ring.last

    @in_loop
    def emit(
        self, kind: str, subject: str = "", message: str = "", /, *, about: Subjects = NODE, **data: object
    ) -> Event:
        """Appends an event; ``kind`` is ``family.happening``, like ``mirror.synced``; ``data`` has JSON values.

        ``about`` decides who may see it; it covers everything that the subject, the message and the data name.
        """
        now = self._clock.now()
        self._tick = max(self._tick + 1, now // MICROSECOND)
        event = Event(self._ring.last + 1, now, kind, subject, message, data, about, self._tick)
        self._ring.append(event)
        self._heard(event)
        self.nudge()
        return event

    @property
    def grown(self) -> trio.Event:
        """The trio event that the next event or nudge sets; a new one follows."""
        return self._ring.grown

    @in_loop
    def nudge(self) -> None:
        """Wakes waiting readers without an event, so that each checks its state."""
        self._ring.nudge()

    def list_kept(self) -> list[Event]:
        """Lists all kept events, oldest first."""
        return [event for _, event in self._ring.list_kept()]

    def mark(self) -> int:
        """Returns a tick after that of each event so far, and before that of each later one."""
        self._tick = max(self._tick + 1, self._clock.now() // MICROSECOND)
        return self._tick

    def position(self, tick: int | None) -> int | None:
        """Returns the number of the last event up to a tick; ``None`` if events after that tick may be lost.

        For a tick of ``None`` it is that of the last event; for 0 the number before the oldest kept event.
        """
        if tick is None:
            return self.last
        kept = self._ring.list_kept()
        oldest = kept[0][0] if kept else self.last + 1
        if tick > self._tick or (tick > 0 and (tick < self._began or (oldest > 1 and tick < kept[0][1].tick))):
            return None
        return next((number - 1 for number, each in kept if each.tick > tick), self.last)

    async def batches(self, tick: int | None) -> AsyncGenerator[list[Event] | Lagged, None]:
        """Yields events after a tick, by default new ones only, at each event or nudge; then possibly none."""
        position = self.position(tick)
        if position is None:
            yield Lagged(0, None)
            position = self.position(0) or 0
        while True:
            grown, found = self.grown, self._ring.newer(position)
            yield found
            position = found.resume - 1 if isinstance(found, Lagged) else position + len(found)
            if not isinstance(found, Lagged):
                await grown.wait()

    async def follow(self, since: int | None = None) -> AsyncGenerator[News, None]:
        """Yields events after number ``since``, by default new ones only; without end."""
        async with aclosing(self._ring.follow(since)) as all_news:
            async for news in all_news:
                yield news if isinstance(news, Lagged) else news[1]


EVENT_KINDS: Final = {
    "attestation.heard": "another validator's verdict was received",
    "attestation.signed": "this node signed a verdict",
    "authority.forked": "two versions of a dataset's authority contradict each other",
    "authority.heard": "a version of a dataset's authority was received",
    "card.heard": "a publisher's card of a dataset was received",
    "card.withdrawn": "a publisher withdrew a dataset",
    "card.signed": "this node signed a card of its own dataset, or withdrew it",
    "cosignature.heard": "a witness that counts cosigned a head",
    "cosignature.refused": "a public witness cosigned another head, and refuses this one",
    "cosignature.signed": "this node cosigned a head as a witness",
    "damage.found": "the disk holds other bytes than were written",
    "dataset.advanced": "the frontier of a dataset of this node moved without a block",
    "dataset.appended": "blocks were added to a source dataset of this node",
    "dataset.created": "a dataset was declared",
    "dataset.adopted": "a deleted dataset was restored with its kept data",
    "dataset.deleted": "a dataset was deleted",
    "dataset.purged": "the kept data of a deleted dataset was deleted for good",
    "source.dropped": "records that were pushed to a Source were dropped before a dataset had them",
    "node-card.heard": "a card of this node, which this state directory did not have, was received from a peer",
    "node-card.signed": "this node announced its name, or withdrew it",
    "key.discarded": "the key of a dataset was deleted, 30 days after its data",
    "dataset.derived": "blocks were added to a derived dataset of this node",
    "dataset.forked": "the signer of a dataset contradicted itself",
    "dataset.published": "a dataset is visible to other nodes, and they may copy it",
    "dataset.renamed": "a dataset has another name on this node",
    "dataset.resolved": "an operator made a decision that no rule makes",
    "dataset.revoked": "peers no longer get a dataset that was shared with them",
    "dataset.rewritten": "the history of a dataset was rewritten",
    "dataset.sample": "the card of a dataset shows another number of rows",
    "dataset.shared": "a private dataset was shared with some peers",
    "dataset.unpublished": "a dataset is no longer visible to other nodes",
    "dataset.updated": "the declaration of a dataset changed",
    "dataset.words": "the card of a dataset has another title, place, area or frequency",
    "engine.proven": "another engine gives the same results, and is the dataset's engine now",
    "evidence.rechecked": "evidence against a dataset was run again here",
    "flow.created": "a flow was declared",
    "flow.deleted": "a flow was deleted",
    "flow.failed": "a run of a flow failed",
    "flow.backfilled": "an operator asked a flow to run for past times",
    "flow.requested": "an operator asked a flow to run",
    "flow.paused": "an operator paused a flow",
    "flow.resumed": "an operator resumed a flow",
    "flow.stranded": "the dataset that a flow pulled is deleted, and the flow waits",
    "flow.updated": "the declaration of a flow changed",
    "gap.accepted": "data that a source deleted was accepted as lost; ingestion continues",
    "head.heard": "a publisher signed a new head",
    "head.refused": "a signed head contradicts an earlier one",
    "head.unsigned": "a head of this node could not be signed",
    "head.withheld": "no peer served the blocks of a signed head for a day",
    "journal.begun": "a key whose journal was lost signs again",
    "journal.lost": "the journal of a key is lost, and it signs nothing",
    "mirror.advanced": "the frontier of a mirror moved without a block",
    "mirror.failed": "this node's own disk or engine stopped a mirror",
    "mirror.held": "a mirror continues with a remark",
    "mirror.paused": "an operator paused a mirror",
    "mirror.refused": "what peers offer of a mirror breaks a rule",
    "mirror.resumed": "an operator resumed a mirror",
    "mirror.stalled": "peers failed to serve what a mirror lacks",
    "mirror.synced": "a mirror stored new blocks",
    "mirror.united": "a mirror has all shards of a collection, and its name means all of them",
    "mirror.unshared": "other nodes no longer share a mirrored dataset with this node",
    "objects.collected": "objects that no block names were deleted",
    "observation.heard": "another observer's observation of a source was received",
    "observation.signed": "this node signed an observation of a declared source",
    "policy.changed": "the rules in force changed",
    "policy.heard": "a policy of a network was received",
    "publication.published": "a dataset was put on IPFS",
    "publication.stalled": "a dataset could not be put on IPFS",
    "publication.withdrawn": "a dataset is no longer kept on IPFS",
    "rendition.dropped": "the data of a former rendition is deleted: no reader needs it",
    "rendition.followed": "a mirror continues with the rendition that its owner handed over to",
    "rendition.sealed": "a former rendition accepts no more rows",
    "resource.created": "a resource other than a dataset was declared",
    "resource.deleted": "a resource was deleted",
    "resource.failed": "a resource could not be made as it is declared",
    "resource.labelled": "labels or annotations of a resource changed",
    "resource.updated": "the declaration of a resource changed",
    "secret.rotated": "all secrets were sealed to a new key",
    "task.cancelled": "a long operation was cancelled",
    "task.done": "a long operation ended",
    "task.failed": "a long operation failed",
    "validator.suspended": "a validator was contradicted on an equal engine, and no longer counts",
    "verdict.mismatch": "a transform run again here gave another result",
    "verdict.not-reproducible-here": "this machine cannot run a transform again",
    "verdict.put-off": "a transform could not be run again yet",
    "verdict.reproduced": "a transform run again here gave the same result",
    "volume.moved": "slices were moved to a volume, or back",
    "webhook.answered": "a webhook answers for the first time, or again after a failure",
    "webhook.failed": "five calls of a webhook in a row failed",
    "webhook.retried": "a call of a webhook failed, and is repeated",
    "webhook.given-up": "a webhook got no notice of a change: it failed for a day",
    "token.created": "an account has a new token for access over TCP",
    "token.revoked": "a token was revoked",
}
