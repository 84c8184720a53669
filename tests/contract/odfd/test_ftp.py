"""What a file of FTP means as a source, asked of a real server: pyftpdlib on loopback."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.errors import Fault, Invalid, NotFound, Refused, Remote
from chain.instant import SECOND, Instant
from chain.model.events import SourceState
from chain.model.source import (
    FetchFilesGlob,
    FetchUrl,
    FromMetadata,
    FromPath,
    FromSystemTime,
    RequestHeader,
    SourceOrdering,
)
from odfd.ingest.acceptance import check_source
from odfd.ingest.clients import ftp as process
from odfd.ingest.clients.ftp import FtpJob, FtpResult
from odfd.ingest.consumed_files import ConsumedFiles
from odfd.ingest.fetch import ftp
from odfd.ingest.fetch.dispatch import check_fetch, fetch, source_of
from odfd.ingest.fetch.fetch_process import without_fault
from odfd.ingest.fetch.source import Fetched, FetchJob, Unchanged
from odfd.ingest.settings import PATIENCE, IngestSettings
from odfd.ingest.templates import redact
from p2p.dial import NotAllowed
from p2p.ip import is_global
from worlds.ftp import PASSWORD, Served, ftp_served
from worlds.sources import examples, source

NOW = instant.parse("2050-01-01T12:00:00Z")
LARGE = os.urandom(1 << 20)
LONG_AGO = 1_700_000_000
EXAMPLES = [each for kind in ("Url", "FilesGlob") for each in examples(kind) if re.search(r"[ /]ftps?://", each)]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Asked from this process, which starts at once."""

    async def ask(_main: object, job: FtpJob, _kind: object, shown: str, _time: object) -> FtpResult:
        return without_fault(await trio.to_thread.run_sync(process.answer, job), shown)

    monkeypatch.setattr(ftp, "ask", ask)
    (tmp_path / "served").mkdir()
    with ftp_served(tmp_path / "served") as served:
        yield served


