"""Resources as they are applied to a node."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import aclosing, closing, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
import trio

from chain import instant
from chain.errors import Invalid, NotFound
from chain.statements.card import CARD
from odfd.control import wire
from odfd.errors import Bug
from odfd.network import joined_networks
from odfd.network.membership import Membership
from odfd.resources.controller import ObservedState
from odfd.resources.status import move, pending
from odfd.resources.store import ResourceStore
from odfd.resources.tables import index_labels
from odfd.services.datasets.controller import DatasetController
from odfd.services.network.controllers import NetworkController
from odfd.services.resources import reconciler
from odfd.services.resources.set_controllers import SetController
from odfd.services.resources.types import TYPES
from odfd.services.resources.views import manifest_of
from odfd.store.directory import StateDirectory
from odfd.store.keys.keystore import KeyStore
from odfd.trust.signing.owner_commit import OwnerCommitter
from p2p.ports import PeerId
from worlds.eventually import PATIENCE
from worlds.faults import breaks
from worlds.flow_world import flows
from worlds.manifests import ROOT
from worlds.node_world import Node, World

EXAMPLES = [each.example for each in TYPES.acting if each.name not in ("Network", "Peer")]
"""The network of these nodes is a dictionary; docs/how-to and tests/cli/long apply the others to a daemon."""


async def test_the_examples_of_the_reference_are_applied_and_then_unchanged(world: World) -> None:
    async with world.running("alice") as alice:
        first = await alice.apply(*EXAMPLES)
        assert {item.action for item in first.items} == {"created"}
        waits = [each for item in first.items for each in item.warnings]
        assert all(each.endswith("it begins when that is here") for each in waits)
        again = await alice.apply(*reversed(EXAMPLES))
        assert {item.action for item in again.items} == {"unchanged"}
        assert len(first.items) == len(again.items) == len(EXAMPLES)


async def test_a_snapshot_and_the_resource_of_it_are_one_dataset(world: World) -> None:
    """What is written the old way and the new is the same chain."""
    body = ROOT.partition("content:\n")[2].replace("  name: cities\n", "")
    resource = f"$schema: Dataset\nheaders: {{name: cities}}\nspec:\n{body}"
    async with world.running("alice") as alice:
        (made,) = (await alice.apply(ROOT)).items
        (again,) = (await alice.apply(resource)).items
        assert (made.action, again.action, made.id) == ("created", "unchanged", again.id)


async def test_a_snapshot_leaves_what_it_cannot_state(world: World, tmp_path: Path) -> None:
    volume = (
        "$schema: PersistentVolume\nheaders: {name: attic}\nspec: {kind: HostPath, path: '"
        f"{tmp_path / 'attic'}', capacity: {{storage: 1Gi}}}}\n"
    )
    whole = plain("a", ", labels: {env: prod}, annotations: {note: mine}").replace("{kind", "{volume: attic, kind")
    snapshot = "kind: DatasetSnapshot\nversion: 1\ncontent: {name: a, kind: Root, metadata: [%s]}\n"
    (tmp_path / "attic").mkdir()
    async with world.running("alice") as alice:
        await alice.apply(volume, whole)
        (item,) = (await alice.apply(snapshot % "")).items
        assert (item.action, item.changes) == ("unchanged", ())
        (item,) = (await alice.apply(snapshot % "{kind: SetInfo, description: anew}")).items
        assert item.action == "updated"
        held = await alice.api.declarations.get("dataset", "a")
        assert (held.headers["labels"], held.headers["annotations"]) == ({"env": "prod"}, {"note": "mine"})
        assert (held.spec["volume"], held.spec["metadata"][0]["description"]) == ("attic", "anew")


async def test_what_is_wrong_with_a_dataset_is_told_at_its_line(world: World) -> None:
    lines = [
        "$schema: Dataset",
        "headers: {name: a}",
        "spec:",
        "  kind: Derivative",
        "  metadata:",
        "  - kind: SetTransform",
    ]
    lines += ["    inputs:", "    - datasetRef: nowhere", "    transform: {kind: Sql, engine: spark, query: select 1}"]
    text = "\n".join(lines)
    async with world.running("alice") as alice:
        (item,) = (await alice.apply(text)).items
        assert item.fault is not None
        assert (item.action, item.fault.place) == ("failed", "m0.yaml:8")


SET = "$schema: VariableSet\nheaders: {{name: {name}, labels: {{env: prod}}}}\nspec: {{variables: {{x: '{value}'}}}}\n"
PLAIN = "$schema: Dataset\nheaders: {{name: {name}{more}}}\nspec: {{kind: Root, metadata: []}}\n"


def a_set(name: str = "a", value: str = "1") -> str:
    return SET.format(name=name, value=value)


def plain(name: str, more: str = "") -> str:
    return PLAIN.format(name=name, more=more)


async def names(node: Node, word: str | None = None, labels: str | None = None) -> list[str]:
    return [each.name for each in await node.api.declarations.list(word, labels)]


async def test_resources_are_selected_by_labels_whoever_set_them(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(a_set(), plain("one", ", labels: {env: prod, n: 5}"), plain("two"))
        assert await names(alice, None, "env=prod") == ["one", "a"]
        assert await names(alice, "ds", "!env") == ["two"]
        request = wire.LabelRequest(labels={"env": "dev"})
        await alice.api.declarations.label("dataset", "two", request)
        assert await names(alice, "datasets", "env in (dev, prod), n=5") == ["one"]
        (item,) = (await alice.apply(plain("two"))).items
        assert item.action == "unchanged"
        assert await names(alice, "datasets", "env=dev") == ["two"]
        assert {one.name: one.labels for one in await alice.api.declarations.list("Dataset", None)} == {
            "one": {"env": "prod", "n": 5}, "two": {"env": "dev"}
        }  # fmt: skip
        (item,) = (await alice.apply(plain("one", ", labels: {env: prod}"))).items
        assert (item.action, item.changes) == ("updated", ("- labels.n: 5",))
        assert (await alice.api.datasets.describe("one")).labels == {"env": "prod"}
        with pytest.raises(Invalid, match="too large"):
            await alice.api.declarations.label("vs", "a", wire.LabelRequest(labels={"x": "y" * 2_000}))


async def test_datasets_are_found_by_their_kind_by_an_index(world: World) -> None:
    """Also in a state from before it had the kinds; a dataset that no manifest declares is found by its chain."""
    derived = """$schema: Dataset
