"""Lists the endpoints of the API, and makes the ASGI application. Each endpoint calls one operation of one service.

``/v1`` is stable: fields and paths are added, never changed. A fault of a service becomes problem+json; anything
else that escapes one is a bug, told as such to the caller and with its trace to the log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from chain.errors import NotFound
from odfd.api import resource_protocol
from odfd.api.idempotency import once
from odfd.control import wire
from odfd.control.responses import (
    FrameStream,
    LineStream,
    answer,
    body,
    flag,
    lines,
    number,
    problem,
    since_of,
    stream_of,
)
from odfd.errors import Bug, Usage, sole_fault
from odfd.obs.log_lines import LineFilter
from odfd.runtime.http import Application
from odfd.runtime.supervision import Logger
from odfd.state.idempotency import AnswerStore

if TYPE_CHECKING:
    # Not when it runs: tests serve these routes over a fake node, with no service behind them.
    from odfd.api.services import Services

Endpoint: TypeAlias = "Callable[[Services, Request], Awaitable[object]]"
_R = TypeVar("_R", bound=wire.Request)
MAX_ROWS: Final = 10_000
"""Blocks or records of one answer."""
DEFAULT_ROWS: Final = 20


def _rows(request: Request) -> int:
    return number(request, "limit", DEFAULT_ROWS, 1, MAX_ROWS) or DEFAULT_ROWS


def _name(request: Request, part: str = "ref") -> str:
    return str(request.path_params[part])


def _with(kind: type[_R], operation: Callable[[Services], Callable[[_R], Awaitable[object]]]) -> Endpoint:
    """An endpoint of an operation that takes the body of the request, a ``kind``."""

    async def endpoint(services: Services, request: Request) -> object:
        return await operation(services)(await body(request, kind))

    return endpoint


def _on(kind: type[_R], operation: Callable[[Services], Callable[[str, _R], Awaitable[object]]]) -> Endpoint:
    """An endpoint of an operation on a dataset that takes the body of the request too."""

    async def endpoint(services: Services, request: Request) -> object:
        return await operation(services)(_name(request), await body(request, kind))

    return endpoint


async def _log(services: Services, request: Request) -> object:
    kinds = request.query_params.getlist("kind")
    before, epoch = number(request, "before", None), number(request, "epoch", None)
    return await services.datasets.log(_name(request), kinds, _rows(request), before, epoch)


async def _stage(services: Services, request: Request) -> object:
    async with aclosing(request.stream()) as chunks:
        return await services.flow.stage(request.query_params.get("name", "-"), chunks)


async def _connect(services: Services, request: Request) -> object:
    return await services.peers.connect((await body(request, wire.ConnectRequest)).multiaddr)


async def _invite(services: Services, request: Request) -> object:
    return await services.networks.invite(_name(request, "name"), await body(request, wire.InvitationRequest))


async def _evidence(services: Services, request: Request) -> object:
    found = await services.trust.evidence(_name(request, "id"))
    kind = "application/octet-stream"
    return FileResponse(found, media_type=kind) if isinstance(found, Path) else Response(found, media_type=kind)


async def _task(services: Services, request: Request) -> object:
    if flag(request, "follow"):
        return await lines(services.tasks.follow(_name(request, "id")))
    return await services.tasks.get(_name(request, "id"))


async def _doctor(services: Services, request: Request) -> object:
    return LineStream(services.about.examine()) if flag(request, "deep") else await services.about.doctor()


async def _events(services: Services, request: Request) -> object:
    kinds = request.query_params.getlist("kind")
    if flag(request, "kept"):
        return services.events.kept(kinds)
    return LineStream(services.events.follow(number(request, "since", None), kinds))


async def _log_lines(services: Services, request: Request) -> object:
    asked, limit = request.query_params, number(request, "limit", DEFAULT_ROWS * 5, 1, MAX_ROWS) or MAX_ROWS
    filter_ = LineFilter(asked.get("task", ""), asked.get("level", ""), asked.get("part", ""))
    if filter_.task:
        await services.tasks.get(filter_.task)
    if flag(request, "follow"):
        return LineStream(services.log_lines.follow(filter_, limit))
    return await services.log_lines.last(filter_, limit)


async def _query(services: Services, request: Request) -> object:
    return FrameStream(partial(services.queries.answer, await body(request, wire.QueryRequest)))


async def _slices(services: Services, request: Request) -> object:
    return FrameStream(partial(services.queries.slices, await body(request, wire.QueryRequest)))


async def _resources(services: Services, request: Request) -> object:
    """Of one type, or of all."""
    asked, kind = request.query_params, request.path_params.get("type")
    if flag(request, "watch"):
        return await lines(services.declarations.watch(since_of(request), kind), stream_of(request))
    return await services.declarations.list(kind, asked.get("labels"))


async def _changes(services: Services, request: Request) -> object:
    asked, limit = request.query_params, number(request, "limit", DEFAULT_ROWS * 5, 1, MAX_ROWS) or MAX_ROWS
    if flag(request, "watch"):
        return stream_of(request)(await services.history.follow(since_of(request), asked.get("of"), limit))
    return await services.history.last(asked.get("of"), limit)


async def _label(services: Services, request: Request) -> object:
    said = await body(request, wire.LabelRequest)
    return await services.declarations.label(_name(request, "type"), _name(request, "name"), said)


TABLE: Final[tuple[tuple[str, str, Endpoint], ...]] = (
    ("GET", "/status", lambda s, _: s.about.status()),
    ("GET", "/engines", lambda s, _: s.about.engines()),
    ("GET", "/doctor", _doctor),
    ("POST", "/page", lambda s, _: s.page.open()),
    ("GET", "/settings", lambda s, _: s.about.settings()),
    ("GET", "/events", _events),
    ("GET", "/logs", _log_lines),
    ("GET", "/tasks", lambda s, r: s.tasks.list(brief=flag(r, "brief"))),
    ("GET", "/tasks/{id}", _task),
    ("DELETE", "/tasks/{id}", lambda s, r: s.tasks.cancel(_name(r, "id"))),
    ("GET", "/resources", _resources),
    ("GET", "/resources/{type}", _resources),
    ("GET", "/resources/{type}/{name}", lambda s, r: s.declarations.get(_name(r, "type"), _name(r, "name"))),
    ("PUT", "/resources/{type}/{name}/labels", _label),
    ("GET", "/changes", _changes),
    ("GET", "/secrets/key", lambda s, _: s.declarations.secret_key()),
    ("POST", "/secrets/rotation", lambda s, _: s.declarations.rotate_secrets()),
    ("DELETE", "/resources/{type}/{name}", lambda s, r: s.declarations.delete(_name(r, "type"), _name(r, "name"))),
    ("GET", "/types", lambda s, _: s.schemas.types()),
    ("GET", "/types/{word}", lambda s, r: s.schemas.explain(_name(r, "word"), r.query_params.get("path", ""))),
    ("GET", "/schemas/{path:path}", lambda s, r: s.schemas.schema(_name(r, "path"))),
    ("GET", "/datasets", lambda s, _: s.datasets.list()),
    ("GET", "/datasets/{ref}", lambda s, r: s.datasets.get(_name(r))),
    ("GET", "/datasets/{ref}/detail", lambda s, r: s.datasets.describe(_name(r), profile=flag(r, "profile"))),
    ("DELETE", "/datasets/{ref}", lambda s, r: s.datasets.delete(_name(r))),
    ("GET", "/datasets/{ref}/manifest", lambda s, r: s.datasets.manifest(_name(r))),
    ("PUT", "/datasets/{ref}/name", _on(wire.RenameRequest, lambda s: s.datasets.rename)),
    ("GET", "/datasets/{ref}/blocks", _log),
    ("GET", "/datasets/{ref}/blocks/{at}", lambda s, r: s.datasets.block(_name(r), _name(r, "at"))),
    ("GET", "/datasets/{ref}/tail", lambda s, r: s.datasets.tail(_name(r), _rows(r))),
    ("GET", "/datasets/{ref}/schema", lambda s, r: s.datasets.schema(_name(r))),
    ("POST", "/datasets/{ref}/ingest", _on(wire.IngestRequest, lambda s: s.flow.ingest)),
    ("PUT", "/datasets/{ref}/watermark", _on(wire.WatermarkRequest, lambda s: s.flow.set_watermark)),
    ("PUT", "/datasets/{ref}/upper", lambda s, r: s.flow.advance(_name(r))),
    ("POST", "/datasets/{ref}/correct", _on(wire.CorrectRequest, lambda s: s.flow.correct)),
    ("POST", "/datasets/{ref}/export", _on(wire.ExportRequest, lambda s: s.flow.export)),
    ("POST", "/datasets/{ref}/verify", _on(wire.VerifyRequest, lambda s: s.verification.verify)),
    ("POST", "/datasets/{ref}/prove", _on(wire.ProveRequest, lambda s: s.proving.prove)),
    ("POST", "/datasets/{ref}/rewrite", _on(wire.RewriteRequest, lambda s: s.rewriting.rewrite)),
    ("GET", "/datasets/{ref}/lineage", lambda s, r: s.lineage.graph(_name(r))),
    ("POST", "/datasets/{ref}/lineage", _on(wire.LineageRequest, lambda s: s.lineage.trace)),
    ("GET", "/datasets/{ref}/trust", lambda s, r: s.trust.show(_name(r))),
    ("POST", "/datasets/{ref}/trust/resolve", _on(wire.ResolveRequest, lambda s: s.resolving.resolve)),
    ("GET", "/datasets/{ref}/authority", lambda s, r: s.authority.show_authority(_name(r))),
    ("POST", "/datasets/{ref}/authority", _on(wire.AuthorityRequest, lambda s: s.authority.change_authority)),
    ("POST", "/datasets/{ref}/authority/draft", _on(wire.AuthorityDraftRequest, lambda s: s.authority.draft_authority)),
    ("POST", "/datasets/{ref}/authority/key", lambda s, r: s.authority.dataset_key(_name(r))),
    ("POST", "/uploads", _stage),
    ("POST", "/apply", _with(wire.ApplyRequest, lambda s: s.datasets.apply)),
    ("POST", "/pull", _with(wire.PullRequest, lambda s: s.flow.pull)),
    ("POST", "/push", _with(wire.PushRequest, lambda s: s.pushing.push)),
    ("POST", "/import", _with(wire.ImportRequest, lambda s: s.flow.import_)),
    ("POST", "/backup", _with(wire.BackupRequest, lambda s: s.backups.backup)),
    ("POST", "/collect", _with(wire.CollectRequest, lambda s: s.collection.collect)),
    ("POST", "/publish", _with(wire.VisibilityRequest, lambda s: s.visibility.publish)),
    ("POST", "/unpublish", _with(wire.VisibilityRequest, lambda s: s.visibility.unpublish)),
    ("POST", "/share", _with(wire.ShareRequest, lambda s: s.visibility.share)),
    ("POST", "/query", _query),
    ("POST", "/slices", _slices),
    ("GET", "/mirrors", lambda s, _: s.mirrors.list()),
    ("POST", "/mirrors", _with(wire.MirrorRequest, lambda s: s.mirrors.add)),
    ("DELETE", "/mirrors/{ref}", lambda s, r: s.mirrors.remove(_name(r))),
    ("PUT", "/mirrors/{ref}/pause", lambda s, r: s.mirrors.pause(_name(r))),
    ("DELETE", "/mirrors/{ref}/pause", lambda s, r: s.mirrors.resume(_name(r))),
    ("GET", "/flows", lambda s, _: s.flows.list()),
    ("DELETE", "/flows/{name}", lambda s, r: s.flows.delete(_name(r, "name"))),
    ("PUT", "/flows/{name}/pause", lambda s, r: s.flows.pause(_name(r, "name"))),
    ("DELETE", "/flows/{name}/pause", lambda s, r: s.flows.resume(_name(r, "name"))),
    ("GET", "/publications", lambda s, _: s.publications.list()),
    ("POST", "/publications", _with(wire.PublishRequest, lambda s: s.publications.publish)),
    ("DELETE", "/publications/{ref}", lambda s, r: s.publications.withdraw(_name(r))),
    ("POST", "/search", _with(wire.SearchRequest, lambda s: s.search.search)),
    ("GET", "/cards/{ref}", lambda s, r: s.search.card(_name(r))),
    ("GET", "/networks", lambda s, _: s.networks.list()),
    ("POST", "/networks", _with(wire.NetworkRequest, lambda s: s.networks.join)),
    ("POST", "/networks/{name}/invitations", _invite),
    ("POST", "/invitations", _with(wire.InvitationText, lambda s: s.networks.invitation)),
    ("GET", "/networks/{name}", lambda s, r: s.networks.show(_name(r, "name"))),
    ("DELETE", "/networks/{name}", lambda s, r: s.networks.leave(_name(r, "name"))),
    ("GET", "/peers", lambda s, r: s.peers.list(holds=flag(r, "holds"))),
    ("POST", "/peers", _connect),
    ("GET", "/peers/{peer}", lambda s, r: s.peers.show(_name(r, "peer"))),
    ("PUT", "/peers/{peer}/block", lambda s, r: s.peers.block(_name(r, "peer"))),
    ("DELETE", "/peers/{peer}/block", lambda s, r: s.peers.unblock(_name(r, "peer"))),
    ("GET", "/validators", lambda s, _: s.trust.validators()),
    ("POST", "/validators", _with(wire.ValidatorRequest, lambda s: s.trust.add_validator)),
    ("POST", "/validators/lift", _with(wire.LiftRequest, lambda s: s.trust.lift)),
    ("DELETE", "/validators/{key}", lambda s, r: s.trust.remove_validator(_name(r, "key"))),
    ("POST", "/signers", _with(wire.SignRequest, lambda s: s.journal_recovery.sign_again)),
    ("GET", "/policy", lambda s, _: s.policies.policy()),
    ("POST", "/policy/network", _with(wire.NetworkRulesRequest, lambda s: s.policies.publish_rules)),
    ("POST", "/policy/accept", _with(wire.AcceptRequest, lambda s: s.policies.accept_rules)),
    ("GET", "/evidence/{id}", _evidence),
    ("POST", "/evidence/{id}", lambda s, r: s.trust.fetch_evidence(_name(r, "id"))),
)


def application(services: Services, logger: Logger, answers: AnswerStore | None = None) -> Application:
    """The API over ``services``, under ``/v1`` and RFC-018's paths; ``answers``: kept for POSTs with a key."""
    routes = []
    for method, path, ask in TABLE:
        endpoint = _guarded(ask, services, logger)
        endpoint = once(endpoint, path, answers) if method == "POST" else endpoint
        routes.append(Route("/v1" + path, endpoint, methods=[method]))
    routes += [
        Route(path, _guarded(ask, services, logger), methods=[method]) for method, path, ask in resource_protocol.TABLE
    ]
    handlers = {404: _nothing_there, 405: _nothing_there}
    return Starlette(routes=routes, exception_handlers=handlers)


def _guarded(ask: Endpoint, services: Services, logger: Logger) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            value = await ask(services, request)
        except Exception as error:
            fault = sole_fault(error)
            if fault is None:
                logger.error("request failed", path=request.url.path, method=request.method, exc_info=error)
                fault = Bug(
                    f"the daemon failed at this: {type(error).__name__}: {error}"[:500],
                    rule="bug",
                    hint="its log has the whole trace; please report it",
                )
                fault.__cause__ = error
            return problem(fault)
        if isinstance(value, Response):
            return value
        return answer(value, 202 if isinstance(value, wire.TaskRef) else 200)

    return endpoint


async def _nothing_there(request: Request, error: Exception) -> Response:
    path, method = request.url.path, request.method
    if getattr(error, "status_code", 404) == 405:
        return problem(Usage(f"{path} does not take {method}", rule="route"))
    hint = "odfctl and the daemon may be of different versions: compare odfctl --version with odfctl status"
    return problem(NotFound(f"the API has nothing at {path}", rule="route", hint=hint))
