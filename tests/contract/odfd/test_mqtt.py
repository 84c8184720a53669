"""What topics of MQTT mean as a source, asked of a real broker: acknowledged when the chain has them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.errors import Invalid, Refused, Remote
from chain.model.events import SourceState
from chain.model.source import FetchMqtt, MqttQos, MqttTopicSubscription
from odfd.ingest.clients import mqtt as process
from odfd.ingest.clients.mqtt import (
    MAX_MESSAGES,
    Packet,
    SessionReader,
    Taken,
    decode_taken,
)
from odfd.ingest.fetch import mqtt
from odfd.ingest.fetch.dispatch import fetch
from odfd.ingest.fetch.source import Fetched, FetchJob, Unchanged
from odfd.ingest.settings import PATIENCE, IngestSettings
from worlds.mqtt import PASSWORD, MqttBroker, mosquitto_served
from worlds.sources import asked_here

NOW = instant.parse("2050-01-01T12:00:00Z")
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[MqttBroker]:
    with mosquitto_served() as served:
        yield served


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, which starts at once."""
    monkeypatch.setattr(mqtt, "ask", asked_here(process.answer))
    monkeypatch.setattr(mqtt, "QUIET", 0.3)


class Topic:
    """A topic, and what the chain would say of it."""

    def __init__(self, broker: MqttBroker, folder: Path) -> None:
        self.broker, self.folder, self.name = broker, folder, f"a/{next(NUMBERS)}"
        self.state: SourceState | None = None

    def fetch(self, *, keep: bool = True, **more: Any) -> Any:
        step = FetchMqtt(**{"host": "127.0.0.1", "port": self.broker.port, "topics": topics(self.name), **more})
        settings = IngestSettings(
            staging=self.folder, variables={"MQTT": PASSWORD}, patience=PATIENCE._replace(silence=15.0)
        )
        job = FetchJob(state=self.state, now=NOW, folder=self.folder, settings=settings, dataset=f"did:{self.name}")
        found = trio.run(fetch, step, job)
        if isinstance(found, Fetched) and keep:
            self.state = found.state
        return found

    def rows(self, **more: Any) -> list[int]:
        found = self.fetch(**more)
        if isinstance(found, Unchanged):
            return []
        return [msgspec.json.decode(line)["n"] for line in found.path.read_bytes().splitlines()]

    def all(self) -> list[int]:
        found: list[int] = []
        while rows := self.rows():
            found += rows
        return found

    def send(self, *values: int, **more: Any) -> None:
        self.broker.send(self.name, *(b'{"n": %d}' % each for each in values), **more)


def topics(*names: str) -> tuple[MqttTopicSubscription, ...]:
    return tuple(MqttTopicSubscription(path=name, qos=MqttQos.AT_LEAST_ONCE) for name in names)


@pytest.fixture
def topic(broker: MqttBroker, tmp_path: Path, here: None) -> Callable[[], Topic]:
    return lambda: Topic(broker, tmp_path)


@pytest.mark.slow
def test_messages_between_two_pulls_come_once(topic: Callable[[], Topic]) -> None:
    made = topic()
    assert made.all() == [], "the first pull subscribes"
    made.send(*range(50))
    assert made.all() == list(range(50))
    made.send(7, 7)
    assert made.all() == [7, 7], "equal messages are two"
    assert made.all() == []


@pytest.mark.slow
def test_what_was_killed_before_the_commit_comes_again(topic: Callable[[], Topic]) -> None:
    made = topic()
    made.rows()
    made.send(*range(5))
    assert made.rows(keep=False) == list(range(5))
    assert made.rows(keep=False) == list(range(5))
    assert made.rows() == list(range(5))
    made.send(5)
    assert made.rows(keep=False) == [5], "what the chain has was acknowledged"
    assert made.all() == [5]


@pytest.mark.slow
def test_a_message_that_the_broker_keeps_comes_once(topic: Callable[[], Topic]) -> None:
    made = topic()
    made.send(1, retain=True)
    assert made.rows(keep=False) == [1]
    assert made.rows() == [1], "though it was sent again, and kept"
    assert made.all() == []


@pytest.mark.slow
def test_a_user_signs_in_and_a_wrong_one_is_refused(topic: Callable[[], Topic]) -> None:
    made = topic()
    signed: dict[str, Any] = {"port": made.broker.signed, "username": "reader", "password": "${{ env.MQTT }}"}
    assert made.rows(**signed) == []
    made.send(3)
    assert made.rows(**signed) == [3]
    with pytest.raises(Refused, match="refuses this node") as caught:
        made.fetch(**{**signed, "username": "nobody"}, keep=False)
    assert PASSWORD not in str(caught.value)