headers: {name: two}
spec:
  kind: Derivative
  metadata:
  - {kind: SetTransform, inputs: [{datasetRef: one}], transform: {kind: Sql, engine: spark, query: select 1}}
"""
    async with world.running("alice") as alice:
        await alice.apply(plain("one"), derived, ROOT)

        def read(kind: str) -> list[str]:
            with alice.home.database.read() as connection:
                return [each.name for each in ResourceStore(connection).all("Dataset", ("datasetKind", kind))]

        assert (read("Derivative"), read("Root")) == (["two"], ["cities", "one"])
        assert await names(alice, "dataset", "datasetKind=Derivative") == ["two"]
        with alice.home.database.write() as connection:
            connection.execute("DELETE FROM res_labels")
            assert index_labels(connection) == ()
            store = ResourceStore(connection)
            held = store.find_any("Dataset", "one")
            assert held is not None
            store.put(msgspec.structs.replace(held, spec=None), held.updated_at)
        assert (read("Derivative"), read("Root")) == (["one", "two"], ["cities", "one"]), "no manifest says of one"
        assert await names(alice, "dataset", "datasetKind=Derivative") == ["two"]
        assert {each.name: each.labels for each in await alice.api.declarations.list("Dataset", None)} == {
            "cities": {},
            "one": {},
            "two": {},
        }


async def test_datasets_are_selected_by_what_the_node_knows_of_them(world: World) -> None:
    """Also a dataset that no manifest of a resource made; a second id is a label, in the one grammar of ``-l``."""
    async with world.running("alice") as alice:
        await alice.apply(plain("one", ", labels: {env: prod}"), a_set(), ROOT)
        one = await alice.api.declarations.get("dataset", "one")
        cities = await alice.api.declarations.get("dataset", "cities")
        assert one.system_labels == {"datasetKind": "Root", "did": one.headers["did"]}
        assert cities.system_labels == {"datasetKind": "Root", "did": str(alice.dataset("cities"))}
        assert one.labels == one.headers["labels"] == {"env": "prod"}
        for word in (None, "datasets"):
            assert await names(alice, word, "datasetKind=Root") == ["cities", "one"]
            assert await names(alice, word, f"did={one.headers['did']}") == ["one"]
            assert await names(alice, word, f"env=prod,did in ({one.headers['did']})") == ["one"]
        assert await names(alice, None, "datasetKind=Derivative") == []
        assert await names(alice, None, "!datasetKind") == ["a"]
        for either in (one.id, one.headers["did"]):
            assert (await alice.api.declarations.get("dataset", either)).id == one.id
        async with aclosing(alice.api.declarations.watch(None, "dataset")) as watch:
            first = await anext(watch)
            assert first.resource is not None
            assert first.resource.system_labels == cities.system_labels


async def test_labels_that_contradict_those_of_the_node_are_refused(world: World) -> None:
    async with world.running("alice") as alice:
        same = plain("one", ", labels: {datasetKind: Root}")
        assert {item.action for item in (await alice.apply(same, a_set())).items} == {"created"}
        assert [item.action for item in (await alice.apply(same)).items] == ["unchanged"]
        for label in ("datasetKind: Derivative", "did: 'did:odf:x'"):
            for name in ("one", "new"):
                text = plain(name).replace(f"{{name: {name}}}", f"\n  name: {name}\n  labels:\n    {label}")
                with pytest.raises(Invalid, match="the node sets it") as told:
                    await alice.apply(text)
                assert (told.value.rule, told.value.place) == ("system-label", "m0.yaml:5")
        with breaks("system-label", Invalid, match="the node sets it, and this one is Root"):
            await alice.api.declarations.label("ds", "one", wire.LabelRequest(labels={"datasetKind": "Derivative"}))
        await alice.api.declarations.label("vs", "a", wire.LabelRequest(labels={"did": "free"}))


async def test_a_resource_keeps_its_id_and_labels_through_renames_and_restarts(world: World) -> None:
    """Also one that was made by an older manifest, or came from others."""
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        first = await alice.api.declarations.label("dataset", "cities", wire.LabelRequest(labels={"k": [1]}))
        assert (first.headers["did"], first.generation) == (str(alice.dataset("cities")), 2)
        await alice.api.applying.rename("Dataset", "cities", "towns")
    async with world.running("alice") as alice:
        again = await alice.api.declarations.get("dataset", first.headers["did"])
        assert (again.name, again.id, again.labels, again.generation) == ("towns", first.id, {"k": [1]}, 3)
        await alice.api.declarations.delete("Dataset", "towns")
        assert await names(alice) == []


async def test_where_one_cannot_be_done_nothing_is(world: World) -> None:
    bad = "$schema: Dataset\nheaders: {name: f}\nspec:\n  kind: Derivative\n  metadata:\n  - kind: SetTransform\n"
    bad += "    inputs: [{datasetRef: nowhere}]\n    transform: {kind: Sql, engine: spark, query: select 1}\n"
    async with world.running("alice") as alice:
        for dry_run in (True, False):
            result = await alice.apply(a_set(), plain("one"), bad, dry_run=dry_run)
            assert {(item.kind, item.action) for item in result.items} == {
                ("variableset", "skipped"), ("dataset", "skipped"), ("dataset", "failed"),
            }  # fmt: skip
            assert result.dry_run == dry_run
            assert await names(alice) == []
        with pytest.raises(Invalid, match="there is no VariableSet with the id"):
            await alice.apply(plain("one"), a_set().replace("name: a", f"name: a, id: {uuid.uuid4()}"))
        assert await names(alice) == []


async def test_a_dry_run_says_what_would_change_and_writes_nothing(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(a_set(), plain("one"))
        await status(alice, "vs", "a")
        before = dump(alice)
        result = await alice.apply(a_set(value="2"), plain("one", ", labels: {a: 1}"), plain("two"), dry_run=True)
        assert [(item.name, item.action, item.changes) for item in result.items] == [
            ("one", "updated", ("+ labels.a: 1",)),
            ("two", "created", ("Seed",)),
            ("a", "updated", ('~ spec.variables.x: "1" -> "2"',)),
        ]
        assert dump(alice) == before


def dump(node: Node) -> list[str]:
    """Lists the rows of the database, without cards, which a worker signs a while after a change."""
    with node.home.database.read() as connection:
        rows = (row for row in connection.iterdump() if not row.startswith('INSERT INTO "trust_cards"'))
        return [row for row in rows if f"'{CARD}'" not in row]


async def test_a_watch_goes_on_over_restarts_and_tells_each_change_once(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(a_set())
        seen = await told(alice, None, 2)
        assert [(op, name) for _, op, name in seen] == [("Added", "a"), ("Bookmark", "")]
        at = seen[-1][0]
        await alice.apply(a_set(value="2"), plain("one"))
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        await alice.api.declarations.delete("vs", "a")
        news = await told(alice, at, 5)
        assert sorted((op, name) for _, op, name in news) == [
            ("Added", "cities"), ("Added", "one"), ("Bookmark", ""), ("Deleted", "a"), ("Modified", "a"),
        ]  # fmt: skip
        for cut in range(1, len(news)):
            rest = await told(alice, news[cut - 1][0], len(news) - cut + 1)
            assert rest[1:] == news[cut:]
        for other in ("0badc0de-1", at.partition("-")[0] + "-999", "x"):
            with pytest.raises(Invalid, match="no version"):
                await told(alice, other, 1)


async def test_events_say_what_became_of_resources_also_of_those_that_are_gone(world: World) -> None:
    secret = "$schema: SecretSet\nheaders: {{name: s}}\nspec: {{secrets: {{k: {value}}}}}\n"
    async with world.running("alice") as alice:
        history = alice.api.history
        await alice.apply(a_set(), secret.format(value="first-canary"))
        await status(alice, "vs", "a")
        await alice.api.declarations.label("vs", "a", wire.LabelRequest(labels={"note": "x"}))
        await alice.apply(a_set(value="2"), secret.format(value="second-canary"))
        await status(alice, "vs", "a")
        told_of = await history.last("vs/A", 100)
        assert [each.change for each in told_of][:3] == ["Created", "Reconciling", "Ready"]
        assert [each.details for each in told_of if each.change == "Changed"] == [
            ('+ labels.note: "x"',), ('~ spec.variables.x: "1" -> "2"',)
        ]  # fmt: skip
        assert "canary" not in repr(await history.last("ss/s", 100))
        await alice.api.declarations.delete("vs", "a")
        assert [each.change for each in await history.last("vs/a", 2)] == ["Ready", "Deleted"]
        with pytest.raises(NotFound, match="no VariableSet 'b'"):
            await history.last("vs/b", 1)
    async with world.running("alice") as alice:
        news = await alice.api.history.follow(told_of[-1].version, "vs/a", 1)
        async with aclosing(news):
            assert (await anext(news)).change == "Deleted"
        news = await alice.api.history.follow(None, None, 2)
        async with aclosing(news), trio.open_nursery() as nursery:
            assert [(await anext(news)).change for _ in range(2)][-1] == "Deleted"
            nursery.start_soon(alice.apply, plain("one"))
            with trio.fail_after(PATIENCE):
                coming = await anext(news)
            assert (coming.type, coming.name, coming.change) == ("Dataset", "one", "Created")


async def test_what_was_declared_is_acted_upon_though_nothing_else_happens(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The events of an apply may all have been heard before its declarations are written."""
    async with world.running("alice") as alice:
        declarations, write = alice.api.declarations, OwnerCommitter.commit_now

        def commit(*all_of_it: Any) -> None:
            trio.from_thread.run(alice.parts.reconciler.wait_settled)
            write(*all_of_it)
            trio.from_thread.run(alice.parts.reconciler.wait_settled)

        monkeypatch.setattr(OwnerCommitter, "commit_now", commit)
        async with trio.open_nursery() as nursery, aclosing(declarations.watch(None, "dataset")) as news:
            assert (await anext(news)).op == "Bookmark"
            nursery.start_soon(alice.apply, plain("one"))
            with trio.fail_after(PATIENCE):
                while (await anext(news)).resource.status["phase"] != "Ready":
                    """Until it is."""


