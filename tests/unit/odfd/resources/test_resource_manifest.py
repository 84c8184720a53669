"""Resources as people write them: what is read, what is refused, and where the mistake is said to be."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from chain.codec import yaml_tree
from chain.codec.bind import plain, plain_of
from chain.errors import Invalid
from chain.model.read_options import read_options
from odfd.control import wire
from odfd.flows.manifest import DesiredFlow, flow_of
from odfd.resources.manifest import Draft, describe, read_resource
from odfd.resources.references import references_in
from odfd.resources.registry import ODF, OURS, Registration
from odfd.resources.schema import fields_of, part_of, schema_of, type_text
from odfd.resources.types import ResourceType, TypeRegistry
from odfd.services.datasets.desired import in_order, inputs_of
from odfd.services.resources.reading import read_drafts
from odfd.services.resources.types import TYPES
from worlds import rfc_schemas

GOLDEN = Path(__file__).parents[3] / "golden" / "rfc018"
FLOW = """$schema: Flow
headers: {name: often}
spec:
  target: Dataset:cities
  triggers: [{kind: Interval, interval: 1h}]
  tasks: [{kind: Verify}]
"""


class ToySpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a toy does."""

    sound: Annotated[str, describe("What it says.")]


TOY = ResourceType(names=Registration("Toy", "play", "toys", base=OURS), about="A toy.", spec=ToySpec)


def read(*texts: str) -> list[Draft]:
    return read_drafts([wire.ManifestText(source=f"{n}.yaml", text=text, base="") for n, text in enumerate(texts, 1)])


def flows(text: str) -> list[DesiredFlow]:
    return [flow for draft in read(text) if (flow := flow_of(draft)) is not None]


def refused(*texts: str) -> list[tuple[str | None, str, str]]:
    """Place, rule and hint of each mistake."""
    found = mistakes(*texts)
    assert found
    return [(each.place, each.rule, each.hint) for each in found]


def mistakes(*texts: str) -> tuple[Invalid, ...]:
    try:
        read(*texts)
    except Invalid as fault:
        return getattr(fault, "faults", (fault,))
    return ()


def test_all_parts_must_be_there_and_others_are_refused_with_what_was_meant() -> None:
    assert refused("$schema: Flow\nheaders: {name: a}\n") == [("1.yaml:1", "required-field", "")]
    assert refused(FLOW.replace("spec:", "specs:")) == [
        ("1.yaml:1", "required-field", ""),
        ("1.yaml:4", "unknown-field", "did you mean 'spec'?"),
    ]


def test_what_the_node_writes_is_passed_over_with_a_warning() -> None:
    text = FLOW.replace("{name: often}", "{name: often, generation: 3}") + "status: {phase: Ready}\n"
    (read_flow,), (same,) = flows(text), flows(FLOW)
    assert read_flow == msgspec.structs.replace(same, lines=read_flow.lines)
    assert read(text)[0].warnings == (
        "status is passed over: the node writes it",
        "headers.generation is passed over: the node writes it",
    )


@pytest.mark.parametrize("schema", [f"{ODF}/flows/v1alpha1/Flow", f"{ODF}/flow/v1alpha1/Flow.json", "Flow"])
def test_a_type_is_written_as_its_uri_or_its_short_name(schema: str) -> None:
    assert [each.name for each in flows(FLOW.replace("Flow", schema))] == ["often"]


@pytest.mark.parametrize(
    ("schema", "hint"),
    [
        ("Folw", "did you mean 'Flow'?"),
        ("flow", "did you mean 'Flow'?"),
        ("https://example.org/flow/v1alpha1/Flow", f"did you mean '{ODF}/flows/v1alpha1/Flow'?"),
        (f"{ODF}/flow/v1/Flow", f"did you mean '{ODF}/flows/v1alpha1/Flow'?"),
        ("Zebra", "known are "),
    ],
)
def test_an_unknown_type_is_refused_and_never_fetched(schema: str, hint: str) -> None:
    ((place, rule, told),) = refused(FLOW.replace("Flow", schema))
    assert (place, rule) == ("1.yaml:1", "unknown-type")
    assert told.startswith(hint)


