"""The threats of THREATS.md, each as a test on the code that decides; ``tests/meta/test_threats.py`` compares them.

A node here is the real noticeboard, ledger, standing and policy over a real database; only the network is left out.
"""

from __future__ import annotations

import itertools
import json
import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.errors import Invalid, Refused
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.model.block import Block
from chain.multihash import Multihash
from chain.state import ChainState
from chain.statements import authority, canonical, envelope, proof, statement
from chain.statements.keys import SigningKey
from chain.statements.statement import Actual, Attestation, HeadStatement, Mismatch, Span
from chain.statements.tree import Frontier
from chain.store.base import Append
from chain.store.database import open_database
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChains
from odfd.mirrors.sinks import VerifiedChain
from odfd.network.statement_store import LedgerStatementStore, Subscribers
from odfd.policy.policy import KeyGroup, Policy, parse_expression
from odfd.store import references as references_room
from odfd.store.keys.journal import SigningJournal
from odfd.store.ledger import log as ledger_room
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.log import CheckedChain, Ledger
from odfd.store.ledger.proofs import Proofs
from odfd.trust.admission.rules import AdmissionOutcome, admit_attestation, admit_head
from odfd.trust.judgement.trust_evaluator import TrustEvaluator
from odfd.trust.judgement.verdicts import (
    REFUTING,
    STOPS,
    DatasetStatus,
    GroupVerdict,
    VerdictKind,
    count_votes,
    group_verdicts,
    value_id,
    verdict_on,
)
from odfd.trust.signing import authority_versions
from odfd.trust.validation import validator
from p2p.ports import Judgement, PeerId, Topic
from worlds.chains import noted
from worlds.statements import attestation_statement

NOW = instant.parse("2026-11-20T08:00:00Z")
DAY = 86400 * instant.SECOND
OWNER = SigningKey(b"o" * 32)
DATASET = OWNER.dataset_id
VALIDATORS = [SigningKey(bytes([n]) * 32) for n in range(1, 6)]
R, N = GroupVerdict(VerdictKind.REPRODUCED), GroupVerdict(VerdictKind.NONDETERMINISTIC)
LIE, OTHER = GroupVerdict(VerdictKind.MISMATCH, b"lie"), GroupVerdict(VerdictKind.MISMATCH, b"other")
PEER = PeerId("peer")


def chain_of(key: SigningKey, notes: list[str]) -> list[Block]:
    return noted(key.dataset_id, notes, NOW)


def head_of(
    blocks: list[Block], key: SigningKey = OWNER, *, at: Instant = NOW, days: int = 7, **other: Any
) -> tuple[HeadStatement, bytes]:
    tree = Frontier().extend(block.hash.digest for block in blocks)
    fields = {
        "dataset": DATASET,
        "epoch": 0,
        "size": tree.size,
        "root_hash": tree.root,
        "authority": 0,
        "issued_at": statement.when(at),
        "expires_at": statement.when(Instant(at + days * DAY)),
        "head": blocks[-1].hash,
    } | other
    said = HeadStatement(**fields)
    return said, envelope.seal(statement.encode(said), key)


def vote(
    key: SigningKey,
    blocks: list[Block],
    serial: int = 1,
    *,
    previous: Multihash | None = None,
    verdict: str = "reproduced",
    state: str = "genesis",
) -> tuple[Attestation, bytes]:
    tree = Frontier().extend(block.hash.digest for block in blocks)
    wrong = Mismatch(sequence_number=tree.size - 1, runs=3, actual=Actual(records=7))
    said = attestation_statement(
        key.did,
        DATASET,
        tree.size,
        tree.root,
        serial=serial,
        previous=previous,
        spans=(Span(first=0, last=tree.size - 1, verdict=verdict, state=state, engine=0),),
        mismatch=(wrong,) if verdict == "mismatch" else (),
        head=blocks[-1].hash,
    )
    return said, envelope.seal(statement.encode(said), key)


class Node:
    """What decides in a node, over a database of its own."""

    def __init__(self, database: Any, folder: Path, policy: Policy) -> None:
        self.objects = DiskObjects(folder / "objects", database)
        self.chains = SqliteChains(database, self.objects)
        for room in (references_room, ledger_room):
            database.migrate(room.ROOM, room.STEPS)
        self.database = database
        self.now = NOW
        self.policy = policy
        self.told: list[tuple[proof.Proof, bool]] = []
        self.board = LedgerStatementStore(
            database, self.chains, lambda: self.now, frozenset, Subscribers(proof=lambda *told: self.told.append(told))
        )
        me = SigningKey(b"n" * 32).did
        self.evaluator = TrustEvaluator(database, self.chains, lambda: self.policy, me, lambda: self.now)

    def hold(self, blocks: list[Block], dataset: DatasetId = DATASET) -> None:
        self.chains.commit([Append(dataset=dataset, expected=None, blocks=blocks)])
        tree = Frontier().extend(block.hash.digest for block in blocks)
        with self.database.write() as connection:
            Ledger(connection).keep_chain(dataset, CheckedChain(tree, tree.size))

    def hear(self, topic: Topic, raw: bytes) -> Judgement:
        return self.board.judge(topic, raw, PEER)

    def reach(self, expression: str = "data") -> int:
        return self.evaluator.reach(DATASET, parse_expression(expression)).blocks

    def heard(self) -> set[KeyDid]:
        return set(self.evaluator.known(DATASET).attestations)


