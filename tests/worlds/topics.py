"""A topic in memory, that forgets."""

from __future__ import annotations

from odfd.ingest.clients.kafka import LogBounds


def message(city: str, population: int) -> bytes:
    return b'{"event_time": "2024-01-01T00:00:00Z", "city": "%s", "population": %d}' % (city.encode(), population)


class ModelTopic:
    """The log of each partition."""

    id = "topic-1"

    def __init__(self, partitions: int) -> None:
        self.logs: list[list[bytes]] = [[] for _ in range(partitions)]
        self.low = [0] * partitions

    def send(self, *values: bytes, partition: int = 0) -> None:
        self.logs[partition] += values

    def forget(self, before: int, partition: int = 0) -> None:
        self.low[partition] = max(self.low[partition], min(before, len(self.logs[partition])))

    @property
    def bounds(self) -> dict[int, LogBounds]:
        return {each: LogBounds(low, len(log)) for each, (low, log) in enumerate(zip(self.low, self.logs, strict=True))}
