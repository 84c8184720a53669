"""Asks which messages of a topic its broker let go of after a position.

A part of the addresses of a topic is a partition of one incarnation of it, ``TOPIC-ID/PARTITION``: a topic that was
made again has other parts.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from chain.errors import Invalid
from chain.model.fetch_options import KafkaTopic
from chain.model.source import FetchUrl
from odfd.ingest.brokers.gaps import main
from odfd.ingest.brokers.job import GapsResult
from odfd.ingest.fetch.base import FetchJob
from odfd.ingest.fetch.fetch_process import ask
from odfd.ingest.fetch.kafka import time_limit, topic_job

_PART: Final = re.compile(r"([A-Za-z0-9+/=_-]{1,64})/(0|[1-9][0-9]{0,8})\Z")


class AddressRange(msgspec.Struct, frozen=True):
    """Addresses of one part of a source, from ``start`` to before ``end``."""

    part: str
    start: int
    end: int


async def fetch_gaps(step: FetchUrl, topic: KafkaTopic, job: FetchJob) -> tuple[AddressRange, ...]:
    """Asks which messages after the position of ``job`` the broker let go of.

    Raises Remote (no broker answers), NotFound, Refused, Invalid, Environment.
    """
    shown, request = topic_job(step, topic, job)
    if request.after is None:
        return ()
    done = await ask(main, request, GapsResult, shown, time_limit(job.settings))
    return tuple(AddressRange(f"{request.after.topic}/{each.partition}", each.start, each.end) for each in done.ranges)


def parsed_part(part: str) -> tuple[str, int]:
    """Returns the topic's id and the number of the partition. Raises Invalid."""
    if (found := _PART.match(part)) is None:
        raise Invalid(f"{part[:100]!r} is no partition of a topic", rule="kafka-position")
    return found[1], int(found[2])
