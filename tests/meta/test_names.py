"""One name, one meaning: no two public classes of a root are called the same."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from worlds.source_tree import parsed

TREE = Path(__file__).parents[2]


@pytest.mark.parametrize("root", ["config", "chain", "engines", "p2p", "odfd", "client"])
def test_no_two_classes_of_a_root_share_a_name(root: str) -> None:
    places = defaultdict(list)
    for path in sorted((TREE / root).rglob("*.py")):
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(TREE)))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert not twice, twice
