"""Parses command lines, and reports wrong usage as a fault that names the command whose help says more."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from odfd.errors import Usage


class UsageParser(argparse.ArgumentParser):
    """Never abbreviates options. A parser of several commands has ``dest="command"`` for them."""

    def __init__(self, *, hint: str = "", **options: Any) -> None:
        """``hint``: what to do after wrong usage, before the help that says more."""
        self._hint = hint
        super().__init__(allow_abbrev=False, **options)
        self.register("type", int, _whole_number)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """argparse would send the reader to the help of all commands, where no option of one is."""
        found, left = self.parse_known_args(args, namespace)
        if left:
            command = getattr(found, "command", None)
            program = f"{self.prog} {command}" if command else self.prog
            raise Usage(f"unrecognized arguments: {' '.join(left)}", hint=f"see {program} --help")
        return found

    def error(self, message: str) -> NoReturn:
        raise Usage(message, hint="; ".join(filter(None, (self._hint, f"see {self.prog} --help"))))


def how_many(word: str) -> int:
    """Reads how many are wanted: a number from 1 on."""
    number = _whole_number(word)
    if number < 1:
        raise argparse.ArgumentTypeError(f"a number from 1 on, not {number}")
    return number


def at_most(most: int) -> Callable[[str], int]:
    """Reads how many are wanted: a number from 1 to ``most``."""

    def read(word: str) -> int:
        if (number := how_many(word)) > most:
            raise argparse.ArgumentTypeError(f"a number from 1 to {most:,}, not {number:,}"[:200])
        return number

    return read


def _whole_number(word: str) -> int:
    """Returns what ``type=int`` of an argument reads; the message of argparse itself names Python's type."""
    try:
        return int(word)
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a whole number: {word!r}") from None
