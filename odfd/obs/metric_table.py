"""Declares every metric of a node: scrapes, checks and ``docs/reference/metrics.md`` are made of this table.

Names and units follow Prometheus: a unit at the end of a name, ``_total`` for values that only grow. The values of
every label are listed here or chosen by this node's own code, so that no stranger can create a series.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from odfd.obs.events import EVENT_KINDS


class MetricKind(enum.Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: MetricKind
    help: str
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Possible values of each label; ``OTHER`` replaces any that is not listed."""
    buckets: tuple[float, ...] = ()
    """For a histogram: upper bounds, without the last, which is infinite."""

    @property
    def unit(self) -> str:
        """The last word of the name, if it is a unit."""
        word = self.name.removesuffix("_total").rpartition("_")[2]
        return word if word in UNITS else ""


UNITS: Final = ("bytes", "seconds", "ratio")
OTHER: Final = "other"
TASKS: Final = (
    "advance", "alter", "apply", "backup", "compact", "correct", "evidence", "export", "gc", "import", "ingest",
    "lineage", "mirror", "prove", "publish", "pull", "replay", "reset", "verify", "watermark", OTHER,
)  # fmt: skip
LEVELS: Final = ("debug", "info", "warning", "error")
SERVERS: Final = ("control", "site", "metrics", "page")
RESPONSES: Final = ("2xx", "3xx", "4xx", "5xx")
FATES: Final = (
    "read", "appended", "corrected", "retracted", "unchanged", "conflicting", "superseded", "late", "untimed",
    "quarantined",
)  # fmt: skip
"""Names of what happened to rows, as in ``engines.contract.RowCounts``."""
WORK: Final = ("ingest", "transform")
DEPENDENCIES: Final = ("listening", "ipfs", "traces", "folders", "containers", "repositories", "volumes")
QUEUES: Final = ("announcements", "tasks", "queries", "statements", "threads", "answers")
CACHES: Final = ("dataset-views", "statements-judged", "unheld-statements", "peers-known")
STANDINGS: Final = (
    "fresh", "stale", "syncing", "refused", "unsigned", "refuted", "accused", "forked", "damaged",
)  # fmt: skip
"""States of datasets, as in ``odfd.control.wire.DatasetStanding``."""
MIRROR_STATES: Final = ("syncing", "current", "waiting", "stalled", "refused", "failed", "paused")
ENGINE_STATES: Final = ("starting", "failed", "not-installed", "stopped", "idle", "busy")
PARTS_OF_A_SECOND: Final = (0.001, 0.005, 0.025, 0.1, 0.25, 1.0, 5.0)
UP_TO_AN_HOUR: Final = (0.1, 0.5, 2.0, 10.0, 60.0, 300.0, 3600.0)

_C, _G, _H = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM

