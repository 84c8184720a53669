"""Defines the request and the report of a verification (the JSON of ``odfctl verify``).

Values only; ``Progress`` reports a verification that is not finished.
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
    """Checks hashes, encoding, links and append rules."""
    DATA = "data"
    """Also checks every object: both hashes, size, offsets, system columns, schema."""


class VerificationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to verify a dataset at a level."""

    ref: str
    """Name of the dataset as the person gave it; repeated in the answer."""
    level: Level = Level.DATA
    start: int = 0
    """Number of the first block that is searched for failures and whose objects are read."""
    held_from: int = 0
    """Number of the first block whose objects must be here: a mirror may keep only the newest."""
    held_until: int = 1 << 62
    """Number of the first block whose objects may be missing, as a mirror is still fetching them."""
    workers: int = _WORKERS
    columns: bool = True
    """Whether to check runs of blocks as columns. Checking each block alone is slower, with the same result."""


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
    """Bytes of the objects."""
    transforms: int = 0
    remembered: int = 0
    """Number of ``blocks`` whose rows (or objects, if the verification was unfinished) were verified before."""
    not_held: int = 0
    """Slices that need not be here."""
    to_come: int = 0
    """Slices that are not here yet, as a mirror is still fetching them."""
    portal: str = ""
    """The rule of a portal, against which all its rows were checked; empty for other datasets."""


class VerificationResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The result. ``ok`` exactly when ``failures`` is empty; failures are in the order of the chain."""

    ref: str
    dataset_id: str
    """Id of the dataset; empty when the chain does not state it."""
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
