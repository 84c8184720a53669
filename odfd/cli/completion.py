"""Lists the words that may stand at the cursor of a command line of ``odfctl``.

The parsers define what is expected there. Names come from ``Known``, which asks the running node.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

MOST: Final = 2_000
"""Candidates shown for one place."""
FILES: Final = ":files"
"""Stands for the names of files, which the shell completes itself."""


class Candidate(NamedTuple):
    """A word that may stand at the cursor."""

    word: str
    told: str = ""
    """A short description."""


Known: TypeAlias = Callable[[str, Sequence[str]], Iterable[Candidate]]
"""Lists the names of a source (``dataset``, ``column``, ``kind``, ``name``), given the positional words before."""


class Cursor(NamedTuple):
    """The place at which a word is to be completed."""

    path: str
    """Words of the command: ``mirror add``."""
    parser: argparse.ArgumentParser
    plain: tuple[str, ...]
    """The command's positional words before the cursor."""
    option: argparse.Action | None
    """The option whose value is expected; ``None``: a word of another sort."""


BY_KIND: Final = ("get", "describe", "delete", "wait", "label", "annotate", "edit")
"""Commands whose first word is a kind and whose others are names of that kind."""
_SOURCES: Final[Mapping[str, str]] = {
    "REF": "dataset", "REF|DIR": "dataset", "REF[@CUT]": "dataset", "FILE|DIR@#N|REF@#N": "dataset", "PEER": "peer",
    "NETWORK": "network", "KIND": "kind", "C": "column", "COLUMN": "column", "COLUMN=VALUE": "column=",
    "CONDITION": "condition", "task/ID": "task/", "EVENT": "event", "TYPE[.PATH]": "type", "SET": "secretset",
    "SECRETSET": "secretset",
}  # fmt: skip
"""Sources of names by the name of an argument in help."""
_OF_COMMANDS: Final[Mapping[str, str]] = {
    "adopt DID|NAME": "unmanaged", "source push SOURCE": "source", "source show SOURCE": "source",
    "source drop SOURCE": "source",
    "flow pause NAME": "flow", "flow resume NAME": "flow", "hold list NAME": "dataset", "hold renew ID": "hold",
    "hold release ID": "hold", "mirror remove NAME": "mirror", "mirror pause NAME": "mirror", "mirror add REF": "",
    "mirror resume NAME": "mirror", "mirror add N": "network", "network invite NAME": "network",
    "network leave NAME": "network", "network show NAME": "network", "publish NAME": "dataset",
    "unpublish NAME": "dataset", "share NAME": "dataset", "push NAME": "dataset", "push REPO[/NAME]": "repository",
    "repo remove NAME": "repository", "trust validator remove DID": "validator", "schema alter NAME": "dataset",
    "watch KIND": "",
}  # fmt: skip
"""Sources of names by command and argument, where the argument's name is ambiguous. Empty: nothing is proposed."""


def candidates(parser: argparse.ArgumentParser, words: Sequence[str], current: str, known: Known) -> list[Candidate]:
    """Lists candidates for the word ``current``, at the cursor. ``words``: those between the program and it."""
    place = place_of(parser, words)
    if place is None:
        return []
    name, equals, _ = current.partition("=")
    before = ""
    if place.option is None and equals and name.startswith("--"):
        action = place.parser._option_string_actions.get(name)
        place, before = place._replace(option=action), name + equals
    found = _propose(place, current if not before else "", parser, known)
    begun = (each if each.word == FILES else each._replace(word=before + each.word) for each in found)
    fits = {each.word: each for each in begun if each.word == FILES or each.word.startswith(current)}
    return [each for each in fits.values() if each.word not in place.plain][:MOST]


def place_of(parser: argparse.ArgumentParser, words: Sequence[str]) -> Cursor | None:
    """Follows ``words`` down the parsers. Returns ``None`` if one of them is no command."""
    path: list[str] = []
    plain: list[str] = []
    level: dict[str, argparse.ArgumentParser] = {}
    option: argparse.Action | None = None
    for word in words:
        if option is not None:
            option = None
        elif word.startswith("-") and word != "-":
            action = parser._option_string_actions.get(word)
            option = action if action is not None and action.nargs != 0 else None
        elif inner := inner_of(parser):
            if word not in inner:
                return None
            level, parser = inner, inner[word]
            path.append(word)
        elif path and not plain and f"{path[-1]} {word}" in level:
            path[-1] += f" {word}"
            parser = level[path[-1]]
        else:
            plain.append(word)
    return Cursor(" ".join(path), parser, tuple(plain), option)


def inner_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Returns the subcommands of a command, with their parsers."""
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return {name: below for action in actions for name, below in action.choices.items()}


def _propose(place: Cursor, current: str, root: argparse.ArgumentParser, known: Known) -> Iterator[Candidate]:
    if place.option is not None:
        yield from _values(place, place.option, known)
    elif current.startswith("-"):
        yield from _options(place.parser, root)
    elif inner_of(place.parser):
        yield from _commands(place.parser)
    else:
        positional = [action for action in place.parser._actions if not action.option_strings]
        nth = min(len(place.plain), len(positional) - 1)
        if positional and (nth == len(place.plain) or positional[nth].nargs in ("*", "+")):
            yield from _values(place, positional[nth], known)


def _commands(parser: argparse.ArgumentParser) -> Iterator[Candidate]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            told = {each.dest: each.help or "" for each in action._choices_actions}
            yield from (Candidate(name, told.get(name, "")) for name in action.choices)


def _options(parser: argparse.ArgumentParser, root: argparse.ArgumentParser) -> Iterator[Candidate]:
    everywhere = {word: action.help for word, action in root._option_string_actions.items()}
    for word, action in sorted(parser._option_string_actions.items(), key=lambda item: item[0].lstrip("-")):
        told = everywhere.get(word, "") if action.help == argparse.SUPPRESS else action.help
        if word.startswith("--") and (action.help != argparse.SUPPRESS or told):
            yield Candidate(word, told or "")


def _values(place: Cursor, action: argparse.Action, known: Known) -> Iterator[Candidate]:
    if action.choices is not None:
        yield from (Candidate(str(each)) for each in action.choices)
        return
    called = str(action.metavar or action.dest)
    names = called == "NAME" and not action.option_strings and place.path in BY_KIND
    source = "name" if names else _OF_COMMANDS.get(f"{place.path} {called}", _SOURCES.get(called, ""))
    if source == "kind" and place.path in ("label", "annotate", "edit"):
        source = "declared"
    if source:
        yield from known(source, place.plain)
    if any(each in called for each in ("FILE", "DIR", "BACKUP", "PATH", "MANIFEST")) and source != "type":
        yield Candidate(FILES)
