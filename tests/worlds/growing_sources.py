"""Sources of each kind, which grow by numbered rows while a node that takes them dies again and again."""

from __future__ import annotations

import io
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from chain.errors import Fault
from odfd.control import calls
from odfd.control.client import ControlClient
from odfd.repositories.bucket import open_bucket
from odfd.repositories.manifest import place_of
from odfd.store.spool import SMALL
from worlds import azurite as azure_emulator
from worlds.containers import image_of_programs
from worlds.databases import Served, mysql_served, postgres_served
from worlds.evm import chain_served
from worlds.ftp import ftp_served
from worlds.google import google_served, service_account
from worlds.kafka import kafka_served
from worlds.mqtt import mosquitto_served
from worlds.s3_server import new_bucket, s3_server
from worlds.sftp import sftp_served
from worlds.sse import stream_served
from worlds.web_site import Site, plain

BATCH: Final = 4
"""Rows of one transaction, of kinds that have several."""
COLUMNS: Final = "ddlSchema: [id BIGINT, name STRING]"
PARQUET: Final = f"{{kind: Parquet, {COLUMNS}}}"
NDJSON: Final = f"{{kind: NdJson, {COLUMNS}}}"
CSV: Final = f"{{kind: Csv, header: true, {COLUMNS}}}"
APPEND: Final = "{kind: Append}"
LEDGER: Final = "{kind: Ledger, primaryKey: [id]}"
"""Of documents that have all rows each time."""
_LONG_AGO: Final = 1_700_000_000
"""The time of files, which are taken at once: nobody writes to them any more."""
_PUSHERS: Final = 4
_ROOT: Final = """kind: DatasetSnapshot
version: 1
content:
  name: orders
  kind: Root
  metadata:
    - {event}
"""


def pulled(daemon: Any, *words: str) -> bool:
    """Pulls once; whether something new came."""
    said = daemon.said("pull", "orders", *words, "-o", "json")
    return bool(said.code == 0 and said.json["items"][0]["outcome"] == "updated")


@dataclass
class Growing:
    """One source."""

    manifest: str
    add: Callable[[range], None]
    """Adds rows with these ids."""
    column: str = "id"
    """The column that has the ids."""
    several: bool = True
    """Whether a pull has several transactions; else it takes what there is in one."""
    in_order: bool = True
    """Whether rows come in the order of their ids; those of several who push at once do not."""
    take: Callable[[Any], bool] = pulled
    """Has a node take what is new, as its user would, whatever becomes of the node; whether there was something."""
    environ: dict[str, str] = field(default_factory=dict)
    """What the daemon needs, and may change from life to life."""
    of_pushes: bool = False
    """Whether the node is also killed within pushes."""


def polled(fetch: str, read: str, merge: str = APPEND) -> str:
    return _ROOT.format(event=f"{{kind: SetPollingSource, fetch: {fetch}, read: {read}, merge: {merge}}}")


def json_of(each: int) -> bytes:
    return b'{"id": %d, "name": "order %d"}' % (each, each)


def csv_of(ids: range) -> bytes:
    return "\n".join(["id,name", *(f"{each},order {each}" for each in ids), ""]).encode()


def csv_files(ids: range) -> Iterator[tuple[str, bytes]]:
    for first in range(ids.start, ids.stop, BATCH):
        yield f"{first:06}.csv", csv_of(range(first, first + BATCH))


@contextmanager
def database(folder: Path) -> Iterator[Growing]:
    path = folder / "shop.sqlite"

    def add(ids: range) -> None:
        with closing(sqlite3.connect(path)) as base:
            base.execute("CREATE TABLE IF NOT EXISTS orders (id integer primary key, name text)")
            base.executemany("INSERT INTO orders VALUES (?, ?)", [(each, f"order {each}") for each in ids])
            base.commit()

    fetch = f"{{kind: Sql, url: 'sqlite://{path}', query: 'select id, name from orders', cursor: [id], batchRows: 5}}"
    yield Growing(polled(fetch, PARQUET), add)


@contextmanager
def postgres(_: Path) -> Iterator[Growing]:
    with postgres_served() as served:
        served.run("CREATE TABLE orders (id bigint primary key, name text)")
        yield Growing(asked(served), lambda ids: served.run(_rows(ids)))


@contextmanager
def mysql(_: Path) -> Iterator[Growing]:
    with mysql_served() as served:
        served.run("CREATE TABLE orders (id bigint primary key, name varchar(99))")
        yield Growing(asked(served), lambda ids: served.run(_rows(ids)))


@contextmanager
def kafka(_: Path) -> Iterator[Growing]:
    with kafka_served() as broker:
        broker.make("orders")

        def add(ids: range) -> None:
            broker.send("orders", *(json_of(each) for each in ids))

        fetch = f"{{kind: Kafka, url: 'kafka://{broker.address}/orders', batchMessages: {BATCH}}}"
        yield Growing(polled(fetch, NDJSON), add)


