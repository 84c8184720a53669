"""``get``, ``describe``, ``rename``, ``delete``: show and change resources of every kind."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from chain.errors import Fault, NotFound
from odfd import output
from odfd.cli import kinds, resource_tables
from odfd.cli.command import REF, YES, Commands, argument, confirm
from odfd.cli.commands.rendition import RENDITION, read_of, renditions_of
from odfd.cli.kinds import (
    BY_LABELS,
    OR_PATTERN,
    check_declared,
    is_pattern,
    list_labelled,
    list_selected,
    meant_by,
    names_of,
    one_or_several,
    several,
    things_meant,
)
from odfd.cli.session import LEGACY, MANIFESTS, SHAPES, Session, to_yaml
from odfd.cli.table import paragraphs
from odfd.cli.watch_retry import WatchPosition, resume
from odfd.control import calls, wire
from odfd.control.client import Answer
from odfd.errors import ExitCode, Usage
from odfd.resources import registry
from odfd.resources.registry import Registration, state

V = TypeVar("V", bound=wire.Value)

_KINDS = (
    "dataset, engine, flow, mirror, network, node, peer, projection, repository, source, validator, secretset, secret, "
    "variableset, variable, volume or task"
)


commands = Commands()


def one(session: Session, kind: kinds.Kind[V], name: str) -> Answer[V]:
    """Returns the resource of a kind by its name or id. Raises NotFound."""
    of, slash, rest = name.partition("/")
    if kind is kinds.PEER:
        name = kinds.whole_peer(session, name)
    if kind is kinds.RESOURCE and slash and (typed := kinds.find(of)).registration:  # a list of all leaves some out
        return one(session, typed, rest)
    if kind.fetch is not None:
        return session.client.do(kind.fetch(name))
    rows = kind.all(session)
    for value, sent in zip(rows.value, rows.sent, strict=True):
        if name in (kind.key(value), kinds.id_of(sent)):
            return Answer(value, sent)
    hint = f"odfctl get {kind.plural} lists them"
    raise NotFound(f"there is no {kind.name} {name!r}", rule="resource", hint=hint)


def resolve_names(session: Session, word: str, names: Sequence[str]) -> tuple[kinds.Kind[Any], list[str]]:
    """Returns a kind and names as ``kinds.named``; the kind may be left out before a name that only one thing has.

    Raises Usage, which names the kinds of several such things.
    """
    try:
        return kinds.parse_names(word, names)
    except Usage:
        if names or word.count("/") > 1:
            raise
        try:
            every = kinds.RESOURCE.all(session).value
        except Fault:  # without a daemon it is said that there is no such kind
            every = []
        found = [kinds.find(each.type) for each in every if word.casefold() in _names(each)]
        if not found:
            raise
        if len(found) > 1:
            ways = " or ".join(f"{kind.name} {word}" for kind in found)
            raise Usage(f"{len(found)} things are named {word[:100]}", hint=f"say which: {ways}") from None
        return found[0], [word]


def _names(each: wire.ResourceManifest) -> tuple[str, str]:
    """Returns the name of a resource, alone and after that of its account."""
    account = (each.headers.get("account") or {}).get("name", "")
    return each.name.casefold(), f"{account}/{each.name}".casefold()


@commands.add(
    "get",
    argument("kind", metavar="KIND"),
    argument("names", nargs="*", default=[], metavar="NAME", help=OR_PATTERN),
    BY_LABELS,
    argument("-w", "--watch", action="store_true", help="afterwards print each change as it happens, until ^C"),
    argument(
        "--since", metavar="VERSION", help="with -w: only changes after this version; each line begins with its version"
    ),
    description=f"List things of a kind, or those that are named. KIND is {_KINDS}.",
    example="datasets\ndataset nyc.flights -o manifest > flights.yaml",
    writes_manifests=True,
    lists_things=True,
)
def _get(session: Session, args: argparse.Namespace) -> int:
    kind, args.names = resolve_names(session, args.kind, args.names)
    _check_selection(kind, args)
    if args.watch and session.output in SHAPES:
        raise Usage(f"a watch has no -o {session.output}", hint="leave one of them out")
    if args.watch and args.labels:
        raise Usage("a watch does not select by labels", hint="leave -l out; each line shows labels")
    if args.watch:
        _check_watched(kind)
        return _watch(session, kind, args)
    names = meant_by(session, kind, args.names)
    if names is None:
        nothing: Answer[list[Any]] = Answer([], [])
        if session.output in SHAPES:
            kind.show_shaped(session, nothing)
        else:
            kind.show_all(session, nothing, f"no {kind.plural} have such names")
        return ExitCode.OK
    args.names = names
    if session.output in MANIFESTS:
        return _manifest(session, kind, args.names)
    if session.output == "yaml" and (kind.registration or kind is kinds.RESOURCE):
        return _canonical(session, kind, args)
    if kind is kinds.RENDITION and names:
        found = renditions_of(session, names)
        (kind.show_shaped if session.output in SHAPES else kind.show_all)(session, found)
        return ExitCode.OK
    if session.output in SHAPES:
        found = several([one(session, kind, name) for name in args.names]) if args.names else _rows(session, kind, args)
        kind.show_shaped(session, found)
        return ExitCode.OK
    if len(args.names) == 1:
        kind.show(session, one(session, kind, args.names[0]))
        return ExitCode.OK
    if args.names:
        kind.show_all(session, several([one(session, kind, name) for name in args.names]))
        return ExitCode.OK
    none = f"no {kind.plural} yet" if args.labels is None else f"no {kind.plural} have such labels"
    kind.show_all(session, _rows(session, kind, args), none)
    return ExitCode.OK


def _rows(session: Session, kind: kinds.Kind[V], args: argparse.Namespace) -> Answer[list[V]]:
    """Returns all resources of a kind, or those selected by labels."""
    if args.labels is not None:
        return list_labelled(session, kind, args.labels)
    if kind.registration is None:
        return kind.all(session)
    return kinds.list_resources(session.client, kind, tell=session.remark)  # type: ignore[return-value]  # the view


def _canonical(session: Session, kind: kinds.Kind[Any], args: argparse.Namespace) -> int:
    """Prints resources in RFC-018's canonical form, a document each, so that they can be applied as they are."""
    if args.names:
        found = [one(session, kind, name).sent for name in args.names]
    else:
        found = list_selected(session, kind, labels=args.labels).sent
        if kind is not kinds.RESOURCE:
            # Of what only the node saw, such as a peer, there is nothing to apply: its generation is 0.
            found = [each for each in found if each["headers"]["generation"]]
    output.say("---\n".join(map(to_yaml, found)).rstrip("\n"))
    return ExitCode.OK


