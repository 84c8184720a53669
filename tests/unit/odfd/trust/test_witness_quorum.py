"""Quorums of witnesses: what prevents a split view, what only detects it, and how far a chain is witnessed (S4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import cosignature, statement
from chain.statements.checkpoint import TreeCheckpoint
from chain.statements.cosignature import Cosignature
from chain.statements.keys import SigningKey
from chain.statements.statement import HeadStatement
from chain.statements.tree import Frontier, Tree
from odfd.policy.policy import parse_expression
from odfd.policy.witness_quorum import TreeRoots, Witnesses, behind, witnessed
from odfd.trust.judgement.verdicts import ChainExtent, DatasetStatus, Decision, reach

NOW = instant.parse("2026-11-20T08:00:00Z")
DAY = 86400 * instant.SECOND
KEYS = [SigningKey(bytes([number]) * 32) for number in range(1, 8)]
DATASET = SigningKey(b"o" * 32).dataset_id
LEAVES = [b"m%31d" % number for number in range(10)]
BRANCH = [*LEAVES[:6], *(b"t%31d" % number for number in range(4))]


def root(leaves: Sequence[bytes]) -> bytes:
    return Frontier().extend(leaves).root


def made(key: SigningKey, size: int, at: int = NOW, leaves: Sequence[bytes] = LEAVES, epoch: int = 0) -> Cosignature:
    return cosignature.cosign(key, TreeCheckpoint(DATASET, epoch, size, root(leaves[:size])), Instant(at))


def three(**more: int) -> Witnesses:
    return Witnesses(groups={key.did: f"w{number}" for number, key in enumerate(KEYS[:3])}, **more)


def roots_at(sizes: Sequence[int]) -> Mapping[int, bytes]:
    return {size: root(LEAVES[:size]) for size in sizes}


def how_far(*cosigned: Cosignature, witnesses: Witnesses | None = None) -> tuple[int, ...]:
    return witnessed(witnesses or three(), cosigned, len(LEAVES), roots_at, NOW)


def test_how_far_each_group_has_cosigned() -> None:
    assert how_far(made(KEYS[0], 9), made(KEYS[1], 4), made(KEYS[2], 10)) == (10, 9, 4)
    assert how_far(made(KEYS[0], 4, epoch=0), made(KEYS[0], 7, epoch=1)) == (7,), "a group counts once"


@pytest.mark.parametrize(
    "other",
    [
        made(KEYS[5], 9),
        made(KEYS[0], 9, NOW - 7 * DAY - instant.SECOND),
        made(KEYS[0], 9, leaves=BRANCH),
        made(KEYS[0], 8, leaves=BRANCH[::-1]),
    ],
    ids=["a stranger", "too old", "another branch", "another tree"],
)
def test_what_does_not_count(other: Cosignature) -> None:
    assert how_far(other, made(KEYS[1], 5)) == (5,)


def test_a_tree_beyond_mine_is_not_mine_yet() -> None:
    assert witnessed(three(), [made(KEYS[0], 9)], 8, roots_at, NOW) == ()


def test_reach_ends_where_the_quorum_ends() -> None:
    extent = ChainExtent(linked=10, chain=10, data=9, witnessed=(10, 7, 3))

    def pending(_: int) -> Decision:
        return Decision(DatasetStatus.PENDING)

    for expression, blocks, rule in [
        ("witnessed:1", 10, "head"),
        ("data & witnessed:2", 7, "witnessed"),
        ("data & witnessed:3", 3, "witnessed"),
        ("data & witnessed:1", 9, "data"),
        ("data | witnessed:2", 9, "data"),
        ("witnessed:4", 0, "witnessed"),
    ]:
        found = reach(parse_expression(expression), extent, [], pending)
        assert (found.blocks, found.why.rule) == (blocks, rule), expression
    found = reach(parse_expression("data & (witnessed:2 | attested:1)"), extent, [4, 8], pending)
    assert (found.blocks, found.why.rule) == (8, "pending")


@given(st.integers(1, 7), st.data())
def test_split_needs_faulty_quorum(groups: int, data: st.DataObject) -> None:
    """An honest witness signs one side, a faulty one both: however they fall, two sides never both have a quorum."""
    faulty = data.draw(st.integers(0, groups - 1))
    witnesses = Witnesses(groups={key.did: str(key.did) for key in KEYS[:groups]}, faulty=faulty)
    honest = groups - faulty
    ways = [(faulty + one, faulty + honest - one) for one in range(honest + 1)]
    assert all(min(sides) < witnesses.preventing for sides in ways)
    assert any(min(sides) == witnesses.preventing - 1 for sides in ways), "one less lets both sides through"


def test_only_the_tree_of_a_head_is_behind_it() -> None:
    head = HeadStatement(
        dataset=DATASET,
        epoch=0,
        size=9,
        root_hash=root(LEAVES[:9]),
        authority=0,
        issued_at=statement.when(NOW),
        expires_at="2026-11-27T08:00:00Z",
        head=Multihash.sha3_256(b"head"),
    )
    cosigned = [made(KEYS[0], 9), made(KEYS[0], 9), made(KEYS[1], 9, epoch=1), made(KEYS[2], 8), made(KEYS[4], 9)]
    assert behind(three(), head, cosigned, NOW) == 1
    assert behind(three(), head, [*cosigned, made(KEYS[2], 9)], NOW) == 2
    assert behind(three(), head, cosigned, Instant(NOW + 8 * DAY)) == 0


def test_a_root_is_asked_for_once() -> None:
    trees: list[Tree] = []

    def tree() -> Tree:
        trees.append(Tree(lambda start, stop: LEAVES[start:stop]))
        return trees[-1]

    roots, ends = TreeRoots(), {size: Multihash.sha3_256(LEAVES[size - 1]) for size in range(1, 11)}
    for sizes in ([3, 7], [3, 7], [7, 9], []):
        assert roots.at(sizes, ends, tree) == {size: root(LEAVES[:size]) for size in sizes}
    assert len(trees) == 2
