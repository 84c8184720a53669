"""``export``, ``import``: write whole datasets as directories, and import them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from odfd import output
from odfd.cli import formatting
from odfd.cli.command import REF, REPLACE, Commands, argument
from odfd.cli.commands.rendition import RENDITION, read_of
from odfd.cli.progress import Meter, submit
from odfd.cli.session import Session
from odfd.cli.sql.read_options import TIMES, all_rows, is_cut, source, without_places
from odfd.control import calls, wire
from odfd.errors import ExitCode, Usage
from odfd.runtime.extensions import ExportFormats
from odfd.usage import how_many

if TYPE_CHECKING:
    from odfd.cli.sql.output_file import Exported
    from odfd.control.client import ControlClient

FORMS: Final = ("csv", "ndjson", "parquet", "arrow", "xlsx")
UNWRITTEN: Final = frozenset(
    ("json", "jsonl", "tsv", "txt", "xls", "ods", "orc", "avro", "feather", "yaml", "md", "zip")
)
"""Endings of files that people may expect, though they are not written; no directory is called so."""
HUB: Final = "huggingface"
"""A folder of rows, with its card, as repositories of datasets have it."""
FORMATS: Final = ExportFormats("format", *FORMS)
DOCUMENTS: Final = ExportFormats("describe")
STANDARD_OUTPUT: Final = "-"


commands = Commands()


def _place(text: str) -> str:
    """Returns a path as the daemon must see it, absolute; a URL unchanged."""
    return text if "://" in text else str(Path(text).expanduser().resolve())


class FolderExport(Protocol):
    """A folder of rows, by a standard. Made with the command's arguments; raises Usage, Invalid for what cannot be."""

    def write(self, client: ControlClient, told: Callable[[int, int], None]) -> tuple[Exported, Sequence[str]]:
        """Writes it, and returns the answer and remarks. ``told`` takes the numbers of rows and bytes."""


@commands.add(
    "export",
    REF,
    argument("to", metavar="DIR|URL|FILE", help="- prints the rows that --format asks for"),
    argument(
        "--format",
        choices=FORMATS,
        metavar="FORMAT",
        help=f"write rows, as {', '.join(FORMS)}; {HUB}: Parquet and a dataset card in DIR",
    ),
    argument(
        "--rows-per-file",
        type=how_many,
        metavar="N",
        help="with --format: write FILE-00001, FILE-00002, … with N rows each",
    ),
    argument(
        "--describe",
        action="append",
        default=[],
        choices=DOCUMENTS,
        metavar="STANDARD",
        help="with rows: also write a document about them, frictionless or croissant; repeatable",
    ),
    REPLACE,
    argument("--no-proof", action="store_true", help=f"with {HUB}: leave out the signed statement about the rows"),
    argument("--table", choices=("delta",), help="also write metadata of a Delta Lake table beside the slices"),
    RENDITION,
    *TIMES,
    description="Write a dataset in the ODF layout, with its signed statements. The daemon writes the folder, so its "
    "user needs the right to. Served by any web server, the folder can be imported and mirrored by "
    "others. With --format, or if FILE ends with a format's name, odfctl writes rows: of the log, or what "
    "holds (--current), at a time. An existing directory, or a path that ends with /, is always a "
    "directory.",
    example=(
        "nyc.flights ./out\n"
        "weather may.csv --current --as-of 2024-05-01\n"
        "weather rows.parquet --describe frictionless --describe croissant\n"
        "weather ./lake --table delta\n"
        f"weather ./hub --format {HUB}"
    ),
)
def _export(session: Session, args: argparse.Namespace) -> int:
    form = args.format or _form_of(args.to)
    is_folder = form not in ("", *FORMS)
    if args.no_proof and not is_folder:
        raise Usage(f"--no-proof is about a folder of {HUB}", hint=f"--format {HUB}")
    if form and args.table and (not is_folder or args.to == STANDARD_OUTPUT):
        raise Usage("--table is about a directory with slices", hint="leave out --format, and name a directory")
    if not form and args.to != STANDARD_OUTPUT:
        _check_folder(args)
    args.ref = read_of(session, args.ref, args)
    if is_folder and args.to != STANDARD_OUTPUT:
        return _folder(session, args, form)
    if args.to == STANDARD_OUTPUT:
        return _print_rows(session, args, form)
    if form:
        return _rows(session, args, form)
    request = wire.ExportRequest(to=_place(args.to), table=args.table)
    done = submit(session, calls.flow_export(args.ref, request), wire.TransferResult)
    session.answer(done, _export_text)
    if args.table:
        version = done.value.table_version
        session.remark("no rows yet: no table" if version is None else f"Delta table: version {version}")
    return ExitCode.OK


