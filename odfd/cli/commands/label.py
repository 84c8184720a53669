"""``label`` and ``annotate``: change what people keep beside a resource."""

from __future__ import annotations

import argparse
import json
from typing import Any

from odfd.cli import kinds
from odfd.cli.parsers import Subparsers
from odfd.cli.session import Session
from odfd.control import wire
from odfd.control.client import part
from odfd.errors import ExitCode, Usage


def register(subparsers: Subparsers) -> None:
    for command, part_, text in (
        ("label", "labels", "Set labels, by which odfctl get -l selects. KEY- takes one away."),
        ("annotate", "annotations", "Set annotations, which are not selected by. KEY- takes one away."),
    ):
        parser = subparsers.add_parser(
            command,
            help=f"set {part_} of a resource",
            description=f"{text} A value is text, or JSON such as 3, true or [1, 2].",
            epilog=f"example:  odfctl {command} dataset nyc.flights env=prod old-",
        )
        parser.add_argument("kind", metavar="KIND")
        parser.add_argument("name", metavar="NAME")
        parser.add_argument("entries", nargs="+", metavar="KEY=VALUE|KEY-")
        parser.set_defaults(run=_set, part=part_)


def _set(args: argparse.Namespace) -> int:
    session, kind = Session(args), kinds.find(args.kind)
    if kind not in kinds.DECLARED:
        known = ", ".join(each.name for each in kinds.DECLARED)
        raise Usage(f"{kind.name}s have no {args.part}", hint=f"these have: {known}")
    values = dict(_entry(each) for each in args.entries)
    request = wire.LabelRequest(labels=values) if args.part == "labels" else wire.LabelRequest(annotations=values)
    path = f"/resources/{kind.name}/{part(args.name)}/labels"
    done = session.client.put(path, wire.ResourceView, request)
    shown = done.value.headers.get(args.part, {})
    session.answer(done, lambda row: f"{row.name}  {kinds.labels_text(shown)}")
    return ExitCode.OK


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
