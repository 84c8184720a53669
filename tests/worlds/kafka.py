"""Topics of Kafka: of a real broker on loopback, one process in KRaft mode (``make kafka``), and in memory."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from odfd.ingest.clients.kafka import LogBounds
from worlds.certificates import certified
from worlds.eventually import PATIENCE, until
from worlds.ports import free_ports

JARS = Path(__file__).parents[2] / ".venv" / "share" / "odfd" / "kafka"
PASSWORD = "p@ss/word:1"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
_SETTINGS = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{signed},SASL_SSL://127.0.0.1:{secure},CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
listener.name.sasl_plaintext.sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.sasl_ssl.sasl.enabled.mechanisms=SCRAM-SHA-512,PLAIN
listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config={module} required;
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config={module} required;
listener.name.sasl_ssl.plain.sasl.jaas.config={plain} required user_reader="{password}";
listener.name.sasl_ssl.ssl.keystore.type=PEM
listener.name.sasl_ssl.ssl.keystore.location={keystore}
log.dirs={folder}/data
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.cleaner.backoff.ms=100
log.cleaner.min.compaction.lag.ms=0
log.retention.check.interval.ms=200
log.segment.delete.delay.ms=0
"""


class Broker(NamedTuple):
    address: str
    signed: str
    """The same for a user ``reader`` with ``PASSWORD``."""
    secure: str
    """The same over TLS, with a certificate of ``authority`` for 127.0.0.1."""
    authority: Path

    @property
    def client(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.address}

    def admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient(self.client)

    def make(self, topic: str, partitions: int = 1, **settings: str) -> None:
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        made = NewTopic(topic, partitions, 1, config={name.replace("_", "."): text for name, text in settings.items()})
        self._settled(lambda admin: admin.create_topics([made]))

    def drop(self, topic: str) -> None:
        self._settled(lambda admin: admin.delete_topics([topic]))

    def widen(self, topic: str, partitions: int) -> None:
        from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]

        self._settled(lambda admin: admin.create_partitions([NewPartitions(topic, partitions)]))

    def forget(self, topic: str, before: int) -> None:
        """Lets go of the messages of partition 0 before an offset, as retention does."""
        from confluent_kafka import TopicPartition

        self._settled(lambda admin: admin.delete_records([TopicPartition(topic, 0, before)]))

    def _settled(self, ask: Callable[[Any], dict[Any, Any]]) -> None:
        admin = self.admin()
        for each in ask(admin).values():
            each.result()

    def send(self, topic: str, *values: bytes | None, key: bytes | None = None, partition: int = 0) -> None:
        from confluent_kafka import Producer

        producer = Producer({**self.client, "acks": "all"})
        for value in values:
            producer.produce(topic, value, key, partition=partition)
        assert producer.flush(PATIENCE) == 0

    @contextmanager
    def transaction(self, name: str) -> Iterator[Any]:
        """A producer amid a transaction; who asks for it ends it."""
        from confluent_kafka import Producer

        producer = Producer({**self.client, "transactional.id": name})
        producer.init_transactions(PATIENCE)
        producer.begin_transaction()
        yield producer

    def first(self, topic: str) -> int:
        """The offset of the first message that is there."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({**self.client, "group.id": "look"})
        low, _ = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE)
        consumer.close()
        return int(low)


@contextmanager
def kafka_served() -> Iterator[Broker]:
    """Skips the test by name where the broker or Java is not there."""
    if not JARS.is_dir():
        pytest.skip("no broker of Kafka is here: make kafka")
    pytest.importorskip("confluent_kafka")
    java = shutil.which("java")
    if java is None:
        pytest.skip("java is not installed")
    with tempfile.TemporaryDirectory(prefix="odfd-kafka-") as name:
        yield from _running(java, Path(name))


def _running(java: str, folder: Path) -> Iterator[Broker]:
    ports = dict(zip(("port", "signed", "secure", "controller"), free_ports(4), strict=True))
    settings, keystore = folder / "server.properties", folder / "keystore.pem"
    certificate, key = certified(folder, "broker.example", addresses=[IPv4Address("127.0.0.1")])
    keystore.write_bytes(key.read_bytes() + certificate.read_bytes())
    words = {"module": _SCRAM, "plain": _PLAIN, "password": PASSWORD, "keystore": keystore}
    settings.write_text(_SETTINGS.format(folder=folder, **words, **ports))
    run = [java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{JARS}/*"]
    scram = f"SCRAM-SHA-512=[name=reader,password={PASSWORD}]"
    made: list[str | Path] = [
        *run,
        "kafka.tools.StorageTool",
        "format",
        "-t",
        "AAAAAAAAAAAAAAAAAAAAAQ",
        "-c",
        settings,
        "-S",
        scram,
    ]
    subprocess.run(made, check=True, capture_output=True)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*run, "kafka.Kafka", settings], stdout=log, stderr=log)
    try:
        places = [f"127.0.0.1:{ports[name]}" for name in ("port", "signed", "secure")]
        broker = Broker(*places, authority=certificate)  # type: ignore[misc,arg-type]
        until(lambda: all(_answers(ports[name]) for name in ("port", "signed", "secure")))
        yield broker
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


# A topic in memory, that forgets.


def message(city: str, population: int) -> bytes:
    return b'{"event_time": "2024-01-01T00:00:00Z", "city": "%s", "population": %d}' % (city.encode(), population)


class ModelTopic:
    """The log of each partition."""

    id = "topic-1"

    def __init__(self, partitions: int) -> None:
        self.logs: list[list[bytes]] = [[] for _ in range(partitions)]
        self.low = [0] * partitions

    def send(self, *values: bytes, partition: int = 0) -> None:
        self.logs[partition] += values

    def forget(self, before: int, partition: int = 0) -> None:
        self.low[partition] = max(self.low[partition], min(before, len(self.logs[partition])))

    @property
    def bounds(self) -> dict[int, LogBounds]:
        return {each: LogBounds(low, len(log)) for each, (low, log) in enumerate(zip(self.low, self.logs, strict=True))}
