"""A listener gets each row once, whatever breaks: connections, the time of a query, the listener itself."""

from __future__ import annotations

import datetime
import io
import itertools
import json
import os
import queue
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odfd_client import Bug, Client, Invalid, NotFound, Position, Refused, Unreachable, Update, col, subscription
from odfd_client.answer_stream import Answer
from odfd_client.handovers import Ending
from odfd_client.leases import _format_time
from odfd_client.subscription import Source, listen
from odfd_client.transport import Exchange, Transport
from odfd_client.values import NodeMetadata, Pin

DID = "did:odf:fed0"
OTHER = "did:odf:fed1"


def no_plain_log() -> Exception:
    return Refused("no plain log", rule="query-slices")


def unknown_field() -> Exception:
    return Invalid("unknown field")  # of an older node


class Sent(Exchange):
    """Bytes of an answer, up to where the node went away."""

    def __init__(self, data: bytes, end: int | None = None, files: Sequence[int] = ()) -> None:
        self._data, self._files = io.BytesIO(data[:end]), list(files)

    def exactly(self, count: int) -> bytes:
        data = self._data.read(count)
        if len(data) < count:
            raise Unreachable("the node went away")
        return data

    def descriptors(self) -> list[int]:
        taken, self._files = self._files, []
        return taken

    def close(self) -> None:
        self._data.close()
        for each in self.descriptors():
            os.close(each)


class Events(Exchange):
    """Lines as they are told; ``None`` ends them."""

    def __init__(self) -> None:
        self.told: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.told.put({"kind": "lagged"})
        self._begun = False

    def line(self, most: int) -> bytes:
        if self._begun:
            self.told.task_done()  # whoever asks for the next has understood the one before
        self._begun = True
        said = self.told.get()
        if said is None:
            raise Unreachable("the node went away")
        return json.dumps(said).encode()[:most]

    def interrupt(self) -> None:
        self.told.put(None)

    def close(self) -> None:
        pass


class Node(Transport):
    """A log in blocks of rows, asked as a node is; DuckDB answers. ``batch`` rows come together."""

    def __init__(self) -> None:
        super().__init__(Path("none"))
        self.blocks: list[tuple[str, int]] = []
        self.events = Events()
        self.batch, self.frames, self.breaks = 2, 1 << 30, ""
        self.pinned = DID
        self.meanwhile: list[int] = []
        self.queries = 0
        self.files: Callable[[], Exception] | None = no_plain_log
        """Why it gives no files of slices; ``None``: it does."""
        self._database = duckdb.connect()
        self._fill(0)

    def append(self, rows: int, kind: str = "a") -> None:
        self.blocks.append((f"{kind}{len(self.blocks)}", (self.blocks[-1][1] if self.blocks else 0) + rows))
        self._fill(self.blocks[-1][1])

    def _fill(self, rows: int) -> None:
        select = f'SELECT i "offset", i * 10 n FROM range({rows}) t(i)'
        self._database.execute(f'CREATE OR REPLACE TABLE "{DID}" AS {select}')

    def get(self, path: str, query: Mapping[str, object] | None = None) -> Any:
        if path == f"/dataset/v1alpha1/datasets/{DID}/renditions":
            return []
        if path.endswith("/detail"):
            return {"dataset": {"id": DID, "name": "weather"}}
        head, _, number = path.partition("/blocks")
        assert path != head
        assert head in (f"/dataset/v1alpha1/datasets/{DID}", "/dataset/v1alpha1/datasets/weather")
        if number:
            place = int(number[1:])
            if place >= len(self.blocks):
                raise NotFound("no such block")
            return {"hash": self.blocks[place][0]}
        return [{"hash": self.blocks[-1][0]}] if self.blocks else []

    def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: Mapping[str, object] | None = None,
        patience: float | None = None,
    ) -> Exchange:
        if path == "/resource/v1alpha1/events":
            self.events = Events()
            return self.events
        assert body is not None
        if path == "/node/v1alpha1/slices":
            return self._slices(body)
        self.queries += 1
        table = self._database.sql(str(body["sql"]), params=body.get("parameters") or {}).to_arrow_table()
        pin = self._pin()
        for rows in self.meanwhile:
            self.append(rows)
            self.events.told.put({"kind": "dataset.committed", "subject": "weather"})
            self.events.told.join()
        self.meanwhile = []
        frames = [frame(b"H", {"pins": [pin], "standing": "data", "standings": []}), *rows_of(table, self.batch)]
        return self._sent([*frames, frame(b"E", {"rows": table.num_rows})])

    def _pin(self) -> dict[str, Any]:
        number = len(self.blocks) - 1
        return {"name": "weather", "id": self.pinned, "block": self.blocks[-1][0], "sequenceNumber": number}

    def _slices(self, body: Mapping[str, Any]) -> Exchange:
        """Each block with rows has a file; two are given at a time."""
        if self.files is not None:
            raise self.files()
        after = body.get("after") or {"offset": -1}
        if "block" in after and [each for each, _ in self.blocks][after["sequenceNumber"] :][:1] != [after["block"]]:
            raise NotFound("rewritten", rule="listen-rewritten")
        ends = [-1, *(end - 1 for _, end in self.blocks)]
        spans = [(first + 1, last) for first, last in itertools.pairwise(ends) if last > max(first, after["offset"])]
        given = [] if body.get("explain") else spans[:2]
        head = {"pins": [self._pin()], "standing": "data", "standings": []}
        end = {
            "rows": sum(last - first + 1 for first, last in given),
            "offsets": given,
            "more": len(spans) > len(given),
        }
        schema = pa.schema([("offset", pa.int64()), ("n", pa.int64())])
        frames = [frame(b"H", head), frame(b"S", schema.serialize().to_pybytes())]
        frames += [frame(b"A", str(len(given)).encode()), frame(b"E", end)]
        return self._sent(frames, [self._file(*each) for each in given])

    def _file(self, first: int, last: int) -> int:
        numbers = range(first, last + 1)
        table = pa.table({"offset": numbers, "n": [each * 10 for each in numbers]})
        content = io.BytesIO()
        pq.write_table(table, content, row_group_size=self.batch)
        file = os.memfd_create("slice")
        os.write(file, content.getvalue())
        return file

    def _sent(self, whole: list[bytes], files: Sequence[int] = ()) -> Exchange:
        kept = whole[: self.frames]
        if len(kept) < len(whole) and self.breaks == "deadline":
            late = {"family": "Refused", "rule": "query-deadline", "detail": "it took too long"}
            return Sent(b"".join([*kept, frame(b"P", late)]), None, files)
        return Sent(b"".join(kept), None, files)


