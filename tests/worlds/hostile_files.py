"""Files of strangers made to read others, to expand, to be something else, or to occupy whoever reads them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from worlds import foreign_bytes as made

LAUGHS: Final = "".join(
    f'<!ENTITY {name} "{f"&{before};" * 10}">' for before, name in zip("abcdefghi", "bcdefghij", strict=True)
)
LAUGHING: Final = f'<!DOCTYPE x [<!ENTITY a "{"ha" * 10}">{LAUGHS}]>'
"""Ten doublings by ten: &j; is twenty thousand million letters."""
KINDS: Final = ("laughs", "a file", "a file by a parameter", "a type elsewhere", "a long text many times")
RECORD_BYTES: Final = 1 << 20
"""What a node is told of the longest record, for whom ``siege_files`` are made."""


def doctypes(secret: Path) -> dict[str, tuple[str, str]]:
    """A document type of each of ``KINDS``, and what is written for it to be expanded."""
    return {
        "laughs": (LAUGHING, "&j;"),
        "a file": (f'<!DOCTYPE x [<!ENTITY a SYSTEM "{secret.as_uri()}">]>', "&a;"),
        "a file by a parameter": (f'<!DOCTYPE x [<!ENTITY % p SYSTEM "{secret.as_uri()}"> %p;]>', "&a;"),
        "a type elsewhere": ('<!DOCTYPE x SYSTEM "http://127.0.0.1:1/x.dtd">', "&a;"),
        "a long text many times": (f'<!DOCTYPE x [<!ENTITY a "{"a" * 10_000}">]>', "&a;" * 10_000),
    }


def hostile_xml(kind: str, secret: Path, encoding: str = "utf-8", place: str = "<entry><a>{}</a></entry>") -> bytes:
    doctype, said = doctypes(secret)[kind]
    text = f'<?xml version="1.0" encoding="{encoding}"?>{doctype}<feed>{place.format(said)}</feed>'
    return text.encode(encoding)


def changed(book: bytes, change: Callable[[str], str]) -> bytes:
    """An office table with other XML in it."""
    with zipfile.ZipFile(io.BytesIO(book)) as archive:
        return made.zipped({name: change(archive.read(name).decode()) for name in archive.namelist()})


def hostile_book(kind: str, secret: Path, honest: bytes) -> bytes:
    """``honest``: an office table with SAID in a cell."""
    doctype, said = doctypes(secret)[kind]
    return changed(honest, lambda text: doctype + text.replace("SAID", said) if "SAID" in text else text)


def overlapping(count: int) -> bytes:
    """A zip whose directory names one and the same member ``count`` times."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("0", bytes(1 << 20))
        for number in range(1, count):
            entry = zipfile.ZipInfo(str(number))
            for part in ("compress_type", "CRC", "compress_size", "file_size", "header_offset", "flag_bits"):
                setattr(entry, part, getattr(archive.filelist[0], part))
            archive.filelist.append(entry)
            archive.NameToInfo[str(number)] = entry
    return out.getvalue()


def wide_header(columns: int) -> bytes:
    """Columns of CSV and one row."""
    names = ",".join(f"c{number}" for number in range(columns))
    return f"{names}\n{'1,' * (columns - 1)}1\n".encode()


@dataclass(frozen=True, slots=True)
class SiegeFile:
    """A source that nobody can read. ``read``, ``prepare``: steps of a manifest."""

    name: str
    content: bytes
    read: str
    prepare: str = "[]"


def siege_files(secret: Path) -> tuple[SiegeFile, ...]:
    """Some of each kind, for a node that takes records of ``RECORD_BYTES``."""
    book = made.xlsx({"S": [["a"], ["SAID"]]})
    bomb = "[{kind: Decompress, format: Zip}]"
    feed, sheet = "{kind: Xml, record: feed/entry}", "{kind: Spreadsheet, header: true}"
    line = b'{"a": "%s"}\n' % (b"n" * (4 * RECORD_BYTES))
    return (
        *(SiegeFile(f"entities-{at}", hostile_xml(kind, secret), feed) for at, kind in enumerate(KINDS)),
        *(SiegeFile(f"book-{at}", hostile_book(kind, secret, book), sheet) for at, kind in enumerate(KINDS)),
        SiegeFile("zip-bomb", overlapping(400), "{kind: Csv, header: true}", bomb),
        SiegeFile("wide-header", wide_header(100_000), "{kind: Csv, header: true}"),
        SiegeFile("long-line", line, "{kind: NdJson}"),
    )
