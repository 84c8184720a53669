"""What a person set reaches the part that it is for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chain.errors import Environment, Invalid, Refused
from config import model
from config.model import Settings
from engines.provision.settings import Isolation
from odfd.services.execution.options import engine_environ, ingest_settings, spark_options
from odfd.services.peers.host_options import host_options
from odfd.store.directory import open_state_directory
from p2p.identity import peer_of_seed
from p2p.pace import Bandwidth
from p2p.web.client import Patience
from worlds.manifests import ROOT
from worlds.node_world import World

RELAY, PEER = peer_of_seed(b"r" * 32), peer_of_seed(b"p" * 32)


def test_the_java_of_the_settings_stands_for_that_of_the_person() -> None:
    settings, person = Settings(), {"PATH": "/bin", "JAVA_HOME": "/old"}
    assert engine_environ(settings, person) == person
    engine = replace(settings.engine, java_home="/opt/java")
    stated = replace(settings, engine=engine)
    assert engine_environ(stated, person) == {"PATH": "/bin", "JAVA_HOME": "/opt/java"}


def test_isolated_datasets_have_as_many_processes_as_is_said(tmp_path: Path) -> None:
    settings = Settings()
    apart = replace(settings, engine=replace(settings.engine, isolation="dataset", max_processes=7))
    with open_state_directory(tmp_path) as home:
        assert spark_options(settings, home).isolation is Isolation.SHARED
        options = spark_options(apart, home)
    assert (options.isolation, options.processes) == (Isolation.DATASET, 7)


def test_an_engine_starts_quickly_where_that_is_said(tmp_path: Path) -> None:
    settings = Settings()
    with open_state_directory(tmp_path) as home:
        assert not spark_options(settings, home).quick
        patient = replace(settings, engine=replace(settings.engine, start_seconds=7.0))
        assert [spark_options(each, home).limits.start for each in (settings, patient)] == [120.0, 7.0]
        assert spark_options(replace(settings, engine=replace(settings.engine, quick_start=True)), home).quick


def test_sources_see_the_variables_that_the_settings_name_and_no_other(tmp_path: Path) -> None:
    environ = {"TOKEN": "hush", "AWS_SECRET_ACCESS_KEY": "hush too"}
    with open_state_directory(tmp_path) as home:
        assert ingest_settings(Settings(), home, environ).variables == {}
        allowing = replace(Settings(), ingest=model.Ingest(variables=("TOKEN", "NOT_SET")))
        assert ingest_settings(allowing, home, environ).variables == {"TOKEN": "hush"}


def test_a_node_hands_its_environment_to_no_source(world: World, monkeypatch: Any) -> None:
    monkeypatch.setenv("SOME_TOKEN", "hush")
    assert world.node("alice").parts.ingest_deps.settings.variables == {}


async def test_what_ingestion_may_do_is_set_and_follows_a_reload(world: World) -> None:
    """A node's own sources, and within their bounds those that strangers declared, which run no commands."""
    said = model.Ingest(source_bytes=1000, silence_seconds=7, pipe="user", pipe_seconds=9, container="offline")
    async with world.running("alice", ingest=said) as alice:
        parts = alice.parts
        for _ in range(2):
            own, strange = parts.ingest_deps.settings, parts.observer.deps.settings
            assert (own.max_source_bytes, own.pipe, own.pipe_timeout, own.container) == (
                said.source_bytes, said.pipe, said.pipe_seconds, said.container
            )  # fmt: skip
            assert own.patience == strange.patience == Patience(
                said.connect_seconds, said.silence_seconds, said.silence_seconds,
                round(said.least_rate * said.silence_seconds), said.fetch_seconds,
            )  # fmt: skip
            assert strange.max_source_bytes == said.source_bytes
            assert (strange.pipe, strange.container, dict(strange.variables)) == ("never", "never", {})
            said = model.Ingest(
                connect_seconds=3,
                fetch_seconds=4,
                least_rate=5,
                source_bytes=2000,
                silence_seconds=8,
                pipe="never",
                pipe_seconds=10,
                container="network",
            )
            alice.assembly.reload(model.Settings(ingest=said))


async def test_uploads_and_ingestion_keep_the_reserve_of_the_disk(world: World) -> None:
    """They filled it to its last byte; the reserve and the size of an upload follow a reload."""

    async def chunks() -> AsyncIterator[bytes]:
        yield b"event_time,city,population\n"

    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,300000")
        alice.assembly.reload(model.Settings(limits=model.Limits(disk_reserve_bytes=1 << 60)))
        with pytest.raises(Environment) as caught:
            await alice.api.flow.stage("a.csv", chunks())
        assert caught.value.rule == "disk-reserve"
        (item,) = await alice.pull("cities")
        assert (item.outcome, item.fault.rule) == ("failed", "disk-reserve")
        alice.assembly.reload(model.Settings(limits=model.Limits(upload_bytes=5)))
        with pytest.raises(Refused, match="has more than 5 bytes"):
            await alice.api.flow.stage("a.csv", chunks())
        assert (await alice.pull("cities"))[0].outcome == "updated"


@pytest.mark.parametrize("text", ["/ip4/1.2.3.4/tcp/1", f"/ip4/1.2.3.4/tcp/1/p2p/{RELAY}/p2p-circuit/p2p/{PEER}", "/x"])
def test_a_relay_is_named_with_its_peer_and_where_it_is(tmp_path: Path, text: str) -> None:
    where = f"/ip4/1.2.3.4/tcp/4150/p2p/{RELAY}"
    with open_state_directory(tmp_path) as home:
        options = host_options(Settings(p2p=model.P2p(relays=(where,), relay=True)), home, Bandwidth())
        assert options.relays == (where,)
        assert options.relay is not None
        assert host_options(Settings(), home, Bandwidth()).relay is None
        with pytest.raises(Invalid) as refused:
            host_options(Settings(p2p=model.P2p(relays=(text,))), home, Bandwidth())
    assert refused.value.hint


async def test_caps_follow_a_reload(world: World) -> None:
    """Of the line, of objects, of all mirrors' data, of what the disk keeps: also for what is under way."""
    async with world.running("alice") as alice:
        line, object_fetcher = alice.parts.bandwidth, alice.parts.object_fetcher
        assert (line.down.rate, line.up.rate, object_fetcher.room.limit) == (0, 0, 0)
        limits = model.Limits(mirror_bytes=7000, object_bytes=600, disk_reserve_bytes=50)
        p2p = model.P2p(download_rate=10, upload_rate=20, relay_rate=30)
        alice.assembly.reload(model.Settings(p2p=p2p, limits=limits))
        assert (line.down.rate, line.up.rate, object_fetcher.room.limit) == (10, 20, 7000)
        assert line.carried.rate == 30
        assert (object_fetcher.limits.object_bytes, object_fetcher.limits.disk_reserve) == (600, 50)
        assert alice.parts.object_fetcher.limits.disk_reserve == 50
