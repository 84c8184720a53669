"""Changing inputs: versions joined by a ledger, windows over corrections, merged logs; against statement-by-statement
oracles. Engine semantics, section 5.
"""

from __future__ import annotations

import dataclasses
import os
import random
from collections import Counter

import pytest

import engines.spark.changes as changes
import engines.spark.incremental as incremental
import engines.spark.inputs as inputs
import engines.spark.versions as versions
from chain.model.source import SqlQueryStep, TemporalTable, TransformSql

pytestmark = pytest.mark.engine
DAY = 86_400_000
SEEDS = range(int(os.environ.get("ODF_SOAK", "1")))
BLOCKS = 10
FAR = 2**62
ENRICHED = """select a.event_time, a.k, a.v, b.v as w from a left join b
on a.k = b.k and a.event_time >= b.valid_from and a.event_time < b.valid_to"""
AS_OF = """select a.event_time, a.k, a.v, b.v as w from a left asof join b
match_condition (a.event_time >= b.valid_from) on a.k = b.k and a.event_time < b.valid_to"""
LATEST = """select a.event_time, a.k, a.v, b.v as w from a left asof join b
match_condition (a.event_time >= b.event_time) on a.k = b.k"""
WINDOWS = """set odf.late = 'drop';
select time_bucket(interval '1' day, event_time) as event_time, k, sum(v) as s, count(*) as c from a group by 1, 2"""
MERGED = "select event_time, k, v from a where v % 7 <> 0 union all select event_time, k, v from b"


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


def enriched(lab, ledger, known):
    """Accepted ledger rows before the bound, each with the version in force."""
    mark = ledger[0].blocks[-1].watermark_after // 10**6, ledger[1].blocks[-1].watermark_after // 10**6
    rows, late = [], 0
    for time, key, value, _, before, _ in lab.statements(ledger[0]):
        if time is None:
            continue
        late += time < before
        if before <= time < min(mark):
            valid = [v for k, v, since, until in known if k == key is not None and since <= time < until]
            assert len(valid) < 2
            rows.append((time, key, value, valid[0] if valid else None))
    return sorted(rows, key=lambda row: (row[0], row[1] is not None, row[1] or "", row[2])), late


def tuples(replayed, *names):
    return [(int(row["event_time"].timestamp() * 1000), *(row[name] for name in names)) for row in replayed.data()]


def schedule(seed, aliases):
    rng, left, takes = random.Random(seed), dict.fromkeys(aliases, BLOCKS), []
    while any(left.values()):
        step = {alias: min(count, rng.choice([0, 1, 2, 5])) for alias, count in left.items()}
        left = {alias: count - step[alias] for alias, count in left.items()}
        takes.append(step)
    return takes


def query(sql, keys=("k",)):
    steps = (SqlQueryStep(query=sql),)
    tables = (TemporalTable(name="b", primary_key=keys),) if keys else None
    return TransformSql(engine="spark", queries=steps, temporal_tables=tables)


def both_ways(lab, sql, streams, seed, changelogs):
    pieces = lab.run(sql, streams, schedule(seed, streams), restart=True, changelogs=changelogs)
    whole = lab.run(sql, streams, [dict.fromkeys(streams, BLOCKS)], changelogs=changelogs)
    assert pieces.rows == whole.rows
    assert pieces.state == whole.state, "state must be a function of the cut"
    assert (pieces.late, pieces.watermark) == (whole.late, whole.watermark)
    return pieces


def ledger_and_dimension(lab, seed, changelog):
    ledger = lab.stream(1000 + seed, days=35, blocks=BLOCKS)
    if changelog:
        return {"a": ledger, "b": lab.changing(f"b{seed}", seed, BLOCKS)}
    return {"a": ledger, "b": lab.stream(2000 + seed, days=35, blocks=BLOCKS, late=0.2)}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("sql", "changelog"), [(ENRICHED, True), (AS_OF, True), (ENRICHED, False)], ids=["join", "as of", "append only"]
)
def test_a_ledger_meets_the_version_in_force(lab, sql, changelog, seed):
    streams = ledger_and_dimension(lab, seed, changelog)
    expected, late = enriched(lab, (streams["a"], streams["b"]), in_force(lab, streams["b"], changelog))
    assert any(row[3] is not None for row in expected)
    got = both_ways(lab, query(sql), streams, seed, ["b"] if changelog else [])
    assert tuples(got, "k", "v", "w") == expected
    assert got.late == late


@pytest.mark.parametrize("seed", SEEDS)
def test_as_of_takes_the_latest_row_in_time(lab, seed):
    streams = ledger_and_dimension(lab, seed, changelog=False)
    side = [(at, *each) for at, each in enumerate(lab.statements(streams["b"]))
            if each[0] is not None and each[0] >= each[4]]  # fmt: skip
    known = []
    for at, time, key, value, *_ in side:
        later = [other[1] for other in side if other[2] == key and (other[1], other[0]) > (time, at)]
        known.append((key, value, time, min(later, default=FAR)))
    expected, late = enriched(lab, (streams["a"], streams["b"]), [each for each in known if each[1] is not None])
    late += sum(each[0] is not None and each[0] < each[4] for each in lab.statements(streams["b"]))
    got = both_ways(lab, query(LATEST, keys=()), streams, seed, [])
    assert tuples(got, "k", "v", "w") == expected
    assert got.late == late


