"""Re-runs the transforms of datasets held here, step by step from genesis, and signs the results.

A node that attests re-runs all steps; another one may re-run up to steps that are picked at random, and publishes
nothing about it. Works while its ``loop`` runs; a dataset is touched when it moves, or a statement about it comes. It
runs one step at a time: of each dataset the oldest, for the publisher who used the engine least;
``reexecution`` judges each step. It never blocks ingestion or mirrors. Spec: docs/spec/trust.md#attestations, #cost,
#suspension.

Decides which steps a validator runs, in which order, for how long, and when it retries those too costly. A validator
that does not run all steps picks a share of them by a secret: a pick depends only on the secret and the block, so that
restarts pick alike, waiting changes nothing, and the publisher cannot predict it.

Engine time is shared among publishers, not among datasets or steps: the publisher that used least lately comes first,
and half of the use is forgotten every ``HALF_LIFE``. A step has a budget of seconds. A step that exceeds it in the
shared engine, where the work of others may have slowed it, is run once more in a process of its own; so are all steps
of its publisher until it was run, so that they delay nobody else. A step that exceeds the budget there too is too
costly to verify, which is no verdict on it: this is published, and the step is tried again after pauses that double.
Kept in memory: a restart costs two more tries. Spec: docs/spec/trust.md#policy, #cost.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
from collections.abc import Callable, Collection, Iterable
from typing import Final

import msgspec
import trio
from cachetools import LRUCache

from chain import instant
from chain.errors import Fault
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.model.events import DatasetKind
from chain.multihash import Multihash
from chain.state import load_state
from chain.statements.keys import SigningKey
from chain.store.base import ChainReader, ChainStore
from chain.walk import newest_first
from engines.errors import EngineLost, LimitExceeded
from odfd.errors import sole_faults
from odfd.runtime.reconcile_loop import UNTIL_POKED, KeyedReconcileLoop
from odfd.runtime.spans import span
from odfd.runtime.subjects import about
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.log import Ledger
from odfd.store.ledger.runs import RecordedRun, Runs, run_at
from odfd.trust.evidence.row_diff import RowDifference
from odfd.trust.judgement.verdicts import TOO_COSTLY
from odfd.trust.signing.signer_context import SignerContext
from odfd.trust.transform_steps import STEP
from odfd.trust.validation.attestation_publisher import AttestationPublisher, step_after
from odfd.trust.validation.reexecution import Reexecution, ReexecutionDependencies, ReexecutionStep, TooCostly

FIRST_PAUSE: Final = 600 * instant.SECOND
MAX_PAUSE: Final = 7 * 86400 * instant.SECOND
HALF_LIFE: Final = 3600 * instant.SECOND
"""Time in which half of the engine time that a publisher used is forgotten."""
MAX_KNOWN: Final = 16_384
"""Publishers, and paused datasets, that are remembered."""


class _Used(msgspec.Struct, frozen=True):
    seconds: float
    at: Instant

    def by(self, now: Instant) -> float:
        return self.seconds * float(0.5 ** (max(0, now - self.at) / HALF_LIFE))


class Pause(msgspec.Struct, frozen=True):
    """The pause of a dataset whose next step was too costly."""

    step: int
    until: Instant
    length: int
    tries: int


class CostBudget:
    """Tracks the engine time that one validator spends on each publisher."""

    def __init__(self) -> None:
        self._used: LRUCache[KeyDid, _Used] = LRUCache(MAX_KNOWN)
        self._apart: LRUCache[DatasetId, KeyDid] = LRUCache(MAX_KNOWN)
        """Datasets whose next step exceeded the budget in the shared engine, with their publishers."""
        self._pauses: LRUCache[DatasetId, Pause] = LRUCache(MAX_KNOWN)

    def charge(self, publisher: KeyDid, seconds: float, now: Instant) -> None:
        """Records that an engine worked ``seconds`` for a publisher."""
        before = self._used.get(publisher)
        self._used[publisher] = _Used((before.by(now) if before else 0.0) + seconds, now)

    def used(self, publisher: KeyDid, now: Instant) -> float:
        """Returns the engine seconds that a publisher used lately."""
        known = self._used.get(publisher)
        return known.by(now) if known else 0.0

    def next(self, waiting: Iterable[tuple[DatasetId, KeyDid]], now: Instant) -> DatasetId | None:
        """Picks the next dataset: the first of the publisher that used least, of those not paused."""
        due = [(self.used(publisher, now), dataset) for dataset, publisher in waiting if not self.wait(dataset, now)]
        return min(due)[1] if due else None

    def isolate(self, dataset: DatasetId, publisher: KeyDid) -> None:
        """Isolates a dataset's steps after one exceeded the budget in the shared engine."""
        self._apart[dataset] = publisher

    def exceeded(self, dataset: DatasetId, publisher: KeyDid, step: int, now: Instant) -> Pause:
        """Records that a step was too costly; returns the pause before it is tried again."""
        self.isolate(dataset, publisher)
        before = self._pauses.get(dataset)
        again = before is not None and before.step == step
        length = min(2 * before.length, MAX_PAUSE) if before is not None and again else FIRST_PAUSE
        tries = before.tries + 1 if before is not None and again else 1
        pause = Pause(step, Instant(now + length), length, tries)
        self._pauses[dataset] = pause
        return pause

    def met(self, dataset: DatasetId) -> None:
        """Records that the dataset's next step was run within the budget."""
        self._pauses.pop(dataset, None)
        self._apart.pop(dataset, None)

    def paused(self, dataset: DatasetId) -> Pause | None:
        """Returns the dataset's pause, if its next step was too costly at the last try."""
        return self._pauses.get(dataset)

    def wait(self, dataset: DatasetId, now: Instant) -> float:
        """Returns the seconds until the dataset may be tried again; 0 if it does not pause."""
        pause = self._pauses.get(dataset)
        return max(0.0, (pause.until - now) / instant.SECOND) if pause else 0.0

    def is_isolated(self, publisher: KeyDid) -> bool:
        """Whether a publisher's steps run in an engine process of their own."""
        return publisher in self._apart.values()


