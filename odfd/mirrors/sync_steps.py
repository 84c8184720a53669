"""Brings a mirror from its last block to a signed head in steps: each is fetched, proven, and stored with its objects.

A step waits in memory until it is proven. It ends at the signed head or, if that is far, after some thousand blocks
that a peer proves to be the beginning of the signed tree. While a step is proven and stored the next one is fetched
(``prefetch``); if a step turns out wrong, the one fetched after it is discarded too.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec
import trio

from chain.codec.blocks import decode_block
from chain.errors import Invalid, Remote
from chain.ids import DatasetId
from chain.instant import from_millis, render, to_millis
from chain.model.block import SealedBlock
from chain.multihash import Multihash
from chain.statements.authority import Rights
from chain.statements.statement import HeadStatement
from chain.store.base import Append, Head, UpperMove
from chain.store.database import Database
from chain.store.sqlite import SqliteChains
from chain.wording import plural
from odfd.errors import sole_faults
from odfd.mirrors.epoch_switch import check_base
from odfd.mirrors.first_contact import ENOUGH, FIRST_SIGHT, FirstContact
from odfd.mirrors.holders import Holders
from odfd.mirrors.object_fetcher import ObjectFetcher
from odfd.mirrors.prefetch import Prefetch, Start
from odfd.mirrors.progress import MirrorProgress
from odfd.mirrors.quota import BlockQuota
from odfd.mirrors.sinks import SignedFault, SinkFull, VerifiedChain
from odfd.mirrors.swarm_fetcher import SwarmGoal, SwarmStep
from odfd.published.replication import Replication
from odfd.runtime.spans import span
from odfd.store import mirror_specs
from odfd.store.damage import Damage
from odfd.store.holdings import Holdings
from odfd.store.ledger.log import CheckedChain, Ledger
from odfd.store.mirror_specs import MirrorSpec
from odfd.store.references import keep_references
from odfd.transfer.object_list import may_link, note_links
from odfd.verify.terms import ChainTerms
from p2p.identity import peer_of_did
from p2p.peers.book import BAD_BYTES
from p2p.ports import PeerId, Tip, TreeRoot

STEP: Final = 50_000
"""Blocks that are committed together if the signed head is farther, some 40 MB in memory; fewer if they are large.

Each commit touches most pages of the indexes by hash, so larger commits touch fewer pages per block.
"""


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


class SyncSteps:
    """Brings a mirror to a signed head."""

    def __init__(
        self,
        database: Database,
        chains: SqliteChains,
        object_fetcher: ObjectFetcher,
        replication: Replication,
        holders: Holders,
        first_contact: FirstContact,
    ) -> None:
        self._database = database
        self._chains = chains
        self._object_fetcher = object_fetcher
        self._replication = replication
        self._holders = holders
        self._first_contact = first_contact

    async def climb(
        self, goal: Goal, start: Start, tally: MirrorProgress, stands: Callable[[Head], Awaitable[bool]]
    ) -> StepsKept:
        """Fetches and stores all steps. ``stands``: called after each step but the last,
        whether the goal is still valid.

        Raises Remote (peers), Invalid or Refused (the chain breaks a rule or a limit), Environment (our disk).
        """
        kept = StepsKept()
        room = BlockQuota(self._object_fetcher.room, goal.spec)
        ahead = Prefetch(partial(self._fetch, goal, room), start, goal.signed.size)
        try:
            with sole_faults():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(ahead.run)
                    while True:
                        fetched = await ahead.next()
                        kept = await self._keep(goal, fetched, kept.objects, tally)
                        assert kept.head is not None
                        if fetched.until >= goal.signed.size or not await stands(kept.head):
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

    async def _keep(self, goal: Goal, sink: VerifiedChain, objects: int, tally: MirrorProgress) -> StepsKept:
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
            self._replication.penalise(giver, "gave blocks that are not those that were signed", BAD_BYTES)
        raise Remote(
            f"{plural(sink.size, 'block')} of {signed.dataset.short}: not the beginning of what was signed",
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
                hint="its owner broke a promise, or its key was stolen: ask its owner; what is here stays as it is",
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
            self.note_whole(dataset, terms, sink.blocks)
        return Head(sink.blocks[-1].hash, sink.blocks[-1].sequence_number)

    def note_whole(self, dataset: DatasetId, terms: ChainTerms, blocks: Sequence[SealedBlock]) -> None:
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
            hint="somebody shows you another dataset, or the hash is of a later block",
        )


def _needs_whole(size: int, goal: Goal, rung: str) -> bool:
    """Whether a check needs all blocks up to the head before any is stored:
    the base of an epoch, or a first contact."""
    opened = goal.rights.opened(goal.signed.epoch)
    turns = opened is not None and opened.base.size > size
    looks_for = rung != FIRST_SIGHT and not size
    return turns or looks_for
