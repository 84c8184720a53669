"""A validator: what it samples, compares, attests, and what it does when it meets a lie."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import itertools
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.codec.blocks import encode_block
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import Block, MetadataBlock
from chain.model.events import (
    DatasetKind,
    ExecuteTransform,
    ExecuteTransformInput,
    MetadataEvent,
    Seed,
    SetInfo,
    SetTransform,
    TransformInput,
)
from chain.model.source import SqlQueryStep, TransformSql
from chain.multihash import Multihash
from chain.statements import statement
from chain.statements.envelope import Signed
from chain.statements.keys import SigningKey
from chain.statements.statement import Actual, Attestation, EngineUsed, Span
from chain.statements.tree import Frontier
from chain.store.database import Database, open_database
from odfd.obs.events import EventLog
from odfd.store.keys.keystore import KeyStore
from odfd.store.ledger import log as ledger_room
from odfd.store.ledger.log import CheckedChain, Ledger
from odfd.store.ledger.runs import RecordedRun, Runs
from odfd.trust.evidence import comparison_process
from odfd.trust.evidence.bundle import unpacked
from odfd.trust.evidence.bundle_store import BundleStore
from odfd.trust.evidence.comparison_process import MEMORY, OUT_OF_MEMORY, compare_in_process, why_ended
from odfd.trust.evidence.row_diff import RowDifference, compare
from odfd.trust.evidence.row_diff import compare as compare_files
from odfd.trust.judgement.trust_evaluator import MOST_DECLARATIONS, held_to_pins
from odfd.trust.judgement.verdicts import GroupVerdict, VerdictKind, result_of, verdict_on
from odfd.trust.signing.signer_context import SignerContext
from odfd.trust.validation.attestation_publisher import MAX_SPANS, Reexecuted, Subject, attest, spans_of
from odfd.trust.validation.recheck import recheck
from odfd.trust.validation.reexecution import RUNS, RUNS_AGAIN
from odfd.trust.validation.validator import Sample, Validator, ValidatorSettings
from worlds.chains import linked
from worlds.clock import FixedClock

# A validator that meets a lie: three fresh runs, a bundle on the shelf, a verdict that names it.


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
    """Attack T-VERDICT-03: a query wrongly classified as deterministic.

    Defence: a contradicted result is computed six more times; any deviation withdraws the verdict.

    Of three steps that all were reproduced one gives another answer at the fourth try: the rest is silence.
    """
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
    """Attack T-QUERY-02: an expensive step that occupies a validator's engine.

    Defence: a budget of engine seconds; beyond it the engine process ends, pauses double up to a week, and the
    validator signs the fact.

    Held the engine for an hour at a time, and again half a minute later, for ever.
    """
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


# A slice that is small on disk and vast in memory is compared in a process of its own, under its limits.

ROWS = 4096


def bomb(path: Path, last: str) -> Path:
    """Half a MiB that says one long text four thousand times: 2 GiB as values."""
    rng = np.random.default_rng(7)
    text = "".join(chr(97 + each) for each in rng.integers(0, 26, 1 << 19))
    values = pa.DictionaryArray.from_arrays(pa.array([0] * (ROWS - 1) + [1], pa.int32()), pa.array([text, last]))
    table = pa.table(
        {"offset": pa.array(range(ROWS), pa.int64()), "text": values.cast(pa.dictionary(pa.int32(), pa.string()))}
    )
    pq.write_table(table, path, compression="zstd", store_schema=False, dictionary_pagesize_limit=16 << 20)
    return path


MEASURED = """
import resource, sys, trio
from pathlib import Path
from odfd.trust.evidence.comparison_process import compare_in_process
peak = lambda of: resource.getrusage(of).ru_maxrss
before = peak(resource.RUSAGE_SELF)
found = trio.run(compare_in_process, *map(Path, sys.argv[1:]))
print(peak(resource.RUSAGE_SELF) - before, peak(resource.RUSAGE_CHILDREN), found.message)
"""
"""In a process of its own: the peaks of one that ran other tests are theirs."""
GREEDY = """
import sys
from odfd.trust.evidence import comparison_process as it
it.compare_here = lambda *_: bytearray(it.MEMORY) and it.RowDifference()
sys.exit(it.main("", ""))
"""
"""Asks for as much address space as there is, and touches none of it."""


@pytest.fixture(scope="module")
def ended() -> int:
    return subprocess.run([sys.executable, "-c", GREEDY], capture_output=True, check=False).returncode


@pytest.mark.slow
def test_it_gets_so_much_memory_and_no_more(ended: int) -> None:
    assert ended == OUT_OF_MEMORY


@pytest.mark.slow
def test_a_slice_that_would_take_all_memory_is_compared_apart(tmp_path: Path, ended: int) -> None:
    """Attack T-QUERY-02: a slice of 446 KiB whose comparison takes 2.5 GB.

    Defence: both slices are streamed in a process with limits of memory and time; the difference counts even if no rows
    can be shown.

    446 KiB of Parquet took 2.5 GB in the daemon.
    """
    assert ended == OUT_OF_MEMORY, "it would take minutes without a limit"
    one, other = bomb(tmp_path / "published", "this"), bomb(tmp_path / "computed", "that")
    assert one.stat().st_size < 1 << 20
    command = [sys.executable, "-c", MEASURED, str(one), str(other)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    here, there, message = said.split(maxsplit=2)
    assert int(here) < 64 << 10, "KiB"
    assert int(there) < MEMORY >> 10
    assert "differ" in message


@pytest.mark.parametrize(
    ("code", "said", "told"),
    [
        (OUT_OF_MEMORY, b"", "1,024 MiB of memory"),
        (-signal.SIGABRT, b"terminate called after throwing an instance of 'std::bad_alloc'", "1,024 MiB of memory"),
        (-signal.SIGXCPU, b"", "60 s of processor time"),
        (-signal.SIGKILL, b"", "ended by signal 9"),
        (1, b"Traceback", "failed with exit code 1"),
    ],
)
def test_how_it_ended_is_told_apart(code: int, said: bytes, told: str) -> None:
    assert told in why_ended(subprocess.CompletedProcess([], code, b"", said))


async def test_memory_is_not_blamed_for_what_fails_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "msgspec.py").write_text("raise RuntimeError")
    monkeypatch.setattr(comparison_process, "_path", lambda: str(tmp_path))
    found = await compare_in_process(tmp_path, tmp_path)
    assert found.message == "the slices differ; the process that compared them failed with exit code 1"


@pytest.mark.slow
async def test_rows_are_told_from_there(tmp_path: Path) -> None:
    for name, value in (("published", "1"), ("computed", "2")):
        pq.write_table(pa.table({"offset": [0, 1], "x": ["0", value]}), tmp_path / name)
    found = await compare_in_process(tmp_path / "published", tmp_path / "computed")
    assert found == compare(tmp_path / "published", tmp_path / "computed")
    assert [(cell.row, cell.column, cell.published, cell.computed) for cell in found.cells] == [(1, "x", "1", "2")]


@pytest.mark.slow
@pytest.mark.parametrize("made", [b"", b"PAR1 nothing of the kind PAR1", b"x" * 4096])
async def test_what_is_no_slice_is_told_as_such(tmp_path: Path, made: bytes) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "computed")
    (tmp_path / "published").write_bytes(made)
    found = await compare_in_process(tmp_path / "published", tmp_path / "computed")
    assert found.message
    assert not found.cells


@given(
    st.lists(st.integers(0, 3), max_size=40),
    st.lists(st.integers(0, 3), max_size=40),
    st.integers(1, 7),
    st.integers(1, 7),
)
def test_what_differs_does_not_depend_on_how_files_are_cut(
    tmp_path_factory: pytest.TempPathFactory, left: list[int], right: list[int], one: int, other: int
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    for name, values, size in (("a", left, one), ("b", right, other)):
        pq.write_table(pa.table({"x": pa.array(values, pa.int64())}), folder / name, row_group_size=size)
    found = compare(folder / "a", folder / "b")
    differing = [row for row, (ours, theirs) in enumerate(zip(left, right, strict=False)) if ours != theirs]
    assert [cell.row for cell in found.cells] == differing[:20]
    assert (found.published_rows, found.computed_rows) == (len(left), len(right))


# Steps that are picked to be re-run: by block and secret alone, as often as is asked, and none twice looked at.

OWNER, ME, OTHER = (SigningKey(letter * 32) for letter in (b"d", b"m", b"o"))
HASHES = [Multihash.sha3_256(number.to_bytes(4, "big")) for number in range(4000)]


@pytest.mark.slow
def test_about_so_many_are_picked() -> None:
    picks = Sample(ME)
    for share in (0.01, 0.1, 0.5):
        count = sum(picks.is_picked(name, share) for name in HASHES)
        assert 0.5 * share < count / len(HASHES) < 1.5 * share
    assert all(picks.is_picked(name, 1.0) for name in HASHES)
    assert not any(picks.is_picked(name, 0.0) for name in HASHES)


@pytest.mark.slow
def test_nobody_else_knows_which() -> None:
    mine, theirs = ({name for name in HASHES if Sample(key).is_picked(name, 0.5)} for key in (ME, OTHER))
    assert 0.3 < len(mine & theirs) / len(mine) < 0.7
    assert mine == {name for name in HASHES if Sample(ME).is_picked(name, 0.5)}


@given(st.sampled_from(HASHES), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_picks_all_that_a_smaller_one_does(name: Multihash, one: float, other: float) -> None:
    picks = Sample(ME)
    assert picks.is_picked(name, min(one, other)) <= picks.is_picked(name, max(one, other))


class SampledChain:
    """Blocks in a list; counts what is read."""

    def __init__(self, blocks: list[Block]) -> None:
        self.blocks, self.read = blocks, 0

    def block_at(self, number: int) -> Block:
        return self.blocks[number]

    def last_of(self, kinds: Any, before: int | None = None) -> Block | None:
        self.read += 1
        found = [block for block in self.blocks[:before] if type(block.event).__name__ in kinds]
        return found[-1] if found else None


def chain_of(kinds: list[bool]) -> SampledChain:
    """True: a step."""
    read = ExecuteTransformInput(dataset_id=OWNER.dataset_id)
    events: list[Any] = [Seed(dataset_id=OWNER.dataset_id, dataset_kind=DatasetKind.DERIVATIVE)]
    events += [
        ExecuteTransform(query_inputs=(read,), new_watermark=Instant(number)) if step else SetInfo(description="x")
        for number, step in enumerate(kinds)
    ]
    blocks: list[Block] = []
    for number, event in enumerate(events):
        before = blocks[-1].hash if blocks else None
        content = MetadataBlock(system_time=Instant(0), prev_block_hash=before, sequence_number=number, event=event)
        blocks.append(encode_block(content))
    return SampledChain(blocks)


@pytest.mark.slow
@given(st.lists(st.booleans(), max_size=20), st.floats(0, 1), st.lists(st.integers(1, 21), max_size=4))
def test_however_often_it_is_asked_the_answer_is_the_last_picked_step(
    kinds: list[bool], share: float, sizes: list[int]
) -> None:
    chain, picks = chain_of(kinds), Sample(ME)
    for size in (*(min(each, len(chain.blocks)) for each in sizes), len(chain.blocks)):
        wanted = [
            number
            for number, block in enumerate(chain.blocks[:size])
            if isinstance(block.event, ExecuteTransform) and picks.is_picked(block.hash, share)
        ]
        assert picks.last(chain, OWNER.dataset_id, size, share) == (wanted[-1] if wanted else None)  # type: ignore[arg-type]


def test_what_was_looked_at_is_not_looked_at_again() -> None:
    chain, picks = chain_of([True] * 50), Sample(ME)
    assert picks.last(chain, OWNER.dataset_id, 40, 0.0) is None  # type: ignore[arg-type]
    chain.read = 0
    picks.last(chain, OWNER.dataset_id, 41, 0.0)  # type: ignore[arg-type]
    assert chain.read <= 2


# Attestations cover every block once, in order, whatever was run; and evidence names row and column.

ENGINE = EngineUsed(name="spark", digest="sha256:0", pinned=True, sandbox="host", platform="linux/amd64")
NOW = instant.parse("2026-11-20T08:00:00Z")


def run(number: int, verdict: str = "reproduced") -> RecordedRun:
    actual = Actual(records=number)
    return RecordedRun(
        sequence_number=number, block=Multihash.sha3_256(b""), at=NOW, verdict=verdict, engine=ENGINE, actual=actual
    )


def told(size: int, runs: list[RecordedRun], until: int | None = None) -> list[tuple[int, int, str]]:
    tried = Reexecuted({each.sequence_number: each for each in runs}, size if until is None else until)
    return [(span.first, span.last, span.verdict) for span in spans_of(size, tried, [ENGINE])]


def test_spans() -> None:
    assert told(8, [run(3), run(5), run(7)]) == [(0, 7, "reproduced")]
    assert told(9, [run(3), run(5), run(7, "mismatch")]) == [
        (0, 6, "reproduced"),
        (7, 7, "mismatch"),
        (8, 8, "not-attempted"),
    ]
    assert told(4, []) == [(0, 3, "not-attempted")]
    assert told(4, [run(2, "mismatch")]) == [(0, 1, "not-attempted"), (2, 2, "mismatch"), (3, 3, "not-attempted")]


def test_nothing_is_said_of_steps_that_were_not_run() -> None:
    """More of the chain may be here than was re-run: an engine failed, or blocks came while it worked."""
    assert told(9, [run(3), run(5)], until=7) == [(0, 6, "reproduced"), (7, 8, "not-attempted")]
    assert told(9, [], until=2) == [(0, 8, "not-attempted")]
    assert told(9, [run(3), run(7, "mismatch")], until=7) == [
        (0, 6, "reproduced"),
        (7, 7, "mismatch"),
        (8, 8, "not-attempted"),
    ]


VERDICTS = st.sampled_from(["reproduced", "mismatch", "not-reproducible-here"])


@given(st.integers(1, 400), st.dictionaries(st.integers(0, 399), VERDICTS))
def test_spans_cover_every_block_once_and_say_what_was_found(size: int, found: dict[int, str]) -> None:
    runs = {number: run(number, verdict) for number, verdict in found.items() if number < size}
    spans = spans_of(size, Reexecuted(runs, size), [ENGINE])
    assert len(spans) <= MAX_SPANS
    assert spans[0].first == 0
    assert spans[-1].last == size - 1
    assert all(one.last + 1 == other.first for one, other in pairwise(spans))
    for number, each in runs.items():
        (span,) = (span for span in spans if span.first <= number <= span.last)
        assert span.verdict in (each.verdict, "not-attempted")


def test_an_attestation_says_what_a_judge_hears() -> None:
    dataset = SigningKey(b"d" * 32).dataset_id
    subject = Subject(dataset=dataset, epoch=0, size=8, root_hash=b"r" * 32, head=Multihash.sha3_256(b"head"))
    runs = {3: run(3), 7: run(7, "mismatch")}
    tried = Reexecuted(runs, subject.size)
    said = attest(SigningKey(b"v" * 32).did, subject, tried, [], "strict", (4, Multihash.sha3_256(b"last")), NOW)
    assert said.serial == 5
    affirmed, denied = verdict_on(said, 3), verdict_on(said, 7)
    assert affirmed is not None
    assert affirmed.kind is VerdictKind.REPRODUCED
    assert denied is not None
    assert denied.kind is VerdictKind.MISMATCH


def table(delays: list[str | None]) -> pa.Table:
    count = len(delays)
    return pa.table(
        {
            "offset": pa.array(range(count), pa.int64()),
            "event_time": pa.array([dt.datetime(2013, 6, 14, tzinfo=dt.UTC)] * count, pa.timestamp("ms", "UTC")),
            "carrier": ["UA", "AA", "B6"][:count],
            "delay": pa.array([None if d is None else decimal.Decimal(d) for d in delays], pa.decimal128(9, 2)),
        }
    )


def compare_tables(published: pa.Table, computed: pa.Table) -> RowDifference:
    """Of two slices as files."""
    with TemporaryDirectory() as folder:
        one, other = Path(folder, "published"), Path(folder, "computed")
        pq.write_table(published, one)
        pq.write_table(computed, other, row_group_size=1)
        return compare_files(one, other)


def test_evidence_names_row_and_column() -> None:
    finding = compare_tables(table(["1.00", "1902.00", None]), table(["1.00", "2902.00", "3.00"]))
    assert finding.message == "delay differs in 2 rows of 3"
    assert [(cell.row, cell.column, cell.published, cell.computed) for cell in finding.cells] == [
        (1, "delay", "1902.00", "2902.00"),
        (2, "delay", None, "3.00"),
    ]
    assert finding.cells[0].context["carrier"] == "AA"
    assert finding.cells[0].context["event_time"] == "2013-06-14T00:00:00Z"
    assert RowDifference.from_bytes(finding.to_bytes()) == finding


def test_evidence_of_dates_that_python_does_not_know() -> None:
    kind = pa.struct([("day", pa.date32())])
    far = pa.table({"day": pa.array([-800_000, 5], pa.int32()).cast(pa.date32())})
    one, other = (pa.table({"x": table.to_struct_array().cast(kind)}) for table in (far, far.slice(0, 1)))
    assert compare_tables(one, one).cells == ()
    changed = pa.table({"x": pa.chunked_array([other["x"].chunk(0), other["x"].chunk(0)])})
    (cell,) = compare_tables(one, changed).cells
    assert (cell.published, cell.computed) == ({"day": "1970-01-06"}, {"day": "-0221-09-04"})


def test_evidence_of_other_shapes() -> None:
    one = table(["1.00", "2.00"])
    assert compare_tables(one, one.slice(0, 1)).message == "2 rows published, 1 computed"
    assert compare_tables(one, one).message == "the rows are equal; offsets, watermark or schema differ"
    assert "columns" in compare_tables(one, one.drop_columns(["delay"])).message
    nested = pa.table({"x": [[1, 2], [3]]})
    assert compare_tables(nested, pa.table({"x": [[1, 2], [4]]})).cells[0].published == [3]


# Attestations held to the pins of their chain: whose blocks an engine is the pinned one of, the chain says.

KEY = SigningKey(b"v" * 32)
DATASET: DatasetId = KEY.dataset_id
R = GroupVerdict(VerdictKind.REPRODUCED)


class PinnedChain:
    """The one read of a chain that is needed, counted."""

    def __init__(self, pins: dict[int, str | None], size: int) -> None:
        seed = Seed(dataset_id=DATASET, dataset_kind=DatasetKind.DERIVATIVE)
        events: list[MetadataEvent] = [seed]
        events += [_declared(pins[at]) if at in pins else SetInfo(description=str(at)) for at in range(1, size)]
        self.blocks: list[Block] = linked(events, Instant(0))
        self.reads = 0

    def last_of(self, kinds: Any, before: int | None = None) -> Block | None:
        self.reads += 1
        assert tuple(kinds) == ("SetTransform",)
        return next((each for each in self.blocks[:before][::-1] if isinstance(each.event, SetTransform)), None)


def _declared(pin: str | None) -> SetTransform:
    transform = TransformSql(engine="spark", version=pin, queries=(SqlQueryStep(query="SELECT 1"),))
    return SetTransform(inputs=(TransformInput(dataset_ref=str(DATASET), alias="x"),), transform=transform)


def said(*spans: tuple[int, int, int], digests: str = "ab", pinned: bool = True) -> Attestation:
    engines = (
        EngineUsed(name="spark", digest=each, pinned=pinned, sandbox="host", platform="linux/amd64") for each in digests
    )
    return Attestation(
        validator=KEY.did, dataset=DATASET, epoch=0, size=20, root_hash=bytes(32), serial=1, determinism="strict",
        finished_at="2026-11-20T08:00:00Z", engines=tuple(engines), head=Multihash.sha3_256(b"head"),
        spans=tuple(
            Span(first=first, last=last, verdict="reproduced", state="genesis", engine=engine)
            for first, last, engine in spans
        ),
    )  # fmt: skip


def held(chain: PinnedChain, attestation: Attestation) -> Attestation:
    return held_to_pins(chain, attestation)  # type: ignore[arg-type]


def test_a_span_is_cut_where_another_engine_is_pinned() -> None:
    chain = PinnedChain({1: "a", 5: "b", 8: "a"}, 12)
    found = held(chain, said((0, 11, 0)))
    assert [(each.first, each.last, each.reason) for each in found.spans] == [
        (0, 4, None), (5, 7, "engine-not-pinned"), (8, 11, None)
    ]  # fmt: skip
    assert [found.engines[each.engine or 0].digest for each in found.spans] == ["a"] * 3, "what it ran stays"
    assert (verdict_on(found, 6), result_of(found, 6), verdict_on(found, 4)) == (None, R, R)


def test_what_is_true_stays_as_it_was_signed() -> None:
    chain = PinnedChain({1: "a", 4: "a", 5: "b"}, 12)
    true, modest = said((0, 4, 0), (5, 11, 1)), said((0, 11, 0), pinned=False)
    assert held(chain, true) is true
    assert held(chain, modest) is modest, "nor is an engine called the pinned one that was not"
    assert held(PinnedChain({}, 12), true) is true, "nothing in it was made by an engine"
    without = msgspec.structs.replace(true, engines=())
    assert held(chain, without) is without


def test_no_pin_is_nobodys_engine() -> None:
    found = held(PinnedChain({1: None}, 12), said((0, 11, 0)))
    assert [verdict_on(found, at) for at in (1, 11)] == [None, None]


@pytest.mark.slow
def test_a_chain_of_many_declarations_costs_no_more_than_the_newest() -> None:
    size = MOST_DECLARATIONS + 50
    chain = PinnedChain(dict.fromkeys(range(1, size), "a"), size)
    found = held(chain, said((0, size - 1, 0)))
    assert chain.reads == MOST_DECLARATIONS + 1
    assert [verdict_on(found, at) for at in (size - 1, size - MOST_DECLARATIONS, size - MOST_DECLARATIONS - 1)] == [
        R, R, None
    ]  # fmt: skip


@pytest.mark.slow
@given(
    pins=st.dictionaries(st.integers(1, 19), st.sampled_from(["a", "b", "c", None]), max_size=6),
    cuts=st.sets(st.integers(1, 19), max_size=4),
    engines=st.lists(st.integers(0, 1), min_size=5, max_size=5),
)
def test_each_step_counts_by_the_pin_in_force(pins: dict[int, str | None], cuts: set[int], engines: list[int]) -> None:
    """The model asks for the pin of every block by itself."""
    edges = [0, *sorted(cuts), 20]
    spans = [(first, stop - 1, engines[at]) for at, (first, stop) in enumerate(itertools.pairwise(edges))]
    found = held(PinnedChain(pins, 20), said(*spans))
    assert [(each.first, each.last) for each in found.spans] == sorted((each.first, each.last) for each in found.spans)
    for step in range(min(pins, default=20), 20):
        pin = pins[max(each for each in pins if each <= step)]
        digest = next("ab"[engine] for first, last, engine in spans if first <= step <= last)
        assert (verdict_on(found, step) == R) is (pin == digest)
        assert result_of(found, step) == R
