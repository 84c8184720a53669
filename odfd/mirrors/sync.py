"""Runs one pass over one mirror: brings it to the newest signed head, and verifies everything before the head moves.

Blocks are judged as they arrive and proven by the signed tree. Objects are fetched several at a time, hashed on arrival
and checked against their blocks. Then blocks, references and the chain's tree are stored in one transaction. An
interrupted pass leaves the old head, and keeps the received parts of objects for the next pass.

A pass goes in steps: one ends at the signed head or, if that is far, after some thousand blocks that a peer proves to
be the beginning of the signed tree. A step waits in memory until it is proven. While it is proven and stored the next
one is fetched (``Prefetch``); if a step turns out wrong, the one fetched after it is discarded too.

A signed head that breaks a rule is not checked again before another one is signed, and then after growing pauses
(``DeclinedHeads``).

``Prefetch`` fetches the next step of a mirror while the present one is stored, so that network, processor and disk work
at once. Only one step is fetched ahead: two cores are busy with these two, and each step waits in memory.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeAlias

import msgspec
import trio

from chain.codec.blocks import decode_block
from chain.errors import Fault, Invalid, NotFound, Refused, Remote
from chain.ids import DatasetId
from chain.instant import from_millis, render, to_millis
from chain.model.block import NamedObject, SealedBlock
from chain.multihash import Multihash
from chain.state import ChainState, load_state
from chain.statements.authority import Rights
from chain.statements.statement import HeadStatement
from chain.statements.tree import Frontier
from chain.store.base import Append, Head, UpperMove
from chain.wording import agree, plural
from odfd.errors import sole_faults
from odfd.mirrors.epoch_switch import Following, check_base, go_back, is_there, turn_of
from odfd.mirrors.first_contact import ENOUGH, FIRST_SIGHT, WITNESSED, DeclinedHeads, FirstContact
from odfd.mirrors.holders import Holders
from odfd.mirrors.mirror_state import MirrorProgress
from odfd.mirrors.object_fetcher import ObjectFetcher
from odfd.mirrors.quota import BlockQuota
from odfd.mirrors.sinks import SignedFault, SinkFull, VerifiedChain
from odfd.mirrors.swarm_fetcher import SwarmGoal, SwarmStep
from odfd.published.replication import Replication
from odfd.runtime.spans import span
from odfd.store import mirror_specs, visibility
from odfd.store.damage import Damage
from odfd.store.directory import StateDirectory
from odfd.store.holdings import Holdings
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.log import CheckedChain, Ledger
from odfd.store.ledger.proofs import Proofs
from odfd.store.ledger.resolutions import Decided, Resolutions
from odfd.store.mirror_specs import MirrorSpec
from odfd.store.references import keep_references
from odfd.transfer.object_list import may_link, note_links
from odfd.verify.terms import ChainTerms, pages_of
from p2p.identity import peer_of_did
from p2p.peers.book import BAD_BYTES
from p2p.ports import PeerId, Tip, TreeRoot

STEPS_HELD: Final = 2
"""Steps in memory: one that is being stored, and one that is being fetched or waits."""
BYTES_HELD: Final = 32 << 20
"""Bytes of blocks not stored yet, above which no more are fetched."""


class Start(msgspec.Struct, frozen=True):
    """The state before the next blocks: the chain's state for the rules, and its tree."""

    state: ChainState
    frontier: Frontier


