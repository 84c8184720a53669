"""Arranges a run, data events of one kind in a row, as columns, so that rules check a thousand blocks at a time.

Columns are lifted from the blocks' bytes by their shapes and compared with numpy. They decide one thing only: which
blocks are *doubtful*. A block that is not doubtful satisfies every rule; a doubtful block is decoded and checked rule
by rule, and may well be in order. A value that a column cannot hold is replaced by an arbitrary one, and makes its
block doubtful as well as the next one, which is compared with it. A run is made for one page of a chain and thrown away
with it. Spec: Metadata Chain.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from chain.codec.layout import Moment, Number, Text
from chain.codec.shape import Bytes, Shape, ShapeLeaf
from chain.instant import SECOND, Instant
from chain.libraries import np
from chain.model.events import AddData, ExecuteTransform
from chain.multihash import SHA3_256, Multihash
from chain.state import ChainState

if TYPE_CHECKING:
    import numpy.typing as npt

Mask: TypeAlias = "npt.NDArray[np.bool_]"
_LARGEST: Final = 1 << 62
"""Greatest number on which int64 arithmetic is safe; no honest offset comes near."""
_DIGEST: Final = 32
_COLUMNS: Final = [("year", "<i4"), ("ordinal", "<u2"), ("pad", "V2"), ("second", "<u4"), ("nanos", "<u4")]
_DAY: Final = 86_400
_FIRST_YEAR, _LAST_YEAR = 1700, 2200
"""Bounds of the years in which an int64 holds every nanosecond."""
_DAYS_BEFORE_EPOCH: Final = dt.date(1970, 1, 1).toordinal() - 1


@dataclass(frozen=True, slots=True)
class Column:
    """One value of every block: ``(n,)`` or, for digests, ``(n, 32)``; arbitrary where not ``present``."""

    values: npt.NDArray[Any]
    present: Mask

    def same(self, other: Column) -> Mask:
        """Marks the blocks in which both columns hold the same value, or neither has one."""
        if not (self.present.any() or other.present.any()):
            return np.ones(len(self.present), np.bool_)
        equal = np.equal(self.values, other.values).reshape(len(self.values), -1).all(axis=1)
        same: Mask = (self.present == other.present) & (equal | ~self.present)
        return same

    def or_else(self, other: Column) -> Column:
        """Returns this column, filled from the other where a value is absent."""
        chosen = self.present if self.values.ndim == 1 else self.present[:, None]
        return Column(np.where(chosen, self.values, other.values), self.present | other.present)


@dataclass(frozen=True, slots=True)
class Part:
    """The blocks of a run that have one shape."""

    shape: Shape
    rows: npt.NDArray[np.intp] | slice
    """Positions of the blocks in the run."""
    values: Mapping[str, Bytes]


class Run:
    """Consecutive data events of one kind as numpy columns, with the blocks that are doubtful.

    ``hashes`` are the blocks' own digests, ``(n, 32)``, already checked against their bytes.
    """

    def __init__(self, state: ChainState, parts: Sequence[Part], hashes: Bytes) -> None:
        self.state = state
        """State of the chain before the first block of the run."""
        self.size = len(hashes)
        self.hashes = Column(hashes, np.ones(self.size, np.bool_))
        self.unsure: Mask = np.zeros(self.size, np.bool_)
        """Marks blocks with a value that its column could not hold."""
        self._parts = parts
        event = parts[0].shape.template.event
        assert isinstance(event, AddData | ExecuteTransform), "runs are of data events"
        self.event = event
        """Event of one block; its class and the ids of its inputs are the same in all blocks."""
        self._known: dict[str, Column] = {}

    @property
    def not_believed(self) -> Mask:
        """Marks blocks that columns cannot decide about: those with a value that no column holds, and the next ones."""
        found = self.unsure.copy()
        found[1:] |= self.unsure[:-1]
        return found

    def read(self) -> None:
        """Marks as unsure the blocks with a value that may not decode: an invalid time, a text beyond ASCII."""
        for part in self._parts:
            for path, leaf in part.shape.leaves.items():
                if isinstance(leaf.kind, Moment):
                    self.times(path)
                elif isinstance(leaf.kind, Text):
                    self.unsure[part.rows] |= (part.values[path] >= 0x80).any(axis=1)

    def numbers(self, path: str) -> Column:
        """Returns integers as int64."""
        return self._column(path, np.zeros(self.size, np.int64))

    def times(self, path: str) -> Column:
        """Returns times as nanoseconds in int64."""
        return self._column(path, np.zeros(self.size, np.int64))

    def digests(self, path: str) -> Column:
        """Returns the digests of sha3-256 hashes."""
        return self._column(path, np.zeros((self.size, _DIGEST), np.uint8))

    def has(self, path: str) -> Mask:
        """Marks the blocks that have the part at ``path``, such as ``event.new_data``."""
        mask = np.zeros(self.size, np.bool_)
        for part in self._parts:
            mask[part.rows] = _at(part.shape.template, path) is not None
        return mask

    def before(self, column: Column, first: Multihash | Instant | int | None) -> Column:
        """Returns the column shifted by one block; ``first`` is the value in the state before the run."""
        if first is None and not column.present.any():
            return column
        values, present = np.zeros_like(column.values), np.zeros_like(column.present)
        values[1:], present[1:] = column.values[:-1], column.present[:-1]
        present[0] = first is not None
        if first is not None:
            values[0], sure = _constant(first)
            self.unsure[0] |= not sure
        return Column(values, present)

    def _column(self, path: str, values: npt.NDArray[Any]) -> Column:
        known = self._known.get(path)
        if known is not None:
            return known
        present = np.zeros(self.size, np.bool_)
        for part in self._parts:
            constant = _at(part.shape.template, path)
            if constant is None:
                continue
            present[part.rows] = True
            leaf = part.shape.leaves.get(path)
            if leaf is None:
                values[part.rows], sure = _constant(constant)
                self.unsure[part.rows] |= not sure
            else:
                values[part.rows], doubts = _lifted(leaf, part.values[path], constant)
                self.unsure[part.rows] |= doubts
        self._known[path] = column = Column(values, present)
        return column


def _lifted(leaf: ShapeLeaf, raw: Bytes, template: object) -> tuple[npt.NDArray[Any], Mask | bool]:
    """Returns the values of a leaf, and which of them are doubtful."""
    match leaf.kind:
        case Moment():
            times, sure = unpack_many(raw)
            return times, ~sure
        case Number(code=code, size=size):
            numbers = raw.view(np.dtype(f"<{'i' if code.islower() else 'u'}{size}"))[:, 0]
            return numbers.astype(np.int64), (numbers > _LARGEST) if size == 8 else False
        case _:
            return raw, not isinstance(template, Multihash) or template.code != SHA3_256


def _constant(value: Any) -> tuple[Any, bool]:
    """Returns the value as an element of its column, and whether that is exact."""
    if isinstance(value, Multihash):
        return np.frombuffer(value.digest, np.uint8), value.code == SHA3_256
    return (value, True) if -_LARGEST <= value <= _LARGEST else (0, False)


def _at(value: Any, path: str) -> Any:
    """Returns the part of a block at ``path``; ``None`` when it, or a part that contains it, is absent."""
    for name in path.split("."):
        if value is None:
            return None
        value = value[int(name)] if name.isdecimal() else getattr(value, name)
    return value


def unpack_many(raws: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Decodes ``(n, 16)`` bytes of Timestamps, and marks the certain results; ``stamp.unpack`` decides the others.

    Uncertain are invalid times, leap seconds, and years whose nanoseconds do not fit an int64.
    """
    parts = raws.view(np.dtype(_COLUMNS))[:, 0]
    year, ordinal = parts["year"].astype(np.int64), parts["ordinal"].astype(np.int64)
    second, nanos = parts["second"].astype(np.int64), parts["nanos"].astype(np.int64)
    sure = (year >= _FIRST_YEAR) & (year <= _LAST_YEAR) & (ordinal >= 1) & (second < _DAY) & (nanos < SECOND)
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    sure &= ordinal <= 365 + leap
    before = np.where(sure, year, 1970) - 1
    days = before * 365 + before // 4 - before // 100 + before // 400 - _DAYS_BEFORE_EPOCH + ordinal - 1
    return (days * _DAY + second) * SECOND + nanos, sure