def _check_watched(kind: kinds.Kind[Any]) -> None:
    if kind not in kinds.LIVE:
        check_declared(kind, "are not watched")


def _check_selection(kind: kinds.Kind[Any], args: argparse.Namespace) -> None:
    """Raises Usage if labels are combined with names, or the kind has none."""
    if args.labels:
        check_declared(kind, "have no labels")
    if args.labels and args.names:
        raise Usage("things are named, or selected by labels", hint="leave one of them out")


def _news(session: Session, kind: kinds.Kind[Any], since: str) -> Iterator[Answer[wire.ResourceManifestNews]]:
    """Yields the news of a watch; goes on when rights changed, or the daemon was away."""
    watch = calls.resources_watch
    if kind.registration is not None:
        watch = partial(calls.resources_all_watch, kind.registration)
    at: WatchPosition[Answer[wire.ResourceManifestNews]] = WatchPosition(since)

    def open_(begun: Callable[[], None]) -> Iterator[Answer[wire.ResourceManifestNews]]:
        reset = True
        while reset:
            reset = False
            at.begin()
            for news in session.client.stream(watch(since=at.version or None), begun):
                yield from at.take(news.value.op, news.value.version, news)
                reset = news.value.op == "Reset"

    return resume(session, open_)


def _watch(session: Session, kind: kinds.Kind[Any], args: argparse.Namespace) -> int:
    output.end_when_unread()
    for news in _news(session, kind, args.since or ""):
        change, row = news.value, news.value.object
        name = "" if row is None else row.name if kind is not kinds.RESOURCE else kind.key(row)
        if args.names and row is not None and name not in args.names:
            continue
        phase = f"  {resource_tables.phase_text(row)}" if row is not None and kind is kinds.RESOURCE else ""
        what = "" if row is None else f"  {name}{phase}  {resource_tables.labels_text(row.labels)}"
        session.line(news.sent, f"{change.version}  {change.op}{what}")
        output.flush()
    return ExitCode.OK


