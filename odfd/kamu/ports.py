"""Declares the port that answers queries. ``odfd.services.queries.public_queries`` implements it, by the policy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal, Protocol, TypeAlias

from chain.state import ChainState
from chain.statements.keys import SigningKey
from engines.query.requests import RowSelection
from odfd.control import wire
from odfd.queries.askers import Bound

BUSY: Final = "query-busy"
"""Rule of the fault for a request that is refused because too many run."""
UNPROVEN: Final = "query-proof"
"""Rule of the fault for a request that asks for a proof, or to run a proven query again."""
SendFrame: TypeAlias = Callable[[bytes | memoryview], Awaitable[None]]
"""Takes a whole frame, and waits while the receiver does not read."""


class PublicAnswers(Protocol):
    """Answers queries over the data that the site serves."""

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
