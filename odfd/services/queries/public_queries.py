"""Answers queries of other people over the datasets that policy serves.

A dataset that is not served is reported as absent, and so is the part that is not served of a dataset served in part.
A reader with a valid token is answered as the node's owner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Literal

from chain.errors import Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.state import ChainState, load_state
from chain.statements.keys import SigningKey
from engines.query.requests import RowSelection
from odfd.control import wire
from odfd.queries.askers import OWNER, Asker, Bound, Crowd, QueryCaller
from odfd.queries.doors import UNPROVEN, GiveFiles, SendFrame
from odfd.queries.planning import HINT_READABLE
from odfd.services.queries.service import QueryService
from odfd.store.directory import StateDirectory


class PublicQueries:
    """Answers queries of others, for all listeners of a node. ``served``: how many blocks of a dataset are public."""

    def __init__(
        self,
        home: StateDirectory,
        queries: QueryService,
        served: Callable[[DatasetId], int],
        *,
        proves: bool = False,
    ) -> None:
        self._home, self._queries, self._served, self._proves = home, queries, served, proves

    async def answer(
        self,
        request: wire.QueryRequest,
        send: SendFrame,
        bound: Mapping[str, Bound],
        rows: RowSelection,
        piped: GiveFiles | None = None,
        *,
        caller: str = "",
    ) -> None:
        """Sends frames, as ``QueryService.answer``. ``caller``: a stranger's block of addresses, if it is known.

        Raises Refused for a proof: this node signs answers only for its owner.
        """
        check_public(request)
        asker = Asker(served=self._served, bound=bound, caller=QueryCaller(Crowd.STRANGERS, caller))
        await self._queries.answer(request, send, asker, rows, piped)

    def key(self) -> SigningKey:
        """Returns the key that signs answers for others. Raises Refused."""
        if not self._proves:
            raise Refused("this node proves no answers to others", rule=UNPROVEN, hint="its owner sets http.prove")
        return self._home.keys.node_key()

    def lacks(self, bound: Bound) -> Literal["dataset", "block", ""]:
        """Returns which part of ``bound`` is not public here. Called from worker threads. Raises Environment."""
        with self._home.catalog() as catalog:
            entry = catalog.find(bound.dataset)
        size = 0 if entry is None else self._served(bound.dataset)
        if not size or bound.block is None:
            return "" if size else "dataset"
        with suppress(NotFound):
            if self._home.chains.chain(bound.dataset).block_by_hash(bound.block).sequence_number < size:
                return ""
        return "block"

    def states(self) -> list[tuple[str, ChainState]]:
        """Returns the states of all public datasets, by name. Called from worker threads. Raises Environment."""
        entries = sorted(self._home.entries(), key=lambda entry: entry.name)
        sizes = [(entry, size) for entry in entries if (size := self._served(entry.id))]
        return [(entry.name, load_state(self._home.chains.chain(entry.id), size)) for entry, size in sizes]

    def state(self, ref: str) -> ChainState:
        """Returns the public part of a dataset. Raises NotFound, Environment."""
        entry = None
        with suppress(Invalid), self._home.catalog() as catalog:
            entry = catalog.look(ref)
        size = 0 if entry is None else self._served(entry.id)
        if entry is None or not size:
            raise _nothing(ref)
        return load_state(self._home.chains.chain(entry.id), size)


def check_public(request: wire.QueryRequest) -> None:
    """Raises Refused for a request that asks for a signed answer, or for the engine of transforms."""
    if request.prove:
        raise Refused("a node proves answers to its owner alone", rule=UNPROVEN, hint="odfctl sql --prove, there")
    if request.engine:
        raise Refused("engines of transforms answer a node's owner alone", rule="query-engine", hint="leave it out")


def _nothing(ref: str) -> NotFound:
    return NotFound(f"no dataset {ref[:200]!r} here", rule="query-dataset", hint=HINT_READABLE)


class ReaderQueries:
    """Answers queries of readers whose token gives them the owner's read access, and of all others."""

    def __init__(self, home: StateDirectory, queries: QueryService, public: PublicQueries) -> None:
        self._home, self._queries, self._public = home, queries, public

    async def answer(
        self,
        request: wire.QueryRequest,
        send: SendFrame,
        rows: RowSelection,
        piped: GiveFiles | None = None,
        *,
        owner: bool,
    ) -> None:
        """Sends frames, as ``QueryService.answer``. Raises Refused for a proof: a reader is not the owner."""
        check_public(request)
        if owner:
            await self._queries.answer(request, send, OWNER, rows, piped)
        else:
            await self._public.answer(request, send, {}, rows, piped)

    def states(self, *, owner: bool) -> list[tuple[str, ChainState]]:
        """Returns datasets by name, each up to the last readable block. Raises Environment."""
        if not owner:
            return self._public.states()
        entries = sorted(self._home.entries(), key=lambda entry: entry.name)
        return [(entry.name, load_state(self._home.chains.chain(entry.id))) for entry in entries]
