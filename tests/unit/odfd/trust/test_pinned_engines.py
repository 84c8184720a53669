"""Attestations held to the pins of their chain: whose blocks an engine is the pinned one of, the chain says."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import Block
from chain.model.events import DatasetKind, MetadataEvent, Seed, SetInfo, SetTransform, TransformInput
from chain.model.source import SqlQueryStep, TransformSql
from chain.multihash import Multihash
from chain.statements.keys import SigningKey
from chain.statements.statement import Attestation, EngineUsed, Span
from odfd.trust.judgement.trust_evaluator import MOST_DECLARATIONS, held_to_pins
from odfd.trust.judgement.verdicts import GroupVerdict, VerdictKind, result_of, verdict_on
from worlds.chains import linked

KEY = SigningKey(b"v" * 32)
DATASET: DatasetId = KEY.dataset_id
R = GroupVerdict(VerdictKind.REPRODUCED)


class Chain:
    """The one read of a chain that is needed, counted."""

    def __init__(self, pins: dict[int, str | None], size: int) -> None:
        seed = Seed(dataset_id=DATASET, dataset_kind=DatasetKind.DERIVATIVE)
        events: list[MetadataEvent] = [seed]
        events += [_declared(pins[at]) if at in pins else SetInfo(description=str(at)) for at in range(1, size)]
        self.blocks: list[Block] = linked(events, Instant(0))
        self.reads = 0

    def last_of(self, kinds: Any, before: int | None = None) -> Block | None:
        self.reads += 1
        assert tuple(kinds) == ("SetTransform",)
        return next((each for each in self.blocks[:before][::-1] if isinstance(each.event, SetTransform)), None)


def _declared(pin: str | None) -> SetTransform:
    transform = TransformSql(engine="spark", version=pin, queries=(SqlQueryStep(query="SELECT 1"),))
    return SetTransform(inputs=(TransformInput(dataset_ref=str(DATASET), alias="x"),), transform=transform)


def said(*spans: tuple[int, int, int], digests: str = "ab", pinned: bool = True) -> Attestation:
    engines = (
        EngineUsed(name="spark", digest=each, pinned=pinned, sandbox="host", platform="linux/amd64") for each in digests
    )
    return Attestation(
        validator=KEY.did, dataset=DATASET, epoch=0, size=20, root_hash=bytes(32), serial=1, determinism="strict",
        finished_at="2026-11-20T08:00:00Z", engines=tuple(engines), head=Multihash.sha3_256(b"head"),
        spans=tuple(
            Span(first=first, last=last, verdict="reproduced", state="genesis", engine=engine)
            for first, last, engine in spans
        ),
    )  # fmt: skip


def held(chain: Chain, attestation: Attestation) -> Attestation:
    return held_to_pins(chain, attestation)  # type: ignore[arg-type]


def test_a_span_is_cut_where_another_engine_is_pinned() -> None:
    chain = Chain({1: "a", 5: "b", 8: "a"}, 12)
    found = held(chain, said((0, 11, 0)))
    assert [(each.first, each.last, each.reason) for each in found.spans] == [
        (0, 4, None), (5, 7, "engine-not-pinned"), (8, 11, None)
    ]  # fmt: skip
    assert [found.engines[each.engine or 0].digest for each in found.spans] == ["a"] * 3, "what it ran stays"
    assert (verdict_on(found, 6), result_of(found, 6), verdict_on(found, 4)) == (None, R, R)


def test_what_is_true_stays_as_it_was_signed() -> None:
    chain = Chain({1: "a", 4: "a", 5: "b"}, 12)
    true, modest = said((0, 4, 0), (5, 11, 1)), said((0, 11, 0), pinned=False)
    assert held(chain, true) is true
    assert held(chain, modest) is modest, "nor is an engine called the pinned one that was not"
    assert held(Chain({}, 12), true) is true, "nothing in it was made by an engine"
    without = msgspec.structs.replace(true, engines=())
    assert held(chain, without) is without


def test_no_pin_is_nobodys_engine() -> None:
    found = held(Chain({1: None}, 12), said((0, 11, 0)))
    assert [verdict_on(found, at) for at in (1, 11)] == [None, None]


@pytest.mark.slow
def test_a_chain_of_many_declarations_costs_no_more_than_the_newest() -> None:
    size = MOST_DECLARATIONS + 50
    chain = Chain(dict.fromkeys(range(1, size), "a"), size)
    found = held(chain, said((0, size - 1, 0)))
    assert chain.reads == MOST_DECLARATIONS + 1
    assert [verdict_on(found, at) for at in (size - 1, size - MOST_DECLARATIONS, size - MOST_DECLARATIONS - 1)] == [
        R, R, None
    ]  # fmt: skip


@pytest.mark.slow
@given(
    pins=st.dictionaries(st.integers(1, 19), st.sampled_from(["a", "b", "c", None]), max_size=6),
    cuts=st.sets(st.integers(1, 19), max_size=4),
    engines=st.lists(st.integers(0, 1), min_size=5, max_size=5),
)
def test_each_step_counts_by_the_pin_in_force(pins: dict[int, str | None], cuts: set[int], engines: list[int]) -> None:
    """The model asks for the pin of every block by itself."""
    edges = [0, *sorted(cuts), 20]
    spans = [(first, stop - 1, engines[at]) for at, (first, stop) in enumerate(itertools.pairwise(edges))]
    found = held(Chain(pins, 20), said(*spans))
    assert [(each.first, each.last) for each in found.spans] == sorted((each.first, each.last) for each in found.spans)
    for step in range(min(pins, default=20), 20):
        pin = pins[max(each for each in pins if each <= step)]
        digest = next("ab"[engine] for first, last, engine in spans if first <= step <= last)
        assert (verdict_on(found, step) == R) is (pin == digest)
        assert result_of(found, step) == R
