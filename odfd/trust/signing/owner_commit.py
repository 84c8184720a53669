"""Commits blocks to this node's own datasets: applies the rules for authors, and signs the new head.

Blocks, objects and the chain's tree are one transaction; right after it the head is journalled, signed, and then
announced. A crash in between leaves a chain whose last blocks are unsigned, which nobody else can see;
``sign_unsigned`` mends that. Blocks that could not be signed are not committed either: a state that is older than the
key's journal takes no new blocks. A rewrite works the same way, with the version of the authority that opens its epoch
in the transaction (``odfd.store.ledger.history_rewrite``). Spec: docs/spec/trust.md#heads, #epochs; ADR 3.

Decides which frontier a head signs, and keeps this node from contradicting one that it signed. A head states the
frontier (upper) of its chain if that was promised and is later than the last block. The frontier is journalled before
the signature leaves, under a topic of its own: it never gets smaller for a key, and no block of an earlier time is
signed, even by a state from an old backup. Spec: docs/spec/trust.md#uppers; ADR 68.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, Protocol

import msgspec
import trio

from chain import instant
from chain.codec.blocks import encode_block
from chain.errors import Conflict, Fault, Invalid, Refused
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant, from_millis, render, to_millis
from chain.model.block import Block, MetadataBlock, objects_of
from chain.model.events import MetadataEvent
from chain.multihash import Multihash
from chain.rules import check_block
from chain.state import ChainState, load_state
from chain.statements import envelope, statement
from chain.statements.authority import Rights
from chain.statements.envelope import Signed
from chain.statements.keys import SigningKey
from chain.statements.statement import Authority, HeadStatement
from chain.statements.tree import Frontier, Tree
from chain.store import uppers
from chain.store.base import Append, ChainStore, Head, Rewrite, leaves_of
from chain.store.database import Database
from chain.store.rewriting import RewritePlan
from chain.wording import agree, plural
from engines.contract import RowCounts
from odfd.datasets.commit import Commit, CommitPart, check_clock, check_head, check_jump, check_upper
from odfd.store import captures, collections, pushes, row_counts
from odfd.store.captures import Capture, CapturedPart
from odfd.store.keys import journal_topics
from odfd.store.keys.keystore import KeyStore
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.history_rewrite import RewrittenHistory, check_opening
from odfd.store.ledger.log import CheckedChain, Ledger
from odfd.store.pushes import Push
from odfd.store.references import keep_links, keep_references
from odfd.trust.admission.rules import EARLY_LIMIT
from odfd.trust.signing import authority_versions
from odfd.trust.signing.authority_versions import keep_version, note_newest, note_version, sign_version


class SignedUppers:
    """The frontiers that the heads of this node's datasets state. Called from worker threads."""

    def __init__(self, database: Database, keys: KeyStore) -> None:
        self._database = database
        self._keys = keys

    def read_upper(self, dataset: DatasetId) -> int | None:
        """Returns the frontier that a head of the chain states now; ``None`` for the time of the last block."""
        with self._database.read() as connection:
            return uppers.beyond_last(connection, dataset)

    def collection(self, dataset: DatasetId) -> DatasetId | None:
        """Returns the first shard, if a chain is one of several shards of a rendition."""
        with self._database.read() as connection:
            member = collections.member_of(connection, dataset)
        return None if member is None else member.dataset

    def is_stated(self, dataset: DatasetId, signed: HeadStatement) -> bool:
        """Whether a head states what one that is signed now would state beside the tree."""
        is_late = (self.read_upper(dataset) or 0) > (signed.upper or 0)
        return not is_late and signed.collection == self.collection(dataset)

    def check(self, dataset: DatasetId, time: int) -> None:
        """Checks that no frontier later than ``time`` was signed. Raises Refused (``trust.behind``)."""
        if self._keys.is_new(dataset):
            return
        keys = (KeyDid.from_public_key(dataset.public_key), self._keys.node_key().did)
        found = [self._keys.last_signed(key, journal_topics.upper(key, dataset)) for key in keys]
        last = max((each.order[0] for each in found if each is not None), default=time)
        if last > time:
            raise Refused(
                f"this node has signed that the times of {dataset.short} before {render(from_millis(last))} are"
                f" complete, and the state here says {render(from_millis(time))}",
                rule="trust.behind",
                hint="the state here is older than the signing journal: odfctl advance REF moves it past that",
            )

    def promise(self, key: SigningKey, dataset: DatasetId) -> int | None:
        """Journals the frontier that ``key`` is about to sign, and returns it. Raises Refused (``trust.behind``)."""
        with self._database.read() as connection:
            stated, reached = uppers.beyond_last(connection, dataset), uppers.upper_of(connection, dataset)
        self.check(dataset, reached)
        if stated is not None:
            self._keys.note(key.did, journal_topics.upper(key.did, dataset), (stated,), journal_topics.PROMISED)
        return stated


