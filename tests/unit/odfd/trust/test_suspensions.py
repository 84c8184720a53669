"""Suspension and budgets: who is suspended, for how long, and what a validator may spend."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chain import instant
from chain.codec.blocks import encode_block
from chain.errors import Environment, Refused
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.model.block import Block, MetadataBlock
from chain.model.events import DatasetKind, ExecuteTransform, Seed
from chain.multihash import Multihash
from chain.statements import envelope, statement
from chain.statements.keys import SigningKey
from chain.statements.statement import Actual, Attestation, EngineUsed, Mismatch, Span
from chain.statements.tree import Frontier
from chain.store.base import Append
from chain.store.database import open_database
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChains
from odfd.network.statement_store import LedgerStatementStore
from odfd.obs.events import EventLog
from odfd.policy.policy import KeyGroup, Policy, parse_expression
from odfd.store import references as references_room
from odfd.store.ledger import log as ledger_room
from odfd.store.ledger.log import CheckedChain, Ledger
from odfd.store.ledger.runs import RecordedRun, Runs
from odfd.trust.judgement import suspension_rules
from odfd.trust.judgement.suspension_review import SuspensionReview, contradicted
from odfd.trust.judgement.suspension_rules import (
    GRACE,
    DatasetStatements,
    Machine,
    SuspensionFacts,
    look_again,
    remembered,
    standing,
    strikes,
)
from odfd.trust.judgement.suspensions import Suspensions
from odfd.trust.judgement.trust_evaluator import TrustEvaluator
from odfd.trust.judgement.verdicts import DatasetStatus, GroupVerdict, VerdictKind
from odfd.trust.validation.validator import FIRST_PAUSE, HALF_LIFE, MAX_PAUSE, CostBudget
from p2p.ports import Judgement, PeerId, Topic
from worlds.clock import FixedClock
from worlds.statements import attestation_statement

# Who is suspended, who is not, and when a sound machine should look again (docs/spec/trust.md#suspension).

DIDS = [SigningKey(bytes([number]) * 32).did for number in range(6)]
SETS = [SigningKey(b"set%29d" % number).dataset_id for number in range(3)]
STRICT = Policy(groups=tuple(KeyGroup(f"g{at}", frozenset({key})) for at, key in enumerate(DIDS[:5])), tolerated=1)
NOW = instant.parse("2026-11-20T08:00:00Z")
LATER = Instant(NOW + GRACE + instant.SECOND)
AMD, ARM = "linux/amd64", "linux/arm64"


def says(at: int, dataset: int, word: str, platform: str = AMD) -> Attestation:
    """Validator ``at`` on block 3: ``R``, ``N``, or a value."""
    verdict = {"R": "reproduced", "N": "not-reproducible-here"}.get(word, "mismatch")
    reason = "nondeterministic" if word == "N" else None
    return attestation_statement(
        DIDS[at],
        SETS[dataset],
        4,
        engines=(EngineUsed(name="spark", digest="sha256:0", pinned=True, sandbox="host", platform=platform),),
        spans=(
            Span(first=0, last=2, verdict="reproduced", state="genesis", engine=0),
            Span(first=3, last=3, verdict=verdict, state="genesis", engine=0, reason=reason),
        ),
        mismatch=(Mismatch(sequence_number=3, runs=3, actual=Actual(records=ord(word))),) if word in "vw" else (),
    )


def view(*words: str, sets: int = 2, platforms: str = "", own: str = "") -> SuspensionFacts:
    """The same words on each of ``sets`` datasets; ``platforms``: ``a`` for another one, by validator."""
    told = {}
    for number in range(sets):
        heard = {
            DIDS[at]: says(at, number, word, ARM if platforms[at : at + 1] == "a" else AMD)
            for at, word in enumerate(words)
            if word
        }
        mine = (
            {3: GroupVerdict(VerdictKind.REPRODUCED) if own == "R" else GroupVerdict(VerdictKind.MISMATCH, b"mine")}
            if own
            else {}
        )
        told[SETS[number]] = DatasetStatements(attestations=heard, own=mine, steps=(3,))
    found = SuspensionFacts(datasets=told, own_machine=Machine("sha256:0", AMD))
    return msgspec.structs.replace(found, since=dict.fromkeys(strikes(STRICT, found), NOW))


@pytest.mark.parametrize(
    ("words", "out"),
    [
        (("R", "R", "v"), {"g2"}),
        (("v", "v", "R"), {"g2"}),
        (("R", "R", "v", "w"), {"g2", "g3"}),
        (("R", "v"), set()),
        (("R", "R", "v", "v"), set()),
        (("R", "R", "N"), set()),
        (("R", "R", "v", "N", "N"), set()),
        (("R", "R", "R"), set()),
    ],
)
def test_who_is_suspended(words: tuple[str, ...], out: set[str]) -> None:
    assert standing(STRICT, view(*words), LATER) == out


def test_one_dataset_is_no_pattern() -> None:
    assert standing(STRICT, view("R", "R", "v", sets=1), LATER) == set()


def test_within_the_grace_nobody_is_suspended() -> None:
    assert standing(STRICT, view("R", "R", "v"), Instant(NOW + GRACE)) == set()
    never_seen = msgspec.structs.replace(view("R", "R", "v"), since={})
    assert standing(STRICT, never_seen, LATER) == set()


def test_another_platform_may_be_of_another_mind() -> None:
    assert standing(STRICT, view("R", "R", "v", platforms="..a"), LATER) == set()
    assert standing(STRICT, view("R", "R", "v", platforms="aaa"), LATER) == {"g2"}


def test_my_own_run_counts_as_one_more_group() -> None:
    assert standing(STRICT, view("R", "v", own="R"), LATER) == {"g1"}
    assert suspension_rules.ME not in standing(STRICT, view("R", "R", own="v"), LATER)


def test_a_double_voter_is_out_at_once_and_no_longer_counts_against_others() -> None:
    accused = msgspec.structs.replace(view("R", "R", "v"), accused=(DIDS[1],), since={})
    assert standing(STRICT, accused, NOW) == {"g1"}
    assert not strikes(STRICT, accused)


def test_unlisted_keys_accuse_nobody_and_are_not_accused() -> None:
    heard = {key: says(at, 0, "R" if at < 5 else "v") for at, key in enumerate(DIDS)}
    assert not strikes(
        STRICT,
        SuspensionFacts(datasets={SETS[0]: DatasetStatements(attestations=heard, steps=(3,))}, accused=(DIDS[5],)),
    )


def test_a_strike_that_was_withdrawn_begins_anew() -> None:
    (strike,) = strikes(STRICT, view("R", "R", "v", sets=1))
    seen = remembered({}, {strike}, NOW)
    assert remembered(seen, {strike}, LATER) == {strike: NOW}
    assert remembered(seen, set(), LATER) == {}


def test_when_to_look_again() -> None:
    places = {(SETS[0], 3)}
    assert look_again(STRICT, view("v", "v", own="R", sets=1)) == places
    assert look_again(STRICT, view("R", "R", own="v", sets=1)) == places
    assert not look_again(STRICT, view("v", "R", own="R", sets=1))
    assert not look_again(STRICT, view("v", "w", own="R", sets=1))
    assert not look_again(STRICT, view("N", "N", own="R", sets=1))


@given(st.lists(st.sampled_from(["R", "N", "v", "w", ""]), min_size=5, max_size=5), st.randoms())
def test_order_of_hearing_does_not_matter(words: list[str], rng) -> None:
    first = view(*words)
    told = {}
    for dataset, one in reversed(first.datasets.items()):
        heard: list[tuple[KeyDid, Attestation]] = list(one.attestations.items())
        rng.shuffle(heard)
        told[dataset] = DatasetStatements(attestations=dict(heard), steps=one.steps)
    shuffled = msgspec.structs.replace(first, datasets=told)
    assert standing(STRICT, shuffled, LATER) == standing(STRICT, first, LATER)


@given(st.lists(st.sampled_from(["R", "N", "v", "w", ""]), min_size=5, max_size=5))
def test_never_more_groups_than_could_be_wrong_on_one_side(words: list[str]) -> None:
    """Of two sides that both have more than f behind them neither is struck: then f itself was wrong."""
    out = standing(STRICT, view(*words), LATER)
    sides = {word: words.count(word) for word in words if word in "Rvw" and word}
    assert not any(sides[words[int(group[1:])]] > STRICT.tolerated for group in out)


# Suspension in a node: strikes are remembered, only a person lifts, and what was lifted stays lifted.

KEYS = [SigningKey(bytes([number]) * 32) for number in range(1, 6)]
OWNERS = [SigningKey(b"owner%27d" % number) for number in range(3)]
POLICY = Policy(groups=tuple(KeyGroup(f"g{at}", frozenset({key.did})) for at, key in enumerate(KEYS)), tolerated=1)
ENGINE = EngineUsed(name="spark", digest="sha256:0", pinned=True, sandbox="host", platform="linux/amd64")


def chain_of(owner: SigningKey, steps: int = 1) -> list[Block]:
    """A derived chain."""
    events: list[Any] = [
        Seed(dataset_id=owner.dataset_id, dataset_kind=DatasetKind.DERIVATIVE),
        *(ExecuteTransform(query_inputs=(), new_watermark=Instant(NOW + step)) for step in range(steps)),
    ]
    blocks: list[Block] = []
    for number, event in enumerate(events):
        before = blocks[-1].hash if blocks else None
        blocks.append(
            encode_block(MetadataBlock(system_time=NOW, prev_block_hash=before, sequence_number=number, event=event))
        )
    return blocks


class Node:
    """What decides, over a database of its own; it holds one derived chain of each owner."""

    def __init__(self, database: Any, folder: Path) -> None:
        for room in (references_room, ledger_room):
            database.migrate(room.ROOM, room.STEPS)
        self.database, self.now = database, NOW
        self.chains = SqliteChains(database, DiskObjects(folder / "objects", database))
        self.board = LedgerStatementStore(database, self.chains, self.clock, frozenset)
        self.evaluator = TrustEvaluator(database, self.chains, lambda: POLICY, SigningKey(b"n" * 32).did, self.clock)
        self.changes = 0
        self.events = EventLog(FixedClock(NOW))
        self.suspension_review = self.reviewer()
        for owner in OWNERS:
            blocks = chain_of(owner)
            self.chains.commit([Append(dataset=owner.dataset_id, expected=None, blocks=blocks)])
            tree = Frontier().extend(block.hash.digest for block in blocks)
            with database.write() as connection:
                Ledger(connection).keep_chain(owner.dataset_id, CheckedChain(tree, tree.size))

    def clock(self) -> Instant:
        return self.now

    def reviewer(self) -> SuspensionReview:
        return SuspensionReview(self.database, self.chains, self.evaluator, self.events, self.clock, lambda: None)

    def later(self, by: int) -> None:
        self.now = Instant(self.now + by)

    def hear(self, validator: int, owner: SigningKey, word: str, serial: int = 1) -> Judgement:
        blocks = chain_of(owner)
        tree = Frontier().extend(block.hash.digest for block in blocks)
        verdict = {"R": "reproduced", "N": "not-reproducible-here"}.get(word, "mismatch")
        wrong = Mismatch(sequence_number=1, runs=3, actual=Actual(records=ord(word)))
        reason = "nondeterministic" if word == "N" else None
        said = attestation_statement(
            KEYS[validator].did,
            owner.dataset_id,
            tree.size,
            tree.root,
            serial=serial,
            previous=None if serial == 1 else Multihash.sha3_256(b"before"),
            finished_at=statement.when(self.now),
            spans=(
                Span(first=0, last=0, verdict="not-attempted"),
                Span(first=1, last=1, verdict=verdict, state="genesis", engine=0, reason=reason),
            ),
            mismatch=(wrong,) if verdict == "mismatch" else (),
            head=blocks[-1].hash,
        )
        raw = envelope.seal(statement.encode(said), KEYS[validator])
        return self.board.judge(Topic.ATTEST, raw, PeerId("peer"))

    def status(self, owner: SigningKey = OWNERS[0]) -> tuple[DatasetStatus, int]:
        found = self.evaluator.decision(self.evaluator.known(owner.dataset_id), 1)
        return found.status, found.attested

    def suspended(self) -> dict[str, str]:
        with self.database.read() as connection:
            return {each.group: each.reason for each in Suspensions(connection).all(POLICY)}

    def lift(self, group: str) -> None:
        with self.database.write() as connection:
            Suspensions(connection).lift(POLICY, group, self.now)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with closing(open_database(tmp_path / "odfd.sqlite")) as database:
        yield Node(database, tmp_path)


def contradict(node: Node, sets: int = 2) -> None:
    """g2 stands alone against g0 and g1 in so many datasets."""
    for owner in OWNERS[:sets]:
        for validator, word in enumerate("RRv"):
            assert node.hear(validator, owner, word) is Judgement.ACCEPT


def test_a_group_that_stands_alone_for_two_days_is_suspended_over_restarts(node: Node) -> None:
    """Attack T-VERDICT-02: a faulty machine among validators.

    Defence: a group contradicted on equal engines in two datasets for two days is suspended until the operator lifts
    the suspension.
    """
    contradict(node)
    assert node.suspension_review.review() == {}
    node.later(GRACE)
    assert node.suspension_review.review() == {}
    node.later(instant.SECOND)
    out = node.reviewer().review()
    assert set(out) == {"g2"}
    assert "contradicted by more than f others" in out["g2"]
    assert node.suspended() == out
    assert node.suspension_review.review() == {}, "it is told once"
    with node.database.read() as connection:
        rows = connection.execute("SELECT body FROM trust_ledger WHERE type = 'decision'").fetchall()
        assert [json.loads(row[0])["decision"] for row in rows] == ["suspend"]
        Ledger(connection).check()


def test_whose_word_is_suspended_counts_no_more(node: Node) -> None:
    contradict(node)
    node.hear(2, OWNERS[2], "R")
    node.hear(3, OWNERS[2], "R")
    assert node.status(OWNERS[2])[1] == 2
    node.suspension_review.review()
    node.later(GRACE + instant.SECOND)
    node.suspension_review.review()
    assert node.status(OWNERS[2])[1] == 1
    node.lift("g2")
    assert node.status(OWNERS[2])[1] == 2


def test_what_a_person_lifted_does_not_suspend_again_and_something_new_does(node: Node) -> None:
    contradict(node)
    node.suspension_review.review()
    node.later(GRACE + instant.SECOND)
    node.suspension_review.review()
    node.lift("g2")
    assert node.suspended() == {}
    with pytest.raises(Refused, match="is not suspended"):
        node.lift("g2")
    for _ in range(2):
        node.later(GRACE + instant.SECOND)
        assert node.suspension_review.review() == {}
    for owner in OWNERS[2:]:
        for validator, word in enumerate("RRv"):
            node.hear(validator, owner, word)
    node.suspension_review.review()
    node.later(GRACE + instant.SECOND)
    assert node.suspension_review.review() == {}, "one dataset is no pattern"


def test_canary_catches_lazy(node: Node) -> None:
    """Attack T-VERDICT-01: a validator that attests without re-execution.

    Defence: canaries: a validator that affirms deliberately wrong steps in two datasets is contradicted on equal
    engines and suspended; a validating node re-runs each step.

    Steps that are wrong on purpose, in two datasets: who affirms what I and another group found wrong is out.
    """
    lie = Actual(records=ord("v"))
    for owner in OWNERS[:2]:
        run = RecordedRun(
            sequence_number=1,
            block=chain_of(owner)[1].hash,
            at=NOW,
            verdict="mismatch",
            runs=3,
            engine=ENGINE,
            actual=lie,
        )
        with node.database.write() as connection:
            Runs(connection).keep(owner.dataset_id, run)
        node.hear(0, owner, "v")
        node.hear(1, owner, "R")
    node.suspension_review.review()
    node.later(GRACE + instant.SECOND)
    assert set(node.suspension_review.review()) == {"g1"}


def test_alternatives_end_where_their_facts_end_also_between_verdicts(node: Node) -> None:
    """Of three steps that nobody judged the objects of two are missing: ``reproduced`` does not stand in for them."""
    owner = SigningKey(b"z" * 32)
    blocks = chain_of(owner, steps=3)
    node.chains.commit([Append(dataset=owner.dataset_id, expected=None, blocks=blocks)])
    tree = Frontier().extend(block.hash.digest for block in blocks)
    with node.database.write() as connection:
        Ledger(connection).keep_chain(owner.dataset_id, CheckedChain(tree, 2))
    found = node.evaluator.reach(owner.dataset_id, parse_expression("data | reproduced"))
    assert (found.blocks, found.why.rule) == (2, "pending")


def test_one_that_is_taken_back_within_the_grace_was_nothing(node: Node) -> None:
    contradict(node)
    node.suspension_review.review()
    node.later(GRACE // 2)
    node.hear(2, OWNERS[0], "N", serial=3)
    node.suspension_review.review({OWNERS[0].dataset_id})
    node.later(GRACE)
    assert node.suspension_review.review() == {}


def test_only_what_was_touched_is_looked_at(node: Node) -> None:
    assert node.suspension_review.review() == {}
    contradict(node)
    assert node.suspension_review.review({OWNERS[2].dataset_id}) == {}
    with node.database.read() as connection:
        assert Suspensions(connection).since() == {}
    node.suspension_review.review({OWNERS[0].dataset_id})
    with node.database.read() as connection:
        assert {strike.dataset for strike in Suspensions(connection).since()} == {OWNERS[0].dataset_id}


def test_who_voted_twice_is_out_at_once_until_a_person_lifts_it(node: Node) -> None:
    for validator in range(3):
        node.hear(validator, OWNERS[0], "R")
    assert node.status()[1] == 3
    node.hear(2, OWNERS[0], "v")
    assert (node.status()[1], list(node.suspended())) == (2, ["g2"])
    assert "contradicting statements" in node.suspended()["g2"]
    node.lift("g2")
    assert (node.status()[1], node.suspended()) == (3, {})
    node.hear(2, OWNERS[1], "R")
    node.hear(2, OWNERS[1], "v")
    assert list(node.suspended()) == ["g2"]


def test_what_an_honest_validator_looks_at_again(node: Node) -> None:
    dataset = OWNERS[0].dataset_id
    run = RecordedRun(sequence_number=1, block=chain_of(OWNERS[0])[1].hash, at=NOW, verdict="reproduced", engine=ENGINE)
    with node.database.write() as connection:
        Runs(connection).keep(dataset, run)
    node.hear(0, OWNERS[0], "v")
    assert contradicted(node.evaluator, dataset) == []
    node.hear(1, OWNERS[0], "v")
    assert contradicted(node.evaluator, dataset) == [1]


def test_a_flipped_bit_in_a_suspension_is_told(node: Node) -> None:
    contradict(node)
    node.suspension_review.review()
    with node.database.write() as connection:
        connection.execute("UPDATE trust_strikes SET since = since - 1")
    with pytest.raises(Environment, match="damaged on disk"), node.database.read() as connection:
        Suspensions(connection).since()


def test_tables_of_an_older_node_are_grown(tmp_path: Path) -> None:
    """A database from before there were suspensions is taken on as it is."""
    with closing(sqlite3.connect(tmp_path / "old.sqlite")) as old:
        for step in ledger_room.STEPS[:6]:
            old.executescript(step)
        for step in ledger_room.STEPS[6:]:
            old.executescript(step)
        assert Suspensions(old).groups() == frozenset()


# Engine time of a validator: shared by publishers, bounded by step, given up with growing pauses and told.

BEGUN = instant.parse("2026-11-20T09:00:00Z")


def key(number: int) -> SigningKey:
    return SigningKey(number.to_bytes(32, "big"))


def dataset(number: int) -> DatasetId:
    return key(1000 + number).dataset_id


def publisher(number: int) -> KeyDid:
    return key(number).did


def later(nanoseconds: int) -> Instant:
    return Instant(BEGUN + nanoseconds)


def test_pauses_double_up_to_a_week() -> None:
    costs, now, lengths = CostBudget(), BEGUN, []
    for _ in range(14):
        pause = costs.exceeded(dataset(1), publisher(1), 7, now)
        lengths.append(pause.length)
        assert costs.wait(dataset(1), now) == pause.length / instant.SECOND
        now = Instant(pause.until)
        assert not costs.wait(dataset(1), now)
    assert lengths[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert lengths[-1] == MAX_PAUSE
    assert costs.exceeded(dataset(1), publisher(1), 8, now).length == FIRST_PAUSE, "another step is another matter"


def test_steps_of_who_exceeded_run_apart_until_one_was_run() -> None:
    costs = CostBudget()
    costs.isolate(dataset(1), publisher(1))
    assert costs.is_isolated(publisher(1))
    assert not costs.is_isolated(publisher(2))
    costs.met(dataset(2))
    assert costs.is_isolated(publisher(1))
    costs.met(dataset(1))
    assert not costs.is_isolated(publisher(1))


def test_what_was_used_is_forgotten_by_halves() -> None:
    costs = CostBudget()
    costs.charge(publisher(1), 100.0, BEGUN)
    assert costs.used(publisher(1), later(HALF_LIFE)) == 50.0
    assert costs.used(publisher(1), later(-HALF_LIFE)) == 100.0, "a clock that goes back makes nobody pay more"


@pytest.mark.slow
@given(st.lists(st.integers(1, 30), min_size=2, max_size=5), st.integers(1, 40))
@example([1, 1], 1)
def test_no_publisher_gets_more_than_a_step_beyond_another(costs_of: list[int], datasets: int) -> None:
    """Attack T-QUERY-02: expensive steps or many datasets of one publisher, to delay others.

    Defence: the publisher that used least gets the next turn; one beyond its budget gets a process of its own.

    Whatever steps cost and however many datasets one has: all who wait get alike, but for one step.
    """
    budget = CostBudget()
    waiting = [(dataset(number), publisher(number)) for number in range(1, len(costs_of) + 1)]
    waiting += [(dataset(100 + number), publisher(1)) for number in range(datasets)]
    used = dict.fromkeys(range(1, len(costs_of) + 1), 0)
    number_of = {publisher(number): number for number in used}
    owner = dict(waiting)
    for _ in range(200):
        chosen = budget.next(waiting, BEGUN)
        assert chosen is not None
        number = number_of[owner[chosen]]
        used[number] += costs_of[number - 1]
        budget.charge(owner[chosen], costs_of[number - 1], BEGUN)
    assert max(used.values()) - min(used.values()) <= max(costs_of)
