"""``mirror``: adds, changes and removes mirrors, which hold verified copies of others' datasets."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from odfd.cli import kinds
from odfd.cli.parsers import Subparsers
from odfd.cli.progress import submit
from odfd.cli.session import Session
from odfd.control import wire
from odfd.control.client import part
from odfd.errors import ExitCode


def register(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "mirror",
        help="hold datasets of others",
        description="A mirror is a standing request to hold someone's dataset; what comes is verified as it arrives.",
        epilog="example:  odfctl mirror add did:odf:fed01… --as flights --serve 'data & attested:1'",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True, parser_class=type(parser))
    _register_add(actions)
    every = actions.add_parser("list", help="the mirrors of this node", epilog="example:  odfctl mirror list")
    every.set_defaults(run=_list)
    _register_named(
        actions,
        "remove",
        _remove,
        "mirror it no longer",
        "Mirror it no longer; the dataset stays until it is deleted.",
    )
    _register_named(
        actions,
        "pause",
        _pause,
        "fetch nothing more for now",
        "Fetch nothing more of it until it is resumed, also after a restart; what is here is still served.",
    )
    _register_named(
        actions,
        "resume",
        _resume,
        "go on with one that was paused",
        "Go on where it was paused; what came of objects by then is not fetched again.",
    )


def _register_add(actions: Subparsers) -> None:
    add = actions.add_parser(
        "add",
        help="mirror a dataset",
        description=(
            "Mirror a dataset, and fetch what there is of it now.\n"
            "EXPR is an expression of facts: chain, data, reproduced, attested:K, fresh, with & | and ( ).\n"
            "With --keep 30d data of the newest block's last 30 days is held, and older data let go; blocks all stay.\n"
            "Data that was never here was never looked at: of such a mirror rely on chain, not on data.\n"
            "What is found in a network is passed on there; what comes from a web server is private: odfctl publish."
        ),
        epilog="example:  odfctl mirror add did:odf:fed01… --as flights --serve 'data & attested:1'",
    )
    add.add_argument("ref", metavar="REF", help="did:odf:…, https://HOST/FOLDER, ipns://NAME or ipfs://CID")
    add.add_argument(
        "--via", metavar="ipfs|URL", help="look there too: on IPFS, through the Kubo of the settings, or at a URL"
    )
    add.add_argument("--as", dest="as_name", metavar="NAME", help="local name")
    add.add_argument("--network", metavar="N", help="where to look for it")
    add.add_argument("--want", choices=("chain", "data"), default="data", help="how much of it to hold (data)")
    add.add_argument(
        "--keep", metavar="HOW", help="how much of its data: all, 30d, 10GiB or 30d,10GiB of the newest (all)"
    )
    add.add_argument(
        "--priority",
        metavar="N",
        type=int,
        default=0,
        help="when limits.mirror-bytes is reached, lower ones give way (0)",
    )
    add.add_argument("--rate", metavar="SIZE", help="bytes a second at most: 500kB, 2MiB, none (none)")
    add.add_argument("--use", metavar="EXPR", help="what must be known before it is used here")
    add.add_argument("--serve", metavar="EXPR", help="what must be known before it is passed on")
    add.add_argument("--expect", metavar="HASH", help="a block that the chain must contain")
    add.add_argument("--private", action="store_true", default=None, help="say and give nothing of it to others")
    add.set_defaults(run=_add)


def _register_named(
    actions: Subparsers, word: str, run: Callable[[argparse.Namespace], int], short: str, long: str
) -> None:
    parser = actions.add_parser(word, help=short, description=long, epilog=f"example:  odfctl mirror {word} flights")
    parser.add_argument("ref", metavar="NAME")
    parser.set_defaults(run=run)


def _add(args: argparse.Namespace) -> int:
    session = Session(args)
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
    )
    mirror = submit(session, "/mirrors", request, wire.MirrorView)
    session.answer(mirror, lambda row: kinds.MIRROR.table([row], session.clock.now()))
    return ExitCode.OK


def _list(args: argparse.Namespace) -> int:
    session = Session(args)
    rows = session.client.get("/mirrors", list[wire.MirrorView])
    session.answer(rows, lambda rows: kinds.MIRROR.table(rows, session.clock.now()))
    if not rows.value:
        session.remark("no mirrors yet: odfctl mirror add REF")
    return ExitCode.OK


def _pause(args: argparse.Namespace) -> int:
    session = Session(args)
    mirror = session.client.put(f"/mirrors/{part(args.ref)}/pause", wire.MirrorView)
    session.answer(mirror, lambda row: f"{row.name} is paused and still served")
    return ExitCode.OK


def _resume(args: argparse.Namespace) -> int:
    session = Session(args)
    mirror = session.client.delete(f"/mirrors/{part(args.ref)}/pause", wire.MirrorView)
    session.answer(mirror, lambda row: f"{row.name} goes on")
    return ExitCode.OK


def _remove(args: argparse.Namespace) -> int:
    session = Session(args)
    gone = session.client.delete(f"/mirrors/{part(args.ref)}", wire.MirrorView)
    session.answer(gone, lambda row: f"{row.name} is a mirror no longer; odfctl delete dataset {row.name} frees it")
    return ExitCode.OK