def policy(groups: int = 3, f: int = 0) -> Policy:
    listed = tuple(KeyGroup(f"g{n}", frozenset({key.did})) for n, key in enumerate(VALIDATORS[:groups]))
    return Policy(groups=listed, tolerated=f)


@pytest.fixture
def node(tmp_path: Path) -> Any:
    with closing(open_database(tmp_path / "odfd.sqlite")) as database:
        yield Node(database, tmp_path, policy())


BLOCKS = chain_of(OWNER, ["one", "two", "three"])
BRANCH = [*BLOCKS[:-1], chain_of(OWNER, ["one", "two", "another"])[-1]]


# Heads


def test_forged_head_refused(node: Node) -> None:
    """Attack T-HEAD-01: forged head.

    Defence: only signatures by a writer's key count.
    """
    node.hold(BLOCKS[:2])
    for key in (VALIDATORS[0], SigningKey(b"x" * 32)):
        assert node.hear(Topic.HEADS, head_of(BLOCKS, key)[1]) is Judgement.REJECT
    assert node.evaluator.known(DATASET).head is None
    assert node.hear(Topic.HEADS, head_of(BLOCKS)[1]) is Judgement.ACCEPT


def test_replay_is_older(node: Node) -> None:
    """Attack T-HEAD-01: replayed head.

    Defence: order is epoch, size, upper, time of issue: a replay is older.
    """
    node.hold(BLOCKS)
    old, new = head_of(BLOCKS[:2]), head_of(BLOCKS, at=Instant(NOW + 1000 * instant.SECOND))
    node.now = Instant(NOW + DAY)
    assert node.hear(Topic.HEADS, new[1]) is Judgement.ACCEPT
    assert node.hear(Topic.HEADS, old[1]) is Judgement.IGNORE
    assert node.evaluator.known(DATASET).head == new[0]


def test_withholding_turns_stale(node: Node) -> None:
    """Attack T-HEAD-01: withheld heads.

    Defence: after its expiry and the time that policy allows, a head is not `fresh` any more.

    Who hears no newer head is told so: after its end and the patience of the policy data is no more fresh.
    """
    node.hold(BLOCKS)
    node.hear(Topic.HEADS, head_of(BLOCKS)[1])
    assert node.reach("data & fresh") == len(BLOCKS)
    node.now = Instant(NOW + 7 * DAY + node.policy.max_stale * instant.SECOND + 1)
    assert not node.evaluator.known(DATASET).extent.fresh
    assert (node.reach("data & fresh"), node.reach("data")) == (0, len(BLOCKS))


def test_unbacked_head_ignored(node: Node) -> None:
    """Attack T-HEAD-02: head without blocks.

    Defence: reach does not move before the blocks are here, linked, and form the signed tree.

    A head whose blocks nobody gives moves nothing: what is relied on are blocks that are here.
    """
    node.hold(BLOCKS[:2])
    node.hear(Topic.HEADS, head_of(BLOCKS[:2])[1])
    before = node.reach("chain")
    unbacked, raw = head_of(BLOCKS, size=10**9, root_hash=b"?" * 32, at=Instant(NOW + instant.SECOND))
    assert node.hear(Topic.HEADS, raw) is Judgement.ACCEPT
    assert (node.reach("chain"), node.evaluator.known(DATASET).size) == (before, 2)
    sink = VerifiedChain(ChainState.EMPTY, Frontier(), msgspec.structs.replace(unbacked, size=len(BLOCKS)))
    sink.append(PEER, 0, [block.raw for block in BLOCKS])
    with pytest.raises(Invalid) as caught:
        sink.finish()
    assert caught.value.rule == "trust.tree"


def test_wrong_clock_only_stales(node: Node) -> None:
    """Attack T-HEAD-01: wrong clocks.

    Defence: ten minutes of tolerance; a later date never outranks a larger tree.

    A head from the future waits; a later date never beats a larger tree.
    """
    early = head_of(BLOCKS, at=Instant(NOW + 11 * 60 * instant.SECOND))
    assert node.hear(Topic.HEADS, early[1]) is Judgement.IGNORE
    assert node.evaluator.known(DATASET).head is None
    node.hear(Topic.HEADS, head_of(BLOCKS)[1])
    later = head_of(BLOCKS[:2], at=Instant(NOW + 9 * 60 * instant.SECOND))
    assert node.hear(Topic.HEADS, later[1]) is Judgement.IGNORE


