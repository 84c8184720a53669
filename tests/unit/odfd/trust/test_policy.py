"""Policies: what can be said, and every mistake at once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid
from chain.statements.keys import SigningKey
from chain.store.base import FormerEpochs
from config import model
from odfd.policy.policy import AllOf, AnyOf, Expression, Fact, apart, holds, load_policy, parse_expression, policy_of

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
    with pytest.raises(Invalid, match="observed:2 without any validator groups"):
        load_policy(use="data & observed:2", serve="chain")
    assert policy_of(model.Policy(validators=model.Validators(spot_check=0.5))).spot_check == 0.5


@pytest.mark.parametrize(
    ("profile", "said", "most"),
    [("laptop", None, 0), ("mirror", None, 0), ("validator", None, 1), ("archive", None, None),
     ("archive", 1, 0), ("laptop", 3, 2)],
)  # fmt: skip
def test_how_many_former_epochs_are_kept(profile: str, said: int | None, most: int | None) -> None:
    """The present one is among those that ``keep-epochs`` counts."""
    settings = model.Policy(profile=profile, rewrite=model.Rewrite(keep_epochs=said))
    assert apart(settings, 7) == FormerEpochs(7, most)


def test_what_settings_say_replaces_the_profile() -> None:
    settings = model.Policy(
        profile="archive",
        fresh=model.Fresh(max_stale="36h"),
        validators=model.Validators(
            f=0, min_engines=2, min_sandbox="host",
            groups=tuple(model.Group(name=f"g{n}", keys=(KEYS[n],)) for n in range(2)),
        ),
        witness=model.Witness(f=0, quorum=1, max_age="2d", groups=(model.Group(name="w", keys=(KEYS[2],)),)),
    )  # fmt: skip
    policy = policy_of(settings)
    assert (policy.max_stale, policy.min_engines, policy.min_sandbox) == (36 * 3600, 2, "host")
    assert (policy.witnesses.quorum, policy.witnesses.max_age, policy.notes) == (1, 2 * 86400, ())
    assert policy_of(model.Policy(profile="archive")).max_stale > 10**9
    assert policy.digest != policy_of(model.Policy()).digest


@pytest.mark.parametrize(
    ("witness", "told"),
    [
        ({"groups": (("w", KEYS[:2]),)}, "has 2 keys"),
        ({"groups": (("w", KEYS[:1]), ("v", KEYS[:1]))}, "in group w too"),
        ({"groups": (("w", KEYS[:1]), ("w", KEYS[1:2]))}, "listed twice"),
        ({"groups": (("w", ["did:key:zzz"]),)}, "witness group w: "),
        ({"groups": (("w", KEYS[:1]),), "quorum": 2}, "a quorum of 2 witnesses, of which 1"),
        ({"groups": (("w", KEYS[:1]),), "f": 1}, "none is believed"),
        ({"groups": (("w", KEYS[:1]),), "max_age": "soon"}, "not a span of time"),
    ],
)
def test_mistakes_about_witnesses_are_told(witness: dict[str, Any], told: str) -> None:
    groups = tuple(model.Group(name=name, keys=tuple(keys)) for name, keys in witness.pop("groups"))
    with pytest.raises(Invalid, match=told):
        policy_of(model.Policy(witness=model.Witness(groups=groups, **witness)))


@pytest.mark.parametrize(("quorum", "faulty", "told"), [(1, 0, 1), (2, 0, 0), (2, 1, 1), (3, 1, 0)])
def test_a_quorum_that_only_detects_says_so(quorum: int, faulty: int, told: int) -> None:
    groups = tuple(model.Group(name=f"w{n}", keys=(KEYS[n],)) for n in range(3))
    policy = policy_of(model.Policy(witness=model.Witness(f=faulty, quorum=quorum, groups=groups)))
    assert len(policy.notes) == told
    assert all("prevent it" in note for note in policy.notes)
    asked = policy_of(model.Policy(use=f"data & witnessed:{quorum}", witness=model.Witness(f=faulty, groups=groups)))
    assert len(asked.notes) == told
    with pytest.raises(Invalid, match="of which 3 groups"):
        policy_of(model.Policy(use="witnessed:4", witness=model.Witness(groups=groups)))
    with pytest.raises(Invalid, match="without any witness groups"):
        policy_of(model.Policy(use="witnessed:1"))


@pytest.mark.parametrize(
    ("groups", "f", "use"),
    [
        (0, 1, "data & reproduced"),
        (2, 1, "data & reproduced"),
        (2, 0, "data & (reproduced | attested:2)"),
        (3, 1, "data & (reproduced | attested:2)"),
        (4, 2, "data & reproduced"),
    ],
)
def test_a_validator_relies_on_what_was_run_again(groups: int, f: int, use: str) -> None:
    """By itself, or by two others where so many are listed that two can decide."""
    listed = tuple(model.Group(name=f"g{n}", keys=(KEYS[n],)) for n in range(groups))
    policy = policy_of(model.Policy(profile="validator", validators=model.Validators(f=f, groups=listed)))
    assert (str(policy.use), str(policy.serve), policy.min_sandbox) == (use, "data", "image")


@pytest.mark.parametrize(
    ("profile", "use", "serve"), [("laptop", "data", "chain"), ("mirror", "data", "data"), ("archive", "data", "chain")]
)
def test_other_profiles_rely_on_what_was_signed(profile: str, use: str, serve: str) -> None:
    policy = policy_of(model.Policy(profile=profile))
    assert (str(policy.use), str(policy.serve), policy.min_sandbox) == (use, serve, "none")


def test_a_person_may_ask_a_validator_for_less() -> None:
    said = model.Policy(profile="validator", use="data", validators=model.Validators(min_sandbox="none"))
    policy = policy_of(said)
    assert (str(policy.use), policy.min_sandbox) == ("data", "none")


def test_the_most_witnesses_that_anything_asks_for() -> None:
    groups = tuple(model.Group(name=f"w{n}", keys=(KEYS[n],)) for n in range(3))
    for use, quorum, asked in (("data", 0, 0), ("data", 2, 2), ("data & witnessed:3", 1, 3)):
        policy = policy_of(model.Policy(use=use, witness=model.Witness(quorum=quorum, groups=groups)))
        assert policy.witnesses_asked == asked
