"""Puts a Source that is declared outside of a chain into the state of that chain, for one ingest. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from chain.errors import Refused
from chain.ids import DatasetId
from chain.model.defaults import same
from chain.model.events import SetPollingSource
from chain.state import ChainState
from odfd.ingest.fetch.source import FetchJob, FetchOutcome, Unchanged

Fetch: TypeAlias = Callable[[FetchJob], Awaitable[FetchOutcome]]


class GivenSource(msgspec.Struct, frozen=True, kw_only=True):
    """A Source that is declared outside of the chain, in the form of the chain's own source."""

    id: str
    dataset: DatasetId
    name: str
    """The name that the chain has for the Source: the one that it had when the dataset first took from it."""
    polled: SetPollingSource
    fetch: Fetch | None = None
    """Replaces the fetch step of ``polled``, if given."""
    keeps_raw: bool = False
    """Whether the bytes that are taken from it are kept."""

    def over(self, state: ChainState) -> ChainState:
        """Returns the state as if the chain declared the source. Raises Refused for a second source of one dataset."""
        seen = state.source_state
        own = state.polling_source is not None and not same(state.polling_source, self.polled)
        if own or state.active_push_sources or (seen is not None and seen.source_name != self.name):
            by_chain = own or state.active_push_sources
            has = "its metadata" if by_chain or seen is None else f"the source {seen.source_name}"
            raise second_source(has, self.name)
        return msgspec.structs.replace(state, set_polling_source=self.polled, polling_disabled=False)

    def with_name(self, found: FetchOutcome) -> FetchOutcome:
        """Returns the fetch's outcome with the name of the Source in its source state."""
        if isinstance(found, Unchanged) or found.state is None:
            return found
        return msgspec.structs.replace(found, state=msgspec.structs.replace(found.state, source_name=self.name))


def second_source(has: str, wanted: str) -> Refused:
    """Returns the fault for a Source of a dataset that has another. ``has``: what that is."""
    return Refused(
        f"the dataset takes its records from {has}, and not from the Source {wanted}",
        rule="second-source",
        hint="one dataset has one source: make a dataset for the other, and derive a third from both",
    )
