"""A kind of statement has a row in each table that something is decided by, and the specification names it."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

import pytest

from chain.statements import predicate, statement
from odfd.network import statement_quota
from odfd.node import statement_events
from odfd.store.keys import journal_topics
from odfd.store.ledger import kinds
from odfd.trust.admission import statement_processor

SPEC = (Path(__file__).parents[4] / "docs" / "spec" / "trust.md").read_text()
GOSSIPED = {*statement.KINDS, kinds.COSIGNATURE, kinds.PROOF}


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ([each.KIND for each in statement.KINDS.values()], statement.KINDS),
        ([kind for each in kinds.TABLES for kind in each.kinds], GOSSIPED),
        (list(statement_processor.PROCESS), statement.KINDS),
        (list(statement_quota.KINDS), GOSSIPED),
        (list(statement_events.EVENTS), statement.KINDS),
    ],
    ids=["chain", "ledger", "admission", "network", "events"],
)
def test_every_kind_has_one_row(rows: list[str], wanted: Collection[str]) -> None:
    assert sorted(rows) == sorted(wanted)


def test_a_journal_has_topics_of_known_kinds_only() -> None:
    assert set(statement.KINDS) >= journal_topics.JOURNALLED


@pytest.mark.parametrize("kind", statement.KINDS.values(), ids=lambda kind: kind.KIND)
def test_the_specification_names_the_kind_and_its_size(kind: type[statement.AnyPredicate]) -> None:
    name = kind.KIND.removeprefix(predicate.NS).removesuffix("/v1")
    (sizes,) = re.findall(r"An envelope has at most: ([^.]*)\.", SPEC)
    assert f"`{name}`" in SPEC
    assert f"{name} {kind.MAX_ENVELOPE >> 10} KiB" in " ".join(sizes.split())
