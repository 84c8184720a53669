"""A value of a variable that a source is filled with: nobody finds it in log, events, answers or blocks."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from config.model import Ingest
from odfd.control import wire

TOKEN = "s3cr3t-t0ken"
MANIFEST = """kind: DatasetSnapshot
version: 1
content:
  name: cities
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch:
        kind: Url
        url: %s/${{ env.KEY }}/cities.csv?key=${{ env.KEY }}
        headers: [{name: X-Key, value: '${{ env.KEY }}'}]
      read:
        kind: Csv
        header: true
        ddlSchema: ['event_time TIMESTAMP, city STRING, population BIGINT']
      merge: {kind: Append}
"""


class Server(http.server.BaseHTTPRequestHandler):
    """Gives what is next, and repeats what it was asked with wherever HTTP lets it."""

    status = 200

    def do_GET(self) -> None:
        key = self.headers["X-Key"]
        body = b"event_time,city,population\n2020-01-01T00:00:00Z,graz,7\n" if self.status == 200 else b""
        self.send_response(self.status, f"with {key} {self.path}" if self.status != 200 else None)
        self.send_header("ETag", f'"{key}"')
        self.send_header("Last-Modified", "Wed, 01 Jan 2020 00:00:00 GMT")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def server() -> Iterator[str]:
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{made.server_address[1]}"
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.mark.parametrize("status", [200, 404, 503])
async def test_a_filled_value_is_nowhere_to_be_read(world: Any, server: str, monkeypatch: Any, status: int) -> None:
    monkeypatch.setenv("KEY", TOKEN)
    monkeypatch.setattr(Server, "status", status)
    async with world.running("alice", ingest=Ingest(variables=("KEY",))) as alice:
        await alice.apply(MANIFEST % server)
        (item,) = await alice.pull("cities")
        assert item.outcome == ("updated" if status == 200 else "failed")
        api, chain = alice.api, alice.home.chains.chain(alice.dataset("cities"))
        told: list[object] = [
            item,
            await api.datasets.describe("cities"),
            await api.datasets.log("cities", (), 10, None),
            *[await api.datasets.block("cities", str(number)) for number in range(alice.size("cities"))],
            await api.lineage.graph("cities"),
            await api.tasks.list(),
            await api.about.status(),
        ]
        if status == 200:
            told.append(await alice.done(api.lineage.trace("cities", wire.LineageRequest(record=0))))
        shown = b"".join(map(msgspec.json.encode, told)).decode()
        assert "${{ env.KEY }}" in shown
        assert TOKEN not in shown
        assert TOKEN not in repr(alice.logger.said)
        assert TOKEN not in repr(alice.events._ring)
        assert TOKEN.encode() not in b"".join(chain.raw_blocks(0, alice.size("cities")))
        assert status != 200 or alice.size("cities") == 4


async def test_a_source_reads_the_set_that_is_named_as_its_dataset(world: Any, server: str) -> None:
    """Of its own dataset, and before what the daemon was started with."""
    sets = "$schema: VariableSet\nheaders: {name: %s}\nspec: {variables: {KEY: there}}\n"
    async with world.running("alice") as alice:
        await alice.apply(MANIFEST % server, sets % "others")
        (item,) = await alice.pull("cities")
        assert item.fault is not None
        assert item.fault.rule == "source-variable"
        await alice.apply(sets % "Cities")
        (item,) = await alice.pull("cities")
        assert item.outcome == "updated"
