"""Endpoints of RFC-018's resource protocol: ``/CONTEXT/VERSION/TYPE[/REF]``, the same for each registered type.

They ask the same service as ``/v1/resources``, and answer in the shape of manifests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from starlette.requests import Request

from chain.errors import NotFound
from odfd.api.resources.declarations import DeclarationService
from odfd.api.resources.types import TYPES
from odfd.control import wire
from odfd.control.responses import flag, lines, since_of, stream_of
from odfd.resources.selectors import matches, parse_selector
from odfd.resources.types import VERSION, ResourceType

if TYPE_CHECKING:
    from odfd.api.services import Services

Endpoint: TypeAlias = "Callable[[Services, Request], Awaitable[object]]"
_ALL: Final = f"/{{context}}/{VERSION}/{{type}}"


async def _all(services: Services, request: Request) -> object:
    kind = _type(request)
    if flag(request, "watch"):
        return await lines(_watched(services.declarations, kind, since_of(request)), stream_of(request))
    return await _listed(services.declarations, kind, request.query_params.get("labels"))


async def _one(services: Services, request: Request) -> object:
    return _manifest(await services.declarations.get(_type(request).name, str(request.path_params["ref"])))


async def _delete(services: Services, request: Request) -> object:
    return _manifest(await services.declarations.delete(_type(request).name, str(request.path_params["ref"])))


TABLE: Final[tuple[tuple[str, str, Endpoint], ...]] = (
    ("GET", _ALL, _all),
    ("GET", _ALL + "/{ref}", _one),
    ("DELETE", _ALL + "/{ref}", _delete),
)


def _type(request: Request) -> ResourceType:
    """The type of a path: singular, plural or alias, whatever the case. Raises NotFound."""
    context, word = str(request.path_params["context"]), str(request.path_params["type"])
    kind = TYPES.word(word)
    if kind is None or kind.spec is None:
        raise NotFound(f"there is no type {word[:80]!r}", rule="unknown-type", hint="odfctl types lists them")
    if context.lower() != kind.context:
        raise NotFound(
            f"{kind.name} is no type of {context[:80]!r}", rule="unknown-type",
            hint=f"it is at /{kind.context}/{VERSION}/{kind.plural}",
        )  # fmt: skip
    return kind


async def _listed(declarations: DeclarationService, kind: ResourceType, labels: str | None) -> wire.ResourceList:
    """What stands, and the version from which a watch tells what comes after: both of one moment. Raises Invalid."""
    selector = None if labels is None else parse_selector(labels)
    items: list[wire.ResourceManifest] = []
    async with aclosing(cast("Any", declarations.watch(None, kind.name))) as news:
        async for each in news:
            view = each.resource
            if view is None:
                return wire.ResourceList(resource_version=each.version, items=tuple(items))
            if selector is None or matches(selector, {**view.labels, **view.system_labels}):
                items.append(_manifest(view))
    raise AssertionError("a watch from the beginning has a bookmark")


async def _watched(
    declarations: DeclarationService, kind: ResourceType, since: str | None
) -> AsyncIterator[wire.ResourceManifestNews]:
    async with aclosing(cast("Any", declarations.watch(since, kind.name))) as news:
        async for each in news:
            told = None if each.resource is None else _manifest(each.resource)
            yield wire.ResourceManifestNews(version=each.version, op=each.op, object=told)


def _manifest(view: wire.ResourceView) -> wire.ResourceManifest:
    return wire.ResourceManifest(schema=view.schema, headers=view.headers, spec=view.spec, status=view.status)
