"""Reads options of a read step that the format has no field for: variants of CSV, kinds of file, quarantine.

They are attributes of the columns that the step declares (``schema.extra``), which every reader of a chain carries
along, and are in the chain to the byte. An implementation that does not know them reads the file as the format's own
kind of step, and refuses what it cannot read. Pure.
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
"""Most records of one file that may be set aside, whatever is declared; with more it is no file of this kind."""
_HALF: Final = 50


class ReadOptions(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """The options. Names of fields are those of the read step in manifests."""

    format: Literal["Spreadsheet", "Xml", "Avro", "GeoPackage", "Sqlite"] | None = None
    members: str | None = None
    """For a zip: the name of the file in it that is read, or a pattern of names."""
    skip_rows: _Lines = 0
    """Number of lines to skip before the header, or before the first row."""
    skip_footer: _Lines = 0
    """Number of lines to skip at the end; empty lines are not counted."""
    comment: _Character | None = None
    """Character that begins a comment line, which is no row."""
    decimal: _Character | None = None
    """Decimal separator of numbers; a dot if ``None``."""
    thousands: _Character | None = None
    """Separator between groups of three digits; none if ``None``."""
    null_values: tuple[str, ...] = ()
    """Words that mean null, in addition to the empty text."""
    time_zone: str | None = None
    """Time zone of times that name none; UTC if ``None``."""
    ambiguous_times: Moment | None = None
    """Says which instant a time means that occurs twice, as clocks are set back; ``None`` refuses it."""
    missing_times: Moment | None = None
    """Says which end of the gap replaces a time that clocks skip when they are set forward; ``None`` refuses it."""
    sheet: str | None = None
    """For a spreadsheet: the sheet that is read; ``None``: the only one."""
    record: str | None = None
    """For XML: the path from the root to the elements that are rows: ``feed/entry``."""
    layer: str | None = None
    """For a GeoPackage: the layer that is read; ``None``: the only one."""
    table: str | None = None
    """For an SQLite database: the table that is read; ``None``: the only one."""


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
"""Names of the options in manifests, with their names here."""


def read_options(schema: DataSchema | None) -> ReadOptions:
    """Returns the options of a read step with these columns. Raises Invalid."""
    return NONE if schema is None else declared_options((schema.extra or {}).get(READ, {}))


def declared_options(value: object) -> ReadOptions:
    """Decodes the attribute's value. Raises Invalid."""
    try:
        return msgspec.convert(value, ReadOptions)
    except msgspec.ValidationError as error:
        raise Invalid(
            f"options of the read step: {error}", rule=RULE, hint=f"known are {', '.join(NAMES)}; odfctl docs sources"
        ) from error


def options_of(kind: str) -> frozenset[str]:
    """Lists the options of a read step of a kind, of the format or of ours, in addition to the fields of its step."""
    allowed = _ANY | _OF_KIND.get(kind, frozenset())
    return frozenset(name for name, own in NAMES.items() if own in allowed)


def check_kind(options: ReadOptions, kind: str) -> None:
    """Raises Invalid for options that files of the step's ``kind`` have no use for."""
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
    """Sets aside records that cannot be read, up to a number and a share of the file's records; more fail the file."""

    max_rows: Annotated[int, msgspec.Meta(ge=0, le=MAX_ROWS)] = MAX_ROWS
    max_percent: Annotated[int, msgspec.Meta(ge=0, le=100)] = _HALF
    """Share of the file's records, in percent. A file without any readable record is refused even at 100."""


class _Declared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    quarantine: Quarantine


def quarantine_of(schema: DataSchema | None) -> Quarantine | None:
    """Returns the quarantine of a read step with these columns; ``None``: the file is refused. Raises Invalid."""
    return None if schema is None else declared_quarantine((schema.extra or {}).get(ON_ERROR, FAIL))


def declared_quarantine(value: object) -> Quarantine | None:
    """Decodes the attribute's value. Raises Invalid."""
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