def test_graft_refused() -> None:
    """Attack T-HEAD-02: graft to another dataset.

    Defence: the dataset's id is in the statement and in the chain's Seed.

    Another dataset's blocks under this one's head: the Seed says whose they are.
    """
    others = chain_of(VALIDATORS[0], ["one"])
    head, _ = head_of(others)
    sink = VerifiedChain(ChainState.EMPTY, Frontier(), head)
    sink.append(PEER, 0, [block.raw for block in others])
    with pytest.raises(Invalid) as caught:
        sink.finish()
    assert caught.value.rule == "graft"


def test_rewrite_needs_epoch(node: Node) -> None:
    """Attack T-HEAD-03: a rewrite presented as a compaction.

    Defence: a second history in one epoch is a fork; an epoch that no known authority opened is ignored.

    Another history in the same epoch is a fork; an epoch that no known authority opened is not followed.
    """
    node.hold(BLOCKS)
    node.hear(Topic.HEADS, head_of(BLOCKS)[1])
    opened = head_of(BRANCH, epoch=1, at=Instant(NOW + instant.SECOND))
    assert node.hear(Topic.HEADS, opened[1]) is not Judgement.ACCEPT
    assert node.reach() == len(BLOCKS)
    assert node.hear(Topic.HEADS, head_of(BRANCH)[1]) is Judgement.ACCEPT
    assert node.reach() == len(BLOCKS) - 1


def test_fast_forward_undone(node: Node) -> None:
    """Attack T-HEAD-01: fast-forward: a huge size or a far date.

    Defence: a future date waits; a size moves nothing without its blocks; the next epoch outranks any size.

    A stolen writer signs a billion blocks for ninety days: the next version's epoch is ahead of it all the same.
    """
    thief, writer = VALIDATORS[0], VALIDATORS[1]
    node.hold(BLOCKS)
    node.hear(Topic.HEADS, head_of(BLOCKS)[1])
    tree = Frontier().extend(block.hash.digest for block in BLOCKS)
    here = statement.TreeHead(size=tree.size, root_hash=tree.root)
    first = authority_versions.rotate(authority.implicit(DATASET), thief.did, here, BLOCKS[0].hash, NOW)
    assert node.hear(Topic.HEADS, envelope.seal(statement.encode(first), OWNER)) is Judgement.ACCEPT
    terms: dict[str, Any] = {"authority": 1, "epoch": 1}
    far = head_of(BLOCKS, thief, days=90, size=10**9, root_hash=b"?" * 32, **terms)
    dated = head_of(BLOCKS, thief, at=Instant(NOW + 365 * DAY), **terms)
    assert node.hear(Topic.HEADS, dated[1]) is Judgement.IGNORE
    assert node.hear(Topic.HEADS, far[1]) is Judgement.ACCEPT
    assert node.evaluator.known(DATASET).head == far[0]
    with node.database.read() as connection:
        rights = Authorities(connection).rights(DATASET)
    second = authority_versions.rotate(rights, writer.did, here, BLOCKS[0].hash, NOW)
    assert node.hear(Topic.HEADS, envelope.seal(statement.encode(second), OWNER)) is Judgement.ACCEPT
    honest = head_of(BLOCKS, writer, authority=2, epoch=2)
    assert node.hear(Topic.HEADS, honest[1]) is Judgement.ACCEPT
    again = head_of(BLOCKS, thief, at=Instant(NOW + 60 * instant.SECOND), size=10**9 + 1, **terms)
    assert node.hear(Topic.HEADS, again[1]) is not Judgement.ACCEPT
    assert (node.evaluator.known(DATASET).head, node.reach("chain")) == (honest[0], len(BLOCKS))


# Forks


def test_fork_stops_at_the_common_block(node: Node, tmp_path: Path) -> None:
    """Attack T-HEAD-03: two histories signed by one key.

    Defence: the two signatures are a proof, checked in O(log n); all nodes stop at the last common block.
    """
    node.hold(BLOCKS)
    node.hear(Topic.HEADS, head_of(BLOCKS)[1])
    node.hear(Topic.HEADS, head_of(BRANCH)[1])
    ((found, made_here),) = node.told
    assert (found.kind, found.index, found.accused, made_here) == ("fork", 3, (OWNER.did,), True)
    assert node.evaluator.known(DATASET).extent.forked_at == 3
    assert node.evaluator.reach(DATASET, parse_expression("linked")).why.rule == "fork"
    longer = chain_of(OWNER, ["one", "two", "three", "four"])
    assert node.hear(Topic.HEADS, head_of(longer, at=Instant(NOW + instant.SECOND))[1]) is Judgement.IGNORE
    with closing(open_database(tmp_path / "other.sqlite")) as database:
        other = Node(database, tmp_path / "other", policy())
        other.hold(BRANCH)
        assert other.hear(Topic.PROOFS, found.raw) is Judgement.ACCEPT
        assert other.hear(Topic.PROOFS, found.raw) is Judgement.IGNORE
        assert other.told[0][1] is False
        assert (other.reach("linked"), other.board.envelope(found.id)) == (3, (Topic.PROOFS, found.raw))
        assert found.id in {ref.sid for ref in other.board.refs([DATASET])}


