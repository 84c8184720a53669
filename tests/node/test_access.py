"""Accounts, groups, labels, relations: what may not be read is nowhere, and what may not be done is refused."""

from __future__ import annotations

import base64
import json
import os
import random
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
import trio

from chain.errors import Fault, Invalid
from chain.ids import DatasetId
from chain.instant import Instant
from odfd.access.relations import Action, Principal, Role
from odfd.api.access.requests import AccessControl
from odfd.api.access.rules import RULES
from odfd.api.routes import application
from odfd.api.services import operations
from odfd.control import wire
from odfd.control.endpoint import CALLER, OWNED, Caller
from odfd.control.endpoint import GRANT as REMOTE
from odfd.control.operations import DATASET_PATH, Owner, Permission, RequestBody, signature_of
from odfd.errors import to_problem
from odfd.resources import tables
from odfd.resources.store import ResourceStore
from odfd.services.resources.reconciler import Reconciler
from odfd.store import access_state
from odfd.store.idempotency import AnswerStore
from worlds.accounts_world import ACCOUNT, ALICE, BOB, DATASET, GRANT, MINE, NOBODY, Asking, settled, steady
from worlds.called_services import CalledServices
from worlds.eventually import PATIENCE
from worlds.faults import breaks
from worlds.node_world import World

# Accounts and relations: what may not be read is not there, whatever the way; what may not be done is refused.


