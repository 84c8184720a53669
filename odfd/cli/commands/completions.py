"""``completions``: prints a completion script for bash, zsh or fish, made from the parsers themselves."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from odfd import output
from odfd.cli import registry
from odfd.cli.parsers import Subparsers
from odfd.errors import ExitCode


def register(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "completions",
        help="completions for the shell",
        description="Print completions for bash, zsh or fish. They need no daemon.",
        epilog="example:  odfctl completions bash > ~/.local/share/bash-completion/completions/odfctl",
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    parser.set_defaults(run=_completions)


def _completions(args: argparse.Namespace) -> int:
    words = dict(vocabulary())
    output.say({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](words))
    return ExitCode.OK


def vocabulary() -> Iterator[tuple[str, list[str]]]:
    """For each path of commands (``""``, ``mirror``, ``mirror add``) the words that may follow."""
    root = argparse.ArgumentParser(prog="odfctl", add_help=False)
    subparsers = root.add_subparsers()
    for module in dict.fromkeys(entry.module for entry in registry.entries().values()):
        registry.load(next(entry for entry in registry.entries().values() if entry.module == module), subparsers)
    yield from _below("", root)


def _below(path: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, list[str]]]:
    options = sorted(word for word in parser._option_string_actions if word.startswith("--"))
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    inner = {name: below for action in actions for name, below in action.choices.items()}
    choices = [str(one) for action in parser._actions if not inner for one in (action.choices or ())]
    yield path, [*inner, *choices, *options, *([] if inner else ["--output", "--socket"])]
    for name, below in inner.items():
        yield from _below(f"{path} {name}".strip(), below)


def _bash(words: dict[str, list[str]]) -> str:
    cases = "\n".join(f"    {path!r}) words={' '.join(known)!r} ;;" for path, known in words.items())
    return f"""# odfctl completions for bash
_odfctl() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" path="" word words skip=""
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    if [ -n "$skip" ]; then skip=""; continue; fi
    case "$word" in
      --socket|-o|--output) skip=yes ;;
      -*) ;;
      *) _odfctl_known "${{path:+$path }}$word" && path="${{path:+$path }}$word" ;;
    esac
  done
  case "$path" in
{cases}
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
    return "#compdef odfctl\nautoload -U +X bashcompinit && bashcompinit\n" + _bash(words)


def _fish(words: dict[str, list[str]]) -> str:
    lines = ["# odfctl completions for fish"]
    for path, known in words.items():
        steps = path.split()
        seen = " and ".join(f"__fish_seen_subcommand_from {step}" for step in steps) or "__fish_use_subcommand"
        plain = [word for word in known if not word.startswith("--")]
        if plain:
            lines.append(f"complete -c odfctl -n '{seen}' -a '{' '.join(plain)}'")
        lines += [f"complete -c odfctl -n '{seen}' -l {word[2:]}" for word in known if word.startswith("--")]
    return "\n".join(lines)
