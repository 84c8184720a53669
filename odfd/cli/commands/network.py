"""``network``, ``join``, ``peer``: join and leave networks, show their announcements, connect and block peers."""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from typing import Final

from chain.errors import Remote
from odfd import output
from odfd.cli import details, formatting, kinds
from odfd.cli.command import YES, Commands, argument, confirm, seconds
from odfd.cli.commands.apply import declare
from odfd.cli.commands.node import doctor_text
from odfd.cli.commands.resources import one
from odfd.cli.session import Session
from odfd.cli.table import WHOLE, TableColumn, clean, render
from odfd.control import calls, wire
from odfd.errors import Usage
from odfd.resources import registry
from odfd.usage import how_many

INVITATION: Final = "odf:"
"""The first characters of an invitation."""
_SPAN: Final = "7d"
_AT_ONCE: Final = 8
"""First peers that are dialled at once."""
_MEMBERS: Final = 8
"""Peers that are listed by name below a network."""


commands = Commands()
network = commands.group(
    "network",
    description="A network is a name, first peers to meet it by, and what is gossiped under that name.",
    example="join demo --bootstrap /ip4/192.0.2.7/tcp/4150/p2p/12D3Koo…",
)


@commands.add(
    "join",
    argument("name", metavar="INVITATION|URL"),
    YES,
    description="Join a network by an invitation, or by the URL of a web server that has one. Shows who invites and "
    "what the network requires, and asks for consent.",
    example="odf:AbC…",
)
def _follow(session: Session, args: argparse.Namespace) -> None:
    if not _is_invitation(args.name):
        raise Usage(f"not an invitation: {args.name!r}", hint="odfctl network join NAME --bootstrap MULTIADDR")
    args.bootstrap = []
    _join(session, args)


@network.add(
    "join",
    argument("name", metavar="NAME|INVITATION|URL"),
    argument(
        "--bootstrap",
        nargs="+",
        action="extend",
        default=[],
        metavar="MULTIADDR",
        help="addresses of peers to contact first",
    ),
    YES,
    help="join a network",
    description="Join a network, now and after each start.",
    example="demo --bootstrap /ip4/192.0.2.7/tcp/4150/p2p/12D3Koo…",
)
def _join(session: Session, args: argparse.Namespace) -> None:
    if _is_invitation(args.name):
        if args.bootstrap:
            raise Usage("an invitation names the peers to meet first", hint="leave --bootstrap out")
        accepted = _accept(session, args.name, args.yes)
        with session.waiting("dialling the first peers that the invitation names"):
            joined = session.client.do(calls.networks_accept(accepted))
        state = joined.value.state(wire.NetworkState)
        failed = [] if state.peers or not joined.value.spec["bootstrap"] else ["none of them answered"]
    else:
        declare(session, "Network", args.name, {"bootstrap": args.bootstrap})
        trouble = one(session, kinds.NETWORK, args.name).value.state(wire.NetworkState).trouble
        if trouble is not None:  # it is declared, and joined as soon as that is mended
            raise trouble.fault()
        failed = _dial(session, args.bootstrap)
        joined = one(session, kinds.NETWORK, args.name)
        state = joined.value.state(wire.NetworkState)
    kinds.NETWORK.show(session, joined)
    if state.note:
        session.remark(state.note)
    for why in failed:
        output.remark(f"warning: not reached: {why}")
    if failed:
        session.remark("this node is in the network, and dials its first peers until one answers: odfctl network list")
    if "policyKey" in joined.value.spec:
        session.remark("the network's policy, once received: odfctl trust policy show")


def _dial(session: Session, addresses: Sequence[str]) -> list[str]:
    """Dials first peers, all at once. Returns those that were not reached, and why; the node dials them again."""
    if not addresses:
        return []
    from concurrent.futures import ThreadPoolExecutor

    def dial(address: str) -> str | None:
        try:
            session.client.do(calls.peers_connect(wire.ConnectRequest(multiaddr=address)))
        except Remote as fault:
            return fault.message
        return None

    what = f"dialling {formatting.plural(len(addresses), 'first peer')}"
    with session.waiting(what), ThreadPoolExecutor(_AT_ONCE) as pool:
        return [why for why in pool.map(dial, dict.fromkeys(addresses)) if why is not None]


