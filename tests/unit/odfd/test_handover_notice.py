"""What a chain says of where its collection goes on, written and read again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid
from chain.ids import DatasetId
from chain.model.events import SetInfo
from chain.multihash import Multihash
from odfd.renditions.chain_timeline import LOOKED, check, row_at, rows_in, rows_of, words_of
from odfd.renditions.successor import HandoverNotice, announce, going_on, notice_of, without_notice
from odfd.renditions.timeline import RenditionRow, Switch, Timeline

TO = DatasetId.parse("did:odf:fed016c49bc1b370aa62a1aa52c7cc0fd96fbe1d8cf7b7b3d7a8a8f1f0f1d6b1d1a2c")
WORDS = st.lists(st.text(max_size=20).filter(lambda word: "odfd/handover" not in word), min_size=1, max_size=3)
INFOS = st.one_of(
    st.none(),
    st.builds(
        SetInfo,
        description=st.one_of(st.none(), st.text("abc [].", min_size=1, max_size=20)),
        keywords=st.one_of(st.none(), WORDS.map(tuple)),
    ),
)


SHARDS = st.integers(1, 64)


def notice(time: int, ended: int = 1, shards: int = 1) -> HandoverNotice:
    return HandoverNotice(TO, time, Multihash.sha3_256(str(time).encode()), ended, shards)


@given(INFOS, st.integers(0, 4 * 10**12), st.integers(0, 4 * 10**12), SHARDS, SHARDS)
def test_the_last_notice_counts_and_the_rest_stays(
    info: SetInfo | None, one: int, other: int, ended: int, shards: int
) -> None:
    said = announce(announce(info, notice(one, shards, ended)), notice(other, ended, shards))
    assert notice_of(said) == notice(other, ended, shards)
    assert len(said.keywords or ()) == len((info and info.keywords) or ()) + 1
    plain = without_notice(said)
    assert ((plain and plain.keywords) or None) == ((info and info.keywords) or None)
    before = (info and info.description) or ""
    assert ((plain and plain.description) or "").rstrip() == before.rstrip()


@pytest.mark.slow
@given(st.text(max_size=200))
def test_what_is_no_notice_is_none(text: str) -> None:
    assert notice_of(SetInfo(keywords=(text, f"odfd/handover:{text}"))) is None


PLAIN = re.compile(r"odfd/handover:did:odf:[0-9a-z]{1,128}@\d{1,15}:[0-9a-z]{1,128}\Z")
"""The form that nodes without published shards know."""


@given(SHARDS, SHARDS)
def test_older_nodes_follow_chains_and_pass_shards_over(ended: int, shards: int) -> None:
    (word,) = announce(None, notice(5, ended, shards)).keywords or ()
    assert bool(PLAIN.match(word)) is (ended == shards == 1)


def made(times: list[int]) -> Timeline:
    rows = [RenditionRow(number=number, shards=(str(TO),) * (number % 3 + 1)) for number in range(len(times))]
    return Timeline(tuple(Switch(time, "", row) for time, row in zip(times, rows, strict=True)), times[-1] + 1)


TIMES = st.lists(st.integers(1, 10**13), max_size=8, unique=True).map(lambda times: [0, *sorted(times)])


@given(INFOS, TIMES, st.integers(0, 10**13))
def test_all_of_m_is_read_as_it_was_written(info: SetInfo | None, times: list[int], at: int) -> None:
    timeline = made(times)
    said = going_on(going_on(announce(info, notice(5)), made([0, 3])), timeline)
    rows = rows_in(said)
    assert [(each.number, each.time, each.shards) for each in rows] == [
        (each.to.number, each.time, len(each.to.shards)) for each in timeline.switches
    ]
    assert notice_of(said) is None
    held = row_at(rows, at)
    assert held is not None
    assert held.time == max(time for time in times if time <= at)
    plain = without_notice(said)
    assert ((plain and plain.keywords) or None) == ((info and info.keywords) or None)
    check(rows, timeline)


@given(TIMES.filter(lambda times: len(times) > 2), st.data())
def test_what_left_a_followed_handover_out_is_refused(times: list[int], data: st.DataObject) -> None:
    timeline, words = made(times), words_of(made(times))
    gone = data.draw(st.integers(1, len(times) - 2))
    with pytest.raises(Invalid, match="and now that there was none"):
        check(rows_in(SetInfo(keywords=(*words[:gone], *words[gone + 1 :]))), timeline)


@given(st.text(max_size=200))
def test_what_is_no_m_is_none(text: str) -> None:
    (first, second) = words_of(made([0, 7]))
    assert rows_in(SetInfo(keywords=(text, f"odfd/rendition:{text}"))) == ()
    assert rows_in(SetInfo(keywords=(second, first))) == (), "times grow"
    assert rows_in(None) == ()


@pytest.mark.parametrize(("later", "is_found"), [(0, True), (LOOKED - 1, True), (LOOKED, False), (10**9, False)])
def test_any_number_of_descriptions_costs_a_few_reads(later: int, is_found: bool) -> None:
    timeline = made([0, 5])
    asked = []

    class Described:
        """A chain with one description that says M, and later ones."""

        def last_of(self, kinds: Sequence[str], before: int | None = None) -> Any:
            asked.append(kinds)
            number = later if before is None else before - 1
            info = going_on(None, timeline) if number == 0 else SetInfo(description=str(number))
            return SimpleNamespace(event=info, sequence_number=number) if number >= 0 else None

    assert bool(rows_of(Described(), TO)) is is_found  # type: ignore[arg-type]
    assert len(asked) <= LOOKED