def _check_folder(args: argparse.Namespace) -> None:
    """Raises Usage for options that are about rows."""
    if args.rows_per_file is not None:
        raise Usage("a directory holds all blocks as they are", hint="--format parquet writes rows, so many a file")
    if args.describe:
        raise Usage("--describe is about a file of rows", hint="--format csv, ndjson or parquet writes one")
    if is_cut(args):
        raise Usage("a directory holds all blocks as they are", hint="--format csv writes the rows of a time")


def _export_text(done: wire.TransferResult) -> str:
    if _is_nothing(done):
        return f"nothing new: {done.place} has all of {done.ref}"
    return f"exported {_sizes_text(done)} to {done.place}"


def _form_of(to: str) -> str:
    """Returns a file's form by its ending; empty for a directory or a URL. Raises Usage for other forms."""
    ending = Path(to).suffix.removeprefix(".").lower()
    is_file = "://" not in to and not to.endswith("/") and not Path(to).expanduser().is_dir()
    if is_file and ending in UNWRITTEN:
        raise Usage(f"no file of the form {ending} is written", hint=f"{', '.join(FORMS)}; {to}/ is a directory")
    return ending if is_file and ending in FORMS else ""


def _print_rows(session: Session, args: argparse.Namespace, form: str) -> int:
    """Writes rows to standard output. Raises Usage for what only files can be."""
    from odfd.cli.sql.formats import FORMATS, answer, check_form, remarks_of

    printed = tuple(each for each in FORMS if each in FORMATS)
    if form not in printed or args.rows_per_file is not None or args.describe:
        raise Usage("standard output takes rows, as one file", hint=f"--format {' or '.join(printed)}")
    check_form(form)
    with without_places():
        answered = answer(session.client, wire.QueryRequest(sql=all_rows(source(args.ref, args))), form)
    for line in remarks_of(answered.head, answered.rows):
        session.remark(line)
    return ExitCode.OK


def _rows(session: Session, args: argparse.Namespace, form: str) -> int:
    from odfd.cli.descriptions import check_documents, write_documents
    from odfd.cli.sql.formats import remarks_of
    from odfd.cli.sql.output_file import Destination, to_files

    documents = check_documents(args, form)
    request = wire.QueryRequest(sql=all_rows(source(args.ref, args)))
    with _meter_rows(session, args) as show, without_places():
        place = Destination(Path(args.to).expanduser(), args.rows_per_file, args.replace)
        written = to_files(session.client, request, form, place, show)
    told: list[str] = []
    if args.describe:
        told = write_documents(session.client, args, form, written, documents)
    for line in (*remarks_of(written.head, written.rows), *written.remarks, *told):
        session.remark(line)
    return ExitCode.OK


def _folder(session: Session, args: argparse.Namespace, form: str) -> int:
    from odfd.cli.sql.formats import remarks_of

    folder: FolderExport = FORMATS.load(form)(args)
    with _meter_rows(session, args) as show:
        written, told = folder.write(session.client, show)
    for line in (*remarks_of(written.head, written.rows), *written.remarks, *told):
        session.remark(line)
    return ExitCode.OK


@contextmanager
def _meter_rows(session: Session, args: argparse.Namespace) -> Iterator[Callable[[int, int], None]]:
    """Shows how many rows were written; yields the function that takes the numbers of rows and bytes."""
    meter = Meter(session, output.error_stream())

    def show(rows: int, size: int) -> None:
        message = f"{formatting.plural(rows, 'row')} to {args.to}"
        meter.show(
            wire.TaskState(kind="export", target=args.ref, state="running", message=message, done=size, unit="bytes")
        )

    try:
        yield show
    finally:
        meter.clear()


@commands.add(
    "import",
    argument("source", metavar="DIR|URL"),
    argument("--as", dest="as_name", metavar="NAME", help="local name"),
    description="Import a dataset from the ODF layout as it is now; everything is verified first. URL is "
    "https://HOST/FOLDER, ipfs://CID or ipns://NAME. An interrupted import resumes where it stopped.",
    example="https://data.example/nyc.flights --as flights",
)
def _import(session: Session, args: argparse.Namespace) -> None:
    request = wire.ImportRequest(source=_place(args.source), as_name=args.as_name)
    done = submit(session, calls.flow_import(request), wire.TransferResult)
    session.answer(done, _import_text)


def _import_text(done: wire.TransferResult) -> str:
    compared = "" if done.compared is None else f"\n{done.compared}"
    if _is_nothing(done):
        return f"nothing new: {done.ref} has all of {done.place}{compared}"
    return f"imported {_sizes_text(done)} from {done.place}{compared}"


def _is_nothing(done: wire.TransferResult) -> bool:
    return not (done.blocks or done.objects or done.bytes)


def _sizes_text(done: wire.TransferResult) -> str:
    counted = f"{formatting.plural(done.blocks, 'block')}, {formatting.plural(done.objects, 'object')}"
    return f"{done.ref}: {counted}, {formatting.size(done.bytes)},"