def _is_invitation(text: str) -> bool:
    """Whether the text is an invitation, or the address of one on the web."""
    return text.lstrip().startswith(INVITATION) or "://" in text


def _accept(session: Session, text: str, yes: bool) -> wire.InvitationText:
    """Shows an invitation and asks for consent. Raises Refused, Usage."""
    with session.waiting("fetching the invitation"):
        invitation = session.client.do(calls.networks_invitation(wire.InvitationText(text=text))).value
    for line in _lines(invitation):
        output.remark(line)
    if not yes:
        confirm(f"Join {invitation.network}?", f"{invitation.network} is not joined")
    return wire.InvitationText(text=invitation.text)


def _lines(invitation: wire.InvitationView) -> list[str]:
    """Returns lines that show who invites, and what the network requires."""
    rows = [
        ("network", invitation.network),
        ("invited by", invitation.by),
        ("until", invitation.expires_at),
        *([("valid for", formatting.plural(invitation.uses, "node"))] if invitation.uses else []),
        *(("first peer", each) for each in invitation.bootstrap),
        ("policy of", invitation.policy_key or "no network key: the node's own policy holds"),
        *(("  it asks", rule) for rule in invitation.rules),
    ]
    if invitation.policy_key:
        rows.append(("", "stricter rules apply as soon as they are received; rules that loosen yours wait for you"))
    return [f"{name:<11} {value}".rstrip() for name, value in rows]


@network.add(
    "invite",
    argument("name", metavar="NAME"),
    argument("--for", dest="span", default=_SPAN, metavar="SPAN", help=f"how long it is valid ({_SPAN})"),
    argument(
        "--uses",
        type=how_many,
        metavar="N",
        help="with a token that N nodes may redeem at this node (default: without a token, for any number)",
    ),
    argument("--qr", action="store_true", help="also print it as a QR code"),
    help="write an invitation, by which other nodes join",
    description="Write an invitation: one line with the network's name, addresses of first peers, and the key whose "
    "policies apply there. Every holder learns these addresses and can join by odfctl join; it gives no "
    "rights. With --uses it has a token, which this node redeems for so many nodes: it reserves a connection for each, "
    "and further nodes cannot join by it. A node that knows the network's name can join without an invitation.",
    example="demo --for 30d --uses 1",
)
def _invite(session: Session, args: argparse.Namespace) -> None:
    request = wire.InvitationRequest(seconds=round(seconds(args.span)), uses=args.uses)
    made = session.client.do(calls.networks_invite(args.name, request))
    session.answer(made, lambda row: row.text)
    if args.qr and session.output == "table":
        _show_code(made.value.text)
    uses = f" for {formatting.plural(made.value.uses, 'node')}" if made.value.uses else ""
    session.remark(f"valid until {made.value.expires_at}{uses}; they join with: odfctl join {INVITATION}…")
    if all("/127." in each or "/::1/" in each for each in made.value.bootstrap):
        session.remark("its addresses are of this machine alone: [p2p] announce names those that others can reach")


@network.add(
    "invitations",
    help="list invitations with tokens",
    description="List the invitations with tokens that this node made (odfctl network invite --uses N), and the nodes "
    "that redeemed them.",
)
def _invitations(session: Session, _: argparse.Namespace) -> None:
    found = session.client.do(calls.networks_invitations())
    session.answer(found, _invitation_table)
    if not found.value:
        session.remark("none: odfctl network invite NAME --uses N makes one")


@network.add(
    "revoke",
    argument("id", metavar="ID"),
    help="revoke an invitation with a token",
    description="Revoke an invitation: it cannot be redeemed any more, and this node reserves nothing for its users. "
    "They stay in the network until they leave it; odfctl peer block refuses connections with them.",
    example="3f9a",
)
def _revoke(session: Session, args: argparse.Namespace) -> None:
    revoked = session.client.do(calls.networks_revoke(args.id))
    session.answer(revoked, lambda row: _invitation_table([row]))


