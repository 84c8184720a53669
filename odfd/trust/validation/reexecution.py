"""Runs one published step again on this node, and records whether the answer is the same.

Each step starts from the checkpoint that this node's own run of the step before made. A difference leads to an
accusation only after three more runs, each in a fresh engine process, gave the same other answer, on exactly the engine
that the transform pins, for a query that this node's own analysis calls strict; otherwise this node abstains. A step on
which more than f groups contradict this node is run six more times, and the verdict is taken back if a run deviates.
Spec: docs/spec/trust.md#attestations, #suspension.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from itertools import takewhile
from typing import Final

import msgspec
import trio

from chain.errors import Environment, Invalid
from chain.ids import DatasetId
from chain.model.block import Block
from chain.model.events import ExecuteTransform
from chain.model.source import Transform
from chain.multihash import Multihash
from chain.statements.statement import Actual, EngineUsed
from chain.store.base import ChainStore, ObjectReader
from engines.contract import Engine
from engines.errors import LimitExceeded
from engines.provision.warm import EnginePool
from odfd.datasets.engine_pins import EngineInUse, engine_for, pin_stretches
from odfd.runtime.spans import span
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.log import Ledger
from odfd.store.ledger.proofs import Proofs
from odfd.store.ledger.runs import RecordedRun, RunPosition, Runs, run_at
from odfd.transform.driver import fresh_folder
from odfd.transform.plan import Blocked
from odfd.transform.progress import Showing, unseen
from odfd.transform.replay import ReplayDependencies, Replayed, ReplayParts, replay_step
from odfd.trust.evidence.bundle import Accusation, GatheredBundle, gather
from odfd.trust.evidence.bundle_store import BundleStore
from odfd.trust.evidence.comparison_process import compare_in_process
from odfd.trust.evidence.row_diff import RowDifference
from odfd.trust.judgement.verdicts import NOT_PINNED
from odfd.trust.signing.signer_context import SignerContext
from odfd.trust.transform_steps import STEP, first_step
from odfd.trust.validation.attestation_publisher import Determinism, actual_of, step_after

RUNS: Final = 3
"""Fresh runs that must agree before anyone is accused."""
NONDETERMINISTIC: Final = "nondeterministic"
RUNS_AGAIN: Final = 6
"""Further runs when more than f groups agree on another verdict; if one deviates, the verdict is taken back."""


class ReexecutionDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """Dependencies besides the node's stores."""

    deps: ReplayDependencies
    fresh_engine: Callable[[], AbstractAsyncContextManager[Engine]]
    """Starts an engine in a process of its own, never used before; it ends with the context."""
    determinism: Determinism
    bundles: BundleStore | None = None
    """The store of bundles; ``None``: this node accuses without keeping evidence."""
    step_seconds: Callable[[], int] = lambda: 600
    """Seconds of an engine that one run of a step may take; called at each run."""
    drop_engine: Callable[[DatasetId, str], None] = lambda _dataset, _why: None
    """Ends the engine process that works for a dataset, as a cancelled query could occupy it for ever."""
    showing: Showing = unseen
    """Called for each run, also for repeated ones."""


class TooCostly(LimitExceeded):
    """A run took more engine time than this node spends on a step."""


class ReexecutionStep(msgspec.Struct, frozen=True):
    """A block that ran a query, and the state from which to run it."""

    block: Block
    after: RunPosition | None
    """The position of the replay when the step was chosen."""

    @property
    def checkpoint(self) -> bytes | None:
        return self.after.checkpoint if self.after else None


