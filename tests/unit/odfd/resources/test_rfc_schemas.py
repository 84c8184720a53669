"""RFC-018's JSON Schemas judge what this node prints, and what it reads is judged by them."""

from __future__ import annotations

from pathlib import Path

import pytest

from chain.codec import yaml_tree
from chain.codec.bind import plain
from worlds import rfc_schemas

EXAMPLES = Path(__file__).parents[3] / "golden" / "rfc018"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_each_example_of_the_rfc_is_valid_by_its_schemas(path: Path) -> None:
    (node,) = yaml_tree.parse(path.read_text(), path.name)
    assert rfc_schemas.mistakes(plain(node)) == []


def test_the_judge_finds_what_is_wrong_in_each_part() -> None:
    name = f"{rfc_schemas.ODF}config/v1alpha1/VariableSet"
    good = {"$schema": name, "headers": {"name": "a"}, "spec": {"variables": {"x": {"value": "1"}, "y": "2"}}}
    assert rfc_schemas.mistakes(good) == []
    for wrong in (
        {"more": 1},
        {"headers": {"name": "a", "did": "did:odf:1"}},
        {"spec": {"variables": {"x": {"value": "1", "more": 1}}}},
        {"spec": {"variables": {}, "more": 1}},
        {"status": {"phase": "Ready", "conditions": {}}},
    ):
        assert rfc_schemas.mistakes(good | wrong), wrong