def _invitation_table(rows: Sequence[wire.InvitationState]) -> str:
    columns: tuple[TableColumn[wire.InvitationState], ...] = (
        TableColumn("ID", lambda row: row.id),
        TableColumn("NETWORK", lambda row: row.network),
        TableColumn("STATE", lambda row: row.state),
        TableColumn("USES", lambda row: f"{len(row.nodes)}/{row.uses}", right=True),
        TableColumn("UNTIL", lambda row: formatting.moment(row.expires_at)),
        TableColumn("NODES", lambda row: ", ".join(map(formatting.node, row.nodes)) or formatting.NOTHING, most=WHOLE),
    )
    return render(columns, rows)


def _show_code(text: str) -> None:
    """Draws the text as a QR code. Raises Usage if it is too long for one."""
    import segno

    try:
        code = segno.make_qr(text, error="l")
    except segno.DataOverflowError as error:
        raise Usage("the invitation is too long for a QR code", hint="leave --qr out") from error
    drawn = io.StringIO()
    code.terminal(drawn, compact=True)
    output.say(drawn.getvalue(), end="")


@network.add("leave", argument("name", metavar="NAME"), help="leave a network", example="demo")
def _leave(session: Session, args: argparse.Namespace) -> None:
    left = session.client.do(calls.resources_delete(registry.NETWORK, args.name))
    session.answer(left, lambda row: f"left {row.name}")


@network.add("list", help="list the networks of this node")
def _list(session: Session, _: argparse.Namespace) -> None:
    kinds.NETWORK.show_all(
        session, kinds.NETWORK.all(session), "part of no network yet: odfctl network join NAME --bootstrap MULTIADDR"
    )


@network.add(
    "show",
    argument("name", metavar="NAME", nargs="?", help="may be left out where the node is in one network"),
    help="list the datasets that are announced in a network",
    example="demo",
)
def _show(session: Session, args: argparse.Namespace) -> None:
    now = session.clock.now()
    columns: tuple[TableColumn[wire.Announced], ...] = (
        TableColumn("DATASET", lambda row: row.id, most=90),
        TableColumn("NAME", lambda row: row.name or row.called or formatting.NOTHING),
        TableColumn("PUBLISHER", lambda row: row.publisher or formatting.NOTHING),
        TableColumn("NODE", lambda row: formatting.node(row.node), most=100, optional=True),
        TableColumn("BLOCKS", lambda row: formatting.count(row.blocks), right=True),
        TableColumn("SIGNED", lambda row: formatting.ago(row.signed_at, now)),
        TableColumn("PEERS", lambda row: formatting.count(row.peers), right=True),
        TableColumn("HELD", lambda row: "yes" if row.held else "no"),
        TableColumn("MET BY", lambda row: formatting.contact(row.contact.by) if row.contact else formatting.NOTHING),
    )
    name = args.name or _only_network(session)
    found = one(session, kinds.NETWORK, name)
    shown = found.value.state(wire.NetworkState)
    session.answer(found, lambda _: render(columns, shown.datasets))
    rates = f", {formatting.rate(shown.received_rate)} in, {formatting.rate(shown.sent_rate)} out"
    peers = f"{formatting.plural(shown.peers, 'peer')} in {found.value.name}{rates if shown.peers else ''}"
    session.remark(peers + _members(shown))
    if shown.swarm is not None:
        session.remark(_exchange_text(shown.swarm))
    _warn_of_alike(session, shown.members)
    if (contact := shown.contact) is not None:
        session.remark(contact.means)
        for each in contact.advice:
            session.remark(each)


def _exchange_text(swarm: wire.SwarmFigures) -> str:
    """Describes how many pieces were exchanged among nodes that mirror the same datasets at once."""
    said = []
    if swarm.from_publishers or swarm.from_mirrors or swarm.refused:
        refused = f"; {formatting.plural(swarm.refused, 'piece')} that were offered did not come" * bool(swarm.refused)
        said.append(
            f"mirrored together: {formatting.plural(swarm.from_publishers, 'piece')} from publishers "
            f"({formatting.size(swarm.bytes_from_publishers)}), {formatting.count(swarm.from_mirrors)} from other "
            f"mirrors ({formatting.size(swarm.bytes_from_mirrors)}){refused}"
        )
    if swarm.offered:
        said.append(
            f"own datasets: {formatting.plural(swarm.offered, 'piece')} offered, "
            f"{formatting.size(swarm.bytes_given)} sent to nodes that mirror them at once"
        )
    return "; ".join(said)


