r"""Resolves the CSV dialect of a read step: fills in defaults, refuses contradictions before a byte is read.

It is RFC 4180: quotes within quoted values are doubled. An escape character works only where the manifest declares one,
and only "inside quoted values, to escape quotes" (spec: ReadStep.Csv), so a path like ``C:\new`` keeps its backslash.

Texts in the spelling of a country or a program are parsed to exact values, vectorised: numbers, dates, times in a zone.
Times in a declared format are rewritten in the standard form, which is then parsed as always. So days that no calendar
has are refused alike, and nothing depends on the machine's language.
"""

from __future__ import annotations

import re
from functools import cache, partial
from typing import Final, NamedTuple
from zoneinfo import available_timezones

import msgspec

from chain.errors import Invalid
from chain.libraries import pa, pc
from chain.model.read_options import ReadOptions, check_kind, read_options
from chain.model.source import ReadCsv
from engines.spark.ingest.encodings import codec_of
from engines.spark.ingest.text_columns import Misfit, convert_column, instant_type, to_dates, to_instants

RFC3339: Final = "rfc3339"
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_PARTS: Final = {
    "Y": r"(?P<Y>\d{4})",
    "m": r"(?P<m>\d{1,2})",
    "d": r"(?P<d>\d{1,2})",
    "e": r" ?(?P<d>\d{1,2})",
    "H": r"(?P<H>\d{1,2})",
    "I": r"(?P<I>\d{1,2})",
    "p": r"(?P<p>[AaPp])\.?[Mm]\.?",
    "M": r"(?P<M>\d{1,2})",
    "S": r"(?P<S>\d{1,2})",
    "f": r"(?P<f>\d{1,9})",
    "z": r"(?P<z>Z|[+-]\d{2}:?\d{2})",
    "b": r"(?P<b>[A-Za-z]{3})[a-z]*\.?",
    "B": r"(?P<b>[A-Za-z]{3})[a-z]*\.?",
    "%": "%",
}
"""Patterns for strftime's directives, without those that depend on a language or on a century."""


