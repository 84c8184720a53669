"""Re-checks evidence that listed validators name, for datasets held here: fetches the bundle and runs its step again.

It takes one bundle at a time, the most urgent first, and none while the validator works. The result is this node's own
verdict (docs/spec/trust.md#rechecks): the published step is wrong if three more runs, each in a fresh engine process,
gave the same other answer; it is right only if the run began at the first step, because a run from a published
checkpoint cannot see an error in that checkpoint. A validator whose evidence was untrue is not re-checked for a day; a
bundle that could not be fetched or run is retried after growing pauses. Works while its ``loop`` runs.
Spec: docs/spec/trust.md#rechecks, #room.

Chooses which bundles of evidence to check: those that listed validators name, about steps held here. A bundle is not
fetched if only strangers name it, if this node has its own verdict on the step, or if evidence of the same group was
found untrue within the last day. Spec: docs/spec/trust.md#rechecks, #room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from functools import cache, partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import trio

from chain import instant
from chain.errors import Fault, Invalid, NotFound
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import envelope, statement
from chain.statements.statement import ATTESTATION, Attestation, EngineUsed
from chain.store.base import ChainStore
from chain.store.files import disk
from engines.contract import Engine, EngineIdentity
from odfd.errors import sole_fault
from odfd.policy.policy import Policy
from odfd.runtime.reconcile_loop import UNTIL_POKED, KeyedReconcileLoop
from odfd.runtime.subjects import about
from odfd.store.ledger.log import Ledger
from odfd.store.ledger.runs import CONFIRMED, REPRODUCED, UNABLE, UNFIT, Recheck, Rechecks, RecordedRun, run_at
from odfd.transform.driver import fresh_folder
from odfd.transform.progress import Report, Showing, unseen
from odfd.trust.evidence.bundle import IncompleteBundle, Unpacked, unpacked
from odfd.trust.evidence.bundle_store import BundleStore
from odfd.trust.judgement.trust_evaluator import TrustEvaluator
from odfd.trust.judgement.verdicts import VerdictKind, group_verdicts, verdict_on
from odfd.trust.signing.signer_context import SignerContext
from odfd.trust.validation.recheck import RecheckAnswer, Result, recheck, without_engine
from odfd.trust.validation.reexecution import NONDETERMINISTIC, RUNS


class Claim(NamedTuple):
    """A bundle that a listed group names; the most urgent sorts first."""

    doubt: int
    """0 if more than f groups say the same, so that the step is refuted or split."""
    step: int
    bundle: Multihash
    group: str
    dataset: DatasetId
    signers: tuple[KeyDid, ...]
    """Signers of the attestations that name it."""


class OwnFindings(msgspec.Struct, frozen=True, kw_only=True):
    """This node's own findings about a dataset."""

    runs: Mapping[int, RecordedRun]
    """Its verdicts, including those of re-checks."""
    done: Mapping[Multihash, Recheck]
    resting: Collection[str]
    """Groups whose evidence is not fetched at present."""
    engine: str | None
    """Digest of the engine here; ``None``: there is none, so evidence is only stored."""
    has: Callable[[Multihash], bool]
    """Whether a bundle is kept here."""


def claims(
    policy: Policy,
    dataset: DatasetId,
    attestations: Mapping[KeyDid, Attestation],
    suspended: Collection[str],
    own: OwnFindings,
) -> list[Claim]:
    """Lists the claims to check for a dataset, in order. ``attestations`` are about the chain held here."""
    verdicts_at = cache(partial(group_verdicts, policy, attestations, suspended=suspended))
    found: dict[Multihash, Claim] = {}
    for key, attestation in sorted(attestations.items()):
        group = policy.group_of(key)
        for wrong in attestation.mismatch if group is not None else ():
            verdicts = verdicts_at(wrong.sequence_number)
            mine = verdict_on(attestation, wrong.sequence_number)
            if wrong.bundle is None or group is None or mine is None or verdicts.get(group) != mine:
                continue
            if mine.kind is not VerdictKind.MISMATCH or run_at(own.runs, wrong.sequence_number) is not None:
                continue
            alike = Counter(verdicts.values())[mine]
            named = (*found[wrong.bundle].signers, key) if wrong.bundle in found else (key,)
            found[wrong.bundle] = Claim(
                int(alike <= policy.tolerated), wrong.sequence_number, wrong.bundle, group, dataset, named
            )
    return sorted(each for each in found.values() if _is_open(each, found.values(), own))


