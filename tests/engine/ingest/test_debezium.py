"""The manifest of docs/sources.md for changes of a table by Debezium, on envelopes as its documentation shows them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from chain.codec.manifest import parse_manifests
from chain.model.events import DatasetSnapshot, SetPollingSource
from chain.model.source import MergeAppend
from chain.rules.snapshot import normalise_event
from engines.contract import InvalidQuery, Success
from odfd.datasets.creation import with_columns

pytestmark = pytest.mark.engine
NOW = "2020-01-02T00:00:00Z"
PAGE = Path(__file__).parents[3] / "docs" / "sources.md"


def source() -> SetPollingSource:
    _, _, rest = PAGE.read_text().partition("## Changes of a database by Debezium")
    found = re.search(r"```yaml\n(.*?)```", rest, re.DOTALL)
    assert found is not None
    (manifest,) = parse_manifests(found[1], "sources.md")
    snapshot = manifest.content
    assert isinstance(snapshot, DatasetSnapshot)
    (event,) = snapshot.metadata
    made = with_columns(normalise_event(event))
    assert isinstance(made, SetPollingSource)
    return made


def envelope(op: str, before: dict[str, Any] | None, after: dict[str, Any] | None, second: int) -> str:
    about = {"version": "2.7.0.Final", "connector": "postgresql", "name": "shop", "table": "customers", "lsn": second}
    at = 1_577_836_800_000 + second * 1000
    return json.dumps({"before": before, "after": after, "source": about, "op": op, "ts_ms": at})


def row(id_: int, city: str) -> dict[str, Any]:
    return {"id": id_, "city": city}


def test_each_change_of_a_table_is_taken_once(spark: SparkSession, dataset: Callable[..., Any]) -> None:
    wanted = source()
    made = dataset(wanted.merge)

    def taken(*envelopes: str) -> list[tuple[int, int, str]]:
        answer = made.ingest("\n".join([*envelopes, ""]), wanted.read, preprocess=wanted.preprocess, system_time=NOW)
        assert isinstance(answer, Success), answer
        if answer.new_offset_interval is None:
            return []
        rows = made.last().select(["op", "id", "city"]).to_pylist()
        return [(each["op"], each["id"], each["city"]) for each in rows]

    first = [
        envelope("r", None, row(1, "Graz"), 0),  # as the first snapshot reads it
        envelope("r", None, row(2, "Linz"), 0),
        envelope("c", None, row(3, "Wels"), 1),
        envelope("u", row(3, "Wels"), row(3, "Steyr"), 2),
    ]
    assert sorted(taken(*first)) == [(0, 1, "Graz"), (0, 2, "Linz"), (0, 3, "Steyr")]
    assert taken(*first[2:]) == [], "delivered again"
    changed = taken(
        envelope("u", row(1, "Graz"), row(1, "Wien"), 3),
        envelope("d", row(2, "Linz"), None, 4),
        envelope("d", row(9, "nowhere"), None, 5),
    )
    assert sorted(changed) == [(1, 2, "Linz"), (2, 1, "Graz"), (3, 1, "Wien")]
    assert taken(envelope("c", None, row(2, "Enns"), 6)) == [(0, 2, "Enns")], "a key that comes back"


def test_envelopes_are_kept_as_rows_where_each_change_is_wanted(
    spark: SparkSession, dataset: Callable[..., Any]
) -> None:
    made = dataset(MergeAppend())
    wanted = source().read
    assert wanted.schema is not None
    fields = tuple(each for each in wanted.schema.fields if each.name != "op")  # a system column
    read = msgspec.structs.replace(wanted, schema=msgspec.structs.replace(wanted.schema, fields=fields))
    lines = [envelope("c", None, row(1, "Graz"), 0), envelope("d", row(1, "Graz"), None, 1)]
    answer = made.ingest("\n".join([*lines, ""]), read)
    assert isinstance(answer, Success), answer
    assert made.last().select(["before", "after"]).to_pylist() == [
        {"before": None, "after": row(1, "Graz")},
        {"before": row(1, "Graz"), "after": None},
    ]
    again = made.ingest("\n".join([*lines, ""]), read)
    assert isinstance(again, Success), again
    refused = made.ingest('{"before": {"id": 1}, "after": null, "op": "d", "ts_ms": 0}\n', read)
    assert isinstance(refused, InvalidQuery), refused
    assert refused.rule == "read-json"
