"""Lists the endpoints of the API, and makes the ASGI application. Each endpoint calls one operation of one service.

``/v1`` is stable: fields and paths are added, never changed. A fault of a service becomes problem+json; anything
else that escapes one is a bug, told as such to the caller and with its trace to the log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from chain.errors import NotFound, Refused
from engines.query.frames import MEDIA_TYPE as FRAMES
from odfd import __version__
from odfd.api import graphql, resource_protocol
from odfd.api.access.guard import NO_ACCOUNT
from odfd.api.endpoints import (
    JSON,
    LABELS,
    OBJECTS,
    OCTETS,
    SINCE,
    WATCH,
    Ask,
    Parameter,
    asks,
    check_query,
    is_watch,
    on_dataset,
    path_part,
    purges,
    with_body,
)
from odfd.api.idempotency import once
from odfd.control import wire
from odfd.control.board import known_kinds
from odfd.control.endpoint import CALLER
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
    whole_body,
)
from odfd.errors import Bug, Usage, sole_fault
from odfd.obs.log_lines import LineFilter
from odfd.resources.types import VERSION
from odfd.runtime.http import Application
from odfd.runtime.supervision import Logger
from odfd.state.idempotency import AnswerStore

if TYPE_CHECKING:
    # Not when it runs: tests serve these routes over a fake node, with no service behind them.
    from odfd.api.access.requests import AccessControl
    from odfd.api.services import Services

MAX_ROWS: Final = 10_000
"""Blocks or records of one answer."""
DEFAULT_ROWS: Final = 20
LIMIT: Final = Parameter("limit", "number", "Blocks or records at the most.", 1, MAX_ROWS, DEFAULT_ROWS)
MANY: Final = Parameter("limit", "number", "Lines at the most.", 1, MAX_ROWS, DEFAULT_ROWS * 5)
KIND: Final = Parameter("kind", "texts", "A kind; given several times, several kinds.")
FOLLOW: Final = Parameter("follow", "flag", "Answer with a stream, which goes on.")


def _rows(request: Request) -> int:
    return LIMIT.number(request) or DEFAULT_ROWS


_name = path_part


@asks(
    KIND, LIMIT,
    Parameter("before", "number", "Only blocks with a smaller sequence number."),
    Parameter("epoch", "number", "Blocks of this epoch, which a later one gave up."),
    answers=Sequence[wire.BlockView],
)  # fmt: skip
async def _log(services: Services, request: Request) -> object:
    kinds = request.query_params.getlist("kind")
    before, epoch = number(request, "before", None), number(request, "epoch", None)
    return await services.datasets.log(_name(request), kinds, _rows(request), before, epoch)


@asks(OBJECTS, operation=lambda s: s.datasets.delete)
async def _delete(services: Services, request: Request) -> object:
    return await services.datasets.delete(_name(request), purge=purges(request))


@asks(Parameter("name", "text", "Of the file, for messages."), takes=bytes, body_types=(OCTETS,), answers=wire.Upload)
async def _stage(services: Services, request: Request) -> object:
    async with aclosing(request.stream()) as chunks:
        return await services.flow.stage(request.query_params.get("name", "-"), chunks)


@asks(
    Parameter("id", "text", "Of the push: it counts once, however often it comes."),
    takes=bytes, body_types=(OCTETS, JSON, "application/x-ndjson", "text/csv"),
    answers=wire.PushReceipt, statuses=(201, 202),
)  # fmt: skip
async def _push(services: Services, request: Request) -> object:
    push_id = request.query_params.get("id")
    receipt = await services.endpoints.push(_name(request, "name"), await whole_body(request), push_id)
    return answer(receipt, 201 if receipt.durable else 202)


@asks(
    Parameter("number", "number", "Of a push; without it, all that wait.", 1),
    operation=lambda s: s.endpoints.drop,
)  # fmt: skip
async def _drop(services: Services, request: Request) -> object:
    return await services.endpoints.drop(_name(request, "name"), number(request, "number", None, 1))


@asks(takes=wire.ConnectRequest, operation=lambda s: s.peers.connect)
async def _connect(services: Services, request: Request) -> object:
    return await services.peers.connect((await body(request, wire.ConnectRequest)).multiaddr)


@asks(takes=wire.InvitationRequest, operation=lambda s: s.networks.invite)
async def _invite(services: Services, request: Request) -> object:
    return await services.networks.invite(_name(request, "name"), await body(request, wire.InvitationRequest))


@asks(answers=bytes, media_type=OCTETS)
async def _evidence(services: Services, request: Request) -> object:
    found = await services.trust.evidence(_name(request, "id"))
    kind = "application/octet-stream"
    return FileResponse(found, media_type=kind) if isinstance(found, Path) else Response(found, media_type=kind)


@asks(FOLLOW, answers=wire.TaskView, stream=wire.TaskView)
async def _task(services: Services, request: Request) -> object:
    if flag(request, "follow"):
        return await lines(services.tasks.follow(_name(request, "id")))
    return await services.tasks.get(_name(request, "id"))


@asks(
    Parameter("deep", "flag", "Also read all that is stored, as a stream."),
    Parameter("each", "flag", "Each result as it is there, as a stream."),
    answers=Sequence[wire.Probe],
    stream=wire.Probe,
)
async def _doctor(services: Services, request: Request) -> object:
    deep = flag(request, "deep")
    if deep or flag(request, "each"):
        return LineStream(services.about.examine(deep=deep))
    return await services.about.doctor()


@asks(
    KIND, Parameter("kept", "flag", "Only what is kept, as a list."),
    Parameter("since", "number", "The sequence number that the stream goes on from."),
    answers=Sequence[wire.EventView], stream=wire.EventView,
)  # fmt: skip
async def _events(services: Services, request: Request) -> object:
    kinds = known_kinds(request.query_params.getlist("kind"))
    if flag(request, "kept"):
        return await services.events.kept(kinds)
    return LineStream(services.events.follow(number(request, "since", None), kinds))


@asks(
    MANY, FOLLOW, Parameter("task", "text", "Only lines of this task."),
    Parameter("level", "text", "Only lines of this level and those above."),
    Parameter("part", "text", "Only lines of this part of the daemon."),
    answers=Sequence[wire.LogLineView], stream=wire.LogLineView,
)  # fmt: skip
async def _log_lines(services: Services, request: Request) -> object:
    asked, limit = request.query_params, MANY.number(request) or MAX_ROWS
    filter_ = LineFilter(asked.get("task", ""), asked.get("level", ""), asked.get("part", ""))
    if filter_.task:
        await services.tasks.get(filter_.task)
    if flag(request, "follow"):
        return LineStream(services.log_lines.follow(filter_, limit))
    return await services.log_lines.last(filter_, limit)


@asks(takes=wire.QueryRequest, answers=bytes, media_type=FRAMES)
async def _query(services: Services, request: Request) -> object:
    return FrameStream(partial(services.queries.answer, await body(request, wire.QueryRequest)))


@asks(takes=wire.SlicesRequest, answers=bytes, media_type=FRAMES)
async def _slices(services: Services, request: Request) -> object:
    if CALLER not in request.scope:
        raise Refused("files are given at the control socket alone", rule="query-slices", hint="ask for its rows")
    return FrameStream(partial(services.queries.slices, await body(request, wire.SlicesRequest)))


@asks(WATCH, SINCE, LABELS, answers=Sequence[wire.ResourceView], stream=wire.ResourceNews)
async def _resources(services: Services, request: Request) -> object:
    """Lists or watches resources of one type, or of all."""
    asked, kind = request.query_params, request.path_params.get("type")
    if is_watch(request):
        return await lines(services.declarations.news(since_of(request), kind), stream_of(request))
    return await services.declarations.list(kind, asked.get("labels"))


@asks(
    WATCH,
    SINCE,
    MANY,
    Parameter("of", "text", "Only of this resource, as TYPE/NAME."),
    answers=Sequence[wire.ResourceChange],
    stream=wire.ResourceChange,
)
async def _changes(services: Services, request: Request) -> object:
    asked, limit = request.query_params, MANY.number(request) or MAX_ROWS
    if is_watch(request):
        return stream_of(request)(await services.history.follow(since_of(request), asked.get("of"), limit))
    return await services.history.last(asked.get("of"), limit)


@asks(takes=wire.LabelRequest, operation=lambda s: s.declarations.label)
async def _label(services: Services, request: Request) -> object:
    said = await body(request, wire.LabelRequest)
    return await services.declarations.label(_name(request, "type"), _name(request, "name"), said)


@asks(takes=wire.HoldRenewal, operation=lambda s: s.holds.renew)
async def _renew_hold(services: Services, request: Request) -> object:
    return await services.holds.renew(_name(request, "id"), await body(request, wire.HoldRenewal))


def _number(request: Request) -> int:
    text = _name(request, "number")
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise Usage(f"not a number of a rendition: {text[:40]!r}", hint="odfctl get renditions")
    return int(text)


@asks(takes=wire.HandoverRequest, operation=lambda s: s.renditions.hand_over)
async def _hand_over(services: Services, request: Request) -> object:
    asked = await body(request, wire.HandoverRequest)
    return await services.renditions.hand_over(_name(request), _number(request), asked)


@asks(operation=lambda s: s.renditions.abandon)
async def _abandon(services: Services, request: Request) -> object:
    return await services.renditions.abandon(_name(request), _number(request))


_holds = asks(Parameter("dataset", "text", "Only of this dataset."))(
    lambda s, r: s.holds.list(r.query_params.get("dataset"))
)
_tasks = asks(Parameter("brief", "flag", "Without the results of finished ones."))(
    lambda s, r: s.tasks.list(brief=flag(r, "brief"))
)
_explain = asks(Parameter("path", "text", "Of a field: spec.read."))(
    lambda s, r: s.schemas.explain(_name(r, "word"), r.query_params.get("path", ""))
)
_describe = asks(Parameter("profile", "flag", "With statistics of its columns."))(
    lambda s, r: s.datasets.describe(_name(r), profile=flag(r, "profile"))
)
_tail = asks(LIMIT)(lambda s, r: s.datasets.tail(_name(r), _rows(r)))
_peers = asks(Parameter("holds", "flag", "With the datasets that each serves."))(
    lambda s, r: s.peers.list(holds=flag(r, "holds"))
)

TABLE: Final[tuple[tuple[str, str, Ask], ...]] = (
    ("GET", "/status", lambda s, _: s.about.status()),
    ("GET", "/engines", lambda s, _: s.about.engines()),
    ("GET", "/doctor", _doctor),
    ("POST", "/page", lambda s, _: s.page.open()),
    ("GET", "/settings", lambda s, _: s.about.settings()),
    ("GET", "/events", _events),
    ("GET", "/logs", _log_lines),
    ("GET", "/tasks", _tasks),
    ("GET", "/tasks/{id}", _task),
    ("DELETE", "/tasks/{id}", lambda s, r: s.tasks.cancel(_name(r, "id"))),
    ("GET", "/resources", _resources),
    ("GET", "/resources/{type}", _resources),
    ("GET", "/resources/{type}/{name}", lambda s, r: s.declarations.get(_name(r, "type"), _name(r, "name"))),
    ("PUT", "/resources/{type}/{name}/labels", _label),
    ("GET", "/changes", _changes),
    ("GET", "/account", lambda s, _: s.accounts.me()),
    ("GET", "/tokens", lambda s, _: s.accounts.tokens()),
    ("POST", "/tokens", with_body(wire.TokenRequest, lambda s: s.accounts.create_token)),
    ("DELETE", "/tokens/{id}", lambda s, r: s.accounts.revoke_token(_name(r, "id"))),
    ("GET", "/secrets/key", lambda s, _: s.declarations.secret_key()),
    ("POST", "/secrets/rotation", lambda s, _: s.declarations.rotate_secrets()),
    ("DELETE", "/resources/{type}/{name}", lambda s, r: s.declarations.delete(_name(r, "type"), _name(r, "name"))),
    ("GET", "/types", lambda s, _: s.schemas.types()),
    ("GET", "/types/{word}", _explain),
    ("GET", "/schemas/{path:path}", lambda s, r: s.schemas.schema(_name(r, "path"))),
    ("GET", "/datasets", lambda s, _: s.datasets.list()),
    ("GET", "/datasets/{ref}", lambda s, r: s.datasets.get(_name(r))),
    ("GET", "/datasets/{ref}/detail", _describe),
    ("DELETE", "/datasets/{ref}", _delete),
    ("GET", "/datasets/{ref}/manifest", lambda s, r: s.datasets.manifest(_name(r))),
    ("PUT", "/datasets/{ref}/name", on_dataset(wire.RenameRequest, lambda s: s.datasets.rename)),
    ("GET", "/datasets/{ref}/blocks", _log),
    ("GET", "/datasets/{ref}/blocks/{at}", lambda s, r: s.datasets.block(_name(r), _name(r, "at"))),
    ("GET", "/datasets/{ref}/tail", _tail),
    ("GET", "/datasets/{ref}/schema", lambda s, r: s.datasets.schema(_name(r))),
    ("POST", "/datasets/{ref}/ingest", on_dataset(wire.IngestRequest, lambda s: s.flow.ingest)),
    ("PUT", "/datasets/{ref}/watermark", on_dataset(wire.WatermarkRequest, lambda s: s.flow.set_watermark)),
    ("PUT", "/datasets/{ref}/upper", lambda s, r: s.flow.advance(_name(r))),
    ("GET", "/datasets/{ref}/raw", lambda s, r: s.raw.show(_name(r))),
    ("PUT", "/datasets/{ref}/raw", lambda s, r: s.raw.keep(_name(r))),
    ("DELETE", "/datasets/{ref}/raw", lambda s, r: s.raw.stop(_name(r))),
    ("DELETE", "/datasets/{ref}/raw/captures", lambda s, r: s.raw.drop(_name(r))),
    ("POST", "/datasets/{ref}/raw/replay", lambda s, r: s.raw.replay(_name(r))),
    ("GET", "/datasets/{ref}/handover", lambda s, r: s.renditions.reading(_name(r))),
    ("GET", "/datasets/{ref}/renditions", lambda s, r: s.renditions.list(_name(r))),
    ("POST", "/datasets/{ref}/renditions", on_dataset(wire.RenditionRequest, lambda s: s.renditions.create)),
    ("POST", "/datasets/{ref}/renditions/{number}/handover", _hand_over),
    ("DELETE", "/datasets/{ref}/renditions/{number}", _abandon),
    ("GET", "/renditions", lambda s, _: s.renditions.list()),
    ("GET", "/sources/{name}", lambda s, r: s.endpoints.show(_name(r, "name"))),
    ("POST", "/sources/{name}/ingest", _push),
    ("DELETE", "/sources/{name}/waiting", _drop),
    ("GET", "/unmanaged", lambda s, _: s.unmanaged.list()),
    ("GET", "/unmanaged/{ref}", lambda s, r: s.unmanaged.get(_name(r))),
    ("PUT", "/unmanaged/{ref}/name", on_dataset(wire.AdoptRequest, lambda s: s.unmanaged.adopt)),
    ("DELETE", "/unmanaged/{ref}", lambda s, r: s.unmanaged.delete(_name(r))),
    ("POST", "/datasets/{ref}/correct", on_dataset(wire.CorrectRequest, lambda s: s.flow.correct)),
    ("POST", "/datasets/{ref}/schema", on_dataset(wire.AlterSchemaRequest, lambda s: s.flow.alter_schema)),
    ("POST", "/datasets/{ref}/export", on_dataset(wire.ExportRequest, lambda s: s.flow.export)),
    ("POST", "/datasets/{ref}/verify", on_dataset(wire.VerifyRequest, lambda s: s.verification.verify)),
    ("GET", "/datasets/{ref}/opening", lambda s, r: s.portals.open(_name(r))),
    ("POST", "/datasets/{ref}/audit", on_dataset(wire.AuditRequest, lambda s: s.portals.audit)),
    ("POST", "/datasets/{ref}/prove", on_dataset(wire.ProveRequest, lambda s: s.proving.prove)),
    ("POST", "/datasets/{ref}/rewrite", on_dataset(wire.RewriteRequest, lambda s: s.rewriting.rewrite)),
    ("GET", "/datasets/{ref}/lineage", lambda s, r: s.lineage.graph(_name(r))),
    ("POST", "/datasets/{ref}/lineage", on_dataset(wire.LineageRequest, lambda s: s.lineage.trace)),
    ("GET", "/datasets/{ref}/trust", lambda s, r: s.trust.show(_name(r))),
    ("POST", "/datasets/{ref}/trust/resolve", on_dataset(wire.ResolveRequest, lambda s: s.resolving.resolve)),
    ("GET", "/datasets/{ref}/authority", lambda s, r: s.authority.show_authority(_name(r))),
    ("POST", "/datasets/{ref}/authority", on_dataset(wire.AuthorityRequest, lambda s: s.authority.change_authority)),
    (
        "POST",
        "/datasets/{ref}/authority/draft",
        on_dataset(wire.AuthorityDraftRequest, lambda s: s.authority.draft_authority),
    ),
    ("POST", "/datasets/{ref}/authority/key", lambda s, r: s.authority.dataset_key(_name(r))),
    ("POST", "/uploads", _stage),
    ("POST", "/apply", with_body(wire.ApplyRequest, lambda s: s.datasets.apply)),
    ("POST", "/pull", with_body(wire.PullRequest, lambda s: s.flow.pull)),
    ("POST", "/push", with_body(wire.PushRequest, lambda s: s.pushing.push)),
    ("POST", "/import", with_body(wire.ImportRequest, lambda s: s.flow.import_)),
    ("POST", "/backup", with_body(wire.BackupRequest, lambda s: s.backups.backup)),
    ("POST", "/collect", with_body(wire.CollectRequest, lambda s: s.collection.collect)),
    ("POST", "/publish", with_body(wire.VisibilityRequest, lambda s: s.visibility.publish)),
    ("POST", "/unpublish", with_body(wire.VisibilityRequest, lambda s: s.visibility.unpublish)),
    ("POST", "/share", with_body(wire.ShareRequest, lambda s: s.visibility.share)),
    ("POST", "/query", _query),
    ("POST", "/slices", _slices),
    ("GET", "/holds", _holds),
    ("POST", "/holds", with_body(wire.HoldRequest, lambda s: s.holds.take)),
    ("PUT", "/holds/{id}", _renew_hold),
    ("DELETE", "/holds/{id}", lambda s, r: s.holds.release(_name(r, "id"))),
    ("GET", "/mirrors", lambda s, _: s.mirrors.list()),
    ("POST", "/mirrors", with_body(wire.MirrorRequest, lambda s: s.mirrors.add)),
    ("DELETE", "/mirrors/{ref}", lambda s, r: s.mirrors.remove(_name(r))),
    ("PUT", "/mirrors/{ref}/pause", lambda s, r: s.mirrors.pause(_name(r))),
    ("DELETE", "/mirrors/{ref}/pause", lambda s, r: s.mirrors.resume(_name(r))),
    ("GET", "/flows", lambda s, _: s.flows.list()),
    ("DELETE", "/flows/{name}", lambda s, r: s.flows.delete(_name(r, "name"))),
    ("PUT", "/flows/{name}/pause", lambda s, r: s.flows.pause(_name(r, "name"))),
    ("DELETE", "/flows/{name}/pause", lambda s, r: s.flows.resume(_name(r, "name"))),
    ("GET", "/publications", lambda s, _: s.publications.list()),
    ("POST", "/publications", with_body(wire.PublishRequest, lambda s: s.publications.publish)),
    ("DELETE", "/publications/{ref}", lambda s, r: s.publications.withdraw(_name(r))),
    ("POST", "/search", with_body(wire.SearchRequest, lambda s: s.search.search)),
    ("GET", "/cards/{ref}", lambda s, r: s.search.card(_name(r))),
    ("GET", "/networks", lambda s, _: s.networks.list()),
    ("POST", "/networks", with_body(wire.NetworkRequest, lambda s: s.networks.join)),
    ("POST", "/networks/{name}/invitations", _invite),
    ("GET", "/invitations", lambda s, _: s.networks.invitations()),
    ("DELETE", "/invitations/{id}", lambda s, r: s.networks.revoke(_name(r, "id"))),
    ("POST", "/invitations", with_body(wire.InvitationText, lambda s: s.networks.invitation)),
    ("GET", "/networks/{name}", lambda s, r: s.networks.show(_name(r, "name"))),
    ("DELETE", "/networks/{name}", lambda s, r: s.networks.leave(_name(r, "name"))),
    ("GET", "/peers", _peers),
    ("POST", "/peers", _connect),
    ("GET", "/netcheck", lambda s, _: s.peers.netcheck()),
    ("GET", "/peers/{peer}", lambda s, r: s.peers.show(_name(r, "peer"))),
    ("PUT", "/peers/{peer}/block", lambda s, r: s.peers.block(_name(r, "peer"))),
    ("DELETE", "/peers/{peer}/block", lambda s, r: s.peers.unblock(_name(r, "peer"))),
    ("GET", "/validators", lambda s, _: s.trust.validators()),
    ("POST", "/validators", with_body(wire.ValidatorRequest, lambda s: s.trust.add_validator)),
    ("POST", "/validators/lift", with_body(wire.LiftRequest, lambda s: s.trust.lift)),
    ("DELETE", "/validators/{key}", lambda s, r: s.trust.remove_validator(_name(r, "key"))),
    ("POST", "/signers", with_body(wire.SignRequest, lambda s: s.journal_recovery.sign_again)),
    ("GET", "/policy", lambda s, _: s.policies.policy()),
    ("POST", "/policy/network", with_body(wire.NetworkRulesRequest, lambda s: s.policies.publish_rules)),
    ("POST", "/policy/accept", with_body(wire.AcceptRequest, lambda s: s.policies.accept_rules)),
    ("GET", "/evidence/{id}", _evidence),
    ("POST", "/evidence/{id}", lambda s, r: s.trust.fetch_evidence(_name(r, "id"))),
)

DOCUMENT: Final = Path(__file__).with_name("openapi.json")
"""The OpenAPI document, which ``odfd.api.openapi`` makes."""


@asks(answers=dict[str, Any])
async def _openapi(_: Services, _request: Request) -> object:
    """This document."""
    return FileResponse(DOCUMENT, media_type=JSON)


@asks(answers=dict[str, str])
async def _version(_: Services, _request: Request) -> object:
    """The version of the daemon."""
    return {"version": __version__}


@asks(answers=dict[str, str])
async def _lives(_: Services, _request: Request) -> object:
    """Whether the daemon answers; it does so once it has started."""
    return {"status": "ok"}


BESIDE: Final[tuple[tuple[str, str, Ask], ...]] = (
    ("GET", "/openapi.json", _openapi),
    ("GET", "/version", _version),
    ("GET", "/livez", _lives),
    ("GET", "/readyz", _lives),
    ("GET", "/schemas/{path:path}", lambda s, r: s.schemas.schema(_name(r, "path"))),
    ("GET", f"/resource/{VERSION}/events", _events),
    *graphql.TABLE,
)
"""Endpoints outside of ``/v1`` and RFC-018's paths."""