def _is_open(claim: Claim, all_of_them: Collection[Claim], own: OwnFindings) -> bool:
    if claim.group in own.resting:
        return False
    if own.engine is None:
        # One bundle of a step that so many call refuted is kept, since others may ask for it.
        return not claim.doubt and not any(own.has(each.bundle) for each in all_of_them if each.step == claim.step)
    before = own.done.get(claim.bundle)
    return before is None or (before.result == UNABLE and before.run.engine.digest != own.engine)


SECONDS: Final = 600.0
"""Seconds for all runs of one bundle."""
RETRY: Final = 600 * instant.SECOND
"""The first pause after evidence could not be fetched or run; each further pause is twice as long."""
MAX_RETRY: Final = 24 * 3600 * instant.SECOND
BUSY_SECONDS: Final = 30.0
"""Seconds until the next check whether the validator has finished."""


class RecheckerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings and dependencies besides stores and trust."""

    bundles: BundleStore
    fetch: Callable[[Multihash], Awaitable[object]]
    """Fetches a bundle into the store, under limits. Raises NotFound, Remote, Invalid, Environment."""
    engine: Engine
    fresh_engine: Callable[[], AbstractAsyncContextManager[Engine]]
    """Starts an engine in a process of its own, never used before."""
    has_engine: Callable[[], bool]
    staging: Path
    """Folder for temporary folders, one at a time; emptied at the start."""
    wanted: Callable[[], bool]
    """Whether the policy in force asks for re-checks; called at each round."""
    is_free: Callable[[], bool]
    """Whether no other step is being re-run."""
    changed: Callable[[DatasetId], None]
    """Called when this node has its own verdict on a dataset."""
    showing: Showing = unseen


class _Pause(msgspec.Struct, frozen=True):
    until: Instant
    length: int


class EvidenceRechecker:
    """Re-checks evidence in the background for one node."""

    def __init__(
        self, signer: SignerContext, chains: ChainStore, evaluator: TrustEvaluator, settings: RecheckerSettings
    ) -> None:
        self._signer = signer
        self._chains = chains
        self._evaluator = evaluator
        self._settings = settings
        self.loop = KeyedReconcileLoop[DatasetId](self._round)
        """A dataset is touched by a verdict on it or another chain of it; all of them by another policy."""
        self._open: dict[DatasetId, list[Claim]] = {}
        self._pauses: dict[Multihash, _Pause] = {}
        self.rests: float | None = None
        """Seconds until there is something to do, as of the last round; ``None``: a round is under way."""

    async def _round(self) -> float:
        self.rests = None
        self.rests = await self._next()
        return self.rests

    async def _next(self) -> float:
        """Checks one bundle, if one is due; returns the seconds until the next round, in which its result counts."""
        if not self._settings.wanted():
            self.loop.take()  # all is touched when the policy changes
            return UNTIL_POKED
        engine = await self._identity()
        await trio.to_thread.run_sync(self._scan, self.loop.take(), engine)
        now = self._signer.clock.now()
        waiting = sorted(claim for each in self._open.values() for claim in each)
        self._pauses = {claim.bundle: self._pauses[claim.bundle] for claim in waiting if claim.bundle in self._pauses}
        due = next((claim for claim in waiting if self._until(claim) <= now), None)
        if due is None:
            until = min(map(self._until, waiting), default=None)
            return UNTIL_POKED if until is None else (until - now) / instant.SECOND
        if engine is not None and not self._settings.is_free():
            return BUSY_SECONDS
        await self._attempt(due, engine)
        return 0.0

    def _until(self, claim: Claim) -> int:
        pause = self._pauses.get(claim.bundle)
        return 0 if pause is None else pause.until

    async def _identity(self) -> EngineIdentity | None:
        """Returns the engine's identity, waiting if it is about to be known; ``None``: there is no engine here."""
        try:
            return await self._settings.engine.identity() if self._settings.has_engine() else None
        except Fault:
            return None

    def _scan(self, touched: set[DatasetId] | None, engine: EngineIdentity | None) -> None:
        if touched is None:
            self._open = {}
            with self._signer.database.read() as connection:
                touched = set(Ledger(connection).datasets(ATTESTATION))
        for dataset in touched:
            self._open.pop(dataset, None)
            if found := self._claims(dataset, engine):
                self._open[dataset] = found

    def _claims(self, dataset: DatasetId, engine: EngineIdentity | None) -> list[Claim]:
        if self._signer.keys.has_dataset_key(dataset):
            return []  # whoever made a step adds nothing by making it once more
        with self._signer.database.read() as connection:
            if not any(attestation.mismatch for attestation in Ledger(connection).attestations(dataset).values()):
                return []
            rechecks = Rechecks(connection)
            done, resting = rechecks.of(dataset), rechecks.resting(self._signer.clock.now())
        if self._chains.chain(dataset).head() is None:
            return []
        known, bundles = self._evaluator.known(dataset), self._settings.bundles
        own = OwnFindings(
            runs=known.runs,
            done=done,
            resting=resting,
            engine=None if engine is None else engine.digest,
            has=bundles.has,
        )
        others = {key: attestation for key, attestation in known.attestations.items() if key != self._evaluator.me}
        return claims(self._evaluator.policy_of(dataset), dataset, others, known.suspended, own)

    async def _attempt(self, claim: Claim, engine: EngineIdentity | None) -> None:
        try:
            await self._settings.fetch(claim.bundle)
            if engine is not None:
                await self._run(claim, engine)
            self._pauses.pop(claim.bundle, None)
        except NotFound as fault:
            self._put_off(claim, fault)
        except Invalid as fault:
            # The file is no evidence, or is invalid although its hash is the name.
            await trio.to_thread.run_sync(self._settings.bundles.drop, claim.bundle)
            await self._keep(claim, _verdictless(claim, str(fault), engine, self._signer.clock.now()), UNFIT)
        except (Fault, BaseExceptionGroup) as error:
            found = sole_fault(error)
            if found is None:
                raise
            self._put_off(claim, found)
        self.loop.touch(claim.dataset)

    def _put_off(self, claim: Claim, fault: Fault) -> None:
        before = self._pauses.get(claim.bundle)
        length = RETRY if before is None else min(2 * before.length, MAX_RETRY)
        self._pauses[claim.bundle] = _Pause(Instant(self._signer.clock.now() + length), length)
        name = self._signer.name_of(claim.dataset)
        self._signer.logger.info("evidence put off", dataset=name, bundle=claim.bundle.short, fault=str(fault))

    async def _run(self, claim: Claim, engine: EngineIdentity) -> None:
        async with fresh_folder(self._settings.staging) as folder:
            async with self._unpack(claim, folder) as case:
                answer, runs = await self._answer(claim, case, folder)
            run = _run(claim, answer, runs, engine, self._signer.clock.now())
        await self._keep(claim, run, CONFIRMED if run.verdict == VerdictKind.MISMATCH.value else answer.result)

    @asynccontextmanager
    async def _unpack(self, claim: Claim, folder: Path) -> AsyncIterator[Unpacked]:
        path = self._settings.bundles.path(claim.bundle)
        with ExitStack() as opened:

            def enter() -> Unpacked:
                with disk(path):
                    file = opened.enter_context(path.open("rb"))
                return opened.enter_context(unpacked(file, claim.bundle.short, folder))

            yield await trio.to_thread.run_sync(enter)

    async def _answer(self, claim: Claim, case: Unpacked, folder: Path) -> tuple[RecheckAnswer, int]:
        """Re-checks a bundle; returns the answer and the number of runs.
        Raises Invalid for evidence of something else."""
        if case.head.dataset != claim.dataset or case.manifest.sequence_number != claim.step:
            raise Invalid("it is about another step than the attestation names", rule="bundle-step")
        if not isinstance(case, IncompleteBundle):
            here = await trio.to_thread.run_sync(self._hash_at, claim)
            if case.step.hash != here:
                raise Invalid("its step is not the block of this chain", rule="bundle-step")
        staging = folder / "staging"
        staging.mkdir()
        with trio.move_on_after(SECONDS), self._settings.showing(claim.dataset, claim.step) as report:
            return await self._thrice(case, staging, report)
        return without_engine(case, Result.UNABLE, f"the re-runs took longer than {SECONDS:g} s"), 0

    def _hash_at(self, claim: Claim) -> Multihash | None:
        chain = self._chains.chain(claim.dataset)
        head = chain.head()
        return None if head is None or claim.step >= head.size else chain.block_at(claim.step).hash

    async def _thrice(self, case: Unpacked, staging: Path, report: Report) -> tuple[RecheckAnswer, int]:
        """Checks a difference three more times, each in a new process, before this node accuses."""
        first = await recheck(case, self._settings.engine, staging, report)
        for number in range(1, RUNS + 1) if first.result == CONFIRMED else ():
            async with self._settings.fresh_engine() as own:
                another = await recheck(case, own, staging, report)
            if (another.result, another.computed) != (first.result, first.computed):
                return msgspec.structs.replace(first, result=UNABLE, reason=NONDETERMINISTIC), number
        return first, RUNS if first.result == CONFIRMED else 1

    async def _keep(self, claim: Claim, run: RecordedRun, result: str) -> None:
        found = Recheck(bundle=claim.bundle, dataset=claim.dataset, group=claim.group, result=result, run=run)
        await trio.to_thread.run_sync(self._record, claim, found)
        name = self._signer.name_of(claim.dataset)
        message = f"#{claim.step}, accused by {claim.group}: {_SAYING[result]}"
        reason = f" ({run.reason})" if run.reason else ""
        self._signer.events.emit(
            "evidence.rechecked",
            name,
            message + reason,
            about=about(claim.dataset, inputs=True),
            block=claim.step,
            bundle=str(claim.bundle),
            result=result,
        )
        self._settings.changed(claim.dataset)

    def _record(self, claim: Claim, found: Recheck) -> None:
        with self._signer.database.write() as connection:
            attestations = Ledger(connection).attestations(claim.dataset)
            sids = [envelope.sid(statement.encode(attestations[key])) for key in claim.signers if key in attestations]
            Rechecks(connection).keep(found, sids, self._evaluator.policy.digest)


