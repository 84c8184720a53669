"""``trust``: shows how far a dataset may be relied on, why not further, and whose verdicts count."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from chain.errors import Environment
from odfd import output
from odfd.cli import formatting, kinds
from odfd.cli.commands import authority, policy, signing
from odfd.cli.parsers import Subparsers
from odfd.cli.progress import follow
from odfd.cli.session import Session
from odfd.cli.table import clean
from odfd.cli.trust_text import trust_text
from odfd.control import wire
from odfd.control.client import part
from odfd.errors import ExitCode, Usage


def register(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "trust",
        help="how far a dataset may be relied on",
        description="What is known of a dataset, by whom, and what this node's policy makes of it.",
        epilog="example:  odfctl trust show nyc.flights.delays",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True, parser_class=type(parser))
    show = actions.add_parser("show", help="one dataset", epilog="example:  odfctl trust show nyc.flights.delays")
    show.add_argument("ref", metavar="REF")
    show.set_defaults(run=_show)
    evidence = actions.add_parser(
        "evidence",
        help="what proves a verdict",
        description=(
            "Save what proves a verdict: a bundle that anyone can check. With --fetch connected peers are asked for\n"
            "one that is not kept here; every byte of it is checked, and it is kept here from then on."
        ),
        epilog="example:  odfctl trust evidence f162044d0… -O lie.odfe",
    )
    evidence.add_argument("id", metavar="ID")
    evidence.add_argument("--fetch", action="store_true", help="ask connected peers for it")
    evidence.add_argument("-O", "--out", metavar="FILE", help="where to; else standard output")
    evidence.set_defaults(run=_evidence)
    _register_recheck(actions)
    resolve = actions.add_parser(
        "resolve",
        help="decide what no rule can: which history to follow, or none",
        description=(
            "For a dataset that forks, that validators refute, whose authority is disputed, or whose new epoch gives\n"
            "up blocks that are here. trust show lists what may be followed. It holds on this node alone, up to the\n"
            "block named, and what comes later stops the dataset again."
        ),
        epilog="example:  odfctl trust resolve nyc.flights --follow f1620a1b2…",
    )
    resolve.add_argument("ref", metavar="REF")
    way = resolve.add_mutually_exclusive_group(required=True)
    way.add_argument("--follow", metavar="HASH", help="rely on the history up to this block; or a version's id")
    way.add_argument("--abandon", action="store_true", help="take nothing more of it, whatever comes")
    resolve.set_defaults(run=_resolve)
    _register_validators(actions, type(parser))
    authority.register(actions, type(parser))
    signing.register(actions)
    policy.register(actions, type(parser))


def _register_validators(actions: Subparsers, parser_class: type[argparse.ArgumentParser]) -> None:
    validator = actions.add_parser(
        "validator",
        help="whose verdicts count",
        epilog="example:  odfctl trust validator add did:key:z6Mk… --group uni-graz",
    )
    inner = validator.add_subparsers(metavar="ACTION", required=True, parser_class=parser_class)
    add = inner.add_parser(
        "add",
        help="count a key, as a member of a group; a group has one voice",
        epilog="example:  odfctl trust validator add did:key:z6Mk… --group uni-graz",
    )
    add.add_argument("key", metavar="DID")
    add.add_argument("--group", required=True, metavar="NAME")
    add.set_defaults(run=_add)
    remove = inner.add_parser(
        "remove", help="count it no longer", epilog="example:  odfctl trust validator remove did:key:z6Mk…"
    )
    remove.add_argument("key", metavar="DID")
    remove.set_defaults(run=_remove)
    lift = inner.add_parser(
        "lift",
        help="let a suspended group count again",
        description=(
            "A group is suspended when one of its keys voted twice, or when it stands alone against others of equal\n"
            "machines in two datasets for two days. What is lifted never suspends it again; anything new does."
        ),
        epilog="example:  odfctl trust validator lift uni-graz",
    )
    lift.add_argument("group", metavar="GROUP")
    lift.set_defaults(run=_lift)
    every = inner.add_parser("list", help="all that count", epilog="example:  odfctl trust validator list")
    every.set_defaults(run=_list)


def _show(args: argparse.Namespace) -> int:
    session = Session(args)
    view = session.client.get(f"/datasets/{part(args.ref)}/trust", wire.TrustView)
    session.answer(view, lambda value: trust_text(value, session.clock.now(), session.again))
    return ExitCode.OK


def _evidence(args: argparse.Namespace) -> int:
    session = Session(args)
    path = f"/evidence/{part(args.id)}"
    if args.fetch:
        follow(session, session.client.post(path, wire.TaskRef).value, wire.EvidenceFetched)
    if args.out is None:
        if output.is_terminal():
            raise Usage("a bundle of evidence is no text", hint="write it to a file: --out FILE")
        output.say_bytes(session.client.raw(path))
        return ExitCode.OK
    target = Path(args.out)
    draft = target.with_name(f".{target.name}.part")
    try:
        with draft.open("wb") as file:
            size = session.client.download(path, file)
        draft.replace(target)
    except OSError as error:
        raise Environment(f"cannot write {args.out}: {error.strerror}", rule="file") from error
    finally:
        draft.unlink(missing_ok=True)
    answer = {"id": args.id, "file": args.out, "size": size}
    session.show(answer, lambda _: f"{formatting.size(size)} in {args.out}")
    session.remark(f"anyone can check it, with no daemon: odfctl trust recheck {args.out}")
    return ExitCode.OK


def _resolve(args: argparse.Namespace) -> int:
    session = Session(args)
    request = wire.ResolveRequest(follow=args.follow, abandon=args.abandon)
    done = session.client.post(f"/datasets/{part(args.ref)}/trust/resolve", wire.Resolved, request)
    session.answer(done, lambda made: "\n".join(f"{made.ref}: {clean(each, 200)}" for each in made.settles))
    return ExitCode.OK


def _register_recheck(actions: Subparsers) -> None:
    recheck = actions.add_parser(
        "recheck",
        help="run a bundle's step, or a proven answer's query, again (†)",
        description=(
            "Checks a bundle with nothing but the file: signatures, hashes and links, then the accused step is run\n"
            "again on this machine's engine. No daemon and no network. Ends with 0 when the lie is confirmed, 1 when\n"
            "the step is right, 5 when the file is no sound bundle or incomplete, 7 when this machine cannot tell.\n\n"
            "Of an answer (odfctl sql --prove FILE) the same is asked of the same blocks: of the daemon's datasets,\n"
            "or with --from of folders, without a daemon. Ends with 0 for the same rows, 1 for others, 7 when this\n"
            "machine cannot tell."
        ),
        epilog="example:  odfctl trust recheck lie.odfe\n          odfctl trust recheck answer.json --from ./weather",
    )
    recheck.add_argument("file", metavar="FILE")
    recheck.add_argument(
        "--from", dest="folders", action="append", default=[], metavar="DIR",
        help="of an answer: a dataset's folder (odfctl export); repeatable",
    )  # fmt: skip
    recheck.set_defaults(run=_recheck)


def _recheck(args: argparse.Namespace) -> int:
    """Hand over to the part of the command line that works on files; no daemon is asked."""
    run = importlib.import_module("odfd.cli.offline.recheck").run
    return int(run(args))


def _add(args: argparse.Namespace) -> int:
    session = Session(args)
    added = session.client.post(
        "/validators", wire.ValidatorView, wire.ValidatorRequest(key=args.key, group=args.group)
    )
    session.answer(added, lambda row: kinds.VALIDATOR.table([row], session.clock.now()))
    return ExitCode.OK


def _remove(args: argparse.Namespace) -> int:
    session = Session(args)
    gone = session.client.delete(f"/validators/{part(args.key)}", wire.ValidatorView)
    session.answer(gone, lambda row: f"{row.key} counts no longer")
    return ExitCode.OK


def _lift(args: argparse.Namespace) -> int:
    session = Session(args)
    rows = session.client.post("/validators/lift", list[wire.ValidatorView], wire.LiftRequest(group=args.group))
    session.answer(rows, lambda rows: kinds.VALIDATOR.table(rows, session.clock.now()))
    return ExitCode.OK


def _list(args: argparse.Namespace) -> int:
    session = Session(args)
    rows = session.client.get("/validators", list[wire.ValidatorView])
    session.answer(rows, lambda rows: kinds.VALIDATOR.table(rows, session.clock.now()))
    if not rows.value:
        session.remark("nobody's verdict counts yet: odfctl trust validator add DID --group NAME")
    return ExitCode.OK
