"""Declares endpoints of the API: their query parameters, the types of their bodies, and those of their answers.

An operation that declares a path has an endpoint by its signature (``odfd.control.operations``). The OpenAPI document
is made of these declarations. A request with an undeclared parameter is refused, so the document leaves out nothing
that an endpoint reads.
"""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

from starlette.requests import Request

from odfd.api.access.requests import Dispatcher
from odfd.api.services import operations
from odfd.control.operations import Given, NumberPart, Parameter, PathPart, RequestBody, signature_of
from odfd.control.responses import body, flag
from odfd.errors import Usage

Ask: TypeAlias = "Callable[[Dispatcher, Request], Awaitable[object]]"
JSON: Final = "application/json"
IF_MATCH: Final = "if-match"
IF_NONE_MATCH: Final = "if-none-match"
OCTETS: Final = "application/octet-stream"


SLASH: Final = "\0"
"""Stands for a slash within one segment of a path, which a request encodes: ``alice%2Fdb``."""
WATCH: Final = Parameter("watch", "flag", "Answer with a stream of changes, which does not end.")
SINCE: Final = Parameter("since", "text", "The version after which a watch continues; without it, the present one.")
CONTINUE: Final = Parameter("continue", "text", "Token of the previous page, for the next one of the same list.")
LABELS: Final = Parameter("labels", "text", "A selector of labels, such as env=prod.")
NAME: Final = Parameter("name", "text", "A pattern of names: % stands for any text, and _ for one character.")

OBJECTS: Final = Parameter(
    "objects", "text", "`purge`: a dataset goes with its data; else `keep`: that stays, unmanaged."
)


def purges(request: Request) -> bool:
    """Whether the data of a deleted dataset is deleted too. Raises Usage for an unknown value of ``OBJECTS``."""
    said = request.query_params.get(OBJECTS.name, "keep")
    if said not in ("keep", "purge"):
        raise Usage(f"objects cannot be {said[:40]!r}", hint="keep, or purge")
    return said == "purge"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint with its declaration."""

    ask: Ask
    query: tuple[Parameter, ...] = ()
    takes: object = None
    """The type of the body; ``bytes`` if it may be anything."""
    body_types: tuple[str, ...] = (JSON,)
    also_takes: Mapping[str, object] = field(default_factory=dict)
    """Types of other bodies, by media type."""
    answers: object = None
    """The type of the answer, if it differs from that of the called operation; ``bytes`` if it is no JSON."""
    media_type: str = JSON
    stream: object = None
    """The type of each line, if the answer is a stream."""
    events: object = None
    """The type of the data of server-sent events, if the endpoint streams events but no lines."""
    operation: Callable[..., Any] | None = None
    """The operation that the endpoint calls, whose type and docstring tell the rest."""
    follows: Callable[..., Any] | None = None
    """The operation that it calls for a stream."""
    statuses: tuple[int, ...] = ()
    """Statuses of successful answers, if they differ from 200, or 202 for a task."""

    def __call__(self, calls: Dispatcher, request: Request) -> Awaitable[object]:
        return self.ask(calls, request)

    def conditions(self, method: str) -> tuple[str, ...]:
        """Returns the headers with conditions that a request may have: where it may name a generation."""
        if method == "POST" or not any(each.name == "generation" for each in self.query):
            return ()
        return (IF_MATCH, IF_NONE_MATCH) if method in ("GET", "PUT") else (IF_MATCH,)


def asks(*query: Parameter, **declared: Any) -> Callable[[Ask], Endpoint]:
    """Declares an endpoint. ``declared``: fields of ``Endpoint``."""
    return lambda ask: Endpoint(ask, query, **declared)


def check_query(endpoint: Endpoint, request: Request) -> None:
    """Raises Usage for a parameter that the endpoint does not declare, and for a flag that is no true or false.

    Raises it also for a condition that the endpoint would not keep: whoever sends one relies on it.
    """
    known = {each.name: each for each in endpoint.query}
    conditions = endpoint.conditions(request.method)
    for header in (IF_MATCH, IF_NONE_MATCH):
        said = request.headers.get(header)
        if said is None or (header == IF_NONE_MATCH and request.method in ("GET", "HEAD")):
            continue
        if header not in conditions or (header == IF_NONE_MATCH and said.strip() != "*"):
            hint = "GET, PUT, PATCH and DELETE of one resource take If-Match, and PUT takes If-None-Match: *"
            raise Usage(
                f"{request.method} {shown_path(request)} takes no {header}: {said[:60]}", rule=header, hint=hint
            )
    for name in request.query_params:
        if name not in known:
            near = difflib.get_close_matches(name[:80], known, 1)
            takes = ", ".join(known) if known else "none"
            hint = f"did you mean {near[0]}?" if near else f"it takes {takes}"
            raise Usage(f"{shown_path(request)} takes no parameter {name[:80]!r}", rule="query", hint=hint)
        if known[name].kind == "flag":
            flag(request, name)


def is_watch(request: Request) -> bool:
    """Whether the request is for a stream of changes. Raises Usage if it also selects by labels or asks for a page."""
    if not flag(request, WATCH.name):
        return False
    for each in (LABELS, NAME):
        if each.name in request.query_params:
            hint = f"leave {each.name} out; each change has its own"
            raise Usage(f"a watch does not select by {each.name}", rule="query", hint=hint)
    if CONTINUE.name in request.query_params:
        raise Usage("a watch has no pages", rule="query", hint="since: the resourceVersion of the list")
    return True


def shown_path(request: Request) -> str:
    return request.url.path.replace(SLASH, "%2F")


def path_part(request: Request, part: str = "ref") -> str:
    """Returns a part of the path, in which ``account/name`` is one segment."""
    return str(request.path_params[part]).replace(SLASH, "/")


MAX_DIGITS: Final = 9
"""Of a number in a path."""


def endpoints() -> Iterator[tuple[str, str, Endpoint]]:
    """Yields the method, the path and the endpoint of each operation that has one."""
    for operation in operations().values():
        for path in filter(None, (operation.operation.path, *operation.operation.also)):
            yield operation.operation.method, path, endpoint_of(operation.function, path)


def endpoint_of(function: Callable[..., Any], path: str) -> Endpoint:
    """Makes the endpoint of an operation at a path."""
    signature = signature_of(function, path)
    sources = [each.source for each in signature.given]
    query = tuple(source for source in sources if isinstance(source, Parameter))
    takes = next((source.kind for source in sources if isinstance(source, RequestBody)), None)
    return Endpoint(partial(_ask, function, signature.given), query, takes, operation=function)


async def _ask(function: Callable[..., Any], given: Sequence[Given], calls: Dispatcher, request: Request) -> object:
    """Performs an operation with what a request says."""
    values: list[Any] = []
    named: dict[str, Any] = {}
    for each in given:
        match each.source:
            case RequestBody(kind):
                value = await body(request, kind)
            case PathPart(name, number):
                value = path_part(request, name) if number is None else _number(path_part(request, name), number)
            case Parameter() as parameter:
                said = parameter.read(request)
                value = each.default if said is None else said
        if each.is_keyword:
            named[each.parameter] = value
        else:
            values.append(value)
    return await calls.do(function, *values, **named)


def _number(text: str, number: NumberPart) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS):
        raise Usage(f"not a number of {number.of}: {text[:40]!r}", hint=number.hint)
    return int(text)
