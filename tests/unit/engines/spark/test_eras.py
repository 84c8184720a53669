"""Which version of a key supersedes which, when the coordinator does not say what kind of chain it is."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engines.spark.execution.inputs import _UNKNOWN, _eras
from engines.spark.rows.changelog import NEVER, positive

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
