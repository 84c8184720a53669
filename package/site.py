"""Builds the documentation as a site: its navigation is made of the folders, and each page is in it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

TREE: Final = Path(__file__).parents[1]
SECTIONS: Final = (
    ("Tutorials", "docs/tutorials"),
    ("How-to", "docs/how-to"),
    ("Reference", "docs/reference"),
    ("Explanation", "docs/explanation"),
    ("Specification", "docs/spec"),
    ("Examples", "examples"),
    ("Project", ""),
    ("Project", "docs/dev"),
    ("Decisions", "docs/adr"),
    ("Reference", "docs"),
)
"""Titles of the navigation with their folders; an empty one is the top of the tree, and the last one has what no other
has: the glossary, and the figures of speed."""
FIRST: Final = ("README.md", "docs/README.md")
"""Pages before all sections, where they exist."""
LINK: Final = re.compile(r"!?\[[^]]*\]\(([^)\s#:]+)(?:#[\w-]+)?\)")
"""Links of a page to files of the tree."""
_TITLE: Final = re.compile(r"^# (.+)$", re.MULTILINE)
_CODE: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def build(out: Path) -> Path:
    """Builds the site into a folder of ``out``; returns its first page.

    It is made of copies that lie as in the repository, so that the links of both are the same.
    """
    source = out / "site-source"
    shutil.rmtree(source, ignore_errors=True)
    for page in (*find_pages(TREE), *_linked()):
        target = source / page.relative_to(TREE)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, target)
    settings = yaml.safe_load((TREE / "mkdocs.yml").read_text())
    settings |= {"docs_dir": "site-source", "site_dir": "site", "nav": navigation(TREE)}
    (out / "mkdocs.yml").write_text(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
    # Not --quiet: warnings that are not logged are not counted, and --strict then fails for none.
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "-f", out / "mkdocs.yml")
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    subprocess.run([str(word) for word in command], check=True, env=environment)
    return out / "site" / "index.html"


def _linked() -> Iterator[Path]:
    """Files that pages link to, but which are no pages: schemas, examples, the licence."""
    for page in find_pages(TREE):
        for target in LINK.findall(_CODE.sub("", page.read_text(encoding="utf-8"))):
            path = (page.parent / target).resolve()
            if path.is_file() and path.suffix != ".md" and path.is_relative_to(TREE):
                yield path


def find_pages(tree: Path) -> list[Path]:
    """Returns all pages of the site."""
    return [*sorted(tree.glob("*.md")), *sorted(tree.glob("docs/**/*.md")), *sorted(tree.glob("examples/**/*.md"))]


def navigation(tree: Path) -> list[dict[str, Any]]:
    """Returns the navigation as mkdocs takes it. A page in no folder of a section is below *Other pages*."""
    left = [path.relative_to(tree).as_posix() for path in find_pages(tree)]
    made: list[dict[str, Any]] = [{title_of(tree / name): name} for name in FIRST if name in left]
    left = [name for name in left if name not in FIRST]
    sections: dict[str, list[dict[str, str]]] = {}
    for title, folder in SECTIONS:
        here = [name for name in left if _is_in(name, folder)]
        sections.setdefault(title, []).extend({title_of(tree / name): name} for name in here)
        left = [name for name in left if name not in here]
    if left:
        sections["Other pages"] = [{title_of(tree / name): name} for name in left]
    return [*made, *({title: entries} for title, entries in sections.items() if entries)]


def _is_in(name: str, folder: str) -> bool:
    return name.startswith(f"{folder}/") if folder else "/" not in name


def title_of(path: Path) -> str:
    """Returns the first heading of a page, without marks; the name of the file where there is none."""
    found = _TITLE.search(_CODE.sub("", path.read_text(encoding="utf-8")))
    return re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", found[1]).strip() if found else path.stem
