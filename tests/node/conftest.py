"""Nodes in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.sandbox.base import SandboxLevel
from engines.sandbox.probe import SandboxChoice, choose
from odfd.services.execution import options
from worlds.comparing import compared_apart, compared_here
from worlds.node_world import World
from worlds.one_zygote import one_zygote

__all__ = ["compared_apart", "compared_here"]


@pytest.fixture(scope="session", autouse=True)
def one_trial() -> Iterator[None]:
    """Nodes here share what was found of each level of isolation: a trial takes and frees hundreds of megabytes, and
    each node would make two. ``tests/contract/engines`` and ``tests/e2e`` have trials of their own."""
    found: dict[SandboxLevel, SandboxChoice] = {}

    async def once(minimum: SandboxLevel) -> SandboxChoice:
        if minimum not in found:
            found[minimum] = await choose(minimum)
        return found[minimum]

    with pytest.MonkeyPatch.context() as patch, one_zygote():
        patch.setattr(options, "choose", once)
        yield


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()