def test_names_are_one_type_each() -> None:
    assert TYPES.word("DS") is TYPES.word("Datasets") is TYPES.find_schema("Dataset")
    for twin in ({"name": "Flow"}, {"plural": "flows"}, {"aliases": ("ds",)}):
        names = TOY.names._replace(**twin)
        with pytest.raises(ValueError, match="is both"):
            TypeRegistry([*TYPES, ResourceType(names=names, about="")])


def test_a_type_that_does_not_act_is_refused_with_what_does() -> None:
    for each in TYPES:
        if each.spec is None:
            text = f"$schema: {each.name}\nheaders: {{name: a}}\nspec: {{}}\n"
            assert refused(text) == [("1.yaml:1", "type-without-effect", each.instead)]
            assert each.instead


@pytest.mark.parametrize(("type_", "field", "limit"), [("VariableSet", "variables", 64), ("SecretSet", "secrets", 128)])
def test_a_value_that_is_too_large_is_refused_with_the_limit_of_its_set(type_: str, field: str, limit: int) -> None:
    text = f"$schema: {type_}\nheaders: {{name: a}}\nspec: {{{field}: {{key: {'x' * (limit * 1024 + 1)}}}}}\n"
    (mistake,) = mistakes(text)
    assert (mistake.rule, mistake.message) == ("set-limit", f"spec.{field}.key: larger than {limit} KiB")
    assert mistakes(text.replace("xx", "x", 1)) == ()


def test_a_type_that_is_registered_is_read_and_explained() -> None:
    registry = TypeRegistry([*TYPES, TOY])
    (node,) = yaml_tree.parse("$schema: Toy\nheaders: {name: bear}\nspec: {sound: brumm}\n", "toy.yaml")
    draft, mistakes = read_resource(node, "toy.yaml", registry)
    assert draft is not None
    assert (draft.type, draft.spec, mistakes) == (TOY, ToySpec(sound="brumm"), [])
    schema = schema_of(TOY)
    spec = part_of(schema, "spec")
    assert spec is not None
    assert [(name, type_text(schema, part), needed) for name, (part, needed) in fields_of(schema, spec).items()] == [
        ("sound", "string", True)
    ]
    assert part_of(schema, "spec.noise") is None


def test_names_are_the_formats_and_no_ids() -> None:
    for name in ("a/b", "x" * 101, "0b45aa47-c1f8-4c4d-8a4d-6c0a6a5e9a11", "spaced name"):
        ((place, _, _),) = refused(FLOW.replace("often", f'"{name}"'))
        assert place == "1.yaml:2"


def test_an_annotation_is_known_by_its_short_name_and_its_uri_but_once() -> None:
    uri = f"{ODF}/flow/v1alpha1/FlowPolicy"
    short = FLOW.replace("{name: often}", "{name: often, annotations: {flowPolicy: {suspend: true}}}")
    long = short.replace("flowPolicy", f'"{uri}"')
    assert flows(short)[0].policy == flows(long)[0].policy != flows(FLOW)[0].policy
    both = short.replace("annotations: {", f'annotations: {{"{uri}": {{}}, ')
    assert [each[:2] for each in refused(both)] == [("1.yaml:2", "annotation-twice")]
    assert [each[1] for each in refused(short.replace("suspend: true", "sleep: true"))] == ["unknown-field"]


def test_all_mistakes_of_all_texts_are_told_at_once() -> None:
    root = "kind: DatasetSnapshot\nversion: 1\ncontent: {name: a, kind: Rot, metadata: []}\n"
    found = refused(
        FLOW.replace("target", "traget") + "---\n" + FLOW.replace("1h", "1 fortnight"),
        root,
        "a: 1\na: 2\n",
        "$schema: Flow\nheaders: {name: 2001-01-01}\nspec: {target: yes, triggers: []}\n",
    )
    assert [place for place, _, _ in found] == ["1.yaml:4", "1.yaml:4", "1.yaml:12", "2.yaml:3", "3.yaml:2", "4.yaml:3"]
    assert "did you mean 'target'?" in (found[0][2], found[1][2])
    bad_name = "kind: DatasetSnapshot\nversion: 1\ncontent: {name: a b, kind: Root, metadata: []}\n"
    found = refused(f"{bad_name}---\n{FLOW.replace('target', 'traget')}")
    assert [place for place, _, _ in found] == ["1.yaml:3", "1.yaml:8", "1.yaml:8"], "in one text too"


