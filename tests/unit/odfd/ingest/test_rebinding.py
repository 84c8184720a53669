"""Sources on the web whose names, or whose servers, lead to services of this machine."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from chain.errors import Refused
from chain.instant import Instant
from chain.model.source import FetchUrl
from odfd.ingest.fetch import dispatch
from odfd.ingest.fetch.source import FetchJob
from odfd.ingest.settings import IngestSettings
from p2p.ip import is_global
from worlds.internet import Internet

SITE = "93.184.216.34"


class Server(http.server.BaseHTTPRequestHandler):
    """``/data`` is what a service of this machine says to whoever asks it; all else leads to ``there``."""

    there = ""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/data" else 302)
        self.send_header("Location", self.there)
        self.send_header("Content-Length", "7")
        self.end_headers()
        self.wfile.write(b"secret\n")

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def port() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def fetch(url: str, folder: Path, internet: Internet, **settings: Any) -> bytes:
    job = FetchJob(state=None, now=Instant(0), folder=folder, settings=IngestSettings(staging=folder, **settings))

    async def run() -> Any:
        with internet.open():
            return await dispatch.fetch(FetchUrl(url=url), job)

    return bytes(trio.run(run).path.read_bytes())


@pytest.mark.parametrize("name", ["127.0.0.1", "[::1]", "[::ffff:7f00:1]", "[2002:7f00:1::]", "[64:ff9b::7f00:1]",
                                  "site.example", "inside.example"])  # fmt: skip
def test_a_server_leads_no_source_into_this_house(port: int, tmp_path: Path, name: str) -> None:
    """A source of the owner's own, at a site of the Internet that redirects, or whose name is turned round."""
    internet = Internet()
    internet(port, SITE, site_example=[[SITE], ["127.0.0.1"]], inside_example=[["127.0.0.1"]])
    Server.there = f"http://{name}:{port}/data"
    with pytest.raises(Refused) as caught:
        fetch("http://site.example/moved", tmp_path, internet)
    assert caught.value.rule == "address-inside"
    assert internet.dialled == [SITE]


@pytest.mark.parametrize(
    "answers", [[["127.0.0.1"]], [["::ffff:127.0.0.1"]], [["2002:7f00:1::"]], [["64:ff9b::7f00:1"]], [["10.0.0.1"]]]
)
def test_a_source_that_a_stranger_declared_is_only_asked_on_the_internet(
    port: int, tmp_path: Path, answers: list[list[str]]
) -> None:
    internet = Internet()
    internet(port, SITE, site_example=answers)
    with pytest.raises(Refused) as caught:
        fetch("http://site.example/data", tmp_path, internet, may_dial=is_global)
    assert caught.value.rule == "address-inside"
    assert internet.dialled == []


def test_its_name_is_resolved_once_for_each_question(port: int, tmp_path: Path) -> None:
    internet = Internet()
    internet(port, SITE, site_example=[["127.0.0.1", SITE], ["127.0.0.1"]])
    assert fetch("http://site.example/data", tmp_path, internet, may_dial=is_global) == b"secret\n"
    assert internet.dialled == [SITE]
    assert internet.asked["site.example"] == 1


def test_a_source_of_this_machine_may_lead_within_it(port: int, tmp_path: Path) -> None:
    internet = Internet()
    internet.names = {"localhost": [["127.0.0.1"]]}
    Server.there = f"http://127.0.0.1:{port}/data"
    assert fetch(f"http://localhost:{port}/moved", tmp_path, internet) == b"secret\n"


HERE = ["127.0.0.1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "169.254.169.254", "fe80::1", "fd00:ec2::254", "0.0.0.0"]


@pytest.mark.parametrize("address", HERE)
@pytest.mark.parametrize("scheme", ["http", "ftp"])
def test_a_name_of_the_internet_in_an_own_source_is_not_dialled_on_this_machine(
    port: int, tmp_path: Path, address: str, scheme: str
) -> None:
    """Whoever resolves it may answer otherwise tomorrow, and have what only this machine may ask made into rows."""
    internet = Internet()
    internet(port, SITE, site_example=[[address]])
    with pytest.raises(Refused) as caught:
        fetch(f"{scheme}://site.example/data", tmp_path, internet)
    assert caught.value.rule == "address-rebound"
    assert "name the address itself" in caught.value.hint
    assert (internet.dialled, internet.asked["site.example"]) == ([], 1)


def test_of_the_addresses_of_an_own_source_those_are_dialled_that_were_judged(port: int, tmp_path: Path) -> None:
    internet = Internet()
    internet(port, SITE, site_example=[["127.0.0.1", SITE], ["127.0.0.1"]])
    assert fetch("http://site.example/data", tmp_path, internet) == b"secret\n"
    assert (internet.dialled, internet.asked["site.example"]) == ([SITE], 1)


@pytest.mark.parametrize("name", ["nas", "NAS.", "shop.lan", "box.home.arpa", "dev.localhost", "db.internal"])
def test_an_own_source_may_be_in_this_house_by_a_name_of_this_house(port: int, tmp_path: Path, name: str) -> None:
    internet = Internet()
    internet.names = {name.lower(): [["127.0.0.1"]], name: [["127.0.0.1"]]}
    assert fetch(f"http://{name}:{port}/data", tmp_path, internet) == b"secret\n"


def test_an_own_source_may_be_in_a_private_network_by_any_name(port: int, tmp_path: Path) -> None:
    """Names of firms lead there from within; services of this machine are not there."""
    internet = Internet()
    internet(port, "10.1.2.3", intra_example=[["10.1.2.3"]])
    assert fetch("http://intra.example/data", tmp_path, internet) == b"secret\n"
