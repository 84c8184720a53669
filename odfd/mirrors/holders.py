"""Finds the connected peers that hold a dataset, and asks how many of its blocks each serves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final, TypeAlias

import msgspec
import trio

from chain.errors import Fault, Refused, Remote
from chain.ids import DatasetId
from odfd.published.replication import Replication
from p2p.ports import PeerId, PeerView, Tip

PROBE_SECONDS: Final = 10.0
"""Seconds in which a peer must say what it holds."""
GRACE_SECONDS: Final = 0.5
"""Seconds to wait for further answers after the first; waiting for slow peers would delay each new head."""
KNOWN_SECONDS: Final = 2.0
"""The same, while a peer with a proven record has not answered, since others may claim anything."""
SOON: Final = (0.05, 2.0)
"""The same once such a peer has answered: at least so many seconds, and so many times the time that it took."""
PROBE_AGAIN_SECONDS: Final = 300.0
"""Seconds for which an answer is used if nothing is to be fetched and the number of holders is only shown."""
STRANGERS: Final = 8
"""Other peers that are asked beside proven ones, different ones each time; all of them if the proven ones lack it."""
ASKED_OF_ONE: Final = 2
"""Peers of one network that are asked to show a chain."""
ASKED: Final = 16
"""Peers of all networks that are asked to show a chain."""

Inquire: TypeAlias = Callable[[DatasetId, str], Awaitable[None]]
"""Reads what is published at a place. Raises Remote, Invalid, and Refused if this node cannot read the place."""


class _Serving(msgspec.Struct, frozen=True):
    """A peer that said it serves a dataset, and when (trio's clock)."""

    at: float
    peers: frozenset[PeerId]


class _Probe:
    """Collects the peers that claim to serve a dataset, and decides how long others are awaited.
    ``first`` are asked first."""

    def __init__(self, proven: Collection[PeerId], first: Iterable[PeerId], rest: Iterable[PeerId]) -> None:
        self._proven = frozenset(proven)
        self._left, self._rest = {*first}, [*rest]
        self._began = trio.current_time()
        self.found: list[PeerId] = []
        self.late = trio.CancelScope()
        self.settled = trio.Event()
        """Set when no peer is left, or a proven one serves it."""

    @property
    def by_proven(self) -> bool:
        """Whether one of the peers that serve it gave correct data before."""
        return not self._proven.isdisjoint(self.found)

    def all_are_asked(self) -> list[PeerId]:
        """Notes that from now on all peers are asked; returns those that were not asked yet."""
        rest, self._rest = self._rest, []
        self._left.update(rest)
        self._wait()
        return rest

    def heard(self, peer: PeerId, *, serves: bool) -> None:
        self._left.discard(peer)
        self.found += [peer] * serves
        self._wait()

    def _wait(self) -> None:
        now = trio.current_time()
        if self.by_proven or not self._left:
            self.settled.set()
        if self.by_proven:
            self._end(now + min(GRACE_SECONDS, max(SOON[0], SOON[1] * (now - self._began))))
        elif self.found and not self._rest:
            self._end(now + (GRACE_SECONDS if self._proven.isdisjoint(self._left) else KNOWN_SECONDS))

    def _end(self, at: float) -> None:
        self.late.deadline = min(self.late.deadline, at)


class Holders:
    """Finds and remembers the holders of datasets."""

    def __init__(self, replication: Replication, inquire: Inquire) -> None:
        """``inquire`` reads what is published at a place."""
        self._inquire = inquire
        self._replication = replication
        self._said: dict[DatasetId, _Serving] = {}
        self._turn = 0

    def connected(self) -> list[PeerId]:
        """Returns the connected peers that can be asked."""
        return [view.peer for view in self._views()]

    def _views(self) -> list[PeerView]:
        return [view for view in self._replication.peers() if view.connected and not view.blocked]

    async def of(self, dataset: DatasetId, size: int) -> list[PeerId]:
        """Asks peers, and returns those that serve at least ``size`` blocks and answer soon after the first.

        Peers that gave correct data before are asked first, with some others.
        """
        views = self._views()
        proven = [view.peer for view in views if view.proven]
        first, rest = self._rank(proven, [view.peer for view in views if not view.proven])
        probe = _Probe(proven, first, rest)

        async def ask(peer: PeerId) -> None:
            serves = False
            try:
                serves = await self._replication.chain_size(peer, dataset) >= size
            finally:
                probe.heard(peer, serves=serves)

        with probe.late:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._ask_all, ask, first)
                with trio.move_on_after(GRACE_SECONDS):
                    await probe.settled.wait()
                if not probe.by_proven:
                    nursery.start_soon(self._ask_all, ask, probe.all_are_asked())
        self._said[dataset] = _Serving(trio.current_time(), frozenset(probe.found))
        return probe.found

    def _rank(self, proven: list[PeerId], others: list[PeerId]) -> tuple[list[PeerId], list[PeerId]]:
        """Returns the peers to ask at once, and those to ask afterwards; without a proven peer, all at once."""
        if not proven:
            return others, []
        self._turn = (self._turn + STRANGERS) % max(1, len(others))
        others = others[self._turn :] + others[: self._turn]
        return [*proven, *others[:STRANGERS]], others[STRANGERS:]

    async def networks(self, peers: Sequence[PeerId], dataset: DatasetId, tip: Tip, enough: int) -> int:
        """Counts the networks in which peers prove that they hold this chain, and seeks more if those are too few."""
        found = await self._showing(peers, dataset, tip)
        if len(found) < enough and await self._replication.seek(dataset, found):
            found |= await self._showing([each for each in self.connected() if each not in peers], dataset, tip)
        return len(found)

    async def _showing(self, peers: Sequence[PeerId], dataset: DatasetId, tip: Tip) -> set[str]:
        """Returns the networks in which peers prove that they hold this chain; asks a few peers in each."""
        places = {view.peer: view.network for view in self._replication.peers() if view.connected and view.network}
        found: set[str] = set()

        async def ask(peer: PeerId) -> None:
            if await self._replication.holds(peer, dataset, tip):
                found.add(places[peer])

        asked: Counter[str] = Counter()
        async with trio.open_nursery() as nursery:
            for peer in peers:
                if peer in places and asked[places[peer]] < ASKED_OF_ONE and asked.total() < ASKED:
                    asked[places[peer]] += 1
                    nursery.start_soon(ask, peer)
        return found

    async def published(self, dataset: DatasetId, place: str) -> Fault | None:
        """Reads what is published at a place; returns the fault if it cannot be read, since peers may serve it too.

        Raises Invalid if the place has something else.
        """
        try:
            await self._inquire(dataset, place)
        except (Remote, Refused) as fault:
            return fault
        return None

    async def news(self, dataset: DatasetId) -> int:
        """Requests statements on a dataset from all peers, since gossip may have been lost.

        Once all proven peers have answered, the others have only a moment more. Returns the number of the last known
        holders if none of them answered, else 0.
        """
        unheard = {view.peer for view in self._views() if view.proven}
        (holders,) = self.still([dataset]).values()
        answered: set[PeerId] = set()

        async def ask(peer: PeerId) -> None:
            try:
                await self._replication.pull_statements(peer, [dataset])
                answered.add(peer)
            finally:
                if peer in unheard:
                    unheard.discard(peer)
                    late.deadline = math.inf if unheard else trio.current_time() + GRACE_SECONDS

        with trio.CancelScope() as late:
            await self._ask_all(ask, self.connected())
        return len(holders) if holders.isdisjoint(answered) else 0

    async def are_sharing(self, dataset: DatasetId, peers: Collection[PeerId]) -> bool | None:
        """Whether any of the peers that shared it with this node still serves it;
        ``None`` if not all of them answer."""
        answers: list[bool] = []

        async def ask(peer: PeerId) -> None:
            answers.append(await self._replication.chain_size(peer, dataset) > 0)

        await self._ask_all(ask, [each for each in self.connected() if each in peers])
        # Who is offline revoked nothing (test_a_mirror_says_that_it_is_shared_no_more_and_when_it_is_again).
        return any(answers) or (False if len(answers) == len(peers) else None)

    async def _ask_all(self, ask: Callable[[PeerId], Awaitable[None]], peers: Iterable[PeerId]) -> None:
        async def one(peer: PeerId) -> None:
            with trio.move_on_after(PROBE_SECONDS):
                try:
                    await ask(peer)
                except Remote:
                    return  # one that does not answer has nothing to say; the layer below keeps score

        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(one, peer)

    async def count(self, dataset: DatasetId, size: int) -> int:
        """Counts holders for people; peers are asked again only at intervals."""
        known = self._said.get(dataset)
        is_fresh = known is not None and trio.current_time() - known.at < PROBE_AGAIN_SECONDS
        still = len(self.still([dataset])[dataset]) if is_fresh else 0
        return still or len(await self.of(dataset, size))

    def still(self, datasets: Iterable[DatasetId]) -> dict[DatasetId, frozenset[PeerId]]:
        """Returns, for each dataset, the connected peers among its last known holders; looks up connections once."""
        connected = frozenset(self.connected())
        answers = ((dataset, self._said.get(dataset)) for dataset in datasets)
        return {dataset: frozenset() if known is None else known.peers & connected for dataset, known in answers}
