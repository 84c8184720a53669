"""Exchanges signed statements with peers: by gossip, which may lose some, and by anti-entropy, which finds the rest.

Made with the driver. Statements are judged in one worker thread at a time, behind budgets for each peer, a bounded
queue with turns for blocks of addresses and senders, and a memory of lately seen ones, so that a flood delays nobody
else.

Remembers which answers of each peer were of no use here, so that anti-entropy does not fetch them again and again.
Three bounds (docs/spec/trust.md#gossip): a statement that a peer gave, accepted or not, is not requested from it again
for a while; sums that led to nothing new are not followed again for a while; and the useless bytes of each peer, and of
each network of peers that nobody named (since keys are free), are limited, even if they are new each time. All of it is
in memory, and is forgotten with the process.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

import msgspec
import structlog
import trio
from cachetools import FIFOCache

from chain.backoff import Backoff
from chain.errors import Fault, Invalid, Remote
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements.tree import is_consistent
from chain.wording import plural
from p2p.budget.buckets import Budget, Rate
from p2p.budget.work import ENVELOPE, LISTED, PROOF, STATEMENT, SUMS
from p2p.driver.forwarding import Forwarding
from p2p.driver.framing import FramedStream
from p2p.driver.inbound import SenderTurns, StreamSlots
from p2p.driver.peer_penalties import PeerPenalties
from p2p.driver.ports import HostPort, StreamPort
from p2p.errors import Misbehaviour, PeerFault, TooSlow
from p2p.machines.declined import Declined, Seen, UselessBytes
from p2p.machines.reconcile import Done, Effect, Fetch, Reconcile, Show, answer
from p2p.peers.book import BAD_BYTES, FLOOD, GARBAGE
from p2p.ports import GossipVerdict, Judgement, Library, PeerId, StatementRef, StatementStore, Topic, TreeRoot
from p2p.wire import trust
from p2p.wire.limits import MAX_DATASETS, MAX_ENVELOPE, MAX_TRUST_REPLY, MAX_TRUST_REQUEST
from p2p.wire.trust import (
    GetAsk,
    ListAsk,
    ProofAnswer,
    ProveAsk,
    Statements,
    TopicEnvelope,
    TrustAsk,
    TrustRefusal,
    TrustTell,
)

PAUSES: Final = Backoff(first=300.0, most=3600.0)
"""Pauses before a peer is asked again for something that it gave."""
OF_ONE: Final = 4096
"""Statements remembered of one peer."""
PEERS: Final = 16
"""Peers of which statements are remembered: some 16 MiB at worst."""
USELESS: Final = Rate(per_second=8 << 10, burst=6 << 20)
"""Useless bytes of one peer, listings included. A listing of 65,536 statements has 5 MB."""
OF_NETWORK: Final = 4
"""The limit of all peers of one network, as a multiple of that of one peer."""
LISTING_BYTES: Final = 256
"""Bytes that listing and framing a statement takes at most; credited back for an accepted statement."""
ALWAYS: Final = 20 << 10
"""Bytes of an answer that are free: 256 sums have as many, and each round asks for them."""
WIDE: Final = Rate(per_second=64.0, burst=8 << 20)
"""Bytes of answers in wide rounds, without sums: between two nodes that hold the same they cost nothing. In a large
network a newcomer receives 8 MiB, half of what it keeps of datasets that it does not want."""


class RoundPeer(msgspec.Struct, frozen=True, kw_only=True):
    peer: PeerId
    network: str = ""
    """The peer's network; empty for a peer that a person named."""
    is_asked: bool = False
    """Whether the round is about datasets that a caller waits for. Such rounds have a budget of their own."""


