"""Determines from a schema what to check in its slices, and checks their system columns.

These are offsets that count up, valid operations, and times not in the future. Each column marks the wrong rows among
many at once, of one or several slices, and describes the fault of a single row. Spec: section Data Slice; RFC-016 for
types.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

from chain import instant
from chain.data import parquet
from chain.data.arrow_schema import differences
from chain.data.buffers import bits, numbers
from chain.instant import Instant
from chain.libraries import np, pa
from chain.model.events import Vocab
from odfd.verify.report import VerifyFinding
from odfd.verify.terms import ChainTerms

if TYPE_CHECKING:
    import numpy.typing as npt

OFFSET_TYPES: Final = ("int64", "uint64")
OP_TYPES: Final = ("int32", "uint8")
"""Types of operations: as the reference writes them, and as the specification says."""
_LAST_OP: Final = 3
"""The greatest operation: 0 append, 1 retract, 2 correct from, 3 correct to."""
_MOST: Final = (1 << 63) - 1

Mask: TypeAlias = "npt.NDArray[np.bool_]"


@dataclass(frozen=True, slots=True)
class ExpectedColumns:
    """The chain's claims about consecutive rows, of one slice or of several: ``(slices,)`` each."""

    rows: npt.NDArray[np.int64]
    """Number of rows of each slice."""
    first: npt.NDArray[np.uint64]
    """Offset of the first row of each slice."""
    made: Sequence[Instant]
    """Time at which the block of each slice was made."""

    def offsets(self) -> npt.NDArray[np.uint64]:
        """Returns the offset of each row."""
        ends = np.cumsum(self.rows)
        before = (ends - self.rows).astype(np.uint64)
        found: npt.NDArray[np.uint64] = np.repeat(self.first - before, self.rows) + np.arange(ends[-1], dtype=np.uint64)
        return found


class SystemColumn(ABC):
    """A column that occurs once, with a checkable type."""

    rule: ClassVar[str]

    def __init__(self, name: str) -> None:
        self.name = name

    def wrong(self, batch: pa.RecordBatch, due: ExpectedColumns) -> npt.NDArray[np.intp]:
        """Returns the places of the wrong rows."""
        values = batch.column(self.name)
        mask = self._wrong(values, due)
        if values.null_count:
            mask = mask | ~bits(values.is_valid()).view(np.bool_)
        return np.flatnonzero(mask)

    def tell(self, batch: pa.RecordBatch, due: ExpectedColumns, row: int) -> VerifyFinding:
        """Describes the fault of a row of one slice."""
        value = batch.column(self.name)[row]
        if value.is_valid:
            return self._describe(value, due, row)
        return VerifyFinding(rule=self.rule, message=f"column {self.name!r} has nulls", actual="null")

    @abstractmethod
    def _wrong(self, values: pa.Array, due: ExpectedColumns) -> Mask:
        """Marks wrong values; arbitrary for nulls."""

    @abstractmethod
    def _describe(self, value: pa.Scalar, due: ExpectedColumns, row: int) -> VerifyFinding:
        """Describes a wrong value that is not null."""


class _Offsets(SystemColumn):
    rule = "slice-offsets"

    def _wrong(self, values: pa.Array, due: ExpectedColumns) -> Mask:
        found = numbers(values)
        mask: Mask = (found.view(np.uint64) != due.offsets()) | (found < 0)
        return mask

    def _describe(self, value: pa.Scalar, due: ExpectedColumns, row: int) -> VerifyFinding:
        expected, actual = str(int(due.first[0]) + row), str(value.as_py())
        message = f"a row of the slice has offset {actual} where {expected} is due"
        return VerifyFinding(rule=self.rule, message=message, expected=expected, actual=actual)


class _Operations(SystemColumn):
    rule = "slice-op"

    def _wrong(self, values: pa.Array, _due: ExpectedColumns) -> Mask:
        found = numbers(values)
        mask: Mask = (found < 0) | (found > _LAST_OP)
        return mask

    def _describe(self, value: pa.Scalar, _due: ExpectedColumns, _row: int) -> VerifyFinding:
        actual = str(value.as_py())
        message = f"column {self.name!r} holds {actual}, which is no operation"
        return VerifyFinding(rule=self.rule, message=message, expected=f"0 to {_LAST_OP}", actual=actual)


