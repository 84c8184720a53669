"""A validator that meets a lie: three fresh runs, a bundle on the shelf, a verdict that names it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from chain import instant
from chain.ids import DatasetId
from chain.model.events import ExecuteTransform
from chain.statements import statement
from chain.statements.envelope import Signed
from chain.statements.statement import Attestation
from chain.statements.tree import Frontier
from chain.store.database import Database, open_database
from odfd.obs.events import EventLog
from odfd.store.keys.keystore import KeyStore
from odfd.store.ledger import log as ledger_room
from odfd.store.ledger.log import CheckedChain, Ledger
from odfd.store.ledger.runs import Runs
from odfd.trust.evidence.bundle import unpacked
from odfd.trust.evidence.bundle_store import BundleStore
from odfd.trust.signing.signer_context import SignerContext
from odfd.trust.validation.recheck import recheck
from odfd.trust.validation.reexecution import RUNS, RUNS_AGAIN
from odfd.trust.validation.validator import Validator, ValidatorSettings
from worlds.clock import FixedClock


class Silence:
    def __init__(self) -> None:
        self.told: list[str] = []

    def info(self, event: str, **_facts: object) -> None:
        self.told.append(event)

    def error(self, event: str, **_facts: object) -> None:
        self.told.append(event)


class Node:
    """A validating node beside the accused one: same blocks and objects, its own ledger, keys and shelf."""

    def __init__(self, accused: Any, database: Database, folder: Path) -> None:
        self.accused, self.database = accused, database
        self.said: list[Signed] = []
        self.fresh = 0
        self.against: list[int] = []
        """Steps on which others are of another mind."""
        self.wobbles: set[int] = set()
        """Which of the fresh engines give another answer, by their number."""
        self.logger = Silence()
        self.determinism = "strict"
        self.dropped: list[str] = []
        self.bundles = BundleStore(folder / "evidence")
        (folder / "evidence").mkdir()
        self.clock = clock = FixedClock(instant.parse("2026-11-20T09:00:00Z"))
        settings = ValidatorSettings(
            deps=accused.world.deps,
            fresh_engine=self._fresh_engine,
            determinism=self._determinism,
            contradicted=lambda _: self.against,
            bundles=self.bundles,
            step_seconds=lambda: 600,
            drop_engine=lambda _, why: self.dropped.append(why),
        )
        keys = KeyStore(folder / "keys", lambda count: b"v" * count)
        signer = SignerContext(
            database=database,
            keys=keys,
            events=EventLog(clock),
            clock=clock,
            logger=self.logger,
            announce=lambda _, signed: self.said.append(signed),
            name_of=str,
            public_of=frozenset,
        )
        self.validator = Validator(signer, settings)

    @contextlib.asynccontextmanager
    async def _fresh_engine(self) -> AsyncIterator[Any]:
        """In place of the one that everybody uses, which must not be touched meanwhile."""
        self.fresh += 1
        self.accused.engine.lies = self.fresh in self.wobbles
        yield self.accused.engine
        self.accused.engine.lies = False

    async def _determinism(self, _: DatasetId) -> str:
        return self.determinism

    def learn(self) -> None:
        """The accused's signed head, and that its blocks are here whole."""
        head, signed = self.accused.head()
        with self.database.write() as connection:
            ledger = Ledger(connection)
            ledger.record(signed, signed.signers[0], "advance", "", head.issued, live=True)
            tree = Frontier().extend(self.accused.leaves)
            ledger.keep_chain(self.accused.dataset, CheckedChain(tree, tree.size))

    @property
    def last_word(self) -> Attestation:
        said = statement.decode(self.said[-1].payload)
        assert isinstance(said, Attestation)
        return said


