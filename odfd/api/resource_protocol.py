"""Serves RFC-018's resource protocol: ``/CONTEXT/VERSION/TYPE[/REF]``, the same for each registered type.

These endpoints are the only way to read, create, change and delete resources, in the shape of manifests.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from chain.errors import Conflict, Invalid
from odfd.api import resource_operations as operations
from odfd.api.access.requests import Dispatcher
from odfd.api.endpoints import (
    CONTINUE,
    IF_MATCH,
    IF_NONE_MATCH,
    JSON,
    LABELS,
    NAME,
    OBJECTS,
    SINCE,
    WATCH,
    Endpoint,
    asks,
    is_watch,
    path_part,
    purges,
)
from odfd.control import wire
from odfd.control.client import MANIFESTS
from odfd.control.operations import Parameter
from odfd.control.responses import (
    NDJSON,
    SharedValue,
    answer,
    body,
    decode,
    flag,
    lines,
    problem,
    since_of,
    stream_of,
    whole_body,
)
from odfd.errors import Usage, http_status
from odfd.resources.registry import VERSION
from odfd.resources.selectors import selecting
from odfd.resources.types import Deletion, ResourceType
from odfd.services.resources.apply import ApplyOperation
from odfd.services.resources.declarations import DeclarationService
from odfd.services.resources.pages import MOST, PAGE
from odfd.services.resources.views import manifest_of

YAML: Final = "application/yaml"
MERGE_PATCH: Final = "application/merge-patch+json"
DRY_RUN: Final = Parameter("dryRun", "flag", "Say what would change, and change nothing.")
FORM: Final = Parameter("form", "text", "`input`: as it can be applied, without what the node writes.")
MANAGER: Final = Parameter(
    "manager", "text", "Name of the manager: labels and annotations of other managers stay as they are."
)
FORCE: Final = Parameter("force", "flag", "Also of what another resource made, which may make it again.")
ON_ERROR: Final = Parameter("onError", "text", "`skip`: apply those that can be; else `atomic`: all, or none.")
ACCOUNT: Final = Parameter("account", "text", "Only resources of this account, by name or id; empty: the caller's.")
PRUNE: Final = Parameter(
    "prune", "text", "A selector of labels: resources that match it and are not in the manifests are deleted."
)
GENERATION: Final = Parameter(
    "generation", "number", "As it was read: where it is another now, nothing is done (412).", 1
)
LIMIT: Final = Parameter("limit", "number", "Maximum number of resources of a page.", 1, MOST, PAGE)
TASK: Final = Parameter("task", "flag", "Answer with the task at once (202); do not wait for its end.")
ALL: Final = "/{context}/{version}/{type}"
_ONE: Final = ALL + "/{ref}"
_TAG: Final = re.compile(r'"([0-9]{1,18})\.[0-9a-f]{16}"')
"""An ETag: the generation, by which writes are compared, and a hash of the whole answer, which has the status too."""
ATTEMPTS: Final = 5
"""Times that a patch without a generation is tried, as when others change the resource in between."""
APPLY: Final = f"/resource/{VERSION}/apply"


@asks(WATCH, SINCE, NAME, LABELS, ACCOUNT, LIMIT, CONTINUE, answers=wire.ResourceList, stream=wire.ResourceManifestNews)
async def _all(calls: Dispatcher, request: Request) -> object:
    """Lists the resources of a type in pages, or watches them."""
    kind = _type(request)
    if is_watch(request):
        if ACCOUNT.name in request.query_params:
            raise Usage("a watch does not select by account", rule="query", hint="leave account out")
        return await _watch_type(calls, kind, request)
    return await _list(calls, kind, request)


@asks(FORM, GENERATION, answers=wire.ResourceManifest)
async def _one(calls: Dispatcher, request: Request) -> object:
    """Returns a resource by name, id or did, with its ETag; one that the caller has is not sent again (304)."""
    form = request.query_params.get("form", "")
    if form not in ("", "input"):
        raise Usage(f"there is no form {form[:40]!r}", rule="query", hint="form=input, or none")
    await operations.check_generation(calls, _type(request), path_part(request), _generation(request))
    read = operations.portable if form else operations.read
    found = await read(calls, _type(request), path_part(request))
    response = answer(found)
    # The generation alone does not change with the status, and ``If-None-Match`` would hide a new one.
    tag = f'"{found.generation}.{hashlib.sha256(response.body).hexdigest()[:16]}"'
    held = {each.strip().removeprefix("W/") for each in request.headers.get(IF_NONE_MATCH, "").split(",")}
    if held & {tag, "*"}:
        response = Response(status_code=304)
    response.headers["etag"] = tag
    return response


@asks(DRY_RUN, MANAGER, takes=dict[str, Any], body_types=(JSON, YAML), answers=wire.ApplyItem, statuses=(200, 201, 202))
async def _create(calls: Dispatcher, request: Request) -> object:
    """Creates a resource of a manifest; one that exists is refused."""
    kind, text = _type(request), await _text(request)
    await operations.check_new(calls, kind, operations.sole_draft(text, kind))
    return await _apply_one(calls, request, text)


@asks(
    DRY_RUN, GENERATION, MANAGER, FORCE,
    takes=dict[str, Any], body_types=(JSON, YAML), answers=wire.ApplyItem, statuses=(200, 201, 202),
)  # fmt: skip
async def _put(calls: Dispatcher, request: Request) -> object:
    """Applies the manifest of a resource: makes it, or changes it as a whole."""
    kind, text = _type(request), await _text(request)
    draft = operations.sole_draft(text, kind)
    await operations.check_meant(calls, kind, path_part(request), draft)
    if IF_NONE_MATCH in request.headers:
        await operations.check_new(calls, kind, draft)
    return await _apply_one(calls, request, text, _generation(request))


@asks(
    DRY_RUN, GENERATION, MANAGER, FORCE,
    takes=dict[str, Any], body_types=(MERGE_PATCH, JSON), answers=wire.ApplyItem, statuses=(200, 202),
)  # fmt: skip
async def _patch(calls: Dispatcher, request: Request) -> object:
    """Changes parts of a resource: a merge-patch (RFC 7396) of its manifest."""
    kind, patch, asked = _type(request), await body(request, dict[str, Any]), _generation(request)
    force = flag(request, FORCE.name)
    for left in reversed(range(ATTEMPTS)):
        after, seen = await operations.patched(calls, kind, path_part(request), patch, force=force)
        (text,) = operations.texts_of([after])
        operations.sole_draft(text, kind)
        try:
            return await _apply_one(calls, request, text, asked or seen)
        except Conflict as fault:
            # A patch without a generation is merged again with the newer manifest; with one, the client decides.
            if asked is not None or fault.rule != "generation" or not left:
                raise
    raise AssertionError("the last attempt returns or raises")


@asks(GENERATION, FORCE, OBJECTS, answers=wire.ResourceManifest)
async def _delete(calls: Dispatcher, request: Request) -> object:
    """Deletes a resource with what it stands for, and returns it as it was."""
    how = Deletion(_generation(request), force=flag(request, FORCE.name), purge=purges(request))
    return await operations.delete(calls, _type(request), path_part(request), how)


@asks(
    DRY_RUN, GENERATION, PRUNE, MANAGER, FORCE, ON_ERROR, TASK,
    takes=list[dict[str, Any]] | dict[str, Any], body_types=(JSON, YAML),
    also_takes={MANIFESTS: list[wire.ManifestText]}, answers=wire.ApplyResult, statuses=(200, 202),
)  # fmt: skip
async def _apply(calls: Dispatcher, request: Request) -> object:
    """Applies manifests of any types: all of them, or none; or with ``onError=skip`` those that can be."""
    return await _carried_out(calls, request, await _texts(request), GENERATION.number(request))


@asks(SINCE, answers=wire.ResourceManifestNews, media_type=NDJSON, stream=wire.ResourceManifestNews)
async def _watch(calls: Dispatcher, request: Request) -> object:
    """Watches the resources of all types: the existing ones, a bookmark, and then each change."""
    return await _watch_type(calls, None, request)


@asks(NAME, LABELS, answers=Sequence[wire.ResourceManifest])
async def _of_all_types(calls: Dispatcher, request: Request) -> object:
    """Lists the resources of all types but elements of sets."""
    return [manifest_of(each) for each in await calls.do(DeclarationService.list, None, _selector(request))]


@asks(takes=wire.LabelRequest, answers=wire.ResourceManifest)
async def _label(calls: Dispatcher, request: Request) -> object:
    """Sets labels and annotations by hand, also of what no manifest declared; ``null`` takes one away."""
    said = await body(request, wire.LabelRequest)
    return manifest_of(await calls.do(DeclarationService.label, _type(request).name, path_part(request), said))


@asks(takes=wire.RenameRequest, answers=wire.ResourceManifest)
async def _rename(calls: Dispatcher, request: Request) -> object:
    """Gives a resource another name."""
    said = await body(request, wire.RenameRequest)
    return await operations.rename(calls, _type(request), path_part(request), said.name)


TABLE: Final[tuple[tuple[str, str, Endpoint], ...]] = (
    ("POST", APPLY, _apply),
    ("GET", f"/resource/{VERSION}/resources", _of_all_types),
    ("GET", f"/resource/{VERSION}/watch", _watch),
    ("GET", ALL, _all),
    ("POST", ALL, _create),
    ("GET", _ONE, _one),
    ("PUT", _ONE, _put),
    ("PATCH", _ONE, _patch),
    ("DELETE", _ONE, _delete),
    ("PUT", _ONE + "/labels", _label),
    ("POST", _ONE + "/rename", _rename),
)


def _generation(request: Request) -> int | None:
    """Returns the generation that the caller read, from the query or the ETag of ``If-Match``. Raises Usage."""
    tag, asked = request.headers.get(IF_MATCH), GENERATION.number(request)
    if tag is None:
        return asked
    if asked is not None:
        raise Usage("If-Match and generation say the same", rule="if-match", hint="leave one of them out")
    found = _TAG.fullmatch(tag.strip())
    if found is None:
        hint = "send the ETag that a GET of the resource answered"
        raise Usage(f"{tag[:60]!r} is no ETag of one resource", rule="if-match", hint=hint)
    return int(found[1])


def _type(request: Request) -> ResourceType:
    return operations.type_of(*(path_part(request, each) for each in ("context", "version", "type")))


async def _texts(request: Request) -> tuple[wire.ManifestText, ...]:
    """Returns the manifests in a body, by its media type. Raises Invalid, Usage."""
    said = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    data = await whole_body(request)
    if said == YAML:
        try:
            return (wire.ManifestText(source=operations.SOURCE, text=data.decode("utf-8")),)
        except UnicodeDecodeError as error:
            raise Invalid("the text is not UTF-8", rule="request") from error
    if said == MANIFESTS:
        texts: tuple[wire.ManifestText, ...] = decode(data, tuple[wire.ManifestText, ...])
        return texts
    if said != JSON:
        raise Usage(f"manifests are {JSON} or {YAML}, not {said[:80]!r}", rule="media-type", hint="name the type")
    try:
        found = msgspec.json.decode(data)
    # msgspec raises RecursionError for deeply nested arrays, and UnicodeDecodeError for bad UTF-8.
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Invalid(str(error), rule="request") from error
    return operations.texts_of(found if isinstance(found, list) else [found])


async def _text(request: Request) -> wire.ManifestText:
    texts = await _texts(request)
    if len(texts) != 1:
        raise Invalid("one manifest goes here", rule="request", hint=f"POST several to {APPLY}")
    return texts[0]


async def _carried_out(
    calls: Dispatcher, request: Request, texts: tuple[wire.ManifestText, ...], generation: int | None = None
) -> Response:
    """Applies manifests; a failure is a problem with the fault of the first failed item, and with all items."""
    on_error = request.query_params.get(ON_ERROR.name, "atomic")
    if on_error not in ("atomic", "skip"):
        raise Usage(f"onError is atomic or skip, not {on_error[:40]!r}", rule="query")
    asked = wire.ApplyRequest(
        manifests=texts, dry_run=flag(request, "dryRun"), prune=request.query_params.get("prune"),
        generation=generation, manager=request.query_params.get("manager"), force=flag(request, "force"),
        on_error=cast("Any", on_error),
    )  # fmt: skip
    if flag(request, TASK.name):
        return _answer_task(await calls.do(ApplyOperation.apply, asked))
    result = await operations.apply(calls, asked)
    fault = operations.failure_of(result)
    if isinstance(result, wire.TaskRef):
        return _answer_task(result)
    if fault is None or asked.on_error == "skip":
        return answer(result)
    # A missing thing that a manifest names is a mistake in the body, not in the path.
    status = 422 if http_status(fault) in (400, 404) else None
    return problem(fault, status, {"items": msgspec.to_builtins(result.items)})


def _answer_task(task: wire.TaskRef) -> Response:
    response = answer(task, 202)
    response.headers["location"] = f"/node/{VERSION}/tasks/{task.id}"
    return response


async def _apply_one(
    calls: Dispatcher, request: Request, text: wire.ManifestText, generation: int | None = None
) -> Response:
    """Applies one manifest and returns the item of its resource."""
    response = await _carried_out(calls, request, (text,), generation)
    if response.status_code != 200:
        return response
    (item,) = msgspec.json.decode(bytes(response.body), type=wire.ApplyResult).items
    made = item.action == "created" and not flag(request, "dryRun")
    return answer(item, 201 if made else 200)


async def _list(calls: Dispatcher, kind: ResourceType, request: Request) -> wire.ResourceList:
    """Returns a page of resources; a watch from its version reports what changed since the list began."""
    asked, limit = request.query_params, LIMIT.number(request) or PAGE
    page = await calls.do(DeclarationService.page, kind.name, _selector(request), limit, asked.get("continue"))
    views, account = page.views, asked.get(ACCOUNT.name)
    if account is not None:
        owner = await operations.account_id(calls, account)
        views = tuple(view for view in views if view.headers.get("account", {}).get("id") == owner)
    items = await operations.shown_of(calls, views)
    deleting = await operations.shown_of(calls, page.deleting)
    return wire.ResourceList(resource_version=page.version, items=items, rest=page.rest, deleting=deleting)


def _selector(request: Request) -> str | None:
    """Returns what a list is of, by labels and names. Raises Invalid."""
    return selecting(request.query_params.get(LABELS.name), request.query_params.get(NAME.name))


async def _watch_type(calls: Dispatcher, kind: ResourceType | None, request: Request) -> Response:
    news = calls.follow(DeclarationService.news, since_of(request), None if kind is None else kind.name)
    return await lines(news, stream_of(request), _manifest_news)


def _manifest_news(news: wire.ResourceNews) -> SharedValue[wire.ResourceManifestNews]:
    told = None if news.resource is None else manifest_of(news.resource)
    return SharedValue(wire.ResourceManifestNews(version=news.version, op=news.op, object=told))