def frame(kind: bytes, content: bytes | dict[str, Any]) -> bytes:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack(">cI", kind, len(data)) + data


def rows_of(table: pa.Table, size: int) -> Iterator[bytes]:
    """Schema, batches and the end of an Arrow stream, a frame each."""
    sink, given = io.BytesIO(), 0
    with pa.ipc.new_stream(sink, table.schema) as stream:
        for batch in table.to_batches(max_chunksize=size):
            stream.write_batch(batch)
            yield frame(b"A", sink.getvalue()[given:])
            given = len(sink.getvalue())
    yield frame(b"A", sink.getvalue()[given:])


def numbers(update: Update) -> list[int]:
    return [int(each) for each in update.batch.column("n").to_pylist()]


STEPS = st.lists(
    st.tuples(
        st.integers(0, 7),  # rows of a new block
        st.integers(1, 3),  # rows of a batch
        st.integers(1, 8),  # frames until it breaks
        st.sampled_from(["connection", "deadline", "nothing"]),
        st.integers(0, 4),  # updates until the listener ends without saving
    ),
    max_size=8,
)


@pytest.mark.slow
@pytest.mark.parametrize("files", [None, no_plain_log, unknown_field])
@given(steps=STEPS, all_rows=st.booleans())
@settings(max_examples=25)
def test_rows_come_once_whatever_breaks(
    files: Callable[[], Exception] | None, steps: list[tuple[int, int, int, str, int]], *, all_rows: bool
) -> None:
    node = Node()
    node.files = files
    dataset = Client(node).open("weather").select("n")
    dataset = dataset if all_rows else dataset.where((col("n") != 20) & (col("n") != 50))
    kept: list[int] = []
    saved: str | None = None
    for rows, node.batch, frames, node.breaks, updates in [*steps, (1, 2, 1, "nothing", 1 << 30)]:
        node.append(rows)
        node.frames = 1 << 30 if node.breaks == "nothing" else frames
        try:
            for number, update in enumerate(dataset.listen(saved, follow=False)):
                if number == updates:
                    break
                kept += numbers(update)
                saved = str(update.position)
        except (Unreachable, Refused):
            continue
    assert kept == [n for n in range(0, node.blocks[-1][1] * 10, 10) if all_rows or n not in (20, 50)]


