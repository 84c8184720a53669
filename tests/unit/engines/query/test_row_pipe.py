"""The pipe of rows, in a folder where the process of the query writes what it likes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engines.errors import EngineLost
from engines.query.reader import reading_end, row_pipe


def test_rows_go_through_a_pipe_until_its_writer_is_gone(tmp_path: Path) -> None:
    with os.fdopen(row_pipe(tmp_path / "rows"), "rb") as end:
        with (tmp_path / "rows").open("wb") as writer:
            writer.write(b"rows")
        assert end.read() == b"rows"


def test_a_pipe_that_was_replaced_leads_to_no_file_of_the_node(tmp_path: Path) -> None:
    secret, place = tmp_path / "key", tmp_path / "rows"
    secret.write_text("secret")
    for put in (os.symlink, os.link):
        put(secret, place)
        for opens in (row_pipe, reading_end):
            with pytest.raises(EngineLost, match="replaced"):
                opens(place)
        place.unlink()
    with pytest.raises(EngineLost, match="replaced"):
        reading_end(place)
