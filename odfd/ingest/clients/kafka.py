"""Reads a Kafka topic in its own process: writes committed messages after a position to a file, up to a number of them.

It joins no consumer group and writes nothing to the broker: the chain holds the position. Aborted transactions are
skipped, and nothing after an open one is read. Offsets may have gaps, as compaction and transactions leave. It also
tells which messages after a position the broker let go of.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Final, NamedTuple, Protocol

import msgspec

from chain.errors import Fault, Invalid, NotFound, Refused, Remote
from odfd.ingest.source_process import SourceJob, SourceResult, run_job, serve

RULE: Final = "source-kafka"
POSITION_RULE: Final = "kafka-position"
MAX_PARTITIONS: Final = 1_000
"""Partitions of one topic: each block holds a position in all of them."""


class TopicPosition(msgspec.Struct, frozen=True, kw_only=True):
    """The position up to which a topic was read: the next offset of each partition."""

    topic: Annotated[str, msgspec.Meta(max_length=64)]
    """The id of the topic; a topic that is made again under the same name has another id."""
    next: dict[str, Annotated[int, msgspec.Meta(ge=0)]]

    def encode(self) -> str:
        ordered = {name: self.next[name] for name in sorted(self.next, key=int)}
        return msgspec.json.encode(msgspec.structs.replace(self, next=ordered)).decode()


class TopicJob(SourceJob, frozen=True, kw_only=True):
    """The request to read a topic. ``settings`` has the secrets."""

    settings: dict[str, str]
    """Settings of the Kafka client."""
    topic: str
    after: TopicPosition | None
    messages: int
    envelope: bool
    silence: float
    """Seconds without a word from the broker after which the read fails."""
    gaps: bool = False
    """Whether to ask only which messages after the position the broker let go of, and to read none."""


class TopicResult(SourceResult, frozen=True, kw_only=True, omit_defaults=True):
    """The answer of the process that reads a topic."""

    messages: int = 0
    more: bool = False
    position: TopicPosition | None = None
    rule: str = RULE


class OffsetRange(msgspec.Struct, frozen=True):
    """Describes messages of one partition: from ``start`` to before ``end``."""

    partition: int
    start: int
    end: int


class GapsResult(SourceResult, frozen=True, kw_only=True, omit_defaults=True):
    """The answer of the process that asks what a broker let go of, by partition."""

    ranges: tuple[OffsetRange, ...] = ()
    rule: str = RULE


def decode_position(text: str) -> TopicPosition:
    """Decodes the position in a source state. Raises Invalid."""
    try:
        found = msgspec.json.decode(text, type=TopicPosition)
    except msgspec.DecodeError as error:
        raise Invalid(f"the chain's position in the topic cannot be read: {error}", rule=POSITION_RULE) from error
    if len(found.next) > MAX_PARTITIONS or not all(name.isdecimal() and len(name) < 10 for name in found.next):
        raise Invalid("the chain's position in the topic names partitions that there are not", rule=POSITION_RULE)
    return found


def starts(after: TopicPosition | None, topic: str, partitions: list[int]) -> dict[int, int]:
    """Returns the next offset of each existing partition; 0 for a new one.

    ``topic``: the id of the topic that the broker has now. Raises Refused if the topic was made again, a known
    partition is gone, or there are too many.
    """
    if len(partitions) > MAX_PARTITIONS:
        raise Refused(
            f"the topic has {len(partitions):,} partitions, and a position in at most {MAX_PARTITIONS:,} is kept",
            rule=POSITION_RULE,
            hint="take it in by several topics",
        )
    if after is None:
        return dict.fromkeys(partitions, 0)
    if after.topic != topic:
        raise Refused(
            "the topic was deleted and made again: its offsets count other messages than those that were taken",
            rule=POSITION_RULE,
            hint="read it into another dataset, or begin again: `odfctl reset` drops the ingested blocks",
        )
    if gone := sorted({int(name) for name in after.next} - set(partitions)):
        raise Refused(
            f"partition {gone[0]} of the topic, of which messages were taken, is not there any more",
            rule=POSITION_RULE,
            hint="check that it is the right broker; else read it into another dataset, or begin "
            "again: `odfctl reset` drops"
            " the ingested blocks",
        )
    return {partition: after.next.get(str(partition), 0) for partition in partitions}


class Message(Protocol):
    """The part of the Kafka client's message that is used here."""

    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def timestamp(self) -> tuple[int, int]: ...