MARK = b"odfd-spot-check\n"
"""The text signed to derive the secret. No statement, checkpoint or record begins like it; the signature stays here."""
_ALL = 1 << 64


class _Memo(msgspec.Struct, frozen=True):
    size: int
    last: Multihash
    """The last block of the first ``size`` blocks."""
    share: float
    picked: int | None


class Sample:
    """Picks the steps that one node runs; remembers how far each chain was searched."""

    def __init__(self, key: SigningKey) -> None:
        self._secret = hashlib.sha3_256(key.sign(MARK)).digest()
        self._memos: dict[DatasetId, _Memo] = {}

    def is_picked(self, block: Multihash, share: float) -> bool:
        drawn = hmac.digest(self._secret, bytes(block), "sha3_256")
        return int.from_bytes(drawn[:8]) < share * _ALL

    def last(self, chain: ChainReader, dataset: DatasetId, size: int, share: float) -> int | None:
        """Returns the last picked step of the first ``size`` blocks; costs only the steps added since the last call."""
        if size < 1:
            return None
        memo = self._memos.get(dataset)
        if memo is None or memo.share != share or memo.size > size or chain.block_at(memo.size - 1).hash != memo.last:
            memo = None
        start, picked = (0, None) if memo is None else (memo.size, memo.picked)
        for block in newest_first(chain, STEP, size):
            if block.sequence_number < start:
                break
            if self.is_picked(block.hash, share):
                picked = block.sequence_number
                break
        self._memos[dataset] = _Memo(size, chain.block_at(size - 1).hash, share, picked)
        return picked


RETRY_SECONDS: Final = 30.0
"""Seconds until the next try after an engine could not do its work, or an input was not here."""
ALL_SECONDS: Final = 3600.0
"""Seconds after which a round checks all datasets, touched or not."""


class ValidatorSettings(ReexecutionDependencies, frozen=True, kw_only=True):
    """Settings and dependencies besides the node's stores."""

    wanted: Callable[[], bool] = lambda: True
    """Whether the policy in force asks to attest; called at each round."""
    pause: Callable[[], float] = lambda: 600.0
    """Seconds between two attestations of a dataset that report no problem; called at each round."""
    share: Callable[[], float] = lambda: 1.0
    """Share of steps that are picked to be re-run, each with all before it; called at each round."""
    contradicted: Callable[[DatasetId], Iterable[int]] = lambda _: ()
    """Returns the steps run here on which more than f groups agree on another verdict."""


