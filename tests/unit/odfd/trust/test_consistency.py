"""Whether a tree may be cosigned: the rules of tlog-witness as a table."""

from __future__ import annotations

import pytest

from chain.statements.tree import Frontier, Tree
from odfd.trust.witness.witness import NOTHING, ConsistencyResult, KnownTree, last_of, proven_after, rule, shown_by

LEAVES = [bytes([number]) * 32 for number in range(20)]
OTHERS = [*LEAVES[:6], *(bytes([number + 100]) * 32 for number in range(14))]


def tree(size: int, leaves: list[bytes] = LEAVES) -> KnownTree:
    return KnownTree(size, Frontier().extend(leaves[:size]).root)


def proof(old: int, new: int, leaves: list[bytes] = LEAVES) -> list[bytes]:
    return Tree(lambda start, stop: leaves[start:stop]).consistency(old, new)


CASES = {
    "the first of an origin": ((), 0, tree(8), [], ConsistencyResult.COSIGN),
    "the first, of no leaves at all": ((), 0, NOTHING, [], ConsistencyResult.COSIGN),
    "the first, with a proof of nothing": ((), 0, tree(8), proof(4, 8), ConsistencyResult.UNPROVEN),
    "the first, said to follow what was never cosigned": ((), 4, tree(8), proof(4, 8), ConsistencyResult.CONFLICT),
    "the next": ((tree(5),), 5, tree(13), proof(5, 13), ConsistencyResult.COSIGN),
    "the next of a power of two": ((tree(8),), 8, tree(9), proof(8, 9), ConsistencyResult.COSIGN),
    "the same again": ((tree(8),), 8, tree(8), [], ConsistencyResult.COSIGN),
    "the same again, with a proof too many": ((tree(8),), 8, tree(8), [bytes(32)], ConsistencyResult.UNPROVEN),
    "of the same size another": ((tree(8),), 8, tree(8, OTHERS), [], ConsistencyResult.UNPROVEN),
    "a fork, with its own proof": ((tree(8),), 8, tree(13, OTHERS), proof(8, 13, OTHERS), ConsistencyResult.UNPROVEN),
    "a fork, with our proof": ((tree(8),), 8, tree(13, OTHERS), proof(8, 13), ConsistencyResult.UNPROVEN),
    "a branch that left later": ((tree(6),), 6, tree(13, OTHERS), proof(6, 13, OTHERS), ConsistencyResult.COSIGN),
    "an old proof": ((tree(5), tree(8)), 5, tree(13), proof(5, 13), ConsistencyResult.CONFLICT),
    "an old proof, told as new": ((tree(5), tree(8)), 8, tree(13), proof(5, 13), ConsistencyResult.UNPROVEN),
    "without a proof": ((tree(5),), 5, tree(13), [], ConsistencyResult.UNPROVEN),
    "a proof cut short": ((tree(5),), 5, tree(13), proof(5, 13)[:-1], ConsistencyResult.UNPROVEN),
    "a proof with more": ((tree(5),), 5, tree(13), [*proof(5, 13), bytes(32)], ConsistencyResult.UNPROVEN),
    "a proof longer than any tree is high": ((tree(5),), 5, tree(13), [bytes(32)] * 70, ConsistencyResult.UNPROVEN),
    "a smaller tree": ((tree(8),), 8, tree(5), [], ConsistencyResult.SMALLER),
    "a smaller tree, told as the first": ((tree(8),), 0, tree(5), [], ConsistencyResult.CONFLICT),
    "two of one size were cosigned": (
        (tree(8), tree(8, OTHERS)), 8, tree(13), proof(8, 13), ConsistencyResult.UNPROVEN
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_tree_is_cosigned_after_what_it_is_shown_to_continue(name: str) -> None:
    known, old, new, nodes, expected = CASES[name]
    assert rule(known, old, new, shown_by(nodes, old, new)) is expected


def test_what_was_proven_by_peers_is_proven_of_that_tree_alone() -> None:
    begins = proven_after(tree(8))
    assert rule((tree(5), tree(8)), 8, tree(13), begins) is ConsistencyResult.COSIGN
    assert rule((tree(5), tree(8, OTHERS)), 8, tree(13), begins) is ConsistencyResult.UNPROVEN
    assert rule((tree(9),), 8, tree(13), begins) is ConsistencyResult.CONFLICT, "another was cosigned meanwhile"
    assert (last_of(()), last_of((tree(5), tree(8)))) == (NOTHING, tree(8))
