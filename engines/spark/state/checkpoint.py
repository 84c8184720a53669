"""Encodes a transform's state between transactions: canonical JSON that names the rows still needed.

Rows of windows are named by the blocks that hold them. Rows that no block holds as they are (versions in force, the
table that was last written) follow after the JSON and a newline; ``tables`` packs them.

State is a function of the cut of the inputs alone, so every way to reach a cut gives these bytes, and a node without
the checkpoint can rebuild it. Pure. Coordinators read checkpoints too, to mount again the blocks that ``open_blocks``
lists. The engine makes one after every transaction that succeeded. Spec: docs/spec/engine-semantics.md#state.
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
"""Most bytes of the JSON."""
MAX_RANGES: Final = 64
"""Most open ranges written for one input. If there are more they are merged, since a superset is sound."""

MAX_TABLES: Final = 4096
"""Most tables that follow the JSON; mostly they are buckets of rows."""

Name = Annotated[str, msgspec.Meta(max_length=256)]
Millis = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]


class OpenInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of one input in a checkpoint."""

    id: Name
    """DID of the input dataset, ``did:odf:…``."""
    alias: Name
    block: Name | None = None
    """Hash of the last consumed block that the coordinator named; ``None``: it named none."""
    w: Millis | None = None
    """Watermark, milliseconds; ``None`` before the first."""
    open: Annotated[tuple[tuple[Name, Name], ...], msgspec.Meta(max_length=MAX_RANGES)] = ()
    """First and last block of each run, in chain order, whose slices may hold rows that are needed again."""


class Arranged(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Describes a table that follows the JSON."""

    name: Name
    rows: Annotated[int, msgspec.Meta(ge=0)]
    size: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
    """Length of the table in bytes."""
    digest: Name
    """sha3-256 of the table's bytes, hexadecimal."""


class StateCheckpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of a transform between two transactions."""

    v: int
    transform: Name
    """sha3-256 of the transform's canonical JSON: a checkpoint of another query must not be used."""
    mode: Name
    g: Millis | None = None
    """Output rows before this time have been emitted, milliseconds; ``None``: none have."""
    inputs: Annotated[tuple[OpenInput, ...], msgspec.Meta(max_length=256)]
    late: dict[Name, int]
    """Rows dropped because they came late, so far, by alias."""
    untimed: dict[Name, int]
    """Rows dropped because they have no event time, so far, by alias."""
    ticks: Annotated[tuple[Millis, ...], msgspec.Meta(max_length=1 << 16)] | msgspec.UnsetType = msgspec.UNSET
    """Ticks: watermarks of some inputs that the slower inputs have yet to reach, milliseconds."""
    settled: Millis | msgspec.UnsetType = msgspec.UNSET
    """Time before which output could have been emitted; it waits because the coordinator asked for less. Else unset."""
    arranged: Annotated[tuple[Arranged, ...], msgspec.Meta(max_length=MAX_TABLES)] | msgspec.UnsetType = msgspec.UNSET
    """Descriptions of the tables that follow; unset when there are none."""


def encode_checkpoint(checkpoint: StateCheckpoint) -> bytes:
    """Encodes with sorted keys, no spaces, absent values as null: one state, one text."""
    return msgspec.json.encode(checkpoint, order="sorted")


def split(raw: bytes) -> tuple[bytes, bytes]:
    head, _, body = raw.partition(b"\n")
    return head, body


def decode_checkpoint(raw: bytes) -> StateCheckpoint:
    """Decodes the JSON; the tables after it may be absent. Raises Invalid: the bytes may come from another node."""
    raw, _ = split(raw)
    if len(raw) > MAX_CHECKPOINT:
        raise Invalid(f"a checkpoint of {len(raw)} bytes", rule="checkpoint-size", hint=f"at most {MAX_CHECKPOINT}")
    try:
        checkpoint = msgspec.json.decode(raw, type=StateCheckpoint)
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
    Raises Invalid for a malformed hash.
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

    Runs are merged by their position in the list, not by whether the chain has other blocks between them: that would
    depend on which others were mounted, and so on the way to the cut.
    """
    share = -(-len(blocks) // MAX_RANGES) or 1
    return tuple((blocks[start], blocks[min(start + share, len(blocks)) - 1]) for start in range(0, len(blocks), share))
