"""``trust authority``: shows who may sign for a dataset, and changes it with a key that is kept offline.

The offline key is read and used on this machine, and is never sent anywhere.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from chain.errors import Refused
from odfd.cli import formatting
from odfd.cli.command import REF, Commands, argument
from odfd.cli.session import Session
from odfd.cli.table import Stack, TableColumn, render
from odfd.control import calls, wire
from odfd.control.client import Answer

if TYPE_CHECKING:
    from odfd.cli.offline.keyfile import KeyFile

_OFFLINE = "file with the dataset's key"


commands = Commands()
authority = commands.group(
    "authority",
    help="who may sign for a dataset",
    description="Who may sign heads of a dataset, and which root keys decide that. A new dataset has one key for "
    "both; rotate takes it offline, and makes this node's key the only writer.",
    example="rotate nyc.flights --offline-key flights.key",
)


@authority.add("show", REF, help="print the authority that this node knows", example="nyc.flights")
def _show(session: Session, args: argparse.Namespace) -> None:
    session.answer(session.client.do(calls.authority_show_authority(args.ref)), authority_text)


@authority.add(
    "rotate",
    REF,
    argument("--offline-key", metavar="FILE", help=_OFFLINE),
    argument(
        "--reason",
        choices=("rotation", "recovery", "fork"),
        default="rotation",
        help="reason written in the epoch: planned, after a theft, or this node's history of two is kept",
    ),
    help="make this node's key the only writer",
    description=(
        "If the dataset's key is on this node, --offline-key moves it into FILE. If FILE already holds the "
        "key, that key signs: so a new node takes over a dataset after the old node's key was stolen."
    ),
    example="nyc.flights --offline-key flights.key",
)
def _rotate(session: Session, args: argparse.Namespace) -> None:
    key, moved = offline_key(args.offline_key), False
    if key is not None:
        view = session.client.do(calls.authority_show_authority(args.ref)).value
        moved = view.dataset_key == "here"
        if moved and not key.path.exists():
            key.write(session.client.do(calls.authority_dataset_key(args.ref)).value.seed)
        if moved and key.dataset() != view.dataset_id:
            raise Refused(
                f"{args.offline_key} holds another key than {args.ref}'s",
                rule="offline-key",
                hint="name a file that is not there yet",
            )
    request = wire.AuthorityDraftRequest(action="rotate", reason=args.reason)
    session.answer(_carry_out(session, args.ref, request, key, drop_key=moved), authority_text)
    if moved:
        session.remark(f"the key of {args.ref} is in {args.offline_key} and no longer on the node: keep it safe")


_WRITER = (
    REF,
    argument("key", metavar="KEY", help="did:key:…"),
    argument("--offline-key", metavar="FILE", help=_OFFLINE),
)
_DAYS = argument("--days", type=int, default=365, metavar="N", help="days that it is valid; at most 399")


@authority.add("add-writer", *_WRITER, _DAYS, help="let another key write too", example="nyc.flights did:key:z6Mk…")
def _add_writer(session: Session, args: argparse.Namespace) -> None:
    _change(session, args, wire.AuthorityDraftRequest(action="add-writer", key=args.key, days=args.days))


@authority.add("remove-writer", *_WRITER, help="remove a writer's key", example="nyc.flights did:key:z6Mk…")
def _remove_writer(session: Session, args: argparse.Namespace) -> None:
    _change(session, args, wire.AuthorityDraftRequest(action="remove-writer", key=args.key))


def _change(session: Session, args: argparse.Namespace, request: wire.AuthorityDraftRequest) -> None:
    done = _carry_out(session, args.ref, request, offline_key(args.offline_key), drop_key=False)
    session.answer(done, authority_text)


def offline_key(file: str | None) -> KeyFile | None:
    """Opens the key file of the command line; only its module imports the libraries for signing."""
    if file is None:
        return None
    from odfd.cli.offline.keyfile import KeyFile

    return KeyFile(file)


def _carry_out(
    session: Session, ref: str, request: wire.AuthorityDraftRequest, key: KeyFile | None, *, drop_key: bool
) -> Answer[wire.AuthorityView]:
    """Has the node draft the change, signs with the offline key if there is one, and has the node sign and keep it."""
    draft = session.client.do(calls.authority_draft_authority(ref, request)).value
    signatures = () if key is None else (key.signature(draft.payload),)
    change = wire.AuthorityRequest(payload=draft.payload, signatures=signatures, drop_key=drop_key)
    return session.client.do(calls.authority_change_authority(ref, change))


def authority_text(view: wire.AuthorityView) -> str:
    where = {"here": "on this node", "offline": "offline", "elsewhere": "not on this node"}[view.dataset_key]
    lines = [
        f"{view.ref}   {formatting.identity(view.dataset_id)}   version {view.version}, epoch {view.epoch}",
        f"  Its key is {where}. Roots: {view.threshold} of {', '.join(view.roots)}",
        "",
    ]
    columns: tuple[TableColumn[wire.WriterView], ...] = (
        TableColumn("WRITER", lambda row: row.key),
        TableColumn("UNTIL", lambda row: row.expires_at or formatting.NOTHING),
        TableColumn("", lambda row: "this node" if row.mine else ""),
    )
    lines.append(render(columns, view.writers).indent_by(2))
    for epoch in view.epochs:
        given_up = epoch.ended - epoch.kept
        kept = "no block dropped" if not given_up else f"{formatting.plural(given_up, 'block')} dropped"
        lines.append(f"  Epoch {epoch.number}: {epoch.reason} at block {epoch.kept}, {kept}")
    if view.disputed:
        lines.append("  Two different statements of this version are known: no heads are followed until it is resolved")
    return Stack(lines)
