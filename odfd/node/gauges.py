"""Reads the gauges of a node from its parts, and answers scrapes and questions about its readiness.

The cost of a scrape does not grow with the number of datasets, blocks or known peers: what would have to be counted one
by one is counted in the background, by ``odfd.services.maintenance.inventory``.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, TypeAlias

import trio

from chain.errors import Fault
from odfd.network import outbox, statement_store, unheld_statements
from odfd.node.parts import NodeParts
from odfd.obs.exposition import exposition
from odfd.obs.meter import MetricSample, labels_of
from odfd.obs.metric_table import BY_NAME, ENGINE_STATES, MIRROR_STATES, RESPONSES, SERVERS, STANDINGS, MetricKind
from odfd.obs.metrics_server import MetricsServer, Probing
from odfd.runtime.supervision import Child, Restart
from odfd.services.maintenance.inventory import Survey, Surveyor
from odfd.store.directory import DATABASE
from odfd.store.read_holds import ReadHolds
from p2p.driver.statements import MAX_QUEUE
from p2p.peers.book import MAX_PEERS

Reading: TypeAlias = tuple[str, float, Mapping[str, str]]
_NONE: Final[Mapping[str, str]] = {}


class Readings:
    """Reads the gauges of one node."""

    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts
        self.surveyor = Surveyor(
            parts.views.cache.standings, parts.scheduler, parts.flows.scheduler, parts.context.clock.now
        )

    async def scrape(self) -> bytes:
        """Returns the metrics in Prometheus's format."""
        now = [*self._in_loop()]
        return await trio.to_thread.run_sync(self._write, now)

    def _write(self, now: list[Reading]) -> bytes:
        samples = [_sample(reading) for reading in (*now, *self._of_disk())]
        pulled = frozenset(sample.metric.name for sample in samples)
        return exposition([*samples, *self._parts.context.meter.samples(pulled)])

    async def why_not_ready(self) -> dict[str, str]:
        ready = self._parts.context.readiness
        parts = "" if ready.is_ready else "the node is stopping" if ready.stopping else "the node is starting"
        down = {name: str(health) for name, health in ready.troubles().items() if health.up_since is None}
        return {"parts": parts, **await trio.to_thread.run_sync(self._collect), **down}

    def dependencies(self) -> dict[str, str]:
        return self._parts.context.readiness.dependencies

    def _collect(self) -> dict[str, str]:
        database = ""
        try:
            with self._parts.home.database.read() as connection:
                connection.execute("SELECT 1 FROM versions LIMIT 1").fetchone()
        except Fault as fault:
            database = str(fault)
        free, reserve = shutil.disk_usage(self._parts.home.directory).free, self._reserve()
        disk = "" if free >= reserve else f"{free:,} bytes are free, and limits.disk-reserve-bytes keeps {reserve:,}"
        return {"database": database, "disk": disk}

    def _reserve(self) -> int:
        return self._parts.settings.limits.disk_reserve_bytes

    def _of_disk(self) -> Iterator[Reading]:
        """Yields the gauges that read the disk; called in a worker thread, since a disk may hang."""
        home = self._parts.home
        usage = shutil.disk_usage(home.directory)
        yield "odfd_disk_free_bytes", usage.free, _NONE
        yield "odfd_disk_size_bytes", usage.total, _NONE
        yield "odfd_disk_reserve_bytes", self._reserve(), _NONE
        yield "odfd_database_size_bytes", _size(home.directory / DATABASE), _NONE
        with home.database.read() as connection:
            yield "odfd_read_holds", len(ReadHolds(connection).all(self._parts.context.clock.now())), _NONE
        yield "odfd_database_log_bytes", _size(home.directory / f"{DATABASE}-wal"), _NONE

    def _in_loop(self) -> Iterator[Reading]:
        parts, context = self._parts, self._parts.context
        yield "odfd_build_info", 1, {"version": context.version}
        yield "odfd_ready", context.readiness.is_ready, _NONE
        yield "odfd_database_transactions_total", parts.home.database.writes, _NONE
        yield "odfd_staged_bytes", parts.remotes.staging.total(), _NONE
        yield "odfd_signing_journals_lost", len(parts.journal_recovery.lost), _NONE
        for part, health in context.readiness.parts.items():
            yield "odfd_part_up", health.up_since is not None, {"part": part}
            yield "odfd_part_restarts_total", health.restarts, {"part": part}
        for dependency, trouble in context.readiness.dependencies.items():
            yield "odfd_dependency_up", not trouble, {"dependency": dependency}
        yield from self._of_volumes()
        yield from self._of_servers()
        yield from self._of_queues()
        yield from self._of_caches()
        yield from self._of_engine()
        yield from self._of_peers()
        yield from _of_survey(self.surveyor.newest)

    def _of_volumes(self) -> Iterator[Reading]:
        worker = self._parts.volumes
        failed = sum(each.fault is not None for each in worker.states.values())
        yield "odfd_volumes", len(worker.states) - failed, {"state": "ready"}
        yield "odfd_volumes", failed, {"state": "failed"}
        yield "odfd_volume_slices_total", worker.moved, {"way": "out"}
        yield "odfd_volume_slices_total", worker.returned, {"way": "back"}
        yield "odfd_volume_waiting", sum(each.waiting for each in worker.states.values()), _NONE
        yield "odfd_volume_fetched_bytes_total", worker.volumes.fetched, _NONE
        yield "odfd_volume_cache_bytes", worker.volumes.cached_bytes(), _NONE

    def _of_servers(self) -> Iterator[Reading]:
        answers, connections, turned_away = Counter[tuple[str, str]](), Counter[str](), Counter[str]()
        for server in self._parts.context.servers:
            connections[server.name] += server.connections
            turned_away[server.name] += server.turned_away
            answers.update({(server.name, code): number for code, number in server.answers.items()})
        for server_name in SERVERS:
            yield "odfd_http_connections", connections[server_name], {"server": server_name}
            yield "odfd_http_turned_away_total", turned_away[server_name], {"server": server_name}
            for code in RESPONSES:
                labels = {"server": server_name, "code": code}
                yield "odfd_http_responses_total", answers[server_name, code], labels

    def _of_queues(self) -> Iterator[Reading]:
        parts = self._parts
        bounds, (waiting, running) = parts.context.board.bounds, parts.context.board.counts
        yield "odfd_tasks", waiting, {"state": "waiting"}
        yield "odfd_tasks", running, {"state": "running"}
        processes_waiting, queries = parts.readers.counts
        yield "odfd_queries_running", queries, _NONE
        threads, figures = trio.to_thread.current_default_thread_limiter().statistics(), parts.membership.figures()
        lengths = {
            "announcements": (len(parts.outbox), outbox.WAITING),
            "tasks": (waiting, bounds.waiting),
            "queries": (parts.queries.turns.waiting + processes_waiting, None),
            "statements": (figures.judging, MAX_QUEUE),
            "threads": (threads.tasks_waiting, None),
            "answers": (figures.answering, None),
        }
        for queue, (length, capacity) in lengths.items():
            yield "odfd_queue_length", length, {"queue": queue}
            if capacity is not None:
                yield "odfd_queue_capacity", capacity, {"queue": queue}

    def _of_caches(self) -> Iterator[Reading]:
        parts = self._parts
        entries = {
            "dataset-views": (parts.views.cache.kept, None),
            "statements-judged": (parts.board.judged, statement_store.SEEN),
            "unheld-statements": (len(parts.board.unheld), unheld_statements.MAX_DATASETS),
            "peers-known": (parts.membership.figures().known, MAX_PEERS),
        }
        for cache, (count, capacity) in entries.items():
            yield "odfd_cache_entries", count, {"cache": cache}
            if capacity is not None:
                yield "odfd_cache_capacity", capacity, {"cache": cache}

    def _of_engine(self) -> Iterator[Reading]:
        view = self._parts.engine.view()
        for state in ENGINE_STATES:
            yield "odfd_engine_state", view.state == state, {"state": state}
        processes = Counter(process.state for process in view.processes)
        for busy in ("idle", "busy"):
            yield "odfd_engine_processes", processes[busy], {"state": busy}

    def _of_peers(self) -> Iterator[Reading]:
        membership = self._parts.membership
        figures, traffic = membership.figures(), membership.traffic
        yield "odfd_peers_connected", figures.connected, _NONE
        yield "odfd_peers_blocked", membership.blocked, _NONE
        yield "odfd_relay", figures.relays, {"what": "used"}
        yield "odfd_relay", figures.reserved, {"what": "reservations"}
        yield "odfd_relay", figures.circuits, {"what": "circuits"}
        yield "odfd_direct", figures.punched, {"what": "succeeded"}
        yield "odfd_direct", figures.unpunched, {"what": "failed"}
        yield "odfd_direct", figures.not_dialled, {"what": "addresses-refused"}
        yield "odfd_direct", figures.dial_backs_refused, {"what": "dial-backs-refused"}
        yield "odfd_lookup", figures.lookup_nodes, {"what": "nodes"}
        yield "odfd_lookup", figures.lookup_records, {"what": "records"}
        yield "odfd_lookup", figures.lookup_refused, {"what": "questions-refused"}
        yield "odfd_lookup", figures.lookup_forged, {"what": "records-forged"}
        counts = self._parts.arriving.counts
        yield "odfd_swarm_pieces_total", counts.from_publisher, {"what": "from-publishers"}
        yield "odfd_swarm_pieces_total", counts.from_mirrors, {"what": "from-mirrors"}
        yield "odfd_swarm_pieces_total", counts.refused, {"what": "refused"}
        yield "odfd_swarm_pieces_total", counts.offered, {"what": "offered"}
        yield "odfd_swarm_bytes_total", counts.bytes_from_publisher, {"what": "from-publishers"}
        yield "odfd_swarm_bytes_total", counts.bytes_from_mirrors, {"what": "from-mirrors"}
        yield "odfd_swarm_bytes_total", counts.bytes_given, {"what": "given"}
        yield "odfd_network_received_bytes_total", traffic.received, _NONE
        yield "odfd_network_sent_bytes_total", traffic.sent, _NONE
        for what, number in (
            ("statements-unread", figures.unread),
            ("statements-kept-back", figures.kept_back),
            ("statements-unwanted", figures.unwanted),
            ("peers-unread", figures.peers_unread),
        ):
            yield "odfd_gossip_dropped_total", number, {"what": what}


