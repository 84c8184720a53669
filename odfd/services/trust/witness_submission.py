"""Submits this node's signed heads to public witnesses, and gossips the cosignatures that they return.

Submission follows a new head and never delays it. Each witness is asked independently: one dataset at a time, at most
every half minute per dataset, at growing intervals while it does not answer, and again when its cosignature ages. A
request discloses nothing that the signed head does not. A dataset is touched in ``loop`` when its head was signed.
Spec: c2sp.org/tlog-witness; docs/spec/trust.md#witnesses; ADR 16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final, NamedTuple

import msgspec
import trio

from chain.errors import Fault, Remote
from chain.ids import DatasetId, KeyDid
from chain.instant import SECOND, Instant
from chain.statements import submission
from chain.statements.checkpoint import TreeCheckpoint
from chain.statements.cosignature import Cosignature
from chain.statements.submission import MAX_ANSWER
from odfd.network.tree_proofs import TreeProofs
from odfd.policy.witness_quorum import PublicWitness
from odfd.runtime.clock import Clock
from odfd.runtime.reconcile_loop import KeyedReconcileLoop
from odfd.runtime.supervision import Life, Logger
from odfd.store.directory import StateDirectory
from odfd.store.keys import journal_topics
from odfd.store.ledger.cosignatures import Cosignatures
from odfd.store.ledger.log import Ledger
from odfd.trust.admission.rules import EARLY_LIMIT
from odfd.trust.witness.submission import (
    LONGEST,
    SOON,
    SubmissionAccepted,
    SubmissionFailed,
    SubmissionRequest,
    Submitter,
)
from odfd.trust.witness.witness import RENEW
from p2p.web.client import HttpAnswer, Poster, Posts

PAUSE: Final = 30.0
"""Seconds between two requests about one dataset to one witness."""
ROUND_SECONDS: Final = 3600.0
"""Seconds between two checks of all datasets even if nothing moves; cosignatures are renewed after days."""


class SubmissionMiss(NamedTuple):
    """The reason why a witness did not cosign."""

    why: str = ""
    log_key: str = ""
    """The log's key, to show to the operator of a witness that does not know this log yet."""


class SubmissionState(msgspec.Struct):
    """The state of one dataset's epoch with one witness."""

    next: float = 0.0
    """When it may be asked again, in seconds of the monotonic clock."""
    miss: SubmissionMiss = SubmissionMiss()
    misses: int = 0
    """Failures since its last cosignature."""


class _Due(NamedTuple):
    tree: TreeCheckpoint
    line: str
    old: int


