"""Runs ``odfctl``: parses the command line, runs one command, and turns its faults into a message and an exit code.

Only the module of the typed command is imported; ``registry`` lists all commands.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from functools import cache, partial
from typing import Any, Final

from chain.errors import Fault
from odfd import __version__, output
from odfd.cli import registry
from odfd.cli.command import CommandAction, Subparsers
from odfd.cli.session import FORMATS, MANIFESTS, SHAPES, Session
from odfd.errors import Bug, ExitCode, Usage, exit_code, last_fault, render
from odfd.usage import UsageParser

_TAKES_VALUE: Final = {"--socket", "--node", "--token-file", "--ca-file", "--account", "-o", "--output"}

_OF_OTHER_TOOLS: Final = {
    "add": "odfctl apply -f FILE",
    "cat": "odfctl tail NAME",
    "clone": "odfctl mirror add",
    "create": "odfctl new NAME FILE, then odfctl apply -f NAME.yaml",
    "fetch": "odfctl pull",
    "head": "odfctl sql 'select … limit 10'",
    "info": "odfctl status, or odfctl describe dataset NAME",
    "init": "odfd init",
    "list": "odfctl get datasets",
    "load": "odfctl ingest",
    "ls": "odfctl get datasets",
    "ps": "odfctl get tasks",
    "query": "odfctl sql",
    "remove": "odfctl delete",
    "rm": "odfctl delete",
    "run": "odfd run",
    "serve": "odfd run",
    "show": "odfctl describe dataset NAME",
    "start": "odfd run",
    "update": "odfctl pull",
}
"""Words by which other programs call something that a command here does, and that command."""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Formats help in the terminal's width, for which argparse would load ``shutil`` for each option."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, **{"width": _width(), **options})

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Fills paragraphs to the terminal's width; keeps those with columns or examples, which have two blanks."""
        fill = super()._fill_text, partial(argparse.HelpFormatter._fill_text, self)
        return "\n\n".join(fill["  " not in each](each, width, indent) for each in text.split("\n\n"))


@cache
def _width() -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns) - 2
    try:
        return os.get_terminal_size(1).columns - 2
    except OSError:
        return 78


class Parser(UsageParser):
    """Keeps the lines of examples, and prints help by the ``output`` module."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", _Help)
        super().__init__(**options)

    def _print_message(self, message: str, _file: Any = None) -> None:
        """Prints help or the version."""
        if message:
            output.say(message, end="")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``odfctl``. Returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    verbose = "-v" in words or "--verbose" in words
    try:
        return _run(words)
    except Fault as fault:
        return _report(fault, verbose)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has ended (odfctl log … | head): this is no error.
        output.leave()
        return ExitCode.OK
    except Exception as error:  # noqa: BLE001  the outermost frame: a bug is told as one, with its trace
        return _report(last_fault(error) or _bug(error), verbose)


def _run(words: Sequence[str]) -> int:
    name = command_of(words)
    known = registry.entries()
    parser = command_parser(known.get(name or ""))
    if name in known:
        args = parser.parse_args(words)
        if args.output in MANIFESTS and not args.writes_manifests:
            raise Usage(f"odfctl {name} has no manifests to show", hint="like odfctl get dataset NAME -o manifest")
        if args.output in SHAPES and not args.lists_things:
            raise Usage(f"odfctl {name} has no -o {args.output}", hint="odfctl get KIND has")
        if not gc.isenabled():  # run as a program (``odfd.cli.start``)
            gc.freeze()
            gc.enable()
        code = args.run(Session(args), args) or ExitCode.OK
        output.flush()
        return code
    if name is None:
        parser.parse_args(words)
        output.say(parser.format_help().rstrip("\n"))
        return ExitCode.USAGE
    raise Usage(f"there is no command {name!r}", hint=_suggestion(name, list(known)))


def command_parser(entry: registry.CommandEntry | None) -> Parser:
    """Makes the parser of a command line that names one command, or none."""
    parser = _parser()
    if entry is not None:
        subparsers: Subparsers = parser.add_subparsers(
            dest="command", parser_class=Parser, prog="odfctl", action=CommandAction
        )
        registry.load(entry, subparsers)
        _everywhere(subparsers)
    return parser


def command_of(words: Sequence[str]) -> str | None:
    """Returns the first word that is neither an option nor an option's value."""
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in _TAKES_VALUE:
            skip = True
        elif not word.startswith("-"):
            return word
    return None


