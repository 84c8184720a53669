"""The JSON Schemas of resources and their reference are those that the classes make.

After changing a type, write them anew:  python tests/contract/odfd/test_resource_schemas.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from odfd.resources.schema import JsonSchema, fields_of, part_of, schema_of, type_text
from odfd.resources.types import ResourceType
from odfd.services.resources.types import TYPES

DOCS = Path(__file__).parents[3] / "docs"
REFERENCE = DOCS / "resources.md"
EXAMPLE = re.compile(r"```yaml\n((?:fetch|read):\n.*?)```", re.DOTALL)
FROM_HERE = "<!-- From here on written by tests/contract/odfd/test_resource_schemas.py -->\n"


def schema_files() -> dict[Path, str]:
    return {
        DOCS / "schemas" / f"{kind.path}.json": json.dumps(schema_of(kind), indent=1, ensure_ascii=False) + "\n"
        for kind in TYPES
        if kind.spec is not None
    }


def reference() -> str:
    lines = ["", "## Types that act", ""]
    for kind in TYPES.acting:
        lines += section(kind)
    lines += ["## Types that others make", "", "A manifest of one is refused.", "", "| type | what it is | instead |"]
    lines += ["|---|---|---|"]
    lines += [f"| {each.name} | {each.about} | {each.instead} |" for each in TYPES if each.is_derived]
    return "\n".join(lines) + "\n"


def section(kind: ResourceType) -> list[str]:
    schema = schema_of(kind)
    words = ", ".join(f"`{each}`" for each in (kind.plural, *kind.aliases))
    lines = [f"### {kind.name}", "", kind.about, "", f"`{kind.uri}`, as KIND also {words}.", ""]
    lines += ["```yaml", kind.example.rstrip(), "```", "", "| field | type | meaning |", "|---|---|---|"]
    lines += rows(schema, "spec")
    for key in kind.annotations:
        path = f"headers.annotations.{key}"
        part = part_of(schema, path)
        assert part is not None
        lines += list(rows(schema, path)) or [f"| `{path}` | {type_text(schema, part)} | {part['description']} |"]
    return [*lines, ""]


def rows(schema: JsonSchema, path: str, depth: int = 0) -> Iterator[str]:
    """Fields of a part and below, two deep: events of a chain are the format's own."""
    part = part_of(schema, path)
    assert part is not None, path
    for name, (child, required) in fields_of(schema, part).items():
        told = child.get("description", "")
        kind = type_text(schema, child).replace("|", "\\|")
        yield f"| `{path}.{name}`{'*' if required else ''} | {kind} | {told} |"
        if depth < 1 and "MetadataEvent" not in kind and name != "metadata":
            yield from rows(schema, f"{path}.{name}", depth + 1)


def test_r03_the_schemas_that_are_checked_in_are_those_that_are_served() -> None:
    wanted = schema_files()
    assert {path: path.read_text() for path in (DOCS / "schemas").rglob("*.json")} == wanted


def test_the_reference_is_that_of_the_schemas() -> None:
    assert REFERENCE.read_text().partition(FROM_HERE)[2] == reference()


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
    head, mark, _ = REFERENCE.read_text().partition(FROM_HERE)
    REFERENCE.write_text(head + mark + reference())


if __name__ == "__main__":
    write()
