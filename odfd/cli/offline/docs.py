"""``docs``: prints the pages of the documentation, which every installation has beside the code; hints name them."""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path
from typing import Final

from chain.errors import NotFound
from chain.store.files import disk
from config.paths import PAGES
from odfd import output
from odfd.cli.command import Commands, argument
from odfd.cli.session import Session
from odfd.cli.table import WHOLE, TableColumn, render

_NO_PAGES: Final = ("adr", "dev")
"""Folders for those who change odfd; an installation does not have the first."""

commands = Commands()


@commands.add(
    "docs",
    argument("page", nargs="?", metavar="PAGE", help="its name, like sources or spec/trust; none: list the pages"),
    description="Print a page of the documentation, as text. Hints of other commands name pages.",
    example="sources",
)
def _docs(session: Session, args: argparse.Namespace) -> None:
    pages = list_pages()
    if args.page is None:
        listed = [{"page": name, "title": _title(path)} for name, path in pages.items()]
        columns = (
            TableColumn[dict[str, str]]("PAGE", lambda row: row["page"]),
            TableColumn[dict[str, str]]("TITLE", lambda row: row["title"], most=WHOLE),
        )
        session.show(listed, lambda rows: render(columns, rows))
        return
    name = args.page.removeprefix("docs/").removesuffix(".md")
    if name not in pages:
        name = name.rpartition("/")[2]  # how-to/install
    if name not in pages:
        near = difflib.get_close_matches(name, pages, 1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise NotFound(f"there is no page {name[:80]!r}", rule="docs-page", hint=f"{meant}all of them: odfctl docs")
    with disk(pages[name]):
        output.say(pages[name].read_text(encoding="utf-8").rstrip("\n"))


def list_pages() -> dict[str, Path]:
    """Returns the pages by name: that of the file, with ``spec/`` before those of the specification."""
    found = (path for path in sorted(PAGES.rglob("*.md")) if path.relative_to(PAGES).parts[0] not in _NO_PAGES)
    return {f"spec/{path.stem}" if path.parent.name == "spec" else path.stem: path for path in found}


def _title(path: Path) -> str:
    with disk(path), path.open(encoding="utf-8") as lines:
        return next((line[2:].strip() for line in lines if line.startswith("# ")), "")
