"""``odfd engine spark`` as somebody else starts it: no daemon, no state, a coordinator that is not ours, bad days."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engines.listen_address import READY
from worlds import foreign_coordinator as foreign
from worlds.eventually import PATIENCE, until
from worlds.processes import computed

pytestmark = pytest.mark.engine
ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-X", "faulthandler", "-m", "odfd.daemon.main", "engine", "spark", "--quick"]
TIME = pa.timestamp("ms", "UTC")
DAY = 86_400_000
DAILY = "select time_bucket(interval '1' day, event_time) as event_time, sum(v) as s from a group by 1"
ENDLESS = """select count(*) as n from input lateral view explode(sequence(1, 100000)) t as x
lateral view explode(sequence(1, 100000)) u as y lateral view explode(sequence(1, 100000)) v as z
where x + y + z = -1"""


class Engine:
    """A process, and its address."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.errors = folder / "stderr"
        environment = os.environ | {"TMPDIR": str(folder)}
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*COMMAND, *words], stdout=subprocess.PIPE, stderr=errors, cwd=ROOT, env=environment
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        assert line.startswith(READY), self.errors.read_text()
        self.address = line.removeprefix(READY).strip()

    def jvm(self) -> int:
        """Its process; there is none for a moment after one ended."""
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                if "java" in Path(f"/proc/{child}/cmdline").read_text().split("\0")[0]:
                    return int(child)
        raise AssertionError(f"no JVM: {self.errors.read_text()}")

    def stop(self) -> int:
        """Exit code; one that does not end says where its threads are, and dies of it."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)
            code = self.process.wait()
        assert self.process.stdout is not None
        with self.process.stdout as said:
            assert said.read() == b"", "standard output is for the ready line"
        return code


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    engine = Engine(folder, "--listen", ":0", "--heap", "512m", "--disk", "0.05")
    yield engine
    assert engine.stop() == 0, engine.errors.read_text()
    assert [each.name for each in folder.iterdir()] == ["stderr"], "what it made for itself goes with it"


def rows(count, step=3_600_000, key=None):
    """An hour apart."""
    return pa.table(
        {
            "offset": pa.array(range(count), pa.int64()),
            "op": pa.array([0] * count, pa.int32()),
            "system_time": pa.array([0] * count, TIME),
            "event_time": pa.array([at * step for at in range(count)], TIME),
            "k": [key or f"k{at % 3}" for at in range(count)],
            "v": pa.array(range(count), pa.int64()),
        }
    )


def given(folder, table, alias="a"):
    path = folder / f"slice-{alias}"
    pq.write_table(table, path)
    last = table["event_time"].cast(pa.int64())[-1].as_py()
    marks = [(0, (last + 1) * 1_000_000)]
    return foreign.Input(alias.encode() * 32, alias, [path], marks, table.schema, (0, table.num_rows - 1))


@pytest.fixture
def ask(engine, tmp_path):
    """One transaction of a query over some inputs."""
    (tmp_path / "kept").mkdir()

    def ask(sql, *inputs):
        work = tmp_path / f"work-{len(list(tmp_path.iterdir()))}"
        query = foreign.Query([(None, sql)])
        coordinator = foreign.Coordinator(engine.address, tmp_path / "kept", work, query, system_time=10**18)
        answer = coordinator.transact(inputs or [given(tmp_path, rows(48))])
        assert (coordinator.checkpoint is None) == (answer.kind != foreign.SUCCESS)
        return answer, coordinator

    return ask


def works(ask):
    """The next request."""
    answer, coordinator = ask(DAILY)
    assert answer.kind == foreign.SUCCESS, answer.message
    assert coordinator.table()["s"].to_pylist() == [sum(range(24))]
    return True


def test_serves_on_this_machine_alone(engine, ask):
    assert engine.address.startswith("127.0.0.1:")
    assert works(ask)


def test_an_address_that_is_taken_is_told_before_spark_starts():
    """``test_a_place_is_free_or_says_why_not`` has all kinds of places."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = f"127.0.0.1:{taken.getsockname()[1]}"
        for place, why, code in ((busy, "in use", 7), ("nowhere", "no address to listen at", 5)):
            done = subprocess.run([*COMMAND, "--listen", place], capture_output=True, text=True, cwd=ROOT, check=False)
            assert done.returncode == code
            assert place in done.stderr
            assert why in done.stderr
            assert "HOST:PORT" in done.stderr or "--listen" in done.stderr
            assert READY not in done.stdout
            assert len(done.stderr.splitlines()) == 2, done.stderr


FAULTY = {
    "selec event_time from a": "line 1",
    "select event_time, nope from a": "nope",
    "select event_time, v / (v - 7) as x from a": "v / (v - 7)",
    "select event_time, cast(k as int) as x from a": "cast(k as int)",
    "select event_time, v, cast(v * 1000000000000000000 as bigint) as x from a": "v * 1000000000000000000",
    "select event_time, element_at(array(1, 2), cast(v as int) + 1) as x from a": "element_at",
    "create table t as select 1": "not a query",
}


def test_queries_that_cannot_work_are_told_where_and_the_next_one_works(ask):
    for sql, says in FAULTY.items():
        answer, _ = ask(sql)
        assert answer.kind == foreign.INVALID_QUERY, answer
        assert says in answer.message
    assert works(ask)


