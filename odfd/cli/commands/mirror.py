"""``mirror``: adds, changes and removes mirrors, which hold verified copies of others' datasets."""

from __future__ import annotations

import argparse

from odfd.cli import kinds
from odfd.cli.command import Commands, argument
from odfd.cli.progress import submit
from odfd.cli.session import Session
from odfd.control import calls, wire
from odfd.resources import registry

commands = Commands()
mirror = commands.group(
    "mirror",
    description="A mirror is a lasting request to hold another node's dataset; each block is verified as it arrives.",
    example="add did:odf:fed01… --as flights --serve 'data & attested:1'",
)


@mirror.add(
    "add",
    argument("ref", metavar="REF", help="did:odf:…, https://HOST/FOLDER, ipns://NAME or ipfs://CID"),
    argument("--via", metavar="ipfs|URL", help="also fetch from IPFS (through the Kubo of the settings) or from a URL"),
    argument("--as", dest="as_name", metavar="NAME", help="local name"),
    argument("--network", metavar="N", help="the network in which to look for it, and to serve it"),
    argument("--want", choices=("chain", "data"), default="data", help="blocks only, or data too (data)"),
    argument("--keep", metavar="HOW", help="how much of the newest data to keep: all, 30d, 10GiB or 30d,10GiB (all)"),
    argument(
        "--priority",
        metavar="N",
        type=int,
        default=0,
        help="mirrors with lower numbers lose data first when limits.mirror-bytes is reached (0)",
    ),
    argument("--rate", metavar="SIZE", help="maximum bytes a second: 500kB, 2MiB, none (none)"),
    argument("--use", metavar="EXPR", help="facts required before use on this node"),
    argument("--serve", metavar="EXPR", help="facts required before serving it to other nodes"),
    argument("--expect", metavar="HASH", help="a block that the chain must contain"),
    argument(
        "--from",
        dest="peers",
        metavar="PEER",
        nargs="+",
        default=(),
        help="peers that share it with this node; only they are asked, and the mirror is private",
    ),
    argument(
        "--private", action="store_true", default=None, help="keep the mirror private: announce and serve nothing of it"
    ),
    help="mirror a dataset",
    description="Mirror a dataset: fetch it now, and follow it. EXPR combines the facts chain, data, reproduced, "
    "attested:K and fresh by & | and ( ). With --keep 30d the mirror keeps all blocks, and the data of "
    "the newest 30 days. Data that was never fetched was never verified: for such a mirror require chain, "
    "not data. The node serves a mirror in the network where it was found; a mirror of a web server is "
    "private: odfctl publish.",
    example="did:odf:fed01… --as flights --serve 'data & attested:1'",
)
def _add(session: Session, args: argparse.Namespace) -> None:
    request = wire.MirrorRequest(
        source=args.ref,
        as_name=args.as_name,
        network=args.network,
        want=args.want,
        keep=args.keep,
        priority=args.priority,
        rate=args.rate,
        use=args.use,
        serve=args.serve,
        expect=args.expect,
        via=args.via,
        private=args.private,
        peers=tuple(args.peers),
    )
    held = submit(session, calls.mirrors_add(request), wire.ResourceManifest)
    lack = held.value.state(wire.MirrorState).lack
    if lack is None:
        kinds.MIRROR.show(session, held)
        return
    if session.output != "table":
        session.show(held.sent, str)
    raise lack.fault()


@mirror.add("list", help="list the mirrors of this node")
def _list(session: Session, _: argparse.Namespace) -> None:
    kinds.MIRROR.show_all(session, kinds.MIRROR.all(session), "no mirrors yet: odfctl mirror add REF")


_NAME = argument("ref", metavar="NAME")


@mirror.add(
    "remove",
    _NAME,
    help="end a mirror",
    description="End a mirror; the dataset stays until you delete it.",
    example="flights",
)
def _remove(session: Session, args: argparse.Namespace) -> None:
    gone = session.client.do(calls.resources_delete(registry.MIRROR, args.ref))
    session.answer(gone, lambda row: f"{row.name} is a mirror no longer; odfctl delete dataset {row.name} frees it")


@mirror.add(
    "pause",
    _NAME,
    help="pause a mirror",
    description=("Fetch nothing more of it until it is resumed, also after a restart; what is here is still served."),
    example="flights",
)
def _pause(session: Session, args: argparse.Namespace) -> None:
    held = session.client.do(calls.mirrors_pause(args.ref))
    session.answer(held, lambda row: f"{row.name} is paused and still served")


@mirror.add(
    "resume",
    _NAME,
    help="resume a paused mirror",
    description="Resume a paused mirror; complete objects are not fetched again.",
    example="flights",
)
def _resume(session: Session, args: argparse.Namespace) -> None:
    held = session.client.do(calls.mirrors_resume(args.ref))
    session.answer(held, lambda row: f"{row.name} resumed")
