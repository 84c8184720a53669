"""Verifies datasets of this node: the chain alone, also the data, or also every transform by repeating it.

A derived dataset is moved to another engine in the same way: every recorded transaction is re-run by this node's
engine. If all results are the same, the owner's node declares the transform anew with that engine's digest: a signed
block, which mirrors get like any other. From then on the dataset does not need the old engine. If one result differs,
nothing is recorded. Spec: docs/spec/engine-semantics.md#evolution.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

import msgspec
import trio

from chain.errors import Conflict, Invalid
from chain.model.events import DatasetKind, SetTransform
from chain.state import ChainState, load_state
from chain.store.base import ChainReader
from chain.walk import newest_first
from chain.wording import plural
from engines.contract import EngineIdentity
from odfd.access.relations import Action
from odfd.control import wire
from odfd.control.board import task_ref
from odfd.control.operations import DATASET_PATH, Owner, operation
from odfd.datasets.commit import Commit, CommitPart, Committer, block_time
from odfd.datasets.engine_pins import engine_for
from odfd.datasets.local_data import need_data
from odfd.datasets.shard_reading import resolve_chains
from odfd.mirrors.scheduler import MirrorScheduler
from odfd.obs.events import EventLog
from odfd.portals.rule import PORTAL
from odfd.runtime.hanging_calls import end_if_unwanted
from odfd.runtime.subjects import about
from odfd.runtime.tasks import Report, TaskBoard
from odfd.services.datasets.damage import ATTEMPTS, DamageRegistry, look
from odfd.services.views.task_progress import show_transform
from odfd.store.catalog import DatasetEntry
from odfd.store.damage import DamagedBlock
from odfd.store.directory import StateDirectory
from odfd.store.resume import StoredMemory
from odfd.transform.driver import TransformDependencies
from odfd.transform.plan import Blocked, Rejected
from odfd.transform.replay import Replayed, replay
from odfd.verify.report import Level, Progress, VerificationRequest, VerificationResult


@dataclass(eq=False)
class VerificationService:
    """The API service that verifies datasets, each request as a task."""

    home: StateDirectory
    deps: TransformDependencies
    board: TaskBoard
    damage: DamageRegistry
    scheduler: MirrorScheduler

    @operation("POST", DATASET_PATH + "/verify", needs=Action.WRITE)
    def verify(self, ref: str, request: wire.VerifyRequest) -> wire.TaskRef:
        """Verifies a dataset, with all its shards, at the requested level. Result: VerifyReport."""
        entries = resolve_chains(self.home, ref)
        entry = entries[0]

        async def work(report: Report) -> wire.VerifyReport:
            return unite([await self._verify(entry, request, report) for entry in entries])

        return task_ref(self.board.submit("verify", entry.name, work, about(entry.id, inputs=True)))

    async def _verify(self, entry: DatasetEntry, request: wire.VerifyRequest, report: Report) -> wire.VerifyReport:
        level = Level.CHAIN if request.level == "chain" else Level.DATA
        found = await self._look(entry, level, request, report)
        view = msgspec.convert(found, wire.VerifyReport, from_attributes=True)
        view = msgspec.structs.replace(view, level=request.level)
        if request.level == "reproduced":
            view = await self._reproduce(entry, view, report)
        return view

    async def _look(
        self, entry: DatasetEntry, level: Level, request: wire.VerifyRequest, report: Report
    ) -> VerificationResult:
        """Checks a dataset while it may be written; excludes writers after several checks met a rewrite.

        Raises Conflict.
        """
        check = partial(trio.to_thread.run_sync, self._check, entry, level, request, report)
        for _ in range(ATTEMPTS):
            if (found := await check()) is not None:
                return found

        async with self.home.turns.of(entry.id, report.waits_to_write(entry.name)), self.scheduler.still(entry.id):
            if (found := await check()) is not None:
                return found
        raise Conflict(
            f"{entry.name} became another dataset each time that it was looked at",
            rule="verify-moving",
            hint="verify it again when it is at rest",
        )

    def _check(
        self, entry: DatasetEntry, level: Level, request: wire.VerifyRequest, report: Report
    ) -> VerificationResult | None:
        """Checks a dataset once; returns ``None`` if a failure may belong to a history that was replaced meanwhile."""
        if level is Level.DATA:
            need_data(self.home, entry.id, entry.name, whole=request.level == "reproduced")
        chain = self.home.chains.chain(entry.id)
        head = chain.head()
        report.begin(f"verifying {entry.name}", head.size if head else 0, "blocks")

        def show(progress: Progress) -> None:
            end_if_unwanted()
            show_progress(report, progress)

        wanted = VerificationRequest(ref=entry.name, level=level, start=request.from_block)
        memory = StoredMemory(self.home.database, entry.id, forget=request.full)
        looked = look(self.home, entry.id, wanted, show, memory)
        if looked is None:
            return None
        found, seen = looked
        told = [
            failure for failure in found.failures if not failure.rule.startswith(PORTAL)
        ]  # its publisher's, and no damage
        if told:
            spots = [DamagedBlock(each.block.sequence_number, each.rule, each.message) for each in told]
            return found if self.damage.record(entry.id, spots, seen) else None
        if level is Level.DATA and not request.from_block:
            self.damage.whole(entry.id, min(found.blocks, seen.held_until), seen)
        return found

    async def _reproduce(self, entry: DatasetEntry, view: wire.VerifyReport, report: Report) -> wire.VerifyReport:
        """Runs every transform again from the first one, and adds the differences; records and announces nothing."""
        state = await trio.to_thread.run_sync(load_state, self.home.chains.chain(entry.id))
        if state.kind is not DatasetKind.DERIVATIVE:
            return view
        report.begin(f"re-running {entry.name}", None, "transforms")
        failures = list(view.failures)
        async with aclosing(_steps(self.deps, entry, None, report)) as outcomes:
            async for outcome in outcomes:
                if isinstance(outcome, Rejected):
                    raise unable(entry.name, outcome)
                failures += mismatches(outcome) if outcome.by.is_pinned else [_unproven(outcome)]
        checked = msgspec.structs.replace(view.checked, transforms=report.done)
        return msgspec.structs.replace(view, ok=not failures, checked=checked, failures=tuple(failures))


@dataclass(eq=False)
class EngineMigrationService:
    """Proves that an engine reproduces a dataset, and records it; each request is a task."""

    home: StateDirectory
    deps: TransformDependencies
    committer: Committer
    board: TaskBoard
    events: EventLog

    @operation("POST", DATASET_PATH + "/prove", needs=Owner.KEYS)
    def prove(self, ref: str, request: wire.ProveRequest) -> wire.TaskRef:
        """Proves that this node's engine gives the same history, and records its digest. Result: ProofReport."""
        entry = self.home.resolve(ref)

        async def work(report: Report) -> wire.ProofReport:
            # Nothing may be appended between the proof and the block that records it.
            async with self.home.turns.of(entry.id, report.waits_to_write(entry.name)):
                return await self._prove(entry, request, report)

        return task_ref(self.board.submit("prove", entry.name, work, about(entry.id, inputs=True)))

    def _load(self, entry: DatasetEntry) -> tuple[ChainState, SetTransform, tuple[str, ...]]:
        """Returns the state of a dataset, the transform to prove, and the digests it was ever pinned to.

        Raises Invalid; NotFound if data is missing.
        """
        state = load_state(self.home.chains.chain(entry.id))
        if state.set_transform is None:
            raise Invalid(f"{entry.name} has no transform", rule="prove", hint="name a derived dataset")
        need_data(self.home, entry.id, entry.name, whole=True)
        return state, state.set_transform, _find_pin(self.home.chains.chain(entry.id), state.size)

    async def _prove(self, entry: DatasetEntry, request: wire.ProveRequest, report: Report) -> wire.ProofReport:
        state, declared, pinned = await trio.to_thread.run_sync(self._load, entry)
        _, by = await engine_for(self.deps.engines, declared.transform)
        identity = by.identity
        report.begin(f"re-running {entry.name} on {identity.name} {identity.version}", None, "transforms")
        failures: list[wire.Failure] = []
        async with aclosing(_steps(self.deps, entry, state.size, report)) as outcomes:
            async for outcome in outcomes:
                failures += [_describe_refusal(outcome)] if isinstance(outcome, Rejected) else mismatches(outcome)
        proof = wire.ProofReport(
            ref=entry.name,
            dataset_id=str(entry.id),
            head=str(state.head),
            engine=wire.ProvenEngine(name=identity.name, version=identity.version, digest=identity.digest),
            before=by.pin,
            pinned=pinned,
            transforms=report.done,
            ok=not failures,
            failures=tuple(failures),
        )
        if failures or request.dry_run or by.is_pinned or not self.home.keys.has_dataset_key(entry.id):
            return proof
        return await self._record(entry, state, declared, identity, proof)

    async def _record(
        self,
        entry: DatasetEntry,
        state: ChainState,
        declared: SetTransform,
        identity: EngineIdentity,
        proof: wire.ProofReport,
    ) -> wire.ProofReport:
        transform = msgspec.structs.replace(declared.transform, version=identity.digest)
        event = msgspec.structs.replace(declared, transform=transform)
        time = block_time(state, self.deps.now(), self.home.chains.upper(entry.id))
        (head,) = await self.committer.commit(Commit(parts=(CommitPart.after(state, time, (event,)),)))
        text, told = f"{proof.transforms} transforms, same answers", about(entry.id)
        self.events.emit("engine.proven", entry.name, text, about=told, digest=identity.digest)
        return msgspec.structs.replace(proof, recorded=str(head.hash))