def test_a_window_that_never_closes_gives_nothing_and_is_kept(ask, tmp_path):
    """No watermark: nothing is settled, however many rows come."""
    table = rows(48)
    silent = foreign.dataclasses.replace(given(tmp_path, table), watermarks=[])
    answer, coordinator = ask(DAILY, silent)
    assert (answer.kind, answer.start, answer.watermark) == (foreign.SUCCESS, None, None)
    later = foreign.dataclasses.replace(silent, slices=[], watermarks=[(10**18, DAY * 1_000_000)], interval=None)
    assert coordinator.transact([later]).kind == foreign.SUCCESS
    assert coordinator.table()["s"].to_pylist() == [sum(range(24))]


def test_a_slice_that_is_damaged_is_named(ask, tmp_path):
    whole = given(tmp_path, rows(2000))
    raw = bytearray(whole.slices[0].read_bytes())
    for at in range(200, len(raw) // 2, 7):
        raw[at] ^= 0xFF
    whole.slices[0].write_bytes(raw)
    for sql in (
        "select event_time, k, v from a",
        DAILY,
    ):
        answer, _ = ask(sql, whole)
        assert answer.kind in (foreign.INVALID_QUERY, foreign.INTERNAL_ERROR)
        assert foreign.hashlib.sha3_256(raw).hexdigest() in answer.message, answer.message
    whole.slices[0].write_bytes(b"no parquet at all")
    assert ask("select event_time, k, v from a", whole)[0].kind in (foreign.INVALID_QUERY, foreign.INTERNAL_ERROR)
    assert works(ask)


@pytest.mark.nightly
def test_a_join_that_explodes_meets_a_limit(ask, tmp_path):
    one = given(tmp_path, rows(30_000, step=1, key="same"), "a")
    other = given(tmp_path, rows(30_000, step=1, key="same"), "b")
    answer, _ = ask(
        "select a.event_time, a.v, repeat(b.k, 3000) as w from a join b on a.k = b.k and b.event_time between "
        "a.event_time - interval '1' day and a.event_time", one, other,
    )  # fmt: skip
    assert answer.kind == foreign.INTERNAL_ERROR
    assert "memory" in answer.message or "disk" in answer.message, answer.message
    assert works(ask)


@pytest.mark.nightly
def test_a_query_that_fills_the_disk_is_stopped(engine, ask, tmp_path):
    pq.write_table(rows(1), tmp_path / "one")
    big = """select count(*) as n from (select distinct sha2(concat(x, ' ', y), 512) as h, x, y
    from input lateral view explode(sequence(1, 6000)) t as x lateral view explode(sequence(1, 10000)) u as y)"""
    answer = foreign.raw_query(engine.address, [tmp_path / "one"], foreign.Query([(None, big)]), tmp_path / "out")
    assert (answer.kind, "disk" in answer.message) == (foreign.INTERNAL_ERROR, True), answer.message
    assert works(ask)


@pytest.mark.nightly
def test_a_query_that_wants_all_memory_costs_its_jvm_and_no_more(engine, ask, tmp_path):
    pq.write_table(rows(1), tmp_path / "one")
    before = engine.jvm()
    big = "select repeat('abcdefgh', 1000) as s, x from input lateral view explode(sequence(1, 500000)) t as x"
    answer = foreign.raw_query(engine.address, [tmp_path / "one"], foreign.Query([(None, big)]), tmp_path / "out")
    assert (answer.kind, "memory" in answer.message) == (foreign.INTERNAL_ERROR, True), answer.message
    assert works(ask)
    assert engine.jvm() != before


@pytest.mark.nightly
def test_a_jvm_that_dies_at_work_is_told_and_replaced(engine, ask, tmp_path):
    pq.write_table(rows(1), tmp_path / "one")
    assert works(ask)
    before, answers = engine.jvm(), []

    def work():
        query = foreign.Query([(None, ENDLESS)])
        answers.append(foreign.raw_query(engine.address, [tmp_path / "one"], query, tmp_path / "out"))

    idle = computed(before)
    thread = threading.Thread(target=work)
    thread.start()
    until(lambda: answers or computed(before) >= idle + 20)
    assert not answers
    os.kill(before, signal.SIGKILL)
    thread.join(PATIENCE)
    assert [(each.kind, "JVM ended (signal 9)" in each.message) for each in answers] == [(foreign.INTERNAL_ERROR, True)]
    assert works(ask)
    assert engine.jvm() != before


@pytest.mark.nightly
def test_a_caller_that_leaves_stops_the_work(engine, ask, tmp_path):
    """Spark has two cores, and as many endless queries would take both: one row that becomes billions has no end."""
    pq.write_table(rows(1), tmp_path / "one")
    # So that the JVM is there, and the time is spent at work.
    assert works(ask)
    for number in range(2):
        with pytest.raises(grpc.RpcError) as left:
            foreign.raw_query(
                engine.address,
                [tmp_path / "one"],
                foreign.Query([(None, ENDLESS)]),
                tmp_path / f"{number}",
                timeout=2.0,
            )
        assert left.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert works(ask)
