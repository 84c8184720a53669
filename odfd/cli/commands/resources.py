"""``get``, ``describe``, ``delete``: list, show and remove things of every kind."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, TypeVar

from chain.errors import NotFound
from odfd import output
from odfd.cli import details, kinds
from odfd.cli.confirm import add_yes, confirm
from odfd.cli.parsers import Subparsers
from odfd.cli.session import MANIFEST, Session, to_yaml
from odfd.control import wire
from odfd.control.client import Answer, part
from odfd.errors import ExitCode, Usage

V = TypeVar("V", bound=wire.Value)

_KINDS = "dataset, engine, flow, mirror, network, peer, validator, secretset, variableset or task"


def register(subparsers: Subparsers) -> None:
    get = subparsers.add_parser(
        "get",
        help="list things of a kind",
        description=f"List things of a kind, or those that are named. KIND is {_KINDS}.",
        epilog="example:  odfctl get datasets\n          odfctl get dataset nyc.flights -o manifest > flights.yaml",
    )
    get.add_argument("kind", metavar="KIND")
    get.add_argument("names", nargs="*", default=[], metavar="NAME")
    get.add_argument("-l", "--labels", metavar="SELECTOR", help="those with labels like 'env=prod,team in (a,b),!old'")
    get.add_argument("-w", "--watch", action="store_true", help="then each change as it comes, without end")
    get.add_argument(
        "--since", metavar="VERSION", help="with -w: only what came after; each line begins with its version"
    )
    get.set_defaults(run=_get, writes_manifests=True)
    describe = subparsers.add_parser(
        "describe",
        help="all there is to know of one thing",
        description=f"All there is to know of one thing. KIND is {_KINDS}.",
        epilog="example:  odfctl describe dataset nyc.flights",
    )
    describe.add_argument("kind", metavar="KIND")
    describe.add_argument("name", metavar="NAME")
    describe.set_defaults(run=_describe)
    delete = subparsers.add_parser(
        "delete",
        help="remove things; a task is cancelled",
        description="Remove datasets, mirrors, networks, validators; cancel tasks. A dataset's data is gone for good.",
        epilog="example:  odfctl delete dataset nyc.flights --yes",
    )
    delete.add_argument("kind", metavar="KIND")
    delete.add_argument("names", nargs="+", metavar="NAME")
    add_yes(delete)
    delete.set_defaults(run=_delete)
    rename = subparsers.add_parser(
        "rename",
        help="call a dataset something else on this node",
        description="Give a dataset another local name. Its id stays, and whoever else has it calls it as before.\n"
        "Manifests and URLs that use the old name no longer find it.",
        epilog="example:  odfctl rename nyc.flights flights",
    )
    rename.add_argument("ref", metavar="REF")
    rename.add_argument("name", metavar="NAME")
    rename.set_defaults(run=_rename)


def one(session: Session, kind: kinds.Kind[V], name: str) -> Answer[V]:
    """The thing itself. Raises NotFound."""
    if kind.single:
        return session.client.get(f"{kind.path}/{part(name)}", kind.view)
    rows = every(session, kind)
    for value, sent in zip(rows.value, rows.sent, strict=True):
        if name in (kind.key(value), sent.get("id")):
            return Answer(value, sent)
    raise NotFound(f"there is no {kind.name} {name!r}", hint=f"odfctl get {kind.name}s lists them")


def every(session: Session, kind: kinds.Kind[V]) -> Answer[list[V]]:
    return session.client.get(kind.path, list[kind.view])  # type: ignore[name-defined]  # a type that is a value


def _get(args: argparse.Namespace) -> int:
    session, kind = Session(args), kinds.find(args.kind)
    if (args.labels or args.watch) and kind not in kinds.DECLARED:
        known = ", ".join(each.name for each in kinds.DECLARED)
        raise Usage(f"{kind.name}s have no labels and are not watched", hint=f"these are: {known}")
    if args.labels and args.names:
        raise Usage("things are named, or selected by labels", hint="leave one of them out")
    if args.watch:
        return _watch(session, kind, args)
    if session.output == MANIFEST:
        return _manifest(session, kind, args.names)
    now = session.clock.now()
    if len(args.names) == 1:
        session.answer(one(session, kind, args.names[0]), lambda row: kind.table([row], now))
        return ExitCode.OK
    if args.names:
        session.answer(_several([one(session, kind, name) for name in args.names]), lambda rows: kind.table(rows, now))
        return ExitCode.OK
    rows = every(session, kind) if args.labels is None else _labelled(session, kind, args.labels)
    session.answer(rows, lambda rows: kind.table(rows, now))
    if not rows.value:
        session.remark(f"no {kind.name}s yet")
    return ExitCode.OK


def _labelled(session: Session, kind: kinds.Kind[V], labels: str) -> Answer[list[V]]:
    """Those with labels that are as was asked."""
    found = session.client.get(f"/resources/{kind.name}", list[wire.ResourceView], {"labels": labels})
    names = {row.name for row in found.value}
    rows = every(session, kind)
    both = [(value, sent) for value, sent in zip(rows.value, rows.sent, strict=True) if sent["name"] in names]
    return _several([Answer(value, sent) for value, sent in both])


def _several(answers: Sequence[Answer[V]]) -> Answer[list[V]]:
    return Answer([each.value for each in answers], [each.sent for each in answers])


def _watch(session: Session, kind: kinds.Kind[Any], args: argparse.Namespace) -> int:
    asked = {"watch": "true"} | ({"since": args.since} if args.since else {})
    output.end_when_unread()
    for news in session.client.stream(f"/resources/{kind.name}", wire.ResourceNews, asked):
        said = news.value
        if args.names and said.resource is not None and said.resource.name not in args.names:
            continue
        what = "" if said.resource is None else f"  {said.resource.name}  {kinds.labels_text(said.resource.labels)}"
        session.line(news.sent, f"{said.version}  {said.op}{what}")
        output.flush()
    raise session.client.gone()


def _resource_manifests(session: Session, kind: kinds.Kind[Any], name: str | None) -> str:
    """As they can be applied, here or elsewhere."""
    path = f"/resources/{kind.name}"
    if name is None:
        rows = session.client.get(path, list[wire.ResourceView]).value
    else:
        rows = [session.client.get(f"{path}/{part(name)}", wire.ResourceView).value]
    texts = []
    for row in rows:
        if row.spec is None:
            hint = f"apply one: odfctl explain {kind.name}"
            raise Usage(f"{row.name} was not declared by a manifest of its type", hint=hint)
        headers = {key: row.headers[key] for key in ("name", "labels", "annotations") if key in row.headers}
        texts.append(to_yaml({"$schema": row.schema, "headers": headers, "spec": row.spec}))
    return "---\n".join(texts)


def manifest_text(session: Session, kind: kinds.Kind[Any], name: str | None) -> str:
    """What ``-o manifest`` shows. Raises Usage for kinds that have none."""
    if kind in kinds.DECLARED and kind is not kinds.DATASET:
        return _resource_manifests(session, kind, name)
    if kind is not kinds.DATASET:
        have = ", ".join(each.name for each in kinds.DECLARED)
        raise Usage(f"the kind {kind.name} has no manifest", hint=f"these have: {have}")
    if name is None:
        raise Usage("manifests of datasets are shown one at a time", hint="odfctl get dataset NAME -o manifest")
    return session.client.get(f"/datasets/{part(name)}/manifest", wire.ManifestView).value.text


def _manifest(session: Session, kind: kinds.Kind[Any], names: Sequence[str]) -> int:
    texts = [manifest_text(session, kind, name) for name in names] or [manifest_text(session, kind, None)]
    output.say("---\n".join(texts), end="")
    return ExitCode.OK


def _describe(args: argparse.Namespace) -> int:
    session, kind = Session(args), kinds.find(args.kind)
    if kind.name == "dataset":
        detail = session.client.get(f"/datasets/{part(args.name)}/detail?profile=1", wire.DatasetDetail)
        session.answer(detail, details.dataset)
    else:
        session.show(one(session, kind, args.name).sent, details.plain)
    return ExitCode.OK


def _rename(args: argparse.Namespace) -> int:
    session = Session(args)
    request = wire.RenameRequest(name=args.name)
    renamed = session.client.put(f"/datasets/{part(args.ref)}/name", wire.DatasetView, request)
    session.answer(renamed, lambda row: f"{args.ref} is now {row.name}")
    return ExitCode.OK


def _delete(args: argparse.Namespace) -> int:
    session, kind = Session(args), kinds.find(args.kind)
    if kind.name == "engine":
        raise Usage("engines are not deleted", hint="an unused process ends by itself after engine.idle-seconds")
    if kind.name == "peer":
        raise Usage("peers are not deleted", hint=f"odfctl peer block {args.names[0]} keeps one away")
    if len(args.names) > 1:
        for name in args.names:  # nothing is deleted where one is mistyped
            one(session, kind, name)
    if kind.name == "dataset" and not args.yes:
        things, their = ("dataset", "its") if len(args.names) == 1 else ("datasets", "their")
        confirm(f"Delete the {things} {', '.join(args.names)} with all {their} data?", "nothing was deleted")
    gone: list[Answer[Any]] = []
    try:
        gone += (session.client.delete(f"{kind.path}/{part(name)}", kind.view) for name in args.names)
    finally:
        _say_deleted(session, kind, args.names, gone)
    return ExitCode.OK


def _say_deleted(session: Session, kind: kinds.Kind[Any], names: Sequence[str], gone: Sequence[Answer[Any]]) -> None:
    word = "cancelled" if kind.name == "task" else "deleted"
    text = "\n".join(f"{kind.name} {name} {word}" for name, _ in zip(names, gone, strict=False))
    if gone:
        session.answer(gone[0] if len(names) == 1 else _several(gone), lambda _: text)
