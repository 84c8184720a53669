"""Which evidence is looked into, and what of it counts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.errors import Invalid
from chain.ids import KeyDid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements.keys import SigningKey
from chain.statements.statement import Actual, Attestation, EngineUsed, Mismatch, Span
from engines.contract import EngineIdentity
from odfd.policy.policy import KeyGroup, Policy
from odfd.store.ledger.runs import Recheck, RecordedRun, with_rechecks
from odfd.trust.validation.evidence_rechecker import Claim, EvidenceRechecker, OwnFindings, _run, claims
from odfd.trust.validation.recheck import RecheckAnswer, Result

DATASET = SigningKey(b"d" * 32).dataset_id
KEYS = [SigningKey(bytes([number]) * 32).did for number in range(5)]
NOW = instant.parse("2026-11-20T08:00:00Z")
ENGINE = EngineUsed(name="spark", digest="sha256:e", pinned=True, sandbox="image", platform="linux/amd64")
POLICY = Policy(
    tolerated=1, groups=tuple(KeyGroup(f"g{number}", frozenset({key})) for number, key in enumerate(KEYS[:4]))
)
"""The fifth key is a stranger's."""


def bundle_of(*words: object) -> Multihash:
    return Multihash.sha3_256(repr(words).encode())


def says(key: KeyDid, wrong: dict[int, int], *, pinned: bool = True, determinism: str = "strict") -> Attestation:
    """Steps on which it got another answer, and which."""
    return Attestation(
        validator=key,
        dataset=DATASET,
        epoch=0,
        size=10,
        root_hash=bytes(32),
        serial=1,
        determinism=determinism,
        finished_at="2026-11-20T08:00:00Z",
        engines=(msgspec.structs.replace(ENGINE, pinned=pinned),),
        spans=tuple(Span(first=step, last=step, verdict="mismatch", state="genesis", engine=0) for step in wrong),
        mismatch=tuple(
            Mismatch(sequence_number=step, runs=3, bundle=bundle_of(key, step), actual=Actual(records=value))
            for step, value in wrong.items()
        ),
        head=bundle_of("head"),
    )


def run(step: int, verdict: str = "reproduced", first: int | None = None) -> RecordedRun:
    return RecordedRun(sequence_number=step, first=first, block=bundle_of(step), at=NOW, verdict=verdict, engine=ENGINE)


def own(**more: Any) -> OwnFindings:
    return OwnFindings(
        **{"runs": {}, "done": {}, "resting": (), "engine": ENGINE.digest, "has": lambda _: False, **more}
    )


said = st.dictionaries(st.sampled_from(KEYS), st.dictionaries(st.integers(0, 9), st.integers(0, 1), max_size=3))


@given(
    words=said,
    suspended=st.sets(st.sampled_from(["g0", "g1", "g2"])),
    resting=st.sets(st.sampled_from(["g0", "g1", "g2"])),
    judged=st.sets(st.integers(0, 9), max_size=3),
)
def test_only_what_listed_groups_say_of_steps_without_own_verdict(
    words: dict[KeyDid, dict[int, int]], suspended: set[str], resting: set[str], judged: set[int]
) -> None:
    heard = {key: says(key, wrong) for key, wrong in words.items()}
    mine = own(runs={step: run(step) for step in sorted(judged)}, resting=resting)
    found = claims(POLICY, DATASET, heard, suspended, mine)
    assert found == claims(POLICY, DATASET, dict(reversed(heard.items())), suspended, mine)
    assert found == sorted(found)
    expected = {
        bundle_of(key, step)
        for key, wrong in words.items()
        for step in wrong
        if POLICY.group_of(key) not in {None, *suspended, *resting} and step not in judged
    }
    assert {each.bundle for each in found} == expected
    for each in found:
        alike = sum(
            words[key].get(each.step) == words[each.signers[0]][each.step]
            for key in words
            if POLICY.group_of(key) not in {None, *suspended}
        )
        assert each.doubt == int(alike <= POLICY.tolerated)


@pytest.mark.parametrize("change", [{"pinned": False}, {"determinism": "unknown"}])
def test_what_accuses_nobody_is_not_looked_into(change: dict[str, Any]) -> None:
    heard = {KEYS[0]: says(KEYS[0], {1: 1}, **change)}
    assert claims(POLICY, DATASET, heard, (), own()) == []


def test_without_an_engine_one_bundle_of_what_is_refuted() -> None:
    alone = {KEYS[0]: says(KEYS[0], {1: 1})}
    assert claims(POLICY, DATASET, alone, (), own(engine=None)) == []
    two = {key: says(key, {1: 1}) for key in KEYS[:2]}
    found = claims(POLICY, DATASET, two, (), own(engine=None))
    assert {each.group for each in found} == {"g0", "g1"}
    assert claims(POLICY, DATASET, two, (), own(engine=None, has=lambda name: name == found[1].bundle)) == []


