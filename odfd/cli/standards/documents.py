"""Writes documents about exported rows beside their files."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from odfd.cli import formatting
from odfd.cli.sql.output_file import Exported
from odfd.cli.standards import croissant, frictionless
from odfd.cli.standards.described import Described, described
from odfd.errors import Usage, unwritable

if TYPE_CHECKING:
    from odfd.control.client import Client

FORMS: Final = ("csv", "ndjson", "parquet")
"""Formats of rows that a document can describe: readers of the standards know these."""
_DOCUMENTS: Final[Mapping[str, tuple[str, Callable[[Described], dict[str, Any]]]]] = {
    "frictionless": (frictionless.FILE, frictionless.package),
    "croissant": (croissant.FILE, croissant.dataset),
}


def check_documents(names: Sequence[str], form: str, rows_per_file: int | None) -> None:
    """Checks the requested documents before any row is read. Raises Usage."""
    if names and form not in FORMS:
        raise Usage(f"rows as {form} are not described", hint=f"--format {' or '.join(FORMS)}")
    if "croissant" in names and rows_per_file is not None:
        raise Usage(
            "Croissant describes one file of rows", hint="leave out --rows-per-file, or --describe frictionless"
        )


def write_documents(client: Client, args: argparse.Namespace, form: str, exported: Exported) -> list[str]:
    """Writes each document of ``args.describe`` once, and returns remarks for people.

    A document of an earlier export in the same folder is replaced, as its file of rows is.
    """
    rows = described(client, args.ref, form, exported, current=args.current)
    folder = exported.files[0].parent
    remarks = []
    for name in dict.fromkeys(args.describe):
        file, make = _DOCUMENTS[name]
        _write(folder / file, make(rows))
        remarks.append(f"described in {file}")
    if "croissant" in args.describe and (without := croissant.omitted(rows)):
        remarks.append(
            f"{croissant.FILE} has no type for {formatting.plural(len(without), 'column')}: {', '.join(without)}"
        )
    if rows.unnamed:
        remarks.append(f"{formatting.plural(rows.unnamed, 'input')} not named: private, or not held here")
    return remarks


def _write(place: Path, document: dict[str, Any]) -> None:
    """Writes a document whole or not at all. Raises Usage or Environment for errors of the disk."""
    part = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        part.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        part.replace(place)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise unwritable(place, error, "export-file") from error
