"""The table of kamu's tests of ingest says what they are, and by which tests of this tree it is shown."""

from __future__ import annotations

import json
from pathlib import Path

from worlds import kamu_cases
from worlds.kamu_cases import SUITES

TESTS = Path(__file__).parents[3]
PAGE = TESTS.parent / "docs" / "reference" / "kamu-compatibility.md"
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


def test_a_test_that_is_there_shows_each_answer() -> None:
    for case in CASES:
        path, _, name = case.shown.partition("::")
        assert f"def {name}(" in (TESTS / path).read_text(), case.name
        assert bool(case.why) == (case.answer != "kamu's"), case.name


def test_each_case_that_was_written_down_is_in_the_table() -> None:
    known = {f"test_{case.name}" for case in CASES}
    assert len(known) == len(CASES)
    for name in ("writer", "ingest", "merge_strategies"):
        golden = json.loads((TESTS / "golden" / "ingest" / f"{name}.json").read_text())
        vectors = golden["merge"] + golden["snapshot_project"]["vectors"] if "merge" in golden else golden["vectors"]
        assert {each["test"] for each in vectors} <= known


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
