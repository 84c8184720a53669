"""What others made, to the byte: blocks, chains, hashes, identities, names."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from chain import ids, multibase
from chain.codec import blocks, flat, manifest
from chain.errors import Invalid
from chain.ids import DatasetId, KeyDid, parse_name
from chain.model.block import Block
from chain.multihash import Multihash
from chain.rules import check_block
from chain.state import ChainState

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