class KnownAnswers:
    def __init__(self) -> None:
        self._told: FIFOCache[PeerId, Declined[bytes]] = FIFOCache(PEERS)
        self._of_peers = UselessBytes[tuple[PeerId, bool]](USELESS)
        self._of_networks = UselessBytes[tuple[str, bool]](USELESS.times(OF_NETWORK))

    def may_begin(self, teller: RoundPeer, now: float) -> bool:
        """Whether a round with the peer may begin: one that has used up its bytes rests until half of them are back."""
        if teller.is_asked:
            return self.may_go_on(teller, now)
        return self.may_go_on(teller, now) and self._of_peers.room_for((teller.peer, False), now) > USELESS.burst / 2

    def may_go_on(self, teller: RoundPeer, now: float) -> bool:
        within = not teller.network or self._of_networks.room_for((teller.network, teller.is_asked), now) > 0
        return within and self._of_peers.room_for((teller.peer, teller.is_asked), now) > 0

    def cost(self, teller: RoundPeer, size: float, now: float) -> None:
        self._of_peers.cost((teller.peer, teller.is_asked), size, now)
        if teller.network:
            self._of_networks.cost((teller.network, teller.is_asked), size, now)

    def note_taken(self, teller: RoundPeer, size: int, now: float) -> None:
        self.cost(teller, -(size * 4 / 3 + LISTING_BYTES), now)

    def is_known(self, teller: RoundPeer, name: bytes, now: float) -> bool:
        """Whether the peer gave this statement, or these sums, lately; never in a round that a caller waits for."""
        told = self._told.get(teller.peer)
        return not teller.is_asked and told is not None and told.rests(name, now)

    def came(self, teller: RoundPeer, names: Iterable[bytes], now: float) -> None:
        if teller.peer not in self._told:
            self._told[teller.peer] = Declined(PAUSES, OF_ONE)
        for name in names:
            self._told[teller.peer].note(name, now)


class RoundScope:
    """Decides the scope of anti-entropy rounds: all that the peer keeps or, once that is costly, only what is needed.

    Wide rounds, over all datasets, bring statements of datasets that nobody wants here yet. Their cost grows with the
    network, so the bytes of all wide rounds together are limited. Once these are used up, rounds cover only the
    datasets of interest until half of the bytes are back; the cost of those grows with this node alone. In memory, and
    forgotten with the process.
    """

    def __init__(self) -> None:
        self._left: tuple[float, float] | None = None
        self._is_spent = False
        self._after: DatasetId | None = None
        self._wanted: Sequence[DatasetId] = ()
        self._next = 0

    def is_wide(self, now: float) -> bool:
        """Whether the next round may cover all datasets."""
        if self._is_spent and WIDE.level(self._left, now) >= WIDE.burst / 2:
            self._is_spent = False
        return not self._is_spent

    def cost(self, size: int, now: float) -> None:
        """Charges an answer of ``size`` bytes in a wide round."""
        left = WIDE.level(self._left, now) - size
        self._left = (left, now)
        self._is_spent = self._is_spent or left <= 0

    def turn(self, interests: Sequence[DatasetId]) -> list[DatasetId]:
        """Returns the datasets of interest for the next round: as many as fit in one question, all of them in turn."""
        found = self._wanted = sorted(set(interests))
        first = 0 if self._after is None else bisect_right(found, self._after)
        chosen = [*found[first:], *found[:first]][:MAX_DATASETS]
        self._after = chosen[-1] if chosen else None
        return chosen

    @property
    def wanted(self) -> Sequence[DatasetId]:
        """The datasets of interest at the last round over these; empty while rounds are wide."""
        return self._wanted if self._is_spent else ()

    def next_wanted(self) -> DatasetId | None:
        """Returns the dataset of interest, each in turn, of which a holder is asked next;
        ``None`` while rounds are wide."""
        if not self.wanted:
            return None
        self._next = (self._next + 1) % len(self._wanted)
        return self._wanted[self._next]


GOSSIP_RATE: Final = Rate(per_second=50.0, burst=500.0)
"""Statements of one peer that are judged, whoever made them (docs/spec/trust.md#gossip). Further ones are dropped
without blame; we forward fewer than that (``Forwarding``)."""
ASK_RATE: Final = Rate(per_second=5.0, burst=600.0)
"""Questions of one peer: a first meeting with 65,536 statements takes 320, after that there is one a minute."""
MAX_QUEUE: Final = 1024
"""Statements that wait to be judged; blocks of addresses and senders take turns (docs/spec/trust.md#gossip)."""
MAX_QUEUE_BYTES: Final = 8 << 20
"""Bytes of the statements that wait to be judged."""
ANSWER_PATIENCE: Final = 20.0
"""Seconds for one answer of the trust protocol."""
ROUND_SECONDS: Final = 120.0
"""Seconds for one round of anti-entropy.
The first with 65,536 statements takes several rounds; each goes on where the last one ended."""
ROUND_BYTES: Final = 32 << 20
"""Bytes of answers in one round; the rest is left for the next round."""
PROVERS: Final = 4
"""Peers that are asked for one proof at a time."""
PROVER_SECONDS: Final = 2.0
"""Seconds after which another peer is asked for a proof beside one that has not answered."""
PROOF_SECONDS: Final = 60.0
"""Seconds for a proof from any of the peers."""
IDLE: Final = 60.0
"""Seconds that an inbound trust stream may be silent."""
MAX_STREAMS: Final = 2
"""Inbound trust streams of one peer."""
_LOG = structlog.get_logger("p2p.driver")


