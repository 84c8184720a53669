"""``trust``: shows how far a dataset may be relied on and the reasons, and changes who counts, and the policy."""

from __future__ import annotations

import argparse
import importlib
import tomllib
from pathlib import Path
from typing import Any

from chain.errors import Environment, Invalid
from odfd import output
from odfd.cli import details, formatting, kinds
from odfd.cli.command import REF, REPLACE, Commands, OneOf, argument
from odfd.cli.commands import authority
from odfd.cli.commands.apply import declare
from odfd.cli.commands.resources import one
from odfd.cli.kinds import several
from odfd.cli.new_file import NewFile
from odfd.cli.progress import submit
from odfd.cli.session import Session
from odfd.cli.table import Stack, TableColumn, clean, render
from odfd.cli.trust_text import trust_text
from odfd.control import calls, wire
from odfd.errors import Usage
from odfd.resources import registry

commands = Commands()
trust = commands.group(
    "trust",
    description="The statements about a dataset, their signers, and the result of this node's policy.",
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
        "Check a bundle from the file alone: signatures, hashes and links, and a second run of the accused step "
        "on this machine's engine, without daemon and network. Ends with 0 when the accusation is confirmed, 1 when "
        "the step is right, 5 when the bundle is invalid or incomplete, 7 when this machine cannot decide.\n\n"
        "For an answer (odfctl sql --prove FILE), the query runs again on the same blocks: of the daemon's "
        "datasets, or with --from of folders, without a daemon. Ends with 0 for the same rows, 1 for others, "
        "7 when this machine cannot decide."
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
        argument("--follow", metavar="HASH", help="use the history up to this block; or a version's id"),
        argument("--abandon", action="store_true", help="accept no further blocks of it"),
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
    session.answer(done, lambda made: "\n".join(f"{made.ref}: {clean(settle, 200)}" for settle in made.settles))


validator = trust.group(
    "validator", help="validators whose verdicts count", example="add did:key:z6Mk… --group uni-graz"
)


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
    session.answer(gone, lambda row: f"{row.spec['did']} no longer counts")


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
        "no verdict counts yet: odfctl trust validator add DID --group NAME",
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
        "A key that does not know what it has signed could contradict itself, which other nodes can prove. When "
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
    asked = formatting.plural(view.peers, "listed group") if view.peers else "no listed key"
    return Stack([render(columns, view.begun), f"They sign again; {asked} could be asked."])


_VALIDATORS = {"f": "f", "groups": "groups", "min-engines": "min_engines", "min-sandbox": "min_sandbox"}
_WITNESS = {"f": "f", "groups": "groups", "quorum": "quorum", "max-age": "max_age"}
_SAYS = (
    "use, serve, [validators] f, groups, min-engines, min-sandbox, [witness] f, groups, quorum, max-age, "
    "[fresh] max-stale"
)
_GROUP = '{name = "…", keys = ["did:key:…"]}'


policy = trust.group("policy", help="the policy of this node", example="show")


@policy.add("show", help="print the policy in force")
def _show_policy(session: Session, _: argparse.Namespace) -> None:
    policy = session.client.do(calls.policies_policy())
    session.show(policy.sent, details.plain)
    for each in policy.value.network:
        if each.state == "waiting":
            session.remark(f"version {each.version} waits for you: {session.again} trust policy accept {each.sid}")


@policy.add(
    "publish",
    argument("file", metavar="FILE"),
    help="sign a policy for the network, with this node's key",
    description=(
        "FILE contains the network's policy in TOML, like [policy] in the settings: use, serve, [validators] "
        "with f, groups, min-engines and min-sandbox, [witness] with f, groups, quorum and max-age, [fresh] "
        "with max-stale. Nodes with this node's key as policy.network-key apply stricter rules at once; rules "
        "that would loosen theirs wait until their operators accept them."
    ),
    example="network.toml",
)
def _publish(session: Session, args: argparse.Namespace) -> None:
    session.answer(session.client.do(calls.policies_publish_rules(rules_of(args.file))), _rules_text)


@policy.add(
    "accept",
    argument("sid", metavar="ID"),
    help="accept the network's whole policy on this node",
    description="Accept the rules that trust policy show lists as waiting: they require less, or count other keys.",
    example="f1620a1b2…",
)
def _accept(session: Session, args: argparse.Namespace) -> None:
    request = wire.AcceptRequest(sid=args.sid)
    session.answer(session.client.do(calls.policies_accept_rules(request)), _rules_text)


def _rules_text(view: wire.NetworkRulesView) -> str:
    of_whom = clean(view.network, 64)
    return f"version {view.version} of the policy of {of_whom}: {view.state}  {formatting.digest(view.sid)}"


def rules_of(file: str) -> wire.NetworkRulesRequest:
    """Reads rules from a file; the daemon checks the values. Raises Environment, Invalid."""
    try:
        document = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise Environment(f"cannot read {file}: {error.strerror}", rule="file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"{file} is no TOML: {error}", rule="policy-file") from error
    rules: dict[str, Any] = {name: document.pop(name) for name in ("network", "use", "serve") if name in document}
    tables = {name: document.pop(name, {}) for name in ("validators", "witness", "fresh")}
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise Invalid(f"{file}: [{name}] is no table", rule="policy-file", hint=_SAYS)
    validators, witness, fresh = tables.values()
    unknown = [*document, *(set(validators) - set(_VALIDATORS)), *(set(witness) - set(_WITNESS)),
               *(set(fresh) - {"max-stale"})]  # fmt: skip
    if unknown:
        raise Invalid(
            f"{file}: a network says nothing of {', '.join(sorted(map(str, unknown)))}",
            rule="policy-file",
            hint=_SAYS,
        )
    rules |= {_VALIDATORS[name]: value for name, value in validators.items()}
    if "groups" in rules:
        rules["groups"] = _groups(file, rules["groups"])
    if witness:
        witnesses = {_WITNESS[name]: value for name, value in witness.items()}
        if "groups" in witness:
            witnesses["groups"] = dict(_single(file, *each) for each in _groups(file, witness["groups"]).items())
        rules["witness"] = wire.WitnessRulesRequest(**witnesses)
    if "max-stale" in fresh:
        rules["max_stale"] = fresh["max-stale"]
    return wire.NetworkRulesRequest(**rules)


def _groups(file: str, written: Any) -> dict[str, list[str]]:
    """Returns the keys of each group by its name. Raises Invalid."""
    try:
        found = {group["name"]: group["keys"] for group in written}
    except (TypeError, KeyError) as error:
        raise Invalid(f"{file}: a group has a name and keys", rule="policy-file", hint=_GROUP) from error
    if len(found) < len(written):
        raise Invalid(f"{file}: a group is listed twice", rule="policy-file", hint="join its keys")
    return found


def _single(file: str, name: str, keys: list[str]) -> tuple[str, str]:
    """Returns the only key of a group with its name. Raises Invalid for more or fewer keys."""
    if not isinstance(keys, list) or len(keys) != 1:
        raise Invalid(
            f"{file}: witness group {name} has more or less than one key",
            rule="policy-file",
            hint="one each, or two could be on two sides",
        )
    return name, keys[0]
