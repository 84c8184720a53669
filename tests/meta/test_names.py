"""One name, one meaning: no two public classes are called the same, within a root or over all of them.

What several roots still call the same stands in SHARED with its reason, and that list only shrinks.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from worlds.source_tree import parsed

TREE = Path(__file__).parents[2]
ROOTS = ("config", "chain", "engines", "p2p", "odfd", "client")

SHARED = {
    "the client is a distribution of its own, and a caller sees the node's words in it": """
        Answer Block Bug Column Conflict Cut Environment Exchange Invalid NotFound Pin Progress Proof Query
        ReadStanding Refused Remote Selection SliceFile SliceFiles Snapshot Source StoredChain StoredFile
        Transport Unreachable
    """,
    "a section of the settings is named by what it sets": """
        Engine Group Limits Node Policy Rewrite Witness
    """,
    "the control API or the node's client in the engine says in its own form what the other one states": """
        CardColumn EngineProcess Problem QueryEnd RowCounts SkippedFile
    """,
}
"""Reason -> names that classes of several roots may have."""


def classes() -> dict[str, list[Path]]:
    places = defaultdict(list)
    for root in ROOTS:
        for path in sorted((TREE / root).rglob("*.py")):
            for node in parsed(path).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(path.relative_to(TREE))
    return places


@pytest.mark.parametrize("root", ROOTS)
def test_no_two_classes_of_a_root_share_a_name(root: str) -> None:
    own = {name: [str(path) for path in paths if path.parts[0] == root] for name, paths in classes().items()}
    twice = {name: paths for name, paths in own.items() if len(paths) > 1}
    assert not twice, twice


def test_no_two_classes_of_different_roots_share_a_name() -> None:
    several = {name: paths for name, paths in classes().items() if len({path.parts[0] for path in paths}) > 1}
    listed = {name for names in SHARED.values() for name in names.split()}
    new = {name: list(map(str, several[name])) for name in sorted(several.keys() - listed)}
    assert not new, new
    assert sorted(listed - several.keys()) == [], "these have one meaning now: take them from SHARED"
