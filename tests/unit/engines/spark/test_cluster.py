"""Clusters of others."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError

from chain.data.parquet import write_slice
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.instant import Instant, from_millis
from engines.contract import EngineProgress, TransformRequestInput, Vocab, Watermark
from engines.errors import EngineLost
from engines.spark.execution.foreign_coordinators import blocks_of
from engines.spark.runtime.cluster import Cluster, cluster_settings, read_settings
from engines.spark.runtime.settings import (
    CONFINEMENT,
    MEANING,
    PATIENT,
    QUICK,
    SPREAD,
    check_reachable,
    jvm_options,
    manifest_settings,
    parse_master,
)
from engines.spark.runtime.task_counts import LastSample
from engines.spark.state.files import State
from worlds.eventually import PATIENCE

# What may be set for a cluster: everything but what answers, or what a query can reach, could depend on.


def written(tmp_path, text):
    path = tmp_path / "cluster.conf"
    path.write_text(text)
    return read_settings(path)


def test_settings_are_lines_of_name_and_value(tmp_path):
    text = "# ours\n\nspark.executor.memory 4g\nspark.yarn.queue = odf\n  spark.app.name=a b=c \n"
    assert written(tmp_path, text) == {
        "spark.executor.memory": "4g", "spark.yarn.queue": "odf", "spark.app.name": "a b=c"
    }  # fmt: skip


@pytest.mark.parametrize(
    "text", ["executor.memory 4g", "spark.executor.memory", "spark.executor.memory=", "x" * 70_000]
)
def test_what_is_no_setting_is_refused(tmp_path, text):
    with pytest.raises(EngineLost) as fault:
        written(tmp_path, text)
    assert fault.value.rule == "cluster-settings"


def test_a_missing_file_is_said(tmp_path):
    with pytest.raises(EngineLost, match="nowhere"):
        read_settings(tmp_path / "nowhere")


@pytest.mark.parametrize("name", [*(row[0] for row in (*MEANING, *CONFINEMENT)), "spark.executor.extraJavaOptions"])
def test_what_answers_depend_on_is_pinned(name):
    """Attack T-QUERY-03: executors with other settings.

    Defence: settings that results depend on are pinned for them too; they report Java, Spark and code at start.
    """
    with pytest.raises(EngineLost, match="pinned"):
        cluster_settings(Cluster("yarn", settings={name: "other"}), "1g")


def test_how_work_is_spread_is_free_and_no_part_of_the_identity():
    spread = {name: "200" for name, _, _ in SPREAD}
    found = cluster_settings(Cluster("yarn", "10.0.0.7", spread), "3g")
    assert found.items() >= {**spread, "spark.driver.host": "10.0.0.7", "spark.executor.memory": "3g"}.items()
    assert not set(spread) & set(manifest_settings())


def test_executors_have_the_pins_of_the_jvm():
    options = cluster_settings(Cluster("yarn"), "1g")["spark.executor.extraJavaOptions"].split()
    assert {"-Duser.timezone=UTC", "-Duser.language=en", "-Duser.country=US", "-Dfile.encoding=UTF-8"} <= set(options)


def test_a_quick_start_is_of_every_jvm_and_no_part_of_the_identity(tmp_path):
    for quick in (False, True):
        executors = cluster_settings(Cluster("yarn"), "1g", quick)["spark.executor.extraJavaOptions"]
        options = [executors.split(), jvm_options(tmp_path, quick=quick).split()]
        assert [set(QUICK.split()) <= set(each) for each in options] == [quick, quick]
        assert (set(PATIENT.split()) <= set(options[1])) == (not quick)
    assert not {QUICK, PATIENT} & manifest_settings().keys()


@pytest.mark.parametrize(
    ("url", "places"),
    [
        ("yarn", ()),
        ("spark://head:7077", (("head", 7077),)),
        ("spark://one:7077,two:7078", (("one", 7077), ("two", 7078))),
        ("spark://[::1]:7077", (("::1", 7077),)),
        ("k8s://https://api:6443", (("api", 6443),)),
        ("k8s://api", (("api", 443),)),
        ("k8s://http://api", (("api", 80),)),
    ],
)
def test_masters_say_where_they_are(url, places):
    assert parse_master(url).places == places


@pytest.mark.parametrize(
    "url", ["", "local[4]", "spark://head", "spark://:7077", "spark://one:1,", "spark://h:99999", "k8s://", "yarn://x"]
)
def test_what_is_no_master_is_refused(url):
    with pytest.raises(Invalid, match="master") as fault:
        parse_master(url)
    assert "spark://HOST:PORT" in fault.value.hint


def test_a_master_where_nobody_is_is_told_before_spark_starts():
    with socket.create_server(("127.0.0.1", 0)) as there, socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # taken, and never listening
        gone = f"127.0.0.1:{nobody.getsockname()[1]}"
        check_reachable(parse_master(f"spark://{gone},127.0.0.1:{there.getsockname()[1]}"))
        with pytest.raises(EngineLost, match=gone) as fault:
            check_reachable(parse_master(f"spark://{gone}"))
    assert fault.value.rule == "cluster-master"
    check_reachable(parse_master("yarn"))


# Blocks made out of slices and watermarks: a watermark belongs to the slice of its block, to the millisecond.

TIME = pa.timestamp("ms", "UTC")


def made(folder: Path, millis: int) -> str:
    path = folder / f"slice-{millis}"
    columns = {"offset": pa.array([millis]), "op": pa.array([0], pa.int32()), "system_time": pa.array([millis], TIME)}
    write_slice(pa.table(columns | {"event_time": pa.array([0], TIME)}), path)
    return str(path)


def test_a_watermark_finds_its_slice_though_blocks_are_dated_in_nanoseconds(tmp_path: Path) -> None:
    marks = [(3_000_000, 1), (5_999_999, 2), (6_000_001, 3), (9_000_000, 4)]
    given = TransformRequestInput(
        dataset_id=DatasetId.from_public_key(b"i" * 32), dataset_alias="a", query_alias="a", vocab=Vocab(),
        data_paths=(made(tmp_path, 5), made(tmp_path, 6)),
        explicit_watermarks=tuple(
            Watermark(system_time=Instant(at), event_time=from_millis(mark)) for at, mark in marks
        ),
    )  # fmt: skip
    found = [
        (block.data_path and Path(block.data_path).name, block.watermark_before, block.watermark_after)
        for block in blocks_of(given, State(), 0, tmp_path)
    ]
    one, two, three, four = (from_millis(mark) for _, mark in marks)
    assert found == [(None, None, one), ("slice-5", one, two), ("slice-6", two, three), (None, three, four)]


# A sample that takes long keeps nobody waiting.


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def taken(threads: ThreadPoolExecutor) -> None:
    """All samples that were begun."""
    threads.submit(lambda: None).result(PATIENCE)


def test_the_newest_sample_is_told_and_one_that_takes_long_is_not_waited_for(threads: ThreadPoolExecutor) -> None:
    go_on, numbers = threading.Event(), iter(range(1, 9))

    def take() -> EngineProgress:
        assert go_on.wait(PATIENCE)
        return EngineProgress(tasks_done=next(numbers))

    sample = LastSample(take, threads)
    assert [sample() for _ in range(3)] == [EngineProgress()] * 3
    go_on.set()
    taken(threads)
    assert sample() == EngineProgress(tasks_done=1)
    taken(threads)
    assert sample() == EngineProgress(tasks_done=2)


def test_a_jvm_that_is_gone_leaves_the_last_sample_and_another_fault_is_none_of_its(
    threads: ThreadPoolExecutor,
) -> None:
    outcomes: Iterator[Any] = iter([EngineProgress(tasks_done=1), Py4JError("gone"), ConnectionError(), KeyError("x")])

    def take() -> EngineProgress:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    sample = LastSample(take, threads)
    for expected in (EngineProgress(), *[EngineProgress(tasks_done=1)] * 3):
        assert sample() == expected
        taken(threads)
    with pytest.raises(KeyError):
        sample()


def test_a_process_that_ends_begins_no_sample() -> None:
    threads = ThreadPoolExecutor(1)
    threads.shutdown()
    sample = LastSample(EngineProgress, threads)
    assert sample() == sample() == EngineProgress()