def serve_metrics(parts: NodeParts) -> list[Child]:
    """Returns the metrics server, which starts first, so that it responds during the start.

    Returns nothing if the settings name no address; then nothing is counted in the background either.
    """
    context, addresses, readings = parts.context, parts.settings.metrics.listen, Readings(parts)
    context.servers.extend(() if parts.site is None else (parts.site.server,))
    if not addresses:
        return []
    probing = Probing(readings.scrape, readings.why_not_ready, readings.dependencies)
    metrics = MetricsServer(addresses, probing, context.meter, context.logger)
    context.servers.append(metrics.server)
    return [
        Child("metrics", metrics.run, Restart(from_start=False)),
        Child("survey", readings.surveyor.loop.run, Restart()),
    ]


def _of_survey(survey: Survey | None) -> Iterator[Reading]:
    """Yields the gauges of a survey; none before the first survey, since a zero would say that there is nothing."""
    if survey is None:
        return
    yield "odfd_survey_age_seconds", trio.current_time() - survey.at, _NONE
    for standing in STANDINGS:
        yield "odfd_datasets", survey.standings.get(standing, 0), {"standing": standing}
    yield "odfd_datasets_published", survey.published, _NONE
    yield "odfd_datasets_withdrawn", survey.withdrawn, _NONE
    yield "odfd_datasets_blocked", survey.blocked, _NONE
    for state in MIRROR_STATES:
        yield "odfd_mirrors", survey.mirrors.get(state, 0), {"state": state}
    yield "odfd_mirror_lag_blocks", survey.lacking_blocks, _NONE
    yield "odfd_mirror_lag_bytes", survey.lacking_bytes, _NONE
    for state in BY_NAME["odfd_flows"].labels["state"]:
        yield "odfd_flows", survey.flows.get(state, 0), {"state": state}
    yield "odfd_flow_overdue_seconds", survey.overdue_seconds, _NONE


def _sample(reading: Reading) -> MetricSample:
    name, value, labels = reading
    metric = BY_NAME[name]
    assert metric.kind is not MetricKind.HISTOGRAM, name
    return MetricSample(metric, labels_of(metric, labels), float(value))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
