"""Late rows, where each row passes by itself, and late facts of a ledger that is joined with versions."""

from __future__ import annotations

import operator
import os

import pytest

import engines.spark.execution.transform as transform
import engines.spark.planning.lateness as placing
import engines.spark.planning.transaction as incremental
from chain.model.source import SqlQueryStep, TemporalTable, TransformSql
from conformance.histories import few_at_a_time
from worlds.depth import caught, first_now

# What happens to rows that come late, and to the output's watermark, where each row passes by itself. Oracles read
# the statements one by one. Spec: docs/spec/engine-semantics.md#declarations, #late-rows, #output.


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
    blocks = len(next(iter(streams.values())).blocks)
    pieces = lab.run(sql, streams, few_at_a_time(blocks, seed, streams), restart=True, changelogs=changelogs)
    whole = lab.run(sql, streams, [dict.fromkeys(streams, blocks)], changelogs=changelogs)
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
    caught(lambda seed: operator.ne(*declared_watermark(lab, seed)), range(5))


# Late facts of a ledger that is joined with versions: they come out late, with the version of their own time. The
# oracle goes statement by statement. What is in time is tried in ``test_conformance``. Spec:
# docs/spec/engine-semantics.md#late-rows.


FACTS = 10
FAR = 2**62
ENRICHED = """select a.event_time, a.k, a.v, b.v as w from a left join b
on a.k = b.k and a.event_time >= b.valid_from and a.event_time < b.valid_to"""
AS_OF = """select a.event_time, a.k, a.v, b.v as w from a left asof join b
match_condition (a.event_time >= b.valid_from) on a.k = b.k and a.event_time < b.valid_to"""


def in_force(lab, stream, changelog=True):
    """(k, v, from, to) of all versions, by the formulas of 5.4 and 5.2."""
    said, current = [each for each in lab.statements(stream) if each[0] is not None], {}
    taus = []
    for position, (time, key, _, op, before, after) in enumerate(said):
        if op in (0, 3):
            tau = max(time, before)
            current[key] = (time, tau)
        elif op == 2:
            tau = max(said[position + 1][0], before)
        else:
            known, since = current.pop(key, (-FAR, -FAR))
            tau = max(max(time, before) if time > known else max(time, before, after), since)
        taus.append(tau)
    rank = {at: at if changelog else (each[0], at) for at, each in enumerate(said)}
    found = []
    for at, (_, key, value, op, *_) in enumerate(said):
        if op in (0, 3):
            later = [
                taus[j] for j, other in enumerate(said) if other[3] != 2 and other[1] == key and rank[j] > rank[at]
            ]
            found.append((key, value, taus[at], max(taus[at], min(later, default=FAR))))
    return found


def tuples(replayed, *names):
    return [(int(row["event_time"].timestamp() * 1000), *(row[name] for name in names)) for row in replayed.data()]


def query(sql, keys=("k",), late="drop"):
    sql = f"set odf.late.a = '{late}';\n{sql}" if late else sql
    steps = (SqlQueryStep(query=sql),)
    tables = (TemporalTable(name="b", primary_key=keys),) if keys else None
    return TransformSql(engine="spark", queries=steps, temporal_tables=tables)


def placed(lab, streams, known, within=FAR, lateness=0):
    """Ledger rows in the order in which they come out, with the version of their own time; how many were dropped."""
    mark = min(
        stream.blocks[-1].watermark_after // 10**6 - (lateness if alias == "a" else 0)
        for alias, stream in streams.items()
    )
    rows, dropped = [], 0
    for time, key, value, _, before, _ in lab.statements(streams["a"]):
        if time is None:
            continue
        before -= lateness
        dropped += time < before - within
        if time >= before - within and max(time, before) < mark:
            valid = [v for k, v, since, until in known if k == key is not None and since <= time < until]
            rows.append((max(time, before), time, key, value, valid[0] if valid else None))
    rows.sort(key=lambda row: (*row[:2], row[2] is not None, row[2] or "", row[3]))
    return [row[1:] for row in rows], dropped