@pytest.mark.slow
@pytest.mark.parametrize("text", ["&a [*a]", "a: &x [" + "[" * 70 + "]" * 71, "x: &a {}\ny: [" + "*a," * 200_000 + "]"])
def test_what_would_take_all_memory_is_refused(text: str) -> None:
    assert len(refused("$schema: Flow\n" + text.join(["z: ", "\n"]) if text[0] == "&" else text)) == 1


@pytest.mark.parametrize(
    ("headers", "rule"),
    [
        ("labels: {" + ", ".join(f"k{n}: 1" for n in range(65)) + "}", "label-limit"),
        ("labels: {k: " + "x" * 1_100 + "}", "label-limit"),
        ("annotations: {k: " + "x" * 263_000 + "}", "annotation-limit"),
        ("labels: {'a b': 1}", "label-key"),
    ],
)
def test_labels_and_annotations_have_limits(headers: str, rule: str) -> None:
    ((_, told, _),) = refused(FLOW.replace("{name: often}", "{name: often, " + headers + "}"))
    assert told == rule
    values = "labels: {a: 1, b: [x, null], c: {d: true}}, annotations: {e: {f: []}}"
    (draft,) = read(FLOW.replace("{name: often}", "{name: often, " + values + "}"))
    assert draft.headers.labels == {"a": 1, "b": ["x", None], "c": {"d": True}}


def test_short_and_long_references_are_one_value() -> None:
    short, long = flows(FLOW)[0], flows(FLOW.replace("Dataset:cities", "cities"))[0]
    assert (short.target, short.inputs) == (long.target, long.inputs) == ("cities", {})


def test_a_reference_is_of_the_type_of_its_place() -> None:
    for wrong in ("Flow:cities", "SecretSet:cities#key"):
        ((place, _, _),) = refused(FLOW.replace("Dataset:cities", f'"{wrong}"'))
        assert place == "1.yaml:4"


def test_inputs_come_before_what_derives_from_them_whatever_the_order() -> None:
    root = "kind: DatasetSnapshot\nversion: 1\ncontent: {name: a, kind: Root, metadata: []}\n"
    derived = (
        "kind: DatasetSnapshot\nversion: 1\ncontent:\n  name: NAME\n  kind: Derivative\n  metadata:\n"
        "  - kind: SetTransform\n"
        "    inputs: [{datasetRef: FROM}]\n    transform: {kind: Sql, engine: spark, query: select 1}\n"
    )
    texts = [root, *(derived.replace("NAME", name).replace("FROM", of) for name, of in ("ba", "cb", "dc"))]
    for order in itertools.permutations(texts):
        drafts = read(*order)
        said = [(each.headers.name, inputs_of(each.headers.name, each.spec.metadata)) for each in drafts]
        assert [said[place][0] for place in in_order(said)] == ["a", "b", "c", "d"]


WORDS = [
    "$schema",
    "headers",
    "spec",
    "name",
    "target",
    "triggers",
    "kind",
    "annotations",
    "flowPolicy",
    "labels",
    "cron",
]
LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["Schedule", "Root"])


def below(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from(WORDS) | st.text(max_size=4)
    return st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4)


@pytest.mark.slow
@given(st.recursive(LEAVES, below), st.sampled_from(["Flow", "Dataset", "Mirror"]))
def test_whatever_is_written_is_read_or_refused(value: Any, name: str) -> None:
    """Nothing but Invalid leaves; what is refused has a place."""
    parts = value if isinstance(value, dict) else {"spec": value}
    text = msgspec.json.encode({"headers": {"name": "a"}} | parts | {"$schema": name}).decode()
    assert all(each.place for each in mistakes(text))


NOT_YET: dict[str, tuple[str, ...]] = {
    "sink-webhook-dataset-events.webhook-target-canonical": ("unknown-type",),
    "source-polling-url.proj-latest": ("engine-unavailable",),
}
"""Examples that are refused, with the rules; the others are read. A canonical view of a resource is no manifest of its
type; and ``latest`` is a function of kamu's engine that no engine here has."""


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.yaml")), ids=lambda path: path.stem)
def test_each_example_of_the_rfc_is_read_or_refused_by_name(path: Path) -> None:
    assert tuple(each.rule for each in mistakes(path.read_text())) == NOT_YET.get(path.stem, ())


