"""Resolves the CSV dialect of a read step: fills in defaults, refuses contradictions before a byte is read.

It is RFC 4180: quotes within quoted values are doubled. An escape character works only where the manifest declares one,
and only "inside quoted values, to escape quotes" (spec: ReadStep.Csv), so a path like ``C:\\new`` keeps its backslash.
"""

from __future__ import annotations

from typing import Final
from zoneinfo import available_timezones

import msgspec

from chain.errors import Invalid
from chain.model.read_options import ReadOptions, check_kind, read_options
from chain.model.source import ReadCsv
from engines.spark.ingest.encodings import codec_of
from engines.spark.ingest.localized_values import Spelling, check_format

_TIME_FORMATS: Final = {None, "rfc3339"}


class CsvDialect(msgspec.Struct, frozen=True, kw_only=True):
    """A dialect of CSV; ``escape``: ``None`` for none, as in the reference for an absent or ``''`` setting."""

    separator: str = ","
    quote: str = '"'
    escape: str | None = None
    header: bool = False
    null: str = ""
    words: tuple[str, ...] = ()
    """Further words that stand for no value."""
    spelling: Spelling = Spelling()
    infer: bool = False
    """Whether types are guessed: values that a number would change are then refused."""
    whole: bool = False
    """Whether the file is a single range, in which quoted values may hold newlines."""


def csv_dialect(step: ReadCsv) -> CsvDialect:
    """Resolves the dialect of a read step. Raises Invalid for an option that is not understood."""
    codec_of(step.encoding)
    options = read_options(step.schema)
    check_kind(options, "Csv")
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
        words=options.null_values,
        spelling=_spelling(step, options),
    )


def _spelling(step: ReadCsv, options: ReadOptions) -> Spelling:
    """Resolves how numbers and times are written. Raises Invalid."""
    decimal, thousands = options.decimal, options.thousands
    for name, mark in (("decimal", decimal), ("thousands", thousands)):
        if mark is not None and (mark.isalnum() or mark in '+-"\r\n'):
            raise Invalid(f"{name} {mark!r} is a part of numbers", rule="read-option", hint="write . , or '")
    if (decimal or ".") == thousands:
        raise Invalid(f"decimal and thousands are both {thousands!r}", rule="read-option", hint="say decimal: ','")
    zone = options.time_zone
    if zone is not None and zone not in available_timezones():
        raise Invalid(
            f"the time zone {zone!r} is not known", rule="read-zone", hint="write UTC or a name like Europe/Vienna"
        )
    return Spelling(
        decimal=decimal,
        thousands=thousands,
        date=check_format("dateFormat", step.date_format),
        timestamp=check_format("timestampFormat", step.timestamp_format),
        zone=zone,
        ambiguous=options.ambiguous_times or "raise",
        missing=options.missing_times or "raise",
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
