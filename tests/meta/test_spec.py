"""What code and pages cite of the specifications exists under its anchor, and no section is cited by its number."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TREE = Path(__file__).parents[2]
SPECS = TREE / "docs" / "spec"
ANCHOR = re.compile(r'<a id="([\w-]+)"></a>')
LIST = re.compile(r"docs/spec/([\w-]+)\.md((?:#[\w-]+(?:,\s+#[\w-]+)*)?)")
"""As code cites: ``docs/spec/NAME.md#one, #two``, or the whole document."""
LINK = re.compile(r"\]\(([^)\s]*?)#([\w-]+)\)")
"""As pages link, to other pages and within one."""
NUMBER = re.compile(
    r"\b(?:trust|replication|engine[ -]semantics)(?:\.md)?,?\s+(?:sections?\s+)?\d|\bsections?\s+\d", re.I
)
OTHERS = re.compile(r"\bRFC\b|Noise|SQLite|REKEY|libp2p", re.I)
"""Documents of others have numbers only."""


def texts(*suffixes: str) -> Iterator[tuple[Path, str]]:
    """All files of the tree that end so, but this one and hidden folders."""
    for folder, below, names in os.walk(TREE):
        below[:] = sorted(each for each in below if not each.startswith(".") and each not in ("build", "out"))
        for name in sorted(names):
            path = Path(folder, name)
            if name.endswith(suffixes) and path != Path(__file__):
                yield path, path.read_text()


@cache
def anchors(page: Path) -> frozenset[str]:
    """What a page can be linked by; headings as they are made into links too."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return frozenset(ANCHOR.findall(text)) | {
        re.sub(r"[^\w\- ]", "", each.lower()).strip().replace(" ", "-") for each in headings
    }


def unknown(path: Path, text: str) -> Iterator[str]:
    """Sections that a text cites and that are in no specification."""
    for found in LIST.finditer(text):
        page = SPECS / f"{found[1]}.md"
        if not page.is_file():
            yield f"{path.relative_to(TREE)}: {found[0]}"
            continue
        known = set(ANCHOR.findall(page.read_text()))
        yield from (f"{path.relative_to(TREE)}: {page.name}#{each}"
                    for each in re.findall(r"#([\w-]+)", found[2]) if each not in known)  # fmt: skip


def dangling(path: Path, text: str) -> Iterator[str]:
    """Links of a page to parts of pages that are not there."""
    for target, name in LINK.findall(text):
        if "://" in target:
            continue
        page = (path.parent / target).resolve() if target else path
        if not page.is_file() or name not in anchors(page):
            yield f"{path.relative_to(TREE)}: {target}#{name}"


def numbered(text: str) -> Iterator[str]:
    """Cites of our own documents by number."""
    for found in NUMBER.finditer(text):
        if not OTHERS.search(text[max(0, found.start() - 80) : found.start()]):
            yield found[0]


def test_every_section_that_is_cited_exists() -> None:
    cited = [each for path, text in texts(".py", ".md") for each in LIST.findall(text)]
    assert sum(name == "trust" for name, _ in cited) > 50
    assert sum(name == "engine-semantics" for name, _ in cited) > 50
    assert not [each for path, text in texts(".py", ".md") for each in unknown(path, text)]


def test_every_link_to_a_part_of_a_page_leads_there() -> None:
    assert not [each for path, text in texts(".md") for each in dangling(path, text)]


def test_an_anchor_is_in_a_page_once() -> None:
    for page in SPECS.glob("*.md"):
        found = ANCHOR.findall(page.read_text())
        assert found, page.name
        assert len(found) == len(set(found)), page.name


def test_nothing_is_cited_by_the_number_of_a_section() -> None:
    found = [f"{path.relative_to(TREE)}: {each}" for path, text in texts(".py", ".md") for each in numbered(text)]
    assert not found


def test_faults_are_found() -> None:
    here = TREE / "x.py"
    assert list(unknown(here, "docs/spec/trust.md#forks,\n#no-such")) == ["x.py: trust.md#no-such"]
    assert list(unknown(here, "docs/spec/no-such.md#a")) == ["x.py: docs/spec/no-such.md#a"]
    assert list(dangling(SPECS / "x.md", "[a](trust.md#forks) [b](trust.md#no-such)"))
    for text in ("trust.md section 3", "Engine semantics, sections 2 and 4", "trust.md 3", "of section 15"):
        assert list(numbered(text)), text
    assert not list(numbered("RFC 8032 section 7.1; the Noise specification, section 12.4"))


def test_no_two_decisions_have_one_number() -> None:
    numbers = sorted(path.name[:4] for path in (TREE / "docs" / "adr").glob("*.md"))
    assert numbers == [f"{place:04}" for place in range(1, len(numbers) + 1)]
