"""Determines from a schema what to check in its slices, before any row is read: types, and columns to look at.

Spec: section Data Slice; RFC-016 for types.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from chain.data.arrow_schema import differences
from chain.state import Vocab
from odfd.verify.columns import OFFSET_TYPES, OP_TYPES, system_columns
from odfd.verify.report import VerifyFinding
from odfd.verify.terms import ChainTerms


class Outline:
    """What is to be said of slices of one schema under the same terms before a row of them is read."""

    def __init__(self, schema: pa.Schema, terms: ChainTerms) -> None:
        self.schema = schema
        self.terms = terms
        self.findings = list(_check_types(schema, terms))
        self.columns = system_columns(schema, terms.vocab)

    def fits(self, schema: pa.Schema, terms: ChainTerms) -> bool:
        return terms is self.terms and schema.equals(self.schema, check_metadata=True)


class Outlines:
    """The last slice's outline: those of one chain are alike, and to make one costs a tenth of what it costs to look at
    a small slice."""

    def __init__(self) -> None:
        self._last = Outline(pa.schema([]), ChainTerms())

    def of(self, schema: pa.Schema, terms: ChainTerms) -> Outline:
        last = self._last
        if not last.fits(schema, terms):
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
            message = f"column {name!r} is missing" if count == 0 else f"column {name!r} stands {count} times"
            yield VerifyFinding(rule="slice-system-columns", message=message, expected=name)
            continue
        actual, types = schema.field(name).type, wanted.get(name)
        fits = actual in types if types else pa.types.is_timestamp(actual)
        if name == vocab.event_time:
            fits = fits or pa.types.is_date(actual)
        if not fits:
            expected = str(types[0]) if types else "timestamp"
            message = f"column {name!r} is {actual}, and should be {expected}"
            yield VerifyFinding(rule="slice-system-columns", message=message, expected=expected, actual=str(actual))


OUTLINES: Final = Outlines()
