"""Verifies datasets of this node: the chain alone, also the data, or also every transform by repeating it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from functools import partial

import msgspec
import trio

from chain.errors import Conflict, Invalid
from chain.model.events import DatasetKind
from chain.state import load_state
from chain.wording import plural
from odfd.api.views.task_progress import show_transform
from odfd.control import wire
from odfd.control.board import task_ref
from odfd.datasets.catalog import DatasetEntry
from odfd.mirrors.scheduler import MirrorScheduler
from odfd.portals.rule import PORTAL
from odfd.runtime.hanging_calls import end_if_unwanted
from odfd.runtime.subjects import about
from odfd.runtime.tasks import Report, TaskBoard
from odfd.state.damage import ATTEMPTS, DamageRegistry, look
from odfd.state.directory import StateDirectory
from odfd.transform.driver import TransformDependencies
from odfd.transform.plan import Blocked, Rejected
from odfd.transform.replay import Replayed, replay
from odfd.verify.damage import DamagedBlock
from odfd.verify.report import Level, Progress, VerificationRequest, VerificationResult
from odfd.verify.resume import StoredMemory


class VerificationService:
    """The API service that verifies datasets, each request as a task."""

    def __init__(
        self,
        home: StateDirectory,
        deps: TransformDependencies,
        board: TaskBoard,
        damage: DamageRegistry,
        scheduler: MirrorScheduler,
    ) -> None:
        self._home = home
        self._scheduler = scheduler
        self._damage = damage
        self._deps = deps
        self._board = board

    async def verify(self, ref: str, request: wire.VerifyRequest) -> wire.TaskRef:
        """Verifies a dataset, with all its shards, at the requested level. Result: VerifyReport."""
        entries = await trio.to_thread.run_sync(self._home.chains_named, ref)
        entry = entries[0]

        async def work(report: Report) -> wire.VerifyReport:
            return united([await self._verify(each, request, report) for each in entries])

        return task_ref(self._board.submit("verify", entry.name, work, about(entry.id, inputs=True)))

    async def _verify(self, entry: DatasetEntry, request: wire.VerifyRequest, report: Report) -> wire.VerifyReport:
        level = Level.CHAIN if request.level == "chain" else Level.DATA
        if level is Level.DATA:
            whole = request.level == "reproduced"
            await trio.to_thread.run_sync(partial(self._home.need_data, entry.id, entry.name, whole=whole))
        view = report_view(await self._looked(entry, level, request, report), request.level)
        if request.level == "reproduced":
            view = await self._reproduce(entry, view, report)
        return view

    async def _looked(
        self, entry: DatasetEntry, level: Level, request: wire.VerifyRequest, report: Report
    ) -> VerificationResult:
        """Checks a dataset while it may be written; excludes writers after several checks met a rewrite.

        Raises Conflict.
        """
        check = partial(trio.to_thread.run_sync, self._check, entry, level, request, report)
        for _ in range(ATTEMPTS):
            if (found := await check()) is not None:
                return found

        async with self._home.turns.of(entry.id, report.waits_to_write(entry.name)), self._scheduler.still(entry.id):
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
        chain = self._home.chains.chain(entry.id)
        head = chain.head()
        report.begin(f"verifying {entry.name}", head.size if head else 0, "blocks")

        def show(progress: Progress) -> None:
            end_if_unwanted()
            show_progress(report, progress)

        wanted = VerificationRequest(ref=entry.name, level=level, start=request.from_block)
        memory = StoredMemory(self._home.database, entry.id, forget=request.full)
        looked = look(self._home, entry.id, wanted, show, memory)
        if looked is None:
            return None
        found, seen = looked
        told = [each for each in found.failures if not each.rule.startswith(PORTAL)]  # its publisher's, and no damage
        if told:
            spots = [DamagedBlock(each.block.sequence_number, each.rule, each.message) for each in told]
            return found if self._damage.found(entry.id, spots, seen) else None
        if level is Level.DATA and not request.from_block:
            self._damage.whole(entry.id, min(found.blocks, seen.held_until), seen)
        return found

    async def _reproduce(self, entry: DatasetEntry, view: wire.VerifyReport, report: Report) -> wire.VerifyReport:
        """Runs every transform again from the first one, and adds the differences; records and announces nothing."""
        state = await trio.to_thread.run_sync(load_state, self._home.chains.chain(entry.id))
        if state.kind is not DatasetKind.DERIVATIVE:
            return view
        report.begin(f"re-running {entry.name}", None, "transforms")
        told = partial(show_transform, report)
        failures = list(view.failures)
        transforms = 0
        async with aclosing(replay(self._deps, entry.id, report=told)) as outcomes:
            async for outcome in outcomes:
                if not isinstance(outcome, Replayed):
                    raise unable(entry.name, outcome)
                transforms += 1
                report.done = transforms
                failures += mismatches(outcome) if outcome.by.is_pinned else [_unproven(outcome)]
        checked = msgspec.structs.replace(view.checked, transforms=transforms)
        return msgspec.structs.replace(view, ok=not failures, checked=checked, failures=tuple(failures))


def united(reports: Sequence[wire.VerifyReport]) -> wire.VerifyReport:
    """Returns the report on all shards: that of the first, with the sums, and with failures by the names of shards."""
    first, *others = reports
    if not others:
        return first
    counts = [msgspec.structs.asdict(each.checked) for each in reports]
    sums = {key: value if key == "portal" else sum(each[key] for each in counts) for key, value in counts[0].items()}
    failures = [
        msgspec.structs.replace(failure, message=f"{each.ref}: {failure.message}")
        for each in reports
        for failure in each.failures
    ]
    return msgspec.structs.replace(
        first, blocks=sum(each.blocks for each in reports), ok=all(each.ok for each in reports),
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
            message=f"re-running it gives another {each.field}",
            expected=each.recorded,
            actual=each.computed,
        )
        for each in outcome.mismatches
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


def report_view(found: VerificationResult, level: str) -> wire.VerifyReport:
    return wire.VerifyReport(
        ref=found.ref,
        dataset_id=found.dataset_id,
        head=found.head,
        blocks=found.blocks,
        level=level,
        ok=found.ok,
        checked=wire.Checked(
            blocks=found.checked.blocks,
            slices=found.checked.slices,
            bytes=found.checked.bytes,
            remembered=found.checked.remembered,
            not_held=found.checked.not_held,
            to_come=found.checked.to_come,
            portal=found.checked.portal,
        ),
        failures=tuple(
            wire.Failure(
                block=wire.FailedBlock(hash=each.block.hash, sequence_number=each.block.sequence_number),
                rule=each.rule,
                message=each.message,
                expected=each.expected,
                actual=each.actual,
            )
            for each in found.failures
        ),
    )


def show_progress(report: Report, progress: Progress) -> None:
    """Shows the progress in bytes of slices, which take most of the time, or in blocks if no slice is read."""
    if progress.bytes_known:
        report.unit, report.total, report.done = "bytes", progress.bytes_known, progress.bytes
    else:
        report.done = progress.blocks
    counted = f"blocks {progress.blocks}/{progress.blocks_total}, slices {progress.objects}/{progress.objects_known}"
    report.message = f"{counted}, {plural(progress.failures, 'failure')}"
