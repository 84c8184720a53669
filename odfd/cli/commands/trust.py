"""``trust``: shows how far a dataset may be relied on, why not further, and whose verdicts count."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from chain.errors import Environment
from chain.instant import Instant
from odfd.cli import kinds, words
from odfd.cli.commands import authority, policy, signing
from odfd.cli.parsers import Subparsers
from odfd.cli.progress import follow
from odfd.cli.session import Session
from odfd.cli.table import TableColumn, clean, render
from odfd.control import wire
from odfd.control.client import part
from odfd.errors import ExitCode


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
    recheck = actions.add_parser(
        "recheck",
        help="run a bundle's step again, with no daemon (†)",
        description=(
            "Checks a bundle with nothing but the file: signatures, hashes and links, then the accused step is run\n"
            "again on this machine's engine. No daemon and no network. Ends with 0 when the lie is confirmed, 1 when\n"
            "the step is right, 5 when the file is no sound bundle or incomplete, 7 when this machine cannot tell."
        ),
        epilog="example:  odfctl trust recheck lie.odfe",
    )
    recheck.add_argument("file", metavar="FILE")
    recheck.set_defaults(run=_recheck)
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
    session.answer(view, lambda value: trust_text(value, session))
    return ExitCode.OK


def witness_lines(witness: wire.WitnessView, now: Instant) -> Iterator[str]:
    """How far it cosigned; where it is asked to and does not, why, and what its operator has to know."""
    name, size = clean(witness.name, 80), witness.size
    said = (
        "cosigned nothing" if size is None else f"cosigned {words.plural(size, 'block')} {words.ago(witness.at, now)}"
    )
    counts = "" if witness.counts else " (it does not count here)"
    why = f": {clean(witness.trouble, 200)}" if witness.trouble else ""
    yield f"  Witness {name} {said}{counts}{why}"
    if witness.log_key:
        yield f"    Its operator lists the log key {clean(witness.log_key, 300)}"


def trust_text(view: wire.TrustView, session: Session) -> str:
    now = session.clock.now()
    fresh = {True: ", fresh", False: ", not fresh", None: ""}[view.facts.fresh]
    unwitnessed = ", unwitnessed" if view.facts.witnessed is False else ""
    if view.facts.met == "networks":
        unwitnessed = ", met alike in three networks"
    signed = f", signed {words.ago(view.signed_at, now)}" if view.signed_at else ""
    lines = [
        f"{view.ref}   {words.identity(view.dataset_id)}"
        f"   head #{view.blocks - 1} {words.digest(view.head)}{signed}{fresh}{unwitnessed}",
        f"  {_reach(view)}",
    ]
    for proof in view.evidence:
        lines += ["", *cell_lines(proof)]
    rows = [*((row, "") for row in view.attestations), *((row, "dissents") for row in view.dissent)]
    if rows:
        columns: tuple[TableColumn[tuple[wire.AttestationView, str]], ...] = (
            TableColumn("VALIDATOR", lambda row: words.identity(row[0].validator)),
            TableColumn("GROUP", lambda row: row[0].group or words.NOTHING),
            TableColumn("SAYS", lambda row: ", ".join(row[0].spans)),
            TableColumn("ENGINE", _machine),
            TableColumn("AT", lambda row: words.ago(row[0].at, now)),
            TableColumn("", lambda row: row[1]),
        )
        lines += ["", *("  " + line for line in render(columns, rows).splitlines())]
    for seen in view.observations:
        who = seen.group or words.identity(seen.observer)
        lines.append(f"  {who} found #{seen.block} at its source {words.ago(seen.at, now)}: {seen.result}")
    for each in view.witnesses:
        lines += witness_lines(each, now)
    if view.unsigned:
        lines.append(f"  This node signs no head of it: {clean(view.unsigned, 200)}")
    if view.unlisted:
        lines.append(f"  {words.plural(view.unlisted, 'more validator')} spoke and stand in no group of yours")
    for made in view.decisions:
        who = "Witnesses" if made.by == "witnesses" else "You"
        lines.append(f"  {who} decided {words.ago(made.at, now)}: {made.matter} {words.digest(made.hash)}")
    for choice in view.choices:
        lines.append(f"  You may follow {choice.hash}  {clean(choice.message, 100)}")
    if view.choices:
        lines.append(f"  To decide: {session.again} trust resolve {view.ref} --follow HASH, or --abandon")
    for proof in view.evidence:
        if proof.bundle:
            fetch = "" if proof.kept else " --fetch"
            lines.append(f"  Evidence: {session.again} trust evidence {proof.bundle}{fetch} -O evidence.odfe")
    return "\n".join(lines)


def _machine(row: tuple[wire.AttestationView, str]) -> str:
    """What a verdict was computed on: independence is declared, not measured."""
    return " ".join(filter(None, (row[0].engine, row[0].platform))) or words.NOTHING


def _reach(view: wire.TrustView) -> str:
    use, blocks = view.reach.use, view.blocks
    why = view.why.message if view.why else ""
    if not blocks:
        return "None of it is here yet."
    if use <= 0:
        return f"You may rely on none of it yet.  {why}".rstrip()
    if use >= blocks:
        return f"You may rely on all of it, blocks 0-{blocks - 1}."
    return f"You may rely on blocks 0-{use - 1}.  {why}".rstrip()


_LOOKED_INTO: Final = {
    "confirmed": "run again here, it is wrong",
    "refuted": "run again here, it is right",
    "incomplete": "the evidence lacks what the step reads",
    "unable": "this machine cannot tell",
    "unfit": "what was named as evidence is none",
}


def cell_lines(proof: wire.EvidenceView) -> list[str]:
    lines = [f"  #{proof.block}  {clean(proof.message, 200)}".rstrip()]
    if looked_into := _LOOKED_INTO.get(proof.recheck or ""):
        lines[0] += f"; {looked_into}"
    for cell in proof.cells[:10]:
        known = "  ".join(f"{name}={value}" for name, value in cell.context.items())
        lines.append(f"      row {cell.row}  {known}".rstrip())
        lines.append(f"      {cell.column}  published {cell.published}  computed {cell.computed}")
    return lines


def _evidence(args: argparse.Namespace) -> int:
    session = Session(args)
    path = f"/evidence/{part(args.id)}"
    if args.fetch:
        follow(session, session.client.post(path, wire.TaskRef).value, wire.EvidenceFetched)
    if args.out is None:
        sys.stdout.buffer.write(session.client.raw(path))
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
    session.show(answer, lambda _: f"{words.size(size)} in {args.out}")
    session.remark(f"anyone can check it, with no daemon: odfctl trust recheck {args.out}")
    return ExitCode.OK


def _resolve(args: argparse.Namespace) -> int:
    session = Session(args)
    request = wire.ResolveRequest(follow=args.follow, abandon=args.abandon)
    done = session.client.post(f"/datasets/{part(args.ref)}/trust/resolve", wire.Resolved, request)
    session.answer(done, lambda made: "\n".join(f"{made.ref}: {clean(each, 200)}" for each in made.settles))
    return ExitCode.OK


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
