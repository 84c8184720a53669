"""Asks the broker of a Kafka topic, in a process of its own, which messages after a position it let go of.

As ``kafka``, it joins no group and writes nothing to the broker. It reads no message.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from odfd.ingest.brokers.job import GapsResult, OffsetRange, TopicJob, TopicPosition, starts
from odfd.ingest.brokers.kafka import describe, fault_of, missing_message
from odfd.ingest.source_process import run_job, serve


class LogBounds(NamedTuple):
    """The offsets between which a partition has messages that are committed."""

    low: int
    high: int


def answer(job: TopicJob) -> GapsResult:
    """Asks for the bounds of each partition; a fault becomes an answer."""
    return run_job(job, _read, GapsResult, "lower batchMessages")


def _read(job: TopicJob) -> GapsResult:
    topic, partitions = describe(job)
    begin = starts(job.after, topic, partitions)
    return GapsResult(ranges=tuple(lost_ranges(job.after, begin, _bounds(job, partitions))))


def lost_ranges(after: TopicPosition | None, begin: dict[int, int], bounds: dict[int, LogBounds]) -> list[OffsetRange]:
    """Returns the messages after a position that the broker let go of. Raises Refused if it lost later ones.

    Of a partition in which nothing was taken yet nothing is lost: it is read from its first message.
    """
    known = set() if after is None else {int(each) for each in after.next}
    for each in sorted(known):
        if begin[each] > bounds[each].high:
            raise missing_message(each, begin[each])
    return [
        OffsetRange(each, begin[each], bounds[each].low) for each in sorted(known) if begin[each] < bounds[each].low
    ]


def _bounds(job: TopicJob, partitions: list[int]) -> dict[int, LogBounds]:
    """Asks for the first offset of each partition, and for the one after its last stable message."""
    import confluent_kafka.admin as client_admin
    from confluent_kafka import IsolationLevel, KafkaException, TopicPartition

    kafka: Any = client_admin

    found: list[dict[int, int]] = []
    try:
        client = kafka.AdminClient({**job.settings, "log_level": "0"})
        for spec in (kafka.OffsetSpec.earliest(), kafka.OffsetSpec.latest()):
            asked = client.list_offsets(
                {TopicPartition(job.topic, each): spec for each in partitions},
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=job.silence,
            )
            found.append({place.partition: answer.result().offset for place, answer in asked.items()})
    except (KafkaException, ValueError) as error:
        raise fault_of(error.args[0], job) from None
    low, high = found
    return {each: LogBounds(low[each], high[each]) for each in partitions}


def main() -> int:
    """Runs the process. Returns its exit code."""
    return serve(TopicJob, answer)


if __name__ == "__main__":
    sys.exit(main())
