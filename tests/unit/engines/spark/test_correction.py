"""How late rows could count, concluded from the recorded plans of tests/golden/plans; and which declarations fit."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from chain.errors import Invalid
from chain.model.source import TemporalTable, TransformSql
from engines.contract import Vocab
from engines.spark.analysis.classify import Classification, Mode, Passing, Windows, classify
from engines.spark.analysis.classify import Path as Influenced
from engines.spark.analysis.declarations import read_query
from engines.spark.analysis.influence import VersionedInput
from engines.spark.analysis.monotone import DAY, Floor, FloorMonths
from engines.spark.planning.lateness import rule

PLANS = Path(__file__).parents[3] / "golden" / "plans"
TIMES = {"a": "event_time", "b": "event_time"}
DAILY, MONTHLY = (Floor(DAY),), (FloorMonths(1),)
SUM = {"__odf_part0": "exactly"}
WINDOWS = {
    "bucket-day": (("event_time", "k"), True, {**SUM, "__odf_part1": "sum"}, {"a": DAILY}),
    "bucket-month": (("event_time", "k"), True, None, {"a": MONTHLY}),
    "window-start": (("event_time", "k"), True, SUM, {"a": DAILY}),
    "window-end": (("event_time",), True, SUM, {"a": DAILY}),
    "common-table": (("event_time",), True, SUM, {"a": DAILY}),
    "distinct": (("event_time", "k"), True, {}, {"a": DAILY}),
    "daily-union": (("event_time",), True, SUM, {"a": DAILY, "b": DAILY}),
    "top-n": (("event_time", "k"), False, None, {"a": DAILY}),
}
"""Keys of the table, whether each has one row, how rows are merged, windows by input."""
REFUSED = {
    "join": "late-apply-join", "self-join": "late-apply-join", "equal-windows": "late-apply-join",
    "anti": "late-apply-join", "sum-of-join": "late-apply-join", "hop": "late-apply-shape",
    "session": "late-apply-shape", "months-of-days": "late-apply-shape", "rollup": "late-apply-shape",
    "running-range": "late-apply-shape", "running-sum": "late-apply-shape", "running-of-days": "late-apply-shape",
    "local-days": "late-apply-shape", "greatest-time": "key-not-selected",
}  # fmt: skip


def correction(name):
    found = classify(gzip.decompress((PLANS / f"{name}.json.gz").read_bytes()), TIMES, Vocab()).classification
    return found.correction


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_that_late_rows_can_correct(name):
    found = correction(name)
    assert isinstance(found, Windows)
    assert (found.table.keys, found.table.single, found.table.merge, found.of) == WINDOWS[name]


@pytest.mark.parametrize("name", REFUSED)
def test_shapes_that_late_rows_cannot_correct(name):
    found = correction(name)
    assert (found.code, found.node) == (REFUSED[name], None)
    assert found.message
    assert found.replace


def test_rows_that_pass_by_themselves_have_no_correction():
    assert correction("map") is None


FINAL = Classification(Mode.FINAL, (Influenced("a", (), ()),), ("event_time",), correction=correction("hop"))
LEDGER = replace(
    FINAL, paths=(*FINAL.paths, Influenced("b", (), (), VersionedInput(("k",), clamped=True))), correction=Passing()
)
LATEST = replace(LEDGER, paths=(*FINAL.paths, Influenced("b", (), (), VersionedInput(("k",), clamped=False))))
TABLE = replace(FINAL, mode=Mode.TABLE)
TABLES = (TemporalTable(name="b", primary_key=("k",)),)


def ruled(head, shape, **changelogs):
    query = read_query(TransformSql(engine="spark", query=f"{head} select 1", temporal_tables=TABLES))
    return rule(query, shape, {"a": False, "b": False, **changelogs}).reach


def test_what_holds_when_nothing_is_declared():
    assert ruled("", FINAL) == {}
    assert ruled("", LEDGER) == {"a": None}, "a late fact passes, as rows of a map do"
    assert ruled("", LATEST) == {"a": None}
    assert ruled("", LEDGER, b=True) == {"a": None}
    assert ruled("", TABLE) == {}


def test_what_is_declared_holds():
    assert ruled("set odf.late = 'drop';", LEDGER) == {}
    assert ruled("set odf.late = 'fail';", LEDGER) == {}
    assert ruled("set odf.late.a = 'apply within 2 days';", LEDGER) == {"a": 2 * DAY}
    assert ruled("set odf.late = 'apply'; set odf.late.a = 'drop';", LEDGER) == {}
    assert ruled("set odf.late.a = 'apply within 0 days';", LEDGER) == {}, "the same as drop"
    assert ruled("set odf.late.a = 'apply'; set odf.late.b = 'drop';", LATEST) == {"a": None}


def test_windows_become_the_keys_of_a_table():
    query = read_query(TransformSql(engine="spark", query="set odf.late = 'apply'; select 1"))
    daily, monthly = (replace(FINAL, correction=correction(name)) for name in ("bucket-day", "bucket-month"))
    found = rule(query, daily, {"a": False})
    assert (found.shape.mode, found.shape.table) == (Mode.TABLE, daily.correction.table)
    assert found.shape.paths == daily.paths, "what was settled is still what the watermark says"
    with pytest.raises(Invalid) as caught:
        rule(query, monthly, {"a": False})
    assert caught.value.rule == "history-per-key"
    bounded = read_query(TransformSql(engine="spark", query="set odf.late = 'apply within 1 day'; select 1"))
    assert rule(bounded, monthly, {"a": False}).reach == {"a": DAY}
    dropped = read_query(TransformSql(engine="spark", query="set odf.late = 'drop'; select 1"))
    assert rule(dropped, daily, {"a": True}).shape is daily


@pytest.mark.parametrize(
    ("head", "shape", "changelogs", "expected"),
    [
        ("", FINAL, {"a": True}, "changelog-late"),
        ("", LEDGER, {"a": True}, "changelog-late"),
        ("set odf.late = 'apply';", FINAL, {}, "late-apply-shape"),
        ("set odf.late = 'apply';", LEDGER, {"a": True}, "late-apply-ledger"),
        ("set odf.late.b = 'drop';", LEDGER, {}, "late-versions"),
        ("set odf.late = 'apply';", LATEST, {}, "late-apply-as-of"),
        ("set odf.late = 'drop';", TABLE, {}, "late-in-table-mode"),
        ("set odf.late = 'apply within 2 days';", TABLE, {}, "late-in-table-mode"),
        ("set odf.rows = 'late';", FINAL, {}, "late-rows"),
        ("set odf.watermark = 'max - 1 day';", TABLE, {}, "watermark"),
    ],
)
def test_what_does_not_fit_is_refused(head, shape, changelogs, expected):
    with pytest.raises(Invalid) as caught:
        ruled(head, shape, **changelogs)
    assert caught.value.rule == expected
    assert caught.value.hint
