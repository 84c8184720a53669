"""Values about the node: status, engines, probes of the doctor."""

from __future__ import annotations

from typing import Literal

import msgspec

from odfd.control.wire.value import Value


class EngineProcess(Value, frozen=True, kw_only=True):
    """A process of the engine that takes requests now."""

    pid: int
    """On the node's machine, of the outermost: a sandbox has more."""
    dataset: str | None = None
    """``did:odf:…`` of the only one that it works for; ``None``: whoever asks."""
    name: str | None = None
    """Of that dataset on this node, or the beginning of its id."""
    state: Literal["idle", "busy"] = "idle"


class EngineView(Value, frozen=True, kw_only=True):
    name: str
    digest: str | None = None
    sandbox: str | None = None
    """Level in use: ``container``, ``image``, ``host`` or ``none``."""
    state: Literal["stopped", "starting", "idle", "busy", "failed"] = "idle"
    isolation: str = "shared"
    """``shared``: datasets share a process; ``dataset``: each has one of its own."""
    processes: tuple[EngineProcess, ...] = ()


class DiskView(Value, frozen=True, kw_only=True):
    """Bytes, of the file system that holds the state directory, and of the state directory itself."""

    path: str
    total: int
    free: int
    objects: int | None = None
    database: int | None = None


class FlowCounts(Value, frozen=True, kw_only=True):
    """What is pulled by itself."""

    flows: int = 0
    """Flows, and derived datasets that follow their inputs."""
    running: int = 0
    failing: dict[str, int] = msgspec.field(default_factory=dict)
    """By name, those whose last run failed, with the number of failures in a row."""
    next: str | None = None
    """The name of what is due first; ``None``: nothing is due before something new comes."""
    next_at: str | None = None


class Status(Value, frozen=True, kw_only=True):
    node_id: str
    """``did:key:…`` of the node."""
    version: str
    name: str = ""
    peer_id: str | None = None
    listen: tuple[str, ...] = ()
    """Multiaddrs, each with ``/p2p/<peer id>``: what another node puts after ``--bootstrap``."""
    http: tuple[str, ...] = ()
    """URLs at which datasets are given to anybody, each by its name or id."""
    flight: tuple[str, ...] = ()
    """URLs at which Arrow Flight SQL is answered."""
    networks: tuple[str, ...] = ()
    peers: int = 0
    """Connected now."""
    datasets: dict[str, int] = msgspec.field(default_factory=dict)
    """Count by state."""
    published: int = 0
    """Of them, those of which anything is said or given to others."""
    engine: EngineView | None = None
    disk: DiskView | None = None
    flows: FlowCounts | None = None
    lost_journals: int = 0
    """Keys of this node that sign nothing, as it is not known what they have said: ``odfctl trust sign``."""
    tasks: int = 0
    """Running or waiting."""
    started_at: str | None = None
    validator_key: str | None = None
    """``did:key:…`` by which this node signs verdicts and observations; ``null``: by ``node_id``."""
    pid: int | None = None
    memory: int | None = None
    """Resident bytes of the daemon."""


class Probe(Value, frozen=True, kw_only=True):
    """One thing that ``odfctl doctor`` tried."""

    name: str
    result: Literal["ok", "warning", "failed"]
    message: str
    hint: str = ""
