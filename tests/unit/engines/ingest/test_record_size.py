"""A record longer than the settings allow is refused with its place, before a parser takes several times its size."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid
from chain.model.source import ReadCsv, ReadGeoJson, ReadJson, ReadNdGeoJson, ReadNdJson
from engines.spark.ingest.parse import check_lines, parse_sources
from engines.spark.ingest.unpack import SourceFile

MOST = 1024
POINT = {"type": "Point", "coordinates": [1, 2]}


def feature(name: str) -> str:
    return json.dumps({"type": "Feature", "properties": {"a": name}, "geometry": POINT})


def collection(*names: str) -> str:
    return json.dumps({"type": "FeatureCollection", "features": ["@"]}).replace('"@"', ",\n".join(map(feature, names)))


KINDS: dict[str, tuple[Any, Any]] = {
    "csv": (ReadCsv(header=True), lambda *names: "a\n" + "".join(f"{name}\n" for name in names)),
    "csv with old line ends": (ReadCsv(header=True), lambda *names: "a\r" + "".join(f"{name}\r" for name in names)),
    "csv with quotes": (
        ReadCsv(header=True),
        lambda *names: "a,b\n" + "".join(f'"{name}\n","{name}\n"\n' for name in names),
    ),
    "csv with quotes that are plain": (
        ReadCsv(header=True),
        lambda *names: (
            "a,b\n" + "".join(f'x"y,"{name[: len(name) // 2]}\n{name[: len(name) // 2]}"\n' for name in names)
        ),
    ),
    "objects": (ReadNdJson(), lambda *names: "\n".join(json.dumps({"a": name}) for name in names)),
    "a document": (ReadJson(sub_path="x"), lambda *names: json.dumps({"x": [{"a": name} for name in names]})),
    "features": (ReadNdGeoJson(), lambda *names: "\n".join(map(feature, names))),
    "a collection": (ReadGeoJson(), collection),
}


LINES = {
    "csv": 3,
    "csv with old line ends": 1,
    "csv with quotes": 5,
    "csv with quotes that are plain": 4,
    "objects": 2,
    "a document": 1,
    "features": 2,
    "a collection": 2,
}
"""Where the second record begins, or the line of it that is too long by itself."""


def no_session() -> Any:
    raise AssertionError("a Spark session was opened")


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_that_is_too_long_is_refused_by_its_place(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, text = KINDS[kind]
    path = tmp_path / "source"

    def parts(*names: str) -> Any:
        path.write_text(text(*names))
        (folder := tmp_path / f"parts-{len(list(tmp_path.iterdir()))}").mkdir()
        return parse_sources(no_session, [SourceFile(path, "s", MOST)], read, folder)

    fitting = "n" * (MOST // 3)
    assert sum(parts(*[fitting] * 9).rows) == 9, "the file is longer, and its records are not"
    monkeypatch.setattr("pyarrow.csv.read_csv", no_session)
    monkeypatch.setattr("pyarrow.json.read_json", no_session)
    with pytest.raises(Invalid, match="is the most") as caught:
        parts(fitting, "n" * (2 * MOST - 100), fitting)
    assert caught.value.rule == "record-size"
    assert "ingest.record-bytes" in caught.value.hint
    assert caught.value.place == f"s:{LINES[kind]}"


@given(st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")), max_size=20), st.integers(1, 12))
def test_lines_are_found_as_by_looking_at_each(lines: list[bytes], most: int) -> None:
    text = b"\n".join(lines)
    too_long = [number for number, line in enumerate(lines, 1) if len(line) > most]
    with pytest.raises(Invalid) if too_long else contextlib.nullcontext() as caught:
        check_lines(text, most, "s")
    assert caught is None or caught.value.place == f"s:{too_long[0]}"
