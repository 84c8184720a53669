"""Finds peers and holders of datasets: gossips presences, asks for them, and checks them by dialling (ADR 6).

Made with the driver. It announces this node's presence, collects those of others, and proposes addresses to the mesh,
which dials them. A stranger's presence can only cause a limited number of dials to addresses of the Internet, or of
networks that the settings name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from random import Random
from typing import Final

import structlog
import trio

from chain.errors import Fault, Invalid
from chain.ids import DatasetId
from chain.statements.keys import SigningKey
from p2p.address import network_of, parse_address
from p2p.budget.buckets import Budget, Rate, Relaying
from p2p.budget.work import PEERS_QUESTION, PRESENCE
from p2p.driver.framing import FramedStream
from p2p.driver.inbound import StreamSlots, contain
from p2p.driver.peer_penalties import PeerPenalties
from p2p.driver.ports import HostPort, StreamPort
from p2p.errors import Misbehaviour, TooSlow
from p2p.ip import Allows
from p2p.peers.book import FLOOD, GARBAGE
from p2p.peers.directory import MAX_PRESENCES as CAPACITY
from p2p.peers.directory import AddressFilter, Directory
from p2p.ports import GossipVerdict, Judgement, Library, PeerId
from p2p.wire import presence as wire
from p2p.wire.limits import MAX_PEERS_ANSWER, MAX_PEERS_ASK, MAX_PRESENCE_ADDRESSES, MAX_PRESENCES, MAX_TAGS
from p2p.wire.presence import PeersAsk, Presence

SOUGHT: Final = 8
"""Peers dialled for one dataset at a time."""
MAX_STREAMS: Final = 1
"""Inbound streams of one peer; each carries one question."""
LIFETIME: Final = 7200
"""Seconds for which a presence of ours is valid; it is renewed well before."""
RENEW: Final = 900.0
"""Seconds after which an unchanged presence is signed anew. It is then sent to each peer that is met, but not gossiped:
in a large network renewals were half of all gossip that a node received."""
LOOK: Final = 15.0
"""Seconds between checks whether the served datasets changed."""
PATIENCE: Final = 10.0
"""Seconds for one answer."""
TOLD_RATE: Final = Rate(per_second=20.0, burst=MAX_PRESENCES * 16.0)
"""Presences accepted from one peer: a newcomer gets a thousand at once, and later as many as change."""
PASSED_RATE: Final = Rate(per_second=0.25, burst=1024.0)
"""Presences of others that this node forwards by gossip: all of a small network; in a large one as many as change. The
others are found in the samples that peers exchange."""
ASK_RATE: Final = Rate(per_second=0.5, burst=20.0)
"""Questions answered for one peer; each searches the directory."""
SEEK_RATE: Final = Rate(per_second=1 / 15, burst=2.0)
"""Rounds of questions about the holders of one dataset:
an asked peer tells all that it knows, and learns more only later."""
ASKED: Final = 6
"""Connected peers that are asked for holders of a dataset of which none is known."""
SAMPLE: Final = MAX_PRESENCES
"""Presences that are requested from a peer when it is met."""
LARGE: Final = CAPACITY * 15 // 16
"""Known presences from which on the network counts as larger than the directory."""
SAMPLE_OF_LARGE: Final = SAMPLE // 2
"""Presences that are requested when so many are known: they only replace those that expire, and holders of datasets
are looked up."""
_LOG = structlog.get_logger("p2p.driver")


class Discovery:
    """Peer discovery of one node in one network. Without a ``key`` it listens and asks, but announces nothing."""

    def __init__(
        self,
        host: HostPort,
        library: Library,
        standing: PeerPenalties,
        network: str,
        rng: Random,
        key: SigningKey | None,
        reach: AddressFilter,
    ) -> None:
        self._host = host
        self.reach = reach
        self._library = library
        self._standing = standing
        self.network = network
        self._topic = f"/odf/1/{network}/peers"
        self._rng = rng
        self._key = key
        self._told = Budget[PeerId](TOLD_RATE)
        self._relaying = Relaying(PASSED_RATE)
        self.dropped = 0
        """Presences that were dropped unread because too many came at once."""
        self._asks = Budget[PeerId](ASK_RATE)
        self._questions = Budget[PeerId](ASK_RATE.within_limit())
        self._rounds = Budget[int](SEEK_RATE)
        self._places = StreamSlots(standing, MAX_STREAMS)
        self._own = b""
        self.held: tuple[DatasetId, ...] = ()
        """The datasets that this node served in the network at the last check."""
        self._changed = trio.Event()
        self.directory = Directory(network, host.peer_id)

    async def join(self) -> None:
        self._host.set_handler(wire.PROTOCOL, self._accept)
        await self._host.join(self._topic, self._take_gossip)

    def look_again(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        """Sends our presence when it changes, and signs it again at intervals, until cancelled."""
        if self._key is None:
            return
        announced: tuple[object, ...] = ()
        announced_at = -RENEW
        while True:
            self._changed = trio.Event()
            try:
                held = await trio.to_thread.run_sync(self._library.datasets, MAX_TAGS + 1)
            except Fault as fault:
                _LOG.warning("the list of served datasets cannot be read", fault=str(fault), rule=fault.rule)
                held = ()
            self.held = tuple(held)
            now = (tuple(self._host.addresses()), self.held)
            if (is_news := now != announced) or trio.current_time() - announced_at >= RENEW:
                announced, announced_at = now, trio.current_time()
                self._own = wire.seal(self._presence(self._key, held), self.network, self._key)
                if is_news:
                    await contain(self._host.publish, self._topic, self._own)
            with trio.move_on_after(LOOK):
                await self._changed.wait()

    def _presence(self, key: SigningKey, held: Sequence[DatasetId]) -> Presence:
        addresses = [str(parse_address(one).transport) for one in self._host.addresses()]
        tags = sorted({wire.tag_of(dataset) for dataset in held[:MAX_TAGS]})
        return Presence(
            key=key.public,
            issued=self._now(),
            lifetime=LIFETIME,
            addresses=tuple(one for one in dict.fromkeys(addresses) if len(one) <= wire.MAX_ADDRESS)[
                :MAX_PRESENCE_ADDRESSES
            ],
            tags=tuple(tags),
            more=len(held) > MAX_TAGS,
        )

    def _now(self) -> int:
        return self._standing.wall() // 1_000_000

    # Presences from others

    async def _take_gossip(self, sender: PeerId, raw: bytes) -> GossipVerdict:
        await trio.lowlevel.checkpoint()
        judgement = self._admit(raw, sender)
        return GossipVerdict(
            judgement if judgement is not Judgement.ACCEPT or self._passes(sender) else Judgement.IGNORE
        )

    def _passes(self, sender: PeerId) -> bool:
        return self._relaying.passes(self._host.share_of(sender), trio.current_time())

    def _admit(self, raw: bytes, sender: PeerId) -> Judgement:
        """Judges a presence that a peer sent. Too many only get dropped: the sender may forward those of many peers."""
        if self._standing.is_shut_out(sender):
            return Judgement.IGNORE
        if not self._told.spend(sender, trio.current_time()):
            self.dropped += 1
            return Judgement.IGNORE
        judgement = self.directory.admit(raw, self._host.share_of(sender), self._now())
        if judgement is Judgement.REJECT:
            self._standing.penalise(sender, "announced of a peer what that peer never said", GARBAGE)
        return judgement

    # Questions to others

    async def meet(self, peer: PeerId) -> None:
        """Sends a peer our presence, and asks it for some of others. Raises PeerFault."""
        wanted = SAMPLE if len(self.directory) < LARGE else SAMPLE_OF_LARGE
        await self.ask(peer, PeersAsk(wanted=wanted, own=self._own))

    async def is_member(self, peer: PeerId) -> bool:
        """Whether the directory has a presence that the connected peer signed for this network;
        asks a peer that it lacks."""
        if self.directory.of(peer, self._now()) is None:
            await contain(self.meet, peer)
        return self.directory.of(peer, self._now()) is not None

    async def ask(self, peer: PeerId, ask: PeersAsk) -> int:
        """Asks a peer for presences; returns the number of new ones. Raises PeerFault.

        Returns 0 without asking if the peer was already asked as often as it allows.
        """
        if not self._questions.spend(peer, trio.current_time()):
            return 0
        stream = await self._standing.open(peer, wire.PROTOCOL, MAX_PEERS_ANSWER, PATIENCE)
        try:
            with trio.move_on_after(PATIENCE):
                await stream.write(wire.encode_ask(ask))
                body = await stream.read()
                if body is None:
                    return 0
                new = 0
                for raw in wire.decode_answer(body, ask):
                    await trio.sleep(self._host.charge(peer, PRESENCE))
                    new += self._admit(raw, peer) is Judgement.ACCEPT
                await stream.end()
                return new
            raise TooSlow(peer, f"did not answer the question for peers in {PATIENCE:.0f} s", rule="peers-patience")
        except Invalid as error:
            fault = Misbehaviour(peer, error.message, rule=error.rule, hint=error.hint)
            self._standing.blame(fault)
            raise fault from error
        except Misbehaviour as fault:
            self._standing.blame(fault)
            raise
        finally:
            await stream.reset()

    async def holders(self, dataset: DatasetId, beyond: Collection[str] = ()) -> list[Presence]:
        """Lists unconnected peers that claim to serve ``dataset``; asks connected peers if none is known.

        ``beyond``: if given, at most one peer of each network but these, by the addresses in their presences.
        """
        tag = wire.tag_of(dataset)
        found = self._unmet(tag, beyond)
        if not found and self._rounds.spend(tag, trio.current_time()):
            connected = self._standing.book.connected_peers()
            ask = PeersAsk(wanted=SOUGHT * 2, tags=(tag,), own=self._own)
            async with trio.open_nursery() as nursery:
                for peer in self._rng.sample(connected, min(ASKED, len(connected))):
                    nursery.start_soon(contain, self.ask, peer, ask)
            found = self._unmet(tag, beyond)
        return found[:SOUGHT]

    def serving(self, datasets: Iterable[DatasetId]) -> dict[DatasetId, set[PeerId]]:
        """Returns, for each of these datasets, the connected peers whose presence names it, unchecked."""
        wanted = {wire.tag_of(dataset): dataset for dataset in datasets}
        found: dict[DatasetId, set[PeerId]] = {}
        now = self._now()
        for peer in self._standing.book.connected_peers():
            presence = self.directory.of(peer, now)
            for tag in wanted.keys() & (() if presence is None else presence.tags):
                found.setdefault(wanted[tag], set()).add(peer)
        return found

    def naming(self, datasets: Iterable[DatasetId]) -> set[PeerId]:
        """Returns the connected peers whose presence names one of these datasets."""
        connected = self._host.peers()
        return {peer for dataset in datasets for peer in self.directory.naming(wire.tag_of(dataset), connected)}

    def addresses_of(self, peers: Iterable[PeerId]) -> list[str]:
        found = [self.directory.of(peer, self._now()) for peer in peers]
        return [address for presence in found if presence is not None for address in presence.addresses]

    def places_of(self, peers: Iterable[PeerId]) -> list[str]:
        """Returns the addresses from the presences of ``peers``, each with its peer id."""
        return [f"{address}/p2p/{peer}" for peer in peers for address in self.addresses_of([peer])]

    def clock_behind(self, peers: Iterable[PeerId]) -> float:
        """Returns the seconds by which the clock of one of ``peers`` is at least ahead of ours,
        by when it signed its presence."""
        found = [self.directory.of(peer, self._now()) for peer in peers]
        return max((one.issued - self._now() for one in found if one is not None), default=0) / 1000

    def told_by(self, peer: PeerId) -> int | None:
        """Counts the datasets that a peer's presence claims; ``None``: it sent none lately."""
        presence = self.directory.of(peer, self._now())
        return None if presence is None else len(presence.tags)

    def _unmet(self, tag: int, beyond: Collection[str]) -> list[Presence]:
        met = set(self._standing.book.connected_peers())
        found = [one for one in self.directory.holders(tag, self._now()) if one.peer not in met]
        sure = [one for one in found if tag in one.tags]
        # In random order: otherwise a peer that signs its presence anew all the time would always be the first.
        found[: len(sure)] = self._rng.sample(sure, len(sure))
        return self._elsewhere(found, beyond) if beyond else found

    def apart(self, found: Sequence[Presence], beyond: Collection[str]) -> list[Presence]:
        """Lists the holders that are not connected; with ``beyond``, at most one of each network but these."""
        met = set(self._standing.book.connected_peers())
        unmet = [one for one in found if one.peer not in met]
        return self._elsewhere(unmet, beyond) if beyond else unmet

    def _elsewhere(self, found: Sequence[Presence], beyond: Collection[str]) -> list[Presence]:
        """Picks one of each network at random, none of ``beyond``: many peers in one network count as one."""
        seen, chosen = set(beyond), []
        for presence in self._rng.sample(found, len(found)):
            hosts = [parse_address(address).host for address in self.addresses(presence)]
            networks = {network_of(host) or host for host in hosts}
            if networks and not networks & seen:
                seen |= networks
                chosen.append(presence)
        return chosen

    def stranger(self) -> Presence | None:
        """Returns a random peer that we have not met; ``None`` if there is none."""
        return next(iter(self.strangers(1)), None)

    def strangers(self, count: int) -> list[Presence]:
        """Returns random peers that we have not met, of whom one may come more than once; none if there are none."""
        strangers = self.directory.strangers(set(self._standing.book.connected_peers()), self._now())
        return [self._rng.choice(strangers) for _ in range(count if strangers else 0)]

    def addresses(self, presence: Presence) -> list[str]:
        """Returns the addresses in an untrusted presence that may be dialled."""
        allows = self.allows()
        found = map(parse_address, presence.addresses)
        return [f"{one}/p2p/{presence.peer}" for one in found if one.ip is None or allows(one.ip)]

    def dialable(self, peer: PeerId) -> list[str]:
        """Returns the addresses of a peer's presence that may be dialled; none without a presence."""
        presence = self.directory.of(peer, self._now())
        return [] if presence is None else self.addresses(presence)

    def heard_of(self, teller: PeerId, raw: bytes) -> Presence | None:
        """Admits a presence that ``teller`` sent; returns the newest known presence of the peer that it is about."""
        try:
            told = wire.decode(raw)
        except Invalid:
            self._standing.penalise(teller, "announced of a peer what is no presence", GARBAGE)
            return None
        self._admit(raw, teller)
        return self.directory.of(told.peer, self._now())

    def presence_of(self, peer: PeerId) -> bytes | None:
        """Returns the presence that a peer signed, as raw bytes; ``None`` if it is not known."""
        return self.directory.raw_of(peer, self._now())

    def allows(self) -> Allows:
        return self.reach.allows(self._host.addresses())

    # Questions from others

    async def _accept(self, stream: StreamPort, peer: PeerId) -> None:
        framed = self._standing.frame(stream, peer, MAX_PEERS_ASK)
        await self._places.attend(framed, self._answer, framed)

    async def _answer(self, stream: FramedStream) -> None:
        with trio.move_on_after(PATIENCE):
            try:
                body = await stream.read()
                if body is None:
                    return
                ask = wire.decode_ask(body)
            except Invalid as error:
                self._standing.penalise(stream.peer, error.message, GARBAGE)
                return
            except Misbehaviour as fault:
                self._standing.blame(fault)
                raise
            if not self._asks.spend(stream.peer, trio.current_time()):
                self._standing.penalise(stream.peer, "asks for peers faster than the limit", FLOOD)
                return
            await trio.sleep(self._host.charge(stream.peer, PEERS_QUESTION))
            if ask.own and self._admit(ask.own, stream.peer) is Judgement.ACCEPT and self._passes(stream.peer):
                # We publish it for the peer: a newcomer is in no gossip mesh yet, so its own gossip reaches nobody.
                await contain(self._host.publish, self._topic, ask.own)
            presences = self.directory.tell(ask, stream.peer, self._now(), self._rng)
            if self._own and self._fits(ask):
                presences = [self._own, *presences][: ask.wanted]
            await stream.write(wire.encode_answer(presences))
            await stream.end()

    def _fits(self, ask: PeersAsk) -> bool:
        """Whether our own presence is an answer to the question too."""
        return not ask.tags or bool(set(ask.tags) & set(wire.decode(self._own).tags))
