"""What a repository says of shards: the client reads it as the node does, and refuses what is damaged."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from odfd.published.signed import COLLECTION, collection_in
from odfd_client.errors import OdfdError
from odfd_client.places import FolderPlace
from odfd_client.stored_collections import SignedShard, beside, shards_in
from worlds.collection_bytes import KEYS, written
from worlds.depth import share
from worlds.mutation import mutated

HEADS = st.lists(
    st.tuples(st.integers(1, 1 << 40), st.none() | st.integers(0, (1 << 53) - 1)), min_size=2, max_size=len(KEYS)
)


@pytest.mark.slow
@given(HEADS, HEADS)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_both_readers_say_the_same(tmp_path: Path, heads: Any, others: Any) -> None:
    keys = KEYS[: len(heads)]
    raw = written(keys, heads)
    (tmp_path / "trust").mkdir(exist_ok=True)
    (tmp_path / COLLECTION).write_bytes(raw)
    found = collection_in(raw, "here")
    assert found.content == raw
    assert shards_in(FolderPlace(tmp_path), "") == tuple(
        SignedShard(str(each.dataset), str(each.head), each.size, each.upper or 0) for each in found.heads
    )
    there = collection_in(written(keys, (others * 2)[: len(keys)]), "there")
    if len(there.heads) == len(found.heads):
        joined = found.newer(there)
        assert [each.order for each in joined.heads] == [
            max(one.order, two.order) for one, two in zip(found.heads, there.heads, strict=True)
        ]
        assert collection_in(joined.content, "joined") == joined


@pytest.mark.slow
@given(st.integers(0, 1 << 32))
@settings(max_examples=share(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_bytes_are_an_error_that_says_so(tmp_path: Path, seed: int) -> None:
    (tmp_path / "trust").mkdir(exist_ok=True)
    raw = written(KEYS[:3], [(1, 2), (3, None), (5, 6)])
    (tmp_path / COLLECTION).write_bytes(mutated(random.Random(seed), raw, raw))
    try:
        found = shards_in(FolderPlace(tmp_path), "")
    except OdfdError:
        return
    assert found is not None
    assert len(found) == 3


@pytest.mark.parametrize(("folder", "expected"), [("cities", "fed01"), ("a/cities", "a/fed01")])
def test_a_shard_lies_beside_the_name(folder: str, expected: str) -> None:
    assert beside(folder, "did:odf:fed01") == expected
