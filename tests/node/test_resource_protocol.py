"""RFC-018's paths of resources, over a node."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
import pytest
import trio
import yaml
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Environment, Invalid, Refused
from config import model
from odfd.api import resource_operations as operations
from odfd.api.resource_operations import merged, texts_of
from odfd.cli import resource_tables
from odfd.control import wire
from odfd.node import features
from odfd.resources import records
from odfd.resources.controller import ApplyBatch, Controller, Controllers, Intent
from odfd.resources.manifest import describe
from odfd.resources.plan import DesiredResource, PlannedResource
from odfd.resources.references import refers_to
from odfd.resources.registry import OURS, PrintedColumn, Registration
from odfd.resources.resource import Resource
from odfd.resources.types import ResourceType, TypeOperations, TypeRegistry
from odfd.services.resources.types import TYPES
from worlds.accounts_world import ALICE, settled
from worlds.asking import ask, ask_whole
from worlds.eventually import PATIENCE
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World

SET = "$schema: VariableSet\nheaders: {{name: {name}, labels: {{env: {env}}}}}\nspec: {{variables: {{x: '1'}}}}\n"
DATASET = "$schema: Dataset\nheaders: {name: raw}\nspec: {kind: Root, metadata: []}\n"


async def test_resources_are_at_their_context_version_and_type(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(SET.format(name="a", env="prod"), SET.format(name="b", env="dev"), DATASET)
        status, (listed,) = await ask(alice, "GET", "/config/v1alpha1/VariableSet")
        assert (status, [each["headers"]["name"] for each in listed["items"]]) == (200, ["a", "b"])
        first, ids = listed["items"][0], [each["headers"]["id"] for each in listed["items"]]
        assert (first["$schema"], first["spec"]) == (TYPES.find_schema("VariableSet").uri, {"variables": {"x": "1"}})
        for word in ("variableset", "VARIABLESETS", "vs"):
            _, (same,) = await ask(alice, "GET", f"/config/v1alpha1/{word}")
            assert [each["headers"]["id"] for each in same["items"]] == ids
        _, (some,) = await ask(alice, "GET", "/config/v1alpha1/vs", "labels=env%3Ddev")
        assert [each["headers"]["name"] for each in some["items"]] == ["b"]
        for query, names in (("name=_", "ab"), ("name=%25B", "b"), ("name=b%25&labels=env%3Dprod", ""), ("name=c", "")):
            _, (some,) = await ask(alice, "GET", "/config/v1alpha1/vs", query)
            assert [each["headers"]["name"] for each in some["items"]] == list(names), query
        _, (every,) = await ask(alice, "GET", "/resource/v1alpha1/resources", "name=_%25&labels=!env")
        assert [each["headers"]["name"] for each in every] == ["raw"]
        status, (problem,) = await ask(alice, "GET", "/config/v1alpha1/vs", "name=a*")
        assert (status, problem["rule"]) == (422, "name-pattern")
        _, (raw,) = await ask(alice, "GET", "/dataset/v1alpha1/datasets", "labels=datasetKind%3DRoot")
        headers, did = raw["items"][0]["headers"], raw["items"][0]["spec"]["did"]
        for ref in ("raw", "RAW", headers["id"], did):
            status, (one,) = await ask(alice, "GET", f"/dataset/v1alpha1/dataset/{ref}")
            assert (status, one["headers"]["id"]) == (200, headers["id"])


async def test_a_watch_goes_on_from_what_was_listed(world: World) -> None:
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
        assert {each["$schema"] for _, each in changes} == {TYPES.find_schema("VariableSet").uri}


async def test_a_list_comes_in_pages(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(*(SET.format(name=name, env="prod") for name in "abc"))
        _, (first,) = await ask(alice, "GET", "/config/v1alpha1/vs", "limit=2")
        assert [each["headers"]["name"] for each in first["items"]] == ["a", "b"]
        query = f"limit=2&continue={first['continue']}"
        _, (second,) = await ask(alice, "GET", "/config/v1alpha1/vs", query)
        assert [each["headers"]["name"] for each in second["items"]] == ["c"]
        assert (second["continue"], second["resourceVersion"]) == (None, first["resourceVersion"])
        for wrong in (f"{query}&labels=env%3Dprod", "continue=x", "limit=0", "limit=5001", f"watch=1&{query}"):
            status, (problem,) = await ask(alice, "GET", "/config/v1alpha1/vs", wrong)
            assert (status, problem["family"]) == (400, "Usage"), wrong
        status, (problem,) = await ask(alice, "GET", "/config/v1alpha1/vs", "watch=1&since=f00-1")
        assert (status, problem["rule"]) == (410, "resource-version")


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("/config/v1alpha1/Zebra", "unknown-type"),
        ("/flow/v1alpha1/VariableSet", "unknown-type"),
        ("/node/v1alpha1/Zebra", "unknown-type"),
        ("/config/v2/VariableSet", "unknown-version"),
        ("/config/v1alpha1/VariableSet/nobody", "resource"),
        ("/config/v1alpha1", "route"),
        ("/nowhere/v1alpha1/VariableSet", "route"),
    ],
)
async def test_what_is_not_there_is_said_to_be_not_found(world: World, path: str, rule: str) -> None:
    async with world.running("alice") as alice:
        status, (problem,) = await ask(alice, "GET", path)
        assert (status, problem["rule"]) == (404, rule)


VS = "/config/v1alpha1/variablesets"
APPLY = "/resource/v1alpha1/apply"


def a_set(name: str = "a", **more: Any) -> dict[str, Any]:
    return {"$schema": "VariableSet", "headers": {"name": name, **more}, "spec": {"variables": {"x": "1"}}}


async def test_a_resource_is_made_changed_read_and_deleted_at_its_path(world: World) -> None:
    async with world.running("alice") as alice:
        status, (item,) = await ask(alice, "POST", VS, "dryRun=true", body=a_set())
        assert (status, item["action"]) == (200, "created")
        assert (await ask(alice, "GET", f"{VS}/a"))[0] == 404
        status, (item,) = await ask(alice, "POST", VS, body=a_set())
        assert (status, item["action"]) == (201, "created")
        status, (problem,) = await ask(alice, "POST", VS, body=a_set())
        assert (status, problem["rule"]) == (409, "exists")
        status, (item,) = await ask(alice, "PUT", f"{VS}/a", body=SET.format(name="a", env="prod"))
        assert (status, item["action"], item["changes"]) == (200, "updated", ['+ labels.env: "prod"'])
        status, (item,) = await ask(alice, "PUT", f"{VS}/b", body=a_set("b"))
        assert (status, item["action"]) == (201, "created")
        _, (held,) = await ask(alice, "GET", f"{VS}/a", "form=input")
        headers = {"name": "a", "labels": {"env": "prod"}}
        assert (held["headers"], held["spec"], held["status"]) == (headers, {"variables": {"x": "1"}}, {})
        _, (item,) = await ask(alice, "PUT", f"{VS}/a", body={key: held[key] for key in ("$schema", "headers", "spec")})
        assert item["action"] == "unchanged"
        status, (gone,) = await ask(alice, "DELETE", f"{VS}/a")
        assert (status, gone["headers"]["name"]) == (200, "a")
        assert (await ask(alice, "DELETE", f"{VS}/a"))[0] == 404


async def test_a_merge_patch_changes_parts_and_renames(world: World) -> None:
    async with world.running("alice") as alice:
        await ask(alice, "POST", VS, body=a_set(labels={"env": "prod", "team": "x"}))
        patch = {"headers": {"name": "c", "labels": {"env": None}}, "spec": {"variables": {"y": "2"}}}
        status, (item,) = await ask(alice, "PATCH", f"{VS}/a", body=patch)
        assert (status, item["action"], item["name"]) == (200, "updated", "c")
        _, (held,) = await ask(alice, "GET", f"{VS}/c")
        assert (held["headers"]["labels"], held["spec"]) == ({"team": "x"}, {"variables": {"x": "1", "y": "2"}})
        status, (problem,) = await ask(alice, "PATCH", f"{VS}/c", body={"headers": {"id": "0"}})
        assert (status, problem["rule"]) == (422, "no-such-id")
        assert (await ask(alice, "PATCH", f"{VS}/nobody", body={}))[0] == 404


async def test_an_etag_is_a_condition_as_the_generation_is(world: World) -> None:
    path, whole = "/config/v1alpha1/vs/a", {**a_set("a"), "spec": {"variables": {"y": "2"}}}
    async with world.running("alice") as alice:
        status, _ = await ask(alice, "PUT", path, body=a_set("a"), if_none_match="*")
        assert status == 201
        status, (problem,) = await ask(alice, "PUT", path, body=whole, if_none_match="*")
        assert (status, problem["family"]) == (409, "Conflict")
        with trio.fail_after(PATIENCE):
            await alice.parts.reconciler.wait_settled()
        _, (held,), seen = await ask_whole(alice, "GET", path)
        tag = seen["etag"]
        assert (await ask_whole(alice, "GET", path, if_none_match=f'"other", {tag}'))[:2] == (304, [])
        assert (await ask(alice, "GET", path, if_none_match='"other"'))[1] == [held]
        assert (await ask(alice, "PUT", path, body=whole, if_match=tag))[0] == 200
        assert (await ask(alice, "GET", path, if_none_match=tag))[0] == 200, "it is another state"
        for method, body in (("PUT", a_set("a")), ("PATCH", {"headers": {"labels": {"env": "x"}}}), ("DELETE", b"")):
            status, (problem,) = await ask(alice, method, path, body=body, if_match=tag)
            assert (status, problem["rule"]) == (412, "generation"), method
        status, (problem,) = await ask(alice, "POST", "/resource/v1alpha1/apply", "generation=1", body=[a_set("a")])
        assert (status, problem["rule"]) == (412, "generation"), "as odfctl edit writes"
        (_, (now,), seen) = await ask_whole(alice, "GET", path)
        assert now["spec"] == {"variables": {"y": "2"}}
        for method, query, wrong in (
            ("PUT", "", {"if_match": "3"}), ("PUT", "", {"if_match": f"W/{tag}"}), ("PUT", "", {"if_match": "*"}),
            ("PUT", "generation=1", {"if_match": tag}), ("PUT", "", {"if_none_match": tag}),
            ("DELETE", "", {"if_none_match": "*"}),
        ):  # fmt: skip
            status, (problem,) = await ask(alice, method, path, query, body=whole, **wrong)
            assert (status, problem["family"]) == (400, "Usage"), wrong
        status, (problem,) = await ask(alice, "PUT", f"{path}/labels", body={"labels": {"a": "b"}}, if_match=tag)
        assert (status, problem["rule"]) == (400, "if-match"), "a condition that is not kept is refused"
        assert (await ask(alice, "DELETE", path, if_match=seen["etag"]))[0] == 200


async def test_what_was_changed_by_others_is_left_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """``generation``: as somebody read it. A status is no change."""
    async with world.running("alice") as alice:
        path, raw = "/config/v1alpha1/vs/a", "/dataset/v1alpha1/datasets/raw"
        await alice.apply(SET.format(name="a", env="prod"), DATASET)
        patch = {"headers": {"labels": {"env": "dev"}}}
        for each in (path, raw):
            status, (item,) = await ask(alice, "PATCH", each, "generation=1", body=patch)
            assert (status, item["action"]) == (200, "updated")
        whole = {**a_set("a"), "spec": {"variables": {"y": "2"}}}
        requests = (("GET", b""), ("PUT", whole), ("PATCH", {"headers": {"labels": {"env": "x"}}}), ("DELETE", b""))
        for method, body in requests:
            for each in (path, raw) if method != "PUT" else (path,):
                status, (problem,) = await ask(alice, method, each, "generation=1", body=body)
                assert (status, problem["rule"], problem["family"]) == (412, "generation", "Conflict"), (method, each)
        status, (gone,) = await ask(alice, "PUT", "/config/v1alpha1/vs/b", "generation=1", body=a_set("b"))
        assert (status, gone["rule"]) == (412, "generation")
        _, (held,) = await ask(alice, "GET", path, "generation=2")
        assert (held["headers"]["labels"], held["spec"]) == ({"env": "dev"}, {"variables": {"x": "1"}})
        for each in (path, raw):
            assert (await ask(alice, "DELETE", each, "generation=2"))[0] == 200


async def test_patches_at_the_same_time_are_all_made(world: World) -> None:
    """Those without a generation are made anew of what others left; of those with one, one is."""
    async with world.running("alice") as alice:
        await alice.apply(SET.format(name="a", env="prod"))
        path, told = "/config/v1alpha1/vs/a", []

        async def patch(number: int, query: str) -> None:
            status, _ = await ask(alice, "PATCH", path, query, body={"spec": {"variables": {f"k{number}": "1"}}})
            told.append(status)

        for query, expected in (("", [200, 200, 200]), ("generation=4", [200, 412, 412])):
            told.clear()
            async with trio.open_nursery() as nursery:
                for number in range(3):
                    nursery.start_soon(patch, number + len(query), query)
            assert sorted(told) == expected
        _, (held,) = await ask(alice, "GET", path, "generation=5")
        assert {"k0", "k1", "k2"} < set(held["spec"]["variables"])
        assert len(held["spec"]["variables"]) == 5


BATCH: list[dict[str, Any]] = [
    {"$schema": "VariableSet", "headers": {"name": "a"}, "spec": {"variables": {"x": "1"}}},
    {"$schema": "VariableSet", "headers": {"name": "b"}, "spec": {"variabels": {}}},
    {"$schema": "Zebra", "headers": {"name": "c"}, "spec": {}},
    {"$schema": "Dataset", "headers": {"name": "raw"}, "spec": {"kind": "Root", "metadata": []}},
    {"$schema": "Dataset", "headers": {"name": "d", "labels": {"datasetKind": "Derivative"}},
     "spec": {"kind": "Root", "metadata": []}},
    {"$schema": "VariableSet", "headers": {"name": "e", "id": "00000000-0000-4000-8000-000000000000"},
     "spec": {"variables": {}}},
    {"$schema": "VariableSet", "headers": {"name": "twin"}, "spec": {"variables": {}}},
    {"$schema": "VariableSet", "headers": {"name": "TWIN"}, "spec": {"variables": {}}},
]  # fmt: skip
APPLY = "/resource/v1alpha1/apply"


@pytest.mark.parametrize("form", ["json", "yaml"])
async def test_where_one_cannot_be_done_the_others_are_if_so_asked(world: World, form: str) -> None:
    """Each that cannot is told with what is wrong with it, whenever that is found."""
    body: object = BATCH if form == "json" else yaml.safe_dump_all(BATCH)
    async with world.running("alice") as alice:
        status, (problem,) = await ask(alice, "POST", APPLY, body=body)
        assert (status, await alice.api.declarations.list(None, None)) == (422, [])
        status, (dry,) = await ask(alice, "POST", APPLY, "onError=skip&dryRun=1", body=body)
        assert (status, await alice.api.declarations.list(None, None)) == (200, [])
        status, (told,) = await ask(alice, "POST", APPLY, "onError=skip", body=body)
        assert status == 200
        assert [each["action"] for each in told["items"]] == [each["action"] for each in dry["items"]]
        done = {each["name"]: each["action"] for each in told["items"] if each["fault"] is None}
        assert done == {"a": "created", "raw": "created"}
        wrong = {(each["kind"], each["name"]): each["fault"]["rule"] for each in told["items"] if each["fault"]}
        assert set(wrong.values()) >= {"system-label", "no-such-id", "manifest-twice", "unknown-type"}
        assert {name for kind, name in wrong if kind != "manifest"} == {"d", "e", "twin", "TWIN"}
        assert len(wrong) == len(BATCH) - len(done)
        assert sorted(each.name for each in await alice.api.declarations.list(None, None)) == ["a", "raw"]
        status, (none,) = await ask(alice, "POST", APPLY, "onError=skip", body=[BATCH[1]])
        assert (status, [each["action"] for each in none["items"]]) == (200, ["failed"])
        for query, wrong_body in (("onError=maybe", BATCH), ("onError=skip", "# nothing\n")):
            status, (problem,) = await ask(alice, "POST", APPLY, query, body=wrong_body)
            assert (status, problem["family"]) in ((400, "Usage"), (422, "Invalid"))


async def test_each_manager_has_labels_of_its_own(world: World) -> None:
    """Those of others stay through an apply; whose spec is written over is told."""
    async with world.running("alice") as alice:
        await alice.apply(SET.format(name="a", env="prod"))
        path = "/config/v1alpha1/vs/a"
        theirs = a_set("a", labels={"team": "heat"}) | {"spec": {"variables": {"x": "2"}}}
        _, (item,) = await ask(alice, "PUT", path, "manager=terraform", body=theirs)
        assert (item["action"], item["warnings"]) == (
            "updated",
            ["spec: odfctl wrote it, and terraform writes over it"],
        )
        _, (held,) = await ask(alice, "GET", path)
        assert held["headers"]["labels"] == {"env": "prod", "team": "heat"}
        (again,) = (await alice.apply(SET.format(name="a", env="prod"))).items
        assert again.warnings == ("spec: terraform wrote it, and odfctl writes over it",)
        _, (held,) = await ask(alice, "GET", path)
        assert held["headers"]["labels"] == {"env": "prod", "team": "heat"}
        assert held["spec"] == {"variables": {"x": "1"}}
        _, (item,) = await ask(alice, "PUT", path, "manager=terraform", body=a_set("a") | {"spec": held["spec"]})
        assert item["action"] == "updated"
        _, (held,) = await ask(alice, "GET", path)
        assert held["headers"]["labels"] == {"env": "prod"}
        for wrong in ("controller/Flow", "a b", "x" * 64, ""):
            status, (problem,) = await ask(alice, "PUT", path, f"manager={wrong.replace(' ', '%20')}", body=theirs)
            assert (status, problem["rule"]) == (422, "manager")


async def test_what_another_resource_made_is_changed_by_force_alone(world: World) -> None:
    scheduled = "$schema: Dataset\nheaders: {name: raw, annotations: {schedule: {cron: '0 5 * * *'}}}\n"
    async with world.running("alice") as alice:
        await alice.apply(scheduled + "spec: {kind: Root, metadata: []}\n")
        path = "/flow/v1alpha1/flows/raw"
        with trio.fail_after(PATIENCE):
            while not await is_ready(alice, path):
                await trio.lowlevel.checkpoint()
        patch = {"headers": {"labels": {"mine": "1"}}}
        status, (problem,) = await ask(alice, "PATCH", path, body=patch)
        assert (status, problem["rule"]) == (403, "owned")
        status, (item,) = await ask(alice, "PATCH", path, "force=1", body=patch)
        assert (status, item["action"]) == (200, "updated"), item
        assert item["warnings"] == ["Dataset raw made it, and may make it again as it was"]
        assert (await ask(alice, "DELETE", path))[1][0]["rule"] == "owned"


async def is_ready(node: Node, path: str) -> bool:
    status, (held,) = await ask(node, "GET", path)
    return status == 200 and held["status"]["phase"] == "Ready"


async def test_a_dataset_is_patched_and_deleted_with_its_chain(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(DATASET)
        ds = "/dataset/v1alpha1/datasets/raw"
        info = {"kind": "SetInfo", "description": "of the morning"}
        status, (item,) = await ask(alice, "PATCH", ds, body={"spec": {"metadata": [info]}})
        assert (status, item["action"], "SetInfo" in item["changes"]) == (200, "updated", True)
        _, (held,) = await ask(alice, "GET", ds, "form=input")
        assert held["spec"]["metadata"] == [info]
        assert (await ask(alice, "DELETE", ds))[0] == 200
        assert [each.name for each in await alice.dataset_views()] == []


async def test_a_batch_is_applied_whole_or_refused_with_every_item(world: World) -> None:
    flow = {"$schema": "Flow", "headers": {"name": "f"}, "spec": {
        "target": "Dataset:raw", "triggers": [{"kind": "Schedule", "cron": "0 * * * *"}], "tasks": [{"kind": "Ingest"}],
    }}  # fmt: skip
    async with world.running("alice") as alice:
        status, (done,) = await ask(alice, "POST", APPLY, body=[a_set(), a_set("b")])
        assert (status, [each["action"] for each in done["items"]]) == (200, ["created", "created"])
        status, (done,) = await ask(alice, "POST", APPLY, body=SET.format(name="a", env="x") + "---\n" + DATASET)
        assert (status, {each["name"]: each["action"] for each in done["items"]}) == (
            200, {"raw": "created", "a": "updated"},
        )  # fmt: skip
        status, (problem,) = await ask(alice, "POST", APPLY, body=[a_set("c"), flow | {"spec": {}}])
        assert (status, problem["status"]) == (422, 422)
        assert (await ask(alice, "GET", f"{VS}/c"))[0] == 404
        wrong = {"$schema": "Dataset", "headers": {"name": "d"}, "spec": {"kind": "Derivative", "metadata": [
            {"kind": "SetTransform", "inputs": [{"datasetRef": "nowhere"}],
             "transform": {"kind": "Sql", "engine": "spark", "query": "select 1"}}]}}  # fmt: skip
        status, (problem,) = await ask(alice, "POST", APPLY, body=[a_set("c"), wrong])
        assert (status, problem["status"]) == (422, 422)
        assert {each["name"]: each["action"] for each in problem["items"]} == {"c": "skipped", "d": "failed"}
        assert (await ask(alice, "GET", f"{VS}/c"))[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "rule"),
    [
        ("POST", "/flow/v1alpha1/flows", a_set(), 422, "type"),
        ("POST", VS, a_set(id="11111111-1111-4111-8111-111111111111"), 422, "no-such-id"),
        ("POST", VS, [a_set(), a_set("b")], 422, "request"),
        ("PUT", f"{VS}/b", a_set("a"), 404, "resource"),
        ("PUT", f"{VS}/kept", a_set("a"), 422, "name"),
        ("PUT", f"{VS}/kept", a_set("kept", id="11111111-1111-4111-8111-111111111111"), 422, "no-such-id"),
        ("POST", APPLY, [], 422, "request"),
        ("POST", APPLY, [1], 422, "request"),
        ("POST", APPLY, b"[" * 100_000, 422, "request"),
        ("POST", APPLY, b"\xff", 422, "request"),
        ("GET", f"{VS}/kept", b"", 404, "resource"),
    ],
)  # fmt: skip
async def test_what_is_not_meant_is_refused_and_nothing_changes(
    world: World, method: str, path: str, body: object, status: int, rule: str
) -> None:
    async with world.running("alice") as alice:
        if method != "GET":
            await alice.apply(SET.format(name="kept", env="prod"))
        told, (problem,) = await ask(alice, method, path, body=body)
        assert (told, problem["rule"]) == (status, rule)
        _, (left,) = await ask(alice, "GET", VS)
        assert [each["headers"]["name"] for each in left["items"]] == ["kept"] * (method != "GET")


async def test_a_version_that_is_not_served_is_refused_with_those_that_are(world: World) -> None:
    async with world.running("alice") as alice:
        status, (problem,) = await ask(alice, "GET", "/config/v2/VariableSet")
        assert (status, "v1alpha1" in problem["hint"]) == (404, True)
        uri = TYPES.find_schema("VariableSet").uri.replace("v1alpha1", "v2")
        status, (problem,) = await ask(alice, "POST", APPLY, body=a_set() | {"$schema": uri})
        assert (status, "v1alpha1" in problem["hint"]) == (422, True), problem


async def test_a_parameter_that_is_not_taken_is_refused_with_what_was_meant(world: World) -> None:
    async with world.running("alice") as alice:
        for path, query, hint in (
            (VS, "lables=env%3Dprod", "did you mean labels?"),
            ("/node/v1alpha1/renditions", "x=1", "it takes none"),
            ("/node/v1alpha1/doctor", "deep=perhaps", ""),
            (VS, "watch=true&labels=env%3Dprod", "leave labels out; each change has its own"),
            (VS, "watch=true&name=a", "leave name out; each change has its own"),
        ):
            status, (problem,) = await ask(alice, "GET", path, query)
            assert (status, problem["rule"], problem.get("hint", "")) == (400, "query", hint)


@given(st.recursive(st.none() | st.booleans() | st.text() | st.integers(), lambda inner: st.lists(inner, max_size=3)
                    | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8))  # fmt: skip
def test_json_of_a_manifest_is_the_same_as_yaml(value: Any) -> None:
    (text,) = texts_of([{"value": value}])
    assert yaml.safe_load(text.text) == {"value": value}


OBJECTS = st.dictionaries(st.sampled_from("abc"), st.integers() | st.dictionaries(st.sampled_from("xy"), st.integers()))


@given(OBJECTS, OBJECTS)
def test_a_merge_patch_of_what_differs_makes_one_of_the_other(before: Any, after: Any) -> None:
    assert merged(before, dict.fromkeys(before) | dict.fromkeys(after)) == {}
    assert merged({}, after) == after
    assert merged(merged(before, after), after) == merged(before, after)


async def test_all_types_are_listed_and_watched_at_once(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(SET.format(name="a", env="prod"), DATASET)
        _, (types,) = await ask(alice, "GET", "/resource/v1alpha1/types")
        assert {each["name"] for each in types} == {each.name for each in TYPES}
        with trio.fail_after(PATIENCE):
            status, told = await ask(alice, "GET", "/resource/v1alpha1/watch", "", b'"Bookmark"')
        stood = [each["object"] for each in told[:-1]]
        found = sorted((each["$schema"].rpartition("/")[2], each["headers"]["name"]) for each in stood)
        assert (status, found) == (200, [("Dataset", "raw"), ("VariableSet", "a")])
        await alice.apply(SET.format(name="b", env="prod"))
        with trio.fail_after(PATIENCE):
            since = f"since={told[-1]['rv']}"
            _, more = await ask(alice, "GET", "/resource/v1alpha1/watch", since, b'"b"')
        assert ("Added", "b") in [(each["op"], each["object"] and each["object"]["headers"]["name"]) for each in more]
        _, (events,) = await ask(alice, "GET", "/resource/v1alpha1/events", "kept=true")
        assert ("resource.created", "b") in {(each["kind"], each["subject"]) for each in events}


async def test_schemas_are_at_the_paths_of_their_types(world: World) -> None:
    async with world.running("alice") as alice:
        former = await ask(alice, "GET", "/schemas/flow/v1alpha1/Task")
        assert former == await ask(alice, "GET", "/schemas/tasks/v1alpha1/Task")
        for path in ("tasks/v1alpha1/Task", "tasks/v1alpha1/Task.json", "node/v1alpha1/Node"):
            status, (schema,) = await ask(alice, "GET", f"/schemas/{path}")
            assert (status, schema["$id"].endswith(path.removesuffix(".json"))) == (200, True)
        for path in ("/version", "/livez", "/readyz"):
            assert (await ask(alice, "GET", path))[0] == 200


async def test_a_patch_of_a_dataset_keeps_what_only_its_manifest_says(world: World, tmp_path: Any) -> None:
    volume = f"$schema: PersistentVolume\nheaders: {{name: cellar}}\nspec: {{kind: HostPath, path: {tmp_path}}}\n"
    dataset = "$schema: Dataset\nheaders: {name: one}\nspec: {kind: Root, volume: cellar, metadata: []}\n"
    async with world.running("alice") as alice:
        await alice.apply(volume, dataset)
        before = (await alice.api.declarations.get("Dataset", "one")).spec
        assert before["volume"] == "cellar"
        said = {"headers": {"labels": {"a": "b"}}}
        assert (await ask(alice, "PATCH", "/dataset/v1alpha1/datasets/one", body=said))[0] == 200
        after = await alice.api.declarations.get("Dataset", "one")
        assert (after.spec, after.labels) == (before, {"a": "b"})


# Resources that are not declared: the node and its engines, in the lists, watches and refusals of all others.


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
    assert (refused.value.rule, "set [engine]" in refused.value.hint) == ("derived-type", True)
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


# A type that is registered is served by all paths, commands and GraphQL, with no code that names it.


DELETED: list[str] = []


class ToySpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a toy does."""

    sound: Annotated[str, describe("What it says.")]
    chest: Annotated[str, describe("The set in which it lies."), refers_to("VariableSet")] | None = None


