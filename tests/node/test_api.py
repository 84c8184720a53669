"""What a node says of its API and answers: the OpenAPI document, the routes of its paths, and GraphQL under limits."""

from __future__ import annotations

import inspect
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
import schemathesis
import structlog
import trio
from graphql import build_client_schema, get_introspection_query, parse
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi import checks
from starlette.routing import BaseRoute, Match

from chain.errors import Invalid
from chain.statements import proof
from odfd.api import actions, calls, graphql, openapi, resource_operations, resource_protocol, routes
from odfd.api.graphql_limits import MAX_ALIASES, MAX_COST, MAX_DEPTH, MAX_PAGE, check_size
from odfd.api.graphql_schema import DEFINITION
from odfd.api.resource_operations import canonical
from odfd.api.routes import METHODS, _key, _router, application
from odfd.api.services import operations
from odfd.control import wire
from odfd.runtime.http import Limits
from odfd.runtime.http_server import ConnectionHandler, HttpServer
from odfd.runtime.supervision import Life
from odfd.services.resources.types import TYPES
from odfd.services.trust.authority import signatures_of
from odfd.store.idempotency import AnswerStore
from worlds.eventually import PATIENCE
from worlds.node_world import START, Lines, World

# The OpenAPI document: it is current and valid, and a node answers random requests as it says.


EXAMPLES = int(os.environ.get("ODF_REQUESTS", "1"))
"""Random requests to each operation."""
STREAMS = ("watch", "follow", "deep")
"""Parameters whose answers do not end, or take long."""
CHECKS = (
    checks.status_code_conformance, checks.content_type_conformance, checks.response_headers_conformance,
    checks.response_schema_conformance,
)  # fmt: skip
KNOWN = {"ref": "raw", "name": "a", "type": "variableset", "context": "config", "word": "Source", "at": "0"}
"""Parts of paths that name what is here."""
SET = "$schema: VariableSet\nheaders: {name: a}\nspec: {variables: {x: '1'}}\n"
DATASET = "$schema: Dataset\nheaders: {name: raw}\nspec: {kind: Root, metadata: []}\n"


def test_the_document_is_current() -> None:
    assert routes.DOCUMENT.read_text() == openapi.text(), "write it anew: make api"


def test_the_calls_of_odfctl_are_those_that_the_methods_declare() -> None:
    assert calls.MODULE.read_text() == calls.text(), "write it anew: make api"


def test_the_document_is_openapi_3_1() -> None:
    OpenAPIV31SpecValidator(json.loads(routes.DOCUMENT.read_text())).validate()


def test_each_operation_says_what_it_does() -> None:
    """With a verb, not by the name of a function."""
    summaries = [each["summary"] for path in openapi.document()["paths"].values() for each in path.values()]
    assert not [text for text in summaries if " " not in text or not text.split()[0].endswith("s")]


def test_no_operation_is_reached_at_two_paths() -> None:
    """Endpoints that read more of a request call operations without a path of their own, each one of them."""
    assert len({each.path for each in routes.OPERATIONS}) > 100, "the test no longer finds what it is about"
    at_two = {each.name for each in operations().values() if each.operation.also}
    assert at_two == {"renditions.list"}, "of one dataset, and of all"
    with_path = {each.function.__qualname__ for each in operations().values() if each.operation.path}
    source = "".join(map(inspect.getsource, (actions, resource_protocol, resource_operations)))
    called = set(re.findall(r"calls\.(?:do|follow)[(, ]+(\w+\.\w+)", source))
    assert len(called) > 20, "the test no longer finds what it is about"
    assert called & with_path == {"AccountService.me"}, "which says whose an empty account is"


def test_what_has_a_version_has_a_context_that_is_served() -> None:
    """So a path of the API is CONTEXT/VERSION/…, or one of the few that programs look for at the root."""
    contexts = {each.context for each in TYPES} | {"resource"}
    versioned = re.compile(r"/(\w+|\{context\})/(v1alpha1|\{version\})/")
    others = {each.path for each in routes.OPERATIONS if not versioned.match(each.path)}
    assert others == {"/openapi.json", "/version", "/livez", "/readyz", "/schemas/{path:path}", "/graphql"}
    named = {each.path.split("/")[1] for each in routes.OPERATIONS} - {path.split("/")[1] for path in others}
    assert named - {"{context}"} <= contexts
    hidden = [each.path for each in routes.OPERATIONS if canonical(each.path) != each.path]
    assert not hidden, "a type's name hides what the path is for"