async def test_a_watch_tells_what_comes_while_it_waits(world: World) -> None:
    async with (
        world.running("alice") as alice,
        trio.open_nursery() as nursery,
        aclosing(alice.api.declarations.watch(None, "variableset")) as news,
    ):
        assert (await anext(news)).op == "Bookmark"
        nursery.start_soon(alice.apply, plain("one"), a_set())
        with trio.fail_after(PATIENCE):
            change = await anext(news)
        assert (change.op, change.resource.name) == ("Added", "a")


async def told(node: Node, since: str | None, count: int) -> list[tuple[str, str, str]]:
    """What a watch tells of declarations; of what became of them, tests of phases tell."""
    found: list[tuple[str, str, str]] = []
    async with aclosing(node.api.declarations.watch(since, None)) as news:
        with trio.fail_after(PATIENCE):
            while len(found) < count:
                each = await anext(news)
                one = each.resource
                if one is not None and each.op == "Modified" and one.status["phase"] != "Pending":
                    continue
                found.append((each.version, each.op, one.name if one is not None else ""))
    return found


MIRROR = "$schema: Mirror\nheaders: {{name: {name}, labels: {{env: prod}}}}\nspec: {{source: '{did}'{more}}}\n"
PEER = "12D3KooWEyopopk2Ka2tf5fvGDPQEbYWrSnWFk8T9Bks5pZuWnaz"