METRICS: Final = (
    # The node
    Metric("odfd_build_info", _G, "Always 1; its label is the version of the node.", {"version": ()}),
    Metric("odfd_ready", _G, "Whether all parts of the node have started and none is stopping: 1 or 0."),
    Metric("odfd_part_up", _G, "Whether a part of the node runs: 0 while it is started again after a failure, as of a "
           "network that cannot listen.", {"part": ()}),
    Metric("odfd_part_restarts_total", _C, "Failures of a part after which it was started again.", {"part": ()}),
    Metric("odfd_dependency_up", _G, "Whether something that the node depends on answered when it was tried last, at "
           "most a minute ago: its own addresses, Kubo, the collector of traces, folders, podman, repositories, "
           "volumes.",
           {"dependency": DEPENDENCIES}),
    Metric("odfd_event_loop_lag_seconds", _H, "How much later than due a timer of the event loop fired.",
           buckets=PARTS_OF_A_SECOND),
    Metric("odfd_log_lines_total", _C, "Lines of the log, by level.", {"level": LEVELS}),
    Metric("odfd_events_total", _C, "Events, by kind, as odfctl watch shows them.", {"kind": (*EVENT_KINDS, OTHER)}),
    Metric("odfd_spans_total", _C, "Spans of traces: taken by the collector of traces.endpoint, dropped because too "
           "many waited, or because it did not take them.", {"outcome": ("sent", "full", "unsent")}),
    Metric("odfd_http_responses_total", _C, "Answers over HTTP, by server and class of status.",
           {"server": SERVERS, "code": RESPONSES}),
    Metric("odfd_http_connections", _G, "Connections open to a server over HTTP.", {"server": SERVERS}),
    Metric("odfd_http_turned_away_total", _C, "Connections without a request that were closed to admit new ones.",
           {"server": SERVERS}),
    Metric("odfd_survey_age_seconds", _G, "Age of the last count of datasets and mirrors."),
    # Disk and database
    Metric("odfd_disk_free_bytes", _G, "Free on the disk of the state directory."),
    Metric("odfd_disk_size_bytes", _G, "Size of the disk of the state directory."),
    Metric("odfd_disk_reserve_bytes", _G, "Space that limits.disk-reserve-bytes keeps free: below it nothing is "
           "taken."),
    Metric("odfd_database_size_bytes", _G, "Size of the database file."),
    Metric("odfd_database_log_bytes", _G, "Size of the database's write-ahead log."),
    Metric("odfd_database_transactions_total", _C, "Transactions that changed the database."),
    Metric("odfd_read_holds", _G, "Holds of readers, which keep histories of datasets unchanged."),
    Metric("odfd_volumes", _G, "Volumes for slices, by whether they can be used.", {"state": ("ready", "failed")}),
    Metric("odfd_volume_slices_total", _C, "Slices that were moved to volumes and back.",
           {"way": ("out", "back")}),
    Metric("odfd_volume_waiting", _G, "Slices in volumes whose local file is kept because it may be in use."),
    Metric("odfd_volume_fetched_bytes_total", _C, "Bytes that were fetched from volumes that are buckets."),
    Metric("odfd_volume_cache_bytes", _G, "Bytes of buckets in the local cache."),
    Metric("odfd_staged_bytes", _G, "Bytes of incomplete downloads from web servers and IPFS."),
    # Work
    Metric("odfd_tasks", _G, "Long operations, by state.", {"state": ("waiting", "running")}),
    Metric("odfd_tasks_total", _C, "Long operations that ended, by kind and outcome.",
           {"kind": TASKS, "outcome": ("done", "failed", "cancelled")}),
    Metric("odfd_task_duration_seconds", _H, "From the start of a long operation to its end.", {"kind": TASKS},
           UP_TO_AN_HOUR),
    Metric("odfd_queue_length", _G, "Entries that wait in a queue, by queue.", {"queue": QUEUES}),
    Metric("odfd_queue_capacity", _G, "Entries that may wait in a queue before it refuses, drops or blocks.",
           {"queue": QUEUES}),
    Metric("odfd_cache_entries", _G, "Entries of a cache.", {"cache": CACHES}),
    Metric("odfd_cache_capacity", _G, "The most entries of a cache; absent for a cache that grows with datasets.",
           {"cache": ("statements-judged", "unheld-statements", "peers-known")}),
    # Datasets
    Metric("odfd_datasets", _G, "Datasets held, by state.", {"standing": STANDINGS}),
    Metric("odfd_datasets_published", _G, "Datasets that other nodes may see and copy."),
    Metric("odfd_datasets_withdrawn", _G, "Copies of datasets that their publishers withdrew."),
    Metric("odfd_datasets_blocked", _G, "Own datasets that pin an engine which is not here, so nothing is appended."),
    Metric("odfd_transactions_total", _C, "Pulls and pushes that appended blocks, by kind of work.", {"work": WORK}),
    Metric("odfd_blocks_total", _C, "Blocks that this node appended to datasets of its own.", {"work": WORK}),
    Metric("odfd_records_total", _C, "Records in those blocks.", {"work": WORK}),
    Metric("odfd_rows_total", _C, "Rows that were read, by fate; late and quarantined ones are separate.",
           {"work": WORK, "fate": FATES}),
    Metric("odfd_flows", _G, "Flows, by state.", {"state": ("waiting", "running", "failing", "paused")}),
    Metric("odfd_flow_overdue_seconds", _G, "How long the most overdue flow has been due."),
    Metric("odfd_mirrors", _G, "Mirrors, by state.", {"state": MIRROR_STATES}),
    Metric("odfd_mirror_lag_blocks", _G, "Blocks that publishers signed and mirrors lack."),
    Metric("odfd_mirror_lag_bytes", _G, "Bytes of slices that are known to be missing, of all mirrors."),
    Metric("odfd_mirror_blocks_total", _C, "Blocks of other nodes that were verified and stored."),
    Metric("odfd_source_lost_total", _C, "Offsets in accepted gaps."),
    Metric("odfd_objects_collected_total", _C, "Objects that garbage collection deleted."),
    Metric("odfd_collected_bytes_total", _C, "Bytes that garbage collection freed."),
    Metric("odfd_damage_total", _C, "Cases in which the disk held other bytes than were written."),
    # Engines and queries
    Metric("odfd_engine_state", _G, "The state that the engine is in: 1 for it, 0 for the others.",
           {"state": ENGINE_STATES}),
    Metric("odfd_engine_processes", _G, "Engine processes.", {"state": ("idle", "busy")}),
    Metric("odfd_queries_running", _G, "Queries that have a process."),
    # Trust
    Metric("odfd_verdicts_total", _C, "Transforms of other nodes that were run again here, by result.",
           {"result": ("reproduced", "mismatch", "not-reproducible-here", "put-off")}),
    Metric("odfd_statements_heard_total", _C, "Signed statements of other nodes that were new and were kept.",
           {"kind": tuple(each.removesuffix(".heard") for each in EVENT_KINDS if each.endswith(".heard"))}),
    Metric("odfd_contradictions_total", _C, "Proofs that a signer contradicted itself, and heads refused for it.",
           {"kind": ("dataset", "authority", "validator", "head")}),
    Metric("odfd_signing_journals_lost", _G, "Keys that sign nothing because their journal is lost."),
    # Peers
    Metric("odfd_peers_connected", _G, "Peers that are connected."),
    Metric("odfd_peers_blocked", _G, "Peers that an operator blocked."),
    Metric("odfd_direct", _G, "Hole punches with peers that connected through a relay; addresses "
                              "that peers named for one and "
           "that were not dialled; questions for a dial-back that were refused. Since the network was joined.",
           {"what": ("succeeded", "failed", "addresses-refused", "dial-backs-refused")}),
    Metric("odfd_relay", _G, "Relays through which others reach this node, peers that have a reservation here, and "
           "circuits that it carries for them.", {"what": ("used", "reservations", "circuits")}),
    Metric("odfd_lookup", _G, "Nodes that the lookup of holders knows and records that it keeps for others; questions "
           "of peers that asked too often and unsigned records, since the network was joined.",
           {"what": ("nodes", "records", "questions-refused", "records-forged")}),
    Metric("odfd_swarm_pieces_total", _C, "Pieces exchanged with nodes that mirror the same at once: taken from "
           "publishers and from other mirrors, offered by a peer and not given or false, and offered of own datasets.",
           {"what": ("from-publishers", "from-mirrors", "refused", "offered")}),
    Metric("odfd_swarm_bytes_total", _C, "Bytes of such pieces, taken from publishers and from other mirrors, and "
           "given of own datasets.", {"what": ("from-publishers", "from-mirrors", "given")}),
    Metric("odfd_network_received_bytes_total", _C, "Bytes received from peers, as on the wire."),
    Metric("odfd_network_sent_bytes_total", _C, "Bytes sent to peers, as on the wire."),
    Metric("odfd_gossip_dropped_total", _C, "Gossip that was not read or not passed on because of limits.",
           {"what": ("statements-unread", "statements-kept-back", "statements-unwanted", "peers-unread")}),
)  # fmt: skip
PROCESS: Final = (
    ("process_cpu_seconds_total", "counter", "CPU time of the node's own process, without its engines."),
    ("process_max_fds", "gauge", "Files that it may have open."),
    ("process_open_fds", "gauge", "Files that it has open."),
    ("process_resident_memory_bytes", "gauge", "Memory of it that is in use."),
    ("process_start_time_seconds", "gauge", "When it started, since 1970."),
    ("process_virtual_memory_bytes", "gauge", "Address space of it."),
)
"""Metrics of the process, from the client library of Prometheus."""
BY_NAME: Final = {metric.name: metric for metric in METRICS}