def application(
    services: Services, logger: Logger, answers: AnswerStore | None = None, access: AccessControl | None = None
) -> Application:
    """The API over ``services``, under ``/v1`` and RFC-018's paths; ``answers``: kept for POSTs with a key.

    ``access``: decides who asks; ``None``: always the node's owner.
    """
    routes = []
    for method, path, ask in TABLE:
        endpoint = _guarded(ask, services, logger, access)
        endpoint = once(endpoint, path, answers) if method == "POST" else endpoint
        routes.append(Route("/v1" + path, endpoint, methods=[method]))
    for method, path, ask in (*BESIDE, *resource_protocol.TABLE):
        endpoint = _guarded(ask, services, logger, access)
        endpoint = once(endpoint, path, answers) if method == "POST" else endpoint
        routes.append(Route(path, endpoint, methods=[method]))
    handlers = {404: _nothing_there, 405: _nothing_there}
    return Starlette(routes=routes, exception_handlers=handlers)


def _guarded(
    ask: Ask, services: Services, logger: Logger, access: AccessControl | None
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            check_query(ask, request)
            theirs = services
            if access is not None:
                theirs = access.services(services, await access.subject(request.scope), request.scope)
            value = await ask(theirs, request)
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
            return problem(fault, 401 if fault.rule == NO_ACCOUNT else None)
        if isinstance(value, Response):
            return value
        return answer(value, 202 if isinstance(value, wire.TaskRef) else 200)

    return endpoint


async def _nothing_there(request: Request, error: Exception) -> Response:
    path, method = request.url.path, request.method
    if getattr(error, "status_code", 404) == 405:
        answered = problem(Usage(f"{path} does not take {method}", rule="route"), 405)
        answered.headers.update(getattr(error, "headers", None) or {})
        return answered
    hint = "odfctl and the daemon may be of different versions: compare odfctl --version with odfctl status"
    return problem(NotFound(f"the API has nothing at {path}", rule="route", hint=hint))
