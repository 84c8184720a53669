"""Compares the engine that a chain pins with the engines that are here, by their digests; all that ask do it here.

The pin is the ``version`` of the transform in force. What is appended under it says that this engine made it, so it is
made by this engine or not at all. Without a pin, a chain says nothing of the engine: any may go on, and none is proven.
Spec: docs/spec/trust.md#pins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, Protocol

import msgspec

from chain.model.events import SetTransform
from chain.model.source import Transform
from chain.store.base import ChainReader
from chain.walk import newest_first
from engines.contract import Engine, EngineIdentity

ENGINE_CHANGED: Final = "engine-changed"
"""Rule: the engine here is not the one that the chain pins."""
MOST_PINS: Final = 16
"""Newest declarations of a transform whose pins are looked at: a stranger's chain may have any number."""
_SHOWN: Final = 19
_TRANSFORMS: Final = ("SetTransform",)


class Engines(Protocol):
    """A source of engines (``engines.provision.warm.EnginePool``)."""

    def engine(self, name: str, /) -> Engine:
        """Returns an engine by name. Raises Invalid if this node does not have it."""

    async def find_pinned(self, name: str, digest: str | None, /) -> tuple[Engine, EngineIdentity]:
        """Returns the engine of that name with a digest, or else another of that name; and what it is."""


class EngineInUse(msgspec.Struct, frozen=True):
    """The engine that works for a transform, and the one that the transform pins."""

    identity: EngineIdentity
    pin: str | None

    @property
    def is_pinned(self) -> bool:
        return self.pin == self.identity.digest

    @property
    def differs(self) -> bool:
        """Whether the transform names another engine."""
        return differs(self.pin, (self.identity.digest,))

    def __str__(self) -> str:
        return f"the transform pins the engine {short(self.pin)}, and the one here is {short(self.identity.digest)}"


class PinStretch(msgspec.Struct, frozen=True):
    """Blocks ``first … last`` that were made under one declaration of the transform."""

    first: int
    last: int
    transform: Transform

    @property
    def pin(self) -> str | None:
        return self.transform.version


def differs(pin: str | None, here: Collection[str] | None) -> bool:
    """Whether a pin names none of the engines here; false without a pin, or while these are not known (``None``)."""
    return pin is not None and here is not None and pin not in here


async def engine_for(engines: Engines, transform: Transform) -> tuple[Engine, EngineInUse]:
    """Returns the engine that a transform pins, if it is here, or else the one that a re-run can use."""
    engine, identity = await engines.find_pinned(transform.engine, transform.version)
    return engine, EngineInUse(identity, transform.version)


def pin_stretches(chain: ChainReader, size: int) -> Iterator[PinStretch]:
    """Yields the stretches of the first ``size`` blocks between declarations of the transform, newest first.

    At most ``MOST_PINS``; whoever takes fewer blocks reads fewer.
    """
    stop = size
    for count, block in enumerate(newest_first(chain, _TRANSFORMS, size)):
        if count == MOST_PINS:
            return
        assert isinstance(block.event, SetTransform)
        yield PinStretch(block.sequence_number, stop - 1, block.event.transform)
        stop = block.sequence_number


def short(digest: str | None) -> str:
    """Returns a digest for messages."""
    return "of no name" if digest is None else digest if len(digest) <= _SHOWN else f"{digest[:_SHOWN]}…"


def way(name: str) -> str:
    """Returns the command by which a dataset goes on with the engine of this node."""
    return f"odfctl engine prove {name}"
