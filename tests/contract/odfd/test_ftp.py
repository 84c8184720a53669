"""What a file of FTP means as a source, asked of a real server: pyftpdlib on loopback."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from chain import instant
from chain.errors import Fault, Invalid, NotFound, Refused, Remote
from chain.model.events import SourceState
from chain.model.source import FetchUrl, FromSystemTime, RequestHeader
from odfd.ingest.acceptance import check_source
from odfd.ingest.fetch import ftp
from odfd.ingest.fetch.apart import without_fault
from odfd.ingest.fetch.base import Fetched, FetchJob, Unchanged
from odfd.ingest.fetch.dispatch import check_fetch, fetch
from odfd.ingest.refetch import check_open
from odfd.ingest.servers import ftp as process
from odfd.ingest.servers import ftp_session
from odfd.ingest.servers.job import FtpJob, FtpResult
from odfd.ingest.settings import PATIENCE, IngestSettings
from odfd.ingest.templates import redacted
from p2p.dial import NotAllowed
from p2p.ip import is_global
from worlds.ftp import PASSWORD, Served, ftp_served
from worlds.sources import examples, source

NOW = instant.parse("2050-01-01T12:00:00Z")
LARGE = os.urandom(1 << 20)
EXAMPLES = [each for each in examples("Url") if "ftp://" in each and "sftp://" not in each]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Asked from this process, which starts at once."""

    async def ask(_main: object, job: FtpJob, _kind: object, shown: str, _time: object) -> FtpResult:
        return without_fault(await trio.to_thread.run_sync(process.answer, job), shown)

    monkeypatch.setattr(ftp, "ask", ask)
    (tmp_path / "served").mkdir()
    with ftp_served(tmp_path / "served") as served:
        yield served


def fetched(
    url: str, folder: Path, state: SourceState | None = None, step: dict[str, Any] | None = None, **settings: Any
) -> Any:
    variables = {"FTP": PASSWORD}
    given = {"staging": folder, "variables": variables, "patience": PATIENCE._replace(silence=15.0), **settings}
    job = FetchJob(state=state, now=NOW, folder=folder, settings=IngestSettings(**given))
    with redacted(variables):
        return trio.run(fetch, FetchUrl(url=url, **(step or {})), job)


def test_a_file_comes_again_only_when_it_changed(server: Served, tmp_path: Path) -> None:
    path = server.put("data/a b.csv", b"1\n")
    os.utime(path, (1_700_000_000, 1_700_000_000))
    first = fetched(server.url("data/a%20b.csv"), tmp_path)
    assert (first.path.read_bytes(), first.name) == (b"1\n", "a b.csv")
    assert first.event_time == instant.parse("2023-11-14T22:13:20Z")
    assert first.state == SourceState(source_name="default", kind="odf/etag", value="2-20231114221320")
    assert isinstance(fetched(server.url("data/a%20b.csv"), tmp_path, first.state), Unchanged)
    os.utime(path, (1_700_000_001, 1_700_000_001))
    again = fetched(server.url("data/a%20b.csv"), tmp_path, first.state, {"event_time": FromSystemTime()})
    assert (again.identity, again.event_time) == (first.identity, NOW)
    assert again.state != first.state


def test_a_user_signs_in_and_a_wrong_one_is_refused(server: Served, tmp_path: Path) -> None:
    server.put("a.csv", b"1\n")
    fetched(server.url("a.csv", "reader:${{ env.FTP }}@"), tmp_path)
    assert ("USER", "reader") in server.commands
    with pytest.raises(Refused, match=r"refuses this node \(530\)") as caught:
        fetched(server.url("a.csv", "nobody:${{ env.FTP }}@"), tmp_path)
    assert caught.value.rule == "ftp-credentials"
    assert PASSWORD not in str(caught.value)
    with pytest.raises(Invalid) as written:
        fetched(server.url("a.csv", "reader:word@"), tmp_path)
    assert written.value.rule == "source-password"


def test_a_transfer_that_breaks_is_taken_up_where_it_ended(server: Served, tmp_path: Path) -> None:
    server.put("large", LARGE)
    server.breaks = 3
    found = fetched(server.url("large"), tmp_path)
    assert found.path.read_bytes() == LARGE
    assert server.breaks == 0
    starts = [int(said) for name, said in server.commands if name == "REST"]
    assert len(starts) == 3
    assert starts == sorted(starts)
    assert starts[0] >= server.cut_after


def test_one_that_never_comes_further_is_left(server: Served, tmp_path: Path) -> None:
    server.put("large", LARGE)
    server.breaks, server.cut_after = 100, 0
    with pytest.raises(Remote, match="lost after 0 bytes"):
        fetched(server.url("large"), tmp_path)
    assert 100 - server.breaks == process.TRIES


@pytest.mark.parametrize("breaks", [0, 1])
def test_what_is_written_while_it_is_read_is_refused(server: Served, tmp_path: Path, breaks: int) -> None:
    path = server.put("large", LARGE)
    server.breaks = breaks
    server.on_read = lambda: os.utime(path, (1, 1))
    with pytest.raises(Remote) as caught:
        fetched(server.url("large"), tmp_path)
    assert caught.value.rule == "source-changed"


