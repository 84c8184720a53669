"""States for each API operation who may call it, and what of its answer they get; not applied to the node's owner.

An operation without a row here is for the node's owner only. A test compares the rows with the operations of all
endpoints, and checks what each way to read a dataset answers to callers who may not read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec
import trio

from chain.errors import Invalid, NotFound, Refused
from chain.ids import DatasetId
from odfd.access.manifest import ACCOUNT
from odfd.access.relations import Action, Role
from odfd.api.access import report_filter
from odfd.control import wire
from odfd.control.board import BoardTasks, LogEvents, LogService
from odfd.errors import sole_faults
from odfd.queries.askers import Asker, Crowd, QueryCaller
from odfd.resources.label_schemas import ACCESS, short_name
from odfd.resources.reader import place
from odfd.resources.registry import ACTING
from odfd.resources.store import ResourceStore
from odfd.services.access.account_watch import news, readable, readable_views
from odfd.services.access.accounts import AccountService
from odfd.services.access.apply_rules import acts_for_others, apply
from odfd.services.access.calls import Call
from odfd.services.access.guard import Guard, not_meant
from odfd.services.datasets.deletion import IN_USE
from odfd.services.datasets.service import DatasetService
from odfd.services.flows.service import FlowService
from odfd.services.ingest.ingest_pull import IngestPullService
from odfd.services.ingest.push_endpoints import EndpointService
from odfd.services.lineage.service import LineageService
from odfd.services.maintenance.status import StatusService
from odfd.services.network.search import MAX_FOUND, SearchService
from odfd.services.queries.public_queries import check_public
from odfd.services.queries.service import QueryService
from odfd.services.renditions.service import RenditionService
from odfd.services.resources.apply import ApplyOperation
from odfd.services.resources.declarations import DeclarationService
from odfd.services.resources.history import HistoryService
from odfd.services.resources.pages import ResourcePage, no_page, rest_after
from odfd.services.resources.types import TYPES
from odfd.services.resources.watches import number_of
from odfd.store.catalog import DatasetEntry, NamedId, is_one_chain
from odfd.store.flow_runs import TYPE as FLOW

Rule: TypeAlias = Callable[..., Any]
"""Called as the operation would be, after the ``Call``; answers as it would, what the caller may get of it."""


def _id_of(ref: str, entry: DatasetEntry) -> str:
    """Returns the id of a dataset that was judged, which means all shards if it was called by its name."""
    return str(entry.id) if is_one_chain(ref) else NamedId(str(entry.id))


async def on_dataset(action: Action, call: Call, ref: str, *args: Any, **more: Any) -> Any:
    """Judges the dataset that the first argument names; the operation gets its id."""
    entry = await trio.to_thread.run_sync(call.guard.find_dataset, ref, action)
    return await call.begin(_id_of(ref, entry), *args, **more)


async def on_refs(action: Action, call: Call, request: Any) -> Any:
    """Judges all datasets that the request names."""
    if not request.refs or request.all or getattr(request, "recursive", False):
        raise not_meant("this")
    if getattr(request, "source", None) is not None:
        raise call.guard.owner_only("to pull from a Source")
    entries = await trio.to_thread.run_sync(lambda: [call.guard.find_dataset(ref, action) for ref in request.refs])
    return await call.begin(msgspec.structs.replace(request, refs=tuple(map(_id_of, request.refs, entries))))


async def _graph(call: Call, ref: str) -> Any:
    """Shows datasets that cannot be read as if they were not here."""
    entry = await trio.to_thread.run_sync(call.guard.find_dataset, ref, Action.READ)
    return await call.operation(_id_of(ref, entry), call.guard.filter_datasets)


async def _trace(call: Call, ref: str, request: wire.LineageRequest) -> Any:
    """Does as ``_graph``. The task holds rows, so only its beginner can read it."""
    entry = await trio.to_thread.run_sync(call.guard.find_dataset, ref, Action.READ)
    call.guard.check_identified("to trace a record", Role.READER)
    return await call.begin(_id_of(ref, entry), request, call.guard.filter_datasets)


async def _renditions(call: Call, ref: str | None = None) -> Any:
    """Allows the renditions of one dataset to those who can read it, and those of all datasets to the owner only."""
    if ref is None:
        raise call.guard.owner_only("to list the renditions of all datasets")
    entry = await trio.to_thread.run_sync(call.guard.find_dataset, ref, Action.READ)
    views = await call.operation(_id_of(ref, entry))
    datasets = [DatasetId.parse(view.dataset_id) for view in views]
    readable = await trio.to_thread.run_sync(call.guard.filter_datasets, datasets)
    return [each for each, dataset in zip(views, datasets, strict=True) if dataset in readable]


async def _describe(call: Call, ref: str, **more: Any) -> Any:
    """Removes local names of datasets that cannot be read; the dids of inputs are in the chain anyway."""
    entry = await trio.to_thread.run_sync(call.guard.find_dataset, ref, Action.READ)
    detail = await call.operation(_id_of(ref, entry), **more)
    inputs, outputs = await trio.to_thread.run_sync(_list_known, call.guard, detail)
    return msgspec.structs.replace(detail, inputs=inputs, outputs=outputs)


def _list_known(guard: Guard, detail: wire.DatasetDetail) -> tuple[tuple[str, ...], tuple[str, ...]]:
    with guard.home.catalog() as catalog:
        entries = {entry.name: entry.id for entry in catalog.chains()}
    readable = guard.filter_datasets(list(entries.values()))
    hidden = {name: str(dataset) for name, dataset in entries.items() if dataset not in readable}
    bare = set(hidden.values())
    inputs = tuple(id_ if id_ in bare else text for id_, text in zip(detail.input_ids, detail.inputs, strict=True))
    return inputs, tuple(output for output in detail.outputs if output not in hidden)


async def _resources(call: Call, word: str | None, labels: str | None) -> Any:
    return await readable_views(call, await call.operation(word, labels))


async def _resource(action: Action, call: Call, word: str, name: str, *args: Any, **more: Any) -> Any:
    """Judges ``get``, or an operation of the same service with the same first arguments."""
    view = await _one(call, word, name)
    if action is not Action.READ:
        if view.type == ACCOUNT:  # who acts as it stands in its annotations, and without any, all are the owner
            raise call.guard.owner_only("to change an Account")
        await trio.to_thread.run_sync(call.guard.judge, view, action)
        try:
            view = await call.operation(word, view.id, *args, **more)
        except Refused as fault:
            if fault.rule != IN_USE:
                raise
            text = f"others derive from {view.name}"  # and which do is not told
            raise Refused(text, rule=IN_USE, hint="those whose they are delete them first") from None
        if view is None:
            return None
    return (await readable_views(call, [view], is_judged=True))[0]


async def _flow(action: Action, call: Call, name: str, *args: Any, **more: Any) -> Any:
    """Judges the Flow that the first argument names; the operation gets its id.

    It acts with the rights of the account that has it, so nobody else of an account changes when it runs.
    """
    return await call.operation(await trio.to_thread.run_sync(_flow_meant, call.guard, name, action), *args, **more)


def _flow_meant(guard: Guard, name: str, action: Action) -> str:
    with guard.home.database.read() as connection:
        found = ResourceStore(connection).resolve(FLOW, name, guard.subject.account)
    state = guard.state()
    if found is None or guard.role_of(state, found.id) is None:
        text = f"there is no flow {name[:120]!r} that you may read"
        raise NotFound(text, rule="flow-name", hint="odfctl get flows lists those")
    if (denied := guard.denial(state, found.id, action, f"{FLOW}:{found.name}")) is not None:
        raise denied
    if action is not Action.OWN and (found.account is None or guard.account(found.account) is None):
        raise acts_for_others(guard, found)
    return found.id


async def _backfill(call: Call, name: str, request: wire.BackfillRequest | wire.FlowRunRequest) -> Any:
    if request.target is not None:
        entry = await trio.to_thread.run_sync(call.guard.find_dataset, request.target, Action.READ)
        request = msgspec.structs.replace(request, target=str(entry.id))
    return await _flow(Action.MAINTAIN, call, name, request, call.guard.subject.account)


async def _label(call: Call, word: str, name: str, request: wire.LabelRequest) -> Any:
    action = Action.MAINTAIN if ACCESS.isdisjoint(map(short_name, request.labels)) else Action.OWN
    return await _resource(action, call, word, name, request)


async def _rename(call: Call, word: str, name: str, to: str) -> Any:
    """Judges as a manifest with another name is judged."""
    view = await _one(call, word, name)
    if view.type in ACTING and call.guard.account(view.account["id"]) is None:
        raise acts_for_others(call.guard, view)
    return await _resource(Action.MAINTAIN, call, word, view.id, to)


async def _endpoint(action: Action, call: Call, name: str, *args: Any) -> Any:
    """Judges the endpoint of a Source by the rights on its resource."""
    view = await _one(call, "source", name)
    await trio.to_thread.run_sync(call.guard.judge, view, action)
    return await call.operation(view.id, *args)


async def _one(call: Call, word: str, name: str) -> wire.ResourceView:
    """Returns a readable resource. Raises the same NotFound for an unreadable one as for a missing one."""
    kind = TYPES.word(word)
    try:
        meant = name if kind is None else await trio.to_thread.run_sync(call.guard.resolve_name, kind.name, name)
        found = await readable(call, [await call.service.get(word, meant)])
    except (NotFound, Invalid) as fault:
        if fault.rule not in ("resource", "ambiguous-name"):
            raise
        found = []
    if not found:
        text = f"there is no {word[:80]} {name[:120]!r} that you may read"
        raise NotFound(text, rule="resource", hint=f"odfctl get {word[:80].lower()} lists those")
    return found[0]


async def _page(call: Call, word: str, labels: str | None, limit: int, rest: str | None) -> ResourcePage:
    """Fills a page with readable resources, so that neither its size nor its end reveals others."""
    views: list[wire.ResourceView] = []
    rest, version = _asked_page(call.guard, rest)
    while True:
        page: ResourcePage = await call.operation(word, labels, limit, rest)
        version = version or await trio.to_thread.run_sync(_version_at, call.guard, number_of(page.version))
        views += await readable_views(call, page.views)
        rest = page.rest
        if rest is None or len(views) > limit:
            break
    shown = tuple(views[:limit])
    if len(views) <= limit:
        return ResourcePage(version, shown, None, page.type)
    after = rest_after(page.version, (shown[-1].type, labels), place(shown[-1].name, shown[-1].id))
    sealed = call.guard.positions.sealed_text(call.guard.subject.account, f"{after} {version}")
    return ResourcePage(version, shown, sealed, page.type)


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


async def _query(call: Call, request: wire.QueryRequest, give: Any) -> None:
    check_public(request)
    asker = Asker(
        served=call.guard.size_for,
        caller=QueryCaller(Crowd.ACCOUNTS, call.guard.subject.account or ""),
        reads=lambda id_: call.guard.role_of(call.guard.state(), id_) is not None,
    )
    try:
        with sole_faults():
            await call.operation(request, give, asker)
    except NotFound as fault:
        if fault.rule == "query-dataset":
            fault.hint = "odfctl get datasets lists what you may read"
        raise


async def _search(call: Call, request: wire.SearchRequest) -> wire.SearchView:
    """Leaves out cards of datasets that are here and cannot be read."""
    # Cut below, when what may not be read is left out: neither length nor counts tell of it.
    found = await call.operation(msgspec.structs.replace(request, limit=max(request.limit, MAX_FOUND)))
    kept = await _cards(call.guard, found.found)
    limit = request.limit
    return wire.SearchView(found=tuple(kept[:limit]), more=len(kept[limit:]), cards=len(kept))


async def _card(call: Call, ref: str) -> wire.CardView:
    short = DatasetId.parse(ref).short
    nothing = NotFound(f"{short}: no card describes it", rule="card", hint="odfctl search lists what is known")
    try:
        kept = await _cards(call.guard, [await call.operation(ref)])
    except NotFound:
        raise nothing from None
    if not kept:
        raise nothing
    return kept[0]


async def _cards(guard: Guard, cards: Any) -> list[wire.CardView]:
    here = [DatasetId.parse(card.id) for card in cards if card.local_name is not None]
    readable = await trio.to_thread.run_sync(guard.filter_datasets, here)
    return [card for card in cards if card.local_name is None or DatasetId.parse(card.id) in readable]


async def _stage(call: Call, name: str, chunks: Any) -> Any:
    call.guard.check_identified("an upload")
    return await call.operation(name, chunks)


async def _me(call: Call) -> wire.AccountView:
    return await trio.to_thread.run_sync(call.guard.describe_caller)


async def _token_made(call: Call, request: wire.TokenRequest) -> wire.TokenView:
    call.guard.check_identified("a token")
    call.guard.by_socket("to make a token")
    made: wire.TokenView = await call.operation(request, call.guard.subject.account)
    return made


async def _own_tokens(call: Call) -> Any:
    call.guard.check_identified("to list tokens", Role.READER)
    return await call.operation(call.guard.subject.account)


async def _token_revoked(call: Call, id_: str) -> Any:
    """Lets a token revoke itself, so that whoever finds a lost token need not find the node."""
    call.guard.check_identified("to revoke a token", Role.READER)
    if id_ != call.guard.subject.token:
        call.guard.by_socket("to revoke another token")
    return await call.operation(id_, call.guard.subject.account)


RULES: Final[Mapping[Callable[..., Any], Rule]] = {
    AccountService.me: _me,
    AccountService.create_token: _token_made,
    AccountService.tokens: _own_tokens,
    AccountService.revoke_token: _token_revoked,
    DatasetService.describe: _describe,
    LineageService.graph: _graph,
    LineageService.trace: _trace,
    RenditionService.list: _renditions,
    ApplyOperation.rename: _rename,
    ApplyOperation.apply: apply,
    DeclarationService.list: _resources,
    DeclarationService.get: partial(_resource, Action.READ),
    DeclarationService.page: _page,
    DeclarationService.stated: report_filter.seen,
    LogEvents.kept: report_filter.seen,
    DeclarationService.news: news,
    DeclarationService.label: _label,
    DeclarationService.delete: partial(_resource, Action.OWN),
    EndpointService.push: partial(_endpoint, Action.WRITE),
    EndpointService.drop: partial(_endpoint, Action.WRITE),
    EndpointService.show: partial(_endpoint, Action.READ),
    QueryService.answer: _query,
    SearchService.search: _search,
    SearchService.card: _card,
    IngestPullService.stage: _stage,
    StatusService.status: report_filter.status,
    LogEvents.follow: report_filter.followed_events,
    FlowService.backfill: _backfill,
    FlowService.run: _backfill,
    FlowService.pause: partial(_flow, Action.MAINTAIN),
    FlowService.resume: partial(_flow, Action.MAINTAIN),
    HistoryService.last: report_filter.last_changes,
    HistoryService.follow: report_filter.followed_changes,
    LogService.last: report_filter.lines,
    LogService.follow: report_filter.followed_lines,
    BoardTasks.get: report_filter.task,
    BoardTasks.cancel: report_filter.cancelled,
    BoardTasks.follow: report_filter.followed,
}
"""Of operations that need ``Permission.BY_RULE``."""
