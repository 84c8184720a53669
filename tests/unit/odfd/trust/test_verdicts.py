"""The decision table row by row, its properties, and reach (docs/spec/trust.md#judgement)."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.ids import KeyDid
from chain.statements.keys import SigningKey
from chain.statements.statement import Actual, Attestation, EngineUsed, Mismatch, Span
from engines.sandbox.base import SandboxLevel
from odfd.policy.policy import SANDBOXES, KeyGroup, Policy, parse_expression
from odfd.trust.judgement.verdicts import (
    STOPS,
    ChainExtent,
    DatasetStatus,
    Decision,
    Electors,
    GroupVerdict,
    VerdictKind,
    accusations,
    count_votes,
    decide,
    group_verdicts,
    reach,
    verdict_on,
    verdicts_of,
)
from worlds.statements import attestation_statement

R = GroupVerdict(VerdictKind.REPRODUCED)
N = GroupVerdict(VerdictKind.NONDETERMINISTIC)
V = GroupVerdict(VerdictKind.MISMATCH, b"v")
W = GroupVerdict(VerdictKind.MISMATCH, b"w")


def others(*voices: GroupVerdict) -> dict[str, GroupVerdict]:
    return {f"g{index}": voice for index, voice in enumerate(voices)}


@pytest.mark.parametrize(
    ("tolerated", "own", "said", "quorum", "status"),
    [
        (0, V, [R, R], 1, DatasetStatus.OWN_MISMATCH),
        (1, V, [], 2, DatasetStatus.OWN_MISMATCH),
        (0, N, [R, R], 1, DatasetStatus.NONDETERMINISTIC),
        (1, None, [N, N, R], 2, DatasetStatus.NONDETERMINISTIC),
        (1, None, [R, R, V, V], 2, DatasetStatus.SPLIT),
        (0, R, [V], 1, DatasetStatus.SPLIT),
        (1, None, [V, V, R], 2, DatasetStatus.REFUTED),
        (1, None, [V, W, R], 2, DatasetStatus.DISPUTED),
        (0, None, [V], 1, DatasetStatus.ACCUSED),
        (0, None, [V, W], 1, DatasetStatus.ACCUSED),
        (0, None, [V, V], 1, DatasetStatus.REFUTED),
        (1, R, [V], 2, DatasetStatus.REPRODUCED),
        (1, None, [R, R, V], 2, DatasetStatus.ATTESTED),
        (0, None, [R], 1, DatasetStatus.ATTESTED),
        (1, None, [V], 2, DatasetStatus.DISPUTED),
        (1, None, [R], 2, DatasetStatus.PENDING),
        (0, None, [], 0, DatasetStatus.PENDING),
    ],
)
def test_rows(
    tolerated: int, own: GroupVerdict | None, said: list[GroupVerdict], quorum: int, status: DatasetStatus
) -> None:
    assert count_votes(tolerated, own, others(*said), quorum).status is status


voices = st.sampled_from([R, N, V, W])


@given(st.lists(voices, max_size=6), st.integers(0, 2), st.integers(1, 4), st.none() | voices, st.randoms())
def test_order_of_hearing_does_not_matter(said, tolerated, quorum, own, rng) -> None:
    shuffled = list(others(*said).items())
    rng.shuffle(shuffled)
    assert count_votes(tolerated, own, dict(shuffled), quorum) == count_votes(tolerated, own, others(*said), quorum)


@given(st.lists(voices, max_size=5), st.integers(0, 2), st.integers(1, 4), st.none() | voices)
def test_a_confirmation_never_lowers_and_a_mismatch_never_raises(said, tolerated, quorum, own) -> None:
    """S1 and its mirror image, but for a split, which is an alarm and not an answer."""

    def usable(decision: Decision) -> int:
        if decision.status in STOPS:
            return 0
        return 2 if decision.reproduced or decision.status is DatasetStatus.ATTESTED else 1

    before = count_votes(tolerated, own, others(*said), quorum)
    confirmed = count_votes(tolerated, own, others(*said, R), quorum)
    denied = count_votes(tolerated, own, others(*said, V), quorum)
    assert usable(confirmed) >= usable(before) or before.status in (DatasetStatus.REFUTED, DatasetStatus.ACCUSED)
    assert usable(denied) <= usable(before)


def attestation(
    *spans: Span, mismatch: tuple[Mismatch, ...] = (), pinned: bool = True, strict: bool = True
) -> Attestation:
    return attestation_statement(
        SigningKey(b"v" * 32).did,
        SigningKey(b"d" * 32).dataset_id,
        spans[-1].last + 1,
        determinism="strict" if strict else "no",
        finished_at="2026-11-20T09:31:02Z",
        engines=(EngineUsed(name="spark", digest="sha256:0", pinned=pinned, sandbox="host", platform="linux/amd64"),),
        spans=spans,
        mismatch=mismatch,
    )


LIE = Mismatch(sequence_number=3, runs=3, actual=Actual(records=7))


def test_what_a_validator_says_of_a_block() -> None:
    said = attestation(
        Span(first=0, last=2, verdict="reproduced", state="genesis", engine=0),
        Span(first=3, last=3, verdict="mismatch", state="genesis", engine=0),
        Span(first=4, last=5, verdict="not-attempted", reason="after-mismatch"),
        mismatch=(LIE,),
    )
    assert verdict_on(said, 1) == R
    found = verdict_on(said, 3)
    assert found is not None
    assert found.kind is VerdictKind.MISMATCH
    assert verdict_on(said, 4) is None
    assert verdict_on(said, 9) is None


def test_opaque_never_counts() -> None:
    said = attestation(Span(first=0, last=5, verdict="reproduced", state="opaque", engine=0))
    assert verdict_on(said, 1) is None


@pytest.mark.parametrize(("pinned", "strict"), [(False, True), (True, False)])
def test_no_pin_no_blame(pinned: bool, strict: bool) -> None:
    said = attestation(
        Span(first=0, last=3, verdict="mismatch", state="genesis", engine=0),
        mismatch=(LIE,),
        pinned=pinned,
        strict=strict,
    )
    assert verdict_on(said, 3) is None


def test_group_votes_once_and_a_group_that_disagrees_is_silent() -> None:
    keys = [SigningKey(bytes([n]) * 32).did for n in range(4)]
    policy = Policy(groups=(KeyGroup("one", frozenset(keys[:2])), KeyGroup("two", frozenset(keys[2:3]))))
    yes = attestation(Span(first=0, last=3, verdict="reproduced", state="genesis", engine=0))
    no = attestation(Span(first=0, last=3, verdict="mismatch", state="genesis", engine=0), mismatch=(LIE,))
    heard: dict[KeyDid, Attestation] = dict(zip(keys, [yes, yes, yes, yes], strict=True))
    assert group_verdicts(policy, heard, 3) == {"one": R, "two": R}
    heard[keys[1]] = no
    assert group_verdicts(policy, heard, 3) == {"two": R}


def reproduced(_: int) -> Decision:
    return Decision(DatasetStatus.REPRODUCED, reproduced=True, attested=1)


def pending(_: int) -> Decision:
    return Decision(DatasetStatus.PENDING)


def test_reach() -> None:
    extent = ChainExtent(linked=10, chain=10, data=8)
    steps = [3, 5, 7, 9]
    assert reach(parse_expression("chain"), extent, [], pending).blocks == 10
    assert reach(parse_expression("data"), extent, steps, pending).blocks == 8
    assert reach(parse_expression("data"), extent, steps, pending).why.rule == "data"
    found = reach(parse_expression("data & attested:1"), extent, steps, pending)
    assert (found.blocks, found.why.rule, found.why.block) == (3, "pending", 3)
    assert reach(parse_expression("data & attested:1"), extent, steps, reproduced).blocks == 8
    assert reach(parse_expression("chain & (data | attested:1)"), extent, steps, reproduced).blocks == 10

    def refuted(step: int) -> Decision:
        return Decision(DatasetStatus.REFUTED if step == 5 else DatasetStatus.REPRODUCED, reproduced=step != 5)

    found = reach(parse_expression("chain"), extent, steps, refuted)
    assert (found.blocks, found.why.rule, found.why.block) == (5, "refuted", 5)


def test_reach_stops_at_a_fork_and_at_inputs() -> None:
    extent = ChainExtent(linked=10, chain=10, data=10, forked_at=6, inputs=7)
    assert reach(parse_expression("data"), extent, [], pending).blocks == 6
    extent = ChainExtent(linked=10, chain=10, data=10, inputs=7)
    assert reach(parse_expression("data"), extent, [], pending).why.rule == "inputs"


def test_root_data_passes_what_does_not_apply_to_it() -> None:
    extent = ChainExtent(linked=4, chain=4, data=4)
    for expression in ("reproduced", "attested:5", "data & reproduced & attested:2"):
        assert reach(parse_expression(expression), extent, [], pending).blocks == 4
    assert reach(parse_expression("witnessed:1"), extent, [], pending).blocks == 0


@given(st.lists(voices, max_size=4), st.integers(0, 1), st.integers(1, 3))
def test_no_quorum_of_liars_of_at_most_f_attests_alone(said, tolerated, quorum) -> None:
    quorum = max(quorum, tolerated + 1)
    liars = dict(itertools.islice(others(*said).items(), tolerated))
    only_lies = dict.fromkeys(liars, R)
    assert count_votes(tolerated, None, only_lies, quorum).status is not DatasetStatus.ATTESTED


def bench_of(keys: list[KeyDid], **more: Any) -> Electors:
    groups = tuple(KeyGroup(f"g{number}", frozenset({key})) for number, key in enumerate(keys))
    policy = Policy(groups=groups, **more)
    return Electors(policy=policy, me=SigningKey(b"m" * 32).did, quorum=2)


def on(sandbox: str = "host", digest: str = "sha256:0", *, lie: bool = False) -> Attestation:
    engine = EngineUsed(name="spark", digest=digest, pinned=True, sandbox=sandbox, platform="linux/amd64")
    verdict = "mismatch" if lie else "reproduced"
    said = attestation(
        Span(first=0, last=2, verdict="not-attempted"),
        Span(first=3, last=3, verdict=verdict, state="genesis", engine=0),
        mismatch=(LIE,) if lie else (),
    )
    return msgspec.structs.replace(said, engines=(engine,))


KEYS = [SigningKey(bytes([number]) * 32).did for number in range(1, 5)]


def test_my_run_and_what_other_keys_of_my_group_say_are_one_vote() -> None:
    """Whichever way it goes: one operator could else attest, or refute, alone."""
    me, beside, other, _ = KEYS
    groups = (KeyGroup("mine", frozenset({me, beside})), KeyGroup("other", frozenset({other})))
    bench = Electors(policy=Policy(groups=groups), me=me, quorum=2)
    lie = on(lie=True)
    assert decide(bench, {me: on(), beside: on()}, None, 3).attested == 0
    assert decide(bench, {beside: on()}, R, 3).attested == 1
    assert decide(bench, {beside: on(), other: on()}, R, 3).attested == 2
    assert not decide(bench, {beside: lie}, verdict_on(lie, 3), 3).refutes
    assert decide(bench, {beside: lie, other: lie}, verdict_on(lie, 3), 3).refutes


def test_who_made_a_dataset_may_say_only_what_is_wrong_with_it() -> None:
    said = on(lie=True)
    good = Span(first=0, last=2, verdict="reproduced", state="genesis", engine=0)
    said = msgspec.structs.replace(said, spans=(good, *said.spans[1:]))
    assert (verdict_on(said, 1), verdict_on(accusations(said), 1)) == (R, None)
    assert verdict_on(accusations(said), 3) == verdict_on(said, 3) is not None


@pytest.mark.parametrize(("least", "attested"), [("none", 4), ("host", 3), ("image", 2), ("container", 1)])
def test_verdicts_behind_too_little_isolation_do_not_count(least: str, attested: int) -> None:
    """Attack T-VERDICT-03: verdicts of a machine that the query may have compromised.

    Defence: below `min-sandbox` a verdict neither affirms nor accuses; the profile `validator` requires `image`.
    """
    assert [level.value for level in sorted(SandboxLevel, key=lambda level: level.rank)] == list(SANDBOXES)
    heard = dict(zip(KEYS, map(on, SANDBOXES), strict=True))
    assert decide(bench_of(KEYS, min_sandbox=least), heard, None, 3).attested == attested
    lies = {key: on("none", lie=True) for key in KEYS}
    status = decide(bench_of(KEYS, min_sandbox=least), lies, None, 3).status
    assert status is (DatasetStatus.REFUTED if least == "none" else DatasetStatus.PENDING), "nor do they refute"
    assert decide(bench_of(KEYS, min_sandbox="host"), {KEYS[0]: on("a new word")}, None, 3).attested == 0


def test_a_step_that_listed_validators_gave_up_is_told_as_too_costly() -> None:
    """It stops reach as such where nobody has a verdict on it; a stranger's word that it is says nothing."""
    gave_up = attestation(Span(first=0, last=2, verdict="not-attempted"),
                          Span(first=3, last=3, verdict="not-attempted", reason="too-costly"))  # fmt: skip
    bench = bench_of(KEYS)
    assert decide(bench, {KEYS[0]: gave_up}, None, 3).status is DatasetStatus.TOO_COSTLY
    assert decide(bench, {KEYS[0]: gave_up}, None, 2).status is DatasetStatus.PENDING, "of another step"
    assert decide(bench, {bench.me: gave_up}, None, 3).status is DatasetStatus.TOO_COSTLY
    assert decide(bench, {SigningKey(b"s" * 32).did: gave_up}, None, 3).status is DatasetStatus.PENDING
    heard = {KEYS[0]: gave_up} | dict.fromkeys(KEYS[1:], on())
    assert decide(bench, heard, None, 3).status is DatasetStatus.ATTESTED


