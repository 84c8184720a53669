"""Moves a derived dataset to another engine: proves that the engine gives the same history, then records its digest.

Every recorded transaction is re-run, from the first one, by this node's engine. If all results are the same, the
owner's node declares the transform anew with that engine's digest: a signed block, which mirrors get like any other.
From then on this dataset does not need the old engine. If one result differs, nothing is recorded. Spec:
docs/spec/engine-semantics.md#evolution.
"""

from __future__ import annotations

from contextlib import aclosing
from functools import partial

import msgspec
import trio

from chain.errors import Invalid
from chain.model.events import SetTransform
from chain.state import ChainState, load_state
from chain.store.base import ChainReader, Head
from chain.walk import newest_first
from engines.contract import EngineIdentity
from odfd.api.datasets.verification import mismatches, unable
from odfd.api.views.task_progress import show_transform
from odfd.control import wire
from odfd.control.board import task_ref
from odfd.datasets.catalog import DatasetEntry
from odfd.datasets.commit import block_time
from odfd.datasets.engine_pins import engine_for
from odfd.obs.events import EventLog
from odfd.runtime.subjects import about
from odfd.runtime.tasks import Report, TaskBoard
from odfd.state.directory import StateDirectory
from odfd.transform.driver import TransformDependencies
from odfd.transform.plan import Rejected
from odfd.transform.replay import Replayed, replay
from odfd.trust.signing.owner_commit import OwnerCommitter


class EngineMigrationService:
    """Proves that an engine reproduces a dataset, and records it; each request is a task."""

    def __init__(
        self,
        home: StateDirectory,
        deps: TransformDependencies,
        committer: OwnerCommitter,
        board: TaskBoard,
        events: EventLog,
    ) -> None:
        self._home = home
        self._deps = deps
        self._committer = committer
        self._board = board
        self._events = events

    async def prove(self, ref: str, request: wire.ProveRequest) -> wire.TaskRef:
        """Proves that this node's engine gives the same history, and records its digest. Result: ProofReport."""

        entry = await trio.to_thread.run_sync(self._home.resolve, ref)
        return task_ref(
            self._board.submit("prove", entry.name, partial(self._alone, entry, request), about(entry.id, inputs=True))
        )

    async def _alone(self, entry: DatasetEntry, request: wire.ProveRequest, report: Report) -> wire.ProofReport:
        # Nothing may be appended between the proof and the block that records it.
        async with self._home.turns.of(entry.id, report.waits_to_write(entry.name)):
            return await self._prove(entry, request, report)

    async def _prove(self, entry: DatasetEntry, request: wire.ProveRequest, report: Report) -> wire.ProofReport:
        chain = self._home.chains.chain(entry.id)
        state = await trio.to_thread.run_sync(load_state, chain)
        declared = state.set_transform
        if declared is None:
            raise Invalid(f"{entry.name} has no transform", rule="prove", hint="name a derived dataset")
        await trio.to_thread.run_sync(partial(self._home.need_data, entry.id, entry.name, whole=True))
        _, by = await engine_for(self._deps.engines, declared.transform)
        identity = by.identity
        report.begin(f"re-running {entry.name} on {identity.name} {identity.version}", None, "transforms")
        failures: list[wire.Failure] = []
        transforms = 0
        async with aclosing(replay(self._deps, entry.id, state.size, partial(show_transform, report))) as outcomes:
            async for outcome in outcomes:
                if isinstance(outcome, Rejected):
                    failures.append(_refused(outcome))
                    break
                if not isinstance(outcome, Replayed):
                    raise unable(entry.name, outcome)
                transforms += 1
                report.done = transforms
                failures += mismatches(outcome)
        proof = wire.ProofReport(
            ref=entry.name,
            dataset_id=str(entry.id),
            head=str(state.head),
            engine=wire.ProvenEngine(name=identity.name, version=identity.version, digest=identity.digest),
            before=by.pin,
            pinned=await trio.to_thread.run_sync(_pinned, chain, state.size),
            transforms=transforms,
            ok=not failures,
            failures=tuple(failures),
        )
        if failures or request.dry_run or by.is_pinned:
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
        if not self._home.keys.has_dataset_key(entry.id):
            return proof
        assert state.head is not None
        transform = msgspec.structs.replace(declared.transform, version=identity.digest)
        event = msgspec.structs.replace(declared, transform=transform)
        head = await self._committer.commit(
            entry.id,
            Head(state.head, state.sequence_number),
            (event,),
            (),
            block_time(state, self._deps.now(), self._home.chains.upper(entry.id)),
        )
        self._events.emit(
            "engine.proven",
            entry.name,
            f"{proof.transforms} transforms, same answers",
            about=about(entry.id),
            digest=identity.digest,
        )
        return msgspec.structs.replace(proof, recorded=str(head.hash))


def _refused(outcome: Rejected) -> wire.Failure:
    """Returns the failure for an engine that refuses the query, which counts as another answer."""
    nowhere = wire.FailedBlock(hash=None, sequence_number=None)
    return wire.Failure(block=nowhere, rule="transform-reproduced", message=str(outcome))


def _pinned(chain: ChainReader, size: int) -> tuple[str, ...]:
    """Lists the engine digests that the transform was ever declared with, each once, oldest first."""
    found: dict[str, None] = {}
    for block in newest_first(chain, ("SetTransform",), size):
        if isinstance(block.event, SetTransform) and block.event.transform.version is not None:
            found[block.event.transform.version] = None
    return tuple(found)[::-1]
