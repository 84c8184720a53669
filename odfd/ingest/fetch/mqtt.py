"""Fetches ``Mqtt`` sources: the messages that a broker kept for this dataset's own session, in batches.

The first fetch after their commit acknowledges messages, which it knows by the source state: messages of a pull that
was killed before the commit come again, and committed ones are not taken again. A separate process reads from the
broker.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from chain.errors import Invalid
from chain.model.events import SourceState
from chain.model.source import FetchMqtt, ReadStep
from engines.contract import SkippedFile
from odfd.ingest.clients.mqtt import RULE, SessionJob, SessionResult, decode_taken, main
from odfd.ingest.fetch.fetch_process import TimeLimit, ask
from odfd.ingest.fetch.source import DEFAULT_SOURCE, Fetched, FetchJob, FetchOutcome, Source, Unchanged, check_lines
from odfd.ingest.settings import IngestSettings
from odfd.ingest.templates import check_secret, fill
from odfd.runtime.extensions import check_client

SESSION: Final = "w3id.org/odfd/mqtt"
"""Kind of a source state: the messages of the last transaction."""
TLS_PORT: Final = 8883
"""The port registered for MQTT with TLS: at this port TLS is used even if the host has no scheme."""
PLAIN: Final = "mqtt"
TLS: Final = "mqtts"
UNVERIFIED: Final = "mqtts+unverified"
"""Schemes that a manifest may write before the host. ``UNVERIFIED`` uses TLS, and accepts any certificate."""
QUIET: Final = 1.0
"""Seconds without a message after which a read ends."""
_HOST: Final = re.compile(r"[A-Za-z0-9.:-]{1,253}\Z")
_MAX_TOPIC: Final = 4096
_MAX_TOPICS: Final = 64
_FORGOTTEN: Final = "the broker forgot the session: messages since the last pull may be lost"


class MqttSource(Source[FetchMqtt, None]):
    """Topics of a broker."""

    @property
    def address(self) -> str:
        topics = ",".join(topic.path for topic in self.step.topics)
        return f"mqtt://{self.step.host}:{self.step.port}/{topics}"

    async def fetch(self, job: FetchJob) -> FetchOutcome:
        """Fetches the next messages. Raises Remote (no broker answers), Refused, Invalid, Environment."""
        self.check(job.settings)
        scheme, host = broker_of(self.step)
        shown = f"{scheme}://{host}:{self.step.port}"
        known = job.value_of(SESSION)
        target = job.folder / "messages.ndjson"
        request = SessionJob(
            host=host,
            port=self.step.port,
            tls=scheme != PLAIN,
            verified=scheme != UNVERIFIED,
            client=session_name(job.dataset, self.step),
            username=_fill(self.step.username, job.settings),
            password=_fill(self.step.password, job.settings),
            topics=tuple(topic.path for topic in self.step.topics),
            known=None if known is None else decode_taken(known),
            target=str(target),
            limit=job.settings.max_source_bytes,
            quiet=QUIET,
            silence=job.settings.patience.silence,
        )
        time = TimeLimit(job.settings.patience.total, "take fewer topics")
        done = await ask(main.__module__, request, SessionResult, shown, time)
        lost = (SkippedFile(name=shown, reason=_FORGOTTEN),) if known is not None and not done.is_resumed else ()
        if not done.messages or done.taken is None:
            return Unchanged(lost)
        state = SourceState(source_name=DEFAULT_SOURCE, kind=SESSION, value=done.taken.encode())
        return Fetched(
            path=target,
            name=shown,
            identity=f"sha3-256:{done.digest}",
            event_time=job.now,
            state=state,
            # Nobody says how much waits; the fetch that finds nothing also acknowledges what this one took.
            has_more=True,
            skipped=lost,
        )

    def check(self, settings: IngestSettings) -> None:
        """Checks a step before a fetch. Raises Invalid, Refused if the client is not installed."""
        broker_of(self.step)
        if not 0 < len(self.step.topics) <= _MAX_TOPICS:
            raise Invalid(f"a source has 1 to {_MAX_TOPICS} topics", rule=RULE)
        for topic in self.step.topics:
            # $-topics are the broker's own (MQTT 3.1.1, 4.7.2).
            if not 0 < len(topic.path) <= _MAX_TOPIC or "\0" in topic.path or topic.path.startswith("$"):
                raise Invalid(
                    f"no topic of messages: {topic.path[:80]!r}", rule=RULE, hint="write a filter like a/+/b or a/#"
                )
        if self.step.password is not None:
            check_secret(self.step.password, "a password")
        if self.step.password is not None and self.step.username is None:
            raise Invalid("a password is of no use without username", rule=RULE, hint="leave it out")
        for text in filter(None, (self.step.username, self.step.password)):
            settings.check_variables(text)
        check_client("paho", "sources of kind Mqtt need", "mqtt")

    def check_read(self, read: ReadStep) -> None:
        check_lines(read, "kind: Mqtt")


def broker_of(step: FetchMqtt) -> tuple[str, str]:
    """Returns the scheme and the host of a step. Raises Invalid."""
    written, mark, host = step.host.rpartition("://")
    scheme = written.lower() if mark else TLS if step.port == TLS_PORT else PLAIN
    if scheme not in (PLAIN, TLS, UNVERIFIED) or not _HOST.match(host) or not 0 < step.port < 1 << 16:
        hint = "write a host and a port; mqtts://HOST is with TLS, mqtt://HOST without"
        raise Invalid(f"no broker: {step.host[:200]!r}, port {step.port}", rule=RULE, hint=hint)
    return scheme, host


def session_name(dataset: str, step: FetchMqtt) -> str:
    """Returns the client id of a session, of 23 characters, as every broker takes; other topics give another id."""
    parts = [dataset, *sorted(topic.path for topic in step.topics)]
    digest = hashlib.sha3_256("\0".join(parts).encode()).hexdigest()
    return f"odfd{digest[:19]}"


def _fill(text: str | None, settings: IngestSettings) -> str | None:
    return None if text is None else fill(text, settings.variables).reveal()
