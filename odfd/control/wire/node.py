"""Defines values about the node: status, settings, engines, probes, long operations, flows, events, backups."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from odfd.control.wire.value import Problem, Request, Value


class EngineProcess(Value, frozen=True, kw_only=True):
    """A process of the engine that takes requests now."""

    pid: int
    """Process id on the node's machine, of the outermost process: a sandbox has more."""
    dataset: str | None = None
    """Id of the only dataset that it works for; ``None``: any."""
    name: str | None = None
    """Name of that dataset on this node, or the beginning of its id."""
    state: Literal["idle", "busy"] = "idle"
    session: str = "ready"
    """State of Java, which only queries, transforms and some ingests need: ``stopped`` (they start it), ``starting``,
    ``ready`` or ``failed`` (the next one tries again)."""


class EngineView(Value, frozen=True, kw_only=True):
    name: str
    digest: str | None = None
    sandbox: str | None = None
    """Sandbox level in use: ``container``, ``image``, ``host`` or ``none``."""
    state: Literal["stopped", "starting", "idle", "busy", "failed", "not-installed"] = "idle"
    message: str = ""
    """Reason why there is no engine, and what to do."""
    isolation: str = "shared"
    """``shared``: datasets share a process; ``dataset``: each has one of its own; ``query``: each query."""
    processes: tuple[EngineProcess, ...] = ()


class NodeState(Value, frozen=True, kw_only=True):
    """The ids and addresses at which others reach a node, its version, and its networks."""

    node_id: str
    """``did:key:…``"""
    peer_id: str
    version: str
    listen: tuple[str, ...]
    networks: tuple[str, ...]
    http: tuple[str, ...] | None = None
    """URLs of what it serves over HTTP; ``None``: nothing."""
    flight: tuple[str, ...] | None = None
    api: tuple[str, ...] | None = None


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
    """Number of flows, and of derived datasets that follow their inputs."""
    running: int = 0
    failing: dict[str, int] = msgspec.field(default_factory=dict)
    """Flows whose last run failed, by name, with the number of failures in a row."""
    next: str | None = None
    """Name of the flow that is due first; ``None``: none is due before something new arrives."""
    next_at: str | None = None


class Status(Value, frozen=True, kw_only=True):
    node_id: str
    """``did:key:…`` of the node; empty for an account."""
    version: str
    name: str = ""
    peer_id: str | None = None
    listen: tuple[str, ...] = ()
    """Multiaddrs, each with ``/p2p/<peer id>``, as another node takes them after ``--bootstrap``."""
    http: tuple[str, ...] = ()
    """Public URLs at which datasets are served, each by its name or id."""
    flight: tuple[str, ...] = ()
    """URLs of Arrow Flight SQL."""
    api: tuple[str, ...] = ()
    """URLs of the API for accounts with tokens."""
    networks: tuple[str, ...] = ()
    peers: int = 0
    """Number of connected peers."""
    relays: int = 0
    """Number of relays through which others may reach this node."""
    reserved: int = 0
    """Number of peers that others may reach through this node."""
    circuits: int = 0
    """Number of connections that it relays to them."""
    datasets: dict[str, int] = msgspec.field(default_factory=dict)
    """Number of datasets by state."""
    published: int = 0
    """Number of datasets of which anything is announced or served to others."""
    engine: EngineView | None = None
    disk: DiskView | None = None
    flows: FlowCounts | None = None
    blocked: int = 0
    """Own datasets that pin an engine which is not here: ``odfctl engine prove``."""
    lost_journals: int = 0
    """Keys of this node that do not sign, as it is not known what they have signed: ``odfctl trust sign``."""
    tasks: int = 0
    """Number of tasks that run or wait."""
    mirrors: dict[str, int] = msgspec.field(default_factory=dict)
    """Number of mirrors by state."""
    account: str | None = None
    """Account of the caller: the answer covers datasets that it may read, and omits details of the node."""
    started_at: str | None = None
    validator_key: str | None = None
    """``did:key:…`` by which this node signs verdicts and observations; ``null``: ``node_id``."""
    troubles: dict[str, str] = msgspec.field(default_factory=dict)
    """Parts of the node that failed and do not run steadily again, with what happened."""
    pid: int | None = None
    memory: int | None = None
    """Resident memory of the daemon, in bytes."""


class PageAddress(Value, frozen=True, kw_only=True):
    """The address of the node's web UI for a browser of this machine."""

    url: str
    """URL with a token for one session; its first user may do everything that the page does."""
    seconds: int
    """Seconds until the token expires."""


class Probe(Value, frozen=True, kw_only=True):
    """One check of ``odfctl doctor``."""

    name: str
    result: Literal["ok", "warning", "failed"]
    message: str
    hint: str = ""


class FlowState(Value, frozen=True, kw_only=True):
    """The state of a Flow that is in force; of one of many datasets, of all these together."""

    when: str
    """Its schedule, and the datasets whose new data starts it."""
    state: Literal["waiting", "running", "retrying", "paused"]
    next: str | None = None
    """Time of its next run; ``None``: not before something new arrives."""
    last: str | None = None
    """Time at which its last run ended."""
    outcome: Literal["Success", "NoOp", "Failed", "Cancelled"] | None = None
    """The outcome of the last run, in the words of RFC-019."""
    recoverable: bool | None = None
    """Whether a retry of a failed run could succeed."""
    message: str = ""
    """What became of the last run; of a flow of many datasets, of the last one that failed."""
    runs: int = 0
    failures: int = 0
    """Number of failures in a row."""
    missed: int = 0
    """Scheduled times that passed without a run, counted up to a thousand each time."""
    owed: int = 0
    """Past times that are still to be run (``backfill``)."""


