"""``get``, ``describe``, ``delete``: list, show and remove things of every kind."""

from __future__ import annotations

import argparse
from typing import Any

from chain.errors import NotFound
from odfd.cli import details, kinds
from odfd.cli.confirm import add_yes, confirm
from odfd.cli.session import MANIFEST, Session
from odfd.cli.table import render
from odfd.control.client import part
from odfd.errors import ExitCode, Usage

_KINDS = "dataset, engine, mirror, network, peer, validator or task"


def register(subparsers: Any) -> None:
    get = subparsers.add_parser(
        "get",
        help="list things of a kind",
        description=f"List things of a kind, or one of them. KIND is {_KINDS}.",
        epilog="example:  odfctl get datasets\n          odfctl get dataset nyc.flights -o manifest > flights.yaml",
    )
    get.add_argument("kind", metavar="KIND")
    get.add_argument("name", nargs="?", metavar="NAME")
    get.set_defaults(run=_get, writes_manifests=True)
    describe = subparsers.add_parser(
        "describe",
        help="all there is to know of one thing",
        description=f"All there is to know of one thing. KIND is {_KINDS}.",
        epilog="example:  odfctl describe dataset nyc.flights",
    )
    describe.add_argument("kind", metavar="KIND")
    describe.add_argument("name", metavar="NAME")
    describe.set_defaults(run=_describe)
    delete = subparsers.add_parser(
        "delete",
        help="remove one thing; a task is cancelled",
        description="Remove a dataset, mirror, network or validator; cancel a task. A dataset's data is gone for good.",
        epilog="example:  odfctl delete dataset nyc.flights --yes",
    )
    delete.add_argument("kind", metavar="KIND")
    delete.add_argument("name", metavar="NAME")
    add_yes(delete)
    delete.set_defaults(run=_delete)
    rename = subparsers.add_parser(
        "rename",
        help="call a dataset something else on this node",
        description="Give a dataset another local name. Its id stays, and whoever else has it calls it as before.\n"
        "Manifests and URLs that use the old name no longer find it.",
        epilog="example:  odfctl rename nyc.flights flights",
    )
    rename.add_argument("ref", metavar="REF")
    rename.add_argument("name", metavar="NAME")
    rename.set_defaults(run=_rename)


def one(session: Session, kind: kinds.Kind, name: str) -> Any:
    """The thing itself. Raises NotFound."""
    if kind.single:
        return session.client.get(f"{kind.path}/{part(name)}")
    found = [row for row in session.client.get(kind.path) if name in (row[kind.key], row.get("id"))]
    if not found:
        raise NotFound(f"there is no {kind.name} {name!r}", hint=f"odfctl get {kind.name}s lists them")
    return found[0]


def _get(args: argparse.Namespace) -> int:
    session, kind = Session(args), kinds.find(args.kind)
    if session.output == MANIFEST:
        return _manifest(session, kind, args.name)
    columns = kind.columns(session.clock.now())
    if args.name:
        session.answer(one(session, kind, args.name), lambda row: render(columns, [row]))
        return ExitCode.OK
    rows = session.client.get(kind.path)
    session.answer(rows, lambda rows: render(columns, rows))
    if not rows:
        session.remark(f"no {kind.name}s yet")
    return ExitCode.OK


def _manifest(session: Session, kind: kinds.Kind, name: str | None) -> int:
    if kind.name != "dataset" or name is None:
        raise Usage("one dataset has a manifest", hint="odfctl get dataset NAME -o manifest")
    print(session.client.get(f"/datasets/{part(name)}/manifest")["text"], end="")
    return ExitCode.OK


def _describe(args: argparse.Namespace) -> int:
    session, kind = Session(args), kinds.find(args.kind)
    if kind.name == "dataset":
        session.answer(session.client.get(f"/datasets/{part(args.name)}/detail"), details.dataset)
    else:
        session.answer(one(session, kind, args.name), details.plain)
    return ExitCode.OK


def _rename(args: argparse.Namespace) -> int:
    session = Session(args)
    renamed = session.client.put(f"/datasets/{part(args.ref)}/name", {"name": args.name})
    session.answer(renamed, lambda row: f"{args.ref} is now {row['name']}")
    return ExitCode.OK


def _delete(args: argparse.Namespace) -> int:
    session, kind = Session(args), kinds.find(args.kind)
    if kind.name == "engine":
        raise Usage("engines are not deleted", hint="an unused process ends by itself after engine.idle-seconds")
    if kind.name == "peer":
        raise Usage("peers are not deleted", hint=f"odfctl peer block {args.name} keeps one away")
    if kind.name == "dataset" and not args.yes:
        confirm(f"Delete the dataset {args.name} with all its data?", "nothing was deleted")
    gone = session.client.delete(f"{kind.path}/{part(args.name)}")
    word = "cancelled" if kind.name == "task" else "deleted"
    session.answer(gone, lambda _: f"{kind.name} {args.name} {word}")
    return ExitCode.OK
