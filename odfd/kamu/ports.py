"""Declares the port that answers queries. ``odfd.api.queries.public_queries`` implements it and applies the policy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal, Protocol, TypeAlias

from chain.state import ChainState
from chain.statements.keys import SigningKey
from engines.query.requests import RowSelection
from odfd.control import wire
from odfd.queries.planning import Bound

BUSY: Final = "query-busy"
"""Rule of what is refused because too many ask."""
UNPROVEN: Final = "query-proof"
"""Rule of what is refused because it asks for a proof, or for one to be run again."""
SendFrame: TypeAlias = Callable[[bytes | memoryview], Awaitable[None]]
"""Takes a whole frame; waits while whoever asked does not read."""


class PublicAnswers(Protocol):
    """Answers questions of visitors over what the site serves, and nothing else."""

    async def answer(
        self, request: wire.QueryRequest, send: SendFrame, bound: Mapping[str, Bound], rows: RowSelection
    ) -> None:
        """Frames (``engines.query.requests``). Raises Refused when too many ask, and what is wrong."""

    def key(self) -> SigningKey:
        """That answers are proven with. Raises Refused where the settings say that none are."""

    def lacks(self, bound: Bound) -> Literal["dataset", "block", ""]:
        """What of a dataset at a block anybody may read is not there. Called from worker threads."""

    def states(self) -> list[tuple[str, ChainState]]:
        """Of all datasets that are served, by name. Called from worker threads. Raises Environment."""

    def state(self, ref: str) -> ChainState:
        """Of a dataset, as far as it is served. Called from worker threads. Raises NotFound, Environment."""
