"""``kill -9`` at durable steps of pulls from databases, a bucket and a broker: no row is lost, and none comes twice.

A life ends at a step of its commits that is drawn: before one, within it, behind it, between two. A soak: fifty.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from odfd.repositories.bucket import open_bucket
from odfd.repositories.manifest import place_of
from worlds.databases import PASSWORD, Served, mysql_served, postgres_served
from worlds.eventually import PATIENCE
from worlds.evm import chain_served
from worlds.ftp import ftp_served
from worlds.kafka import kafka_served
from worlds.mqtt import mosquitto_served
from worlds.s3_server import new_bucket, s3_server
from worlds.sftp import sftp_served
from worlds.sse import stream_served

pytestmark = pytest.mark.e2e
LIVES = max(4, 5 * int(os.environ.get("ODF_SOAK", "1")) // 2)
BATCH = 4
"""Rows of one transaction."""
EACH_LIFE = 3 * BATCH
LAST_STEP = 22
"""A commit has about a dozen steps."""
_LONG_AGO = 1_700_000_000
"""The time of files, which are taken at once: nobody writes to them any more."""
MANIFEST = """kind: DatasetSnapshot
version: 1
content:
  name: orders
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {fetch}
      read: {read}
      merge: {{kind: Append}}
"""

Source = Callable[[range], None]
"""Adds rows with these ids."""


@contextmanager
def database(folder: Path) -> Iterator[tuple[str, Source]]:
    path = folder / "shop.sqlite"

    def add(ids: range) -> None:
        with closing(sqlite3.connect(path)) as base:
            base.execute("CREATE TABLE IF NOT EXISTS orders (id integer primary key, name text)")
            base.executemany("INSERT INTO orders VALUES (?, ?)", [(each, f"order {each}") for each in ids])
            base.commit()

    fetch = f"{{kind: Sql, url: 'sqlite://{path}', query: 'select id, name from orders', cursor: [id], batchRows: 5}}"
    yield MANIFEST.format(fetch=fetch, read="{kind: Parquet, ddlSchema: [id BIGINT, name STRING]}"), add


@contextmanager
def postgres(_: Path) -> Iterator[tuple[str, Source]]:
    with postgres_served() as served:
        served.run("CREATE TABLE orders (id bigint primary key, name text)")
        yield asked(served), lambda ids: served.run(_rows(ids))


@contextmanager
def mysql(_: Path) -> Iterator[tuple[str, Source]]:
    with mysql_served() as served:
        served.run("CREATE TABLE orders (id bigint primary key, name varchar(99))")
        yield asked(served), lambda ids: served.run(_rows(ids))


@contextmanager
def kafka(_: Path) -> Iterator[tuple[str, Source]]:
    with kafka_served() as broker:
        broker.make("orders")

        def add(ids: range) -> None:
            broker.send("orders", *(b'{"id": %d, "name": "order %d"}' % (each, each) for each in ids))

        fetch = f"{{kind: Kafka, url: 'kafka://{broker.address}/orders', batchMessages: {BATCH}}}"
        yield MANIFEST.format(fetch=fetch, read="{kind: NdJson, ddlSchema: [id BIGINT, name STRING]}"), add


@contextmanager
def mqtt(_: Path) -> Iterator[tuple[str, Source]]:
    with mosquitto_served() as broker:

        def add(ids: range) -> None:
            broker.send("orders", *(b'{"id": %d, "name": "order %d"}' % (each, each) for each in ids))

        fetch = f"{{kind: Mqtt, host: 127.0.0.1, port: {broker.port}, topics: [{{path: orders}}]}}"
        yield MANIFEST.format(fetch=fetch, read="{kind: NdJson, ddlSchema: [id BIGINT, name STRING]}"), add


def asked(served: Served) -> str:
    """The manifest of a query of a real server, whose password is a variable."""
    url = served.url.replace("env.DB", "env.SHOP")
    fetch = f"{{kind: Sql, url: '{url}', query: 'select id, name from orders', cursor: [id], batchRows: 5}}"
    return MANIFEST.format(fetch=fetch, read="{kind: Parquet, ddlSchema: [id BIGINT, name STRING]}")


def _rows(ids: range) -> str:
    return "INSERT INTO orders VALUES " + ", ".join(f"({each}, 'order {each}')" for each in ids)


@contextmanager
def bucket(_: Path) -> Iterator[tuple[str, Source]]:
    with s3_server(page=3) as server:
        url = new_bucket(server, "shop")
        owner = open_bucket("shop", place_of(url), {"accessKeyId": "a", "secretAccessKey": "b"})

        def add(ids: range) -> None:
            for first in range(ids.start, ids.stop, BATCH):
                rows = [f"{each},order {each}" for each in range(first, first + BATCH)]
                owner.put(f"orders/{first:06}.csv", "\n".join(["id,name", *rows, ""]).encode())

        keys = "accessKeyId: '${{ env.SHOP }}', secretAccessKey: '${{ env.SHOP }}'"
        fetch = f"{{kind: FilesGlob, path: '{url}/orders/*.csv', {keys}}}"
        yield MANIFEST.format(fetch=fetch, read="{kind: Csv, header: true, ddlSchema: [id BIGINT, name STRING]}"), add


@contextmanager
def sftp(folder: Path) -> Iterator[tuple[str, Source]]:
    (folder / "served").mkdir()
    with sftp_served(folder / "served") as server:

        def add(ids: range) -> None:
            for first in range(ids.start, ids.stop, BATCH):
                rows = [f"{each},order {each}" for each in range(first, first + BATCH)]
                server.put(f"orders/{first:06}.csv", "\n".join(["id,name", *rows, ""]).encode())

        place = server.url("/orders/*.csv", "reader:${{ env.SHOP }}")
        fetch = f"{{kind: FilesGlob, path: '{place}', hostKey: {server.host_key}}}"
        yield MANIFEST.format(fetch=fetch, read="{kind: Csv, header: true, ddlSchema: [id BIGINT, name STRING]}"), add


@contextmanager
def ftp(folder: Path) -> Iterator[tuple[str, Source]]:
    (folder / "served").mkdir()
    with ftp_served(folder / "served") as server:

        def add(ids: range) -> None:
            for first in range(ids.start, ids.stop, BATCH):
                rows = [f"{each},order {each}" for each in range(first, first + BATCH)]
                server.put(f"orders/{first:06}.csv", "\n".join(["id,name", *rows, ""]).encode(), _LONG_AGO)

        fetch = f"{{kind: FilesGlob, path: '{server.url('orders/*.csv')}'}}"
        yield MANIFEST.format(fetch=fetch, read="{kind: Csv, header: true, ddlSchema: [id BIGINT, name STRING]}"), add


@contextmanager
def sse(_: Path) -> Iterator[tuple[str, Source]]:
    with stream_served() as stream:

        def add(ids: range) -> None:
            stream.events += [(f"n{each}", f'{{"id": {each}, "name": "order {each}"}}') for each in ids]

        fetch = f"{{kind: Sse, url: '{stream.url}', batchMessages: {BATCH}}}"
        yield MANIFEST.format(fetch=fetch, read="{kind: NdJson, ddlSchema: [id BIGINT, name STRING]}"), add


@contextmanager
def evm(_: Path) -> Iterator[tuple[str, Source]]:
    """A transaction has a million blocks: one with logs in each, whose numbers within it are the ids."""
    with chain_served() as chain:

        def add(ids: range) -> None:
            for each in ids:
                chain.log(each // BATCH * 1_000_000 + 1, each, [], "0x")
            chain.final = ids.stop // BATCH * 1_000_000

        yield MANIFEST.format(fetch=f"{{kind: EthereumLogs, nodeUrl: '{chain.url}'}}", read="{kind: Parquet}"), add


def life(daemon: Any, step: int) -> bool:
    """Starts, pulls, and ends by itself at a step; whether it did, or came to the end of the source."""
    daemon.more["KILL_AT"] = str(step)
    daemon.start()
    del daemon.more["KILL_AT"]
    command = [sys.executable, "-m", "odfd.cli.main", "--socket", str(daemon.socket), "pull", "orders"]
    subprocess.run(command, env=daemon.environ, capture_output=True, timeout=PATIENCE, check=False)
    if daemon.process.poll() is None and daemon.said("status").code == 0:
        daemon.kill()
        return False
    assert daemon.process.wait(PATIENCE) == -signal.SIGKILL
    daemon.process = None
    return True


@pytest.mark.parametrize("source", [database, bucket, postgres, mysql, kafka, mqtt, sftp, ftp, sse, evm])
def test_a_node_that_is_killed_between_commits_loses_and_doubles_nothing(
    make_daemon: Callable[..., Any], source: Any, tmp_path: Path
) -> None:
    rng = random.Random(source.__name__)
    daemon = make_daemon("a", ODFD_INGEST_VARIABLES="SHOP", SHOP=PASSWORD)
    daemon.program = [sys.executable, str(Path(__file__).with_name("small_node.py"))]
    with source(tmp_path) as (manifest, add):
        daemon.start()
        (tmp_path / "m.yaml").write_text(manifest)
        daemon.ask("apply", "-f", str(tmp_path / "m.yaml"))
        daemon.said("pull", "orders")  # there is nothing yet; a broker keeps messages from now on
        daemon.kill()
        rows = kills = 0
        for _ in range(LIVES):
            add(range(rows, rows + EACH_LIFE))
            rows += EACH_LIFE
            kills += life(daemon, rng.randint(1, LAST_STEP))
        assert kills >= LIVES // 3, "others came to the end of their source"
        daemon.start()
        while daemon.ask("pull", "orders")["items"][0]["outcome"] == "updated":
            pass
        assert daemon.ask("verify", "orders")["ok"]
        daemon.ask("export", "orders", str(tmp_path / "out"))
    slices = [pq.read_table(path) for path in (tmp_path / "out" / "data").iterdir()]
    ids = "log_index" if source is evm else "id"
    taken = sorted(
        pair for each in slices for pair in zip(each["offset"].to_pylist(), each[ids].to_pylist(), strict=True)
    )
    assert taken == [(each, each) for each in range(rows)]
    assert source is mqtt or len(slices) > kills, "each pull that was killed had several transactions before it"
    assert daemon.stop() == 0
