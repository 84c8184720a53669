"""Reads a Kafka topic in its own process: writes committed messages after a position to a file, up to a number of them.

It joins no consumer group and writes nothing to the broker: the chain holds the position. Aborted transactions are
skipped, and nothing after an open one is read. Offsets may have gaps, as compaction and transactions leave.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol

import msgspec

from chain.errors import Fault, Invalid, NotFound, Refused, Remote
from odfd.ingest.brokers.job import POSITION_RULE, RULE, TopicJob, TopicPosition, TopicResult, starts
from odfd.ingest.source_process import run_job, serve


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


def answer(job: TopicJob) -> TopicResult:
    """Reads the topic and writes its messages; a fault becomes an answer."""
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
    return str(found.topic_id), sorted(each.id for each in found.partitions)


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
        f"message {offset} of partition {partition} is not there: the broker let go"
        " of messages before they were taken, or has lost some",
        rule=POSITION_RULE,
        hint="odfctl gap show says which, and how to go on without them; pull before retention.ms has passed",
    )


def fault_of(error: Any, job: TopicJob) -> Fault:
    """Returns the fault for a client's error by its code, since the client's texts quote settings and brokers."""
    from confluent_kafka import KafkaError

    code = error.code() if isinstance(error, KafkaError) else None
    name = error.name() if isinstance(error, KafkaError) else "settings"
    if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.TOPIC_EXCEPTION):
        return NotFound(f"there is no topic {job.topic!r}", rule=RULE, hint="is its name right?")
    if code in (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
    ):
        return Refused(
            f"the broker refuses this node: {name}", rule="kafka-credentials", hint="user, password, rights?"
        )
    if code is None:
        return Invalid("the client does not take these settings", rule=RULE, hint="see odfctl docs sources")
    if code in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE):
        hint = "are hosts and ports right, is TLS spoken there (kafka+tls://), and does the broker run? Try again later"
        return Remote("no broker answers there", rule=RULE, hint=hint)
    return Remote(f"the broker cannot be asked: {name}", rule=RULE, hint="try again later")


def main() -> int:
    """Runs the process. Returns its exit code."""
    return serve(TopicJob, answer)


if __name__ == "__main__":
    sys.exit(main())
