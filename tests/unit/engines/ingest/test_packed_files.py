"""Files that are packed, or in another encoding, are read for what is in them, within bounds."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chain.errors import Invalid
from chain.model.source import ReadCsv, ReadJson, ReadNdJson, ReadParquet
from engines.spark.ingest import unpack
from engines.spark.ingest.encodings import guess, with_guess
from engines.spark.ingest.unpack import SourceFile, UnpackBounds, unpack_source
from worlds.reading import NAME, read

AB = ReadCsv(header=True, ddl_schema=("a STRING, b STRING",))
ROWS = b"a,b\n1,2\n"


def zstd_frame(data: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(data, asbytes=True))


def zipped(members: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstandard": zstd_frame,
    "zip": lambda data: zipped({"a.csv": data, "__MACOSX/a.csv": b"x", "d/": b""}),
}


@pytest.mark.parametrize("packing", PACKINGS)
def test_what_is_packed_is_read_whatever_it_is_called(packing: str, tmp_path: Path) -> None:
    assert read(tmp_path, PACKINGS[packing](ROWS), AB).rows == [["1", "2"]]


@pytest.mark.parametrize("packing", ["gzip", "bzip2", "xz", "zstandard"])
def test_packings_behind_and_in_one_another(packing: str, tmp_path: Path) -> None:
    pack = PACKINGS[packing]
    assert read(tmp_path, pack(b"a,b\n") + pack(b"1,2\n") * 2, AB).rows == [["1", "2"]] * 2
    assert read(tmp_path, gzip.compress(pack(ROWS)), AB).rows == [["1", "2"]]
    with pytest.raises(Invalid) as told:
        read(tmp_path, pack(pack(pack(pack(ROWS)))), AB)
    assert told.value.rule == "unpack-layers"


def test_streams_that_fill_up_with_zeros_and_cross_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "CHUNK", 7)
    rows = b"".join(b"%d,%d\n" % (n, n) for n in range(50))
    data = lzma.compress(b"a,b\n") + bytes(8) + lzma.compress(rows)
    assert len(read(tmp_path, data, AB).rows) == 50
    assert len(read(tmp_path, bz2.compress(b"a,b\n") + bz2.compress(rows), AB).rows) == 50


@pytest.mark.parametrize("packing", PACKINGS)
def test_what_is_cut_off_is_refused(packing: str, tmp_path: Path) -> None:
    whole = PACKINGS[packing](b"a,b\n" + b"".join(b"%d,%d\n" % (n, n * n) for n in range(500)))
    with pytest.raises(Invalid, match="is not whole") as told:
        read(tmp_path, whole[: len(whole) // 2], AB)
    assert (told.value.rule, told.value.hint) == ("unpack", "is the whole file there?")


@pytest.mark.slow
@pytest.mark.parametrize("packing", PACKINGS)
def test_packed_bombs_are_refused(packing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "FREE", 1 << 16)
    bomb = tmp_path / "bomb"
    bomb.write_bytes(PACKINGS[packing](bytes(4 << 20)))
    small = UnpackBounds(size=1 << 16, ratio=1 << 30)
    for bounds, rule in [(UnpackBounds(ratio=10), "unpack-ratio"), (small, "max-source-bytes")]:
        folder = tmp_path / rule
        folder.mkdir()
        with pytest.raises(Invalid) as told:
            unpack_source(SourceFile(bomb, "bomb"), folder, bounds)
        assert told.value.rule == rule
        assert sum(path.stat().st_size for path in folder.iterdir()) <= 2 << 20


def test_a_zip_of_several_asks_which(tmp_path: Path) -> None:
    data = zipped({"a.csv": ROWS, "b.csv": ROWS, "README": b"hello"})
    with pytest.raises(Invalid) as told:
        read(tmp_path, data, AB)
    assert told.value.message == f"{NAME} holds 3 files"
    assert "members: '*.csv'" in told.value.hint
    path = tmp_path / "a.zip"
    path.write_bytes(data)
    found = unpack_source(SourceFile(path, "a.zip"), tmp_path, UnpackBounds(), "*.csv")
    assert [each.name for each in found] == ["a.zip/a.csv", "a.zip/b.csv"]
    with pytest.raises(Invalid, match=r"no file in a\.zip is called '\*\.txt'"):
        unpack_source(SourceFile(path, "a.zip"), tmp_path, UnpackBounds(), "*.txt")


def test_an_office_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="is a table of an office program") as told:
        read(tmp_path, zipped({"[Content_Types].xml": b"<a/>", "xl/workbook.xml": b"<a/>"}), AB)
    assert "kind: Spreadsheet" in told.value.hint


def test_packed_parquet_is_parquet(tmp_path: Path) -> None:
    whole = io.BytesIO()
    pq.write_table(pa.table({"a": ["x"] * 3}), whole)
    assert read(tmp_path, gzip.compress(whole.getvalue()), ReadParquet()).rows == [["x"]] * 3


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-16-be", "utf-32", "iso8859-15", "mac-roman"])
def test_a_declared_encoding_is_read(encoding: str, tmp_path: Path) -> None:
    data = "a,b\nGröße,ÄÖ\n".encode(encoding)
    step = ReadCsv(header=True, encoding=encoding, ddl_schema=AB.ddl_schema)
    assert read(tmp_path, data, step).rows == [["Größe", "ÄÖ"]]
    assert read(tmp_path, gzip.compress(data), step).rows == [["Größe", "ÄÖ"]]
    objects = '{"a": "ä"}\n'.encode(encoding)
    assert read(tmp_path, objects, ReadNdJson(encoding=encoding, ddl_schema=("a STRING",))).rows == [["ä"]]
    assert read(tmp_path, b"[" + b"]", ReadJson(encoding="utf8", ddl_schema=("a STRING",))).rows == []


def test_what_is_not_in_its_encoding_is_refused_with_its_line(tmp_path: Path) -> None:
    data = b"a,b\n" + "1,日\n".encode("shift_jis") * 2 + b"\x81\xff,1\n"
    with pytest.raises(Invalid, match="not shift_jis: byte 0x81") as told:
        read(tmp_path, data, ReadCsv(header=True, encoding="sjis", ddl_schema=AB.ddl_schema))
    assert told.value.place == f"{NAME}:4"
    for name in ("rot13", "hex", "idna", "utf-7", "unicode_escape", "nope", "a\0b"):
        with pytest.raises(Invalid, match="is not known"):
            read(tmp_path, ROWS, ReadCsv(encoding=name, ddl_schema=AB.ddl_schema))


def test_a_guess_is_told_and_not_used(tmp_path: Path) -> None:
    """Only where the text is no UTF-8."""
    words = "Der Zug fährt über Köln nach Süden, und die Größe der Straße ändert sich täglich.\n" * 20
    data = b"a\n" + words.encode("cp1252")
    path = tmp_path / "words.csv"
    path.write_bytes(data)
    with pytest.raises(Invalid, match="not UTF-8") as caught:
        read(tmp_path, data, ReadCsv(header=True, ddl_schema=("a STRING",), separator=";"))
    fault = Invalid(caught.value.message, rule=caught.value.rule, place="words.csv:2")
    told = with_guess(fault, [SourceFile(path, "words.csv")])
    found = guess(data)
    assert found is not None
    assert f"say `encoding: {found}`" in told.hint
    assert words in data.decode(found)
    assert guess(words.encode()) is None
