"""Manifests: printed, applied again and applied whole, and what is refused when it is applied."""

from __future__ import annotations

import json
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio

from chain.codec.blocks import encode_block
from chain.codec.manifest import parse_manifests
from chain.errors import Environment, Fault, Invalid, Refused
from chain.ids import DatasetId
from chain.instant import Instant, parse
from chain.model.block import MetadataBlock
from chain.model.events import (
    AddPushSource,
    DatasetKind,
    Seed,
    SetDataSchema,
    SetPollingSource,
    SetTransform,
    TransformInput,
)
from chain.model.schema import DataField, DataSchema, Duration, Int64, List, Map, Option, String, Struct, TimeUnit
from chain.model.source import (
    MergeAppend,
    MergeChangelogStream,
    MergeLedger,
    MergeSnapshot,
    MergeUpsertStream,
    ReadCsv,
    ReadJson,
    ReadNdJson,
    ReadParquet,
    SqlQueryStep,
    TransformSql,
)
from chain.store.base import Append, Head
from config import model
from engines.contract import ValidateInput, ValidateRequest, ValidateResponse, Vocab
from odfd.api import resource_operations
from odfd.control import wire
from odfd.ingest.acceptance import check_source
from odfd.ingest.fetch.dispatch import fetch
from odfd.ingest.fetch.source import FetchJob
from odfd.ingest.preparation import prepare
from odfd.ingest.settings import IngestSettings
from odfd.mirrors.scheduler import MirrorScheduler
from odfd.network.joined_networks import list_blocked, list_joined
from odfd.resources.store import ResourceStore
from odfd.resources.types import ResourceType
from odfd.services.execution.transforms import TransformCheck
from odfd.services.resources.reading import read_drafts
from odfd.services.resources.types import TYPES
from odfd.services.resources.views import manifest_of
from odfd.trust.signing.owner_commit import OwnerCommitter
from worlds import rfc_schemas
from worlds.eventually import PATIENCE
from worlds.fake_engine import FakeEngine
from worlds.manifests import DERIVED, ROOT, text_of
from worlds.memory_store import MemoryChains, MemoryObjects
from worlds.node_world import Node, World

# The manifest of a dataset, as it is declared now: applied again it changes nothing, anywhere it makes the same.


TALKATIVE = """kind: DatasetSnapshot
version: 1
content:
  name: readings
  kind: Root
  metadata:
    - kind: SetVocab
      eventTimeColumn: at
    - kind: AddPushSource
      sourceName: gate
      read: {kind: NdJson}
      preprocess: {kind: Sql, engine: spark, query: 'select * from input'}
      merge: {kind: Ledger, primaryKey: [at]}
    - kind: AddPushSource
      sourceName: archive
      read: {kind: Csv, header: true, separator: ';'}
      merge: {kind: Append}
    - {kind: SetInfo, description: 'What "sensors" said: all of it', keywords: [on, 'no', '1']}
    - {kind: SetLicense, shortName: CC0, name: Creative Commons Zero, websiteUrl: 'https://example.org'}
    - kind: SetAttachments
      attachments: {kind: Embedded, items: [{path: README.md, content: "two\\nlines\\n"}]}
"""


@pytest.mark.parametrize("which", ["ROOT", "DERIVED", "TALKATIVE"])
async def test_what_is_declared_applied_again_is_unchanged(world: World, which: str) -> None:
    manifest = {"ROOT": ROOT, "DERIVED": DERIVED, "TALKATIVE": TALKATIVE}[which]
    world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,300000")
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.apply(*dict.fromkeys((ROOT, manifest)))
        await alice.pull("cities")
        (name,) = [each.content.name for each in parse_manifests(manifest, "m")]
        text = text_of(await alice.manifest(name))
        (item,) = (await alice.apply(text)).items
        assert (item.action, item.changes) == ("unchanged", ())
        if which == "DERIVED":
            await bob.mirror(alice.dataset("cities"), "cities")
        await bob.apply(text)
        theirs = text_of(await bob.manifest(name))
        assert theirs == text


