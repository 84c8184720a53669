"""Rewrites the history of datasets that this node publishes: resets, compacts, or keeps only the metadata.

The new epoch is drafted and signed first, then slices are merged, then epoch and history change in one transaction
(``odfd.store.ledger.history_rewrite`` says what a crash leaves). Nobody ingests, derives or mirrors into the dataset
meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
import trio

from chain.compaction import Limits
from chain.errors import Conflict, Invalid, Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.state import load_state
from chain.statements import statement
from chain.statements.envelope import Signed
from chain.statements.statement import Authority
from chain.store import rewriting
from chain.store.base import ChainReader, FormerEpochs
from chain.store.rewriting import RewritePlan
from chain.wording import plural
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.control.board import task_ref
from odfd.control.operations import DATASET_PATH, Owner, operation
from odfd.datasets.commit import block_time
from odfd.datasets.feeding import is_portal
from odfd.mirrors.scheduler import MirrorScheduler
from odfd.runtime.hanging_calls import end_if_unwanted
from odfd.runtime.subjects import about
from odfd.runtime.tasks import Report
from odfd.services.datasets.blocks import named_block
from odfd.services.trust.authority import draft_of, draft_view, signatures_of
from odfd.store.catalog import DatasetEntry
from odfd.store.directory import StateDirectory
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.history_rewrite import kept_tree, tree_head
from odfd.store.ledger.log import Ledger
from odfd.trust.signing import authority_versions
from odfd.trust.signing.authority_versions import EpochOpening, sign_version
from odfd.trust.signing.owner_commit import OwnerCommitter

_NOTHING: Final = {
    "compact": "no two slices that follow each other fit into one within the limits",
    "keep-metadata": "there is no data in it",
}
_TASK: Final = {"reset": "reset", "compact": "compact", "keep-metadata": "compact"}


@dataclass(eq=False)
class HistoryRewriteService:
    """The API service that rewrites published datasets, each request as a task."""

    home: StateDirectory
    committer: OwnerCommitter
    scheduler: MirrorScheduler
    context: Context
    changed: Callable[[DatasetId], None]
    """Called for each rewritten chain."""
    apart: Callable[[int], FormerEpochs | None]
    """Returns the place where the blocks that an epoch gives up are kept."""

    @operation("POST", DATASET_PATH + "/rewrite", needs=Owner.KEYS)
    def rewrite(self, ref: str, request: wire.RewriteRequest) -> wire.TaskRef:
        """Rewrites the history of a dataset. Result: RewriteResult. Refused for a dataset of another owner."""
        entry = self._check(ref, request)
        work = partial(self._work, entry, request)
        return task_ref(
            self.context.board.submit(_TASK[request.action], entry.name, work, about(entry.id, inputs=True))
        )

    def _check(self, ref: str, request: wire.RewriteRequest) -> DatasetEntry:
        """Checks all that can be checked before the task begins. Raises NotFound, Refused, Invalid."""
        entry = self.home.resolve(ref)
        if not self.home.keys.has_dataset_key(entry.id):
            raise Refused(
                f"{entry.name} is not published by this node: its history is its owner's to rewrite",
                rule="rewrite-owner",
                hint="do it on the node that writes it; whether mirrors follow is their policy.rewrite.follow",
            )
        if is_portal(self.home, entry.id):  # others keep what it published
            raise Refused(
                f"{entry.name} is a portal: its rule holds over all that was published, also over what a rewrite drops",
                rule="portal-rewrite",
                hint="begin another portal, and odfctl unpublish this one",
            )
        _limits(request)
        if request.action == "reset":
            self._plan(entry, request)
        return entry

    async def _work(self, entry: DatasetEntry, request: wire.RewriteRequest, report: Report) -> wire.RewriteResult:
        report.begin(f"reading {entry.name}")

        async with self.home.turns.of(entry.id, report.waits_to_write(entry.name)), self.scheduler.still(entry.id):
            done = await trio.to_thread.run_sync(self._rewrite, entry, request, report)
        if done.outcome == "rewritten":
            self.changed(entry.id)
            self.context.events.emit(
                "dataset.rewritten",
                entry.name,
                f"{done.action}: {plural(done.kept, 'block')} kept, {done.before} became {done.blocks}",
                about=about(entry.id),
                epoch=done.epoch,
                blocks=done.blocks,
            )
        return done

    def _rewrite(self, entry: DatasetEntry, request: wire.RewriteRequest, report: Report) -> wire.RewriteResult:
        chain, objects = self.home.chains.chain(entry.id), self.home.objects
        plan = self._plan(entry, request)
        if plan is None:
            return self._report_unchanged(entry, request)
        opening = self._opening(plan, request)
        planned = _result(entry, request, plan.base.size, plan.last.size, plan.size)
        planned = msgspec.structs.replace(planned, merged=sum(map(len, plan.batches)), into=len(plan.batches))
        if request.dry_run:
            drafted, draft = self._draft(entry, opening)
            return msgspec.structs.replace(planned, epoch=drafted.epochs[-1].number, draft=draft)
        # Checked before anything is signed; the transaction checks again.
        with self.home.database.read() as connection:
            self.home.held.check(connection, entry.id)
        said, signed = self._declare(entry, request, opening)
        report.begin("merging slices", len(plan.batches), "slices")

        def note_merge(count: int) -> None:
            report.done = count
            end_if_unwanted()

        rewrite = rewriting.prepare(chain, objects, plan, self._time(chain, plan), note_merge)
        with self.home.database.read() as connection:
            given_up = Ledger(connection).chain(entry.id).epoch
        rewrite = msgspec.structs.replace(rewrite, apart=self.apart(given_up))
        head = self.committer.rewrite_now(plan, rewrite, said, signed)
        epoch = said.epochs[-1].number
        return msgspec.structs.replace(planned, outcome="rewritten", head=str(head.hash), epoch=epoch)

    def _time(self, chain: ChainReader, plan: RewritePlan) -> Instant:
        """Returns the time of the new blocks.

        A reset makes no block and uses the time of the last one kept, so it also works after a block with a wrong time.
        """
        if plan.after == "nothing":
            return chain.block_at(plan.base.sequence_number).system_time
        return block_time(load_state(chain), self.context.clock.now(), self.home.chains.upper(plan.dataset))

    def _plan(self, entry: DatasetEntry, request: wire.RewriteRequest) -> RewritePlan | None:
        chain = self.home.chains.chain(entry.id)
        head = chain.head()
        if request.before is not None and (head is None or str(head.hash) != request.before):
            there = "no block" if head is None else head.hash
            text = f"the head of {entry.name} is {there}, and not {request.before}"
            raise Conflict(text, rule="head-moved", hint="look at the new blocks: odfctl log")
        if request.action == "compact":
            return rewriting.plan_merging(chain, entry.id, _limits(request))
        if request.action == "keep-metadata":
            return rewriting.plan_metadata(chain, entry.id)
        if request.to is None:
            raise Invalid("a reset needs a block", rule="request", hint="its hash, or #N")
        return rewriting.plan_reset(chain, entry.id, named_block(chain, request.to).hash)

    def _opening(self, plan: RewritePlan, request: wire.RewriteRequest) -> EpochOpening:
        """Builds the new epoch; it is announced as a compaction only if it keeps every row."""
        with self.home.database.read() as connection:
            tree = Ledger(connection).chain(plan.dataset).frontier
        # A block may have been added since the plan; the new epoch would not count it among those of the old one.
        if tree.size != plan.last.size:
            raise Conflict("the chain is being written to", rule="head-moved", hint="repeat the command")
        base = kept_tree(self.home.chains.chain(plan.dataset), plan.base.size)
        return EpochOpening(
            "compaction" if plan.after == "merged" else request.reason, tree_head(base), tree_head(tree)
        )

    def _draft(self, entry: DatasetEntry, opening: EpochOpening) -> tuple[Authority, wire.AuthorityDraft]:
        with self.home.database.read() as connection:
            rights = Authorities(connection).rights(entry.id)
        mine = [key.did for key in self.home.keys.keys_for(entry.id)]
        seed = self.home.chains.chain(entry.id).block_at(0).hash
        said = authority_versions.rewritten(rights, opening, mine, seed, self.context.clock.now())
        return said, draft_view(rights, said)

    def _declare(
        self, entry: DatasetEntry, request: wire.RewriteRequest, opening: EpochOpening
    ) -> tuple[Authority, Signed]:
        """Returns the version of the authority that opens the epoch, signed by enough roots.

        Raises Refused, Conflict, Invalid.
        """
        if request.payload is None:
            said, _ = self._draft(entry, opening)
            payload = statement.encode(said)
        else:
            said, payload = draft_of(entry, request.payload)
            opened = said.epochs[-1] if said.epochs else None
            wanted = opening.reason, opening.base, opening.last
            if opened is None or (opened.reason, opened.base, opened.last) != wanted:
                raise Conflict(
                    f"the signed statements are about another history of {entry.name} than the one that is here",
                    rule="rewrite-draft",
                    hint="the dataset moved meanwhile: repeat the command",
                )
        given = signatures_of(request.signatures)
        return said, sign_version(self.home.database, self.home.keys, said, payload, given)

    def _report_unchanged(self, entry: DatasetEntry, request: wire.RewriteRequest) -> wire.RewriteResult:
        with self.home.database.read() as connection:
            checked = Ledger(connection).chain(entry.id)
        head = self.home.chains.chain(entry.id).head()
        size = head.size if head else 0
        return msgspec.structs.replace(
            _result(entry, request, size, size, size), outcome="unchanged", head=str(head.hash) if head else None,
            epoch=checked.epoch, message=_NOTHING[request.action],
        )  # fmt: skip


def _limits(request: wire.RewriteRequest) -> Limits:
    """Returns the limits of merged slices. Raises Invalid for a limit below 1."""
    usual = Limits()
    size = usual.bytes if request.max_slice_bytes is None else request.max_slice_bytes
    rows = usual.rows if request.max_slice_rows is None else request.max_slice_rows
    if min(size, rows) < 1:
        raise Invalid(f"slices of at most {min(size, rows)}", rule="compact-limits", hint="a number from 1 on")
    return Limits(bytes=size, rows=rows)


def _result(
    entry: DatasetEntry, request: wire.RewriteRequest, kept: int, before: int, blocks: int
) -> wire.RewriteResult:
    return wire.RewriteResult(
        ref=entry.name,
        dataset_id=str(entry.id),
        action=request.action,
        outcome="planned",
        kept=kept,
        before=before,
        blocks=blocks,
    )
