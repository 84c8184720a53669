"""A kind of statement has a row in each table that something is decided by; the specification and events name it."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import get_args

import pytest
from unit.chain.statements.test_spoken import SPOKEN

from chain.statements import predicate, statement
from odfd.obs.events import EVENT_KINDS
from odfd.store.ledger import kinds
from odfd.trust.admission import statement_kinds

SPEC = (Path(__file__).parents[2] / "docs" / "spec" / "trust.md").read_text()
GOSSIPED = {*statement.KINDS, kinds.COSIGNATURE, kinds.PROOF}


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ([each.KIND for each in statement.KINDS.values()], statement.KINDS),
        ([kind for each in kinds.TABLES for kind in each.kinds], GOSSIPED),
        (list(statement_kinds.KINDS), GOSSIPED),
        ([kind for kind, row in statement_kinds.KINDS.items() if row.notice is not None], statement.KINDS),
        (
            [kind for kind, row in statement_kinds.KINDS.items() if row.store is not None],
            [each.KIND for each in get_args(statement.Word)],
        ),
    ],
    ids=["chain", "ledger", "trust", "events", "words"],
)
def test_every_kind_has_one_row(rows: list[str], wanted: Collection[str]) -> None:
    assert sorted(rows) == sorted(wanted)


def test_a_journal_has_topics_of_known_kinds_only() -> None:
    assert set(statement.KINDS) >= statement_kinds.JOURNALLED


@pytest.mark.parametrize("said", SPOKEN, ids=lambda said: type(said).__name__)
def test_the_event_of_a_statement_is_listed(said: statement.AnyPredicate) -> None:
    notice = statement_kinds.KINDS[said.KIND].notice
    assert notice is not None
    assert notice(said, "weather").kind in EVENT_KINDS


@pytest.mark.parametrize("kind", statement.KINDS.values(), ids=lambda kind: kind.KIND)
def test_the_specification_names_the_kind_and_its_size(kind: type[statement.AnyPredicate]) -> None:
    name = kind.KIND.removeprefix(predicate.NS).removesuffix("/v1")
    (sizes,) = re.findall(r"An envelope has at most: ([^.]*)\.", SPEC)
    assert f"`{name}`" in SPEC
    assert f"{name} {kind.MAX_ENVELOPE >> 10} KiB" in " ".join(sizes.split())
