"""Reads and writes checkpoint files, whole and under limits. Spec: docs/spec/engine-semantics.md#state."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from chain.errors import Environment, Invalid
from engines.spark.state.checkpoint import MAX_CHECKPOINT, Checkpoint, decode_checkpoint, encode_checkpoint
from engines.spark.state.tables import MAX_STATE, Kept, Stored, Tables, pack, unpack

_HINT: Final = "start the transform anew after a change of its query"


@dataclass(frozen=True, slots=True)
class State:
    """What the last transaction left."""

    checkpoint: Checkpoint | None = None
    tables: Tables = field(default_factory=lambda: Tables({}))
    """By name, each read when it is asked for; empty ones are missing."""

    @property
    def stored(self) -> Mapping[str, Stored]:
        return self.tables.stored


def load(path: str | None, transform: str, mode: str | None) -> State:
    """The state of a transform whose query has the digest ``transform``. Raises Invalid, Environment.

    ``mode``: ``None`` for whatever it is.
    """
    if path is None:
        return State()
    file = Path(path)
    try:
        if file.stat().st_size > MAX_CHECKPOINT + MAX_STATE:
            raise Invalid(f"the checkpoint {file.name} is too large", rule="checkpoint-size")
        raw = _mapped(file)
    except OSError as error:
        raise Environment(f"cannot read checkpoint {file}: {error.strerror}", rule="disk") from error
    end = raw.find(b"\n", 0, MAX_CHECKPOINT + 1)
    checkpoint = decode_checkpoint(raw[: end if end >= 0 else MAX_CHECKPOINT + 1])
    if checkpoint.transform != transform or mode not in (None, checkpoint.mode):
        raise Invalid("the checkpoint is of another query", rule="checkpoint-transform", hint=_HINT)
    described = () if checkpoint.arranged is msgspec.UNSET else checkpoint.arranged
    return State(checkpoint, unpack(described, memoryview(raw)[end + 1 if end >= 0 else len(raw) :]))


def _mapped(file: Path) -> bytes | mmap.mmap:
    """The bytes of a file, read where they are looked at. Raises OSError."""
    with file.open("rb") as opened:
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) if os.fstat(opened.fileno()).st_size else b""


def save(path: str, checkpoint: Checkpoint, tables: Mapping[str, Kept]) -> None:
    """Raises Invalid for a state that cannot be kept, Environment."""
    for item in checkpoint.inputs:
        if any("" in run for run in item.open):
            raise Invalid(
                f"input {item.alias}: rows must be kept, and their blocks were given without hashes",
                rule="open-blocks", hint="the coordinator must state block_hash",
            )  # fmt: skip
    described, body = pack(tables)
    if described:
        checkpoint = msgspec.structs.replace(checkpoint, arranged=described)
    raw = encode_checkpoint(checkpoint)
    try:
        with Path(path).open("wb") as file:
            file.writelines([raw, b"\n", *body] if body else [raw])
    except OSError as error:
        raise Environment(f"cannot write checkpoint {path}: {error.strerror}", rule="disk") from error
