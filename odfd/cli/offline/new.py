"""``new``: writes the manifest of a root for a file, from a sample of it, and shows the rows that would be read."""

from __future__ import annotations

import argparse
import shlex
import tempfile
import urllib.parse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chain.errors import Invalid
from chain.ids import parse_name
from odfd.cli.command import REPLACE, Commands, argument
from odfd.cli.commands.apply import web_bytes
from odfd.cli.new_file import NewFile
from odfd.cli.offline import files
from odfd.cli.session import Session
from odfd.cli.table import Stack, TableColumn, render
from odfd.errors import ExitCode, Usage

if TYPE_CHECKING:
    from chain.model.source import ReadStep

MAX_FETCHED: Final = 64 << 20
"""Bytes of a file from the web that are downloaded as a sample."""
ROWS: Final = 10
"""Rows of a file that are shown."""
WIDEST: Final = 40


commands = Commands()


@commands.add(
    "new",
    argument("name", metavar="NAME"),
    argument("source", metavar="FILE|URL"),
    argument("-O", "--to", metavar="FILE", help="where the manifest is written (NAME.yaml); - prints it"),
    REPLACE,
    argument("--shards", type=int, metavar="N", help="divide the rows among N chains, 2 to 64"),
    argument("--by", metavar="COLUMN,…", help="columns whose hash decides the shard of a row"),
    description=(
        "Look into a file, or at a URL, and write the manifest of a source dataset for it (†: no daemon "
        "needed). Guesses are marked by comments in it. A file is pushed, a URL is polled."
    ),
    epilog=(
        "example:  odfctl new nyc.flights january.csv.gz\n"
        "          odfctl apply -f nyc.flights.yaml\n"
        "          odfctl ingest nyc.flights january.csv.gz"
    ),
)
def _new(session: Session, args: argparse.Namespace) -> None:
    from odfd import output
    from odfd.cli.offline.sampling.inference import guess_format
    from odfd.cli.offline.sampling.manifest import manifest_text, proven

    parse_name(args.name)
    by = tuple(args.by.split(",")) if args.by else ()
    if (args.shards is None) != (not by):
        raise Usage("--shards and --by belong together", hint="--shards 4 --by id")
    is_url = args.source.startswith(("http://", "https://"))
    to = args.to or f"{args.name}.yaml"
    manifest = None if to == "-" else NewFile(to, replace=args.replace)
    with ExitStack() as stack:
        path, called = _local(args.source, is_url, stack)
        try:
            guess = guess_format(path, called)
        except Invalid as fault:
            if called not in fault.message:
                fault.place = fault.place or args.source
            raise
        text = manifest_text(args.name, guess, args.source if is_url else None, args.shards, by)
        read = proven(text, args.name)
        seen = _read_sample(path, called, read)
    if args.shards is not None:
        _check_columns(by, [each["name"] for each in seen["columns"]])
    if manifest is None:
        output.say(text.rstrip("\n"))
        return
    manifest.write(text)
    seen["manifest"] = to
    fill = f"odfctl pull {args.name}" if is_url else f"odfctl ingest {args.name} {shlex.quote(args.source)}"
    steps = f"{to} is written; look at it, then: odfctl apply -f {shlex.quote(to)} && {fill}"
    session.show(seen, lambda answer: f"{_rows_text(answer)}\n{steps}")


def _check_columns(by: Sequence[str], columns: Sequence[str]) -> None:
    for name in by:
        if name not in columns:
            raise Invalid(
                f"no column {name} decides the shard of a row", rule="shard-column", hint=f"one of {', '.join(columns)}"
            )


def _local(source: str, is_url: bool, stack: ExitStack) -> tuple[Path, str]:
    """Returns the path of the file, downloaded if it is on the web, and the file's name."""
    if not is_url:
        path = files.existing(source)
        return path, path.name
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="odfctl-")))
    path = folder / "sample"
    path.write_bytes(web_bytes(source, MAX_FETCHED))
    return path, urllib.parse.urlsplit(source).path.rpartition("/")[2] or "document"


def preview(session: Session, name: str, source: dict[str, Any] | None, format_: str | None) -> int:
    """Shows the rows that an ingest of a file would read, by a source or by a format. Raises Invalid, NotFound."""
    from odfd.cli.offline.sampling.inference import guess_format, step_of
    from odfd.cli.offline.sampling.manifest import read_of
    from odfd.ingest.push import FORMATS

    path = files.existing(name)
    if source is not None:
        step = read_of(source)
    elif format_ is not None:
        if format_ not in FORMATS:
            raise Invalid(f"no format {format_!r}", rule="format", hint=f"one of {', '.join(FORMATS)}")
        step = FORMATS[format_]
    else:
        found = guess_format(path, path.name)
        step = step_of({**found.read, **({"ddlSchema": _ddl(found.columns)} if found.columns else {})})
        for unsure in found.unsure:
            session.remark(f"unsure: {unsure}")
    queried = source is not None and source.get("preprocess") is not None
    session.show(_read_sample(path, path.name, step, queried=queried), _rows_text)
    return ExitCode.OK


def _ddl(columns: tuple[tuple[str, str, tuple[str, ...]], ...]) -> list[str]:
    return [f'"{name}" {ddl}' for name, ddl, _ in columns]


def _read_sample(path: Path, name: str, step: ReadStep, *, queried: bool = False) -> dict[str, Any]:
    """Returns the columns and first rows of a file. ``queried``: a query changes the columns afterwards.

    Raises Invalid, also for columns that no dataset can have.
    """
    from chain.data.uuids import is_marked, named_all
    from engines.spark.ingest.text_columns import check_read
    from odfd.cli.offline.sampling.inference import read_sample

    found = read_sample(path, name, step, ROWS)
    if not queried:
        check_read(found.rows.schema, name, queried=False)
    return {
        "columns": [
            {"name": field.name, "type": "uuid" if is_marked(field) else str(field.type)} for field in found.rows.schema
        ],
        "rows": [
            [None if value is None else str(value) for value in row.values()]
            for row in found.rows.cast(named_all(found.rows.schema)).to_pylist()
        ],
        "remarks": list(found.remarks),
    }


def _rows_text(answer: dict[str, Any]) -> str:
    columns: list[TableColumn[list[str | None]]] = [
        TableColumn(f"{each['name']}: {each['type']}", _cell(place), most=WIDEST)
        for place, each in enumerate(answer["columns"])
    ]
    return Stack([render(columns, answer["rows"]), *answer["remarks"]])


def _cell(place: int) -> Callable[[list[str | None]], str]:
    return lambda row: row[place] or ""
