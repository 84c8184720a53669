"""RFC-018's JSON Schemas judge what this node prints, and what it reads is judged by them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from chain.codec import yaml_tree
from chain.codec.bind import plain, plain_of
from odfd.api.resources.desired_state import read_desired_state
from odfd.control import wire
from odfd.resources.types import ODF, OURS
from worlds import rfc_schemas

ROOT = Path(__file__).parents[4]
EXAMPLES = ROOT / "tests" / "golden" / "rfc018"
STEP = re.compile(r"```yaml\n((?:fetch|read):\n.*?)```", re.DOTALL)
FETCH = {"kind": "Url", "url": "https://example.org/a.csv"}
READ = {"kind": "Csv", "header": True, "schema": {"fields": [{"name": "n", "type": "Int64"}]}}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_r62_each_example_of_the_rfc_is_valid_by_its_schemas(path: Path) -> None:
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


def test_r03_no_schema_of_ours_is_under_a_uri_of_the_format() -> None:
    for path in rfc_schemas.OWN.rglob("*.json"):
        schema = json.loads(path.read_text())
        assert schema["$id"] == f"{OURS}/{path.relative_to(rfc_schemas.OWN).with_suffix('')}"
        assert [each for each in rfc_schemas.schemas() if each == schema["$id"]] == [schema["$id"]]
        assert not {each for each in schema["properties"]["$schema"]["enum"] if each.startswith(ODF)} - {
            schema["$id"].replace(OURS, ODF)
        }


def steps() -> list[dict[str, Any]]:
    found = [yaml.safe_load(each) for each in STEP.findall((ROOT / "docs" / "sources.md").read_text())]
    assert len(found) > 10
    return found


@pytest.mark.parametrize("step", steps(), ids=lambda step: "-".join(each["kind"] for each in step.values()))
def test_a_source_with_options_of_ours_names_our_schema_and_others_that_of_the_format(step: dict[str, Any]) -> None:
    source = {"kind": "SetPollingSource", "fetch": FETCH, "read": READ, "merge": {"kind": "Append"}}
    source |= {key: value for key, value in step.items() if key in ("fetch", "read", "prepare")}
    manifest = {"$schema": "Dataset", "headers": {"name": "a"}, "spec": {"kind": "Root", "metadata": [source]}}
    (draft,) = read_desired_state([wire.ManifestText(source="m.yaml", text=yaml.safe_dump(manifest), base="")]).drafts
    spec = plain_of(draft.spec)
    printed = manifest | {"$schema": draft.type.schema_of(spec), "spec": spec}
    has_ours = "w3id.org/odfd/" in json.dumps(spec)
    assert printed["$schema"] == (draft.type.own_uri if has_ours else draft.type.uri)
    assert rfc_schemas.mistakes(printed) == []
