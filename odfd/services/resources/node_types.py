"""Defines the types of resources that the node makes of itself, Engine and Node, from its settings. Pure."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, Final

import msgspec

from chain.ids import KeyDid
from chain.instant import Instant
from chain.model.wire import U32, Scalar
from odfd.resources import registry
from odfd.resources.manifest import describe
from odfd.resources.resource import Resource
from odfd.resources.status import ResourceStatus
from odfd.resources.types import ResourceType

ENGINE: Final = "Engine"
NODE: Final = "Node"
ITSELF: Final = "the node itself"


class EngineKind(Enum):
    """An engine that a node may have."""

    SPARK = "Spark"
    DUCKDB = "DuckDB"


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The settings of an engine."""

    kind: Annotated[EngineKind, Scalar("int32"), describe("Spark runs transforms; DuckDB answers queries.")]
    memory_mib: Annotated[U32, describe("Memory of a process: engine.heap-mib, query.memory-mib.")]
    processes: Annotated[U32, describe("Processes at once: engine.max-processes, query.readers.")]
    isolation: Annotated[str, describe("Isolation of Spark: engine.isolation.")] | None = None
    sandbox: Annotated[str, describe("Weakest accepted sandbox of Spark: engine.sandbox.")] | None = None
    master: Annotated[str, describe("Spark cluster: engine.master.")] | None = None


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that describe the node to people."""

    name: Annotated[str, describe("The setting node.name.")] | None = None
    contact: Annotated[str, describe("The setting node.contact.")] | None = None
    about: Annotated[str, describe("The setting node.about.")] | None = None


def live_id(*parts: str) -> str:
    """Returns an id for a resource that is not stored: always the same for the same parts, and no other's."""
    digest = hashlib.sha256("\n".join(parts).encode()).digest()
    return str(uuid.UUID(bytes=digest[:16], version=4))


def live_resource(
    type_: str,
    name: str,
    id_: str,
    spec: msgspec.Struct | Mapping[str, Any],
    status: ResourceStatus,
    since: Instant,
    stands_for: str | None = None,
) -> Resource:
    """Returns a resource that the node shows but does not store.

    ``stands_for``: as that of a manifest, which may declare it in its place; until then its generation is 0.
    """
    plain = {key: value for key, value in msgspec.to_builtins(spec).items() if value is not None}
    return Resource(
        id=id_,
        type=type_,
        name=name,
        did=stands_for,
        spec=plain,
        status=status,
        created_at=since,
        updated_at=since,
        generation=1 if stands_for is None else 0,
    )


ENGINE_TYPE: Final = ResourceType(
    names=registry.ENGINE, spec=EngineSpec,
    about="An engine of this node: spark runs transforms, duckdb answers queries.",
    is_derived=True, made_by=ITSELF,
    instead="set [engine] (spark) or [query] (duckdb) in the settings (odfd config show), then restart the node",
)  # fmt: skip

NODE_TYPE: Final = ResourceType(
    names=registry.NODE, spec=NodeSpec,
    about="This node: its name, ids, addresses and version.", is_derived=True, made_by=ITSELF,
    instead="set [node], [p2p], [http], [flight] or [api] in the settings (odfd config show), then restart the node",
)  # fmt: skip


def ready_resource(node: KeyDid, since: Instant, type_: str, name: str, did: str, spec: msgspec.Struct) -> Resource:
    """Returns one that stands for ``did`` and is always ready, of the node whose key is ``node``."""
    status = ResourceStatus(phase="Ready")
    return live_resource(type_, name, live_id(str(node), type_, did), spec, status, since, did)