def _parser() -> Parser:
    parser = Parser(
        prog="odfctl",
        usage="odfctl [--socket PATH | --node URL] [--account NAME] [-o table|json|yaml|ndjson] [-q|-v] COMMAND …",
        description="Talk to the Open Data Fabric node on this machine.\n\n" + _listing(),
        epilog=(
            "Ends with 0 done, yes · 1 done, no · 2 wrong usage · 3 no daemon · 4 refused · 5 invalid input\n"
            "          6 the other side's fault · 7 this machine's · 70 a bug · 130 detached by ^C\n\n"
            "odfctl COMMAND -h shows each with an example.  Start a node with: odfd run"
        ),
    )
    parser.add_argument("--version", action="version", version=f"odfctl {__version__}")
    parser.set_defaults(socket=None, node=None, token_file=None, ca_file=None, account=None)
    parser.set_defaults(output="table", quiet=False, verbose=False)
    _common(parser)
    return parser


def _common(parser: argparse.ArgumentParser) -> None:
    """Adds the options that may stand before or after the command; help shows them once, at the top."""
    off: Any = argparse.SUPPRESS

    def help_text(text: str) -> str:
        return text if parser.prog == "odfctl" else argparse.SUPPRESS

    parser.add_argument("--socket", metavar="PATH", default=off, help=help_text("socket of the daemon (ODFD_SOCKET)"))
    parser.add_argument("--node", metavar="URL", default=off, help=help_text("a node elsewhere, by https (ODFD_NODE)"))
    token = help_text("file of the token for it (ODFD_TOKEN_FILE)")
    parser.add_argument("--token-file", metavar="FILE", default=off, help=token)
    certificates = help_text("certificates that its own is checked against (ODFD_CA_FILE)")
    parser.add_argument("--ca-file", metavar="FILE", default=off, help=certificates)
    parser.add_argument("--account", metavar="NAME", default=off, help=help_text("account to act as (ODFD_ACCOUNT)"))
    if "-o" not in parser._option_string_actions:
        formats = (*FORMATS, *MANIFESTS, *SHAPES)
        known = help_text("table, json, yaml or ndjson")
        parser.add_argument("-o", "--output", choices=formats, default=off, metavar="FORMAT", help=known)
    loudness = parser.add_mutually_exclusive_group()
    loudness.add_argument("-q", "--quiet", action="store_true", default=off, help=help_text("no progress, no hints"))
    loudness.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        default=off,
        help=help_text("causes of errors too, and manifests"),
    )


def _everywhere(subparsers: Subparsers) -> None:
    """Adds the common options to every parser below that does not have them itself."""
    for parser in subparsers.choices.values():
        below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        for action in below:
            _everywhere(action)
        if not below:
            _common(parser)


def _listing() -> str:
    lines = []
    for group in registry.GROUPS:
        lines += [group.title, *(f"  {entry.name:<12}{entry.help}" for entry in group.entries), ""]
    return "\n".join(lines).rstrip()


def _suggestion(name: str, known: Sequence[str]) -> str:
    import difflib

    from odfd.cli.kinds import KINDS

    if name in _OF_OTHER_TOOLS:
        return f"{_OF_OTHER_TOOLS[name]}  does it here; odfctl --help lists all"
    if any(name in (kind.name, *kind.aliases) for kind in KINDS):
        return f"odfctl get {name}  lists them; odfctl --help lists all commands"
    near = difflib.get_close_matches(name, known, n=1)
    return (f"did you mean {near[0]}?  " if near else "") + "odfctl --help lists them"


def _report(fault: Fault, verbose: bool) -> int:
    output.flush()
    output.remark(output.FaultText(render(fault, verbose)))
    return exit_code(fault)


def _bug(error: Exception) -> Bug:
    output.trace(error)
    bug = Bug(f"{type(error).__name__}: {error}", rule="bug", hint="this is a fault of odfctl; please report it")
    bug.__cause__ = error
    return bug


if __name__ == "__main__":
    sys.exit(main())