_SAYING: Final = {
    "confirmed": "it is wrong, the re-run here says so too",
    "refuted": "it is right: the re-run here gives the published result",
    "incomplete": "the evidence does not hold what the step reads",
    "unable": "this machine cannot decide",
    UNFIT: "the named file is not evidence",
}


def _run(claim: Claim, answer: RecheckAnswer, runs: int, engine: EngineIdentity, now: Instant) -> RecordedRun:
    """Converts an answer to a run of this node, with the verdict that it supports, if any."""
    blank = _verdictless(claim, answer.reason, engine, now)
    if answer.block is None:
        return blank
    run = msgspec.structs.replace(blank, block=answer.block, runs=runs)
    if answer.result == CONFIRMED:
        evidence = None if answer.finding is None else answer.finding.to_bytes()
        return msgspec.structs.replace(
            run, verdict=VerdictKind.MISMATCH.value, actual=answer.computed, evidence=evidence
        )
    # A run from a published checkpoint cannot see an error in it (test_a_forged_checkpoint_makes_no_own_word).
    if answer.result == Result.REFUTED.value and answer.state == "genesis":
        return msgspec.structs.replace(run, verdict=REPRODUCED, actual=answer.computed)
    if answer.reason == NONDETERMINISTIC or answer.determinism == "no":
        return msgspec.structs.replace(run, verdict=VerdictKind.NONDETERMINISTIC.value, reason=NONDETERMINISTIC)
    return run


def _verdictless(claim: Claim, reason: str, engine: EngineIdentity | None, now: Instant) -> RecordedRun:
    used = EngineUsed(
        name="" if engine is None else engine.name,
        digest="" if engine is None else engine.digest,
        pinned=engine is not None,
        sandbox="" if engine is None else engine.sandbox,
        platform="" if engine is None else engine.platform,
    )
    return RecordedRun(
        sequence_number=claim.step, block=claim.bundle, at=now, verdict="", reason=reason, runs=0, engine=used
    )
