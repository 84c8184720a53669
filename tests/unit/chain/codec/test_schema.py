"""The model's classes are the tables of the ODF schema: same fields, same order, same types, same unions and enums.

``odf-tables.json`` lists the schema's declarations; what the engine contract adds comes after a table's last field.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import engines.contract
from chain.codec import layout
from chain.codec.layout import Choice, Flag, JsonObject, Kind, Moment, Number, Octets, Table, Text, Union, Vector
from chain.model.block import MetadataBlock
from chain.model.events import DatasetSnapshot

ROOTS: list[tuple[type[msgspec.Struct], str]] = [
    (MetadataBlock, "MetadataBlock"),
    (DatasetSnapshot, "DatasetSnapshot"),
    (engines.contract.TransformRequest, "TransformRequest"),
    (engines.contract.TransformResponseRoot, "TransformResponseRoot"),
    (engines.contract.RawQueryRequest, "RawQueryRequest"),
    (engines.contract.RawQueryResponseRoot, "RawQueryResponseRoot"),
]


SUFFIX = {"DatasetVocabulary": "_column"}
"""Table -> what its names end with and ours do not; FlatBuffers hold no names of fields."""


class Comparing:
    """Walks model and schema side by side."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.tables, self.unions, self.enums = schema["tables"], schema["unions"], schema["enums"]
        self.seen: set[str] = set()

    def table(self, cls: type[msgspec.Struct], name: str) -> None:
        if name in self.seen:
            return
        self.seen.add(name)
        declared = [line.split(": ") for line in self.tables[name]]
        fields = layout.fields_of(cls)
        assert [each.name for each in fields[: len(declared)]] == [
            each.removesuffix(SUFFIX.get(name, "")) for each, _ in declared
        ], name
        if not cls.__module__.startswith("engines."):
            assert len(fields) == len(declared), name
        for each, (field_name, text) in zip(fields, declared, strict=False):
            type_name, _, default = text.partition(" = ")
            scalar = isinstance(each.kind, Number | Flag | Choice)
            assert (default == "null") == (each.optional and scalar), f"{name}.{field_name}"
            self.kind(each.kind, type_name, f"{name}.{field_name}")

    def kind(self, kind: Kind, name: str, place: str) -> None:
        match kind:
            case Vector(Union() as union):
                wrapper = name.strip("[]")
                assert self.tables[wrapper] == [f"value: {wrapper.removesuffix('Wrapper')}"], place
                self.kind(union, wrapper.removesuffix("Wrapper"), place)
            case Vector(item):
                assert (name[0], name[-1]) == ("[", "]"), place
                self.kind(item, name[1:-1], place)
            case Union(variants):
                assert len(variants) == len(self.unions[name]), place
                for variant, table in zip(variants, self.unions[name], strict=True):
                    assert table.endswith(str(variant.__struct_config__.tag).removeprefix("RawQuery")), place
                    self.table(variant, table)
            case Table(of):
                self.table(of, name)
            case Choice(options, number):
                assert [number.name, *(each.value for each in options)] == self.enums[name], place
            case Number(name=number_name):
                assert number_name == name, place
            case _:
                plain = {
                    Text: "string",
                    Octets: "[ubyte]",
                    Moment: "Timestamp",
                    JsonObject: "ExtraAttributes",
                    Flag: "bool",
                }
                assert plain[type(kind)] == name, place


@pytest.fixture(scope="module")
def schema(golden: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((golden / "odf-tables.json").read_text())
    return found


@pytest.mark.parametrize(("cls", "name"), ROOTS, ids=lambda value: value if isinstance(value, str) else "")
def test_tables_are_those_of_the_schema(cls: type[msgspec.Struct], name: str, schema: dict[str, Any]) -> None:
    Comparing(schema).table(cls, name)


def test_no_table_of_the_schema_is_left_out(schema: dict[str, Any]) -> None:
    comparing = Comparing(schema)
    for cls, name in ROOTS:
        comparing.table(cls, name)
    beyond = {"Manifest", "ExtraAttributes", "PrepStepWrapper", "MetadataEventWrapper"}
    assert set(schema["tables"]) - comparing.seen == beyond