def test_what_another_engine_gave_is_no_verdict() -> None:
    """Equal or not; a validator that has not the pinned engine is told as the reason."""
    same, other = by_another(on()), by_another(on(lie=True))
    bench = bench_of(KEYS)
    for heard in (dict.fromkeys(KEYS, same), dict.fromkeys(KEYS, other)):
        found = decide(bench, heard, None, 3)
        assert (found.status, found.attested, found.against) == (DatasetStatus.NOT_PINNED, 0, 0)
        assert {kind for each in heard.values() for kind in verdicts_of(each)} == set()
    assert decide(bench, {SigningKey(b"s" * 32).did: same}, None, 3).status is DatasetStatus.PENDING, "a stranger's"
    mine = msgspec.structs.replace(bench, own_reason="engine-not-pinned")
    assert decide(mine, {}, None, 3).status is DatasetStatus.NOT_PINNED
    heard = {KEYS[0]: same} | dict.fromkeys(KEYS[1:], on())
    assert decide(bench, heard, None, 3).attested == 3


def by_another(said: Attestation) -> Attestation:
    """The same by an engine that the step does not pin."""
    engines = tuple(msgspec.structs.replace(each, pinned=False, digest="sha256:9") for each in said.engines)
    spans = tuple(
        msgspec.structs.replace(each, reason="engine-not-pinned") if each.engine is not None else each
        for each in said.spans
    )
    return msgspec.structs.replace(said, engines=engines, spans=spans)


