"""Reads ranges of a topic's messages: what is new after a position, by partition, or the same ranges again.

For collections whose ranges are bound to times before anybody decodes them (``odfd.reclock``). A part of the address
space is a partition of one incarnation of a topic, ``TOPIC-ID/PARTITION``: a topic that was made again has other parts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from chain.errors import Invalid, Remote
from chain.model.events import SourceState
from chain.model.fetch_options import KafkaTopic
from chain.model.source import FetchUrl
from odfd.ingest.brokers.job import RangesJob, RangesResult, TopicPosition, decode_position
from odfd.ingest.brokers.ranges import main
from odfd.ingest.fetch.base import FetchJob
from odfd.ingest.fetch.fetch_process import ask
from odfd.ingest.fetch.kafka import OFFSETS, state_of, time_limit, topic_job

MOST_PARTITIONS: Final = 64
"""Partitions of one read: each is an open file, and a row of a binding."""
_PART: Final = re.compile(r"([A-Za-z0-9+/=_-]{1,64})/(0|[1-9][0-9]{0,8})\Z")


class AddressRange(msgspec.Struct, frozen=True):
    """Addresses of one part of a source, from ``start`` to before ``end``."""

    part: str
    start: int
    end: int


class FetchedRanges(msgspec.Struct, frozen=True, kw_only=True):
    """New messages, a file for each range, in order of partitions."""

    paths: tuple[Path, ...]
    names: tuple[str, ...]
    """For people: topic and partition."""
    ranges: tuple[AddressRange, ...]
    state: SourceState
    """The position in all partitions after them."""
    is_replayable: bool
    """Whether the broker gives the same messages again, until it lets go of them: the topic is not compacted."""


async def fetch_ranges(
    step: FetchUrl, topic: KafkaTopic, job: FetchJob, *, first: int = 0, most: int = MOST_PARTITIONS
) -> FetchedRanges | None:
    """Fetches what is new of at most ``most`` partitions, from ``first`` on; ``None``: nothing.

    Raises Remote (no broker answers), NotFound, Refused, Invalid, Environment.
    """
    shown, request = _request(step, topic, job, first=first, most=most)
    done = await ask(main, request, RangesResult, shown, time_limit(job.settings))
    if not done.ranges or done.position is None:
        return None
    topic_id = done.position.topic
    return FetchedRanges(
        paths=tuple(Path(f"{request.target}.{each.partition}") for each in done.ranges),
        names=tuple(f"{request.topic}-{each.partition}" for each in done.ranges),
        ranges=tuple(AddressRange(f"{topic_id}/{each.partition}", each.start, each.end) for each in done.ranges),
        state=state_of(done.position),
        is_replayable=not done.compacted,
    )


async def fetch_again(
    step: FetchUrl, topic: KafkaTopic, job: FetchJob, ranges: Sequence[AddressRange]
) -> tuple[Path | None, ...]:
    """Fetches ranges that were fetched before: a file for each, ``None`` where no message is left.

    Raises also Refused with the rule FORGOT or REWROTE, if the broker does not have all of their messages any more.
    """
    parts = [parsed_part(each.part) for each in ranges]
    (incarnation,) = {name for name, _ in parts} or {""}
    after = {str(number): each.start for (_, number), each in zip(parts, ranges, strict=True)}
    until = {str(number): each.end for (_, number), each in zip(parts, ranges, strict=True)}
    shown, request = _request(step, topic, job, first=0, most=len(parts))
    request = msgspec.structs.replace(
        request,
        after=TopicPosition(topic=incarnation, next=after),
        until=TopicPosition(topic=incarnation, next=until),
    )
    await ask(main, request, RangesResult, shown, time_limit(job.settings))
    found = [Path(f"{request.target}.{number}") for _, number in parts]
    return tuple(path if path.exists() else None for path in found)


async def fetch_gaps(step: FetchUrl, topic: KafkaTopic, job: FetchJob) -> tuple[AddressRange, ...]:
    """Asks which messages after the position of ``job`` the broker let go of. Raises as ``fetch_ranges``."""
    shown, request = _request(step, topic, job, first=0, most=1)
    if request.after is None:
        return ()
    done = await ask(main, msgspec.structs.replace(request, looks=True), RangesResult, shown, time_limit(job.settings))
    return tuple(AddressRange(f"{request.after.topic}/{each.partition}", each.start, each.end) for each in done.ranges)


def parsed_part(part: str) -> tuple[str, int]:
    """Returns the topic's id and the number of the partition. Raises Invalid."""
    if (found := _PART.match(part)) is None:
        raise Invalid(f"{part[:100]!r} is no partition of a topic", rule="reclock-chain")
    return found[1], int(found[2])


def check_follows(before: SourceState | None, after: SourceState | None, ranges: Sequence[AddressRange]) -> None:
    """Raises Remote unless ranges go on where the position ``before`` ends, and end where ``after`` says."""
    if after is None or after.kind != OFFSETS:
        raise Remote("a binding of ranges does not say how far the topic was read", rule="reclock-chain")
    end = decode_position(after.value)
    begin = decode_position(before.value) if before is not None and before.kind == OFFSETS else end
    starts = {} if begin is end else begin.next
    for each in ranges:
        topic, number = parsed_part(each.part)
        follows = starts.get(str(number), each.start) == each.start and each.end == end.next.get(str(number))
        if not follows or not begin.topic == topic == end.topic:
            raise Remote(
                f"messages {each.start} to {each.end - 1} of {each.part} do not follow what was bound before",
                rule="reclock-addresses",
                hint="something else wrote to the reclocking chain",
            )


def _request(step: FetchUrl, topic: KafkaTopic, job: FetchJob, *, first: int, most: int) -> tuple[str, RangesJob]:
    shown, plain = topic_job(step, topic, job)
    fields = {name: getattr(plain, name) for name in plain.__struct_fields__}
    return shown, RangesJob(**fields, first=first, partitions=max(1, most))
