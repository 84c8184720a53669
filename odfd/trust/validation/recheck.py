"""Runs the step of an unpacked bundle again and reports the result, without daemon, network or trust in anyone.

The run starts from the checkpoint that the accused published, if the bundle holds it (the signature of a step covers
its starting state), else at the first step. It confirms an accusation only on the engine that the transform pins, for a
query that the engine finds strict, and for exactly the answer that the bundle names. Spec: docs/spec/trust.md#bundles.
"""

from __future__ import annotations

import enum
from contextlib import aclosing
from pathlib import Path

import msgspec
import trio

from chain.errors import Invalid
from chain.ids import DatasetId
from chain.model.events import ExecuteTransform
from chain.model.source import Transform
from chain.multihash import Multihash
from chain.state import load_state
from chain.statements.statement import Actual
from engines.contract import Engine, EngineIdentity, ValidateInput, ValidateRequest
from engines.provision.warm import EnginePool
from engines.spark.state.checkpoint import MAX_CHECKPOINT
from odfd.datasets.engine_pins import engine_for
from odfd.transform.driver import fresh_folder
from odfd.transform.inputs import ChainPrefix
from odfd.transform.plan import Blocked, TransformPlan
from odfd.transform.progress import Report, quiet
from odfd.transform.replay import Replayed, ReplayParts, plan_recorded, replay, replay_step
from odfd.trust.evidence.bundle import AccusedStep, IncompleteBundle, Unpacked
from odfd.trust.evidence.comparison_process import compare_in_process
from odfd.trust.evidence.row_diff import RowDifference
from odfd.trust.transform_steps import STEP
from odfd.trust.validation.attestation_publisher import actual_of


class Result(enum.Enum):
    CONFIRMED = "confirmed"
    """The step is wrong: the re-run gives what the bundle says."""
    REFUTED = "refuted"
    """The step is right: the re-run gives what was published."""
    INCOMPLETE = "incomplete"
    """The bundle lacks data that the step reads."""
    UNABLE = "unable"
    """This machine cannot decide it."""


class RecheckAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The result of a re-check, for people and programs."""

    result: str
    reason: str = ""
    bundle: Multihash
    dataset: DatasetId
    """The accused dataset; its key signed ``head``."""
    sequence_number: int
    block: Multihash | None = None
    head: Multihash
    signed_at: str
    state: str | None = None
    """``genesis``: run from the first step on;
    ``compared``: from the checkpoint that the accused published; ``None``: not run.

    A published checkpoint may hide errors before it: a step that is right after it may still be wrong.
    """
    engine: str | None = None
    published: Actual | None = None
    claimed: Actual
    computed: Actual | None = None
    determinism: str | None = None
    """The engine's analysis, if that prevents an accusation."""
    finding: RowDifference | None = None


async def recheck(case: Unpacked, engine: Engine, staging: Path, report: Report = quiet) -> RecheckAnswer:
    """Runs the step again on ``engine``. Raises what engines raise."""
    if isinstance(case, IncompleteBundle):
        return without_engine(case, Result.INCOMPLETE, case.missing)
    return await _Recheck(case, engine, staging, report).run()