class _SystemTimes(SystemColumn):
    rule = "slice-system-time"

    def _wrong(self, values: pa.Array, due: ExpectedColumns) -> Mask:
        one = parquet.to_instant(1, values.type)
        latest = np.array([min(made // one, _MOST) for made in due.made], np.int64)
        mask: Mask = numbers(values.view(pa.int64())) > np.repeat(latest, due.rows)
        return mask

    def _describe(self, value: pa.Scalar, due: ExpectedColumns, _row: int) -> VerifyFinding:
        expected, actual = instant.render(due.made[0]), instant.render(parquet.to_instant(value.value, value.type))
        message = f"a row's {self.name} is {actual}, after its block was made at {expected}"
        return VerifyFinding(rule=self.rule, message=message, expected=f"at most {expected}", actual=actual)


def system_columns(schema: pa.Schema, vocab: Vocab | None) -> list[SystemColumn]:
    """Lists the columns whose rows can be checked; the others have wrong types, which are reported as such."""
    if vocab is None:
        return []
    offset, operation, time = (_type(schema, n) for n in (vocab.offset, vocab.operation_type, vocab.system_time))
    found: list[SystemColumn] = []
    if str(offset) in OFFSET_TYPES:
        found.append(_Offsets(vocab.offset))
    if str(operation) in OP_TYPES:
        found.append(_Operations(vocab.operation_type))
    if time is not None and pa.types.is_timestamp(time):
        found.append(_SystemTimes(vocab.system_time))
    return found


def _type(schema: pa.Schema, name: str) -> pa.DataType | None:
    place = schema.get_field_index(name)  # -1 for a name that occurs twice
    return schema.field(place).type if place >= 0 else None


class Outline:
    """The findings about slices of one schema under the same terms, before a row is read."""

    def __init__(self, schema: pa.Schema, terms: ChainTerms) -> None:
        self.schema = schema
        self.terms = terms
        self.findings = list(_check_types(schema, terms))
        self.columns = system_columns(schema, terms.vocab)

    def fits(self, schema: pa.Schema, terms: ChainTerms) -> bool:
        return terms is self.terms and schema.equals(self.schema, check_metadata=True)


class Outlines:
    """Caches the last slice's outline: a chain's slices are alike, and it costs a tenth of a small slice's check."""

    def __init__(self) -> None:
        self._last: Outline | None = None

    def of(self, schema: pa.Schema, terms: ChainTerms) -> Outline:
        last = self._last
        if last is None or not last.fits(schema, terms):
            self._last = last = Outline(schema, terms)
        return last


def _check_types(schema: pa.Schema, terms: ChainTerms) -> Iterator[VerifyFinding]:
    if terms.vocab is not None:
        yield from _check_system_columns(schema, terms.vocab)
    if terms.schema is not None:
        for one in differences(terms.schema, schema):
            message = f"{one.place}: the schema says {one.expected}, the slice has {one.actual}"
            yield VerifyFinding(rule="slice-schema", message=message, expected=one.expected, actual=one.actual)


def _check_system_columns(schema: pa.Schema, vocab: Vocab) -> Iterator[VerifyFinding]:
    wanted = {vocab.offset: OFFSET_TYPES, vocab.operation_type: OP_TYPES, vocab.system_time: None}
    for name in (vocab.offset, vocab.operation_type, vocab.system_time, vocab.event_time):
        if (count := schema.names.count(name)) != 1:
            message = f"column {name!r} is missing" if count == 0 else f"column {name!r} occurs {count} times"
            yield VerifyFinding(rule="slice-system-columns", message=message, expected=name)
            continue
        actual, types = schema.field(name).type, wanted.get(name)
        fits = str(actual) in types if types else pa.types.is_timestamp(actual)
        if name == vocab.event_time:
            fits = fits or pa.types.is_date(actual)
        if not fits:
            expected = types[0] if types else "timestamp"
            message = f"column {name!r} is {actual}, and should be {expected}"
            yield VerifyFinding(rule="slice-system-columns", message=message, expected=expected, actual=str(actual))


OUTLINES: Final = Outlines()