def _resource_manifests(session: Session, kind: kinds.Kind[Any], name: str | None) -> str:
    """Returns manifests that can be applied, here or on another node: of all, those of what was declared.

    In a list those of other accounts than the caller's have their account, since several may have one name.
    """
    every = kinds.list_resources(session.client, kind).value if name is None else []
    rows = [each for each in every if each.headers["generation"]] if name is None else [one(session, kind, name).value]
    own = kinds.own_account(session) if every else ""
    texts = []
    for row in rows:
        if row.spec is None:
            hint = f"apply one: odfctl explain {kind.name}"
            raise Usage(f"{row.name} was not declared by a manifest of its type", hint=hint)
        headers = {key: row.headers[key] for key in ("name", "labels", "annotations") if row.headers.get(key)}
        if own and (account := kinds.account_of(row)) != own:
            headers["account"] = account
        texts.append(to_yaml({"$schema": row.schema, "headers": headers, "spec": row.spec}))
    return "---\n".join(texts)


def _dataset_manifest(session: Session, name: str) -> str:
    """Returns the manifest of a dataset: declarations of its chain, and settings that this node keeps beside it."""
    if session.output == LEGACY:
        return to_yaml(session.client.do(calls.datasets_snapshot(name)).value)
    found = session.client.do(calls.resources_one(registry.DATASET, name, form="input")).value
    return to_yaml({"$schema": found.schema, "headers": found.headers, "spec": found.spec})


def manifest_text(session: Session, kind: kinds.Kind[Any], name: str | None) -> str:
    """Returns the text of ``-o manifest``. Raises Usage for kinds without manifests."""
    if session.output == LEGACY and kind is not kinds.DATASET:
        raise Usage(f"the kind {kind.name} has no older form", hint="-o manifest shows what there is")
    if kind in kinds.DECLARED and kind is not kinds.DATASET:
        return _resource_manifests(session, kind, name)
    if kind is not kinds.DATASET:
        have = ", ".join(each.name for each in kinds.DECLARED)
        raise Usage(f"the kind {kind.name} has no manifest", hint=f"these have: {have}")
    if name is None:
        raise Usage("manifests of datasets are shown one at a time", hint="odfctl get dataset NAME -o manifest")
    return _dataset_manifest(session, name)


def _manifest(session: Session, kind: kinds.Kind[Any], names: Sequence[str]) -> int:
    texts = [manifest_text(session, kind, name) for name in names] or [manifest_text(session, kind, None)]
    output.say("---\n".join(texts), end="")
    return ExitCode.OK


