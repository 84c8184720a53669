"""Every kind of statement comes back as it was said, and whatever stands in its place is refused in one way."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid
from chain.multihash import Multihash
from chain.statements import canonical, statement
from chain.statements.card import Card, CardColumn, ChainFacts, PublisherClaims
from chain.statements.keys import SigningKey
from chain.statements.node_card import NodeCard, NodeClaims
from chain.statements.statement import (
    AnyPredicate,
    Attestation,
    Authority,
    Epoch,
    HeadStatement,
    Observation,
    PolicyStatement,
    Response,
    Roots,
    RuleGroup,
    Rules,
    Span,
    TreeHead,
    Writer,
)

KEYS = [SigningKey(bytes([number]) * 32) for number in range(1, 4)]
DATASET = KEYS[0].dataset_id
TIME = "2026-11-20T08:00:00Z"
HEAD = Multihash.sha3_256(b"block")
TREE = TreeHead(size=4, root_hash=b"r" * 32)
RULES = Rules(use="data & fresh", groups=(RuleGroup(name="a", keys=(KEYS[1].did,)),), f=0, max_stale="7d")
OPERATOR = NodeClaims(name="Graz", contact="mail@example.org", about="Air over Graz")
SPOKEN: list[AnyPredicate] = [
    HeadStatement(
        dataset=DATASET,
        epoch=0,
        size=4,
        root_hash=b"r" * 32,
        authority=0,
        issued_at=TIME,
        expires_at="2026-11-27T08:00:00Z",
        head=HEAD,
    ),
    HeadStatement(
        dataset=DATASET,
        epoch=0,
        size=4,
        root_hash=b"r" * 32,
        authority=0,
        issued_at=TIME,
        expires_at="2026-11-27T08:00:00Z",
        node=KEYS[1].did,
        head=HEAD,
    ),
    Attestation(
        validator=KEYS[1].did,
        dataset=DATASET,
        epoch=0,
        size=4,
        root_hash=b"r" * 32,
        serial=1,
        determinism="strict",
        finished_at=TIME,
        spans=(Span(first=0, last=3, verdict="reproduced", state="genesis"),),
        head=HEAD,
    ),
    Authority(
        dataset=DATASET,
        version=1,
        issued_at=TIME,
        roots=Roots(threshold=1, keys=(KEYS[0].did,)),
        writers=(Writer(key=KEYS[1].did, expires_at="2027-01-01T00:00:00Z"),),
        epochs=(Epoch(number=1, reason="recovery", base=TREE, last=TREE),),
        head=HEAD,
    ),
    Observation(
        observer=KEYS[1].did,
        dataset=DATASET,
        epoch=0,
        sequence_number=3,
        result="same-rows",
        response=Response(sha256="00" * 32, size=7, etag='"v"', last_modified=TIME),
        at=TIME,
        head=HEAD,
    ),
    Card(
        dataset=DATASET,
        author=KEYS[0].did,
        authority=0,
        epoch=0,
        size=4,
        issued_at=TIME,
        expires_at="2027-01-01T00:00:00Z",
        chain=ChainFacts(
            kind="root",
            records=7,
            created_at=TIME,
            updated_at=TIME,
            watermark=TIME,
            description="Air over Graz",
            keywords=("air",),
            license="CC-BY-4.0",
            columns=(CardColumn(name="city", type="String"),),
            inputs=(DATASET,),
        ),
        claims=PublisherClaims(name="air", publisher="Graz"),
        head=HEAD,
    ),
    PolicyStatement(key=KEYS[0].did, network="n", version=1, issued_at=TIME, policy=RULES, head=RULES.digest),
    NodeCard(
        node=KEYS[1].did, issued_at=TIME, expires_at="2027-01-01T00:00:00Z", claims=OPERATOR, head=OPERATOR.digest
    ),
]
JSON = st.recursive(
    st.booleans() | st.integers(-10, 1 << 60) | st.text(max_size=12) | st.sampled_from([TIME, str(HEAD), str(DATASET)]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


def kinds() -> Any:
    return pytest.mark.parametrize("said", SPOKEN, ids=lambda said: type(said).__name__)


@kinds()
def test_what_is_said_is_heard(said: AnyPredicate) -> None:
    assert statement.decode_any(statement.encode(said)) == said
    assert set(statement.KINDS) == {each.KIND for each in SPOKEN}


@pytest.mark.slow
@kinds()
@given(data=st.data())
def test_anything_in_place_of_a_part_is_refused_or_read(said: AnyPredicate, data: st.DataObject) -> None:
    """A mistake is Invalid and nothing else, wherever it stands."""
    frame: Any = canonical.decode(statement.encode(said))
    place = frame
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else list(range(len(place)))))
        deeper = isinstance(place[key], dict | list) and len(place[key]) > 0
        if not deeper or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(JSON)
    try:
        payload = canonical.encode(frame)
    except Invalid:
        return
    try:
        found = statement.decode_any(payload)
    except Invalid:
        return
    assert statement.decode_any(statement.encode(found)) == found


WHEN = re.compile(r"[0-9-]{10}T[0-9:]{8}Z")


@kinds()
@pytest.mark.parametrize("time", ["2026-13-01T00:00:00Z", "2026-02-30T00:00:00Z", "2026-11-20T25:00:00Z"])
def test_a_time_that_no_calendar_has_is_refused(said: AnyPredicate, time: str) -> None:
    names = [name for name in said.__struct_fields__ if WHEN.fullmatch(str(getattr(said, name)))]
    assert names
    for name in names:
        with pytest.raises(Invalid):
            statement.decode_any(statement.encode(msgspec.structs.replace(said, **{name: time})))