async def _deleted(operations: TypeOperations, view: Any, how: Any) -> None:
    DELETED.append(view.name)
    await operations.delete("Toy", view.id, how.generation, force=how.force)


TOY = ResourceType(
    names=Registration(
        "Toy", "play", "toys", aliases=("ty",), base=OURS,
        columns=(PrintedColumn("SAYS", "spec.sound"), PrintedColumn("PHASE", "status.phase", "phase")),
    ),
    about="A toy.", spec=ToySpec, delete=_deleted,
)  # fmt: skip
BEAR = {"$schema": "Toy", "headers": {"name": "bear"}, "spec": {"sound": "brumm", "chest": "VariableSet:chest"}}
CHEST = "$schema: VariableSet\nheaders: {name: chest}\nspec: {variables: {x: '1'}}\n"


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = TypeRegistry([*TYPES, TOY])
    for part in ("_types", "_written", "_words"):
        monkeypatch.setattr(TYPES, part, getattr(registry, part))
    DELETED.clear()


@pytest.mark.usefixtures("registered")
async def test_a_registered_type_is_served_everywhere_and_named_nowhere(world: World) -> None:
    async with world.running("alice") as alice:
        status, (item,) = await ask(alice, "POST", "/play/v1alpha1/toys", body=BEAR)
        assert (status, item["kind"], item["action"]) == (201, "toy", "created")
        await alice.parts.reconciler.wait_settled()
        status, (held,) = await ask(alice, "GET", "/play/v1alpha1/ty/bear")
        assert (status, held["$schema"]) == (200, f"{OURS}/play/v1alpha1/Toy")
        assert held["status"]["phase"] == "Ready"
        (dangling,) = [each for key, each in held["status"]["conditions"].items() if key.endswith("DanglingReferences")]
        assert dangling["value"] is True
        await alice.apply(CHEST)
        await alice.parts.reconciler.wait_settled()
        patch = {"spec": {"sound": "grr"}}
        assert (await ask(alice, "PATCH", "/play/v1alpha1/toys/bear", body=patch))[0] == 200
        await alice.parts.reconciler.wait_settled()
        status, (listed,) = await ask(alice, "GET", "/play/v1alpha1/toys")
        (shown,) = listed["items"]
        assert shown["spec"]["sound"] == "grr"
        (meant,) = [each for key, each in shown["status"]["conditions"].items() if key.endswith("/References")]
        assert [each.get("name") for each in meant["value"]] == ["chest"]
        row = msgspec.convert(shown, wire.ResourceManifest)
        columns = resource_tables.columns(TOY.names, 0)  # type: ignore[arg-type]  # an Instant
        assert [(each.title, each.cell(row)) for each in columns] == [
            ("NAME", "bear"), ("SAYS", "grr"), ("PHASE", "Ready"),
        ]  # fmt: skip
        query = {"query": '{ resource(ref: "Toy:bear") }'}
        _, (told,) = await ask(alice, "POST", "/graphql", body=query)
        assert told["data"]["resource"]["spec"]["sound"] == "grr"
        _, (explained,) = await ask(alice, "GET", "/resource/v1alpha1/types/toy", "path=spec")
        assert [each["name"] for each in explained["fields"]] == ["sound", "chest"]
        assert (await ask(alice, "GET", "/schemas/play/v1alpha1/Toy"))[0] == 200
        assert (await ask(alice, "DELETE", "/play/v1alpha1/toys/bear"))[0] == 200
        assert DELETED == ["bear"]
        assert (await ask(alice, "GET", "/play/v1alpha1/toys/bear"))[0] == 404
        assert operations.type_of("play", "v1alpha1", "ty") is TOY


