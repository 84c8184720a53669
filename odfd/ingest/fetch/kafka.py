"""Fetches ``Kafka`` sources: the messages of a topic after the position in the chain, in batches.

The position is the next offset of each partition, and the id of the topic, written together with the rows: each message
is taken once, whatever stops a pull. A separate process reads from the broker, by Kafka's own client.
"""

from __future__ import annotations

import re
import urllib.parse
from pathlib import Path
from typing import Final, NamedTuple

from chain.errors import Invalid
from chain.model.events import SourceState
from chain.model.fetch_options import KafkaTopic
from chain.model.source import FetchUrl
from odfd.ingest.brokers.job import RULE, TopicJob, TopicPosition, TopicResult, decode_position
from odfd.ingest.brokers.kafka import main
from odfd.ingest.fetch.base import DEFAULT_SOURCE, Fetched, FetchJob, FetchOutcome, Unchanged
from odfd.ingest.fetch.fetch_process import TimeLimit, ask, authorities, check_client
from odfd.ingest.fetch.sql import filled_url
from odfd.ingest.settings import IngestSettings
from odfd.ingest.templates import TEMPLATE, check_user_info

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


async def fetch_kafka(step: FetchUrl, topic: KafkaTopic, job: FetchJob) -> FetchOutcome:
    """Fetches the next messages. Raises Remote (no broker answers), NotFound, Refused, Invalid, Environment."""
    shown, request = topic_job(step, topic, job)
    done = await ask(main, request, TopicResult, shown, time_limit(job.settings))
    if not done.messages or done.position is None:
        return Unchanged()
    return Fetched(
        path=Path(request.target), name=request.topic, identity=f"sha3-256:{done.digest}", event_time=job.now,
        state=state_of(done.position), has_more=done.more,
    )  # fmt: skip


def topic_job(step: FetchUrl, topic: KafkaTopic, job: FetchJob) -> tuple[str, TopicJob]:
    """Returns the URL as people may see it, and the request for what is new. Raises Invalid, Refused."""
    check_kafka(step, topic, job.settings)
    url = filled_url(step.url, job.settings)
    place = _place(url.reveal(), step.url)
    known = job.known(OFFSETS)
    return str(url), TopicJob(
        settings=_client(place, topic),
        topic=place.topic,
        after=None if known is None else decode_position(known),
        messages=topic.batch_messages,
        envelope=topic.envelope,
        target=str(job.folder / "messages.ndjson"),
        limit=job.settings.max_source_bytes,
        silence=job.settings.patience.silence,
    )


def state_of(position: TopicPosition) -> SourceState:
    return SourceState(source_name=DEFAULT_SOURCE, kind=OFFSETS, value=position.encode())


def time_limit(settings: IngestSettings) -> TimeLimit:
    return TimeLimit(settings.patience.total, "lower batchMessages")


def check_kafka(step: FetchUrl, topic: KafkaTopic, settings: IngestSettings) -> None:
    """Checks a step before a fetch. Raises Invalid, Refused if the client is not installed."""
    place = _place(step.url, step.url)
    check_user_info(place.user or "")
    if place.user is not None and topic.mechanism == "PLAIN" and not place.secure:
        raise Invalid(
            "mechanism: PLAIN sends the password as it is",
            rule=RULE,
            hint="write kafka+tls://, or a mechanism of SCRAM",
        )
    settings.check_variables(step.url)
    if step.headers or step.cache or step.event_time:
        raise Invalid("headers, cache and eventTime have no meaning for kind: Kafka", rule=RULE, hint="leave them out")
    check_client("confluent_kafka", "Kafka", "kafka")


def _place(url: str, shown: str) -> _Place:
    """Parses the URL of a topic. Raises Invalid."""
    plain = TEMPLATE.sub("x", url) if "${{" in url else url
    found = _URL.match(plain)
    brokers = [] if found is None else found[3].split(",")
    if found is None or len(brokers) > MAX_BROKERS or not all(_BROKER.match(each) for each in brokers):
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
