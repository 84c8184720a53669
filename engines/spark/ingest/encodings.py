"""Decodes text in the encoding that a read step declares to UTF-8, and guesses the encoding of other text.

A guess is never used for reading: it only appears in the message, and a person then declares it. Files that are no
text, such as an archive given as CSV, are recognised by their first bytes.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from chain.errors import Invalid
from chain.model.source import ReadCsv, ReadJson, ReadNdJson, ReadStep
from engines.spark.ingest.ranges import View, first_of
from engines.spark.ingest.unpack import CHUNK, SourceFile, Unpacking, write

RULE: Final = "read-encoding"
UTF8: Final = "utf-8"
_WINDOWS: Final = "cp1252"
"""The guess that is preferred among those that give the same text, or if few bytes are not ASCII:
most such files have it."""
_FEW: Final = 32
"""Number of non-ASCII bytes up to which statistics are meaningless."""
SAMPLE: Final = 64 << 10
"""Bytes around the first one that is not UTF-8, from which an encoding is guessed."""
_TEXTS: Final = re.compile(
    r"ascii|utf-(?:8|8-sig|(?:16|32)(?:-[bl]e)?)|iso8859-\d+|cp\d+|koi8-[rtu]|mac-\w+|big5\w*|gb\w+|hz|euc_\w+|"
    r"shift_jis\w*|iso2022_\w+|johab|tis-620|ptcp154|kz1048|hp-roman8"
)
"""Matches Python's names of encodings of text. Others of its codecs are something else."""
PARQUET: Final = "Parquet"
BEGIN: Final = 512
"""Bytes by which the kind of a file is recognised."""
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
    (b"SQLite format 3\x00", "an SQLite database", "say `read: {kind: Sqlite}`, or kind: GeoPackage"),
    (b"\xff\xfe\x00\x00", "UTF-32 text", "say `encoding: utf-32` in the read step"),
    (b"\x00\x00\xfe\xff", "UTF-32 text", "say `encoding: utf-32` in the read step"),
    (b"\xff\xfe", "UTF-16 text", "say `encoding: utf-16` in the read step"),
    (b"\xfe\xff", "UTF-16 text", "say `encoding: utf-16` in the read step"),
)
_TAR_AT: Final = 257
_MARKUP: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype\s+html|html|\?xml|head|body)\b", re.IGNORECASE)
_ODD_NULS: Final = re.compile(rb"(?:[^\x00]\x00){4}|(?:\x00[^\x00]){4}")


def codec_of(encoding: str | None) -> str:
    """Returns the name of Python's codec for an encoding. Raises Invalid for an unknown one."""
    try:
        name = codecs.lookup(encoding or UTF8).name
    except (LookupError, ValueError):
        name = ""
    if not _TEXTS.fullmatch(name):
        raise Invalid(
            f"encoding {encoding!r} is not known",
            rule=RULE,
            hint="write utf8, utf-16, latin-1, cp1252, shift_jis or another name of an encoding of text",
        )
    return UTF8 if name in ("ascii", "utf-8-sig") else name


def encoding_of(step: ReadStep) -> str | None:
    return step.encoding if isinstance(step, ReadCsv | ReadJson | ReadNdJson) else None


def to_utf8(source: SourceFile, encoding: str | None, target: Path, growth: Unpacking) -> SourceFile:
    """Converts a text to UTF-8 in ``target`` if it is not UTF-8 already. Raises Invalid with the line."""
    codec = codec_of(encoding)
    if codec == UTF8:
        return source
    write(target, _recode(source, codec), growth)
    return SourceFile(target, source.name)


