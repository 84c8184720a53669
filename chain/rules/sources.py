"""Checks the sources of root datasets: one polling source or many push sources. Spec: Ingestion; RFC-011."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from chain.model.block import Block
from chain.model.defaults import same
from chain.model.events import AddPushSource, DisablePollingSource, DisablePushSource, SetPollingSource
from chain.model.source import FetchEthereumLogs
from chain.rules.rule import Rule, Violation
from chain.state import ChainState

_ANOTHER: Final = (
    "declare another dataset with the push source, and a derived dataset for the rows of both: other nodes would "
    "refuse this chain with it"
)
"""What to do instead: chains in which a push source follows are refused by every reader, so none is written."""


class OneFormOfSchema(Rule):
    """A read step declares its schema in ODF types or in DDL, not both."""

    name = "read-schema-form"
    clause = "ReadStep.schema, ReadStep.ddlSchema"
    concerns = (SetPollingSource, AddPushSource)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        if not isinstance(block.event, SetPollingSource | AddPushSource):
            return
        read = block.event.read
        if read.schema is not None and read.ddl_schema is not None:
            yield self.broken("both schema and ddlSchema are given", hint="keep one of them")


class LedgerIsNamed(Rule):
    """A source of Ethereum logs names the chain that it reads."""

    name = "ethereum-chain"
    clause = "FetchStep.EthereumLogs"
    concerns = (SetPollingSource,)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        if not isinstance(block.event, SetPollingSource):
            return
        fetch = block.event.fetch
        if isinstance(fetch, FetchEthereumLogs) and fetch.chain_id is None and fetch.node_url is None:
            yield self.broken("EthereumLogs names no chain", expected="chainId or nodeUrl")


class NoPollingBesidePush(Rule):
    """A dataset with push sources has no polling source."""

    name = "polling-beside-push"
    clause = "SetPollingSource; push sources still active"
    concerns = (SetPollingSource,)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        if state.push_sources:
            yield self.broken(
                "a polling source in a dataset that has push sources", actual=", ".join(sorted(state.push_sources))
            )


class NoPushBesidePolling(Rule):
    """A dataset that has a polling source, or had one that is disabled, has no push sources."""

    name = "push-beside-polling"
    clause = "AddPushSource; polling source still active"
    concerns = (AddPushSource,)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        if state.set_polling_source is None:
            return
        if state.polling_source is None:
            yield self.broken(
                "a push source in a dataset that had a polling source: that is disabled; the format lets none follow",
                hint=_ANOTHER,
            )
        else:
            yield self.broken("a push source in a dataset that has a polling source", hint=_ANOTHER)


class PushSourceChanges(Rule):
    """A push source declared again differs from the one in force."""

    name = "push-source-no-op"
    clause = "AddPushSource; NoOpEvent"
    concerns = (AddPushSource,)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        event = block.event
        if isinstance(event, AddPushSource) and same(state.active_push_sources.get(event.source_name), event):
            yield self.broken(
                f"push source {event.source_name!r} is identical to the one in force",
                hint="what is absent has the format's default; a source under another name may spell it out",
            )


class NoSourceAfterDisable(Rule):
    """No push source is added after a source was disabled, since the format does not define its meaning yet."""

    name = "source-after-disable"
    clause = "AddPushSource; source evolution is not fully supported"
    concerns = (AddPushSource,)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        if state.disabled_push_sources or state.polling_disabled:
            yield self.broken(
                "a push source after a source was disabled, which the format gives no meaning yet", hint=_ANOTHER
            )


class DisabledSourceExists(Rule):
    """A source that is disabled was active before."""

    name = "disable-active-source"
    clause = "DisablePushSource, DisablePollingSource"
    concerns = (DisablePushSource, DisablePollingSource)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        event = block.event
        if isinstance(event, DisablePushSource) and event.source_name not in state.active_push_sources:
            active = ", ".join(sorted(state.active_push_sources)) or "none"
            yield self.broken(f"no push source {event.source_name!r} is active", expected=active)
        if isinstance(event, DisablePollingSource) and state.polling_source is None:
            yield self.broken("no polling source is active")
