"""Streams GraphQL subscriptions as server-sent events: graphql-sse, the mode with a connection for each operation.

A subscription is a watch of resources: each change is a ``next`` event with the selected part of it. Subscriptions with
the same selection share the encoded event. Imported with the first request, as graphql-core is.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from graphql import DocumentNode, FieldNode, GraphQLSchema, OperationDefinitionNode, OperationType, execute_sync
from graphql import get_operation_ast as operation_of
from graphql.execution.values import get_argument_values, get_variable_values

from chain.errors import Fault, Invalid
from odfd.api.access.requests import Dispatcher
from odfd.api.graphql_schema import GraphqlContext
from odfd.control import wire
from odfd.control.responses import EVENT_STREAM, LineStream
from odfd.errors import to_problem
from odfd.services.resources.declarations import DeclarationService
from odfd.services.resources.views import manifest_of

COMPLETE: Final = b"event: complete\ndata:\n\n"


class GraphqlStream(LineStream):
    """A response that streams events which are encoded already."""

    media_type = EVENT_STREAM

    @staticmethod
    def _encode(value: Any) -> bytes:
        return bytes(value)


@dataclass(frozen=True)
class _Selection:
    """Selects and encodes the part of a change that an operation asks for. Equal selections give the same event."""

    source: str
    name: str | None
    variables: bytes
    schema: GraphQLSchema = field(compare=False, repr=False)
    document: DocumentNode = field(compare=False, repr=False)

    def __call__(self, news: wire.ResourceNews) -> bytes:
        told = None if news.resource is None else msgspec.to_builtins(manifest_of(news.resource))
        done = execute_sync(
            self.schema, self.document, {"version": news.version, "op": news.op, "resource": told},
            GraphqlContext(None), msgspec.json.decode(self.variables), self.name,
        )  # fmt: skip
        errors = tuple(dict(error.formatted) for error in done.errors or ())
        return next_event(wire.GraphqlAnswer(data=done.data, errors=errors), news.version)


@dataclass(frozen=True, slots=True)
class Subscription:
    """A valid subscription to the changes of resources."""

    selection: _Selection
    type: str | None
    since: str | None

    async def events(self, calls: Dispatcher) -> AsyncGenerator[bytes, None]:
        """Yields the encoded events until the reader leaves; after a fault one with the fault, and the end."""
        try:
            async with aclosing(calls.follow(DeclarationService.news, self.since, self.type)) as news:
                async for each in news:
                    yield each.once(self.selection)
        except Fault as fault:
            error = {"message": fault.message, "extensions": to_problem(fault)}
            yield next_event(wire.GraphqlAnswer(errors=(error,)))
            yield COMPLETE


def next_event(answer: wire.GraphqlAnswer, version: str = "") -> bytes:
    """Encodes an answer as an event. ``version``: its id, from which a reader can go on."""
    return (
        (f"id: {version}\n" if version else "").encode()
        + b"event: next\ndata: "
        + msgspec.json.encode(answer)
        + b"\n\n"
    )


async def sole_event(answer: wire.GraphqlAnswer) -> AsyncGenerator[bytes, None]:
    """Yields the answer to a query or a mutation."""
    yield next_event(answer)
    yield COMPLETE


def subscription_of(
    schema: GraphQLSchema, document: DocumentNode, asked: wire.GraphqlRequest, since: str | None
) -> Subscription | None:
    """Returns the subscription in a valid document, or ``None``. Raises GraphQLError for bad variables.

    ``since``: the last version that a returning reader has seen.
    """
    operation = operation_of(document, asked.operation_name)
    if operation is None or operation.operation is not OperationType.SUBSCRIPTION:
        return None
    arguments = _arguments(schema, operation, asked.variables or {})
    variables = msgspec.json.encode(asked.variables or {}, order="deterministic")
    selection = _Selection(asked.query, asked.operation_name, variables, schema, document)
    return Subscription(selection, arguments.get("type"), since or arguments.get("since"))


def not_streamed() -> Invalid:
    """Returns the fault for a subscription whose client accepts no stream."""
    return Invalid(
        "a subscription is a stream", rule="graphql-subscription", hint=f"ask with the header accept: {EVENT_STREAM}"
    )


def _arguments(schema: GraphQLSchema, operation: OperationDefinitionNode, variables: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of the one field of a subscription. Raises GraphQLError, Invalid."""
    values = get_variable_values(schema, operation.variable_definitions or (), variables)
    if isinstance(values, list):
        raise values[0]
    selected = operation.selection_set.selections[0]
    known = schema.subscription_type.fields if schema.subscription_type is not None else {}
    if len(operation.selection_set.selections) > 1 or not isinstance(selected, FieldNode):
        raise Invalid(
            "a subscription is one field, without fragments", rule="graphql-subscription", hint="write it once"
        )
    return get_argument_values(known[selected.name.value], selected, values)
