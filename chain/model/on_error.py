"""Reads what a read step says of records that cannot be read: the file is refused, or they are set aside.

The format has no field for it, so it is an attribute of the columns that the step declares (``schema.extra``), which
every reader of a chain carries along. One that does not know it refuses the file, as is done where nothing is said.
Pure.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from chain.errors import Invalid
from chain.model.schema import DataSchema

ON_ERROR: Final = "w3id.org/odfd/onError"
"""Attribute of the schema of a read step: ``quarantine``, or ``{quarantine: {maxRows: N, maxPercent: N}}``."""
FAIL: Final = "fail"
QUARANTINE: Final = "quarantine"
MAX_ROWS: Final = 100_000
"""Records of one file that may be set aside, whatever is declared: beyond, it is another kind of file."""
_HALF: Final = 50


class Quarantine(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """Records that cannot be read are set aside, as long as there are no more of them in a file."""

    max_rows: Annotated[int, msgspec.Meta(ge=0, le=MAX_ROWS)] = MAX_ROWS
    max_percent: Annotated[int, msgspec.Meta(ge=0, le=100)] = _HALF
    """Of the records of the file. A file without any that can be read is refused also at 100."""


class _Declared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    quarantine: Quarantine


def quarantine_of(schema: DataSchema | None) -> Quarantine | None:
    """What a read step with these columns says; ``None``: the file is refused. Raises Invalid."""
    return None if schema is None else declared_quarantine((schema.extra or {}).get(ON_ERROR, FAIL))


def declared_quarantine(said: object) -> Quarantine | None:
    """The meaning of the attribute's value. Raises Invalid."""
    if said == FAIL:
        return None
    if said == QUARANTINE:
        return Quarantine()
    try:
        return msgspec.convert(said, _Declared).quarantine
    except msgspec.ValidationError as error:
        raise Invalid(
            f"onError: {error}" if isinstance(said, dict) else f"onError: {said!r}",
            rule="on-error",
            hint=f"write fail, quarantine, or quarantine: {{maxRows: N, maxPercent: N}} with at most {MAX_ROWS} rows",
        ) from error
