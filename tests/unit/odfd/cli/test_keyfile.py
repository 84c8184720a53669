"""The file that a dataset's key is kept in away from the node."""

from __future__ import annotations

from pathlib import Path

import pytest

from chain.errors import Environment
from chain.statements.keys import SigningKey
from odfd.cli.offline.keyfile import KeyFile
from worlds.full_disk import room_for


@pytest.mark.parametrize("room", range(65))
def test_a_full_disk_leaves_no_part_of_a_key(tmp_path: Path, room: int) -> None:
    seed, path = b"k" * 32, tmp_path / "offline.key"
    with room_for(room), pytest.raises(Environment):
        KeyFile(str(path)).write(seed.hex())
    assert not path.exists()
    KeyFile(str(path)).write(seed.hex())
    assert KeyFile(str(path)).dataset() == str(SigningKey(seed).dataset_id)