class TurnOutcome(enum.Enum):
    """The outcome of a dataset's turn."""

    GOES_ON = "goes-on"
    COMPLETE = "complete"
    """Nothing is left that another try could change."""
    PUT_OFF = "put-off"


class Validator:
    """Re-runs and attests datasets for one node."""

    def __init__(self, signer: SignerContext, settings: ValidatorSettings) -> None:
        self._signer = signer
        self._settings = settings
        self._costs = CostBudget()
        self._trials = Reexecution(signer, settings, self._note_kept_from, self._charge)
        self._speaker = AttestationPublisher(signer, settings.deps.chains, settings.determinism)
        self.loop = KeyedReconcileLoop[DatasetId](self._round, ALL_SECONDS)
        self._picks = Sample(signer.keys.node_key())
        self._due: dict[DatasetId, Instant] = {}
        """The times when findings that are not urgent will be published."""
        self._kept_from: dict[DatasetId, _KeptFrom] = {}
        self._stepping = trio.Lock()
        self.busy: str | None = None
        """The dataset that it re-runs now, for people; ``None``: none."""

    @property
    def _chains(self) -> ChainStore:
        return self._settings.deps.chains

    async def _round(self) -> float:
        """Does everything that can be done now; a step that is interrupted is run again after the next start."""
        if not self._settings.share():
            return UNTIL_POKED
        touched, clear, pauses = self.loop.take(), True, []
        found = await trio.to_thread.run_sync(self._derivatives, touched, self._ripe())
        waiting = dict(zip(found, await trio.to_thread.run_sync(self._publishers, found), strict=True))
        while (dataset := self._costs.next(waiting.items(), self._signer.clock.now())) is not None:
            done = await self._attempt(dataset)
            if done is TurnOutcome.GOES_ON:
                continue
            if not self._costs.paused(dataset):
                del waiting[dataset]
            if done is TurnOutcome.PUT_OFF:
                self.loop.leave(dataset)
                clear = clear and self._costs.paused(dataset) is not None
        for dataset in waiting:
            self.loop.leave(dataset)
            pauses.append(self._costs.wait(dataset, self._signer.clock.now()))
            await self._log_why_not(dataset)
        return min([*self._waits().values(), *pauses, UNTIL_POKED if clear else RETRY_SECONDS])

    def _publisher(self, dataset: DatasetId) -> KeyDid:
        return self._publishers([dataset])[0]

    def _publishers(self, datasets: Iterable[DatasetId]) -> list[KeyDid]:
        """Returns the publisher of each dataset, since engine time is shared among publishers."""
        with self._signer.database.read() as connection:
            kept = Authorities(connection)
            return [min(kept.rights(dataset).writers) for dataset in datasets]

    def _is_isolated(self, dataset: DatasetId) -> bool:
        return self._costs.is_isolated(self._publisher(dataset))

    def _charge(self, dataset: DatasetId, seconds: float) -> None:
        self._costs.charge(self._publisher(dataset), seconds, self._signer.clock.now())

    def _ripe(self) -> list[DatasetId]:
        """Returns and forgets the datasets whose attestation is due;
        each is returned once, as it may be deleted by then."""
        ripe = [dataset for dataset, wait in self._waits().items() if not wait]
        for dataset in ripe:
            del self._due[dataset]
        return ripe

    def _waits(self) -> dict[DatasetId, float]:
        """Returns the seconds until the findings of each dataset are published."""
        now = self._signer.clock.now()
        return {dataset: max(0.0, (due - now) / instant.SECOND) for dataset, due in self._due.items()}

    async def _attempt(self, dataset: DatasetId) -> TurnOutcome:
        """Runs one step of a dataset, or finishes it; handles faults."""
        try:
            with sole_faults():
                return await self._advance(dataset)
        except Fault as fault:
            name = self._signer.name_of(dataset)
            self._signer.logger.error("validation put off", dataset=name, fault=str(fault))
            if isinstance(fault, TooCostly):
                publisher = await trio.to_thread.run_sync(self._publisher, dataset)
                if not self._costs.is_isolated(publisher):
                    self._costs.isolate(dataset, publisher)
                    return TurnOutcome.GOES_ON
            if isinstance(fault, LimitExceeded):
                await self._pause(dataset)
            self._note_kept_from(dataset, _why_not(fault), str(fault))
            if self._settings.wanted():
                await self._log_why_not(dataset)
            return TurnOutcome.PUT_OFF
        finally:
            self.busy = None

    async def _pause(self, dataset: DatasetId) -> None:
        """Pauses a dataset whose next step was too costly; the pause grows with the number of tries."""
        step = await trio.to_thread.run_sync(self._next_step, dataset)
        number = -1 if step is None else step.block.sequence_number
        publisher = await trio.to_thread.run_sync(self._publisher, dataset)
        pause = self._costs.exceeded(dataset, publisher, number, self._signer.clock.now())
        name, until = self._signer.name_of(dataset), instant.render(pause.until)
        self._signer.logger.info("step too costly", dataset=name, block=number, tries=pause.tries, again=until)

    async def _log_why_not(self, dataset: DatasetId) -> None:
        """Attests that there is no verdict; logs if even that cannot be signed, as by a key without its journal."""
        try:
            await self._attest(dataset)
        except Fault as fault:
            self._signer.logger.info(
                "validation not announced", dataset=self._signer.name_of(dataset), fault=str(fault)
            )

    def _note_kept_from(self, dataset: DatasetId, why: str, text: str) -> None:
        """Reports the reason why a step cannot be run, once, and remembers since when, as a lasting one is attested."""
        before = self._kept_from.get(dataset)
        if why and (before is None or before.why != why):
            self._kept_from[dataset] = _KeptFrom(why, self._signer.clock.now())
            self._signer.events.emit(
                "verdict.put-off",
                self._signer.name_of(dataset),
                f"{why}: {text}",
                about=about(dataset, inputs=True),
                reason=why,
            )

    def _derivatives(self, touched: Collection[DatasetId] | None, ripe: Collection[DatasetId]) -> list[DatasetId]:
        found = []
        for dataset in self._chains.datasets() if touched is None else sorted({*touched, *ripe}):
            state = load_state(self._chains.chain(dataset))
            if state.kind is DatasetKind.DERIVATIVE and not self._signer.keys.has_dataset_key(dataset):
                found.append(dataset)
        return found

    async def validate(self, dataset: DatasetId) -> bool:
        """Re-runs every step not yet run, then signs and announces new results. ``False``: something was put off."""
        while (done := await self._advance(dataset)) is TurnOutcome.GOES_ON:
            pass
        return done is TurnOutcome.COMPLETE

    async def _advance(self, dataset: DatasetId) -> TurnOutcome:
        """Runs the next step; after the last one, or if it cannot be run now, publishes new findings."""
        # A step that another task kept meanwhile would be run for nothing, and told of as put off.
        async with self._stepping:
            with span("validation", self._signer.name_of(dataset)):
                return await self._one_step(dataset)

    async def _one_step(self, dataset: DatasetId) -> TurnOutcome:
        name, complete = self._signer.name_of(dataset), True
        with span("plan"):
            await self._trials.begin_anew(dataset)
            step = await trio.to_thread.run_sync(self._next_step, dataset)
        if step is not None:
            self.busy = f"{name} #{step.block.sequence_number}"
            apart = await trio.to_thread.run_sync(self._is_isolated, dataset)
            run = await self._trials.run(dataset, step, apart=apart)
            complete = run is not None
            if run is not None:
                self._costs.met(dataset)
                self._kept_from.pop(dataset, None)
                self._announce(dataset, run)
                return TurnOutcome.GOES_ON
        else:
            self._kept_from.pop(dataset, None)
        await self._rerun_contradicted(dataset)
        if self._settings.wanted():
            await self._attest(dataset)
        return TurnOutcome.COMPLETE if complete else TurnOutcome.PUT_OFF

    async def _attest(self, dataset: DatasetId) -> None:
        """Attests new results when they are due. A reason that prevents a verdict is attested only if it lasts."""
        self._due.pop(dataset, None)
        pause, kept = self._settings.pause(), self._kept_from.get(dataset)
        lasting = None if kept is None else pause - (self._signer.clock.now() - kept.since) / instant.SECOND
        if kept is not None and kept.why == TOO_COSTLY:
            lasting = 0.0  # it was seen, and does not pass by itself
        why = kept.why if kept is not None and lasting is not None and lasting <= 0 else ""
        due = await trio.to_thread.run_sync(self._speaker.due, dataset, pause, why)
        if due is None and lasting is not None and lasting > 0:
            due = lasting
        if due == 0:
            with span("sign"):
                await self._speaker.say(dataset, why, self._settings.step_seconds())
        elif due is not None:
            self._due[dataset] = Instant(self._signer.clock.now() + int(due * instant.SECOND))

    async def _rerun_contradicted(self, dataset: DatasetId) -> None:
        """Runs steps again that others contradict, once for each step, until a verdict is taken back."""
        for number in await trio.to_thread.run_sync(self._list_doubted, dataset):
            self.busy = f"{self._signer.name_of(dataset)} #{number} again"
            step = await self._trials.step_at(dataset, number)
            run = None if step is None else await self._trials.run_again(dataset, step)
            if run is not None:
                self._announce(dataset, run)
                return

    def _list_doubted(self, dataset: DatasetId) -> list[int]:
        chain = self._chains.chain(dataset)
        with self._signer.database.read() as connection:
            kept = Runs(connection)
            again, runs = kept.looked_again(dataset), kept.of(dataset)
        found = (number for number in sorted(self._settings.contradicted(dataset)) if run_at(runs, number) is not None)
        return [number for number in found if again.get(number) != chain.block_at(number).hash]

    def _next_step(self, dataset: DatasetId) -> ReexecutionStep | None:
        """Returns the first step after the last replayed one; none after a mismatch, since later steps build on it."""
        chain = self._chains.chain(dataset)
        with self._signer.database.read() as connection:
            kept, checked = Runs(connection), Ledger(connection).chain(dataset)
            place, runs = kept.place(dataset), kept.of(dataset)
        if any(run.verdict != "reproduced" for run in runs.values()):
            return None
        stop, share = checked.data, self._settings.share()
        if share < 1:
            picked = self._picks.last(chain, dataset, stop, share)
            stop = 0 if picked is None else picked + 1
        step = step_after(chain, place, stop)
        return None if step is None else ReexecutionStep(step, place)

    def _announce(self, dataset: DatasetId, run: RecordedRun) -> None:
        number, name = run.sequence_number, self._signer.name_of(dataset)
        told = about(dataset, inputs=True)
        if run.verdict == "reproduced" and run.engine.pinned:
            self._signer.events.emit(
                "verdict.reproduced", name, f"#{number} re-run, same answer", about=told, block=number
            )
            return
        if run.verdict == "reproduced":
            self._signer.events.emit(
                "verdict.not-reproducible-here",
                name,
                f"#{number}: another engine than the pinned one gives the same rows, which proves "
                "nothing about the pinned one",
                about=told,
                block=number,
                reason=run.reason,
            )
            return
        finding = RowDifference.from_bytes(run.evidence) if run.evidence else RowDifference(message=run.reason)
        cell = finding.cells[0] if finding.cells else None
        where = (
            f", row {cell.row}, column {cell.column}: {cell.published} published, {cell.computed} computed"
            if cell
            else ""
        )
        self._signer.events.emit(
            f"verdict.{run.verdict}",
            name,
            f"#{number}: {finding.message}{where}",
            about=told,
            block=number,
            reason=run.reason,
        )


class _KeptFrom(msgspec.Struct, frozen=True):
    """The reason why this node cannot run the next step of a dataset, and since when."""

    why: str
    since: Instant


def _why_not(fault: Fault) -> str:
    """Returns the reason for an attestation; empty if the fault is no lasting one of this machine."""
    if isinstance(fault, TooCostly):
        return TOO_COSTLY
    if isinstance(fault, LimitExceeded):
        return "resource-limit"
    if isinstance(fault, EngineLost):
        return "sandbox-refused" if fault.rule.startswith("sandbox") else "engine-missing"
    return ""
