"""Lists the endpoints of the API, and makes the ASGI application. Each endpoint calls one method of one port.

``/v1`` is stable: fields and paths are added, never changed. A fault of a service becomes problem+json; anything
else that escapes one is a bug, told as such to the caller and with its trace to the log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from chain.errors import NotFound
from odfd.control import wire
from odfd.control.answers import LineStream, answer, body, flag, lines, number, problem
from odfd.control.ports import Node
from odfd.errors import Bug, Usage, sole_fault
from odfd.runtime.http import Application
from odfd.runtime.supervision import Logger

Endpoint: TypeAlias = Callable[[Node, Request], Awaitable[object]]
_R = TypeVar("_R")
MAX_ROWS: Final = 10_000
"""Blocks or records of one answer."""
DEFAULT_ROWS: Final = 20


def _rows(request: Request) -> int:
    return number(request, "limit", DEFAULT_ROWS, 1, MAX_ROWS) or DEFAULT_ROWS


def _name(request: Request, part: str = "ref") -> str:
    return str(request.path_params[part])


async def _log(node: Node, request: Request) -> object:
    kinds = request.query_params.getlist("kind")
    before, epoch = number(request, "before", None), number(request, "epoch", None)
    return await node.datasets.log(_name(request), kinds, _rows(request), before, epoch)


async def _rename(node: Node, request: Request) -> object:
    return await node.datasets.rename(_name(request), await body(request, wire.RenameRequest))


async def _stage(node: Node, request: Request) -> object:
    async with aclosing(request.stream()) as chunks:
        return await node.flow.stage(request.query_params.get("name", "-"), chunks)


async def _set_watermark(node: Node, request: Request) -> object:
    return await node.flow.set_watermark(_name(request), await body(request, wire.WatermarkRequest))


async def _correct(node: Node, request: Request) -> object:
    return await node.flow.correct(_name(request), await body(request, wire.CorrectRequest))


async def _ingest(node: Node, request: Request) -> object:
    return await node.flow.ingest(_name(request), await body(request, wire.IngestRequest))


async def _export(node: Node, request: Request) -> object:
    return await node.flow.export(_name(request), await body(request, wire.ExportRequest))


async def _rewrite(node: Node, request: Request) -> object:
    return await node.rewriting.rewrite(_name(request), await body(request, wire.RewriteRequest))


async def _verify(node: Node, request: Request) -> object:
    return await node.verification.verify(_name(request), await body(request, wire.VerifyRequest))


async def _resolve(node: Node, request: Request) -> object:
    return await node.resolving.resolve(_name(request), await body(request, wire.ResolveRequest))


async def _prove(node: Node, request: Request) -> object:
    return await node.proving.prove(_name(request), await body(request, wire.ProveRequest))


async def _lineage(node: Node, request: Request) -> object:
    return await node.lineage.trace(_name(request), await body(request, wire.LineageRequest))


async def _connect(node: Node, request: Request) -> object:
    return await node.peers.connect((await body(request, wire.ConnectRequest)).multiaddr)


async def _evidence(node: Node, request: Request) -> object:
    found = await node.trust.evidence(_name(request, "id"))
    kind = "application/octet-stream"
    return FileResponse(found, media_type=kind) if isinstance(found, Path) else Response(found, media_type=kind)


async def _task(node: Node, request: Request) -> object:
    if flag(request, "follow"):
        return await lines(node.tasks.follow(_name(request, "id")))
    return await node.tasks.get(_name(request, "id"))


async def _doctor(node: Node, request: Request) -> object:
    return LineStream(node.about.examine()) if flag(request, "deep") else await node.about.doctor()


async def _events(node: Node, request: Request) -> object:
    since = number(request, "since", None)
    return LineStream(node.events.follow(since, request.query_params.getlist("kind")))


async def _draft_authority(node: Node, request: Request) -> object:
    return await node.authority.draft_authority(_name(request), await body(request, wire.AuthorityDraftRequest))


async def _change_authority(node: Node, request: Request) -> object:
    return await node.authority.change_authority(_name(request), await body(request, wire.AuthorityRequest))


TABLE: Final[tuple[tuple[str, str, Endpoint], ...]] = (
    ("GET", "/status", lambda n, _: n.about.status()),
    ("GET", "/engines", lambda n, _: n.about.engines()),
    ("GET", "/doctor", _doctor),
    ("GET", "/events", _events),
    ("GET", "/tasks", lambda n, _: n.tasks.list()),
    ("GET", "/tasks/{id}", _task),
    ("DELETE", "/tasks/{id}", lambda n, r: n.tasks.cancel(_name(r, "id"))),
    ("GET", "/datasets", lambda n, _: n.datasets.list()),
    ("GET", "/datasets/{ref}", lambda n, r: n.datasets.get(_name(r))),
    ("GET", "/datasets/{ref}/detail", lambda n, r: n.datasets.describe(_name(r))),
    ("DELETE", "/datasets/{ref}", lambda n, r: n.datasets.delete(_name(r))),
    ("GET", "/datasets/{ref}/manifest", lambda n, r: n.datasets.manifest(_name(r))),
    ("PUT", "/datasets/{ref}/name", _rename),
    ("GET", "/datasets/{ref}/blocks", _log),
    ("GET", "/datasets/{ref}/blocks/{at}", lambda n, r: n.datasets.block(_name(r), _name(r, "at"))),
    ("GET", "/datasets/{ref}/tail", lambda n, r: n.datasets.tail(_name(r), _rows(r))),
    ("GET", "/datasets/{ref}/schema", lambda n, r: n.datasets.schema(_name(r))),
    ("POST", "/datasets/{ref}/ingest", _ingest),
    ("PUT", "/datasets/{ref}/watermark", _set_watermark),
    ("POST", "/datasets/{ref}/correct", _correct),
    ("POST", "/datasets/{ref}/export", _export),
    ("POST", "/datasets/{ref}/verify", _verify),
    ("POST", "/datasets/{ref}/prove", _prove),
    ("POST", "/datasets/{ref}/rewrite", _rewrite),
    ("GET", "/datasets/{ref}/lineage", lambda n, r: n.lineage.graph(_name(r))),
    ("POST", "/datasets/{ref}/lineage", _lineage),
    ("GET", "/datasets/{ref}/trust", lambda n, r: n.trust.show(_name(r))),
    ("POST", "/datasets/{ref}/trust/resolve", _resolve),
    ("GET", "/datasets/{ref}/authority", lambda n, r: n.authority.show_authority(_name(r))),
    ("POST", "/datasets/{ref}/authority", _change_authority),
    ("POST", "/datasets/{ref}/authority/draft", _draft_authority),
    ("POST", "/datasets/{ref}/authority/key", lambda n, r: n.authority.dataset_key(_name(r))),
    ("POST", "/uploads", _stage),
    ("POST", "/apply", lambda n, r: _then(body(r, wire.ApplyRequest), n.datasets.apply)),
    ("POST", "/pull", lambda n, r: _then(body(r, wire.PullRequest), n.flow.pull)),
    ("POST", "/import", lambda n, r: _then(body(r, wire.ImportRequest), n.flow.import_)),
    ("POST", "/collect", lambda n, r: _then(body(r, wire.CollectRequest), n.collection.collect)),
    ("POST", "/publish", lambda n, r: _then(body(r, wire.VisibilityRequest), n.visibility.publish)),
    ("POST", "/unpublish", lambda n, r: _then(body(r, wire.VisibilityRequest), n.visibility.unpublish)),
    ("GET", "/mirrors", lambda n, _: n.mirrors.list()),
    ("POST", "/mirrors", lambda n, r: _then(body(r, wire.MirrorRequest), n.mirrors.add)),
    ("DELETE", "/mirrors/{ref}", lambda n, r: n.mirrors.remove(_name(r))),
    ("PUT", "/mirrors/{ref}/pause", lambda n, r: n.mirrors.pause(_name(r))),
    ("DELETE", "/mirrors/{ref}/pause", lambda n, r: n.mirrors.resume(_name(r))),
    ("GET", "/publications", lambda n, _: n.publications.list()),
    ("POST", "/publications", lambda n, r: _then(body(r, wire.PublishRequest), n.publications.publish)),
    ("DELETE", "/publications/{ref}", lambda n, r: n.publications.withdraw(_name(r))),
    ("GET", "/networks", lambda n, _: n.networks.list()),
    ("POST", "/networks", lambda n, r: _then(body(r, wire.NetworkRequest), n.networks.join)),
    ("GET", "/networks/{name}", lambda n, r: n.networks.show(_name(r, "name"))),
    ("DELETE", "/networks/{name}", lambda n, r: n.networks.leave(_name(r, "name"))),
    ("GET", "/peers", lambda n, _: n.peers.list()),
    ("POST", "/peers", _connect),
    ("GET", "/peers/{peer}", lambda n, r: n.peers.show(_name(r, "peer"))),
    ("PUT", "/peers/{peer}/block", lambda n, r: n.peers.block(_name(r, "peer"))),
    ("DELETE", "/peers/{peer}/block", lambda n, r: n.peers.unblock(_name(r, "peer"))),
    ("GET", "/validators", lambda n, _: n.trust.validators()),
    ("POST", "/validators", lambda n, r: _then(body(r, wire.ValidatorRequest), n.trust.add_validator)),
    ("POST", "/validators/lift", lambda n, r: _then(body(r, wire.LiftRequest), n.trust.lift)),
    ("DELETE", "/validators/{key}", lambda n, r: n.trust.remove_validator(_name(r, "key"))),
    ("POST", "/signers", lambda n, r: _then(body(r, wire.SignRequest), n.signers.sign_again)),
    ("GET", "/policy", lambda n, _: n.policies.policy()),
    ("POST", "/policy/network", lambda n, r: _then(body(r, wire.NetworkRulesRequest), n.policies.publish_rules)),
    ("POST", "/policy/accept", lambda n, r: _then(body(r, wire.AcceptRequest), n.policies.accept_rules)),
    ("GET", "/evidence/{id}", _evidence),
    ("POST", "/evidence/{id}", lambda n, r: n.trust.fetch_evidence(_name(r, "id"))),
)


def application(node: Node, logger: Logger) -> Application:
    """The API of ``node``, to be served under ``/v1``."""
    routes = [Route("/v1" + path, _guarded(ask, node, logger), methods=[method]) for method, path, ask in TABLE]
    handlers = {404: _nothing_there, 405: _nothing_there}
    return Starlette(routes=routes, exception_handlers=handlers)


async def _then(request: Awaitable[_R], ask: Callable[[_R], Awaitable[object]]) -> object:
    return await ask(await request)


def _guarded(ask: Endpoint, node: Node, logger: Logger) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            value = await ask(node, request)
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
