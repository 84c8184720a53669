"""Shows the node and its engines as resources: their settings, and their present state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, Final

from chain.instant import Instant
from config.model import Settings
from engines.query.installed import why_no_sql
from odfd.api.resources.node_types import (
    ENGINE,
    NODE,
    EngineKind,
    EngineSpec,
    NodeSpec,
    live_id,
    live_resource,
    live_status,
)
from odfd.control import wire
from odfd.resources.resource import Resource
from odfd.resources.status import Phase

SPARK: Final = "spark"
DUCKDB: Final = "duckdb"
_PHASES: Final[dict[str, Phase]] = {"starting": "Reconciling", "failed": "Failed", "not-installed": "Failed"}
"""Phases by the state of an engine that is not ready."""
UNNAMED: Final = "node"
"""The name of the resource that stands for the node."""


class OwnResources:
    """Makes the resources that describe the node itself. Used in the event loop."""

    def __init__(
        self,
        settings: Settings,
        node: str,
        since: Instant,
        spark: Callable[[], wire.EngineView],
        duckdb: Callable[[], str | None],
        addresses: Callable[[], dict[str, Any]],
    ) -> None:
        """``node``: its did. ``duckdb`` returns the sandbox of queries, which is known from the first query on.

        ``addresses`` returns the rest of the node's status: its ids and addresses.
        """
        self._settings, self._node, self._since = settings, node, since
        self._spark, self._duckdb, self._addresses = spark, duckdb, addresses

    def nodes(self) -> Sequence[Resource]:
        """Returns the resource of the node itself."""
        said = self._settings.node
        spec = NodeSpec(name=said.name or None, contact=said.contact or None, about=said.about or None)
        value = {"nodeId": self._node, **self._addresses()}
        return [self._made(NODE, UNNAMED, spec, value)]

    def engines(self) -> Sequence[Resource]:
        """Returns the resources of the engines, by name."""
        asked, said, view = self._settings.query, self._settings.engine, self._spark()
        queries = EngineSpec(kind=EngineKind.DUCKDB, memory_mib=asked.memory_mib, processes=asked.readers)
        transforms = EngineSpec(
            kind=EngineKind.SPARK, memory_mib=said.heap_mib, isolation=said.isolation, sandbox=said.sandbox,
            processes=said.max_processes if said.isolation == "dataset" else 1, master=said.master or None,
        )  # fmt: skip
        absent = why_no_sql()
        identity = {"version": None if absent else version(DUCKDB), "sandbox": self._duckdb()}
        missing = ("engine-not-installed", absent.hint) if absent else ("", "")
        at_work = {"engine": view.name, "digest": view.digest, "sandbox": view.sandbox, "state": view.state}
        phase, problem = _PHASES.get(view.state, "Ready"), (f"engine-{view.state}", view.message)
        return [
            self._made(ENGINE, DUCKDB, queries, identity, "Failed" if absent else "Ready", missing),
            self._made(ENGINE, SPARK, transforms, at_work, phase, problem if phase == "Failed" else ("", "")),
        ]

    def _made(
        self,
        type_: str,
        name: str,
        spec: EngineSpec | NodeSpec,
        value: dict[str, Any],
        phase: Phase = "Ready",
        problem: tuple[str, str] = ("", ""),
    ) -> Resource:
        told = {key: each for key, each in value.items() if each is not None}
        status = live_status((f"{type_}State", told), self._since, phase, problem)
        return live_resource(type_, name, live_id(self._node, type_, name), spec, status, self._since)
