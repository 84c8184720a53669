"""Declares the request to a process that reads a Kafka topic, its answer, and the encoding of a position. Pure."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from chain.errors import Invalid, Refused
from odfd.ingest.source_process import SourceJob, SourceResult

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
            hint="read it into another dataset, or begin again: `odfctl reset` takes back what was ingested",
        )
    if gone := sorted({int(name) for name in after.next} - set(partitions)):
        raise Refused(
            f"partition {gone[0]} of the topic, of which messages were taken, is not there any more",
            rule=POSITION_RULE,
            hint="is it the right broker? else read it into another dataset, or begin again: `odfctl reset` takes back"
            " what was ingested",
        )
    return {each: after.next.get(str(each), 0) for each in partitions}
