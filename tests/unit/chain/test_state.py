"""A chain's state, its comparison and its walks: the same by folding and by reading, in reads that do not grow."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from chain import ids, multibase
from chain.codec import blocks, flat, manifest
from chain.compare import Relation, compare
from chain.errors import Invalid
from chain.ids import DatasetId, KeyDid, parse_name
from chain.instant import Instant
from chain.model.block import Block, UnknownEvent
from chain.model.events import (
    AddData,
    AddPushSource,
    Checkpoint,
    DatasetKind,
    DisablePollingSource,
    DisablePushSource,
    ExecuteTransform,
    ExecuteTransformInput,
    MetadataEvent,
    Seed,
    SetAttachments,
    SetDataSchema,
    SetInfo,
    SetPollingSource,
    SetTransform,
    SetVocab,
    SourceState,
    TransformInput,
)
from chain.model.events import AttachmentsEmbedded as Embedded
from chain.model.schema import DataSchema
from chain.model.source import FetchUrl, MergeAppend, MergeLedger, ReadCsv, ReadNdJson, TransformSql
from chain.multihash import Multihash
from chain.rules import check_block
from chain.state import ChainState, InputPosition, load_state
from chain.store.schema import KINDS, kind_name
from chain.walk import newest_first, oldest_first
from worlds.chains import following
from worlds.depth import share

ME = DatasetId.from_public_key(bytes(32))
SEED = Seed(dataset_id=ME, dataset_kind=DatasetKind.ROOT)
H = [Multihash.sha3_256(bytes([n])) for n in range(4)]


class Chain:
    """A chain in memory that counts what is read of it."""

    def __init__(self, blocks: list[Block]) -> None:
        self.blocks = blocks
        self.reads = 0
        self._places: dict[str, list[int]] = {}
        for block in blocks:
            self._places.setdefault(kind_name(block.event), []).append(block.sequence_number)

    def head(self) -> Block | None:
        self.reads += 1
        return self.blocks[-1] if self.blocks else None

    def block_at(self, sequence_number: int) -> Block:
        self.reads += 1
        return self.blocks[sequence_number]

    def last_of(self, kinds: Iterable[str], before: int | None = None) -> Block | None:
        self.reads += 1
        end = len(self.blocks) if before is None else before
        places = [place for kind in kinds for place in self._places.get(kind, ()) if place < end]
        return self.blocks[max(places)] if places else None

    def raw_blocks(self, start: int, stop: int) -> Iterator[bytes]:
        return (block.raw for block in self.blocks[start:stop])


def chained(events: Iterable[MetadataEvent | UnknownEvent], onto: list[Block] | None = None) -> list[Block]:
    blocks = list(onto or [])
    for event in events:
        known = SetInfo() if isinstance(event, UnknownEvent) else event
        block = following(blocks[-1] if blocks else None, known, len(blocks))
        blocks.append(msgspec.structs.replace(block, event=event) if isinstance(event, UnknownEvent) else block)
    return blocks


NAMES = st.sampled_from(["a", "b"])
READS = st.sampled_from([ReadCsv(), ReadNdJson()])
HASHES = st.none() | st.sampled_from(H)
OFFSETS = st.none() | st.integers(0, 9)
EVENTS = st.one_of(
    st.builds(
        AddData,
        prev_offset=OFFSETS,
        new_watermark=st.none() | st.integers(0, 9).map(Instant),
        new_checkpoint=st.none() | st.builds(Checkpoint, physical_hash=st.sampled_from(H), size=st.just(1)),
        new_source_state=st.none() | st.builds(SourceState, source_name=NAMES, kind=NAMES, value=NAMES),
    ),
    st.builds(
        ExecuteTransform,
        query_inputs=st.tuples(
            st.builds(
                ExecuteTransformInput,
                dataset_id=st.just(ME),
                prev_block_hash=HASHES,
                new_block_hash=HASHES,
                prev_offset=OFFSETS,
                new_offset=OFFSETS,
            )
        ),
    ),
    st.builds(AddPushSource, source_name=NAMES, read=READS, merge=st.just(MergeAppend())),
    st.builds(DisablePushSource, source_name=NAMES),
    st.builds(SetPollingSource, fetch=st.builds(FetchUrl, url=NAMES), read=READS, merge=st.just(MergeAppend())),
    st.just(DisablePollingSource()),
    st.builds(SetInfo, description=NAMES),
    st.builds(SetVocab, offset_column=st.none() | NAMES, event_time_column=st.none() | NAMES),
    st.builds(SetDataSchema, schema=st.just(DataSchema(fields=()))),
    st.builds(SetAttachments, attachments=st.just(Embedded(items=()))),
    st.builds(
        SetTransform,
        inputs=st.tuples(st.builds(TransformInput, dataset_ref=NAMES)),
        transform=st.builds(TransformSql, engine=NAMES),
    ),
    st.builds(UnknownEvent, variant=st.sampled_from([KINDS["Seed"], *range(KINDS["SetPollingSource"], 16)])),
)


@pytest.mark.slow
@settings(max_examples=share(200))
@given(st.lists(EVENTS, max_size=25))
def test_a_loaded_state_is_the_folded_state(events: list[MetadataEvent]) -> None:
    blocks = chained([SEED, *events])
    folded = ChainState.EMPTY
    for block in blocks:
        folded = folded.advance(block)
    assert load_state(Chain(blocks)) == folded
    assert (folded.size, folded.head, folded.dataset) == (len(blocks), blocks[-1].hash, ME)


def test_what_cannot_be_read_is_not_taken_for_what_was_before_it() -> None:
    blocks = chained([SEED, SetDataSchema(schema=DataSchema(fields=())), UnknownEvent(variant=KINDS["SetDataSchema"])])
    state = load_state(Chain(blocks))
    assert (state.schema, state.unknown, state.may_hold(SetDataSchema), state.may_hold(SetInfo)) == (
        None,
        None,
        True,
        False,
    )
    again = chained([SetDataSchema(schema=DataSchema(fields=()))], blocks)[-1]
    assert not state.advance(again).may_hold(SetDataSchema)


def test_an_empty_chain_has_the_empty_state() -> None:
    assert load_state(Chain([])) == ChainState.EMPTY
    assert (ChainState.EMPTY.size, ChainState.EMPTY.next_offset, ChainState.EMPTY.watermark) == (0, 0, None)


@pytest.fixture(scope="module")
def long_chain() -> list[Block]:
    push = [AddPushSource(source_name=name, read=ReadCsv(), merge=MergeLedger(primary_key=("k",))) for name in "abc"]
    return chained([SEED, *push, *(AddData(prev_offset=n) for n in range(10_000 - 4))])


@pytest.mark.slow
def test_reads_to_load_do_not_grow_with_the_chain(long_chain: list[Block]) -> None:
    counts = set()
    for length in (100, 10_000):
        chain = Chain(long_chain[:length])
        state = load_state(chain)
        assert (state.size, state.last_offset, len(state.push_sources)) == (length, length - 5, 3)
        counts.add(chain.reads)
    assert len(counts) == 1
    assert counts.pop() < 25


def test_positions_of_inputs_carry_on() -> None:
    def used(**fields: object) -> ExecuteTransform:
        return ExecuteTransform(query_inputs=(ExecuteTransformInput(dataset_id=ME, **fields),))  # type: ignore[arg-type]

    state = ChainState.EMPTY
    for block in chained([SEED, used(new_block_hash=H[1], new_offset=0)]):
        state = state.advance(block)
    assert state.input_positions == {ME: InputPosition(H[1], 0)}
    for block in chained([used(prev_block_hash=H[1], prev_offset=0)], chained([SEED]))[1:]:
        state = state.advance(block)
    assert state.input_positions == {ME: InputPosition(H[1], 0)}


@pytest.mark.slow
@settings(max_examples=share(200))
@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_comparison(common: int, ours: int, theirs: int) -> None:
    shared = chained([SEED] + [SetInfo(description=str(n)) for n in range(common)])[:common]
    one = Chain(chained((SetInfo(description=f"ours {n}") for n in range(ours)), shared))
    other = Chain(chained((SetInfo(description=f"theirs {n}") for n in range(theirs)), shared))
    found = compare(one, other)
    assert (found.common, found.ours, found.theirs) == (common, ours, theirs)
    expected = {(False, False): Relation.EQUAL, (True, False): Relation.AHEAD, (False, True): Relation.BEHIND}
    assert found.relation is expected.get((ours > 0, theirs > 0), Relation.DIVERGED)


@pytest.mark.slow
def test_comparison_reads_a_logarithm(long_chain: list[Block]) -> None:
    for parting in (1, 2, 4_999, 9_999):
        fork = chained((SetInfo(description=str(n)) for n in range(10_000 - parting)), long_chain[:parting])
        ours, theirs = Chain(long_chain), Chain(fork)
        assert compare(ours, theirs).common == parting
        assert max(ours.reads, theirs.reads) <= 2 + math.log2(10_000) + 1


@pytest.mark.slow
def test_walks(long_chain: list[Block]) -> None:
    chain = Chain(long_chain)
    assert [block.sequence_number for block in newest_first(chain, ["AddPushSource", "Seed"])] == [3, 2, 1, 0]
    assert [block.sequence_number for block in newest_first(chain, ["AddPushSource"], before=3)] == [2, 1]
    assert chain.reads == 7
    assert list(oldest_first(chain, 5, 9)) == long_chain[5:9]


# What others made, to the byte: blocks, chains, hashes, identities, names.


MASK = (1 << 64) - 1


def test_files_are_as_their_makers_left_them(golden: Path) -> None:
    for line in (golden / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((golden / name).read_bytes()).hexdigest() == digest, name


def test_vectors_of_blocks(vectors: dict[str, Any]) -> None:
    checked = 0
    for vector in vectors["metadata_blocks"]["vectors"]:
        for version in (2, 3):
            pinned = vector[f"v{version}"]
            raw = bytes.fromhex(pinned["hex"])
            block = blocks.decode_block(raw)
            assert (str(block.hash), len(raw), block.version) == (pinned["hash"], pinned["size"], version)
            assert blocks.encode_block(blocks.content_of(block), version).raw == raw, vector["name"]
            assert block.sequence_number == vector["block"]["sequence_number"]
            checked += 1
    assert checked == 26


def test_versions_that_are_not_read(vectors: dict[str, Any]) -> None:
    raw = bytes.fromhex(vectors["metadata_blocks"]["vectors"][0]["v3"]["hex"])
    place = raw.index((3).to_bytes(4, "little") + (0x400000).to_bytes(8, "little"))
    for version, word in ((1, "obsolete"), (0, "unsupported"), (4, "unsupported"), (-1, "unsupported")):
        other = raw[:place] + version.to_bytes(4, "little", signed=True) + raw[place + 4 :]
        with pytest.raises(Invalid, match=f"{word} manifest version {version}"):
            blocks.decode_block(other)
    kind = raw.replace((0x400000).to_bytes(8, "little"), (0x400001).to_bytes(8, "little"))
    with pytest.raises(Invalid, match="not a metadata block: manifest kind 0x400001"):
        blocks.decode_block(kind)


@pytest.mark.slow
def test_chains_of_the_reference(golden: Path, golden_chains: dict[str, list[Block]]) -> None:
    assert sum(len(chain) for chain in golden_chains.values()) == 78
    for name, chain in golden_chains.items():
        folder = golden / "kamu" / name
        assert {str(block.hash) for block in chain} == {path.name for path in (folder / "blocks").iterdir()}
        assert str(chain[-1].hash) == (folder / "refs" / "head").read_text()
        state = ChainState.EMPTY
        for block in chain:
            assert check_block(state, block, as_author=False) == []
            assert blocks.encode_block(blocks.content_of(block), block.version).raw == block.raw
            [read] = manifest.parse_manifests(manifest.render_manifest(block), name)
            assert read.content == blocks.content_of(block)
            assert manifest.from_builtins(type(block.event), manifest.to_builtins(block.event)) == block.event
            state = state.advance(block)


def test_chains_amount_to_what_the_reference_lists(golden: Path, golden_chains: dict[str, list[Block]]) -> None:
    from chain import instant
    from chain.codec.yaml_tree import parse

    listed = parse((golden / "kamu.index.json").read_text(), "index")[0].value
    assert isinstance(listed, list)
    for node in listed:
        assert isinstance(node.value, dict)
        row = {key: each.value for key, each in node.value.items()}
        state = ChainState.EMPTY
        for block in golden_chains[str(row["Name"])]:
            state = state.advance(block)
        assert state.watermark is not None
        assert state.kind is not None
        assert row == {
            "Name": row["Name"],
            "ID": str(state.dataset),
            "Kind": state.kind.value,
            "Head": str(state.head),
            "Records": state.next_offset,
            "Blocks": state.size,
            "Watermark": instant.render(state.watermark),
        }


def test_multihashes(vectors: dict[str, Any]) -> None:
    for vector in vectors["multihash"]["vectors"]:
        expected = vector["expected"]
        if "input_utf8" in vector:
            value = Multihash.sha3_256(vector["input_utf8"].encode())
        else:
            value = Multihash.parse(vector["input"])
        if expected.startswith("z"):
            assert multibase.encode_base58(value) == expected
            assert Multihash.parse(expected) == value
        else:
            assert str(value).endswith(expected)
            assert len(expected) < 10 or Multihash.parse(expected) == value


def xoshiro_key(seed: bytes) -> bytes:
    """32 bytes of xoshiro256++ from a padded seed: how the reference's tests make identities."""
    state = [int.from_bytes(seed.ljust(32, b"\0")[i : i + 8], "little") for i in range(0, 32, 8)]
    if not any(state):
        state, weyl = [], 0
        for _ in range(4):
            weyl = weyl + 0x9E3779B97F4A7C15 & MASK
            mixed = (weyl ^ weyl >> 30) * 0xBF58476D1CE4E5B9 & MASK
            mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & MASK
            state.append(mixed ^ mixed >> 31)

    def rotated(value: int, by: int) -> int:
        return (value << by | value >> 64 - by) & MASK

    out = b""
    for _ in range(4):
        out += (rotated(state[0] + state[3] & MASK, 23) + state[0] & MASK).to_bytes(8, "little")
        shifted = state[1] << 17 & MASK
        state[2] ^= state[0]
        state[3] ^= state[1]
        state[1] ^= state[2]
        state[0] ^= state[3]
        state[2] ^= shifted
        state[3] = rotated(state[3], 45)
    return out