class MessageFile:
    """Writes the file of one transaction, one message a line."""

    def __init__(self, target: Path, limit: int, *, envelope: bool) -> None:
        self._file = target.open("wb")
        self._limit = limit
        self._envelope = envelope
        self._digest = hashlib.sha3_256()
        self.size = 0
        self.messages = 0

    def __enter__(self) -> MessageFile:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._file.close()

    def take(self, message: Message) -> bool:
        """Writes a message. Returns whether there was room for it.

        Raises Invalid for a message that cannot be a line, Refused for one that is larger than a file may be.
        """
        line = line_of(message, envelope=self._envelope)
        if self.size + len(line) > self._limit:
            if self.messages:
                return False
            raise too_large(message, self._limit)
        self._file.write(line)
        self._digest.update(line)
        self.size += len(line)
        self.messages += 1
        return True

    def digest(self) -> str:
        return self._digest.hexdigest()


def line_of(message: Message, *, envelope: bool) -> bytes:
    """Returns a message as a line. Raises Invalid."""
    return (envelope_of(message) if envelope else bare(message)) + b"\n"


def too_large(message: Message, limit: int) -> Refused:
    return Refused(
        f"{place(message)} is larger than {limit:,} bytes",
        rule="max-source-bytes",
        hint="raise ingest.source-bytes of the settings",
    )


def bare(message: Message) -> bytes:
    """Returns the value, which is JSON, with line breaks made spaces. Raises Invalid for a tombstone."""
    value = message.value()
    if value is None:
        raise Invalid(
            f"{place(message)} has no value: it says that its key is gone",
            rule=RULE,
            hint="write envelope: true, and keys and values are columns",
        )
    if not value.strip():
        raise Invalid(f"{place(message)} is empty, which is no JSON", rule=RULE, hint="write envelope: true")
    # Within JSON a line break is blank space alone: in strings it is escaped (RFC 8259, section 7).
    return value.replace(b"\r", b" ").replace(b"\n", b" ")


def envelope_of(message: Message) -> bytes:
    """Returns key, value, partition, offset and time of a message as JSON. Raises Invalid if bytes are no text."""
    kind, moment = message.timestamp()
    return msgspec.json.encode(
        {
            "kafka_partition": message.partition(),
            "kafka_offset": message.offset(),
            # Kind 0: the message has no time.
            "kafka_time": moment if kind else None,
            "kafka_key": _text(message, "key", message.key()),
            "kafka_value": _text(message, "value", message.value()),
        }
    )