class TreeGrowth(NamedTuple):
    """How the tree of a chain grows by its new blocks."""

    before: Frontier
    after: Frontier
    groups: list[bytes]
    epoch: int
    rights: Rights
    linked: list[Multihash]
    """Objects that rows of the blocks link to."""


class ChainDraft(NamedTuple):
    """One chain's part of a transaction; without growth, its frontier (upper) moves alone."""

    append: Append
    growth: TreeGrowth | None

    @property
    def head(self) -> Head:
        if not self.append.blocks:
            assert self.append.expected is not None
            return self.append.expected
        last = self.append.blocks[-1]
        return Head(last.hash, last.sequence_number)


def keep_growth(connection: sqlite3.Connection, draft: ChainDraft) -> None:
    """Stores the tree of a chain with its new blocks, and what they name."""
    dataset, blocks, growth = draft.append.dataset, draft.append.blocks, draft.growth
    if growth is None:
        return
    # If objects were found damaged before, the objects of new blocks do not change how far data is verified.
    data = Ledger(connection).chain(dataset).data
    whole = growth.after.size if data >= growth.before.size else data
    checked = CheckedChain(growth.after, data=whole, epoch=growth.epoch)
    Ledger(connection).grow(dataset, growth.before, checked, growth.groups)
    keep_references(connection, dataset, blocks)
    keep_links(connection, dataset, blocks[-1].sequence_number, growth.linked)


def keep_records(connection: sqlite3.Connection, part: CommitPart, drafts: Sequence[ChainDraft]) -> None:
    """Stores the records of a part, whose blocks may be in several shards."""
    head = drafts[0].head if drafts else part.expected
    for record in part.records:
        assert head is not None
        match record:
            case RowCounts():
                row_counts.keep(connection, part.dataset, head.sequence_number, record, idle=not drafts)
            case Push():
                if drafts:
                    answer = msgspec.structs.replace(record.answer, block=str(end_of(part, drafts).hash))
                    record = msgspec.structs.replace(record, answer=answer)
                pushes.keep(connection, part.dataset, record, head.sequence_number)
            case Capture():
                _keep_capture(connection, part.dataset, record, [draft.append for draft in drafts if draft.growth])


def _keep_capture(
    connection: sqlite3.Connection, dataset: DatasetId, capture: Capture, written: Sequence[Append]
) -> None:
    parts = []
    for append in written:
        first, last = append.blocks[0], append.blocks[-1]
        assert isinstance(first, Block)
        parts.append(CapturedPart(append.dataset, last.hash, first.sequence_number, last.sequence_number))
        time = to_millis(first.system_time)
    if parts:
        captures.keep(connection, dataset, capture, parts, time)


def end_of(part: CommitPart, drafts: Sequence[ChainDraft]) -> Head:
    """Returns the last block of a part, in the first of its shards that got one."""
    if not drafts:
        assert part.expected is not None, "there is a chain, or it begins"
        return part.expected
    return next((draft for draft in drafts if draft.growth), drafts[0]).head


