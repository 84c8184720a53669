"""States for each API operation who may call it, and what of its answer they get; not applied to the node's owner.

An operation without a row here is for the node's owner only. A test compares the rows with the operations of all
endpoints, and checks what each way to read a dataset answers to callers who may not read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, cast

import msgspec
import trio

from chain.errors import Invalid, NotFound, Refused
from chain.ids import DatasetId
from odfd.access.manifest import ACCOUNT
from odfd.access.relations import Action, Role
from odfd.api.access import changes, report_filter
from odfd.api.access.account_watch import news, readable, readable_views
from odfd.api.access.apply_rules import acts_for_others, apply
from odfd.api.access.guard import Guard, not_meant
from odfd.api.access.tasks import TaskOwners
from odfd.api.network.search import MAX_FOUND
from odfd.api.queries.public_queries import check_public
from odfd.api.resources.pages import ResourcePage, no_page, rest_after
from odfd.api.resources.types import TYPES
from odfd.api.resources.versions import number_of
from odfd.control import wire
from odfd.datasets.catalog import DatasetEntry, NamedId, is_one_chain
from odfd.errors import sole_faults
from odfd.flows.store import TYPE as FLOW
from odfd.queries.askers import Asker
from odfd.queries.callers import Crowd, QueryCaller
from odfd.resources.label_schemas import ACCESS, short_name
from odfd.resources.store import ResourceStore

Operation: TypeAlias = Callable[..., Any]
Rule: TypeAlias = Callable[[Guard, TaskOwners, Operation], Operation]
_IN_USE: Final = "dataset-in-use"


def _judged(ref: str, entry: DatasetEntry) -> str:
    """Returns the id of a dataset that was judged, which means all shards if it was called by its name."""
    return str(entry.id) if is_one_chain(ref) else NamedId(str(entry.id))


def free(_: Guard, __: TaskOwners, operation: Operation) -> Operation:
    """Allows the operation to everybody: it reveals nothing about what is here."""
    return operation


def on_dataset(action: Action) -> Rule:
    """Judges the dataset that the first argument names; the operation gets its id."""

    def rule(guard: Guard, tasks: TaskOwners, operation: Operation) -> Operation:
        async def guarded(ref: str, *args: Any, **more: Any) -> Any:
            entry = await guard.dataset(ref, action)
            return tasks.noted(guard.subject, await operation(_judged(ref, entry), *args, **more))

        return guarded

    return rule


def on_refs(action: Action) -> Rule:
    """Judges all datasets that the request names."""

    def rule(guard: Guard, tasks: TaskOwners, operation: Operation) -> Operation:
        async def guarded(request: Any) -> Any:
            if not request.refs or request.all or getattr(request, "recursive", False):
                raise not_meant("this")
            if getattr(request, "source", None) is not None:
                raise guard.owner_only("to pull from a Source")
            entries = [await guard.dataset(each, action) for each in request.refs]
            known = msgspec.structs.replace(request, refs=tuple(map(_judged, request.refs, entries)))
            return tasks.noted(guard.subject, await operation(known))

        return guarded

    return rule


def _listed(guard: Guard, _: TaskOwners, operation: Operation) -> Operation:
    async def guarded() -> Any:
        views = await operation()
        readable = await guard.readable([DatasetId.parse(each.id) for each in views])
        return [each for each in views if DatasetId.parse(each.id) in readable]

    return guarded


def _graph(guard: Guard, _: TaskOwners, operation: Operation) -> Operation:
    """Shows datasets that cannot be read as if they were not here."""

    async def guarded(ref: str) -> Any:
        entry = await guard.dataset(ref, Action.READ)
        return await operation(_judged(ref, entry), guard.readable_of)

    return guarded


def _traced(guard: Guard, tasks: TaskOwners, operation: Operation) -> Operation:
    """Does as ``_graph``. The task holds rows, so only its beginner can read it."""

    async def guarded(ref: str, request: wire.LineageRequest) -> Any:
        entry = await guard.dataset(ref, Action.READ)
        guard.identified("to trace a record", Role.READER)
        return tasks.noted(guard.subject, await operation(_judged(ref, entry), request, guard.readable_of))

    return guarded


def _renditions(guard: Guard, _: TaskOwners, operation: Operation) -> Operation:
    """Allows the renditions of one dataset to those who can read it, and those of all datasets to the owner only."""

    async def guarded(ref: str | None = None) -> Any:
        if ref is None:
            raise guard.owner_only("to list the renditions of all datasets")
        entry = await guard.dataset(ref, Action.READ)
        views = await operation(_judged(ref, entry))
        readable = await guard.readable([DatasetId.parse(each.dataset_id) for each in views])
        return [each for each in views if DatasetId.parse(each.dataset_id) in readable]

    return guarded


def _described(guard: Guard, _: TaskOwners, operation: Operation) -> Operation:
    """Removes local names of datasets that cannot be read; the dids of inputs are in the chain anyway."""

    async def guarded(ref: str, **more: Any) -> Any:
        entry = await guard.dataset(ref, Action.READ)
        detail = await operation(_judged(ref, entry), **more)
        inputs, outputs = await trio.to_thread.run_sync(_known, guard, detail)
        return msgspec.structs.replace(detail, inputs=inputs, outputs=outputs)

    return guarded


def _known(guard: Guard, detail: wire.DatasetDetail) -> tuple[tuple[str, ...], tuple[str, ...]]:
    with guard.home.catalog() as catalog:
        entries = {entry.name: entry.id for entry in catalog.chains()}
    readable = guard.readable_of(list(entries.values()))
    hidden = {name for name, dataset in entries.items() if dataset not in readable}
    inputs = tuple(
        each.partition(" (")[2].removesuffix(")") if each.partition(" (")[0] in hidden else each
        for each in detail.inputs
    )
    return inputs, tuple(each for each in detail.outputs if each not in hidden)


def _deleted(guard: Guard, _: TaskOwners, operation: Operation) -> Operation:
    async def guarded(ref: str, *, purge: bool = False) -> Any:
        entry = await guard.dataset(ref, Action.OWN)
        try:
            return await operation(_judged(ref, entry), purge=purge)
        except Refused as fault:
            if fault.rule != _IN_USE:
                raise
            text = f"others derive from {entry.name}"
            raise Refused(text, rule=_IN_USE, hint="those whose they are delete them first") from None

    return guarded


def _resources(guard: Guard, tasks: TaskOwners, operation: Operation) -> Operation:
    async def guarded(word: str | None, labels: str | None) -> Any:
        return await readable_views(guard, tasks, await operation(word, labels))

    return guarded


def _resource(action: Action) -> Rule:
    def rule(guard: Guard, tasks: TaskOwners, operation: Operation) -> Operation:
        """Judges ``get``, or an operation of the same service with the same first arguments."""

        async def guarded(word: str, name: str, *args: Any, **more: Any) -> Any:
            view = await _one(guard, tasks, operation, word, name)
            if action is not Action.READ:
                if view.type == ACCOUNT:  # who acts as it stands in its annotations, and without any, all are the owner
                    raise guard.owner_only("to change an Account")
                await guard.judge(view, action)
                view = await operation(word, view.id, *args, **more)
                if view is None:
                    return None
            return (await readable_views(guard, tasks, [view], is_judged=True))[0]

        return guarded

    return rule


def _flow(action: Action) -> Rule:
    """Judges the Flow that the first argument names; the operation gets its id.

    It acts with the rights of the account that has it, so nobody else of an account changes when it runs.
    """

    def rule(guard: Guard, _: TaskOwners, operation: Operation) -> Operation:
        async def guarded(name: str, *args: Any, **more: Any) -> Any:
            id_ = await trio.to_thread.run_sync(_flow_meant, guard, name, action)
            return await operation(id_, *args, **more)

        return guarded

    return rule


def _flow_meant(guard: Guard, name: str, action: Action) -> str:
    with guard.home.database.read() as connection:
        found = ResourceStore(connection).called(FLOW, name, guard.subject.account)
    state = guard.state()
    if found is None or guard.role_of(state, found.id) is None:
        text = f"there is no flow {name[:120]!r} that you may read"
        raise NotFound(text, rule="flow-name", hint="odfctl get flows lists those")
    if (denied := guard.denial(state, found.id, action, f"{FLOW}:{found.name}")) is not None:
        raise denied
    if action is not Action.OWN and (found.account is None or guard.account(found.account) is None):
        raise acts_for_others(guard, found)
    return found.id


def _backfilled(guard: Guard, tasks: TaskOwners, operation: Operation) -> Operation:
    async def guarded(name: str, request: wire.BackfillRequest | wire.FlowRunRequest) -> Any:
        if request.target is not None:
            entry = await guard.dataset(request.target, Action.READ)
            request = msgspec.structs.replace(request, target=str(entry.id))
        return await _flow(Action.MAINTAIN)(guard, tasks, operation)(name, request)

    return guarded


def _labelled(guard: Guard, tasks: TaskOwners, operation: Operation) -> Operation:
    async def guarded(word: str, name: str, request: wire.LabelRequest) -> Any:
        action = Action.MAINTAIN if ACCESS.isdisjoint(map(short_name, request.labels)) else Action.OWN
        return await _resource(action)(guard, tasks, operation)(word, name, request)

    return guarded


def _endpoint(action: Action) -> Rule:
    """Judges the endpoint of a Source by the rights on its resource."""

    def rule(guard: Guard, tasks: TaskOwners, operation: Operation) -> Operation:
        async def guarded(name: str, *args: Any) -> Any:
            view = await _one(guard, tasks, operation, "source", name)
            await guard.judge(view, action)
            return await operation(view.id, *args)

        return guarded

    return rule


def _checked(guard: Guard, tasks: TaskOwners, operation: Operation) -> Operation:
    async def guarded(word: str, name: str, *args: Any) -> Any:
        view = await _one(guard, tasks, operation, word, name)
        return await operation(word, view.id, *args)

    return guarded


async def _one(guard: Guard, tasks: TaskOwners, operation: Operation, word: str, name: str) -> wire.ResourceView:
    """Returns a readable resource. Raises the same NotFound for an unreadable one as for a missing one."""
    service, kind = cast("Any", operation).__self__, TYPES.word(word)
    try:
        meant = name if kind is None else await guard.meant(kind.name, name)
        found = await readable(guard, tasks, [await service.get(word, meant)])
    except (NotFound, Invalid) as fault:
        if fault.rule not in ("resource", "ambiguous-name"):
            raise
        found = []
    if not found:
        text = f"there is no {word[:80]} {name[:120]!r} that you may read"
        raise NotFound(text, rule="resource", hint=f"odfctl get {word[:80].lower()} lists those")
    return found[0]


def _paged(guard: Guard, tasks: TaskOwners, operation: Operation) -> Operation:
    """Fills a page with readable resources, so that neither its size nor its end reveals others."""

    async def guarded(word: str, labels: str | None, limit: int, rest: str | None) -> ResourcePage:
        views: list[wire.ResourceView] = []
        rest, version = _asked_page(guard, rest)
        while True:
            page: ResourcePage = await operation(word, labels, limit, rest)
            version = version or await trio.to_thread.run_sync(_version_at, guard, number_of(page.version))
            views += await readable_views(guard, tasks, page.views)
            rest = page.rest
            if rest is None or len(views) > limit:
                break
        shown = tuple(views[:limit])
        if len(views) <= limit:
            return ResourcePage(version, shown, None, page.type)
        after = rest_after(page.version, (shown[-1].type, labels), shown[-1].name)
        sealed = guard.positions.sealed_text(guard.subject.account, f"{after} {version}")
        return ResourcePage(version, shown, sealed, page.type)

    return guarded


def _asked_page(guard: Guard, rest: str | None) -> tuple[str | None, str]:
    """Returns the token of the next page, and the version of the list. Raises Usage."""
    if rest is None:
        return None, ""
    opened = guard.positions.opened_text(guard.subject.account, rest)
    if opened is None:
        raise no_page(rest)
    after, _, version = opened.partition(" ")
    return after, version


def _version_at(guard: Guard, newest: int) -> str:
    """Returns the version of a list that was read at a log number. Blocking."""
    sight, mark = guard.look()
    return guard.version(min(sight.position, newest), mark)


def _queried(guard: Guard, _: TaskOwners, operation: Operation) -> Operation:
    async def guarded(request: wire.QueryRequest, give: Any) -> None:
        check_public(request)
        asker = Asker(
            served=guard.size_for,
            caller=QueryCaller(Crowd.ACCOUNTS, guard.subject.account or ""),
            reads=lambda id_: guard.role_of(guard.state(), id_) is not None,
        )
        try:
            with sole_faults():
                await operation(request, give, asker)
        except NotFound as fault:
            if fault.rule == "query-dataset":
                fault.hint = "odfctl get datasets lists what you may read"
            raise

    return guarded


def _searched(guard: Guard, _: TaskOwners, operation: Operation) -> Operation:
    """Leaves out cards of datasets that are here and cannot be read."""

    async def guarded(request: wire.SearchRequest) -> wire.SearchView:
        found = await operation(msgspec.structs.replace(request, limit=max(request.limit, MAX_FOUND)))
        kept = await _cards(guard, found.found)
        limit = request.limit
        return wire.SearchView(found=tuple(kept[:limit]), more=len(kept[limit:]), cards=len(kept))

    return guarded


def _card(guard: Guard, _: TaskOwners, operation: Operation) -> Operation:
    async def guarded(ref: str) -> wire.CardView:
        short = DatasetId.parse(ref).short
        nothing = NotFound(f"{short}: no card describes it", rule="card", hint="odfctl search lists what is known")
        try:
            kept = await _cards(guard, [await operation(ref)])
        except NotFound:
            raise nothing from None
        if not kept:
            raise nothing
        return kept[0]

    return guarded


async def _cards(guard: Guard, cards: Any) -> list[wire.CardView]:
    here = [DatasetId.parse(each.id) for each in cards if each.local_name is not None]
    readable = await guard.readable(here)
    return [each for each in cards if each.local_name is None or DatasetId.parse(each.id) in readable]


def _staged(guard: Guard, _: TaskOwners, operation: Operation) -> Operation:
    async def guarded(name: str, chunks: Any) -> Any:
        guard.identified("an upload")
        return await operation(name, chunks)

    return guarded


def _me(guard: Guard, _: TaskOwners, __: Operation) -> Operation:
    async def guarded() -> wire.AccountView:
        return await trio.to_thread.run_sync(guard.me)

    return guarded


def _token_made(guard: Guard, _: TaskOwners, operation: Operation) -> Operation:
    async def guarded(request: wire.TokenRequest) -> wire.TokenView:
        guard.identified("a token")
        guard.by_socket("to make a token")
        made: wire.TokenView = await operation(request, guard.subject.account)
        return made

    return guarded


def _own_tokens(guard: Guard, _: TaskOwners, operation: Operation) -> Operation:
    async def guarded() -> Any:
        guard.identified("to list tokens", Role.READER)
        return await operation(guard.subject.account)

    return guarded


def _token_revoked(guard: Guard, _: TaskOwners, operation: Operation) -> Operation:
    """Lets a token revoke itself, so that whoever finds a lost token need not find the node."""

    async def guarded(id_: str) -> Any:
        guard.identified("to revoke a token", Role.READER)
        if id_ != guard.subject.token:
            guard.by_socket("to revoke another token")
        return await operation(id_, guard.subject.account)

    return guarded


RULES: Final[Mapping[str, Rule]] = {
    "accounts.me": _me,
    "accounts.create_token": _token_made,
    "accounts.tokens": _own_tokens,
    "accounts.revoke_token": _token_revoked,
    "schemas.types": free,
    "schemas.explain": free,
    "schemas.schema": free,
    "declarations.secret_key": free,
    "datasets.list": _listed,
    "datasets.get": on_dataset(Action.READ),
    "datasets.describe": _described,
    "lineage.graph": _graph,
    "lineage.trace": _traced,
    "renditions.list": _renditions,
    "renditions.reading": on_dataset(Action.READ),
    "datasets.manifest": on_dataset(Action.READ),
    "datasets.snapshot": on_dataset(Action.READ),
    "datasets.log": on_dataset(Action.READ),
    "datasets.block": on_dataset(Action.READ),
    "datasets.tail": on_dataset(Action.READ),
    "datasets.schema": on_dataset(Action.READ),
    "datasets.commit_point": on_dataset(Action.WRITE),
    "datasets.rename": on_dataset(Action.MAINTAIN),
    "datasets.delete": _deleted,
    "datasets.apply": apply,
    "declarations.list": _resources,
    "declarations.get": _resource(Action.READ),
    "declarations.page": _paged,
    "declarations.stated": report_filter.seen,
    "declarations.news": news,
    "declarations.check_generation": _checked,
    "declarations.owned_fault": _checked,
    "declarations.label": _labelled,
    "declarations.delete": _resource(Action.OWN),
    "endpoints.push": _endpoint(Action.WRITE),
    "endpoints.show": _endpoint(Action.READ),
    "endpoints.drop": _endpoint(Action.WRITE),
    "queries.answer": _queried,
    "search.search": _searched,
    "search.card": _card,
    "flow.stage": _staged,
    "flow.ingest": on_dataset(Action.WRITE),
    "flow.correct": on_dataset(Action.WRITE),
    "flow.alter_schema": on_dataset(Action.MAINTAIN),
    "flow.advance": on_dataset(Action.WRITE),
    "flow.set_watermark": on_dataset(Action.WRITE),
    "flow.pull": on_refs(Action.WRITE),
    "verification.verify": on_dataset(Action.WRITE),
    "visibility.publish": on_refs(Action.OWN),
    "visibility.unpublish": on_refs(Action.OWN),
    "about.status": report_filter.status,
    "events.kept": report_filter.seen,
    "events.follow": report_filter.followed_events,
    "flows.backfill": _backfilled,
    "flows.delete": _flow(Action.OWN),
    "flows.list": report_filter.seen,
    "flows.pause": _flow(Action.MAINTAIN),
    "flows.resume": _flow(Action.MAINTAIN),
    "flows.run": _backfilled,
    "history.last": changes.last,
    "history.follow": changes.followed,
    "log_lines.last": report_filter.lines,
    "log_lines.follow": report_filter.followed_lines,
    "mirrors.list": report_filter.seen,
    "tasks.get": report_filter.task,
    "tasks.cancel": report_filter.cancelled,
    "tasks.follow": report_filter.followed,
    "tasks.list": report_filter.seen,
}
"""By service and operation."""