def test_proof_of_nothing_is_refused(node: Node) -> None:
    """Attack T-HEAD-03: a false accusation of a fork.

    Defence: each part of a proof depends on signatures of the accused key.

    Nobody can accuse a key of what it did not sign: each part of a proof is load-bearing.
    """
    first, second = head_of(BLOCKS)[1], head_of(BRANCH)[1]
    leaves = [[block.hash.digest for block in blocks] for blocks in (BLOCKS, BRANCH)]
    made = proof.fork(first, second, *(lambda start, stop, one=one: one[start:stop] for one in leaves))
    body = json.loads(made.raw)
    changes: list[dict[str, Any]] = [
        {"index": 2},
        {"leaves": body["leaves"][::-1]},
        {"leaves": [body["leaves"][0]] * 2},
        {"paths": [body["paths"][0][::-1], body["paths"][1]]},
        {"paths": [body["paths"][0], []]},
        {"statements": [body["statements"][0]] * 2},
        {"statements": [body["statements"][0], json.loads(head_of(BRANCH, VALIDATORS[0])[1])]},
        {"statements": [body["statements"][0], json.loads(head_of(BRANCH, epoch=1)[1])]},
        {"kind": "double-vote"},
        {"kind": "nonsense"},
        {"type": "https://example.org/proof"},
    ]
    for change in changes:
        assert node.hear(Topic.PROOFS, canonical.encode(body | change)) is not Judgement.ACCEPT, change
    assert node.hear(Topic.PROOFS, made.raw) is Judgement.ACCEPT


# Verdicts


def test_sybils_change_nothing() -> None:
    """Attack T-VERDICT-01: Sybils: any number of invented validators.

    Defence: only keys that the operator listed are counted.
    """
    listed = policy(2)
    sybils = {SigningKey(n.to_bytes(32, "big")).did: vote(OWNER, BLOCKS)[0] for n in range(1000, 1050)}
    honest = {VALIDATORS[0].did: vote(VALIDATORS[0], BLOCKS, verdict="mismatch")[0]}
    assert group_verdicts(listed, sybils | honest, 3) == group_verdicts(listed, honest, 3) != {}


@given(st.integers(0, 3), st.data())
def test_lie_refuted_within_bound(f: int, data: Any) -> None:
    """Attack T-VERDICT-01: a publisher of a false result.

    Defence: the step is re-executed; f+1 groups, and at least two, with one and the same other answer refute the
    result.

    f+1 equal mismatches, two at least, refute, whatever f liars say; unlike ones never add up.
    """
    liars = data.draw(st.lists(st.sampled_from([R, OTHER]), max_size=f))
    said = {f"g{n}": voice for n, voice in enumerate([*[LIE] * max(f + 1, REFUTING), *liars])}
    assert count_votes(f, None, said, 0).status is DatasetStatus.REFUTED
    unlike = {f"g{n}": GroupVerdict(VerdictKind.MISMATCH, bytes([n])) for n in range(2 * f + 2)}
    status = count_votes(f, None, unlike, 0).status
    assert status is (DatasetStatus.DISPUTED if f else DatasetStatus.ACCUSED)


@given(st.integers(0, 3), st.sampled_from([None, R, LIE]))
def test_one_machine_refutes_nobody(f: int, own: GroupVerdict | None) -> None:
    """Attack T-VERDICT-01: a faulty machine among few validators that contradicts an honest publisher.

    Defence: two groups with the same other answer refute, whatever `f` is; one alone accuses, and reach stops there.

    A broken one gives one other value, three times or thirty: reach may stop there, and nobody is called a liar.
    """
    said = {} if own is LIE else {"broken": LIE}
    decision = count_votes(f, own, said, 0)
    assert not decision.refutes
    assert decision.status is not DatasetStatus.REFUTED
    assert (decision.status in STOPS) == (f == 0 or own is LIE), "at least as careful as before"
    assert count_votes(f, LIE, {"another": LIE}, 0).refutes


def test_opaque_never_counts() -> None:
    """Attack T-VERDICT-03: a forged checkpoint.

    Defence: validators start from their own replay; verdicts based on an unchecked checkpoint are not counted.
    """
    assert verdict_on(vote(VALIDATORS[0], BLOCKS, state="opaque")[0], 2) is None
    assert verdict_on(vote(VALIDATORS[0], BLOCKS)[0], 2) == R


