"""Reads, applies, changes and deletes resources of any type, for RFC-018's paths and for GraphQL."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, Final, NamedTuple, TypeAlias, cast

import msgspec
import trio

from chain.errors import Conflict, Fault, Invalid, NotFound, Refused
from chain.ids import DID_ODF
from odfd.api.access.requests import Dispatcher
from odfd.control import wire
from odfd.control.board import BoardTasks
from odfd.resources import plan
from odfd.resources.manifest import Draft
from odfd.resources.registry import VERSION
from odfd.resources.types import Deletion, ResourceType
from odfd.services.access.accounts import AccountService
from odfd.services.datasets.service import DatasetService
from odfd.services.resources.apply import ApplyOperation
from odfd.services.resources.declarations import DeclarationService
from odfd.services.resources.reading import read_drafts
from odfd.services.resources.types import TYPES
from odfd.services.resources.views import manifest_of

Json: TypeAlias = dict[str, Any]
SOURCE: Final = "the request"
"""The name of a request's text in messages."""
# Less than clients wait for the beginning of an answer (odfd.control.client.ANSWER_SECONDS).
WAIT_SECONDS: Final = 45.0
"""Seconds to wait for the end of an apply; one that takes longer is answered with its task, and goes on."""
MAX_MANIFESTS: Final = 10_000
_UNPRINTED: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Characters that JSON may contain unescaped, and YAML may not."""


def type_of(context: str, version: str, word: str) -> ResourceType:
    """Returns the type at a path; its word is singular, plural or alias, in any case. Raises NotFound."""
    served = {each.context for each in TYPES}
    if context.lower() not in served:
        known = ", ".join(sorted(served))
        raise NotFound(f"the API has no context {context[:80]!r}", rule="route", hint=f"one of {known}")
    if version != VERSION:
        raise NotFound(
            f"{context} has no version {version[:80]!r}", rule="unknown-version",
            hint=f"it is served as {VERSION}: /{context.lower()}/{VERSION}",
        )  # fmt: skip
    kind = TYPES.find_served(word)
    if context.lower() != kind.context:
        raise NotFound(
            f"{kind.name} is no type of {context[:80]!r}", rule="unknown-type",
            hint=f"it is at /{kind.context}/{VERSION}/{kind.plural}",
        )  # fmt: skip
    return kind


def canonical(path: str) -> str:
    """Returns a path with its type in the canonical form, the plural in lower case; other paths unchanged."""
    parts = path.split("/", 4)
    if len(parts) < 4 or parts[2] != VERSION:
        return path
    kind = TYPES.word(parts[3])
    if kind is None or kind.context != parts[1].lower():
        return path
    return "/".join(["", kind.context, VERSION, kind.plural, *parts[4:]])


class _Operations(NamedTuple):
    """Implements ``TypeOperations`` for a caller."""

    calls: Dispatcher

    async def declared(self, dataset: str) -> Json:
        return await self.calls.do(DatasetService.declared, dataset)

    async def cancel(self, task: str) -> wire.TaskState:
        return await self.calls.do(BoardTasks.cancel, task)

    async def delete(self, word: str, name: str, generation: int | None, *, force: bool) -> wire.ResourceView | None:
        return await self.calls.do(DeclarationService.delete, word, name, generation, force=force)


async def account_id(calls: Dispatcher, account: str) -> str | None:
    """Returns the id of an account by name or id; for an empty text, that of the caller. Raises NotFound."""
    if not account:
        return (await calls.do(AccountService.me)).id
    return (await calls.do(DeclarationService.get, "Account", account)).id


async def read(calls: Dispatcher, kind: ResourceType, ref: str) -> wire.ResourceManifest:
    """Returns a resource by name, id or did. Raises NotFound."""
    (shown,) = await shown_of(calls, [await calls.do(DeclarationService.get, kind.name, ref)])
    return shown


async def shown_of(calls: Dispatcher, views: Sequence[wire.ResourceView]) -> tuple[wire.ResourceManifest, ...]:
    """Returns resources as they are printed, with what the running node knows of them."""
    return tuple(map(manifest_of, await calls.do(DeclarationService.stated, views)))


async def portable(calls: Dispatcher, kind: ResourceType, ref: str, *, force: bool = False) -> wire.ResourceManifest:
    """Returns a resource in the form in which it can be applied, here or elsewhere. Raises NotFound, Refused.

    ``force`` permits one that another resource made.
    """
    view = await calls.do(DeclarationService.get, kind.name, ref)
    if "ownerReferences" in view.headers and not force:
        raise Refused(f"{kind.name} {view.name} is made by another resource", rule="owned", hint="change its owner")
    spec = view.spec if kind.declared is None else await kind.declared(_Operations(calls), view)
    if spec is None:
        hint = f"apply one: odfctl explain {kind.name}"
        raise Refused(f"{kind.name} {view.name} was not declared by a manifest", rule="no-manifest", hint=hint)
    headers: Json = {key: view.headers[key] for key in ("name", "labels", "annotations") if key in view.headers}
    schema = view.schema if kind.declared is None else kind.schema_of(spec)
    return wire.ResourceManifest(schema=schema, headers=headers, spec=spec)


def texts_of(values: Sequence[Any]) -> tuple[wire.ManifestText, ...]:
    """Converts manifests that are JSON to texts. Raises Invalid."""
    if not values or len(values) > MAX_MANIFESTS:
        raise Invalid(f"an apply takes 1 to {MAX_MANIFESTS} manifests, not {len(values)}", rule="request")
    texts = []
    for number, value in enumerate(values):
        if not isinstance(value, dict):
            raise Invalid("a manifest is an object", rule="request", place=f"$[{number}]")
        source = SOURCE if len(values) == 1 else f"{SOURCE}, item {number}"
        texts.append(wire.ManifestText(source=source, text=_yaml_of(value)))
    return tuple(texts)


def _yaml_of(value: Json) -> str:
    """Returns the JSON of a value in a form that is YAML too."""
    return _UNPRINTED.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False))


async def apply(calls: Dispatcher, request: wire.ApplyRequest) -> wire.ApplyResult | wire.TaskRef:
    """Applies manifests and waits for the end; returns the task if that takes too long. Raises the task's fault."""
    task = await calls.do(ApplyOperation.apply, request)
    view: wire.TaskState | None = None
    with trio.move_on_after(WAIT_SECONDS):
        async with aclosing(cast("Any", calls.follow(BoardTasks.follow, task.id))) as views:
            async for each in views:
                view = each
    if view is not None and view.fault is not None:
        raise view.fault.fault()
    if view is not None and isinstance(view.result, wire.ApplyResult):
        return view.result
    if view is not None and view.state == "cancelled":
        raise Conflict(f"the apply was cancelled: task {task.id}", rule="cancelled", hint="apply it again")
    return task