class _Tally:
    def __init__(self, teller: RoundPeer, *, is_wide: bool = False) -> None:
        self.teller = teller
        self.is_wide = is_wide
        self.bytes = 0
        self.new = 0
        self.unjudged: Sequence[Multihash] = ()
        """Names of statements that came last, until they are judged."""


class StatementServer:
    """Gossips and judges statements, and runs the trust protocol in both directions, for one network."""

    def __init__(
        self,
        host: HostPort,
        board: StatementStore,
        library: Library,
        standing: PeerPenalties,
        network: str,
        forwarding: Forwarding,
    ) -> None:
        self._host = host
        self._library = library
        self._board = board
        self._standing = standing
        self._topics = {topic: f"/odf/1/{network}/{topic.value}" for topic in Topic}
        self._seen = Seen()
        self._gossip = Budget[PeerId](GOSSIP_RATE)
        self.forwarding = forwarding
        self._asks = Budget[PeerId](ASK_RATE)
        self._questions = Budget[PeerId](ASK_RATE.within_limit())
        self._answers = KnownAnswers()
        self._scope = RoundScope()
        self._turns = SenderTurns(MAX_QUEUE, MAX_QUEUE_BYTES)
        self._proving = trio.CapacityLimiter(1)
        self._held = 0
        """The number of statements that this node passes on, at the last count."""
        self._places = StreamSlots(standing, MAX_STREAMS)
        self.dropped = 0
        """Statements that were dropped unread because too many came at once; anti-entropy finds them."""
        self._logged = (0, 0)

    async def join(self) -> None:
        """Joins the three topics, and starts to answer the trust protocol."""
        self._host.set_handler(trust.PROTOCOL, self._accept)
        for topic, name in self._topics.items():
            await self._host.join(name, partial(self._take_gossip, topic))

    async def announce(self, topic: Topic, envelope: bytes) -> None:
        """Gossips a statement of ours. Raises Invalid if it is larger than the network allows."""
        if len(envelope) > MAX_ENVELOPE:
            raise Invalid(f"a statement of {len(envelope)} bytes", rule="envelope-size", hint=f"at most {MAX_ENVELOPE}")
        self._seen.add(_name(envelope))
        await self._host.publish(self._topics[topic], envelope)

    # Gossip from others

    async def _take_gossip(self, topic: Topic, sender: PeerId, envelope: bytes) -> GossipVerdict:
        judgement = await self._judge_gossip(topic, sender, envelope)
        if judgement is not Judgement.ACCEPT:
            return GossipVerdict(judgement)
        try:
            concern = await trio.to_thread.run_sync(self._board.concern, topic, envelope)
        except Fault as fault:
            _LOG.warning(
                "it is not known which peers a statement concerns", fault=str(fault), rule=fault.rule, hint=fault.hint
            )
            return GossipVerdict(Judgement.IGNORE)
        return self.forwarding.verdict(sender, concern, len(envelope))

    async def _judge_gossip(self, topic: Topic, sender: PeerId, envelope: bytes) -> Judgement:
        if not 0 < len(envelope) <= MAX_ENVELOPE:
            self._standing.penalise(sender, f"gossiped {len(envelope)} bytes", GARBAGE)
            return Judgement.REJECT
        if self._standing.is_shut_out(sender) or _name(envelope) in self._seen:
            return Judgement.IGNORE
        if not self._gossip.spend(sender, trio.current_time()):
            self.dropped += 1
            return Judgement.IGNORE
        return await self._judge(topic, sender, envelope)

    @property
    def waiting(self) -> int:
        return len(self._turns)

    def tell_dropped(self) -> None:
        """Logs how many statements were dropped since the last call."""
        if (now := (self.dropped, self.forwarding.kept_back)) != self._logged:
            dropped, kept_back = now[0] - self._logged[0], now[1] - self._logged[1]
            _LOG.info("more statements than are looked at or passed on", dropped=dropped, kept_back=kept_back)
            self._logged = now

    async def _judge(self, topic: Topic, sender: PeerId, envelope: bytes) -> Judgement:
        """Judges a statement when it is this sender's turn; IGNORE if it was dropped for others.

        IGNORE also if judging fails by a fault of our own: the statement will come again.
        """
        async with self._turns.turn(self._host.share_of(sender), sender, len(envelope)) as has_turn:
            if not has_turn:
                self.dropped += 1
                return Judgement.IGNORE
            try:
                judgement = await trio.to_thread.run_sync(self._board.judge, topic, envelope, sender)
            except Fault as fault:
                _LOG.warning("cannot judge a statement", fault=str(fault), rule=fault.rule, hint=fault.hint)
                return Judgement.IGNORE
        # Not before: what was dropped for others, or failed by a fault of ours, is judged when it comes again.
        self._seen.add(_name(envelope))
        if judgement is Judgement.REJECT:
            self._standing.penalise(sender, f"sent a statement that is refused ({topic.value})", BAD_BYTES)
        return judgement

    # Questions to one peer

    @property
    def wanted(self) -> Sequence[DatasetId]:
        """The datasets of interest at the last round over these; empty while rounds cover all datasets."""
        return self._scope.wanted

    def peers_of_interest(self, peers: Sequence[PeerId]) -> list[PeerId]:
        """Returns those of ``peers`` that claim to serve the next dataset of interest;
        none while rounds cover all datasets."""
        subject = self._scope.next_wanted()
        return [] if subject is None else sorted({*self.forwarding.naming([subject])} & {*peers})

    async def run_round(self, peer: PeerId) -> int:
        """Runs a background round over all statements or those of interest;
        returns the number of new ones. Raises PeerFault."""
        if self._scope.is_wide(trio.current_time()):
            return await self._pull(_Tally(self._teller(peer), is_wide=True), None)
        interests = await trio.to_thread.run_sync(self._board.interests)
        datasets = self._scope.turn(interests)
        return await self._pull(_Tally(self._teller(peer)), datasets) if datasets else 0

    async def pull(self, peer: PeerId, datasets: Sequence[DatasetId] | None = None, *, private: bool = False) -> int:
        """Runs one round of anti-entropy; returns how many statements were new. Raises PeerFault.

        A round that brings something may end early; the next one goes on with the rest. In a round over all datasets,
        statements that the peer gave lately are not fetched again; in one over given datasets they are.
        """
        return await self._pull(_Tally(self._teller(peer, is_asked=datasets is not None)), datasets, private=private)

    def _teller(self, peer: PeerId, *, is_asked: bool = False) -> RoundPeer:
        network = "" if self._standing.book.get(peer).bootstrap else self._host.network_of(peer)
        return RoundPeer(peer=peer, network=network, is_asked=is_asked)

    async def _pull(self, tally: _Tally, datasets: Sequence[DatasetId] | None, *, private: bool = False) -> int:
        peer = tally.teller.peer
        if not self._answers.may_begin(tally.teller, trio.current_time()):
            raise PeerFault(peer, "sends too many statements of no use here, and is paused", rule="trust-useless")
        mine = await trio.to_thread.run_sync(self._refs, datasets)
        stream = await self._standing.open(peer, trust.PROTOCOL, MAX_TRUST_REPLY, ANSWER_PATIENCE)
        try:
            with trio.move_on_after(ROUND_SECONDS) as patience:
                await self._round(self._reconcile(mine, datasets, tally, private=private), stream, tally)
                await stream.end()
            if patience.cancelled_caught and not tally.new:
                raise TooSlow(peer, f"sent nothing new in {ROUND_SECONDS:.0f} s", rule="round")
            return tally.new
        except Misbehaviour as fault:
            self._standing.blame(fault)
            raise
        finally:
            await stream.reset()

    def _reconcile(
        self, mine: Sequence[StatementRef], datasets: Sequence[DatasetId] | None, tally: _Tally, *, private: bool
    ) -> Reconcile:
        def is_known(name: bytes) -> bool:
            return self._answers.is_known(tally.teller, name, trio.current_time())

        def may_go_on() -> bool:
            now = trio.current_time()
            return self._answers.may_go_on(tally.teller, now) and (not tally.is_wide or self._scope.is_wide(now))

        return Reconcile(mine, datasets, is_known, may_go_on, private=private)

    async def prove(self, peer: PeerId, ask: ProveAsk) -> list[bytes]:
        """Asks a peer for the nodes of a proof, and returns them unchecked. Raises PeerFault."""
        stream = await self._standing.open(peer, trust.PROTOCOL, MAX_TRUST_REPLY, ANSWER_PATIENCE)
        try:
            tell = await self._ask_peer(stream, trust.encode(ask), _Tally(RoundPeer(peer=peer, is_asked=True)))
            match tell:
                case ProofAnswer():
                    await stream.end()
                    return tell.path
                case TrustRefusal(reason):
                    raise PeerFault(peer, f"would not prove: {reason}", rule="trust-refused")
            raise Misbehaviour(peer, f"{type(tell).__name__} is no proof", rule="trust-reply")
        except Misbehaviour as fault:
            self._standing.blame(fault)
            raise
        finally:
            await stream.reset()

    async def prove_prefix(self, peers: Sequence[PeerId], dataset: DatasetId, old: TreeRoot, signed: TreeRoot) -> bool:
        ask = ProveAsk(dataset=dataset, size=signed.size, old=old.size)
        left, faults, found = iter(peers), list[str](), list[bool]()

        async def ask_one(peer: PeerId, answered: trio.Event) -> None:
            try:
                nodes = await self.prove(peer, ask)
                # Not proving it is no offence: the peer may hold another history, and tell the truth about that.
                found.append(is_consistent(old.size, old.root, signed.size, signed.root, nodes))
                if found[-1]:
                    nursery.cancel_scope.cancel()
            except PeerFault as fault:
                faults.append(str(fault))
            finally:
                answered.set()

        async def ask_some() -> None:
            for peer in left:
                answered = trio.Event()
                nursery.start_soon(ask_one, peer, answered)
                with trio.move_on_after(PROVER_SECONDS):
                    await answered.wait()

        with trio.move_on_after(PROOF_SECONDS):
            async with trio.open_nursery() as nursery:
                for _ in range(PROVERS):
                    nursery.start_soon(ask_some)
        if not found:
            told = "; ".join(faults) or f"no answer in {PROOF_SECONDS:.0f} s"
            raise Remote(f"no peer proves {plural(old.size, 'block')} of {dataset.short}: {told}", rule="prove")
        return any(found)

    async def _round(self, machine: Reconcile, stream: FramedStream, tally: _Tally) -> None:
        effects: list[Effect] = machine.start()
        try:
            while effects and tally.bytes <= ROUND_BYTES:
                effect, *effects = effects
                match effect:
                    case Fetch(ask):
                        self._note_judged(tally)
                        effects = await self._fetch(machine, stream, ask, tally)
                    case Show(statements):
                        for signed in statements:
                            if await self._judge_pulled(stream.peer, signed):
                                tally.new += 1
                                self._answers.note_taken(tally.teller, len(signed.envelope), trio.current_time())
                    case Done(refused):
                        if refused:
                            text = f"refused to send its statements: {refused}"
                            raise PeerFault(stream.peer, text, rule="trust-refused")
                        if machine.compared is not None and machine.is_whole and not tally.new:
                            self._answers.came(tally.teller, [machine.compared], trio.current_time())
        finally:
            self._note_judged(tally)

    def _note_judged(self, tally: _Tally) -> None:
        """Notes what came once it is judged: another round that left it out before would end before it is stored."""
        if tally.unjudged:
            self._answers.came(tally.teller, tally.unjudged, trio.current_time())
            tally.unjudged = ()

    async def _fetch(self, machine: Reconcile, stream: FramedStream, ask: TrustAsk, tally: _Tally) -> list[Effect]:
        tell = await self._ask_peer(stream, trust.encode(ask), tally)
        if isinstance(ask, GetAsk) and isinstance(tell, Statements):
            tally.unjudged = ask.sids[: tell.done]
        try:
            return machine.handle(tell)
        except Invalid as error:
            raise Misbehaviour(stream.peer, error.message, rule=error.rule, hint=error.hint) from error

    async def _ask_peer(self, stream: FramedStream, ask: bytes, tally: _Tally) -> TrustTell:
        # Three quarters of what peers allow, as a busy mirror must not look like a flood
        # (test_who_looks_for_a_dataset_all_the_time_is_no_flood).
        wait = self._questions.reserve(stream.peer, trio.current_time(), ANSWER_PATIENCE)
        if wait is None:
            raise PeerFault(stream.peer, "is asked as often as it allows already", rule="trust-pace")
        await trio.sleep(wait)
        body = None
        with trio.move_on_after(ANSWER_PATIENCE) as patience:
            await stream.write(ask)
            body = await stream.read()
        if patience.cancelled_caught:
            raise TooSlow(stream.peer, f"no answer in {ANSWER_PATIENCE:.0f} s", rule="trust-patience")
        if body is None:
            raise PeerFault(stream.peer, "ended the stream in place of an answer", rule="trust-reply")
        sums = ALWAYS if tally.is_wide and not tally.bytes else 0
        tally.bytes += len(body)
        if tally.is_wide:
            self._scope.cost(max(0, len(body) - sums), trio.current_time())
        self._answers.cost(tally.teller, max(0, len(body) - ALWAYS), trio.current_time())
        try:
            return trust.decode_tell(body)
        except Invalid as error:
            raise Misbehaviour(stream.peer, error.message, rule=error.rule, hint=error.hint) from error

    async def _judge_pulled(self, peer: PeerId, signed: TopicEnvelope) -> bool:
        """Judges a pulled statement, even if it was seen before: it may be needed now;
        returns whether it was accepted."""
        # Before each is verified and written (test_statements_that_we_fetch_are_paid_for_by_who_gives_them).
        await trio.sleep(self._host.charge(peer, STATEMENT))
        judgement = await self._judge(signed.topic, peer, signed.envelope)
        if judgement is Judgement.REJECT and self._standing.is_shut_out(peer):
            raise Misbehaviour(peer, "keeps sending statements that are refused", rule="trust-reply")
        return judgement is Judgement.ACCEPT

    # Questions from others

    async def _accept(self, stream: StreamPort, peer: PeerId) -> None:
        framed = self._standing.frame(stream, peer, MAX_TRUST_REQUEST)
        await self._places.attend(framed, self._answer_all, framed)

    async def _answer_all(self, stream: FramedStream) -> None:
        while True:
            body = None
            with trio.move_on_after(IDLE):
                try:
                    body = await stream.read()
                except Misbehaviour as fault:
                    self._standing.blame(fault)
                    raise
            if body is None:
                await stream.end()
                return
            try:
                ask = trust.decode_ask(body)
            except Invalid as error:
                self._standing.penalise(stream.peer, error.message, GARBAGE)
                await stream.write(trust.encode(TrustRefusal(error.message[:256])))
                return
            if not self._asks.spend(stream.peer, trio.current_time()):
                self._standing.penalise(stream.peer, "asks for statements faster than the limit", FLOOD)
                await stream.write(trust.encode(TrustRefusal("too many requests; retry later")))
                return
            await trio.sleep(self._host.charge(stream.peer, self._cost(ask)))
            if isinstance(ask, ListAsk):
                self.forwarding.note_question(stream.peer, ask.datasets)
            tell = await self._answer_question(ask, stream.peer)
            await stream.write(trust.encode(tell))

    def _cost(self, ask: TrustAsk) -> float:
        """Returns the cost of a question, paid before it is answered; askers wait for longer than it delays them."""
        match ask:
            case GetAsk(sids):
                return ENVELOPE * len(sids)
            case ProveAsk():
                return PROOF
            case _:
                return SUMS + LISTED * self._held

    def _refs(self, datasets: Sequence[DatasetId] | None = None) -> Sequence[StatementRef]:
        found = self._board.refs(datasets)
        if datasets is None:
            self._held = len(found)
        return found

    async def _answer_question(self, ask: TrustAsk, peer: PeerId) -> TrustTell:
        """Answers a question in a worker thread;
        one proof at a time, as the first of a long chain reads all its hashes."""
        limiter = self._proving if isinstance(ask, ProveAsk) else None
        told, library = self._board.to(peer), self._library.to(peer)

        def prove(ask: ProveAsk) -> list[bytes]:
            return library.prove(ask.dataset, ask.size, old=ask.old, index=ask.index)

        work = partial(answer, ask, self._refs, told.envelope, prove, told.refs)
        return await trio.to_thread.run_sync(work, limiter=limiter)


def _name(envelope: bytes) -> bytes:
    """Names an envelope by all its bytes, since the same statement with other signatures must be judged too."""
    return Multihash.sha3_256(envelope)
