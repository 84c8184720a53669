"""What the port of addresses promises, asked of files, of a topic in memory, and of a real broker."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest
import trio

from chain.errors import Refused, Remote
from chain.model.events import AddData, SetPollingSource, SourceState
from chain.state import ChainState
from chain.statements.keys import SigningKey
from odfd.ingest.brokers import ranges as process
from odfd.ingest.brokers.job import FORGOT, REWROTE
from odfd.ingest.fetch import kafka_ranges
from odfd.ingest.fetch.fetch_process import without_fault
from odfd.ingest.fetch.kafka import OFFSETS
from odfd.ingest.fetch.kafka_ranges import AddressRange, parsed_part
from odfd.ingest.gaps import position_before
from odfd.reclock.addresses import Addresses, Offer, addresses_of
from worlds.eventually import until
from worlds.instances import START, House, dependencies
from worlds.kafka import Broker, kafka_served
from worlds.topics import BATCH, ModelPositions, ModelTopic, message, topic_source

DATASET = SigningKey(bytes(32)).dataset_id
STATE = ChainState(dataset=DATASET)
NAMES = (f"cities-{number}" for number in itertools.count())


class Feed(Protocol):
    """A source under test."""

    def addresses(self, *, one_part: bool = False) -> Addresses: ...
    def send(self, *values: bytes, partition: int = 0) -> None: ...


class FileFeed:
    """Each ``send`` is a file, whatever the partition."""

    def __init__(self, house: House) -> None:
        self.house = house

    def addresses(self, *, one_part: bool = False) -> Addresses:
        return _addresses(self.house, self.house.declared, one_part=one_part)

    def send(self, *values: bytes, partition: int = 0) -> None:
        self.house.files += 1
        rows = [msgspec.json.decode(each) for each in values]
        text = "".join(f"{row['event_time']},{row['city']},{row['population']}\n" for row in rows)
        (self.house.source / f"f{self.house.files:04}.csv").write_text("event_time,city,population\n" + text)


class ModelFeed:
    def __init__(self) -> None:
        self.topic = ModelTopic(2)

    def addresses(self, *, one_part: bool = False) -> Addresses:
        return ModelPositions(self.topic, one_part=one_part)

    def send(self, *values: bytes, partition: int = 0) -> None:
        self.topic.send(*values, partition=partition)

    def forget(self, before: int) -> None:
        self.topic.forget(before)

    def remake(self) -> None:
        self.topic.remake()


class BrokerFeed:
    def __init__(self, house: House, broker: Broker) -> None:
        self.house, self.broker, self.name = house, broker, next(NAMES)
        broker.make(self.name, 2)

    def addresses(self, *, one_part: bool = False) -> Addresses:
        url = f"kafka://{self.broker.address}/{self.name}"
        return _addresses(self.house, topic_source(url), one_part=one_part)

    def send(self, *values: bytes, partition: int = 0) -> None:
        self.broker.send(self.name, *values, partition=partition)

    def forget(self, before: int) -> None:
        self.broker.forget(self.name, before)

    def remake(self) -> None:
        self.broker.drop(self.name)
        until(lambda: self.name not in self.broker.admin().list_topics(timeout=30).topics)
        self.broker.make(self.name, 2)


def _addresses(house: House, source: SetPollingSource, *, one_part: bool) -> Addresses:
    place, _ = house.place()
    deps = dependencies(place, house.folder, lambda: START)
    return addresses_of(deps, DATASET, source, one_part=one_part)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with kafka_served() as served:
        yield served


KINDS = ["files", "model", pytest.param("broker", marks=pytest.mark.slow)]


@pytest.fixture
def feed(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    house = House(tmp_path)
    house.begin(1)
    if request.param == "files":
        return FileFeed(house)
    if request.param == "model":
        return ModelFeed()

    async def ask(_main: object, job: Any, _kind: object, shown: str, _time: object) -> Any:
        return without_fault(await trio.to_thread.run_sync(process.answer, job), shown)

    monkeypatch.setattr(kafka_ranges, "ask", ask)
    return BrokerFeed(house, request.getfixturevalue("broker"))


every = pytest.mark.parametrize("feed", KINDS, indirect=True)
with_positions = pytest.mark.parametrize("feed", KINDS[1:], indirect=True)


class Reader:
    """Takes what is offered, as if it was bound and written at once."""

    def __init__(self, feed: Feed, folder: Path, *, one_part: bool = False) -> None:
        self.addresses = feed.addresses(one_part=one_part)
        self.state = STATE
        self.last: str | None = None
        self._folders = (folder / f"read-{number}" for number in itertools.count())
        self.offers: list[Offer] = []

    def folder(self) -> Path:
        made = next(self._folders)
        made.mkdir()
        return made

    def next(self) -> list[bytes] | None:
        """The bytes of the next offer, which is taken."""
        offer = trio.run(self.addresses.offered, self.state, self.last, self.folder())
        if offer is None:
            return None
        trio.run(self.addresses.check, offer)
        self.addresses.check_follows(self.state.source_state, offer.batch.state, offer.ranges)
        self.state = msgspec.structs.replace(self.state, last_data=AddData(new_source_state=offer.batch.state))
        self.last = offer.ranges[0].part if offer.ranges else None
        self.offers.append(offer)
        return [path.read_bytes() for path in offer.batch.paths]

    def all(self) -> list[list[bytes]]:
        return list(iter(self.next, None))

    def again(self, ranges: Sequence[AddressRange]) -> list[bytes]:
        paths = trio.run(self.addresses.again, self.state, ranges, self.folder())
        return [b"" if path is None else path.read_bytes() for path in paths]


def cities(contents: Sequence[Sequence[bytes]]) -> list[str]:
    text = b"".join(each for one in contents for each in one).decode()
    return sorted(name for name in ("Graz", "Linz", "Wels", "Steyr", "Enns") for _ in range(text.count(name)))


@every
def test_all_is_offered_once_and_then_nothing(feed: Feed, tmp_path: Path) -> None:
    reader = Reader(feed, tmp_path)
    feed.send(message("Graz", 1), message("Linz", 2))
    feed.send(message("Wels", 3), partition=1)
    assert cities(reader.all()) == ["Graz", "Linz", "Wels"]
    assert reader.next() is None
    feed.send(message("Enns", 4), partition=1)
    assert cities(reader.all()) == ["Enns"]


@every
def test_bytes_are_kept_or_have_addresses_by_which_they_come_again(feed: Feed, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    reader, other = Reader(feed, tmp_path), Reader(feed, tmp_path / "other")
    for number in range(BATCH):
        feed.send(message("Graz", number), message("Linz", number), partition=number % 2)
    contents = reader.all()
    assert len(contents) > 1
    for offer, content in zip(reader.offers, contents, strict=True):
        assert offer.kept != bool(offer.ranges)
        if offer.ranges:
            feed.send(message("Enns", 9))
            assert other.again(offer.ranges) == content
        else:
            with pytest.raises(Refused, match="this source has none"):
                other.again(offer.ranges)


@every
def test_an_offer_of_one_part_is_of_one_part_and_each_has_its_turn(feed: Feed, tmp_path: Path) -> None:
    reader = Reader(feed, tmp_path, one_part=True)
    for number in range(2 * BATCH):
        feed.send(message("Graz", number), partition=0)
        feed.send(message("Linz", number), partition=1)
    assert len(cities(reader.all())) == 4 * BATCH
    offers = reader.offers
    assert all(len(offer.batch.paths) == 1 for offer in offers)
    parts = [offer.ranges[0].part for offer in offers if offer.ranges]
    assert all(first != second for first, second in itertools.pairwise(parts))


@with_positions
def test_addresses_that_do_not_follow_are_refused(feed: Any, tmp_path: Path) -> None:
    reader = Reader(feed, tmp_path)
    feed.send(message("Graz", 1))
    reader.all()
    (first,), label = reader.offers[0].ranges, reader.offers[0].batch.state
    check = reader.addresses.check_follows
    check(None, label, [first])
    wrong = [
        (label, label, [first]), (None, None, [first]),
        (None, label, [msgspec.structs.replace(first, end=9)]),
        (None, label, [msgspec.structs.replace(first, part="other/0")]),
    ]  # fmt: skip
    for before, after, ranges in wrong:
        with pytest.raises(Remote):
            check(before, after, ranges)


@with_positions
def test_a_source_that_forgot_is_told_by_what_was_bound_and_by_what_was_not(feed: Any, tmp_path: Path) -> None:
    reader = Reader(feed, tmp_path)
    feed.send(*(message("Graz", number) for number in range(5)))
    assert reader.next() is not None
    (bound,) = reader.offers[0].ranges
    feed.forget(1)
    assert _forgotten(reader, reader.state.source_state) == []
    with pytest.raises(Refused, match=f"messages {bound.start} to 0 of partition 0 were bound") as caught:
        reader.again([bound])
    assert caught.value.rule == FORGOT
    feed.forget(bound.end + 1)
    with pytest.raises(Refused, match=f"message {bound.end} of partition 0 is not there") as caught:
        reader.next()
    assert caught.value.rule == "kafka-position"
    state = reader.state.source_state
    assert state is not None
    assert state.kind == OFFSETS
    assert _forgotten(reader, state) == [(bound.part, bound.end, bound.end + 1)]
    assert _forgotten(reader, position_before(None, [bound])) == [(bound.part, bound.start, bound.end + 1)]
    assert _forgotten(reader, None) == [], "where nothing was taken nothing is lost"


def _forgotten(reader: Reader, before: SourceState | None) -> list[tuple[str, int, int]]:
    found = trio.run(reader.addresses.forgotten, reader.state, before, reader.folder())
    return [(each.part, each.start, each.end) for each in found]


@with_positions
def test_a_topic_that_was_made_again_has_other_parts(feed: Any, tmp_path: Path) -> None:
    reader = Reader(feed, tmp_path)
    feed.send(message("Graz", 1))
    reader.all()
    (bound,) = reader.offers[0].ranges
    feed.remake()
    feed.send(message("Linz", 1))
    with pytest.raises(Refused, match="deleted and made again") as caught:
        reader.again([bound])
    assert caught.value.rule == FORGOT
    assert "no gap is accepted" in caught.value.hint
    assert "begin another collection" in caught.value.hint
    with pytest.raises(Refused, match="deleted and made again") as caught:
        reader.next()
    assert caught.value.rule == "kafka-position"
    other = Reader(feed, tmp_path / "other")
    (tmp_path / "other").mkdir()
    assert cities(other.all()) == ["Linz"]
    (found,) = other.offers[0].ranges
    assert parsed_part(found.part)[0] != parsed_part(bound.part)[0]


def test_a_log_that_was_cut_is_not_one_that_forgot(tmp_path: Path) -> None:
    feed = ModelFeed()
    reader = Reader(feed, tmp_path)
    feed.send(message("Graz", 1), message("Linz", 2))
    reader.all()
    feed.topic.lose(1)
    with pytest.raises(Refused, match="the broker has them up to 0") as caught:
        reader.again(reader.offers[0].ranges)
    assert caught.value.rule == REWROTE
    assert "begin another collection" in caught.value.hint


@pytest.mark.slow
def test_bytes_of_a_compacted_topic_are_kept(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(tmp_path)
    house.begin(1)
    made = next(NAMES)
    broker.make(made, cleanup_policy="compact")
    broker.send(made, message("Graz", 1), key=b"Graz")
    addresses = _addresses(house, topic_source(f"kafka://{broker.address}/{made}"), one_part=False)
    offer = trio.run(addresses.offered, STATE, None, tmp_path)
    assert offer is not None
    assert offer.kept
    assert len(offer.ranges) == 1
