"""``network``: joins and leaves networks, and shows which datasets are announced there."""

from __future__ import annotations

import argparse

from odfd.cli import kinds, words
from odfd.cli.parsers import Subparsers
from odfd.cli.session import Session
from odfd.cli.table import TableColumn, render
from odfd.control import wire
from odfd.control.client import part
from odfd.errors import ExitCode


def register(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "network",
        help="join and leave networks",
        description="A network is a name, first peers to meet it by, and what is gossiped under that name.",
        epilog="example:  odfctl network join demo --bootstrap /ip4/192.0.2.7/tcp/4150/p2p/12D3Koo…",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True, parser_class=type(parser))
    join = actions.add_parser(
        "join",
        help="become part of a network",
        description="Become part of a network, now and after each start.",
        epilog="example:  odfctl network join demo --bootstrap /ip4/192.0.2.7/tcp/4150/p2p/12D3Koo…",
    )
    join.add_argument("name", metavar="NAME")
    join.add_argument(
        "--bootstrap", nargs="+", action="extend", default=[], metavar="MULTIADDR", help="peers to meet first"
    )
    join.set_defaults(run=_join)
    leave = actions.add_parser("leave", help="be part of it no longer", epilog="example:  odfctl network leave demo")
    leave.add_argument("name", metavar="NAME")
    leave.set_defaults(run=_leave)
    every = actions.add_parser("list", help="networks we are part of", epilog="example:  odfctl network list")
    every.set_defaults(run=_list)
    show = actions.add_parser("show", help="what is announced there", epilog="example:  odfctl network show demo")
    show.add_argument("name", metavar="NAME")
    show.set_defaults(run=_show)


def _join(args: argparse.Namespace) -> int:
    session = Session(args)
    request = wire.NetworkRequest(name=args.name, bootstrap=tuple(args.bootstrap))
    joined = session.client.post("/networks", wire.NetworkView, request)
    session.answer(joined, lambda row: kinds.NETWORK.table([row], session.clock.now()))
    return ExitCode.OK


def _leave(args: argparse.Namespace) -> int:
    session = Session(args)
    left = session.client.delete(f"/networks/{part(args.name)}", wire.NetworkView)
    session.answer(left, lambda row: f"left {row.name}")
    return ExitCode.OK


def _list(args: argparse.Namespace) -> int:
    session = Session(args)
    rows = session.client.get("/networks", list[wire.NetworkView])
    session.answer(rows, lambda rows: kinds.NETWORK.table(rows, session.clock.now()))
    if not rows.value:
        session.remark("part of no network yet: odfctl network join NAME --bootstrap MULTIADDR")
    return ExitCode.OK


def _show(args: argparse.Namespace) -> int:
    session = Session(args)
    now = session.clock.now()
    columns: tuple[TableColumn[wire.Announced], ...] = (
        TableColumn("DATASET", lambda row: row.id, most=90),
        TableColumn("NAME", lambda row: row.name or words.NOTHING),
        TableColumn("BLOCKS", lambda row: words.count(row.blocks), right=True),
        TableColumn("SIGNED", lambda row: words.ago(row.signed_at, now)),
        TableColumn("PEERS", lambda row: words.count(row.peers), right=True),
        TableColumn("HELD", lambda row: "yes" if row.held else "no"),
    )
    shown = session.client.get(f"/networks/{part(args.name)}", wire.NetworkView)
    session.answer(shown, lambda network: render(columns, network.datasets))
    session.remark(f"{words.plural(shown.value.peers, 'peer')} in {shown.value.name}")
    return ExitCode.OK
