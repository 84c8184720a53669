"""Pages of the reference are as their declarations make them, each is in the site once, and links lead somewhere."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from config import schema
from odfd.cli.main import _parser as odfctl_parser
from odfd.cli.offline.docs import list_pages
from odfd.daemon.main import _parser as daemon_parser
from odfd.rules import read_table, rules
from package.code_map import ROOTS, packages
from package.reference import MADE, REFERENCE, SUBJECTS, pages
from package.site import LINK, find_pages, navigation, title_of
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


# Every package says in one sentence what it does: the code map is made of these (``package/code_map.py``).

LONGEST: Final = 160
"""Characters of a row's text: a package that needs more does more than one thing."""


def test_every_package_says_what_it_does() -> None:
    found = {name: text for root in ROOTS for name, text in packages(root)}
    assert len(found) > 90, "the test no longer finds the packages"
    wrong = {name: text for name, text in found.items() if not 20 <= len(text) <= LONGEST or not text.endswith(".")}
    assert not wrong, f"one sentence of at most {LONGEST} characters: {wrong}"


# Every page is in the navigation of the site once, under its own title; every link of a page leads to a file.

CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def entries(nav: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for each in nav:
        for title, value in each.items():
            if isinstance(value, str):
                yield title, value
            else:
                yield from entries(value)


def broken(path: Path, text: str) -> Iterator[str]:
    """Links of a page to what is no file: the site shows no folders."""
    for target in LINK.findall(CODE.sub("", text)):
        if not (path.parent / target).is_file():
            yield f"{path.relative_to(TREE)}: {target}"


def test_each_page_is_in_the_navigation_once() -> None:
    count = Counter(name for _, name in entries(navigation(TREE)))
    assert set(count) == {path.relative_to(TREE).as_posix() for path in find_pages(TREE)}
    assert set(count.values()) == {1}


def test_pages_of_one_section_have_different_titles() -> None:
    for section in navigation(TREE):
        for value in section.values():
            titles = Counter(title for title, _ in entries(value)) if isinstance(value, list) else Counter()
            assert not [title for title, number in titles.items() if number > 1]


def test_an_omitted_page_and_a_dead_anchor_fail_the_build() -> None:
    settings = yaml.safe_load((TREE / "mkdocs.yml").read_text())
    assert settings["validation"]["nav"]["omitted_files"] == "warn"
    assert settings["validation"]["links"]["anchors"] == "warn"
    assert '"--strict"' in (TREE / "package" / "site.py").read_text()


def test_every_link_of_a_page_leads_to_a_file() -> None:
    found = [each for path in find_pages(TREE) for each in broken(path, path.read_text(encoding="utf-8"))]
    assert not found, "\n".join(found)


def test_two_pages_that_odfctl_docs_prints_never_have_one_name() -> None:
    shipped = [
        path
        for path in (TREE / "docs").rglob("*.md")
        if path.relative_to(TREE / "docs").parts[0] not in ("adr", "dev", "images", "schemas")
    ]
    assert len(list_pages()) == len(shipped)


@pytest.mark.parametrize(
    ("text", "title"),
    [("# A `b` *c*\n", "A b c"), ("```\n# no\n```\n# Yes\n", "Yes"), ("nothing\n", "page")],
)
def test_the_title_of_a_page_is_its_first_heading(tmp_path: Path, text: str, title: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    assert title_of(page) == title
