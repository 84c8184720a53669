"""Resources that are not declared: the node and its engines, in the lists, watches and refusals of all others."""

from __future__ import annotations

import pytest
import trio

from chain.errors import Invalid
from config import model
from odfd.services.resources.types import TYPES
from worlds.accounts_world import ALICE, settled
from worlds.asking import ask
from worlds.eventually import PATIENCE
from worlds.node_world import World

KEY = "did:key:z6Mkqi1cNkNci6HXwDxeeS1aP1neHbnW4CDve788zZwKPkR9"


async def test_the_node_and_its_engines_are_resources(world: World) -> None:
    async with world.running("alice") as alice:
        _, (listed,) = await ask(alice, "GET", "/node/v1alpha1/nodes")
        (node,) = listed["items"]
        ((key, condition),) = node["status"]["conditions"].items()
        assert key.endswith("/resource/v1alpha1/State")
        assert condition["value"]["nodeId"] == str(alice.home.keys.node_key().did)
        assert (node["status"]["phase"], condition["value"]["version"]) == ("Ready", alice.parts.context.version)
        for ref in ("node", "NODE", node["headers"]["id"]):
            assert await ask(alice, "GET", f"/node/v1alpha1/Node/{ref}") == (200, [node])
        _, (listed,) = await ask(alice, "GET", "/node/v1alpha1/Engine")
        found = {each["headers"]["name"]: each for each in listed["items"]}
        assert {name: each["spec"]["kind"] for name, each in found.items()} == {"duckdb": "DuckDB", "spark": "Spark"}
        assert {each["$schema"] for each in found.values()} == {"https://w3id.org/odfd/schemas/node/v1alpha1/Engine"}
        (said,) = found["duckdb"]["status"]["conditions"].values()
        assert said["value"]["name"].startswith("duckdb ")


async def test_they_come_in_pages_and_are_watched(world: World) -> None:
    async with world.running("alice") as alice:
        _, (first,) = await ask(alice, "GET", "/node/v1alpha1/engines", "limit=1")
        _, (second,) = await ask(alice, "GET", "/node/v1alpha1/engines", f"limit=1&continue={first['continue']}")
        assert [each["headers"]["name"] for page in (first, second) for each in page["items"]] == ["duckdb", "spark"]
        assert (second["continue"], second["resourceVersion"]) == (None, first["resourceVersion"])
        _, (none,) = await ask(alice, "GET", "/node/v1alpha1/engines", "labels=a%3Db")
        assert none["items"] == []
        query = f"watch=1&since={first['resourceVersion']}"  # what is not in the log is told anew
        with trio.fail_after(PATIENCE):
            _, told = await ask(alice, "GET", "/node/v1alpha1/engines", query, b'"Bookmark"')
        names = [(each["op"], each["object"]["headers"]["name"]) for each in told if each["object"]]
        assert names == [("Added", "duckdb"), ("Added", "spark")]


async def test_they_are_changed_in_the_settings_alone(world: World) -> None:
    with pytest.raises(Invalid, match="an Engine is made by the node itself") as refused:
        TYPES.find_schema("Engine")
    assert (refused.value.rule, "[engine] of the settings" in refused.value.hint) == ("derived-type", True)
    async with world.running("alice") as alice:
        text = "$schema: Node\nheaders: {name: other}\nspec: {}\n"
        status, (problem,) = await ask(alice, "POST", "/resource/v1alpha1/apply", body=text)
        assert (status, problem["rule"]) == (422, "derived-type")
        for method, path, body in (
            ("DELETE", "/node/v1alpha1/engines/spark", b""),
            ("PUT", "/node/v1alpha1/nodes/node/labels", {"labels": {"a": "b"}}),
        ):
            status, (problem,) = await ask(alice, method, path, body=body)
            assert (status, problem["rule"]) == (403, "derived-type"), path


async def test_peers_that_were_met_and_validators_of_the_settings_are_listed_beside_those_declared(
    world: World,
) -> None:
    """With what the node knows of them; what is declared of one stands in place of it."""
    groups = (model.Group(name="uni", keys=(KEY,)),)
    settings = model.Policy(validators=model.Validators(groups=groups))
    async with world.running("alice") as alice, world.running("bob", policy=settings) as bob:
        peer = alice.member.peer_id
        _, (listed,) = await ask(bob, "GET", "/net/v1alpha1/peers")
        (met,) = listed["items"]
        assert (met["spec"], met["headers"]["generation"]) == ({"peerId": peer, "blocked": False}, 0)
        assert [each["value"]["connected"] for each in met["status"]["conditions"].values()] == [True]
        assert await ask(bob, "GET", f"/net/v1alpha1/peers/{peer}") == (200, [met])
        status, (problem,) = await ask(bob, "PUT", f"/net/v1alpha1/peers/{peer}/labels", body={"labels": {"a": "b"}})
        assert (status, problem["hint"]) == (403, "odfctl peer block PEER declares it")
        await bob.apply(f"$schema: Peer\nheaders: {{name: mallory}}\nspec: {{peerId: {peer}, blocked: true}}\n")
        _, (listed,) = await ask(bob, "GET", "/net/v1alpha1/peers")
        assert [each["headers"]["name"] for each in listed["items"]] == ["mallory"]
        _, (declared,) = await ask(bob, "GET", f"/net/v1alpha1/peers/{peer}")
        assert declared["headers"]["id"] == listed["items"][0]["headers"]["id"]
        _, (listed,) = await ask(bob, "GET", "/trust/v1alpha1/validators")
        (validator,) = listed["items"]
        assert validator["spec"] == {"did": KEY, "group": "uni"}
        assert await ask(bob, "GET", f"/trust/v1alpha1/validators/{KEY}") == (200, [validator])
        status, (problem,) = await ask(bob, "DELETE", f"/trust/v1alpha1/validators/{KEY}")
        assert (status, "settings names it: change it there" in problem["hint"]) == (403, True)


async def test_accounts_are_not_told_of_the_node(world: World) -> None:
    async with world.running("alice") as node:
        asking = await settled(node)
        for path in ("/node/v1alpha1/nodes", "/node/v1alpha1/engines"):
            status, listed = await asking.ask(ALICE, "GET", path)
            assert (status, listed["items"]) == (200, [])
            assert (await asking.ask(ALICE, "GET", f"{path}/spark"))[0] == 404
            assert (await asking.ask(ALICE, "GET", f"{path}/node"))[0] == 404
