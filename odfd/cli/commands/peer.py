"""``peer``: shows, connects and blocks peers."""

from __future__ import annotations

import argparse

from odfd.cli import details, kinds
from odfd.cli.parsers import Subparsers
from odfd.cli.session import Session
from odfd.control import wire
from odfd.control.client import part
from odfd.errors import ExitCode


def register(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "peer",
        help="see, connect and block peers",
        description="The other nodes that this one has met.",
        epilog="example:  odfctl peer list",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True, parser_class=type(parser))
    every = actions.add_parser("list", help="peers we know", epilog="example:  odfctl peer list")
    every.set_defaults(run=_list)
    for name, run, text in (
        ("show", _show, "one peer at length"),
        ("block", _block, "never talk to it again"),
        ("unblock", _unblock, "talk to it again"),
    ):
        action = actions.add_parser(name, help=text, epilog=f"example:  odfctl peer {name} 12D3KooWQ…")
        action.add_argument("peer", metavar="PEER")
        action.set_defaults(run=run)
    connect = actions.add_parser(
        "connect",
        help="meet a peer",
        epilog="example:  odfctl peer connect /ip4/192.0.2.7/tcp/4150/p2p/12D3KooWQ…",
    )
    connect.add_argument("multiaddr", metavar="MULTIADDR")
    connect.set_defaults(run=_connect)


def _list(args: argparse.Namespace) -> int:
    session = Session(args)
    rows = session.client.get("/peers", list[wire.PeerInfo])
    session.answer(rows, lambda rows: kinds.PEER.table(rows, session.clock.now()))
    if not rows.value:
        session.remark("no peers yet: odfctl peer connect MULTIADDR, odfctl network join NAME --bootstrap MULTIADDR")
    return ExitCode.OK


def _show(args: argparse.Namespace) -> int:
    session = Session(args)
    session.show(session.client.get(f"/peers/{part(args.peer)}", wire.PeerInfo).sent, details.plain)
    return ExitCode.OK


def _block(args: argparse.Namespace) -> int:
    session = Session(args)
    blocked = session.client.put(f"/peers/{part(args.peer)}/block", wire.PeerInfo)
    session.answer(blocked, lambda row: kinds.PEER.table([row], session.clock.now()))
    return ExitCode.OK


def _unblock(args: argparse.Namespace) -> int:
    session = Session(args)
    met = session.client.delete(f"/peers/{part(args.peer)}/block", wire.PeerInfo)
    session.answer(met, lambda row: kinds.PEER.table([row], session.clock.now()))
    return ExitCode.OK


def _connect(args: argparse.Namespace) -> int:
    session = Session(args)
    met = session.client.post("/peers", wire.PeerInfo, wire.ConnectRequest(multiaddr=args.multiaddr))
    session.answer(met, lambda row: kinds.PEER.table([row], session.clock.now()))
    return ExitCode.OK
