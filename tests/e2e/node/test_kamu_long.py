"""Chains of more than a thousand blocks go between a real kamu-cli and nodes.

``ODF_KAMU`` names the program of kamu-cli.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from worlds.kamu_program import NEEDS_KAMU, Workspace, started

pytestmark = [pytest.mark.e2e, pytest.mark.slow, NEEDS_KAMU]
FILES: Final = 1003
"""Slices, each in a block of its own: more than a node negotiates at once."""
LONG: Final = 800.0
"""Seconds for a command of kamu."""


def test_a_chain_of_over_a_thousand_blocks_goes_around(make_daemon: Callable[..., Any], tmp_path: Path) -> None:
    """From a node to kamu, from it to other nodes as they pull and it pushes, and from there to another kamu."""
    first, second, third = (started(make_daemon, name) for name in ("first", "second", "third"))
    kamu, other = (Workspace(tmp_path / name, LONG) for name in ("kamu", "other"))
    first.begin_files("cities")
    first.add_files("cities", range(FILES))
    head = first.head("cities")
    kamu.did("pull", f"{first.url}/cities", "--as", "cities")
    assert kamu.head("cities") == head
    with third.repository(kamu):
        third.daemon.ask("pull", "kamu/cities")
        assert third.head("cities") == head
    assert "one by one" not in third.daemon.told(), "they came in one message"
    assert third.holds("cities")
    kamu.log_in(second)
    kamu.did("push", "cities", "--to", f"{second.url}/cities")
    assert second.head("cities") == head
    assert second.holds("cities")
    with second.repository(other):
        second.push("cities", "kamu")
    assert other.head("cities") == head
    other.did("verify", "cities")
