"""Shows the node and its engines as resources: their settings, and their present state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Final, Literal

import msgspec
import trio

from chain.ids import DatasetId
from chain.instant import Instant
from config.model import Settings
from engines.query.installed import why_no_sql
from engines.query.reader import QueryProcesses
from odfd.control import wire
from odfd.resources.controller import Controller
from odfd.resources.resource import Resource
from odfd.resources.status import Phase, ResourceStatus
from odfd.runtime.subjects import Sees
from odfd.services.resources.node_types import (
    ENGINE,
    NODE,
    EngineKind,
    EngineSpec,
    NodeSpec,
    live_id,
    live_resource,
)
from odfd.store.directory import StateDirectory

SPARK: Final = "spark"
DUCKDB: Final = "duckdb"
_PHASES: Final[dict[str, Phase]] = {"starting": "Reconciling", "failed": "Failed", "not-installed": "Failed"}
"""Phases by the state of an engine that is not ready."""
UNNAMED: Final = "node"
"""The name of the resource that stands for the node."""


class OwnResources:
    """Makes the resources that describe the node itself, and tells their state. Used in the event loop."""

    def __init__(
        self,
        home: StateDirectory,
        settings: Settings,
        since: Instant,
        spark: Callable[[], wire.EngineView],
        queries: QueryProcesses,
        reached: Callable[[], wire.NodeState],
    ) -> None:
        """``spark``: returns the state of the engine of transforms; ``queries``: the processes of that of queries."""
        self._home, self._settings, self._since, self._reached = home, settings, since, reached
        self._spark, self._queries = spark, queries
        self._node = str(home.keys.node_key().did)

    async def nodes(self) -> Sequence[Resource]:
        """Returns the resource of the node itself."""
        said = self._settings.node
        spec = NodeSpec(name=said.name or None, contact=said.contact or None, about=said.about or None)
        return [self._make(NODE, UNNAMED, spec)]

    async def engines(self) -> Sequence[Resource]:
        """Returns the resources of the engines, by name."""
        asked, said = self._settings.query, self._settings.engine
        queries = EngineSpec(kind=EngineKind.DUCKDB, memory_mib=asked.memory_mib, processes=asked.readers)
        transforms = EngineSpec(
            kind=EngineKind.SPARK, memory_mib=said.heap_mib, isolation=said.isolation, sandbox=said.sandbox,
            processes=said.max_processes if said.isolation == "dataset" else 1, master=said.master or None,
        )  # fmt: skip
        spark, duckdb = self._spark(), self._duckdb()
        return [
            self._make(ENGINE, DUCKDB, queries, duckdb.state, duckdb.message),
            self._make(ENGINE, SPARK, transforms, spark.state, spark.message),
        ]

    async def node_states(self) -> Mapping[str, wire.NodeState]:
        """Returns the state of the node, by the name of its resource."""
        return {UNNAMED: self._reached()}

    async def engine_states(self) -> Mapping[str, wire.EngineView]:
        """Returns the state of each engine, by the name of its resource."""
        view = self._spark()
        named = await trio.to_thread.run_sync(self._add_names, view.processes)
        return {SPARK: msgspec.structs.replace(view, processes=named), DUCKDB: self._duckdb()}

    def _duckdb(self) -> wire.EngineView:
        if (why := why_no_sql()) is not None:
            return wire.EngineView(name=DUCKDB, state="not-installed", isolation="query", message=why.hint)
        state: Literal["busy", "idle"] = "busy" if self._queries.counts[1] else "idle"
        return wire.EngineView(
            name=f"{DUCKDB} {version(DUCKDB)}", sandbox=self._queries.sandbox, state=state, isolation="query"
        )  # fmt: skip

    def _add_names(self, processes: Sequence[wire.EngineProcess]) -> tuple[wire.EngineProcess, ...]:
        with self._home.catalog() as catalog:
            return tuple(
                msgspec.structs.replace(one, name=catalog.name_of(DatasetId.parse(one.dataset)))
                if one.dataset is not None
                else one
                for one in processes
            )

    def _make(self, type_: str, name: str, spec: EngineSpec | NodeSpec, state: str = "", message: str = "") -> Resource:
        phase = _PHASES.get(state, "Ready")
        status = ResourceStatus(phase=phase, observed_generation=1, reconciled_at=self._since)
        if phase == "Failed":
            status = msgspec.structs.replace(status, code=f"engine-{state}", message=message)
        return live_resource(type_, name, live_id(self._node, type_, name), spec, status, self._since)


class OwnController(Controller):
    """Tells the present state of the resources that the node makes of itself."""

    def __init__(self, type_: str, states: Callable[[], Awaitable[Mapping[str, wire.Value]]]) -> None:
        """``states`` returns the state of each resource, by its name."""
        self.type, self._states = type_, states

    async def states(self, resources: Sequence[wire.ResourceView], sees: Sees | None) -> Mapping[str, wire.Value]:
        found = {} if sees is not None else await self._states()
        return {resource.id: found[resource.name] for resource in resources if resource.name in found}
