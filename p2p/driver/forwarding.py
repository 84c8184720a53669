"""Decides to which peers a new statement is forwarded: the whole gossip mesh, or those that want its dataset.

A small network floods every statement. The cost grows with the network, so statements that this node does not want go
to the mesh only while a budget of bytes lasts. Connected peers that announce the dataset, or asked for it lately,
always get its statements. Statements that this node wants always go to the mesh, because only few nodes hold a given
dataset. Made with the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

import trio
from cachetools import FIFOCache

from chain.ids import DatasetId
from p2p.budget.buckets import Rate, Relaying
from p2p.driver.ports import HostPort
from p2p.ports import Concern, GossipVerdict, Judgement, PeerId
from p2p.wire.limits import MAX_ENVELOPE

UNWANTED: Final = Rate(per_second=72.0, burst=8 << 20)
"""Bytes of unwanted statements that are forwarded, of which we use three quarters: all of a network of some hundred
nodes; in a large network each of six neighbours gets 54 bytes a second."""
BULKY: Final = Rate(per_second=24.0, burst=2 << 20)
"""The same for bulky statements (cards); those that are not forwarded come by anti-entropy."""
AROUND: Final = 192
"""Bytes that gossip adds to a statement: its author, number, topic and signature."""
LASTS: Final = 3600.0
"""Seconds for which a question counts; with twenty neighbours,
each of them gets one of the rounds more often than that."""
MAX_ASKED: Final = 1024
"""Datasets and keys remembered of one peer, the latest ones; as many as a presence names."""
MAX_PEERS: Final = 256
"""Peers that are remembered; more than may be connected."""


class Forwarding:
    """Decides to whom one node forwards statements."""

    def __init__(
        self, host: HostPort, naming: Callable[[Collection[DatasetId]], Collection[PeerId]], looked_at: Rate
    ) -> None:
        """``naming``: returns connected peers that claim to serve some datasets;
        ``looked_at``: the rate that peers accept."""
        self._host = host
        self.naming = naming
        self._relaying = Relaying(looked_at)
        self._unwanted = Relaying(UNWANTED, largest=MAX_ENVELOPE)
        self._bulky = Relaying(BULKY, largest=MAX_ENVELOPE)
        self._subscriptions = ImpliedSubscriptions()
        self.kept_back = 0
        """Statements that were not forwarded because too many came at once."""
        self.unwanted = 0
        """Statements that did not go to the mesh because this node does not want them and their budget was used up."""

    def note_question(self, peer: PeerId, datasets: Collection[DatasetId]) -> None:
        self._subscriptions.note(peer, datasets, trio.current_time())

    def verdict(self, sender: PeerId, concern: Concern, size: int) -> GossipVerdict:
        """Decides to whom a statement of ``size`` bytes from ``sender`` is forwarded."""
        now = trio.current_time()
        share = self._host.share_of(sender)
        to = self._who_wants(concern.subjects, now) - {sender}
        budget = self._bulky if concern.is_bulky else self._unwanted
        # What is wanted here uses no budget, so no flood crowds it out
        # (test_a_flood_of_what_nobody_wants_uses_up_no_room_of_what_is_wanted).
        is_for_all = concern.is_wanted or budget.passes(share, now, size + AROUND)
        self.unwanted += not is_for_all
        if not is_for_all and not to:
            return GossipVerdict(Judgement.IGNORE)
        # Whoever passes on a flood looks like its author (test_three_keys_do_not_make_a_node_shut_its_bootstrap_out).
        if not self._relaying.passes(share, now):
            self.kept_back += 1
            return GossipVerdict(Judgement.IGNORE)
        return GossipVerdict(Judgement.ACCEPT if is_for_all else Judgement.IGNORE, frozenset(to))

    def _who_wants(self, subjects: Collection[DatasetId], now: float) -> set[PeerId]:
        return {*self.naming(subjects), *self._subscriptions.of(subjects, self._host.peers(), now)}


class ImpliedSubscriptions:
    """Records which peers asked for statements on which datasets in the last hour, to send them new ones.

    A node that mirrors, validates or witnesses a dataset asks its neighbours for its statements by id in each round of
    anti-entropy over the datasets that it wants. That question is its subscription: there is no other message for it,
    and it expires by itself.
    """

    def __init__(self) -> None:
        self._asked: FIFOCache[PeerId, FIFOCache[DatasetId, float]] = FIFOCache(MAX_PEERS)

    def note(self, peer: PeerId, datasets: Iterable[DatasetId], now: float) -> None:
        asked = self._asked.get(peer)
        if asked is None:
            asked = FIFOCache(MAX_ASKED)
        self._asked[peer] = asked  # who asks again is the youngest
        for dataset in datasets:
            asked[dataset] = now

    def of(self, subjects: Collection[DatasetId], peers: Iterable[PeerId], now: float) -> set[PeerId]:
        found = ((peer, self._asked.get(peer)) for peer in peers)
        return {
            peer
            for peer, asked in found
            if asked is not None and any(asked.get(subject, -LASTS) > now - LASTS for subject in subjects)
        }
