"""``sql``: runs SQL queries over the node's datasets."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chain.errors import Invalid
from odfd import output
from odfd.cli.command import REPLACE, Commands, argument
from odfd.cli.session import Session
from odfd.cli.sql.descriptions import describe, described_dataset
from odfd.cli.sql.formats import FORMATS, answer, check_form, explained_query, remarks_of, show_plan
from odfd.control import calls, wire
from odfd.errors import ExitCode, Usage

if TYPE_CHECKING:
    from odfd.cli.new_file import NewFile
    from odfd.cli.sql.query import Answered, Printed, Shown

MAX_TEXT: Final = 1 << 20
"""Bytes of a file of SQL, or of pins."""


commands = Commands()


@commands.add(
    "sql",
    argument(
        "query", nargs="?", metavar="SQL", help="the query; - reads standard input; without it, a terminal gets a shell"
    ),
    argument("-f", "--file", metavar="FILE", help="read the query from a file"),
    argument("-o", "--output", choices=FORMATS, default=argparse.SUPPRESS, metavar="FORMAT", help=", ".join(FORMATS)),
    argument(
        "-p",
        "--param",
        action="append",
        default=[],
        metavar="[NAME=]VALUE",
        help="value for $NAME, or for the next ?; numbers, true, false, null are typed unless quoted as in JSON",
    ),
    argument(
        "--pin", metavar="FILE", help="read the same blocks as an earlier answer: a file with its pins, or its JSON"
    ),
    argument("--save-pin", metavar="FILE", help="write the pins of this answer to a file"),
    argument("--require", metavar="EXPR", help="refuse data that does not satisfy this, like attested:2"),
    argument("--cut", action="store_true", help="with --require: read only up to the last block that satisfies it"),
    argument(
        "--prove", metavar="FILE", help="write a signed statement about the answer, for odfctl trust recheck FILE"
    ),
    REPLACE,
    argument(
        "--engine",
        choices=("duckdb", "spark"),
        default="duckdb",
        metavar="ENGINE",
        help="duckdb, or spark (the engine of transforms); the query must be valid for both",
    ),
    description="Answer a SELECT over this node's datasets. `weather` is its log, `current.weather` what holds now. "
    "After a name: FOR SYSTEM_TIME AS OF '2024-05-01', AT BLOCK '#12', AS AT '2024-05-01' (event time).",
    example="-o csv 'select city, max(temp) from current.weather group by city'",
)
def _sql(session: Session, args: argparse.Namespace) -> int:
    if args.cut and not args.require:
        raise Usage("--cut needs --require", hint="like --require 'attested:2' --cut")
    check_form(args.output)
    is_shell = args.query is None and not args.file and sys.stdin.isatty()
    sql = "" if is_shell else _text(args)
    # JSON, as the command asks before it loads the types of what it shows.
    request = {
        "sql": sql,
        "parameters": parameters(args.param),
        "pins": _pins(args.pin),
        "require": args.require,
        "cut": args.cut,
        "engine": "" if args.engine == "duckdb" else args.engine,
    }
    if is_shell:
        _check_one_query(args, "a shell")
        return _shell(session, request, args.output)
    if (name := described_dataset(sql)) is not None:
        _check_one_query(args, "a description")
        describe(session.client, name, args.output)
        return ExitCode.OK
    if (plain := explained_query(sql)) is not None:
        _check_one_query(args, "a plan")
        show_plan(session.client, {**request, "sql": plain})
        return ExitCode.OK
    pins, proof = _new_files(args)
    if proof is not None:
        from odfd.cli.sql.proof_file import prove

        answered: Answered | Printed | Shown = prove(session.client, request, args.output, proof)
    else:
        answered = answer(session.client, request, args.output)
    for line in remarks_of(answered.head, answered.rows):
        session.remark(line)
    if pins is not None:
        _save(pins, answered.head.pins)
    return ExitCode.OK


def _check_one_query(args: argparse.Namespace, other: str) -> None:
    """Raises Usage for files about the answer of a query where there is none."""
    for option, given in (("--prove", args.prove), ("--save-pin", args.save_pin)):
        if given:
            raise Usage(
                f"{option} is for the answer of one query, not for {other}", hint=f"odfctl sql {option} FILE 'select …'"
            )


def _new_files(args: argparse.Namespace) -> tuple[NewFile | None, NewFile | None]:
    """Returns the files for the pins and for the proof, checked before the query runs. Raises as ``NewFile``."""
    if not (args.save_pin or args.prove):
        return None, None
    from odfd.cli.new_file import NewFile, check_distinct

    pins = NewFile(args.save_pin, replace=args.replace) if args.save_pin else None
    proof = NewFile(args.prove, replace=args.replace) if args.prove else None
    check_distinct(save_pin=pins, prove=proof)
    return pins, proof


def _shell(session: Session, request: dict[str, Any], form: str) -> int:
    import msgspec

    from odfd.cli.sql.shell import Shell, interactive

    session.client.do(calls.about_status())  # without a daemon this fails before the first query
    session.remark("A query ends with ;  \\? lists commands, ^C cancels, ^D leaves.")
    shell = Shell(session, msgspec.convert(request, wire.QueryRequest), form)
    shell.run(interactive(shell, os.environ))
    return ExitCode.OK


def parameters(given: Sequence[str]) -> dict[str, Any] | list[Any] | None:
    """Parses the parameters of a query: a mapping if they have names, else a list. Raises Usage for a mixture."""
    named = {
        name: _value(value)
        for name, found, value in (each.partition("=") for each in given)
        if found and name.isidentifier()
    }
    if not named:
        return [_value(each) for each in given] or None
    if len(named) < len(given):
        raise Usage("parameters either all have names or none has", hint="-p city=Graz -p year=2024")
    return named


def _value(text: str) -> Any:
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(found, dict | list) else found


def _text(args: argparse.Namespace) -> str:
    if args.query not in (None, "-") and args.file:
        raise Usage("a query and a file of one are given", hint="give one of both")
    if args.query not in (None, "-"):
        return str(args.query)
    if args.file and args.file != "-":
        return _read(args.file)
    return sys.stdin.read(MAX_TEXT)


def _read(path: str, hint: str = "-f takes a file of one query, or - for standard input") -> str:
    try:
        data = Path(path).read_bytes()
        if len(data) > MAX_TEXT:
            raise Invalid(f"{path} has {len(data):,} bytes", rule="query-size", hint=f"at most {MAX_TEXT:,}")
        return data.decode()
    except OSError as error:
        raise Usage(f"cannot read {path}: {error.strerror}", rule="query-file", hint=hint) from error
    except UnicodeDecodeError as error:
        raise Invalid(
            f"{path} is not UTF-8 text (byte {error.start})",
            rule="query-file",
            hint="queries are UTF-8: convert it, for example with iconv",
        ) from error


def _pins(path: str | None) -> list[Any]:
    """Reads the JSON of pins from a file of pins, or from an answer of ``-o json``. Raises Usage, Invalid."""
    if path is None:
        return []
    import msgspec

    try:
        found = json.loads(_read(path, "--pin takes a file that --save-pin wrote, or an answer of -o json"))
        pins = msgspec.convert(found["pins"] if isinstance(found, dict) else found, tuple[wire.Pin, ...])
    except (ValueError, KeyError, msgspec.ValidationError) as error:
        raise Invalid(
            f"{path} holds no pins: {error}", rule="query-pin", hint="odfctl sql --save-pin FILE '…' writes them"
        ) from error
    if not pins:
        raise Invalid(f"{path} pins nothing", rule="query-pin", hint="without --pin the newest is read")
    plain: list[Any] = list(msgspec.to_builtins(pins))
    return plain


def _save(file: NewFile, pins: Sequence[wire.Pin]) -> None:
    import msgspec

    file.write(json.dumps({"pins": msgspec.to_builtins(pins)}, indent=2) + "\n")
    output.flush()
