"""What was pushed to Sources that are gone is removed at the start; what may be of one that is here is not."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from chain.instant import Instant
from odfd.resources.resource import Resource
from odfd.resources.store import ResourceStore
from odfd.store.directory import open_state_directory

NOW: Final = Instant(10**18)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_damaged_row_lets_no_push_be_taken_for_that_of_a_deleted_source(tmp_path: Path, is_damaged: bool) -> None:
    with open_state_directory(tmp_path / "state") as state:
        with state.database.write() as connection:
            here = Resource(id="here", type="Source", name="a", spec={}, created_at=NOW, updated_at=NOW)
            ResourceStore(connection).put(here, NOW)
            if is_damaged:
                connection.execute("UPDATE declarations SET name = 'b' WHERE id = 'here'")
        for source in ("here", "gone"):
            assert state.spool.add(source, b"{}", 1, NOW, None).durable
    with open_state_directory(tmp_path / "state") as state:
        kept = {source: len(state.spool.after(source, 0, 9, 99)[0]) for source in ("here", "gone")}
    assert kept == {"here": 1, "gone": int(is_damaged)}