def _only_network(session: Session) -> str:
    """Returns the network that this node is in. Raises Usage if there is none, or more than one."""
    found = [each.name for each in kinds.NETWORK.all(session).value]
    if len(found) == 1:
        return found[0]
    if not found:
        raise Usage("this node is in no network", hint="odfctl network join NAME, or an invitation")
    raise Usage(f"this node is in {len(found)} networks: {', '.join(found)}", hint="name one of them")


def _members(shown: wire.NetworkState) -> str:
    """Lists members that gave themselves a name."""
    named = [member for member in shown.members if member.name]
    texts = [clean(formatting.node(each), 100) for each in named[:_MEMBERS]]
    more = f", and {len(named) - _MEMBERS} more with names" if len(named) > _MEMBERS else ""
    return f": {', '.join(texts)}{more}" if texts else ""


def _warn_of_alike(session: Session, rows: Sequence[wire.PeerName | wire.PeerState]) -> None:
    alike = [row for row in rows if row.alike]
    if alike:
        session.remark(f"several nodes are called {alike[0].name}, or nearly so: distinguish them by their ids")


peer = commands.group("peer", description="The other nodes that this node knows.", example="list")


@peer.add("list", help="list known peers")
def _list_peers(session: Session, _: argparse.Namespace) -> None:
    peers = kinds.PEER.all(session)
    kinds.PEER.show_all(
        session, peers, "no peers yet: odfctl peer connect MULTIADDR, odfctl network join NAME --bootstrap MULTIADDR"
    )
    _warn_of_alike(session, [each.state(wire.PeerState) for each in peers.value])


_PEER = argument("peer", metavar="PEER")


@peer.add("show", _PEER, help="print all about one peer", example="12D3KooWQ…")
def _show_peer(session: Session, args: argparse.Namespace) -> None:
    session.show(one(session, kinds.PEER, args.peer).sent, details.plain)


@peer.add(
    "netcheck",
    help="check how other nodes reach this one",
    description="Show how other nodes reach this one, what does not work, and what to do. Peers dial "
    "back regularly; to "
    "see how a NAT maps ports, two of them are dialled now. Ends with 0 whatever is found.",
)
def _netcheck(session: Session, _: argparse.Namespace) -> None:
    with session.waiting("asking peers how they see this node"):
        probes = session.client.do(calls.peers_netcheck())
    session.answer(probes, doctor_text)


@peer.add("block", _PEER, help="refuse all connections with a peer", example="12D3KooWQ…")
def _block(session: Session, args: argparse.Namespace) -> None:
    peer = kinds.whole_peer(session, args.peer)
    declare(session, "Peer", peer.removeprefix("did:key:"), {"peerId": peer, "blocked": True}, key="peerId")
    kinds.PEER.show(session, one(session, kinds.PEER, peer))


@peer.add("unblock", _PEER, help="allow a blocked peer again", example="12D3KooWQ…")
def _unblock(session: Session, args: argparse.Namespace) -> None:
    peer = kinds.whole_peer(session, args.peer)
    gone = session.client.do(calls.resources_delete(registry.PEER, peer))
    session.answer(gone, lambda row: f"{row.spec['peerId']} is not blocked any more")


@peer.add(
    "connect",
    argument("multiaddr", metavar="MULTIADDR"),
    help="connect to a peer",
    example="/ip4/192.0.2.7/tcp/4150/p2p/12D3KooWQ…",
)
def _connect(session: Session, args: argparse.Namespace) -> None:
    with session.waiting("dialling"):
        request = wire.ConnectRequest(multiaddr=args.multiaddr)
        met = session.client.do(calls.peers_connect(request))
    kinds.PEER.show(session, met)