class Reexecution:
    """Re-executes steps for one validator, which alone runs steps of its datasets."""

    def __init__(
        self,
        signer: SignerContext,
        means: ReexecutionDependencies,
        put_off: Callable[[DatasetId, str, str], None],
        charge: Callable[[DatasetId, float], None] = lambda _dataset, _seconds: None,
    ) -> None:
        """``put_off`` is called with the reason why a step cannot be run: a code for others, and a sentence.

        ``charge`` is called with the seconds that each run took, failed ones included.
        """
        self._charge = charge
        self._signer = signer
        self._means = means
        self._put_off = put_off

    @property
    def _chains(self) -> ChainStore:
        return self._means.deps.chains

    @property
    def _objects(self) -> ObjectReader:
        return self._means.deps.objects

    async def run(self, dataset: DatasetId, step: ReexecutionStep, *, apart: bool = False) -> RecordedRun | None:
        """Runs a step, three times if need be, and keeps the verdict. ``None``: it could not be run now.

        ``apart``: in an engine process of its own from the first run on. Raises TooCostly, and what engines raise.
        """
        if apart:
            async with self._means.fresh_engine() as own:
                first = await self._once(dataset, step, own)
        else:
            first = await self._once(dataset, step)
        if first is None:
            return None
        if first.reproduced:
            run = self._run(step, "reproduced", first, reason="" if first.engine.pinned else NOT_PINNED)
            place = RunPosition(step.block.sequence_number, step.block.hash, first.checkpoint)
            return await trio.to_thread.run_sync(self._keep, dataset, step, run, place)
        if not first.engine.pinned:
            run = self._run(step, "not-reproducible-here", first, reason=NOT_PINNED)
            return await trio.to_thread.run_sync(self._keep, dataset, step, run, None)
        again = []
        for _ in range(RUNS):
            async with self._means.fresh_engine() as own:
                another = await self._once(dataset, step, own)
            if another is None:
                return None
            again.append(another)
        same = all(each.actual == first.actual for each in again)
        reason = await self._why_nobody_is_blamed(dataset) if same else NONDETERMINISTIC
        if not all(each.engine.pinned for each in again):
            reason = NOT_PINNED
        verdict = "not-reproducible-here" if reason else "mismatch"
        run = self._run(step, verdict, first, reason=reason, runs=RUNS)
        if not reason:
            kept = await trio.to_thread.run_sync(self._keep_bundle, dataset, step, first.actual)
            run = msgspec.structs.replace(run, bundle=kept)
        return await trio.to_thread.run_sync(self._keep, dataset, step, run, None)

    async def step_at(self, dataset: DatasetId, number: int) -> ReexecutionStep | None:
        """Returns a step that was run before, with the state from this node's own runs; ``None``: not available now."""
        chain = self._chains.chain(dataset)

        def look() -> tuple[Block, Block | None, RunPosition | None]:
            with self._signer.database.read() as connection:
                return chain.block_at(number), chain.last_of(STEP, number), Runs(connection).place(dataset)

        block, before, place = await trio.to_thread.run_sync(look)
        if before is None or (place is not None and place.sequence_number == before.sequence_number):
            return ReexecutionStep(block, place if before is not None else None)
        state: RunPosition | None = None
        while (earlier := await trio.to_thread.run_sync(step_after, chain, state, number)) is not None:
            step = ReexecutionStep(earlier, state)
            answer = await self._once(dataset, step)
            if answer is None:
                return None
            if not answer.reproduced:
                return step
            state = RunPosition(earlier.sequence_number, earlier.hash, answer.checkpoint)
        return ReexecutionStep(block, state)

    async def run_again(self, dataset: DatasetId, step: ReexecutionStep) -> RecordedRun | None:
        """Runs the step six more times; returns the verdict that remains when a run deviates from the one published."""
        number = step.block.sequence_number
        published = await trio.to_thread.run_sync(self._find_published, dataset, number)
        if published is None or published.verdict not in ("reproduced", "mismatch"):
            return None
        for _ in range(RUNS_AGAIN):
            async with self._means.fresh_engine() as own:
                answer = await self._once(dataset, step, own)
            if answer is None:
                return None
            if answer.engine.digest != published.engine.digest:
                break  # the engine was replaced since, and another one cannot take back what that one gave
            if answer.actual != published.actual if published.verdict == "mismatch" else not answer.reproduced:
                runs = published.runs + RUNS_AGAIN
                run = self._run(step, "not-reproducible-here", answer, reason=NONDETERMINISTIC, runs=runs)
                return await trio.to_thread.run_sync(self._take_back, dataset, step, run)
        await trio.to_thread.run_sync(self._note_again, dataset, step.block)
        return None

    def _take_back(self, dataset: DatasetId, step: ReexecutionStep, run: RecordedRun) -> RecordedRun | None:
        with self._signer.database.write() as connection:
            if not self._is_held(dataset, step.block):
                return None
            Runs(connection).take_back(dataset, run, step.after)
        return run

    async def begin_anew(self, dataset: DatasetId) -> None:
        """Forgets runs on another engine of steps whose pinned engine has come here since: they are to be run by it.

        Only the last ones: what the pinned engine gave of later steps stays, and needs those before it. An engine that
        could not go on up to its own steps is not tried again.
        """
        for run, transform, first, before in await trio.to_thread.run_sync(self._run_by_others, dataset):
            _, by = await engine_for(self._means.deps.engines, transform)
            if by.is_pinned and run.engine.digest != by.identity.digest:
                await trio.to_thread.run_sync(self._forget, dataset, first, before)

    def _run_by_others(self, dataset: DatasetId) -> list[tuple[RecordedRun, Transform, Block, Block | None]]:
        """Lists the transforms of which the last steps were run by another engine, newest first.

        Each with the run, the first such step, and the step before it.
        """
        chain, found = self._chains.chain(dataset), []
        with self._signer.database.read() as connection:
            runs = list(Runs(connection).of(dataset).values())
        last = list(takewhile(lambda run: not run.engine.pinned, reversed(runs)))
        for stretch in pin_stretches(chain, last[0].sequence_number + 1) if last else ():
            start = max(stretch.first, last[-1].starts)
            step = first_step(chain, start, stretch.last + 1)
            run = None if step is None else next((each for each in last if each.starts <= step.sequence_number), None)
            if step is not None and run is not None:
                found.append((run, stretch.transform, step, chain.last_of(STEP, step.sequence_number)))
        return found

    def _forget(self, dataset: DatasetId, first: Block, before: Block | None) -> None:
        with self._signer.database.write() as connection:
            if self._is_held(dataset, first):
                end = None if before is None else (before.sequence_number, before.hash)
                Runs(connection).forget_from(dataset, first.sequence_number, end)

    def _note_again(self, dataset: DatasetId, block: Block) -> None:
        with self._signer.database.write() as connection:
            Runs(connection).note_again(dataset, block.sequence_number, block.hash, self._signer.clock.now())

    async def _why_nobody_is_blamed(self, dataset: DatasetId) -> str:
        """Returns the reason, by this node's analysis, why a difference accuses nobody; empty: it does accuse."""
        found = await self._means.determinism(dataset)
        return {"strict": "", "no": NONDETERMINISTIC}.get(found, "determinism-unknown")

    async def _once(self, dataset: DatasetId, step: ReexecutionStep, own: Engine | None = None) -> _Answer | None:
        """Runs the step once within the budget, on the shared engine or on one of its ``own``."""
        most, began = self._means.step_seconds(), trio.current_time()
        try:
            with trio.move_on_after(most) as patience:
                return await self._run_once(dataset, step, own)
        finally:
            self._charge(dataset, trio.current_time() - began)
        assert patience.cancelled_caught
        if own is None:
            self._means.drop_engine(dataset, "a step was run again for longer than it may be")
        raise TooCostly(
            f"block #{step.block.sequence_number} takes an engine more than {most} s",
            rule="step-cost",
            hint="policy.validators.step-seconds says how long one step may take",
        )

    async def _run_once(self, dataset: DatasetId, step: ReexecutionStep, own: Engine | None) -> _Answer | None:
        deps: ReplayDependencies = self._means.deps
        if own is not None:
            engines = EnginePool({"spark": (own,)})
            deps = ReplayParts(chains=deps.chains, objects=deps.objects, engines=engines, staging=deps.staging)
        async with fresh_folder(deps.staging) as folder:
            number = step.block.sequence_number
            with span("run") as seen, self._means.showing(dataset, number) as report:
                seen.note("odfd.block", number)
                outcome = await replay_step(deps, dataset, number, step.checkpoint, folder, report)
                if isinstance(outcome, Replayed):
                    seen.note("odfd.reproduced", outcome.is_reproduced)
            if not isinstance(outcome, Replayed):
                self._signer.logger.info("step not re-run", dataset=self._signer.name_of(dataset), reason=str(outcome))
                is_blocked = isinstance(outcome, Blocked)
                reason = outcome.reason if isinstance(outcome, Blocked) else str(outcome)
                why = await trio.to_thread.run_sync(self._lacks, step.block) if is_blocked else "query-refused"
                self._put_off(dataset, why, reason)
                return None
            finding = None
            if not outcome.is_reproduced:
                with span("compare"):
                    finding = await self._differences(step.block, outcome)
            return _Answer(
                engine=engine_used(outcome.by),
                reproduced=outcome.is_reproduced,
                actual=actual_of(outcome.event, outcome.data),
                checkpoint=outcome.checkpoint,
                finding=finding,
            )

    def _lacks(self, block: Block) -> str:
        """Returns the code for a missing input.
        A forked input gets no more blocks, so it is not waited for like others."""
        assert isinstance(block.event, ExecuteTransform)
        with self._signer.database.read() as connection:
            ledger, known = Ledger(connection), Proofs(connection)
            inputs = [input_.dataset_id for input_ in block.event.query_inputs]
            forked = any(known.forked_at(input_, ledger.chain(input_).epoch) is not None for input_ in inputs)
        return "input-disputed" if forked else "input-missing"

    async def _differences(self, block: Block, outcome: Replayed) -> RowDifference:
        """Returns the rows and columns that differ, if both slices are here."""
        assert isinstance(block.event, ExecuteTransform)
        published = block.event.new_data
        if published is None or outcome.rows is None:
            differences = (
                f"{unequal.field}: {unequal.recorded} published, {unequal.computed} computed"
                for unequal in outcome.mismatches
            )
            return RowDifference(message="; ".join(differences))
        return await compare_in_process(self._objects.path(published.physical_hash), outcome.rows)

    def _run(
        self,
        step: ReexecutionStep,
        verdict: str,
        answer: _Answer,
        *,
        reason: str = "",
        runs: int = 1,
    ) -> RecordedRun:
        return RecordedRun(
            sequence_number=step.block.sequence_number,
            block=step.block.hash,
            at=self._signer.clock.now(),
            verdict=verdict,
            reason=reason,
            runs=runs,
            engine=answer.engine,
            actual=answer.actual,
            evidence=answer.finding.to_bytes() if answer.finding else None,
        )

    def _find_published(self, dataset: DatasetId, number: int) -> RecordedRun | None:
        with self._signer.database.read() as connection:
            return run_at(Runs(connection).of(dataset), number)

    def _keep(
        self, dataset: DatasetId, step: ReexecutionStep, run: RecordedRun, place: RunPosition | None
    ) -> RecordedRun | None:
        """Keeps a run; ``None``, and nothing is kept, if the chain got another history while the step ran."""
        with self._signer.database.write() as connection:
            kept = Runs(connection)
            # Its chain may have gone back meanwhile (test_a_step_that_was_running_when_its_chain_turned_is_forgotten).
            if kept.place(dataset) != step.after or not self._is_held(dataset, step.block):
                self._signer.logger.info(
                    "run forgotten", dataset=self._signer.name_of(dataset), reason="rewritten meanwhile"
                )
                return None
            known = kept.of(dataset)
            if run.engine.pinned or run_at(known, run.sequence_number) is None:
                kept.keep(dataset, run)
            elif place is None:  # what the pinned engine gave stays; but this one has no state to go on from
                return self._stop_after(kept, dataset, max(known), run)
            if place is not None:
                kept.keep_place(dataset, place)
        return run

    def _stop_after(self, kept: Runs, dataset: DatasetId, last: int, run: RecordedRun) -> RecordedRun | None:
        """Keeps the finding that this engine cannot go on at the first step on which nothing is recorded."""
        chain = self._chains.chain(dataset)
        head = chain.head()
        step = first_step(chain, last + 1, head.size if head else 0)
        if step is None:
            return None
        moved = {"sequence_number": step.sequence_number, "block": step.hash, "evidence": None}
        found = msgspec.structs.replace(run, **moved)
        kept.keep(dataset, found)
        return found

    def _is_held(self, dataset: DatasetId, block: Block) -> bool:
        found = next(self._chains.chain(dataset).raw_blocks(block.sequence_number, block.sequence_number + 1), None)
        return found == block.raw

    def _keep_bundle(self, dataset: DatasetId, step: ReexecutionStep, actual: Actual) -> Multihash | None:
        """Stores the evidence as one bundle; the verdict is valid without it, as others can re-run the step."""
        if self._means.bundles is None:
            return None
        with self._signer.database.read() as connection:
            newest = Ledger(connection).newest_head(dataset)
            versions = tuple(signed for _, signed in Authorities(connection).versions(dataset))
        name = self._signer.name_of(dataset)
        if newest is None:
            self._signer.logger.info("no bundle kept", dataset=name, reason="no signed head is known")
            return None
        case = Accusation(
            head=newest[0],
            signed=newest[1],
            step=step.block,
            checkpoint=step.checkpoint,
            actual=actual,
            authority=versions,
        )
        try:
            found = gather(self._chains, self._objects, case)
            if isinstance(found, GatheredBundle):
                return self._means.bundles.keep(found.manifest, found.sources)
            self._signer.logger.info("no bundle kept", dataset=name, reason=found.reason)
        except (Invalid, Environment) as fault:
            self._signer.logger.error("no bundle kept", dataset=name, fault=str(fault), rule=fault.rule)
        return None


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    engine: EngineUsed
    reproduced: bool
    actual: Actual
    checkpoint: bytes | None
    finding: RowDifference | None


def engine_used(by: EngineInUse) -> EngineUsed:
    """Describes the engine of a run in a statement."""
    used = by.identity
    return EngineUsed(
        name=used.name, digest=used.digest, pinned=by.is_pinned, sandbox=used.sandbox, platform=used.platform
    )
