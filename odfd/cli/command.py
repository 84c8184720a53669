"""Declares the commands of ``odfctl`` with their functions, makes their parsers, and asks for confirmation."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from chain.errors import Refused
from odfd import output
from odfd.cli.session import Session
from odfd.errors import Usage

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""The type that ``add_subparsers`` of a parser returns."""
Run: TypeAlias = Callable[[Session, argparse.Namespace], int | None]
"""Runs a command; returns its exit code, or ``None`` for 0."""
_EXAMPLE: Final = "example:  "


class CommandAction(argparse._SubParsersAction):  # type: ignore[type-arg]
    """Runs a command of two words where these are typed one after the other."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        name, *words = values
        if len(words) > 1 and f"{name} {words[0]}" in self.choices:
            values = [f"{name} {words[0]}", *words[1:]]
        super().__call__(parser, namespace, values, option_string)


class Argument(NamedTuple):
    """The parameters of ``add_argument`` of a parser."""

    names: tuple[str, ...]
    options: dict[str, Any]

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        parser.add_argument(*self.names, **self.options)


def argument(*names: str, **options: Any) -> Argument:
    return Argument(names, options)


class OneOf:
    """Arguments of which exactly one has to be given."""

    def __init__(self, *arguments: Argument) -> None:
        self._arguments = arguments

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        group = parser.add_mutually_exclusive_group(required=True)
        for each in self._arguments:
            each.add_to(group)


REF: Final = argument("ref", metavar="REF")
REPLACE: Final = argument("--replace", action="store_true", help="replace the file if it exists")
"""The option of every command that writes a named file, except secrets (``odfd.cli.new_file``)."""


class Commands:
    """Commands of one level, in the order in which help lists them.

    ``example`` of a command has the text after its name, one example a line; ``options`` are those of ``add_parser``.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[str, Callable[[Subparsers, str], None]]] = []

    def add(
        self,
        name: str,
        *arguments: Argument | OneOf,
        example: str = "",
        writes_manifests: bool = False,
        lists_things: bool = False,
        **options: Any,
    ) -> Callable[[Run], Run]:
        """Declares the decorated function as the command ``name``. ``writes_manifests``: it accepts ``-o manifest``.

        ``name`` is two words where the first alone is a command too (``CommandAction``).
        ``lists_things``: it accepts ``-o name`` and ``-o wide``.
        """

        def declare(run: Run) -> Run:
            def register(subparsers: Subparsers, path: str) -> None:
                parser = _parser(subparsers, path, name, example, options)
                for each in arguments:
                    each.add_to(parser)
                parser.set_defaults(run=run, writes_manifests=writes_manifests, lists_things=lists_things)

            self._entries.append((name, register))
            return run

        return declare

    def group(self, name: str, *, example: str = "", **options: Any) -> Commands:
        """Declares a command with subcommands."""
        inner = Commands()

        def register(subparsers: Subparsers, path: str) -> None:
            parser = _parser(subparsers, path, name, example, options)
            inner.register(parser.add_subparsers(metavar="ACTION", required=True), f"{path} {name}")

        self._entries.append((name, register))
        return inner

    def include(self, *others: Commands) -> None:
        """Adds commands that other modules declare."""
        for other in others:
            self._entries += other._entries

    def register(self, subparsers: Subparsers, path: str = "odfctl", only: str | None = None) -> None:
        """Adds a parser for each command, or only for the one named ``only``. ``path``: the words before its name."""
        for name, register in self._entries:
            if only in (None, name.partition(" ")[0]):
                register(subparsers, path)


def _parser(
    subparsers: Subparsers, path: str, name: str, example: str, options: dict[str, Any]
) -> argparse.ArgumentParser:
    lines = [f"{path} {name} {line}".rstrip() for line in example.split("\n")]
    epilog = _EXAMPLE + f"\n{' ' * len(_EXAMPLE)}".join(lines)
    return subparsers.add_parser(name, **{"epilog": epilog, **options})


YES: Final = argument("-y", "--yes", action="store_true", help="do not ask for confirmation")


def confirm(question: str, declined: str) -> None:
    """Asks for a yes on the terminal. Raises Usage without a terminal, Refused with ``declined`` for another answer."""
    if not sys.stdin.isatty():
        raise Usage(f"cannot ask without a terminal: {question}", hint="add --yes to confirm")
    output.remark(f"{question} [y/N] ", end="")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Refused(declined, rule="not-confirmed")


_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|min|h|d)?\Z")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(text: str) -> float:
    """Parses a duration: ``90``, ``30s``, ``5m``, ``1h``. Raises Usage."""
    match = _DURATION.match(text)
    if match is None:
        raise Usage(f"not a duration: {text!r}", hint="write it like 30s, 5m, 1h or 30d")
    return float(match[1]) * _SECONDS[match[2] or "s"]
