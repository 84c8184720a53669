"""``trust policy``: what this node asks for before it relies on data, and what its network asks."""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path
from typing import Any

from chain.errors import Environment, Invalid
from odfd.cli import details, words
from odfd.cli.session import Session
from odfd.cli.table import clean
from odfd.errors import ExitCode

_VALIDATORS = {"f": "f", "groups": "groups", "min-engines": "minEngines", "min-sandbox": "minSandbox"}


def register(actions: Any, parser_class: type[argparse.ArgumentParser]) -> None:
    """Add ``policy`` to the actions of ``trust``."""
    parser = actions.add_parser("policy", help="what this node asks for", epilog="example:  odfctl trust policy show")
    inner = parser.add_subparsers(metavar="ACTION", required=True, parser_class=parser_class)
    show = inner.add_parser("show", help="the policy in force", epilog="example:  odfctl trust policy show")
    show.set_defaults(run=_show)
    publish = inner.add_parser(
        "publish",
        help="sign a policy for the network, with this node's key",
        description=(
            "FILE says in TOML what the network asks, as [policy] of the settings does: use, serve, [validators] with\n"
            "f, groups, min-engines and min-sandbox, [fresh] with max-stale. Nodes whose policy.network-key is this\n"
            "node's key tighten theirs at once; what would loosen them waits until a person accepts it."
        ),
        epilog="example:  odfctl trust policy publish network.toml",
    )
    publish.add_argument("file", metavar="FILE")
    publish.set_defaults(run=_publish)
    accept = inner.add_parser(
        "accept",
        help="let all that the network says hold here",
        description="For what trust policy show lists as waiting: rules that ask for less, or count others.",
        epilog="example:  odfctl trust policy accept f1620a1b2…",
    )
    accept.add_argument("sid", metavar="ID")
    accept.set_defaults(run=_accept)


def _show(args: argparse.Namespace) -> int:
    session = Session(args)
    view = session.client.get("/policy")
    session.answer(view, details.plain)
    for each in view["network"]:
        if each["state"] == "waiting":
            session.remark(
                f"version {each['version']} waits for you: {session.again} trust policy accept {each['sid']}"
            )
    return ExitCode.OK


def _publish(args: argparse.Namespace) -> int:
    session = Session(args)
    view = session.client.post("/policy/network", rules_of(args.file))
    session.answer(view, _told)
    return ExitCode.OK


def _accept(args: argparse.Namespace) -> int:
    session = Session(args)
    session.answer(session.client.post("/policy/accept", {"sid": args.sid}), _told)
    return ExitCode.OK


def _told(view: dict[str, Any]) -> str:
    of_whom = clean(view["network"], 64)
    return f"version {view['version']} of the policy of {of_whom}: {view['state']}  {words.digest(view['sid'])}"


def rules_of(file: str) -> dict[str, Any]:
    """What a file says, as the API takes it. Raises Environment, Invalid."""
    try:
        said = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise Environment(f"cannot read {file}: {error.strerror}", rule="file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"{file} is no TOML: {error}", rule="policy-file") from error
    wish: dict[str, Any] = {name: said.pop(name) for name in ("use", "serve") if name in said}
    validators, fresh = said.pop("validators", {}), said.pop("fresh", {})
    unknown = [*said, *(set(validators) - set(_VALIDATORS)), *(set(fresh) - {"max-stale"})]
    if unknown:
        raise Invalid(
            f"{file}: a network says nothing of {', '.join(sorted(map(str, unknown)))}",
            rule="policy-file",
            hint="use, serve, [validators] f, groups, min-engines, min-sandbox, [fresh] max-stale",
        )
    wish |= {_VALIDATORS[name]: value for name, value in validators.items()}
    if "groups" in wish:
        try:
            wish["groups"] = {group["name"]: group["keys"] for group in wish["groups"]}
        except (TypeError, KeyError) as error:
            raise Invalid(
                f"{file}: a group has a name and keys", rule="policy-file", hint='{name = "…", keys = ["did:key:…"]}'
            ) from error
    if "max-stale" in fresh:
        wish["maxStale"] = fresh["max-stale"]
    return wish
