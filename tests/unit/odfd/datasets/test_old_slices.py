"""A schema that grew: what stood before is read under it, whoever reads, and nobody merges across the change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from chain.compaction import Limits
from chain.data.arrow_schema import from_arrow, to_arrow
from chain.data.evolution import as_in_force, enlarged
from chain.data.json_values import plain_rows
from chain.errors import Invalid
from chain.instant import Instant
from chain.model.events import AddData, DatasetKind, Seed, SetDataSchema
from chain.model.schema import Option
from chain.state import load_state
from chain.store.rewriting import plan_merging, prepare
from odfd.datasets import previews
from odfd.verify.verify import VerificationRequest, verify_chain
from worlds.legacy_schema import legacy
from worlds.transform_world import ROOT, World

UTC = pa.timestamp("ms", "UTC")
SYSTEM = [
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("op", pa.int32(), nullable=False),
    pa.field("system_time", UTC, nullable=False),
    pa.field("event_time", UTC, nullable=False),
]
OLD = pa.schema([
    *SYSTEM,
    pa.field("at", pa.timestamp("ns", "UTC")),
    pa.field("place", pa.struct([pa.field("city", pa.string(), nullable=False)])),
])  # fmt: skip
NEW = pa.schema([
    *SYSTEM,
    pa.field("note", pa.string()),
    pa.field("place", pa.struct([
        pa.field("zip", pa.uint64()),
        pa.field("city", pa.string(), nullable=False),
        pa.field("seen", pa.struct([pa.field("on", pa.date32())])),
    ])),
    pa.field("at", pa.timestamp("ns", "UTC")),
])  # fmt: skip
AT = 1_700_000_000_123_456_789
SHOWN = "2023-11-14T22:13:20.123456789Z"


class Grown:
    """Two slices of the old schema, then three of the new one."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder)
        self.world.append(ROOT, Seed(dataset_id=ROOT, dataset_kind=DatasetKind.ROOT))
        self.declare(OLD)
        self.add(OLD, [{"at": AT, "place": {"city": "Graz"}}])
        self.add(OLD, [{"at": None, "place": None}])
        self.declare(NEW)
        later = {"zip": 2**64 - 1, "city": "Linz", "seen": {"on": None}}
        for note in ("a", "b", "c"):
            self.add(NEW, [{"at": AT, "place": later, "note": note}])
        self.chain = self.world.chains.chain(ROOT)

    def declare(self, schema: pa.Schema) -> None:
        self.world.append(ROOT, SetDataSchema(schema=from_arrow(schema)))

    def add(self, schema: pa.Schema, rows: list[dict[str, Any]]) -> None:
        state = load_state(self.world.chains.chain(ROOT))
        # Time stands still in this world, so every block is made at one moment, and its rows say so.
        made = self.world.time
        system = {"op": 0, "system_time": made, "event_time": made}
        full = [{**row, **system, "offset": state.next_offset + place} for place, row in enumerate(rows)]
        table = pa.table({f.name: pa.array([row[f.name] for row in full], f.type) for f in schema}, schema=schema)
        data = self.world.keep(table)
        self.world.append(ROOT, AddData(prev_offset=state.last_offset, new_data=data), objects=[data.physical_hash])

    def tail(self, limit: int) -> list[dict[str, Any]]:
        table = previews.tail(self.chain, _Files(self.world.objects), limit, to_arrow(from_arrow(NEW)))
        assert table is not None
        assert table.schema.equals(NEW)
        return [dict(zip(table.column_names, row, strict=True)) for row in plain_rows(table)]

    def failures(self) -> list[str]:
        report = verify_chain(self.chain, self.world.objects, VerificationRequest(ref="x", workers=1))
        return [failure.rule for failure in report.failures]


class _Files:
    def __init__(self, objects: Any) -> None:
        self._objects = objects

    def path(self, name: Any, _sequence: int) -> Any:
        return self._objects.path(name)

    def check_again(self, _name: Any, _sequence: int) -> None: ...


@pytest.fixture
def grown(tmp_path: Path) -> Grown:
    return Grown(tmp_path)


def test_the_last_rows_are_shown_under_the_schema_in_force(grown: Grown) -> None:
    rows = grown.tail(10)
    assert [row["offset"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["note"] for row in rows] == [None, None, "a", "b", "c"]
    assert [row["at"] for row in rows] == [SHOWN, None, SHOWN, SHOWN, SHOWN]
    assert [row["place"] for row in rows[:3]] == [
        {"zip": None, "city": "Graz", "seen": None},
        None,
        {"zip": str(2**64 - 1), "city": "Linz", "seen": {"on": None}},
    ]
    assert [row["offset"] for row in grown.tail(4)] == [1, 2, 3, 4]


def test_the_schema_shown_is_the_newest(grown: Grown) -> None:
    said = load_state(grown.chain).schema
    assert said is not None
    assert [name for name, *_ in previews.columns_of(said)] == NEW.names
    assert {name: kind for name, kind, *_ in previews.columns_of(said)}["place"] == (
        "Struct(zip: UInt64?, city: String, seen: Struct(on: Date?)?)"
    )


def test_each_slice_is_verified_against_the_schema_at_its_block(grown: Grown) -> None:
    assert grown.failures() == []
    grown.add(OLD, [{"at": None, "place": None}])
    assert grown.failures() == ["slice-schema"]


def test_compaction_merges_on_each_side_of_the_change_and_never_across(grown: Grown) -> None:
    before = grown.tail(10)
    plan = plan_merging(grown.chain, ROOT, Limits())
    assert plan is not None
    assert [list(batch) for batch in plan.batches] == [[2, 3], [5, 6, 7]]
    grown.world.chains.rewrite(prepare(grown.chain, grown.world.objects, plan, Instant(4 * 10**18)))
    assert [type(grown.chain.block_at(number).event).__name__ for number in range(5)] == [
        "Seed", "SetDataSchema", "AddData", "SetDataSchema", "AddData",
    ]  # fmt: skip
    assert grown.tail(10) == before
    assert grown.failures() == []


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (pa.table({"place": pa.array([{"city": "Graz", "lost": 1}])}), "place.lost is in no schema"),
        (pa.table({"place": pa.array(["Graz"])}), "of an older slice cannot be read as struct"),
        (pa.table({"note": pa.array([[1]])}), "of an older slice cannot be read as string"),
        (pa.table([["a"], ["b"]], names=["note", "note"]), "column 'note' occurs twice in a slice"),
    ],
)
def test_rows_of_no_earlier_schema_are_refused_by_name(rows: pa.Table, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        as_in_force(rows, NEW)


def test_a_schema_in_the_legacy_form_is_shown(grown: Grown) -> None:
    said = SetDataSchema(raw_arrow_schema=legacy(OLD))
    assert previews.columns_of(said) == previews.columns_of(SetDataSchema(schema=from_arrow(OLD)))


def test_a_schema_grows_by_optional_columns_in_the_order_given() -> None:
    held = from_arrow(pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string())]))
    same = pa.schema([pa.field("a", pa.int64()), pa.field("b", pa.string())])
    assert enlarged(held, same) is held
    new = pa.field("n", pa.int64(), nullable=False)
    made = enlarged(held, pa.schema([same.field("b"), new, same.field("a")]))
    assert [field.name for field in made.fields] == ["b", "n", "a"]
    assert (made.fields[0], made.fields[2]) == (held.fields[1], held.fields[0])
    assert isinstance(made.fields[1].type, Option)
    with pytest.raises(Invalid, match="no 'b'"):
        enlarged(held, pa.schema([same.field("a"), pa.field("n", pa.int64())]))
