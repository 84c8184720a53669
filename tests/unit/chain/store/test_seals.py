"""A row under a seal is what was written, or a fault; a flip in any of its columns is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chain.errors import Environment
from chain.store.database import Database, open_database
from chain.store.seals import ROW_DAMAGED, Sealed
from worlds.depth import share

ROOM = Sealed("notes", ("key", "size", "text", "raw"), "write it anew")
STEPS = [
    "CREATE TABLE notes (key BLOB PRIMARY KEY, size INTEGER, text TEXT, raw BLOB) STRICT, WITHOUT ROWID;",
    ROOM.step,
]
Values = tuple[bytes, int | None, str | None, bytes | None]
rows = st.tuples(
    st.binary(min_size=1, max_size=40),
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",))),
    st.none() | st.binary(max_size=200),
)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = open_database(tmp_path / "odfd.sqlite")
    opened.migrate("notes", STEPS)
    yield opened
    opened.close()


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=share(60))
@given(rows, rows)
def test_what_is_sealed_comes_back_and_nothing_else_does(database: Database, one: Values, other: Values) -> None:
    with database.write() as connection:
        connection.execute("DELETE FROM notes")
        ROOM.put(connection, *one)
        assert ROOM.one(connection, "key = ?", one[:1]) == one
        names = [name for name, a, b in zip(ROOM.columns, one, other, strict=True) if a != b]
        for name in names:
            ROOM.put(connection, *one)
            value = other[ROOM.columns.index(name)]
            connection.execute(f"UPDATE notes SET {name} = ?", (value,))
            with pytest.raises(Environment, match=r"row .* of notes is damaged") as caught:
                list(ROOM.rows(connection))
            assert (caught.value.rule, caught.value.hint) == (ROW_DAMAGED, "write it anew")
            assert len(list(ROOM.damaged(connection))) == 1
            assert ROOM.forget_damaged(connection, "TRUE", ()) == 1
            assert list(ROOM.rows(connection)) == []


def test_rows_from_before_there_were_seals_are_believed(tmp_path: Path) -> None:
    database = open_database(tmp_path / "old.sqlite")
    database.migrate("notes", STEPS[:1])
    with database.write() as connection:
        connection.execute("INSERT INTO notes VALUES (x'00', 1, 'a', NULL)")
    database.migrate("notes", STEPS)
    with database.read() as connection:
        assert list(ROOM.rows(connection)) == [(b"\0", 1, "a", None)]
        assert list(ROOM.damaged(connection)) == []
    database.close()