def epoch_of(dataset: DatasetId, checked: CheckedChain, rights: Rights) -> int:
    """Returns the epoch to write in. Raises Refused if a later epoch gave up blocks that are here."""
    opened = rights.opened(checked.epoch + 1)
    while opened is not None:
        tree = checked.frontier
        if (opened.base.size, opened.base.root_hash) != (tree.size, tree.root):
            kept = plural(opened.base.size, "block")
            raise Refused(
                f"epoch {opened.number} of {dataset.short} keeps {kept}, and here are {tree.size}",
                rule="trust.epoch",
                hint="bring the chain to where the epoch begins before writing in it",
            )
        checked = CheckedChain(tree, checked.data, opened.number)
        opened = rights.opened(checked.epoch + 1)
    return checked.epoch


def check_newest(newest: HeadStatement | None, epoch: int, size: int) -> None:
    """Raises Refused if a writer of this dataset signed a later head: adding to older blocks would make a fork."""
    if newest is not None and newest.epoch == epoch and newest.size > size:
        raise Refused(
            f"a head of {plural(newest.size, 'block')} is signed already, and only {size} are here",
            rule="trust.behind",
            hint="odfctl pull REF --repair fetches them; if a key was stolen: odfctl trust authority rotate REF",
        )


LIFETIME: Final = 7 * 86400 * instant.SECOND
"""Time for which a head counts as fresh; it is signed again after a third of this."""

Announce = Callable[[DatasetId, Signed], None]


class ShardSplit(Protocol):
    """Divides the transactions of datasets of several shards."""

    def __call__(self, part: CommitPart, /) -> Sequence[CommitPart] | None:
        """Divides a part among the shards that are written together; ``None``: it is of one chain."""
        ...

    def check_single(self, dataset: DatasetId, /) -> None:
        """Raises Refused if a dataset is one of several shards."""
        ...