@pytest.fixture
def node(accused: Any, tmp_path: Path) -> Iterator[Node]:
    with contextlib.closing(open_database(tmp_path / "node.sqlite")) as database:
        database.migrate(ledger_room.ROOM, ledger_room.STEPS)
        yield Node(accused, database, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("compared_apart")
async def test_a_lie_is_kept_and_named(accused: Any, accused_world: Any, node: Node, tmp_path: Path) -> None:
    await accused.publish(2)
    node.learn()
    assert await node.validator.validate(accused.dataset)
    (wrong,) = node.last_word.mismatch
    step = accused.chain.head().sequence_number
    assert (wrong.sequence_number, wrong.runs, node.fresh) == (step, RUNS, RUNS)
    assert wrong.bundle is not None
    (tmp_path / "again" / "staging").mkdir(parents=True)
    with node.bundles.path(wrong.bundle).open("rb") as file, unpacked(file, "kept", tmp_path / "again") as case:
        found = await recheck(case, accused_world.LyingEngine(), tmp_path / "again" / "staging")
    assert (found.result, found.claimed, found.bundle) == ("confirmed", wrong.actual, wrong.bundle)
    again = len(node.said)
    assert await node.validator.validate(accused.dataset)
    assert len(node.said) == again


async def test_a_truth_needs_no_bundle(accused: Any, node: Node, tmp_path: Path) -> None:
    await accused.publish(2, lies=False)
    node.learn()
    await node.validator.validate(accused.dataset)
    assert node.last_word.mismatch == ()
    assert {span.verdict for span in node.last_word.spans} >= {"reproduced"}
    assert node.fresh == 0
    assert kept(tmp_path) == []


async def test_an_unpinned_engine_accuses_nobody(accused: Any, node: Node, tmp_path: Path) -> None:
    await accused.publish(1, pin=None)
    node.learn()
    await node.validator.validate(accused.dataset)
    assert node.last_word.mismatch == ()
    assert "engine-not-pinned" in {span.reason for span in node.last_word.spans}
    assert kept(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(("found", "reason"), [("no", "nondeterministic"), ("unknown", "determinism-unknown")])
async def test_a_query_that_is_not_strict_accuses_nobody(
    accused: Any, node: Node, tmp_path: Path, found: str, reason: str
) -> None:
    """Three fresh runs agree with each other, and the analysis here says that this means nothing."""
    await accused.publish(1)
    node.learn()
    node.determinism = found
    await node.validator.validate(accused.dataset)
    assert node.last_word.mismatch == ()
    assert [span.reason for span in node.last_word.spans if span.verdict == "not-reproducible-here"] == [reason]
    assert kept(tmp_path) == []


@pytest.mark.slow
async def test_a_verdict_stands_without_its_bundle(accused: Any, node: Node, tmp_path: Path) -> None:
    """The shelf's disk fails: the accusation is made all the same, and says that it has no bundle."""
    await accused.publish(1)
    node.learn()
    remove(tmp_path / "evidence")
    await node.validator.validate(accused.dataset)
    (wrong,) = node.last_word.mismatch
    assert wrong.bundle is None
    assert "no bundle kept" in node.logger.told


def kept(folder: Path) -> list[str]:
    return [path.name for path in (folder / "evidence").iterdir()]


def remove(folder: Path) -> None:
    folder.rmdir()


def steps_of(accused: Any) -> list[int]:
    chain = accused.chain
    return [at for at in range(chain.head().size) if isinstance(chain.block_at(at).event, ExecuteTransform)]


def verdicts(node: Node) -> list[tuple[int, int, str]]:
    return [(span.first, span.last, span.verdict) for span in node.last_word.spans]


async def more(accused: Any, node: Node, at: int, *, lies: bool = False) -> None:
    """One more step, checked here."""
    accused.world.add_rows([100 + at], 10_000 * at)
    await accused.derive(lies=lies)
    node.learn()
    assert await node.validator.validate(accused.dataset)


@pytest.mark.slow
async def test_truths_are_told_every_ten_minutes_at_most_and_a_lie_at_once(accused: Any, node: Node) -> None:
    await accused.publish(1, lies=False)
    node.learn()
    await node.validator.validate(accused.dataset)
    node.clock.advance(100 * instant.SECOND)
    await more(accused, node, 1)
    await more(accused, node, 2)
    assert (len(node.said), node.last_word.serial) == (1, 1)
    assert await node.validator._round() == 500.0
    node.clock.advance(499 * instant.SECOND)
    assert await node.validator._round() == 1.0
    node.clock.advance(instant.SECOND)
    assert await node.validator._round() > 1e9
    assert (len(node.said), node.last_word.serial, node.last_word.size) == (2, 2, accused.chain.head().size)
    assert await node.validator._round() > 1e9
    assert len(node.said) == 2, "said once"
    await more(accused, node, 3, lies=True)
    assert (len(node.said), len(node.last_word.mismatch)) == (3, 1)


async def test_what_is_deleted_before_it_is_said_keeps_nobody_busy(accused: Any, node: Node) -> None:
    await accused.publish(1, lies=False)
    node.learn()
    await node.validator.validate(accused.dataset)
    await more(accused, node, 1)
    assert await node.validator._round() == 600.0
    accused.world.chains.drop(accused.dataset)
    node.clock.advance(600 * instant.SECOND)
    assert await node.validator._round() > 1e9
    assert len(node.said) == 1


async def test_a_clock_that_went_back_silences_nobody_for_longer(accused: Any, node: Node) -> None:
    await accused.publish(1, lies=False)
    node.learn()
    await node.validator.validate(accused.dataset)
    node.clock.advance(-1000 * instant.SECOND)
    await more(accused, node, 1)
    assert await node.validator._round() == 600.0


@pytest.mark.slow
async def test_what_others_contradict_is_run_six_times_more_and_stands(accused: Any, node: Node) -> None:
    await accused.publish(3, lies=False)
    node.learn()
    await node.validator.validate(accused.dataset)
    steps = steps_of(accused)
    node.against = steps
    said = verdicts(node)
    assert await node.validator.validate(accused.dataset)
    assert (node.fresh, verdicts(node), len(node.said)) == (RUNS_AGAIN * len(steps), said, 1)
    await node.validator.validate(accused.dataset)
    assert node.fresh == RUNS_AGAIN * len(steps), "once for each step"


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1, 2])
async def test_any_deviation_takes_a_verdict_back(accused: Any, node: Node, which: int) -> None:
    """Of three steps that all were reproduced one gives another answer at the fourth try: the rest is silence."""
    await accused.publish(3, lies=False)
    node.learn()
    await node.validator.validate(accused.dataset)
    steps = steps_of(accused)
    node.against, node.wobbles = [steps[which]], {4}
    await node.validator.validate(accused.dataset)
    assert node.fresh == 4
    expected = [(steps[which], steps[which], "not-reproducible-here")]
    if which:
        expected.insert(0, (0, steps[which] - 1, "reproduced"))
    said = verdicts(node)
    assert [each for each in said if each[2] != "not-attempted"] == expected
    assert node.last_word.spans[len(said) - (which < 2) - 1].reason == "nondeterministic"
    with node.database.read() as connection:
        place = Runs(connection).place(accused.dataset)
    assert (None if place is None else place.sequence_number) == (steps[which - 1] if which else None)
    await node.validator.validate(accused.dataset)
    assert node.fresh == 4, "what follows is not run, and what was taken back stays so"


