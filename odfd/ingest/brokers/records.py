"""Writes messages of a topic as lines of JSON. Pure: the lines depend on the messages alone."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import TracebackType
from typing import Protocol

import msgspec

from chain.errors import Invalid, Refused
from odfd.ingest.brokers.job import RULE


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
    return (enveloped(message) if envelope else bare(message)) + b"\n"


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
    return value.replace(b"\r", b" ").replace(b"\n", b" ")


def enveloped(message: Message) -> bytes:
    """Returns key, value, partition, offset and time of a message as JSON. Raises Invalid if bytes are no text."""
    kind, moment = message.timestamp()
    return msgspec.json.encode(
        {
            "kafka_partition": message.partition(),
            "kafka_offset": message.offset(),
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
