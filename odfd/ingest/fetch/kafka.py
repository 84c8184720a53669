"""Fetches ``Kafka`` sources: the messages of a topic after the position in the chain, in batches.

The position is the next offset of each partition, and the id of the topic, written together with the rows: each message
is taken once, whatever stops a pull. A separate process reads from the broker, by Kafka's own client.
"""

from __future__ import annotations

import re
import urllib.parse
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from chain.errors import Invalid
from chain.model.events import SourceState
from chain.model.fetch_options import KafkaTopic
from chain.model.source import FetchUrl, ReadStep
from odfd.ingest.clients.kafka import RULE, GapsResult, TopicJob, TopicPosition, TopicResult, decode_position, main
from odfd.ingest.fetch.fetch_process import TimeLimit, ask, authorities
from odfd.ingest.fetch.source import (
    DEFAULT_SOURCE,
    AddressRange,
    Fetched,
    FetchJob,
    FetchOutcome,
    Source,
    Unchanged,
    check_lines,
)
from odfd.ingest.settings import IngestSettings
from odfd.ingest.templates import TEMPLATE, check_user_info, filled_url
from odfd.runtime.extensions import check_client

OFFSETS: Final = "w3id.org/odfd/kafka"
"""Kind of a source state: the next offset of each partition, and the topic's id."""
MAX_BROKERS: Final = 16
_URL: Final = re.compile(r"(kafka(?:\+tls)?)://(?:([^@/]*)@)?([^/@?#]+)/([A-Za-z0-9._-]{1,249})\Z")
_BROKER: Final = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}\Z")


class _Place(NamedTuple):
    secure: bool
    user: str | None
    """User and password, as written in the URL."""
    brokers: str
    topic: str


class KafkaSource(Source[FetchUrl, KafkaTopic]):
    """A topic of a broker."""

    options_type = KafkaTopic

    async def fetch(self, job: FetchJob) -> FetchOutcome:
        """Fetches the next messages. Raises Remote (no broker answers), NotFound, Refused, Invalid, Environment."""
        shown, request = self._job(job)
        done = await ask(main.__module__, request, TopicResult, shown, _time_limit(job.settings))
        if not done.messages or done.position is None:
            return Unchanged()
        return Fetched(
            path=Path(request.target), name=request.topic, identity=f"sha3-256:{done.digest}", event_time=job.now,
            state=state_of(done.position), has_more=done.more,
        )  # fmt: skip

    def _job(self, job: FetchJob) -> tuple[str, TopicJob]:
        """Returns the URL as people may see it, and the request for what is new. Raises Invalid, Refused."""
        self.check(job.settings)
        url = filled_url(self.step.url, job.settings.variables)
        place = _place(url.reveal(), self.step.url)
        known = job.value_of(OFFSETS)
        return str(url), TopicJob(
            settings=_client(place, self.options),
            topic=place.topic,
            after=None if known is None else decode_position(known),
            messages=self.options.batch_messages,
            envelope=self.options.envelope,
            target=str(job.folder / "messages.ndjson"),
            limit=job.settings.max_source_bytes,
            silence=job.settings.patience.silence,
        )

    def check(self, settings: IngestSettings) -> None:
        """Checks a step before a fetch. Raises Invalid, Refused if the client is not installed."""
        place = _place(self.step.url, self.step.url)
        check_user_info(place.user or "")
        if place.user is not None and self.options.mechanism == "PLAIN" and not place.secure:
            raise Invalid(
                "mechanism: PLAIN sends the password as it is",
                rule=RULE,
                hint="write kafka+tls://, or a mechanism of SCRAM",
            )
        settings.check_variables(self.step.url)
        if self.step.headers or self.step.cache or self.step.event_time:
            raise Invalid(
                "headers, cache and eventTime have no meaning for kind: Kafka", rule=RULE, hint="leave them out"
            )
        check_client("confluent_kafka", "sources of kind Kafka need", "kafka")

    async def find_lost(self, job: FetchJob) -> tuple[AddressRange, ...]:
        shown, request = self._job(job)
        if request.after is None:
            return ()
        asked = msgspec.structs.replace(request, gaps=True)
        done = await ask(main.__module__, asked, GapsResult, shown, _time_limit(job.settings))
        topic = request.after.topic
        return tuple(AddressRange(f"{topic}/{range_.partition}", range_.start, range_.end) for range_ in done.ranges)

    def skip(self, before: SourceState, lost: tuple[AddressRange, ...]) -> SourceState:
        position = decode_position(before.value)
        moved = {str(each.place[1]): each.end for each in lost}
        return state_of(msgspec.structs.replace(position, next={**position.next, **moved}))

    def addresses_between(self, before: SourceState, after: SourceState) -> tuple[AddressRange, ...] | None:
        if not before.kind == after.kind == OFFSETS:
            return None
        begin, end = decode_position(before.value), decode_position(after.value)
        numbers = sorted(begin.next, key=int)
        is_further = begin.topic == end.topic and begin.next.keys() == end.next.keys()
        if not is_further or any(end.next[number] < begin.next[number] for number in numbers):
            return ()
        lost = [number for number in numbers if end.next[number] > begin.next[number]]
        return tuple(AddressRange(f"{begin.topic}/{each}", begin.next[each], end.next[each]) for each in lost)

    def check_read(self, read: ReadStep) -> None:
        check_lines(read, "kind: Kafka")


def state_of(position: TopicPosition) -> SourceState:
    return SourceState(source_name=DEFAULT_SOURCE, kind=OFFSETS, value=position.encode())


def _time_limit(settings: IngestSettings) -> TimeLimit:
    return TimeLimit(settings.patience.total, "lower batchMessages")


def _place(url: str, shown: str) -> _Place:
    """Parses the URL of a topic. Raises Invalid."""
    plain = TEMPLATE.sub("x", url) if "${{" in url else url
    found = _URL.match(plain)
    brokers = [] if found is None else found[3].split(",")
    if found is None or len(brokers) > MAX_BROKERS or not all(_BROKER.match(broker) for broker in brokers):
        raise Invalid(
            f"no topic of Kafka: {shown}",
            rule="url-scheme",
            hint="write kafka://HOST:PORT/TOPIC, or kafka+tls://user:${{ env.NAME }}@HOST:PORT,HOST:PORT/TOPIC",
        )
    scheme, _, rest = url.partition("://")
    user = rest.rpartition("@")[0] if found[2] is not None else None
    return _Place(scheme == "kafka+tls", user, found[3], found[4])


def _client(place: _Place, topic: KafkaTopic) -> dict[str, str]:
    """Returns the settings of the Kafka client."""
    protocol = "ssl" if place.secure else "plaintext"
    settings = {"bootstrap.servers": place.brokers, "security.protocol": protocol}
    if place.secure and (file := authorities().get("SSL_CERT_FILE")):
        settings["ssl.ca.location"] = file
    if place.user is None:
        return settings
    name, _, password = place.user.partition(":")
    return settings | {
        "security.protocol": "sasl_ssl" if place.secure else "sasl_plaintext",
        "sasl.mechanism": topic.mechanism,
        "sasl.username": urllib.parse.unquote(name),
        "sasl.password": urllib.parse.unquote(password),
    }