async def _steps(
    deps: TransformDependencies, entry: DatasetEntry, size: int | None, report: Report
) -> AsyncGenerator[Replayed | Rejected, None]:
    """Runs the steps of a dataset again, and counts those done in ``report``. One that is refused is the last.

    Raises Invalid for one that cannot be run here.
    """
    report.done = done = 0
    async with aclosing(replay(deps, entry.id, size, partial(show_transform, report))) as outcomes:
        async for outcome in outcomes:
            if isinstance(outcome, Blocked):
                raise unable(entry.name, outcome)
            done += isinstance(outcome, Replayed)
            report.done = done
            yield outcome


def unite(reports: Sequence[wire.VerifyReport]) -> wire.VerifyReport:
    """Returns the report on all shards: that of the first, with the sums, and with failures by the names of shards."""
    first, *others = reports
    if not others:
        return first
    counts = [msgspec.structs.asdict(report.checked) for report in reports]
    sums = {key: value if key == "portal" else sum(count[key] for count in counts) for key, value in counts[0].items()}
    failures = [
        msgspec.structs.replace(failure, message=f"{report.ref}: {failure.message}")
        for report in reports
        for failure in report.failures
    ]
    return msgspec.structs.replace(
        first, blocks=sum(report.blocks for report in reports), ok=all(report.ok for report in reports),
        checked=wire.Checked(**sums), failures=tuple(failures),
    )  # fmt: skip


