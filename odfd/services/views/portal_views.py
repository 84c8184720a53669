"""Builds the view of a portal: its rule, and which auditors attested its rows against the private input."""

from __future__ import annotations

from contextlib import suppress

from chain.codec.arrow_schema import schema_of
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.model.portal import described, portal_rule
from chain.state import ChainState
from chain.statements.statement import FETCHED
from odfd.control import wire
from odfd.store.directory import StateDirectory
from odfd.store.ledger.observations import Observations
from odfd.trust.judgement.observation_reach import DATA


def portal_facts(home: StateDirectory, dataset: DatasetId, state: ChainState) -> wire.PortalFacts | None:
    """Returns the facts of a portal; ``None`` for another dataset, or a rule of a newer version. Blocking."""
    rule = None
    with suppress(Invalid):
        rule = None if state.schema is None else portal_rule(schema_of(state.schema))
    if rule is None:
        return None
    block = home.chains.chain(dataset).last_of(DATA)
    seen = []
    if block is not None:
        with home.database.read() as connection:
            kept = Observations(connection).at(dataset, block.sequence_number)
        seen = [each for each in kept if each.block == block.hash and each.result in FETCHED]
    same = sum(each.is_same for each in seen)
    said = rule.k_anonymity
    return wire.PortalFacts(
        rule=described(rule),
        k=None if said is None else said.k,
        quasi_identifiers=() if said is None else said.quasi_identifiers,
        input=rule.input,
        auditors=same,
        contradicted=len(seen) - same,
    )