async def test_a_mirror_is_made_by_a_manifest_and_a_command_alike(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.take_in(ROOT, files={"1.csv": ["2024-01-01T00:00:00Z,Graz,1"]}, pulls=["cities"])
        await alice.publish("cities")
        did = alice.dataset("cities")
        text = MIRROR.format(name="theirs", did=did, more=", priority: 3")
        (made,) = (await bob.apply(text)).items
        assert (made.action, made.kind) == ("created", "mirror")
        (again,) = (await bob.apply(text)).items
        assert again.action == "unchanged"
        assert [(each.name, each.priority) for each in await bob.mirrors()] == [("theirs", 3)]
        assert await names(bob, None, "env=prod") == ["theirs"]
        await bob.mirror(did, "theirs", keep="30d")
        one = await bob.api.declarations.get("mirror", "theirs")
        assert (one.id, one.spec["keep"], "priority" in one.spec, one.generation) == (made.id, "30d", False, 2)
        (back,) = (await bob.apply(text)).items
        assert back.action == "updated"
        assert {'- spec.keep: "30d"', "+ spec.priority: 3"} <= set(back.changes)
        await bob.api.applying.rename("Dataset", "theirs", "ours")
        assert [each.name for each in await bob.api.declarations.list(None, None)] == ["ours", "ours"]
        await bob.api.declarations.delete("Mirror", "ours")
        assert await names(bob, "mirrors") == []
        assert await names(bob, "datasets") == ["ours"]


async def test_a_validator_is_listed_by_a_manifest(world: World) -> None:
    kind = TYPES.word("validator")
    assert kind is not None
    async with world.running("alice") as alice:
        own = re.sub(r"did:key:\S+", alice.key, kind.example).replace("uni", "self")
        assert [item.action for item in (await alice.apply(own)).items] == ["created"]
        assert [item.action for item in (await alice.apply(kind.example)).items] == ["created"]
        assert [item.action for item in (await alice.apply(kind.example)).items] == ["unchanged"]
        assert {each.spec["group"] for each in await alice.api.declarations.list("Validator", None)} == {"self", "uni"}
        (item,) = (await alice.apply(kind.example + "  group: others\n")).items
        assert (item.action, item.changes) == ("updated", ('~ spec.group: "uni" -> "others"',))
        other = kind.example.replace("did: did:key:", f"did: {alice.key} # ")
        (item,) = (await alice.apply(other)).items
        assert item.fault is not None
        assert item.fault.rule == "immutable"
        named = [each.spec for each in await alice.api.declarations.list("Validator", None)]
        (gone,) = [each["did"] for each in named if each["group"] == "others"]
        await alice.api.declarations.delete("Validator", gone)
        assert await names(alice) == ["self"]


async def test_peers_that_are_shut_out_are_resources_under_their_ids(world: World) -> None:
    async with world.running("alice") as alice:
        with alice.home.database.write() as connection:
            joined_networks.block(connection, PeerId(PEER), alice.clock.now())
        (view,) = await alice.api.declarations.list("peer", None)
        assert (view.name, view.spec) == (PEER, {"peerId": PEER, "blocked": True})
        with alice.home.database.write() as connection:
            ResourceStore(connection).withdraw(joined_networks.PEER, "", alice.clock.now(), PEER)
        assert await names(alice) == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (MIRROR.format(name="a", did="https://example.org", more=""), "named by the did"),
        (MIRROR.format(name="a", did="did:odf:fed01" + "0" * 64, more=", keep: much"), "much"),
        (MIRROR.format(name="a", did="did:odf:fed01" + "0" * 64, more=", want: all"), "unknown want"),
        (f"$schema: Peer\nheaders: {{name: a}}\nspec: {{peerId: {PEER}, blocked: false}}\n", "says nothing"),
        ("$schema: Validator\nheaders: {name: a}\nspec: {did: nobody}\n", "not a key's DID"),
        ("$schema: Network\nheaders: {name: a}\nspec: {bootstrap: [/ip4/1.2.3.4/tcp/1]}\n", "does not say whose"),
    ],
)
async def test_what_is_wrong_with_an_intent_is_told_at_its_line(world: World, text: str, told: str) -> None:
    async with world.running("alice") as alice:
        with pytest.raises(Invalid, match=told) as caught:
            await alice.apply(text)
        assert str(caught.value).startswith("m0.yaml:3")


FLOW = """$schema: Flow
headers: {name: f, labels: {env: prod}}
spec: {target: one, triggers: [{kind: Interval, interval: 1h}], tasks: [{kind: Pull}]}
"""


