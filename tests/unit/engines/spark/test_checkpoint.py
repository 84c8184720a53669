"""Checkpoints: one text for one state, read under limits, and runs that depend on the blocks alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid
from chain.ids import DatasetId
from chain.multihash import Multihash
from engines.spark.state.checkpoint import (
    MAX_CHECKPOINT,
    MAX_RANGES,
    OpenInput,
    StateCheckpoint,
    decode_checkpoint,
    encode_checkpoint,
    open_blocks,
    runs_of,
)

ID = DatasetId.from_public_key(b"k" * 32)
NAMES = [str(Multihash.sha3_256(bytes([n]))) for n in range(4)]


def checkpoint(**changes):
    item = OpenInput(id=str(ID), alias="a", block=NAMES[3], w=5, open=((NAMES[0], NAMES[1]), (NAMES[2], NAMES[2])))
    facts = {
        "v": 1,
        "transform": NAMES[0],
        "mode": "final",
        "g": -7,
        "inputs": (item,),
        "late": {"a": 3},
        "untimed": {},
    }
    return StateCheckpoint(**(facts | changes))


def test_canonical_and_back():
    raw = encode_checkpoint(checkpoint())
    assert raw.startswith(b'{"g":-7,"inputs":[{"alias":"a","block":"f1620')
    assert b" " not in raw
    assert decode_checkpoint(raw) == checkpoint()


def test_open_blocks_by_dataset():
    runs = open_blocks(encode_checkpoint(checkpoint()))
    assert runs == {ID: [(Multihash.parse(NAMES[0]), Multihash.parse(NAMES[1])), (Multihash.parse(NAMES[2]),) * 2]}
    nothing = checkpoint(inputs=(OpenInput(id=str(ID), alias="a"),))
    assert open_blocks(encode_checkpoint(nothing)) == {}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        encode_checkpoint(checkpoint(v=2)),
        encode_checkpoint(checkpoint()).replace(b'"mode"', b'"made"'),
        encode_checkpoint(checkpoint(g=2**63)),
        b" " * (MAX_CHECKPOINT + 1),
    ],
)
def test_what_is_no_checkpoint_is_refused(raw):
    with pytest.raises(Invalid):
        decode_checkpoint(raw)


def test_names_that_are_no_hashes_are_refused():
    with pytest.raises(Invalid):
        open_blocks(encode_checkpoint(checkpoint(inputs=(OpenInput(id=str(ID), alias="a", open=(("x", "y"),)),))))


@given(st.lists(st.integers(0, 10**6), unique=True, max_size=400).map(sorted))
def test_runs_cover_all_in_order_and_are_few(numbers):
    names = [str(number) for number in numbers]
    runs = runs_of(names)
    assert len(runs) <= MAX_RANGES
    covered = [name for first, last in runs for name in names[names.index(first) : names.index(last) + 1]]
    assert covered == names
