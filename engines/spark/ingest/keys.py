"""Checks the primary keys of a batch: every row has a value in each of their columns.

A row without one is no row that a later row could be about: a ledger would append it again each time it is read. The
reference writes such rows; here they are refused as SQL's PRIMARY KEY refuses them. What is written already stays.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from chain.errors import Invalid
from chain.model.on_error import quarantine_of
from chain.model.source import primary_key
from chain.wording import agree
from engines.contract import IngestRequest
from engines.spark.ingest.event_times import places_of, rows_have
from engines.spark.ingest.origin import Origin
from engines.spark.ingest.text_columns import NOT_NULL, NULL_KEY, misfit_fault, no_key


def checked_keys(request: IngestRequest) -> tuple[str, ...]:
    """The columns in which every row of the batch must have a value.

    Where the writer sets records aside, whoever observes that does the same.
    """
    if request.allows_null_keys and quarantine_of(request.read.schema) is None:
        return ()
    return tuple(dict.fromkeys(primary_key(request.merge)))


def check_keys(batch: pa.Table, keys: Sequence[str], origin: Origin) -> None:
    """Raises Invalid for rows without a value in one of the columns ``keys`` that the batch has."""
    lacking = [name for name in keys if name in batch.column_names and batch.column(name).null_count]
    if not lacking:
        return

    def without_key(rows: pa.Table) -> pa.ChunkedArray:
        found = pa.chunked_array([pa.repeat(not set(lacking) <= set(rows.column_names), rows.num_rows)])
        for name in set(lacking) & set(rows.column_names):
            found = pc.or_(found, pc.is_null(rows.column(name)))
        return found

    count = pc.sum(without_key(batch)).as_py()
    names, are = " or ".join(map(repr, lacking)), agree(len(lacking), "is", "are")
    raise Invalid(
        f"{rows_have(count)} no value in {names}, which {are} in the primary key",
        rule=NULL_KEY,
        hint=_hint(lacking[-1]),
        place=", ".join(places_of(origin, batch, without_key)),
    )


def null_key_fault(fault: Invalid, keys: Sequence[str]) -> Invalid:
    """What the parsers say of an empty value, where it is one of a key."""
    for name in keys:
        empty = misfit_fault("", name, pa.null(), "")
        if (fault.rule, fault.message) == (NOT_NULL, empty.message):
            return Invalid(no_key(name).message, rule=NULL_KEY, hint=_hint(name), place=fault.place)
    return fault


def _hint(name: str) -> str:
    return (
        f"mend them, or say in preprocess what stands for no value, as coalesce({name}, '') as {name}; or leave such "
        "rows out there, or set them aside with onError: quarantine"
    )
