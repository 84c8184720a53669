"""Columns that cannot be read as they are: named, with the file, the rule, and what to do next."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chain.errors import Invalid
from chain.model.source import ReadParquet
from engines.spark.ingest.text_columns import check_made, check_read
from worlds.reading import NAME, Read, read

STRUCTS = pa.list_(pa.struct([("a", pa.int64())]))
MAP = pa.map_(pa.string(), pa.int64())


def parquet(folder: Path, table: pa.Table, *ddl: str) -> Read:
    pq.write_table(table, folder / "made")
    return read(folder, (folder / "made").read_bytes(), ReadParquet(ddl_schema=ddl or None))


@pytest.mark.parametrize("ddl", [(), ("a BIGINT",), ("b BIGINT",)])
def test_two_columns_of_one_name(tmp_path: Path, ddl: tuple[str, ...]) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "b", "a"])
    with pytest.raises(Invalid) as told:
        parquet(tmp_path, table, *ddl)
    assert told.value.message == "2 columns are called 'a'"
    assert (told.value.rule, told.value.place) == ("read-columns", NAME)
    assert told.value.hint == "rename all but one where the file is written"


def test_two_members_of_one_name(tmp_path: Path) -> None:
    inner = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(Invalid, match=r"2 columns are called 's\.a'"):
        parquet(tmp_path, pa.Table.from_arrays([inner], names=["s"]))


@pytest.mark.parametrize(
    "kind,queried,said,hint",
    [
        (MAP, False, "a map of string to int64", "declare the other columns in the read schema, which leaves it out"),
        (MAP, True, "a map of string to int64", "declare the other columns in the read schema, which leaves it out"),
        (pa.duration("s"), False, "a duration[s]", "this one as m BIGINT: the number of its units"),
        (pa.duration("us"), True, "a duration[us]", "this one as m BIGINT: the number of its units"),
        (STRUCTS, False, "a list<", "make it a text in preprocess: to_json(m) as m"),
    ],
)
def test_types_that_no_dataset_holds(kind: pa.DataType, queried: bool, said: str, hint: str) -> None:
    with pytest.raises(Invalid) as told:
        check_read(pa.schema([("n", pa.int64()), ("m", kind)]), NAME, queried=queried)
    assert told.value.message.startswith(f"column 'm' is {said}")
    assert told.value.message.endswith(", which no dataset holds")
    assert (told.value.rule, told.value.place) == ("column-type", NAME)
    assert hint in told.value.hint


def test_what_a_query_may_read_and_make() -> None:
    check_read(pa.schema([("m", STRUCTS)]), NAME, queried=True)
    check_made(pa.schema([("m", pa.list_(pa.string())), ("s", pa.struct([("a", pa.int64())]))]))
    with pytest.raises(Invalid) as told:
        check_made(pa.schema([("m", STRUCTS)]))
    assert told.value.hint == "make it a number, or a text, in its query: to_json(m) as m"
    with pytest.raises(Invalid, match="2 columns are called 'n'") as told:
        check_made(pa.schema([("n", pa.int64()), ("n", pa.string())]))
    assert told.value.place == "preprocess"


def test_the_ways_out_work(tmp_path: Path) -> None:
    """A column that is not declared is left out, and told; a duration is the number of its units."""
    columns = {"n": pa.array([1, 2]), "m": pa.array([[("a", 1)], []], MAP), "d": pa.array([5, None], pa.duration("s"))}
    got = parquet(tmp_path, pa.table(columns), "n BIGINT", "d BIGINT")
    assert got.rows == [[1, 5], [2, None]]
    assert got.unknown == {"m": 2}
