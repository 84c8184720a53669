"""What no pull could ever take is refused when it is applied: by its place in the manifest, with nothing made."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest
import trio

from chain.codec.manifest import parse_manifests
from chain.errors import Fault, Invalid
from chain.instant import Instant
from chain.model.events import AddPushSource, SetPollingSource
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
)
from config import model
from odfd.control import wire
from odfd.ingest.acceptance import check_source
from odfd.ingest.fetch.dispatch import fetch
from odfd.ingest.fetch.source import FetchJob
from odfd.ingest.preparation import prepare
from odfd.ingest.settings import IngestSettings
from odfd.services.resources.reading import read_drafts
from worlds.eventually import PATIENCE
from worlds.node_world import World

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
SET = "$schema: VariableSet\nheaders: {name: X}\nspec: {variables: {TOKEN: abc}}\n"


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
        for other in (SET.replace("X", "y"), SET.replace("TOKEN", "KEY")):
            assert {each.action for each in (await alice.apply(text, other)).items} == {"failed", "skipped"}
        assert {each.action for each in (await alice.apply(text, SET)).items} == {"created"}
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
