"""Values about the node: status, engines, probes of the doctor, long operations, flows and events."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from odfd.control.wire.value import Problem, Request, Value


class EngineProcess(Value, frozen=True, kw_only=True):
    """A process of the engine that takes requests now."""

    pid: int
    """On the node's machine, of the outermost: a sandbox has more."""
    dataset: str | None = None
    """``did:odf:…`` of the only one that it works for; ``None``: any."""
    name: str | None = None
    """Of that dataset on this node, or the beginning of its id."""
    state: Literal["idle", "busy"] = "idle"


class EngineView(Value, frozen=True, kw_only=True):
    name: str
    digest: str | None = None
    sandbox: str | None = None
    """Level in use: ``container``, ``image``, ``host`` or ``none``."""
    state: Literal["stopped", "starting", "idle", "busy", "failed", "not-installed"] = "idle"
    message: str = ""
    """Why there is none, and what to do."""
    isolation: str = "shared"
    """``shared``: datasets share a process; ``dataset``: each has one of its own; ``query``: each query."""
    processes: tuple[EngineProcess, ...] = ()


class DiskView(Value, frozen=True, kw_only=True):
    """Bytes, of the file system that holds the state directory, and of the state directory itself."""

    path: str
    total: int
    free: int
    objects: int | None = None
    database: int | None = None


class FlowCounts(Value, frozen=True, kw_only=True):
    """Counts flows."""

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
    """``did:key:…`` of the node; empty for an account."""
    version: str
    name: str = ""
    peer_id: str | None = None
    listen: tuple[str, ...] = ()
    """Multiaddrs, each with ``/p2p/<peer id>``: what another node puts after ``--bootstrap``."""
    http: tuple[str, ...] = ()
    """Public URLs of datasets, each by its name or id."""
    flight: tuple[str, ...] = ()
    """URLs at which Arrow Flight SQL is answered."""
    api: tuple[str, ...] = ()
    """URLs at which accounts ask by their tokens."""
    networks: tuple[str, ...] = ()
    peers: int = 0
    """Connected now."""
    relays: int = 0
    """By which others may come to this node."""
    reserved: int = 0
    """Peers to which others may come by this node,"""
    circuits: int = 0
    """and connections that it carries to them."""
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
    mirrors: dict[str, int] = msgspec.field(default_factory=dict)
    """Count by state."""
    account: str | None = None
    """The account that asked: all here is of datasets that it may read, and what is of the node alone is left out."""
    started_at: str | None = None
    validator_key: str | None = None
    """``did:key:…`` by which this node signs verdicts and observations; ``null``: by ``node_id``."""
    pid: int | None = None
    memory: int | None = None
    """Resident bytes of the daemon."""


class PageAddress(Value, frozen=True, kw_only=True):
    """The address of the node's page for a browser of this machine."""

    url: str
    """Has a token for one session; its first user may do what the page does."""
    seconds: int
    """Until the token is worth nothing."""


class Probe(Value, frozen=True, kw_only=True):
    """One check of ``odfctl doctor``."""

    name: str
    result: Literal["ok", "warning", "failed"]
    message: str
    hint: str = ""


class FlowView(Value, frozen=True, kw_only=True):
    """A flow, or a derived dataset that follows its inputs without one."""

    name: str
    kind: Literal["flow", "follow"]
    """``follow``: it was not declared, and has the name of its dataset."""
    target: str
    """Name of the dataset that its tasks are about."""
    tasks: tuple[str, ...] = ("Ingest",)
    """What a run does, in order: ``Ingest``, ``Verify``, ``Compaction``, ``GarbageCollection``."""
    when: str
    """Its schedule, and the datasets whose news make it run."""
    state: Literal["waiting", "running", "retrying", "paused"]
    next: str | None = None
    """When it runs next; ``None``: not before something new comes."""
    last: str | None = None
    """When its last run ended."""
    outcome: str | None = None
    """Of that: ``updated``, ``up-to-date``, ``blocked``, ``failed``, ``refused`` or ``cancelled``."""
    message: str = ""
    runs: int = 0
    failures: int = 0
    """In a row."""
    missed: int = 0
    """Times of its schedule that passed without a run, up to a thousand for each time that they did."""
    owed: int = 0
    """Past times that are still to be made up for (``backfill``)."""


class BackfillRequest(Request, frozen=True, kw_only=True):
    """A range of times of a flow's schedule, both ends included."""

    first: str = msgspec.field(name="from")
    to: str
    target: str | None = None
    """A dataset, of a flow of many; all of them."""


class BackfillView(Value, frozen=True, kw_only=True):
    """The times of a range that a flow will make up for, one run each."""

    flow: str
    times: int
    """Times that did not fire before, of all its datasets."""
    left_from: str | None = None
    """The first time for which there is no room now; ask again from there."""


class TaskRef(Value, frozen=True, kw_only=True):
    """A long operation that continues without a client."""

    id: str
    kind: str
    target: str = ""


class TaskView(Value, frozen=True, kw_only=True):
    id: str
    kind: str
    target: str = ""
    state: Literal["waiting", "running", "done", "failed", "cancelled"]
    done: int = 0
    total: int | None = None
    unit: str = ""
    """What ``done`` and ``total`` count: ``blocks``, ``bytes``, ``transforms``."""
    message: str = ""
    """What it is at now."""
    started_at: str | None = None
    finished_at: str | None = None
    result: Any = None
    """The result's own JSON, once done."""
    finding: str = ""
    """What a task that is done found wrong, or could not do for some of what it was asked for; empty: nothing."""
    fault: Problem | None = None
    declared: bool = False
    """Whether a manifest declares it; its id is the name of the resource."""


class LogLineView(Value, frozen=True, kw_only=True):
    """A line of ``odfctl logs``. One without a time and a part reports lines lost to this reader: ``values.missed``."""

    sequence: int
    """Counted from 1 since the start of the daemon."""
    event: str
    time: str = ""
    level: str = ""
    """``debug``, ``info``, ``warning``, ``error``."""
    part: str = ""
    """``odfd.mirrors``, ``p2p.driver``, …"""
    task: str = ""
    """The id of the task that it is of."""
    values: dict[str, Any] = msgspec.field(default_factory=dict)


class EventView(Value, frozen=True, kw_only=True):
    """A line of ``odfctl watch``. The kind ``lagged`` reports events lost to this reader: ``data.missed``."""

    sequence: int
    """Where to go on from. For an account a time in microseconds, which counts no events of others."""
    time: str
    kind: str
    """``dataset.appended``, ``mirror.synced``, ``verdict.mismatch``, ``task.done``, …; ``reset``: the last line that an
    account gets whose rights changed; it lists and follows anew."""
    subject: str = ""
    """The dataset, peer or task it is about."""
    message: str = ""
    data: dict[str, Any] = msgspec.field(default_factory=dict)
