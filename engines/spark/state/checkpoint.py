"""Encodes a transform's state between transactions: canonical JSON that names the rows still needed.

Rows of windows are named by the blocks that hold them. Rows that no block holds as they are (versions in force, the
table that was last written) follow after the JSON and a newline; ``tables`` packs them.

State is a function of the cut of the inputs alone, so any route to a cut gives these bytes, and whoever lacks a
checkpoint can rebuild it. Pure: also read by coordinators, which mount again what ``open_blocks`` lists. Made by the
engine after every transaction that succeeded. Spec: docs/spec/engine-semantics.md#state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from chain.errors import Invalid
from chain.ids import DatasetId
from chain.multihash import Multihash

VERSION: Final = 1
MAX_CHECKPOINT: Final = 1 << 20
"""Bytes of the JSON."""
MAX_RANGES: Final = 64
"""Open ranges written for one input: supersets are sound, so more are merged."""

MAX_TABLES: Final = 4096
"""Tables that follow the JSON: buckets of rows, mostly."""

Name = Annotated[str, msgspec.Meta(max_length=256)]
Millis = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]


class OpenInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: Name
    """``did:odf:…``"""
    alias: Name
    block: Name | None = None
    """Hash of the last block consumed that the coordinator named."""
    w: Millis | None = None
    """Watermark, milliseconds; ``None`` before the first."""
    open: Annotated[tuple[tuple[Name, Name], ...], msgspec.Meta(max_length=MAX_RANGES)] = ()
    """First and last block of runs, in chain order, whose slices may hold rows that are needed again."""


class Arranged(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Name
    rows: Annotated[int, msgspec.Meta(ge=0)]
    size: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
    """Bytes."""
    digest: Name
    """sha3-256 of the bytes, hexadecimal."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    v: int
    transform: Name
    """sha3-256 of the transform's canonical JSON: a checkpoint of another query is no use."""
    mode: Name
    g: Millis | None = None
    """Output rows before this time have been emitted, milliseconds."""
    inputs: Annotated[tuple[OpenInput, ...], msgspec.Meta(max_length=256)]
    late: dict[Name, int]
    """Rows not accepted because they came late, so far, by alias."""
    untimed: dict[Name, int]
    """Rows not accepted because they have no event time, so far, by alias."""
    ticks: Annotated[tuple[Millis, ...], msgspec.Meta(max_length=1 << 16)] | msgspec.UnsetType = msgspec.UNSET
    """Watermarks of inputs that are still to come for the others, milliseconds."""
    settled: Millis | msgspec.UnsetType = msgspec.UNSET
    """Output before this time could have been emitted, and waits because the coordinator asked for less; else unset."""
    arranged: Annotated[tuple[Arranged, ...], msgspec.Meta(max_length=MAX_TABLES)] | msgspec.UnsetType = msgspec.UNSET
    """Tables that follow; unset when there are none."""


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Encodes with sorted keys, no spaces, absent values as null: one state, one text."""
    return msgspec.json.encode(checkpoint, order="sorted")


def split(raw: bytes) -> tuple[bytes, bytes]:
    head, _, body = raw.partition(b"\n")
    return head, body


def decode_checkpoint(raw: bytes) -> Checkpoint:
    """Decodes the JSON; its body may be absent. Raises Invalid: it comes from disk, perhaps from another node."""
    raw, _ = split(raw)
    if len(raw) > MAX_CHECKPOINT:
        raise Invalid(f"a checkpoint of {len(raw)} bytes", rule="checkpoint-size", hint=f"at most {MAX_CHECKPOINT}")
    try:
        checkpoint = msgspec.json.decode(raw, type=Checkpoint)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(
            f"not a checkpoint of this engine: {error}", rule="checkpoint", hint="replay the transform from its start"
        ) from error
    if checkpoint.v != VERSION:
        raise Invalid(f"a checkpoint of version {checkpoint.v}, this engine reads {VERSION}", rule="checkpoint")
    return checkpoint


def open_blocks(checkpoint: bytes) -> dict[DatasetId, list[tuple[Multihash, Multihash]]]:
    """Returns which blocks of each input the next transaction needs again: (first, last) of runs, both included.

    Give them as ``InputBlock(reopened=True)``, in chain order, before the new ones. Inputs that need none are left out.
    Raises Invalid.
    """
    found: dict[DatasetId, list[tuple[Multihash, Multihash]]] = {}
    for item in decode_checkpoint(checkpoint).inputs:
        runs = [(Multihash.parse(first), Multihash.parse(last)) for first, last in item.open]
        if runs:
            known = found.setdefault(DatasetId.parse(item.id), [])
            known.extend(run for run in runs if run not in known)
    return found


def runs_of(blocks: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Returns at most ``MAX_RANGES`` runs that cover blocks given in chain order. A function of the blocks alone.

    Neighbours are merged by their number in the list, not by whether the chain has others between them: that would
    depend on which others were mounted, so on the route.
    """
    share = -(-len(blocks) // MAX_RANGES) or 1
    return tuple((blocks[start], blocks[min(start + share, len(blocks)) - 1]) for start in range(0, len(blocks), share))