@given(st.integers(0, 3))
def test_f_liars_cannot_attest(f: int) -> None:
    """Attack T-VERDICT-01: validators that affirm a false result.

    Defence: a policy loads only with k >= f+1.
    """
    said = {f"g{n}": R for n in range(f)}
    assert count_votes(f, None, said, f + 1).status is DatasetStatus.PENDING


@given(st.integers(0, 3), st.data())
def test_f_deniers_cannot_veto(f: int, data: Any) -> None:
    """Attack T-VERDICT-01: validators that deny a correct result.

    Defence: f dissenters are no veto.
    """
    deniers = data.draw(st.lists(st.sampled_from([LIE, OTHER]), max_size=f))
    said = {f"g{n}": voice for n, voice in enumerate([*[R] * (f + 1), *deniers])}
    decision = count_votes(f, None, said, f + 1)
    assert (decision.status, decision.attested) == (DatasetStatus.ATTESTED, f + 1)


@given(st.integers(0, 3), st.integers(0, 20))
def test_own_mismatch_beats_quorum(f: int, colluders: int) -> None:
    """Attack T-VERDICT-01: a colluding majority.

    Defence: a mismatch that this node computed outranks any number of others.
    """
    said = {f"g{n}": R for n in range(colluders)}
    assert count_votes(f, LIE, said, 1).status is DatasetStatus.OWN_MISMATCH


@given(st.integers(1, 3), st.data())
def test_excuse_needs_f_plus_one(f: int, data: Any) -> None:
    """Attack T-VERDICT-01: non-determinism as an excuse.

    Defence: f+1 groups must confirm it; fewer change nothing.
    """
    excuses = data.draw(st.integers(0, f))
    said = {f"g{n}": voice for n, voice in enumerate([*[LIE] * (f + 1), *[N] * excuses])}
    assert count_votes(f, None, said, 0).status is DatasetStatus.REFUTED
    said |= {f"h{n}": N for n in range(f + 1)}
    assert count_votes(f, None, said, 0).status is DatasetStatus.NONDETERMINISTIC


def test_group_votes_once() -> None:
    """Attack T-VERDICT-01: one operator with many keys.

    Defence: a group has one vote, and none when its members contradict each other.
    """
    one = Policy(groups=(KeyGroup("one", frozenset(key.did for key in VALIDATORS)),))
    heard = {key.did: vote(key, BLOCKS)[0] for key in VALIDATORS}
    assert group_verdicts(one, heard, 2) == {"one": R}
    heard[VALIDATORS[0].did] = vote(VALIDATORS[0], BLOCKS, verdict="mismatch")[0]
    assert group_verdicts(one, heard, 3) == {}


@pytest.mark.parametrize("way", ["dataset key", "node of a head", "former writer"])
def test_self_attestation_ignored(node: Node, way: str) -> None:
    """Attack T-VERDICT-02: a publisher that attests its own dataset, by its node's key, or by a writer that it has
    removed since.

    Defence: no group confirms what one of its keys made: the dataset's own, a root or writer of any version, the node
    that a head names. A publisher that hides them all is one of the f groups that may lie.

    A group that shares a key with those who made the dataset confirms nothing of it, by whatever key they did.
    """
    node.hold(BLOCKS)
    owner = VALIDATORS[0]
    if way == "dataset key":
        node.policy = Policy(groups=(KeyGroup("owner", frozenset({OWNER.did, owner.did})), *policy(3).groups[1:]))
    elif way == "node of a head":
        assert node.hear(Topic.HEADS, head_of(BLOCKS, node=owner.did)[1]) is Judgement.ACCEPT
    else:
        tree = Frontier().extend(block.hash.digest for block in BLOCKS)
        here, rights = statement.TreeHead(size=tree.size, root_hash=tree.root), authority.implicit(DATASET)
        for writer in (owner.did, SigningKey(b"w" * 32).did):
            version = authority_versions.rotate(rights, writer, here, BLOCKS[0].hash, NOW)
            assert node.hear(Topic.HEADS, envelope.seal(statement.encode(version), OWNER)) is Judgement.ACCEPT
            with node.database.read() as connection:
                rights = Authorities(connection).rights(DATASET)
        assert owner.did not in rights.writers
    for key in (OWNER, owner, VALIDATORS[1]):
        assert node.hear(Topic.ATTEST, vote(key, BLOCKS)[1]) is Judgement.ACCEPT
    assert node.heard() == {VALIDATORS[1].did}
    assert node.evaluator.decision(node.evaluator.known(DATASET), 2).attested == 1


