"""Makes the ASGI application of the API: its endpoints, each at one path, and the answers to faults.

A fault of a service becomes problem+json. Any other exception is a bug: the caller is told so, and the log gets the
trace. The route of a request is found among those with the same beginning: trying all took a third of a small request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route, Router

from chain.errors import NotFound
from odfd import __version__
from odfd.api import actions, graphql, resource_protocol
from odfd.api.access.requests import AccessControl, Dispatcher
from odfd.api.endpoints import JSON, SLASH, Endpoint, asks, check_query, endpoints, shown_path
from odfd.api.idempotency import WITHOUT, once
from odfd.api.resource_operations import canonical
from odfd.api.services import Services
from odfd.control import wire
from odfd.control.responses import answer, problem
from odfd.errors import Bug, Usage, sole_fault
from odfd.runtime.http import Application, Message, Receive, Send
from odfd.runtime.supervision import Logger
from odfd.services.access.guard import NO_ACCOUNT
from odfd.store.idempotency import AnswerStore

_SEGMENTS: Final = 3
_Key: TypeAlias = tuple[str, ...]


class IndexedRouter(Router):
    """A router that answers as one which tries all routes in their order."""

    def __init__(self, routes: Sequence[Route]) -> None:
        super().__init__(routes)
        keyed = [(_literal(route.path), route) for route in routes]
        self._any = Router([route for key, route in keyed if key is None])
        self._by = {
            named: Router([route for key, route in keyed if key in (None, named)])
            for named in {key for key, _ in keyed if key is not None}
        }

    async def app(self, scope: Message, receive: Receive, send: Send) -> None:
        await self._by.get(_key(scope["path"]), self._any).app(scope, receive, send)


def _key(path: str) -> _Key:
    found = path.split("/")[1 : _SEGMENTS + 1]
    return (*found, *[""] * (_SEGMENTS - len(found)))


def _literal(path: str) -> _Key | None:
    """Returns the key of all paths that a route matches; ``None``: they have several."""
    key = _key(path)
    return None if any("{" in segment for segment in key) else key


DOCUMENT: Final = Path(__file__).with_name("openapi.json")
"""The OpenAPI document, which ``odfd.api.openapi`` makes."""


@asks(answers=dict[str, Any])
async def _openapi(_: Dispatcher, _request: Request) -> object:
    """Returns this document."""
    return FileResponse(DOCUMENT, media_type=JSON)


@asks(answers=dict[str, str])
async def _version(_: Dispatcher, _request: Request) -> object:
    """Returns the version of the daemon."""
    return {"version": __version__}


@asks(answers=dict[str, str])
async def _lives(_: Dispatcher, _request: Request) -> object:
    """Answers once the daemon has started."""
    return {"status": "ok"}


class ApiRoute(NamedTuple):
    """An endpoint with its method and path."""

    method: str
    path: str
    ask: Endpoint

    @property
    def repeats(self) -> bool:
        """Whether it takes an ``Idempotency-Key``."""
        return self.method == "POST" and self.path not in WITHOUT


_ROWS: Final[tuple[tuple[str, str, Endpoint], ...]] = (
    ("GET", "/openapi.json", _openapi),
    ("GET", "/version", _version),
    ("GET", "/livez", _lives),
    ("GET", "/readyz", _lives),
    *graphql.TABLE,
    *actions.TABLE,
    *endpoints(),
    *resource_protocol.TABLE,
)
OPERATIONS: Final[tuple[ApiRoute, ...]] = tuple(ApiRoute(*row) for row in _ROWS)
"""All endpoints of the API, in the order in which a path is looked up: those for any type come last."""


class _Parts(NamedTuple):
    """The parts with which an application answers requests."""

    services: Services
    logger: Logger
    answers: AnswerStore | None
    access: AccessControl | None


def application(
    services: Services, logger: Logger, answers: AnswerStore | None = None, access: AccessControl | None = None
) -> Application:
    """Makes the API's application over ``services``. ``answers`` keeps the answers to POSTs with a key.

    ``access`` decides who the caller is; without it, it is always the node's owner.
    """
    app = Starlette(exception_handlers={404: _nothing_there, 405: _nothing_there})
    app.router = _router()
    app.state.parts = _Parts(services, logger, answers, access)
    return _canonically(app)


@cache
def _router() -> IndexedRouter:
    return IndexedRouter(_routes())


def _routes() -> Sequence[Route]:
    """Makes the routes once for all applications, since that takes longer than the rest of an application."""
    routes, methods = [], _methods()
    for each in OPERATIONS:
        endpoint = _guard(each.ask)
        endpoint = once(endpoint, each.path, lambda r: _parts(r).answers) if each.method == "POST" else endpoint
        routes.append(Route(each.path, endpoint, methods=[each.method]))
        if methods.get(each.path, [""])[-1] == each.method and not each.path.startswith(resource_protocol.ALL):
            routes.append(Route(each.path, _other_method(methods[each.path]), methods=METHODS))
    return routes


def _parts(request: Request) -> _Parts:
    found: _Parts = request.app.state.parts
    return found


METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")


def _methods() -> dict[str, list[str]]:
    """Returns the methods that each path takes, in the order of their operations."""
    found: dict[str, list[str]] = {}
    for each in OPERATIONS:
        found.setdefault(each.path, []).append(each.method)
    return found


def _other_method(taken: list[str]) -> Callable[[Request], Awaitable[Response]]:
    """Refuses the methods that a path does not take, which the route for any type of resource would match otherwise."""

    async def refuse(_: Request) -> Response:
        raise HTTPException(405, headers={"allow": ", ".join(taken)})

    return refuse


def _canonically(app: Application) -> Application:
    """Accepts types in paths in the singular and in any case; the table has plurals."""

    async def asked(scope: Message, receive: Receive, send: Send) -> None:
        await app({**scope, "path": canonical(_segments(scope))}, receive, send)

    return asked


def _segments(scope: Message) -> str:
    """Returns the path of a request, with ``SLASH`` for a slash that is encoded, and so divides no segments."""
    raw = scope.get("raw_path") or b""
    # ``%00``: a name with SLASH's stand-in would otherwise pass for one with a slash.
    if b"%2f" not in raw.lower() or b"%00" in raw:
        return str(scope["path"])
    return unquote(raw.decode("latin-1").replace("%2F", SLASH).replace("%2f", SLASH))


def _guard(ask: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        services, logger, _, access = _parts(request)
        try:
            check_query(ask, request)
            calls = Dispatcher(services)
            if access is not None:
                calls = access.dispatcher(services, await access.subject(request.scope), request.scope)
            value = await ask(calls, request)
        except Exception as error:
            # A fault raised inside a nursery comes as an ExceptionGroup.
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
    path, method = shown_path(request), request.method
    if getattr(error, "status_code", 404) == 405:
        answered = problem(Usage(f"{path} does not take {method}", rule="route"), 405)
        answered.headers.update(getattr(error, "headers", None) or {})
        return answered
    hint = "odfctl and the daemon may be of different versions: compare odfctl --version with odfctl status"
    return problem(NotFound(f"the API has nothing at {path}", rule="route", hint=hint))
