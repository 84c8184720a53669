"""``explain`` and ``types``: show the types of resources, the meaning of their fields, and that of rules."""

from __future__ import annotations

import argparse
import difflib
import textwrap
from typing import Final

from chain.errors import NotFound
from odfd.cli import kinds
from odfd.cli.command import Commands, argument
from odfd.cli.session import Session
from odfd.cli.table import WHOLE, Stack, TableColumn, render
from odfd.control import calls, wire
from odfd.errors import Usage
from odfd.rules import ExplainedRule, rules

_WIDTH: Final = 100

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
    argument("what", metavar="TYPE[.PATH]|RULE"),
    argument("--rule", action="store_true", help="it is a rule; needed where a type has the same name"),
    argument("--schema", action="store_true", help="print the JSON Schema of a type"),
    description="Describe a type of resource, or a field of one: its fields, and which are required. Or explain a "
    "rule, whose name ends each error message: its meaning, and what to do. Rules need no daemon.",
    example="flow.spec.triggers\nblock-hash",
)
def _explain(session: Session, args: argparse.Namespace) -> None:
    word, _, path = args.what.partition(".")
    if args.rule or _is_rule(args.what):
        if args.schema:
            raise Usage("a rule has no JSON Schema", hint="leave out --schema")
        _explain_rule(session, args.what)
        return
    found = session.client.do(calls.schemas_explain(word, path=path))
    if args.schema:
        schema = session.client.do(calls.schemas_schema(found.value.uri.partition("/schemas/")[2]))
        if session.output == "table":
            session.output = "json"
        session.answer(schema, str)
        return
    session.answer(found, _text)
    if args.what in rules():
        session.remark(f"a rule has this name too: odfctl explain --rule {args.what}")


def _is_rule(word: str) -> bool:
    """Whether a word names a rule and no type, or is written as only rules are."""
    typed = (*kinds.DECLARED, *kinds.LIVE)
    types = {name for kind in typed for name in (kind.name, kind.plural, *kind.aliases)}
    return word.lower() not in types and (word in rules() or "-" in word.partition(".")[0])


def _explain_rule(session: Session, name: str) -> None:
    rule = rules().get(name)
    if rule is None:
        near = difflib.get_close_matches(name, rules(), 3)
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        raise NotFound(
            f"there is no rule {name[:80]!r}",
            rule="rule-name",
            hint=f"{meant}odfctl docs rules lists all; rules in the words of Spark are named as Spark's conditions are",
        )
    told = {"rule": rule.name, "meaning": rule.meaning, "whatToDo": rule.remedy}
    session.show(told, lambda _: _rule_text(rule))


def _rule_text(rule: ExplainedRule) -> str:
    meaning, remedy = (textwrap.wrap(text, _WIDTH, break_on_hyphens=False) for text in (rule.meaning, rule.remedy))
    return Stack([f"{rule.name}  rule", "", *meaning, "", "what to do:", *(f"  {line}" for line in remedy)])


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