class Prefetch:
    """Fetches a chain of ``size`` blocks step by step, ahead of its consumer:
    ``run`` fetches, the consumer calls ``next``."""

    def __init__(self, fetch: Callable[[Start], Awaitable[VerifiedChain]], start: Start, size: int) -> None:
        self._fetch = fetch
        self._start = start
        self._size = size
        self._fetched: deque[VerifiedChain | Fault] = deque()
        self._unkept: deque[int] = deque()
        """The bytes of each step that is not stored yet."""
        self._moved = trio.Event()

    async def run(self) -> None:
        """Fetches until all is here or a fetch fails, which the consumer then raises."""
        while self._start.state.size < self._size:
            while len(self._unkept) >= STEPS_HELD or sum(self._unkept) > BYTES_HELD:
                await self._moved.wait()
            try:
                self._take(await self._fetch(self._start))
            except Fault as fault:
                self._fetched.append(fault)
                self._move()
                return

    def _take(self, step: VerifiedChain) -> None:
        self._start = Start(step.state, step.frontier)
        self._fetched.append(step)
        self._unkept.append(step.bytes)
        self._move()

    async def next(self) -> VerifiedChain:
        """Waits for the next step, which must exist; raises the fault that prevented it."""
        while not self._fetched:
            await self._moved.wait()
        found = self._fetched.popleft()
        if isinstance(found, Fault):
            raise found
        return found

    def kept(self) -> None:
        """Notes that the oldest step was stored, so that its memory is free."""
        self._unkept.popleft()
        self._move()

    def _move(self) -> None:
        self._moved.set()
        self._moved = trio.Event()


PAGE: Final = 20_000
"""Blocks whose missing objects are searched at once."""
UNSHARED: Final = (
    "its owner no longer shares it with this node, or no longer has it; the copy here stays, and may be old"
)
"""Reason for a peer that answers as if this node were unknown to it."""
STEP: Final = 50_000
"""Blocks that are committed together if the signed head is farther, some 40 MB in memory; fewer if they are large.

Each commit touches most pages of the indexes by hash, so larger commits touch fewer pages per block.
"""


class Synced(msgspec.Struct, frozen=True):
    """The head moved by ``blocks``; ``peers`` hold the dataset."""

    head: Head
    blocks: int
    objects: int
    peers: int
    note: str = ""
    """A remark for people; empty: none."""


class Current(msgspec.Struct, frozen=True):
    """No newer signed head is known. ``peers`` is 0 if there was none to ask either."""

    peers: int
    connected: int
    """Number of connected peers, whatever they hold."""
    objects: int = 0
    """Number of objects that came, of blocks that were here without them."""
    note: str = ""
    upper: int | None = None
    """The frontier in milliseconds, if a head of the same blocks moved it."""


class NobodyHasIt(msgspec.Struct, frozen=True):
    """No peer can give the requested blocks now."""

    reason: str
    is_unshared: bool = False
    """Whether the peers that shared it with this node answer, and serve nothing of it."""


Outcome: TypeAlias = Synced | Current | NobodyHasIt


class _Held(msgspec.Struct, frozen=True):
    """The state of a mirror when a pass begins."""

    state: ChainState
    checked: CheckedChain
    head: HeadStatement | None
    """The newest signed head known."""
    rights: Rights
    """The rights by the newest version of its authority."""
    decided: Decided = Decided()
    """A person's decisions on the dataset."""
    lacks: str = ""
    """Why it cannot be accepted at first contact yet; empty: it can."""
    is_stored: bool = True
    """Whether it is of a mirror; else of an own dataset that catches up."""


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """The target of a pass: the head ``signed``, whose blocks ``peers`` have;
    with the rights of the present authority."""

    spec: MirrorSpec
    signed: HeadStatement
    rights: Rights
    peers: Sequence[PeerId]
    is_stored: bool = True
    """Whether it is of a mirror, which may be deleted meanwhile."""


class StepsKept(msgspec.Struct, frozen=True):
    """The result: blocks up to ``head`` are stored, and ``objects`` came with them."""

    head: Head | None = None
    objects: int = 0