def test_identities(vectors: dict[str, Any]) -> None:
    for vector in vectors["did"]["seeded"]:
        key = xoshiro_key(vector["seed_utf8"].encode())
        dataset = DatasetId.from_public_key(key)
        assert str(dataset) == vector["did_odf"]
        assert dataset.multibase == vector["multibase"]
        assert "did_key" not in vector or str(KeyDid.from_public_key(key)) == vector["did_key"]
    spelled, base58 = vectors["did"]["transcode"]
    key_did = KeyDid.parse(spelled["input"])
    assert multibase.encode_base16(key_did) == spelled["multibase16"]
    assert str(DatasetId.from_public_key(key_did.public_key)) == spelled["did_odf"]
    assert str(DatasetId.parse(base58["input"])) == spelled["did_odf"]
    for text in vectors["did"]["invalid"]:
        with pytest.raises(Invalid):
            KeyDid.parse(text)


def test_names(vectors: dict[str, Any]) -> None:
    names = vectors["names"]
    for name in names["dataset_name"]["valid"]:
        assert parse_name(name) == name
    for name in names["dataset_name"]["invalid"]:
        with pytest.raises(Invalid, match="not a dataset name"):
            parse_name(name)


def test_references(vectors: dict[str, Any]) -> None:
    names = vectors["names"]
    for text in names["local_alias"]["valid"]:
        assert str(ids.parse_local_alias(text)) == text
    for text in names["local_alias"]["invalid"]:
        with pytest.raises(Invalid):
            ids.parse_local_alias(text)


def test_a_newer_event_is_kept_and_named_by_its_number(golden_chains: dict[str, list[Block]]) -> None:
    block = golden_chains["flights"][0]
    inner = flat.encode(blocks.content_of(block))
    assert inner in block.raw
    place = next(i for i in range(len(inner)) if _with(inner, i, 14).event_is_unknown)
    newer = _with(inner, place, 14).block
    assert (newer.sequence_number, newer.system_time, newer.event.variant) == (0, block.system_time, 14)  # type: ignore[union-attr]
    with pytest.raises(Invalid, match="newer schema: variant 14"):
        blocks.content_of(newer)


class _with:
    """A block whose inner byte at ``place`` is another."""

    def __init__(self, inner: bytes, place: int, value: int) -> None:
        from chain.model.block import UnknownEvent

        changed = inner[:place] + bytes([value]) + inner[place + 1 :]
        try:
            self.block = blocks.decode_block(flat.encode(blocks._Manifest(blocks.KIND, 3, changed)))
            self.event_is_unknown = self.block.event == UnknownEvent(variant=value)
        except Invalid:
            self.event_is_unknown = False