class ToyController(Controller):
    """Winds toys up: the last written first, upon those before it."""

    type = "Toy"
    prepares = "changes"

    def __init__(self) -> None:
        self.acts: list[str] = []

    def check(self, before: Resource, after: Resource | None) -> None:
        if after is not None and before.name != after.name:
            raise Invalid("a toy keeps its name", rule="toy-name")

    def spec_to_store(self, desired: DesiredResource, before: Resource | None) -> Any:
        return {**desired.spec, "sound": desired.spec["sound"].lower()}

    def order(self, planned: Sequence[PlannedResource], batch: ApplyBatch) -> Sequence[PlannedResource]:
        return planned[::-1]

    async def prepare(self, planned: PlannedResource, batch: ApplyBatch) -> Intent:
        name, sound = planned.after.name, planned.after.spec["sound"]
        if sound == "silence":
            raise Refused(
                "a toy says something", rule="toy-sound", place=batch.drafts[planned.after.id].place("spec.sound")
            )
        self.acts.append(f"prepare {name}")

        def record(connection: sqlite3.Connection) -> None:
            if sound == "broken":
                raise Refused("its spring is broken", rule="toy-broken")
            records.put(connection, "toy", name, sound.encode(), batch.now)

        async def take_up() -> None:
            self.acts.append(f"take up {name}")

        return Intent(record, take_up, tell=partial(self.acts.append, f"tell {name}"), item={"warnings": ("wound up",)})

    async def follow_changes(self, changed: Sequence[PlannedResource]) -> None:
        self.acts.append(f"applied {', '.join(each.after.name for each in changed)}")


