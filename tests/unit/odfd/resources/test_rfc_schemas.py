"""RFC-018's JSON Schemas judge what this node prints, and what it reads is judged by them."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from chain.codec import yaml_tree
from chain.codec.bind import plain, plain_of
from chain.errors import Invalid
from odfd.control import wire
from odfd.resources.types import ODF, OURS
from odfd.services.resources.reading import read_drafts
from worlds import rfc_schemas

ROOT = Path(__file__).parents[4]
EXAMPLES = ROOT / "tests" / "golden" / "rfc018"
STEP = re.compile(r"```yaml\n((?:fetch|read):\n.*?)```", re.DOTALL)
FETCH = {"kind": "Url", "url": "https://example.org/a.csv"}
READ = {"kind": "Csv", "header": True, "schema": {"fields": [{"name": "n", "type": "Int64"}]}}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_r62_each_example_of_the_rfc_is_valid_by_its_schemas(path: Path) -> None:
    (node,) = yaml_tree.parse(path.read_text(), path.name)
    assert rfc_schemas.mistakes(plain(node)) == []


def test_the_judge_finds_what_is_wrong_in_each_part() -> None:
    name = f"{rfc_schemas.ODF}config/v1alpha1/VariableSet"
    good = {"$schema": name, "headers": {"name": "a"}, "spec": {"variables": {"x": {"value": "1"}, "y": "2"}}}
    assert rfc_schemas.mistakes(good) == []
    for wrong in (
        {"more": 1},
        {"headers": {"name": "a", "did": "did:odf:1"}},
        {"spec": {"variables": {"x": {"value": "1", "more": 1}}}},
        {"spec": {"variables": {}, "more": 1}},
        {"status": {"phase": "Ready", "conditions": {}}},
    ):
        assert rfc_schemas.mistakes(good | wrong), wrong


def test_r03_no_schema_of_ours_is_under_a_uri_of_the_format() -> None:
    for path in rfc_schemas.OWN.rglob("*.json"):
        schema = json.loads(path.read_text())
        assert schema["$id"] == f"{OURS}/{path.relative_to(rfc_schemas.OWN).with_suffix('')}"
        assert [each for each in rfc_schemas.schemas() if each == schema["$id"]] == [schema["$id"]]
        assert not {each for each in schema["properties"]["$schema"]["enum"] if each.startswith(ODF)} - {
            schema["$id"].replace(OURS, ODF)
        }


def steps() -> list[dict[str, Any]]:
    found = [yaml.safe_load(each) for each in STEP.findall((ROOT / "docs" / "sources.md").read_text())]
    assert len(found) > 10
    return found


@pytest.mark.parametrize("step", steps(), ids=lambda step: "-".join(each["kind"] for each in step.values()))
def test_a_source_with_options_of_ours_names_our_schema_and_others_that_of_the_format(step: dict[str, Any]) -> None:
    source = {"kind": "SetPollingSource", "fetch": FETCH, "read": READ, "merge": {"kind": "Append"}}
    source |= {key: value for key, value in step.items() if key in ("fetch", "read", "prepare")}
    manifest = {"$schema": "Dataset", "headers": {"name": "a"}, "spec": {"kind": "Root", "metadata": [source]}}
    (draft,) = read_drafts([wire.ManifestText(source="m.yaml", text=yaml.safe_dump(manifest), base="")])
    spec = plain_of(draft.spec)
    printed = manifest | {"$schema": draft.type.schema_of(spec), "spec": spec}
    has_ours = "w3id.org/odfd/" in json.dumps(spec)
    assert printed["$schema"] == (draft.type.own_uri if has_ours else draft.type.uri)
    assert rfc_schemas.mistakes(printed) == []


SOURCE = "source/v1alpha1/Source"
TARGET = "sink/v1alpha1/WebhookTarget"
DATASET = "dataset/v1alpha1/Dataset"
PROJECTION = "dataset/v1alpha1/Projection"
RELATIONS = "auth/v1alpha1/Relations"
VOLUME = "storage/v1alpha1/PersistentVolume"
VARIABLES = "config/v1alpha1/VariableSet"
SECRETS = "config/v1alpha1/SecretSet"
FLOW, RUN, TASK = "flows/v1alpha1/Flow", "flows/v1alpha1/FlowRun", "tasks/v1alpha1/Task"
READS = {"kind": "Csv", "header": True}
ID = "6767a4ee-d74d-436e-84f9-709407869a26"


def written(type_: str, spec: dict[str, Any], **headers: Any) -> dict[str, Any]:
    return {"$schema": rfc_schemas.ODF + type_, "headers": {"name": "a", **headers}, "spec": spec}


def projecting(**more: Any) -> dict[str, Any]:
    project = {"kind": "Sql", "engine": "duckdb", **more}
    return written(PROJECTION, {"inputs": [{"datasetRef": "a"}], "project": project})


def attribute(value: object) -> dict[str, Any]:
    return written(RELATIONS, {"attributes": [{"object": "Dataset:a", "name": "colour", "value": value}]})


def ingress(kind: str, **more: Any) -> dict[str, Any]:
    return written(SOURCE, {"read": READS, "ingress": {"kind": kind, **more}})


READ_ALL = [
    written(DATASET, {"kind": "Root", "metadata": [], "volume": {"name": "v"}}),
    written(DATASET, {"kind": "Root", "metadata": [], "volume": {"id": ID}}),
    ingress("EvmLogs", chainId=1, nodeUrl="https://a.example", filter="address = X'00'"),
    ingress("Url", url="https://a.example/", eventTime="FromMetadata", cache="Forever"),
    ingress("Mqtt", host="h", port=1883, topics=[{"path": "a", "qos": "AtLeastOnce"}]),
    ingress("RestEndpoint", buffer={"kind": "Memory"}),
    written(SOURCE, {"read": READS, "config": {"k": {"type": "SecretSet", "name": "s", "path": "key"}},
                     "ingress": {"kind": "Url", "url": "https://a.example/${{ config.k }}"}}),
    projecting(queries=[{"alias": "x", "query": "select 1 as n"}, {"query": "select n from x"}]),
    projecting(queries=[{"query": "select 1 as n"}]),
    written(VARIABLES, {"variables": {"a": {"value": "1"}, "b": "2"}}),
    written(SECRETS, {"secrets": {"a": {"value": "1"}}}),
    written(VARIABLES, {"variables": {}}, account={"did": "did:odf:fed0101"}),
    written("auth/v1alpha1/Account", {"email": "a@b.c", "did": "did:odf:fed0101", "password": {"value": "x"}}),
    written(VOLUME, {"kind": "S3", "bucket": "bucket", "capacity": {}, "credentials": {}}),
    written(RELATIONS, {}),
    written(FLOW, {"target": {"type": "Dataset", "name": "a"}, "triggers": [{"kind": "Manual"}],
                   "tasks": [{"kind": "Transform"}], "retryPolicy": {"maxAttempts": 2, "backoff": "Linear"}}),
    written(FLOW, {"target": "Dataset:a", "triggers": [{"kind": "Source", "source": "Source:s"}],
                   "tasks": [{"kind": "Ingest", "source": {"type": "Source", "name": "s"}}]}),
    written(FLOW, {"target": "Dataset:a", "triggers": [{"kind": "Dataset", "dataset": "b"}],
                   "tasks": [{"kind": "WebhookCall", "endpoint": "WebhookEndpoint:w"}]}),
    written(RUN, {"target": {"type": "Dataset", "name": "a"}, "tasks": [{"kind": "Verify", "replayTransform": True}]}),
    written(TASK, {"kind": "Reset", "ref": "head", "target": {"name": "a"}}),
    written(TASK, {"kind": "SyncTo", "target": "a", "destination": {"url": "odf+https://n.example/a/b"}, "force": False,
                   "createIfNotExists": True}),
    written(TARGET, {"url": "https://a.example/h"}),
    *(
        written(TARGET, {"url": "https://a.example/h", "secret": each})
        for each in ("x" * 24, {"value": "x" * 24}, {"value": "a.b.c.d.e", "contentEncoding": "jwe"})
    ),
]  # fmt: skip
"""Valid manifests with fields that a node is likely to forget."""
BEYOND = [
    (written(SOURCE, {"read": READS, "vocab": {"eventTimeColumn": "t"}}), "spec.vocab"),
    (written(DATASET, {"kind": "Root", "metadata": [], "volume": {"name": "v", "account": "org"}}), "spec.volume"),
    (written(DATASET, {"kind": "Root", "metadata": [], "volume": "PersistentVolume:org/v"}), "spec.volume"),
    (projecting(query="select 1", version="1"), "spec.project.version"),
    (projecting(query="select 1", temporalTables=[{"name": "a", "primaryKey": ["b"]}]), "spec.project.temporalTables"),
    (written(SECRETS, {"secrets": {"a": {"value": "1", "contentEncoding": "base64"}}}),
     "spec.secrets.a.contentEncoding"),
    (written(VARIABLES, {"variables": {}}, account={}), "headers.account"),
    (written(VARIABLES, {"variables": {}}, labels={"a b": 1}), "headers.labels.a b"),
    (written(VOLUME, {"kind": "S3", "bucket": "bucket", "credentials": {"accessKey": "s#k"}}), "spec.credentials"),
    (attribute("red"), "spec.attributes[0].value"),
    (attribute(value=True), "spec.attributes[0]"),
    (written(RELATIONS, {"relations": [{"subject": "Account:a", "relation": "role", "value": 1, "object": "Group:a"}]}),
     "spec.relations[0].value"),
]  # fmt: skip
"""Valid manifests of what this node has not, and the field that asks for it."""


def faults_of(manifest: dict[str, Any]) -> tuple[Invalid, ...]:
    """Returns the mistakes that this node finds."""
    try:
        read_drafts([wire.ManifestText(source="m.yaml", text=json.dumps(manifest), base="")])
    except Invalid as fault:
        return getattr(fault, "faults", (fault,))
    return ()


@pytest.mark.parametrize("manifest", READ_ALL, ids=lambda each: each["$schema"].rpartition("/")[2])
def test_r01_valid_manifests_are_read(manifest: dict[str, Any]) -> None:
    assert rfc_schemas.mistakes(manifest) == []
    assert faults_of(manifest) == ()


@pytest.mark.parametrize(("manifest", "path"), BEYOND, ids=lambda each: each if isinstance(each, str) else "")
def test_r01_what_the_node_has_not_is_refused_by_field_clause_and_the_words_to_use(
    manifest: dict[str, Any], path: str
) -> None:
    assert rfc_schemas.mistakes(manifest) == []
    (fault,) = faults_of(manifest)
    assert (fault.place, fault.message.partition(": ")[0]) == ("m.yaml:1", path)
    assert re.search(r" \(RFC-018, [\w/& -]+\)$", fault.message)
    assert fault.hint


def test_steps_of_a_projection_are_one_statement() -> None:
    (draft,) = read_drafts(
        [wire.ManifestText(source="m", text=json.dumps(READ_ALL[7]), base="")]
    )  # fmt: skip
    assert draft.spec.project.sql == 'WITH "x" AS (select 1 as n) SELECT * FROM (select n from x)'
    for wrong in ([{"query": "select 1"}, {"query": "select 2"}], [{"alias": "x", "query": "select 1"}]):
        assert [each.rule for each in faults_of(projecting(queries=wrong))] == ["query-steps"]
    assert [each.rule for each in faults_of(projecting(query="select 1", queries=[{"query": "select 1"}]))] == [
        "query-steps"
    ]


OF_THE_FORMAT = [SOURCE, TARGET, DATASET, PROJECTION, RELATIONS, VOLUME, VARIABLES, SECRETS, FLOW, RUN, TASK,
                 "auth/v1alpha1/Account"]  # fmt: skip


@pytest.mark.parametrize("type_", OF_THE_FORMAT)
@given(seed=st.integers(0, 2**32))
def test_r01_whatever_is_valid_is_read_or_refused_at_its_field(type_: str, seed: int) -> None:
    manifest = rfc_schemas.some_manifest(rfc_schemas.ODF + type_, random.Random(seed))
    for fault in faults_of(manifest):
        assert fault.rule
        assert fault.place == "m.yaml:1"
        assert re.match(r"(headers|spec|metadata)\b", fault.message), (fault.message, manifest)
