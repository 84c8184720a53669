"""Single histories of corrections and retractions, by the names that the specification has for them.

Times are days since 2024-01-01. A row is (day, k, v, op); a block is its rows and the watermark after it.
Spec: docs/spec/engine-semantics.md#edges.
"""

from __future__ import annotations

import pytest

from chain.model.source import SqlQueryStep, TemporalTable, TransformSql

pytestmark = pytest.mark.engine
DAY = 86_400_000
START = 1_704_067_200_000
GROUPED = "select k, max(event_time) as event_time, sum(v) as s, count(*) as c from a group by k"
ADD, RETRACT, FROM, TO = 0, 1, 2, 3


def at(days):
    return START + int(days * DAY)


def stream(lab, name, *blocks):
    return lab.given(name, [([(at(day), *rest) for day, *rest in rows], at(after)) for rows, after in blocks])


def run(lab, sql, streams, names):
    """(op, day, *columns) of all that is written; the same however blocks are grouped."""
    counts = {alias: len(each.blocks) for alias, each in streams.items()}
    changing = [alias for alias, each in streams.items() if any(op for *_, op, _, _ in lab.statements(each))]
    whole = lab.run(sql, streams, [counts], changelogs=changing)
    most = max(counts.values())
    single = [{alias: int(step < count) for alias, count in counts.items()} for step in range(most)]
    pieces = lab.run(sql, streams, single, restart=True, changelogs=changing)
    assert (whole.rows, whole.state, whole.watermark) == (pieces.rows, pieces.state, pieces.watermark)
    return [
        (row["op"], (row["event_time"].timestamp() * 1000 - START) / DAY, *(row[name] for name in names))
        for row in whole.rows
    ]


def test_correction_moves_group(lab):
    """One group loses the row, the other one gains it, at one tick."""
    history = stream(
        lab, "moves",
        ([(0, "x", 1, ADD), (0, "x", 5, ADD), (0, "y", 7, ADD)], 1),
        ([(0, "x", 5, FROM), (0, "y", 5, TO)], 2),
        ([], 3),
    )  # fmt: skip
    assert run(lab, GROUPED, {"a": history}, ("k", "s", "c")) == [
        (ADD, 0, "x", 6, 2), (ADD, 0, "y", 7, 1),
        (FROM, 0, "x", 6, 2), (TO, 0, "x", 1, 1), (FROM, 0, "y", 7, 1), (TO, 0, "y", 12, 2),
    ]  # fmt: skip


def test_correction_of_last_row_of_group(lab):
    """A group without rows has no row: it is retracted, whether its last row moved away or was taken back."""
    history = stream(
        lab, "last",
        ([(0, "x", 1, ADD), (0, "y", 2, ADD)], 1),
        ([(0, "x", 1, FROM), (1, "z", 1, TO)], 2),
        ([(0, "y", 2, RETRACT)], 3),
        ([], 4),
    )  # fmt: skip
    assert run(lab, GROUPED, {"a": history}, ("k", "s", "c")) == [
        (ADD, 0, "x", 1, 1), (ADD, 0, "y", 2, 1),
        (RETRACT, 0, "x", 1, 1), (ADD, 1, "z", 1, 1),
        (RETRACT, 0, "y", 2, 1),
    ]  # fmt: skip


def test_retract_and_reassert(lab):
    """Within a tick nothing happened; over two the row goes and comes."""
    at_once = stream(
        lab, "at-once", ([(0, "x", 1, ADD)], 1), ([(0, "x", 1, FROM), (0, "x", 1, TO)], 2), ([], 3)
    )  # fmt: skip
    assert run(lab, GROUPED, {"a": at_once}, ("k", "s", "c")) == [(ADD, 0, "x", 1, 1)]
    later = stream(
        lab, "later", ([(0, "x", 1, ADD)], 1), ([(0, "x", 1, RETRACT)], 2), ([], 3), ([(3.5, "x", 1, ADD)], 4)
    )  # fmt: skip
    assert run(lab, GROUPED, {"a": later}, ("k", "s", "c")) == [
        (ADD, 0, "x", 1, 1), (RETRACT, 0, "x", 1, 1), (ADD, 3.5, "x", 1, 1),
    ]  # fmt: skip