@pytest.mark.slow
def test_over_tls_the_broker_has_the_certificate_of_its_name(
    broker: MqttBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a process of its own, which trusts whom the daemon's environment names. TLS goes by the port."""
    made = Topic(broker, tmp_path)
    signed: dict[str, Any] = {"port": broker.secure, "username": "reader", "password": "${{ env.MQTT }}"}
    monkeypatch.setattr(mqtt, "TLS_PORT", broker.secure)
    with pytest.raises(Refused, match="is not that of 127") as unknown:
        made.fetch(**signed)
    assert unknown.value.rule == "mqtt-certificate"
    monkeypatch.setenv("SSL_CERT_FILE", str(broker.authority))
    assert made.rows(**signed) == []
    made.send(3)
    assert made.rows(**signed) == [3]
    with pytest.raises(Refused, match="is not that of localhost"):
        made.fetch(**{**signed, "host": "localhost"})
    with pytest.raises(Refused, match="refuses this node"):
        made.fetch(**{**signed, "password": None})


@pytest.mark.slow
def test_the_scheme_says_whether_there_is_tls_at_any_port(
    broker: MqttBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Certificates are checked, unless the scheme says by its name that they are not."""
    made = Topic(broker, tmp_path)
    signed: dict[str, Any] = {"port": broker.secure, "username": "reader", "password": "${{ env.MQTT }}"}
    with pytest.raises(Refused, match="is not that of 127"):
        made.fetch(**signed, host="mqtts://127.0.0.1")
    assert made.rows(**signed, host="mqtts+unverified://localhost") == []
    made.send(3)
    monkeypatch.setenv("SSL_CERT_FILE", str(broker.authority))
    assert made.rows(**signed, host="mqtts://127.0.0.1") == [3], "it is the same session"


@pytest.mark.slow
def test_a_session_that_the_broker_forgot_is_told(topic: Callable[[], Topic]) -> None:
    """Attack T-SOURCE-03: a broker that loses a session, so that messages are lost silently.

    Defence: the broker states whether it knew the session, and the pull reports it.
    """
    from paho.mqtt.client import Client, MQTTv311
    from paho.mqtt.enums import CallbackAPIVersion

    made = topic()
    made.rows()
    made.send(1)
    assert made.rows() == [1]
    step = FetchMqtt(host="127.0.0.1", port=made.broker.port, topics=topics(made.name))
    client = Client(CallbackAPIVersion.VERSION2, mqtt.session_name(f"did:{made.name}", step), True, None, MQTTv311)
    gone: list[bool] = []
    client.on_connect = lambda *_: gone.append(True)
    client.connect("127.0.0.1", made.broker.port)
    while not gone:
        client.loop(0.05)
    client.disconnect()
    (skipped,) = made.fetch().skipped
    assert "may be lost" in skipped.reason


@pytest.mark.slow
def test_a_process_of_its_own_asks(broker: MqttBroker, tmp_path: Path) -> None:
    made = Topic(broker, tmp_path)
    assert made.rows() == []
    made.send(1, 2)
    assert made.rows() == [1, 2]


@pytest.mark.slow
def test_a_broker_that_is_not_there_is_told(tmp_path: Path, here: None) -> None:
    pytest.importorskip("paho")
    job = FetchJob(state=None, now=NOW, folder=tmp_path, settings=IngestSettings(staging=tmp_path))
    with pytest.raises(Remote, match="cannot be asked: Connection refused"):
        trio.run(fetch, FetchMqtt(host="127.0.0.1", port=1, topics=topics("a")), job)


class Session:
    """A broker with a window of messages in flight, and a reader whose lives end before or after the commit."""

    def __init__(self, window: int) -> None:
        self.window, self.number = window, 0
        self.queue: list[tuple[int, bytes]] = []
        self.sent: set[int] = set()
        self.rows: list[bytes] = []
        self.known: Taken | None = None

    def publish(self, payload: bytes) -> None:
        self.number += 1
        self.queue.append((self.number, payload))

    def life(self, *, commits: bool) -> int:
        """One fetch; how many messages it found."""
        reader = SessionReader(self.known, 1 << 20)
        seen: set[int] = set()
        while due := [each for each in self.queue[: self.window] if each[0] not in seen]:
            number, payload = due[0]
            seen.add(number)
            fate = reader.decide(Packet(number=number, topic="t", payload=payload, again=number in self.sent))
            self.sent.add(number)
            if fate == "acknowledge":
                self.queue.remove((number, payload))
            if fate == "full":
                break
        done = reader.result(is_resumed=True)
        if done.messages and commits:
            self.known, self.rows = done.taken, self.rows + reader.lines
        return done.messages


@given(
    st.lists(st.tuples(st.lists(st.sampled_from([b"1", b"2"]), max_size=5), st.booleans()), max_size=12),
    st.integers(1, 9),
)
def test_whatever_is_killed_nothing_is_lost_and_nothing_doubled(
    lives: list[tuple[list[bytes], bool]], window: int
) -> None:
    """Attack T-SOURCE-03: a kill between the commit and the acknowledgement of messages, or before both.

    Defence: the chain has the numbers and digests of its last messages: these are acknowledged when they arrive again,
    and others are ingested.
    """
    session, published = Session(window), []
    for payloads, commits in lives:
        for payload in payloads:
            session.publish(payload)
            published.append(payload + b"\n")
        session.life(commits=commits)
    while session.life(commits=True):
        pass
    assert session.rows == published


def test_a_transaction_has_a_bound() -> None:
    reader = SessionReader(None, 1 << 20)
    fates = [reader.decide(Packet(number=n + 1, topic="t", payload=b"1")) for n in range(MAX_MESSAGES + 1)]
    assert fates == ["take"] * MAX_MESSAGES + ["full"]
    with pytest.raises(Invalid, match="larger than 3 bytes"):
        SessionReader(None, 3).decide(Packet(number=1, topic="t", payload=b"1234"))
    with pytest.raises(Invalid, match="is empty"):
        SessionReader(None, 3).decide(Packet(number=1, topic="t", payload=b" "))


@pytest.mark.slow
@given(st.text(max_size=100))
def test_a_state_of_others_ends_in_a_fault_or_a_state(text: str) -> None:
    try:
        decode_taken(text)
    except Invalid:
        return