def failure_of(result: wire.ApplyResult | wire.TaskRef) -> Fault | None:
    """Returns the fault of the first item that failed, or ``None``."""
    if isinstance(result, wire.TaskRef):
        return None
    failed = [item.fault for item in result.items if item.fault is not None]
    return failed[0].fault() if failed else None


def sole_draft(text: wire.ManifestText, kind: ResourceType) -> Draft:
    """Returns the only resource in a text. Raises Invalid if there are others, or it is of another type."""
    drafts = read_drafts([text])
    if len(drafts) != 1:
        raise Invalid(f"one manifest of a {kind.name} goes here", rule="request", hint="POST several to the apply")
    if drafts[0].type.name != kind.name:
        place = drafts[0].place("$schema")
        raise Invalid(f"it is a {drafts[0].type.name}, and this is the path of a {kind.name}", rule="type", place=place)
    return drafts[0]


async def existing(calls: Dispatcher, kind: ResourceType, ref: str) -> wire.ResourceView | None:
    try:
        return await calls.do(DeclarationService.get, kind.name, ref)
    except NotFound:
        return None


async def check_new(calls: Dispatcher, kind: ResourceType, draft: Draft) -> None:
    """Raises Conflict if the account has the name already, Invalid if the draft states an id."""
    if draft.headers.id is not None:
        raise Invalid("the node gives ids", rule="no-such-id", place=draft.place("headers.id"), hint="leave it out")
    try:
        found = await existing(calls, kind, draft.headers.name)
    except Invalid as fault:
        if fault.rule != "ambiguous-name":
            raise
        return  # several others have it, and none of them is the node's owner, who asks
    if found is None:
        return
    said, has = draft.headers.account or "", found.account
    is_its = said and said in (has.get("id"), has.get("did"))
    if is_its or found.headers.get("account", {}).get("id") == await account_id(calls, said):
        raise Conflict(f"there is a {kind.name} {draft.headers.name} already", rule="exists", hint="PUT changes it")