class _Recheck:
    """The state of one re-check."""

    def __init__(self, case: AccusedStep, engine: Engine, staging: Path, report: Report) -> None:
        self._case = case
        self._report = report
        self._engine = engine
        engines = EnginePool({"spark": (engine,)})
        self._deps = ReplayParts(chains=case.chains, objects=case.objects, engines=engines, staging=staging)

    async def run(self) -> RecheckAnswer:
        case = self._case
        _, by = await engine_for(self._deps.engines, await trio.to_thread.run_sync(self._transform))
        identity = by.identity
        if by.pin is None or not by.pin.startswith("sha256:"):
            return self._unable("the transform pins no engine, so a difference accuses no signer", identity)
        if not by.is_pinned:
            return self._unable(str(by), identity)
        event = case.step.event
        assert isinstance(event, ExecuteTransform)
        start = event.prev_checkpoint
        if start is None or case.objects.has(start):
            return await self._from_published(start, identity)
        return await self._from_genesis(identity)

    @property
    def _number(self) -> int:
        return self._case.step.sequence_number

    def _transform(self) -> Transform:
        """Returns the transform in force. Raises Invalid without one."""
        state = load_state(ChainPrefix(self._case.chains.chain(self._case.head.dataset), self._number))
        if state.set_transform is None:
            raise Invalid("the step is of no transform", rule="bundle-step")
        return state.set_transform.transform

    async def _from_published(self, name: Multihash | None, identity: EngineIdentity) -> RecheckAnswer:
        """Runs from the state that the step says it started from;
        a step without one is the first, or its query has no state."""
        case = self._case
        if name is not None and case.objects.size(name) > MAX_CHECKPOINT:
            raise Invalid("a checkpoint larger than any may be", rule="open-blocks")
        checkpoint = None if name is None else case.objects.read(name)
        async with fresh_folder(self._deps.staging) as folder:
            outcome = await replay_step(self._deps, case.head.dataset, self._number, checkpoint, folder, self._report)
            state = "genesis" if await trio.to_thread.run_sync(self._is_first) else "compared"
            return await self._judge(outcome, state, identity, checkpoint)

    def _is_first(self) -> bool:
        return self._case.chains.chain(self._case.head.dataset).last_of(STEP, self._number) is None

    async def _from_genesis(self, identity: EngineIdentity) -> RecheckAnswer:
        checkpoint: bytes | None = None
        async with aclosing(replay(self._deps, self._case.head.dataset, self._number + 1, self._report)) as outcomes:
            async for outcome in outcomes:
                if not isinstance(outcome, Replayed) or outcome.block.sequence_number == self._number:
                    return await self._judge(outcome, "genesis", identity, checkpoint)
                if not outcome.is_reproduced:
                    number = outcome.block.sequence_number
                    return self._unable(f"block #{number}, before the accused one, gives another answer here", identity)
                checkpoint = outcome.checkpoint
        raise AssertionError("the accused step is the last of its chain here")

    async def _judge(
        self, outcome: object, state: str, identity: EngineIdentity, checkpoint: bytes | None
    ) -> RecheckAnswer:
        if isinstance(outcome, Blocked):
            return self._answer(Result.INCOMPLETE, identity, outcome.reason, state=state)
        if not isinstance(outcome, Replayed):
            return self._unable(f"the step cannot be run: {outcome}", identity)
        computed = actual_of(outcome.event, outcome.data)
        if outcome.is_reproduced:
            return self._answer(
                Result.REFUTED, identity, "it gives the published result", state=state, computed=computed
            )
        determinism = await self._determinism(checkpoint)
        if determinism != "strict":
            reason = f"the query's determinism is {determinism!r}, so no signer is blamed"
            return msgspec.structs.replace(self._unable(reason, identity), determinism=determinism)
        if computed != self._case.manifest.actual:
            return self._unable("a third result: neither the published one nor that of the bundle", identity)
        return self._answer(
            Result.CONFIRMED,
            identity,
            "; ".join(
                f"{mismatch.field}: {mismatch.recorded} published, {mismatch.computed} computed"
                for mismatch in outcome.mismatches
            ),
            state=state,
            computed=computed,
            finding=await self._finding(outcome),
        )

    async def _finding(self, outcome: Replayed) -> RowDifference | None:
        """Returns the rows and columns that differ, if the bundle holds the published slice."""
        published = self._case.published
        if published is None or outcome.rows is None:
            return None
        return await compare_in_process(self._case.objects.path(published.physical_hash), outcome.rows)

    async def _determinism(self, checkpoint: bytes | None) -> str:
        """Returns this engine's own analysis of the query over these inputs."""
        case = self._case
        _, plan = await trio.to_thread.run_sync(plan_recorded, case.chains, case.head.dataset, self._number, checkpoint)
        assert isinstance(plan, TransformPlan)
        inputs = []
        for view in plan.inputs:
            assert view.schema is not None
            inputs.append(
                ValidateInput(
                    query_alias=view.alias,
                    dataset_id=view.dataset,
                    schema=view.schema,
                    vocab=view.vocab,
                    changelog=bool(view.changelog),
                    unsaid=True if view.changelog is None else None,
                )
            )
        request = ValidateRequest(transform=plan.transform, inputs=tuple(inputs), vocab=plan.state.vocab)
        return (await self._engine.validate(request)).determinism

    def _unable(self, reason: str, identity: EngineIdentity) -> RecheckAnswer:
        return self._answer(Result.UNABLE, identity, reason)

    def _answer(
        self,
        result: Result,
        identity: EngineIdentity,
        reason: str,
        *,
        state: str | None = None,
        computed: Actual | None = None,
        finding: RowDifference | None = None,
    ) -> RecheckAnswer:
        step = self._case.step
        assert isinstance(step.event, ExecuteTransform)
        return msgspec.structs.replace(
            without_engine(self._case, result, reason),
            block=step.hash,
            state=state,
            engine=identity.digest,
            published=actual_of(step.event, step.event.new_data),
            computed=computed,
            finding=finding,
        )


def without_engine(case: Unpacked, result: Result, reason: str) -> RecheckAnswer:
    """Makes an answer that rests on no run."""
    return RecheckAnswer(
        result=result.value,
        reason=reason,
        bundle=case.manifest.id,
        dataset=case.head.dataset,
        sequence_number=case.manifest.sequence_number,
        head=case.head.head,
        signed_at=case.head.issued_at,
        claimed=case.manifest.actual,
    )
