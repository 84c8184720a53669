"""The CSV dialect of a read step, resolved: defaults filled in, contradictions refused before a byte is read.

It is RFC 4180: quotes within quoted values are doubled. An escape character works only where the manifest declares one,
and only "inside quoted values, to escape quotes" (spec: ReadStep.Csv), so a path like ``C:\\new`` keeps its backslash.
"""

from __future__ import annotations

from typing import Final

import msgspec

from chain.errors import Invalid
from chain.model.source import ReadCsv
from engines.spark.ingest.encodings import codec_of

_TIME_FORMATS: Final = {None, "rfc3339"}


class CsvDialect(msgspec.Struct, frozen=True, kw_only=True):
    """``escape``: ``None`` for none, as the reference has it when a manifest says nothing, or ``''``."""

    separator: str = ","
    quote: str = '"'
    escape: str | None = None
    header: bool = False
    null: str = ""
    infer: bool = False
    """Types are guessed: what a number would lose is refused."""
    whole: bool = False
    """The file is one range and quoted values in it may hold newlines."""


def csv_dialect(step: ReadCsv) -> CsvDialect:
    """Raises Invalid for an option that is not understood."""
    check_text_options(step.encoding, step.date_format, step.timestamp_format)
    separator = _one_character("separator", step.separator, ",")
    quote = _one_character("quote", step.quote, '"')
    escape = _one_character("escape", step.escape, quote)
    if separator in (quote, escape):
        raise Invalid(f"separator and quote or escape are one character: {separator!r}", rule="read-option")
    return CsvDialect(
        separator=separator,
        quote=quote,
        escape=None if escape == quote else escape,
        header=bool(step.header),
        null=step.null_value or "",
        infer=bool(step.infer_schema),
    )


def check_text_options(encoding: str | None, date_format: str | None, timestamp_format: str | None) -> None:
    """Raises Invalid unless the encoding is known, and times are RFC 3339."""
    codec_of(encoding)
    for option, value in (("dateFormat", date_format), ("timestampFormat", timestamp_format)):
        if (value.lower() if value else None) not in _TIME_FORMATS:
            raise Invalid(
                f"{option} {value!r} is not read",
                rule="read-time-format",
                hint="declare the column as String and convert it in preprocess, e.g. to_timestamp(col, 'M/d/yyyy')",
            )


def _one_character(option: str, value: str | None, default: str) -> str:
    if value is None or value == "":
        return default
    if len(value) != 1 or not value.isascii() or value in "\r\n":
        raise Invalid(f"{option} {value!r} is not a single ASCII character", rule="read-option")
    return value
