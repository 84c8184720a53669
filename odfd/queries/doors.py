"""Declares what a door is: a protocol of others by which a node answers, beside its control API.

A package adds one by an entry point of the group ``odfd.doors``, which names a subclass of ``Door``; odfd's own do the
same. A door is loaded when a setting opens it (``config.schema.opened_doors``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

from chain.state import ChainState
from chain.statements.keys import SigningKey
from config.model import Settings
from config.schema import opened_doors
from engines.query.requests import RowSelection
from engines.sandbox.probe import SandboxChoice
from odfd.control import wire
from odfd.queries.askers import Bound
from odfd.runtime.extensions import DOORS, load_extension
from odfd.runtime.http import Application
from odfd.runtime.supervision import Child, Logger

BUSY: Final = "query-busy"
"""Rule of the fault for a request that is refused because too many run."""
UNPROVEN: Final = "query-proof"
"""Rule of the fault for a request that asks for a proof, or to run a proven query again."""
SendFrame: TypeAlias = Callable[[bytes | memoryview], Awaitable[None]]
"""Takes a whole frame, and waits while the receiver does not read."""
GiveFiles: TypeAlias = Callable[[bytes, Sequence[int]], Awaitable[None]]
"""Takes a whole frame, and descriptors of the files that it lists."""


class PublicAnswers(Protocol):
    """Answers queries over the data that this node serves to others."""

    async def answer(
        self,
        request: wire.QueryRequest,
        send: SendFrame,
        bound: Mapping[str, Bound],
        rows: RowSelection,
        *,
        caller: str,
    ) -> None:
        """Sends frames (``engines.query.requests``). ``caller``: block of addresses that asks; empty: not known.

        Raises Refused if too many queries run, LimitExceeded if others wait for one that runs long, and the query's
        fault.
        """

    def key(self) -> SigningKey:
        """Returns the key that signs proofs. Raises Refused if the settings disable them."""

    def lacks(self, bound: Bound) -> Literal["dataset", "block", ""]:
        """Returns which part of ``bound`` is not public here; empty if all is. Called from worker threads."""

    def states(self) -> list[tuple[str, ChainState]]:
        """Lists all served datasets, by name. Called from worker threads. Raises Environment."""

    def state(self, ref: str) -> ChainState:
        """Returns the served part of a dataset. Called from worker threads. Raises NotFound, Environment."""


class ReaderAnswers(Protocol):
    """Answers queries of one reader. ``owner``: whether the reader has the owner's read access, or anybody's."""

    async def answer(
        self,
        request: wire.QueryRequest,
        send: SendFrame,
        rows: RowSelection,
        piped: GiveFiles | None = None,
        *,
        owner: bool,
    ) -> None:
        """Sends frames, as ``PublicAnswers.answer``. ``piped``: the files are given in place of rows."""

    def states(self, *, owner: bool) -> list[tuple[str, ChainState]]:
        """Returns the datasets with their names and states. Called from worker threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorNeeds:
    """The parts of a node that its doors are made with."""

    settings: Settings
    """Those of the start."""
    public: PublicAnswers
    readers: ReaderAnswers
    isolate: Callable[[], Awaitable[SandboxChoice]]
    """Chooses the sandbox for a process that others reach. Raises Refused if none is strong enough."""
    version: str
    logger: Logger


class Door:
    """A door: with children that serve it at addresses of its own, or with answers at the node's HTTP site."""

    urls: tuple[str, ...] = ()
    """Its own addresses, for people, while it serves."""

    def __init__(self, needs: DoorNeeds) -> None: ...

    def children(self) -> tuple[Child, ...]:
        """Returns what runs while the node runs."""
        return ()

    def wrap_site(self, site: Application) -> Application:
        """Returns the application that serves the HTTP site; ``site`` answers what is not this door's."""
        return site


def load_door(name: str) -> type[Door]:
    """Raises Refused for a door that is not installed. Blocking."""
    door: type[Door] = load_extension(DOORS, name, f"doors of kind {name}", "door-kind")
    return door


def open_doors(needs: DoorNeeds) -> Mapping[str, Door]:
    """Makes the doors that the settings open, by name. Raises Refused for one that is not installed."""
    return {name: load_door(name)(needs) for name in opened_doors(needs.settings)}