def test_a_bundle_is_looked_into_once_unless_the_engine_is_another() -> None:
    heard = {KEYS[0]: says(KEYS[0], {1: 1})}
    (claim,) = claims(POLICY, DATASET, heard, (), own())
    for result, engine, again in (("refuted", "sha256:x", 0), ("unable", ENGINE.digest, 0), ("unable", "sha256:x", 1)):
        used = msgspec.structs.replace(ENGINE, digest=engine)
        kept = msgspec.structs.replace(run(1, ""), engine=used)
        before = Recheck(bundle=claim.bundle, dataset=DATASET, group="g0", result=result, run=kept)
        assert len(claims(POLICY, DATASET, heard, (), own(done={claim.bundle: before}))) == again


def answer(result: Result, state: str | None, reason: str = "") -> RecheckAnswer:
    return RecheckAnswer(
        result=result.value,
        reason=reason,
        bundle=bundle_of("bundle"),
        dataset=DATASET,
        sequence_number=1,
        block=bundle_of(1),
        head=bundle_of("head"),
        signed_at="2026-11-20T08:00:00Z",
        state=state,
        claimed=Actual(records=1),
        computed=Actual(records=2),
    )


@pytest.mark.parametrize(
    ("result", "state", "reason", "verdict"),
    [
        (Result.CONFIRMED, "genesis", "", "mismatch"),
        (Result.CONFIRMED, "compared", "", "mismatch"),
        (Result.REFUTED, "genesis", "", "reproduced"),
        (Result.REFUTED, "compared", "", ""),
        (Result.UNABLE, None, "another engine", ""),
        (Result.UNABLE, "genesis", "nondeterministic", "not-reproducible-here"),
        (Result.INCOMPLETE, None, "a block", ""),
    ],
)
def test_a_forged_checkpoint_makes_no_own_word(result: Result, state: str | None, reason: str, verdict: str) -> None:
    """Behind one that was published every later lie reproduces; a step that is wrong even so is wrong."""
    identity = EngineIdentity(name="spark", version="4", digest=ENGINE.digest, sandbox="image", platform="linux/amd64")
    claim = Claim(0, 1, bundle_of("bundle"), "g0", DATASET, (KEYS[0],))
    found = _run(claim, answer(result, state, reason), 3, identity, Instant(NOW))
    assert found.verdict == verdict
    assert (found.actual is not None) == (verdict in ("mismatch", "reproduced"))


def test_what_the_analysis_here_calls_not_strict_is_nobodys_fault() -> None:
    identity = EngineIdentity(name="spark", version="4", digest=ENGINE.digest, sandbox="image", platform="linux/amd64")
    claim = Claim(0, 1, bundle_of("bundle"), "g0", DATASET, (KEYS[0],))
    for found, verdict in (("no", "not-reproducible-here"), ("unknown", "")):
        said = msgspec.structs.replace(answer(Result.UNABLE, None, "nobody is blamed"), determinism=found)
        run = _run(claim, said, 1, identity, Instant(NOW))
        assert run.verdict == verdict


stretches = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=4)


@given(stretches=stretches, rechecked=st.dictionaries(st.integers(0, 20), st.booleans(), max_size=6))
def test_own_runs_go_before_rechecks_and_blocks_that_are_gone_count_nothing(
    stretches: list[tuple[int, int]], rechecked: dict[int, bool]
) -> None:
    own, at = {}, 0
    covered: set[int] = set()
    for gap, length in stretches:
        first, at = at + gap, at + gap + length
        own[at] = run(at, first=first)
        covered |= set(range(first, at + 1))
        at += 1
    found = with_rechecks(
        own,
        [
            Recheck(
                bundle=bundle_of("b", step), dataset=DATASET, group="g", result="confirmed", run=run(step, "mismatch")
            )
            for step in rechecked
        ],
        lambda step: bundle_of(step) if rechecked[step] else None,
    )
    assert list(found) == sorted(found)
    assert found.items() >= own.items()
    assert found.keys() - own.keys() == {step for step, stands in rechecked.items() if stands} - covered


async def test_evidence_about_the_same_step_of_another_history_is_dropped(tmp_path: Path) -> None:
    """It is sound by itself: the accused signed both. A run of it says nothing of the block that is here."""
    here, there = bundle_of("here"), bundle_of("there")
    rechecker: Any = object.__new__(EvidenceRechecker)
    rechecker._hash_at = lambda _claim: here
    case: Any = SimpleNamespace(
        head=SimpleNamespace(dataset=DATASET),
        manifest=SimpleNamespace(sequence_number=3),
        step=SimpleNamespace(hash=there),
    )
    claim = Claim(1, 3, bundle_of("named"), "g0", DATASET, (KEYS[0],))
    for said in (claim, claim._replace(step=4), claim._replace(dataset=SigningKey(b"e" * 32).dataset_id)):
        with pytest.raises(Invalid) as caught:
            await rechecker._answer(said, case, tmp_path)
        assert caught.value.rule == "bundle-step"
