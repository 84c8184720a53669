"""The JSON Schemas of resources are those that the classes make.

After changing a type, write them anew:  python tests/contract/odfd/test_resource_schemas.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from odfd.resources.schema import part_of, schema_of, type_text
from odfd.services.resources.types import TYPES

DOCS = Path(__file__).parents[3] / "docs"
EXAMPLE = re.compile(r"```yaml\n((?:fetch|read):\n.*?)```", re.DOTALL)


def schema_files() -> dict[Path, str]:
    return {
        DOCS / "schemas" / f"{kind.path}.json": json.dumps(schema_of(kind), indent=1, ensure_ascii=False) + "\n"
        for kind in TYPES
        if kind.spec is not None
    }


def test_r03_the_schemas_that_are_checked_in_are_those_that_are_served() -> None:
    wanted = schema_files()
    assert {path: path.read_text() for path in (DOCS / "schemas").rglob("*.json")} == wanted


def test_the_schema_knows_every_example_of_a_source() -> None:
    """Editors check manifests by it, and ``odfctl explain`` shows it: our kinds and options are in it."""
    made = schema_of(next(kind for kind in TYPES if kind.name == "Dataset"))
    examples = [yaml.safe_load(each) for each in EXAMPLE.findall((DOCS / "sources.md").read_text())]
    steps = [(name, each[name]) for each in examples for name in ("fetch", "read") if name in each]
    assert {step["kind"] for _, step in steps} >= {"Sql", "Http", "FilesGlob", "Avro", "Sqlite"}
    for name, step in steps:
        known = made["$defs"][f"{name.capitalize()}{step['kind']}"]
        assert known["properties"]["kind"] == {"const": step["kind"]}
        assert step.keys() <= known["properties"].keys()
        assert set(known["required"]) <= step.keys()
        part = part_of(made, "spec.metadata." + name)
        assert part is not None
        assert step["kind"] in type_text(made, part).split(" | ")


def write() -> None:
    for path, text in schema_files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    write()