def test_what_clients_ask_is_in_the_table() -> None:
    """The page, the Python client, the demo and benchmarks write whole paths; the command line names operations."""
    table = {re.sub(r"\{\w+(:path)?\}", "x", each.path) for each in routes.OPERATIONS}
    types = {f"/{each.context}/v1alpha1/{each.plural}" for each in TYPES}
    known = table | {f"{each}{more}" for each in types for more in ("", "/x", "/x/labels", "/x/rename")}
    literal = re.compile(r"""["'`](/(?:\w+/v1alpha1|v1/|datasets/)[^\s`]*?)["`](?=[,)\s;+.]|$)""", re.MULTILINE)

    def written(*folders: str) -> dict[str, str]:
        files = (path for folder in folders for path in sorted((TREE / folder).rglob("*.*")))
        plain = (each for each in files if each.suffix in (".py", ".js") and "vendor" not in each.parts)
        return {path: file.name for file in plain for path in literal.findall(file.read_text())}

    asked = written("odfd/page/static", "client/odfd_client", "demo", "bench")
    assert len(asked) > 40, "the test no longer finds what it is about"
    plain = {each: re.sub(r"\$?\{[^{}]*\}", "x", each).partition("?")[0] for each in asked}
    assert not {each: asked[each] for each, path in plain.items() if path not in known}
    assert not written("odfd/cli"), "calls has a function for each operation"


TREE = Path(__file__).parents[2]


@pytest.mark.parametrize("decode", [
    lambda text: signatures_of([wire.SignatureText(key="did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp",
                                                   signature=text)]),
    proof._node,
])  # fmt: skip
def test_text_that_is_neither_base64_nor_ascii_is_refused(decode: Any) -> None:
    """Found by random requests: of such text the decoder says something else than of other text."""
    for text in ("é", "\udc80", "a b"):
        with pytest.raises(Invalid, match="not base64"):
            decode(text)


@contextmanager
def _responding(app: Any) -> Iterator[ConnectionHandler]:
    yield ConnectionHandler(app)


