"""``completions``: prints a completion script for bash, zsh or fish.

At each Tab the scripts run ``odfctl`` for the possible words, and it asks the daemon for names.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from chain.errors import Fault
from odfd import output
from odfd.cli import kinds, registry, shells
from odfd.cli.command import Commands, argument
from odfd.cli.completion import Candidate, candidates, place_of
from odfd.cli.session import Session
from odfd.cli.table import clean
from odfd.control import calls, wire
from odfd.errors import Usage
from odfd.resources.registry import state

EVENTS: Final = (
    "Seed", "AddData", "ExecuteTransform", "SetPollingSource", "DisablePollingSource", "AddPushSource",
    "DisablePushSource", "SetTransform", "SetDataSchema", "SetVocab", "SetInfo", "SetLicense", "SetAttachments",
)  # fmt: skip
"""Event kinds of a chain, as ``odfctl log --kind`` takes them."""
_TOLD: Final = 60
"""Characters of a candidate's description."""


commands = Commands()


@commands.add(
    "completions",
    argument("shell", nargs="?", choices=("bash", "zsh", "fish")),
    argument("--line", help=argparse.SUPPRESS),
    description="Print completions for bash, zsh or fish. They ask the daemon for names, where there is one.",
    example="bash > ~/.local/share/bash-completion/completions/odfctl",
)
def _completions(_: Session, args: argparse.Namespace) -> None:
    if args.line is not None:
        for each in _propose(words_of(args.line), args):
            told = clean(each.told, _TOLD).replace("\t", " ")
            output.say(f"{clean(each.word, len(each.word))}\t{told}".rstrip("\t"))
        return
    if args.shell is None:
        raise Usage("no shell is named", hint="odfctl completions bash, zsh or fish")
    output.say(shells.SCRIPTS[args.shell])


def words_of(line: str) -> list[str]:
    """Splits a command line up to the cursor as a shell would, without the program; the last word is incomplete."""
    for closing in ("", '"', "'"):
        try:
            found = shlex.split(line + closing)
        except ValueError:
            continue
        ended = not closing and line[-1:].isspace() and line[-2:-1] != "\\"
        return found[1:] + ([""] if ended or len(found) < 2 else [])
    return [""]


def _propose(words: Sequence[str], args: argparse.Namespace) -> list[Candidate]:
    """Returns the candidates for the last word; none instead of an error, which a Tab could not show."""
    from odfd.cli.main import command_of, command_parser

    *before, current = words or [""]
    name = command_of(before)
    known = registry.entries()
    if name is not None and name not in known:
        return []
    parser = command_parser(known.get(name or ""))
    place = place_of(parser, before)
    if name is None and place is not None and place.option is None and not current.startswith("-"):
        return [Candidate(each.name, each.help) for each in known.values() if each.name.startswith(current)]
    args.socket = args.socket or _value_of(before, "--socket")
    args.account = args.account or _value_of(before, "--account")
    return candidates(parser, before, current, Node(Session(args)).list_names)


def _value_of(words: Sequence[str], option: str) -> str | None:
    after = [value for word, value in pairwise(words) if word == option]
    return after[-1] if after else None


class Node:
    """Lists names that the running node has; none if it cannot be asked."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._sources: Mapping[str, Callable[[Sequence[str]], Iterable[Candidate]]] = {
            "kind": lambda _: [Candidate(kind.name) for kind in kinds.KINDS],
            "declared": lambda _: [Candidate(kind.name) for kind in kinds.DECLARED],
            "name": lambda plain: self._all(kinds.find(plain[0])) if plain else (),
            "task/": lambda _: [each._replace(word=f"task/{each.word}") for each in self._all(kinds.TASK)],
            "column": self._columns,
            "column=": lambda plain: [each._replace(word=f"{each.word}=") for each in self._columns(plain)],
            "condition": self._conditions,
            "event": lambda _: map(Candidate, EVENTS),
            "type": lambda _: [Candidate(each.name) for each in kinds.DECLARED],
            "hold": self._holds,
            "validator": self._validators,
        }

    def list_names(self, source: str, plain: Sequence[str]) -> Iterable[Candidate]:
        try:
            found = self._sources.get(source)
            return found(plain) if found is not None else self._all(kinds.find(source))
        except Fault:
            return ()

    def _all(self, kind: kinds.Kind[Any]) -> list[Candidate]:
        return [Candidate(kind.key(each), _describe(each)) for each in kind.all(self._session).value]

    def _validators(self, _: Sequence[str]) -> list[Candidate]:
        """Returns the dids of validators, by which commands name them; resources are named otherwise."""
        return [Candidate(each.spec["did"], each.spec["group"]) for each in kinds.VALIDATOR.all(self._session).value]

    def _columns(self, plain: Sequence[str]) -> list[Candidate]:
        if not plain:
            return []
        schema = self._session.client.do(calls.datasets_schema(plain[0])).value
        return [Candidate(field.name, str(field.type)) for field in schema.fields]

    def _conditions(self, plain: Sequence[str]) -> list[Candidate]:
        types = kinds.find(plain[0]).fields if plain else ()
        fields = [field for each in types for field in each.__struct_encode_fields__]
        return [Candidate("exists"), Candidate("deleted"), *(Candidate(f"{each}=") for each in fields)]

    def _holds(self, _: Sequence[str]) -> list[Candidate]:
        found = self._session.client.do(calls.holds_list()).value
        return [Candidate(each.id, f"{each.dataset} {each.note}".strip()) for each in found]


def _describe(row: Any) -> str:
    """Returns a few words that distinguish a resource from others of its kind."""
    is_declared = isinstance(row, wire.ResourceManifest)
    words = [state(row).get(name) if is_declared else getattr(row, name, "") for name in ("kind", "target", "state")]
    return ", ".join(word for word in words if isinstance(word, str) and word)