def _recode(source: SourceFile, codec: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(codec)()
    lines, more = 0, True
    with source.path.open("rb") as file:
        while more:
            data = file.read(CHUNK)
            more = bool(data)
            try:
                text = decoder.decode(data, final=not more)
            except UnicodeError as error:
                raise _undecodable(error, source.name, codec, lines) from error
            lines += text.count("\n")
            yield text.encode("utf-8", "surrogatepass")


def _undecodable(error: UnicodeError, name: str, codec: str, lines: int) -> Invalid:
    what = str(error)
    if isinstance(error, UnicodeDecodeError):
        lines += error.object[: error.start].decode(codec, "replace").count("\n")
        what = f"byte {error.object[error.start]:#04x} begins no character"
    hint = "is another encoding meant, or is the file cut off?"
    return Invalid(f"not {codec}: {what}", rule=RULE, hint=hint, place=f"{name}:{lines + 1}")


def guess(data: bytes) -> str | None:
    """Guesses the encoding of text that is not UTF-8, from the context of its first invalid byte."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        around = data[max(0, error.start - SAMPLE // 2) : error.start + SAMPLE // 2]
        others = bytes(each for each in around if each > 127)
        if len(others) < _FEW and _is_letters(others):
            return _WINDOWS
        from charset_normalizer import from_bytes  # its tables are large, and few files need a guess

        found = from_bytes(around).best()
        if found is None:
            return None
        return _WINDOWS if _same(around, found.encoding, _WINDOWS) else found.encoding
    return None


def _is_letters(data: bytes) -> bool:
    try:
        return data.decode(_WINDOWS).isalpha()
    except UnicodeDecodeError:
        return False


def _same(data: bytes, one: str, other: str) -> bool:
    """Whether both encodings decode the data to the same text."""
    try:
        return data.decode(one) == data.decode(other)
    except UnicodeDecodeError:
        return False


def with_guess(fault: Invalid, sources: list[SourceFile]) -> Invalid:
    """Adds to a fault of text that is not UTF-8 the guessed encoding of its file."""
    source = next((source for source in sources if fault.place.startswith(f"{source.name}:")), None)
    if fault.rule != RULE or not fault.message.startswith("not UTF-8") or source is None:
        return fault
    found = _guess_of(source.path)
    if found is None:
        return fault
    hint = f"it looks like {found}: say `encoding: {found}` in the read step, and see with odfctl ingest --preview"
    return Invalid(fault.message, rule=fault.rule, hint=hint, place=fault.place)


def _guess_of(path: Path) -> str | None:
    """Guesses the encoding from the first part of a file that is not UTF-8."""
    decoder = codecs.getincrementaldecoder(UTF8)()
    before = b""
    with path.open("rb") as file:
        while data := file.read(CHUNK):
            try:
                decoder.decode(data)
            except UnicodeDecodeError:
                return guess(before[-SAMPLE:].partition(b"\n")[2] + data + file.read(SAMPLE))
            before = data
    return None


def found_kind(begin: bytes) -> tuple[str, str] | None:
    """Recognises the kind of a file by its first bytes; returns it with a remedy, or ``None`` for text."""
    for magic, kind, hint in _KINDS:
        if begin.startswith(magic):
            return kind, hint
    if begin[_TAR_AT:].startswith(b"ustar"):
        return "a tar archive", _BEFORE
    if _MARKUP.match(begin):
        return "HTML or XML", "an error page of the server, or a form to log in? Of XML with records say kind: Xml"
    return None


def check_text(view: View, wanted: str, place: str) -> None:
    """Raises Invalid, naming the kind of file, unless it may be text. ``wanted``: the declared format."""
    begin = bytes(view[:BEGIN])
    found = found_kind(begin)
    if found is not None:
        kind, hint = found
        raise Invalid(f"this is {kind}, and not {wanted}", rule="read-kind-of-file", hint=hint, place=place)
    nul = first_of(view, b"\x00", 0)
    if nul < 0:
        return
    line = view[:nul].count(b"\n") + 1
    if _ODD_NULS.search(bytes(view[max(0, nul - 8) : nul + 16])):
        what, hint = "UTF-16 text without a mark", "say `encoding: utf-16-le` or utf-16-be in the read step"
    else:
        what, hint = "a byte of value zero, which no text has", "was the file cut off by a crash, or never filled?"
    raise Invalid(f"{what}: this is not {wanted}", rule="read-kind-of-file", hint=hint, place=f"{place}:{line}")
