"""A start tells how the run before it ended, and whether there was one."""

from __future__ import annotations

from pathlib import Path

import pytest

from odfd.store.directory import open_state_directory


@pytest.mark.slow
def test_a_first_start_follows_no_end(tmp_path: Path) -> None:
    with open_state_directory(tmp_path / "state") as home:
        assert str(home.recovery) == "none: this is the first start"
    with open_state_directory(tmp_path / "state") as home:
        assert str(home.recovery) == "the node was stopped in order"
