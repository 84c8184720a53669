"""What satisfies a requirement of several shards is cut at one time of all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Refused
from chain.instant import from_millis
from chain.store.base import Head
from chain.store.shards import Shard, View
from odfd.control import wire
from odfd.queries import sharded_cuts
from odfd.queries.cuts import Cut

TIMES = st.lists(st.integers(0, 9), min_size=1, max_size=6).map(sorted)


class Chains:
    """Chains of blocks of these times."""

    def __init__(self, times: list[list[int]]) -> None:
        self._times = times

    def chain(self, place: Any) -> Any:
        times = self._times[place]

        def block_at(number: int) -> Any:
            return SimpleNamespace(hash=(place, number), system_time=from_millis(times[number]), sequence_number=number)

        return SimpleNamespace(block_at=block_at, head=lambda: Head((place, len(times) - 1), len(times) - 1))  # type: ignore[arg-type]


class Reads:
    """In place of a store's."""

    def __init__(self, _: Any, chains: Chains) -> None:
        self._chains = chains

    def read(self, shards: list[int]) -> Any:
        found = {}
        for each in shards:
            chain = self._chains.chain(each)
            found[each] = View(Shard(chain.head(), 0), chain.block_at)
        return found


@pytest.mark.slow
@given(st.lists(st.tuples(TIMES, st.integers(0, 6)), min_size=2, max_size=4))
def test_no_shard_is_cut_beyond_what_satisfies_or_within_a_transaction(said: list[tuple[list[int], int]]) -> None:
    times = [each for each, _ in said]
    reach = [min(len(each), most) for each, most in said]
    home: Any = SimpleNamespace(database=None, chains=Chains(times))
    shards: Any = [SimpleNamespace(id=place, name=f"s{place}") for place in range(len(times))]
    cuts: Any = [Cut(size=len(each), block=(place, len(each) - 1)) for place, each in enumerate(times)]  # type: ignore[arg-type]
    request = wire.QueryRequest(sql="", require="attested", cut=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharded_cuts, "SqliteShards", Reads)
        try:
            found = sharded_cuts.satisfying(home, shards, cuts, request, lambda each, _: reach[each.id])
        except Refused:
            found = None
    whole = [place for place in range(len(times)) if reach[place] == len(times[place])]
    limits = [times[place][reach[place]] for place in range(len(times)) if place not in whole]
    if not limits:
        assert found == cuts
        return
    wanted = [sum(time < min(limits) for time in each) for each in times]
    assert (found is None) == (not all(wanted))
    if found is not None:
        assert [each.size for each in found] == wanted
        assert all(size <= most for size, most in zip(wanted, reach, strict=True))