def test_a_dataset_takes_the_options_of_read_steps_that_a_snapshot_takes() -> None:
    wanted = read("""\
$schema: Dataset
headers: {name: sensors}
spec:
  kind: Root
  metadata:
  - kind: AddPushSource
    sourceName: default
    read: {kind: Csv, header: true, skipRows: 2, schema: {fields: [{name: celsius, type: Float64}]}}
    merge: {kind: Append}
""")
    (source,) = wanted[0].spec.metadata
    assert read_options(source.read.schema).skip_rows == 2


TYPED = re.compile(rf"(?:{'|'.join(each.name for each in TYPES)}):\S+")
EXAMPLES = [each.example for each in TYPES.acting] + [
    path.read_text() for path in sorted(GOLDEN.glob("*.yaml")) if path.stem not in NOT_YET
]


def texts_in(value: Any) -> Iterator[str]:
    """Yields all texts in a value of JSON."""
    match value:
        case str():
            yield value
        case dict():
            for each in value.values():
                yield from texts_in(each)
        case list() | tuple():
            for each in value:
                yield from texts_in(each)


def test_what_names_a_resource_in_any_example_is_a_reference() -> None:
    found = 0
    for draft in (draft for text in EXAMPLES for draft in read(text)):
        plain = plain_of(draft.spec)
        kept = plain if draft.type.kept is None else draft.type.kept(draft.headers.name, draft.spec, None)
        named = {text.partition("#")[0] for text in texts_in(kept) if TYPED.fullmatch(text) and "%" not in text}
        keys = {each.key.casefold() for each in references_in(draft.type.layout, kept)}
        assert {each.casefold() for each in named} <= keys, draft.type.name
        found += len(named)
    assert found > 10


# RFC-018's JSON Schemas judge what this node prints, and what it reads is judged by them.


ROOT = Path(__file__).parents[4]
RFC_EXAMPLES = ROOT / "tests" / "golden" / "rfc018"
STEP = re.compile(r"```yaml\n((?:fetch|read):\n.*?)```", re.DOTALL)
FETCH = {"kind": "Url", "url": "https://example.org/a.csv"}
READ = {"kind": "Csv", "header": True, "schema": {"fields": [{"name": "n", "type": "Int64"}]}}