def late_ledger(lab, seed, changelog, days=30):
    ledger = lab.stream(3000 + seed, days=days, blocks=FACTS, late=0.3)
    if changelog:
        return {"a": ledger, "b": lab.changing(f"late-b{seed}", seed, FACTS)}
    return {"a": ledger, "b": lab.stream(4000 + seed, days=days, blocks=FACTS, late=0.2)}


PLACED = [
    (ENRICHED, True, "", FAR),
    (AS_OF, True, "apply", FAR),
    (ENRICHED, False, "", FAR),
    (ENRICHED, True, "apply within 2 weeks", 14 * DAY),
    (ENRICHED, True, "apply within 1 week'; set odf.lateness.a = '2 days", 7 * DAY),
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("sql", "changelog", "late", "within"), PLACED, ids=["join", "as of", "append only", "within two weeks", "patient"]
)
def test_a_late_ledger_row_comes_out_late_with_the_version_of_its_time(lab, sql, changelog, late, within, seed):
    streams = late_ledger(lab, seed, changelog)
    lateness = 2 * DAY if "lateness" in late else 0
    expected, dropped = placed(lab, streams, in_force(lab, streams["b"], changelog), within, lateness)
    times = [row[0] for row in expected]
    assert seed or times != sorted(times), "histories without late rows prove nothing"
    got = both_ways(lab, query(sql, late=late), streams, seed, ["b"] if changelog else [])
    assert tuples(got, "k", "v", "w") == expected
    assert got.late == dropped


@pytest.mark.parametrize("seed", SEEDS)
def test_late_rows_of_two_ledgers_come_out_in_one_order(lab, seed):
    sql = f"""select event_time, k, v, w from ({ENRICHED}) union all
    select date_trunc('day', c.event_time) as event_time, c.k, c.v, -1 as w from c left semi join b
    on c.k = b.k and c.event_time >= b.valid_from and c.event_time < b.valid_to"""
    streams = {**late_ledger(lab, seed, True), "c": lab.stream(5000 + seed, days=8, blocks=FACTS, late=0.3)}
    known = in_force(lab, streams["b"])
    mark = min(s.blocks[-1].watermark_after // 10**6 // (DAY if a == "c" else 1) * (DAY if a == "c" else 1)
               for a, s in streams.items())  # fmt: skip
    mark = min(mark, streams["b"].blocks[-1].watermark_after // 10**6 // DAY * DAY)
    rows = []
    for alias, unit in (("a", 1), ("c", DAY)):
        for time, key, value, _, before, _ in lab.statements(streams[alias]):
            place = None if time is None else max(time, before) // unit * unit
            if place is None or place >= mark:
                continue
            valid = [v for k, v, since, until in known if k == key is not None and since <= time < until]
            if alias == "a" or valid:
                shown = -1 if alias == "c" else valid[0] if valid else None
                rows.append((place, time // unit * unit, key, value, shown))
    rows.sort(key=lambda row: (*row[:2], row[2] is not None, row[2] or "", row[3]))
    got = both_ways(lab, query(sql, late=""), streams, seed, ["b"])
    assert tuples(got, "k", "v", "w") == [row[1:] for row in rows]


def late_rows_among_what_is_settled(monkeypatch):
    monkeypatch.setattr(placing.LateInput, "_place", lambda self, block: incremental.EARLIEST)


def old_versions_forgotten(monkeypatch):
    monkeypatch.setattr(incremental, "reached_back", lambda reaches, time: time)


def waiting_late_rows_dropped(monkeypatch):
    monkeypatch.setattr(placing.LateInput, "still_open", lambda self, bound: iter(()))


@pytest.mark.parametrize(
    "mutate", first_now([late_rows_among_what_is_settled, old_versions_forgotten, waiting_late_rows_dropped])
)
def test_broken_late_rows_are_caught(lab, monkeypatch, mutate):
    mutate(monkeypatch)
    for seed in range(6):
        streams = late_ledger(lab, seed, True)
        expected, _ = placed(lab, streams, in_force(lab, streams["b"]))
        got = lab.run(query(ENRICHED, late=""), streams, few_at_a_time(FACTS, seed, streams), changelogs=["b"])
        if tuples(got, "k", "v", "w") != expected:
            return
    raise AssertionError("the broken engine gave the right answers")
