"""Reads options of a read step that the format has no field for: spellings of CSV, kinds of file, records set aside.

They are attributes of the columns that the step declares (``schema.extra``), which every reader of a chain carries
along, and are in the chain to the byte. One that does not know them reads the file as the format's own kind of step,
and refuses what it cannot read. Pure.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from chain.errors import Invalid
from chain.model.schema import DataSchema

READ: Final = "w3id.org/odfd/read"
"""Attribute of the schema of a read step: an object of ``ReadOptions``."""
RULE: Final = "read-option"
KINDS: Final = {
    "Spreadsheet": "Csv",
    "Xml": "Csv",
    "Avro": "Parquet",
    "GeoPackage": "EsriShapefile",
    "Sqlite": "NdJson",
}
"""Kinds of files that the format has no step for, and the step that stands for each in a chain."""
_MAX_LINES: Final = 100_000
_Lines = Annotated[int, msgspec.Meta(ge=0, le=_MAX_LINES)]
_Character = Annotated[str, msgspec.Meta(min_length=1, max_length=1)]
Moment = Literal["earliest", "latest"]
ON_ERROR: Final = "w3id.org/odfd/onError"
"""Attribute of the schema of a read step: ``quarantine``, or ``{quarantine: {maxRows: N, maxPercent: N}}``."""
FAIL: Final = "fail"
QUARANTINE: Final = "quarantine"
MAX_ROWS: Final = 100_000
"""Records of one file that may be set aside, whatever is declared: beyond, it is another kind of file."""
_HALF: Final = 50


class ReadOptions(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """Names are those of the read step in manifests."""

    format: Literal["Spreadsheet", "Xml", "Avro", "GeoPackage", "Sqlite"] | None = None
    members: str | None = None
    """Of a zip: the name of its file that is read, or a pattern of names."""
    skip_rows: _Lines = 0
    """Lines before the header, or before the first row."""
    skip_footer: _Lines = 0
    """Lines at the end that are no rows; empty ones are not counted."""
    comment: _Character | None = None
    """A line that begins so is no row."""
    decimal: _Character | None = None
    """Between the whole of a number and its fraction; a dot when it is not said."""
    thousands: _Character | None = None
    """Between groups of three digits of a number; nothing when it is not said."""
    null_values: tuple[str, ...] = ()
    """Words that stand for no value, beside the empty one."""
    time_zone: str | None = None
    """Of times that name none; UTC when it is not said."""
    ambiguous_times: Moment | None = None
    """Which is meant of a time that a clock showed twice, when it was set back; refused when it is not said."""
    missing_times: Moment | None = None
    """What stands for a time that a clock left out, when it was set forward; refused when it is not said."""
    sheet: str | None = None
    """Of a spreadsheet: the table that is read; the only one when it is not said."""
    record: str | None = None
    """Of XML: the path of the elements that are rows, from the root: ``feed/entry``."""
    layer: str | None = None
    """Of a GeoPackage: the table that is read; the only one when it is not said."""
    table: str | None = None
    """Of an SQLite database: the table that is read; the only one when it is not said."""


NONE: Final = ReadOptions()
_ANY: Final = frozenset({"format", "members"})
_TEXT: Final = frozenset(
    {"decimal", "thousands", "null_values", "time_zone", "ambiguous_times", "missing_times"}
) | frozenset({"skip_rows", "skip_footer"})
_OF_KIND: Final = {
    "Csv": _TEXT | {"comment"},
    "Spreadsheet": _TEXT | {"sheet"},
    "Xml": _TEXT - {"skip_rows", "skip_footer"} | {"record"},
    "GeoPackage": frozenset({"layer"}),
    "Sqlite": frozenset({"table"}),
}
NAMES: Final = {
    field.encode_name: field.name for field in msgspec.structs.fields(ReadOptions) if field.name != "format"
}
"""As manifests write them, and as we do."""


def read_options(schema: DataSchema | None) -> ReadOptions:
    """Returns the options of a read step with these columns. Raises Invalid."""
    return NONE if schema is None else declared_options((schema.extra or {}).get(READ, {}))


def declared_options(value: object) -> ReadOptions:
    """The meaning of the attribute's value. Raises Invalid."""
    try:
        return msgspec.convert(value, ReadOptions)
    except msgspec.ValidationError as error:
        raise Invalid(
            f"options of the read step: {error}", rule=RULE, hint=f"known are {', '.join(NAMES)}; see docs/sources.md"
        ) from error


def options_of(kind: str) -> frozenset[str]:
    """Lists the options of a read step of a kind, of the format or of ours, beside the fields of its step."""
    allowed = _ANY | _OF_KIND.get(kind, frozenset())
    return frozenset(name for name, own in NAMES.items() if own in allowed)


def check_kind(options: ReadOptions, kind: str) -> None:
    """``kind``: of the step that has the options. Raises Invalid for one that such files have no use for."""
    if options.format is not None and KINDS[options.format] != kind:
        raise Invalid(f"a step of kind {kind} reads no {options.format}", rule=RULE, hint=f"say kind: {options.format}")
    named = options.format or kind
    allowed = options_of(named)
    unused = [
        name for name, own in NAMES.items() if name not in allowed and getattr(options, own) != getattr(NONE, own)
    ]
    if unused:
        raise Invalid(
            f"{', '.join(unused)}: a read step of kind {named} has no such option", rule=RULE, hint="leave it out"
        )


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
    """Returns the quarantine of a read step with these columns; ``None``: the file is refused. Raises Invalid."""
    return None if schema is None else declared_quarantine((schema.extra or {}).get(ON_ERROR, FAIL))


def declared_quarantine(value: object) -> Quarantine | None:
    """The meaning of the attribute's value. Raises Invalid."""
    if value == FAIL:
        return None
    if value == QUARANTINE:
        return Quarantine()
    try:
        return msgspec.convert(value, _Declared).quarantine
    except msgspec.ValidationError as error:
        raise Invalid(
            f"onError: {error}" if isinstance(value, dict) else f"onError: {value!r}",
            rule="on-error",
            hint=f"write fail, quarantine, or quarantine: {{maxRows: N, maxPercent: N}} with at most {MAX_ROWS} rows",
        ) from error
