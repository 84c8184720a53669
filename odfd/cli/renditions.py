"""``--rendition``: chooses the history of a dataset that a command reads, and says which it is."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

from chain.errors import NotFound
from odfd.cli.command import argument
from odfd.cli.session import Session
from odfd.control import calls, wire
from odfd.control.client import Answer

RENDITION: Final = argument("--rendition", type=int, metavar="N", help="of this rendition (the active one)")
_ACTIVE: Final = "Active"


def read_of(session: Session, ref: str, args: argparse.Namespace) -> str:
    """Returns the name of the rendition to read, and remarks on which it is if the dataset has several.

    Raises NotFound for a number that the dataset does not have.
    """
    views = [each for each in session.client.do(calls.renditions_list(ref)).value if each.dataset]
    meant = next((each for each in views if ref in (each.dataset, each.dataset_id)), None)
    if args.rendition is not None:
        meant = next((each for each in views if each.number == args.rendition), None)
        if meant is None:
            there = ", ".join(f"{each.number} ({each.state.lower()})" for each in views)
            text = f"{ref} has no rendition {args.rendition}"
            raise NotFound(text, rule="rendition-unknown", hint=f"it has {there}")
    meant = meant or next(each for each in views if each.state == _ACTIVE)
    if len(views) > 1:
        others = "" if meant.state == _ACTIVE else f"; the active one is {_active(views)}"
        session.remark(f"read of {ref}: rendition {meant.number} ({meant.state.lower()}){others}")
    return ref if args.rendition is None else meant.dataset


def renditions_of(session: Session, refs: Sequence[str]) -> Answer[list[wire.RenditionView]]:
    """Returns all renditions of datasets; a name inside one (``NAME.rN``), or the id of a chain, means one rendition.

    Raises NotFound.
    """
    pairs: list[tuple[wire.RenditionView, object]] = []
    for ref in refs:
        answer = session.client.do(calls.renditions_list(ref))
        found = list(zip(answer.value, answer.sent, strict=True))
        whole = [view.dataset for view in answer.value if view.state == _ACTIVE]
        one = [pair for pair in found if ref in (pair[0].dataset, pair[0].dataset_id, *pair[0].shards)]
        pairs += found if ref in whole or not one else one
    return Answer([view for view, _ in pairs], [sent for _, sent in pairs])


def _active(views: list[wire.RenditionView]) -> int:
    return next(each.number for each in views if each.state == _ACTIVE)
