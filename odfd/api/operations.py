"""Makes an endpoint of each operation that declares a path (``odfd.control.operations``), from its signature."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from starlette.requests import Request

from odfd.api.access.requests import Dispatcher
from odfd.api.endpoints import Endpoint, path_part
from odfd.api.services import operations
from odfd.control.operations import Body, Given, Number, Parameter, Part, signature_of
from odfd.control.responses import body
from odfd.errors import Usage

MAX_DIGITS: Final = 9
"""Of a number in a path."""


def endpoints() -> Iterator[tuple[str, str, Endpoint]]:
    """Yields the method, the path and the endpoint of each operation that has one."""
    for each in operations().values():
        for path in filter(None, (each.operation.path, *each.operation.also)):
            yield each.operation.method, path, endpoint_of(each.function, path)


def endpoint_of(function: Callable[..., Any], path: str) -> Endpoint:
    """Makes the endpoint of an operation at a path."""
    signature = signature_of(function, path)
    sources = [each.source for each in signature.given]
    query = tuple(each for each in sources if isinstance(each, Parameter))
    takes = next((each.kind for each in sources if isinstance(each, Body)), None)
    return Endpoint(partial(_ask, function, signature.given), query, takes, operation=function)


async def _ask(function: Callable[..., Any], given: Sequence[Given], calls: Dispatcher, request: Request) -> object:
    """Performs an operation with what a request says."""
    values: list[Any] = []
    named: dict[str, Any] = {}
    for each in given:
        match each.source:
            case Body(kind):
                value = await body(request, kind)
            case Part(name, number):
                value = path_part(request, name) if number is None else _number(path_part(request, name), number)
            case Parameter() as parameter:
                said = parameter.read(request)
                value = each.default if said is None else said
        if each.is_keyword:
            named[each.parameter] = value
        else:
            values.append(value)
    return await calls.do(function, *values, **named)


def _number(text: str, number: Number) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS):
        raise Usage(f"not a number of {number.of}: {text[:40]!r}", hint=number.hint)
    return int(text)
