"""The CSV dialect of a read step, resolved: defaults filled in, contradictions refused before a byte is read.

The format's escape character works "inside quoted values, to escape quotes"; it is therefore live only in files in
which it stands before a quote, and a path like ``C:\\new`` elsewhere keeps its backslash (spec: ReadStep.Csv).
"""

from __future__ import annotations

from typing import Final

import msgspec

from chain.errors import Invalid
from chain.model.source import ReadCsv
from engines.spark.ingest.ranges import View

_TIME_FORMATS: Final = {None, "rfc3339"}
_ENCODINGS: Final = {None, "utf8", "utf-8"}


class CsvDialect(msgspec.Struct, frozen=True, kw_only=True):
    """``escape`` is ``None`` where it has no work to do in this file."""

    separator: str = ","
    quote: str = '"'
    escape: str | None = "\\"
    header: bool = False
    null: str = ""
    infer: bool = False
    whole: bool = False
    """The file is one range and quoted values in it may hold newlines."""

    def alive_in(self, view: View) -> CsvDialect:
        """The dialect with the escape character only if ``view`` holds it before a quote."""
        if self.escape is None or self.escape == self.quote:
            return msgspec.structs.replace(self, escape=None)
        live = view.find((self.escape + self.quote).encode()) >= 0
        return self if live else msgspec.structs.replace(self, escape=None)


def csv_dialect(step: ReadCsv) -> CsvDialect:
    """Raises Invalid for an option that is not understood."""
    check_text_options(step.encoding, step.date_format, step.timestamp_format)
    return CsvDialect(
        separator=_one_character("separator", step.separator, ","),
        quote=_one_character("quote", step.quote, '"'),
        escape=_one_character("escape", step.escape, "\\"),
        header=bool(step.header),
        null=step.null_value or "",
        infer=bool(step.infer_schema),
    )


def check_text_options(encoding: str | None, date_format: str | None, timestamp_format: str | None) -> None:
    """Raises Invalid unless text is UTF-8 and times are RFC 3339."""
    if (encoding.lower() if encoding else None) not in _ENCODINGS:
        raise Invalid(f"encoding {encoding!r} is not read", rule="read-encoding", hint="convert the file to utf8")
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