def test_retract_unsettled_version(lab):
    """A version that was taken back before it came into force never was; the one before stays in force."""
    ledger = stream(
        lab, "ledger", ([(4, "x", 1, ADD), (6, "x", 2, ADD), (6, "y", 3, ADD)], 5), ([(8, "x", 4, ADD)], 9)
    )  # fmt: skip
    versions = stream(
        lab, "versions",
        ([(0, "x", 10, ADD), (5, "y", 30, ADD)], 1),
        ([(5, "y", 30, RETRACT)], 2),
        ([(0, "x", 10, FROM), (7, "x", 11, TO)], 3),
        ([(7, "x", 11, FROM), (7, "x", 12, TO)], 4),
        ([], 9),
    )  # fmt: skip
    enriched = TransformSql(
        engine="spark",
        queries=(SqlQueryStep(query="""select a.event_time, a.k, a.v, b.v as w from a left join b
            on a.k = b.k and a.event_time >= b.valid_from and a.event_time < b.valid_to"""),),
        temporal_tables=(TemporalTable(name="b", primary_key=("k",)),),
    )  # fmt: skip
    assert run(lab, enriched, {"a": ledger, "b": versions}, ("k", "v", "w")) == [
        (ADD, 4, "x", 1, 10), (ADD, 6, "x", 2, 10), (ADD, 6, "y", 3, None), (ADD, 8, "x", 4, 12),
    ]  # fmt: skip


def test_retraction_of_what_is_not_settled_leaves_no_trace_in_a_table(lab):
    history = stream(
        lab, "unsettled", ([(5, "x", 1, ADD), (0, "y", 1, ADD)], 1), ([(5, "x", 1, RETRACT)], 2), ([], 9)
    )  # fmt: skip
    assert run(lab, GROUPED, {"a": history}, ("k", "s", "c")) == [(ADD, 0, "y", 1, 1)]


def test_pair_split_by_filter(lab):
    """Half a correction is a retraction, or an addition."""
    history = stream(
        lab, "split",
        ([(0, "x", 1, ADD), (0, "y", 9, ADD)], 1),
        ([(0, "x", 1, FROM), (0, "x", 9, TO), (0, "y", 9, FROM), (0, "y", 2, TO)], 2),
        ([(0, "y", 2, FROM), (0, "y", 3, TO)], 3),
    )  # fmt: skip
    assert run(lab, "select event_time, k, v from a where v < 6", {"a": history}, ("k", "v")) == [
        (ADD, 0, "x", 1), (RETRACT, 0, "x", 1), (ADD, 0, "y", 2), (FROM, 0, "y", 2), (TO, 0, "y", 3),
    ]  # fmt: skip


def test_pair_made_equal(lab):
    """A correction of what the query does not show is none; one of which it shows something is."""
    history = stream(
        lab, "equal",
        ([(0, "x", 1, ADD)], 1),
        ([(0, "x", 1, FROM), (0, "x", 3, TO)], 2),
        ([(0, "x", 3, FROM), (0, "x", 4, TO)], 3),
    )  # fmt: skip
    assert run(lab, "select event_time, k, v % 2 as odd from a", {"a": history}, ("k", "odd")) == [
        (ADD, 0, "x", 1), (FROM, 0, "x", 1), (TO, 0, "x", 0),
    ]  # fmt: skip
    table = "select k, max(event_time) as event_time, max(v % 2) as odd from a group by k"
    assert run(lab, table, {"a": history}, ("k", "odd")) == [
        (ADD, 0, "x", 1), (FROM, 0, "x", 1), (TO, 0, "x", 0),
    ]  # fmt: skip
