"""What may be set for a cluster: everything but what answers, or what a query can reach, could depend on."""

from __future__ import annotations

import socket

import pytest

from chain.errors import Invalid
from engines.errors import EngineLost
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
