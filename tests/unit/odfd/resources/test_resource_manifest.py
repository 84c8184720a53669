"""Resources as people write them: what is read, what is refused, and where the mistake is said to be."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.codec import yaml_tree
from chain.codec.bind import plain_of
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


def test_r01_all_parts_must_be_there_and_others_are_refused_with_what_was_meant() -> None:
    assert refused("$schema: Flow\nheaders: {name: a}\n") == [("1.yaml:1", "required-field", "")]
    assert refused(FLOW.replace("spec:", "specs:")) == [
        ("1.yaml:1", "required-field", ""),
        ("1.yaml:4", "unknown-field", "did you mean 'spec'?"),
    ]


def test_r02_what_the_node_writes_is_passed_over_with_a_warning() -> None:
    text = FLOW.replace("{name: often}", "{name: often, generation: 3}") + "status: {phase: Ready}\n"
    (read_flow,), (same,) = flows(text), flows(FLOW)
    assert read_flow == msgspec.structs.replace(same, lines=read_flow.lines)
    assert read(text)[0].warnings == (
        "status is passed over: the node writes it",
        "headers.generation is passed over: the node writes it",
    )


@pytest.mark.parametrize("schema", [f"{ODF}/flows/v1alpha1/Flow", f"{ODF}/flow/v1alpha1/Flow.json", "Flow"])
def test_r04_a_type_is_written_as_its_uri_or_its_short_name(schema: str) -> None:
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
def test_r03_an_unknown_type_is_refused_and_never_fetched(schema: str, hint: str) -> None:
    ((place, rule, told),) = refused(FLOW.replace("Flow", schema))
    assert (place, rule) == ("1.yaml:1", "unknown-type")
    assert told.startswith(hint)


def test_r05_names_are_one_type_each() -> None:
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


def test_r07_a_type_that_is_registered_is_read_and_explained() -> None:
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


def test_r11_names_are_the_formats_and_no_ids() -> None:
    for name in ("a/b", "x" * 101, "0b45aa47-c1f8-4c4d-8a4d-6c0a6a5e9a11", "spaced name"):
        ((place, _, _),) = refused(FLOW.replace("often", f'"{name}"'))
        assert place == "1.yaml:2"


def test_r19_an_annotation_is_known_by_its_short_name_and_its_uri_but_once() -> None:
    uri = f"{ODF}/flow/v1alpha1/FlowPolicy"
    short = FLOW.replace("{name: often}", "{name: often, annotations: {flowPolicy: {suspend: true}}}")
    long = short.replace("flowPolicy", f'"{uri}"')
    assert flows(short)[0].policy == flows(long)[0].policy != flows(FLOW)[0].policy
    both = short.replace("annotations: {", f'annotations: {{"{uri}": {{}}, ')
    assert [each[:2] for each in refused(both)] == [("1.yaml:2", "annotation-twice")]
    assert [each[1] for each in refused(short.replace("suspend: true", "sleep: true"))] == ["unknown-field"]


def test_r43_all_mistakes_of_all_texts_are_told_at_once() -> None:
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
def test_r43_what_would_take_all_memory_is_refused(text: str) -> None:
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
def test_r17_labels_and_annotations_have_limits(headers: str, rule: str) -> None:
    ((_, told, _),) = refused(FLOW.replace("{name: often}", "{name: often, " + headers + "}"))
    assert told == rule
    values = "labels: {a: 1, b: [x, null], c: {d: true}}, annotations: {e: {f: []}}"
    (draft,) = read(FLOW.replace("{name: often}", "{name: often, " + values + "}"))
    assert draft.headers.labels == {"a": 1, "b": ["x", None], "c": {"d": True}}


def test_r24_short_and_long_references_are_one_value() -> None:
    short, long = flows(FLOW)[0], flows(FLOW.replace("Dataset:cities", "cities"))[0]
    assert (short.target, short.inputs) == (long.target, long.inputs) == ("cities", {})


def test_r25_a_reference_is_of_the_type_of_its_place() -> None:
    for wrong in ("Flow:cities", "SecretSet:cities#key"):
        ((place, _, _),) = refused(FLOW.replace("Dataset:cities", f'"{wrong}"'))
        assert place == "1.yaml:4"


def test_r47_inputs_come_before_what_derives_from_them_whatever_the_order() -> None:
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


def test_r26_what_names_a_resource_in_any_example_is_a_reference() -> None:
    found = 0
    for draft in (draft for text in EXAMPLES for draft in read(text)):
        plain = plain_of(draft.spec)
        kept = plain if draft.type.kept is None else draft.type.kept(draft.headers.name, draft.spec, None)
        named = {text.partition("#")[0] for text in texts_in(kept) if TYPED.fullmatch(text) and "%" not in text}
        keys = {each.key.casefold() for each in references_in(draft.type.layout, kept)}
        assert {each.casefold() for each in named} <= keys, draft.type.name
        found += len(named)
    assert found > 10