@commands.add(
    "describe",
    argument("kind", metavar="KIND"),
    argument("name", metavar="NAME", nargs="?", help=OR_PATTERN),
    RENDITION,
    description=f"All there is to know of one thing, or of those that a pattern selects. KIND is {_KINDS}.",
    example="dataset nyc.flights\ndataset did:odf:fed01…",
)
def _describe(session: Session, args: argparse.Namespace) -> None:
    from odfd.cli import details

    kind, names = resolve_names(session, args.kind, [args.name] if args.name else [])
    if len(names) != 1:
        raise Usage(
            f"which {kind.name}?", hint=f"odfctl describe {kind.name} NAME; odfctl get {kind.plural} lists them"
        )
    if kind.name != "dataset" and args.rendition is not None:
        raise Usage(f"a {kind.name} has no renditions", hint="leave out --rendition")
    found, texts = [], []
    for name in things_meant(session, kind, names):
        answer: Answer[Any]
        if kind is not kinds.DATASET:
            answer = one(session, kind, name)
            text = details.plain(answer.sent)
        else:
            try:
                answer = session.client.do(calls.datasets_describe(read_of(session, name, args), profile=True))
                text = details.dataset(answer.value)
            except NotFound:
                if not name.startswith("did:"):
                    raise
                answer = session.client.do(calls.search_card(name))
                text = details.card(answer.value)
                session.remark(f"it is not here; this is its publisher's card: odfctl mirror add {name}")
        found.append(answer)
        texts.append(text)
    session.answer(one_or_several(found), lambda _: paragraphs(texts))


@commands.add(
    "rename",
    REF,
    argument("name", metavar="NAME"),
    description="Give a resource another name: a dataset NAME, or KIND/NAME. Its id stays, and references to it stay "
    "valid. Other nodes keep their names for a dataset. Manifests and URLs with the old name no longer find it.",
    example="nyc.flights flights\nflow/hourly daily",
)
def _rename(session: Session, args: argparse.Namespace) -> None:
    type_, ref = _parse_ref(args.ref)
    kinds.check_one(kinds.find(type_.name), ref, "rename")
    renamed = session.client.do(calls.resources_rename(type_, ref, wire.RenameRequest(name=args.name)))
    session.answer(renamed, lambda row: f"{args.ref} is now {row.name}")


def _parse_ref(ref: str) -> tuple[Registration, str]:
    """Returns the type and the name in ``KIND/NAME``; without a kind, which may be an account, that of datasets."""
    try:
        kind, names = kinds.parse_names(ref, []) if "/" in ref else (kinds.DATASET, [ref])
    except Usage:
        return registry.DATASET, ref
    check_declared(kind, "are not renamed")
    if kind.registration is None or len(names) != 1:
        raise Usage(f"{ref[:100]!r} names no single thing", hint="odfctl rename KIND/NAME NEW_NAME")
    return kind.registration, names[0]


@commands.add(
    "adopt",
    argument("ref", metavar="DID|NAME"),
    argument("name", nargs="?", metavar="NEW_NAME"),
    description="Restore a deleted dataset whose data was kept: odfctl get unmanaged lists them. It is private, and "
    "has the name that it had unless NEW_NAME is given.",
    example="nyc.flights",
)
def _adopt(session: Session, args: argparse.Namespace) -> None:
    request = wire.AdoptRequest(name=args.name)
    adopted = session.client.do(calls.unmanaged_adopt(args.ref, request))
    session.answer(adopted, lambda row: f"{row.name} is here again  {row.id}")