async def test_a_later_declaration_takes_the_place_of_the_one_before(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(TALKATIVE)
        await alice.apply(TALKATIVE.replace("all of it", "some of it"))
        text = text_of(await alice.manifest("readings"))
        assert ("some of it" in text, "all of it" in text) == (True, False)


async def test_a_transform_is_checked_with_the_names_of_its_own_dataset(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a new manifest, in one that only names a column, and of a dataset that has said so before."""
    asked: list[tuple[str, str]] = []
    validate = FakeEngine.validate

    async def seen(engine: FakeEngine, request: ValidateRequest) -> ValidateResponse:
        inputs = [given.vocab.event_time for given in request.inputs if given.query_alias == "cities"]
        asked.extend((each, request.vocab.event_time) for each in inputs)
        return await validate(engine, request)

    monkeypatch.setattr(FakeEngine, "validate", seen)
    world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,300000")
    named = DERIVED.replace("  metadata:\n", "  metadata:\n    - {kind: SetVocab, eventTimeColumn: at}\n")
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        await alice.pull("cities")
        await alice.apply(named)
        await alice.apply(named.replace("select", "SELECT"))
    assert set(asked) == {("event_time", "at")}
    assert len(asked) >= 2


async def test_what_is_declared_is_described(world: World) -> None:
    """Licence, attachments and comments of columns; columns by their files, and no row is read for it."""
    world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,300000\n2024-01-02T00:00:00Z,Wien,1900000")
    async with world.running("alice") as alice:
        await alice.apply(TALKATIVE, ROOT)
        await alice.pull("cities")
        said = await alice.api.datasets.describe("readings")
        assert (said.license.short_name, said.license.website_url) == ("CC0", "https://example.org")
        assert [(each.path, each.content) for each in said.attachments] == [("README.md", "two\nlines\n")]
        assert said.profile is None
        found = (await alice.api.datasets.describe("cities", profile=True)).profile
        assert (found.slices, found.unread, found.is_whole, found.records) == (1, 0, True, 2)
        city = next(each for each in found.columns if each.name == "city")
        assert (city.nulls, city.minimum, city.maximum) == (0, "Graz", "Wien")
        assert (city.distinct.at_least, city.distinct.at_most) == (2, 2)
        empty = (await alice.api.datasets.describe("readings", profile=True)).profile
        assert (empty.columns, empty.message) == ((), "it has no data yet")


# What a node prints of each type is valid by the schema that it names, and can be applied again.


MORE = {
    "PersistentVolume": """$schema: PersistentVolume
headers: {name: bucket}
spec: {kind: S3, bucket: our-slices, endpoint: "https://s3.example.org", region: us-west-2, capacity: {storage: 10Gi}}
""",
    "WebhookTarget": """$schema: WebhookTarget
headers: {name: sealed}
spec: {url: "https://example.org/hook", secret: whsec_bm90IGEgc2VjcmV0IG9mIGFueWJvZHkgYXQgYWxs}
""",
    "Projection": """$schema: Projection
headers: {name: newest}
spec:
  inputs: [{datasetRef: sensors}]
  project: {kind: Sql, engine: duckdb, query: SELECT max(celsius) AS celsius FROM sensors}
""",
    "Dataset": """$schema: Dataset
headers:
  name: sharded
  annotations: {schedule: {every: 1h}}
spec:
  kind: Root
  shards: {number: 2, by: [n]}
  metadata:
  - kind: SetPollingSource
    fetch: {kind: Url, url: "file:///nothing.csv"}
    read: {kind: Csv, header: true, schema: {fields: [{name: n, type: Int64}]}}
    merge: {kind: Append}
""",
}
"""Manifests beside the example of a type, so that what only we have is with it and without."""
OURS = {
    "Dataset": {"sharded"},
    "Flow": {"sharded"},
    "WebhookTarget": {"com.example.hook"},
    "PersistentVolume": {"cold"},
    "Projection": {"warmest"},
}
"""Names of resources that the format's schema has no words for."""


async def everything(node: Node) -> list[ResourceType]:
    """Applies the example of each type, and returns all types of which there is something."""
    for kind in TYPES.acting:
        await node.apply(*filter(None, (kind.example, MORE.get(kind.name))))
    await node.parts.reconciler.wait_settled()
    return [kind for kind in TYPES if kind.spec is not None]


async def listed(node: Node, type_: str) -> list[Any]:
    """Lists what is stored of a type: the tasks of commands are of kinds that nobody declares."""
    with node.home.database.read() as connection:
        stored = {each.id for each in ResourceStore(connection).all(type_)}
    views = await node.api.declarations.list(type_, None)
    return [each for each in views if each.id in stored or type_ != "Task"]


async def test_each_manifest_that_is_printed_is_valid_by_the_schema_that_it_names(world: World) -> None:
    async with world.running("alice") as alice:
        for kind in await everything(alice):
            views = await listed(alice, kind.name)
            assert views, kind.name
            ours = {view.name for view in views if view.schema == kind.own_uri != kind.uri and view.spec is not None}
            assert ours == OURS.get(kind.name, set())
            for view in views:
                canonical = msgspec.to_builtins(manifest_of(view))
                assert rfc_schemas.mistakes(canonical) == [], (kind.name, view.name)
                if not kind.is_derived and view.spec is not None:  # what was pulled is declared by nobody
                    shown = await resource_operations.portable(alice.api, kind, view.name, force=True)
                    assert rfc_schemas.mistakes(shown_of(shown)) == [], (kind.name, view.name)


def shown_of(manifest: Any) -> dict[str, Any]:
    """Returns what is sent of a manifest that people may write."""
    sent: dict[str, Any] = msgspec.to_builtins(manifest)
    assert sent.pop("status") == {}
    return sent


async def test_what_is_shown_of_a_resource_is_applied_again_without_a_change(world: World) -> None:
    async with world.running("alice") as alice:
        for kind in await everything(alice):
            for view in await listed(alice, kind.name):
                if not kind.is_derived:
                    (item,) = (await alice.apply(json.dumps(msgspec.to_builtins(manifest_of(view))))).items
                    assert (item.action, item.fault) == ("unchanged", None), (kind.name, view.name, item)


async def test_an_account_is_written_by_its_id_its_did_or_its_name(world: World) -> None:
    account = "$schema: Account\nheaders: {name: bob}\nspec: {email: b@example.org, did: 'did:odf:fed01bob'}\n"
    made = "$schema: VariableSet\nheaders: {name: a, account: {name: bob}}\nspec: {variables: {}}\n"

    async def shown(of: str) -> Any:
        (view,) = [each for each in await alice.api.declarations.list("VariableSet", None) if each.name == of]
        return manifest_of(view).headers["account"]

    async with world.running("alice") as alice:
        await alice.apply(account, made, made.replace(", account: {name: bob}", "").replace("a}", "b}"))
        bob, owner = await shown("a"), await shown("b")
        assert (bob["did"], bob["name"], owner["name"]) == ("did:odf:fed01bob", "bob", "node")
        for whole in (bob, owner):
            for forms in (whole, {"id": whole["id"]}, {"did": whole["did"]}, whole["did"]):
                text = json.dumps({"$schema": "VariableSet", "headers": {"name": "c", "account": forms}})
                (item,) = (await alice.apply(text[:-1] + ', "spec": {"variables": {}}}')).items
                assert (item.action, await shown("c")) == ("created", whole)
                await alice.api.declarations.delete("VariableSet", f"{whole['name']}/c" if whole is bob else "c")
        with pytest.raises(Invalid, match="is no did"):
            await alice.apply(account.replace("did:odf:fed01bob", "bob"))


async def test_a_did_alone_names_a_dataset_that_is_here(world: World) -> None:
    text = "$schema: Dataset\nheaders: {{name: {}}}\nspec: {{did: {}}}\n"
    async with world.running("alice") as alice:
        await alice.apply("$schema: Dataset\nheaders: {name: raw}\nspec: {kind: Root, metadata: []}\n")
        did = alice.dataset("raw")
        (item,) = (await alice.apply(text.format("raw", did).replace("raw}", "raw, labels: {env: dev}}"))).items
        assert (item.action, item.changes) == ("updated", ('+ labels.env: "dev"',))
        for name, other in (("new", did), ("raw", "did:odf:fed01" + "0" * 64)):
            with pytest.raises(Invalid, match="there is no dataset"):
                await alice.apply(text.format(name, other))
        with pytest.raises(Invalid, match="metadata is missing"):
            await alice.apply("$schema: Dataset\nheaders: {name: new}\nspec: {kind: Root}\n")


# Datasets of one apply are made and changed in one transaction, with all declarations: a fault leaves all or none.


STEPS = ("commit-begun", "commit-objects", "commit-blocks", "commit-also", "commit-durable")
DATASET = """$schema: Dataset
headers: {{name: {name}}}
spec: {{kind: Root, metadata: [{{kind: SetInfo, description: {said}}}]}}
"""
SET = "$schema: VariableSet\nheaders: {name: one}\nspec: {variables: {x: '1'}}\n"
FLOW = "$schema: Flow\nheaders: {name: f}\nspec: {target: two, triggers: [{kind: Interval, interval: 1h}]}\n"
LEGACY = """kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata: []
"""
INTENTS = tuple(kind.example for word in ("mirror", "validator", "peer", "network") if (kind := TYPES.word(word)))


def dataset(name: str, said: str = "anew") -> str:
    return DATASET.format(name=name, said=said)


async def standing(node: Node) -> dict[str, Any]:
    """What stands: blocks of each dataset, all resources by name, and what of others is in force."""
    mirrors = [each.name for each in await node.mirrors()]
    datasets = {each.name: node.size(each.name) for each in await node.dataset_views() if each.name not in mirrors}
    declared = {f"{each.type} {each.name}": each.generation for each in await node.api.declarations.list(None, None)}
    keys = sorted(each.name for each in (node.home.directory / "keys").iterdir())
    with node.home.database.read() as connection:
        networks, peers = [each.name for each in list_joined(connection)], [*list_blocked(connection)]
    groups = [each.spec["group"] for each in await node.api.declarations.list("Validator", None)]
    return {"datasets": datasets, "declared": declared, "keys": keys, "intents": [networks, peers, groups, mirrors]}


@pytest.mark.parametrize("step", STEPS)
async def test_a_fault_at_each_step_leaves_all_datasets_or_none(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    wanted = (dataset("old"), dataset("two"), ROOT, DERIVED, SET, FLOW, *INTENTS)

    def dies(name: str) -> None:
        if name == step:
            raise Environment("the process is gone", rule="killed")

    async with world.running("alice") as alice:
        await alice.apply(dataset("old", "before"))
        before = await standing(alice)
        with monkeypatch.context() as patch:
            patch.setattr(alice.home.chains, "_step", dies)
            with pytest.raises(Environment, match="the process is gone"):
                await alice.apply(*wanted)
    async with world.running("alice") as alice:
        with trio.fail_after(PATIENCE):
            await alice.parts.reconciler.wait_settled()
        found = await standing(alice)
        if step == "commit-durable":
            assert found["datasets"] == {"old": 3, "two": 2, "cities": 2, "towns": 2}
            assert {"Dataset two", "Flow f", "VariableSet one"} <= set(found["declared"])
            assert found["intents"] == [
                ["food"], ["12D3KooWEyopopk2Ka2tf5fvGDPQEbYWrSnWFk8T9Bks5pZuWnaz"], ["uni"], ["covid"],
            ]  # fmt: skip
        else:
            assert found == before
        items = (await alice.apply(*wanted)).items
        assert {each.action for each in items} == (
            {"unchanged"} if step == "commit-durable" else {"created", "updated"}
        )
        after = await standing(alice)
        assert after["datasets"] == {"old": 3, "two": 2, "cities": 2, "towns": 2}
        assert [len(each) for each in after["intents"]] == [1, 1, 1, 1]
        assert not [each for each in after["keys"] if each.endswith(".unborn")]
        for name in after["datasets"]:
            alice.parts.committer.sign_unsigned(alice.dataset(name))


async def test_what_is_wrong_with_one_keeps_all_from_being_made(world: World) -> None:
    async with world.running("alice") as alice:
        before = await standing(alice)
        broken = DERIVED.replace("datasetRef: cities", "datasetRef: places")
        items = (await alice.apply(dataset("one"), SET, broken)).items
        assert {each.name: each.action for each in items}["towns"] == "failed"
        assert {each.action for each in items} == {"failed", "skipped"}
        assert await standing(alice) == before, "not even a key"


async def test_one_that_cannot_be_committed_is_told_by_its_name(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning cannot see that the journal of a key is ahead."""
    async with world.running("alice") as alice:
        await alice.apply(LEGACY.format(name="one"))
        ahead, check = alice.dataset("one"), OwnerCommitter._check_behind

        def behind(self: Any, dataset: Any, *rest: Any) -> None:
            if dataset == ahead:
                raise Refused("this node has signed more", rule="trust.behind")
            check(self, dataset, *rest)

        monkeypatch.setattr(OwnerCommitter, "_check_behind", behind)
        changed = LEGACY.format(name="one").replace("[]", "[{kind: SetInfo, description: anew}]")
        items = (await alice.apply(changed, LEGACY.format(name="two"))).items
        assert {each.name: each.action for each in items} == {"one": "failed", "two": "skipped"}
        items = (await alice.apply(changed, LEGACY.format(name="two"), on_error="skip")).items
        assert {each.name: each.action for each in items} == {"one": "failed", "two": "created"}
        told = {each.name: each.fault for each in items}["one"]
        assert isinstance(told, wire.Problem)
        assert told.rule == "trust.behind"
        items = (await alice.apply(dataset("one"), dataset("three"))).items
        assert {each.name: each.action for each in items} == {"one": "failed", "three": "skipped"}
        assert [each.name for each in await alice.dataset_views()] == ["one", "two"]


async def test_a_query_is_checked_against_an_input_of_the_same_apply(world: World) -> None:
    """Also by a dry run, which makes nothing."""
    async with world.running("alice") as alice:
        before = await standing(alice)
        items = (await alice.apply(ROOT, DERIVED, dry_run=True)).items
        assert [(each.name, each.action, each.warnings) for each in items] == [
            ("cities", "created", ()),
            ("towns", "created", ()),
        ]
        assert await standing(alice) == before


async def test_intents_of_an_apply_are_in_force_when_it_ends(world: World) -> None:
    async with world.running("alice") as alice:
        assert {each.action for each in (await alice.apply(*INTENTS, SET, dry_run=True)).items} == {"created"}
        assert (await standing(alice))["intents"] == [[], [], [], []]
        items = (await alice.apply(*INTENTS, SET)).items
        assert [(each.kind, each.action, each.warnings) for each in items] == [
            (kind, "created", ()) for kind in ("network", "peer", "validator", "mirror", "variableset")
        ]
        assert [each.name for each in alice.parts.membership.networks] == ["wires", "food"]
        assert alice.parts.membership.blocked == 1
        assert [each.name for each in await alice.mirrors()] == ["covid"]
        assert {each.action for each in (await alice.apply(*INTENTS, SET)).items} == {"unchanged"}


async def test_what_cannot_be_recorded_is_told_by_its_name_and_nothing_is_made(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks pass before the transaction; then another command takes the name of the mirror, or the last room."""
    record = MirrorScheduler.record

    def taken(self: Any, *args: Any) -> None:
        record(self, *args)
        raise Refused("this name was taken meanwhile", rule="dataset-name")

    async with world.running("alice") as alice:
        before = await standing(alice)
        monkeypatch.setattr(MirrorScheduler, "record", taken)
        items = (await alice.apply(*INTENTS, SET, dataset("one"))).items
        assert [each.name for each in items if each.action == "failed"] == ["covid"]
        assert {each.action for each in items} == {"failed", "skipped"}
        assert await standing(alice) == before


async def test_a_dataset_and_a_mirror_of_one_name_are_refused(world: World) -> None:
    async with world.running("alice") as alice:
        before = await standing(alice)
        for dry_run in (True, False):
            items = (await alice.apply(INTENTS[0], dataset("covid"), dry_run=dry_run)).items
            (failed,) = [each for each in items if each.action == "failed"]
            assert failed.fault is not None
            assert failed.fault.rule == "dataset-name"
        assert await standing(alice) == before


async def test_an_intent_that_is_not_in_force_yet_is_declared_with_a_warning(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def down(_: Any) -> None:
        raise Environment("the network is not running", rule="network-down")

    async with world.running("alice") as alice:
        with monkeypatch.context() as patch:
            patch.setattr(type(alice.parts.membership), "reload", down)
            (item,) = (await alice.apply(INTENTS[-1])).items
        assert (item.action, item.warnings) == (
            "created", ("it is declared, and not in force yet: the network is not running",),
        )  # fmt: skip
        assert (await standing(alice))["intents"][0] == ["food"]
    async with world.running("alice") as alice:
        assert {each.action for each in (await alice.apply(INTENTS[-1])).items} == {"unchanged"}


# What no pull could ever take is refused when it is applied: by its place in the manifest, with nothing made.


GLOB = "{kind: FilesGlob, path: '*.csv'}"
CSV = "{kind: Csv, header: true, ddlSchema: ['event_time TIMESTAMP, a STRING']}"
APPEND = "{kind: Append}"
STAMP = "{name: event_time, type: {kind: Timestamp, unit: Millisecond, timezone: Mars/Phobos}}"


def manifest(fetch: str = GLOB, read: str = CSV, merge: str = APPEND, more: str = "") -> str:
    return f"""kind: DatasetSnapshot
version: 1
content:
  name: x
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {fetch}
      read: {read}
      merge: {merge}
      {more}
"""


FETCHES = {
    "fetch-container": [
        "{kind: Container, image: alpine}",
    ],
    "evm-node": ["{kind: EthereumLogs, chainId: 1}"],
    "sftp-host-key": [
        "{kind: Url, url: 'sftp://me@a.example/b'}",
        "{kind: FilesGlob, path: 'sftp://me@a.example/*.csv'}",
    ],
    "source-mqtt": [
        "{kind: Mqtt, host: 'a b', port: 1883, topics: [{path: t}]}",
        "{kind: Mqtt, host: a.example, port: 1883, topics: []}",
    ],
    "url-scheme": [
        "{kind: Url, url: 'gopher://a.example/b'}",
        "{kind: Url, url: 's3://bucket/b'}",
        "{kind: Url, url: '/etc/passwd'}",
        "{kind: Url, url: 'gopher://${{ env.HOST }}/b'}",
        "{kind: FilesGlob, path: 'webdav://bucket/*.csv'}",
        "{kind: FilesGlob, path: 'file:///data/*.csv'}",
    ],
    "source-password": [
        "{kind: Url, url: 'https://me:secret@a.example/b'}",
        "{kind: Url, url: 'https://me:secret:@a.example/b'}",
        "{kind: Url, url: 'https://me:secret:${{ env.KEY }}@a.example/b'}",
    ],
    "event-time-source": [
        "{kind: Url, url: 'https://a.example/b', eventTime: {kind: FromPath, pattern: x}}",
        "{kind: FilesGlob, path: '*.csv', eventTime: {kind: FromMetadata}}",
        "{kind: FilesGlob, path: '*.csv', eventTime: {kind: FromPath, pattern: '('}}",
        "{kind: FilesGlob, path: '*.csv', eventTime: {kind: FromPath, pattern: '1'}}",
        "{kind: FilesGlob, path: '*.csv', eventTime: {kind: FromPath, pattern: '(1)', timestampFormat: '%Q'}}",
        "{kind: FilesGlob, path: '*.csv', eventTime: {kind: FromPath, pattern: '(1)', timestampFormat: '%Y%Y'}}",
    ],
    "url-host": [
        "{kind: Url, url: 'http:///b'}",
        "{kind: Url, url: 'http://a.example:99999/'}",
        "{kind: Url, url: 'https://a b/c'}",
        "{kind: Url, url: 'https://:80/${{ env.HOST }}'}",
    ],
    "source-header": [
        "{kind: Url, url: 'http://a.example/', headers: [{name: 'a b', value: c}]}",
        "{kind: Url, url: 'http://a.example/', headers: [{name: '', value: c}]}",
        "{kind: Url, url: 'http://a.example/', headers: [{name: ä, value: c}]}",
        '{kind: Url, url: "http://a.example/", headers: [{name: a, value: "c\\nd: e"}]}',
    ],
    "source-variable": [
        "{kind: Url, url: 'http://a.example/${{ env.HOST'}",
        "{kind: Url, url: 'http://a.example/', headers: [{name: a, value: '${{ HOST }}'}]}",
    ],
    "files-glob": ["{kind: FilesGlob, path: ''}"],
    "files-order": ["{kind: FilesGlob, path: '*.csv', order: ByEventTime}"],
}
READS = {
    "read-encoding": ["{kind: Csv, encoding: rot13}", "{kind: NdJson, encoding: hex}"],
    "read-time-format": ["{kind: Csv, timestampFormat: 'M/d/yyyy'}", "{kind: Json, dateFormat: 'yyyy'}"],
    "read-option": ["{kind: Csv, separator: ';;'}", "{kind: Csv, quote: ','}"],
    "read-zone": [f"{{kind: Csv, schema: {{fields: [{STAMP}]}}}}"],
}
BAD = [
    *[(rule, "fetch", manifest(fetch=each)) for rule, all_ in FETCHES.items() for each in all_],
    *[(rule, "read", manifest(read=each)) for rule, all_ in READS.items() for each in all_],
    ("prepare-pipe", "prepare", manifest(more="prepare: [{kind: Pipe, command: []}]")),
    ("preprocess-engine", "preprocess", manifest(more="preprocess: {kind: Sql, engine: datafusion, query: select 1}")),
    *[
        (rule, "preprocess", manifest(more=f'preprocess: {{kind: Sql, engine: spark, query: "{text}"}}'))
        for rule, text in (("declaration", "set odf.nope = 1; select 1"), ("ahead", "set odf.ahead = 'soon'; select 1"))
    ],
    ("primary-key", "merge", manifest(merge="{kind: Ledger, primaryKey: []}")),
]
OPEN = model.Ingest(variables=("WHERE", "WHAT", "HOST"))
"""Of which none has a value here: they may have one when the daemon starts again."""
GOOD = [
    manifest(),
    manifest(fetch="{kind: Url, url: '${{ env.WHERE }}/b.csv'}"),
    manifest(fetch="{kind: Url, url: 'HTTPS://a.example/${{ env.WHAT }}'}"),
    manifest(fetch="{kind: Url, url: 'https://${{ env.HOST }}:${{ env.PORT || '80' }}/'}".replace("'80'", "''80''")),
    manifest(fetch="{kind: FilesGlob, path: '*.csv', eventTime: {kind: FromPath, pattern: '(1)'}}"),
    manifest(read=f"{{kind: Csv, schema: {{fields: [{STAMP.replace('Mars/Phobos', 'Europe/Vienna')}]}}}}"),
    manifest(read=f"{{kind: Csv, schema: {{fields: [{STAMP.replace('Mars/Phobos', '+01:00')}]}}}}"),
]


def wrong_ddl() -> list[str]:
    return [f"{{kind: {kind}, ddlSchema: ['{text}']}}"
            for kind in ("Csv", "Csv, onError: quarantine", "Json", "NdJson", "GeoJson", "Parquet")
            for text in ("a NOTYPE", "a", "a STRING, a STRING")]  # fmt: skip


@pytest.mark.parametrize("dry_run", [True, False])
async def test_refused_with_its_place(world: World, dry_run: bool) -> None:
    """By one node: after each refusal it has nothing, as before."""
    async with world.running("alice") as alice:
        for rule, part, text in BAD:
            (item,) = (await alice.apply(text, dry_run=dry_run)).items
            assert (item.action, item.fault.rule) == ("failed", rule), text
            places = (at for at, each in enumerate(text.splitlines(), 1) if each.strip().startswith(f"{part}:"))
            assert item.fault.place == f"m0.yaml:{next(places)}", text
            assert await alice.dataset_views() == [], text


@pytest.mark.parametrize("kind", ["Sftp", "Ftp", "Debezium", "Webhook"])
def test_a_kind_that_is_not_known_is_refused_by_its_name(kind: str) -> None:
    with pytest.raises(Invalid, match=f"m.yaml:8: .*fetch: unknown kind '{kind}'") as refused:
        parse_manifests(manifest(fetch=f"{{kind: {kind}, url: 'https://a.example/b'}}"), "m.yaml")
    assert refused.value.rule == "unknown-kind"


async def test_ddl_that_means_nothing(world: World) -> None:
    async with world.running("alice") as alice:
        for read in wrong_ddl():
            (item,) = (await alice.apply(manifest(read=read))).items
            assert (item.action, item.fault.place) == ("failed", "m0.yaml:9"), read
            assert await alice.dataset_views() == [], read


async def test_a_dataset_that_is_there_keeps_its_source(world: World) -> None:
    async with world.running("alice", ingest=OPEN) as alice:
        for text in GOOD:
            (item,) = (await alice.apply(text)).items
            assert item.action in ("created", "updated"), item
        size = alice.size("x")
        for _, _, text in BAD:
            (item,) = (await alice.apply(text)).items
            assert (item.action, alice.size("x")) == ("failed", size)
        (item,) = (await alice.apply(GOOD[-1])).items
        assert item.action == "unchanged"


async def test_a_push_source_is_looked_at_too(world: World) -> None:
    text = f"""kind: DatasetSnapshot
version: 1
content:
  name: x
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: a
      read: {CSV}
      merge: {APPEND}
    - kind: AddPushSource
      sourceName: b
      read: {{kind: Csv, encoding: rot13}}
      merge: {APPEND}
"""
    async with world.running("alice") as alice:
        (item,) = (await alice.apply(text)).items
        assert (item.fault.rule, item.fault.place) == ("read-encoding", "m0.yaml:13")


async def test_a_source_names_no_file_of_the_node(world: World, tmp_path: Any) -> None:
    """Its keys lie there, and what is ingested may be published."""
    async with world.running("alice") as alice:
        for fetch in (
            f"{{kind: Url, url: 'file://{alice.home.directory}/keys/node.key'}}",
            f"{{kind: FilesGlob, path: '{alice.home.directory}/keys/*.key'}}",
        ):
            (item,) = (await alice.apply(manifest(fetch=fetch))).items
            assert (item.fault.rule, item.fault.place) == ("source-own", "m0.yaml:8")
    async with world.running("bob", ingest=model.Ingest(folders=(str(tmp_path / "open"),))) as bob:
        (item,) = (await bob.apply(manifest(fetch=f"{{kind: FilesGlob, path: '{tmp_path}/shut/*.csv'}}"))).items
        assert item.fault.rule == "source-folder"


SHUT = "{kind: Url, url: 'http://a.example/', headers: [{name: a, value: 'x ${{ env.TOKEN }}'}]}"
TOKENS = "$schema: VariableSet\nheaders: {name: X}\nspec: {variables: {TOKEN: abc}}\n"


@pytest.mark.parametrize("fetch", [SHUT, "{kind: Url, url: 'http://a.example/${{env.TOKEN }}/x'}"])
async def test_a_variable_that_sources_may_not_see(world: World, fetch: str) -> None:
    """The daemon's own secrets are in its environment; a set of the dataset's name opens, applied with it or before."""
    text = manifest(fetch=fetch)
    async with world.running("alice", ingest=OPEN) as alice:
        (item,) = (await alice.apply(text)).items
        assert (item.fault.rule, item.fault.place) == ("source-variable", "m0.yaml:8")
        assert "TOKEN" in item.fault.hint
        assert "SecretSet" in item.fault.hint
        (item,) = (await alice.apply(text.replace("env.TOKEN", "env.TOKEN || ''none''"), dry_run=True)).items
        assert item.action == "created"
        for other in (TOKENS.replace("X", "y"), TOKENS.replace("TOKEN", "KEY")):
            assert {each.action for each in (await alice.apply(text, other)).items} == {"failed", "skipped"}
        assert {each.action for each in (await alice.apply(text, TOKENS)).items} == {"created"}
        (item,) = (await alice.apply(manifest(fetch=fetch, merge="{kind: Ledger, primaryKey: [a]}"))).items
        assert item.action == "updated"


@pytest.mark.parametrize(
    "text,part",
    [
        (manifest(fetch="{kind: FilesGlob, path: '/data/${{ env.HOST }}/*.csv'}"), "fetch"),
        (manifest(more="preprocess: {kind: Sql, engine: spark, query: \"select '${{ env.HOST }}' from input\"}"),
         "preprocess"),
    ],
)  # fmt: skip
async def test_a_variable_where_none_is_filled_in(world: World, text: str, part: str) -> None:
    """Also not one that sources may see: it would be read as it stands."""
    async with world.running("alice", ingest=OPEN) as alice:
        (item,) = (await alice.apply(text)).items
        line = next(number for number, each in enumerate(text.splitlines(), 1) if each.strip().startswith(f"{part}:"))
        assert (item.fault.rule, item.fault.place) == ("source-variable", f"m0.yaml:{line}")


async def test_a_variable_in_a_transform(world: World) -> None:
    text = """kind: DatasetSnapshot
version: 1
content:
  name: y
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{datasetRef: x, alias: x}]
      transform: {kind: Sql, engine: spark, query: "select event_time, '${{ env.HOST }}' as h from x"}
"""
    async with world.running("alice", ingest=OPEN) as alice:
        await alice.apply(manifest())
        (item,) = (await alice.apply(text)).items
        assert (item.fault.rule, item.fault.place) == ("source-variable", "m0.yaml:9")


async def test_a_pipe_that_is_allowed_is_taken(world: World) -> None:
    async with world.running("alice", ingest=model.Ingest(pipe="user")) as alice:
        (item,) = (await alice.apply(manifest(more="prepare: [{kind: Pipe, command: [cat]}]"))).items
        assert item.action == "created"


@pytest.mark.parametrize("rule,part,text", [each for each in BAD if each[1] in ("fetch", "prepare")])
async def test_a_pull_refuses_the_same(tmp_path: Any, rule: str, part: str, text: str) -> None:
    """Both ask the same: what a chain of an earlier time holds is refused by name when it is pulled."""
    (draft,) = read_drafts([wire.ManifestText(source="m.yaml", text=text, base=str(tmp_path))])
    (event,) = draft.spec.metadata
    assert isinstance(event, SetPollingSource)
    variables = {"HOST": "a.example"}
    settings = IngestSettings(staging=tmp_path, base=tmp_path, variables=variables)
    refused = check_source(event, settings)
    assert refused is not None
    assert (refused[0], refused[1].rule) == (part, rule)
    (tmp_path / "1.csv").write_text("a\n")
    job = FetchJob(state=None, now=Instant(0), folder=tmp_path, settings=settings)
    way = partial(fetch, event.fetch, job)
    if part == "prepare":
        way = partial(prepare, tmp_path / "1.csv", event.prepare or (), tmp_path, settings)
    with trio.fail_after(PATIENCE), pytest.raises(Fault) as caught:
        await way()
    assert caught.value.rule == rule


COLUMNS = (ReadNdJson, ReadCsv, ReadJson, ReadParquet)
STRUCTS = List(item_type=Struct(fields=(DataField(name="x", type=Int64()),)))


@pytest.mark.parametrize("read", COLUMNS)
@pytest.mark.parametrize(
    "type_",
    [Map(key_type=String(), value_type=Int64()), Duration(unit=TimeUnit.SECOND), STRUCTS, Option(inner=STRUCTS),
     Struct(fields=(DataField(name="in", type=Map(key_type=String(), value_type=Int64())),))],
)  # fmt: skip
def test_columns_that_no_dataset_holds_are_refused_by_every_reader(read: Any, type_: Any, tmp_path: Any) -> None:
    schema = DataSchema(fields=(DataField(name="a", type=Int64()), DataField(name="m", type=type_)))
    event = AddPushSource(source_name="s", read=read(schema=schema), merge=MergeAppend())
    refused = check_source(event, IngestSettings(staging=tmp_path))
    assert refused is not None
    assert (refused[0], refused[1].rule) == ("read.schema", "column-type")
    assert "column 'm' is a " in refused[1].message
    assert refused[1].hint


@pytest.mark.parametrize(
    "merge",
    [MergeLedger(primary_key=("zz",)), MergeSnapshot(primary_key=("a",), compare_columns=("zz",)),
     MergeChangelogStream(primary_key=("a", "zz")), MergeUpsertStream(primary_key=("zz",))],
)  # fmt: skip
def test_keys_that_no_row_has_are_refused(merge: Any, tmp_path: Any) -> None:
    """Where the columns are known: without a schema the files decide, and with a query its rows."""
    event = AddPushSource(source_name="s", read=ReadNdJson(ddl_schema=("a BIGINT, b STRING",)), merge=merge)
    refused = check_source(event, IngestSettings(staging=tmp_path))
    assert refused is not None
    assert (refused[0], refused[1].rule) == ("merge", "primary-key")
    assert "'zz', and the read schema has 'a', 'b'" in refused[1].message
    open_ = msgspec.structs.replace(event, read=ReadNdJson())
    assert check_source(open_, IngestSettings(staging=tmp_path)) is None


# Where a table's history says when its inputs were pulled, whoever applies it is told.


INPUT, OUTPUT = (DatasetId.from_public_key(bytes([number]) * 32) for number in (1, 2))
QUERY = "select k, max(event_time) as event_time, count(*) as c from a group by k"


def transform(sql: str, dataset: DatasetId) -> SetTransform:
    queries = (SqlQueryStep(query=sql),)
    inputs = (TransformInput(dataset_ref=str(dataset), alias="a"),)
    return SetTransform(inputs=inputs, transform=TransformSql(engine="spark", queries=queries))


class Check(TransformCheck):
    """Over chains of which the schemas are given."""

    changelog = False

    async def inputs(self, event: SetTransform) -> Any:
        dataset = DatasetId.parse(event.inputs[0].dataset_ref)
        return (
            ValidateInput(
                query_alias="a", dataset_id=dataset, schema=DataSchema(fields=()), vocab=Vocab(),
                changelog=self.changelog,
            ),
        )  # fmt: skip


@pytest.fixture
def check(tmp_path: Any) -> Check:
    chains = MemoryChains(MemoryObjects(tmp_path))
    for dataset, kind in ((INPUT, DatasetKind.ROOT), (OUTPUT, DatasetKind.DERIVATIVE)):
        events = [Seed(dataset_id=dataset, dataset_kind=kind), SetDataSchema(schema=DataSchema(fields=()))]
        if dataset is OUTPUT:
            events.insert(1, transform("select * from a", INPUT))
        blocks: list[Any] = []
        for number, event in enumerate(events):
            before = blocks[-1].hash if blocks else None
            content = MetadataBlock(
                system_time=parse("2024-01-01T00:00:00Z"), prev_block_hash=before, sequence_number=number, event=event
            )
            blocks.append(encode_block(content))
        chains.commit([Append(dataset=dataset, expected=None, blocks=blocks, objects=())])
        assert chains.chain(dataset).head() == Head(blocks[-1].hash, len(events) - 1)
    home: Any = SimpleNamespace(chains=chains)
    engine: Any = None
    return Check(home, engine)


TABLE = ValidateResponse(ok=True, mode="table")


async def test_a_table_of_what_is_derived_says_so(check: Check) -> None:
    (told,) = await check.remarks(transform(QUERY, OUTPUT), TABLE)
    assert "after each block of a" in told
    assert "SET odf.tick" in told


async def test_a_calendar_helps_where_rows_only_come(check: Check) -> None:
    head = "set odf.tick = '1 day';\n"
    assert await check.remarks(transform(head + QUERY, OUTPUT), TABLE) == ()
    check.changelog = True
    (told,) = await check.remarks(transform(head + QUERY, OUTPUT), TABLE)
    assert "SET odf.tick" not in told


async def test_tables_of_roots_and_windows_need_no_remark(check: Check) -> None:
    assert await check.remarks(transform(QUERY, INPUT), TABLE) == ()
    assert await check.remarks(transform(QUERY, OUTPUT), ValidateResponse(ok=True, mode="final")) == ()
