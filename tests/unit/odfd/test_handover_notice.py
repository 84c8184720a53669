"""What a chain says of where its collection goes on, written and read again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chain.ids import DatasetId
from chain.model.events import SetInfo
from chain.multihash import Multihash
from odfd.renditions.notice import HandoverNotice, announced, notice_of, without_notice

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


def notice(time: int) -> HandoverNotice:
    return HandoverNotice(TO, time, Multihash.sha3_256(str(time).encode()))


@given(INFOS, st.integers(0, 4 * 10**12), st.integers(0, 4 * 10**12))
def test_the_last_notice_counts_and_the_rest_stays(info: SetInfo | None, one: int, other: int) -> None:
    said = announced(announced(info, notice(one)), notice(other))
    assert notice_of(said) == notice(other)
    assert len(said.keywords or ()) == len((info and info.keywords) or ()) + 1
    plain = without_notice(said)
    assert ((plain and plain.keywords) or None) == ((info and info.keywords) or None)
    before = (info and info.description) or ""
    assert ((plain and plain.description) or "").rstrip() == before.rstrip()


@given(st.text(max_size=200))
def test_what_is_no_notice_is_none(text: str) -> None:
    assert notice_of(SetInfo(keywords=(text, f"odfd/handover:{text}"))) is None
