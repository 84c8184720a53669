"""The validator: re-runs the transforms of datasets held here, step by step from genesis, and signs what it found.

A node that attests re-runs all; another one may re-run up to steps that are picked at random, and says nothing of it.
Alive while its ``rounds`` are; a dataset is touched when it moves, or is spoken of. One at a time, oldest step first;
each step starts from the checkpoint that this node's own run of the step before made, which it keeps over restarts. It
accuses only after three more runs, each in a fresh engine process, gave one and the same other answer, on the very
engine that the transform pins, of a query that its own analysis calls strict; anything less is an abstention. What more
than f groups contradict it runs six times more, and takes back what deviates. It never blocks ingestion or mirrors.
Spec: trust.md sections 4 and 5.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Final

import msgspec
import pyarrow.parquet as pq
import trio

from chain import instant
from chain.errors import Environment, Fault, Invalid
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import Block
from chain.model.events import DatasetKind, ExecuteTransform, SetTransform
from chain.multihash import Multihash
from chain.state import load_state
from chain.statements.statement import Actual, EngineUsed
from chain.store.base import ChainReader, ChainStore, ObjectReader
from engines.contract import Engine
from engines.errors import EngineLost, LimitExceeded
from engines.provision.warm import EnginePool
from odfd.errors import sole_fault
from odfd.kit.rounds import UNTIL_POKED, TouchedRounds
from odfd.transform.driver import fresh_folder
from odfd.transform.plan import Blocked
from odfd.transform.replay import Replayed, ReplayParts, ReplayShop, replay_step
from odfd.trust.attesting import actual_of
from odfd.trust.authorities import Authorities
from odfd.trust.evidence import Finding, compare
from odfd.trust.gathering import Case, Gathered, gather
from odfd.trust.ledger import Ledger
from odfd.trust.picking import Picks
from odfd.trust.post import Post
from odfd.trust.proofs import Proofs
from odfd.trust.runs import Place, Run, Runs, run_at
from odfd.trust.shelf import Shelf
from odfd.trust.speaking import Determinism, Speaker, step_after
from odfd.trust.steps import STEP

RUNS: Final = 3
"""Fresh runs that must agree before anyone is accused."""
NONDETERMINISTIC: Final = "nondeterministic"
RUNS_AGAIN: Final = 6
"""More, when more than f groups are of one other mind: any that deviates takes the verdict back."""
RETRY_SECONDS: Final = 30.0
"""After an engine could not do its work, or an input was not here."""
ALL_SECONDS: Final = 3600.0
"""After so long a round looks at all datasets, touched or not."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the validator needs beside the node's stores."""

    shop: ReplayShop
    fresh_engine: Callable[[], AbstractAsyncContextManager[Engine]]
    """An engine in a process that nobody else uses, nor used before; it ends with the context."""
    determinism: Determinism
    wanted: Callable[[], bool] = lambda: True
    """Whether the policy in force says to attest; asked at each round."""
    pause: Callable[[], float] = lambda: 600.0
    """Seconds between two attestations of a dataset that tell nothing bad; asked at each round."""
    share: Callable[[], float] = lambda: 1.0
    """Of steps that are picked to be re-run, each with all before it; asked at each round."""
    contradicted: Callable[[DatasetId], Iterable[int]] = lambda _: ()
    """Steps that were run here and on which more than f groups are of one other mind."""
    shelf: Shelf | None = None
    """Where bundles go; ``None``: this node accuses without keeping any."""