@commands.add(
    "delete",
    argument("kind", metavar="KIND"),
    argument("names", nargs="*", default=[], metavar="NAME", help=OR_PATTERN),
    BY_LABELS,
    argument("--purge", action="store_true", help="delete the data of datasets too, for good"),
    YES,
    description="Delete datasets, flows, mirrors, networks, validators, sets. A dataset's data stays as unmanaged: "
    "odfctl adopt takes it back, odfctl delete unmanaged deletes it for good.",
    example="dataset nyc.flights --yes",
)
def _delete(session: Session, args: argparse.Namespace) -> None:
    kind, args.names = kinds.parse_names(args.kind, args.names)
    if kind.name == "engine":
        raise Usage("engines are not deleted", hint="an unused process ends by itself after engine.idle-seconds")
    if kind is kinds.NODE:
        raise Usage("a node is not deleted", hint="systemctl stop odfd, or odfctl docs remove")
    if kind.name == "peer":
        raise Usage(
            "peers are not deleted", hint=f"odfctl peer block {' '.join(args.names[:1]) or 'PEER'} keeps one away"
        )
    is_dataset = kind.name == "dataset"
    if args.purge and not is_dataset:
        raise Usage(f"a {kind.name} has no data", hint="--purge is for datasets")
    selects = args.labels or any(is_pattern(kind, name) for name in args.names)
    asks = (is_dataset or kind.name == "unmanaged" or selects) and not args.yes
    names = _to_delete(session, kind, args, asks=asks)
    if asks and names:
        confirm(_question(kind, names, purge=args.purge), "nothing was deleted")
    gone: list[Answer[Any]] = []
    words: list[str] = []
    delete = kind.delete
    if delete is None:
        hint = "odfctl delete KIND NAME, or odfctl rendition abandon NAME"
        raise Usage(f"{kind.plural} are not deleted as such", hint=hint)
    if args.purge:
        delete = partial(calls.resources_delete, registry.DATASET, objects="purge")
    try:
        for name in names:
            before: wire.ResourceManifest | None = one(session, kind, name).value if kind is kinds.TASK else None
            gone.append(session.client.do(delete(name)))
            words.append("deleted" if before is None else _end_text(before, gone[-1].value))
    finally:
        _print_deleted(session, kind, gone, list(zip(names, words, strict=False)), purge=args.purge)


def _question(kind: kinds.Kind[Any], names: Sequence[str], *, purge: bool) -> str:
    many = len(names) > 1
    things, their = (f"{kind.plural}", "their") if many else (kind.name, "its")
    if kind.name == "unmanaged":
        return f"Delete the data of {', '.join(names)} for good?"
    data = ""
    if kind.name == "dataset":
        data = f" with all {their} data, for good" if purge else f" and keep {their} data as unmanaged"
    return f"Delete the {things} {', '.join(names)}{data}?"


def _to_delete(session: Session, kind: kinds.Kind[Any], args: argparse.Namespace, *, asks: bool) -> Sequence[str]:
    """Returns the names to delete. Raises Usage, NotFound: if one is mistyped, nothing is asked or deleted."""
    _check_selection(kind, args)
    if args.labels:
        if kind is kinds.RESOURCE:
            raise Usage(
                "resources are deleted one kind at a time", hint=f"odfctl delete variableset -l '{args.labels}'"
            )
        found = names_of(kind, list_labelled(session, kind, args.labels).value)
        if not found:
            session.remark(f"no {kind.plural} have such labels; nothing was deleted")
        return found
    if not args.names:
        raise Usage("nothing is named", hint=f"odfctl delete {kind.name} NAME, or -l SELECTOR")
    names = meant_by(session, kind, args.names)
    if names is None:
        session.remark(f"no {kind.plural} have such names; nothing was deleted")
        return []
    for name in names if asks or len(names) > 1 else ():
        one(session, kind, name)
    return names


def _print_deleted(
    session: Session,
    kind: kinds.Kind[Any],
    gone: Sequence[Answer[Any]],
    told: Sequence[tuple[str, str]],
    *,
    purge: bool,
) -> None:
    """Prints the result for each deleted resource. ``told``: names and results."""
    text = "\n".join(f"{kind.name} {name} {word}" for name, word in told)
    if gone:
        session.answer(one_or_several(gone), lambda _: text)
    if gone and kind.name == "dataset" and not purge:
        name = told[0][0]
        session.remark(
            f"its data stays: odfctl adopt {name} takes it back, odfctl delete unmanaged {name} frees the disk"
            if len(gone) == 1
            else "their data stays, as odfctl get unmanaged shows: odfctl adopt, or odfctl delete unmanaged"
        )


def _end_text(before: wire.ResourceManifest, gone: wire.ResourceManifest) -> str:
    """Returns the result for a task: one that a command began may have ended by itself, and then stays in the list."""
    if gone.problem.get("code") == "cancelled":
        return "cancelled"
    return "deleted" if before.generation else f"was {state(before).get('state')} before"