def test_news_come_from_files_without_a_query() -> None:
    node = Node()
    node.files = None
    for rows in (3, 0, 2, 4):
        node.append(rows)
    dataset = Client(node).open("weather")
    found = list(dataset.listen(follow=False))
    assert [n for each in found for n in numbers(each)] == [*range(0, 90, 10)]
    assert [each.complete for each in found] == [False] * (len(found) - 1) + [True]
    assert node.queries == 0
    node.append(1)
    assert [numbers(each) for each in dataset.listen(found[-1].position, follow=False)] == [[90]]
    assert node.queries == 0


def test_what_comes_between_looking_and_waiting_is_not_missed() -> None:
    node = Node()
    node.append(1)
    node.meanwhile = [1, 1]
    updates = Client(node).open("weather").listen(seconds=1e6)
    assert numbers(next(updates)) == [0]
    assert numbers(next(updates)) == [10, 20]
    node.append(1)
    node.events.told.put({"kind": "dataset.committed", "data": {"id": DID}})
    assert numbers(next(updates)) == [30]
    node.events.told.put(None)
    with pytest.raises(Unreachable):
        next(updates)


def test_a_listener_goes_on_when_rights_of_its_account_changed() -> None:
    """The node ends the stream of events with a reset: what came meanwhile is looked at, and later news is heard."""
    node = Node()
    node.append(1)
    listening = Client(node).open("weather").listen(seconds=1e6)
    assert numbers(next(listening)) == [0]
    first = node.events
    node.append(1)
    first.told.put({"kind": "reset"})
    assert numbers(next(listening)) == [10]
    assert node.events is not first
    node.append(1)
    node.events.told.put({"kind": "dataset.committed", "data": {"id": DID}})
    assert numbers(next(listening)) == [20]
    listening.close()


def test_a_listener_that_is_left_asks_no_more() -> None:
    node = Node()
    node.append(3)
    updates = Client(node).open("weather").listen(seconds=1e6)
    assert numbers(next(updates)) == [0, 10]
    updates.close()
    node.append(3)
    assert list(updates) == []
    assert node.queries == 1


def test_the_end_of_a_program_ends_listeners_that_it_left_open() -> None:
    node = Node()
    node.append(1)
    updates = Client(node).open("weather").listen(seconds=1e6)
    next(updates)
    (news,) = subscription._open_news
    subscription._close_news()
    assert not news._thread.is_alive()
    assert not subscription._open_news
    updates.close()


@pytest.mark.parametrize("files", [None, no_plain_log])
@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_another_history_is_told_and_nothing_of_it_is_given(files: Callable[[], Exception] | None, blocks: int) -> None:
    node = Node()
    node.files = files
    node.append(1)
    node.append(1)
    dataset = Client(node).open("weather")
    saved = [update.position for update in dataset.listen(follow=False)][-1]
    node.blocks = []
    for _ in range(blocks):
        node.append(4, "b")
    with pytest.raises(NotFound) as fault:
        list(dataset.listen(saved, follow=False))
    assert fault.value.rule == "listen-rewritten"


def test_rows_of_another_dataset_or_out_of_order_are_never_given() -> None:
    node = Node()
    node.append(3)
    dataset = Client(node).open("weather")
    node.pinned = OTHER
    with pytest.raises(Bug, match=OTHER):
        list(dataset.listen(follow=False))
    node.pinned = DID
    node._database.execute(f'DELETE FROM "{DID}" WHERE "offset" = 1')
    with pytest.raises(Bug, match="offset 0 to 2"):
        list(dataset.listen(follow=False))
    node._database.execute(f'CREATE OR REPLACE TABLE "{DID}" AS SELECT 2 - i "offset", i n FROM range(3) t(i)')
    with pytest.raises(Bug, match="order"):
        list(dataset.where(col("n") >= 0).listen(follow=False))


class Sharded(Node):
    """A node where the collection has several shards."""

    def dataset(self, ref: str) -> dict[str, Any]:
        said = super().dataset(ref)
        return {**said, "shards": [DID, OTHER]} if ref == "weather" else said


def test_one_shard_is_listened_to_by_its_id() -> None:
    node = Sharded()
    node.append(3)
    assert [numbers(each) for each in Client(node).open(DID).listen(follow=False)] == [[0, 10], [20]]


def test_the_last_rows_of_a_cut_are_marked() -> None:
    node = Node()
    node.append(5)
    found = list(Client(node).open("weather").listen(follow=False))
    assert [each.complete for each in found] == [False, False, True]


PARTS = st.builds(Position, st.text(), st.integers(-1, 1 << 60), st.text(), st.integers(0, 1 << 40))


@pytest.mark.slow
@given(st.lists(PARTS, min_size=1, max_size=4))
def test_a_position_of_any_number_of_shards_is_one_line(parts: list[Position]) -> None:
    position = Position.of(parts)
    assert Position.parse(str(position)) == position
    assert position.parts == tuple(parts)
    assert "\n" not in str(position)


