"""Lays out files that are attached to datasets as text: Markdown without its marks, all else as it is.

Strangers write them: nothing in them commands the terminal, and of a long one the beginning is shown, with what is left
out. Markdown is laid out by ``rich``, which is loaded when there is some.
"""

from __future__ import annotations

import io
import shutil
from typing import Final

from chain.visible import visible
from odfd.cli import formatting
from odfd.cli.table import clean
from odfd.control import wire

_MOST_CHARACTERS: Final = 32_768
_MOST_LINES: Final = 200
_WIDEST: Final = 100
_MARKDOWN: Final = (".md", ".markdown")


def attachment_text(attachment: wire.Attachment) -> str:
    """Its path and what it says, indented."""
    begun = visible(attachment.content.replace("\r\n", "\n")[:_MOST_CHARACTERS])
    markdown = attachment.path.lower().endswith(_MARKDOWN)
    lines = (_laid_out(begun) if markdown else begun).strip("\n").splitlines()
    left_out = len(lines) > _MOST_LINES or len(begun) < len(attachment.content.replace("\r\n", "\n"))
    shown = [f"  {line}".rstrip() for line in lines[:_MOST_LINES]]
    if left_out:
        whole = formatting.plural(len(attachment.content), "character")
        shown.append(f"  … this is its beginning: -o json has all of {whole}")
    return "\n".join([f"{clean(attachment.path, 200)}:", *shown])


def _laid_out(text: str) -> str:
    from rich.console import Console
    from rich.markdown import Markdown

    columns = min(shutil.get_terminal_size((_WIDEST, 24)).columns, _WIDEST) - 2
    console = Console(file=io.StringIO(), width=max(columns, 20), color_system=None, legacy_windows=False)
    lines = console.render_lines(Markdown(text, hyperlinks=False), pad=False)
    return visible("\n".join("".join(segment.text for segment in line) for line in lines))