class Validator:
    """See the module."""

    def __init__(self, post: Post, settings: Settings) -> None:
        self._post = post
        self._settings = settings
        self._speaker = Speaker(post, settings.shop.chains, settings.determinism)
        self.rounds = TouchedRounds[DatasetId](self._round, ALL_SECONDS)
        self._picks = Picks(post.keys.node_key())
        self._due: dict[DatasetId, Instant] = {}
        """When what was found and is not urgent will be said."""
        self._kept_from: dict[DatasetId, _KeptFrom] = {}
        self.busy: str | None = None
        """What it re-runs now, for people."""

    @property
    def _chains(self) -> ChainStore:
        return self._settings.shop.chains

    @property
    def _objects(self) -> ObjectReader:
        return self._settings.shop.objects

    async def _round(self) -> float:
        """All that can be done now; a step that is cut off is done again after the next start."""
        if not self._settings.share():
            return UNTIL_POKED
        touched, clear = self.rounds.take(), True
        for dataset in await trio.to_thread.run_sync(self._derivatives, touched, self._ripe()):
            if not await self._attempt(dataset):
                self.rounds.leave(dataset)
                clear = False
        return min([*self._waits().values(), UNTIL_POKED if clear else RETRY_SECONDS])

    def _ripe(self) -> list[DatasetId]:
        """Of which it is time to say what was found; they are asked for once, for they may be here no more."""
        ripe = [dataset for dataset, wait in self._waits().items() if not wait]
        for dataset in ripe:
            del self._due[dataset]
        return ripe

    def _waits(self) -> dict[DatasetId, float]:
        """Seconds until what was found is said."""
        now = self._post.clock.now()
        return {dataset: max(0.0, (due - now) / instant.SECOND) for dataset, due in self._due.items()}

    async def _attempt(self, dataset: DatasetId) -> bool:
        """Validate one dataset; whether nothing is left that another try could change."""
        try:
            return await self.validate(dataset)
        except (Fault, BaseExceptionGroup) as error:
            fault = sole_fault(error)
            if fault is None:
                raise
            self._post.journal.error("validation put off", dataset=self._post.name_of(dataset), fault=str(fault))
            self._note_kept_from(dataset, _why_not(fault), str(fault))
            if self._settings.wanted():
                await self._say_why(dataset)
            return False
        finally:
            self.busy = None

    async def _say_why(self, dataset: DatasetId) -> None:
        """There is no verdict; unless it is signing that cannot be done, as by a key without its journal."""
        try:
            await self._say(dataset)
        except Fault as fault:
            self._post.journal.info("validation not told", dataset=self._post.name_of(dataset), fault=str(fault))

    def _note_kept_from(self, dataset: DatasetId, why: str, told: str) -> None:
        """Told to people once, and to others when it lasts."""
        before = self._kept_from.get(dataset)
        if why and (before is None or before.why != why):
            self._kept_from[dataset] = _KeptFrom(why, self._post.clock.now())
            self._post.events.emit("verdict.put-off", self._post.name_of(dataset), f"{why}: {told}", reason=why)

    def _derivatives(self, touched: Collection[DatasetId] | None, ripe: Collection[DatasetId]) -> list[DatasetId]:
        found = []
        for dataset in self._chains.datasets() if touched is None else sorted({*touched, *ripe}):
            state = load_state(self._chains.chain(dataset))
            if state.kind is DatasetKind.DERIVATIVE and not self._post.keys.has_dataset_key(dataset):
                found.append(dataset)
        return found

    async def validate(self, dataset: DatasetId) -> bool:
        """Re-run every step not yet run, then sign and announce what is new. ``False``: something was put off."""
        name = self._post.name_of(dataset)
        complete = True
        while True:
            step = await trio.to_thread.run_sync(self._next_step, dataset)
            if step is None:
                self._kept_from.pop(dataset, None)
                break
            self.busy = f"{name} #{step.block.sequence_number}"
            run = await self._judge(dataset, step)
            if run is None:
                complete = False
                break
            self._kept_from.pop(dataset, None)
            self._tell(name, run)
        await self._look_again(dataset)
        if not self._settings.wanted():
            return complete
        await self._say(dataset)
        return complete

    async def _say(self, dataset: DatasetId) -> None:
        """What is new, when its time has come. What keeps from a verdict is said when it lasts: it may soon be over."""
        self._due.pop(dataset, None)
        pause, kept = self._settings.pause(), self._kept_from.get(dataset)
        lasting = None if kept is None else pause - (self._post.clock.now() - kept.since) / instant.SECOND
        why = kept.why if kept is not None and lasting is not None and lasting <= 0 else ""
        due = await trio.to_thread.run_sync(self._speaker.due, dataset, pause, why)
        if due is None and lasting is not None and lasting > 0:
            due = lasting
        if due == 0:
            await self._speaker.say(dataset, why)
        elif due is not None:
            self._due[dataset] = Instant(self._post.clock.now() + int(due * instant.SECOND))

    async def _look_again(self, dataset: DatasetId) -> None:
        """Run again what others contradict, once for each step, until a verdict is taken back."""
        for number in await trio.to_thread.run_sync(self._doubted, dataset):
            self.busy = f"{self._post.name_of(dataset)} #{number} again"
            step = await self._step_at(dataset, number)
            run = None if step is None else await self._run_again(dataset, step)
            if run is not None:
                self._tell(self._post.name_of(dataset), run)
                return

    def _doubted(self, dataset: DatasetId) -> list[int]:
        chain = self._chains.chain(dataset)
        with self._post.database.read() as connection:
            kept = Runs(connection)
            again, runs = kept.looked_again(dataset), kept.of(dataset)
        found = (number for number in sorted(self._settings.contradicted(dataset)) if run_at(runs, number) is not None)
        return [number for number in found if again.get(number) != chain.block_at(number).hash]

    async def _step_at(self, dataset: DatasetId, number: int) -> _Step | None:
        """A step that was run before, from the state that this node's own runs make; ``None``: not now."""
        chain = self._chains.chain(dataset)
        with self._post.database.read() as connection:
            place = Runs(connection).place(dataset)
        block, before = chain.block_at(number), await trio.to_thread.run_sync(chain.last_of, STEP, number)
        if before is None or (place is not None and place.sequence_number == before.sequence_number):
            return _Step(block, place if before is not None else None)
        state: Place | None = None
        while (earlier := await trio.to_thread.run_sync(step_after, chain, state, number)) is not None:
            step = _Step(earlier, state)
            answer = await self._once(dataset, step)
            if answer is None:
                return None
            if not answer.reproduced:
                return step
            state = Place(earlier.sequence_number, earlier.hash, answer.checkpoint)
        return _Step(block, state)

    async def _run_again(self, dataset: DatasetId, step: _Step) -> Run | None:
        """Six times more; the verdict that is left when any of them deviates from what was said."""
        number = step.block.sequence_number
        with self._post.database.read() as connection:
            said = run_at(Runs(connection).of(dataset), number)
        if said is None or said.verdict not in ("reproduced", "mismatch"):
            return None
        for _ in range(RUNS_AGAIN):
            async with self._settings.fresh_engine() as own:
                answer = await self._once(dataset, step, own)
            if answer is None:
                return None
            if answer.actual != said.actual if said.verdict == "mismatch" else not answer.reproduced:
                run = self._run(step, said.engine, "not-reproducible-here", answer, reason=NONDETERMINISTIC,
                                runs=said.runs + RUNS_AGAIN)  # fmt: skip
                return await trio.to_thread.run_sync(self._take_back, dataset, step, run)
        await trio.to_thread.run_sync(self._note_again, dataset, step.block)
        return None

    def _take_back(self, dataset: DatasetId, step: _Step, run: Run) -> Run | None:
        with self._post.database.write() as connection:
            if not self._is_here(dataset, step.block):
                return None
            Runs(connection).take_back(dataset, run, step.after)
        return run

    def _note_again(self, dataset: DatasetId, block: Block) -> None:
        with self._post.database.write() as connection:
            Runs(connection).note_again(dataset, block.sequence_number, block.hash, self._post.clock.now())

    def _next_step(self, dataset: DatasetId) -> _Step | None:
        """The first step after the last that was replayed; none after a mismatch, for what follows builds on it."""
        chain = self._chains.chain(dataset)
        with self._post.database.read() as connection:
            kept, checked = Runs(connection), Ledger(connection).chain(dataset)
            place, runs = kept.place(dataset), kept.of(dataset)
        if any(run.verdict != "reproduced" for run in runs.values()):
            return None
        stop, share = checked.data, self._settings.share()
        if share < 1:
            picked = self._picks.last(chain, dataset, stop, share)
            stop = 0 if picked is None else picked + 1
        step = step_after(chain, place, stop)
        return None if step is None else _Step(step, place)

    async def _judge(self, dataset: DatasetId, step: _Step) -> Run | None:
        """Run a step, three times if need be, and keep the verdict. ``None``: it could not be run now."""
        engine = await self._engine(dataset, step.block)
        first = await self._once(dataset, step)
        if first is None:
            return None
        if first.reproduced:
            run = self._run(step, engine, "reproduced", first)
            place = Place(step.block.sequence_number, step.block.hash, first.checkpoint)
            return await trio.to_thread.run_sync(self._keep, dataset, step, run, place)
        if not engine.pinned:
            run = self._run(step, engine, "not-reproducible-here", first, reason="engine-not-pinned")
            return await trio.to_thread.run_sync(self._keep, dataset, step, run, None)
        again = []
        for _ in range(RUNS):
            async with self._settings.fresh_engine() as own:
                another = await self._once(dataset, step, own)
            if another is None:
                return None
            again.append(another)
        same = all(each.actual == first.actual for each in again)
        reason = await self._why_nobody_is_blamed(dataset) if same else NONDETERMINISTIC
        verdict = "not-reproducible-here" if reason else "mismatch"
        run = self._run(step, engine, verdict, first, reason=reason, runs=RUNS)
        if not reason:
            kept = await trio.to_thread.run_sync(self._keep_bundle, dataset, step, first.actual)
            run = msgspec.structs.replace(run, bundle=kept)
        return await trio.to_thread.run_sync(self._keep, dataset, step, run, None)

    async def _why_nobody_is_blamed(self, dataset: DatasetId) -> str:
        """By this node's own analysis of the query; empty: a difference is somebody's fault."""
        found = await self._settings.determinism(dataset)
        return {"strict": "", "no": NONDETERMINISTIC}.get(found, "determinism-unknown")

    async def _once(self, dataset: DatasetId, step: _Step, own: Engine | None = None) -> _Answer | None:
        """One run, on the engine that everybody uses or on one of its ``own``."""
        shop: ReplayShop = self._settings.shop
        if own is not None:
            engines = EnginePool({"spark": own})
            shop = ReplayParts(chains=shop.chains, objects=shop.objects, engines=engines, staging=shop.staging)
        async with fresh_folder(shop.staging) as folder:
            outcome = await replay_step(shop, dataset, step.block.sequence_number, step.checkpoint, folder)
            if not isinstance(outcome, Replayed):
                self._post.journal.info("step not re-run", dataset=self._post.name_of(dataset), reason=str(outcome))
                is_blocked = isinstance(outcome, Blocked)
                told = outcome.reason if isinstance(outcome, Blocked) else str(outcome)
                why = await trio.to_thread.run_sync(self._lacks, step.block) if is_blocked else "query-refused"
                self._note_kept_from(dataset, why, told)
                return None
            finding = None
            if not outcome.is_reproduced:
                finding = await trio.to_thread.run_sync(self._differences, step.block, outcome)
            return _Answer(
                reproduced=outcome.is_reproduced,
                actual=actual_of(outcome.event, outcome.data),
                checkpoint=outcome.checkpoint,
                finding=finding,
            )

    def _lacks(self, block: Block) -> str:
        """Of an input that is forked no more comes: it is not waited for like one that is on its way."""
        assert isinstance(block.event, ExecuteTransform)
        with self._post.database.read() as connection:
            ledger, known = Ledger(connection), Proofs(connection)
            inputs = [each.dataset_id for each in block.event.query_inputs]
            forked = any(known.forked_at(each, ledger.chain(each).epoch) is not None for each in inputs)
        return "input-disputed" if forked else "input-missing"

    def _differences(self, block: Block, outcome: Replayed) -> Finding:
        """Rows and columns that differ, when both slices are at hand."""
        assert isinstance(block.event, ExecuteTransform)
        published = block.event.new_data
        if published is None or outcome.rows is None:
            return Finding(message="; ".join(f"{each.field}: {each.recorded} published, {each.computed} computed"
                                             for each in outcome.mismatches))  # fmt: skip
        return compare(pq.read_table(self._objects.path(published.physical_hash)), pq.read_table(outcome.rows))

    async def _engine(self, dataset: DatasetId, block: Block) -> EngineUsed:
        chain = self._chains.chain(dataset)
        transform = await trio.to_thread.run_sync(_transform_at, chain, block.sequence_number)
        identity = await self._settings.shop.engines.engine(transform.transform.engine).identity()
        return EngineUsed(
            name=identity.name,
            digest=identity.digest,
            pinned=transform.transform.version == identity.digest,
            sandbox=identity.sandbox,
            platform=identity.platform,
        )

    def _run(
        self, step: _Step, engine: EngineUsed, verdict: str, answer: _Answer, *, reason: str = "", runs: int = 1
    ) -> Run:
        return Run(
            sequence_number=step.block.sequence_number,
            block=step.block.hash,
            at=self._post.clock.now(),
            verdict=verdict,
            reason=reason,
            runs=runs,
            engine=engine,
            actual=answer.actual,
            evidence=answer.finding.to_bytes() if answer.finding else None,
        )

    def _keep(self, dataset: DatasetId, step: _Step, run: Run, place: Place | None) -> Run | None:
        """``None``, and nothing is kept, when the chain got another history while the step ran."""
        with self._post.database.write() as connection:
            kept = Runs(connection)
            if kept.place(dataset) != step.after or not self._is_here(dataset, step.block):
                self._post.journal.info(
                    "run forgotten", dataset=self._post.name_of(dataset), reason="rewritten meanwhile"
                )
                return None
            kept.keep(dataset, run)
            if place is not None:
                kept.keep_place(dataset, place)
        return run

    def _is_here(self, dataset: DatasetId, block: Block) -> bool:
        found = next(self._chains.chain(dataset).raw_blocks(block.sequence_number, block.sequence_number + 1), None)
        return found == block.raw

    def _keep_bundle(self, dataset: DatasetId, step: _Step, actual: Actual) -> Multihash | None:
        """The evidence as one file. The verdict stands without it: whoever doubts runs the step again."""
        if self._settings.shelf is None:
            return None
        with self._post.database.read() as connection:
            newest = Ledger(connection).newest_head(dataset)
            versions = tuple(signed for _, signed in Authorities(connection).versions(dataset))
        name = self._post.name_of(dataset)
        if newest is None:
            self._post.journal.info("no bundle kept", dataset=name, reason="no signed head is known")
            return None
        case = Case(
            head=newest[0],
            signed=newest[1],
            step=step.block,
            checkpoint=step.checkpoint,
            actual=actual,
            authority=versions,
        )
        try:
            found = gather(self._chains, self._objects, case)
            if isinstance(found, Gathered):
                return self._settings.shelf.keep(found.manifest, found.sources)
            self._post.journal.info("no bundle kept", dataset=name, reason=found.reason)
        except (Invalid, Environment) as fault:
            self._post.journal.error("no bundle kept", dataset=name, fault=str(fault), rule=fault.rule)
        return None

    def _tell(self, name: str, run: Run) -> None:
        number = run.sequence_number
        if run.verdict == "reproduced":
            self._post.events.emit("verdict.reproduced", name, f"#{number} re-run, same answer", block=number)
            return
        finding = Finding.from_bytes(run.evidence) if run.evidence else Finding(message=run.reason)
        cell = finding.cells[0] if finding.cells else None
        where = (
            f", row {cell.row}, column {cell.column}: {cell.published} published, {cell.computed} computed"
            if cell
            else ""
        )
        self._post.events.emit(
            f"verdict.{run.verdict}", name, f"#{number}: {finding.message}{where}", block=number, reason=run.reason
        )


class _KeptFrom(msgspec.Struct, frozen=True):
    """What keeps this node from running the next step of a dataset, and since when."""

    why: str
    since: Instant


def _why_not(fault: Fault) -> str:
    """As attestations say it; empty for what is no lasting lack of this machine."""
    if isinstance(fault, LimitExceeded):
        return "resource-limit"
    if isinstance(fault, EngineLost):
        return "sandbox-refused" if fault.rule.startswith("sandbox") else "engine-missing"
    return ""


class _Step(msgspec.Struct, frozen=True):
    block: Block
    after: Place | None
    """Where the replay stood when it was chosen."""

    @property
    def checkpoint(self) -> bytes | None:
        return self.after.checkpoint if self.after else None


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    reproduced: bool
    actual: Actual
    checkpoint: bytes | None
    finding: Finding | None


def _transform_at(chain: ChainReader, sequence_number: int) -> SetTransform:
    block = chain.last_of(("SetTransform",), sequence_number)
    assert block is not None
    assert isinstance(block.event, SetTransform)
    return block.event
