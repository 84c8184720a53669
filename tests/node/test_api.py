"""The OpenAPI document, as a node answers, and the routes of its paths."""

from __future__ import annotations

import inspect
import json
import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
import trio
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi import checks
from starlette.routing import BaseRoute, Match

from chain.errors import Invalid
from chain.statements import proof
from odfd.api import actions, calls, openapi, resource_operations, resource_protocol, routes
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


EXAMPLES = int(os.environ.get("ODFD_REQUESTS", "1"))
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
