"""Each merge strategy says what it means, and what it says agrees with itself."""

from __future__ import annotations

from typing import get_args

import pytest

from chain.model.source import TRAITS, MergeAppend, MergeSnapshot, MergeStrategy, primary_key, traits


def test_each_strategy_has_a_row() -> None:
    assert set(TRAITS) == set(get_args(MergeStrategy))


@pytest.mark.parametrize("kind", get_args(MergeStrategy))
def test_traits_agree(kind: type[MergeStrategy]) -> None:
    merge = kind() if kind is MergeAppend else kind(primary_key=("k",))
    found = traits(merge)
    assert found.asks_history or not found.newest_of_key
    assert found.newest_of_key or not found.whole_state
    assert not (found.only_adds and (found.carries_op or found.whole_state))
    assert primary_key(merge) == (() if kind is MergeAppend else ("k",))


def test_only_a_snapshot_is_all_there_is() -> None:
    assert [kind for kind, row in TRAITS.items() if row.whole_state] == [MergeSnapshot]
