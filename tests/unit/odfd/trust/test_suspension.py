"""Who is suspended, who is not, and when a sound machine should look again (docs/spec/trust.md#suspension)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.ids import KeyDid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements.keys import SigningKey
from chain.statements.statement import Actual, Attestation, EngineUsed, Mismatch, Span
from odfd.policy.policy import KeyGroup, Policy
from odfd.trust.judgement import suspension_rules
from odfd.trust.judgement.suspension_rules import (
    GRACE,
    DatasetStatements,
    Machine,
    SuspensionFacts,
    look_again,
    remembered,
    standing,
    strikes,
)
from odfd.trust.judgement.verdicts import GroupVerdict, VerdictKind

KEYS = [SigningKey(bytes([number]) * 32).did for number in range(6)]
SETS = [SigningKey(b"set%29d" % number).dataset_id for number in range(3)]
POLICY = Policy(groups=tuple(KeyGroup(f"g{at}", frozenset({key})) for at, key in enumerate(KEYS[:5])), tolerated=1)
NOW = instant.parse("2026-11-20T08:00:00Z")
LATER = Instant(NOW + GRACE + instant.SECOND)
AMD, ARM = "linux/amd64", "linux/arm64"


def says(at: int, dataset: int, word: str, platform: str = AMD) -> Attestation:
    """Validator ``at`` on block 3: ``R``, ``N``, or a value."""
    verdict = {"R": "reproduced", "N": "not-reproducible-here"}.get(word, "mismatch")
    reason = "nondeterministic" if word == "N" else None
    return Attestation(
        validator=KEYS[at],
        dataset=SETS[dataset],
        epoch=0,
        size=4,
        root_hash=b"r" * 32,
        serial=1,
        determinism="strict",
        finished_at="2026-11-20T08:00:00Z",
        engines=(EngineUsed(name="spark", digest="sha256:0", pinned=True, sandbox="host", platform=platform),),
        spans=(
            Span(first=0, last=2, verdict="reproduced", state="genesis", engine=0),
            Span(first=3, last=3, verdict=verdict, state="genesis", engine=0, reason=reason),
        ),
        mismatch=(Mismatch(sequence_number=3, runs=3, actual=Actual(records=ord(word))),) if word in "vw" else (),
        head=Multihash.sha3_256(b"head"),
    )


def view(*words: str, sets: int = 2, platforms: str = "", own: str = "") -> SuspensionFacts:
    """The same words on each of ``sets`` datasets; ``platforms``: ``a`` for another one, by validator."""
    told = {}
    for number in range(sets):
        heard = {
            KEYS[at]: says(at, number, word, ARM if platforms[at : at + 1] == "a" else AMD)
            for at, word in enumerate(words)
            if word
        }
        mine = (
            {3: GroupVerdict(VerdictKind.REPRODUCED) if own == "R" else GroupVerdict(VerdictKind.MISMATCH, b"mine")}
            if own
            else {}
        )
        told[SETS[number]] = DatasetStatements(attestations=heard, own=mine, steps=(3,))
    found = SuspensionFacts(datasets=told, own_machine=Machine("sha256:0", AMD))
    return msgspec.structs.replace(found, since=dict.fromkeys(strikes(POLICY, found), NOW))


@pytest.mark.parametrize(
    ("words", "out"),
    [
        (("R", "R", "v"), {"g2"}),
        (("v", "v", "R"), {"g2"}),
        (("R", "R", "v", "w"), {"g2", "g3"}),
        (("R", "v"), set()),
        (("R", "R", "v", "v"), set()),
        (("R", "R", "N"), set()),
        (("R", "R", "v", "N", "N"), set()),
        (("R", "R", "R"), set()),
    ],
)
def test_who_is_suspended(words: tuple[str, ...], out: set[str]) -> None:
    assert standing(POLICY, view(*words), LATER) == out


def test_one_dataset_is_no_pattern() -> None:
    assert standing(POLICY, view("R", "R", "v", sets=1), LATER) == set()


def test_within_the_grace_nobody_is_suspended() -> None:
    assert standing(POLICY, view("R", "R", "v"), Instant(NOW + GRACE)) == set()
    never_seen = msgspec.structs.replace(view("R", "R", "v"), since={})
    assert standing(POLICY, never_seen, LATER) == set()


def test_another_platform_may_be_of_another_mind() -> None:
    assert standing(POLICY, view("R", "R", "v", platforms="..a"), LATER) == set()
    assert standing(POLICY, view("R", "R", "v", platforms="aaa"), LATER) == {"g2"}


def test_my_own_run_counts_as_one_more_group() -> None:
    assert standing(POLICY, view("R", "v", own="R"), LATER) == {"g1"}
    assert suspension_rules.ME not in standing(POLICY, view("R", "R", own="v"), LATER)


def test_a_double_voter_is_out_at_once_and_no_longer_counts_against_others() -> None:
    accused = msgspec.structs.replace(view("R", "R", "v"), accused=(KEYS[1],), since={})
    assert standing(POLICY, accused, NOW) == {"g1"}
    assert not strikes(POLICY, accused)


def test_unlisted_keys_accuse_nobody_and_are_not_accused() -> None:
    heard = {key: says(at, 0, "R" if at < 5 else "v") for at, key in enumerate(KEYS)}
    assert not strikes(
        POLICY,
        SuspensionFacts(datasets={SETS[0]: DatasetStatements(attestations=heard, steps=(3,))}, accused=(KEYS[5],)),
    )


def test_a_strike_that_was_withdrawn_begins_anew() -> None:
    (strike,) = strikes(POLICY, view("R", "R", "v", sets=1))
    seen = remembered({}, {strike}, NOW)
    assert remembered(seen, {strike}, LATER) == {strike: NOW}
    assert remembered(seen, set(), LATER) == {}


def test_when_to_look_again() -> None:
    places = {(SETS[0], 3)}
    assert look_again(POLICY, view("v", "v", own="R", sets=1)) == places
    assert look_again(POLICY, view("R", "R", own="v", sets=1)) == places
    assert not look_again(POLICY, view("v", "R", own="R", sets=1))
    assert not look_again(POLICY, view("v", "w", own="R", sets=1))
    assert not look_again(POLICY, view("N", "N", own="R", sets=1))


@given(st.lists(st.sampled_from(["R", "N", "v", "w", ""]), min_size=5, max_size=5), st.randoms())
def test_order_of_hearing_does_not_matter(words: list[str], rng) -> None:
    first = view(*words)
    told = {}
    for dataset, one in reversed(first.datasets.items()):
        heard: list[tuple[KeyDid, Attestation]] = list(one.attestations.items())
        rng.shuffle(heard)
        told[dataset] = DatasetStatements(attestations=dict(heard), steps=one.steps)
    shuffled = msgspec.structs.replace(first, datasets=told)
    assert standing(POLICY, shuffled, LATER) == standing(POLICY, first, LATER)


@given(st.lists(st.sampled_from(["R", "N", "v", "w", ""]), min_size=5, max_size=5))
def test_never_more_groups_than_could_be_wrong_on_one_side(words: list[str]) -> None:
    """Of two sides that both have more than f behind them neither is struck: then f itself was wrong."""
    out = standing(POLICY, view(*words), LATER)
    sides = {word: words.count(word) for word in words if word in "Rvw" and word}
    assert not any(sides[words[int(group[1:])]] > POLICY.tolerated for group in out)