async def check_meant(calls: Dispatcher, kind: ResourceType, ref: str, draft: Draft) -> None:
    """Raises Invalid or NotFound if a manifest is not that of the resource at the path."""
    found = await existing(calls, kind, ref)
    name, place = draft.headers.name.casefold(), draft.place("headers")
    if found is None:
        if draft.headers.id is None and name == ref.casefold():
            return
        raise NotFound(f"there is no {kind.name} {ref[:120]!r}", rule="resource", hint="its name is made at its path")
    if draft.headers.id not in (None, found.id):
        raise Invalid(f"the id is not that of {found.name}", rule="no-such-id", place=place)
    if draft.headers.id is None and name != found.name.casefold():
        hint = f"rename it with its id in headers: {found.id}"
        text = f"the manifest is of {draft.headers.name}, and the path of {found.name}"
        raise Invalid(text, rule="name", place=place, hint=hint)


async def patched(
    calls: Dispatcher, kind: ResourceType, ref: str, patch: Json, *, force: bool = False
) -> tuple[Json, int]:
    """Returns the manifest of a resource after a merge-patch (RFC 7396), and the generation that was patched.

    Raises NotFound, Refused, Invalid.
    """
    view = await calls.do(DeclarationService.get, kind.name, ref)
    held = await portable(calls, kind, view.id, force=force)
    before = {"$schema": held.schema, "headers": held.headers | {"id": view.id}, "spec": held.spec}
    after = merged(msgspec.to_builtins(before), patch)
    if not isinstance(after, dict) or (after.get("headers") or {}).get("id") != view.id:
        raise Invalid("a patch leaves the id as it is", rule="no-such-id", place="headers.id")
    return after, view.generation


def merged(before: Any, patch: Any) -> Any:
    """Returns a value after a merge-patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    after = dict(before) if isinstance(before, dict) else {}
    for key, value in patch.items():
        if value is None:
            after.pop(key, None)
        else:
            after[key] = merged(after.get(key), value)
    return after


async def rename(calls: Dispatcher, kind: ResourceType, ref: str, name: str) -> wire.ResourceManifest:
    """Gives a resource another name, and returns it. Raises NotFound, Refused, Invalid, Conflict."""
    (shown,) = await shown_of(calls, [await calls.do(ApplyOperation.rename, kind.name, ref, name)])
    return shown


async def check_generation(calls: Dispatcher, kind: ResourceType, ref: str, generation: int | None) -> None:
    """Raises Conflict if a resource has another generation than the one that the caller saw."""
    if generation is not None:
        view = await calls.do(DeclarationService.get, kind.name, ref)
        plan.check_generation(view, generation, view.name)


async def delete(calls: Dispatcher, kind: ResourceType, ref: str, how: Deletion) -> wire.ResourceManifest:
    """Deletes a resource with what it stands for; returns it as it was. Raises NotFound, Refused, Conflict."""
    view = await calls.do(DeclarationService.get, kind.name, ref)
    if how.generation is not None:
        plan.check_generation(view, how.generation, view.name)
    if ref.startswith(DID_ODF) and view.headers.get("did", ref) != ref:
        text = f"{ref} is inside the {kind.name} {view.name}, and goes with it"
        raise Refused(text, rule="rendition-member", hint=f"odfctl delete {kind.name.lower()} {view.name}")
    if kind.delete is None:
        await calls.do(DeclarationService.delete, kind.name, view.id, how.generation, force=how.force, purge=how.purge)
        return manifest_of(view)
    gone = await kind.delete(_Operations(calls), view, how)
    return manifest_of(gone if isinstance(gone, wire.ResourceView) else view)
