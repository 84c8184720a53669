"""Makes the parts that answer queries: of the node's owner, and of others over what policy serves."""

from __future__ import annotations

from collections.abc import Callable

from chain.ids import DatasetId
from engines.query.reader import QueryProcesses
from odfd.api.public_queries import PublicQueries
from odfd.api.queries import QueryService
from odfd.queries.planning import Planner
from odfd.state.damage import DamageRegistry
from odfd.state.directory import StateDirectory


def queries_of(
    home: StateDirectory,
    planner: Planner,
    processes: QueryProcesses,
    damage: DamageRegistry,
    served: Callable[[DatasetId], int],
) -> tuple[QueryService, PublicQueries]:
    """Both share processes, and what is known of slices."""
    queries = QueryService(home, planner, processes, damage)
    return queries, PublicQueries(home, queries, served, processes.limits.most)
