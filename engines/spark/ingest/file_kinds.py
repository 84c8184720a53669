"""Recognises files that are no text by how they begin, such as an archive that is given as CSV."""

from __future__ import annotations

import re
from typing import Final

from chain.errors import Invalid
from engines.spark.ingest.ranges import View

PARQUET: Final = "Parquet"
BEGIN: Final = 512
"""Bytes by which a file is known."""
_UNPACK: Final = "unpack it before, or where it is polled with prepare: [{{kind: Decompress, format: {}}}]"
_BEFORE: Final = "unpack it before, or with a Pipe step"
_KINDS: Final[tuple[tuple[bytes, str, str], ...]] = (
    (b"\x1f\x8b", "gzip", _UNPACK.format("Gzip")),
    (b"PK\x03\x04", "a zip archive (or an .xlsx or .ods table)", _UNPACK.format("Zip")),
    (b"PK\x05\x06", "an empty zip archive", "look at where it comes from"),
    (b"BZh", "bzip2", _BEFORE),
    (b"\xfd7zXZ\x00", "xz", _BEFORE),
    (b"\x28\xb5\x2f\xfd", "zstandard", _BEFORE),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", _BEFORE),
    (b"PAR1", PARQUET, "say `read: {kind: Parquet}`"),
    (b"ORC", "ORC", "convert it to Parquet"),
    (b"Obj\x01", "Avro", "say `read: {kind: Avro}`"),
    (b"%PDF-", "a PDF", "find the table that it was made of"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an .xls table", "say `read: {kind: Spreadsheet}`"),
    (
        b"SQLite format 3\x00",
        "an SQLite database",
        "say `read: {kind: Sqlite}`, or kind: GeoPackage",
    ),
    (b"\xff\xfe\x00\x00", "UTF-32 text", "say `encoding: utf-32` in the read step"),
    (b"\x00\x00\xfe\xff", "UTF-32 text", "say `encoding: utf-32` in the read step"),
    (b"\xff\xfe", "UTF-16 text", "say `encoding: utf-16` in the read step"),
    (b"\xfe\xff", "UTF-16 text", "say `encoding: utf-16` in the read step"),
)
_TAR_AT: Final = 257
_MARKUP: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype\s+html|html|\?xml|head|body)\b", re.IGNORECASE)
_ODD_NULS: Final = re.compile(rb"(?:[^\x00]\x00){4}|(?:\x00[^\x00]){4}")


def found_kind(begin: bytes) -> tuple[str, str] | None:
    """What a file is that begins so, and what to do with it; ``None`` for text."""
    for magic, kind, hint in _KINDS:
        if begin.startswith(magic):
            return kind, hint
    if begin[_TAR_AT:].startswith(b"ustar"):
        return "a tar archive", _BEFORE
    if _MARKUP.match(begin):
        return "HTML or XML", "an error page of the server, or a form to log in? Of XML with records say kind: Xml"
    return None


def check_text(view: View, wanted: str, place: str) -> None:
    """Raises Invalid, saying what the file is, unless it may be text. ``wanted``: the format that was to be read."""
    begin = bytes(view[:BEGIN])
    found = found_kind(begin)
    if found is not None:
        kind, hint = found
        raise Invalid(f"this is {kind}, and not {wanted}", rule="read-kind-of-file", hint=hint, place=place)
    nul = view.find(b"\x00")
    if nul < 0:
        return
    line = view[:nul].count(b"\n") + 1
    if _ODD_NULS.search(bytes(view[max(0, nul - 8) : nul + 16])):
        what, hint = "UTF-16 text without a mark", "say `encoding: utf-16-le` or utf-16-be in the read step"
    else:
        what, hint = "a byte of value zero, which no text has", "was the file cut off by a crash, or never filled?"
    raise Invalid(f"{what}, and not {wanted}", rule="read-kind-of-file", hint=hint, place=f"{place}:{line}")