@pytest.mark.slow
async def test_an_accusation_that_does_not_repeat_is_taken_back(accused: Any, node: Node) -> None:
    await accused.publish(2)
    node.learn()
    await node.validator.validate(accused.dataset)
    (wrong,) = node.last_word.mismatch
    node.against, node.wobbles = [wrong.sequence_number], {node.fresh + RUNS_AGAIN}
    await node.validator.validate(accused.dataset)
    assert node.last_word.mismatch == ()
    assert verdicts(node)[-1] == (wrong.sequence_number, wrong.sequence_number, "not-reproducible-here")


class Spins:
    """An engine that never ends a transform, as a nested aggregate over a sequence makes it."""

    def __init__(self, honest: Any, clock: trio.testing.MockClock) -> None:
        self.honest, self.clock, self.began, self.spins = honest, clock, 0, True

    async def transform(self, *args: Any) -> Any:
        self.began += 1
        if self.spins:
            self.clock.jump(600)
            await trio.sleep_forever()
        return await self.honest.transform(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.honest, name)


async def test_a_step_that_never_ends_is_given_up_with_growing_pauses_and_told(
    accused: Any, node: Node, mock_clock: trio.testing.MockClock
) -> None:
    """Held the engine for an hour at a time, and again half a minute later, for ever."""
    await accused.publish(1, lies=False)
    node.learn()
    engine = accused.engine.honest = Spins(accused.engine.honest, mock_clock)
    waits, began = [], trio.current_time()
    for _ in range(4):
        wait = await node.validator._round()
        waits.append(wait)
        node.clock.advance(int(wait * instant.SECOND))
    assert waits == [600.0, 1200.0, 2400.0, 4800.0]
    assert (engine.began, node.fresh, len(node.dropped)) == (5, 4, 1), "after the first time in a process of its own"
    assert trio.current_time() - began == 5 * 600
    span = node.last_word.spans[-1]
    assert (span.verdict, span.reason) == ("not-attempted", "too-costly")
    assert node.last_word.budget is not None
    assert node.last_word.budget.seconds == 600
    assert len(node.said) == 1, "said once"
    engine.spins = False
    await node.validator._round()
    node.clock.advance(600 * instant.SECOND)
    await node.validator._round()
    assert node.last_word.spans[-1].verdict == "reproduced"
    assert node.last_word.budget is None