class WitnessSubmission:
    """Submits the heads of one node. ``witnesses``: those of the settings in force."""

    def __init__(
        self,
        home: StateDirectory,
        witnesses: Callable[[], Sequence[PublicWitness]],
        clock: Clock,
        cosigned: Callable[[Cosignature], None],
        logger: Logger,
        poster: Poster | None = None,
    ) -> None:
        """``poster``: makes requests; replaced in tests."""
        self._home, self._prover = home, TreeProofs(home.database)
        self._witnesses = witnesses
        self._clock = clock
        self._cosigned = cosigned
        self._logger = logger
        self._poster = poster
        self._stack = AsyncExitStack()
        self._turns: dict[tuple[str, KeyDid], SubmissionState] = {}
        self.loop = KeyedReconcileLoop[DatasetId](self._round, ROUND_SECONDS, self._time)

    async def run(self, life: Life) -> None:
        async with AsyncExitStack() as self._stack:
            await self.loop.run(life)

    async def _open(self) -> Poster:
        """Loads what TLS needs on first use, as it takes a while."""
        if self._poster is None:
            self._poster = await self._stack.enter_async_context(Posts())
        return self._poster

    def miss(self, origin: str, witness: KeyDid) -> SubmissionMiss:
        """Returns why the last request was not cosigned; empty after a cosignature, or without a request."""
        return self._turns.get((origin, witness), SubmissionState()).miss

    async def _round(self) -> float:
        witnesses = self._witnesses()
        if not witnesses:
            return ROUND_SECONDS
        poster = await self._open()
        touched = self.loop.take()
        datasets = await trio.to_thread.run_sync(
            lambda: sorted(
                self._home.visibility.public_of(self._home.chains.datasets() if touched is None else touched)
            )
        )
        self._forget(witnesses)
        async with trio.open_nursery() as nursery:
            for witness in witnesses:
                nursery.start_soon(self._with_one, poster, witness, datasets)
        waiting = [turn.next - self._time() for turn in self._turns.values()]
        return min([ROUND_SECONDS, *(pause for pause in waiting if pause > 0)])

    def _time(self) -> float:
        return self._clock.monotonic() / SECOND

    def _forget(self, witnesses: Sequence[PublicWitness]) -> None:
        left = {witness.did for witness in witnesses}
        self._turns = {place: turn for place, turn in self._turns.items() if place[1] in left}

    async def _with_one(self, poster: Poster, witness: PublicWitness, datasets: Sequence[DatasetId]) -> None:
        """Submits datasets to one witness; stops at the first request without an answer,
        and leaves the others for later."""
        for at, dataset in enumerate(datasets):
            try:
                due = await trio.to_thread.run_sync(self._due, dataset, witness)
            except Fault as fault:
                self._logger.info("not submitted", dataset=dataset.short, fault=str(fault), rule=fault.rule)
                continue
            if due is None:
                continue
            turn = self._turns.setdefault((due.tree.origin, witness.did), SubmissionState())
            if self._time() < turn.next:
                self.loop.leave(dataset)  # It is too early.
                continue
            is_away = False
            ended: SubmissionAccepted | SubmissionFailed
            try:
                ended = await self._sit(poster, witness, due)
            except Fault as fault:
                ended, is_away = SubmissionFailed(str(fault), SOON), isinstance(fault, Remote)
            self._note(turn, witness, due, ended)
            if isinstance(ended, SubmissionFailed):
                self.loop.leave(dataset)
            if is_away:
                for later in datasets[at:]:
                    self.loop.leave(later)
                return

    async def _sit(self, poster: Poster, witness: PublicWitness, due: _Due) -> SubmissionAccepted | SubmissionFailed:
        def prove(old: int) -> Sequence[bytes]:
            return self._prover.prove(due.tree.dataset, due.tree.size, old=old)

        latest = Instant(self._clock.now() + EARLY_LIMIT)
        asking = Submitter(witness, due.tree, due.line, due.old, prove, latest)
        answer: HttpAnswer | None = None
        while isinstance(effect := await trio.to_thread.run_sync(self._go_on, asking, answer), SubmissionRequest):
            answer = await poster.post(witness.submit, effect.body, MAX_ANSWER)
        return effect

    def _go_on(
        self, asking: Submitter, answer: HttpAnswer | None
    ) -> SubmissionRequest | SubmissionAccepted | SubmissionFailed:
        """Starts a submission, or handles the answer of the witness, and keeps what it cosigned."""
        effect = asking.start() if answer is None else asking.handle(answer.status, answer.body)
        if isinstance(effect, SubmissionAccepted) and not self._keep(effect.made):
            return SubmissionFailed("what it cosigned is no newer than what it did before")
        return effect

    def _note(
        self, turn: SubmissionState, witness: PublicWitness, due: _Due, ended: SubmissionAccepted | SubmissionFailed
    ) -> None:
        now = self._time()
        if isinstance(ended, SubmissionAccepted):
            turn.next, turn.miss, turn.misses = now + PAUSE, SubmissionMiss(), 0
            self._cosigned(ended.made)
            return
        turn.next = now + min(LONGEST, ended.again * 2**turn.misses)
        turn.misses = min(turn.misses + 1, 16)
        if turn.miss.why != ended.message:
            turn.miss = SubmissionMiss(ended.message, self._key_text(due.tree, due.line))
            self._logger.error(
                "a public witness does not cosign",
                witness=witness.key.name,
                origin=due.tree.origin,
                why=ended.message,
                log_key=turn.miss.log_key,
            )

    def _key_text(self, tree: TreeCheckpoint, line: str) -> str:
        for key in self._home.keys.keys_for(tree.dataset):
            named = submission.log_key(tree, key.public)
            if submission.is_by(line, named):
                return named.encode()
        return ""

    def _due(self, dataset: DatasetId, witness: PublicWitness) -> _Due | None:
        """Returns the tree to submit for a dataset whose head this node signed; ``None`` if it was cosigned lately."""
        with self._home.database.read() as connection:
            newest, checked = Ledger(connection).newest_head(dataset), Ledger(connection).chain(dataset)
            made = [each for each in Cosignatures(connection).of(dataset) if each.witness == witness.did]
        if newest is None:
            return None
        head, signed = newest
        key = next((each for each in self._home.keys.keys_for(dataset) if each.did in signed.signers), None)
        if key is None or head.size > checked.frontier.size or head.epoch != checked.epoch:
            return None
        tree = TreeCheckpoint(dataset, head.epoch, head.size, head.root_hash)
        last = max((each for each in made if each.checkpoint.origin == tree.origin), key=_size, default=None)
        old = 0 if last is None else last.checkpoint.size
        if last is not None and old >= tree.size and self._clock.now() < last.at + RENEW:
            return None
        # Raises Refused if the key's journal is lost, or has another statement on this.
        self._home.keys.may_note(
            key.did, journal_topics.head(key.did, dataset), (head.epoch, head.size), head.root_hash.hex()
        )
        return _Due(tree, submission.sign_note(key, tree), min(old, tree.size))

    def _keep(self, made: Cosignature) -> bool:
        with self._home.database.write() as connection:
            return Cosignatures(connection).keep(made, listed=True)


def _size(made: Cosignature) -> int:
    return made.checkpoint.size