@contextmanager
def mqtt(_: Path) -> Iterator[Growing]:
    with mosquitto_served() as broker:

        def add(ids: range) -> None:
            broker.send("orders", *(json_of(each) for each in ids))

        fetch = f"{{kind: Mqtt, host: 127.0.0.1, port: {broker.port}, topics: [{{path: orders}}]}}"
        yield Growing(polled(fetch, NDJSON), add, several=False)


def asked(served: Served) -> str:
    """The manifest of a query of a real server, whose password is a variable."""
    url = served.url.replace("env.DB", "env.SHOP")
    fetch = f"{{kind: Sql, url: '{url}', query: 'select id, name from orders', cursor: [id], batchRows: 5}}"
    return polled(fetch, PARQUET)


def _rows(ids: range) -> str:
    return "INSERT INTO orders VALUES " + ", ".join(f"({each}, 'order {each}')" for each in ids)


@contextmanager
def bucket(_: Path) -> Iterator[Growing]:
    with s3_server(page=3) as server:
        url = new_bucket(server, "shop")
        owner = open_bucket("shop", place_of(url), {"accessKeyId": "a", "secretAccessKey": "b"})

        def add(ids: range) -> None:
            for name, content in csv_files(ids):
                owner.put(f"orders/{name}", content)

        keys = "accessKeyId: '${{ env.SHOP }}', secretAccessKey: '${{ env.SHOP }}'"
        fetch = f"{{kind: FilesGlob, path: '{url}/orders/*.csv', {keys}}}"
        yield Growing(polled(fetch, CSV), add)


@contextmanager
def sftp(folder: Path) -> Iterator[Growing]:
    (folder / "served").mkdir()
    with sftp_served(folder / "served") as server:

        def add(ids: range) -> None:
            for name, content in csv_files(ids):
                server.put(f"orders/{name}", content)

        place = server.url("/orders/*.csv", "reader:${{ env.SHOP }}")
        fetch = f"{{kind: FilesGlob, path: '{place}', hostKey: {server.host_key}}}"
        yield Growing(polled(fetch, CSV), add)


@contextmanager
def ftp(folder: Path) -> Iterator[Growing]:
    (folder / "served").mkdir()
    with ftp_served(folder / "served") as server:

        def add(ids: range) -> None:
            for name, content in csv_files(ids):
                server.put(f"orders/{name}", content, _LONG_AGO)

        fetch = f"{{kind: FilesGlob, path: '{server.url('orders/*.csv')}'}}"
        yield Growing(polled(fetch, CSV), add)


@contextmanager
def sse(_: Path) -> Iterator[Growing]:
    with stream_served() as stream:

        def add(ids: range) -> None:
            stream.events += [(f"n{each}", json_of(each).decode()) for each in ids]

        fetch = f"{{kind: Sse, url: '{stream.url}', batchMessages: {BATCH}}}"
        yield Growing(polled(fetch, NDJSON), add)