class OwnerCommitter:
    """Appends to chains whose key this node holds. Safe to use from any task and thread; one commit at a time."""

    def __init__(
        self,
        database: Database,
        chains: ChainStore,
        keys: KeyStore,
        clock: Callable[[], Instant],
        announce: Announce,
        shards: ShardSplit,
        is_told: Callable[[DatasetId], bool],
        clock_ahead: Callable[[Instant | None], int],
    ) -> None:
        """``clock_ahead``: how far the clock was set ahead, from ``JumpWatch``.

        ``is_told``: whether others may know of a dataset, so that a frontier that moved alone is signed.
        """
        self._database = database
        self._chains = chains
        self._keys = keys
        self._clock = clock
        self._clock_ahead = clock_ahead
        self._announce = announce
        self._shards, self._is_told = shards, is_told
        self._uppers = SignedUppers(database, keys)
        self._turn = trio.Lock()
        """Makes tasks wait here, so that they do not each occupy a worker thread."""
        self._writing = threading.Lock()
        """Held from reading the head to its signature, so that heads are signed in the order of the chain."""

    async def commit(self, commit: Commit) -> Sequence[Head]:
        """Commits from a task; see ``Committer``. Raises Conflict, Invalid (a rule), NotFound (no key), Refused."""
        async with self._turn:
            return await trio.to_thread.run_sync(self.commit_now, commit)

    def commit_now(self, commit: Commit) -> Sequence[Head]:
        """Commits all parts or none from a worker thread, then signs each. Returns the last block of each part."""
        with self._writing:
            drafts = [self._draft(part) for part in commit.parts]

            def store(connection: sqlite3.Connection) -> None:
                for part, own in zip(commit.parts, drafts, strict=True):
                    for draft in own:
                        keep_growth(connection, draft)
                    keep_records(connection, part, own)
                commit.also(connection)

            written = [each for own in drafts for each in own]
            if written:
                self._chains.commit([each.append for each in written], store)
            else:
                with self._database.write() as connection:
                    store(connection)
            for each in written:
                self._sign_draft(each)
        return [end_of(part, own) for part, own in zip(commit.parts, drafts, strict=True)]

    def faults_of(self, commit: Commit) -> dict[DatasetId, Fault]:
        """Returns what keeps each part from being committed, but for heads that moved. From a worker thread."""
        found: dict[DatasetId, Fault] = {}
        for part in commit.parts:
            try:
                with self._writing, suppress(Conflict):
                    self._draft(part)
            except Fault as fault:
                found[part.dataset] = fault
        return found

    def _draft(self, part: CommitPart) -> list[ChainDraft]:
        """Drafts the parts of all shards that are written together; for a chain that is no shard, its one part."""
        if not part.events:
            return []
        return [self._draft_chain(shard) for shard in self._shards(part) or (part,)]

    def _draft_chain(self, part: CommitPart) -> ChainDraft:
        """Drafts blocks that may be appended and signed. Raises as ``commit``."""
        dataset = part.dataset
        if not part.events:
            return ChainDraft(Append(dataset=dataset, expected=part.expected, blocks=(), upper=part.upper), None)
        if not self._keys.has_dataset_key(dataset):
            self._keys.dataset_key(dataset)
        state = load_state(self._chains.chain(dataset))
        check_head(dataset, part.expected, state.head, state.sequence_number)
        now = self._clock()
        check_clock(state, now)
        check_upper(self._chains.upper(dataset), now)
        check_jump(self._clock_ahead(state.system_time), now)
        blocks = author_blocks(state, part.events, max(part.time, state.system_time or part.time))
        with self._database.read() as connection:
            ledger = Ledger(connection)
            checked, newest = ledger.chain(dataset), ledger.newest_head(dataset)
            rights = Authorities(connection).rights(dataset)
        groups: list[bytes] = []
        frontier = checked.frontier.extend((block.hash.digest for block in blocks), groups)
        epoch = epoch_of(dataset, checked, rights)
        check_newest(newest[0] if newest else None, epoch, state.size)
        self._check_behind(dataset, epoch, checked.frontier)
        self._uppers.check(dataset, to_millis(blocks[0].system_time))
        self._may_sign(self._writer(dataset, rights), dataset, epoch, frontier)
        named = {name for block in blocks for name, _ in objects_of(block)}
        linked = [name for name in part.objects if name not in named]
        append = Append(dataset=dataset, expected=part.expected, blocks=blocks, objects=part.objects, upper=part.upper)
        return ChainDraft(append, TreeGrowth(checked.frontier, frontier, groups, epoch, rights, linked))

    def _sign_draft(self, draft: ChainDraft) -> None:
        dataset, growth = draft.append.dataset, draft.growth
        if growth is None:
            self._sign_upper(dataset)
        else:
            self._sign(dataset, draft.head.hash, growth.after, growth.epoch, growth.rights)

    def rewrite_now(self, plan: RewritePlan, rewrite: Rewrite, authority: Authority, signed: Signed) -> Head:
        """Replaces a chain's history by that of ``plan``, in the epoch that ``authority`` opens, and signs its head.

        Called from a worker thread. Raises Conflict if the epoch was drafted for another chain, Invalid (a rule),
        Refused.
        """
        self._shards.check_single(plan.dataset)
        with self._writing:
            return self._rewrite(plan, rewrite, authority, signed)

    def _rewrite(self, plan: RewritePlan, rewrite: Rewrite, authority: Authority, signed: Signed) -> Head:
        dataset = plan.dataset
        with self._database.read() as connection:
            ledger = Ledger(connection)
            checked, newest = ledger.chain(dataset), ledger.newest_head(dataset)
            rights = Authorities(connection).rights(dataset)
        if checked.frontier.size != plan.last.size:
            raise Conflict(f"the head of {dataset.short} moved", rule="head-moved", hint="repeat the command")
        check_newest(newest[0] if newest else None, epoch_of(dataset, checked, rights), plan.last.size)
        # A state from an old backup must not declare an end of the chain that is not its end.
        self._check_behind(dataset, checked.epoch, checked.frontier)
        self._may_sign(self._keys.node_key(), dataset, checked.epoch, checked.frontier)
        history = RewrittenHistory(self._chains.chain(dataset), plan)
        check_opening(authority.epochs[-1] if authority.epochs else None, history.kept, checked.frontier)
        after: list[Rights] = []

        def together(connection: sqlite3.Connection) -> None:
            rights = keep_version(connection, self._keys, authority, signed, self._clock())
            sound = Ledger(connection).chain(dataset).data
            data = history.tree.size if sound >= checked.frontier.size else min(sound, plan.base.size)
            self._may_sign(self._writer(dataset, rights), dataset, rights.epoch, history.tree)
            history.settle(connection, CheckedChain(history.tree, data, rights.epoch))
            after.append(rights)

        watched = msgspec.structs.replace(rewrite, blocks=history.watch(rewrite.blocks))
        head = self._chains.rewrite(watched, together)
        note_version(self._keys, authority, signed)
        self._announce(dataset, signed)
        self._sign(dataset, head.hash, history.tree, after[0].epoch, after[0])
        return head

    def check_behind(self, dataset: DatasetId) -> None:
        """Checks that everything that this node signed is here.
        Raises Refused (``trust.behind``, ``trust.journal``)."""
        with self._writing, self._database.read() as connection:
            checked = Ledger(connection).chain(dataset)
        self._check_behind(dataset, checked.epoch, checked.frontier)

    def sign_unsigned(self, dataset: DatasetId) -> bool:
        """Signs the present head, if no live statement covers it or the last one is ageing; returns whether it did.

        Raises Refused (``trust.behind``) if this key has signed more than is here.
        """
        with self._writing:
            return self._sign_unsigned(dataset)

    def sign_upper(self, dataset: DatasetId) -> None:
        """Signs the present head again if its frontier moved and others may know of the dataset. Raises Refused."""
        with self._writing:
            self._sign_upper(dataset)

    def _sign_upper(self, dataset: DatasetId) -> None:
        if self._is_told(dataset):
            self._sign_unsigned(dataset)

    def _sign_unsigned(self, dataset: DatasetId) -> bool:
        head = self._chains.chain(dataset).head()
        if head is None or not self._keys.has_dataset_key(dataset):
            return False
        with self._database.read() as connection:
            ledger = Ledger(connection)
            newest, checked = ledger.newest_head(dataset), ledger.chain(dataset)
            rights = Authorities(connection).rights(dataset)
            note_newest(connection, self._keys, dataset)
        rights = self._renew(rights)
        epoch = epoch_of(dataset, checked, rights)
        self._check_behind(dataset, epoch, checked.frontier)
        signed = newest[0] if newest is not None and newest[0].epoch == epoch else None
        if (
            signed is not None
            and signed.size >= head.size
            and signed.issued - EARLY_LIMIT <= self._clock() < signed.issued + LIFETIME // 3
            and (self._uppers.is_stated(dataset, signed) or not self._is_told(dataset))
        ):
            return False
        if epoch != checked.epoch:
            with self._database.write() as connection:
                Ledger(connection).keep_chain(dataset, CheckedChain(checked.frontier, checked.data, epoch))
        self._sign(dataset, head.hash, checked.frontier, epoch, rights)
        return True

    def _renew(self, rights: Rights) -> Rights:
        """Extends our own right to write by a year when it nears its end, if enough of the roots' keys are here too."""
        keys = [key.did for key in self._keys.keys_for(rights.dataset)]
        now = self._clock()
        if (
            not authority_versions.is_short(rights, keys, now)
            or len(rights.roots.intersection(keys)) < rights.threshold
        ):
            return rights
        renewed = authority_versions.renew(rights, keys, self._chains.chain(rights.dataset).block_at(0).hash, now)
        signed = sign_version(self._database, self._keys, renewed, statement.encode(renewed), [])
        with self._database.write() as connection:
            rights = keep_version(connection, self._keys, renewed, signed, now)
        note_version(self._keys, renewed, signed)
        self._announce(rights.dataset, signed)
        return rights

    def _writer(self, dataset: DatasetId, rights: Rights) -> SigningKey:
        """Returns the key of ours that may write. Raises Refused."""
        for key in self._keys.keys_for(dataset):
            if rights.may_write(key.did, self._clock()):
                return key
        raise Refused(
            f"no key on this node may write {dataset.short} under version {rights.version} of its authority",
            rule="trust.writer",
            hint="odfctl trust authority show REF names who may; odfctl trust authority add-writer REF KEY adds one",
        )

    def _may_sign(self, key: SigningKey, dataset: DatasetId, epoch: int, frontier: Frontier) -> None:
        """Raises Refused if the head may not be signed:
        journals of the dataset's and the node's key bind each other."""
        if self._keys.is_new(dataset):
            return
        order, subject = (epoch, frontier.size), frontier.root.hex()
        own = KeyDid.from_public_key(dataset.public_key)
        for each in (own, self._keys.node_key().did, key.did):
            self._keys.may_note(each, journal_topics.head(each, dataset), order, subject)

    def _check_behind(self, dataset: DatasetId, epoch: int, tree: Frontier) -> None:
        """Raises Refused unless everything signed is here: several new blocks at once could skip what is missing."""
        if self._keys.is_new(dataset):
            return
        keys = (KeyDid.from_public_key(dataset.public_key), self._keys.node_key().did)
        signed = [self._keys.last_signed(key, journal_topics.head(key, dataset)) for key in keys]
        last = max((each for each in signed if each is not None), key=lambda each: each.order, default=None)
        if last is None or last.order[0] < epoch:
            return
        if last.order > (epoch, tree.size) or last.subject != self._root(dataset, tree, last.order[1]).hex():
            raise Refused(
                f"this node has signed {plural(last.order[1], 'block')} of {dataset.short} in epoch "
                f"{last.order[0]}, not the beginning of the {tree.size} that {agree(tree.size, 'is', 'are')} here",
                rule="trust.behind",
                hint="the state here is older than the signing journal, or another one: odfctl pull REF --repair",
            )

    def _root(self, dataset: DatasetId, tree: Frontier, size: int) -> bytes:
        """Returns the root of the first ``size`` blocks; fewer than all are needed only after a crash, and are read."""
        if size == tree.size:
            return tree.root
        return Tree(partial(leaves_of, self._chains, dataset)).root(size)

    def _sign(self, dataset: DatasetId, head: Multihash, frontier: Frontier, epoch: int, rights: Rights) -> None:
        now = self._clock()
        key = self._writer(dataset, rights)
        self._may_sign(key, dataset, epoch, frontier)
        node = self._keys.node_key().did
        new = HeadStatement(
            dataset=dataset,
            epoch=epoch,
            size=frontier.size,
            root_hash=frontier.root,
            authority=rights.version,
            issued_at=statement.when(now),
            expires_at=statement.when(Instant(now + LIFETIME)),
            node=None if key.did == node else node,
            upper=self._uppers.promise(key, dataset),
            collection=self._uppers.collection(dataset),
            head=head,
        )
        order, subject = (epoch, frontier.size), frontier.root.hex()
        sealed = self._keys.sign(key, journal_topics.head(key.did, dataset), order, subject, statement.encode(new))
        signed = envelope.unseal(sealed, new.MAX_ENVELOPE)
        with self._database.write() as connection:
            Ledger(connection).record(signed, key.did, "signed", "", now, live=True)
        self._announce(dataset, signed)


def author_blocks(state: ChainState, events: Sequence[MetadataEvent], system_time: Instant) -> list[Block]:
    """Makes blocks that carry ``events`` after ``state``, with one system time.
    Raises Invalid naming the broken rule."""
    blocks: list[Block] = []
    for event in events:
        content = MetadataBlock(
            system_time=system_time, prev_block_hash=state.head, sequence_number=state.size, event=event
        )
        block = encode_block(content)
        for broken in check_block(state, block, as_author=True):
            raise Invalid(broken.message, rule=broken.rule, hint=broken.hint, place=f"block #{block.sequence_number}")
        blocks.append(block)
        state = state.advance(block)
    return blocks
