"""Asks a person to confirm before anything is given up for good. Without a terminal only ``--yes`` confirms."""

from __future__ import annotations

import sys
from typing import Final

from chain.errors import Refused
from odfd import output
from odfd.cli.command import argument
from odfd.errors import Usage

YES: Final = argument("-y", "--yes", action="store_true", help="do not ask")


def confirm(question: str, declined: str) -> None:
    """Raises Usage without a terminal, Refused with the message ``declined`` for any answer but yes."""
    if not sys.stdin.isatty():
        raise Usage(f"nobody is here to answer: {question}", hint="add --yes if you mean it")
    output.remark(f"{question} [y/N] ", end="")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Refused(declined, rule="not-confirmed")
