"""``label`` and ``annotate``: set what a resource is selected and described by."""

from __future__ import annotations

import argparse
import json
from typing import Any

from odfd.cli import kinds, resource_tables
from odfd.cli.command import Commands, argument
from odfd.cli.selection import BY_LABELS, list_labelled, meant_by, several
from odfd.cli.session import Session
from odfd.control import calls, wire
from odfd.control.client import Answer
from odfd.errors import Usage

commands = Commands()

_ENTRIES = (
    argument("kind", metavar="KIND"),
    argument("name", metavar="NAME", help="or a pattern: %% for any text, _ for a character; none with -l"),
    argument("entries", nargs="*", metavar="KEY=VALUE|KEY-"),
    BY_LABELS,
)
_VALUE = " A value is text, or JSON such as 3, true or [1, 2]."


@commands.add(
    "label",
    *_ENTRIES,
    description="Set labels, by which odfctl get -l selects. KEY- takes one away." + _VALUE,
    example="dataset nyc.flights env=prod old-",
)
def _label(session: Session, args: argparse.Namespace) -> None:
    _set(session, args, "labels")


@commands.add(
    "annotate",
    *_ENTRIES,
    description="Set annotations, which are not selected by. KEY- takes one away." + _VALUE,
    example="dataset nyc.flights env=prod old-",
)
def _annotate(session: Session, args: argparse.Namespace) -> None:
    _set(session, args, "annotations")


def _set(session: Session, args: argparse.Namespace, which: str) -> None:
    kind = kinds.find(args.kind)
    if kind not in kinds.DECLARED:
        known = ", ".join(each.name for each in kinds.DECLARED)
        raise Usage(f"{kind.plural} have no {which}", hint=f"these have: {known}")
    command = "label" if which == "labels" else "annotate"
    entries = args.entries if args.labels is None else [args.name, *args.entries]
    if not entries:
        raise Usage("the following arguments are required: KEY=VALUE|KEY-", hint=f"see odfctl {command} --help")
    values = dict(_entry(each) for each in entries)
    request = wire.LabelRequest(labels=values) if which == "labels" else wire.LabelRequest(annotations=values)
    if args.labels is None:
        names = meant_by(session, kind, [args.name]) or []
    else:
        names = [kind.key(each) for each in list_labelled(session, kind, args.labels).value]
    assert kind.registration is not None
    done = [session.client.do(calls.resources_label(kind.registration, each, request)) for each in names]
    if not done:
        session.remark(f"no {kind.plural} are so; nothing was changed")
    text = "\n".join(
        f"{each.value.name}  {resource_tables.labels_text(each.value.headers.get(which, {}))}" for each in done
    )
    told: Answer[Any] = done[0] if len(done) == 1 else several(done)
    if done:
        session.answer(told, lambda _: text)


def _entry(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals and text.endswith("-"):
        return text[:-1], None
    if not equals or not key:
        raise Usage(f"not KEY=VALUE or KEY-: {text[:60]!r}", hint="like env=prod, or env- to take it away")
    try:
        found = json.loads(value)
    except ValueError:
        return key, value
    return key, value if found is None else found
