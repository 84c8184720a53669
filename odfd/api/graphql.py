"""Answers GraphQL at ``POST /graphql`` on the control socket: the values of RFC-018's paths, chosen field by field.

The library takes 17 MiB and a third of a second, so it is loaded at the first request, in a worker thread.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import trio
from starlette.requests import Request

from chain.errors import Fault, Invalid
from odfd.api.access.requests import Dispatcher
from odfd.api.endpoints import Endpoint, asks
from odfd.control import wire
from odfd.control.responses import EventStream, answer, body, stream_of
from odfd.errors import Usage, to_problem
from odfd.store.idempotency import HEADER

if TYPE_CHECKING:
    # Imported at the first subscription: graphql-core is large.
    from odfd.api.graphql_subscriptions import Subscription

SECONDS: Final = 60.0
"""Most seconds that one request may take. An apply within it goes on as a task."""
THREADS: Final = trio.CapacityLimiter(4)
"""Threads of GraphQL alone, since its resolvers wait for operations, which need threads too."""
MAX_ERRORS: Final = 20


@asks(takes=wire.GraphqlRequest, answers=wire.GraphqlAnswer, events=wire.GraphqlAnswer, statuses=(200, 400))
async def graphql(calls: Dispatcher, request: Request) -> object:
    """Executes a GraphQL request: a query or a mutation; as server-sent events also a subscription."""
    asked, streams = await body(request, wire.GraphqlRequest), stream_of(request) is EventStream
    if streams and HEADER in request.headers:
        raise Usage(f"a stream takes no {HEADER}", rule="idempotency-key", hint="send it without the header")
    since = request.headers.get("last-event-id") if streams else None
    answered: wire.GraphqlAnswer | Subscription | None = None
    with trio.move_on_after(SECONDS):
        answered = await trio.to_thread.run_sync(_execute, calls, asked, since, limiter=THREADS)
    if answered is None:
        late = Invalid(f"the query took longer than {SECONDS:g} s", rule="graphql-limit", hint="ask for less")
        answered = wire.GraphqlAnswer(errors=(_error(late),))
    if streams:
        from odfd.api.graphql_subscriptions import GraphqlStream, sole_event

        if isinstance(answered, wire.GraphqlAnswer):
            return GraphqlStream(sole_event(answered))
        return GraphqlStream(answered.events(calls))
    if not isinstance(answered, wire.GraphqlAnswer):
        from odfd.api.graphql_subscriptions import not_streamed

        answered = wire.GraphqlAnswer(errors=(_error(not_streamed()),))
    return answer(answered, 200 if answered.data is not None else 400)


TABLE: Final[tuple[tuple[str, str, Endpoint], ...]] = (("POST", "/graphql", graphql),)


@functools.cache
def _schema() -> Any:
    from odfd.api.graphql_schema import schema

    return schema()


def _execute(calls: Dispatcher, asked: wire.GraphqlRequest, since: str | None) -> wire.GraphqlAnswer | Subscription:
    """Parses, bounds, validates and executes a request; returns a subscription unexecuted.

    Call from a worker thread.
    """
    from graphql import GraphQLError, execute_sync, parse, validate

    from odfd.api import graphql_limits as limits
    from odfd.api.graphql_schema import GraphqlContext
    from odfd.api.graphql_subscriptions import subscription_of

    variables = asked.variables or {}
    try:
        if len(asked.query) > limits.MAX_SOURCE:
            raise Invalid(f"the query is longer than {limits.MAX_SOURCE} characters", rule="graphql-limit",
                          hint="send manifests as variables")  # fmt: skip
        document = parse(asked.query, max_tokens=limits.MAX_TOKENS)
        limits.check_size(document, variables)
        schema = _schema()
        if wrong := validate(schema, document, max_errors=MAX_ERRORS):
            return wire.GraphqlAnswer(errors=tuple(dict(each.formatted) for each in wrong))
        if (subscription := subscription_of(schema, document, asked, since)) is not None:
            return subscription
        done = execute_sync(
            schema, document, variable_values=variables, operation_name=asked.operation_name,
            context_value=GraphqlContext(calls),
        )  # fmt: skip
    except Fault as fault:
        return wire.GraphqlAnswer(errors=(_error(fault),))
    except GraphQLError as error:
        return wire.GraphqlAnswer(errors=(dict(error.formatted),))
    # The parser recurses at each level, and 4,000 tokens may be nearly as many.
    except RecursionError:
        deep = Invalid(f"the query has more than {limits.MAX_DEPTH} levels", rule="graphql-limit")
        return wire.GraphqlAnswer(errors=(_error(deep),))
    for each in done.errors or ():
        if each.original_error is not None and not isinstance(each.original_error, GraphQLError):
            raise each.original_error  # a bug of ours: reported and logged as at every endpoint
    return wire.GraphqlAnswer(data=done.data, errors=tuple(dict(error.formatted) for error in done.errors or ()))


def _error(fault: Fault) -> dict[str, Any]:
    return {"message": fault.message, "extensions": to_problem(fault)}