@contextmanager
def writing_elsewhere(path: Path) -> Iterator[None]:
    """Holds the lock of writers in another process, as a backup or a stuck write would."""
    holds = (
        "import sqlite3, sys; at = sqlite3.connect(sys.argv[1], isolation_level=None); at.execute('BEGIN IMMEDIATE');"
        " print('held', flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", holds, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        yield
        other.communicate()


async def test_a_read_waits_for_no_writer(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(a_set(), plain("one", ", labels: {env: prod}"))
        await status(alice, "vs", "a")
        path = alice.home.database.path
        with writing_elsewhere(path), closing(sqlite3.connect(path, timeout=0)) as at, trio.fail_after(PATIENCE):
            assert await names(alice, None, "env=prod") == ["one", "a"]
            assert (await alice.api.declarations.get("vs", "a")).name == "a"
            assert (await alice.api.datasets.describe("one")).labels == {"env": "prod"}
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                at.execute("BEGIN IMMEDIATE")


async def test_what_is_left_out_is_pruned_by_its_labels_alone(world: World) -> None:
    labelled = ", labels: {env: prod}"
    async with world.running("alice") as alice:
        await alice.apply(plain("one", labelled), FLOW, a_set("a"), a_set("b"), a_set("other").replace("prod", "dev"))
        for dry_run in (True, False):
            result = await alice.apply(a_set("a"), dry_run=dry_run, prune="env=prod")
            assert {(item.name, item.action) for item in result.items} == {
                ("a", "unchanged"), ("b", "deleted"), ("f", "deleted"), ("one", "unchanged"),
            }  # fmt: skip
            (kept,) = [item for item in result.items if item.name == "one"]
            assert kept.warnings == ("it is not pruned: odfctl delete dataset one",)
            assert await names(alice) == (["one", "f", "a", "b", "other"] if dry_run else ["one", "a", "other"])
        with pytest.raises(Invalid, match="selector"):
            await alice.apply(a_set("a"), prune="=")


async def test_what_another_manager_wrote_is_not_pruned(world: World) -> None:
    async def apply(node: Node, manager: str | None, *texts: str, prune: str | None = None) -> dict[str, Any]:
        given = tuple(wire.ManifestText(source="m.yaml", text=text) for text in texts)
        request = wire.ApplyRequest(manifests=given, manager=manager, prune=prune)
        return {each.name: each for each in (await node.done(node.api.applying.apply(request))).items}

    async with world.running("alice") as alice:
        await apply(alice, None, a_set("by-hand"), a_set("kept"))
        await apply(alice, "argo", a_set("by-argo"), a_set("other"))
        done = await apply(alice, "argo", a_set("other"), prune="env=prod")
        assert {name: each.action for name, each in done.items()} == {
            "by-argo": "deleted", "by-hand": "unchanged", "kept": "unchanged", "other": "unchanged",
        }  # fmt: skip
        assert done["by-hand"].warnings[0].startswith("odfctl wrote it, and not argo")
        done = await apply(alice, None, a_set("kept"), prune="env=prod")
        assert {name: each.action for name, each in done.items()} == {
            "by-hand": "deleted", "kept": "unchanged", "other": "unchanged",
        }  # fmt: skip


async def test_times_and_r49_what_is_unchanged_writes_nothing(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(a_set(), plain("one"))
        first = await alice.api.declarations.get("vs", "a")
        await status(alice, "vs", "a")
        before = dump(alice)
        world.clock.instant += 10**10
        await alice.apply(a_set(), plain("one"))
        assert dump(alice) == before
        await alice.apply(a_set(value="2"))
        again = await alice.api.declarations.get("vs", "a")
        assert again.headers["createdAt"] == first.headers["createdAt"] <= first.headers["updatedAt"]
        assert again.headers["updatedAt"] > first.headers["updatedAt"]


async def test_a_batch_is_one_transaction(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in the middle of it leaves nothing of it."""
    async with world.running("alice") as alice:
        await alice.apply(a_set("a"))
        await status(alice, "vs", "a")
        before, put = dump(alice), ResourceStore.put

        def failing(store: Any, resource: Any, now: Any) -> int:
            if resource.name == "c":
                raise OSError(28, "No space left on device")
            return put(store, resource, now)

        with monkeypatch.context() as broken:
            broken.setattr(ResourceStore, "put", failing)
            with pytest.raises(Bug):
                await alice.apply(a_set("a", "2"), a_set("b"), a_set("c"))
        assert dump(alice) == before
        await alice.apply(a_set("a", "2"), a_set("b"), a_set("c"))
        assert await names(alice) == ["a", "b", "c"]


async def test_an_apply_answers_before_anything_is_reconciled(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for no controller, and for no peer of a network."""
    may, observe = trio.Event(), SetController.observe

    async def held(controller: Any, resource: Any) -> ObservedState:
        await may.wait()
        return observe(controller, resource)

    async def silent(membership: Any, address: str) -> NoReturn:
        await trio.sleep_forever()
        raise AssertionError(membership, address)

    monkeypatch.setattr(SetController, "observe", held)
    monkeypatch.setattr(Membership, "connect", silent)
    network = f"$schema: Network\nheaders: {{name: far}}\nspec: {{bootstrap: [/ip4/192.0.2.1/tcp/1/p2p/{PEER}]}}\n"
    async with world.running("alice") as alice:
        with trio.fail_after(PATIENCE):
            applied = await alice.apply(a_set(), network)
        assert {each.kind: each.action for each in applied.items} == {"variableset": "created", "network": "created"}
        there = await alice.api.declarations.get("vs", "a")
        assert (there.headers["generation"], there.status["phase"] != "Ready") == (1, True)
        may.set()
        assert (await status(alice, "vs", "a"))["phase"] == "Ready"


async def test_a_network_that_is_declared_and_not_joined_yet_has_not_failed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An apply commits a network before it joins it, and the reconciler may look at it in between."""
    looked, observe = trio.Event(), NetworkController.observe

    async def looking(controller: Any, resource: Any) -> ObservedState:
        looked.set()
        return await observe(controller, resource)

    monkeypatch.setattr(NetworkController, "observe", looking)
    async with world.running("alice") as alice:
        member = alice.parts.membership
        reload = member.reload

        async def late() -> None:
            await looked.wait()
            await reload()

        monkeypatch.setattr(member, "reload", late)
        with trio.fail_after(PATIENCE):
            await alice.apply("$schema: Network\nheaders: {name: far}\nspec: {bootstrap: []}\n")
        said = await status(alice, "network", "far")
        assert said["phase"] == "Ready", said
        told = await alice.api.history.last("network/far", 9)
        assert "Failed" not in {each.change for each in told}


async def status(node: Node, word: str, name: str) -> dict[str, Any]:
    """Once all is done."""
    with trio.fail_after(PATIENCE):
        await node.parts.reconciler.wait_settled()
    found: dict[str, Any] = (await node.api.declarations.get(word, name)).status
    return found


async def test_a_phase_and_conditions_say_what_is_and_not_what_was_intended(world: World) -> None:
    secret = "$schema: SecretSet\nheaders: {name: s}\nspec: {secrets: {k: v}}\n"
    async with world.running("alice") as alice:
        await alice.apply(plain("one"), secret)
        said = await status(alice, "ds", "one")
        assert (said["phase"], said["observedGeneration"]) == ("Ready", 1)
        (state,) = said["conditions"].items()
        assert (state[0].rpartition("/")[2], state[1]["value"]) == ("DatasetState", "fresh")
        assert (await status(alice, "ss", "s"))["phase"] == "Ready"
        key = alice.home.directory / "keys" / "secrets.jwks"
        kept, _ = key.read_bytes(), key.unlink()
    async with world.running("alice") as alice:
        while (said := await status(alice, "ss", "s"))["phase"] != "Failed":
            """It tries again by the clock, and may be doing so."""
        assert (said["code"], said["failures"] >= 1) == ("undecryptable", True)
        assert said["retryAt"]
        key.write_bytes(kept)
        alice.parts.reconciler.touch("SecretSet", "s")
        assert (await status(alice, "ss", "s"))["phase"] == "Ready"


async def test_an_attempt_that_takes_too_long_is_given_up_and_comes_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, observe = [True], SetController.observe

    async def hanging(controller: Any, resource: Any) -> ObservedState:
        if hangs and resource.type == "VariableSet":
            await trio.sleep_forever()
        return observe(controller, resource)

    monkeypatch.setattr(SetController, "observe", hanging)
    monkeypatch.setattr(reconciler, "ATTEMPT_SECONDS", 0.05)
    async with world.running("alice") as alice:
        await alice.apply(a_set())
        while (said := await status(alice, "vs", "a"))["phase"] != "Failed":
            """It tries again by the clock, and may be doing so."""
        assert (said["code"], said["message"]) == ("reconcile-timeout", "not done in 0.05 seconds")
        assert said["retryAt"]
        hangs.clear()
        monkeypatch.setattr(reconciler, "ATTEMPT_SECONDS", PATIENCE)
        alice.parts.reconciler.touch("VariableSet", "a")
        assert (await status(alice, "vs", "a"))["phase"] == "Ready"


async def test_a_start_looks_at_what_was_as_declared_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of datasets at rest are not between a node that has just started and who asks it something."""
    looked = []

    async def observe(_self: object, resource: Any) -> ObservedState:
        looked.append(resource.name)
        return ObservedState()

    async with world.running("alice") as alice:
        await alice.apply(*map(plain, ("one", "two")))
        await status(alice, "ds", "one")
    monkeypatch.setattr(DatasetController, "observe", observe)
    monkeypatch.setattr(reconciler, "QUIET_SECONDS", 10**6)
    async with world.running("alice") as alice:
        await status(alice, "ds", "one")
        assert (looked, alice.parts.reconciler.queue.next_time() is not None) == ([], True)
        alice.parts.reconciler.touch("Dataset", "two")
        await status(alice, "ds", "two")
        assert looked == ["two"]
        alice.clock.instant += 2 * 10**6 * instant.SECOND
        await status(alice, "ds", "one")
        assert sorted(looked) == ["one", "two"]


async def test_observed_generations_follow_and_nothing_is_written_at_rest(world: World) -> None:
    async with world.running("alice") as alice:
        for value in "123":
            await alice.apply(a_set(value=value))
            assert (await status(alice, "vs", "a"))["observedGeneration"] == int(value)
        before = dump(alice)
        alice.parts.reconciler.touch("VariableSet", "a")
        await status(alice, "vs", "a")
        assert dump(alice) == before


class Killed(Exception):
    """The process ends here."""


def kill(*_: object) -> NoReturn:
    raise Killed


@pytest.mark.parametrize("at", ["before the key", "before the commit", "after the commit"])
async def test_a_key_whose_dataset_came_to_nothing_goes_at_the_start(
    world: World, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """And no other: not that of a dataset that was committed, nor of one that was deleted since."""
    place = {
        "before the key": (KeyStore, "_make"),
        "before the commit": (OwnerCommitter, "commit_now"),
        "after the commit": (KeyStore, "keep_dataset_key"),
    }[at]

    def keys() -> set[str]:
        return {each.name for each in (world.folder / "alice" / "state" / "keys").iterdir()}

    async with world.running("alice") as alice:
        await alice.apply(plain("one"), plain("gone"))
        await alice.api.declarations.delete("Dataset", "gone")
        before = keys()
        with monkeypatch.context() as broken:
            broken.setattr(*place, kill)
            if at != "after the commit":
                broken.setattr(StateDirectory, "_settle_key", kill)
            with pytest.raises(Bug):
                await alice.apply(plain("two"))
    assert [name for name in keys() if name.endswith(".unborn")]
    async with world.running("alice") as alice:
        is_there = at == "after the commit"
        assert [one.name for one in await alice.dataset_views()] == ["one", *(["two"] if is_there else [])]
        assert len(keys() - before) == (2 if is_there else 0), "a key and its journal"
        assert before <= keys()
        assert alice.home.recovery.keys == (0 if is_there else 1)
        assert ("came to nothing" in str(alice.home.recovery)) is not is_there
        await alice.apply(plain("two"))
        assert not [name for name in keys() if name.endswith(".unborn")]


async def test_an_attempt_that_a_crash_cut_off_is_told_after_the_start(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(a_set())
        await status(alice, "vs", "a")
        at = (await told(alice, None, 2))[-1][0]
        with alice.home.database.write() as connection:
            store = ResourceStore(connection)
            one = store.find_named("VariableSet", "a", None)
            assert one is not None
            waiting = pending(one.status)[-1]
            store.observe(one.id, one.generation, (waiting, move(waiting, "Reconciling")), alice.clock.now())
    async with world.running("alice") as alice:
        await status(alice, "vs", "a")
        seen = []
        async with aclosing(alice.api.declarations.watch(at, None)) as news:
            with trio.fail_after(PATIENCE):
                while len(seen) < 6:
                    each = await anext(news)
                    seen += [] if each.resource is None else [each.resource.status["phase"]]
        assert seen == ["Pending", "Reconciling", "Failed", "Pending", "Reconciling", "Ready"]


async def test_a_version_that_is_too_old_is_said_to_be(world: World) -> None:
    """A reader goes on from what is kept, and is told where something is missing."""
    async with world.running("alice") as alice:
        await alice.apply(a_set())
        await status(alice, "vs", "a")
        at = (await told(alice, None, 2))[-1][0]
        for value in "23":
            await alice.apply(a_set(value=value))
            await status(alice, "vs", "a")
        with alice.home.database.write() as connection:
            store = ResourceStore(connection)
            assert store.trim(alice.clock.now(), kept=1, kept_for=0) > 0
            kept = f"{store.epoch()}-{store.floor()}"
        with breaks("resource-version-too-old", Invalid, match="too old: this node keeps the changes after"):
            await told(alice, at, 1)
        async with aclosing(alice.api.declarations.watch(kept, None)) as news:
            assert (await anext(news)).op == "Bookmark"
            with trio.fail_after(PATIENCE):
                change = await anext(news)
        assert (change.op, change.resource.status["phase"]) == ("Modified", "Ready")


WAITING = """$schema: Flow
headers: {name: f}
spec: {target: one, triggers: [{kind: Event, target: two, events: {type: dataset.ref.updated}}], tasks: [{kind: Pull}]}
"""


async def test_a_flow_waits_for_datasets_and_begins_when_the_last_is_here(world: World) -> None:
    async with world.running("alice") as alice:
        (item,) = (await alice.apply(WAITING)).items
        assert item.action == "created"
        assert item.warnings[0].startswith("m0.yaml:3: no dataset 'one' here")
        said = await status(alice, "flow", "f")
        assert (said["phase"], said["code"], "retryAt" in said) == ("Failed", "unresolved-reference", False)
        (dangling,) = [each for key, each in said["conditions"].items() if key.endswith("/DanglingReferences")]
        assert dangling["value"] is True
        assert await in_force(alice) == []
        (again,) = (await alice.apply(WAITING)).items
        assert again.action == "unchanged"
        await alice.apply(plain("one"))
        assert (await status(alice, "flow", "f"))["message"] == "no dataset 'two' here"
        assert [each.get("name") for each in (await status(alice, "flow", "f"))["references"]] == ["one", None]
    async with world.running("alice") as alice:
        assert (await status(alice, "flow", "f"))["code"] == "unresolved-reference"
        await alice.apply(plain("two"))
        said = await status(alice, "flow", "f")
        assert said["phase"] == "Ready"
        assert not [key for key in said.get("conditions", {}) if key.endswith("/DanglingReferences")]
        assert await in_force(alice) == ["f"]
        await alice.api.applying.rename("Dataset", "one", "first")
        await alice.apply(plain("one"))
        await status(alice, "flow", "f")
        (view,) = await flows(alice)
        assert view.target == "first", "a name that was given to another captures nothing"
        said = (await status(alice, "flow", "f"))["references"][0]
        assert (said["reference"], said["name"], said["did"]) == ("Dataset:one", "first", str(alice.dataset("first")))


DERIVED = (
    "$schema: Dataset\nheaders: {{name: {name}}}\nspec:\n  kind: Derivative\n  metadata:\n  - kind: SetTransform\n"
    "    inputs: [{{datasetRef: {of}, alias: a}}]\n"
    "    transform: {{kind: Sql, engine: spark, query: select * from a}}\n"
)


async def test_names_that_are_used_again_capture_nothing_until_what_was_meant_is_gone(world: World) -> None:
    derived, flow = DERIVED.format(name="d", of="one"), WAITING.replace("two", "one")
    async with world.running("alice") as alice:
        await alice.apply(plain("one"), derived, flow)
        first = alice.dataset("one")
        await alice.api.applying.rename("Dataset", "one", "first")
        await alice.apply(plain("one"))
        again = await alice.apply(derived, flow)
        assert [(item.action, item.warnings) for item in again.items if item.kind == "flow"] == [("unchanged", ())]
        assert again.items[0].action == "unchanged", "a derived dataset keeps its input too"
        shown = await alice.api.declarations.get("Flow", "f")
        assert shown.spec["triggers"][0]["target"] == "first", "by its present name"
        (item,) = (await alice.apply(json.dumps(msgspec.to_builtins(manifest_of(shown))))).items
        assert item.action == "unchanged"
        assert (await flows(alice))[0].target == "first"
        await alice.api.declarations.delete("Dataset", "d")
        await alice.api.declarations.delete("Dataset", "first")
        assert (await status(alice, "flow", "f"))["code"] == "unresolved-reference"
        assert await in_force(alice) == []
        (item,) = (await alice.apply(flow)).items
        assert "is another Dataset now" in item.warnings[0]
        assert (await status(alice, "flow", "f"))["phase"] == "Ready"
        assert (await status(alice, "flow", "f"))["references"][0]["did"] == str(alice.dataset("one")) != str(first)


async def test_what_is_referred_to_is_deleted_and_comes_again(world: World, tmp_path: Path) -> None:
    async with world.running("alice") as alice:
        flow = WAITING.replace("two", "one").replace("kind: Pull", "kind: Verify")
        await alice.apply(plain("one"), flow)
        assert await in_force(alice) == ["f"]
        did = str(alice.dataset("one"))
        await alice.done(alice.api.flow.export("one", wire.ExportRequest(to=str(tmp_path / "one"))))
        await alice.api.declarations.delete("Dataset", "one", purge=True)
        said = await status(alice, "flow", "f")
        assert (said["phase"], said["code"]) == ("Failed", "unresolved-reference")
        (dangling,) = [each for key, each in said["conditions"].items() if key.endswith("/DanglingReferences")]
        assert dangling["message"] == "not here: Dataset:one"
        await alice.apply(plain("one"))
        assert (await status(alice, "flow", "f"))["message"] == "the dataset 'one' that was meant is gone"
        await alice.api.declarations.delete("Dataset", "one")
        request = wire.ImportRequest(source=str(tmp_path / "one"), as_name="other")
        await alice.done(alice.api.flow.import_(request))
        said = await status(alice, "flow", "f")
        assert (said["phase"], said["references"][0]["name"], said["references"][0]["did"]) == ("Ready", "other", did)
        assert (await flows(alice))[0].target == "other"


async def test_a_reference_is_an_id_a_type_and_name_or_a_did(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(plain("one"))
        made = await alice.api.declarations.get("dataset", "one")
        did = str(alice.dataset("one"))
        for ref in (made.id, f"Dataset:{made.id.upper()}", "one", "Dataset:ONE", did, f"Dataset:{did}"):
            (item,) = (await alice.apply(FLOW.replace("target: one", f"target: '{ref}'"))).items
            assert (item.fault, item.warnings) == (None, ()), ref
            assert (await flows(alice))[0].target == "one", ref
            (said,) = (await status(alice, "flow", "f"))["references"]
            assert (said["type"], said["id"], said["did"], said["name"]) == ("Dataset", made.id, did, "one")


EVERY = ", annotations: {schedule: {every: %s}}"


async def test_a_dataset_that_says_when_it_is_pulled_makes_a_flow_that_goes_with_it(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(plain("one", EVERY % "1h"))
        said = await status(alice, "flow", "one")
        assert (said["phase"], said["references"][0]["name"]) == ("Ready", "one")
        (view,) = await flows(alice)
        assert (view.name, view.target, view.when) == ("one", "one", "every 1h")
        owned = await alice.api.declarations.get("flow", "one")
        made = await alice.api.declarations.get("dataset", "one")
        assert owned.headers["ownerReferences"] == [{"id": made.id, "name": "one"}]
        for refused in (
            alice.api.declarations.delete("Flow", "one"),
            alice.apply(WAITING.replace("name: f", "name: one")),
        ):
            with pytest.raises(Invalid, match="made by Dataset one"):
                await refused
        await alice.apply(plain("one", EVERY % "2h"))
        assert (await status(alice, "flow", "one"))["observedGeneration"] == 2
        assert [each.when for each in await flows(alice)] == ["every 2h"]
        await alice.api.applying.rename("Dataset", "one", "first")
        assert (await status(alice, "flow", "first"))["phase"] == "Ready"
        assert [(each.name, each.target) for each in await flows(alice)] == [("first", "first")]
    async with world.running("alice") as alice:
        await status(alice, "flow", "first")
        assert await in_force(alice) == ["first"]
        await alice.apply(plain("first"))
        await status(alice, "dataset", "first")
        assert (await flows(alice), await names(alice)) == ([], ["first"])
        request = wire.LabelRequest(annotations={"schedule": {"every": "soon"}})
        with pytest.raises(Invalid, match="soon"):
            await alice.api.declarations.label("dataset", "first", request)
        request = wire.LabelRequest(annotations={"schedule": {"every": "3h"}})
        await alice.api.declarations.label("dataset", "first", request)
        await status(alice, "flow", "first")
        assert await in_force(alice) == ["first"]
        await alice.api.declarations.delete("Dataset", "first")
        with trio.fail_after(PATIENCE):
            await alice.parts.reconciler.wait_settled()
        assert (await flows(alice), await names(alice)) == ([], [])


HOUSE = """
$schema: {type}
headers: {{name: {name}}}
spec: {{{part}: {{API_KEY: "one", host: "two"}}}}
"""


async def settled_names(node: Node, word: str) -> list[str]:
    """Once all is done."""
    with trio.fail_after(PATIENCE):
        await node.parts.reconciler.wait_settled()
    return await names(node, word)


@pytest.mark.parametrize(("type_", "part"), [("VariableSet", "variables"), ("SecretSet", "secrets")])
async def test_a_set_makes_its_elements_which_hold_no_values(world: World, type_: str, part: str) -> None:
    element = type_.removesuffix("Set")
    async with world.running("alice") as alice:
        text = HOUSE.format(type=type_, name="house", part=part)
        await alice.apply(text)
        assert await settled_names(alice, element) == ["house#API_KEY", "house#host"]
        assert await names(alice) == ["house"], "all resources, save elements of sets"
        one = await alice.api.declarations.get(element, "house#host")
        assert one.spec == {"set": f"{type_}:house", "key": "host"}
        made = await alice.api.declarations.get(type_, "house")
        assert one.headers["ownerReferences"] == [{"id": made.id, "name": "house"}]
        assert (await status(alice, element, "house#host"))["references"][0]["id"] == made.id
        assert (await alice.apply(text)).items[0].action == "unchanged"
        await alice.apply(text.replace(', host: "two"', ""))
        assert await settled_names(alice, element) == ["house#API_KEY"]
        renamed = text.replace("{name: house}", f"{{name: home, id: {made.id}}}")
        await alice.apply(renamed)
        assert await settled_names(alice, element) == ["home#API_KEY", "home#host"]
        with pytest.raises(Invalid, match=f"made by {type_} home"):
            await alice.api.declarations.delete(element, "home#host")
        with breaks("derived-type", Invalid, match="not by a manifest"):
            await alice.apply(f"$schema: {element}\nheaders: {{name: a}}\nspec: {{set: house, key: host}}\n")
        with alice.home.database.write() as connection:  # as sets were before they made elements
            for each in ResourceStore(connection).all(element):
                ResourceStore(connection).delete(each, alice.parts.context.clock.now())
    async with world.running("alice") as alice:
        assert (await status(alice, type_, "home"))["phase"] == "Ready"
        alice.parts.reconciler.touch(type_, "home")
        assert await settled_names(alice, element) == ["home#API_KEY", "home#host"]
        await alice.api.declarations.delete(type_, "home")
        assert await names(alice, element) == []


async def test_elements_follow_sets_that_swap_their_names(world: World) -> None:
    async with world.running("alice") as alice:
        text = HOUSE.format(type="VariableSet", name="house", part="variables")
        await alice.apply(text, text.replace("house", "home"))
        ids = {name: (await alice.api.declarations.get("vs", name)).id for name in ("house", "home")}
        swap = [
            text.replace("{name: house}", f"{{name: {name}, id: {ids[other]}}}")
            for name, other in (("house", "home"), ("home", "house"))
        ]
        await alice.apply(*swap)
        assert (await alice.api.declarations.get("vs", "house")).id == ids["home"]
        found = await alice.api.declarations.list("variable", None)
        owners = {each.name: each.headers["ownerReferences"][0]["id"] for each in found}
        assert owners == {
            "home#API_KEY": ids["house"], "home#host": ids["house"],
            "house#API_KEY": ids["home"], "house#host": ids["home"],
        }  # fmt: skip


async def test_an_element_is_referred_to_as_its_set_and_key(world: World) -> None:
    spec = "{url: 'https://a.example/', secretRef: 'Secret:house#host'}"
    hook = f"$schema: WebhookTarget\nheaders: {{name: h}}\nspec: {spec}\n"
    async with world.running("alice") as alice:
        await alice.apply(HOUSE.format(type="SecretSet", name="house", part="secrets"), hook)
        held = await alice.api.declarations.get("webhook", "h")
        made = await alice.api.declarations.get("ss", "house")
        assert held.status["references"] == [
            {"reference": "SecretSet:house", "type": "SecretSet", "id": made.id, "name": "house"}
        ]
        with pytest.raises(Invalid, match="expected a SecretSet"):
            await alice.apply(hook.replace("house#host", "house"))


async def test_what_derives_from_what_derives_from_it_is_refused_with_the_way(world: World) -> None:
    async with world.running("alice") as alice:
        with breaks("reference-cycle", Invalid, match=r"circle: b -> c -> b|circle: c -> b -> c"):
            await alice.apply(DERIVED.format(name="b", of="c"), DERIVED.format(name="c", of="b"))
        await alice.apply(plain("one"), DERIVED.format(name="b", of="one"), DERIVED.format(name="c", of="b"))
        with pytest.raises(Invalid, match="circle: b -> c -> b"):
            await alice.apply(DERIVED.format(name="b", of="c"))
        body = DERIVED.format(name="b", of="c").partition("spec:\n")[2]
        with pytest.raises(Invalid, match="circle: b -> c -> b"):
            await alice.apply(f"kind: DatasetSnapshot\nversion: 1\ncontent:\n  name: b\n{body}")


async def test_a_flow_that_waits_is_deleted_and_one_in_force_waits_where_its_dataset_is_changed(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(WAITING)
        await status(alice, "flow", "f")
        assert (await alice.api.declarations.delete("Flow", "f")).spec["target"] == "one"
        assert await names(alice) == []
        with pytest.raises(NotFound, match="there is no Flow"):
            await alice.api.declarations.delete("Flow", "f")
        verifying = WAITING.replace("kind: Pull", "kind: Verify")  # a run at its first block does not fail
        await alice.apply(plain("one"), plain("two"), verifying)
        (item,) = (await alice.apply(verifying.replace("two", "three"))).items
        assert item.warnings[0].endswith("no dataset 'three' here; it begins when that is here")
        assert await in_force(alice) == []
        assert (await status(alice, "flow", "f"))["code"] == "unresolved-reference"
        await alice.apply(plain("three"))
        assert (await status(alice, "flow", "f"))["phase"] == "Ready", await status(alice, "flow", "f")
        assert await in_force(alice) == ["f"]


async def in_force(node: Node) -> list[str]:
    return [each.name for each in await flows(node)]
