"""Defines the request and the report of a verification (the JSON of ``odfctl verify``).

Values only; ``Progress`` is how it grows.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

_WORKERS: Final = min(4, os.cpu_count() or 1)


class Level(enum.Enum):
    """The depth of local checks. Each level includes the one before."""

    CHAIN = "chain"
    """Hashes, encoding, links, append rules."""
    DATA = "data"
    """And every object: both hashes, size, offsets, system columns, schema."""


class VerificationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to verify, to a level."""

    ref: str
    """As the person named it; goes into the answer."""
    level: Level = Level.DATA
    start: int = 0
    """Sequence number from which on failures are looked for and objects read."""
    held_from: int = 0
    """Block from which on objects are to be here: a mirror may hold the newest alone."""
    held_until: int = 1 << 62
    """And up to which: those of later ones are on their way to a mirror."""
    workers: int = _WORKERS
    columns: bool = True
    """Judge what can be judged so as columns. Without, every block is taken by itself: slower, the same answer."""


class BlockRef(msgspec.Struct, frozen=True, rename="camel"):
    hash: str
    sequence_number: int


class VerifyFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One broken rule, without its block."""

    rule: str
    message: str
    expected: str = ""
    actual: str = ""


class VerifyFailure(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One broken rule of one block. ``rule`` is a documented name that programs may match on."""

    block: BlockRef
    rule: str
    message: str
    expected: str = ""
    actual: str = ""


class CheckedDataset(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Counts of checked parts."""

    blocks: int = 0
    slices: int = 0
    bytes: int = 0
    """Of objects."""
    transforms: int = 0
    remembered: int = 0
    """Of ``blocks``, those whose rows (of an unfinished verification, whose objects) were found in order before."""
    not_held: int = 0
    """Slices that are not to be here."""
    to_come: int = 0
    """Slices that are not here yet: a mirror was asked for its data, and it is on its way."""
    portal: str = ""
    """The rule of a portal, against which all its rows were checked."""


class VerificationResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The result. ``ok`` exactly when ``failures`` is empty; failures are in the order of the chain."""

    ref: str
    dataset_id: str
    """Empty when the chain does not say."""
    head: str
    blocks: int
    level: str
    ok: bool
    checked: CheckedDataset
    failures: tuple[VerifyFailure, ...] = ()


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a verification. Totals of objects grow while the chain is read."""

    blocks: int
    blocks_total: int
    objects: int
    objects_known: int
    bytes: int
    bytes_known: int
    failures: int


OnProgress: TypeAlias = Callable[[Progress], None]
"""Called between blocks, on the verifying thread; an exception it raises ends the verification."""