class Spelling(NamedTuple):
    """How a file writes numbers and times. ``None``: in the standard form."""

    decimal: str | None = None
    thousands: str | None = None
    date: str | None = None
    timestamp: str | None = None
    zone: str | None = None
    ambiguous: str = "raise"
    missing: str = "raise"

    def applies(self, kind: pa.DataType) -> bool:
        """Whether columns of this type are written in another form than the standard one."""
        if pa.types.is_timestamp(kind):
            return self.timestamp is not None or self.zone is not None
        if pa.types.is_date(kind):
            return self.date is not None
        number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        return number and (self.decimal is not None or self.thousands is not None)

    def values(self, text: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
        """Converts a column to which it ``applies``; times as ``instant_type``. Raises Misfit."""
        if pa.types.is_date(kind):
            return to_dates(_plain_times(text, self.date or "%Y-%m-%d"))
        if pa.types.is_timestamp(kind):
            plain = text if self.timestamp is None else _plain_times(text, self.timestamp)
            return (
                to_instants(plain, kind)
                if self.zone is None
                else convert_column(plain, partial(self._convert_zoned, kind))
            )
        return convert_column(text, partial(self._number, kind))

    def _number(self, kind: pa.DataType, text: pa.ChunkedArray) -> pa.ChunkedArray:
        point, group = re.escape(self.decimal or "."), re.escape(self.thousands or "")
        grouped = rf"\d{{1,3}}(?:{group}\d{{3}})+|" if group else ""
        pattern = rf"^\s*[+-]?(?:{grouped}\d+)(?:{point}\d*)?(?:[eE][+-]?\d+)?\s*$"
        if not pc.all(pc.match_substring_regex(text, pattern)).as_py() and pc.count(text).as_py():
            raise pa.ArrowInvalid("no number of this spelling")
        plain = pc.utf8_trim_whitespace(text)
        if self.thousands:
            plain = pc.replace_substring(plain, self.thousands, "")
        if self.decimal:
            plain = pc.replace_substring(plain, self.decimal, ".")
        return pc.cast(pc.utf8_ltrim(plain, characters="+"), kind)

    def _convert_zoned(self, kind: pa.DataType, text: pa.ChunkedArray) -> pa.ChunkedArray:
        """Converts times: those that state a zone keep it; the others are in ``zone``."""
        wanted = instant_type(kind)
        zoned = pc.match_substring_regex(text, r":\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d(?::?\d\d)?)\s*$")
        nothing = pa.scalar(None, pa.string())
        named = to_instants(pc.if_else(zoned, text, nothing), kind)
        naive = to_instants(pc.if_else(zoned, nothing, text), kind).cast(pa.timestamp(wanted.unit))
        local = pc.assume_timezone(naive, self.zone, ambiguous=self.ambiguous, nonexistent=self.missing)
        return pc.coalesce(named, local.cast(wanted))

    def hint(self, value: str, kind: pa.DataType) -> str:
        """Returns the remedy for an unreadable text; empty if there is nothing to add to the usual one."""
        if pa.types.is_timestamp(kind) and self.zone is not None and self._is_local(value, kind):
            return (
                f"clocks of {self.zone} show this time twice or not at all: say ambiguousTimes or missingTimes: "
                "earliest or latest in the read step"
            )
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            written = self.timestamp if pa.types.is_timestamp(kind) else self.date
            return f"the read step says that it is written as {written}" if written else ""
        return "the read step says " + " and ".join(
            f"{name}: {each!r}"
            for name, each in (("decimal", self.decimal), ("thousands", self.thousands))
            if each is not None
        )

    def _is_local(self, value: str, kind: pa.DataType) -> bool:
        try:
            self._replace(zone=None).values(pa.chunked_array([[value]], pa.string()), kind)
        except (Misfit, pa.ArrowInvalid):
            return False
        return True


def check_format(option: str, format_: str | None) -> str | None:
    """Returns a format of times as we parse it; ``None`` for RFC 3339. Raises Invalid."""
    if format_ is None or format_.casefold() == RFC3339:
        return None
    unknown = [each for each in re.findall(r"%(.?)", format_) if each not in _PARTS]
    names = [{"e": "d", "B": "b"}.get(each, each) for each in re.findall(r"%(.)", format_) if each != "%"]
    complete = {"Y", "d"} <= set(names) and bool({"m", "b"} & set(names)) and ("I" in names) == ("p" in names)
    if unknown or not complete or len(names) != len(set(names)):
        raise Invalid(
            f"{option} {format_!r} is not read",
            rule="read-time-format",
            hint="write it with %Y, %m or %b, %d, %H or %I with %p, %M, %S, %f and %z, each once, "
            "as in '%d.%m.%Y %H:%M'; or declare the column as String and convert it in preprocess",
        )
    return format_


@cache
def _pattern(format_: str) -> str:
    made = re.sub(r"%(.)|(\s+)|(.)", _part, format_, flags=re.DOTALL)
    return rf"^\s*{made}\s*$"


def _part(found: re.Match[str]) -> str:
    if found[1] is not None:
        return _PARTS[found[1]]
    return r"\s+" if found[2] is not None else re.escape(found[3])


def _plain_times(text: pa.ChunkedArray, format_: str) -> pa.ChunkedArray:
    """Rewrites times in RFC 3339. Raises Misfit."""
    return convert_column(text, partial(_as_rfc3339, format_))


def _as_rfc3339(format_: str, text: pa.ChunkedArray) -> pa.ChunkedArray:
    found = pc.extract_regex(text, _pattern(format_))
    if found.null_count != text.null_count:
        raise pa.ArrowInvalid("not in this format")
    names = {found.type.field(number).name for number in range(found.type.num_fields)}

    def part(name: str, otherwise: str = "0") -> pa.ChunkedArray:
        if name not in names:
            return pc.if_else(pc.is_valid(text), otherwise, pa.scalar(None, pa.string()))
        return pc.struct_field(found, name)

    def two(values: pa.ChunkedArray) -> pa.ChunkedArray:
        return pc.utf8_lpad(values, 2, "0")

    month = part("m") if "m" in names else _month(part("b"))
    hour = part("H") if "I" not in names else _hour(part("I"), part("p"))
    date = pc.binary_join_element_wise(part("Y"), two(month), two(part("d")), "-")
    time = pc.binary_join_element_wise(two(hour), two(part("M")), two(part("S")), ":")
    if not names & {"H", "I", "M", "S", "f", "z"}:
        return date
    return pc.binary_join_element_wise(date, "T", time, ".", part("f"), part("z", ""), "")


def _month(names: pa.ChunkedArray) -> pa.ChunkedArray:
    place = pc.index_in(pc.utf8_lower(names), value_set=pa.array(_MONTHS))
    if place.null_count != names.null_count:
        raise pa.ArrowInvalid("no month")
    return pc.cast(pc.add(place, 1), pa.string())


def _hour(hours: pa.ChunkedArray, halves: pa.ChunkedArray) -> pa.ChunkedArray:
    number = pc.cast(hours, pa.int64())
    if pc.any(pc.or_(pc.less(number, 1), pc.greater(number, 12))).as_py():
        raise pa.ArrowInvalid("no hour of twelve")
    twelve = pc.if_else(pc.equal(number, 12), 0, number)
    return pc.cast(pc.if_else(pc.equal(pc.utf8_lower(halves), "p"), pc.add(twelve, 12), twelve), pa.string())


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
