"""Writes documents about exported rows beside their files."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from odfd.cli import formatting
from odfd.cli.new_file import NewFile
from odfd.cli.sql.output_file import Exported
from odfd.cli.standards import croissant, frictionless
from odfd.cli.standards.described import Described, describe
from odfd.errors import Usage

if TYPE_CHECKING:
    from odfd.control.client import Client

FORMS: Final = ("csv", "ndjson", "parquet")
"""Formats of rows that a document can describe: readers of the standards know these."""
_DOCUMENTS: Final[Mapping[str, tuple[str, Callable[[Described], dict[str, Any]]]]] = {
    "frictionless": (frictionless.FILE, frictionless.package),
    "croissant": (croissant.FILE, croissant.dataset),
}


def check_documents(args: argparse.Namespace, form: str) -> list[NewFile]:
    """Checks the requested documents before any row is read, and returns their files. Raises Usage, Invalid."""
    names, rows_per_file = args.describe, args.rows_per_file
    if names and form not in FORMS:
        raise Usage(f"rows as {form} are not described", hint=f"--format {' or '.join(FORMS)}")
    if "croissant" in names and rows_per_file is not None:
        raise Usage(
            "Croissant describes one file of rows", hint="leave out --rows-per-file, or --describe frictionless"
        )
    folder = Path(args.to).expanduser().parent
    return [NewFile(folder / _DOCUMENTS[name][0], replace=args.replace) for name in dict.fromkeys(names)]


def write_documents(
    client: Client, args: argparse.Namespace, form: str, exported: Exported, places: Sequence[NewFile]
) -> list[str]:
    """Writes each document of ``args.describe`` once, and returns remarks for people."""
    rows = describe(client, args.ref, form, exported, current=args.current)
    remarks = []
    for name, place in zip(dict.fromkeys(args.describe), places, strict=True):
        file, make = _DOCUMENTS[name]
        place.write(json.dumps(make(rows), indent=2, ensure_ascii=False) + "\n")
        remarks.append(f"described in {file}")
    if "croissant" in args.describe and (without := croissant.list_omitted(rows)):
        remarks.append(
            f"{croissant.FILE} has no type for {formatting.plural(len(without), 'column')}: {', '.join(without)}"
        )
    if rows.unnamed:
        remarks.append(f"{formatting.plural(rows.unnamed, 'input')} not named: private, or not held here")
    return remarks
