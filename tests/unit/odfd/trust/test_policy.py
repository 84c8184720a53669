"""Policies: what can be said, and every mistake at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid
from chain.statements.keys import SigningKey
from odfd.trust.policy import AllOf, AnyOf, Expression, Fact, holds, load_policy, parse_expression

KEYS = [str(SigningKey(bytes([n]) * 32).did) for n in range(4)]


def test_the_example_of_the_document() -> None:
    expression = parse_expression("data & (reproduced | attested:2)")
    assert expression == AllOf((Fact("data"), AnyOf((Fact("reproduced"), Fact("attested", 2)))))
    assert str(expression) == "data & (reproduced | attested:2)"
    assert holds(expression, {"data": 1, "attested": 2})
    assert holds(expression, {"data": 1, "reproduced": 1})
    assert not holds(expression, {"data": 1, "attested": 1})
    assert not holds(expression, {"reproduced": 1, "attested": 9})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "ends where a fact"),
        ("data &", "ends where a fact"),
        ("data data", "unexpected 'data'"),
        ("(data", "not closed"),
        ("dota", "'dota' is not a fact"),
        ("attested", "needs a number"),
        ("attested:0", "needs a number"),
        ("data:2", "takes no number"),
        ("data ! fresh", "cannot read"),
        ("(" * 40 + "data" + ")" * 40, "too many brackets"),
    ],
)
def test_what_cannot_be_said(text: str, says: str) -> None:
    with pytest.raises(Invalid, match=says.replace("(", r"\(")) as caught:
        parse_expression(text)
    assert "attested:K" in caught.value.hint


def expressions() -> st.SearchStrategy[Expression]:
    facts: st.SearchStrategy[Expression] = st.sampled_from(
        [Fact("data"), Fact("chain"), Fact("fresh"), Fact("attested", 3), Fact("witnessed", 1)]
    )

    def combine(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
        terms = st.lists(inner, min_size=2, max_size=3).map(tuple)
        return st.one_of(st.builds(AllOf, terms), st.builds(AnyOf, terms))

    return st.recursive(facts, combine, max_leaves=8)


@given(
    expressions(),
    st.dictionaries(st.sampled_from(["data", "chain", "fresh", "attested", "witnessed"]), st.integers(0, 4)),
)
def test_printing_keeps_the_meaning(expression: Expression, facts: dict[str, int]) -> None:
    assert holds(parse_expression(str(expression)), facts) == holds(expression, facts)


def test_every_mistake_is_told_at_once() -> None:
    with pytest.raises(Invalid) as caught:
        load_policy(
            use="attested:3",
            serve="nonsense",
            groups=[("one", [KEYS[0], "did:key:zzz"]), ("two", [KEYS[0]])],
            tolerated=1,
        )
    said = caught.value.message
    for part in ("'nonsense' is not a fact", "group one", "in group one too", "must lie in 2…1"):
        assert part in said


def test_a_quorum_needs_groups_and_room_for_error() -> None:
    with pytest.raises(Invalid, match="without any validator groups"):
        load_policy(use="attested:1", serve="data")
    groups = [(f"g{n}", [KEYS[n]]) for n in range(3)]
    policy = load_policy(use="attested:2", serve="data", groups=groups, tolerated=1)
    assert policy.tolerated == 1
    with pytest.raises(Invalid, match="must lie in 2…2"):
        load_policy(use="attested:3", serve="data", groups=groups, tolerated=1)


def test_what_is_not_counted_yet_is_not_asked_for() -> None:
    with pytest.raises(Invalid, match="witnessed:2 cannot be asked for yet"):
        load_policy(use="data & witnessed:2", serve="chain")
