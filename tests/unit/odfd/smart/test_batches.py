"""Batches of blocks: whatever is packed comes out, however it is cut, and nothing else does."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid
from chain.multihash import Multihash
from odfd.smart import batches
from odfd.smart.batches import PULLED, PUSHED, BatchTooLarge, Unpacker, pack

RAWS = st.lists(st.binary(max_size=700), max_size=5)


def named(raws: list[bytes]) -> list[tuple[Multihash, bytes]]:
    return [(Multihash.sha3_256(raw), raw) for raw in raws]


def unpacked(pieces: list[str], member: str = PULLED) -> list[bytes]:
    unpacker, found = Unpacker(member), []
    for piece in pieces:
        found += unpacker.feed(piece)
    assert unpacker.finish() == len(found)
    assert all(Multihash.sha3_256(raw) == name for name, raw in found)
    return [raw for _, raw in found]


@given(RAWS, st.lists(st.integers(0, 20_000), max_size=12))
def test_any_split_gives_the_blocks_back(raws: list[bytes], cuts: list[int]) -> None:
    text = "".join(pack(PULLED, len(raws), named(raws)))
    edges = [0, *sorted(min(each, len(text)) for each in cuts), len(text)]
    assert unpacked([text[a:b] for a, b in itertools.pairwise(edges)]) == raws


@given(RAWS)
def test_other_implementations_agree(raws: list[bytes]) -> None:
    """Python's own tar, gzip and JSON read what is packed, and what they write is unpacked."""
    said = json.loads("".join(pack(PUSHED, len(raws), named(raws))))["new_blocks"]
    assert (said["num_blocks"], said["media_type"], said["encoding"]) == (len(raws), "application/tar+gzip", "raw")
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(bytes(said["payload"])))) as archive:
        assert [(each.name, archive.extractfile(each).read()) for each in archive] == [  # type: ignore[union-attr]
            (str(name), raw) for name, raw in named(raws)
        ]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, raw in named(raws):
            entry = tarfile.TarInfo(str(name))
            entry.size = len(raw)
            archive.addfile(entry, io.BytesIO(raw))
    said["payload"] = list(gzip.compress(packed.getvalue()))
    assert unpacked([json.dumps({"new_blocks": said}, indent=1)], PUSHED) == raws


@pytest.mark.slow
@given(st.text(max_size=200), st.binary(max_size=200), st.integers(0, 400))
def test_garbage_is_invalid(text: str, noise: bytes, at: int) -> None:
    whole = "".join(pack(PULLED, 1, named([b"block"])))
    payload = json.dumps({"blocks": {"num_blocks": 1, "media_type": "application/tar+gzip", "encoding": "raw",
                                     "payload": list(noise)}})  # fmt: skip
    for bad in (text, payload, whole[:at], whole[:at] + text + whole[at:]):
        unpacker = Unpacker(PULLED)
        try:
            found = unpacker.feed(bad)
            unpacker.finish()
        except Invalid:
            continue
        assert [raw for _, raw in found] in ([], [b"block"])


def changed(**more: object) -> str:
    said = json.loads("".join(pack(PULLED, 1, named([b"block"]))))
    said["blocks"] |= more
    return json.dumps(said)


@pytest.mark.parametrize(
    "text, why",
    [
        (changed(num_blocks=2), "says 2"),
        (changed(media_type="application/zip"), "not known"),
        (changed(encoding="base64"), "not known"),
        (changed(payload=[1, 2, 300]), "list of bytes"),
        (changed(payload=["1"]), "list of bytes"),
        (changed(payload=[-1]), "list of bytes"),
        (changed(payload=[]), "gzip does not end"),
        (changed(payload=list(gzip.compress(b"x" * 600))), "archive"),
        (changed(payload=list(gzip.compress(b"") + b"more")), "gzip"),
        ('{"blocks":{"payload":[1,]}}', "list of bytes"),
        ('{"blocks":{}}', "ends in"),
        ('{"new_blocks":{"num_blocks":0,"media_type":"application/tar+gzip","encoding":"raw","payload":['
         + ",".join(map(str, gzip.compress(bytes(1024)))) + "]}}", "no blocks"),
    ],
)  # fmt: skip
def test_what_is_no_batch(text: str, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        unpacked([text])


def test_a_block_under_another_name_is_refused() -> None:
    lied = [(Multihash.sha3_256(b"other"), b"block")]
    with pytest.raises(Invalid, match="is another"):
        unpacked(list(pack(PULLED, 1, lied)))


@pytest.mark.slow
def test_both_sides_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MAX_TEXT", 200_000)
    raw = Multihash.sha3_256(b"").digest * 1
    noise = [Multihash.sha3_256(bytes([a, b])).digest + raw for a in range(64) for b in range(64)]
    with pytest.raises(BatchTooLarge):
        list(pack(PULLED, len(noise), named(noise)))
    monkeypatch.setattr(batches, "MAX_UNPACKED", 1 << 20)
    bomb = changed(payload=list(gzip.compress(bytes(64 << 20))))
    with pytest.raises(Invalid):
        unpacked([bomb])
    large = json.dumps({"x": "y" * 70_000})
    with pytest.raises(Invalid, match="no payload"):
        unpacked([large])
    assert "".join(pack(PULLED, 0, [])).endswith("]}}")
    assert unpacked(list(pack(PULLED, 0, []))) == []
