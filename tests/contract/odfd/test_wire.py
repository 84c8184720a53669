"""The JSON of the API only ever grows: what ``openapi.json`` promises is still there, with the same type."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from chain.codec.former_blocks import encode, read_block
from chain.errors import Fault, Invalid, NotFound
from chain.ids import DatasetId
from chain.model.events import AddData, SetDataSchema, SetInfo
from chain.store.layout import DirectoryChain, DirectoryObjects
from odfd.api import openapi, routes, wire_names
from odfd.cli.offline import files
from odfd.control import wire
from odfd.control.wire.value import Request, Value
from odfd.resources.schema import part_of, schema_of, type_text
from odfd.services.resources.types import TYPES
from odfd.transfer.former_chain import FORMER, find_former, is_converted
from odfd.transfer.odf018 import Compared, FormerChain, compare, convert, former_digest
from odfd.verify.verify import VerificationRequest, verify_chain
from package.reference import REFERENCE, pages
from worlds.former import ROOT, ZERO, FormerDataset, digest, readings, sealed, small

WIRE = {f"{wire.__name__}.{path.stem}" for path in wire_names.modules()}
FOUND = [
    value
    for module in sorted(WIRE)
    for value in vars(importlib.import_module(module)).values()
    if isinstance(value, type) and issubclass(value, msgspec.Struct) and value not in (Value, Request)
]
VALUES = list(dict.fromkeys(FOUND))


def test_a_value_is_declared_once() -> None:
    """The package takes all from its modules: of two with one name, one would be lost."""
    assert wire_names.MODULE.read_text() == wire_names.text(), "write it anew: make api"
    assert all(getattr(wire, value.__name__) is value for value in VALUES)
    with pytest.raises(AttributeError, match="Records2"):
        wire.Records2  # type: ignore[attr-defined]  # noqa: B018
    declared = [value for value in all_below(wire.Value) | all_below(wire.Request) if value.__module__ in WIRE]
    assert len({value.__name__ for value in declared}) == len(declared) > 80
    assert set(declared) | {wire.Problem} == set(VALUES)


def all_below(base: type) -> set[type]:
    return {each for below in base.__subclasses__() for each in (below, *all_below(below))}


def test_what_was_promised_is_kept() -> None:
    """The document of a change is current (``tests/node/test_api.py``): it has every field."""
    document = openapi.document()
    assert {value.__name__ for value in VALUES} == set(document["components"]["schemas"])
    assert not list(openapi.broken_promises(json.loads(routes.DOCUMENT.read_text()), document))


def without_field(schema: dict[str, Any]) -> None:
    del schema["properties"]["ref"]


def of_another_type(schema: dict[str, Any]) -> None:
    schema["properties"]["ref"] = {"type": "integer"}


def with_what_must_be_there(schema: dict[str, Any]) -> None:
    schema["properties"]["more"] = {"type": "integer"}
    schema["required"] = [*schema["required"], "more"]


def with_other_words(schema: dict[str, Any]) -> None:
    schema["description"] = "Other words."
    schema["properties"]["ref"] |= {"description": "Other words."}
    schema["properties"]["more"] = {"type": "integer", "default": 0}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (without_field, ["CorrectResult.ref is gone"]),
        (of_another_type, ["CorrectResult.ref has another type"]),
        (
            with_what_must_be_there,
            ["CorrectResult.more has no default, and another version that sends CorrectResult does not send it"],
        ),
        (with_other_words, []),
    ],
)
def test_a_broken_promise_is_told(change: Callable[[dict[str, Any]], None], told: list[str]) -> None:
    promised = json.loads(routes.DOCUMENT.read_text())
    now = json.loads(routes.DOCUMENT.read_text())
    change(now["components"]["schemas"]["CorrectResult"])
    assert list(openapi.broken_promises(promised, now)) == told
    del now["components"]["schemas"]["CorrectResult"]
    assert list(openapi.broken_promises(promised, now)) == ["CorrectResult is gone"]


@pytest.mark.slow
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)
                    | st.dictionaries(st.sampled_from(["refs", "all", "manifests", "text", "source", "x"]), inner,
                                      max_size=4)))  # fmt: skip
def test_any_json_is_a_request_or_a_told_mistake(value: object) -> None:
    data = msgspec.json.encode(value) if _encodable(value) else b"{"
    for kind in (wire.PullRequest, wire.ApplyRequest, wire.MirrorRequest, wire.VerifyRequest):
        try:
            request: object = msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError:
            continue
        assert isinstance(request, kind)


def _encodable(value: object) -> bool:
    try:
        msgspec.json.encode(value)
    except (OverflowError, UnicodeEncodeError):
        return False
    return True


# The JSON Schemas of resources are those that the classes make; ``make reference`` writes them.


DOCS = Path(__file__).parents[3] / "docs"
EXAMPLE = re.compile(r"```yaml\n((?:fetch|read):\n.*?)```", re.DOTALL)


def test_the_schemas_that_are_checked_in_are_those_that_are_served() -> None:
    wanted = {(REFERENCE / name).resolve(): made() for name, made in pages().items() if name.endswith(".json")}
    assert {path: path.read_text() for path in (DOCS / "schemas").rglob("*.json")} == wanted


def test_the_schema_knows_every_example_of_a_source() -> None:
    """Editors check manifests by it, and ``odfctl explain`` shows it: our kinds and options are in it."""
    made = schema_of(next(kind for kind in TYPES if kind.name == "Dataset"))
    examples = [yaml.safe_load(each) for each in EXAMPLE.findall((DOCS / "reference" / "sources.md").read_text())]
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


# Chains of ODF 0.18: read and verified by the hashes of the time, and converted so that both say the same.


DATASET = DatasetId.parse("did:odf:fed01f3f1cc2fd4df80538ecaa62bea5b71bdcd823e0c95f57390970bfb039058e6a4")
BOTH = {"blockHash": ZERO, "prevBlockHash": "0b" * 32, "systemTime": "2020-01-01T12:00:00Z"}
A_ROOT = {
    **BOTH,
    "source": {
        "kind": "root",
        "fetch": {
            "kind": "filesGlob",
            "path": "./*.csv",
            "eventTime": {"kind": "fromMetadata"},
            "cache": {"kind": "forever"},
            "order": "byName",
        },
        "prepare": [{"kind": "decompress", "format": "gzip"}],
        "read": {"kind": "geoJson", "schema": ["a: INT", "b: INT"]},
        "preprocess": {"kind": "sql", "engine": "spark", "version": "1.0.0", "query": "SELECT * FROM input"},
        "merge": {"kind": "ledger", "primaryKey": ["a"]},
    },
    "vocab": {"eventTimeColumn": "date"},
}
A_DERIVATIVE = {
    **BOTH,
    "outputSlice": {
        "hash": "0a" * 32,
        "interval": "[2020-01-01T12:00:00Z, 2020-01-01T12:00:00Z]",
        "numRecords": 10,
    },
    "outputWatermark": "2020-01-01T12:00:00Z",
    "inputSlices": [
        {"hash": "0a" * 32, "interval": "(-inf, 2020-01-01T12:00:00Z]", "numRecords": 10},
        {"hash": "0b" * 32, "interval": "()", "numRecords": 0},
    ],
    "source": {
        "kind": "derivative",
        "inputs": ["input1", "input2"],
        "transform": {
            "kind": "sql",
            "engine": "spark",
            "query": "SELECT * FROM input1 UNION ALL SELECT * FROM input2",
        },
    },
    "vocab": {"eventTimeColumn": "date"},
}


@pytest.mark.parametrize(
    ("content", "pinned"),
    [
        (A_ROOT, "d8be7cde15b4507b98226444a8e75c3459be33de5aa2abf59974ed8f9a71faea"),
        (A_DERIVATIVE, "9c8da1a7e766716f919f6a3b005d511e0498c33beab8dbae30f434f25f697296"),
    ],
)
def test_hashes_are_those_that_the_reference_pinned(content: dict[str, Any], pinned: str) -> None:
    """Of kamu-cli 0.64, which wrote ODF 0.18: its test of stable hashes has these two blocks."""
    raw = encode(content)
    assert raw[-32:] == bytes(32)
    assert hashlib.sha3_256(raw[:-32]).hexdigest() == pinned


def test_the_digest_of_rows_is_that_which_the_engine_pinned() -> None:
    """Of kamu-engine-spark 0.12: its test of stable digests has these three rows."""
    rows = pa.table(
        {
            "offset": [0, 1, 2],
            "op": pa.array([0, 0, 0], pa.int32()),
            "system_time": pa.array([0, 1_000_000, 2_000_000], pa.timestamp("us", "UTC")),
            "id": pa.array([1, 2, 3], pa.int32()),
            "name": ["a", "b", "c"],
        }
    )
    pinned = "8c9cff3819cca6c379a0ef03fa786e8b313cbd2047d85950640a321ae58844dc"
    assert former_digest(rows, "none such") == pinned
    assert former_digest(rows) == digest([["1", "a"], ["2", "b"], ["3", "c"]]), "blocks leave out the system time"
    assert former_digest(rows.append_column("x", pa.array([1.5, None, 2.0]))) is None
    assert former_digest(rows.append_column("x", pa.array(["a,b", "", None]))) is None


def converted(former: FormerDataset, target: Path) -> tuple[DirectoryChain, DirectoryObjects]:
    convert(former.folder, target, DATASET)
    return DirectoryChain(target), DirectoryObjects(target)


def test_a_converted_chain_says_the_same_and_holds(tmp_path: Path) -> None:
    former = small(tmp_path / "old")
    chain, objects = converted(former, tmp_path / "new")
    assert compare(chain, objects) == Compared(head=former.head, blocks=4, rows=5, equal=2)
    assert is_converted(chain)
    assert verify_chain(chain, objects, VerificationRequest(ref="x")).ok
    events = [chain.block_at(number).event for number in range(chain.head().size)]  # type: ignore[union-attr]
    assert [type(each).__name__ for each in events] == ["Seed", "SetInfo", "AddData", "SetDataSchema", *["AddData"] * 3]
    assert isinstance(events[1], SetInfo)
    assert former.head in (events[1].description or "")
    data = [each for each in events if isinstance(each, AddData)]
    assert [read_block(str((each.extra or {})[FORMER]), "").hash for each in data] == FormerChain(former.folder).names
    assert [each.new_data.offset_interval.end if each.new_data else None for each in data] == [None, 1, 4, None]


def test_rows_of_a_vocabulary_and_with_columns_that_came_later(tmp_path: Path) -> None:
    former = FormerDataset(tmp_path / "old")
    former.add(source=ROOT, vocab={"systemTimeColumn": "seen", "eventTimeColumn": "at"})
    table, _ = readings(2, (1, "graz", 9), (2, "wien", 19))
    names = {"system_time": "seen", "event_time": "at"}
    first = table.rename_columns([names.get(name, name) for name in table.column_names])
    former.add_rows(
        first, digest([["1970-01-01T00:00:01.000Z", "9", "graz"], ["1970-01-01T00:00:02.000Z", "19", "wien"]])
    )
    later = first.append_column("share", pa.array([0.5, None])).drop_columns(["celsius"])
    former.add_rows(later, "0c" * 32)
    chain, objects = converted(former, tmp_path / "new")
    assert compare(chain, objects) == Compared(head=former.head, blocks=3, rows=4, equal=1, unknown=1)
    assert verify_chain(chain, objects, VerificationRequest(ref="x")).ok
    last = chain.last_of(("SetDataSchema",))
    assert last is not None
    assert isinstance(last.event, SetDataSchema)
    assert last.event.schema is not None
    names_now = [field.name for field in last.event.schema.fields]
    assert names_now == ["offset", "op", "seen", "at", "station", "celsius", "share"]


def test_another_digest_is_counted_and_told(tmp_path: Path) -> None:
    former = FormerDataset(tmp_path / "old")
    table, _ = readings(1, (1, "graz", 9))
    former.add_rows(table, "0c" * 32)
    compared = compare(*converted(former, tmp_path / "new"))
    assert compared == Compared(head=former.head, blocks=1, rows=1, other=1)
    assert "another one for 1 (another order of lines, or other rows)" in compared.told()


def test_a_derived_dataset_becomes_a_root_and_that_is_told(tmp_path: Path) -> None:
    former = FormerDataset(tmp_path / "old")
    former.add(source=A_DERIVATIVE["source"])
    table, found = readings(2, (1, "graz", 9))
    former.add_rows(table, found, inputSlices=A_DERIVATIVE["inputSlices"])
    chain, objects = converted(former, tmp_path / "new")
    assert verify_chain(chain, objects, VerificationRequest(ref="x")).ok
    assert compare(chain, objects).told().endswith("equal for 1 slice; it was derived, and is a source dataset now")


def _changed_block(former: FormerDataset) -> None:
    file = former.folder / "meta" / "blocks" / former.head
    file.write_text(file.read_text().replace("00:10:00Z", "00:10:01Z"))


def _renamed_block(former: FormerDataset) -> None:
    blocks = former.folder / "meta" / "blocks"
    (blocks / former.head).write_text((blocks / FormerChain(former.folder).names[0]).read_text())


def _missing_block(former: FormerDataset) -> None:
    (former.folder / "meta" / "blocks" / FormerChain(former.folder).names[1]).unlink()


def _missing_rows(former: FormerDataset) -> None:
    (former.folder / "data" / FormerChain(former.folder).names[1]).unlink()


def _fewer_rows(former: FormerDataset) -> None:
    one, two = FormerChain(former.folder).names[1:3]
    (former.folder / "data" / two).write_bytes((former.folder / "data" / one).read_bytes())


def _earlier_block(former: FormerDataset) -> None:
    former.time = 1
    former.add(outputWatermark="1970-01-01T00:20:00Z")


def _rows_with_offsets(former: FormerDataset) -> None:
    table, found = readings(5, (6, "graz", 9))
    former.add_rows(table.append_column("offset", pa.array([1])), found)


def _another_type(former: FormerDataset) -> None:
    table, found = readings(5, (6, "graz", 9))
    former.add_rows(table.set_column(3, "celsius", pa.array(["9"])), found)


def _no_event_time(former: FormerDataset) -> None:
    table, found = readings(5, (6, "graz", 9))
    former.add_rows(table.set_column(1, "event_time", pa.nulls(1, pa.timestamp("us"))), found)


@pytest.mark.parametrize(
    ("spoil", "rule"),
    [
        (_changed_block, "former-hash"),
        (_renamed_block, "former-hash"),
        (_missing_block, "former-block"),
        (_missing_rows, "former-data"),
        (_fewer_rows, "former-data"),
        (_earlier_block, "former-chain"),
        (_rows_with_offsets, "former-data"),
        (_another_type, "former-data"),
        (_no_event_time, "former-data"),
    ],
)
def test_what_does_not_hold_is_refused_by_name(
    spoil: Callable[[FormerDataset], None], rule: str, tmp_path: Path
) -> None:
    """Attack T-SOURCE-03: a chain of ODF 0.18 whose blocks or rows were changed before it is imported.

    Defence: the former hash, link and order of every block are checked before anything is kept; each converted block
    contains the former one and is compared with it; digests of rows that differ, or cannot be computed, are counted and
    shown.
    """
    former = small(tmp_path / "old")
    spoil(former)
    with pytest.raises(Fault) as caught:
        converted(former, tmp_path / "new")
    assert caught.value.rule == rule


def test_a_folder_of_something_else_is_none(tmp_path: Path) -> None:
    assert find_former(tmp_path) is None
    with pytest.raises(NotFound):
        FormerChain(tmp_path)
    small(tmp_path)
    (tmp_path / "meta" / "refs" / "head").write_text("f1620" + "0a" * 32)
    assert find_former(tmp_path) is None, "it is of the present format"


def test_a_workspace_has_its_blocks_in_the_folder_itself(tmp_path: Path) -> None:
    former = small(tmp_path)
    for part in ("blocks", "refs"):
        (tmp_path / "meta" / part).rename(tmp_path / part)
    assert find_former(tmp_path) == (tmp_path, former.head)
    with pytest.raises(Invalid, match=r"is a dataset of ODF 0\.18") as caught:
        files.dataset(str(tmp_path))
    assert "odfctl import" in (caught.value.hint or "")
    assert len(FormerChain(tmp_path).names) == 4


@pytest.mark.parametrize(
    "content",
    [
        {"source": {"kind": "root"}},
        {"source": {"kind": "portal"}},
        {"source": "root"},
        {"vocab": {"offsetColumn": "x"}},
        {"vocab": []},
        {"prevBlockHash": "f1620"},
        {"outputSlice": {"hash": "0a" * 32, "interval": "[a, b]", "numRecords": 1}},
        {"outputSlice": {"hash": "0a" * 32, "interval": "yesterday", "numRecords": 1}},
        {"outputSlice": {"hash": "0a" * 32, "interval": "()", "numRecords": -1}},
        {"inputSlices": {}},
        {"systemTime": "2020"},
    ],
)
def test_what_the_format_does_not_have_is_no_block(content: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as caught:
        encode({**BOTH, **content})
    assert caught.value.rule == "former-block"


@pytest.mark.slow
@given(st.text(max_size=200))
def test_any_text_is_a_block_or_a_told_mistake(text: str) -> None:
    with pytest.raises(Invalid):
        read_block("apiVersion: 1\nkind: MetadataBlock\ncontent: " + text, "x")


@given(st.integers(0, 6), st.integers(0, 255))
def test_a_byte_that_changed_is_found_out(place: int, byte: int) -> None:
    found, text = sealed({"systemTime": "2021-09-01T12:00:00Z", "outputWatermark": "2021-09-01T12:00:00Z"})
    at = len(text) - 3 - place
    changed = text[:at] + chr(byte) + text[at + 1 :]
    if changed == text:
        assert read_block(changed, "x").hash == found
        return
    try:
        again = read_block(changed, "x")
    except Invalid:
        return
    assert again.watermark == read_block(text, "x").watermark, "only what says the same has the same hash"
