"""The table of kamu's tests of ingest says what they are, and by which tests of this tree it is shown."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from worlds import kamu_cases
from worlds.kamu_cases import SUITES, Case

TESTS = Path(__file__).parents[3]
PAGE = TESTS.parent / "docs" / "kamu.md"
BEGIN = "<!-- The table is tests/worlds/kamu_cases.py; tests/unit/odfd/ingest/test_kamu_cases.py writes it. -->\n"
CASES = [case for cases in SUITES.values() for case in cases]


def written(page: str) -> str:
    """The page with the table as it is now."""
    before, begin, behind = page.partition(BEGIN)
    assert begin, "the page has the table's place"
    rest = behind[behind.index("\n## ") :] if "\n## " in behind else ""
    return f"{before}{begin}\n{kamu_cases.table()}{rest}"


def test_the_page_has_the_table() -> None:
    page = PAGE.read_text()
    assert page == written(page)


def test_107_are_of_ingest_and_13_of_preparation_and_containers() -> None:
    """None is left out, and each that has another answer says why."""
    apart = [case for suite, cases in SUITES.items() for case in cases if kamu_cases.is_counted_apart(suite, case)]
    assert (len(CASES) - len(apart), len(apart)) == (107, 13)
    assert Counter(case.answer for case in CASES) == {"kamu's": 113, "other": 3, "not asked": 4}


def test_the_page_counts_the_answers_that_are_compared_as_values() -> None:
    golden = {path.stem: json.loads(path.read_text()) for path in (TESTS / "golden" / "ingest").glob("*.json")}
    merges = golden["merge_strategies"]
    found = [
        len(merges["merge"]) + len(merges["snapshot_project"]["vectors"]),
        *(len(golden[name]["vectors"]) for name in ("writer", "ingest", "readers")),
    ]
    assert "has {} of them as values ({} of merge, {} of the writer, {} of ingest, {} of readers)".format(
        sum(found), *found
    ) in " ".join(PAGE.read_text().split())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_shows_an_answer_is_there(case: Case) -> None:
    path, _, name = case.shown.partition("::")
    assert f"def {name}(" in (TESTS / path).read_text()
    assert bool(case.why) == (case.answer != "kamu's")


def test_each_case_that_was_written_down_is_in_the_table() -> None:
    known = {f"test_{case.name}" for case in CASES}
    assert len(known) == len(CASES)
    for name in ("writer", "ingest", "merge_strategies"):
        golden = json.loads((TESTS / "golden" / "ingest" / f"{name}.json").read_text())
        vectors = golden["merge"] + golden["snapshot_project"]["vectors"] if "merge" in golden else golden["vectors"]
        assert {each["test"] for each in vectors} <= known


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
