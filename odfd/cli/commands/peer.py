"""``peer``: shows, connects and blocks peers."""

from __future__ import annotations

import argparse

from odfd.cli import details, kinds
from odfd.cli.command import Commands, argument
from odfd.cli.session import Session
from odfd.control import wire
from odfd.control.client import part

commands = Commands()
peer = commands.group("peer", description="The other nodes that this one has met.", example="list")


@peer.add("list", help="peers we know")
def _list(session: Session, _: argparse.Namespace) -> None:
    kinds.PEER.show_all(
        session,
        kinds.PEER.all(session),
        "no peers yet: odfctl peer connect MULTIADDR, odfctl network join NAME --bootstrap MULTIADDR",
    )


_PEER = argument("peer", metavar="PEER")


@peer.add("show", _PEER, help="one peer at length", example="12D3KooWQ…")
def _show(session: Session, args: argparse.Namespace) -> None:
    session.show(session.client.get(f"/peers/{part(args.peer)}", wire.PeerInfo).sent, details.plain)


@peer.add("block", _PEER, help="never talk to it again", example="12D3KooWQ…")
def _block(session: Session, args: argparse.Namespace) -> None:
    kinds.PEER.show(session, session.client.put(f"/peers/{part(args.peer)}/block", wire.PeerInfo))


@peer.add("unblock", _PEER, help="talk to it again", example="12D3KooWQ…")
def _unblock(session: Session, args: argparse.Namespace) -> None:
    kinds.PEER.show(session, session.client.delete(f"/peers/{part(args.peer)}/block", wire.PeerInfo))


@peer.add(
    "connect",
    argument("multiaddr", metavar="MULTIADDR"),
    help="meet a peer",
    example="/ip4/192.0.2.7/tcp/4150/p2p/12D3KooWQ…",
)
def _connect(session: Session, args: argparse.Namespace) -> None:
    kinds.PEER.show(
        session, session.client.post("/peers", wire.PeerInfo, wire.ConnectRequest(multiaddr=args.multiaddr))
    )