def test_as_many_engines_must_agree_as_are_asked_for() -> None:
    alike, another = on(digest="sha256:0"), on(digest="sha256:1")
    both = {KEYS[0]: alike, KEYS[1]: alike, KEYS[2]: by_another(on())}
    found = decide(bench_of(KEYS, min_engines=2), both, None, 3)
    assert (found.status, found.attested) == (DatasetStatus.ATTESTED, 2), "the other engine shows that both agree"
    bench = bench_of(KEYS, min_engines=2)
    same = decide(bench, dict.fromkeys(KEYS, alike), None, 3)
    assert (same.status, same.attested) == (DatasetStatus.PENDING, 0)
    mixed = decide(bench, {KEYS[0]: alike, KEYS[1]: another}, None, 3)
    assert (mixed.status, mixed.attested) == (DatasetStatus.ATTESTED, 2)
    mine = msgspec.structs.replace(bench, engine="sha256:1")
    assert decide(mine, {KEYS[0]: alike}, R, 3).attested == 2
    assert decide(mine, {KEYS[0]: another}, R, 3).attested == 0
    assert decide(mine, {KEYS[0]: another}, R, 3).reproduced, "what I ran myself needs no second engine"
    lies = dict.fromkeys(KEYS, on(lie=True))
    assert decide(bench, lies, None, 3).status is DatasetStatus.REFUTED, "one engine is enough against it"


def test_what_this_node_made_is_run_and_attested_by_nobody() -> None:
    """So that a node which asks for re-runs may derive from what it derived itself."""
    stopped = Decision(DatasetStatus.REFUTED, against=2)
    unsure = Decision(DatasetStatus.NONDETERMINISTIC)
    for own in (True, False):
        extent = ChainExtent(linked=4, chain=4, data=4, own=own)
        for expression, decision, reached in (
            ("data & reproduced", pending(0), 4 if own else 2),
            ("data & attested:1", pending(0), 2),
            ("data & reproduced", stopped, 2),
            ("data & reproduced", unsure, 2),
        ):
            found = reach(parse_expression(expression), extent, [2], lambda _, said=decision: said)
            assert found.blocks == reached, (own, expression, decision)
