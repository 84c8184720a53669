"""Every page is in the navigation of the site once, under its own title; every link of a page leads to a file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from odfd.cli.offline.docs import list_pages
from package.site import LINK, TREE, find_pages, navigation, title_of

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