class MirrorSync:
    """Brings mirrors up to date. The caller runs one pass at a time for each dataset."""

    def __init__(
        self,
        home: StateDirectory,
        object_fetcher: ObjectFetcher,
        replication: Replication,
        holders: Holders,
        first_contact: FirstContact,
        *,
        following: Following = Following(),  # noqa: B008  it is never changed
    ) -> None:
        self._first_contact = first_contact
        self._keeping = object_fetcher.keeping
        self._database, self._chains = home.database, home.chains
        self._object_fetcher = object_fetcher
        self._replication = replication
        self._following = following
        self._holders = holders
        self._declined = DeclinedHeads()

    async def sync(
        self,
        spec: MirrorSpec,
        tally: MirrorProgress,
        begun: Callable[[], None] = lambda: None,
        *,
        is_stored: bool = True,
    ) -> Outcome:
        """Runs one pass. ``begun`` is called before anything is fetched; many passes find nothing to fetch.

        ``is_stored``: whether it is of a mirror, and ends with that; else of an own dataset that catches up.

        Raises Remote (peers), Invalid or Refused (the chain breaks a rule or a limit), Environment (our disk).
        """
        with span("sync", spec.name) as seen:
            outcome = await self._pass(spec, tally, begun, is_stored)
            if isinstance(outcome, Synced):
                seen.note("odfd.blocks", outcome.blocks)
                seen.note("odfd.objects", outcome.objects)
            return outcome

    async def _pass(
        self, spec: MirrorSpec, tally: MirrorProgress, begun: Callable[[], None], is_stored: bool
    ) -> Outcome:
        await trio.to_thread.run_sync(self._keeping.count_blocks, spec.id)
        if spec.want == "data":
            await trio.to_thread.run_sync(self._keeping.settle, spec)
        if spec.peers:  # nobody gossips it
            await self._replication.seek(spec.id)
            await self._holders.news(spec.id)
            if await self._is_unshared(spec):
                return NobodyHasIt(UNSHARED, is_unshared=True)
        unheard = None if spec.via is None else await self._holders.published(spec.id, spec.via)
        outcome = await self._sync(spec, tally, begun, is_stored)
        served = not isinstance(outcome, NobodyHasIt) and outcome.peers
        if unheard is not None and not served:
            raise unheard
        if spec.want == "chain" or isinstance(outcome, NobodyHasIt):
            return outcome
        return msgspec.structs.replace(outcome, note=await trio.to_thread.run_sync(self._keeping.trim, spec))

    async def _is_unshared(self, spec: MirrorSpec) -> bool:
        """Whether the dataset is no longer shared with this node; peers that do not answer change nothing."""
        sharing = await self._holders.are_sharing(spec.id, [PeerId(peer) for peer in spec.peers])
        if sharing is None:
            return False

        def note() -> bool:
            now = self._first_contact.clock()
            visibility.told_by_sharers(self._database, spec.id, now, is_shared=sharing)
            return not sharing and self._chains.chain(spec.id).head() is not None

        return await trio.to_thread.run_sync(note)

    def spec_changed(self, spec: MirrorSpec) -> None:
        """Applies the bandwidth cap of a changed spec to transfers under way."""
        self._object_fetcher.paces.of(spec)

    def holders(self, datasets: Iterable[DatasetId]) -> dict[DatasetId, frozenset[PeerId]]:
        """Returns, for each dataset, the connected peers among the last known holders."""
        return self._holders.still(datasets)

    async def ask_around(self, dataset: DatasetId) -> int:
        """Asks connected peers for newer heads; their answers are processed before this returns.

        Returns the number of the last known holders if none of them answered, else 0.
        """
        return await self._holders.news(dataset)

    async def _sync(
        self, spec: MirrorSpec, tally: MirrorProgress, begun: Callable[[], None], is_stored: bool
    ) -> Outcome:
        held = msgspec.structs.replace(await trio.to_thread.run_sync(self._load_held, spec), is_stored=is_stored)
        if held.decided.abandoned is not None:
            raise Refused(
                f"{spec.name} was abandoned here: nothing more of it is taken",
                rule="abandoned",
                hint=f"to take it up again: odfctl trust resolve {spec.name} --follow HASH",
            )
        if held.head is None:
            await self._replication.seek(spec.id)
            return NobodyHasIt(f"no signed head of it was seen yet{_alone(spec, self._holders.connected())}")
        if held.lacks:
            await self._replication.seek(spec.id)
            return NobodyHasIt(held.lacks)
        tally.blocks, tally.blocks_wanted = held.state.size, max(held.head.size, held.state.size)
        behind = held.head.size > held.state.size
        if not behind and not _lacks_data(spec, held):
            upper = await trio.to_thread.run_sync(self._move_upper, held)
            count = await self._holders.count(spec.id, held.state.size)
            return Current(count, len(self._holders.connected()), upper=upper)
        known_wrong = self._declined.why(spec, held.head, trio.current_time())
        if known_wrong is not None:
            # The same exception is raised in each pass, and its traceback would grow.
            raise known_wrong.with_traceback(None)
        size = held.head.size if behind else held.state.size
        with span("negotiate"):
            peers = await self._holders.of(spec.id, size)
            if not peers and await self._replication.seek(spec.id):
                peers = await self._holders.of(spec.id, size)
        if not peers:
            return NobodyHasIt("no connected peer serves it that far")
        begun()
        try:
            brought = await self._bring(spec, held, held.head, peers, tally)
        except NotFound:
            raise
        except (Invalid, Refused) as fault:
            # Else each new head over the wrong block brings it again
            # (test_a_publisher_that_signs_on_over_a_wrong_block_is_fetched_ever_later).
            self._declined.note(spec, held.head, fault, trio.current_time())
            raise
        self._declined.forget(spec.id)
        return brought

    def _move_upper(self, held: _Held) -> int | None:
        """Moves the frontier to what a newer head of the same blocks states; returns it, or ``None`` if it stays."""
        signed = held.head
        if signed is None or signed.upper is None or signed.head != held.state.head:
            return None
        here = self._chains.upper(signed.dataset)
        if signed.upper <= here:
            return None
        head = self._chains.chain(signed.dataset).head()
        move = UpperMove(here, signed.upper)
        self._chains.commit([Append(dataset=signed.dataset, expected=head, blocks=(), upper=move)])
        return signed.upper

    async def _bring(
        self, spec: MirrorSpec, held: _Held, signed: HeadStatement, peers: Sequence[PeerId], tally: MirrorProgress
    ) -> Outcome:
        """Fetches blocks and data. A mirror of only the newest data fetches all blocks first,
        to know which data is the newest."""
        objects, kept = 0, StepsKept()
        if spec.brings_data and _lacks_data(spec, held):
            objects = await self._missing_data(spec, held, peers, tally)
        if held.state.size < signed.size:
            goal = Goal(spec=spec, signed=signed, rights=held.rights, peers=peers, is_stored=held.is_stored)
            start = Start(held.state, held.checked.frontier)
            kept = await self._climb(goal, start, tally)
            objects += kept.objects
        if spec.keep is not None:
            objects += await self._kept_data(spec, peers, tally)
        if kept.head is None:
            return Current(len(peers), len(self._holders.connected()), objects)
        return Synced(kept.head, kept.head.size - held.state.size, objects, len(peers))

    async def _climb(self, goal: Goal, start: Start, tally: MirrorProgress) -> StepsKept:
        """Fetches and stores all steps, as long as the goal stays valid."""
        kept = StepsKept()
        room = BlockQuota(self._object_fetcher.room, goal.spec)
        ahead = Prefetch(partial(self._fetch, goal, room), start, goal.signed.size)
        try:
            with sole_faults():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(ahead.run)
                    while True:
                        fetched = await ahead.next()
                        kept = await self._store(goal, fetched, kept.objects, tally)
                        assert kept.head is not None
                        if fetched.until >= goal.signed.size or not await self._stands(goal, kept.head):
                            break
                        del fetched
                        ahead.kept()
                    nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(room.close)
        return kept

    async def _fetch(self, goal: Goal, room: BlockQuota, start: Start) -> VerifiedChain:
        signed, spec = goal.signed, goal.spec
        whole = _needs_whole(start.state.size, goal, self._first_contact.rung(spec))
        until = signed.size if whole else min(signed.size, start.state.size + STEP)
        proves = partial(self._prove_in_thread, goal)
        sink = VerifiedChain(start.state, start.frontier, signed, until, room, proves)
        try:
            with span("blocks") as seen:
                await self._replication.pull_chain(
                    goal.peers, spec.id, until, sink, self._object_fetcher.paces.of(spec)
                )
                seen.note("odfd.blocks", len(sink.blocks))
        except SignedFault as told:
            raise told.fault from None
        except SinkFull as full:
            if whole or not sink.blocks:
                raise (full.__cause__ or full) from None
            await trio.to_thread.run_sync(sink.end_here)
        return sink

    def _prove_in_thread(self, goal: Goal, tree: TreeRoot) -> bool:
        """Whether a peer proves that a tree is the beginning of the signed one. Called from worker threads."""
        signed = goal.signed
        whole = TreeRoot(signed.size, signed.root_hash)
        with suppress(Remote):
            return trio.from_thread.run(self._replication.prove_prefix, goal.peers, signed.dataset, tree, whole)
        return False

    async def _store(self, goal: Goal, sink: VerifiedChain, objects: int, tally: MirrorProgress) -> StepsKept:
        """Proves and commits blocks, with their objects if the spec asks for them."""
        spec, signed = goal.spec, goal.signed
        with span("verify"):
            if sink.until < signed.size:
                await self._prove(goal.peers, sink, signed)
            _check_expected(spec, sink)
            _check_seed(sink, goal.rights)
            # Both heads stay in the ledger, and what is here stays (ADR 68;
            # test_a_publisher_that_breaks_its_promise_is_refused).
            await trio.to_thread.run_sync(self._check_promise, sink)
            check_base(sink.began, sink.blocks, signed, goal.rights)
        with self._object_fetcher.arriving.step(spec.id, sink.tip, sink.blocks) as step:
            if spec.brings_data:
                swarm, terms = SwarmStep(swarm_goal(signed), step), ChainTerms.of(sink.start)
                objects += await self._object_fetcher.bring(spec, goal.peers, terms, sink.blocks, tally, swarm)
            # Asked before the blocks are stored: afterwards nobody could tell how the dataset was met.
            networks = 0 if sink.start.size else await self._networks(goal, sink.tip)
            with span("commit"):
                head = await trio.to_thread.run_sync(self._commit, goal, sink, networks)
        tally.blocks = sink.size
        return StepsKept(head, objects)

    async def _networks(self, goal: Goal, tip: Tip) -> int:
        """Counts the networks that show the same chain; asks no peer that could not change the result."""
        enough = ENOUGH if self._first_contact.rung(goal.spec) == FIRST_SIGHT else 0
        return await self._holders.networks(goal.peers, goal.spec.id, tip, enough)

    async def _prove(self, peers: Sequence[PeerId], sink: VerifiedChain, signed: HeadStatement) -> None:
        """Has a peer prove that these blocks begin the signed chain. Raises Remote if none can."""
        here = TreeRoot(sink.size, sink.frontier.root)
        whole = TreeRoot(signed.size, signed.root_hash)
        if await self._replication.prove_prefix(peers, signed.dataset, here, whole):
            return
        giver = next(iter(sink.givers)) if len(sink.givers) == 1 else None
        # A peer with another history gave what it has, and lied to nobody
        # (test_who_held_another_history_is_asked_again_once_it_follows).
        if giver is not None and await self._replication.holds(giver, signed.dataset, sink.tip):
            self._replication.penalise(giver, "sent blocks other than the signed ones", BAD_BYTES)
        raise Remote(
            f"{plural(sink.size, 'block')} of {signed.dataset.short}: not the beginning of the signed chain",
            rule="trust.tree",
            hint="they are forgotten and asked for again",
        )

    def _check_promise(self, sink: VerifiedChain) -> None:
        """Raises Invalid if the first new block comes before a time to which its owner signed completeness."""
        dataset, upper = sink.dataset, self._chains.upper(sink.dataset)
        first = decode_block(sink.blocks[0].raw) if sink.blocks else None
        if first is not None and to_millis(first.system_time) < upper:
            raise Invalid(
                f"block #{first.sequence_number} of {dataset.short} is of {render(first.system_time)}, and a head said"
                f" that the times before {render(from_millis(upper))} are complete",
                rule="trust.upper",
                hint="its owner broke a promise, or its key was stolen: ask its owner; the data here stays as it is",
            )

    def _commit(self, goal: Goal, sink: VerifiedChain, networks: int) -> Head:
        spec = goal.spec
        dataset, state, terms = spec.id, sink.start, ChainTerms.of(sink.start)
        links = spec.brings_data and may_link(terms, sink.blocks)

        def together(connection: sqlite3.Connection) -> None:
            if goal.is_stored and mirror_specs.of(connection, dataset) is None:  # it was deleted while they came
                raise mirror_specs.not_mirrored(dataset)
            ledger = Ledger(connection)
            whole = ledger.chain(dataset).data
            if spec.brings_data and whole >= state.size and not links:
                whole = sink.size
            ledger.grow(dataset, sink.began, CheckedChain(sink.frontier, whole, sink.epoch), sink.groups)
            keep_references(connection, dataset, sink.blocks)
            Holdings(connection).more_blocks(dataset, len(sink.blocks), sink.bytes)
            if not state.size:
                self._first_contact.keep(connection, spec, networks)

        expected = Head(state.head, state.sequence_number) if state.head else None
        upper = None
        if sink.stated is not None:
            here = self._chains.upper(dataset)
            upper = UpperMove(here, max(here, sink.stated))
        names = [name for block in sink.blocks for name, _ in block.objects] if spec.brings_data else []
        append = Append(dataset=dataset, expected=expected, blocks=sink.blocks, objects=names, upper=upper)
        self._chains.commit([append], together)
        sink.let_go()
        if links:
            # An interruption before this leaves blocks whose data is not recorded: the next pass checks them again.
            self._note_whole(dataset, terms, sink.blocks)
        return Head(sink.blocks[-1].hash, sink.blocks[-1].sequence_number)

    def _note_whole(self, dataset: DatasetId, terms: ChainTerms, blocks: Sequence[SealedBlock]) -> None:
        """Records that the objects of these blocks, and those that their rows link to, are here and checked."""
        # On the disk before the row that says so: power may fail in between
        # (test_what_was_promised_is_there_whenever_the_power_fails).
        self._object_fetcher.objects.flush()
        note_links(self._database, self._object_fetcher.objects, dataset, terms, blocks)
        with self._database.write() as connection:
            ledger = Ledger(connection)
            checked = ledger.chain(dataset)
            if checked.data >= blocks[0].sequence_number:
                whole = max(checked.data, blocks[-1].sequence_number + 1)
                ledger.keep_chain(dataset, msgspec.structs.replace(checked, data=whole))
                if whole == checked.frontier.size:
                    Damage(connection).forget(dataset)

    async def _stands(self, goal: Goal, kept: Head) -> bool:
        """Whether statements that came meanwhile leave the goal and the stored blocks valid."""
        held = await trio.to_thread.run_sync(self._load_held, goal.spec)
        return held.head is not None and held.head.epoch == goal.signed.epoch and held.state.head == kept.hash

    async def _kept_data(self, spec: MirrorSpec, peers: Sequence[PeerId], tally: MirrorProgress) -> int:
        """Fetches data of the blocks whose data is to be kept; returns the number of objects."""
        await trio.to_thread.run_sync(self._keeping.plan, spec)
        held = await trio.to_thread.run_sync(self._load_held, spec)
        return await self._missing_data(spec, held, peers, tally)

    async def repair(self, dataset: DatasetId, names: Sequence[NamedObject], linked: Sequence[Multihash]) -> None:
        """Fetches damaged objects again, also those that rows link to.

        Raises NotFound before anything is removed if no peer serves the dataset, and Remote.
        """
        head = await trio.to_thread.run_sync(self._chains.chain(dataset).head)
        peers = await self._holders.of(dataset, head.size if head else 1)
        if not peers:
            raise NotFound(
                f"no connected peer serves {dataset.short}, so nothing was fetched, and nothing was removed",
                rule="repair",
                hint="try again when a peer that mirrors it is connected: odfctl peer list",
            )
        await self._object_fetcher.again(peers, names)
        for name in linked:
            await self._object_fetcher.linked(None, peers, name)

    def _load_held(self, spec: MirrorSpec) -> _Held:
        dataset = spec.id
        with self._database.read() as connection:
            ledger = Ledger(connection)
            newest, checked = ledger.newest_head(dataset), ledger.chain(dataset)
            walk, decided = Authorities(connection).walk(dataset), Resolutions(connection).of(dataset)
            parts_at = Proofs(connection).parts_at(dataset, checked.epoch)
        head = newest[0] if newest else None
        turned: CheckedChain | None = None
        if decided.abandoned is not None:
            turned = None
        elif head is not None and is_there(checked, head):
            turned = CheckedChain(checked.frontier, checked.data, head.epoch)
        elif head is not None:
            follow = self._following.follow() or decided.follows(head.epoch)
            turn = turn_of(checked, head, walk, follow=follow)
            if turn is not None:
                parts_at = parts_at if follow else None
                turned = go_back(
                    self._chains, dataset, checked, turn, head.epoch, parts_at, self._following.apart(checked.epoch)
                )
        if turned is not None:
            checked = turned
            with self._database.write() as connection:
                Ledger(connection).keep_chain(dataset, checked)
        state, lacks = load_state(self._chains.chain(dataset)), ""
        if head is not None and not state.size and self._first_contact.rung(spec) == WITNESSED:
            with self._database.read() as connection:
                found = self._first_contact.head(connection, dataset, head.epoch)
            head, lacks = (head, found) if isinstance(found, str) else (found, "")
        return _Held(state, checked, head, walk[-1], decided, lacks)

    async def _missing_data(self, spec: MirrorSpec, held: _Held, peers: Sequence[PeerId], tally: MirrorProgress) -> int:
        """Fetches missing objects of blocks that came earlier, so many blocks at a time;
        returns the number of objects."""
        fetched = 0
        assert held.head is not None
        goal = swarm_goal(held.head)
        pages = pages_of(self._chains.chain(spec.id), held.checked.data, held.state.size, PAGE)
        while page := await trio.to_thread.run_sync(next, pages, None):
            terms, blocks = page
            with self._object_fetcher.arriving.step(spec.id, goal.tip, blocks) as step:
                swarm = SwarmStep(goal, step)
                fetched += await self._object_fetcher.bring(spec, peers, terms, blocks, tally, swarm)
                await trio.to_thread.run_sync(self._note_whole, spec.id, terms, blocks)
        return fetched


