"""``rendition``: makes the history of a dataset anew beside the old one, and switches its readers at one time.

``--rendition`` of other commands chooses the history that is read; ``read_of`` says which it is.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

from chain.errors import NotFound
from odfd.cli.command import REF, YES, Commands, argument, confirm
from odfd.cli.progress import submit
from odfd.cli.session import Session
from odfd.control import calls, wire
from odfd.control.client import Answer

commands = Commands()
rendition = commands.group(
    "rendition",
    description="A rendition is one history of a dataset, decoded from its captured bytes (odfctl raw), or begun"
    " with what it contains now. A new one is made beside the old one while readers continue; a handover makes it the"
    " active one at one time.",
    example="create nyc.flights",
)
_ID = argument("--id", metavar="ID", help="of the command: repeated with it, it continues where it was")
_NUMBER = argument("number", type=int, metavar="N", help="of the rendition")


@rendition.add(
    "create",
    REF,
    argument("--from", dest="origin", default="raw", choices=("raw", "snapshot"), help="what it is made from (raw)"),
    argument("--shards", type=int, metavar="N", help="chains that its rows are in (as now)"),
    argument("--by", metavar="COLUMN,…", help="columns whose hash decides the shard of a row"),
    _ID,
    help="make a rendition, from captured bytes or a snapshot",
    description="From raw: decode the captured bytes again, each at its time, by the source as it is declared now. From"
    " snapshot: begin a history with the current rows, in one slice for each shard. Readers see nothing of it"
    " until a handover.",
    example="nyc.flights",
)
def _create(session: Session, args: argparse.Namespace) -> None:
    by = tuple(args.by.split(",")) if args.by else ()
    request = wire.RenditionRequest(origin=args.origin, id=args.id, shards=args.shards, by=by)
    done = submit(session, calls.renditions_create(args.ref, request), wire.RenditionView)
    session.answer(done, lambda row: f"rendition {row.number} is {row.dataset}, made from {row.origin}")


@rendition.add(
    "handover",
    REF,
    _NUMBER,
    argument("--at", metavar="TIME", help="not before this time, which must not be in the future"),
    argument("--difference", action="store_true", help="keep what differs, so that no reader compares all rows"),
    _ID,
    help="make a rendition the active one",
    description="Make a rendition the active one, at one time: from then on the name means it, and new rows are added"
    " to it. The former one is called NAME.rN, and can become active again for an hour; its data is deleted after a"
    " week, unless a reader holds it.",
    example="nyc.flights 1",
)
def _handover(session: Session, args: argparse.Namespace) -> None:
    request = wire.HandoverRequest(at=args.at, id=args.id, difference=args.difference)
    done = submit(session, calls.renditions_hand_over(args.ref, str(args.number), request), wire.RenditionView)
    session.answer(done, lambda row: f"{row.dataset} is rendition {row.number} from {row.active_since} on")


@rendition.add(
    "abandon",
    REF,
    _NUMBER,
    YES,
    help="delete one that was never active",
    description="Delete a rendition that was never active. Its number is not used again. Number 0 of NAME.hK is the"
    " recorded difference of a handover.",
    example="nyc.flights 1 --yes",
)
def _abandon(session: Session, args: argparse.Namespace) -> None:
    if not args.yes and _can_abandon(session, args.ref, args.number):
        confirm(f"Delete rendition {args.number} of {args.ref}?", f"rendition {args.number} stays")
    gone = session.client.do(calls.renditions_abandon(args.ref, str(args.number)))
    session.answer(gone, lambda row: f"rendition {row.number} is abandoned")


def _can_abandon(session: Session, ref: str, number: int) -> bool:
    """Whether it is still being built, or is a difference, so that the user is asked. Raises NotFound."""
    rows = session.client.do(calls.renditions_list(ref)).value
    return any(row.number == number and (row.state == "Building" or row.origin == "difference") for row in rows)


RENDITION: Final = argument("--rendition", type=int, metavar="N", help="of this rendition (the active one)")
_ACTIVE: Final = "Active"


def read_of(session: Session, ref: str, args: argparse.Namespace) -> str:
    """Returns the name of the rendition to read, and remarks on which it is if the dataset has several.

    Raises NotFound for a number that the dataset does not have.
    """
    views = [each for each in session.client.do(calls.renditions_list(ref)).value if each.dataset]
    meant = next((view for view in views if ref in (view.dataset, view.dataset_id)), None)
    if args.rendition is not None:
        meant = next((view for view in views if view.number == args.rendition), None)
        if meant is None:
            there = ", ".join(f"{view.number} ({view.state.lower()})" for view in views)
            text = f"{ref} has no rendition {args.rendition}"
            raise NotFound(text, rule="rendition-unknown", hint=f"it has {there}")
    meant = meant or next(view for view in views if view.state == _ACTIVE)
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
    return next(view.number for view in views if view.state == _ACTIVE)
