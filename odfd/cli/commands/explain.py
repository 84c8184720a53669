"""``explain`` and ``types``: show the types of resources, and the meaning of their fields."""

from __future__ import annotations

import argparse

from odfd.cli.command import Commands, argument
from odfd.cli.session import Session
from odfd.cli.table import WHOLE, Stack, TableColumn, render
from odfd.control import calls, wire

commands = Commands()


@commands.add("types", description="List the types of resources, and say which ones do not act yet.")
def _types(session: Session, _: argparse.Namespace) -> None:
    session.answer(session.client.do(calls.schemas_types()), _type_table)


def _type_table(rows: list[wire.TypeView]) -> str:
    columns: tuple[TableColumn[wire.TypeView], ...] = (
        TableColumn("NAME", lambda row: row.name),
        TableColumn("SHORT", lambda row: ", ".join((row.plural, *row.aliases))),
        TableColumn("ACTS", lambda row: "yes" if row.acts else "no"),
        TableColumn("", lambda row: row.about if row.acts else f"instead: {row.instead}", most=WHOLE),
    )
    return render(columns, rows)


@commands.add(
    "explain",
    argument("what", metavar="TYPE[.PATH]"),
    argument("--schema", action="store_true", help="print its JSON Schema"),
    description="Describe a type of resource, or a field of one: its fields, and which are required.",
    example="flow.spec.triggers",
)
def _explain(session: Session, args: argparse.Namespace) -> None:
    word, _, path = args.what.partition(".")
    found = session.client.do(calls.schemas_explain(word, path=path))
    if args.schema:
        schema = session.client.do(calls.schemas_schema(found.value.uri.partition("/schemas/")[2]))
        if session.output == "table":
            session.output = "json"
        session.answer(schema, str)
    else:
        session.answer(found, _text)


def _text(explanation: wire.Explanation) -> str:
    where = explanation.name + (f".{explanation.path}" if explanation.path else "")
    lines = [f"{where}  {explanation.type}".rstrip(), f"  {explanation.uri}"]
    lines += ["", explanation.description] if explanation.description else []
    if explanation.fields:
        columns: tuple[TableColumn[wire.FieldView], ...] = (
            TableColumn("FIELD", lambda row: row.name + ("*" if row.required else "")),
            TableColumn("TYPE", lambda row: row.type, most=60),
            TableColumn("", lambda row: row.description, most=WHOLE),
        )
        lines += ["", render(columns, explanation.fields)]
    if explanation.example:
        lines += ["", "example:", *(f"  {line}" for line in explanation.example.splitlines())]
    return Stack(lines)