def test_a_publisher_silences_no_accuser_by_naming_it_as_its_own(node: Node) -> None:
    """Attack T-VERDICT-02: a publisher that names the keys of its accusers as its own.

    Defence: what they say against the dataset counts as before.

    Names need no signature of those who are named: what they say against the dataset counts as before.
    """
    node.hold(BLOCKS)
    assert node.hear(Topic.HEADS, head_of(BLOCKS, node=VALIDATORS[0].did)[1]) is Judgement.ACCEPT
    for key in VALIDATORS[:2]:
        assert node.hear(Topic.ATTEST, vote(key, BLOCKS, verdict="mismatch")[1]) is Judgement.ACCEPT
    found = node.evaluator.decision(node.evaluator.known(DATASET), len(BLOCKS) - 1)
    assert (found.status, found.against) == (DatasetStatus.REFUTED, 2)


def test_other_branch_ignored(node: Node) -> None:
    """Attack T-VERDICT-02: attestation of another branch.

    Defence: a verdict counts only if its last block is the one held here, whose links commit to all earlier ones.

    A verdict on another history is none on mine, however many say it.
    """
    node.hold(BLOCKS)
    node.hear(Topic.ATTEST, vote(VALIDATORS[0], BRANCH)[1])
    node.hear(Topic.ATTEST, vote(VALIDATORS[1], BLOCKS)[1])
    assert node.heard() == {VALIDATORS[1].did}


@pytest.mark.parametrize("grown", [False, True])
def test_a_verdict_counts_alike_however_far_a_node_is(node: Node, grown: bool) -> None:
    """Attack T-VERDICT-02: a verdict made to count on some nodes only.

    Defence: the hash of its last block is compared, at any size of the chain.

    The block that it names as the last is compared, at any size: none counts here and not there.
    """
    node.hold(BLOCKS if grown else BLOCKS[:-1])
    said, _ = vote(VALIDATORS[0], BLOCKS[:-1])
    for key, change in ((VALIDATORS[0], {"root_hash": bytes(32)}), (VALIDATORS[1], {"head": BLOCKS[0].hash})):
        crafted = msgspec.structs.replace(said, validator=key.did, **change)
        node.hear(Topic.ATTEST, envelope.seal(statement.encode(crafted), key))
    assert node.heard() == {VALIDATORS[0].did}


def test_a_validator_speaks_of_a_new_epoch_with_any_serial(node: Node) -> None:
    """Attack T-VERDICT-02: an honest validator excluded by a rewrite.

    Defence: serials are counted by epoch.

    Serials are counted by epoch: who lost his state and begins anew contradicts nobody, and old words stay old.
    """
    node.hold(BLOCKS)
    for epoch, serial, judged in ((0, 5, Judgement.ACCEPT), (1, 5, Judgement.ACCEPT), (0, 6, Judgement.IGNORE)):
        said = msgspec.structs.replace(vote(VALIDATORS[0], BLOCKS, serial)[0], epoch=epoch)
        assert node.hear(Topic.ATTEST, envelope.seal(statement.encode(said), VALIDATORS[0])) is judged
    said = msgspec.structs.replace(vote(VALIDATORS[1], BLOCKS, 5)[0], epoch=3)
    node.hear(Topic.ATTEST, envelope.seal(statement.encode(said), VALIDATORS[1]))
    said = msgspec.structs.replace(said, epoch=4, serial=6)
    assert node.hear(Topic.ATTEST, envelope.seal(statement.encode(said), VALIDATORS[1])) is Judgement.ACCEPT
    assert node.heard() == {VALIDATORS[0].did, VALIDATORS[1].did}


def test_double_vote_suspends(node: Node) -> None:
    """Attack T-VERDICT-02: a validator that signs contradicting verdicts.

    Defence: two statements of one serial, or a broken sequence of serials, are a proof; its whole group is suspended.

    Two faces of one serial, or a successor that does not follow: proven, told to all, and the group is silent.
    """
    liar, honest = VALIDATORS[0], VALIDATORS[1]
    node.policy = Policy(groups=(KeyGroup("g", frozenset({liar.did, VALIDATORS[2].did})), policy(3).groups[1]))
    node.hold(BLOCKS)
    for key in (liar, honest, VALIDATORS[2]):
        node.hear(Topic.ATTEST, vote(key, BLOCKS)[1])
    assert len(node.heard()) == 3
    assert node.hear(Topic.ATTEST, vote(liar, BLOCKS, verdict="mismatch")[1]) is Judgement.ACCEPT
    ((found, made_here),) = node.told
    assert (found.kind, found.accused, made_here) == ("double-vote", (liar.did,), True)
    assert node.heard() == {honest.did}
    assert node.hear(Topic.ATTEST, vote(honest, BLOCKS, 2, previous=Multihash.sha3_256(b"?"))[1]) is Judgement.ACCEPT
    assert node.heard() == set()


