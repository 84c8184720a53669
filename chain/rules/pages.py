"""Sorts pages of blocks into runs that rules check as columns, and blocks that they check one by one.

``Pages`` lives for one walk along a chain and keeps the shapes it met, at most MAX_SHAPES of them, so that the next
page is sorted by comparing bytes. Work is linear in the page's bytes whatever they are: a page may add a few new
shapes, and blocks without a shape are decoded one by one. Spec: Metadata Chain.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from chain.codec.shape import MAX_SHAPED, Bytes, Shape, shape_of
from chain.ids import DatasetId
from chain.libraries import np
from chain.model.events import AddData, ExecuteTransform
from chain.rules.columns import Mask, Part, Run
from chain.state import ChainState

if TYPE_CHECKING:
    import numpy.typing as npt

MAX_SHAPES: Final = 64
LESSONS: Final = 8
"""Most new shapes that one page may add."""
_WORTH: Final = 8
"""Fewest blocks for which a run, or a shape, is worth its cost: below that, decoding each is cheaper."""
_DIGEST: Final = 32

Rows: TypeAlias = "npt.NDArray[np.intp]"


@dataclass(frozen=True, slots=True)
class Group:
    """The blocks of a page that have one shape: their positions, in order, and the values read from them."""

    shape: Shape
    rows: Rows
    values: Mapping[str, Bytes]


@dataclass(frozen=True, slots=True)
class PageRange:
    """Blocks ``start <= i < stop`` of a page: a run if there are ``groups``, otherwise to be checked one by one."""

    start: int
    stop: int
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """The blocks of a page, hashed and sorted."""

    raws: Sequence[bytes | None]
    digests: Bytes
    """Digests of the blocks' bytes, ``(n, 32)``; zeros for absent blocks."""
    intact: Mask
    """Marks blocks whose bytes hash to their name."""
    stretches: tuple[PageRange, ...]

    def run(self, stretch: PageRange, state: ChainState) -> Run:
        """Returns the run of a range that has groups, after a chain in ``state``."""
        parts = [Part(one.shape, one.rows - stretch.start, one.values) for one in stretch.groups]
        if len(parts) == 1:
            parts = [Part(parts[0].shape, slice(None), parts[0].values)]
        return Run(state, parts, self.digests[stretch.start : stretch.stop])


class Pages:
    """Sorts pages of raw blocks into runs and single blocks, by shapes that it learns on the way."""

    def __init__(self) -> None:
        self._shapes: dict[int, list[Shape]] = {}
        self._count = 0

    def sort(self, names: Bytes | None, raws: Sequence[bytes | None]) -> Page:
        """Sorts a page; an absent block is ``None``. ``names``: required digests of the blocks, ``(n, 32)``."""
        digests = _digests(raws)
        intact: Mask = np.ones(len(raws), np.bool_) if names is None else (digests == names).all(axis=1)
        if None in raws:
            intact &= np.fromiter((raw is not None for raw in raws), np.bool_, len(raws))
        groups = list(self._groups(raws, intact))
        return Page(raws, digests, intact, tuple(_stretches(len(raws), groups)))

    def _groups(self, raws: Sequence[bytes | None], intact: Mask) -> Iterator[Group]:
        sizes = np.fromiter(map(len, [raw or b"" for raw in raws]), np.int64, len(raws))
        lessons = LESSONS
        for size in np.unique(sizes[intact & (sizes <= MAX_SHAPED)]):
            left: Rows = np.flatnonzero(intact & (sizes == size))
            for shape in self._shapes.get(int(size), ()):
                group, left = _take(shape, raws, left)
                if group is not None:
                    yield group
            while lessons and len(left) >= _WORTH and self._count < MAX_SHAPES:
                lessons -= 1
                learned = self._learn(raws[left[0]])
                if learned is None:
                    left = left[1:]
                    continue
                group, left = _take(learned, raws, left)
                if group is not None:
                    yield group

    def _learn(self, raw: bytes | None) -> Shape | None:
        shape = shape_of(raw) if raw is not None else None
        if shape is None or not isinstance(shape.template.event, AddData | ExecuteTransform):
            return None
        self._shapes.setdefault(shape.size, []).append(shape)
        self._count += 1
        return shape


def _digests(raws: Sequence[bytes | None]) -> Bytes:
    sha3 = hashlib.sha3_256
    missing = bytes(_DIGEST)
    found = b"".join([missing if raw is None else sha3(raw).digest() for raw in raws])
    return np.frombuffer(found, np.uint8).reshape(len(raws), _DIGEST)


def _take(shape: Shape, raws: Sequence[bytes | None], rows: Rows) -> tuple[Group | None, Rows]:
    """Returns the group of those of ``rows`` that have the shape, and the other rows."""
    if not len(rows):
        return None, rows
    values, same = shape.lift([raw for row in rows.tolist() if (raw := raws[row]) is not None])
    if same.all():
        return Group(shape, rows, values), rows[:0]
    if not same.any():
        return None, rows
    return Group(shape, rows[same], {path: each[same] for path, each in values.items()}), rows[~same]


def _stretches(size: int, groups: Sequence[Group]) -> Iterator[PageRange]:
    """Yields runs of blocks of one kind and the ranges between them, in order."""
    kinds: dict[object, int] = {}
    kind_of = np.full(size, -1, np.int64)
    for group in groups:
        kind_of[group.rows] = kinds.setdefault(_kind(group.shape), len(kinds))
    cuts = [0, *(np.flatnonzero(np.diff(kind_of)) + 1).tolist(), size] if size else []
    alone = 0
    for start, stop in itertools.pairwise(cuts):
        if kind_of[start] < 0 or stop - start < _WORTH:
            continue
        if alone < start:
            yield PageRange(alone, start, ())
        yield PageRange(start, stop, tuple(_within(groups, start, stop)))
        alone = stop
    if alone < size:
        yield PageRange(alone, size, ())


def _kind(shape: Shape) -> tuple[type, tuple[DatasetId, ...]]:
    event = shape.template.event
    inputs = event.query_inputs if isinstance(event, ExecuteTransform) else ()
    return type(event), tuple(input_.dataset_id for input_ in inputs)


def _within(groups: Sequence[Group], start: int, stop: int) -> Iterator[Group]:
    for group in groups:
        chosen = (group.rows >= start) & (group.rows < stop)
        if chosen.all():
            yield group
        elif chosen.any():
            yield Group(group.shape, group.rows[chosen], {path: each[chosen] for path, each in group.values.items()})