@pytest.mark.parametrize("path", sorted(RFC_EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_each_example_of_the_rfc_is_valid_by_its_schemas(path: Path) -> None:
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


def test_no_schema_of_ours_is_under_a_uri_of_the_format() -> None:
    for path in rfc_schemas.OWN.rglob("*.json"):
        schema = json.loads(path.read_text())
        assert schema["$id"] == f"{OURS}/{path.relative_to(rfc_schemas.OWN).with_suffix('')}"
        assert [each for each in rfc_schemas.schemas() if each == schema["$id"]] == [schema["$id"]]
        assert not {each for each in schema["properties"]["$schema"]["enum"] if each.startswith(ODF)} - {
            schema["$id"].replace(OURS, ODF)
        }


def steps() -> list[dict[str, Any]]:
    found = [yaml.safe_load(each) for each in STEP.findall((ROOT / "docs" / "reference" / "sources.md").read_text())]
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
FLOW_SCHEMA, RUN, TASK = "flows/v1alpha1/Flow", "flows/v1alpha1/FlowRun", "tasks/v1alpha1/Task"
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
    written(FLOW_SCHEMA, {"target": {"type": "Dataset", "name": "a"}, "triggers": [{"kind": "Manual"}],
                   "tasks": [{"kind": "Transform"}], "retryPolicy": {"maxAttempts": 2, "backoff": "Linear"}}),
    written(FLOW_SCHEMA, {"target": "Dataset:a", "triggers": [{"kind": "Source", "source": "Source:s"}],
                   "tasks": [{"kind": "Ingest", "source": {"type": "Source", "name": "s"}}]}),
    written(FLOW_SCHEMA, {"target": "Dataset:a", "triggers": [{"kind": "Dataset", "dataset": "b"}],
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
def test_valid_manifests_are_read(manifest: dict[str, Any]) -> None:
    assert rfc_schemas.mistakes(manifest) == []
    assert faults_of(manifest) == ()


@pytest.mark.parametrize(("manifest", "path"), BEYOND, ids=lambda each: each if isinstance(each, str) else "")
def test_what_the_node_has_not_is_refused_by_field_clause_and_the_words_to_use(
    manifest: dict[str, Any], path: str
) -> None:
    assert rfc_schemas.mistakes(manifest) == []
    (fault,) = faults_of(manifest)
    assert (fault.place, fault.message.partition(": ")[0]) == ("m.yaml:1", path)
    assert re.search(r" \(RFC-018, [\w/& -]+\)$", fault.message)
    assert fault.hint


@pytest.mark.parametrize(
    ("manifest", "told"),
    [
        (written(VOLUME, {"kind": "Nfs"}), "spec.kind: unknown VolumeKind 'Nfs' (RFC-018, storage/PersistentVolume)"),
        (written(VARIABLES, {"variables": {}, "more": 1}),
         "spec.more: unknown field 'more' (RFC-018, config/VariableSet)"),
        (written(VARIABLES, {"variables": {}}, owner="me"),
         "headers.owner: unknown field 'owner' (RFC-018, resource/ResourceHeaders)"),
        ({**written(VARIABLES, {"variables": {}}), "extra": 1},
         "extra: unknown field 'extra' (RFC-018, resource/Resource)"),
        (written(FLOW_SCHEMA, {"target": "a", "triggers": [{"kind": "Manual"}], "tasks": [{"kind": "Verify"}], "x": 1}),
         "spec.x: unknown field 'x' (RFC-019, flow/Flow)"),
        (written(RELATIONS, {"relations": [{"subject": "Account:a", "relation": "role", "value": "Boss",
                                            "object": "Dataset:a"}]}),
         "spec.relations[0]: there is no role 'Boss' (RFC-018, auth/Relation)"),
        (written(VOLUME, {"kind": "HostPath", "path": "/a"}, annotations={"volumePolicy": {"x": 1}}),
         "headers.annotations.volumePolicy.x: unknown field 'x'"),
    ],
)  # fmt: skip
def test_unknown_words_are_told_with_the_clause_that_has_the_known_ones(manifest: dict[str, Any], told: str) -> None:
    (fault,) = faults_of(manifest)
    assert fault.message == told
    assert fault.hint


@pytest.mark.parametrize(
    ("type_", "spec", "schema", "is_told"),
    [
        (DATASET, {"kind": "Root", "metadata": [], "shards": {"number": 2}}, rfc_schemas.ODF + DATASET, True),
        (DATASET, {"kind": "Root", "metadata": []}, rfc_schemas.ODF + DATASET, False),
        (DATASET, {"kind": "Root", "metadata": [], "shards": {"number": 2}}, f"{OURS}/{DATASET}", False),
        (DATASET, {"kind": "Root", "metadata": [], "shards": {"number": 2}}, "Dataset", False),
        (VOLUME, {"kind": "HostPath", "path": "/a"}, rfc_schemas.ODF + VOLUME, True),
    ],
)
def test_fields_of_our_own_under_a_uri_of_the_format_are_told(
    type_: str, spec: dict[str, Any], schema: str, is_told: bool
) -> None:
    text = json.dumps(written(type_, spec) | {"$schema": schema})
    (draft,) = read_drafts([wire.ManifestText(source="m", text=text, base="")])
    told = [each for each in draft.warnings if f"$schema: {OURS}/{type_} has all" in each]
    assert bool(told) == is_told


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


OF_THE_FORMAT = [SOURCE, TARGET, DATASET, PROJECTION, RELATIONS, VOLUME, VARIABLES, SECRETS, FLOW_SCHEMA, RUN, TASK,
                 "auth/v1alpha1/Account"]  # fmt: skip


@pytest.mark.parametrize("type_", OF_THE_FORMAT)
@given(seed=st.integers(0, 2**32))
def test_whatever_is_valid_is_read_or_refused_at_its_field(type_: str, seed: int) -> None:
    manifest = rfc_schemas.some_manifest(rfc_schemas.ODF + type_, random.Random(seed))
    for fault in faults_of(manifest):
        assert fault.rule
        assert fault.place == "m.yaml:1"
        assert re.match(r"(headers|spec|metadata)\b", fault.message), (fault.message, manifest)