@contextmanager
def evm(_: Path) -> Iterator[Growing]:
    """A transaction has a million blocks: one with logs in each, whose numbers within it are the ids."""
    with chain_served() as chain:

        def add(ids: range) -> None:
            for each in ids:
                chain.log(each // BATCH * 1_000_000 + 1, each, [], "0x")
            chain.final = ids.stop // BATCH * 1_000_000

        yield Growing(
            polled(f"{{kind: EthereumLogs, nodeUrl: '{chain.url}'}}", "{kind: Parquet}"), add, column="log_index"
        )


@contextmanager
def files(folder: Path) -> Iterator[Growing]:
    def add(ids: range) -> None:
        for name, content in csv_files(ids):
            (folder / name).write_bytes(content)

    yield Growing(polled(f"{{kind: FilesGlob, path: '{folder}/*.csv'}}", CSV), add)


@contextmanager
def page(folder: Path) -> Iterator[Growing]:
    """One document of the web, which has all rows each time, and a tag."""
    ends = [0]

    def answer(request: Any) -> bool:
        tag = f'"{ends[0]}"'
        known = request.headers.get("If-None-Match") == tag
        plain(request, 304 if known else 200, b"" if known else csv_of(range(ends[0])), ETag=tag)
        return True

    site = Site(folder)
    site.answer = answer
    with site.open():
        fetch = f"{{kind: Url, url: '{site.url}/orders.csv'}}"
        yield Growing(polled(fetch, CSV, LEDGER), lambda ids: ends.__setitem__(0, ids.stop), several=False)


@contextmanager
def service(folder: Path) -> Iterator[Growing]:
    """A service of the web, whose answer has pages."""
    ends = [0]

    def answer(request: Any) -> bool:
        first = int(request.path.partition("?first=")[2] or 0)
        after = min(first + BATCH, ends[0])
        link = f'<{site.url}/orders?first={after}>; rel="next"'
        content = b"\n".join(json_of(each) for each in range(first, after))
        plain(request, 200, content, **({"Link": link} if after < ends[0] else {}))
        return True

    site = Site(folder)
    site.answer = answer
    with site.open():
        fetch = f"{{kind: Http, url: '{site.url}/orders', pages: {{link: true}}}}"
        yield Growing(polled(fetch, NDJSON, LEDGER), lambda ids: ends.__setitem__(0, ids.stop), several=False)


@contextmanager
def google(_: Path) -> Iterator[Growing]:
    with google_served() as cloud:
        cloud.page = 3
        yield _cloud(cloud.new_bucket("shop"), "serviceAccountKey", service_account())


@contextmanager
def azure(_: Path) -> Iterator[Growing]:
    with azure_emulator.azurite_served() as server:
        yield _cloud(azure_emulator.new_container(server, "shop"), "accountKey", azure_emulator.KEY)


def _cloud(url: str, name: str, key: str) -> Growing:
    owner = open_bucket("shop", place_of(url), {name: key})

    def add(ids: range) -> None:
        for file, content in csv_files(ids):
            owner.put(f"orders/{file}", content)

    fetch = f"{{kind: FilesGlob, path: '{url}/orders/*.csv', {name}: '${{{{ env.SHOP }}}}'}}"
    return Growing(polled(fetch, CSV), add, environ={"SHOP": key})


_PROGRAM: Final = """
done=${ODF_ETAG:-0}; next=$((done + ODF_BATCH_SIZE)); [ $next -lt $ROWS ] || next=$ROWS
i=$done; while [ $i -lt $next ]; do echo "{\\"id\\": $i, \\"name\\": \\"order $i\\"}"; i=$((i + 1)); done
[ $next -eq $ROWS ] || touch $ODF_NEW_HAS_MORE_DATA_PATH
echo $next > $ODF_NEW_ETAG_PATH
"""


@contextmanager
def container(_: Path) -> Iterator[Growing]:
    with image_of_programs() as image:
        environ = {"ODFD_INGEST_CONTAINER": "offline", "ROWS": "0"}
        program = " ; ".join(_PROGRAM.strip().splitlines()).replace("'", "''")
        env = f"env: [{{name: ODF_BATCH_SIZE, value: '{BATCH}'}}, {{name: ROWS, value: '${{{{ env.ROWS }}}}'}}]"
        fetch = f"{{kind: Container, image: '{image}', command: [sh, -c], args: ['{program}'], {env}}}"
        yield Growing(polled(fetch, NDJSON), lambda ids: environ.update(ROWS=str(ids.stop)), environ=environ)


@contextmanager
def pushes(_: Path) -> Iterator[Growing]:
    """Several callers push to an endpoint, and send again with its id what was not answered."""
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()

    def push(daemon: Any) -> None:
        """One caller: until nothing waits, or one push fails, which is as it should be when the node is gone."""
        client = ControlClient(daemon.socket)
        while True:
            try:
                each = waiting.get_nowait()
            except queue.Empty:
                return
            body = json_of(each)
            if each % 3 == 0:
                body = body.ljust(SMALL + 1)  # it becomes a file at once
            try:
                for _ in range(2 if each % 5 == 0 else 1):  # some did not hear the answer, and ask again
                    client.send(calls.endpoints_push("gate", id_=f"n{each}"), io.BytesIO(body))
            except Fault:
                waiting.put(each)
                return

    def take(daemon: Any) -> bool:
        callers = [threading.Thread(target=push, args=(daemon,)) for _ in range(_PUSHERS)]
        for each in callers:
            each.start()
        for each in callers:
            each.join()
        return pulled(daemon, "--source", "gate")

    read = f"spec: {{ingress: {{kind: RestEndpoint}}, read: {NDJSON}}}"
    manifest = f"$schema: Source\nheaders: {{name: gate}}\n{read}\n---\n"
    manifest += "$schema: Dataset\nheaders: {name: orders}\nspec: {kind: Root, metadata: []}\n"

    def add(ids: range) -> None:
        for each in ids:
            waiting.put(each)

    yield Growing(manifest, add, several=False, in_order=False, take=take, of_pushes=True)


@contextmanager
def ingests(folder: Path) -> Iterator[Growing]:
    """``odfctl ingest`` of files, each with an id; what was not answered is sent again."""
    waiting: list[Path] = []

    def take(daemon: Any) -> bool:
        news = bool(waiting)
        while waiting:
            said = daemon.said("ingest", "orders", str(waiting[0]), "--id", waiting[0].name)
            if said.code and daemon.process.poll() is not None:
                break
            assert said.code == 0 or not daemon.lives, said
            del waiting[: said.code == 0]
        return news

    def add(ids: range) -> None:
        for name, content in csv_files(ids):
            (folder / name).write_bytes(content)
            waiting.append(folder / name)

    event = f"{{kind: AddPushSource, sourceName: gate, read: {CSV}, merge: {APPEND}}}"
    yield Growing(_ROOT.format(event=event), add, take=take)


KINDS: Final = {
    each.__name__: each
    for each in (
        files,
        page,
        service,
        database,
        postgres,
        mysql,
        bucket,
        google,
        azure,
        sftp,
        ftp,
        kafka,
        mqtt,
        sse,
        evm,
        container,
        pushes,
        ingests,
    )
}
"""What makes one of each kind, in a folder that it may use."""
