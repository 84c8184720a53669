"""What the model says beside its fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.data.arrow_schema import from_arrow, to_arrow
from chain.ids import DatasetId
from chain.model import schema as odf
from chain.model import source
from chain.model.changelog import CHANGELOG, differ_in_this_alone, says_changelog, with_changelog
from chain.model.defaults import DEFAULTS, same, spelled_out
from chain.model.events import (
    AddPushSource,
    DatasetKind,
    MetadataEvent,
    SetDataSchema,
    SetPollingSource,
    SetVocab,
    Vocab,
)
from chain.model.schema import DataField, DataSchema, Int64
from chain.model.source import TRAITS, MergeAppend, MergeSnapshot, MergeStrategy, primary_key, traits
from chain.rules.schema import incompatibilities
from chain.state import ChainState
from engines.spark.ingest.dialect import csv_dialect
from odfd.datasets.creation import as_stored, changed_events, declaration
from worlds.schemas import SCHEMAS

# An attribute of a schema that comes from strangers: said, unsaid, or nonsense.

SCHEMA = DataSchema(fields=(DataField(name="v", type=Int64()),), extra={"example.org/note": "kept"})


@pytest.mark.parametrize("changelog", [True, False, None])
def test_what_is_said_is_read_and_the_rest_is_kept(changelog):
    said = with_changelog(SCHEMA, changelog)
    assert says_changelog(said) is changelog
    assert says_changelog(from_arrow(to_arrow(said))) is changelog
    assert with_changelog(said, None) == SCHEMA


@pytest.mark.parametrize("value", ["true", 1, None, {"kind": "yes"}])
def test_nonsense_says_nothing(value):
    assert says_changelog(DataSchema(fields=SCHEMA.fields, extra={CHANGELOG: value})) is None


def test_no_schema_and_no_attributes():
    assert says_changelog(None) is None
    bare = DataSchema(fields=SCHEMA.fields)
    assert with_changelog(bare, None) == bare


# Each merge strategy says what it means, and what it says agrees with itself.


def test_each_strategy_has_a_row() -> None:
    assert set(TRAITS) == set(get_args(MergeStrategy))


@pytest.mark.parametrize("kind", get_args(MergeStrategy))
def test_traits_agree(kind: type[MergeStrategy]) -> None:
    merge = kind() if kind is MergeAppend else kind(primary_key=("k",))
    found = traits(merge)
    assert found.asks_history or not found.newest_of_key
    assert found.newest_of_key or not found.whole_state
    assert not (found.only_adds and (found.carries_op or found.whole_state))
    assert primary_key(merge) == (() if kind is MergeAppend else ("k",))


def test_only_a_snapshot_is_all_there_is() -> None:
    assert [kind for kind, row in TRAITS.items() if row.whole_state] == [MergeSnapshot]


# A value and the same one with its defaults spelled out are equal wherever two declarations are compared.

GOLDEN = json.loads((Path(__file__).parents[3] / "golden" / "odf-defaults.json").read_text())["defaults"]
ME = DatasetId.from_public_key(bytes(32))


def name_of(table: type[msgspec.Struct]) -> str:
    named = {SetVocab: "DatasetVocabulary", source.MqttTopicSubscription: "MqttTopicSubscription"}
    union = "ReadStep" if table in source.ReadStep.__args__ else "DataType"
    return named.get(table) or f"{union}.{table.__struct_config__.tag}"


def test_they_are_those_of_the_formats_schemas() -> None:
    ours = {
        name_of(table): {
            dict(zip(table.__struct_fields__, table.__struct_encode_fields__, strict=True))[name]: value
            for name, value in fields.items()
        }
        for table, fields in DEFAULTS.items()
    }
    assert json.loads(msgspec.json.encode(ours)) == GOLDEN


def absent(part: Any) -> st.SearchStrategy[Any]:
    """The part with any of its fields that have defaults left out, or holding the default, at any depth."""
    if isinstance(part, tuple):
        return st.tuples(*(absent(each) for each in part))
    if not isinstance(part, msgspec.Struct):
        return st.just(part)
    usual = DEFAULTS.get(type(part), {})
    fields = {name: getattr(part, name) for name in part.__struct_fields__}
    return st.fixed_dictionaries(
        {
            name: st.sampled_from([None, usual[name]])
            if name in usual and value in (None, usual[name])
            else absent(value)
            for name, value in fields.items()
        }
    ).map(lambda changes: msgspec.structs.replace(part, **changes))


READS: st.SearchStrategy[source.ReadStep] = st.sampled_from(
    [
        source.ReadCsv(),
        source.ReadCsv(separator=";", header=True, escape="\\"),
        source.ReadJson(sub_path="a.b"),
        source.ReadNdJson(encoding="latin-1"),
        source.ReadParquet(),
    ]
)
NAMES = odf.Map(key_type=odf.String(), value_type=odf.Int8())
TOPICS = (
    source.MqttTopicSubscription(path="a"),
    source.MqttTopicSubscription(path="b", qos=source.MqttQos.EXACTLY_ONCE),
)
FETCH = source.FetchMqtt(host="h", port=1883, topics=TOPICS)


def reading(step: source.ReadStep, schema: DataSchema) -> source.ReadStep:
    return msgspec.structs.replace(step, schema=schema)


EVENTS: st.SearchStrategy[MetadataEvent] = st.one_of(
    st.builds(SetDataSchema, schema=SCHEMAS),
    st.builds(
        AddPushSource,
        source_name=st.just("a"),
        read=st.builds(reading, READS, SCHEMAS),
        merge=st.just(source.MergeAppend()),
    ),
    st.builds(SetPollingSource, fetch=st.just(FETCH), read=READS, merge=st.just(source.MergeAppend())),
    st.builds(SetVocab, event_time_column=st.sampled_from([None, "event_time", "at"])),
)


@pytest.mark.slow
@given(EVENTS.flatmap(lambda event: st.tuples(absent(event), absent(event))))
def test_events_are_the_same_however_much_is_spelled_out(pair: tuple[MetadataEvent, MetadataEvent]) -> None:
    one, other = pair
    assert same(one, other)
    assert spelled_out(one) == spelled_out(other) == spelled_out(spelled_out(one))
    if isinstance(one, SetDataSchema) and isinstance(other, SetDataSchema):
        assert one.schema is not None
        assert other.schema is not None
        assert list(incompatibilities(one.schema.fields, other.schema.fields)) == []
        assert not differ_in_this_alone(one.schema, other.schema)
        assert differ_in_this_alone(with_changelog(one.schema, True), with_changelog(other.schema, False))


@pytest.mark.slow
@given(EVENTS.flatmap(lambda event: st.tuples(absent(event), absent(event))))
def test_a_manifest_that_spells_out_more_changes_nothing(pair: tuple[MetadataEvent, MetadataEvent]) -> None:
    """But for the escape character of CSV, whose absence means to readers that there is none."""
    held, wanted = (as_stored(each) for each in pair)
    state = ChainState(kind=DatasetKind.ROOT, dataset=ME)
    field = {
        SetDataSchema: "schema",
        SetPollingSource: "set_polling_source",
        SetVocab: "set_vocab",
    }.get(type(held))
    change = {field: held} if field else {"push_sources": {"a": held}}
    snapshot = msgspec.structs.replace(declaration(state, "a"), metadata=(wanted,))
    escapes = {getattr(getattr(each, "read", None), "escape", None) for each in (held, wanted)}
    changes = changed_events(msgspec.structs.replace(state, **change), snapshot, str, lambda _: "")
    assert changes == ((wanted,) if len(escapes) == 2 else ())


@given(READS.filter(lambda step: isinstance(step, source.ReadCsv)).flatmap(absent))
def test_files_are_read_as_the_defaults_say(step: source.ReadCsv) -> None:
    full = msgspec.structs.replace(spelled_out(step), escape=step.escape)
    assert csv_dialect(step) == csv_dialect(full)


def test_the_columns_of_a_vocabulary_have_their_usual_names() -> None:
    assert ChainState(set_vocab=spelled_out(SetVocab())).vocab == Vocab()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (odf.Timestamp(), odf.Timestamp(unit=odf.TimeUnit.SECOND)),
        (odf.Timestamp(), odf.Timestamp(timezone="Etc/UTC")),
        (NAMES, msgspec.structs.replace(NAMES, keys_sorted=False)),
        (odf.Binary(), odf.Binary(fixed_length=0)),
        (source.ReadGeoJson(), source.ReadNdGeoJson()),
        (DataField(name="a", type=odf.Int8(), extra={"b": 1}), DataField(name="a", type=odf.Int8(), extra={"b": True})),
        (DataField(name="a", type=odf.Int8(), extra={"b": 1}), DataField(name="a", type=odf.Int8(), extra={"b": 1.0})),
        (DataField(name="a", type=odf.Int8(), extra={}), DataField(name="a", type=odf.Int8())),
    ],
)  # fmt: skip
def test_what_has_no_default_differs(one: object, other: object) -> None:
    assert not same(one, other)
