"""What a chain says of where its collection goes on, written and read again."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from chain.ids import DatasetId
from chain.model.events import SetInfo
from chain.multihash import Multihash
from odfd.renditions.successor import HandoverNotice, announced, notice_of, without_notice

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
    said = announced(announced(info, notice(one, shards, ended)), notice(other, ended, shards))
    assert notice_of(said) == notice(other, ended, shards)
    assert len(said.keywords or ()) == len((info and info.keywords) or ()) + 1
    plain = without_notice(said)
    assert ((plain and plain.keywords) or None) == ((info and info.keywords) or None)
    before = (info and info.description) or ""
    assert ((plain and plain.description) or "").rstrip() == before.rstrip()


@given(st.text(max_size=200))
def test_what_is_no_notice_is_none(text: str) -> None:
    assert notice_of(SetInfo(keywords=(text, f"odfd/handover:{text}"))) is None


PLAIN = re.compile(r"odfd/handover:did:odf:[0-9a-z]{1,128}@\d{1,15}:[0-9a-z]{1,128}\Z")
"""The form that nodes without published shards know."""


@given(SHARDS, SHARDS)
def test_older_nodes_follow_chains_and_pass_shards_over(ended: int, shards: int) -> None:
    (word,) = announced(None, notice(5, ended, shards)).keywords or ()
    assert bool(PLAIN.match(word)) is (ended == shards == 1)