@pytest.fixture(params=["explicit", "implicit"])
def secure(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A server with TLS, asked from this process, which trusts its certificate."""

    async def ask(_main: object, job: FtpJob, _kind: object, shown: str, _time: object) -> FtpResult:
        return without_fault(await trio.to_thread.run_sync(process.answer, job), shown)

    monkeypatch.setattr(ftp, "ask", ask)
    (tmp_path / "served").mkdir()
    with ftp_served(tmp_path / "served", request.param) as served:
        if request.param == "implicit":
            monkeypatch.setattr(ftp, "IMPLICIT_PORT", served.port)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
        yield served


def listed(
    served: Served, path: str, state: SourceState | None = None, taken: ConsumedFiles | None = None, **step: Any
) -> Any:
    """The next file of a pattern."""
    folder = served.folder.parent
    settings = IngestSettings(staging=folder, variables={"FTP": PASSWORD}, patience=PATIENCE._replace(silence=15.0))
    job = FetchJob(state=state, now=NOW, folder=folder, settings=settings, taken=taken)
    return trio.run(fetch, FetchFilesGlob(path=served.url(path), **step), job)


def fetched(
    url: str, folder: Path, state: SourceState | None = None, step: dict[str, Any] | None = None, **settings: Any
) -> Any:
    variables = {"FTP": PASSWORD}
    given = {"staging": folder, "variables": variables, "patience": PATIENCE._replace(silence=15.0), **settings}
    job = FetchJob(state=state, now=NOW, folder=folder, settings=IngestSettings(**given))
    with redact(variables):
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
    monkeypatch.setattr(process, "_FIRST_PORT", 1 << 16)
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
    monkeypatch.setattr(process, "MAX_LINES", 5)
    with pytest.raises(Remote, match="more than 5 lines"):
        fetched(server.url("large"), tmp_path)


def test_a_file_that_is_missing_is_told(server: Served, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"there is no file 'a\.csv'"):
        fetched(server.url("a.csv"), tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(Remote, match="cannot be reached"):
        fetched(f"ftp://127.0.0.1:{port}/a", tmp_path)


@pytest.mark.slow
def test_over_tls_user_password_and_files_are_encrypted(secure: Served, tmp_path: Path) -> None:
    secure.put("large", LARGE)
    found = fetched(secure.url("large", "reader:${{ env.FTP }}@"), tmp_path)
    assert found.path.read_bytes() == LARGE
    names = [name for name, _ in secure.commands]
    assert names[: names.index("USER")] == (["AUTH"] if secure.tls == "explicit" else [])
    assert ("PROT", "P") in secure.commands
    assert isinstance(fetched(secure.url("large"), tmp_path, found.state), Unchanged)
    secure.breaks = 2
    assert fetched(secure.url("large"), tmp_path).path.read_bytes() == LARGE
    assert len([name for name, _ in secure.commands if name == "REST"]) == 2
    secure.put("daily/1.csv", b"1\n", LONG_AGO)
    assert listed(secure, "daily/*.csv").path.read_bytes() == b"1\n"


def test_a_server_of_another_certificate_or_without_tls_is_refused(
    secure: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is told who comes."""
    secure.put("a.csv", b"1\n")
    url = secure.url("a.csv", "reader:${{ env.FTP }}@")
    with pytest.raises(Refused, match="is not that of localhost") as caught:
        fetched(url.replace("127.0.0.1", "localhost"), tmp_path)
    assert caught.value.rule == "ftp-tls"
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(Refused, match=r"is not that of 127\.0\.0\.1"):
        fetched(url, tmp_path)
    assert "USER" not in [name for name, _ in secure.commands]


def test_a_server_that_takes_no_tls_hears_no_password(server: Served, tmp_path: Path) -> None:
    server.put("a.csv", b"1\n")
    with pytest.raises(Refused, match=r"the server takes no TLS \(50\d\)"):
        fetched(server.url("a.csv", "reader:${{ env.FTP }}@").replace("ftp://", "ftps://"), tmp_path)
    assert [name for name, _ in server.commands] == ["AUTH"]


def test_files_of_ftp_that_appear_come_one_by_one(server: Served) -> None:
    for name in ("2.csv", "1.csv", "1.txt", "deep/0.csv"):
        server.put(f"daily/{name}", name.encode(), LONG_AGO)
    first = listed(server, "daily/*.csv", event_time=FromMetadata())
    assert (first.name, first.path.read_bytes(), first.has_more) == ("1.csv", b"1.csv", True)
    second = listed(server, "daily/*.csv", first.state, event_time=FromMetadata())
    assert (second.name, second.has_more, second.event_time) == ("2.csv", False, LONG_AGO * SECOND)
    assert isinstance(listed(server, "daily/*.csv", second.state), Unchanged)
    server.put("daily/0.csv", b"late", LONG_AGO + 100)
    server.put("daily/1.csv", b"again", LONG_AGO + 100)
    taken = ConsumedFiles()
    taken.add("daily/1.csv", Instant(LONG_AGO * SECOND), f"5-{LONG_AGO}")
    taken.add("daily/2.csv", Instant(LONG_AGO * SECOND), f"5-{LONG_AGO}")
    told = listed(server, "daily/*.csv", second.state, taken)
    assert isinstance(told, Unchanged)
    assert [each.name for each in told.skipped] == ["daily/0.csv", "daily/1.csv"]


def test_folders_below_and_the_root_of_a_server_of_ftp(server: Served) -> None:
    for name in ("2024/01/b.csv", "2023/12/a.csv", "c.csv"):
        server.put(f"all/{name}", name.encode(), LONG_AGO)
    by_path = FromPath(pattern=r"(\d+/\d+)/", timestamp_format="%Y/%m")
    first = listed(server, "/all/2*/**/*.csv", event_time=by_path)
    second = listed(server, "/all/2*/**/*.csv", first.state, event_time=by_path)
    assert [first.name, second.name, second.has_more] == ["a.csv", "b.csv", False]
    assert first.event_time == instant.parse("2023-12-01T00:00:00Z")
    with pytest.raises(NotFound, match="no file matches"):
        listed(server, "all/*.txt")
    with pytest.raises(NotFound, match="there is no folder 'none'"):
        listed(server, "none/*.txt")
    with pytest.raises(Invalid) as caught:
        listed(server, "/all/2*/**/*.csv", first.state, order=SourceOrdering.BY_EVENT_TIME)
    assert caught.value.rule == "files-order"


def test_a_file_that_is_still_written_is_left(server: Served, tmp_path: Path) -> None:
    path = server.put("daily/1.csv", b"1\n", int(NOW / SECOND) - 5)
    with pytest.raises(NotFound, match="written just now"):
        listed(server, "daily/*.csv")
    os.utime(path, (LONG_AGO, LONG_AGO))
    server.on_read = lambda: os.utime(path, (1, 1))
    with pytest.raises(Remote) as caught:
        listed(server, "daily/*.csv")
    assert caught.value.rule == "source-changed"


def test_a_listing_of_ftp_has_an_end_and_a_form(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in range(5):
        server.put(f"daily/{name}.csv", b"1", LONG_AGO)
    monkeypatch.setattr(process, "MAX_LISTED", 4)
    with pytest.raises(Refused, match="more than 4 entries"):
        listed(server, "daily/*.csv")
    server.without = {"MLSD"}
    with pytest.raises(Refused, match=r"does not list its files by MLSD \(502\)") as caught:
        listed(server, "daily/*.csv")
    assert caught.value.rule == "ftp-listing"


@given(st.text(max_size=60))
def test_any_line_of_a_listing_is_an_entry_or_a_told_mistake(line: str) -> None:
    with suppress(Refused):
        facts, name = process._read(line)
        assert "/" not in name
        assert process._file(name, facts).size >= 0


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("ftp://a.example", "url-host"),
        ("ftp:///*.csv", "url-host"),
        ("ftp://a.example:99999/*.csv", "url-host"),
        ("ftps://a.example/../*.csv", "url-host"),
        ("ftp://a.example/a//*.csv", "url-host"),
        ("ftp://a.example/*.csv\r\nDELE b", "url-host"),
        ("ftp://me%0d:x${{ env.NONE }}@a.example/*", "source-password"),
        ("ftps://me:secret@a.example/*.csv", "source-password"),
        ("ftps://me:${{ env.NONE }}@a.example/*.csv", "source-variable"),
    ],
)
def test_what_is_no_pattern_of_ftp_is_refused(path: str, rule: str, tmp_path: Path) -> None:
    with pytest.raises(Fault) as caught:
        check_fetch(FetchFilesGlob(path=path), IngestSettings(staging=tmp_path))
    assert caught.value.rule == rule


def test_only_judged_addresses_are_dialled(server: Served, tmp_path: Path) -> None:
    server.put("a.csv", b"1\n")
    with pytest.raises(NotAllowed):
        fetched(server.url("a.csv"), tmp_path, may_dial=is_global)
    assert server.commands == []
    with pytest.raises(Refused, match="not on the web"):
        source_of(FetchUrl(url="ftp://192.0.2.7/a.csv"), None).check_open()


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


def test_the_examples_of_the_page_are_accepted(tmp_path: Path) -> None:
    assert len(EXAMPLES) == 2
    settings = IngestSettings(staging=tmp_path, variables={"FTP": PASSWORD})
    assert [check_source(source(each), settings) for each in EXAMPLES] == [None, None]
