"""Answers what is asked over Flight: as the node's owner asks for those with a token, else as anybody."""

from __future__ import annotations

from chain.state import ChainState, load_state
from engines.query.requests import RowSelection
from odfd.api.queries.public_queries import PublicQueries, check_unproven
from odfd.api.queries.service import QueryService, SendFrame
from odfd.control import wire
from odfd.queries.planning import OWNER
from odfd.state.directory import StateDirectory


class FlightQueries:
    """Of one node."""

    def __init__(self, home: StateDirectory, queries: QueryService, public: PublicQueries) -> None:
        self._home, self._queries, self._public = home, queries, public

    async def answer(self, request: wire.QueryRequest, send: SendFrame, rows: RowSelection, *, owner: bool) -> None:
        """Frames, as ``QueryService.answer``. Raises Refused for a proof: the process that asks is no owner."""
        check_unproven(request)
        if owner:
            await self._queries.answer(request, send, OWNER, rows)
        else:
            await self._public.answer(request, send, {}, rows)

    def states(self, *, owner: bool) -> list[tuple[str, ChainState]]:
        """Datasets by name, as far as they may be read. Raises Environment."""
        if not owner:
            return self._public.states()
        with self._home.catalog() as catalog:
            entries = sorted(catalog.entries(), key=lambda entry: entry.name)
        return [(entry.name, load_state(self._home.chains.chain(entry.id))) for entry in entries]
