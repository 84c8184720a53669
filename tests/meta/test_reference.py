"""Pages of the reference are as their declarations make them, and every rule that code names is explained."""

from __future__ import annotations

from collections import Counter

import pytest

from odfd.rules import read_table, rules
from package.reference import MADE, REFERENCE, SUBJECTS, pages
from worlds.rules import FOLDERS, TREE, raised


@pytest.mark.parametrize("name", pages())
def test_the_page_is_made_of_its_declarations(name: str) -> None:
    assert (REFERENCE / name).read_text(encoding="utf-8") == pages()[name](), "make reference"


def test_every_page_of_the_reference_that_says_so_is_made() -> None:
    said = {path.name for path in REFERENCE.glob("*.md") if MADE in path.read_text(encoding="utf-8")}
    assert said == set(pages())


def test_every_rule_that_code_names_is_explained() -> None:
    missing = [f"{name}: {places[0].place}" for name, places in sorted(raised().items()) if name not in rules()]
    assert not missing, "add a line to the table of its package in odfd/rules:\n" + "\n".join(missing)


def test_no_rule_is_explained_that_code_does_not_name() -> None:
    unused = sorted(rules().keys() - raised().keys())
    assert not unused, f"take these out of odfd/rules: {unused}"


def test_a_rule_is_explained_once_in_the_table_of_a_package_that_names_it() -> None:
    tables = sorted((TREE / "odfd" / "rules").glob("*.tsv"))
    names = Counter(rule.name for path in tables for rule in read_table(path))
    assert [name for name, count in names.items() if count > 1] == []
    assert {path.stem for path in tables} <= SUBJECTS.keys()
    for rule in rules().values():
        packages = {each.place.partition("/")[0] for each in raised().get(rule.name, [])}
        assert not packages or rule.subject in packages, f"{rule.name} is named in {packages}"


def test_tables_are_sorted() -> None:
    for path in sorted((TREE / "odfd" / "rules").glob("*.tsv")):
        names = [rule.name for rule in read_table(path)]
        assert names == sorted(names), path.name


def test_names_are_found_in_every_way_that_code_has_to_name_one() -> None:
    """A keyword, a constant, a condition, a position, a class, a table, and a name that is put together."""
    known = raised()
    assert {
        "block-hash",
        "slice-parquet",
        "resource-name",
        "yaml-depth",
        "one-seed",
        "disk-full",
        "query-syntax",
    } <= set(known)
    assert {"sftp-extra", "p2p-inside", "divide-by-zero", "portal-k-anonymity", "checkpoint-size", "usage"} <= set(
        known
    )
    assert all((TREE / folder).is_dir() for folder in FOLDERS)