def _alone(spec: MirrorSpec, connected: Sequence[PeerId]) -> str:
    """Returns why no peer announces it, if that is known here, as the end of a message."""
    if spec.peers and not set(spec.peers).intersection(connected):
        return ", and none of the peers that share it is connected: odfctl peer connect MULTIADDR"
    if spec.peers:
        return ": the peers named may not share it with this node"
    if not connected:
        return ", and no peer is connected: odfctl network list"
    return f", though {plural(len(connected), 'peer')} {agree(len(connected), 'is', 'are')} connected"


def _lacks_data(spec: MirrorSpec, held: _Held) -> bool:
    return spec.want == "data" and held.checked.data < held.state.size


def swarm_goal(signed: HeadStatement) -> SwarmGoal:
    """Returns the history that a head signs, with its publisher if the head names one.

    A head without a node's key was signed by that key itself, or away from any node.
    """
    publisher = None if signed.node is None else peer_of_did(signed.node)
    return SwarmGoal(signed.dataset, Tip(signed.size, signed.head.digest), publisher)


def _check_seed(sink: VerifiedChain, rights: Rights) -> None:
    """Raises Invalid if the chain is not the one that its authority names, even though one key signed both."""
    if not sink.start.size and rights.seed is not None and sink.blocks[0].hash != rights.seed:
        raise Invalid(
            f"the Seed of {rights.dataset.short} is not the one that its authority names",
            rule="graft",
            hint="the owner of its key signed two datasets under one id: ask its owner",
        )


def _check_expected(spec: MirrorSpec, sink: VerifiedChain) -> None:
    """Raises Invalid unless the chain contains the hash ``expect``, which a person learned elsewhere."""
    if spec.expect is None or sink.start.size:
        return
    expected = Multihash.parse(spec.expect)
    if all(block.hash != expected for block in sink.blocks):
        raise Invalid(
            f"the chain does not hold the block {expected.short} that you expect",
            rule="mirror-expect",
            hint="the peer serves another dataset, or the hash is of a later block",
        )


def _needs_whole(size: int, goal: Goal, rung: str) -> bool:
    """Whether a check needs all blocks up to the head before any is stored:
    the base of an epoch, or a first contact."""
    opened = goal.rights.opened(goal.signed.epoch)
    turns = opened is not None and opened.base.size > size
    looks_for = rung != FIRST_SIGHT and not size
    return turns or looks_for
