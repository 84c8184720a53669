"""RFC-018's paths of resources, over a node."""

from __future__ import annotations

import json
from typing import Any

import pytest
import structlog
import trio

from odfd.api.resources.types import TYPES
from odfd.api.routes import application
from worlds.eventually import PATIENCE

SET = "$schema: VariableSet\nheaders: {{name: {name}, labels: {{env: {env}}}}}\nspec: {{variables: {{x: '1'}}}}\n"
DATASET = "$schema: Dataset\nheaders: {name: raw}\nspec: {kind: Root, metadata: []}\n"


async def ask(node: Any, method: str, path: str, query: str = "", until: bytes = b"") -> tuple[int, list[Any]]:
    """Returns the status and the JSON values of the answer; of a stream, those up to the one with ``until``."""
    data, status, enough = bytearray(), 0, trio.CancelScope()
    scope = {
        "type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": [], "root_path": "",
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)
        data.extend(message.get("body", b""))
        if until and until in data:
            enough.cancel()

    with enough:
        await application(node.api, structlog.get_logger())(scope, receive, send)  # type: ignore[arg-type]
    return status, [json.loads(line) for line in data.splitlines()]


async def test_r57_resources_are_at_their_context_version_and_type(world: Any) -> None:
    async with world.running("alice") as alice:
        await alice.apply(SET.format(name="a", env="prod"), SET.format(name="b", env="dev"), DATASET)
        status, (listed,) = await ask(alice, "GET", "/config/v1alpha1/VariableSet")
        assert (status, [each["headers"]["name"] for each in listed["items"]]) == (200, ["a", "b"])
        first, ids = listed["items"][0], [each["headers"]["id"] for each in listed["items"]]
        assert (first["$schema"], first["spec"]) == (TYPES.written("VariableSet").uri, {"variables": {"x": "1"}})
        for word in ("variableset", "VARIABLESETS", "vs"):
            _, (same,) = await ask(alice, "GET", f"/config/v1alpha1/{word}")
            assert [each["headers"]["id"] for each in same["items"]] == ids
        _, (some,) = await ask(alice, "GET", "/config/v1alpha1/vs", "labels=env%3Ddev")
        assert [each["headers"]["name"] for each in some["items"]] == ["b"]
        _, (raw,) = await ask(alice, "GET", "/dataset/v1alpha1/datasets", "labels=datasetKind%3DRoot")
        headers = raw["items"][0]["headers"]
        for ref in ("raw", "RAW", headers["id"], headers["did"]):
            status, (one,) = await ask(alice, "GET", f"/dataset/v1alpha1/dataset/{ref}")
            assert (status, one["headers"]["id"]) == (200, headers["id"])


async def test_r57_a_watch_goes_on_from_what_was_listed(world: Any) -> None:
    async with world.running("alice") as alice:
        await alice.apply(SET.format(name="a", env="prod"), DATASET)
        _, (listed,) = await ask(alice, "GET", "/config/v1alpha1/vs")
        await alice.apply(SET.format(name="b", env="dev"))
        status, (gone,) = await ask(alice, "DELETE", "/config/v1alpha1/variablesets/a")
        assert (status, gone["headers"]["name"]) == (200, "a")
        query = f"watch=1&since={listed['resourceVersion']}"
        with trio.fail_after(PATIENCE):
            _, told = await ask(alice, "GET", "/config/v1alpha1/vs", query, b'"Deleted"')
        changes = [(each["op"], each["object"]) for each in told if each["object"] is not None]
        come_and_gone = [(op, each["headers"]["name"]) for op, each in changes if op != "Modified"]
        assert come_and_gone == [("Added", "b"), ("Deleted", "a")]  # a status may change before, between and after
        assert {each["$schema"] for _, each in changes} == {TYPES.written("VariableSet").uri}


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("/config/v1alpha1/Zebra", "unknown-type"),
        ("/flow/v1alpha1/VariableSet", "unknown-type"),
        ("/auth/v1alpha1/Account", "unknown-type"),
        ("/config/v2/VariableSet", "route"),
        ("/config/v1alpha1/VariableSet/nobody", "resource"),
        ("/config/v1alpha1", "route"),
    ],
)
async def test_r57_what_is_not_there_is_said_to_be_not_found(world: Any, path: str, rule: str) -> None:
    async with world.running("alice") as alice:
        status, (problem,) = await ask(alice, "GET", path)
        assert (status, problem["rule"]) == (404, rule)