@pytest.mark.parametrize(
    "said",
    [
        '{"id": "a", "offset": 0, "block": "b", "sequence_number": 1, "shards": [{"id": "a"}]}',
        '{"id": "a", "offset": 0, "block": "b", "sequence_number": 1, "shards": 3}',
        '{"id": "a", "offset": 0, "block": "b", "sequence_number": 1,'
        ' "shards": [{"id": "z", "offset": 0, "block": "b", "sequence_number": 1}]}',
    ],
)
def test_a_damaged_position_of_shards_is_none(said: str) -> None:
    with pytest.raises(Invalid, match="not the position"):
        Position.parse(said)


class Given(Answer):
    """An answer that is here."""

    def __init__(self, told: NodeMetadata, schema: pa.Schema, batches: list[pa.RecordBatch]) -> None:
        self.told, self.schema, self._given = told, schema, batches

    def close(self) -> None: ...

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield from self._given


class InTwo(Source):
    """Two shards of four rows, each in two batches."""

    def after(self, dataset: str, offset: int, mark: str, pin: Pin | None = None) -> Answer:
        assert pin is not None
        left = [part for part in ([0, 1], [2, 3]) if part[-1] > offset]
        batches = [pa.record_batch({mark: pa.array([each for each in part if each > offset])}) for part in left]
        schema = pa.schema([(mark, pa.int64())])
        return Given(NodeMetadata((pin,), "data", (), ()), schema, batches)

    def cut(self, name: str) -> tuple[Pin, ...]:
        return tuple(Pin(name, each, f"head of {each}", 3) for each in (DID, OTHER))

    def describe_dataset(self, ref: str) -> dict[str, Any]:
        return {"id": DID, "name": "both", "shards": [DID, OTHER]}

    def holds(self, position: Position) -> bool:
        return position.block.startswith("head of")

    def has_ended(self, dataset: str) -> bool:
        return False


def test_a_position_within_a_cut_loses_no_rows_of_it() -> None:
    """A position names the block up to which is read, though rows before that block may be left."""
    source = InTwo(Transport("http://localhost"), "both", always=False, whole=True)
    whole = list(listen(source, None, follow=False, seconds=0))
    assert [each.batch.num_rows for each in whole] == [2, 2, 2, 2]
    for count, each in enumerate(whole, 1):
        rest = list(listen(source, each.position, follow=False, seconds=0))
        assert [later.position for later in rest] == [later.position for later in whole[count:]]


class HandingOver(Transport):
    """A node that completes a handover while it is asked for its end."""

    def __init__(self, answers: Sequence[Any]) -> None:
        super().__init__(Path("nowhere"))
        self.answers = list(answers)

    def get(self, path: str, query: Mapping[str, object] | None = None) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_an_end_that_is_not_complete_yet_is_asked_for_again() -> None:
    soon = NotFound("it is not complete to its handover", rule="rendition-upper")
    pins = [Pin("a", each, "f1620", 3).said() for each in (DID, OTHER)]
    end = {"time": "2024-01-01T00:00:00Z", "old": pins[0], "new": pins[1], "equal": True}
    assert Ending.of(HandingOver([soon, soon, end]), DID).new[0].id == OTHER
    never = NotFound("it has not ended", rule="rendition-active")
    with pytest.raises(NotFound, match="has not ended"):
        Ending.of(HandingOver([never, end]), DID)


def test_the_position_of_another_collection_that_handed_over_is_told_as_such() -> None:
    ended = [{"datasetId": OTHER, "state": "Superseded"}, {"datasetId": "did:odf:fed2", "state": "Active"}]
    source = InTwo(HandingOver([ended, ended, NotFound("no such dataset")]), "weather", always=False, whole=True)
    assert source.was_before(OTHER, "did:odf:fed2")
    assert not source.was_before(OTHER, DID)
    assert not source.was_before("did:odf:fed3", DID)


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        ("2024-05-01", "2024-05-01T00:00:00Z"),
        ("2024-05-01 12:30", "2024-05-01T12:30:00Z"),
        (datetime.date(2024, 5, 1), "2024-05-01T00:00:00Z"),
        (
            datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
            "2024-05-01T10:00:00Z",
        ),
        ("2024-05-01T12:30:00.123456789Z", "2024-05-01T12:30:00.123456789Z"),
        ("yesterday", "yesterday"),
        (None, None),
    ],
)
def test_a_hold_takes_times_as_reading_does(said: str | datetime.date | None, sent: str | None) -> None:
    assert _format_time(said) == sent
