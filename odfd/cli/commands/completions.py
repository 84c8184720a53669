"""``completions``: prints a completion script for bash, zsh or fish.

At each Tab the scripts run ``odfctl`` for the possible words, and it asks the daemon for names. The parsers define what
is expected at the cursor. All pass the line as one argument, since a ``--`` among several would end the options of
``odfctl completions``.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

from chain.errors import Fault
from odfd import output
from odfd.cli import kinds, registry
from odfd.cli.command import Commands, argument
from odfd.cli.session import Session
from odfd.cli.table import clean
from odfd.control import calls, wire
from odfd.errors import Usage
from odfd.resources.registry import state
from odfd.rules import rules

BASH: Final = r"""# odfctl completions for bash
_odfctl() {
  local line word begun="${COMP_WORDS[COMP_CWORD]}" found=() files="" quote=""
  local typed="${COMP_LINE:0:COMP_POINT}"
  # bash takes a word apart at : and =, and replaces the last piece alone
  local whole="${typed##*[[:space:]]}" piece=""
  case "$begun" in \"*|\'*) quote=yes; whole="${whole#[\"\']}" ;; esac
  if [ -z "$quote" ]; then
    case "$whole" in *:*) [ "${COMP_WORDBREAKS#*:}" = "$COMP_WORDBREAKS" ] || piece="${whole%:*}:" ;; esac
    case "${whole#"$piece"}" in
      *=*) [ "${COMP_WORDBREAKS#*=}" = "$COMP_WORDBREAKS" ] || piece="${whole%"${whole##*=}"}" ;;
    esac
  fi
  while IFS= read -r line; do
    word="${line%%$'\t'*}"
    if [ "$word" = ":files" ]; then files=yes; continue; fi
    word="${word#"$piece"}"
    [ -n "$quote" ] || printf -v word '%q' "$word"
    found+=("$word")
  done < <("${COMP_WORDS[0]}" completions --line "$typed" 2> /dev/null)
  COMPREPLY=("${found[@]}")
  if [ -n "$files" ]; then
    compopt -o filenames 2> /dev/null
    while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "${whole#"$piece"}")
  fi
  case "${#COMPREPLY[@]} ${COMPREPLY[0]}" in "1 "*=) compopt -o nospace 2> /dev/null ;; esac
}
complete -F _odfctl odfctl"""

ZSH: Final = r"""#compdef odfctl
_odfctl() {
  local line word note files=""
  local -a asked plain begun
  asked=("${(@Q)words[1,CURRENT-1]}" "${(Q)PREFIX}")
  for line in "${(@f)$("$asked[1]" completions --line "${(@j: :)${(@qq)asked}}" 2> /dev/null)}"; do
    [[ -n $line ]] || continue
    word="${line%%$'\t'*}"
    note=""
    [[ $line == *$'\t'* ]] && note=":${line#*$'\t'}"
    if [[ $word == :files ]]; then
      files=yes
    elif [[ $word == *= ]]; then
      begun+=("${word//:/\\:}$note")
    else
      plain+=("${word//:/\\:}$note")
    fi
  done
  local -i done=1
  (( $#plain )) && _describe -t words odfctl plain && done=0
  (( $#begun )) && _describe -t words odfctl begun -S '' && done=0
  [[ -n $files ]] && _files && done=0
  return done
}
if [[ $funcstack[1] == _odfctl ]]; then _odfctl "$@"; else compdef _odfctl odfctl; fi"""
"""If zsh loads the file as the function ``_odfctl``, it declares that function and calls it at once."""

FISH: Final = r"""# odfctl completions for fish
function __odfctl_complete
    set -l words (commandline -opc)
    set -l line (string escape -- $words (commandline -ct | string unescape) | string join ' ')
    set -l found ($words[1] completions --line "$line" 2> /dev/null)
    for line in $found
        if test "$line" = :files
            __fish_complete_path (commandline -ct)
        else
            printf '%s\n' $line
        end
    end
end
complete -c odfctl -f -a '(__odfctl_complete)'"""

SCRIPTS: Final = {"bash": BASH, "zsh": ZSH, "fish": FISH}


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
    "CONDITION": "condition", "task/ID": "task/", "EVENT": "event", "TYPE[.PATH]|RULE": "explained", "SET": "secretset",
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
    found = _propose_here(place, current if not before else "", parser, known)
    begun = (each if each.word == FILES else each._replace(word=before + each.word) for each in found)
    fits = {each.word: each for each in begun if each.word == FILES or each.word.startswith(current)}
    return [fit for fit in fits.values() if fit.word not in place.plain][:MOST]


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


def _propose_here(place: Cursor, current: str, root: argparse.ArgumentParser, known: Known) -> Iterator[Candidate]:
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
        yield from (Candidate(str(choice)) for choice in action.choices)
        return
    called = str(action.metavar or action.dest)
    names = called == "NAME" and not action.option_strings and place.path in BY_KIND
    source = "name" if names else _OF_COMMANDS.get(f"{place.path} {called}", _SOURCES.get(called, ""))
    if source == "kind" and place.path in ("label", "annotate", "edit"):
        source = "declared"
    if source:
        yield from known(source, place.plain)
    if any(each in called for each in ("FILE", "DIR", "BACKUP", "PATH", "MANIFEST")) and source != "explained":
        yield Candidate(FILES)


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
    output.say(SCRIPTS[args.shell])


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
            "column=": lambda plain: [column._replace(word=f"{column.word}=") for column in self._columns(plain)],
            "condition": self._conditions,
            "event": lambda _: map(Candidate, EVENTS),
            "explained": lambda _: [
                *(Candidate(each.name, "type") for each in kinds.DECLARED),
                *(Candidate(name, "rule") for name in rules()),
            ],
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
        fields = [field for type_ in types for field in type_.__struct_encode_fields__]
        return [Candidate("exists"), Candidate("deleted"), *(Candidate(f"{field}=") for field in fields)]

    def _holds(self, _: Sequence[str]) -> list[Candidate]:
        found = self._session.client.do(calls.holds_list()).value
        return [Candidate(each.id, f"{each.dataset} {each.note}".strip()) for each in found]


def _describe(row: Any) -> str:
    """Returns a few words that distinguish a resource from others of its kind."""
    is_declared = isinstance(row, wire.ResourceManifest)
    words = [state(row).get(name) if is_declared else getattr(row, name, "") for name in ("kind", "target", "state")]
    return ", ".join(word for word in words if isinstance(word, str) and word)
