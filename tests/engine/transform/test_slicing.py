"""The law: how blocks are grouped into transactions cannot be seen in the output. Engine semantics, section 2."""

from __future__ import annotations

import dataclasses
import os
import random

import pytest

import engines.spark.incremental as incremental
import engines.spark.output as output
import engines.spark.transform as transform

pytestmark = pytest.mark.engine
SEEDS = range(int(os.environ.get("ODF_SOAK", "1")))


def groups(blocks: int, seed: int) -> list[int]:
    rng, sizes = random.Random(seed), []
    while sum(sizes) < blocks:
        sizes.append(min(rng.choice([1, 2, 4, 7]), blocks - sum(sizes)))
    return sizes


@pytest.mark.parametrize("seed", SEEDS)
def test_any_schedule_gives_what_one_batch_query_gives(lab, shape, seed):
    stream = lab.stream(seed)
    expected, late = lab.oracle(shape, stream)
    assert expected, "a stream without settled rows proves nothing"
    whole = lab.replay(shape.sql, stream, [len(stream.blocks)])
    pieces = lab.replay(shape.sql, stream, groups(len(stream.blocks), seed), restart=True)
    assert pieces.data() == expected
    assert whole.data() == expected
    assert pieces.state == whole.state, "state must be a function of the cut"
    assert (pieces.late, pieces.watermark) == (whole.late, whole.watermark)
    assert pieces.late == late
    assert pieces.with_data > 1


def differs(lab, shape, seeds):
    """Whether a schedule of small transactions is caught giving something else than the oracle."""
    for seed in seeds:
        stream = lab.stream(seed)
        expected, _ = lab.oracle(shape, stream)
        try:
            got = lab.replay(shape.sql, stream, groups(len(stream.blocks), seed))
        except AssertionError:
            return True
        if got.data() != expected:
            return True
    return False


def late_by_transaction(monkeypatch):
    planned = transform.plan_step

    def mutant(query, inputs, previous, oldest):
        changed = []
        for given in inputs:
            fresh = [block for block in given.blocks if not block.reopened]
            before = fresh[0].before if fresh else None
            blocks = tuple(b if b.reopened else _with(b, before=before) for b in given.blocks)
            changed.append(_with(given, blocks=blocks))
        return planned(query, changed, previous, oldest)

    monkeypatch.setattr(transform, "plan_step", mutant)


def _with(value, **changes):
    return dataclasses.replace(value, **changes)


def no_lateness(monkeypatch):
    monkeypatch.setattr(incremental, "_threshold", lambda paths, before, lateness: incremental.EARLIEST)


def eager_bound(monkeypatch):
    monkeypatch.setattr(incremental, "_bound", lambda paths, watermarks: watermarks["a"])


def open_rows_dropped(monkeypatch):
    monkeypatch.setattr(incremental, "_still_open", lambda judged, since: ())


def unsorted_output(monkeypatch):
    monkeypatch.setattr(output, "total_order", lambda table, columns: list(reversed(range(table.num_rows))))


def no_output_filter(monkeypatch):
    kept, end = transform.final_rows, incremental.LATEST
    monkeypatch.setattr(
        transform, "final_rows", lambda result, schema, vocab, *_: kept(result, schema, vocab, None, end)
    )


def settled_rows_read_again(monkeypatch):
    planned = transform.plan_step

    def mutant(query, inputs, previous, oldest):
        step = planned(query, inputs, previous, oldest)
        reads = {a: tuple(_with(r, low=incremental.EARLIEST) for r in rs) for a, rs in step.reads.items()}
        return _with(step, reads=reads, emit_from=None)

    monkeypatch.setattr(transform, "plan_step", mutant)


@pytest.mark.parametrize(
    ("mutate", "name"),
    [
        (late_by_transaction, "bucket-day"),
        (no_lateness, "bucket-day"),
        (eager_bound, "window-day"),
        (open_rows_dropped, "bucket-month"),
        (unsorted_output, "bucket-day"),
        (no_output_filter, "two-paths"),
        (settled_rows_read_again, "bucket-month"),
    ],
)
def test_a_broken_engine_is_caught(lab, shapes, monkeypatch, mutate, name):
    mutate(monkeypatch)
    assert differs(lab, shapes[name], range(3))
