"""What happens to rows that come late, and to the output's watermark, where each row passes by itself.

Oracles read the statements one by one. Spec: docs/spec/engine-semantics.md#declarations, #late-rows, #output.
"""

from __future__ import annotations

import os

import pytest

import engines.spark.execution.transform as transform
import engines.spark.planning.transaction as incremental
from conformance.histories import few_at_a_time
from worlds.depth import first_now

pytestmark = pytest.mark.engine
DAY = 86_400_000
SEEDS = range(int(os.environ.get("ODF_SOAK", "1")))
BLOCKS = 12
LATE = "set odf.rows = 'late';\n"
SIDE = LATE + "select time_bucket(interval '1' day, event_time) as event_time, event_time as said_of, k, v from a"
BOTH = LATE + "select event_time, k, v from a union all select event_time, k, v from b where v % 2 = 0"
MOVED = """set odf.watermark = 'max - 3 days';
select timestamp_millis(bigint(unix_millis(event_time) + v % 5 * 86400000)) as event_time, k, v from a"""


def both_ways(lab, sql, streams, seed, changelogs=()):
    pieces = lab.run(sql, streams, few_at_a_time(BLOCKS, seed, streams), restart=True, changelogs=changelogs)
    whole = lab.run(sql, streams, [dict.fromkeys(streams, BLOCKS)], changelogs=changelogs)
    assert pieces.rows == whole.rows
    assert pieces.state == whole.state, "state must be a function of the cut"
    assert (pieces.late, pieces.watermark) == (whole.late, whole.watermark)
    return pieces


def millis(time):
    return None if time is None else int(time.timestamp() * 1000)


def side_output(lab, seed):
    stream = lab.stream(seed, days=8, blocks=BLOCKS, late=0.3)
    expected = [
        (time, key, value)
        for time, key, value, _, before, _ in lab.statements(stream)
        if time is not None and time // DAY < before // DAY
    ]
    got = both_ways(lab, SIDE, {"a": stream}, seed)
    return expected, [(millis(row["said_of"]), row["k"], row["v"]) for row in got.data()], got


@pytest.mark.parametrize("seed", SEEDS)
def test_a_side_output_has_the_rows_that_daily_windows_drop(lab, seed):
    expected, found, got = side_output(lab, seed)
    assert seed or expected
    assert found == expected
    assert got.watermark is None, "what is late can promise nothing"
    daily = "select time_bucket(interval '1' day, event_time) as event_time, sum(v) as s from a group by 1"
    stream = lab.stream(seed, days=8, blocks=BLOCKS, late=0.3)
    assert lab.run(daily, {"a": stream}, [{"a": BLOCKS}]).late == len(expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_late_rows_of_two_inputs_merge_as_all_rows_do(lab, seed):
    streams = {alias: lab.stream(10 * seed + at, days=40, blocks=BLOCKS, late=0.3) for at, alias in enumerate("ab")}
    gate = min(stream.blocks[-1].watermark_after // 10**6 for stream in streams.values())
    expected = sorted(
        (before, number, offset, time, key, value)
        for number, (alias, stream) in enumerate(streams.items())
        for offset, (time, key, value, _, before, _) in enumerate(lab.statements(stream))
        if time is not None and time < before < gate and (alias == "a" or value % 2 == 0)
    )
    assert seed or {row[1] for row in expected} == {0, 1}
    got = both_ways(lab, BOTH, streams, seed)
    assert [(millis(row["event_time"]), row["k"], row["v"]) for row in got.data()] == [row[3:] for row in expected]


def declared_watermark(lab, seed):
    stream = lab.stream(seed, days=8, blocks=BLOCKS, late=0.3)
    times = [each[0] + each[2] % 5 * DAY for each in lab.statements(stream) if each[0] is not None]
    return both_ways(lab, MOVED, {"a": stream}, seed).watermark, (max(times) - 3 * DAY) * 10**6


@pytest.mark.parametrize("seed", SEEDS)
def test_a_computed_event_time_may_have_a_watermark_behind_the_greatest(lab, seed):
    found, expected = declared_watermark(lab, seed)
    assert found == expected


def test_a_declared_watermark_never_goes_back_and_waits_for_the_first_row(lab):
    stream = lab.given("marks", [([(None, "x", 0)], None), ([(9 * DAY, "x", 0)], 9 * DAY), ([(2 * DAY, "x", 0)], None)])
    marks = []
    for upto in (1, 2, 3):
        part = type(stream)(stream.blocks[:upto], stream.tables[:upto])
        marks.append(lab.run(MOVED, {"a": part}, [{"a": 1}] * upto).watermark)
    assert marks == [None, 6 * DAY * 10**6, 6 * DAY * 10**6]


def all_rows(monkeypatch):
    monkeypatch.setattr(incremental, "_needed_before", lambda query, given, block: incremental.LATEST)


def late_by_the_input_s_own_time(monkeypatch):
    kept = incremental._threshold
    monkeypatch.setattr(
        incremental, "_threshold", lambda paths, before, lateness, *rest: kept([], before, lateness, *rest)
        if before is None else before - lateness,
    )  # fmt: skip


def watermark_of_this_transaction(monkeypatch):
    kept = transform.behind
    monkeypatch.setattr(transform, "behind", lambda rows, vocab, span, reached: kept(rows, vocab, span, None))


@pytest.mark.parametrize("mutate", first_now([all_rows, late_by_the_input_s_own_time]))
def test_a_broken_side_output_is_caught(lab, monkeypatch, mutate):
    mutate(monkeypatch)
    for seed in (0, 3):  # 3 has rows of the day that the watermark stands in
        expected, found, _ = side_output(lab, seed)
        if found != expected:
            return
    raise AssertionError("the broken engine gave the right answers")


@pytest.mark.nightly
def test_a_watermark_without_memory_is_caught(lab, monkeypatch):
    watermark_of_this_transaction(monkeypatch)
    for seed in range(5):
        try:
            found, expected = declared_watermark(lab, seed)
        except AssertionError:
            return
        if found != expected:
            return
    raise AssertionError("the broken engine gave the right answers")
