"""``label`` and ``annotate``: change what people keep beside a resource."""

from __future__ import annotations

import argparse
import json
from typing import Any

from odfd.cli import kinds
from odfd.cli.command import Commands, argument
from odfd.cli.session import Session
from odfd.control import wire
from odfd.control.client import part
from odfd.errors import Usage

commands = Commands()


_ENTRIES = (
    argument("kind", metavar="KIND"),
    argument("name", metavar="NAME"),
    argument("entries", nargs="+", metavar="KEY=VALUE|KEY-"),
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
        raise Usage(f"{kind.name}s have no {which}", hint=f"these have: {known}")
    values = dict(_entry(each) for each in args.entries)
    request = wire.LabelRequest(labels=values) if which == "labels" else wire.LabelRequest(annotations=values)
    path = f"/resources/{kind.name}/{part(args.name)}/labels"
    done = session.client.put(path, wire.ResourceView, request)
    shown = done.value.headers.get(which, {})
    session.answer(done, lambda row: f"{row.name}  {kinds.labels_text(shown)}")


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
