"""Declares the GraphQL schema, and resolves its fields with the operations that RFC-018's paths use.

Resolvers run in a worker thread, since graphql-core knows asyncio alone; each calls operations in the event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar, cast

import msgspec
import trio
from graphql import GraphQLError, GraphQLResolveInfo, GraphQLSchema, build_schema

from chain.errors import Fault, Invalid
from odfd.api import resource_operations as operations
from odfd.api.access.requests import Dispatcher
from odfd.api.graphql_limits import DEFAULT_PAGE, MAX_PAGE
from odfd.control import wire
from odfd.errors import to_problem
from odfd.resources.registry import STATE
from odfd.resources.selectors import selecting
from odfd.resources.types import Deletion, ResourceType
from odfd.services.datasets.service import DatasetService
from odfd.services.resources.declarations import DeclarationService
from odfd.services.resources.types import TYPES
from odfd.store.catalog import NamedId

T = TypeVar("T")
Info: TypeAlias = "GraphQLResolveInfo[Any]"
DEFINITION: Final = '''
"""A value of JSON: a resource is one in the shape of its manifest."""
scalar JSON

type Query {
  """A resource by reference: Type:name, Type:id, or a did."""
  resource(ref: String!): JSON
  """
  Resources of a type, or of all, with labels as the selector says (env=prod) and names as the pattern does (nyc.%), by
  type and name.
  """
  resources(type: String, labels: String, name: String, first: Int = 50, after: String): ResourcePage!
  dataset(ref: String!): Dataset
  datasets(first: Int = 50, after: String): DatasetPage!
}

type Mutation {
  """Applies manifests of any types: all of them, or none. If a task is returned, see /node/v1alpha1/tasks/ID."""
  apply(manifests: [JSON!]!, dryRun: Boolean = false, prune: String): [JSON!]!
  rename(ref: String!, name: String!): JSON
  """Deletes a resource with what it declares; answers with its last state."""
  delete(ref: String!, purge: Boolean): JSON
}

type Subscription {
  """The existing resources of a type, or of all, and a bookmark, then each change; or the changes after a version."""
  resources(type: String, since: String): ResourceNews!
}

type ResourceNews {
  """The version to continue from."""
  version: String!
  """Added, Modified, Deleted or Bookmark."""
  op: String!
  resource: JSON
}

type ResourcePage { items: [JSON!]!  endCursor: String  hasNextPage: Boolean! }
type DatasetPage { items: [Dataset!]!  endCursor: String  hasNextPage: Boolean! }
type BlockPage { items: [JSON!]!  endCursor: String  hasNextPage: Boolean! }

type Dataset {
  name: String!
  id: String!
  kind: String!
  state: String!
  """Numbers beyond 32 bits are numbers here too."""
  blockCount: JSON!
  records: JSON
  watermark: String
  head: String
  published: Boolean!
  labels: JSON!
  """All that is known of it."""
  detail: JSON!
  schema: JSON!
  """Blocks, the newest first."""
  blocks(first: Int = 50, after: String, kinds: [String!]): BlockPage!
  """The last rows: columns and rows."""
  rows(last: Int = 50): JSON!
}
'''


@dataclass(frozen=True, slots=True)
class GraphqlContext:
    """The context of the resolvers of one request: the calls that their caller may make."""

    calls: Dispatcher | None
    """``None`` for a subscription, whose resolvers call nothing."""


Page = dict[str, Any]
_Fields: TypeAlias = dict[str, Any]


def _perform(info: Info, operation: Callable[[Dispatcher], Awaitable[T]]) -> T:
    """Performs an operation in the event loop. Raises GraphQLError with the problem of its fault."""
    context: GraphqlContext = info.context
    try:
        assert context.calls is not None
        return trio.from_thread.run(operation, context.calls)
    except Fault as fault:
        raise _error(fault) from fault


def _error(fault: Fault, **more: object) -> GraphQLError:
    return GraphQLError(fault.message, extensions=to_problem(fault) | more)


def _json(value: object) -> Any:
    return msgspec.to_builtins(value)


def _reference(ref: str) -> tuple[ResourceType, str]:
    """Returns the type, and the name, id or did, that a reference names. Raises Invalid, NotFound."""
    if ref.startswith("did:"):
        return TYPES.find_schema("Dataset"), ref
    word, colon, name = ref.partition(":")
    kind = TYPES.word(word)
    if not colon or not name or kind is None or kind.spec is None:
        raise Invalid(f"{ref[:120]!r} is no reference", rule="reference", hint="Type:name, Type:id, or a did")
    return kind, name


def _page_of(items: Sequence[T], key: Callable[[T], str], first: int | None, after: str | None) -> Page:
    """Returns a page of items in the order of their keys."""
    most = _bound(first, "first")
    left = sorted((item for item in items if after is None or key(item) > after), key=key)
    shown = left[:most]
    return {"items": shown, "endCursor": key(shown[-1]) if shown else None, "hasNextPage": len(left) > most}


def _bound(number: int | None, name: str) -> int:
    """Returns the length of a page, by default ``DEFAULT_PAGE``. Raises GraphQLError for one out of bounds."""
    number = DEFAULT_PAGE if number is None else number
    if not 1 <= number <= MAX_PAGE:
        raise _error(Invalid(f"{name} is from 1 to {MAX_PAGE}, not {number}", rule="query", hint="ask by pages"))
    return number


def _resource(_: object, info: Info, ref: str) -> Any:
    async def read(calls: Dispatcher) -> wire.ResourceManifest:
        return await operations.read(calls, *_reference(ref))

    return _json(_perform(info, read))


def _resources(_: object, info: Info, first: int | None = None, after: str | None = None, **asked: str | None) -> Page:
    def listed(calls: Dispatcher) -> Awaitable[Sequence[wire.ResourceView]]:
        return calls.do(DeclarationService.list, asked.get("type"), selecting(asked.get("labels"), asked.get("name")))

    found = _perform(info, listed)
    page = _page_of(found, lambda each: f"{each.type}:{each.name.casefold()}", first, after)
    shown = _perform(info, lambda calls: operations.shown_of(calls, page["items"]))
    return page | {"items": _json(shown)}


def _dataset(_: object, info: Info, ref: str) -> _Fields:
    return _fields(_perform(info, lambda calls: operations.read(calls, TYPES.find_schema("Dataset"), ref)))


def _datasets(_: object, info: Info, first: int | None = None, after: str | None = None) -> Page:
    found = _perform(info, lambda calls: calls.do(DeclarationService.list, "Dataset", None))
    page = _page_of(found, lambda each: each.name.casefold(), first, after)
    shown = _perform(info, lambda calls: operations.shown_of(calls, page["items"]))
    return page | {"items": list(map(_fields, shown))}


def _fields(dataset: wire.ResourceManifest) -> _Fields:
    """Returns the fields of a dataset: those of its state, and some of its headers."""
    own = {"name": dataset.name, "id": dataset.spec["did"], "labels": dataset.labels}
    return {**dataset.condition(STATE).get("value", {}), **own}


def _blocks(
    view: _Fields, info: Info, first: int | None = None, after: str | None = None,
    kinds: Sequence[str] = (),
) -> Page:  # fmt: skip
    most = _bound(first, "first")
    found = _perform(
        info, lambda calls: calls.do(DatasetService.log, _whole(view), tuple(kinds or ()), most + 1, after)
    )
    shown = found[:most]
    cursor = shown[-1].hash if shown else None
    return {"items": [_json(each) for each in shown], "endCursor": cursor, "hasNextPage": len(found) > most}


def _whole(view: _Fields) -> str:
    """Returns what is meant: all shards, or the chain with its id."""
    return NamedId(view["id"]) if view.get("shards") else str(view["id"])


def _rows(view: _Fields, info: Info, last: int | None = None) -> Any:
    most = _bound(last, "last")
    return _json(_perform(info, lambda calls: calls.do(DatasetService.tail, _whole(view), most)))


def _apply(_: object, info: Info, manifests: Sequence[Any], **asked: Any) -> Any:
    async def apply(calls: Dispatcher) -> wire.ApplyResult | wire.TaskRef:
        texts = operations.texts_of(manifests)
        request = wire.ApplyRequest(manifests=texts, dry_run=bool(asked.get("dryRun")), prune=asked.get("prune"))
        return await operations.apply(calls, request)

    return _to_items(_perform(info, apply))


def _to_items(result: wire.ApplyResult | wire.TaskRef) -> Any:
    """Returns the items of an apply, or its task. Raises GraphQLError with all items if one failed."""
    if isinstance(result, wire.TaskRef):
        return [_json(result)]
    fault, items = operations.failure_of(result), _json(result.items)
    if fault is not None:
        raise _error(fault, items=items) from fault
    return items


def _rename(_: object, info: Info, ref: str, name: str) -> Any:
    async def rename(calls: Dispatcher) -> wire.ResourceManifest:
        return await operations.rename(calls, *_reference(ref), name)

    return _json(_perform(info, rename))


def _delete(_: object, info: Info, ref: str, purge: bool | None = None) -> Any:
    async def delete(calls: Dispatcher) -> wire.ResourceManifest:
        return await operations.delete(calls, *_reference(ref), Deletion(purge=bool(purge)))

    return _json(_perform(info, delete))


_RESOLVERS: Final[dict[str, dict[str, Callable[..., Any]]]] = {
    "Query": {"resource": _resource, "resources": _resources, "dataset": _dataset, "datasets": _datasets},
    "Mutation": {"apply": _apply, "rename": _rename, "delete": _delete},
    "Subscription": {"resources": lambda news, _, **_arguments: news},
    "Dataset": {
        "blockCount": lambda view, _: view["blocks"],
        "detail": lambda view, info: _json(_perform(info, lambda calls: calls.do(DatasetService.describe, view["id"]))),
        "schema": lambda view, info: _json(_perform(info, lambda calls: calls.do(DatasetService.schema, view["id"]))),
        "blocks": _blocks,
        "rows": _rows,
    },
}


def schema() -> GraphQLSchema:
    """Makes the schema with its resolvers."""
    made = build_schema(DEFINITION)
    for name, fields in _RESOLVERS.items():
        for field, resolve in fields.items():
            cast("Any", made.type_map[name]).fields[field].resolve = resolve
    return made
