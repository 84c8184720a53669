"""Describes exported rows by documents of standards beside their files, for which packages add the formats.

The facts are from the daemon, and from the written files. Such a document is passed on with its files, so it names no
input that this node keeps private.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from chain.errors import NotFound
from odfd.cli import formatting, kinds
from odfd.cli.new_file import NewFile
from odfd.cli.sql.output_file import Exported
from odfd.control import calls, wire
from odfd.errors import Usage, unwritable
from odfd.runtime.extensions import ExportFormats

if TYPE_CHECKING:
    from odfd.control.client import ControlClient

FORMS: Final = ("csv", "ndjson", "parquet")
"""Formats of rows that a document can describe: readers of the standards know these."""
FORMATS: Final = ExportFormats("describe")
_PIECE: Final = 1 << 20


class DescribedFile(NamedTuple):
    """A written file of rows, with its size and hash."""

    name: str
    bytes: int
    sha256: str


class DescribedColumn(NamedTuple):
    """A column of exported rows."""

    name: str
    type: str
    """Type as Arrow spells it: ``decimal128(5, 2)``."""
    comment: str
    required: bool


class Described(NamedTuple):
    """Exported rows of one dataset, with facts about the dataset."""

    detail: wire.DatasetDetail
    head: wire.QueryHead
    form: str
    """Format of the files: ``csv``, ``ndjson`` or ``parquet``."""
    files: Sequence[DescribedFile]
    columns: Sequence[DescribedColumn]
    key: Sequence[str]
    """Columns of which no two rows have equal values; empty: none are known."""
    sources: Sequence[tuple[str, str]]
    """Name and id of each input that this node shows to others."""
    unnamed: int
    """Number of inputs that are not in ``sources``."""

    @property
    def provenance(self) -> dict[str, Any]:
        """The blocks that the rows were read from, and how far these may be relied on here."""
        pins = [
            {"dataset": pin.id, "block": pin.block, "sequenceNumber": pin.sequence_number} for pin in self.head.pins
        ]
        return {"id": self.detail.dataset.id, "readFrom": pins, "standing": self.head.standing}

    @property
    def license_url(self) -> str:
        """The licence's URL; empty if there is none, or it is no web address: chains are not trusted."""
        url = self.detail.license.website_url if self.detail.license else ""
        return url if url.startswith(("https://", "http://")) else ""


class DocumentFormat(NamedTuple):
    """A standard for documents about exported rows."""

    title: str
    file: str
    """Name of the document."""
    make: Callable[[Described], dict[str, Any]]
    one_file: bool = False
    """Whether it describes one file of rows alone."""
    list_omitted: Callable[[Described], Sequence[str]] = lambda _: ()
    """Returns the columns for which the standard has no type."""


def check_documents(args: argparse.Namespace, form: str) -> list[NewFile]:
    """Checks the requested documents before any row is read, and returns their files. Raises Usage, Invalid."""
    formats = _formats(args)
    if formats and form not in FORMS:
        raise Usage(f"rows as {form} are not described", hint=f"--format {' or '.join(FORMS)}")
    for title in (format_.title for format_ in formats if format_.one_file and args.rows_per_file is not None):
        raise Usage(f"{title} describes one file of rows", hint="leave out --rows-per-file, or --describe frictionless")
    folder = Path(args.to).expanduser().parent
    return [NewFile(folder / format_.file, replace=args.replace) for format_ in formats]


def _formats(args: argparse.Namespace) -> list[DocumentFormat]:
    return [FORMATS.load(name) for name in dict.fromkeys(args.describe)]


def write_documents(
    client: ControlClient, args: argparse.Namespace, form: str, exported: Exported, places: Sequence[NewFile]
) -> list[str]:
    """Writes each document of ``args.describe`` once, and returns remarks for people."""
    rows = describe(client, args.ref, form, exported, current=args.current)
    remarks = []
    formats = _formats(args)
    for each, place in zip(formats, places, strict=True):
        place.write(json.dumps(each.make(rows), indent=2, ensure_ascii=False) + "\n")
        remarks.append(f"described in {each.file}")
    for format_ in formats:
        if without := format_.list_omitted(rows):
            columns = formatting.plural(len(without), "column")
            remarks.append(f"{format_.file} has no type for {columns}: {', '.join(without)}")
    if rows.unnamed:
        remarks.append(f"{formatting.plural(rows.unnamed, 'input')} not named: private, or not held here")
    return remarks


def describe(client: ControlClient, ref: str, form: str, exported: Exported, *, current: bool) -> Described:
    """Requests the dataset's details from the daemon, and hashes the files.

    ``current``: the rows are those that hold, so that the primary key of the source is unique among them too.
    """
    detail = client.do(calls.datasets_describe(ref)).value
    schema = client.do(calls.datasets_schema(ref)).value
    fields = {field.name: field for field in schema.fields}
    names = [name for name, _ in exported.columns]
    sources = _shown_inputs(client, detail.input_ids)
    key = _primary_key(detail.source) if current else []
    return Described(
        detail=detail,
        head=exported.head,
        form=form,
        files=[_file(path) for path in exported.files],
        columns=[_column(name, kind, fields.get(name)) for name, kind in exported.columns],
        key=key if set(key) <= set(names) else [],
        sources=sources,
        unnamed=len(detail.inputs) - len(sources),
    )


def _column(name: str, kind: str, field: wire.Column | None) -> DescribedColumn:
    return DescribedColumn(name, kind, field.comment if field else "", bool(field and not field.optional))


def _primary_key(source: dict[str, Any] | None) -> list[str]:
    merge = (source or {}).get("merge")
    key = merge.get("primaryKey") if isinstance(merge, dict) else None
    return [str(each) for each in key] if isinstance(key, list) else []


def _shown_inputs(client: ControlClient, ids: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the inputs that this node shows to others; one that is not held here is not known to be public."""
    shown = []
    for id_ in ids:
        try:
            view = kinds.dataset_view(client, id_)
        except NotFound:
            continue
        if view.published:
            shown.append((view.name, view.id))
    return shown


def _file(path: Path) -> DescribedFile:
    digest, size = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while data := file.read(_PIECE):
                digest.update(data)
                size += len(data)
    except OSError as error:
        raise unwritable(path, error, "export-file") from error
    return DescribedFile(path.name, size, digest.hexdigest())
