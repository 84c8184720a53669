"""Suspension in a node: strikes are remembered, only a person lifts, and what was lifted stays lifted."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from chain import instant
from chain.codec.blocks import encode_block
from chain.errors import Environment, Refused
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
from odfd.trust.judgement.suspension_review import SuspensionReview, contradicted
from odfd.trust.judgement.suspension_rules import GRACE
from odfd.trust.judgement.suspensions import Suspensions
from odfd.trust.judgement.trust_evaluator import TrustEvaluator
from odfd.trust.judgement.verdicts import DatasetStatus
from p2p.ports import Judgement, PeerId, Topic
from worlds.clock import FixedClock

NOW = instant.parse("2026-11-20T08:00:00Z")
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
        said = Attestation(
            validator=KEYS[validator].did,
            dataset=owner.dataset_id,
            epoch=0,
            size=tree.size,
            root_hash=tree.root,
            serial=serial,
            previous=None if serial == 1 else Multihash.sha3_256(b"before"),
            determinism="strict",
            finished_at=statement.when(self.now),
            engines=(ENGINE,),
            spans=(
                Span(first=0, last=0, verdict="not-attempted"),
                Span(first=1, last=1, verdict=verdict, state="genesis", engine=0,
                     reason="nondeterministic" if word == "N" else None),
            ),
            mismatch=(wrong,) if verdict == "mismatch" else (),
            head=blocks[-1].hash,
        )  # fmt: skip
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
    """Steps that are wrong on purpose, in two datasets: who affirms what I and another group found wrong is out."""
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
    assert "exclude each other" in node.suspended()["g2"]
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
