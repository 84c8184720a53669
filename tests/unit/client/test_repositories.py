"""Repositories read without a node: in a folder, at a web server, and in a store of Arrow; nothing is believed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pyarrow as pa
import pytest

from chain.data.logical_hash import logical_hash_file
from chain.data.parquet import write_slice
from chain.ids import DatasetId
from chain.model.block import Block
from chain.model.events import (
    AddData,
    AddPushSource,
    DatasetKind,
    DataSlice,
    MetadataEvent,
    OffsetInterval,
    Seed,
    SetInfo,
    SetVocab,
)
from chain.model.source import MergeSnapshot, ReadCsv
from chain.multihash import Multihash
from chain.store.layout import DirectoryChain, DirectoryWriter
from odfd.published.packs import write_packs
from odfd.renditions.successor import HandoverNotice, announce
from odfd_client import (
    Bug,
    Dataset,
    HandedOver,
    Invalid,
    NotFound,
    Refused,
    Repository,
    Snapshot,
    Switched,
    Unreachable,
    Update,
    col,
    open_repository,
)
from odfd_client.places import StorePlace
from worlds.chains import following
from worlds.s3_server import new_bucket, s3_server
from worlds.web_site import Site

SECOND = 1_000_000_000
SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("op", pa.int32()),
        ("system_time", pa.timestamp("ms", "UTC")),
        ("event_time", pa.timestamp("ms", "UTC")),
        ("city", pa.string()),
        ("n", pa.float64()),
    ]
)
CITIES = ("Graz", "Linz", "Wels", "Enns", "Steyr")
"""Each has an event time a second after that of the one before."""
GOLDEN = Path(__file__).parents[2] / "golden" / "kamu"
CLIENT = Path(__file__).parents[3] / "client"


class Chain:
    """A dataset in a folder; each ``add`` is a second later."""

    def __init__(self, folder: Path, name: str, key: int, *events: MetadataEvent, begun: int = 0) -> None:
        self.folder, self.id = folder / name, DatasetId.from_public_key(bytes([key]) * 32)
        self._writer, self._blocks, self.rows, self._time = DirectoryWriter(self.folder), list[Block](), 0, begun
        self.event(Seed(dataset_id=self.id, dataset_kind=DatasetKind.ROOT))
        for each in events:
            self.event(each)

    @property
    def head(self) -> Block:
        return self._blocks[-1]

    def event(self, event: MetadataEvent) -> None:
        self._time += 1
        last = self._blocks[-1] if self._blocks else None
        block = following(last, event, self._time * SECOND)
        self._writer.add_block(block.hash, block.raw)
        self._writer.set_head(block.hash, last.hash if last else None)
        self._blocks.append(block)

    def add(self, *rows: tuple[int, str, float | None]) -> None:
        """Adds rows: operation, city, number."""
        count, now = len(rows), [(self._time + 1) * 1000] * len(rows)
        offsets = range(self.rows, self.rows + count)
        columns = [offsets, *([row[at] for row in rows] for at in range(3))]
        times = [1000 * (CITIES.index(row[1]) + 1) for row in rows]
        table = pa.table([columns[0], columns[1], now, times, columns[2], columns[3]], schema=SCHEMA)
        staged = self.folder.parent / ".staged"
        write_slice(table, staged)
        data = DataSlice(
            logical_hash=logical_hash_file(staged),
            physical_hash=Multihash.sha3_256(staged.read_bytes()),
            offset_interval=OffsetInterval(start=self.rows, end=self.rows + count - 1),
            size=staged.stat().st_size,
        )
        self._writer.add_object("data", data.physical_hash, staged)
        staged.unlink()
        self.event(AddData(prev_offset=self.rows - 1 if self.rows else None, new_data=data))
        self.rows += count

    def hand_over(self, to: Chain, time: int, shards: int = 1) -> None:
        to._time = max(to._time, time // 1000)  # as a node: what comes then is later
        self.event(announce(None, HandoverNotice(to.id, time, to.head.hash, 1, shards)))

    @property
    def slices(self) -> list[Path]:
        found = [getattr(each.event, "new_data", None) for each in self._blocks]
        return [self.folder / "data" / str(each.physical_hash) for each in found if each is not None]


@pytest.fixture(params=["folder", "web", "store"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Repository]]:
    """Opens the repository in ``tmp_path`` anew, in three ways."""
    if request.param == "folder":
        yield lambda: open_repository(tmp_path)
    elif request.param == "store":
        yield lambda: Repository(StorePlace(tmp_path.as_uri()))
    else:
        with Site(tmp_path).open() as site:
            yield lambda: open_repository(site.url)


def rows_of(items: Sequence[Any]) -> list[str]:
    return [row for each in items for row in each.batch.column("city").to_pylist()]


def filled(folder: Path) -> Chain:
    chain = Chain(folder, "cities", 1)
    chain.add((0, "Graz", 1.0), (0, "Linz", 2.0))
    chain.add((0, "Wels", None))
    return chain


@pytest.mark.slow
def test_a_log_is_read_as_a_node_gives_it(opened: Any, tmp_path: Path) -> None:
    chain = filled(tmp_path)
    cities = opened().open("cities")
    table = cities.to_arrow()
    assert table["city"].to_pylist() == ["Graz", "Linz", "Wels"]
    assert table.schema.field("system_time").type == pa.timestamp("us", "UTC")
    assert (cities.pin.id, cities.pin.block, cities.pin.sequence_number) == (str(chain.id), str(chain.head.hash), 2)
    assert (cities.standing, cities.standings[0].of, cities.last_offset()) == ("unsigned", 3, 2)
    assert cities.select("n", "city").limit(2).to_arrow().to_pydict() == {"n": [1.0, 2.0], "city": ["Graz", "Linz"]}
    assert cities.where((col("n") > 1) | col("n").is_null()).to_arrow()["city"].to_pylist() == ["Linz", "Wels"]
    assert cities.at_block(1).to_arrow().num_rows == 2
    assert cities.at("1970-01-01T00:00:02Z").to_arrow().num_rows == 2
    assert cities.as_at("1970-01-01T00:00:02Z").to_arrow().num_rows == 2
    assert cities.current().where(col("city") != "Graz").to_arrow()["city"].to_pylist() == ["Linz", "Wels"]
    files = cities.files()
    assert files is not None
    assert [each.num_rows for each in files.between(["city"], 1, 2)] == [1, 1]
    with duckdb.connect() as connection:
        assert cities.duckdb(connection).fetchall() == cities.where(col("offset") >= 0).duckdb(connection).fetchall()
    pin = cities.pin
    chain.add((0, "Enns", 5.0))
    assert cities.to_arrow().equals(table), "one object is one cut"
    assert opened().open("cities").pinned(pin).to_arrow().equals(table)
    assert opened().open("cities").to_arrow().num_rows == 4


def test_rows_come_once_from_a_saved_position_on(opened: Any, tmp_path: Path) -> None:
    chain = filled(tmp_path)
    cities = opened().open("cities")
    live = cities.listen(seconds=0)
    items = [next(live), next(live)]
    assert rows_of(items) == ["Graz", "Linz", "Wels"]
    assert [each.complete for each in items] == [False, True]
    chain.event(SetInfo(description="no rows"))
    chain.add((0, "Enns", 5.0))
    assert rows_of([next(live)]) == ["Enns"]
    live.close()
    saved = str(items[-1].position)
    assert rows_of(list(opened().open("cities").listen(saved, follow=False))) == ["Enns"]
    assert rows_of(list(cities.where(col("n") >= 2).listen(follow=False))) == ["Linz", "Enns"]
    snapshot, *later = cities.subscribe(follow=False)
    assert isinstance(snapshot, Snapshot)
    assert (snapshot.rows.to_arrow().num_rows, later, snapshot.position.offset) == (4, [], 3)
    assert rows_of(list(cities.subscribe(saved, follow=False))) == ["Enns"]
    rewritten = replace(items[-1].position, block=str(chain.head.hash))
    with pytest.raises(NotFound, match="history was rewritten"):
        list(cities.listen(rewritten, follow=False))


@pytest.mark.slow
def test_handovers_are_crossed_by_their_exact_differences(opened: Any, tmp_path: Path) -> None:
    """To other rows, to the same, and back; from the beginning, and from a position of long ago."""
    first = filled(tmp_path)
    repository = opened()
    cities = repository.open("cities")
    saved = str(next(iter(cities.listen(follow=False))).position)
    second = Chain(tmp_path, second_name(1), 2)
    second.add((0, "Graz", 1.0), (0, "Linz", 7.0), (0, "Linz", 7.0))
    first.hand_over(second, 10_000)
    with pytest.raises(HandedOver, match="cities handed over"):
        list(cities.listen(saved, seconds=0))
    second.add((0, "Enns", 5.0))
    items = list(cities.cross(saved, follow=False))
    (switch,) = (each for each in items if isinstance(each, Switched))
    assert (switch.time, switch.old, switch.new) == ("1970-01-01T00:00:10Z", str(first.id), str(second.id))
    changes = switch.changes
    assert changes is not None
    found = [(row["op"], row["city"], row["n"]) for row in changes.to_arrow().to_pylist()]
    assert Counter(found) == Counter({(1, "Linz", 2.0): 1, (1, "Wels", None): 1, (0, "Linz", 7.0): 2})
    assert rows_of(items[:1]) == ["Wels"], "first what is left of the old one"
    position = str(items[-1].position)
    assert opened().open("cities").to_arrow()["city"].to_pylist() == ["Graz", "Linz", "Linz", "Enns"]
    assert opened().open("cities").at("1970-01-01T00:00:09Z").to_arrow().num_rows == 3, "the one active then"
    third = Chain(tmp_path, second_name(3), 3)
    third.add(*((0, "Enns", 5.0), (0, "Linz", 7.0), (0, "Graz", 1.0), (0, "Linz", 7.0)))
    second.hand_over(third, 20_000)
    first.add((0, "Steyr", 9.0))
    third.hand_over(first, 30_000)
    has: Counter[Any] = Counter()
    told = []
    for item in opened().open("cities").cross(position, follow=False):
        rows = item.batch if isinstance(item, Update) else item.changes and item.changes.to_arrow()
        told += [item.changes is None] if isinstance(item, Switched) else []
        for row in rows.to_pylist() if rows else ():
            has[row["city"], row["n"]] += 1 if row["op"] in (0, 3) else -1
    assert told == [True, False], "the third contains the same rows as the second"
    has.update({("Graz", 1.0): 1, ("Linz", 7.0): 2, ("Enns", 5.0): 1})
    assert +has == Counter([("Graz", 1.0), ("Linz", 2.0), ("Wels", None), ("Steyr", 9.0)])


def second_name(key: int) -> str:
    """A folder that is found by the id, as a node pushes a rendition that nobody named."""
    return DatasetId.from_public_key(bytes([key + 1 if key == 1 else key]) * 32).multibase


def test_a_successor_that_is_not_there_is_named(tmp_path: Path) -> None:
    first = filled(tmp_path / "a")
    second = Chain(tmp_path / "b", "next", 2)
    first.hand_over(second, 10_000)
    cities = open_repository(tmp_path / "a").open("cities")
    assert cities.to_arrow().num_rows == 3
    with pytest.raises(NotFound, match=f"handed over to {second.id}, which is not in"):
        list(cities.cross(follow=False))


def test_shards_are_not_taken_for_one_chain(tmp_path: Path) -> None:
    """Nothing here says which chains they are: the old rendition is read, and whoever goes on is told."""
    first, second = filled(tmp_path), Chain(tmp_path, second_name(1), 2)
    second.add((0, "Graz", 1.0))
    first.hand_over(second, 10_000, shards=3)
    cities = open_repository(tmp_path).open("cities")
    assert cities.to_arrow().num_rows == 3
    with pytest.raises(Refused, match="3 shards after 1") as refused:
        list(cities.cross(follow=False))
    assert refused.value.rule == "repository-node"


def test_what_stands_follows_the_merge_strategy(tmp_path: Path) -> None:
    keyed = AddPushSource(source_name="a", read=ReadCsv(), merge=MergeSnapshot(primary_key=("city",)))
    by_key = Chain(tmp_path, "keyed", 1, keyed)
    by_key.add((0, "Graz", 1.0), (0, "Linz", 2.0), (0, "Wels", 3.0))
    by_key.add((2, "Graz", 9.0), (3, "Graz", 4.0), (1, "Wels", 8.0))
    by_row = Chain(tmp_path, "rows", 2)
    by_row.add((1, "Graz", 1.0), (0, "Graz", 1.0), (0, "Graz", 1.0), (0, "Linz", 2.0))
    by_row.add((1, "Graz", 1.0), (2, "Linz", 2.0), (3, "Linz", 3.0))
    repository = open_repository(tmp_path)
    wanted = [repository.open(each).current().select("offset", "city", "n") for each in ("keyed", "rows")]
    found = [each.to_arrow().to_pylist() for each in wanted]
    assert [tuple(each.values()) for each in found[0]] == [(1, "Linz", 2.0), (4, "Graz", 4.0)]
    assert [tuple(each.values()) for each in found[1]] == [(2, "Graz", 1.0), (6, "Linz", 3.0)]


def test_several_are_read_at_one_complete_time(opened: Any, tmp_path: Path) -> None:
    one, two = filled(tmp_path), Chain(tmp_path, "other", 2, begun=1)
    two.add((0, "Enns", 5.0))
    repository = opened()
    with repository.at(None, "cities", "other") as read:
        assert read.time == "1970-01-01T00:00:02.999Z"
        assert (read["cities"].to_arrow().num_rows, read["other"].last_offset()) == (2, -1)
    with pytest.raises(Refused, match="cities is complete before 1970-01-01T00:00:03"):
        repository.at("1970-01-01T00:00:03Z", "cities")
    with pytest.raises(Invalid):
        repository.at(None, "cities", "cities")
    state = {"head": str(one.head.hash), "sequence": one.head.sequence_number, "upper": 9_000}
    one.folder.rename(tmp_path / one.id.multibase)
    (tmp_path / "trust").mkdir()
    chains = {str(one.id): state}
    (tmp_path / "trust" / "state").write_text(json.dumps({"version": 1, "writer": "w", "chains": chains}))
    read = opened().at("1970-01-01T00:00:08Z", str(one.id))
    assert read[str(one.id)].last_offset() == 2, "the commit point promises more than the last block"
    state["upper"] = (1 << 53) - 1
    (tmp_path / "trust" / "state").write_text(json.dumps({"version": 2, "writer": "w", "chains": chains}))
    assert opened().at(None, str(one.id)).time == "1970-01-01T00:00:03.001Z"
    (tmp_path / "trust" / "state").write_text("{}")
    with pytest.raises(Invalid, match="trust/state"):
        opened().open(str(one.id)).to_arrow()


def test_nothing_is_believed(opened: Any, tmp_path: Path) -> None:
    """Attack T-REPO-01: a folder, web server or bucket that gives false rows to a program without a node.

    Defence: the client hashes blocks from the head or a pin, and each slice before it returns a row of it; a head is
    shown as `unsigned`.
    """
    chain = filled(tmp_path)
    last = chain.slices[-1]
    kept = last.read_bytes()
    last.write_bytes(kept[:-8] + bytes(8))
    with pytest.raises(Invalid, match="not those of their block"):
        opened().open("cities").to_arrow()
    last.write_bytes(kept + b"0")
    with pytest.raises((Invalid, Bug), match="block"):
        opened().open("cities").to_arrow()
    last.unlink()
    with pytest.raises(NotFound, match="does not hold the rows of offsets 2 to 2"):
        opened().open("cities").to_arrow()
    assert opened().open("cities").at_block(1).to_arrow().num_rows == 2
    block = chain.folder / "blocks" / str(chain._blocks[1].hash)
    block.write_bytes(chain._blocks[0].raw)
    with pytest.raises(Invalid, match="is another"):
        opened().open("cities")
    block.unlink()
    with pytest.raises(NotFound, match="does not hold its block"):
        opened().open("cities")
    (chain.folder / "refs" / "head").write_text("no hash")
    with pytest.raises(Invalid, match="not the name of an object"):
        opened().open("cities")


def test_what_needs_a_node_is_refused_by_name(opened: Any, tmp_path: Path) -> None:
    filled(tmp_path)
    repository = opened()
    cities = repository.open("cities")
    asked: list[Callable[[], object]] = [
        lambda: repository.hold("cities"),
        lambda: repository.sql("select 1"),
        lambda: cities.require("attested:2"),
        cities.prove,
    ]
    for each in asked:
        with pytest.raises(Refused, match="needs a node") as caught:
            each()
        assert (caught.value.rule, bool(caught.value.hint)) == ("repository-node", True)
    with pytest.raises(NotFound, match="there is no dataset nothing"):
        repository.open("nothing")
    for name in ("../cities", "a/b/c", ".hidden", ""):
        with pytest.raises((Invalid, NotFound)):
            repository.open(name)
    for wrong in (cities.select("nothing"), cities.where(col("nothing") == 1), cities.where(col("n") == "x")):
        with pytest.raises(Invalid):
            wrong.to_arrow()
    with pytest.raises(Invalid, match="whole log"):
        cities.current().listen()


def test_a_dataset_without_rows_waits_for_them(opened: Any, tmp_path: Path) -> None:
    chain = Chain(tmp_path, "empty", 1, SetVocab(event_time_column="at"))
    empty: Dataset = opened().open("empty")
    assert list(empty.listen(follow=False)) == []
    with pytest.raises(NotFound, match="no rows yet"):
        empty.to_arrow()
    chain.add((0, "Graz", 1.0))
    assert rows_of(list(empty.listen(follow=False))) == ["Graz"]


def test_datasets_are_listed_where_the_place_tells(tmp_path: Path) -> None:
    chain = filled(tmp_path)
    (tmp_path / "no-dataset").mkdir()
    (info,) = open_repository(tmp_path).datasets()
    assert (info.name, info.id, info.kind, info.blocks, info.records) == ("cities", str(chain.id), "root", 3, 3)
    assert [each.name for each in Repository(StorePlace(tmp_path.as_uri())).datasets()] == ["cities"]
    assert open_repository(tmp_path / "cities").open().to_arrow().num_rows == 3
    assert open_repository((tmp_path / "cities").as_uri()).open(str(chain.id)).to_arrow().num_rows == 3
    with Site(tmp_path).open() as site:
        with pytest.raises(Refused, match="does not list its datasets"):
            open_repository(site.url).datasets()
        (tmp_path / "cities" / "refs" / "head").rename(tmp_path / "kept")
        with pytest.raises(NotFound):
            open_repository(site.url).open("cities")
    with pytest.raises(NotFound, match="no folder"):
        open_repository(tmp_path / "nowhere")
    for wrong in ("ftp://host/x", "http://host/x?y", "http://u:p@host/"):
        with pytest.raises(Invalid):
            open_repository(wrong)
    with pytest.raises(Invalid, match="unencrypted"):
        open_repository("http://host/x", token="t")
    with pytest.raises(Unreachable):
        open_repository("http://127.0.0.1:9").open("cities")


def test_many_blocks_come_in_packs(tmp_path: Path) -> None:
    chain = Chain(tmp_path, "long", 1)
    for number in range(40):
        chain.event(SetInfo(description=str(number)))
    write_packs(chain.folder, DirectoryChain(chain.folder), 41)
    with Site(tmp_path).open() as site:
        assert open_repository(site.url).open("long").pin.sequence_number == 40
        asked = [each for each in site.asked if "/blocks/" in each]
        assert len(asked) == 1, "the head, and all others in one pack"
        (chain.folder / "packs" / "0").write_bytes(b"\0\0\0\5hello")
        assert open_repository(site.url).open("long").pin.sequence_number == 40, "a pack is a hint"


@pytest.mark.slow
def test_kamu_s_own_datasets_are_read() -> None:
    repository = open_repository(GOLDEN)
    names = [each.name for each in repository.datasets()]
    assert "flights" in names
    for name in names:
        found = repository.open(name)
        assert found.to_arrow().num_rows == found.last_offset() + 1
        assert found.current().to_arrow().num_rows <= found.last_offset() + 1


_OF_A_BUCKET = """
import sys
from odfd_client import NotFound, open_repository
bucket = open_repository(sys.argv[1])
wanted = open_repository(sys.argv[2]).open("places").to_arrow()
print([each.name for each in bucket.datasets()], bucket.open("places").to_arrow().equals(wanted))
try:
    bucket.open("nothing")
except NotFound as fault:
    print(fault.rule)
"""


@pytest.mark.slow
def test_a_bucket_is_read_by_arrow_s_client() -> None:
    """With keys by ``s3://``, in a process without the node's libraries, which leave that client out; and without keys
    over HTTP where anybody may read."""
    keys = {"AWS_ACCESS_KEY_ID": "AKIAHOUSE", "AWS_SECRET_ACCESS_KEY": "s3cr3t-of-the-house"}
    with s3_server() as server:
        new_bucket(server, "open")
        for each in (GOLDEN / "places").rglob("*"):
            if each.is_file():
                path = each.relative_to(GOLDEN)
                assert httpx.put(f"{server}/open/odf/{path}", content=each.read_bytes()).status_code == 200
        found = open_repository(f"{server}/open/odf").open("places")
        assert found.to_arrow().equals(open_repository(GOLDEN).open("places").to_arrow())
        url = f"s3://open/odf?endpoint_override={server.removeprefix('http://')}&scheme=http&region=us-east-1"
        command = [sys.executable, "-c", _OF_A_BUCKET, url, str(GOLDEN)]
        environment = {**os.environ, **keys, "PYTHONPATH": str(CLIENT)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("['places'] True\ndataset\n", "")
