"""``trust policy``: shows and changes the conditions for relying on data, here and in the network."""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path
from typing import Any

from chain.errors import Environment, Invalid
from odfd.cli import details, formatting
from odfd.cli.command import Commands, argument
from odfd.cli.session import Session
from odfd.cli.table import clean
from odfd.control import calls, wire

_VALIDATORS = {"f": "f", "groups": "groups", "min-engines": "min_engines", "min-sandbox": "min_sandbox"}
_WITNESS = {"f": "f", "groups": "groups", "quorum": "quorum", "max-age": "max_age"}
_SAYS = (
    "use, serve, [validators] f, groups, min-engines, min-sandbox, [witness] f, groups, quorum, max-age, "
    "[fresh] max-stale"
)
_GROUP = '{name = "…", keys = ["did:key:…"]}'


commands = Commands()
policy = commands.group("policy", help="the policy of this node", example="show")


@policy.add("show", help="print the policy in force")
def _show(session: Session, _: argparse.Namespace) -> None:
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
        "that would loosen theirs wait until a person accepts them."
    ),
    example="network.toml",
)
def _publish(session: Session, args: argparse.Namespace) -> None:
    session.answer(session.client.do(calls.policies_publish_rules(rules_of(args.file))), _rules_text)


@policy.add(
    "accept",
    argument("sid", metavar="ID"),
    help="accept the network's whole policy on this node",
    description="Accept the rules that trust policy show lists as waiting: they ask for less, or count others.",
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
            hint="one each, or two could stand on two sides",
        )
    return name, keys[0]
