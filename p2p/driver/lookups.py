"""Searches for holders beyond the directory of presences, and takes part in the network's lookup (ADR 59).

Made with the driver. ``p2p.lookup`` decides whom to ask and what to keep; this module sends the questions, over
connections that last for one question, and answers those of others. A node whose directory lists the whole network
neither searches nor announces, but answers.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Final, TypeVar

import structlog
import trio

from chain.errors import Invalid
from chain.ids import DatasetId
from chain.statements.keys import SigningKey
from p2p.address import parse_address
from p2p.budget.buckets import Budget, Rate
from p2p.budget.work import PEERS_QUESTION
from p2p.driver.discovery import LARGE, Discovery
from p2p.driver.framing import FramedStream
from p2p.driver.inbound import StreamSlots, contain
from p2p.driver.peer_penalties import PeerPenalties
from p2p.driver.ports import HostPort, StreamPort
from p2p.driver.settings import LookupMode
from p2p.errors import Misbehaviour, PeerFault
from p2p.identity import did_of_peer
from p2p.ip import parse_ip
from p2p.lookup.node import Announce, Announcing, CheckContact, LookupNode, ProviderSearch
from p2p.lookup.search import LIMITS, Search
from p2p.peers.book import GARBAGE
from p2p.ports import PeerId
from p2p.wire import lookup as wire
from p2p.wire.contact import LookupContact, contact_at, lookup_key
from p2p.wire.limits import MAX_LOOKUP_ANSWER, MAX_LOOKUP_ASK, MAX_LOOKUP_RECORDS, MAX_PRESENCE_ADDRESSES
from p2p.wire.lookup import LOOKUP_PROTOCOL, At, Find, Nodes, Store, StoreAnswer
from p2p.wire.presence import MAX_ADDRESS, Presence

RECORD_LIFETIME: Final = 7200
"""Seconds for which a record of ours is valid: half an hour longer than the interval at which it is renewed."""
PATIENCE: Final = LIMITS.patience
"""Seconds for one question: the dial and the answer."""
AT_ONCE: Final = 24
"""Questions under way at a time."""
SEEKING: Final = 20.0
"""Seconds for one search for holders."""
GRACE: Final = 1.0
"""Seconds that a search goes on after the first holder was found: there may be others, and the first may lie."""
ENOUGH: Final = 8
"""Holders that end a search at once."""
SEEK_RATE: Final = Rate(per_second=1 / 60, burst=2.0)
"""Searches for one dataset."""
SEEK_ALL_RATE: Final = Rate(per_second=1 / 5, burst=12.0)
"""Searches for all datasets together."""
STEP: Final = 1.0
"""Seconds between checks for work."""
REST: Final = 60.0
"""The same in a network that the directory lists completely, where only records of others expire."""
MAX_STREAMS: Final = 2
"""Inbound streams of one peer; each carries one question."""
SEEDS: Final = 4
"""Members from the directory that are suggested at a time while the table is small."""
Answer = TypeVar("Answer", Nodes, StoreAnswer, Nodes | StoreAnswer)
_LOG = structlog.get_logger("p2p.driver")


class Lookups:
    """Takes part in the lookup of one network for one node. Without a ``key`` it searches but announces nothing."""

    def __init__(
        self,
        host: HostPort,
        standing: PeerPenalties,
        discovery: Discovery,
        mode: LookupMode,
        rng: Random,
        key: SigningKey | None,
    ) -> None:
        self._host = host
        self._standing = standing
        self._discovery = discovery
        self._mode = mode
        self._key = key
        self._rng = rng
        public = key.public if key is not None else rng.randbytes(32)
        self.node = LookupNode(discovery.network, public, rng, rng.randbytes(32))
        self._places = StreamSlots(standing, MAX_STREAMS)
        self._at_once = trio.CapacityLimiter(AT_ONCE)
        self._seeks = Budget[bytes](SEEK_RATE)
        self._all_seeks = Budget[None](SEEK_ALL_RATE)
        self._sealed: dict[bytes, bytes] = {}
        """Our own records of the datasets that we serve now, by key."""
        self._served: tuple[DatasetId, ...] = ()
        """The served datasets at the last check; only a change needs work."""
        self.forged = 0
        """Records in answers that had no valid signature."""

    @property
    def is_used(self) -> bool:
        """Whether this node uses the lookup: by its setting, or because its network is too large for the directory."""
        return self._mode == "on" or (self._mode == "auto" and len(self._discovery.directory) >= LARGE)

    def join(self) -> None:
        if self._mode != "off":
            self._host.set_handler(LOOKUP_PROTOCOL, self._accept)

    async def run(self) -> None:
        """Maintains the table and announces the served datasets, until cancelled."""
        if self._mode == "off":
            return
        async with trio.open_nursery() as nursery:
            while True:
                pause = STEP if self.is_used else REST
                await trio.sleep(pause * (0.75 + 0.5 * self._rng.random()))
                self.node.records.expire(self._wall())
                if self.is_used:
                    self._suggest()
                    self._serve()
                    await self._work(nursery)

    def _suggest(self) -> None:
        """Suggests members from the directory to the table while it has few entries."""
        if len(self.node.table) >= 20 or self.node.table.spares >= 20:
            return
        connected = self._standing.book.connected_peers()
        found = [self._discovery.directory.of(peer, self._wall()) for peer in connected]
        found += self._discovery.strangers(SEEDS)
        for presence in found:
            for address in () if presence is None else presence.addresses:
                contact = contact_at(presence.key, parse_address(address)) if presence is not None else None
                if contact is not None and self._allows(contact):
                    self.node.introduce(contact)
                    break

    def _serve(self) -> None:
        """Updates the announced datasets to those served now; the records of others are dropped."""
        held = self._discovery.held if self._key is not None and self._addresses() else ()
        if held == self._served:
            return
        self._served = held
        keys = {lookup_key(self.node.network, dataset) for dataset in held}
        self.node.publication.want(keys, trio.current_time())
        for key in self._sealed.keys() - keys:
            del self._sealed[key]

    async def _work(self, nursery: trio.Nursery) -> None:
        work = self.node.work(trio.current_time())
        if work is None:
            return
        if isinstance(work, CheckContact):
            nursery.start_soon(contain, self._question, work.contact, work.target.to_bytes(32, "big"))
        elif isinstance(work, Announce):
            await contain(self._announce, work.key)
        else:
            search = self.node.refresh(work.target, trio.current_time())
            key = work.target.to_bytes(32, "big")
            await contain(self._walk, search, lambda contact: self._find(contact, key), self._take(search))
            if work.target == self.node.place:
                self.node.note_joined(search)

    # Questions to others

    async def holders(self, dataset: DatasetId) -> list[Presence]:
        """Searches for peers that claim to serve a dataset; ends soon after the first was found.

        A claim of a peer that is connected ends no search: whoever searches has not got the dataset from it, and one
        such peer that claims each dataset would keep each search from asking anybody else.
        """
        key, now = lookup_key(self.node.network, dataset), trio.current_time()
        if not self.is_used or not self._seeks.spend(key, now) or not self._all_seeks.spend(None, now):
            return []
        self._suggest()
        finding, met = ProviderSearch(self.node, key, now), frozenset(self._host.peers())
        with trio.CancelScope(deadline=now + SEEKING) as limit:

            def take(contact: LookupContact, answer: Nodes) -> bool:
                new = finding.take_answer(contact, answer, self._wall())
                if new is None:
                    self.forged += 1
                    self._standing.penalise(contact.peer, "announced of a holder what that peer never signed", GARBAGE)
                    return False
                unmet = sum(one.peer not in met for one in finding.providers.values())
                if unmet:
                    limit.deadline = min(limit.deadline, trio.current_time() + GRACE)
                if unmet >= ENOUGH:
                    limit.cancel()
                return True

            await self._walk(finding.search, lambda contact: self._find(contact, key), take)
        _LOG.debug("looked up", dataset=dataset.short, holders=len(finding.providers), asked=finding.search.asked)
        found = [one for one in finding.providers.values() if one.peer != self._host.peer_id]
        return self._rng.sample(found, len(found))

    async def _announce(self, key: bytes) -> None:
        """Searches for the keepers of a key, and brings our record to each of them."""
        if self._key is None:
            return
        work = Announcing(self.node, key, trio.current_time())
        record = self._record(key, self._key)

        async def bring(contact: LookupContact) -> StoreAnswer:
            answer = await self._store(contact, Store(key=key, record=record, own=self._own(contact)))
            work.note_answer(contact, answer)
            return answer

        async def ask(contact: LookupContact) -> StoreAnswer | Nodes:
            # A dataset may be withdrawn while the search runs: from then on its record is brought to nobody.
            is_served = key in self.node.publication
            return await (bring(contact) if is_served and work.is_brought_to(contact) else self._find(contact, key))

        await self._walk(work.search, ask, self._take(work.search))
        if key not in self.node.publication:
            return
        async with trio.open_nursery() as nursery:
            for contact in work.rest():
                nursery.start_soon(contain, bring, contact)
        if work.keepers:
            self.node.publication.note_announced(key, trio.current_time(), work.keepers)
        _LOG.debug("announced to the lookup", keepers=work.keepers, asked=work.search.asked)

    def _take(self, search: Search) -> Callable[[LookupContact, Nodes | StoreAnswer], bool]:
        def take(contact: LookupContact, answer: Nodes | StoreAnswer) -> bool:
            search.note_answer(contact, answer.contacts)
            return True

        return take

    async def _walk(
        self,
        search: Search,
        ask: Callable[[LookupContact], Awaitable[Answer]],
        take: Callable[[LookupContact, Answer], bool],
    ) -> None:
        """Performs a search: asks the nodes that it names until it is done.
        ``take`` says whether an answer was valid."""
        send, receive = trio.open_memory_channel[tuple[LookupContact, Answer | None]](math.inf)

        async def question(contact: LookupContact) -> None:
            answer: Answer | None = None
            try:
                answer = await ask(contact)
            finally:
                send.send_nowait((contact, answer))

        async with trio.open_nursery() as nursery:
            while True:
                for contact in search.step(trio.current_time()):
                    nursery.start_soon(contain, question, contact)
                if search.done:
                    return
                wake = search.wake(trio.current_time())
                with trio.move_on_at(math.inf if wake is None else wake + 0.001):
                    contact, answer = await receive.receive()
                    if answer is None:
                        search.note_failure(contact)
                        self.node.note_failure(contact)
                    elif take(contact, answer):
                        self.node.note_answer(contact, self._filter_allowed(answer.contacts), trio.current_time())

    async def _question(self, contact: LookupContact, key: bytes) -> None:
        """Asks a node about a key, to see whether it answers; updates the table."""
        answer = None
        try:
            answer = await self._find(contact, key)
        finally:
            if answer is None:
                self.node.note_failure(contact)
        self.node.note_answer(contact, self._filter_allowed(answer.contacts), trio.current_time())

    async def _find(self, contact: LookupContact, key: bytes) -> Nodes:
        """Asks a node for nodes near a key and for providers. Raises PeerFault, also for an invalid answer."""
        ask = Find(key=key, own=self._own(contact))
        return await self._ask(contact, wire.encode_find(ask), wire.decode_nodes)

    async def _store(self, contact: LookupContact, ask: Store) -> StoreAnswer:
        """Brings a node a record. Raises like ``_find``."""
        return await self._ask(contact, wire.encode_store(ask), wire.decode_stored)

    async def _ask(self, contact: LookupContact, ask: bytes, decode: Callable[[bytes], Answer]) -> Answer:
        body = await self._send_question(contact, ask)
        if body is None:
            raise PeerFault(contact.peer, "it answered nothing", rule="lookup")
        try:
            return decode(body)
        except Invalid as error:
            fault = Misbehaviour(contact.peer, error.message, rule=error.rule)
            self._standing.blame(fault)
            raise fault from error

    async def _send_question(self, contact: LookupContact, body: bytes) -> bytes | None:
        """Sends one question, over an open connection or one that ends with the question. Raises PeerFault."""
        peer = contact.peer
        if self._standing.is_shut_out(peer) or not self._allows(contact):
            raise PeerFault(peer, "it is not asked", rule="lookup")
        async with self._at_once:
            with trio.move_on_after(PATIENCE):
                async with self._stream(contact, peer) as stream:
                    await stream.write(body)
                    return await stream.read()
        raise PeerFault(peer, f"no answer in {PATIENCE:g} s", rule="lookup-patience")

    @asynccontextmanager
    async def _stream(self, contact: LookupContact, peer: PeerId) -> AsyncIterator[FramedStream]:
        if peer in self._host.peers():
            stream = await self._standing.open(peer, LOOKUP_PROTOCOL, MAX_LOOKUP_ANSWER, PATIENCE)
            try:
                yield stream
            finally:
                await stream.reset()
            return
        async with self._host.brief(contact.address, peer, LOOKUP_PROTOCOL) as raw:
            yield self._standing.frame(raw, peer, MAX_LOOKUP_ANSWER)

    # Our own addresses

    def _addresses(self) -> list[str]:
        own = [str(parse_address(one).transport) for one in self._host.addresses()]
        return [one for one in dict.fromkeys(own) if len(one) <= MAX_ADDRESS][:MAX_PRESENCE_ADDRESSES]

    def _own(self, asked: LookupContact) -> At | None:
        """Returns the address at which others can ask this node,
        of the same address family as ``asked``; ``None``: none."""
        for text in self._host.addresses():
            own = contact_at(self.node.key, parse_address(text))
            if own is not None and len(own.ip) == len(asked.ip):
                return own.ip, own.port
        return None

    def _record(self, key: bytes, signer: SigningKey) -> bytes:
        said = Presence(
            key=signer.public, issued=self._wall(), lifetime=RECORD_LIFETIME, addresses=tuple(self._addresses())
        )
        self._sealed[key] = wire.seal_record(said, self.node.network, key, signer)
        return self._sealed[key]

    def _allows(self, contact: LookupContact) -> bool:
        ip = contact.address.ip
        return ip is not None and self._discovery.allows()(ip)

    def _filter_allowed(self, contacts: Sequence[LookupContact]) -> list[LookupContact]:
        allows = self._discovery.allows()
        return [one for one in contacts if (ip := one.address.ip) is not None and allows(ip)]

    def _wall(self) -> int:
        return self._standing.wall() // 1_000_000

    # Questions from others

    async def _accept(self, stream: StreamPort, peer: PeerId) -> None:
        framed = self._standing.frame(stream, peer, MAX_LOOKUP_ASK)
        await self._places.attend(framed, self._answer, framed)

    async def _answer(self, stream: FramedStream) -> None:
        peer = stream.peer
        with trio.move_on_after(PATIENCE):
            try:
                body = await stream.read()
                if body is None:
                    return
                ask = wire.decode_lookup(body)
            except Invalid as error:
                self._standing.penalise(peer, error.message, GARBAGE)
                return
            except Misbehaviour as fault:
                self._standing.blame(fault)
                raise
            await trio.sleep(self._host.charge(peer, PEERS_QUESTION))
            answer = self._answer_question(ask, peer)
            if answer is not None:
                await stream.write(answer)
                await stream.end()

    def _answer_question(self, ask: Find | Store, peer: PeerId) -> bytes | None:
        key, now, wall = did_of_peer(peer).public_key, trio.current_time(), self._wall()
        remote = self._host.remote_of(peer)
        ip = parse_ip(remote).packed if remote else b""
        if isinstance(ask, Store):
            return wire.encode_stored(self.node.store(ask, key, ip, now, wall))
        found = self.node.find(ask, key, ip, now, wall)
        if found is None:
            return None
        own = self._sealed.get(ask.key)
        records = found.records if own is None else (own, *found.records)[:MAX_LOOKUP_RECORDS]
        return wire.encode_nodes(Nodes(contacts=found.contacts, records=records))
