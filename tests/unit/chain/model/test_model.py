"""What the model says beside its fields."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from multiformats import CID, multicodec, multihash, varint
from multiformats import multibase as theirs

from chain import instant, multibase
from chain import multibase as ours
from chain.data.arrow_schema import from_arrow, to_arrow
from chain.digits import read_whole
from chain.errors import Invalid, NotFound
from chain.ids import ED25519_PUB, DatasetId, KeyDid, parse_local_alias, parse_name, parse_own_name
from chain.instant import Instant
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
from chain.multihash import ARROW0_SHA3_256, SHA2_256, SHA3_256, Multihash
from chain.rules.schema import incompatibilities
from chain.state import ChainState
from chain.wording import a, agree, plural
from engines.spark.ingest.dialect import csv_dialect
from odfd.datasets.creation import as_stored, changed_events, declaration
from p2p.identity import peer_of_did
from p2p.ipfs import record
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


# The smallest values: numbers, times, multibase texts, hashes, identities and names, to text and back.


# The smallest values: times, multibase texts, hashes, identities and names, to text and back.

TIMES = (
    st.integers(-62_135_596_800_000_000_000, 253_402_300_799_999_999_999)
    | st.integers(instant.parse("-262143-01-01T00:00:00Z"), instant.parse("+262142-12-31T23:59:59.999999999Z"))
).map(Instant)
KEYS = st.binary(min_size=32, max_size=32)


@given(TIMES)
def test_times_survive_text(time: Instant) -> None:
    assert instant.parse(instant.render(time)) == time
    assert instant.from_millis(instant.to_millis(time)) <= time < instant.from_millis(instant.to_millis(time) + 1)


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("2024-05-01T12:30:00Z", "2024-05-01T12:30:00Z"),
        ("2024-05-01T14:30:00.5+02:00", "2024-05-01T12:30:00.500Z"),
        ("2024-05-01t12:30:00.000001z", "2024-05-01T12:30:00.000001Z"),
        ("1969-12-31T23:59:59.999999999Z", "1969-12-31T23:59:59.999999999Z"),
        ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00Z"),
        ("2024-02-29T12:30:00.1234567899Z", "2024-02-29T12:30:00.123456789Z"),
        ("0000-02-29T00:00:00Z", "0000-02-29T00:00:00Z"),
        ("-0043-03-15T12:00:00Z", "-0043-03-15T12:00:00Z"),
        ("+10000-01-01T00:30:00+01:00", "9999-12-31T23:30:00Z"),
    ],
)
def test_times_are_rendered_in_utc(text: str, rendered: str) -> None:
    assert instant.render(instant.parse(text)) == rendered


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2024-05-01",
        "2024-02-30T00:00:00Z",
        "2024-05-01T24:00:00Z",
        "2024-05-01T12:30:00",
        "12024-05-01T00:00:00Z",
        "-0001-02-29T00:00:00Z",
        "٢024-05-01T00:00:00Z",
    ],
)
def test_texts_that_are_no_times(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        instant.parse(text)
    assert caught.value.rule == "rfc3339"


@given(st.binary(max_size=80))
def test_multibase_survives_text(raw: bytes) -> None:
    for encode in (multibase.encode_base16, multibase.encode_base58, multibase.encode_base64url):
        assert multibase.decode(encode(raw)) == raw


@given(st.text(max_size=300))
def test_any_text_is_decoded_or_invalid(text: str) -> None:
    for parse in (
        multibase.decode,
        Multihash.parse,
        DatasetId.parse,
        KeyDid.parse,
        parse_name,
        parse_local_alias,
        parse_own_name,
        instant.parse,
    ):
        try:
            parse(text)
        except Invalid as fault:
            told = fault.rule
        else:
            told = "a value"
        assert told


@given(KEYS)
def test_identities_survive_text(key: bytes) -> None:
    dataset, holder = DatasetId.from_public_key(key), KeyDid.from_public_key(key)
    assert DatasetId.parse(str(dataset)) == dataset
    assert KeyDid.parse(str(holder)) == holder == KeyDid.parse(str(dataset))
    assert dataset.public_key == holder.public_key == key


@given(st.binary(max_size=40))
def test_bytes_are_a_multihash_or_invalid(raw: bytes) -> None:
    value = Multihash.sha3_256(raw)
    assert Multihash.parse(str(value)) == Multihash.from_bytes(bytes(value)) == value
    with pytest.raises(Invalid, match="not a known multihash"):
        Multihash.from_bytes(raw)


def test_faults_say_where() -> None:
    assert str(Invalid("broken", place="a.yaml:3")) == "a.yaml:3: broken"
    assert NotFound("gone").exit_code == Invalid.exit_code == 5


def test_a_name_that_is_too_long_is_told_its_length() -> None:
    assert parse_name("a" * 253) == "a" * 253
    with pytest.raises(Invalid) as caught:
        parse_name("a" * 254)
    assert caught.value.hint == "at most 253 characters; this one has 254"


# Whole numbers in texts of others.


@given(st.integers(0, 2**63 - 1), st.integers(0, 6000))
def test_what_is_written_is_read_with_any_number_of_zeros(number: int, zeros: int) -> None:
    assert read_whole("0" * zeros + str(number)) == number


@pytest.mark.parametrize("text", ["", "x", "-1", "+1", " 1", "1_0", "٣", str(2**63), "9" * 5000])
def test_another_text_is_no_number(text: str) -> None:
    """Attack T-BYTES-01: a number of thousands of digits in a query or in a header of a server.

    Defence: it is no number.

    One of 5,000 digits too, which ``int`` refuses by ValueError.
    """
    assert read_whole(text) is None


# Our fast path for hashes, bases and names says what the library of multiformats says, and takes in no more.

CODE_NAMES = {SHA2_256: "sha2-256", SHA3_256: "sha3-256"}
BASES = {"base16": ours.encode_base16, "base58btc": ours.encode_base58, "base64url": ours.encode_base64url}
digests = st.binary(min_size=32, max_size=32)
keys = st.binary(min_size=32, max_size=32)
raws = st.binary(max_size=64) | st.binary(max_size=8).map(lambda tail: bytes(8) + tail)


@given(st.integers(0, 2**63 - 1))
def test_varints(value: int) -> None:
    assert ours.varint(value) == varint.encode(value)


@pytest.mark.parametrize("base", BASES)
@given(raw=raws)
def test_bases_are_written_and_read_alike(base: str, raw: bytes) -> None:
    text = BASES[base](raw)
    assert text == theirs.encode(raw, base)
    assert ours.decode(text) == theirs.decode(text) == raw


@given(
    st.sampled_from("fFzubBmU").flatmap(
        lambda base: st.text(string.ascii_letters + string.digits + "-_=+/ ").map(base.__add__)
    )
)
def test_what_we_read_the_library_reads_alike(text: str) -> None:
    try:
        raw = ours.decode(text)
    except Invalid:
        return
    assert theirs.decode(text) == raw


FINAL = ("base16", "base16upper", "base32", "base32upper", "base58btc", "base64", "base64url", "base64urlpad")


@pytest.mark.parametrize("base", FINAL)
@given(raw=raws, key=keys)
def test_every_final_base_is_read_and_one_is_written(base: str, raw: bytes, key: bytes) -> None:
    """The specification of ODF asks it of every implementation."""
    assert theirs.get(base).status == "final"
    assert ours.decode(theirs.encode(raw, base)) == raw
    dataset, block = DatasetId.from_public_key(key), Multihash.from_digest(SHA3_256, key)
    assert DatasetId.parse("did:odf:" + theirs.encode(bytes(dataset), base)) == dataset
    assert str(DatasetId.parse("did:odf:" + theirs.encode(bytes(dataset), base))) == str(dataset)
    assert str(Multihash.parse(theirs.encode(bytes(block), base))) == str(block)


@pytest.mark.parametrize(
    "text", ["bMZXW6", "Bmzxw6", "bmzxw6===", "bmzxw7", "mZg==", "mZh", "m-_8", "UZg", "U+/8=", "mZ g"]
)
def test_other_spellings_of_these_bases_are_refused(text: str) -> None:
    with pytest.raises(Invalid, match="not multibase"):
        ours.decode(text)


@pytest.mark.parametrize("prefix", sorted({*string.printable} - set("fFzubBmU")))
def test_bases_that_are_not_final_are_refused_by_their_letter(prefix: str) -> None:
    with pytest.raises(Invalid, match="unknown multibase prefix"):
        ours.decode(prefix + "aa")


@pytest.mark.parametrize("code", CODE_NAMES)
@given(digest=digests)
def test_hashes(code: int, digest: bytes) -> None:
    assert multicodec.get(CODE_NAMES[code]).code == code
    made = Multihash.from_digest(code, digest)
    assert made == multihash.wrap(digest, CODE_NAMES[code])
    assert (made.algorithm, made.digest) == (CODE_NAMES[code], multihash.unwrap(bytes(made)))
    assert Multihash.parse(theirs.encode(bytes(made), "base58btc")) == made


@given(st.sampled_from(sorted(CODE_NAMES)), st.binary(max_size=40))
def test_a_hash_that_we_take_is_one(code: int, rest: bytes) -> None:
    raw = varint.encode(code) + rest
    try:
        taken = Multihash.from_bytes(raw)
    except Invalid:
        assert rest[:1] != b"\x20" or len(rest) != 33
        return
    assert multihash.unwrap(bytes(taken), CODE_NAMES[code]) == rest[1:]


def test_the_hash_of_rows_has_a_code_for_private_use() -> None:
    assert not multicodec.exists(code=ARROW0_SHA3_256)
    assert 0x300000 <= ARROW0_SHA3_256 <= 0x3FFFFF


@given(keys)
def test_identities(key: bytes) -> None:
    assert varint.encode(multicodec.get("ed25519-pub").code) == ED25519_PUB
    assert str(KeyDid.from_public_key(key)) == "did:key:" + theirs.encode(ED25519_PUB + key, "base58btc")
    assert str(DatasetId.from_public_key(key)) == "did:odf:" + theirs.encode(ED25519_PUB + key, "base16")


@given(keys)
def test_peer_ids_and_names_are_one_hash(key: bytes) -> None:
    """A peer id is the identity multihash of a key, and an IPNS name the CID over it."""
    name = CID.decode(record.name_of(DatasetId.from_public_key(key)))
    peer = theirs.decode("z" + peer_of_did(KeyDid.from_public_key(key)))
    assert (name.base.name, name.version, name.codec.name, name.hashfun.name) == ("base36", 1, "libp2p-key", "identity")
    assert bytes(name.digest) == peer


# Counted nouns, and the words that agree with them.


@pytest.mark.parametrize(("number", "said"), [(0, "0 blocks"), (1, "1 block"), (2, "2 blocks"), (1500, "1,500 blocks")])
def test_a_counted_noun(number: int, said: str) -> None:
    assert plural(number, "block") == said


def test_a_verb_agrees_with_what_does_it() -> None:
    assert [agree(number, "derives", "derive") for number in (0, 1, 2)] == ["derive", "derives", "derive"]


def test_a_noun_has_its_article() -> None:
    assert list(map(a, ("Int64", "array", "UInt8", "Bool"))) == ["an Int64", "an array", "a UInt8", "a Bool"]
