"""Two readings of an input: facts that stand, or every statement an event with its ``op``.

Spec: docs/spec/engine-semantics.md#readings, #output.
"""

from __future__ import annotations

from collections import Counter

import pytest

from worlds.table_history import history, schedule, seen

pytestmark = pytest.mark.engine
DAY = 86_400_000
BLOCKS = 10
LOG = "set odf.read.a = 'log';\n"
COUNTED = "select k, max(event_time) as event_time, sum(op) as s, count(*) as c from a group by k"


class Events:
    """A laboratory in which nothing is ever taken back."""

    def __init__(self, lab):
        self.lab = lab

    def statements(self, stream):
        for time, key, value, op, before, after in self.lab.statements(stream):
            yield time, key, (value, op), 0, before, after


def ops(rows):
    by_key = {}
    for time, key, (_, op) in rows:
        by_key.setdefault((key,), []).append((time, op))
    return {key: [(max(time for time, _ in found), *key, sum(op for _, op in found), len(found))]
            for key, found in by_key.items()}  # fmt: skip


def said(lab, stream):
    return [(op, time, key, value) for time, key, value, op, *_ in lab.statements(stream)]


def both_ways(lab, sql, streams):
    pieces = lab.run(sql, streams, schedule(3, streams, BLOCKS), restart=True, changelogs=["a"])
    whole = lab.run(sql, streams, [{"a": BLOCKS}], changelogs=["a"])
    assert (pieces.rows, pieces.state, pieces.watermark) == (whole.rows, whole.state, whole.watermark)
    return pieces


@pytest.fixture
def streams(lab):
    return {"a": lab.changing("a", 3, BLOCKS)}


def test_events_pass_as_additions_or_with_the_op_that_is_selected(lab, streams):
    statements = said(lab, streams["a"])
    assert {op for op, *_ in statements} == {0, 1, 2, 3}
    plain = both_ways(lab, LOG + "select event_time, k, v from a", streams)
    assert seen(plain, ("k", "v")) == [(0, *row) for _, *row in statements]
    stated = both_ways(lab, LOG + "select * from a where v % 3 <> 0", streams)
    assert seen(stated, ("k", "v")) == [row for row in statements if row[3] % 3], "what is said is not mended"
    assert "op" in stated.slices[0].column_names
    turned = both_ways(lab, LOG + "select event_time, k, v, if(op = 1, 1, 0) as op from a", streams)
    assert seen(turned, ("k", "v")) == [(int(op == 1), *row) for op, *row in statements]


def test_a_table_of_events_is_merged_and_never_taken_back(lab, streams):
    expected = history(Events(lab), streams, ops)
    got = both_ways(lab, LOG + COUNTED, streams)
    assert seen(got, ("k", "s", "c")) == expected
    assert b'"name":"written/' in got.state


def test_windows_of_events_have_ops_as_numbers(lab, streams):
    sql = LOG + "select date_trunc('day', event_time) as event_time, op as what, count(*) as c from a group by 1, 2"
    expected = Counter()
    for time, _, _, op, before, _ in lab.statements(streams["a"]):
        if time // DAY >= before // DAY:
            expected[time // DAY * DAY, op] += 1
    bound = streams["a"].blocks[-1].watermark_after // 10**6 // DAY * DAY
    got = both_ways(lab, sql, streams)
    assert seen(got, ("what", "c")) == [(0, *key, count) for key, count in sorted(expected.items()) if key[0] < bound]
