"""Late rows, and eras of a changelog."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.spark.analysis.classify import Classification, Mode, Path
from engines.spark.analysis.influence import VersionedInput
from engines.spark.analysis.monotone import DAY, EARLIEST, LATEST, MILLISECOND, Floor, Shift, apply
from engines.spark.execution.inputs import _UNKNOWN, _eras
from engines.spark.planning.transaction import BlockFacts, InputFacts, next_checkpoint, plan_step
from engines.spark.rows.changelog import NEVER, positive
from engines.spark.state.checkpoint import decode_checkpoint, encode_checkpoint
from worlds.depth import share

# Where late rows come out, on plans alone: any grouping and interleaving of two ledgers and the versions they join.

HOUR = DAY // 24
FUNCTIONS = {
    "identity": (Floor(MILLISECOND),),
    "days": (Floor(DAY), Floor(MILLISECOND)),
    "moved": (Shift(3 * DAY), Floor(MILLISECOND)),
}


@st.composite
def chains(draw):
    """Blocks of (times, watermark after); the last has a watermark."""
    blocks, watermark = [], None
    for clock in draw(st.lists(st.integers(0, 40), min_size=1, max_size=7)):
        times = draw(st.lists(st.integers((clock - 30) * 24, (clock + 2) * 24).map(lambda h: h * HOUR), max_size=4))
        if draw(st.booleans()):
            stated = clock * DAY - draw(st.integers(0, 30)) * HOUR
            watermark = stated if watermark is None else max(watermark, stated)
        blocks.append((times, watermark))
    return [*blocks, ([], 45 * DAY if watermark is None else max(watermark, 20 * DAY))]


@st.composite
def histories(draw):
    """Chains of a, b and v, how late rows of a and b may be, and a schedule: which chain gives its next block."""
    given_chains = {alias: draw(chains()) for alias in "abv"}
    reaches = {alias: draw(st.sampled_from([None, 0, 2 * DAY, 9 * DAY])) for alias in "ab"}
    order = draw(st.permutations([alias for alias, blocks in given_chains.items() for _ in blocks]))
    cuts = draw(st.lists(st.booleans(), min_size=len(order), max_size=len(order)))
    return given_chains, reaches, [(alias, cut) for alias, cut in zip(order, [*cuts[:-1], True], strict=True)]


def facts(alias, blocks):
    before, found = None, []
    for position, (times, after) in enumerate(blocks):
        name = f"{alias}{position}"
        ends = (min(times), max(times)) if times else (None, None)
        found.append(BlockFacts(name, name if times else None, before, after, len(times), 0, *ends))
        before = after
    return found


def query(name):
    function = FUNCTIONS[name]
    life = VersionedInput(("k",), clamped=True)
    paths = (Path("a", function, function), Path("b", function, function), Path("v", function, function, life))
    return Classification(Mode.FINAL, paths, ("event_time",))


def run(name, history, schedule):
    """What comes out: (place, output time, alias, time), and the state. Checks that old versions are still there."""
    given_chains, reaches, _ = history
    known = {alias: facts(alias, blocks) for alias, blocks in given_chains.items()}
    taken, start = dict.fromkeys(given_chains, 0), dict.fromkeys(given_chains, 0)
    previous, out, forgotten, raw = None, [], EARLIEST, b""
    for alias, cut in schedule:
        taken[alias] += 1
        if not cut:
            continue
        inputs = []
        for each, blocks in known.items():
            runs = {item.alias: item.open for item in previous.inputs} if previous is not None else {}
            open_now = {block for run in runs.get(each, ()) for block in run}
            again = [replace(block, reopened=True) for block in blocks[: start[each]] if block.name in open_now]
            fresh = blocks[start[each] : taken[each]]
            inputs.append(InputFacts(each, each, (*again, *fresh), reach=reaches.get(each, 0)))
        step = plan_step(query(name), inputs, previous)
        rows = []
        for each, reads in step.reads.items():
            for read in reads:
                for time in (t for path in read.paths for t in given_chains[each][int(path[1:])][0]):
                    place = max(apply(FUNCTIONS[name], time), read.before)
                    first = EARLIEST if step.emit_from is None else step.emit_from
                    if read.low <= time < read.high and first <= place < step.emit_until:
                        rows.append((place, apply(FUNCTIONS[name], time), each, time))
                        assert step.versions["v"].seen_from <= time + 1, "a version in force then must be seen"
                        assert forgotten <= time + 1, "a version in force then must have been kept"
        out += sorted(rows)
        forgotten = max(forgotten, step.versions["v"].kept_from)
        raw = encode_checkpoint(next_checkpoint(query(name), "t", step, {}, previous))
        previous, start = decode_checkpoint(raw), dict(taken)
    return out, raw


def oracle(name, history):
    """Each row on its own: accepted by its own block, placed by its own block."""
    given_chains, reaches, _ = history
    function = FUNCTIONS[name]
    bound = min(
        (LATEST if blocks[-1][1] is None else apply(function, blocks[-1][1])) for blocks in given_chains.values()
    )
    rows = []
    for alias in "ab":
        before = None
        for times, after in given_chains[alias]:
            for time in times:
                output, reach = apply(function, time), reaches[alias]
                early = None if before is None or reach is None else apply(function, before - reach)
                place = output if before is None else max(output, apply(function, before))
                if (early is None or output >= early) and place < bound:
                    rows.append((place, output, alias, time))
            before = after
    return sorted(rows)


@pytest.mark.slow
@settings(max_examples=share(150))
@given(histories(), st.sampled_from(sorted(FUNCTIONS)))
def test_a_row_comes_out_at_a_place_of_its_own_chain(history, name):
    expected = oracle(name, history)
    pieces, state = run(name, history, history[2])
    at_once, same_state = run(
        name, history, [(alias, at == len(history[2]) - 1) for at, (alias, _) in enumerate(history[2])]
    )
    assert pieces == expected
    assert at_once == expected
    assert state == same_state


@pytest.mark.parametrize("reach", [None, 5 * DAY])
def test_without_late_rows_no_old_version_is_read(reach):
    blocks = {"a": [([DAY], DAY), ([9 * DAY], 20 * DAY)], "b": [([], 20 * DAY)], "v": [([2 * DAY], 20 * DAY)]}
    first = {alias: facts(alias, chain) for alias, chain in blocks.items()}
    inputs = [InputFacts(alias, alias, tuple(first[alias]), reach=reach if alias == "a" else 0) for alias in blocks]
    start = plan_step(query("identity"), [replace(each, blocks=each.blocks[:1]) for each in inputs], None)
    previous = next_checkpoint(query("identity"), "t", start, {}, None)
    again = replace(inputs[0], blocks=(replace(inputs[0].blocks[0], reopened=True), inputs[0].blocks[1]))
    step = plan_step(query("identity"), [again, *(replace(each, blocks=()) for each in inputs[1:])], previous)
    assert step.versions["v"].seen_from == start.watermark == DAY
    kept = step.versions["v"].kept_from
    assert kept < EARLIEST + DAY if reach is None else kept == 15 * DAY


# Which version of a key supersedes which, when the coordinator does not say what kind of chain it is.

KEYS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=30)


def ranks(keys, ops, times, cuts=()):
    """As ``advance`` makes them, the rows coming in several transactions; all rows stay in the state."""
    former = [np.empty(0, np.int64), np.empty(0, np.int64)]
    for stop in [*cuts, len(keys)]:
        known = [np.append(one, np.full(stop - len(one), _UNKNOWN)) for one in former]
        former = _eras(keys[:stop], ops[:stop], known)
    placed = np.where(positive(ops), times, -NEVER)
    return np.argsort(np.lexsort((np.arange(len(keys)), placed, former[0])))


@given(KEYS, st.data())
def test_event_time_ranks_what_only_grows(rows, data):
    keys, times = (np.array([row[at] for row in rows], np.int64) for at in (0, 1))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    expected = np.argsort(np.lexsort((np.arange(len(rows)), times)))
    assert np.array_equal(ranks(keys, np.zeros(len(rows), np.int64), times, cuts), expected)


@given(KEYS, st.data())
def test_the_chain_ranks_a_changelog(rows, data):
    """A legal one: a key is taken back before it is said again."""
    standing, keys, ops, times = set(), [], [], []
    for key, time in rows:
        said = data.draw(st.sampled_from([[1], [2, 3]])) if key in standing else [0]
        standing = standing - {key} if said == [1] else standing | {key}
        keys += [key] * len(said)
        ops += said
        times += [time] * len(said)
    keys, ops, times = (np.array(each, np.int64) for each in (keys, ops, times))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(keys)), max_size=3)))
    found = ranks(keys, ops, times, [cut for cut in cuts if not cut or cut == len(ops) or ops[cut - 1] != 2])
    for key in np.unique(keys):
        assert np.all(np.diff(found[keys == key]) > 0)
