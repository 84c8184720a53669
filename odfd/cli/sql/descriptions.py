"""Answers ``DESCRIBE NAME`` and ``SHOW TABLES`` from the node's metadata, without a query."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from odfd import output
from odfd.cli.dataset_text import schema_table
from odfd.cli.table import TableColumn, render
from odfd.control import calls, wire
from odfd.errors import Usage
from odfd.resources.registry import state

if TYPE_CHECKING:
    from odfd.control.client import ControlClient

_ASKED: Final = re.compile(r'\s*(?:show\s+(?:tables|datasets)|desc(?:ribe)?(?:\s+"([^"]+)"|\s+(\S+))?)[\s;]*\Z', re.I)
_DATASETS: Final[tuple[TableColumn[wire.ResourceManifest], ...]] = (
    TableColumn("NAME", lambda row: row.name),
    TableColumn("KIND", lambda row: state(row).get("kind", "")),
    TableColumn("RECORDS", lambda row: f"{state(row)['records']:,}" if "records" in state(row) else "", right=True),
    TableColumn("RELY ON", lambda row: state(row).get("relyOn", {}).get("fact", "")),
)


def described_dataset(statement: str) -> str | None:
    """Returns the dataset to describe; empty for all of them, ``None`` for another statement."""
    found = _ASKED.match(statement)
    return None if found is None else found[1] or (found[2] or "").rstrip(";").replace('"', "")


def describe(client: ControlClient, name: str, form: str) -> None:
    """Shows the columns of a dataset with their comments, or the list of datasets."""
    if form not in ("table", "json"):
        raise Usage(f"descriptions are not written as {form}", hint="table or json")
    if name:
        schema = client.do(calls.datasets_schema(name.removeprefix("current."))).value
        _print(schema, schema_table(schema.fields), form)
    else:
        from odfd.cli import kinds  # which loads much, and a query needs nothing of it

        datasets = kinds.list_resources(client, kinds.DATASET)
        _print(datasets.value, render(_DATASETS, datasets.value), form)


def _print(value: object, text: str, form: str) -> None:
    if form == "json":
        import msgspec

        output.say_json(msgspec.json.encode(value).decode())
    else:
        output.say(text)