@pytest.mark.slow
@given(st.data())
def test_honest_never_suspended(data: Any) -> None:
    """Attack T-VERDICT-02: framing an honest validator.

    Defence: no order or repetition of honest statements yields a proof.

    Whatever order an honest validator's statements come in, and how often: no two of them contradict each other.
    """
    said: list[tuple[Attestation, bytes]] = []
    for serial in range(1, data.draw(st.integers(2, 6))):
        size = data.draw(st.integers(1, len(BLOCKS)))
        verdict = data.draw(st.sampled_from(["reproduced", "not-attempted", "mismatch"]))
        previous = envelope.sid(statement.encode(said[-1][0])) if said else None
        said.append(vote(VALIDATORS[0], BLOCKS[:size], serial, previous=previous, verdict=verdict))
    newest: Attestation | None = None
    for one, raw in data.draw(st.lists(st.sampled_from(said), max_size=12)):
        signed = envelope.unseal(raw, one.MAX_ENVELOPE)
        outcome = admit_attestation(one, signed, newest, NOW).outcome
        assert outcome in (AdmissionOutcome.NEW, AdmissionOutcome.OLDER)
        newest = one if outcome is AdmissionOutcome.NEW else newest
    for (_, one), (_, other) in itertools.combinations(said, 2):
        with pytest.raises(Invalid):
            proof.double_vote(one, other)


# Keys and bytes


def test_restored_signer_refuses(tmp_path: Path) -> None:
    """Attack T-KEY-01: rollback of the own state (crash, restored backup).

    Defence: the signing journal is outside the database: a statement older than its last entry is refused.

    A database restored from a backup does not make its key contradict itself: the journal remembers.
    """
    journal = SigningJournal(tmp_path / "key.journal")
    journal.promise("head", (0, 8), "new")
    again = SigningJournal(tmp_path / "key.journal")
    for order, subject in (((0, 7), "older"), ((0, 8), "another of the same size")):
        with pytest.raises(Refused) as caught:
            again.promise("head", order, subject)
        assert caught.value.rule == "trust.behind"
    again.promise("head", (0, 8), "new")


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw.replace(b'"epoch":0', b'"epoch": 0'),
        lambda raw: raw.replace(b'"epoch":0', b'"epoch":0.0'),
        lambda raw: raw.replace(b'"epoch":0', b'"epoch":null'),
        lambda raw: raw.replace(b'"epoch":0', b'"epoch":0,"epoch":0'),
        lambda raw: raw.replace(b'"epoch":0', b'"epoch":9007199254740992'),
        lambda raw: raw.replace(b'"epoch":0', b'"deep":' + b"[" * 9 + b"]" * 9),
        lambda raw: raw + b" ",
    ],
)
def test_noncanonical_refused(node: Node, change: Any) -> None:
    """Attack T-BYTES-01: oversized or malformed statements.

    Defence: limits before parsing; a payload is its own canonical form; depth 8.

    Signed by the right key, yet refused: two parsers might read it differently.
    """
    payload = statement.encode(head_of(BLOCKS)[0])
    assert change(payload) != payload
    assert node.hear(Topic.HEADS, envelope.seal(change(payload), OWNER)) is Judgement.REJECT
    assert node.hear(Topic.HEADS, bytes(statement.MAX_ANY + 1)) is Judgement.REJECT


def test_small_order_keys_refused() -> None:
    """Attack T-KEY-02: malleable signatures, weak keys.

    Defence: S below the order, canonical points, no small order; ids exclude signatures; no algorithm field.

    Under such a key anyone can sign: a signature of 64 plain bytes that a library alone would take.
    """
    from chain.statements import keys

    weak = bytes.fromhex("0100000000000000000000000000000000000000000000000000000000000000")
    signature = weak + bytes(32)
    assert not keys.verify(weak, b"anything", signature)
    good = OWNER.sign(b"message")
    assert keys.verify(OWNER.public, b"message", good)
    more = (int.from_bytes(good[32:], "little") + keys.ORDER).to_bytes(32, "little")
    assert not keys.verify(OWNER.public, b"message", good[:32] + more)


def test_a_time_of_no_calendar_is_bad_bytes(node: Node) -> None:
    """Attack T-BYTES-01: a signed time outside the calendar.

    Defence: times are parsed with the statement; a violation and a penalty.

    Anybody can sign a thirteenth month, of a dataset of his own.
    """
    node.hold(BLOCKS)
    for field in ("issued_at", "expires_at"):
        raw = head_of(BLOCKS, **{field: "2026-13-01T00:00:00Z"})[1]
        assert node.hear(Topic.HEADS, raw) is Judgement.REJECT


def test_signing_prefixes_disjoint() -> None:
    """Attack T-KEY-02: a signature reused in another protocol.

    Defence: the signed bytes of each protocol have a prefix of their own.

    What a key signs for one protocol is never what it signs for another: the first bytes differ.
    """
    ours = envelope.preauth(statement.encode(head_of(BLOCKS)[0]))
    others = [b"cosignature/v1\n", b"did:odf:", b"ipns-signature:", b"noise-libp2p-static-key:", b"libp2p-pubsub:"]
    length_prefixed = b"\x12libp2p-peer-record"
    prefixes = [b"DSSEv1 ", *others, length_prefixed, validator.MARK]
    assert ours.startswith(b"DSSEv1 ")
    assert not any(one.startswith(other) for one, other in itertools.permutations(prefixes, 2))


