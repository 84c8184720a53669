"""``mirror``: adds, changes and removes mirrors, which hold verified copies of others' datasets."""

from __future__ import annotations

import argparse

from odfd.cli import kinds
from odfd.cli.command import Commands, argument
from odfd.cli.progress import submit
from odfd.cli.session import Session
from odfd.control import wire
from odfd.control.client import part

commands = Commands()
mirror = commands.group(
    "mirror",
    description="A mirror is a standing request to hold someone's dataset; what comes is verified as it arrives.",
    example="add did:odf:fed01… --as flights --serve 'data & attested:1'",
)


@mirror.add(
    "add",
    argument("ref", metavar="REF", help="did:odf:…, https://HOST/FOLDER, ipns://NAME or ipfs://CID"),
    argument(
        "--via", metavar="ipfs|URL", help="look there too: on IPFS, through the Kubo of the settings, or at a URL"
    ),
    argument("--as", dest="as_name", metavar="NAME", help="local name"),
    argument("--network", metavar="N", help="where to look for it"),
    argument("--want", choices=("chain", "data"), default="data", help="how much of it to hold (data)"),
    argument("--keep", metavar="HOW", help="how much of its data: all, 30d, 10GiB or 30d,10GiB of the newest (all)"),
    argument(
        "--priority",
        metavar="N",
        type=int,
        default=0,
        help="when limits.mirror-bytes is reached, lower ones give way (0)",
    ),
    argument("--rate", metavar="SIZE", help="bytes a second at most: 500kB, 2MiB, none (none)"),
    argument("--use", metavar="EXPR", help="what must be known before it is used here"),
    argument("--serve", metavar="EXPR", help="what must be known before it is passed on"),
    argument("--expect", metavar="HASH", help="a block that the chain must contain"),
    argument(
        "--from",
        dest="peers",
        metavar="PEER",
        nargs="+",
        default=(),
        help="who shares it with this node: these alone are asked, and it is private here",
    ),
    argument("--private", action="store_true", default=None, help="say and give nothing of it to others"),
    help="mirror a dataset",
    description="Mirror a dataset, and fetch what there is of it now.\n"
    "EXPR is an expression of facts: chain, data, reproduced, attested:K, fresh, with & | and ( ).\n"
    "With --keep 30d data of the newest block's last 30 days is held, and older data let go; blocks all stay.\n"
    "Data that was never here was never looked at: of such a mirror rely on chain, not on data.\n"
    "What is found in a network is passed on there; what comes from a web server is private: odfctl publish.",
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
    held = submit(session, "/mirrors", request, wire.MirrorView)
    kinds.MIRROR.show(session, held)


@mirror.add("list", help="the mirrors of this node")
def _list(session: Session, _: argparse.Namespace) -> None:
    kinds.MIRROR.show_all(session, kinds.MIRROR.all(session), "no mirrors yet: odfctl mirror add REF")


_NAME = argument("ref", metavar="NAME")


@mirror.add(
    "remove",
    _NAME,
    help="mirror it no longer",
    description="Mirror it no longer; the dataset stays until it is deleted.",
    example="flights",
)
def _remove(session: Session, args: argparse.Namespace) -> None:
    gone = session.client.delete(f"/mirrors/{part(args.ref)}", wire.MirrorView)
    session.answer(gone, lambda row: f"{row.name} is a mirror no longer; odfctl delete dataset {row.name} frees it")


@mirror.add(
    "pause",
    _NAME,
    help="fetch nothing more for now",
    description=("Fetch nothing more of it until it is resumed, also after a restart; what is here is still served."),
    example="flights",
)
def _pause(session: Session, args: argparse.Namespace) -> None:
    held = session.client.put(f"/mirrors/{part(args.ref)}/pause", wire.MirrorView)
    session.answer(held, lambda row: f"{row.name} is paused and still served")


@mirror.add(
    "resume",
    _NAME,
    help="go on with one that was paused",
    description="Go on where it was paused; what came of objects by then is not fetched again.",
    example="flights",
)
def _resume(session: Session, args: argparse.Namespace) -> None:
    held = session.client.delete(f"/mirrors/{part(args.ref)}/pause", wire.MirrorView)
    session.answer(held, lambda row: f"{row.name} goes on")
