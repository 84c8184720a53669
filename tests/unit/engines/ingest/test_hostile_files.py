"""Files of strangers made to read others, to expand, or to be something else: each attack is tried on its reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chain.errors import Invalid
from engines.spark.ingest import source_files, unpack
from engines.spark.ingest.foreign.converting import convert
from engines.spark.ingest.unpack import SourceFile, UnpackBounds, unpack_source
from worlds import foreign_bytes as made
from worlds.hostile_files import KINDS, changed, hostile_book, hostile_xml, overlapping
from worlds.reading import read, read_step

SHEET, ENTRIES = read_step("kind: Spreadsheet\nheader: true"), read_step("kind: Xml\nrecord: feed/entry")
SECRET = "what only this machine knows"


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_files, "_run_process", lambda job, check: convert(job))


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(SECRET)
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("place", ["<entry><a>{}</a></entry>", '<entry a="{}"/>'])
def test_nothing_that_a_document_type_says_is_expanded(
    kind: str, encoding: str, place: str, secret: Path, tmp_path: Path
) -> None:
    with pytest.raises(Invalid, match="a document type") as caught:
        read(tmp_path, hostile_xml(kind, secret, encoding, place), ENTRIES)
    assert SECRET not in str(caught.value)


def test_entities_that_were_never_declared_and_inclusions_bring_nothing(secret: Path, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="not XML: undefined entity"):
        read(tmp_path, "<feed><entry><a>&a;</a></entry></feed>", ENTRIES)
    include = f'<x:include xmlns:x="http://www.w3.org/2001/XInclude" href="{secret.as_uri()}" parse="text"/>'
    got = read(tmp_path, f"<feed><entry><b>1</b><a>{include}</a></entry></feed>", ENTRIES)
    assert SECRET not in str(got.rows)
    assert got.rows[0][0] == "1"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("book", [made.xlsx, made.ods], ids=["xlsx", "ods"])
def test_nothing_in_an_office_table_is_expanded(
    kind: str, book: Callable[..., bytes], secret: Path, tmp_path: Path
) -> None:
    honest = book({"S": [["a"], ["SAID"]]})
    assert read(tmp_path, honest, SHEET).rows == [["SAID"]]
    hostile = hostile_book(kind, secret, honest)
    with pytest.raises(Invalid, match="not a table of an office program") as caught:
        read(tmp_path, hostile, SHEET)
    assert SECRET not in str(caught.value)


def test_a_sheet_that_says_it_is_large_takes_no_room(tmp_path: Path) -> None:
    said = '<dimension ref="A1:XFD1048576"/><sheetData>'
    hostile = changed(made.xlsx({"S": [["a"], ["x"]]}), lambda text: text.replace("<sheetData>", said))
    assert read(tmp_path, hostile, SHEET).rows == [["x"]]


@pytest.mark.slow
def test_members_that_are_one_another_count_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is refused as soon as the second name is read, or where all that comes out is too much for the file."""
    monkeypatch.setattr(unpack, "FREE", 4 << 20)
    path = tmp_path / "bomb.zip"
    path.write_bytes(overlapping(400))
    assert path.stat().st_size < 32 << 10
    (folder := tmp_path / "o").mkdir()
    with pytest.raises(Invalid) as caught:
        unpack_source(SourceFile(path, "bomb.zip"), folder, UnpackBounds(), "*")
    assert caught.value.rule in ("unpack", "unpack-ratio")
    assert sum(each.stat().st_size for each in folder.iterdir()) <= 9 << 20


def test_a_zip_within_a_zip_is_no_table(tmp_path: Path) -> None:
    inner = made.zipped({"a.csv": "a\n1\n"})
    for _ in range(3):
        inner = made.zipped({"a.zip": inner})
    with pytest.raises(Invalid, match="a zip archive") as caught:
        read(tmp_path, inner, read_step("kind: Csv\nheader: true"))
    assert caught.value.rule == "read-kind-of-file"


@pytest.mark.parametrize("name", ["../out", "/out", "a/../../out", "..\\out", "C:\\out"])
def test_a_member_is_written_nowhere_but_in_its_folder(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(made.zipped({name: "a\n1\n"}))
    (folder := tmp_path / "o").mkdir()
    (found,) = unpack_source(SourceFile(path, "a.zip"), folder, UnpackBounds())
    assert found.path.parent == folder
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.zip", "o"]
