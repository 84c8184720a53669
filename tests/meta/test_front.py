"""The front door says what is so: sizes of the documents that are read first, and where to report a vulnerability."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

TREE: Final = Path(__file__).parents[2]
LINES: Final = {"README.md": 120, "ARCHITECTURE.md": 100, "CHANGELOG.md": 200}
"""Most lines of each: what is longer belongs in docs."""
WORDS: Final = {"CONTRIBUTING.md": 1600, "SECURITY.md": 400}
ROWS: Final = re.compile(r"(?m)^\| (.+) \| (.+) \| (.+) \|$")


def text(name: str) -> str:
    """A document without its line breaks."""
    return " ".join((TREE / name).read_text().split())


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    return found


@pytest.mark.parametrize("name", LINES)
def test_the_document_is_short(name: str) -> None:
    assert len((TREE / name).read_text().splitlines()) <= LINES[name]


@pytest.mark.parametrize("name", WORDS)
def test_the_document_has_few_words(name: str) -> None:
    assert len((TREE / name).read_text().split()) <= WORDS[name]


def test_security_names_the_contact_of_the_metadata_or_says_that_there_is_none() -> None:
    said, contact = text("SECURITY.md"), project()["urls"].get("Security")
    assert (contact in said) if contact else ("names no address" in said)


def test_the_readme_says_what_the_metadata_says() -> None:
    said, metadata = text("README.md"), project()
    assert f"version {metadata['version']}" in said
    assert f"Python {metadata['requires-python'].removeprefix('>=')} or newer" in said
    assert metadata["license"].replace("-", " ") in said


def test_the_changelog_has_the_version_of_the_metadata_once() -> None:
    headings = re.findall(r"(?m)^## (\S+?),", (TREE / "CHANGELOG.md").read_text())
    assert headings.count(project()["version"]) == 1


def test_each_law_has_its_test_and_each_change_its_place() -> None:
    said = (TREE / "ARCHITECTURE.md").read_text()
    places = ROWS.findall(said.partition("## Where do I change X")[2].partition("## Five laws")[0])[1:]
    laws = ROWS.findall(said.partition("## Five laws")[2])[1:]
    assert len(places) == 15
    assert len(laws) == 5
    for *_, test in (*places, *laws):
        assert (TREE / test.strip("`")).is_file(), test


def test_manifests_have_one_dialect() -> None:
    found = (*TREE.glob("docs/tutorials/*.md"), *TREE.glob("docs/how-to/*.md"), *TREE.glob("examples/**/*.*"))
    for path in (TREE / "README.md", *found, *TREE.glob("demo/manifests/*.yaml")):
        assert "DatasetSnapshot" not in path.read_text(), path.name