def test_a_server_that_tells_no_times_makes_a_source_without_a_state(server: Served, tmp_path: Path) -> None:
    server.put("a.csv", b"1\n")
    server.without = {"MDTM"}
    assert fetched(server.url("a.csv"), tmp_path).state is None
    server.without = {"SIZE", "MDTM"}
    found = fetched(server.url("a.csv"), tmp_path)
    assert (found.state, found.event_time, found.path.read_bytes()) == (None, None, b"1\n")


def test_a_server_that_sends_elsewhere_is_refused(server: Served, tmp_path: Path) -> None:
    server.put("a.csv", b"1\n")
    server.address = "192.0.2.7"
    assert isinstance(fetched(server.url("a.csv"), tmp_path), Fetched), "EPSV names no address"
    server.without = {"EPSV"}
    with pytest.raises(Refused, match=r"at 127\.0\.0\.1, sends this node to 192\.0\.2\.7") as caught:
        fetched(server.url("a.csv"), tmp_path)
    assert caught.value.rule == "ftp-redirect"
    server.address = ""
    assert isinstance(fetched(server.url("a.csv"), tmp_path), Fetched), "by PASV"


def test_a_server_that_sends_to_a_service_of_its_own_is_refused(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put("a.csv", b"1\n")
    monkeypatch.setattr(ftp_session, "_FIRST_PORT", 1 << 16)
    with pytest.raises(Refused, match="to its port") as caught:
        fetched(server.url("a.csv"), tmp_path)
    assert caught.value.rule == "ftp-redirect"


def test_lines_and_bytes_of_a_server_of_ftp_are_bounded(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put("large", LARGE)
    for hidden in (set(), {"SIZE"}):
        server.without = hidden
        with pytest.raises(Refused) as caught:
            fetched(server.url("large"), tmp_path, max_source_bytes=1000)
        assert caught.value.rule == "max-source-bytes"
    monkeypatch.setattr(ftp_session, "MAX_LINES", 5)
    with pytest.raises(Remote, match="more than 5 lines"):
        fetched(server.url("large"), tmp_path)


def test_a_file_that_is_missing_is_told(server: Served, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"there is no file 'a\.csv'"):
        fetched(server.url("a.csv"), tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(Remote, match="cannot be reached"):
        fetched(f"ftp://127.0.0.1:{port}/a", tmp_path)


def test_only_judged_addresses_are_dialled(server: Served, tmp_path: Path) -> None:
    server.put("a.csv", b"1\n")
    with pytest.raises(NotAllowed):
        fetched(server.url("a.csv"), tmp_path, may_dial=is_global)
    assert server.commands == []
    with pytest.raises(Refused, match="not on the web"):
        check_open(FetchUrl(url="ftp://192.0.2.7/a.csv"))


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("ftp://a.example", "url-host"),
        ("ftp://a.example/folder/", "url-host"),
        ("ftp:///a.csv", "url-host"),
        ("ftp://a.example:99999/a", "url-host"),
        ("ftp://a.example/a%0d%0aDELE%20b", "url-host"),
        ("ftp://a%0ab@a.example/a", "url-host"),
        ("ftp://a.example/a\r\nDELE b", "url-host"),
        ("ftp://a.example/a?b", "url-host"),
        ("ftp://a.example/a%ff", "url-host"),
        ("ftp://me:secret@a.example/a", "source-password"),
        ("ftp://me:${{ env.NONE }}@a.example/a", "source-variable"),
    ],
)
def test_what_names_no_file_is_refused(url: str, rule: str, tmp_path: Path) -> None:
    with pytest.raises(Fault) as caught:
        check_fetch(FetchUrl(url=url), IngestSettings(staging=tmp_path))
    assert caught.value.rule == rule


def test_a_value_of_a_variable_ends_no_command(server: Served, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="no command of FTP"):
        fetched(server.url("${{ env.WHAT }}"), tmp_path, variables={"WHAT": "a%0d%0aDELE%20b"})
    assert server.commands == []


def test_headers_have_no_meaning(tmp_path: Path) -> None:
    step = FetchUrl(url="ftp://a.example/a", headers=(RequestHeader(name="a", value="b"),))
    with pytest.raises(Invalid, match="headers have no meaning"):
        check_fetch(step, IngestSettings(staging=tmp_path))


@pytest.mark.slow
def test_the_process_answers_and_a_silent_server_is_left(tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    with ftp_served(tmp_path / "served") as served:
        served.put("large", LARGE)
        assert fetched(served.url("large", "reader:${{ env.FTP }}@"), tmp_path).path.read_bytes() == LARGE
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"ftp://127.0.0.1:{deaf.getsockname()[1]}/a"
        with pytest.raises(Remote, match=r"no rows came in 0\.05 s"):
            fetched(url, tmp_path, patience=PATIENCE._replace(total=0.05))


def test_the_example_of_the_page_is_accepted(tmp_path: Path) -> None:
    assert len(EXAMPLES) == 1
    settings = IngestSettings(staging=tmp_path, variables={"FTP": PASSWORD})
    assert check_source(source(EXAMPLES[0]), settings) is None
