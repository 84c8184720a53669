"""Asks a person to confirm before anything is given up for good. Without a terminal only ``--yes`` confirms."""

from __future__ import annotations

import argparse
import sys

from chain.errors import Refused
from odfd import output
from odfd.errors import Usage


def add_yes(parser: argparse.ArgumentParser) -> None:
    """The option that answers before it is asked."""
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


def confirm(question: str, declined: str) -> None:
    """Raises Usage without a terminal, Refused with the message ``declined`` for any answer but yes."""
    if not sys.stdin.isatty():
        raise Usage(f"nobody is here to answer: {question}", hint="add --yes if you mean it")
    output.remark(f"{question} [y/N] ", end="")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Refused(declined, rule="not-confirmed")
