"""``completions``: prints a completion script for bash, zsh or fish, made from the parsers themselves.

Commands and options are in the script. Names of what a node has are asked of it at each Tab, where one may stand.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from chain.errors import Fault
from odfd import output
from odfd.cli import kinds, registry
from odfd.cli.command import Commands, argument
from odfd.cli.session import Session
from odfd.errors import Usage

_BY_KIND: Final = ("get", "describe", "delete", "wait", "label", "annotate", "edit")
"""Commands whose first word is a kind."""
_DECLARED_ALONE: Final = ("label", "annotate", "edit")
"""Of these, the ones that take declared things alone."""
_KIND_OF: Final = {"flow": "flow", "mirror": "mirror", "network": "network", "peer": "peer"}
"""Commands completed with names of other kinds; the rest are completed with names of datasets."""
_NAMES: Final = ("REF", "NAME", "PEER", "REF|DIR")
"""How an argument is called that names something a node has."""
_NEW: Final = ("new", "join", "network join", "mirror add")
"""Commands whose names are not there yet."""
_WITH_VALUE: Final = ("--socket", "--account", "-o", "--output")


commands = Commands()


@commands.add(
    "completions",
    argument("shell", nargs="?", choices=("bash", "zsh", "fish")),
    argument("--names", nargs=argparse.REMAINDER, metavar="WORD", help=argparse.SUPPRESS),
    description="Print completions for bash, zsh or fish. They ask the daemon for names, where there is one.",
    example="bash > ~/.local/share/bash-completion/completions/odfctl",
)
def _completions(_: Session, args: argparse.Namespace) -> None:
    if args.names is not None:
        for name in _names(args):
            output.say(name)
        return
    if args.shell is None:
        raise Usage("no shell is named", hint="odfctl completions bash, zsh or fish")
    words = dict(vocabulary())
    output.say({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](words))


def _names(args: argparse.Namespace) -> list[str]:
    """Kinds, or what the node has of one, for the words before.

    None where that cannot be told: nothing may be said at a Tab.
    """
    words = _plain(args.names)
    if len(words) == 1 and words[0] in _BY_KIND:
        return [kind.name for kind in (kinds.DECLARED if words[0] in _DECLARED_ALONE else kinds.KINDS)]
    args.socket = args.socket or _value_of(args.names, "--socket")
    try:
        kind = kinds.find(words[1] if words[0] in _BY_KIND else _KIND_OF.get(words[0], "dataset"))
        found = kind.all(Session(args))
    except (Fault, IndexError):
        return []
    return [kind.key(each) for each in found.value]


def _plain(words: Sequence[str]) -> list[str]:
    """Without options and the values of those that every command has."""
    values = {place + 1 for place, word in enumerate(words) if word in _WITH_VALUE}
    return [word for place, word in enumerate(words) if place not in values and not word.startswith("-")]


def _value_of(words: Sequence[str], option: str) -> str | None:
    after = [value for word, value in pairwise(words) if word == option]
    return after[-1] if after else None


def takes_names() -> list[str]:
    """Lists the paths of commands that can be followed by a name of a resource of the node."""
    return [path for path, parser in _parsers() if path in _BY_KIND or (path not in _NEW and _names_something(parser))]


def _names_something(parser: argparse.ArgumentParser) -> bool:
    plain = [action for action in parser._actions if not action.option_strings]
    return any(action.metavar in _NAMES or action.dest in ("ref", "refs", "name", "names") for action in plain)


def vocabulary() -> Iterator[tuple[str, list[str]]]:
    """Yields for each path of commands (``""``, ``mirror``, ``mirror add``) the words that may follow."""
    for path, parser in _parsers():
        options = sorted(word for word in parser._option_string_actions if word.startswith("--") and word != "--names")
        inner = list(_inner(parser))
        choices = [str(one) for action in parser._actions if not inner for one in (action.choices or ())]
        yield path, [*inner, *choices, *options, *([] if inner else ["--account", "--output", "--socket"])]


def _parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    root = argparse.ArgumentParser(prog="odfctl", add_help=False)
    subparsers = root.add_subparsers()
    for entry in registry.entries().values():
        registry.load(entry, subparsers)
    yield from _below("", root)


def _below(path: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield path, parser
    for name, below in _inner(parser).items():
        yield from _below(f"{path} {name}".strip(), below)


def _inner(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Commands within a command."""
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return {name: below for action in actions for name, below in action.choices.items()}


def _bash(words: dict[str, list[str]]) -> str:
    cases = "\n".join(f"    {path!r}) words={' '.join(known)!r} ;;" for path, known in words.items())
    return f"""# odfctl completions for bash
_odfctl() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" before="" word words skip=""
  for word in "${{COMP_WORDS[@]:1:$((COMP_CWORD-1))}}"; do
    if [ -n "$skip" ]; then skip=""; continue; fi
    case "$word" in
      --socket|-o|--output) skip=yes ;;
      -*) ;;
      *) _odfctl_known "${{before:+$before }}$word" && before="${{before:+$before }}$word" ;;
    esac
  done
  case "$before" in
{cases}
  esac
  case "$before" in {"|".join(map(repr, takes_names()))})
    if [ "${{current#-}}" = "$current" ]; then
      words="$words $(odfctl completions --names "${{COMP_WORDS[@]:1:$((COMP_CWORD-1))}}" 2> /dev/null)"
    fi
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  [ ${{#COMPREPLY[@]}} -gt 0 ] || COMPREPLY=($(compgen -f -- "$current"))
}}
_odfctl_known() {{
  case "$1" in {"|".join(repr(path) for path in words if path)}) return 0 ;; esac
  return 1
}}
complete -o filenames -F _odfctl odfctl"""


def _zsh(words: dict[str, list[str]]) -> str:
    """The file is the function ``_odfctl`` where zsh loads it: what is in it has another name, and runs at once."""
    made = _bash(words).replace("_odfctl()", "_odfctl_words()").replace("-F _odfctl odfctl", "-F _odfctl_words odfctl")
    at_once = "(( $+compstate )) && _bash_complete -o filenames -F _odfctl_words"
    return f"#compdef odfctl\nautoload -U +X bashcompinit && bashcompinit\n{made}\n{at_once}\n:"


def _fish(words: dict[str, list[str]]) -> str:
    lines, named = ["# odfctl completions for fish"], takes_names()
    asked = "(odfctl completions --names (commandline -opc)[2..-1] 2> /dev/null)"
    for path, known in words.items():
        steps = path.split()
        seen = " and ".join(f"__fish_seen_subcommand_from {step}" for step in steps) or "__fish_use_subcommand"
        plain = [word for word in known if not word.startswith("--")]
        if plain:
            lines.append(f"complete -c odfctl -n '{seen}' -a '{' '.join(plain)}'")
        if path in named:
            lines.append(f"complete -c odfctl -n '{seen}' -a '{asked}'")
        lines += [f"complete -c odfctl -n '{seen}' -l {word[2:]}" for word in known if word.startswith("--")]
    return "\n".join(lines)
