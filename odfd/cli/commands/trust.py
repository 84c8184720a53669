"""``trust``: shows how far a dataset may be relied on and the reasons, and changes which validators count."""

from __future__ import annotations

import argparse
import importlib

from odfd import output
from odfd.cli import formatting, kinds
from odfd.cli.command import REF, REPLACE, Commands, OneOf, argument
from odfd.cli.commands import authority, policy
from odfd.cli.commands.resources import one
from odfd.cli.manifest_commands import declare
from odfd.cli.new_file import NewFile
from odfd.cli.progress import submit
from odfd.cli.selection import several
from odfd.cli.session import Session
from odfd.cli.table import Stack, TableColumn, clean, render
from odfd.cli.trust_text import trust_text
from odfd.control import calls, wire
from odfd.errors import Usage
from odfd.resources import registry

commands = Commands()
trust = commands.group(
    "trust",
    description="What is known of a dataset, by whom, and what this node's policy makes of it.",
    example="show nyc.flights.delays",
)


@trust.add("show", REF, help="print what is known about one dataset", example="nyc.flights.delays")
def _show(session: Session, args: argparse.Namespace) -> None:
    view = session.client.do(calls.trust_show(args.ref))
    session.answer(view, lambda value: trust_text(value, session.clock.now(), session.again))


@trust.add(
    "evidence",
    argument("id", metavar="ID"),
    argument("--fetch", action="store_true", help="ask connected peers for evidence"),
    argument("-O", "--out", metavar="FILE", help="output file (standard output)"),
    REPLACE,
    help="get the evidence for a verdict",
    description=(
        "Save the evidence for a verdict: a bundle that anyone can check. With --fetch, connected peers are "
        "asked for a bundle that is not here; every byte of it is checked, and the node keeps it."
    ),
    example="f162044d0… -O lie.odfe",
)
def _evidence(session: Session, args: argparse.Namespace) -> None:
    evidence = calls.trust_evidence(args.id)
    target = None if args.out is None else NewFile(args.out, replace=args.replace)
    if args.fetch:
        submit(session, calls.trust_fetch_evidence(args.id), wire.EvidenceFetched)
    if target is None:
        if output.is_terminal():
            raise Usage("a bundle of evidence is no text", hint="write it to a file: --out FILE")
        output.say_bytes(session.client.raw(evidence))
        return
    with target.writing() as file:
        size = session.client.download(evidence, file)
    answer = {"id": args.id, "file": args.out, "size": size}
    session.show(answer, lambda _: f"{formatting.size(size)} in {args.out}")
    session.remark(f"anyone who has the engine can check it, with no daemon: odfctl trust recheck {args.out}")


@trust.add(
    "recheck",
    argument("file", metavar="FILE"),
    argument(
        "--from",
        dest="folders",
        action="append",
        default=[],
        metavar="DIR",
        help="for an answer: the folder of a dataset (odfctl export); repeatable",
    ),
    help="run the step of a bundle, or the query of a proven answer, again (†)",
    description=(
        "Check a bundle by the file alone: signatures, hashes and links, and a second run of the accused step "
        "on this machine's engine, without daemon and network. Ends with 0 when the lie is confirmed, 1 when "
        "the step is right, 5 when the bundle is invalid or incomplete, 7 when this machine cannot tell.\n\n"
        "For an answer (odfctl sql --prove FILE), the query runs again on the same blocks: of the daemon's "
        "datasets, or with --from of folders, without a daemon. Ends with 0 for the same rows, 1 for others, "
        "7 when this machine cannot tell."
    ),
    example="lie.odfe\nanswer.json --from ./weather",
)
def _recheck(session: Session, args: argparse.Namespace) -> int:
    """Runs the recheck by the offline part of the command line, without a daemon. Returns the exit code."""
    run = importlib.import_module("odfd.cli.offline.recheck").run
    return int(run(session, args))


