"""What a topic of Kafka means as a source, asked of a real broker."""

from __future__ import annotations

import itertools
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.errors import Invalid, NotFound, Refused, Remote
from chain.model.events import SourceState
from chain.model.fetch_options import KafkaTopic
from chain.model.source import FetchUrl
from odfd.ingest.clients import kafka as process
from odfd.ingest.clients.kafka import TopicPosition, decode_position, starts
from odfd.ingest.fetch import kafka
from odfd.ingest.fetch.dispatch import check_fetch, fetch
from odfd.ingest.fetch.source import Fetched, FetchJob, Unchanged
from odfd.ingest.settings import PATIENCE, IngestSettings
from worlds.eventually import PATIENCE as BROKER
from worlds.eventually import until
from worlds.kafka import PASSWORD, Broker, kafka_served
from worlds.sources import asked_here

NOW = instant.parse("2050-01-01T12:00:00Z")
TOPICS = (f"topic-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with kafka_served() as served:
        yield served


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, which starts at once; ``test_it_is_asked_by_a_process_of_its_own`` starts another."""
    monkeypatch.setattr(kafka, "ask", asked_here(process.answer))


class Topic:
    """One topic, and how far it was read."""

    def __init__(self, broker: Broker, folder: Path, partitions: int = 1, **settings: str) -> None:
        self.broker, self.folder, self.name = broker, folder, next(TOPICS)
        self.state: SourceState | None = None
        broker.make(self.name, partitions, **settings)

    def url(self, scheme: str = "kafka") -> str:
        return f"{scheme}://{self.broker.address}/{self.name}"

    def fetch(
        self, url: str = "", *, keep: bool = True, limit: int = 1 << 30, silence: float = 15.0, **options: Any
    ) -> Any:
        settings = IngestSettings(
            staging=self.folder, variables={"KAFKA": PASSWORD}, max_source_bytes=limit,
            patience=PATIENCE._replace(silence=silence),
        )  # fmt: skip
        job = FetchJob(state=self.state, now=NOW, folder=self.folder, settings=settings, options=KafkaTopic(**options))
        found = trio.run(fetch, FetchUrl(url=url or self.url()), job)
        if isinstance(found, Fetched) and keep:
            self.state = found.state
        return found

    def rows(self, **options: Any) -> list[Any]:
        found = self.fetch(**options)
        if isinstance(found, Unchanged):
            return []
        return [msgspec.json.decode(line) for line in found.path.read_bytes().splitlines()]

    def lost(self) -> list[tuple[str, int, int]]:
        """What the broker let go of: partition, first offset, and the one after the last."""
        settings = IngestSettings(staging=self.folder, patience=PATIENCE._replace(silence=15.0))
        job = FetchJob(state=self.state, now=NOW, folder=self.folder, settings=settings, options=KafkaTopic())
        found = trio.run(kafka.KafkaSource(FetchUrl(url=self.url()), KafkaTopic()).find_lost, job)
        assert all(each.part.startswith(decode_position(self.state.value).topic) for each in found)
        return [(each.part.rpartition("/")[2], each.start, each.end) for each in found]

    def send(self, *values: bytes | None, **more: Any) -> None:
        self.broker.send(self.name, *values, **more)


@pytest.fixture
def topic(broker: Broker, tmp_path: Path, here: None) -> Callable[..., Topic]:
    return lambda *args, **more: Topic(broker, tmp_path, *args, **more)


def numbers(first: int, last: int) -> list[bytes]:
    return [b'{"n": %d}' % each for each in range(first, last)]


@pytest.mark.slow
def test_messages_come_once_in_batches(topic: Callable[..., Topic]) -> None:
    made = topic()
    assert made.rows() == []
    made.send(*numbers(0, 7))
    seen = [made.rows(batch_messages=3) for _ in range(4)]
    assert [[row["n"] for row in rows] for rows in seen] == [[0, 1, 2], [3, 4, 5], [6], []]
    made.send(*numbers(7, 8))
    assert made.rows() == [{"n": 7}]
    assert made.state is not None
    assert made.state.kind == kafka.OFFSETS
    assert decode_position(made.state.value).next == {"0": 8}


@pytest.mark.slow
def test_what_was_killed_before_the_commit_comes_again_and_is_the_same(topic: Callable[..., Topic]) -> None:
    made = topic(2)
    made.send(*numbers(0, 4), partition=0)
    made.send(*numbers(4, 8), partition=1)
    seen, previous = [], None
    for number in range(20):
        found = made.fetch(batch_messages=3, keep=number % 3 == 2)
        if isinstance(found, Unchanged):
            break
        rows = [msgspec.json.decode(line)["n"] for line in found.path.read_bytes().splitlines()]
        if number % 3 == 2:
            seen += rows
        previous = rows
    assert sorted(seen) == list(range(8))
    assert previous is not None


@pytest.mark.slow
def test_what_the_broker_let_go_of_is_told_by_partition(topic: Callable[..., Topic]) -> None:
    made = topic(2)
    made.send(*numbers(0, 3), partition=0)
    assert made.lost() == [], "where nothing was taken nothing is lost"
    made.rows()
    made.send(*numbers(3, 6), partition=0)
    made.send(*numbers(6, 8), partition=1)
    made.broker.forget(made.name, 3)
    assert made.lost() == [], "what went was taken"
    made.broker.forget(made.name, 5)
    assert made.lost() == [("0", 3, 5)]
    with pytest.raises(Refused, match="message 3 of partition 0 is not there") as caught:
        made.fetch()
    assert caught.value.rule == "kafka-position"


@pytest.mark.slow
def test_transactions_that_are_open_or_aborted_are_not_read(topic: Callable[..., Topic]) -> None:
    made = topic()
    made.send(b'{"n": 0}')
    with made.broker.transaction(made.name) as aborted:
        aborted.produce(made.name, b'{"n": 1}', partition=0)
        aborted.flush()
        aborted.abort_transaction()
    with made.broker.transaction(made.name + "-2") as open_:
        open_.produce(made.name, b'{"n": 2}', partition=0)
        open_.flush()
        made.send(b'{"n": 3}')
        assert made.rows() == [{"n": 0}]
        assert made.rows() == []
        open_.commit_transaction()
    assert made.rows() == [{"n": 2}, {"n": 3}]
    assert made.rows() == []


@pytest.mark.slow
def test_a_topic_that_was_made_again_is_refused(topic: Callable[..., Topic]) -> None:
    """Attack T-SOURCE-03: a topic that was deleted and created again under its name, so that offsets count other
    messages.

    Defence: the id of the topic is in the chain with the offsets, and another id is refused.
    """
    made = topic()
    made.send(*numbers(0, 3))
    assert len(made.rows()) == 3
    made.broker.drop(made.name)
    until(lambda: made.name not in made.broker.admin().list_topics(timeout=BROKER).topics)
    made.broker.make(made.name)
    made.send(*numbers(0, 9))
    with pytest.raises(Refused, match="deleted and made again") as caught:
        made.fetch()
    assert caught.value.rule == "kafka-position"
    made.broker.drop(made.name)
    until(lambda: made.name not in made.broker.admin().list_topics(timeout=BROKER).topics)
    with pytest.raises(NotFound, match="there is no topic"):
        made.fetch()


@pytest.mark.slow
def test_messages_that_went_before_they_were_taken_are_told(topic: Callable[..., Topic]) -> None:
    made = topic()
    made.send(*numbers(0, 5))
    assert len(made.rows(batch_messages=2)) == 2
    made.broker.forget(made.name, 4)
    assert made.broker.first(made.name) == 4
    with pytest.raises(Refused, match="message 2 of partition 0 is not there") as caught:
        made.fetch()
    assert caught.value.rule == "kafka-position"
    made.state = None
    assert [row["n"] for row in made.rows()] == [4], "who begins begins with what is there"


@pytest.mark.slow
def test_compaction_leaves_gaps_and_no_fault(topic: Callable[..., Topic]) -> None:
    made = topic(cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.01")
    for number in range(6):
        made.send(b'{"n": %d}' % number, key=b"k")
    made.send(None, key=b"gone")
    with pytest.raises(Invalid, match="has no value: it says that its key is gone"):
        made.fetch()

    def is_compacted() -> bool:
        """Segments are cleaned when another one was begun; who reads from the start sees it."""
        made.send(b'{"n": 6}', key=b"other")
        return made.fetch(envelope=True, keep=False).path.read_bytes().count(b'"kafka_key":"k"') == 1

    until(is_compacted)
    rows = made.rows(envelope=True)
    assert {row["kafka_key"] for row in rows} >= {"k", "other"}
    assert rows[-1]["kafka_offset"] > len(rows), "offsets have gaps"
    assert [row["kafka_offset"] for row in rows] == sorted({row["kafka_offset"] for row in rows})
    assert rows[0].keys() == {"kafka_partition", "kafka_offset", "kafka_time", "kafka_key", "kafka_value"}
    made.send(b'{"n": 9}', key=b"k")
    assert [row["kafka_value"] for row in made.rows(envelope=True)] == ['{"n": 9}']


@pytest.mark.slow
def test_a_partition_that_is_new_is_read_from_its_start(topic: Callable[..., Topic]) -> None:
    made = topic()
    made.send(*numbers(0, 2))
    assert len(made.rows()) == 2
    made.broker.widen(made.name, 2)
    until(lambda: len(made.broker.admin().list_topics(made.name, timeout=BROKER).topics[made.name].partitions) == 2)
    made.send(*numbers(2, 4), partition=1)
    assert [row["n"] for row in made.rows()] == [2, 3]


@pytest.mark.slow
def test_a_user_signs_in_and_a_wrong_one_is_refused(topic: Callable[..., Topic]) -> None:
    made = topic()
    made.send(b'{"n": 1}')
    url = f"kafka://reader:${{{{ env.KAFKA }}}}@{made.broker.signed}/{made.name}"
    assert made.rows(url=url) == [{"n": 1}]
    with pytest.raises((Refused, Remote)) as caught:
        made.fetch(url=url.replace("reader", "nobody"), keep=False, silence=3.0)
    assert PASSWORD not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_over_tls_a_user_signs_in_to_a_broker_of_the_right_certificate(
    topic: Callable[..., Topic], mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = topic()
    made.send(b'{"n": 1}')
    url = f"kafka+tls://reader:${{{{ env.KAFKA }}}}@{made.broker.secure}/{made.name}"
    with pytest.raises(Remote, match=r"cannot be asked|no broker answers there"):
        made.fetch(url=url, mechanism=mechanism, silence=3.0)
    monkeypatch.setenv("SSL_CERT_FILE", str(made.broker.authority))
    assert made.rows(url=url, mechanism=mechanism) == [{"n": 1}]
    with pytest.raises(Remote, match=r"cannot be asked|no broker answers there"):
        made.fetch(url=url.replace("127.0.0.1", "localhost"), mechanism=mechanism, silence=3.0)
    with pytest.raises((Refused, Remote)) as caught:
        made.fetch(url=url.replace("reader", "nobody"), mechanism=mechanism, silence=3.0)
    assert PASSWORD not in str(caught.value)


@pytest.mark.slow
def test_bad_messages_and_limits_are_told_by_their_place(topic: Callable[..., Topic]) -> None:
    made = topic()
    made.send(b'{"n":\n 1}', b"\xff", b"")
    with pytest.raises(Invalid, match="message 2 of partition 0 is empty"):
        made.fetch()
    with pytest.raises(Invalid, match="the value of message 1 of partition 0 is not UTF-8"):
        made.fetch(envelope=True)
    found = made.fetch(batch_messages=1)
    assert found.path.read_bytes() == b'{"n":  1}\n'
    with pytest.raises(Refused, match="is larger than 1 bytes"):
        made.fetch(limit=1)


@pytest.mark.slow
def test_it_is_asked_by_a_process_of_its_own(broker: Broker, tmp_path: Path) -> None:
    made = Topic(broker, tmp_path)
    made.send(*numbers(0, 3))
    assert [row["n"] for row in made.rows()] == [0, 1, 2]


@pytest.mark.slow
def test_a_broker_that_is_not_there_is_told(tmp_path: Path, here: None) -> None:
    pytest.importorskip("confluent_kafka")
    settings = IngestSettings(staging=tmp_path, patience=PATIENCE._replace(silence=1.0))
    job = FetchJob(state=None, now=NOW, folder=tmp_path, settings=settings, options=KafkaTopic())
    with pytest.raises(Remote, match=r"cannot be asked|no broker answers there"):
        trio.run(fetch, FetchUrl(url="kafka://127.0.0.1:1/none"), job)


@pytest.mark.slow
def test_a_server_that_speaks_another_language_is_told(tmp_path: Path, here: None) -> None:
    """Attack T-SOURCE-04: a broker that does not speak Kafka, or does not answer.

    Defence: the client runs in a process of its own with bounded memory; silence and the whole fetch have limits; only
    the code of its errors is shown.
    """
    pytest.importorskip("confluent_kafka")
    settings = IngestSettings(staging=tmp_path, patience=PATIENCE._replace(silence=2.0))
    job = FetchJob(state=None, now=NOW, folder=tmp_path, settings=settings, options=KafkaTopic())
    with (
        junk_served(b"\xff" * (1 << 16)) as port,
        pytest.raises(Remote, match=r"cannot be asked|no broker answers there"),
    ):
        trio.run(fetch, FetchUrl(url=f"kafka://127.0.0.1:{port}/none"), job)


@contextmanager
def junk_served(answer: bytes) -> Iterator[int]:
    class Junk(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                self.request.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Junk) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield int(server.server_address[1])
        server.shutdown()
        thread.join()


def test_a_plain_password_needs_tls(tmp_path: Path) -> None:
    settings = IngestSettings(staging=tmp_path, variables={"KAFKA": "x"})
    step = FetchUrl(url="kafka://user:${{ env.KAFKA }}@h:1/a")
    with pytest.raises(Invalid, match="as it is"):
        check_fetch(step, settings, KafkaTopic(mechanism="PLAIN"))


POSITION = st.builds(
    TopicPosition,
    topic=st.text(max_size=64),
    next=st.dictionaries(st.integers(0, 999).map(str), st.integers(0, 1 << 62), max_size=20),
)


@pytest.mark.slow
@given(POSITION)
def test_a_position_is_read_back(position: TopicPosition) -> None:
    assert decode_position(position.encode()) == position


@pytest.mark.slow
@given(st.text(max_size=200))
def test_a_position_of_others_ends_in_a_fault_or_a_position(text: str) -> None:
    try:
        decode_position(text)
    except Invalid:
        return


@pytest.mark.slow
@given(POSITION, st.sets(st.integers(0, 30), max_size=20))
def test_each_partition_goes_on_where_it_was_or_begins(position: TopicPosition, partitions: set[int]) -> None:
    try:
        begin = starts(position, position.topic, sorted(partitions))
    except Refused:
        assert {int(name) for name in position.next} - partitions
        return
    assert begin == {each: position.next.get(str(each), 0) for each in partitions}