def _text(message: Message, what: str, value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Invalid(
            f"the {what} of {place(message)} is not UTF-8 text", rule=RULE, hint="only texts are taken from topics"
        ) from error


def place(message: Message) -> str:
    return f"message {message.offset()} of partition {message.partition()}"


POLL: Final = 0.5
"""Seconds that one poll waits for a message."""
SETTINGS: Final = {
    "group.id": "odfd",  # the client asks for one; no group is joined
    "enable.auto.commit": "false",
    "enable.partition.eof": "true",
    "isolation.level": "read_committed",
    # Where messages are gone, the client would otherwise go on at another offset without a word.
    "auto.offset.reset": "error",
    # Some brokers make a topic of each name that is asked for, mistyped ones too.
    "allow.auto.create.topics": "false",
    "check.crcs": "true",
    "queued.max.messages.kbytes": "65536",
    "fetch.message.max.bytes": "16777216",
    "receive.message.max.bytes": "268435456",
    "log_level": "0",
}


def answer(job: TopicJob) -> TopicResult | GapsResult:
    """Reads the topic and writes its messages, or finds its gaps; a fault becomes an answer."""
    if job.gaps:
        return run_job(job, _find_gaps, GapsResult, "lower batchMessages")
    return run_job(job, _read, TopicResult, "lower batchMessages")


def _read(job: TopicJob) -> TopicResult:
    topic, partitions = describe(job)
    begin = starts(job.after, topic, partitions)
    with MessageFile(Path(job.target), job.limit, envelope=job.envelope) as lines:
        reached, more = _take(job, begin, lines)
    position = TopicPosition(topic=topic, next={str(each): offset for each, offset in reached.items()})
    return TopicResult(messages=lines.messages, more=more, position=position, digest=lines.digest())


def describe(job: TopicJob) -> tuple[str, list[int]]:
    """Returns the id and the partitions of the topic. Raises NotFound, Refused, Remote."""
    from confluent_kafka import KafkaException, TopicCollection
    from confluent_kafka.admin import AdminClient

    try:
        client = AdminClient({**job.settings, "log_level": "0"})
        asked = client.describe_topics(TopicCollection([job.topic]), request_timeout=job.silence)
        found = asked[job.topic].result()
    except (KafkaException, ValueError) as error:
        raise fault_of(error.args[0], job) from None
    return str(found.topic_id), sorted(partition.id for partition in found.partitions)


def _take(job: TopicJob, begin: dict[int, int], lines: MessageFile) -> tuple[dict[int, int], bool]:
    """Writes messages to ``lines``. Returns the next offsets, and whether there may be more messages.

    Each partition is read to its end as of now.
    """
    from confluent_kafka import TopicPartition

    reached, open_ = dict(begin), set(begin)
    with consumer(job) as client:
        # A log may begin after offset 0: messages of a new partition that are gone already were never taken.
        known = set() if job.after is None else job.after.next.keys()
        for each in [each for each in begin if str(each) not in known]:
            low, _ = client.get_watermark_offsets(TopicPartition(job.topic, each), timeout=job.silence)
            reached[each] = low
        client.assign([TopicPartition(job.topic, each, offset) for each, offset in reached.items()])
        for message in messages(client, job, open_):
            if message.error() is not None:
                _note_error(message, job, reached, open_)
            elif lines.messages == job.messages or not lines.take(message):
                return reached, True
            else:
                reached[message.partition()] = message.offset() + 1
    return reached, False


@contextmanager
def consumer(job: TopicJob) -> Iterator[Any]:
    """Opens a consumer of no group. What the client raises in the block becomes a fault of ours."""
    from confluent_kafka import Consumer, KafkaException

    client: Any = None
    try:
        client = Consumer({**job.settings, **SETTINGS})
        yield client
    except (KafkaException, ValueError) as error:
        raise fault_of(error.args[0], job) from None
    finally:
        if client is not None:
            client.close()


def messages(client: Any, job: TopicJob, open_: Collection[int]) -> Iterator[Any]:
    """Yields what the broker sends, errors too, while ``open_`` names partitions. Raises Remote if it sends nothing."""
    heard = time.monotonic()
    while open_:
        message = client.poll(POLL)
        if message is not None:
            heard = time.monotonic()
            yield message
        elif time.monotonic() - heard > job.silence:
            raise silent(job)


def _note_error(message: Any, job: TopicJob, reached: dict[int, int], open_: set[int]) -> None:
    """Handles an error message: the end of a partition closes it; errors that a retry does not cure are raised."""
    from confluent_kafka import KafkaError

    error = message.error()
    if error.code() == KafkaError._PARTITION_EOF:
        open_.discard(message.partition())
        # Marks of transactions have offsets and are no messages, so the end may be beyond the last message.
        reached[message.partition()] = max(reached[message.partition()], message.offset())
    elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        raise missing_message(message.partition(), reached[message.partition()])
    elif error.fatal() or not error.retriable():
        raise fault_of(error, job)


def silent(job: TopicJob) -> Remote:
    return Remote(f"the broker said nothing for {job.silence:g} s", rule=RULE, hint="try again later")


def missing_message(partition: int, offset: int) -> Refused:
    """Returns the fault for a message that went before it was taken."""
    return Refused(
        f"message {offset} of partition {partition} is not there: the broker deleted"
        " messages before they were ingested, or has lost some",
        rule=POSITION_RULE,
        hint="odfctl gap show says which, and how to continue without them; pull before retention.ms has passed",
    )


def fault_of(error: Any, job: TopicJob) -> Fault:
    """Returns the fault for a client's error by its code, since the client's texts quote settings and brokers."""
    from confluent_kafka import KafkaError

    code = error.code() if isinstance(error, KafkaError) else None
    name = error.name() if isinstance(error, KafkaError) else "settings"
    if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.TOPIC_EXCEPTION):
        return NotFound(f"there is no topic {job.topic!r}", rule=RULE, hint="check its name")
    if code in (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
    ):
        return Refused(
            f"the broker refuses this node: {name}", rule="kafka-credentials", hint="check user, password and rights"
        )
    if code is None:
        return Invalid("the client does not take these settings", rule=RULE, hint="see odfctl docs sources")
    if code in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE):
        hint = "are hosts and ports right, is TLS spoken there (kafka+tls://), and does the broker run? Try again later"
        return Remote("no broker answers there", rule=RULE, hint=hint)
    return Remote(f"the broker cannot be asked: {name}", rule=RULE, hint="try again later")


class LogBounds(NamedTuple):
    """The offsets between which a partition has messages that are committed."""

    low: int
    high: int


def _find_gaps(job: TopicJob) -> GapsResult:
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
                {TopicPartition(job.topic, partition): spec for partition in partitions},
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=job.silence,
            )
            found.append({place.partition: answer.result().offset for place, answer in asked.items()})
    except (KafkaException, ValueError) as error:
        raise fault_of(error.args[0], job) from None
    low, high = found
    return {partition: LogBounds(low[partition], high[partition]) for partition in partitions}


def main() -> int:
    """Runs the process. Returns its exit code."""
    return serve(TopicJob, answer)


if __name__ == "__main__":
    sys.exit(main())
