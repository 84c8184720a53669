"""The limit of a transaction: a policy that always lets something through, and what a replay takes for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.ids import DatasetId
from chain.instant import MILLISECOND, Instant
from chain.model.events import DataSlice, OffsetInterval, Vocab
from chain.multihash import Multihash
from chain.state import InputPosition
from engines.spark.state.checkpoint import Arranged, OpenInput, StateCheckpoint, encode_checkpoint
from odfd.transform.checkpoint_info import TransformProgress, read_past
from odfd.transform.pacing import up_to, within
from odfd.transform.plan import DataBlock, InputView

NAME = Multihash.sha3_256(b"")
ID = DatasetId.from_public_key(b"p" * 32)


def view(blocks: list[tuple[int | None, int]]) -> InputView:
    """Blocks of (watermark before, rows)."""
    return InputView(
        dataset=ID,
        name="a",
        alias="a",
        position=InputPosition(None, None),
        cut=NAME,
        last_offset=None,
        new=tuple(
            DataBlock(
                hash=NAME,
                sequence_number=number,
                system_time=Instant(0),
                new_data=DataSlice(
                    logical_hash=NAME, physical_hash=NAME, offset_interval=OffsetInterval(start=1, end=rows), size=1
                )
                if rows
                else None,
                stated_watermark=None,
                watermark_before=None if before is None else Instant(before),
            )
            for number, (before, rows) in enumerate(blocks)
        ),
        reopened=(),
        schema=None,
        vocab=Vocab(),
    )


BACKLOG = [(None, 5), (10, 5), (20, 5), (30, 5), (40, 5)]


def test_a_backlog_is_cut_where_the_rows_are_too_many() -> None:
    assert within(100)(TransformProgress(), [view(BACKLOG)]) is None
    assert within(12)(TransformProgress(), [view(BACKLOG)]) == 20
    assert within(12)(TransformProgress(), [view(BACKLOG), view(BACKLOG)]) == 10
    assert (
        within(12)(TransformProgress(emitted=Instant(25), settled=Instant(60), slowest=Instant(60)), [view(BACKLOG)])
        == 30
    )


def test_output_ahead_of_its_inputs_is_cut_ahead() -> None:
    past = TransformProgress(emitted=Instant(100), settled=Instant(105), slowest=Instant(5))
    assert within(12)(past, [view(BACKLOG)]) == 120


def test_waiting_ticks_leave_by_their_share_of_the_rows() -> None:
    past = TransformProgress(settled=Instant(9), due=tuple(Instant(n) for n in range(1, 9)), held=80)
    assert within(20)(past, []) == 2
    assert within(1)(past, []) == 1
    assert within(80)(past, []) is None


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.none() | st.integers(0, 50), st.integers(0, 9)), max_size=9),
    st.integers(1, 20),
    st.integers(0, 60),
)
def test_a_limit_is_always_beyond_what_is_out(blocks: list[tuple[int | None, int]], rows: int, emitted: int) -> None:
    past = TransformProgress(emitted=Instant(emitted), settled=Instant(emitted), slowest=Instant(emitted))
    found = within(rows)(past, [view(blocks)])
    assert found is None or found > emitted


def test_a_replay_settles_what_was_recorded() -> None:
    assert up_to(Instant(7))(TransformProgress(), []) == 7
    assert up_to(None)(TransformProgress(), []) is None


def test_a_checkpoint_tells_what_waits() -> None:
    inputs = tuple(OpenInput(id=str(ID), alias=alias, w=w) for alias, w in (("a", 9), ("b", 7)))
    known = StateCheckpoint(v=1, transform="t", mode="table", g=3, inputs=inputs, late={}, untimed={})
    assert read_past(None) == TransformProgress()
    out = read_past(encode_checkpoint(known))
    assert (out.emitted, out.settled, out.slowest) == (3 * MILLISECOND, 3 * MILLISECOND, 7 * MILLISECOND)
    assert not out.waits
    held = StateCheckpoint(
        v=1, transform="t", mode="table", g=3, inputs=(*inputs, OpenInput(id=str(ID), alias="c")), late={}, untimed={},
        ticks=(5, 6, 8), settled=6, arranged=(Arranged(name="rows:a", rows=4, size=1, digest=""),),
    )  # fmt: skip
    out = read_past(encode_checkpoint(held))
    assert out.waits
    assert (out.due, out.held, out.slowest) == ((5 * MILLISECOND, 6 * MILLISECOND), 4, None)
