"""Reads ranges of a Kafka topic in its own process: what is new, a file for each partition, or the same ranges again.

A range of committed messages is read alike by everybody, until the broker lets go of it, unless the topic is compacted.
So a later read of the same range gives the same bytes, or a fault that tells a topic that forgot (``FORGOT``) from one
that has other messages there (``REWROTE``). As ``kafka``, it joins no group and writes nothing to the broker.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, NamedTuple

from chain.errors import Fault, Refused
from odfd.ingest.brokers.job import FORGOT, REWROTE, OffsetRange, RangesJob, RangesResult, TopicPosition, starts
from odfd.ingest.brokers.kafka import consumer, described, fault_of, gone, messages
from odfd.ingest.brokers.records import Message, line_of, too_large
from odfd.ingest.source_process import answered, serve


class LogBounds(NamedTuple):
    """The offsets between which a partition has messages that are committed."""

    low: int
    high: int


def answer(job: RangesJob) -> RangesResult:
    """Reads the ranges and writes their messages; a fault becomes an answer."""
    return answered(job, _read, RangesResult, "lower batchMessages")


def _read(job: RangesJob) -> RangesResult:
    topic, partitions = described(job)
    if job.looks:
        begin = starts(job.after, topic, partitions)
        return RangesResult(ranges=tuple(forgotten(job.after, begin, _bounds(job, partitions))))
    return _again(job, topic, partitions, job.until) if job.until is not None else _new(job, topic, partitions)


def _new(job: RangesJob, topic: str, partitions: list[int]) -> RangesResult:
    bounds = _bounds(job, partitions)
    begin = beginnings(job.after, starts(job.after, topic, partitions), bounds)
    waiting = in_turn([each for each in partitions if begin[each] < bounds[each].high], job.first)
    reached, ranges = dict(begin), []
    for number in range(0, len(waiting), job.partitions):
        files = _taken(job, {each: (begin[each], None) for each in waiting[number : number + job.partitions]})
        reached |= files.reached
        if files.messages:
            ranges = [OffsetRange(each, begin[each], reached[each]) for each in sorted(files.written)]
            break
    position = TopicPosition(topic=topic, next={str(each): offset for each, offset in reached.items()})
    return RangesResult(ranges=tuple(ranges), position=position, compacted=_is_compacted(job))


def beginnings(after: TopicPosition | None, begin: dict[int, int], bounds: dict[int, LogBounds]) -> dict[int, int]:
    """Returns where each partition is read from: a new one from its first message. Raises Refused for lost messages."""
    known = set() if after is None else {int(each) for each in after.next}
    for each in sorted(known):
        if begin[each] < bounds[each].low:
            raise gone(each, begin[each])
    return {each: offset if each in known else bounds[each].low for each, offset in begin.items()}


def forgotten(after: TopicPosition | None, begin: dict[int, int], bounds: dict[int, LogBounds]) -> list[OffsetRange]:
    """Returns the messages after a position that the broker let go of. Raises Refused if it lost later ones.

    Of a partition in which nothing was taken yet nothing is lost: it is read from its first message.
    """
    known = set() if after is None else {int(each) for each in after.next}
    for each in sorted(known):
        if begin[each] > bounds[each].high:
            raise gone(each, begin[each])
    return [
        OffsetRange(each, begin[each], bounds[each].low) for each in sorted(known) if begin[each] < bounds[each].low
    ]


def in_turn(partitions: list[int], first: int) -> list[int]:
    """Returns partitions from ``first`` on, and then those before it."""
    return sorted(partitions, key=lambda each: (each < first, each))


def _again(job: RangesJob, topic: str, partitions: list[int], until: TopicPosition) -> RangesResult:
    wanted = {int(name): (start, until.next[name]) for name, start in (job.after.next if job.after else {}).items()}
    if topic != until.topic or not wanted.keys() <= set(partitions):
        said = "was deleted and made again" if topic != until.topic else "has fewer partitions"
        raise another_log(said)
    check_held(wanted, _bounds(job, sorted(wanted)))
    files = _taken(job, dict(wanted))
    check_held(wanted, _bounds(job, sorted(wanted)))  # what went meanwhile may have been passed over
    ranges = [OffsetRange(each, *wanted[each]) for each in sorted(files.written)]
    return RangesResult(ranges=tuple(ranges), position=until)


def another_log(said: str) -> Refused:
    """Returns the fault for a topic that is not the one of which messages were bound. ``said``: what became of it."""
    return Refused(
        f"the topic {said}: messages that were bound are not there any more",
        rule=FORGOT,
        hint="an instance that has read them can still write them; no gap is accepted of another log: begin another"
        " collection (odfctl reclock NAME --at REPOSITORY), and this one keeps what it has",
    )


_FORGOT_HINT = (
    "an instance that has read them can still write them; else odfctl gap show says what is lost, and goes on"
)


def check_held(wanted: dict[int, tuple[int, int]], bounds: dict[int, LogBounds]) -> None:
    """Raises Refused for ranges of which messages went, or that the log does not reach any more."""
    for each, (start, end) in sorted(wanted.items()):
        low, high = bounds[each]
        if low > start:
            raise Refused(
                f"messages {start} to {min(low, end) - 1} of partition {each} were bound, and the broker has let go of"
                " them",
                rule=FORGOT,
                hint=_FORGOT_HINT,
            )
        if high < end:
            raise Refused(
                f"messages up to {end - 1} of partition {each} were bound, and the broker has them up to {high - 1}",
                rule=REWROTE,
                hint="the broker has lost messages, and may give their numbers to others: ask its operator, or begin"
                " another collection (odfctl reclock NAME --at REPOSITORY), and this one keeps what it has",
            )


class _Files:
    """The files of all partitions of one read, under one limit of bytes and of messages."""

    def __init__(self, job: RangesJob, begin: dict[int, int], stack: ExitStack) -> None:
        self._job, self._stack = job, stack
        self.reached = begin
        self.written: dict[int, IO[bytes]] = {}
        self.size = self.messages = 0

    def take(self, message: Message) -> bool:
        """Writes a message; false if there is no room. Raises Invalid, Refused for one that is too large alone."""
        job, partition = self._job, message.partition()
        if self.messages == job.messages and job.until is None:
            return False
        line = line_of(message, envelope=job.envelope)
        if self.size + len(line) > job.limit:
            if self.messages and job.until is None:
                return False
            raise too_large(message, job.limit)
        if partition not in self.written:
            path = Path(f"{job.target}.{partition}")
            self.written[partition] = self._stack.enter_context(path.open("wb"))
        self.written[partition].write(line)
        self.size += len(line)
        self.messages += 1
        self.reached[partition] = message.offset() + 1
        return True


def _taken(job: RangesJob, spans: dict[int, tuple[int, int | None]]) -> _Files:
    """Writes messages of each span; one without end is read to the end of the log as of now, or while there is room."""
    from confluent_kafka import TopicPartition

    with ExitStack() as stack, consumer(job) as client:
        files = _Files(job, {each: start for each, (start, _) in spans.items()}, stack)
        open_ = {each for each, (start, end) in spans.items() if end is None or start < end}
        client.assign([TopicPartition(job.topic, each, start) for each, (start, _) in spans.items()])
        for message in messages(client, job, open_):
            partition = message.partition()
            end = spans[partition][1]
            if message.error() is not None:
                _note_error(message, job, files.reached, open_)
            elif partition in open_ and (end is None or message.offset() < end):
                if not files.take(message):
                    break
                if end is not None and message.offset() + 1 == end:
                    open_.discard(partition)
            else:
                open_.discard(partition)
    return files


def _note_error(message: Any, job: RangesJob, reached: dict[int, int], open_: set[int]) -> None:
    """Handles an error message: the end of a partition closes it; errors that a retry does not cure are raised."""
    from confluent_kafka import KafkaError

    error, partition = message.error(), message.partition()
    if error.code() == KafkaError._PARTITION_EOF:
        open_.discard(partition)
        if job.until is None:
            reached[partition] = max(reached[partition], message.offset())
    elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        raise _went(partition, reached[partition], job)
    elif error.fatal() or not error.retriable():
        raise fault_of(error, job)


def _went(partition: int, offset: int, job: RangesJob) -> Fault:
    if job.until is None:
        return gone(partition, offset)
    said = f"message {offset} of partition {partition} was bound, and went while the range was read"
    return Refused(said, rule=FORGOT, hint=_FORGOT_HINT)


def _bounds(job: RangesJob, partitions: list[int]) -> dict[int, LogBounds]:
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


def _is_compacted(job: RangesJob) -> bool:
    """Whether the broker compacts the topic, or does not tell."""
    import confluent_kafka.admin as client_admin
    from confluent_kafka import KafkaException

    kafka: Any = client_admin
    name = kafka.ConfigResource(kafka.ConfigResource.Type.TOPIC, job.topic)
    try:
        client = kafka.AdminClient({**job.settings, "log_level": "0"})
        told = client.describe_configs([name], request_timeout=job.silence)[name].result()
    except KafkaException:
        return True
    policy = told.get("cleanup.policy")
    return policy is None or "compact" in policy.value


def main() -> int:
    """Runs the process. Returns its exit code."""
    return serve(RangesJob, answer)


if __name__ == "__main__":
    sys.exit(main())
