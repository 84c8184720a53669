"""A topic in memory, that forgets, compacts and is made again, and its addresses as a broker would give them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from chain.model.events import SetPollingSource, SourceState
from chain.state import ChainState
from odfd.ingest.brokers.job import TopicPosition as Position
from odfd.ingest.brokers.job import decode_position, starts
from odfd.ingest.brokers.ranges import LogBounds, another_log, beginnings, check_held, forgotten, in_turn
from odfd.ingest.fetch.kafka import OFFSETS, state_of
from odfd.ingest.fetch.kafka_ranges import AddressRange, check_follows, parsed_part
from odfd.ingest.plan import Batch
from odfd.reclock.addresses import Offer
from worlds.sources import source

BATCH: Final = 3
TOPIC: Final = "kafka://127.0.0.1:1/cities"


def topic_source(url: str = TOPIC) -> SetPollingSource:
    """A source of the messages of a topic, which have a city and a number."""
    return source(
        f"fetch:\n  kind: Kafka\n  url: {url}\n  batchMessages: {BATCH}\nread:\n  kind: NdJson\n"
        "  ddlSchema: [event_time TIMESTAMP, city STRING, population BIGINT]"
    )


def message(city: str, population: int) -> bytes:
    return b'{"event_time": "2024-01-01T00:00:00Z", "city": "%s", "population": %d}' % (city.encode(), population)


class ModelTopic:
    """The log of each partition; ``None``: a message that compaction removed."""

    def __init__(self, partitions: int = 3) -> None:
        self.incarnation = 1
        self.logs: list[list[bytes | None]] = [[] for _ in range(partitions)]
        self.low = [0] * partitions
        self.is_compacted = False

    @property
    def id(self) -> str:
        return f"topic-{self.incarnation}"

    def send(self, *values: bytes, partition: int = 0) -> None:
        self.logs[partition] += values

    def forget(self, before: int, partition: int = 0) -> None:
        self.low[partition] = max(self.low[partition], min(before, len(self.logs[partition])))

    def compact(self, offset: int, partition: int = 0) -> None:
        self.logs[partition][offset] = None

    def lose(self, size: int, partition: int = 0) -> None:
        """Cuts a log, as where a replica that was behind becomes the leader."""
        del self.logs[partition][size:]

    def remake(self) -> None:
        self.incarnation += 1
        self.logs, self.low = [[] for _ in self.logs], [0] * len(self.low)

    @property
    def bounds(self) -> dict[int, LogBounds]:
        return {each: LogBounds(low, len(log)) for each, (low, log) in enumerate(zip(self.low, self.logs, strict=True))}


class ModelPositions:
    """The port ``Addresses`` over a topic in memory."""

    def __init__(self, topic: ModelTopic, *, one_part: bool = False, remembers: bool = False) -> None:
        """``remembers``: also what the topic has forgotten."""
        self._topic, self._most, self._remembers = topic, 1 if one_part else len(topic.logs), remembers

    async def offered(self, state: ChainState, last: str | None, folder: Path) -> Offer | None:
        topic, known = self._topic, state.source_state
        after = decode_position(known.value) if known is not None and known.kind == OFFSETS else None
        begin = beginnings(after, starts(after, topic.id, list(range(len(topic.logs)))), topic.bounds)
        waiting = in_turn(
            [each for each, (_, high) in topic.bounds.items() if begin[each] < high],
            0 if last is None else parsed_part(last)[1] + 1,
        )[: self._most]
        if not waiting:
            return None
        room, reached = BATCH, dict(begin)
        for each in waiting:
            reached[each] = min(len(topic.logs[each]), begin[each] + room)
            room -= reached[each] - begin[each]
        ranges = tuple(
            AddressRange(f"{topic.id}/{each}", begin[each], reached[each])
            for each in sorted(waiting) if begin[each] < reached[each]
        )  # fmt: skip
        paths = tuple(self._written(each, folder) for each in ranges)
        position = Position(topic=topic.id, next={str(each): offset for each, offset in reached.items()})
        batch = Batch(
            paths=paths, names=tuple(f"cities-{parsed_part(each.part)[1]}" for each in ranges),
            identity=str(ranges), state=state_of(position),
        )  # fmt: skip
        return Offer(batch, ranges, kept=topic.is_compacted)

    async def check(self, _offer: Offer) -> None:
        """Nothing changes a file of its own."""

    async def again(self, _state: ChainState, ranges: Sequence[AddressRange], folder: Path) -> Sequence[Path | None]:
        if any(parsed_part(each.part)[0] != self._topic.id for each in ranges):
            raise another_log("was deleted and made again")
        if not self._remembers:
            check_held({parsed_part(each.part)[1]: (each.start, each.end) for each in ranges}, self._topic.bounds)
        return [self._written(each, folder) for each in ranges]

    async def forgotten(self, _state: ChainState, known: SourceState | None, _folder: Path) -> Sequence[AddressRange]:
        topic = self._topic
        after = decode_position(known.value) if known is not None and known.kind == OFFSETS else None
        begin = starts(after, topic.id, list(range(len(topic.logs))))
        lost = forgotten(after, begin, topic.bounds)
        return [AddressRange(f"{topic.id}/{each.partition}", each.start, each.end) for each in lost]

    def check_follows(
        self, before: SourceState | None, after: SourceState | None, ranges: Sequence[AddressRange]
    ) -> None:
        check_follows(before, after, ranges)

    def _written(self, found: AddressRange, folder: Path) -> Path:
        partition = parsed_part(found.part)[1]
        lines = [each + b"\n" for each in self._topic.logs[partition][found.start : found.end] if each is not None]
        path = folder / f"messages.ndjson.{partition}"
        path.write_bytes(b"".join(lines))
        return path