async def test_a_node_answers_random_requests_as_the_document_says(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack T-BYTES-01: a malformed or invented request to the control API.

    Defence: undeclared requests are refused; answers conform to the OpenAPI document.

    A fault of the daemon's own, an undeclared status, type or shape fails; what breaks rules may be refused.
    """
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")  # a relative path that is made up names nothing of the source tree
    async with world.running("alice") as alice:
        await alice.apply(SET, DATASET)
        answers = AnswerStore(alice.home.database, lambda: START)
        app = application(alice.services, Lines(), answers)
        with closing(socket.create_server(("127.0.0.1", 0))) as listener:
            server, life = HttpServer("api", [listener], lambda _: _responding(app), Lines(), Limits()), Life()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.run, life)
                await life.wait_ready()
                port = listener.getsockname()[1]
                await trio.to_thread.run_sync(_ask_all, f"http://127.0.0.1:{port}", abandon_on_cancel=True)
                life.stopping.set()


def _ask_all(url: str) -> None:
    wrong: dict[str, str] = {}
    document = requests.get(f"{url}/openapi.json", timeout=PATIENCE).json()
    schema = schemathesis.openapi.from_dict(document)
    asked = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        asked += 1
        try:
            _ask(operation, url)
        except (Exception, FailureGroup) as error:  # noqa: BLE001  each operation is asked, whatever failed before
            wrong[operation.label] = f"{type(error).__name__} {error}"[:1500]
    assert asked == len(routes.OPERATIONS)
    assert not wrong, "\n\n".join(f"{label}: {told}" for label, told in wrong.items())


def _ask(operation: Any, url: str) -> None:
    @given(case=operation.as_strategy(), known=st.booleans())
    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, database=None,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    def ask(case: Any, known: bool) -> None:
        if known and case.method != "DELETE":
            case.path_parameters.update({name: KNOWN[name] for name in case.path_parameters if name in KNOWN})
        for name in STREAMS:
            case.query.pop(name, None)
        if operation.path.endswith("/events"):
            case.query["kept"] = "true"
        if operation.path.endswith("/watch"):
            case.query["since"] = "f00-1"
        response = case.call(base_url=url, timeout=PATIENCE)
        assert response.status_code != 500, response.text
        case.validate_response(response, checks=CHECKS)

    ask()


# Routes that are found by the beginning of a path: each request gets the route that a search of all finds.


def answering(routes: Sequence[BaseRoute], path: str, method: str) -> BaseRoute | None:
    """As Starlette chooses: the first that matches, else the first of another method."""
    scope = {"type": "http", "path": path, "method": method, "headers": []}
    found = [(route.matches(scope)[0], route) for route in routes]
    full = (route for match, route in found if match is Match.FULL)
    return next(full, next((route for match, route in found if match is Match.PARTIAL), None))


def test_each_path_finds_the_route_that_a_search_of_all_finds() -> None:
    router = _router()
    paths = {re.sub(r"{[^}]*}", "x", route.path) for route in router.routes}  # type: ignore[attr-defined]
    changed = {path + more for path in paths for more in ("", "/", "/x")} | {path.rsplit("/", 1)[0] for path in paths}
    for path in changed:
        some = router._by.get(_key(path), router._any).routes
        for method in METHODS:
            assert answering(some, path, method) is answering(router.routes, path, method), (path, method)
    assert max(len(each.routes) for each in router._by.values()) < len(router.routes) / 2


# GraphQL over a node: the same answers and refusals as RFC-018's paths, under limits.


def a_set(name: str, **headers: Any) -> dict[str, Any]:
    return {"$schema": "VariableSet", "headers": {"name": name, **headers}, "spec": {"variables": {"x": "1"}}}


async def call(api: Any, method: str, path: str, body: object = None) -> tuple[int, Any]:
    """Returns the status and the JSON of an answer."""
    status, data = 0, bytearray()
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": [], "root_path": ""}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"" if body is None else json.dumps(body).encode(), "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)
        data.extend(message.get("body", b""))

    await application(getattr(api, "services", api), structlog.get_logger())(scope, receive, send)  # type: ignore[arg-type]
    return status, json.loads(bytes(data))


async def ask(api: Any, query: str, **variables: Any) -> Any:
    """Returns data and errors."""
    _, told = await call(api, "POST", "/graphql", {"query": query, "variables": variables})
    return told.get("data"), told.get("errors", [])


APPLY = "mutation ($m: [JSON!]!, $dry: Boolean) { apply(manifests: $m, dryRun: $dry) }"
PROBLEM = ("title", "status", "family", "rule", "hint", "place")


async def test_graphql_gives_the_answers_and_the_refusals_of_rest(world: World) -> None:
    """One list of requests, asked both ways, of nodes that are alike."""
    vs, long, part = "/config/v1alpha1/variablesets", "VariableSet", "/config/v1alpha1/variables/b.x"
    asked: list[tuple[tuple[str, str, object], tuple[str, str, dict[str, Any]]]] = [
        (("POST", "/resource/v1alpha1/apply", [a_set("a"), a_set("b", labels={"env": "x"})]),
         (APPLY, "apply", {"m": [a_set("a"), a_set("b", labels={"env": "x"})]})),
        (("POST", "/resource/v1alpha1/apply", [a_set("a")]), (APPLY, "apply", {"m": [a_set("a")]})),
        (("POST", "/resource/v1alpha1/apply", []), (APPLY, "apply", {"m": []})),
        (("POST", "/resource/v1alpha1/apply", [a_set("no spaces")]), (APPLY, "apply", {"m": [a_set("no spaces")]})),
        (("POST", "/resource/v1alpha1/apply", [{"$schema": "Zebra"}]), (APPLY, "apply", {"m": [{"$schema": "Zebra"}]})),
        (("GET", f"{vs}/a", None), (f'{{ resource(ref: "{long}:a") }}', "resource", {})),
        (("GET", f"{vs}/nobody", None), (f'{{ resource(ref: "{long}:nobody") }}', "resource", {})),
        (("PATCH", f"{vs}/a", {"headers": {"name": "c"}}),
         (f'mutation {{ rename(ref: "{long}:a", name: "c") }}', "rename", {})),
        (("DELETE", f"{vs}/c", None), (f'mutation {{ delete(ref: "{long}:c") }}', "delete", {})),
        (("DELETE", f"{vs}/c", None), (f'mutation {{ delete(ref: "{long}:c") }}', "delete", {})),
        (("DELETE", part, None), ('mutation { delete(ref: "Variable:b.x") }', "delete", {})),
        (("GET", vs, None), (f'{{ resources(type: "{long}") {{ items }} }}', "resources", {})),
    ]  # fmt: skip
    refused = 0
    async with world.running("rest") as rest, world.running("graph") as graph:
        for (method, path, body), (query, field, variables) in asked:
            status, told = await call(rest.api, method, path, body)
            data, errors = await ask(graph.api, query, **variables)
            if status >= 400:
                (error,), refused = errors, refused + 1
                same = {key: told[key] for key in PROBLEM if key in told}
                assert {key: error["extensions"][key] for key in PROBLEM if key in error["extensions"]} == same, path
                assert error["message"] == told["detail"]
                continue
            assert not errors, (path, errors)
            if field == "rename":
                assert bare(told)["name"] == data[field]["headers"]["name"] == "c"
            else:
                assert bare(data[field]) == bare(told["items"] if "items" in told and field == "apply" else told), path
    assert refused == 6


def bare(value: Any) -> Any:
    """Without what differs between two nodes, as ids and times, or between doors, which have pages of their own."""
    if isinstance(value, dict):
        own = (
            "id",
            "createdAt",
            "updatedAt",
            "status",
            "dataset",
            "resourceVersion",
            "endCursor",
            "hasNextPage",
            "continue",
            "deleting",
        )
        return {key: bare(each) for key, each in value.items() if key not in own}
    return [bare(each) for each in value] if isinstance(value, list) else value


async def test_resources_datasets_blocks_and_rows_are_asked_in_pages(world: World) -> None:
    async with world.running("alice") as alice:
        data, errors = await ask(alice.api, APPLY, m=[a_set(each) for each in "dbac"], dry=True)
        assert (errors, [each["action"] for each in data["apply"]]) == ([], ["created"] * 4)
        await ask(alice.api, APPLY, m=[a_set(each) for each in "dbac"])
        names, after = [], None
        while True:
            data, _ = await ask(alice.api, """query ($after: String) { resources(type: "vs", first: 3, after: $after) {
                items endCursor hasNextPage } }""", after=after)  # fmt: skip
            names.append([each["headers"]["name"] for each in data["resources"]["items"]])
            if not data["resources"]["hasNextPage"]:
                break
            after = data["resources"]["endCursor"]
        assert names == [["a", "b", "c"], ["d"]]
        data, _ = await ask(alice.api, 'query { resources(type: "vs", name: "B%") { items } }')
        assert [each["headers"]["name"] for each in data["resources"]["items"]] == ["b"]
        _, errors = await ask(alice.api, 'query { resources(name: "*") { items } }')
        assert [each["extensions"]["rule"] for each in errors] == ["name-pattern"]
        await alice.apply(DATASET)
        query = """query ($at: String) { dataset(ref: "raw") { rows(last: 2) schema detail name kind blockCount
            blocks(first: 1, after: $at) { items endCursor hasNextPage } } datasets { items { name } } }"""
        numbers, cursor, more = [], None, True
        while more:
            data, errors = await ask(alice.api, query, at=cursor)
            raw = data["dataset"]
            numbers += [each["sequenceNumber"] for each in raw["blocks"]["items"]]
            cursor, more = raw["blocks"]["endCursor"], raw["blocks"]["hasNextPage"]
            assert (errors, more) == ([], numbers[-1] != 0)
        assert numbers == list(reversed(range(raw["blockCount"])))
        assert (raw["name"], raw["kind"], raw["rows"]["rows"]) == ("raw", "root", [])
        assert (raw["detail"]["dataset"]["name"], data["datasets"]["items"]) == ("raw", [{"name": "raw"}])
        _, (error,) = await ask(alice.api, '{ dataset(ref: "raw") { blocks(after: "x") { items } } }')
        assert (error["extensions"]["rule"], error["path"]) == ("multibase", ["dataset", "blocks"])


async def test_the_schema_may_be_asked_for(world: World) -> None:
    async with world.running("alice") as alice:
        data, errors = await ask(alice.api, get_introspection_query())
        assert errors == []
        assert {"Query", "Mutation", "Dataset", "JSON"} <= set(build_client_schema(data).type_map)


DEEP = '{ __type(name: "Query") ' + "{ ofType " * (MAX_DEPTH + 1) + "{ name }" + " }" * (MAX_DEPTH + 2)
EXPANDING = "".join(f"fragment f{n} on Query {{ ...f{n + 1} ...f{n + 1} }} " for n in range(60))
HOSTILE = [
    DEEP,
    "{ " + " ".join(f'a{n}: dataset(ref: "x") {{ name }}' for n in range(MAX_ALIASES + 1)) + " }",
    f"{{ datasets(first: {MAX_PAGE}) {{ items {{ blocks(first: {MAX_PAGE}) {{ items }} }} }} }}",
    "query ($n: Int) { datasets(first: $n) { items { rows(last: 1) detail schema } } }",
    "{ ...f0 } " + EXPANDING + 'fragment f60 on Query { dataset(ref: "x") { name } }',
    "{ ...a } fragment a on Query { ...b } fragment b on Query { ...a }",
    "{ " + "... on Query { " * 3_000 + "__typename" + " }" * 3_001,
    "{ " + "__typename " * 5_000 + "}",
    '{ a: dataset(ref: "' + "x" * 70_000 + '") { name } }',
    "mutation { " + " ".join(f'd{n}: delete(ref: "Dataset:x")' for n in range(45)) + " }",
]


@pytest.mark.parametrize("query", HOSTILE, ids=range(len(HOSTILE)))
async def test_a_query_that_asks_too_much_is_refused_before_anything_is_asked(query: str) -> None:
    """Attack T-BYTES-01: a GraphQL query that is deep, doubles itself by fragments, or asks for pages within pages.

    Defence: tokens, depth, aliases and values are counted before validation, each fragment once; no operation is
    called.

    The services are none: whatever is asked of them fails otherwise.
    """
    status, told = await call(SimpleNamespace(), "POST", "/graphql", {"query": query})
    assert status == 400
    assert "data" not in told
    assert [each.get("extensions", {}).get("rule", "syntax") for each in told["errors"]] in (
        ["graphql-limit"],
        ["syntax"],
    )


async def test_a_query_ends_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack T-BYTES-01: a GraphQL query that does not end.

    Defence: a limit of one minute, in one of four threads of its own.
    """

    async def get(_: str, __: str) -> None:
        await trio.sleep_forever()

    api = SimpleNamespace(declarations=SimpleNamespace(get=get))
    monkeypatch.setattr(graphql, "SECONDS", 0.05)
    status, told = await call(api, "POST", "/graphql", {"query": '{ dataset(ref: "x") { name } }'})
    assert (status, told["errors"][0]["extensions"]["rule"]) == (400, "graphql-limit")
    assert graphql.THREADS.borrowed_tokens == 0


async def test_a_bug_is_told_as_one() -> None:
    async def get(_: str, __: str) -> None:
        await trio.lowlevel.checkpoint()
        raise RuntimeError("boom")

    api = SimpleNamespace(declarations=SimpleNamespace(get=get))
    status, told = await call(api, "POST", "/graphql", {"query": '{ dataset(ref: "x") { name } }'})
    assert (status, told["rule"]) == (500, "bug")


WATCH = "subscription W($t: String, $since: String) { resources(type: $t, since: $since) { version op resource } }"


async def streamed(
    api: Any, query: str, until: bytes = b"event: complete", *, headers: Sequence[tuple[bytes, bytes]] = (),
    act: Callable[[], Awaitable[object]] | None = None, **variables: Any,
) -> list[tuple[str, str, Any]]:  # fmt: skip
    """Returns the events of a stream, up to the one with ``until``: id, event, data; ``act``: after the bookmark."""
    data, enough, began = bytearray(), trio.CancelScope(), trio.Event()
    scope = {
        "type": "http", "method": "POST", "path": "/graphql", "query_string": b"", "root_path": "",
        "headers": [(b"accept", b"text/event-stream"), *headers],
    }  # fmt: skip
    sent = json.dumps({"query": query, "variables": variables}).encode()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": sent, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        assert message.get("status", 200) == 200
        data.extend(message.get("body", b""))
        if b"Bookmark" in data:
            began.set()
        if until in data:
            enough.cancel()

    async def acting() -> None:
        await began.wait()
        if act is not None:
            await act()

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            if act is not None:
                nursery.start_soon(acting)
            with enough:
                await application(getattr(api, "services", api), structlog.get_logger())(scope, receive, send)  # type: ignore[arg-type]
    found = []
    for event in filter(None, data.decode().split("\n\n")):
        lines = dict(line.partition(":")[::2] for line in event.splitlines())
        told = lines.get("data", "").strip()
        found.append((lines.get("id", "").strip(), lines["event"].strip(), json.loads(told) if told else None))
    return found


async def test_a_subscription_tells_what_a_watch_tells(world: World) -> None:
    async with world.running("alice") as alice:
        await ask(alice.api, APPLY, m=[a_set("a")])

        async def change() -> None:
            await ask(alice.api, APPLY, m=[a_set("b")])

        events = await streamed(alice.api, WATCH, b'"name":"b"', act=change, t="vs")
        assert {event for _, event, _ in events} == {"next"}
        told = [data["data"]["resources"] for _, _, data in events]
        assert [each["version"] for each in told] == [version for version, _, _ in events]
        names = [(each["op"], each["resource"] and each["resource"]["headers"]["name"]) for each in told]
        came = next(each for each in told if each["op"] == "Added" and each["resource"]["headers"]["name"] == "b")
        assert names[0] == ("Added", "a")
        at = next(each["version"] for each in told if each["op"] == "Bookmark")
        for headers, variables in (([(b"last-event-id", at.encode())], {}), ([], {"since": at})):
            again = await streamed(alice.api, WATCH, b'"name":"b"', headers=headers, **variables)
            assert again[0][2]["data"]["resources"] == {"version": at, "op": "Bookmark", "resource": None}
            assert came in [data["data"]["resources"] for _, _, data in again]
        some = await streamed(alice.api, 'subscription { resources(type: "vs") { o: op } }', b"Bookmark")
        assert some[0][2] == {"data": {"resources": {"o": "Added"}}}


async def test_what_is_wrong_with_a_stream_is_an_event_of_it(world: World) -> None:
    """As the protocol says, since readers of server-sent events see no body of another status."""
    async with world.running("alice") as alice:
        one = await streamed(alice.api, "{ resources { hasNextPage } }")
        assert one == [("", "next", {"data": {"resources": {"hasNextPage": False}}}), ("", "complete", None)]
        twice = "subscription { resources { op } resources { version } }"
        for query, variables, rule in (
            (WATCH, {"t": "zebra"}, "unknown-type"),
            (WATCH, {"since": "f00-1"}, "resource-version"),
            (WATCH, {"t": 5}, None),
            ("subscription { nothing }", {}, None),
            ("subscription {", {}, None),
            (twice, {}, "graphql-subscription"),
            ("subscription { ...f } fragment f on Subscription { resources { op } }", {}, "graphql-subscription"),
        ):
            first, last = await streamed(alice.api, query, **variables)
            (error,) = first[2]["errors"]
            assert (error.get("extensions", {}).get("rule"), last) == (rule, ("", "complete", None)), query
        status, told = await call(alice.api, "POST", "/graphql", {"query": WATCH})
        assert (status, told["errors"][0]["extensions"]["rule"]) == (400, "graphql-subscription")


async def test_only_so_many_watch(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack T-HTTP-01: watches of resources, by paths or by GraphQL, that occupy all connections.

    Defence: at most 128 are open at once, half of the connections of the control socket; more are refused with 429.

    By whatever way; one that ended leaves its place to another.
    """
    monkeypatch.setattr("odfd.services.resources.watches.WATCHES", 1)
    async with world.running("alice") as alice:
        for _ in range(3):
            await streamed(alice.api, WATCH, b"Bookmark")
        async with aclosing(alice.api.declarations.watch(None, None)) as news:
            assert (await anext(news)).op == "Bookmark"
            first, _ = await streamed(alice.api, WATCH)
            assert first[2]["errors"][0]["extensions"]["status"] == 429
        await streamed(alice.api, WATCH, b"Bookmark")


WORDS = st.sampled_from([*list('{}()$:"[]!@'), "...", "a", "query", "fragment", " on "])


@given(st.text(max_size=40) | st.lists(WORDS, max_size=40).map(" ".join))
def test_any_text_is_a_query_or_a_told_mistake(query: str) -> None:
    async def asked() -> tuple[int, Any]:
        return await call(SimpleNamespace(), "POST", "/graphql", {"query": query})

    status, told = trio.run(asked)
    assert status == 400 or told["data"] is not None or told["errors"]


def test_what_a_fragment_costs_is_counted_each_time() -> None:
    def cost(query: str) -> bool:
        try:
            check_size(parse(query), {})
        except Invalid:
            return False
        return True

    page = f"datasets(first: {MAX_PAGE}) {{ items {{ name }} }}"
    most = MAX_COST // (1 + 2 * MAX_PAGE)
    assert cost("{ " + " ...f" * most + f" }} fragment f on Query {{ {page} }}")
    assert not cost("{ " + " ...f" * (most + 1) + f" }} fragment f on Query {{ {page} }}")


def test_the_library_is_loaded_with_the_first_request() -> None:
    code = "import sys, odfd.api.routes; sys.exit('graphql' in sys.modules or 'odfd.api.graphql_schema' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert "type Query" in DEFINITION