async def test_the_owner_of_the_node_keeps_every_right(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        for uid in (0, os.geteuid()):
            assert await asking.datasets(uid) == ["hers", "theirs"]
        assert (await asking.ask(0, "GET", "/node/v1alpha1/settings"))[0] == 200
        assert (await asking.ask(0, "GET", "/dataset/v1alpha1/datasets", scope={OWNED: True}))[0] == 200
        status, problem = await asking.ask(0, "GET", "/dataset/v1alpha1/datasets", scope={})
        assert (status, problem["rule"]) == (403, "access-caller")


async def test_without_callers_of_accounts_whom_the_socket_admits_is_the_owner(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = Asking(node)
        await node.apply(DATASET.format(name="theirs", more=""))
        assert len(await asking.datasets(NOBODY)) == 1
        await node.apply(ACCOUNT.format(name="alice", uid=ALICE))
        assert await asking.datasets(NOBODY) == []
        status, problem = await asking.ask(NOBODY, "POST", "/resource/v1alpha1/apply", [{"$schema": "Dataset"}])
        assert (status, problem["rule"]) == (401, "access-identity")


async def test_pushes_to_a_source_need_a_right_over_it(world: World) -> None:
    """By the same words for a Source that may not be seen as for none."""
    text = "$schema: Source\nheaders: {name: sensors}\nspec: {read: {kind: NdJson}}\n"
    grant = GRANT.replace("Dataset:{what}", "Source:{what}")
    way = ("POST", "/source/v1alpha1/sources/{}/ingest", {"a": 1})
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await node.apply(text)

        async def told(uid: int, name: str) -> tuple[int, str]:
            status, problem = await asking.ask(uid, way[0], way[1].format(name), way[2])
            return status, json.dumps(problem).replace(name, "NAME")

        for uid in (BOB, NOBODY):
            assert await told(uid, "sensors") == await told(uid, "nothing")
        await node.apply(grant.format(name="g", who="bob", role="reader", what="sensors"))
        assert (await asking.ask(BOB, "GET", "/source/v1alpha1/sources/sensors/endpoint"))[0] == 200
        assert (await asking.ask(BOB, *way[:1], way[1].format("sensors"), way[2]))[0] == 403
        assert (await asking.ask(BOB, "DELETE", "/source/v1alpha1/sources/sensors/waiting"))[0] == 403
        await node.apply(grant.format(name="g", who="bob", role="editor", what="sensors"))
        status, receipt = await asking.ask(BOB, "POST", "/source/v1alpha1/sources/sensors/ingest", {"a": 1})
        assert (status, receipt["records"], receipt["durable"]) == (201, 1, True)
        assert (await asking.ask(BOB, "DELETE", "/source/v1alpha1/sources/sensors/waiting"))[1]["dropped"] == 1


async def test_relations_hold_when_the_apply_has_answered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No controller has to come by: who may do what never lags behind what was applied."""

    async def never(*_: object) -> None:
        await trio.sleep_forever()

    async with world.running("node", private=True) as node:
        asking = await settled(node)
        monkeypatch.setattr(Reconciler, "_turn", never)
        assert await asking.datasets(BOB) == []
        await node.apply(GRANT.format(name="g", who="bob", role="reader", what="alice/hers"))
        assert await asking.datasets(BOB) == ["hers"]


async def test_an_account_sees_its_own_and_what_is_granted_and_loses_it_at_once(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)

        async def names(uid: int) -> list[str]:
            return await asking.datasets(uid)

        assert (await names(ALICE), await names(BOB), await names(NOBODY)) == (["hers"], [], [])
        await asking.apply(ALICE, GRANT.format(name="to-bob", who="bob", role="reader", what="hers"))
        assert (await names(BOB), await names(NOBODY)) == (["hers"], [])
        one = f"/dataset/v1alpha1/datasets/{node.dataset('hers')}"
        status, problem = await asking.ask(BOB, "POST", one + "/rename", {"name": "his"})
        assert (status, problem["rule"]) == (403, "access-role")
        assert "Dataset:hers needs the role maintainer, and bob is its reader" in problem["detail"]
        assert "value: maintainer, object: Dataset:hers" in problem["hint"]
        await asking.apply(ALICE, GRANT.format(name="to-bob", who="bob", role="maintainer", what="hers"))
        assert (await asking.ask(BOB, "POST", one + "/rename", {"name": "ours"}))[0] == 200
        assert (await (await asking.services(BOB)).declarations.get("Dataset", "alice/ours")).name == "ours"
        assert (await asking.ask(BOB, "DELETE", one))[0] == 403
        assert (await asking.ask(ALICE, "DELETE", "/auth/v1alpha1/relations/to-bob"))[0] == 200
        assert await names(BOB) == []
        assert (await asking.ask(ALICE, "DELETE", "/dataset/v1alpha1/datasets/ours"))[0] == 200


async def test_the_account_of_a_resource_is_who_applies_it_or_who_is_named(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await asking.apply(BOB, DATASET.format(name="his", more=""))
        _, listed = await asking.ask(BOB, "GET", "/dataset/v1alpha1/datasets")
        (view,) = listed["items"]
        assert view["headers"]["account"]["name"] == "bob"
        # What is printed is taken again, and changes nothing.
        for account in ("{name: bob}", json.dumps(view["headers"]["account"]), view["headers"]["account"]["id"]):
            (item,) = (await asking.apply(BOB, DATASET.format(name="his", more=f", account: {account}"))).items
            assert item.action == "unchanged"
        with breaks("no-such-account"):
            await node.apply(DATASET.format(name="new", more=", account: carol"))
        with breaks("access-account"):
            await asking.apply(BOB, DATASET.format(name="new", more=", account: alice"))
        id_ = view["headers"]["id"]
        (given,) = (await node.apply(DATASET.format(name="his", more=f", id: {id_}, account: alice"))).items
        assert (given.action, given.changes[0].split()[:2]) == ("updated", ["~", "account:"])
        assert await asking.datasets(ALICE) == [
            "hers",
            "his",
        ]
        assert await asking.datasets(BOB) == []


SOURCE = "$schema: Source\nheaders: {{name: {name}}}\nspec: {{read: {{kind: NdJson}}{more}}}\n"
SIGNED = (
    ', config: {k: "SecretSet:%s#a"}'
    ', ingress: {kind: RestEndpoint, signature: {kind: StandardWebhooks, secret: "${{ config.k }}"}}'
)
FETCH = ", ingress: {kind: FilesGlob, path: /etc/passwd}"
REFUSED: list[tuple[str, str]] = [
    ("$schema: Repository\nheaders: {name: mine}\nspec: {url: 'https://example.org/'}\n", "access-owner"),
    ("$schema: Account\nheaders: {name: carol}\nspec: {email: c@example.com}\n", "access-owner"),
    (GRANT.format(name="r", who="bob", role="reader", what="theirs"), "resource"),
    (GRANT.format(name="r", who="bob", role="reader", what="owner/theirs"), "resource"),
    (GRANT.format(name="r", who="bob", role="reader", what="nothing"), "resource"),
    ('$schema: Relations\nheaders: {name: r}\nspec:\n  attributes:\n'
     '  - {object: "Account:alice", name: admin, value: true}\n', "access-owner"),
    ("$schema: Dataset\nheaders: {name: polled}\nspec: {kind: Root, metadata: [{kind: SetPollingSource, fetch: {kind: "
     "FilesGlob, path: /etc/passwd}, read: {kind: Csv}, merge: {kind: Append}}]}\n", "access-source"),
    (SOURCE.format(name="polled", more=FETCH), "access-source"),
    (SOURCE.format(name="s", more=SIGNED % "bob/values"), "resource"),
    (SOURCE.format(name="s", more=SIGNED % "bob/nothing"), "resource"),
    (SOURCE.format(name="s", more=SIGNED % "values"), "resource"),
    (DATASET.format(name="theirs", more=", account: owner"), "access-account"),
    (DATASET.format(name="nothing", more=", account: owner"), "access-account"),
    (DATASET.format(name="nothing", more=", account: nobody"), "access-account"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "rule"), REFUSED, ids=[f"{at}-{rule}" for at, (_, rule) in enumerate(REFUSED)])
async def test_accounts_apply_what_is_theirs_alone(world: World, text: str, rule: str) -> None:
    """Attack T-ACCOUNT-02: making the node read a file, a network or a secret of its owner, by a polling source or by
    the name of a set.

    Defence: accounts cannot apply polling sources or sets; a dataset under the name of a set is refused.
    """
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await asking.apply(BOB, "$schema: SecretSet\nheaders: {name: values}\nspec: {secrets: {a: b}}\n")
        with breaks(rule) as refused:
            await asking.apply(ALICE, text)
        assert refused.value.hint


async def test_what_an_account_writes_as_the_format_has_it_is_its_own(world: World) -> None:
    old = "kind: DatasetSnapshot\nversion: 1\ncontent: {name: theirs, kind: Root, metadata: []}\n"
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        (item,) = (await asking.apply(ALICE, old)).items
        assert item.action == "created"
        assert await asking.datasets(BOB) == []
        polled = "[{kind: SetPollingSource, fetch: {kind: FilesGlob, path: /etc/passwd}, read: {kind: Csv}, merge: "
        with breaks("access-source"):
            await asking.apply(ALICE, old.replace("[]", f"{polled}{{kind: Append}}}}]"))


async def test_what_another_resource_made_is_not_deleted_by_the_account_that_has_it(world: World) -> None:
    timed = """$schema: Dataset
headers: {name: timed, annotations: {schedule: {every: 1h}}}
spec:
  kind: Derivative
  metadata:
  - kind: SetTransform
    inputs: [{datasetRef: hers, alias: a}]
    transform: {kind: Sql, engine: spark, query: select * from a}
"""
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await asking.apply(ALICE, timed)
        (made,) = (await asking.ask(ALICE, "GET", "/flow/v1alpha1/flows"))[1]["items"]
        for ref in (made["headers"]["name"], made["headers"]["id"]):
            status, problem = await asking.ask(ALICE, "DELETE", f"/flow/v1alpha1/flows/{ref}")
            assert (status, problem["rule"]) == (422, "owned")
            status, problem = await asking.ask(BOB, "DELETE", f"/flow/v1alpha1/flows/{ref}")
            assert (status, problem["rule"]) == (404, "resource")


async def test_accounts_pull_from_no_source(world: World) -> None:
    """Attack T-ACCOUNT-02: a Source of the owner, fetched by an account into a dataset of its own.

    Defence: only the owner of the node applies Sources that the node fetches, and pulls from them; a flow of an account
    takes from one only with the role editor on it.
    """
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        body = {"refs": ["hers"], "source": "any"}
        status, problem = await asking.ask(ALICE, "POST", "/node/v1alpha1/pull", body)
        assert (status, problem["rule"]) == (403, "access-owner")


async def test_a_maintainer_does_not_take_a_dataset_over(world: World) -> None:
    """Attack T-ACCOUNT-02: a maintainer who names their own account in a manifest, to own the dataset.

    Defence: a change of the account needs the role owner.
    """
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await asking.apply(ALICE, GRANT.format(name="g", who="bob", role="maintainer", what="hers"))
        one = f"/dataset/v1alpha1/datasets/{node.dataset('hers')}"
        id_ = (await asking.ask(BOB, "GET", one))[1]["headers"]["id"]
        for number, named in enumerate((f", id: {id_}", ", account: alice", f", id: {id_}, account: alice")):
            (item,) = (
                await asking.apply(BOB, DATASET.format(name="hers", more=f"{named}, labels: {{by: b{number}}}"))
            ).items
            assert (item.action, item.id) == ("updated", str(node.dataset("alice/hers")))
        assert [each.name for each in node.home.entries()] == ["hers", "theirs"]
        with breaks("access-role"):
            await asking.apply(BOB, DATASET.format(name="hers", more=f", id: {id_}, account: bob"))
        with breaks("access-role"):
            await asking.apply(BOB, GRANT.format(name="more", who="bob", role="owner", what="alice/hers"))
        assert (await asking.ask(BOB, "POST", one + "/rename", {"name": "his"}))[0] == 200


async def test_a_list_with_what_is_of_others_is_applied_again_while_that_is_unchanged(world: World) -> None:
    """Nothing at all is done about what is as it is printed, and no chain is set back."""
    mine = "$schema: VariableSet\nheaders: {name: mine}\nspec: {variables: {x: '%s'}}\n"
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await asking.apply(ALICE, GRANT.format(name="g", who="bob", role="reader", what="hers"))
        await asking.apply(BOB, mine % 1)
        _, listed = await asking.ask(BOB, "GET", "/dataset/v1alpha1/datasets")
        assert {each["headers"]["name"] for each in listed["items"]} == {"hers"}
        size = node.size("alice/hers")
        result = await asking.apply(BOB, *map(json.dumps, listed["items"]), mine % 2)
        assert {(each.name, each.action) for each in result.items} == {
            ("hers", "unchanged"), ("mine", "updated"),
        }  # fmt: skip
        assert node.size("alice/hers") == size
        for part, change in (("headers", {"labels": {"by": "bob"}}), ("spec", {"metadata": [{"kind": "SetInfo"}]})):
            wrong = [
                each | {part: each[part] | change} for each in listed["items"] if each["headers"]["name"] == "hers"
            ]
            with pytest.raises(Fault) as refused:
                await asking.apply(BOB, *map(json.dumps, wrong), mine % 3)
            assert refused.value.rule == "access-role"


async def test_a_statement_ends_when_its_author_loses_the_object(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await asking.apply(ALICE, GRANT.format(name="g", who="bob", role="reader", what="hers"))
        one = f"/dataset/v1alpha1/datasets/{node.dataset('hers')}"
        status, view = await asking.ask(BOB, "GET", one)
        assert status == 200
        await node.apply(ACCOUNT.format(name="carol", uid=70009))
        await node.apply(DATASET.format(name="hers", more=f", id: {view['headers']['id']}, account: carol"))
        assert (await asking.ask(BOB, "GET", one))[0] == 404


async def test_a_name_that_is_used_again_gives_nobody_what_its_former_bearer_had(world: World) -> None:
    """Attack T-ACCOUNT-02: creating a dataset under a name that had roles, or waiting for the name to be reused.

    Defence: references mean ids; statements of former owners end with their ownership.
    """
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await node.apply(GRANT.format(name="g", who="bob", role="reader", what="theirs"))
        assert (await asking.ask(BOB, "GET", "/dataset/v1alpha1/datasets/theirs"))[0] == 200
        await node.api.declarations.delete("Dataset", "theirs")
        await node.apply(DATASET.format(name="theirs", more=""))
        assert (await asking.ask(BOB, "GET", "/dataset/v1alpha1/datasets/theirs"))[0] == 404


async def test_an_input_that_may_not_be_read_is_told_of_as_one_that_is_not_here(world: World) -> None:
    """Attack T-ACCOUNT-01: deriving from an unreadable dataset, to read its rows.

    Defence: inputs must be readable; others appear not to exist.
    """
    derived = """$schema: Dataset
headers: {{name: mine}}
spec:
  kind: Derivative
  metadata:
  - {{kind: SetTransform, inputs: [{{datasetRef: {ref}}}], transform: {{kind: Sql, engine: spark, query: select 1}}}}
"""
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        told = []
        for ref in ("theirs", "absent"):
            with pytest.raises(Fault) as refused:
                await asking.apply(ALICE, derived.format(ref=ref))
            told.append(json.dumps(to_problem(refused.value)).replace(ref, "REF"))
        assert told[0] == told[1]


async def test_a_list_is_of_an_account_and_of_others_there_is_nothing(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)

        async def named(uid: int, account: str) -> Any:
            status, answer = await asking.ask(uid, "GET", "/dataset/v1alpha1/datasets", query=f"account={account}")
            return [each["headers"]["name"] for each in answer["items"]] if status == 200 else (status, answer["rule"])

        assert [await named(0, each) for each in ("alice", "", "bob")] == [["hers"], ["theirs"], []]
        assert [await named(ALICE, each) for each in ("alice", "")] == [["hers"], ["hers"]]
        assert await named(ALICE, "bob") == await named(ALICE, "nobody") == (404, "resource")
        _, me = await asking.ask(ALICE, "GET", "/auth/v1alpha1/self")
        assert (me["name"], me["nodeOwner"]) == ("alice", False)


ONE = "/dataset/v1alpha1/datasets/{}"
PUBLIC = {"attributes": [{"object": "Dataset:{}", "name": "allowPublicRead", "value": True}]}
WAYS: dict[str, list[tuple[str, str, Any]]] = {
    "datasets.describe": [("GET", ONE + "/detail", None)],
    "datasets.declared": [("PATCH", ONE, {"headers": {"labels": {"c": "d"}}})],
    "renditions.list": [("GET", "/dataset/v1alpha1/datasets/{}/renditions", None)],
    "applying.rename": [
        ("POST", ONE + "/rename", {"name": "mine"}),
        ("POST", "/graphql", {"query": 'mutation {rename(ref: "Dataset:{}", name: "mine")}'}),
    ],
    "applying.apply": [
        ("POST", "/resource/v1alpha1/apply", {"$schema": "Relations", "headers": {"name": "r"}, "spec": PUBLIC}),
        ("PATCH", "/dataset/v1alpha1/dataset/{}", {"headers": {"labels": {"a": "b"}}}),
    ],
    "declarations.get": [
        ("GET", ONE, None), ("GET", "/dataset/v1alpha1/dataset/{}", None),
        ("POST", "/graphql", {"query": '{resource(ref: "Dataset:{}")}'}),
    ],
    "declarations.label": [("PUT", ONE + "/labels", {"labels": {"a": "b"}})],
    "declarations.delete": [
        ("DELETE", ONE, None), ("DELETE", "/dataset/v1alpha1/dataset/{}", None),
        ("POST", "/graphql", {"query": 'mutation {delete(ref: "Dataset:{}")}'}),
    ],
    "queries.answer": [("POST", "/node/v1alpha1/query", {"sql": 'select * from "{}"'}),
                       ("POST", "/node/v1alpha1/query", {"sql": 'select * from current."{}"', "explain": True})],
    "search.card": [("GET", "/node/v1alpha1/cards/{did}", None)],
    "flow.ingest": [("POST", "/dataset/v1alpha1/datasets/{}/ingest", {"uploads": ["u"]})],
    "flow.correct": [("POST", "/dataset/v1alpha1/datasets/{}/correct", {"key": {"x": "1"}})],
    "flow.alter_schema": [("POST", ONE + "/schema", {"action": "add", "columns": ["city STRING"]})],
    "flow.set_watermark": [("PUT", "/dataset/v1alpha1/datasets/{}/watermark", {"time": "2020-01-01T00:00:00Z"})],
    "flow.pull": [("POST", "/node/v1alpha1/pull", {"refs": ["{}"]})],
    "flows.backfill": [("POST", "/flow/v1alpha1/flows/{}/backfill", {"from": "2024-01-01", "to": "2024-01-02"}),
                       ("POST", "/flow/v1alpha1/flows/hers/backfill",
                        {"from": "2024-01-01", "to": "2024-01-02", "target": "{}"})],
    "flows.pause": [("PUT", "/flow/v1alpha1/flows/{}/pause", None)],
    "flows.resume": [("DELETE", "/flow/v1alpha1/flows/{}/pause", None)],
    "flows.run": [("POST", "/flow/v1alpha1/flows/{}/run", {"target": None}),
                  ("POST", "/flow/v1alpha1/flows/hers/run", {"target": "{}"})],
    "visibility.publish": [("POST", "/node/v1alpha1/publish", {"refs": ["{}"]})],
    "visibility.unpublish": [("POST", "/node/v1alpha1/unpublish", {"refs": ["{}"]})],
}  # fmt: skip
"""By operation, the requests that name a dataset, but for those that its declaration says."""


def declared_ways() -> Iterator[tuple[str, list[tuple[str, str, Any]]]]:
    """The request of each operation that needs a right on the dataset in its path, and nothing in its body."""
    for each in operations().values():
        method, path = each.operation.method, each.operation.path
        if not (isinstance(each.operation.needs, Action) and path.startswith(DATASET_PATH)):
            continue
        bodies = [
            one.source.kind for one in signature_of(each.function, path).given if isinstance(one.source, RequestBody)
        ]
        if not any(field.required for kind in bodies for field in msgspec.structs.fields(kind)):
            where = re.sub(r"\{\w+\}", lambda part: "{}" if part[0] == "{ref}" else "0", path)
            yield each.name, [(method, where, {} if bodies else None)]


LISTS: dict[str, list[tuple[str, str, Any]]] = {
    "declarations.list": [("GET", "/resource/v1alpha1/resources", None),
                          ("POST", "/graphql", {"query": "{datasets {items {name}}}"}),
                          ("POST", "/graphql", {"query": "{resources {items}}"})],
    "declarations.page": [
        ("GET", "/dataset/v1alpha1/datasets", None), ("GET", "/net/v1alpha1/mirrors", None),
        ("GET", "/flow/v1alpha1/flows", None), ("GET", "/flow/v1alpha1/tasks", None),
    ],
    "search.search": [("POST", "/node/v1alpha1/search", {"words": [word]}) for word in ("", "theirs")],
    "about.status": [("GET", "/node/v1alpha1/status", None)],
    "history.last": [("GET", "/resource/v1alpha1/changes", None)],
}  # fmt: skip
"""What lists datasets, or what is done with them."""
ELSEWHERE = {
    "lineage.graph": "test_the_lineage_of_what_may_be_read_names_nothing_else",
    "lineage.trace": "test_the_lineage_of_what_may_be_read_names_nothing_else",
    "events.kept": "test_answers_to_an_account_are_the_same_bytes_whatever_others_do",
    "events.follow": "test_a_stream_ends_with_a_reset_when_rights_change_and_tells_nothing_after",
    "history.follow": "test_a_stream_ends_with_a_reset_when_rights_change_and_tells_nothing_after",
    "log_lines.last": "test_lines_of_a_task_are_numbered_by_themselves_and_end_with_the_right",
    "log_lines.follow": "test_lines_of_a_task_are_numbered_by_themselves_and_end_with_the_right",
    "endpoints.drop": "test_pushes_to_a_source_need_a_right_over_it",
    "endpoints.push": "test_pushes_to_a_source_need_a_right_over_it",
    "endpoints.show": "test_pushes_to_a_source_need_a_right_over_it",
    "declarations.stated": "test_what_only_the_running_node_knows_is_told_of_what_may_be_seen",
    "declarations.news": "test_a_watch_tells_of_what_may_be_read",
    "tasks.get": "test_a_task_of_others_is_not_there",
    "tasks.follow": "test_a_task_of_others_is_not_there",
    "tasks.cancel": "test_a_task_of_others_is_not_there",
    "accounts.me": "test_a_list_is_of_an_account_and_of_others_there_is_nothing",
    "accounts.create_token": "test_tokens_are_of_the_account_that_asks",
    "accounts.tokens": "test_tokens_are_of_the_account_that_asks",
    "accounts.revoke_token": "test_tokens_are_of_the_account_that_asks",
    "flow.stage": "test_without_callers_of_accounts_whom_the_socket_admits_is_the_owner",
}
TELL_NOTHING = {"schemas.types", "schemas.explain", "schemas.schema", "declarations.secret_key"}


def test_each_operation_has_a_way_that_shows_what_others_get_of_it_or_is_the_owners() -> None:
    """Attack T-ACCOUNT-02: using a new operation without access rules.

    Defence: an operation declares which callers may use it, and without that it does not exist; a test requires a case
    that shows what other callers get of it.
    """
    every = operations().values()
    assert {each.function for each in every if each.operation.needs is Permission.BY_RULE} == RULES.keys()
    others = {each.name for each in every if not isinstance(each.operation.needs, Owner)}
    declared = dict(declared_ways())
    assert len(declared) >= 10, "the test no longer finds what it is about"
    assert not declared.keys() & WAYS.keys(), "its declaration says it"
    assert WAYS.keys() | declared.keys() | LISTS.keys() | ELSEWHERE.keys() | TELL_NOTHING == others
    told = Path(__file__).with_name("test_told_accounts.py").read_text()
    assert set(ELSEWHERE.values()) <= set(re.findall(r"def (test_\w+)", Path(__file__).read_text() + told))


def filled(said: Any, ref: str, did: str) -> Any:
    """A request with the names of a dataset in their places."""
    if not said:
        return said
    text = json.dumps(said)
    return json.loads(text.replace("{did}", did).replace("{}", ref))


@pytest.mark.parametrize("uid", [ALICE, NOBODY])
async def test_what_may_not_be_read_answers_as_what_is_not_there(world: World, uid: int) -> None:
    """Attack T-ACCOUNT-01: asking for a private dataset by name or did, by each path, GraphQL, SQL, search and card, to
    learn that it exists.

    Defence: the answer has the words for a missing dataset, after the same lookups.

    Of one node, since a refused operation changes nothing of it.
    """
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await node.apply("$schema: Flow\nheaders: {name: theirs}\n"
                         "spec: {target: theirs, triggers: [{kind: Schedule, every: 1h}]}\n")  # fmt: skip
        before = await node.dataset_views(), node.size("theirs")
        hidden, absent = str(node.dataset("theirs")), str(DatasetId.from_public_key(bytes([7] * 32)))
        short = {hidden: DatasetId.parse(hidden).short, absent: DatasetId.parse(absent).short}
        for method, path, body in (way for ways in (*WAYS.values(), *dict(declared_ways()).values()) for way in ways):
            for theirs, nothing in (("theirs", "absent"), (hidden, absent)):
                told = []
                for ref, did in ((theirs, hidden), (nothing, absent)):
                    where, sent = filled(path, ref, did), filled(body, ref, did)
                    status, answer = await asking.ask(uid, method, where, sent)
                    text = (
                        json.dumps(answer, ensure_ascii=False)
                        if not isinstance(answer, bytes)
                        else answer.decode("latin-1")
                    )
                    told.append((status, text.replace(did, "DID").replace(short[did], "DID").replace(ref, "REF")))
                assert told[0] == told[1], (method, path)
                assert told[0][0] < 500, (method, path)
                assert '"hers"' not in told[0][1] or uid == ALICE
        assert (await node.dataset_views(), node.size("theirs")) == before


@pytest.mark.parametrize("uid", [ALICE, NOBODY])
async def test_lists_are_those_of_a_node_without_what_may_not_be_read(world: World, uid: int) -> None:
    """Attack T-ACCOUNT-01: comparing lists of datasets, resources and tasks, or their counts.

    Defence: lists leave out unreadable items, and count only the shown ones.
    """
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        told = []
        for _ in range(2):
            asked = [request for requests in LISTS.values() for request in requests]
            told.append([(request, steady(await asking.ask(uid, *request))) for request in asked])
            if "theirs" in {entry.name for entry in node.home.entries()}:
                await node.api.declarations.delete("Dataset", "theirs")
        assert told[0] == told[1]
        assert "theirs" not in json.dumps([body for _, (_, body) in told[0]])


async def test_a_watch_tells_of_what_may_be_read(world: World) -> None:
    """Attack T-ACCOUNT-01: watching resources of others, or resources whose right was revoked since.

    Defence: a watch checks each change; when the watcher's rights change it ends with `Reset`, and the client lists
    again.
    """
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        heard: list[tuple[str, str]] = []
        enough = trio.Event()

        async def watch() -> None:
            services = await asking.services(BOB)
            async with aclosing(services.declarations.news(None, "dataset")) as news:
                async for shared in news:
                    each = shared.value
                    heard.append((each.op, each.resource.name if each.resource else ""))
                    if each.op == "Reset":
                        enough.set()

        await asking.apply(ALICE, GRANT.format(name="g", who="bob", role="reader", what="hers"))
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch)
                while ("Bookmark", "") not in heard:
                    await trio.lowlevel.checkpoint()
                await node.apply(DATASET.format(name="theirs", more=", labels: {a: b}"))
                await asking.apply(ALICE, "$schema: Relations\nheaders: {name: g}\nspec: {}\n")
                await asking.apply(ALICE, DATASET.format(name="hers", more=", labels: {a: b}"))
                await enough.wait()
                nursery.cancel_scope.cancel()
        assert {name for _, name in heard} == {"hers", ""}
        assert next(op for op, name in heard if name) == "Added"
        assert heard[-1] == ("Reset", "")
        assert (await asking.ask(BOB, "GET", "/dataset/v1alpha1/datasets"))[1]["items"] == []


async def test_an_account_goes_on_over_restarts_unless_its_rights_changed_meanwhile(world: World) -> None:
    """What others change in between is not told, and does not end it."""

    async def news(asking: Asking, since: str | None) -> list[tuple[str, str, str]]:
        """Until the bookmark, the first change, or the end."""
        services, heard = await asking.services(BOB), []
        with trio.fail_after(PATIENCE):
            async with aclosing(services.declarations.news(since, "dataset")) as told:
                async for shared in told:
                    each = shared.value
                    heard.append((each.op, each.resource.name if each.resource else "", each.version))
                    if each.op == "Bookmark" or since is not None:
                        break
        return heard

    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await asking.apply(ALICE, GRANT.format(name="g", who="bob", role="reader", what="hers"))
        since = (await news(asking, None))[-1][2]
        await node.apply(GRANT.format(name="other", who="alice", role="reader", what="theirs"))
        await node.apply(DATASET.format(name="theirs", more=", labels: {a: b}"))
        await asking.apply(ALICE, DATASET.format(name="hers", more=", labels: {a: b}"))
    async with world.running("node", private=True) as node:
        asking = Asking(node)
        ((op, name, later),) = await news(asking, since)
        assert (op, name) == ("Modified", "hers")
        await asking.apply(ALICE, "$schema: Relations\nheaders: {name: g}\nspec: {}\n")
    async with world.running("node", private=True) as node:
        asking = Asking(node)
        for each in (since, later):
            assert [op for op, _, _ in await news(asking, each)] == ["Reset"]
        ((_, _, anew),) = await news(asking, None)
        await node.apply(DATASET.format(name="more", more=""))
        await node.apply(GRANT.format(name="g2", who="bob", role="reader", what="more"))
    async with world.running("node", private=True) as node:
        # It is new to whom it is told: nothing that stood is readable now and was not.
        assert [op for op, _, _ in await news(Asking(node), anew)] == ["Added"]
        forged = anew[:-1] + ("0" if anew[-1] != "0" else "1")
        assert [op for op, _, _ in await news(Asking(node), forged)] == ["Reset"]


async def test_a_condition_on_what_may_not_be_read_answers_as_on_what_is_not_there(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        for method in ("GET", "DELETE"):
            told = [
                await asking.ask(ALICE, method, f"/dataset/v1alpha1/dataset/{ref}", query=f"generation={number}")
                for ref in ("theirs", "absent")
                for number in (1, 7)
            ]
            assert {status for status, _ in told} == {404}
            assert len({json.dumps(answer).replace("theirs", "absent") for _, answer in told}) == 1
        status, _ = await asking.ask(ALICE, "GET", "/dataset/v1alpha1/dataset/hers", query="generation=7")
        assert status == 412


async def test_pages_are_filled_with_what_may_be_read_and_their_tokens_name_nothing_else(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await node.apply(*(DATASET.format(name=f"hidden-{each}", more="") for each in ("a", "b", "z")))
        await asking.apply(ALICE, DATASET.format(name="open-a", more=""), DATASET.format(name="open-b", more=""))
        found, query = [], "limit=1"
        while True:
            status, page = await asking.ask(ALICE, "GET", "/dataset/v1alpha1/datasets", query=query)
            assert status == 200
            found += [each["headers"]["name"] for each in page["items"]]
            assert len(page["items"]) == 1
            if page.get("continue") is None:
                break
            assert b"hidden" not in base64.urlsafe_b64decode(page["continue"] + "==")
            query = f"limit=1&continue={page['continue']}"
        assert found == ["hers", "open-a", "open-b"]


async def test_a_task_of_others_is_not_there(world: World) -> None:
    """Attack T-ACCOUNT-01: asking for the task of another, which names datasets and rows.

    Defence: tasks are found only by the account that started them, and by accounts that may read all datasets that they
    name.
    """
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        ref = await (await asking.services(ALICE)).verification.verify("hers", wire.VerifyRequest())
        for way, body in (("GET", None), ("DELETE", None)):
            status, problem = await asking.ask(BOB, way, f"/node/v1alpha1/tasks/{ref.id}", body)
            missing = await asking.ask(BOB, way, "/node/v1alpha1/tasks/t999", body)
            assert (status, problem["detail"].replace(ref.id, "t999")) == (missing[0], missing[1]["detail"])
        bobs = await asking.services(BOB)
        with pytest.raises(Fault):
            await anext(bobs.tasks.follow(ref.id))
        listed = (await asking.ask(ALICE, "GET", "/flow/v1alpha1/tasks"))[1]["items"]
        assert [each["headers"]["name"] for each in listed] == [ref.id]
        assert (await asking.ask(BOB, "GET", "/flow/v1alpha1/tasks"))[1]["items"] == []


async def test_what_is_open_to_callers_of_the_socket_is_not_given_to_peers(world: World) -> None:
    """Attack T-PRIVATE-06: opening a dataset to local callers, so that peers get it.

    Defence: `allowAnonymousRead` is for the socket; peers get published datasets, which the role owner publishes.
    """
    text = """$schema: Relations
headers: {name: open}
spec: {attributes: [{object: "Dataset:theirs", name: allowAnonymousRead, value: true}]}
"""
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await node.apply(text)
        for uid in (ALICE, NOBODY):
            assert (await asking.ask(uid, "GET", "/dataset/v1alpha1/datasets/theirs"))[0] == 200
            assert (await asking.ask(uid, "POST", "/node/v1alpha1/publish", {"refs": ["theirs"]}))[0] in (401, 403)
        assert not node.parts.visibility.is_public(node.dataset("theirs"))


async def test_an_administrator_is_as_the_owner_and_others_who_ask_for_it_are_refused(world: World) -> None:
    text = """$schema: Relations
headers: {name: admins}
spec: {attributes: [{object: "Account:alice", name: admin, value: true}]}
"""
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        status, problem = await asking.ask(ALICE, "GET", "/node/v1alpha1/settings")
        assert (status, problem["rule"]) == (403, "access-owner")
        assert "you act as alice" in problem["detail"]
        await node.apply(text)
        assert (await asking.ask(ALICE, "GET", "/node/v1alpha1/settings"))[0] == 200
        assert (await asking.ask(ALICE, "GET", "/node/v1alpha1/settings", as_="bob"))[0] == 403


async def test_an_account_changes_no_account_not_even_its_own(world: World) -> None:
    """Attack T-ACCOUNT-02: deleting the own account, the last that names a user, so that all users are the owner again;
    or making it name the user of another.

    Defence: only the node's owner changes accounts.
    """
    async with world.running("node", private=True) as node:
        asking = Asking(node)
        await node.apply(ACCOUNT.format(name="alice", uid=ALICE))
        seize = {"annotations": {"unixCallers": {"users": [str(BOB)]}}}
        for method, path, body in (
            ("DELETE", "/auth/v1alpha1/accounts/alice", None),
            ("DELETE", "/auth/v1alpha1/accounts/alice", None),
            ("PUT", "/auth/v1alpha1/accounts/alice/labels", seize),
            ("PATCH", "/auth/v1alpha1/accounts/alice", {"headers": seize}),
        ):
            status, problem = await asking.ask(ALICE, method, path, body)
            assert (status, problem["rule"]) == (403, "access-owner"), (method, path)
        assert await asking.datasets(BOB) == []
        assert (await asking.ask(BOB, "GET", "/node/v1alpha1/settings"))[0] == 401


async def test_an_account_that_has_something_is_not_deleted(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        status, problem = await asking.ask(0, "DELETE", "/auth/v1alpha1/accounts/alice")
        assert (status, problem["rule"]) == (403, "account-in-use")
        assert "Account alice has Dataset hers" in problem["detail"]
        assert (await asking.ask(0, "DELETE", "/auth/v1alpha1/accounts/bob"))[0] == 200
        assert await asking.datasets(BOB) == []


async def test_an_answer_that_is_kept_is_of_who_asked(world: World) -> None:
    """Attack T-ACCOUNT-01: sending the `Idempotency-Key` of another's request, to get the answer.

    Defence: a key belongs to the user that sent it.

    The same key and body, of another user: not their answer.
    """
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        asking.app = application(
            node.services, structlog.get_logger(), AnswerStore(node.home.database, node.clock.now), asking.access
        )
        kept = {"idempotency-key": "k1"}
        said = {"refs": ["hers"]}
        assert (await asking.ask(ALICE, "POST", "/node/v1alpha1/publish", said, more=kept))[0] == 200
        assert (await asking.ask(ALICE, "POST", "/node/v1alpha1/publish", said, more=kept))[0] == 200
        assert (await asking.ask(BOB, "POST", "/node/v1alpha1/publish", said, more=kept))[0] != 200


async def test_members_of_a_group_act_as_the_account_that_names_it(world: World) -> None:
    lab = """$schema: Account
headers: {name: lab, annotations: {unixCallers: {groups: ["70010"]}}}
spec: {email: lab@example.com, accountType: Organization}
"""
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await node.apply(lab)
        for caller in (Caller(1, NOBODY, 70010), Caller(1, NOBODY, NOBODY, frozenset({5, 70010}))):
            _, me = await asking.ask(NOBODY, "GET", "/auth/v1alpha1/self", scope={CALLER: caller})
            assert me["name"] == "lab"
        both = Caller(1, ALICE, ALICE, frozenset({70010}))
        assert (await asking.ask(ALICE, "GET", "/auth/v1alpha1/self", scope={CALLER: both}))[1]["name"] == "alice"
        status, problem = await asking.ask(ALICE, "GET", "/auth/v1alpha1/self", scope={CALLER: both}, as_="bob")
        assert (status, problem["rule"]) == (403, "access-account")


async def test_a_derived_dataset_stops_where_its_account_may_not_read_an_input(world: World) -> None:
    """Attack T-ACCOUNT-02: continuing to derive, by hand or by a flow, after the right to read an input was revoked.

    Defence: each pull of a derived dataset checks whether its account may read the inputs.
    """
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await node.apply(GRANT.format(name="g", who="alice", role="reader", what="theirs"))
        (made,) = (await asking.apply(ALICE, MINE % node.dataset("theirs"))).items
        assert made.action == "created", made.fault
        (item,) = await node.pull("mine")
        assert item.fault is None or item.fault.rule != "access-use"
        await node.apply("$schema: Relations\nheaders: {name: g}\nspec: {}\n")
        (item,) = await node.pull("mine")  # by the owner of the node, for the account
        assert (item.outcome, item.fault.rule) == ("blocked", "access-use")
        assert "theirs" not in item.message


async def test_what_says_nothing_of_access_does_not_read_all_resources_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        computed: list[int] = []
        compute = access_state.state_of
        monkeypatch.setattr(access_state, "state_of", lambda *said: (computed.append(1), compute(*said))[1])

        async def lists() -> set[str]:
            return set(await asking.datasets(ALICE))

        assert await lists() == {"hers"}
        before = len(computed)
        for number in range(3):
            await node.apply(DATASET.format(name="theirs", more=f", labels: {{a: b{number}}}"))
            assert await lists() == {"hers"}
        with node.home.database.read() as connection:
            told = [
                (each.op, each.resource.type, each.resource.name) for each in ResourceStore(connection).events(0, 99)
            ]
        assert len(computed) == before, told
        await asking.apply(ALICE, DATASET.format(name="hers-too", more=""))
        assert await lists() == {"hers", "hers-too"}
        assert len(computed) > before


async def test_tokens_are_of_the_account_that_asks(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        status, problem = await asking.ask(0, "POST", "/auth/v1alpha1/tokens", {})
        assert (status, problem["rule"]) == (403, "token-account")
        status, problem = await asking.ask(NOBODY, "POST", "/auth/v1alpha1/tokens", {})
        assert (status, problem["rule"]) == (401, "access-identity")
        for body, rule in (
            ({"expires": "0s"}, "token-expires"),
            ({"expires": "367d"}, "token-expires"),
            ({"expires": "soon"}, "flow-duration"),
            ({"note": "a\nb"}, "token-note"),
            ({"role": "king"}, "request"),
        ):
            assert (await asking.ask(ALICE, "POST", "/auth/v1alpha1/tokens", body))[1]["rule"] == rule
        status, made = await asking.ask(ALICE, "POST", "/auth/v1alpha1/tokens", {"note": "hers"})
        assert (status, made["account"], made["role"]) == (200, "alice", "owner")
        assert (await asking.ask(0, "POST", "/auth/v1alpha1/tokens", {"note": "his"}, as_="bob"))[1]["account"] == "bob"
        for uid, notes in ((ALICE, ["hers"]), (BOB, ["his"]), (0, ["hers", "his"])):
            assert [each["note"] for each in (await asking.ask(uid, "GET", "/auth/v1alpha1/tokens"))[1]] == notes
        told = [await asking.ask(BOB, "DELETE", f"/auth/v1alpha1/tokens/{id_}") for id_ in (made["id"], "0" * 16)]
        assert {status for status, _ in told} == {404}
        assert told[0][1]["detail"].replace(made["id"], "0" * 16) == told[1][1]["detail"]
        assert (await asking.ask(ALICE, "DELETE", f"/auth/v1alpha1/tokens/{made['id']}"))[0] == 200


# Labels that decide who may read a dataset: they act at once, only an owner changes them, wrong ones are refused.


URI = "https://opendatafabric.org/schemas/dataset/v1alpha1/"


def hers(labels: str) -> str:
    return DATASET.format(name="hers", more=f", account: alice, labels: {{{labels}}}")


async def readers(asking: Asking) -> list[int]:
    """Returns who of bob, and of a caller without an account, reads the dataset of alice."""
    found = []
    for uid in (BOB, NOBODY):
        found += [uid] if await asking.datasets(uid) == ["hers"] else []
    return found


@pytest.mark.parametrize("base", ["", URI])
async def test_a_label_opens_a_dataset_and_closes_it_again(world: World, base: str) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        for labels, who in (
            (f'"{base}AllowPublicRead": true', [BOB]),
            (f'"{base}AllowPublicRead": false', []),
            (f'"{base}AllowAnonymousRead": true', [BOB, NOBODY]),
            ("", []),
        ):
            await node.apply(hers(labels))
            assert await readers(asking) == who
        for key in ("AllowPublicRead", f"{URI}AllowPublicRead"):
            await node.api.declarations.label("dataset", "alice/hers", wire.LabelRequest(labels={key: True}))
            assert await readers(asking) == [BOB]
        selected = await node.api.declarations.list("dataset", f"{URI}AllowPublicRead=true")
        assert [(each.name, each.labels) for each in selected] == [("hers", {"AllowPublicRead": True})]
        await node.api.declarations.label("dataset", "alice/hers", wire.LabelRequest(labels={"AllowPublicRead": None}))
        assert await readers(asking) == []


async def test_only_an_owner_changes_who_may_read(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await node.apply(GRANT.format(name="g", who="bob", role="maintainer", what="alice/hers"))
        path = f"/dataset/v1alpha1/datasets/{node.dataset('alice/hers')}/labels"
        status, _ = await asking.ask(BOB, "PUT", path, {"labels": {"env": "prod"}})
        assert status == 200
        for key in ("AllowAnonymousRead", f"{URI}AllowAnonymousRead"):
            status, problem = await asking.ask(BOB, "PUT", path, {"labels": {key: True}})
            assert (status, problem["rule"]) == (403, "access-role")
            with breaks("access-role"):
                await asking.apply(BOB, hers(f'env: prod, "{key}": true'))
        await asking.apply(ALICE, DATASET.format(name="hers", more=", labels: {AllowPublicRead: true}"))
        with pytest.raises(Fault) as refused:
            await asking.apply(BOB, hers("env: dev"))
        assert refused.value.rule == "access-role", "it would take the label away"
        await asking.apply(BOB, hers("env: dev, AllowPublicRead: true"))
        assert await readers(asking) == [BOB]


WRONG = [
    (DATASET.format(name="a", more=', labels: {AllowPublicRead: "true"}'), "label-value"),
    (DATASET.format(name="a", more=", labels: {AllowPublicRead: 1}"), "label-value"),
    (DATASET.format(name="a", more=f', labels: {{"{URI}AllowAnonymousRead": yes please}}'), "label-value"),
    (DATASET.format(name="a", more=", labels: {datasetKind: root}"), "label-value"),
    (
        DATASET.format(name="a", more=f', labels: {{AllowPublicRead: true, "{URI}AllowPublicRead": true}}'),
        "label-twice",
    ),
    (DATASET.format(name="a", more=", annotations: {AllowPublicRead: true}"), "label-annotation"),
    (DATASET.format(name="a", more=", annotations: {allowPublicRead: true}"), "label-annotation"),
    (DATASET.format(name="a", more=", labels: {allowPublicRead: true}"), "label-name"),
    (DATASET.format(name="a", more=', labels: {"https://example.org/AllowPublicRead": true}'), "label-name"),
    (
        "$schema: VariableSet\nheaders: {name: a, labels: {AllowPublicRead: true}}\nspec: {variables: {}}\n",
        "label-type",
    ),
]


@pytest.mark.parametrize(("text", "rule"), WRONG, ids=[f"{at}-{rule}" for at, (_, rule) in enumerate(WRONG)])
async def test_a_label_that_its_schema_does_not_permit_is_refused(world: World, text: str, rule: str) -> None:
    async with world.running("node", private=True) as node:
        with pytest.raises(Fault) as refused:
            await node.apply(text)
        assert refused.value.rule == rule or rule in str(refused.value)
        assert await node.api.declarations.list("dataset", None) == []


async def test_labels_of_a_former_state_are_told_when_they_begin_to_act(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await node.apply(hers("env: prod"))
        with node.home.database.write() as connection:
            store = ResourceStore(connection)
            before = store.with_did("Dataset", str(node.dataset("alice/hers")))
            assert before is not None
            store.put(msgspec.structs.replace(before, labels={f"{URI}AllowPublicRead": True}), before.updated_at)
            lines = tables.convert_labels(connection)
        assert lines == ["Dataset hers is read as its label AllowPublicRead says, which had no effect before"]
        assert await readers(asking) == [BOB]


# Groups of accounts: their members have what Relations give the group, in the words of RFC-020 and in ours.


GROUP = "$schema: Group\nheaders: {name: curators, account: alice}\nspec: {}\n"
ODF = "https://opendatafabric.org/schemas/"


def relations(name: str, subject: str, relation: str, object_: str, value: str = "") -> str:
    said = f', value: "{value}"' if value else ""
    each = f'{{subject: "{subject}", relation: "{relation}"{said}, object: "{object_}"}}'
    return f"$schema: Relations\nheaders: {{name: {name}, account: alice}}\nspec: {{relations: [{each}]}}\n"


async def reads(asking: Asking, uid: int) -> bool:
    return await asking.datasets(uid) == ["hers"]


WORDS = [("DatasetRole", "Reader", "Member"), ("role", "reader", "member"),
         (f"{ODF}dataset/v1alpha1/DatasetRole", "Reader", f"{ODF}auth/v1alpha1/Member")]  # fmt: skip


@pytest.mark.parametrize(("role", "value", "member"), WORDS, ids=["rfc", "own", "uris"])
async def test_members_have_the_roles_of_their_group(world: World, role: str, value: str, member: str) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await node.apply(GROUP, relations("roles", "Group:alice/curators", role, "Dataset:hers", value))
        assert not await reads(asking, BOB)
        await node.apply(relations("members", "Account:bob", member, "Group:curators"))
        assert await reads(asking, BOB)
        group = await node.api.declarations.get("group", "alice/curators")
        await node.apply(GROUP.replace("{name: curators", f"{{id: {group.id}, name: friends"))
        assert await reads(asking, BOB), "a group that is renamed is the same"
        await node.api.declarations.delete("relations", "alice/members")
        assert not await reads(asking, BOB)


async def test_a_group_in_a_group_gives_its_members_both(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await node.apply(GROUP, GROUP.replace("curators", "inner"))
        await node.apply(
            relations("roles", "Group:curators", "DatasetRole", "Dataset:hers", "Editor"),
            relations("nested", "Group:inner", "Member", "Group:curators"),
            relations("members", "bob", "Member", "Group:inner"),
        )
        assert await reads(asking, BOB)
        await node.api.declarations.delete("group", "alice/inner")
        assert not await reads(asking, BOB)


async def test_only_the_owner_of_a_group_says_who_is_in_it(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await node.apply(GROUP, relations("roles", "Group:curators", "role", "Dataset:hers", "owner"))
        forged = relations("mine", "Account:bob", "Member", "Group:alice/curators").replace(
            "account: alice", "labels: {}"
        )
        with breaks("resource"):
            await asking.apply(BOB, forged)
        assert not await reads(asking, BOB)
        await asking.apply(ALICE, relations("members", "Account:bob", "Member", "Group:curators"))
        assert await reads(asking, BOB)


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        (("Account:bob", "Member", "Dataset:hers"), "relation-member"),
        (("Account:bob", "Member", "Group:curators", "Reader"), "relation-member"),
        (("Account:bob", "DatasetRole", "Dataset:hers", "Boss"), "relation-role"),
        (("Account:bob", "Friend", "Dataset:hers"), "relation-unknown"),
        (("Dataset:hers", "Member", "Group:curators"), "reference-type"),
    ],
)
async def test_relations_that_mean_nothing_are_refused(world: World, said: Any, rule: str) -> None:
    async with world.running("node", private=True) as node:
        await settled(node)
        with breaks(rule):
            await node.apply(GROUP, relations("r", *said))
        assert not await node.api.declarations.list("group", None)


# Watches while rights change: what may no longer be read is not told of, and a list with its watch is what stands.


RULED = """$schema: Relations
headers: {{name: {name}}}
spec: {{attributes: [{{object: "{object}", name: {rule}, value: true}}]}}
"""
EMPTY = "$schema: Relations\nheaders: {{name: {name}}}\nspec: {{}}\n"
MEMBER = """$schema: Relations
headers: {name: members}
spec: {relations: [{subject: "Account:bob", relation: member, object: "Account:lab"}]}
"""


async def test_a_position_is_of_one_account_and_counts_nothing(world: World) -> None:
    """Attack T-ACCOUNT-01: comparing versions of the log of resources, to learn that and how much others change.

    Defence: an account gets the encrypted number of the last change that it may read; versions reveal only whether they
    are equal, and those of other accounts are refused.

    Two versions tell whether they are the same and nothing else; those of others and made up ones are none.
    """
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await node.apply(GRANT.format(name="g", who="bob", role="reader", what="alice/hers"))
        alice, bob = await asking.services(ALICE), await asking.services(BOB)

        async def at(services: Any) -> str:
            version: str = (await services.declarations.page("dataset", None, 500, None)).version
            return version

        await node.parts.reconciler.wait_settled()
        hers, his = await at(alice), await at(bob)
        for number in range(5):
            await node.apply(DATASET.format(name=f"other-{number}", more=""))
        await node.parts.reconciler.wait_settled()
        assert (await at(alice), await at(bob)) == (hers, his)
        await node.apply(DATASET.format(name="hers", more=", account: alice, labels: {a: b}"))
        await node.parts.reconciler.wait_settled()
        assert (await at(bob)) != his
        mark = his.partition("+")[2]
        for wrong in (f"{hers.partition('+')[0]}+{mark}", f"00{his[2:]}", f"f00-1+{mark}", f"1+{mark}"):
            with pytest.raises(Invalid, match="is no version of this node's log"):
                async with aclosing(bob.declarations.news(wrong, "dataset")) as news:
                    await anext(news)
            with pytest.raises(Invalid, match="is no version of this node's log"):
                await bob.history.follow(wrong, None, 10)
        async with aclosing(bob.declarations.news(hers, "dataset")) as news:  # another's mark is of other rights
            assert (await anext(news)).value.op == "Reset"


async def test_an_administrator_watches_on_from_a_list(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        rule = RULED.format(name="admins", object="Account:bob", rule="admin")
        await node.apply(rule)
        await node.parts.reconciler.wait_settled()
        bob = await asking.services(BOB)
        page = await bob.declarations.page("dataset", None, 500, None)
        assert {view.name for view in page.views} == {"hers", "theirs"}
        async with aclosing(bob.declarations.news(page.version, "dataset")) as news:
            await node.apply(DATASET.format(name="third", more=""))
            with trio.fail_after(PATIENCE):
                told = (await anext(news)).value
        assert (told.op, told.resource.name) == ("Added", "third")


class Reader:
    """Bob, who lists and watches datasets, and begins anew when he is told to."""

    def __init__(self, asking: Asking) -> None:
        self.asking = asking
        self.held: dict[str, str] = {}
        self.resets = 0
        self.scope = {"headers": [], CALLER: Caller(1, BOB, BOB)}

    async def services(self) -> Any:
        access: AccessControl = self.asking.access
        asking = access.dispatcher(self.asking.node.services, await access.subject(self.scope), self.scope)
        return CalledServices.of(asking)

    async def listed(self) -> dict[str, str]:
        page = await (await self.services()).declarations.page("dataset", None, 500, None)
        return {view.id: view.name for view in page.views}

    async def run(self) -> None:
        while True:
            services = await self.services()
            page = await services.declarations.page("dataset", None, 500, None)
            self.held = {view.id: view.name for view in page.views}
            async with aclosing(services.declarations.news(page.version, "dataset")) as news:
                async for shared in news:
                    self._take(shared.value)

    def _take(self, news: wire.ResourceNews) -> None:
        if news.op == "Reset":
            self.resets += 1
        elif news.op == "Deleted" and news.resource is not None:
            del self.held[news.resource.id]
        elif news.resource is not None:
            self.held[news.resource.id] = news.resource.name

    async def has_begun_anew(self) -> None:
        with trio.fail_after(PATIENCE):
            while not self.resets:  # noqa: ASYNC110  what threads write
                await trio.sleep(0.005)

    async def has_all(self) -> None:
        """Waits until what it holds is what a list has."""
        with trio.fail_after(PATIENCE):
            while self.held != await self.listed():  # noqa: ASYNC110  what threads write
                await trio.sleep(0.005)


def changes(asking: Asking, chance: random.Random) -> Callable[[], Awaitable[Any]]:
    """One change: of rights, of what there is, or of nothing that Bob may see."""
    node = asking.node
    name, ref = f"d{chance.randrange(3)}", chance.choice(["hers", "theirs"])
    refs = wire.VisibilityRequest(refs=(ref,))
    role = chance.choice(["reader", "editor", "owner"])
    return chance.choice([
        lambda: node.apply(GRANT.format(name=f"g-{ref}", who="bob", role=role, what=ref)),
        lambda: node.apply(EMPTY.format(name=f"g-{ref}")),
        lambda: asking.apply(ALICE, GRANT.format(name="from-alice", who="bob", role=role, what="hers")),
        lambda: asking.apply(ALICE, EMPTY.format(name="from-alice")),
        lambda: node.apply(RULED.format(name="open", object=f"Dataset:{ref}", rule="allowPublicRead")),
        lambda: node.apply(RULED.format(name="open", object="Account:alice", rule="allowAnonymousRead")),
        lambda: node.apply(EMPTY.format(name="open")),
        lambda: node.apply(RULED.format(name="admins", object="Account:bob", rule="admin")),
        lambda: node.apply(EMPTY.format(name="admins")),
        lambda: node.apply(MEMBER),
        lambda: node.apply(EMPTY.format(name="members")),
        lambda: node.apply(DATASET.format(name="theirs", more=chance.choice(["", ", account: lab", ", account: bob"]))),
        lambda: node.api.visibility.publish(refs),
        lambda: node.api.visibility.unpublish(refs),
        lambda: node.apply(DATASET.format(name=name, more=chance.choice(["", ", account: bob", ", account: alice"]))),
        lambda: node.api.declarations.delete("Dataset", name),
        lambda: node.apply(DATASET.format(name=ref, more=f", labels: {{n: n{chance.random()}}}")),
        lambda: node.apply(ACCOUNT.format(name="bob", uid=chance.choice([BOB, BOB, 70099]))),
    ])  # fmt: skip


@pytest.mark.parametrize("seed", range(int(os.environ.get("ODF_SIM_SEEDS", "4")) // 2))
async def test_a_list_and_its_watch_are_what_may_be_read_however_rights_change(world: World, seed: int) -> None:
    chance = random.Random(seed)
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await node.apply("$schema: Account\nheaders: {name: lab}\nspec: {email: l@example.com}\n")
        reader = Reader(asking)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader.run)
            for _ in range(25):
                try:
                    await changes(asking, chance)()
                except Fault:
                    continue  # such as a dataset that is not there
                await reader.has_all()
            # Of 25 changes by chance, now and then none is of what Bob may read. These are.
            await node.apply(ACCOUNT.format(name="bob", uid=BOB))
            await node.apply(EMPTY.format(name="admins"))
            await node.apply(RULED.format(name="admins", object="Account:bob", rule="admin"))
            await reader.has_begun_anew()
            await reader.has_all()
            assert {"hers", "theirs"} <= set(reader.held.values())
            nursery.cancel_scope.cancel()


async def test_nothing_is_told_of_what_may_no_longer_be_read(world: World) -> None:
    """Attack T-ACCOUNT-01: watching from before a revocation, or resuming from an earlier version, to get later
    changes.

    Defence: each change is checked by the present rights; a version from before the last change of rights is answered
    with `Reset`.

    What is changed after the revocation is not told, though the watch was begun before.
    """
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await asking.apply(ALICE, GRANT.format(name="g", who="bob", role="reader", what="hers"))
        reader = Reader(asking)
        services = await reader.services()
        async with aclosing(services.declarations.news(None, "dataset")) as news:
            told = [(await anext(news)).value.op for _ in range(2)]
            assert told == ["Added", "Bookmark"]
            await asking.apply(ALICE, EMPTY.format(name="g"))
            await asking.apply(ALICE, DATASET.format(name="hers", more=", labels: {secret: canary}"))
            rest = [each.value async for each in news]
        assert [each.op for each in rest] == ["Reset"]
        assert b"canary" not in msgspec.json.encode(rest)
        # A watch that goes on from before begins anew, too.
        before = rest[0].version.rpartition("-")[0] + "-1"
        async with aclosing(services.declarations.news(before, "dataset")) as news:
            assert [each.value.op async for each in news] == ["Reset"]
        token, grant = node.parts.tokens.make((await alices(asking)).account, Role.OWNER, "", Instant(2**62))
        scope = {"headers": [], REMOTE: node.parts.tokens.admit(token)}
        services = CalledServices.of(asking.access.dispatcher(node.services, await asking.access.subject(scope), scope))
        async with aclosing(services.declarations.news(None, "dataset")) as news:
            assert [(await anext(news)).value.op for _ in range(2)] == ["Added", "Bookmark"]
            await node.api.accounts.revoke_token(grant.id)
            with breaks("access-token"):
                await anext(news)


async def alices(asking: Asking) -> Principal:
    return await asking.access.subject({"headers": [], CALLER: Caller(1, ALICE, ALICE)})


async def test_who_is_another_now_is_told_nothing_more(world: World) -> None:
    """Attack T-ACCOUNT-01: keeping an answer open while losing the account, the token or the attribute admin.

    Defence: the caller is checked again before each change is sent.

    The account names another user, is no administrator any more, or its token is revoked.
    """
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await node.apply(RULED.format(name="admins", object="Account:bob", rule="admin"))
        reader = Reader(asking)
        services = await reader.services()
        async with aclosing(services.declarations.news(None, "dataset")) as news:
            told = [(await anext(news)).value for _ in range(3)]
            assert {each.resource.name for each in told if each.resource} == {"hers", "theirs"}
            async with aclosing(services.events.follow(0, ())) as events:
                await anext(events)
                await node.apply(EMPTY.format(name="admins"))
                with pytest.raises(Fault) as ended:
                    await anext(events)
            assert ended.value.rule == "access-owner"
            assert [each.value.op async for each in news] == ["Reset"]
        await node.apply(DATASET.format(name="his", more=", account: bob"))
        services = await reader.services()
        async with aclosing(services.declarations.news(None, "dataset")) as news:
            assert [(await anext(news)).value.op for _ in range(2)] == ["Added", "Bookmark"]
            await node.apply(ACCOUNT.format(name="bob", uid=70099))
            assert [each.value.op async for each in news] == ["Reset"]


async def test_what_was_published_between_a_list_and_its_watch_is_not_missed(world: World) -> None:
    """Publishing leaves no mark in the log of resources, so the version itself has to say it."""
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        reader = Reader(asking)
        services = await reader.services()
        page = await services.declarations.page("dataset", None, 500, None)
        assert page.views == ()
        await node.api.visibility.publish(wire.VisibilityRequest(refs=("theirs",)))
        async with aclosing(services.declarations.news(page.version, "dataset")) as news:
            assert [each.value.op async for each in news] == ["Reset"]
        page = await services.declarations.page("dataset", None, 500, None)
        assert [view.name for view in page.views] == ["theirs"]
        async with aclosing(services.declarations.news(page.version, "dataset")) as news:
            await node.apply(DATASET.format(name="theirs", more=", labels: {a: b}"))
            assert (await anext(news)).value.op == "Modified"
