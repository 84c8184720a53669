"""Pages of the reference are as their declarations make them, and every rule that code names is explained."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from config import schema
from odfd.cli.main import _parser as odfctl_parser
from odfd.daemon.main import _parser as daemon_parser
from odfd.rules import read_table, rules
from package.reference import MADE, REFERENCE, SUBJECTS, pages
from package.staging import whole_parser
from worlds.rules import FOLDERS, TREE, raised


@pytest.mark.parametrize("name", pages())
def test_the_page_is_made_of_its_declarations(name: str) -> None:
    assert (REFERENCE / name).read_text(encoding="utf-8") == pages()[name](), "make reference"


def test_every_page_of_the_reference_that_says_so_is_made() -> None:
    said = {path.name for path in REFERENCE.glob("*.md") if MADE in path.read_text(encoding="utf-8")}
    assert said == {name for name in pages() if "/" not in name}


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


COMMAND = re.compile(r"`(odfctl|odfd) ([^`]*)`")
SETTING = re.compile(r"`([a-z0-9]+(?:\.[a-z-]+)+)`")


odfctl = odfctl_parser()


def unknown_words(program: str, line: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """Words of a command line that the program does not have; what stands in capitals is for others to fill in."""
    for word in line.split():
        below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        if below and word in below[0].choices:
            parser = below[0].choices[word]
            continue
        is_command = bool(below) and re.fullmatch(r"[a-z][a-z-]*", word) is not None
        is_option = word.startswith("-")
        if is_command or (is_option and word not in {*parser._option_string_actions, *odfctl._option_string_actions}):
            yield f"{program} {line}: {word}"


def test_what_to_do_names_commands_and_settings_that_exist() -> None:
    programs = {"odfctl": whole_parser(), "odfd": daemon_parser()}
    settings = {key.name for key in schema.every()}
    tables = {key.table for key in schema.every()}
    found = []
    for rule in rules().values():
        for program, line in COMMAND.findall(f"{rule.meaning} {rule.remedy}"):
            found += unknown_words(program, line, programs[program])
        names = set(SETTING.findall(f"{rule.meaning} {rule.remedy}")) - settings - tables
        found += [f"{rule.name}: {each}" for each in names if each.partition(".")[0] in tables]
    assert not found, "\n".join(found)
