"""Runs one pass over one mirror: brings it to the newest signed head, and verifies everything before the head moves.

Blocks are judged as they arrive and proven by the signed tree. Objects are fetched several at a time, hashed on arrival
and checked against their blocks. Then blocks, references and the chain's tree are stored in one transaction. An
interrupted pass leaves the old head, and keeps the received parts of objects for the next pass.

A signed head that breaks a rule is not checked again before another one is signed, and then after growing pauses
(``DeclinedHeads``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeAlias

import msgspec
import trio

from chain.errors import Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.model.block import NamedObject
from chain.multihash import Multihash
from chain.state import ChainState, load_state
from chain.statements.authority import Rights
from chain.statements.statement import HeadStatement
from chain.store.base import Append, Head, UpperMove
from chain.wording import agree, plural
from odfd.mirrors.epoch_switch import Following, go_back, is_there, turn_of
from odfd.mirrors.first_contact import WITNESSED, DeclinedHeads, FirstContact
from odfd.mirrors.holders import Holders
from odfd.mirrors.object_fetcher import ObjectFetcher
from odfd.mirrors.prefetch import Start
from odfd.mirrors.progress import MirrorProgress
from odfd.mirrors.swarm_fetcher import SwarmStep
from odfd.mirrors.sync_steps import Goal, StepsKept, SyncSteps, swarm_goal
from odfd.published.replication import Replication
from odfd.runtime.spans import span
from odfd.store import visibility
from odfd.store.directory import StateDirectory
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.log import CheckedChain, Ledger
from odfd.store.ledger.proofs import Proofs
from odfd.store.ledger.resolutions import Decided, Resolutions
from odfd.store.mirror_specs import MirrorSpec
from odfd.verify.terms import pages_of
from p2p.ports import PeerId

PAGE: Final = 20_000
"""Blocks whose missing objects are searched at once."""
UNSHARED: Final = "its owner shares it with this node no more, or has it no more; what is here stays, and may be old"
"""Reason for a peer that answers as if this node were unknown to it."""


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
        self._steps = SyncSteps(home.database, home.chains, object_fetcher, replication, holders, first_contact)
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
        sharing = await self._holders.are_sharing(spec.id, [PeerId(each) for each in spec.peers])
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
            kept = await self._steps.climb(goal, start, tally, partial(self._stands, goal))
            objects += kept.objects
        if spec.keep is not None:
            objects += await self._kept_data(spec, peers, tally)
        if kept.head is None:
            return Current(len(peers), len(self._holders.connected()), objects)
        return Synced(kept.head, kept.head.size - held.state.size, objects, len(peers))

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
                f"no connected peer serves {dataset.short}, so nothing of it was fetched, and nothing was removed",
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
                await trio.to_thread.run_sync(self._steps.note_whole, spec.id, terms, blocks)
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