def unable(name: str, outcome: Rejected | Blocked) -> Invalid:
    """Returns the fault that says why a step of the dataset ``name`` could not be run again."""
    text = f"a step of {name} cannot be re-run here: {outcome.reason}"
    return Invalid(text, rule=outcome.rule or "replay", hint=outcome.hint)


def mismatches(outcome: Replayed) -> list[wire.Failure]:
    """Describes the differences of a step that was run again."""
    block = wire.FailedBlock(hash=str(outcome.block.hash), sequence_number=outcome.block.sequence_number)
    return [
        wire.Failure(
            block=block,
            rule="transform-reproduced",
            message=f"re-running it gives another {mismatch.field}",
            expected=mismatch.recorded,
            actual=mismatch.computed,
        )
        for mismatch in outcome.mismatches
    ]


def _unproven(outcome: Replayed) -> wire.Failure:
    """Says that a step was run again by another engine than it pins, whose result proves nothing of the pinned one."""
    number = outcome.block.sequence_number
    pin = wire.UnheldPin(first=number, last=number, digest=outcome.by.pin)
    found = "the same" if outcome.is_reproduced else f"another {outcome.mismatches[0].field}"
    return wire.Failure(
        block=wire.FailedBlock(hash=str(outcome.block.hash), sequence_number=number),
        rule=wire.ENGINE_NOT_HERE,
        message=f"{pin.text}; the one here gives {found}",
    )


def _describe_refusal(outcome: Rejected) -> wire.Failure:
    """Returns the failure for an engine that refuses the query, which counts as another answer."""
    nowhere = wire.FailedBlock(hash=None, sequence_number=None)
    return wire.Failure(block=nowhere, rule="transform-reproduced", message=str(outcome))


def _find_pin(chain: ChainReader, size: int) -> tuple[str, ...]:
    """Lists the engine digests that the transform was ever declared with, each once, oldest first."""
    found: dict[str, None] = {}
    for block in newest_first(chain, ("SetTransform",), size):
        if isinstance(block.event, SetTransform) and block.event.transform.version is not None:
            found[block.event.transform.version] = None
    return tuple(found)[::-1]


def show_progress(report: Report, progress: Progress) -> None:
    """Shows the progress in bytes of slices, which take most of the time, or in blocks if no slice is read."""
    if progress.bytes_known:
        report.unit, report.total, report.done = "bytes", progress.bytes_known, progress.bytes
    else:
        report.done = progress.blocks
    counted = f"blocks {progress.blocks}/{progress.blocks_total}, slices {progress.objects}/{progress.objects_known}"
    report.message = f"{counted}, {plural(progress.failures, 'failure')}"
