"""Nodes in one process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest
import structlog

from chain.backoff import Backoff
from engines.sandbox.base import SandboxLevel
from engines.sandbox.probe import SandboxChoice, choose
from odfd.services.execution import options
from odfd.services.network import mirror_wait, networks
from odfd.services.resources import apply, reconciler
from odfd.services.volumes import mount_check
from odfd.services.webhooks import call
from p2p.driver import replication
from p2p.machines import providers
from worlds.comparing import compared_apart, compared_here
from worlds.eventually import PATIENCE
from worlds.node_world import World
from worlds.one_zygote import Lender, one_zygote

__all__ = ["compared_apart", "compared_here"]
_LIMITS: Final = (
    (reconciler, "ATTEMPT_SECONDS"),
    (apply, "TAKE_UP_SECONDS"),
    (mount_check, "PATIENCE"),
    (call, "CALL_SECONDS"),
    (mirror_wait, "PATIENCE_SECONDS"),
    (networks, "DIAL_SECONDS"),
)
"""Limits in seconds on what a node tries again when they are over."""


class Isolation:
    """What was found of each level, and the zygote of all query processes."""

    def __init__(self) -> None:
        self.found: dict[SandboxLevel, SandboxChoice] = {}
        self.lender = Lender()


@pytest.fixture(scope="session")
def isolation() -> Iterator[Isolation]:
    made = Isolation()
    yield made
    made.lender.end()


@pytest.fixture(scope="module", autouse=True)
def one_trial(isolation: Isolation) -> Iterator[None]:
    """Nodes here share what was found of each level of isolation: a trial takes and frees a hundred megabytes, and each
    node would make two. ``tests/contract/engines`` and ``tests/e2e`` have trials of their own. Not for the session:
    tests of other folders may come in this process."""

    async def once(minimum: SandboxLevel) -> SandboxChoice:
        if minimum not in isolation.found:
            isolation.found[minimum] = await choose(minimum)
        return isolation.found[minimum]

    with pytest.MonkeyPatch.context() as patch, one_zygote(isolation.lender):
        patch.setattr(options, "choose", once)
        yield


@pytest.fixture(autouse=True)
def silent_peers() -> Iterator[None]:
    """The network tells its log nothing of what is usual: some tests read what a node prints."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    yield
    structlog.configure(**before)


@pytest.fixture(autouse=True)
def short_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers that give nothing are asked again at once: four rests of a real clock take ten seconds."""
    monkeypatch.setattr(providers, "REST", Backoff(first=0.01, most=0.1))


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes longer on a busy machine is waited for. Else a node would try it again later by its own clock, which
    stands still while a test waits. Tests of these limits set others."""
    for module, limit in _LIMITS:
        monkeypatch.setattr(module, limit, PATIENCE)


@pytest.fixture
def short_parts(monkeypatch: pytest.MonkeyPatch) -> int:
    """Objects go in parts of so many bytes, one at a time, so that a small one has many."""
    part = 4096
    shape = msgspec.structs.replace(replication.OBJECT_SHAPE, most_units=part, most_bytes=part, window=part)
    monkeypatch.setattr(replication, "OBJECT_SHAPE", shape)
    return part


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()
