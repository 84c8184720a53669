"""Restarts lost signing journals, so that their keys may sign again without contradiction.

A key whose earlier statements are unknown signs nothing that could contradict them. Connected peers are asked for all
they know. Once enough validators or witnesses that the policy lists have answered, the journals are begun again with
the last known statement of each topic. Statements from strangers are used, but strangers do not count as answers. If no
listed one answers, a person decides (``alone``), once: from then on there is a journal. If signed blocks are missing
here, signing is still refused, because the journal then says more than the state (``trust.behind``).
Spec: docs/spec/trust.md#journals.

Collects from the ledger what this node's keys have signed, and decides when lost signing journals may begin again.
Peers are asked first, because a ledger from an old backup knows too little. Statements that strangers show count, since
a signature is valid whoever shows it. That strangers know of nothing more proves nothing, since keys are free: only
answers of validators and witnesses that the policy lists make a new journal acceptable. Reads all of the ledger, once.
Spec: docs/spec/trust.md#journals.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, Protocol, TypeAlias

import msgspec
import trio

from chain.errors import Fault, Refused, Remote
from chain.ids import DatasetId, KeyDid
from chain.statements import canonical, cosignature, envelope, statement
from chain.statements.proof import DOUBLE_COSIGN
from chain.statements.statement import AUTHORITY
from chain.wording import plural
from odfd.control import wire
from odfd.control.operations import NODE_PATH, Owner, operation
from odfd.policy.policy import Policy
from odfd.runtime.reconcile_loop import UNTIL_POKED, ReconcileLoop
from odfd.store.keys import journal_topics
from odfd.store.keys.journal import JournalEntry
from odfd.store.ledger import hash_links
from odfd.store.ledger.kinds import PROOF
from odfd.store.ledger.log import Ledger
from odfd.store.ledger.tables import COSIGNATURES
from odfd.trust.admission.statement_kinds import JOURNALLED, journal_entries
from odfd.trust.signing.signer_context import SignerContext
from p2p.identity import did_of_peer
from p2p.ports import PeerId, PeerView

ENOUGH: Final = 3
"""Listed groups that must have answered before a new journal is begun."""
PATIENCE: Final = 60.0
"""Seconds after which fewer groups are enough, as long as one of them is honest."""


class RecoveryGroups(msgspec.Struct, frozen=True):
    """The groups whose nodes sent everything they know of our keys."""

    validators: frozenset[str] = frozenset()
    witnesses: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self.validators | self.witnesses)


def told_by(policy: Policy, keys: Iterable[KeyDid], *me: KeyDid) -> RecoveryGroups:
    """Returns the listed groups that answered, except groups with a key of this node."""
    own = {group for key in me for group in (policy.group_of(key), policy.witnesses.groups.get(key))} - {None}
    validators = {policy.group_of(key) for key in keys}
    witnesses = {policy.witnesses.groups.get(key) for key in keys}
    return RecoveryGroups(
        *(frozenset(name for name in names if name and name not in own) for names in (validators, witnesses))
    )


def may_go_on(policy: Policy, groups: RecoveryGroups, waited: float) -> bool:
    """Whether these groups are enough ``waited`` seconds after the first was asked: more than may be faulty."""
    is_one_honest = len(groups.validators) > policy.tolerated or len(groups.witnesses) > policy.witnesses.faulty
    return is_one_honest and (len(groups) >= ENOUGH or waited >= PATIENCE)


_KINDS: Final = (*JOURNALLED, PROOF)


class _Pair(msgspec.Struct):
    """The two statements of a proof, which was verified when it came."""

    kind: str
    statements: tuple[msgspec.Raw, ...]


def recall(connection: sqlite3.Connection, keys: Collection[KeyDid]) -> dict[KeyDid, dict[str, JournalEntry]]:
    """Returns, by key, the last known signed statement of each topic. Raises Environment if the ledger is damaged."""
    last: dict[KeyDid, dict[str, JournalEntry]] = {key: {} for key in keys}
    for key, (topic, entry) in _known_entries(connection, keys):
        known = last.get(key)
        if known is not None and (topic not in known or entry.order > known[topic].order):
            known[topic] = entry
    return last


_KeyEntry: TypeAlias = tuple[KeyDid, tuple[str, JournalEntry]]


def _known_entries(connection: sqlite3.Connection, keys: Collection[KeyDid]) -> Iterator[_KeyEntry]:
    for key in keys:
        for row in COSIGNATURES.rows(connection, "witness = ?", (key,)):
            yield key, journal_topics.cosigned(cosignature.decode(row[6]))
    kinds = ",".join("?" * len(_KINDS))
    for entry in hash_links.whole(hash_links.entries(connection, f"type IN ({kinds})", _KINDS)):
        if entry.type == PROOF:
            yield from _read_proof(entry.body)
        elif entry.type == AUTHORITY or entry.signer in keys:
            yield from _entries_of(entry.body)


def _entries_of(sealed: bytes) -> Iterator[_KeyEntry]:
    signed = envelope.unseal(sealed, statement.MAX_ANY)
    predicate = statement.decode_any(signed.payload)
    for key in signed.signers:
        for entry in journal_entries(key, predicate, signed.sid):
            yield key, entry


def _read_proof(proof: bytes) -> Iterator[_KeyEntry]:
    """Yields the statements that a proof shows to be signed, which may never have come by themselves."""
    pair = msgspec.json.decode(proof, type=_Pair)
    for raw in pair.statements:
        whole = canonical.encode(msgspec.json.decode(raw))
        if pair.kind == DOUBLE_COSIGN:
            made = cosignature.decode(whole)
            yield made.witness, journal_topics.cosigned(made)
        else:
            yield from _entries_of(whole)


ASK_SECONDS: Final = 60.0
"""Seconds for one peer to send all it knows."""
RETRY_SECONDS: Final = 30.0
"""Seconds until the next try while too few have answered."""
SOUGHT: Final = 16
"""Datasets of this node whose holders are searched."""
STRANGERS: Final = 3
"""Unlisted peers that are asked besides the listed ones, as they may hold signatures of ours."""
PEERS: Final = "peers"
ALONE: Final = "alone"
"""The source of recovered entries, as written in journals, if a person decided; else the listed groups."""


class RecoveryPeers(Protocol):
    """The operations of the replication layer that recovery uses."""

    def peers(self) -> Sequence[PeerView]: ...

    async def pull_statements(self, peer: PeerId, datasets: Sequence[DatasetId] | None = None) -> int:
        """Fetches a peer's statements on these datasets; returns their number. Raises Remote."""

    async def seek(self, dataset: DatasetId) -> int: ...


