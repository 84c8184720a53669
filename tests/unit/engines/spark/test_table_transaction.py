"""Ticks of a table: however many are taken at a time, the same are taken in all."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from engines.spark.analysis.classify import Classification, Mode
from engines.spark.analysis.monotone import DAY, MILLISECOND, Floor, FloorMonths
from engines.spark.planning.table_transaction import plan_table
from engines.spark.planning.transaction import BlockFacts, InputFacts, next_checkpoint
from engines.spark.state.checkpoint import decode_checkpoint, encode_checkpoint

TABLE = Classification(Mode.TABLE, (), ("event_time",))
streams = st.lists(st.integers(0, 6), min_size=1, max_size=10)


def blocks(name, steps):
    found, clock = [], None
    for position, step in enumerate(steps):
        after = (clock or 0) + step * DAY if step or clock else clock
        found.append(BlockFacts(f"{name}{position}", None, clock, after))
        clock = after
    return tuple(found)


@given(streams, streams, st.integers(0, 3), st.lists(st.integers(-1, 70), max_size=6))
def test_limits_do_not_show(one, other, lateness, limits):
    given_inputs = [InputFacts("did", name, blocks(name, steps), lateness * DAY)
                    for name, steps in (("a", one), ("b", other))]  # fmt: skip
    whole, expected, waiting = plan_table(given_inputs, None)
    state, ticks, now = None, [], given_inputs
    for limit in (*limits, None):
        step, table, waits = plan_table(now, state, limit=None if limit is None else limit * DAY)
        assert table.since == (None if state is None or state.g is None else state.g * MILLISECOND)
        assert table.ticks or expected.ticks == tuple(ticks), "a tick that is due is always reached"
        assert (step.settled is not None) == (tuple(ticks) + table.ticks != expected.ticks)
        ticks += table.ticks
        state = decode_checkpoint(encode_checkpoint(next_checkpoint(TABLE, "t", step, {}, state, waits)))
        now = [replace(each, blocks=()) for each in given_inputs]
    assert tuple(ticks) == expected.ticks
    assert state == next_checkpoint(TABLE, "t", whole, {}, None, waiting)


@given(
    streams, st.sampled_from([Floor(DAY), Floor(3 * DAY), FloorMonths(1)]), st.lists(st.integers(-1, 70), max_size=6)
)
def test_limits_do_not_show_on_a_grid(steps, grid, limits):
    given_input = InputFacts("did", "a", blocks("a", steps))
    whole, _, waiting = plan_table([given_input], None, grid)
    state, now, until = None, [given_input], None
    for limit in (*limits, None):
        step, table, waits = plan_table(now, state, grid, None if limit is None else limit * DAY)
        assert table.since == until
        assert step.settled in (None, whole.watermark)
        # What is due moves on with each step.
        assert until is None or table.until > until or until == whole.watermark
        until = table.until
        state = decode_checkpoint(encode_checkpoint(next_checkpoint(TABLE, "t", step, {}, state, waits)))
        now = [replace(given_input, blocks=())]
    assert state == next_checkpoint(TABLE, "t", whole, {}, None, waiting)
