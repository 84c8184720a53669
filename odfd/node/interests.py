"""Lists what rounds of anti-entropy may name to peers, beside what the ledger speaks of already."""

from __future__ import annotations

import sqlite3
from typing import Protocol

from chain.ids import DatasetId
from odfd.api.views.views import DatasetViews
from odfd.datasets.visibility import Visibility
from odfd.mirrors import mirror_spec as mirror_specs
from odfd.resources.store import Resources
from odfd.state.directory import StateDirectory
from odfd.state.effective_policy import EffectivePolicy
from odfd.trust.policy.policy import Policy


class InterestContext(Protocol):
    """What is needed of a node; ``odfd.node.parts.NodeParts`` has it."""

    home: StateDirectory
    policy: Policy
    effective_policy: EffectivePolicy
    views: DatasetViews
    visibility: Visibility


def interests_of(parts: InterestContext, connection: sqlite3.Connection) -> set[DatasetId]:
    """Datasets that are held, mirrored, witnessed, or read by what is here and public; keys of validators and
    witnesses that are listed, for proofs against them, and the key of the network's policy.

    Inputs of what is private are left out: nobody learns that they exist. Raises Environment, Invalid.
    """
    key = parts.effective_policy.key(connection)
    listed = {key for group in parts.policy.groups for key in group.keys}
    keys = {*listed, *parts.policy.witnesses.groups, *(() if key is None else (key,))}
    mirrored = (spec.id for spec in mirror_specs.all_of(Resources(connection)))
    return {
        *parts.policy.attended,
        *mirrored,
        *parts.home.chains.datasets(),
        *parts.views.readers.inputs(parts.visibility.public_of),
        *(DatasetId.from_public_key(each.public_key) for each in keys),
    }