class FlowRunRequest(Request, frozen=True, kw_only=True):
    """Asks a flow to run."""

    target: str | None = None
    """One dataset of a flow of many; ``None``: all of them."""


class BackfillRequest(Request, frozen=True, kw_only=True):
    """A range of times of a flow's schedule, both ends included."""

    first: str = msgspec.field(name="from")
    to: str
    target: str | None = None
    """One dataset, for a flow with several; ``None``: all of them."""


class BackfillView(Value, frozen=True, kw_only=True):
    """The past times of a range that a flow will run for, one run each."""

    flow: str
    times: int
    """Times that were not run before, of all its datasets."""
    left_from: str | None = None
    """The first time for which there was no room; ask again from there."""


class TaskRef(Value, frozen=True, kw_only=True):
    """A long operation that continues without a client."""

    id: str
    kind: str
    target: str = ""


class TaskState(Value, frozen=True, kw_only=True):
    """The state of a Task."""

    kind: str
    target: str = ""
    """The names of what it is for."""
    state: Literal["waiting", "running", "done", "failed", "cancelled"]
    done: int = 0
    total: int | None = None
    unit: str = ""
    """Unit of ``done`` and ``total``: ``blocks``, ``bytes``, ``transforms``."""
    message: str = ""
    """Its current stage."""
    started_at: str | None = None
    finished_at: str | None = None
    result: Any = None
    """The result's own JSON, once done; it may be large, and is told of a task that is followed alone."""
    finding: str = ""
    """What a task that is done found wrong, or could not do for some of what it was asked for; empty: nothing."""
    fault: Problem | None = None


class LogLineView(Value, frozen=True, kw_only=True):
    """A line of ``odfctl logs``. One without a time and a part reports lines lost to this reader: ``values.missed``."""

    sequence: int
    """Number of the line since the start of the daemon, from 1."""
    event: str
    time: str = ""
    level: str = ""
    """``debug``, ``info``, ``warning``, ``error``."""
    part: str = ""
    """``odfd.mirrors``, ``p2p.driver``, …"""
    task: str = ""
    """Id of the task that the line is about; empty: none."""
    values: dict[str, Any] = msgspec.field(default_factory=dict)


class EventView(Value, frozen=True, kw_only=True):
    """A line of ``odfctl watch``. The kind ``lagged`` reports events lost to this reader: ``data.missed``.

    The kind ``bookmark`` is the first line for a reader that names a log: the number that the stream begins after, and
    ``data.log``, the log that counts it. Each start of the daemon begins another log.
    """

    sequence: int
    """Number to continue from. For an account it is a time in microseconds, which does not count events of others."""
    time: str
    kind: str
    """Kind of the event: ``dataset.appended``, ``mirror.synced``, ``verdict.mismatch``, ``task.done``, and others.

    ``reset`` is the last line for an account whose rights changed; it must list and follow anew.
    """
    subject: str = ""
    """The dataset, peer or task it is about."""
    message: str = ""
    data: dict[str, Any] = msgspec.field(default_factory=dict)


class SettingsView(Value, frozen=True, kw_only=True):
    """The settings in force."""

    toml: str
    """The settings as a file, each line with its origin; secrets are masked."""
    file: str | None = None
    """The settings file that was read; ``null``: none, only defaults, variables and flags."""


class BackupRequest(Request, frozen=True, kw_only=True):
    to: str
    """An absolute path, as the daemon sees it."""
    keep: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 7
    """Number of snapshots that stay there, this one included."""


class BackupResult(Value, frozen=True, kw_only=True):
    """Result of the task ``backup``."""

    snapshot: str
    """Folder of the snapshot."""
    objects: int
    copied: int
    """Number of objects that were not there yet."""
    bytes: int
    """Bytes of those."""
    dropped: int = 0
    """Number of older snapshots that were removed."""
    small: int = 0
    """Number of further objects, which are in the database."""
    database: int = 0
    """Bytes of the copied database."""


class CollectRequest(Request, frozen=True, kw_only=True):
    dry_run: bool = False


class CollectedObject(Value, frozen=True, kw_only=True):
    name: str
    size: int


class CollectResult(Value, frozen=True, kw_only=True):
    """The result of the task ``gc``: what was freed; in a dry run what would be."""

    objects: int
    bytes: int
    waiting: int = 0
    """Unreferenced objects that may still be read or referenced soon."""
    waiting_bytes: int = 0
    dry_run: bool = False
    listed: tuple[CollectedObject, ...] = ()
    """Some of the objects, in a dry run."""
    unlisted: int = 0
    """Number of objects that are not listed."""
    statements: int = 0
    """Number of statements dropped from the trust ledger, which need not keep them."""
    folds: int = 0
    """Number of states dropped that were kept for queries, of histories that no longer exist."""
    fold_bytes: int = 0
