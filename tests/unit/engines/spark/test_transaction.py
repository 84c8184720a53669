"""The law of slicing on plans alone: ten lines stand for Spark, so many histories can be tried."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.errors import Invalid
from engines.spark.analysis.classify import Classification, Mode, Path
from engines.spark.analysis.monotone import DAY, EARLIEST, LATEST, MILLISECOND, Floor, FloorMonths, Shift, apply
from engines.spark.planning.transaction import BlockFacts, InputFacts, next_checkpoint, plan_step
from engines.spark.state.checkpoint import decode_checkpoint, encode_checkpoint
from worlds.depth import share

HOUR = DAY // 24
END = Floor(MILLISECOND)
FUNCTIONS = {
    "hours": ((Floor(6 * HOUR), END), (Floor(6 * HOUR), END)),
    "month": ((FloorMonths(1), END), (FloorMonths(1), END)),
    "ends": ((Floor(DAY), Shift(DAY), END), (Floor(DAY), Shift(DAY), END)),
    "overlapping": ((Shift(-2 * DAY), Floor(DAY), Shift(DAY), END), (Floor(DAY), END)),
    "hours of days": ((Floor(DAY), END), (Floor(DAY), Shift(DAY - 1), END)),
}
"""Least and greatest output time of a row; the greatest may only enclose what the query really does."""


@st.composite
def histories(draw):
    """Blocks of (times, watermark after), and a schedule."""
    blocks, watermark = [], None
    for clock in draw(st.lists(st.integers(0, 90), min_size=1, max_size=14)):
        times = draw(st.lists(st.integers((clock - 20) * 24, (clock + 2) * 24).map(lambda h: h * HOUR), max_size=5))
        if draw(st.booleans()):
            stated = clock * DAY - draw(st.integers(0, 30)) * HOUR
            watermark = stated if watermark is None else max(watermark, stated)
        blocks.append((times, watermark))
    cuts = draw(st.lists(st.booleans(), min_size=len(blocks), max_size=len(blocks)))
    return blocks, [position + 1 for position, cut in enumerate(cuts[:-1]) if cut] + [len(blocks)]


def facts(blocks):
    before, found = None, []
    for position, (times, after) in enumerate(blocks):
        name = f"b{position}"
        ends = (min(times), max(times)) if times else (None, None)
        found.append(BlockFacts(name, name if times else None, before, after, len(times), 0, *ends))
        before = after
    return found


def influenced(paths, time):
    """Output of the imaginary query: each path gives one row at every 6 hours of its interval."""
    for path in paths:
        output = apply(path.low, time)
        while output <= apply(path.high, time):
            yield output, time
            output += 6 * HOUR


def paced(cuts, limits):
    """Each cut with the limits given for it, and once more without one; the blocks are taken the first time."""
    for cut, several in zip(cuts, limits, strict=True):
        for limit in (*several, None):
            yield cut, limit


def run(query, blocks, cuts, limits=None):
    known, previous, out, start = facts(blocks), None, [], 0
    for cut, limit in paced(cuts, limits or [()] * len(cuts)):
        open_now = {name for run in previous.inputs[0].open for name in run} if previous is not None else set()
        again = [replace(b, reopened=True) for b in known[:start] if b.name in open_now]
        step = plan_step(query, [InputFacts("did", "a", (*again, *known[start:cut]))], previous, limit=limit)
        mounted = {b.path for b in (*again, *known[start:cut])}
        rows = []
        for read in step.reads["a"]:
            assert set(read.paths) <= mounted
            for path in read.paths:
                times = blocks[int(path[1:])][0]
                rows += [time for time in times if read.low <= time < read.high]
        first = EARLIEST if step.emit_from is None else step.emit_from
        until = LATEST if step.emit_until is None else step.emit_until
        assert step.idle or step.emit_until is not None
        out += sorted(one for time in rows for one in influenced(query.paths, time) if first <= one[0] < until)
        late = {c.alias: 0 for c in step.late_checks}
        for check in step.late_checks:
            late[check.alias] += sum(time < check.threshold for time in blocks[int(check.path[1:])][0])
        raw = encode_checkpoint(next_checkpoint(query, "t", step, late, previous))
        previous, start = decode_checkpoint(raw), cut
    return out, raw


def whole(query, blocks):
    """One query over all accepted rows."""
    watermark, rows, late = None, [], 0
    for times, after in blocks:
        for time in times:
            lost = watermark is not None and any(apply(p.low, time) < apply(p.low, watermark) for p in query.paths)
            late += lost
            rows += [] if lost else [time]
        watermark = after
    if watermark is None:
        return [], late
    bound = min(apply(path.low, watermark) for path in query.paths)
    return sorted(one for time in rows for one in influenced(query.paths, time) if one[0] < bound), late


@pytest.mark.slow
@settings(max_examples=share(300))
@given(histories(), st.lists(st.sampled_from(sorted(FUNCTIONS)), min_size=1, max_size=2))
def test_grouping_does_not_show(history, names):
    blocks, cuts = history
    query = Classification(Mode.FINAL, tuple(Path("a", *FUNCTIONS[name]) for name in names), ("event_time",))
    expected, late = whole(query, blocks)
    got, state = run(query, blocks, cuts)
    at_once, same_state = run(query, blocks, [len(blocks)])
    assert got == expected
    assert at_once == expected
    assert state == same_state
    assert decode_checkpoint(state).late.get("a", 0) == late


@pytest.mark.slow
@settings(max_examples=share(200))
@given(histories(), st.lists(st.sampled_from(sorted(FUNCTIONS)), min_size=1, max_size=2), st.data())
def test_emission_limits_do_not_show(history, names, data):
    blocks, cuts = history
    query = Classification(Mode.FINAL, tuple(Path("a", *FUNCTIONS[name]) for name in names), ("event_time",))
    times = st.lists(st.integers(-30 * 24, 95 * 24).map(lambda hour: hour * HOUR), max_size=4)
    limits = data.draw(st.lists(times, min_size=len(cuts), max_size=len(cuts)))
    assert run(query, blocks, cuts, limits) == run(query, blocks, cuts)


@pytest.mark.parametrize(("occurrence", "thresholds"), [(0, []), (None, [4 * DAY])])
def test_a_row_is_late_for_all_of_an_occurrence_or_for_none(occurrence, thresholds):
    """Two ways into windows of two days: by the second those that the row is in are not settled yet."""
    ways = ((Floor(2 * DAY), END), (Floor(DAY), Shift(-DAY), Floor(2 * DAY), END))
    paths = tuple(Path("a", way, way, occurrence=occurrence) for way in ways)
    query = Classification(Mode.FINAL, paths, ("event_time",))
    step = plan_step(query, (InputFacts("a", "a", facts([([], 4 * DAY), ([7 * DAY // 2], 5 * DAY)])),), None)
    assert [check.threshold for check in step.late_checks] == thresholds


def test_what_a_limit_holds_back_is_told_until_it_is_out():
    query = Classification(Mode.FINAL, (Path("a", *FUNCTIONS["hours"]),), ("event_time",))
    known = facts([([3 * DAY, 8 * DAY], 4 * DAY), ([5 * DAY], 9 * DAY)])
    first = plan_step(query, [InputFacts("did", "a", tuple(known))], None, limit=4 * DAY)
    state = next_checkpoint(query, "t", first, {}, None)
    assert (first.watermark, state.settled) == (4 * DAY, 9 * DAY // MILLISECOND)
    assert first.inputs[0].open == (("b0", "b0"), ("b1", "b1"))
    again = [InputFacts("did", "a", tuple(replace(each, reopened=True) for each in known))]
    second = plan_step(query, again, state, limit=9 * DAY)
    assert (second.emit_from, second.emit_until) == (4 * DAY, 9 * DAY)
    assert b"settled" not in encode_checkpoint(next_checkpoint(query, "t", second, {}, state))
    assert plan_step(query, again, state, limit=2 * DAY).idle


def test_nothing_settled_reads_nothing():
    query = Classification(Mode.FINAL, (Path("a", *FUNCTIONS["month"]),), ("event_time",))
    blocks = [([3 * DAY], 4 * DAY), ([5 * DAY], 6 * DAY)]
    first = plan_step(query, [InputFacts("did", "a", tuple(facts(blocks)[:1]))], None)
    state = next_checkpoint(query, "t", first, {}, None)
    second = plan_step(
        query, [InputFacts("did", "a", tuple(replace(b, reopened=b.name == "b0") for b in facts(blocks)))], state
    )
    assert second.idle
    assert second.inputs[0].open == (("b0", "b0"), ("b1", "b1"))


def test_log_mode_reads_every_new_slice_and_keeps_none():
    query = Classification(Mode.LOG, (Path("a", (END,), (END,)),), ("event_time",))
    step = plan_step(query, [InputFacts("did", "a", tuple(facts([([1], None), ([], 7 * DAY), ([2], 7 * DAY)])))], None)
    assert [read.paths for read in step.reads["a"]] == [("b0", "b2")]
    assert step.watermark == 7 * DAY
    assert step.inputs[0].open == ()


def test_a_missing_open_block_is_refused():
    query = Classification(Mode.FINAL, (Path("a", *FUNCTIONS["month"]),), ("event_time",))
    known = facts([([3 * DAY], 4 * DAY), ([5 * DAY], 6 * DAY)])
    state = next_checkpoint(query, "t", plan_step(query, [InputFacts("did", "a", tuple(known[:1]))], None), {}, None)
    with pytest.raises(Invalid, match="needs block b0 again"):
        plan_step(query, [InputFacts("did", "a", tuple(known[1:]))], state)


def test_blocks_from_before_the_checkpoint_are_refused():
    query = Classification(Mode.LOG, (Path("a", (END,), (END,)),), ("event_time",))
    known = facts([([3 * DAY], 4 * DAY), ([5 * DAY], 6 * DAY)])
    state = next_checkpoint(query, "t", plan_step(query, [InputFacts("did", "a", tuple(known))], None), {}, None)
    with pytest.raises(Invalid, match="before the watermark"):
        plan_step(query, [InputFacts("did", "a", tuple(known[:1]))], state)