def toy(name: str, sound: str = "Brumm", **headers: str) -> str:
    said = "".join(f", {key}: {value}" for key, value in headers.items())
    return f"$schema: Toy\nheaders: {{name: {name}{said}}}\nspec: {{sound: {sound}}}\n"


@pytest.mark.usefixtures("registered")
async def test_a_controller_takes_part_in_an_apply_by_what_it_says_of_itself(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = ToyController()
    monkeypatch.setattr(features, "Controllers", lambda each: Controllers([*each, controller]))

    def actions(result: wire.ApplyResult) -> Mapping[str, str]:
        return {each.name: each.action for each in result.items}

    async with world.running("alice") as alice:

        def kept() -> dict[str, bytes]:
            with alice.home.database.read() as connection:
                return {each.key: each.body for each in records.of_kind(connection, "toy")}

        await alice.apply(toy("bear"), toy("cat"), dry_run=True)
        assert controller.acts == ["prepare cat", "prepare bear"]
        assert kept() == {}
        controller.acts.clear()
        made = await alice.apply(CHEST, toy("bear"), toy("cat"))
        assert [(each.name, each.action, each.warnings) for each in made.items] == [
            ("cat", "created", ("wound up",)), ("bear", "created", ("wound up",)), ("chest", "created", ()),
        ]  # fmt: skip
        assert controller.acts == [
            "prepare cat", "prepare bear", "take up cat", "take up bear", "applied cat, bear", "tell cat", "tell bear",
        ]  # fmt: skip
        assert kept() == {"bear": b"brumm", "cat": b"brumm"}
        controller.acts.clear()
        assert set(actions(await alice.apply(CHEST, toy("bear"), toy("cat"))).values()) == {"unchanged"}
        assert controller.acts == []
        both = toy("bear", "Grr"), toy("cat", "silence")
        (cat, bear) = (await alice.apply(*both)).items
        assert (cat.action, bear.action) == ("failed", "skipped")
        assert cat.fault is not None
        assert (cat.fault.rule, cat.fault.place) == ("toy-sound", "m1.yaml:3")
        assert kept() == {"bear": b"brumm", "cat": b"brumm"}
        assert actions(await alice.apply(*both, on_error="skip")) == {"cat": "failed", "bear": "updated"}
        (cat, bear) = (await alice.apply(toy("bear", "Mew"), toy("cat", "broken"))).items
        assert cat.fault is not None
        assert (cat.fault.rule, bear.action, kept()["bear"]) == ("toy-broken", "skipped", b"grr")
        id_ = (await alice.api.declarations.get("toy", "cat")).id
        with pytest.raises(Invalid, match="a toy keeps its name"):
            await alice.apply(toy("tiger", id=id_))


# A resource is Ready if what it declares works: datasets whose transforms fail, flows whose targets take no pull.


PUSHED = """$schema: Dataset
headers: {name: pushed}
spec: {kind: Root, metadata: [{kind: AddPushSource, sourceName: a, read: {kind: NdJson}, merge: {kind: Append}}]}
"""
EMPTY_ROOT = "$schema: Dataset\nheaders: {{name: {name}}}\nspec: {{kind: Root, metadata: []}}\n"
SOURCE = """$schema: Source
headers: {name: files}
spec: {ingress: {kind: FilesGlob, path: /nowhere/*.csv}, read: {kind: NdJson}, merge: {kind: Append}}
"""
OFTEN = """$schema: Flow
headers: {name: often}
spec: {target: pushed, triggers: [{kind: Interval, interval: 1h}], tasks: [{kind: Ingest, source: files}]}
"""


async def status(node: Node, word: str, name: str) -> dict[str, Any]:
    with trio.fail_after(PATIENCE):
        await node.parts.reconciler.wait_settled()
    found: dict[str, Any] = (await node.api.declarations.get(word, name)).status
    return found


async def test_a_derivative_whose_transform_fails_says_so_until_it_works(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT, DERIVED)
        world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,300000")
        alice.engine.fault = Environment("the engine has no room", rule="engine-room")
        await alice.pull("cities")
        (item,) = await alice.pull("towns")
        assert item.outcome == "failed"
        told = await status(alice, "Dataset", "towns")
        assert (told["phase"], told["code"]) == ("Failed", "engine-room")
        view = await alice.dataset_view("towns")
        assert (view.state, "Failing" in view.conditions) == ("stale", True)
        assert (await status(alice, "Dataset", "cities"))["phase"] == "Ready"
    async with world.running("alice") as alice:
        assert (await status(alice, "Dataset", "towns"))["phase"] == "Failed", "over a restart too"
        alice.engine.fault = None
        (item,) = await alice.pull("towns")
        assert item.outcome == "updated"
        assert (await status(alice, "Dataset", "towns"))["phase"] == "Ready"
        view = await alice.dataset_view("towns")
        assert (view.state, view.conditions) == ("fresh", ())


async def test_a_flow_that_ingests_into_what_takes_no_pull_is_failed_before_its_first_run(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(SOURCE, PUSHED, OFTEN)
        told = await status(alice, "Flow", "often")
        assert (told["phase"], told["code"]) == ("Failed", "flow-target"), told
        assert "takes no pull" in told["message"]
        assert "odfctl ingest pushed" in told["hint"]
        await alice.apply(EMPTY_ROOT.format(name="bare"), OFTEN.replace("pushed", "bare"))
        assert (await status(alice, "Flow", "often"))["phase"] == "Ready"


async def test_a_flow_that_ingests_into_what_others_fill_is_failed_before_its_first_run(world: World) -> None:
    other = OFTEN.replace("name: often", "name: other").replace("pushed", "mirrored")
    async with world.running("alice") as alice, world.running("bob") as bob:
        await bob.apply(ROOT)
        await alice.mirror(bob.dataset("cities"), "mirrored")
        await alice.apply(SOURCE, ROOT, DERIVED, OFTEN.replace("pushed", "towns"), other)
        for name, target in (("often", "towns"), ("other", "mirrored")):
            told = await status(alice, "Flow", name)
            assert (told["phase"], told["code"]) == ("Failed", "flow-target"), told
            assert f"{target} is no source dataset of this node" in told["message"]


TASK = """$schema: Flow
headers: {{name: {name}}}
spec: {{target: {target}, triggers: [{{kind: Manual}}], tasks: [{task}]}}
"""
INGEST, TRANSFORM = "{kind: Ingest, source: files}", "{kind: Transform}"


async def test_a_flow_is_ready_only_if_its_dataset_takes_its_tasks(world: World) -> None:
    did = f"did:odf:fed01{'ab' * 32}"
    mirror = f"$schema: Mirror\nheaders: {{name: theirs}}\nspec: {{source: '{did}'}}\n"
    async with world.running("alice") as alice:
        await alice.apply(SOURCE, EMPTY_ROOT.format(name="bare"), ROOT, DERIVED, mirror)
        cases = {
            ("bare", INGEST): "Ready", ("towns", TRANSFORM): "Ready", ("towns", INGEST): "Failed",
            ("cities", TRANSFORM): "Failed", ("theirs", INGEST): "Failed", ("theirs", TRANSFORM): "Failed",
        }  # fmt: skip
        texts = [TASK.format(name=f"f{at}", target=target, task=task) for at, (target, task) in enumerate(cases)]
        await alice.apply(*texts)
        told = [await status(alice, "Flow", f"f{at}") for at in range(len(cases))]
        assert [each["phase"] for each in told] == list(cases.values())
        assert {each["code"] for each in told if each["phase"] == "Failed"} == {"flow-target"}


async def test_a_flow_waits_for_its_source_and_says_that_its_dataset_has_another(world: World) -> None:
    flows = [TASK.format(name=f"f-{each}", target=each, task=INGEST) for each in ("bare", "cities")]
    async with world.running("alice") as alice:
        await alice.apply(EMPTY_ROOT.format(name="bare"), ROOT, *flows)
        for name in ("f-bare", "f-cities"):
            told = await status(alice, "Flow", name)
            assert (told["phase"], told["code"]) == ("Failed", "unresolved-reference")
            assert told["message"] == "no Source 'files' here"
        await alice.apply(SOURCE)
        assert (await status(alice, "Flow", "f-bare"))["phase"] == "Ready"
        told = await status(alice, "Flow", "f-cities")
        assert (told["phase"], told["code"]) == ("Failed", "second-source")
        await alice.api.declarations.delete("Source", "files")
        assert (await status(alice, "Flow", "f-bare"))["code"] == "unresolved-reference"
        assert not alice.api.flows.counts().flows, "nothing of it runs"