@trust.add(
    "resolve",
    REF,
    OneOf(
        argument("--follow", metavar="HASH", help="rely on the history up to this block; or a version's id"),
        argument("--abandon", action="store_true", help="accept no more blocks of it"),
    ),
    help="choose which history to follow, or none, where no rule decides",
    description=(
        "For a dataset that forks, that validators refute, whose authority is disputed, or whose new epoch "
        "drops blocks that are here. trust show lists the histories to choose from. The choice holds on this "
        "node only, up to the named block; another fork after it stops the dataset again."
    ),
    example="nyc.flights --follow f1620a1b2…",
)
def _resolve(session: Session, args: argparse.Namespace) -> None:
    request = wire.ResolveRequest(follow=args.follow, abandon=args.abandon)
    done = session.client.do(calls.resolving_resolve(args.ref, request))
    session.answer(done, lambda made: "\n".join(f"{made.ref}: {clean(each, 200)}" for each in made.settles))


validator = trust.group("validator", help="whose verdicts count", example="add did:key:z6Mk… --group uni-graz")


@validator.add(
    "add",
    argument("key", metavar="DID"),
    argument("--group", required=True, metavar="NAME"),
    help="add a validator's key to a group; a group has one vote",
    example="did:key:z6Mk… --group uni-graz",
)
def _add(session: Session, args: argparse.Namespace) -> None:
    spec = {"did": args.key, "group": args.group}
    declare(session, "Validator", args.key.removeprefix("did:key:"), spec, key="did")
    kinds.VALIDATOR.show(session, one(session, kinds.VALIDATOR, args.key))


@validator.add("remove", argument("key", metavar="DID"), help="remove a validator", example="did:key:z6Mk…")
def _remove(session: Session, args: argparse.Namespace) -> None:
    gone = session.client.do(calls.resources_delete(registry.VALIDATOR, args.key))
    session.answer(gone, lambda row: f"{row.spec['did']} counts no longer")


@validator.add(
    "lift",
    argument("group", metavar="GROUP"),
    help="let a suspended group count again",
    description=(
        "A group is suspended when one of its keys voted twice, or when others with equal engines "
        "contradicted it in two datasets for two days. The same evidence does not suspend it again; new "
        "evidence does."
    ),
    example="uni-graz",
)
def _lift(session: Session, args: argparse.Namespace) -> None:
    lifted = session.client.do(calls.trust_lift(wire.LiftRequest(group=args.group)))
    kinds.VALIDATOR.show_all(session, several([one(session, kinds.VALIDATOR, each) for each in lifted.value]))


@validator.add("list", help="list validators")
def _list(session: Session, _: argparse.Namespace) -> None:
    kinds.VALIDATOR.show_all(
        session,
        kinds.VALIDATOR.all(session),
        "nobody's verdict counts yet: odfctl trust validator add DID --group NAME",
    )


trust.include(authority.commands)


@trust.add(
    "sign",
    argument(
        "--alone",
        action="store_true",
        help="sign although no listed node can be asked; you state that the key signed nothing else",
    ),
    help="let keys sign again after their signing journals were lost",
    description=(
        "A key that does not know what it has signed could contradict itself, which others can prove. When "
        "its journal (keys/*.journal) is lost, the node asks connected peers what they have seen of it. Only "
        "listed validators and witnesses count: the node signs again by itself after answers of more groups "
        "than may be faulty, this command after one. Signed blocks that are missing here have to be fetched "
        "then: odfctl pull REF --repair."
    ),
    example="--alone",
)
def _sign(session: Session, args: argparse.Namespace) -> None:
    session.answer(
        session.client.do(calls.journal_recovery_sign_again(wire.SignRequest(alone=args.alone))),
        signing_text,
    )


def signing_text(view: wire.SigningView) -> str:
    if not view.begun:
        return "every key of this node has its signing journal: nothing to do"
    columns: tuple[TableColumn[wire.SignerView], ...] = (
        TableColumn("KEY", lambda row: formatting.identity(row.key)),
        TableColumn("OF", lambda row: row.dataset or "this node"),
        TableColumn("KNOWN", lambda row: formatting.plural(row.said, "last word")),
    )
    asked = formatting.plural(view.peers, "listed group") if view.peers else "nobody that is listed"
    return Stack([render(columns, view.begun), f"They sign again; {asked} could be asked."])


trust.include(policy.commands)