def test_no_host_facts_signed() -> None:
    """Attack T-PRIVATE-02: statements that reveal facts about the host.

    Defence: statements have a closed list of fields, none of them about the host.

    No name of this machine, no path, no address stands in what is signed; the fields are a closed list.
    """
    said = json.loads(statement.encode(vote(VALIDATORS[0], BLOCKS, verdict="mismatch")[0]))["predicate"]
    assert set(said) == {
        "validator", "dataset", "epoch", "size", "rootHash", "serial", "determinism", "finishedAt", "engines", "spans",
        "mismatch",
    }  # fmt: skip
    assert set(said["engines"][0]) == {"name", "digest", "pinned", "sandbox", "platform"}
    assert set(json.loads(statement.encode(head_of(BLOCKS)[0]))["predicate"]) == {
        "dataset", "epoch", "size", "rootHash", "authority", "issuedAt", "expiresAt",
    }  # fmt: skip
    assert socket.gethostname() not in json.dumps(said)


def test_nobody_speaks_for_another(node: Node) -> None:
    """Attack T-VERDICT-02: a verdict copied from a validator.

    Defence: a verdict names its validator and counts only with that validator's signature.

    A copy of a validator's words, signed by someone else as well or instead, neither counts nor silences him.
    """
    node.hold(BLOCKS)
    said, _ = vote(VALIDATORS[0], BLOCKS)
    payload, thief = statement.encode(said), SigningKey(b"t" * 32)
    assert node.hear(Topic.ATTEST, envelope.seal(payload, thief)) is Judgement.REJECT
    assert node.hear(Topic.ATTEST, envelope.seal(payload, thief, VALIDATORS[0])) is Judgement.ACCEPT
    assert node.heard() == {VALIDATORS[0].did}
    _, head = head_of(BLOCKS)
    both = envelope.seal(statement.encode(head_of(BLOCKS)[0]), thief, OWNER)
    assert node.hear(Topic.HEADS, both) is Judgement.ACCEPT
    assert node.hear(Topic.HEADS, head) is Judgement.IGNORE


# Order and repetition


def deeds() -> list[tuple[Topic, bytes]]:
    """Everything that the tests above have anyone say, of one dataset."""
    votes = [vote(key, BLOCKS)[1] for key in VALIDATORS[:3]]
    leaves = [[block.hash.digest for block in blocks] for blocks in (BLOCKS, BRANCH)]
    forked = proof.fork(
        head_of(BLOCKS)[1], head_of(BRANCH)[1], *(lambda start, stop, one=one: one[start:stop] for one in leaves)
    )
    faces = vote(VALIDATORS[0], BLOCKS)[1], vote(VALIDATORS[0], BLOCKS, verdict="mismatch")[1]
    return [
        (Topic.HEADS, head_of(BLOCKS)[1]),
        *((Topic.ATTEST, raw) for raw in votes),
        (Topic.PROOFS, forked.raw),
        (Topic.PROOFS, proof.double_vote(*faces).raw),
    ]


@pytest.mark.parametrize("seed", range(6))
def test_order_of_hearing_changes_no_answer(tmp_path: Path, seed: int) -> None:
    """Attack T-HEAD-01: order, repetition, loss of statements.

    Defence: the ledger is a join-semilattice: the same statements give the same answer.

    Same statements and proofs, in any order and repeated: the same answer (S5).
    """
    import random

    heard = deeds() * 2
    random.Random(seed).shuffle(heard)
    with closing(open_database(tmp_path / "odfd.sqlite")) as database:
        node = Node(database, tmp_path, policy())
        node.hold(BLOCKS)
        for topic, raw in heard:
            assert node.hear(topic, raw) is not Judgement.REJECT
        assert (node.reach("linked"), node.heard()) == (3, {key.did for key in VALIDATORS[1:3]})
        with database.read() as connection:
            assert len(Proofs(connection).of(DATASET)) == 2


def test_values_of_answers_are_compared_whole() -> None:
    """Two answers are one only when rows, offsets, count and watermark are."""
    answers = [
        Actual(records=1),
        Actual(records=2),
        Actual(records=1, watermark="2026-11-20T08:00:00Z"),
        Actual(records=1, logical_hash=Multihash.sha3_256(b"")),
    ]
    assert len({value_id(each) for each in answers}) == len(answers)


def test_a_head_far_from_ours_is_no_answer() -> None:
    """Admission alone, without a database: one ``now``, one verdict."""
    head, raw = head_of(BLOCKS, days=91)
    verdict = admit_head(head, envelope.unseal(raw, 4096), None, lambda _: None, NOW)
    assert verdict.outcome is AdmissionOutcome.REJECTED