@pytest.mark.parametrize("seed", SEEDS)
def test_windows_net_corrections_that_come_in_time(lab, seed):
    streams = {"a": lab.changing(f"a{seed}", seed, BLOCKS)}
    standing, late = Counter(), 0
    for time, key, value, op, before, _ in lab.statements(streams["a"]):
        in_time = time // DAY >= before // DAY
        late += not in_time
        if in_time and op in (0, 3):
            standing[time, key, value] += 1
        elif in_time and standing[time, key, value]:
            standing[time, key, value] -= 1
    bound = streams["a"].blocks[-1].watermark_after // 10**6 // DAY * DAY
    sums, counts = Counter(), Counter()
    for (time, key, value), count in standing.items():
        if count and time < bound:
            sums[time // DAY * DAY, key] += value * count
            counts[time // DAY * DAY, key] += count
    expected = [(time, key, sums[time, key], counts[time, key]) for time, key in sorted(sums)]
    got = both_ways(lab, WINDOWS, streams, seed, ["a"])
    assert tuples(got, "k", "s", "c") == expected
    assert got.late == late


@pytest.mark.parametrize("seed", SEEDS)
def test_logs_merge_in_the_order_of_what_was_promised(lab, seed):
    streams = {"a": lab.changing(f"a{seed}", seed, BLOCKS), "b": lab.changing(f"b{seed}", seed + 50, BLOCKS)}
    gate = min(stream.blocks[-1].watermark_after // 10**6 for stream in streams.values())
    rows = [
        (each[4], number, offset, *each[:4])
        for number, (alias, stream) in enumerate(streams.items())
        for offset, each in enumerate(lab.statements(stream))
        if each[4] < gate and (alias == "b" or each[2] % 7)
    ]
    expected = []
    for _, number, offset, time, key, value, op in sorted(rows):
        partner = {2: offset + 1, 3: offset - 1}.get(op)
        paired = any(row[1:3] == (number, partner) for row in rows)
        expected.append(({2: 1, 3: 0}[op] if partner is not None and not paired else op, time, key, value))
    got = both_ways(lab, MERGED, streams, seed, ["a", "b"])
    assert [row["op"] for row in got.rows] == [row[0] for row in expected]
    assert tuples(got, "k", "v") == [row[1:] for row in expected]


def retractions_at_old_times(monkeypatch):
    kept = versions.effective_times
    monkeypatch.setattr(
        versions, "effective_times", lambda ops, times, before, after, *rest: kept(ops, times, before, before, *rest)
    )


def no_clamp(monkeypatch):
    monkeypatch.setattr(versions, "effective_times", lambda ops, times, before, after, keys, known: times)


def ranked_by_time(monkeypatch):
    monkeypatch.setattr(
        versions, "valid_until", lambda keys, ranks, taus, limits: changes.valid_until(keys, taus, taus, limits)
    )


def versions_forgotten(monkeypatch):
    kept = incremental._version_step
    monkeypatch.setattr(incremental, "_version_step", lambda *given: dataclasses.replace(
        kept(*given), kept_from=incremental.LATEST - 1))  # fmt: skip


def no_cancellation(monkeypatch):
    monkeypatch.setattr(inputs, "net", lambda rows, vocab: rows.filter(
        inputs.pa.array(changes.positive(inputs.np.asarray(rows.column(vocab.operation_type_column))))
    ))  # fmt: skip


def no_gate(monkeypatch):
    monkeypatch.setattr(incremental, "_slowest", lambda marks: max((m for m in marks if m is not None), default=None))


@pytest.mark.parametrize("mutate", [retractions_at_old_times, no_clamp, ranked_by_time, versions_forgotten])
def test_broken_versions_are_caught(lab, monkeypatch, mutate):
    mutate(monkeypatch)
    for seed in range(6):
        streams = ledger_and_dimension(lab, seed, changelog=True)
        expected, _ = enriched(lab, (streams["a"], streams["b"]), in_force(lab, streams["b"]))
        got = lab.run(query(ENRICHED), streams, schedule(seed, streams), changelogs=["b"])
        if tuples(got, "k", "v", "w") != expected:
            return
    raise AssertionError("the broken engine gave the right answers")


@pytest.mark.parametrize(("mutate", "test"), [
    (no_cancellation, test_windows_net_corrections_that_come_in_time),
    (no_gate, test_logs_merge_in_the_order_of_what_was_promised),
])  # fmt: skip
def test_broken_readings_are_caught(lab, monkeypatch, mutate, test):
    mutate(monkeypatch)
    for seed in range(4):
        try:
            test(lab, seed)
        except AssertionError:
            return
    raise AssertionError("the broken engine gave the right answers")
