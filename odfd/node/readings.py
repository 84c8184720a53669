"""Reads the gauges of a node and of its features, and answers scrapes and questions about its readiness.

The cost of a scrape does not grow with the number of datasets, blocks or known peers: what would have to be counted one
by one is counted in the background, by ``odfd.services.maintenance.inventory``.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import trio

from chain.errors import Fault
from odfd.node.features import NodeFeatures
from odfd.obs.meter import MetricSample, labels_of
from odfd.obs.metric_table import BY_NAME, MIRROR_STATES, RESPONSES, SERVERS, STANDINGS, MetricKind
from odfd.obs.metrics_server import exposition
from odfd.services.feature import UNLABELLED, Reading, queue
from odfd.services.maintenance.inventory import Survey, Surveyor
from odfd.store.directory import DATABASE
from odfd.store.read_holds import ReadHolds


class Readings:
    """Reads the gauges of one node."""

    def __init__(self, features: NodeFeatures) -> None:
        self._ground, self._features = features.ground, features.all
        self.surveyor = Surveyor(
            features.views.views.cache.standings,
            features.transfer.scheduler,
            features.flows.flows.scheduler,
            self._ground.context.clock.now,
        )

    async def scrape(self) -> bytes:
        """Returns the metrics in Prometheus's format."""
        now = [*self._in_loop()]
        return await trio.to_thread.run_sync(self._write, now)

    def _write(self, now: list[Reading]) -> bytes:
        samples = [_sample(reading) for reading in (*now, *self._of_disk())]
        pulled = frozenset(sample.metric.name for sample in samples)
        return exposition([*samples, *self._ground.context.meter.samples(pulled)])

    async def why_not_ready(self) -> dict[str, str]:
        ready = self._ground.context.readiness
        parts = "" if ready.is_ready else "the node is stopping" if ready.stopping else "the node is starting"
        down = {name: str(health) for name, health in ready.troubles().items() if health.up_since is None}
        return {"parts": parts, **await trio.to_thread.run_sync(self._collect), **down}

    def dependencies(self) -> dict[str, str]:
        return self._ground.context.readiness.dependencies

    def _collect(self) -> dict[str, str]:
        database = ""
        try:
            with self._ground.home.database.read() as connection:
                connection.execute("SELECT 1 FROM versions LIMIT 1").fetchone()
        except Fault as fault:
            database = str(fault)
        free, reserve = shutil.disk_usage(self._ground.home.directory).free, self._reserve()
        disk = "" if free >= reserve else f"{free:,} bytes are free, and limits.disk-reserve-bytes keeps {reserve:,}"
        return {"database": database, "disk": disk}

    def _reserve(self) -> int:
        return self._ground.settings.limits.disk_reserve_bytes

    def _of_disk(self) -> Iterator[Reading]:
        """Yields the gauges that read the disk; called in a worker thread, since a disk may hang."""
        home = self._ground.home
        usage = shutil.disk_usage(home.directory)
        yield "odfd_disk_free_bytes", usage.free, UNLABELLED
        yield "odfd_disk_size_bytes", usage.total, UNLABELLED
        yield "odfd_disk_reserve_bytes", self._reserve(), UNLABELLED
        yield "odfd_database_size_bytes", _size(home.directory / DATABASE), UNLABELLED
        with home.database.read() as connection:
            yield "odfd_read_holds", len(ReadHolds(connection).all(self._ground.context.clock.now())), UNLABELLED
        yield "odfd_database_log_bytes", _size(home.directory / f"{DATABASE}-wal"), UNLABELLED

    def _in_loop(self) -> Iterator[Reading]:
        context = self._ground.context
        yield "odfd_build_info", 1, {"version": context.version}
        yield "odfd_ready", context.readiness.is_ready, UNLABELLED
        yield "odfd_database_transactions_total", self._ground.home.database.writes, UNLABELLED
        for part, health in context.readiness.parts.items():
            yield "odfd_part_up", health.up_since is not None, {"part": part}
            yield "odfd_part_restarts_total", health.restarts, {"part": part}
        for dependency, trouble in context.readiness.dependencies.items():
            yield "odfd_dependency_up", not trouble, {"dependency": dependency}
        yield from self._of_servers()
        yield from self._of_queues()
        for feature in self._features:
            yield from feature.gauges()
        yield from _of_survey(self.surveyor.newest)

    def _of_servers(self) -> Iterator[Reading]:
        answers, connections, turned_away = Counter[tuple[str, str]](), Counter[str](), Counter[str]()
        for server in self._ground.context.servers:
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
        board = self._ground.context.board
        waiting, running = board.counts
        yield "odfd_tasks", waiting, {"state": "waiting"}
        yield "odfd_tasks", running, {"state": "running"}
        yield from queue("tasks", waiting, board.bounds.waiting)
        threads = trio.to_thread.current_default_thread_limiter().statistics()
        yield from queue("threads", threads.tasks_waiting)


def _of_survey(survey: Survey | None) -> Iterator[Reading]:
    """Yields the gauges of a survey; none before the first survey, since a zero would say that there is nothing."""
    if survey is None:
        return
    yield "odfd_survey_age_seconds", trio.current_time() - survey.at, UNLABELLED
    for standing in STANDINGS:
        yield "odfd_datasets", survey.standings.get(standing, 0), {"standing": standing}
    yield "odfd_datasets_published", survey.published, UNLABELLED
    yield "odfd_datasets_withdrawn", survey.withdrawn, UNLABELLED
    yield "odfd_datasets_blocked", survey.blocked, UNLABELLED
    for state in MIRROR_STATES:
        yield "odfd_mirrors", survey.mirrors.get(state, 0), {"state": state}
    yield "odfd_mirror_lag_blocks", survey.lacking_blocks, UNLABELLED
    yield "odfd_mirror_lag_bytes", survey.lacking_bytes, UNLABELLED
    for state in BY_NAME["odfd_flows"].labels["state"]:
        yield "odfd_flows", survey.flows.get(state, 0), {"state": state}
    yield "odfd_flow_overdue_seconds", survey.overdue_seconds, UNLABELLED


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