class JournalRecovery:
    """Recovers lost journals. ``loop`` is poked when a peer connects;
    ``resumed`` is called when keys may sign again."""

    def __init__(
        self, signer: SignerContext, peers: RecoveryPeers, policy: Callable[[], Policy], resumed: Callable[[], None]
    ) -> None:
        self._signer = signer
        self._peers = peers
        self._policy = policy
        self._resumed = resumed
        self.loop = ReconcileLoop(self._round)
        self.lost: tuple[KeyDid, ...] = ()
        """Keys that may not sign, as of the last check."""
        self._told: set[PeerId] = set()
        """Peers that have answered, listed or not."""
        self._since = math.inf
        """When the first listed peer was asked (trio's clock)."""
        self._alone = trio.Lock()

    @operation("POST", NODE_PATH + "/signers", needs=Owner.KEYS)
    async def sign_again(self, request: wire.SignRequest) -> wire.SigningView:
        """Confirms recovery by a user now: one listed group suffices, and with ``alone`` none. Raises Refused."""
        async with self._alone:
            if not await self._check():
                return wire.SigningView()
            await self._ask()
            # What strangers say proves what was signed, never that nothing else was: any peer can leave statements out.
            if not len(self._list_groups()) and not request.alone:
                strangers = f"; {plural(len(self._told), 'peer')} that you did not list may say anything"
                raise Refused(
                    f"no listed validator or witness could be asked what {_count(self.lost)} of this node has signed"
                    f" before{strangers if self._told else ''}",
                    rule="trust.journal",
                    hint="odfctl peer list, odfctl trust validator list; when none that you list can have heard of it,"
                    " or they are gone for good: odfctl trust sign --alone",
                )
            return await self._start_new_journals()

    async def _round(self) -> float:
        async with self._alone:
            before = self.lost
            if not await self._check():
                return UNTIL_POKED
            if not before:
                self._log_lost()
            await self._ask()
            if not may_go_on(self._policy(), self._list_groups(), trio.current_time() - self._since):
                return RETRY_SECONDS
            try:
                await self._start_new_journals()
            except Fault as fault:
                self._signer.logger.error("signing journals not begun", fault=str(fault), rule=fault.rule)
                return RETRY_SECONDS
            return UNTIL_POKED

    async def _check(self) -> bool:
        self.lost = tuple(await trio.to_thread.run_sync(self._signer.keys.list_lost))
        return bool(self.lost)

    def _log_lost(self) -> None:
        text = f"{_count(self.lost)} lost what it has signed, and signs nothing"
        hint = "listed validators and witnesses are asked for it; with none to ask: odfctl trust sign --alone"
        self._signer.logger.error("signing journals are gone", keys=[str(key) for key in self.lost], hint=hint)
        self._signer.events.emit("journal.lost", "", text)

    async def _ask(self) -> None:
        """Asks all connected listed peers, and some others."""
        ours = [
            DatasetId.from_public_key(key.public_key) for key in self.lost if key != self._signer.keys.node_key().did
        ]
        public = await trio.to_thread.run_sync(self._signer.public_of, ours)
        for dataset in [each for each in ours if each in public][:SOUGHT]:
            await self._peers.seek(dataset)
        asked = set(self._told)
        while chosen := self._next(asked):
            asked.update(chosen)
            if self._is_listed(chosen[0]):
                self._since = min(self._since, trio.current_time())
            async with trio.open_nursery() as nursery:
                for peer in chosen:
                    nursery.start_soon(self._ask_one, peer)

    def _next(self, asked: set[PeerId]) -> list[PeerId]:
        """Returns the next peers: listed ones first, which wait for no other."""
        views = self._peers.peers()
        listed = {view.peer for view in views if self._is_listed(view.peer)}
        if found := choose((view for view in views if view.peer in listed), asked, ENOUGH):
            return found
        return choose((view for view in views if view.peer not in listed), asked, STRANGERS - len(asked - listed))

    def _is_listed(self, peer: PeerId) -> bool:
        return len(self._groups_of([peer])) > 0

    def _list_groups(self) -> RecoveryGroups:
        return self._groups_of(self._told)

    def _groups_of(self, peers: Iterable[PeerId]) -> RecoveryGroups:
        own = (self._signer.keys.node_key().did, self._signer.verdict_key.did)
        return told_by(self._policy(), [did_of_peer(peer) for peer in peers], *own)

    async def _ask_one(self, peer: PeerId) -> None:
        # A peer that sends slowly for ever would keep this node from signing.
        with trio.move_on_after(ASK_SECONDS):
            try:
                while await self._peers.pull_statements(peer):
                    """A round that brings something may end before it brought all."""
            except Remote as fault:
                self._signer.logger.info("a peer does not send what we signed", peer=peer, fault=str(fault))
                return
            self._told.add(peer)

    async def _start_new_journals(self) -> wire.SigningView:
        peers = len(self._list_groups())
        how = PEERS if peers else ALONE
        signers = await trio.to_thread.run_sync(self._begin, how)
        self._told.clear()
        self._since = math.inf
        self.lost = ()
        self._signer.logger.info("signing journals begun again", keys=[signer.key for signer in signers], peers=peers)
        heard = _source_text(peers)
        self._signer.events.emit("journal.begun", "", f"{_count(signers)} signs again, {heard}", peers=peers)
        self._resumed()
        return wire.SigningView(begun=signers, peers=peers)

    def _begin(self, how: str) -> tuple[wire.SignerView, ...]:
        """Begins the journals again. Each is written before the ledger's entry:
        only the journal prevents contradictions."""
        signer, begun = self._signer, []
        with signer.database.read() as connection:
            known = recall(connection, self.lost)
        for key, entries in known.items():
            if signer.keys.renew(key, entries, how, signer.clock.now()):
                begun.append(self._view(key, len(entries)))
                decision: dict[str, canonical.Json] = {"decision": "journal", "key": str(key), "how": how}
                with signer.database.write() as connection:
                    Ledger(connection).decide_on(canonical.encode(decision), signer.clock.now())
        return tuple(begun)

    def _view(self, key: KeyDid, said: int) -> wire.SignerView:
        dataset = DatasetId.from_public_key(key.public_key)
        ours = self._signer.keys.has_dataset_key(dataset)
        return wire.SignerView(key=str(key), dataset=self._signer.name_of(dataset) if ours else None, said=said)


def choose(views: Iterable[PeerView], asked: set[PeerId], count: int) -> list[PeerId]:
    """Chooses connected peers that were not asked yet, from different networks if possible."""
    free = [view for view in views if view.connected and not view.blocked and view.peer not in asked]
    first = {view.network or view.peer: view.peer for view in reversed(free)}
    ranked = dict.fromkeys([*reversed(first.values()), *(view.peer for view in free)])
    return list(ranked)[:count]


def _count(keys: Sequence[object]) -> str:
    return "a key" if len(keys) == 1 else f"each of {len(keys)} keys"


def _source_text(count: int) -> str:
    return f"as {count} listed groups knew what it had said" if count > 1 else "as one listed group or this node knew"
