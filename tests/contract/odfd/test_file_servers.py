"""What files of FTP and SFTP mean as sources, asked of real servers on loopback: pyftpdlib and asyncssh."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.errors import Invalid, NotFound, Refused, Remote
from chain.instant import SECOND, Instant
from chain.model.events import SourceState
from chain.model.fetch_options import SftpAccess
from chain.model.source import (
    FetchFilesGlob,
    FetchUrl,
    FromMetadata,
    FromPath,
    FromSystemTime,
    RequestHeader,
    SourceOrdering,
)
from odfd.ingest.bucket_objects import ObjectPosition
from odfd.ingest.clients import ftp as ftp_process
from odfd.ingest.clients import sftp as sftp_process
from odfd.ingest.clients.remote_files import Pattern, RemoteFile, next_files
from odfd.ingest.consumed_files import ConsumedFiles
from odfd.ingest.fetch import ftp, sftp
from odfd.ingest.fetch.dispatch import check_fetch, fetch
from odfd.ingest.fetch.source import Fetched, FetchJob, Unchanged
from odfd.ingest.settings import PATIENCE, IngestSettings
from odfd.ingest.templates import redact
from p2p.dial import NotAllowed
from p2p.ip import is_global
from worlds.faults import breaks
from worlds.ftp import Served as FtpServed
from worlds.ftp import ftp_served
from worlds.sftp import LONG_AGO, PASSWORD, sftp_served
from worlds.sftp import Served as SftpServed
from worlds.sources import asked_here

NOW = instant.parse("2050-01-01T12:00:00Z")
LARGE = os.urandom(1 << 20)
OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKcYrxHBQ6Q5DpNvBqNRDgSZzYjVxQmY6Xb0t1J8mDdL"


class Server(NamedTuple):
    """A server of either kind, what asks it, and what a path begins with that is in its folder."""

    served: FtpServed | SftpServed
    client: ModuleType
    beginning: str
    tag: str
    """Of a file that was changed ``LONG_AGO``, behind its size."""

    def file(self, path: str, **more: Any) -> FetchUrl:
        return FetchUrl(url=self.served.url(f"{self.beginning}{path}"), **more)

    def files(self, path: str, **more: Any) -> FetchFilesGlob:
        return FetchFilesGlob(path=self.served.url(f"{self.beginning}{path}"), **more)


def asked(
    served: FtpServed | SftpServed,
    step: FetchUrl | FetchFilesGlob,
    state: SourceState | None = None,
    access: SftpAccess | None = None,
    taken: ConsumedFiles | None = None,
    **settings: Any,
) -> Any:
    variables, options = {"FTP": PASSWORD}, None
    if isinstance(served, SftpServed):
        variables = {"SFTP": PASSWORD, "KEY": served.private_key}
        options = access or SftpAccess(host_key=served.host_key)
    folder = served.folder.parent
    given = {"staging": folder, "variables": variables, "patience": PATIENCE._replace(silence=15.0), **settings}
    job = FetchJob(state=state, now=NOW, folder=folder, settings=IngestSettings(**given), options=options, taken=taken)
    with redact(variables):
        return trio.run(fetch, step, job)


@pytest.fixture
def ftp_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FtpServed]:
    """Asked from this process, which starts at once."""
    monkeypatch.setattr(ftp, "ask", asked_here(ftp_process.answer))
    (tmp_path / "served").mkdir()
    with ftp_served(tmp_path / "served") as served:
        yield served


@pytest.fixture
def sftp_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SftpServed]:
    """Asked from this process, which starts at once."""
    monkeypatch.setattr(sftp, "ask", asked_here(sftp_process.answer))
    (tmp_path / "served").mkdir()
    with sftp_served(tmp_path / "served") as served:
        yield served


@pytest.fixture(params=["ftp", pytest.param("sftp", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest) -> Server:
    served = request.getfixturevalue(f"{request.param}_server")
    if request.param == "ftp":
        return Server(served, ftp_process, "", "20231114221320")
    return Server(served, sftp_process, "/", str(LONG_AGO))


def test_a_file_comes_again_only_when_it_changed(server: Server) -> None:
    path = server.served.put("data/a b.csv", b"1\n", LONG_AGO)
    step = server.file("data/a%20b.csv")
    first = asked(server.served, step)
    assert (first.path.read_bytes(), first.name) == (b"1\n", "a b.csv")
    assert first.event_time == instant.parse("2023-11-14T22:13:20Z")
    assert first.state == SourceState(source_name="default", kind="odf/etag", value=f"2-{server.tag}")
    reads: list[None] = []
    server.served.on_read = lambda: reads.append(None)
    assert isinstance(asked(server.served, step, first.state), Unchanged)
    assert not reads
    os.utime(path, (LONG_AGO + 1, LONG_AGO + 1))
    again = asked(server.served, server.file("data/a%20b.csv", event_time=FromSystemTime()), first.state)
    assert (again.identity, again.event_time) == (first.identity, NOW)
    assert again.state != first.state


@pytest.mark.parametrize("breaks", [0, 1])
def test_what_is_written_while_it_is_read_is_refused(server: Server, breaks: int) -> None:
    """Attack T-SOURCE-03: an FTP file that is written while it is read, so that halves of two are taken for one.

    Defence: size and time are requested again at the end, and before a transfer resumes.
    """
    path = server.served.put("large", LARGE)
    if isinstance(server.served, FtpServed):
        server.served.breaks = breaks
    server.served.on_read = lambda: os.utime(path, (1, 1))
    with pytest.raises(Remote) as caught:
        asked(server.served, server.file("large"))
    assert caught.value.rule == "source-changed"


def test_files_that_appear_come_one_by_one(server: Server) -> None:
    for name in ("2.csv", "1.csv", "1.txt", "deep/0.csv"):
        server.served.put(f"daily/{name}", name.encode(), LONG_AGO)
    if isinstance(server.served, SftpServed):
        (server.served.folder / "daily" / "3.csv").symlink_to("1.csv")
    step = server.files("daily/*.csv", event_time=FromMetadata())
    first = asked(server.served, step)
    assert (first.name, first.path.read_bytes(), first.has_more) == ("1.csv", b"1.csv", True)
    second = asked(server.served, step, first.state)
    assert (second.name, second.has_more, second.event_time) == ("2.csv", False, LONG_AGO * SECOND)
    assert isinstance(asked(server.served, step, second.state), Unchanged)
    server.served.put("daily/0.csv", b"late", LONG_AGO + 100)
    server.served.put("daily/1.csv", b"again", LONG_AGO + 100)
    taken = ConsumedFiles()
    taken.add("daily/1.csv", Instant(LONG_AGO * SECOND), f"5-{LONG_AGO}")
    taken.add("daily/2.csv", Instant(LONG_AGO * SECOND), f"5-{LONG_AGO}")
    told = asked(server.served, step, second.state, taken=taken)
    assert isinstance(told, Unchanged)
    assert [each.name for each in told.skipped] == ["daily/0.csv", "daily/1.csv"]


def test_folders_below_and_times_in_names(server: Server) -> None:
    """From the root of the server, which is a slash more in a URL of FTP."""
    for name in ("2024/01/b.csv", "2023/12/a.csv", "c.csv"):
        server.served.put(f"all/{name}", name.encode(), LONG_AGO)
    by_path = FromPath(pattern=r"(\d+/\d+)/", timestamp_format="%Y/%m")
    step = FetchFilesGlob(path=server.served.url("/all/2*/**/*.csv"), event_time=by_path)
    first = asked(server.served, step)
    second = asked(server.served, step, first.state)
    assert [first.name, second.name, second.has_more] == ["a.csv", "b.csv", False]
    assert first.event_time == instant.parse("2023-12-01T00:00:00Z")
    with pytest.raises(NotFound, match="no file matches"):
        asked(server.served, server.files("all/*.txt"))
    with pytest.raises(NotFound, match="there is no"):
        asked(server.served, server.files("none/*.txt"))
    with breaks("files-order", Invalid):
        asked(server.served, FetchFilesGlob(path=step.path, order=SourceOrdering.BY_EVENT_TIME), first.state)


def test_a_listing_has_an_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack T-SOURCE-04: SFTP folders without end, or a name there that leads elsewhere.

    Defence: entries, depth, bytes and time have limits; links are not followed, and a name with a slash is refused.
    """
    for name in range(5):
        server.served.put(f"daily/{name}.csv", b"1", LONG_AGO)
    monkeypatch.setattr(server.client, "MAX_LISTED", 4)
    with pytest.raises(Refused, match="more than 4 entries"):
        asked(server.served, server.files("daily/*.csv"))


def test_only_judged_addresses_are_dialled(server: Server) -> None:
    server.served.put("a.csv", b"1\n")
    with pytest.raises(NotAllowed):
        asked(server.served, server.file("a.csv"), may_dial=is_global)
    if isinstance(server.served, FtpServed):
        assert server.served.commands == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ftp", "sftp"])
def test_the_process_answers_and_a_silent_server_is_left(kind: str, tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    with ftp_served(tmp_path / "served") if kind == "ftp" else sftp_served(tmp_path / "served") as served:
        served.put("large", LARGE)
        signed = served.url("large", "reader:${{ env.FTP }}@") if kind == "ftp" else served.url("/large")
        assert asked(served, FetchUrl(url=signed)).path.read_bytes() == LARGE
        with socket.create_server(("127.0.0.1", 0)) as deaf:
            served.port = deaf.getsockname()[1]
            with pytest.raises(Remote, match=r"no rows came in 0\.05 s"):
                asked(served, FetchUrl(url=served.url("/a.csv")), patience=PATIENCE._replace(total=0.05))


# FTP alone: users, breaks, servers that bend their answers, and TLS.


def fetched(served: FtpServed, path: str, state: SourceState | None = None, user: str = "", **settings: Any) -> Any:
    return asked(served, FetchUrl(url=served.url(path, user)), state, **settings)


def listed(served: FtpServed, path: str) -> Any:
    """The first file of a pattern."""
    return asked(served, FetchFilesGlob(path=served.url(path)))


READER = "reader:${{ env.FTP }}@"


@pytest.fixture(params=["explicit", "implicit"])
def secure(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FtpServed]:
    """A server with TLS, asked from this process, which trusts its certificate."""
    monkeypatch.setattr(ftp, "ask", asked_here(ftp_process.answer))
    (tmp_path / "served").mkdir()
    with ftp_served(tmp_path / "served", request.param) as served:
        if request.param == "implicit":
            monkeypatch.setattr(ftp, "IMPLICIT_PORT", served.port)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
        yield served


def test_a_user_signs_in_and_a_wrong_one_is_refused(ftp_server: FtpServed) -> None:
    ftp_server.put("a.csv", b"1\n")
    fetched(ftp_server, "a.csv", user=READER)
    assert ("USER", "reader") in ftp_server.commands
    with breaks("ftp-credentials", Refused, match=r"refuses this node \(530\)") as caught:
        fetched(ftp_server, "a.csv", user="nobody:${{ env.FTP }}@")
    assert PASSWORD not in str(caught.value)
    with breaks("source-password", Invalid):
        fetched(ftp_server, "a.csv", user="reader:word@")


def test_a_transfer_that_breaks_is_taken_up_where_it_ended(ftp_server: FtpServed) -> None:
    ftp_server.put("large", LARGE)
    ftp_server.breaks = 3
    found = fetched(ftp_server, "large")
    assert found.path.read_bytes() == LARGE
    assert ftp_server.breaks == 0
    starts = [int(said) for name, said in ftp_server.commands if name == "REST"]
    assert len(starts) == 3
    assert starts == sorted(starts)
    assert starts[0] >= ftp_server.cut_after


def test_one_that_never_comes_further_is_left(ftp_server: FtpServed) -> None:
    ftp_server.put("large", LARGE)
    ftp_server.breaks, ftp_server.cut_after = 100, 0
    with pytest.raises(Remote, match="lost after 0 bytes"):
        fetched(ftp_server, "large")
    assert 100 - ftp_server.breaks == ftp_process.TRIES


def test_a_server_that_tells_no_times_makes_a_source_without_a_state(ftp_server: FtpServed) -> None:
    ftp_server.put("a.csv", b"1\n")
    ftp_server.without = {"MDTM"}
    assert fetched(ftp_server, "a.csv").state is None
    ftp_server.without = {"SIZE", "MDTM"}
    found = fetched(ftp_server, "a.csv")
    assert (found.state, found.event_time, found.path.read_bytes()) == (None, None, b"1\n")


def test_a_server_that_sends_elsewhere_is_refused(ftp_server: FtpServed) -> None:
    """Attack T-SOURCE-05: an FTP server whose answer to `PASV` or `EPSV` makes the node connect to another host, or to
    a service of its own.

    Defence: files come from the address that was dialled, from ports above 1023; another address is refused by name.
    """
    ftp_server.put("a.csv", b"1\n")
    ftp_server.address = "192.0.2.7"
    assert isinstance(fetched(ftp_server, "a.csv"), Fetched), "EPSV names no address"
    ftp_server.without = {"EPSV"}
    with breaks("ftp-redirect", Refused, match=r"at 127\.0\.0\.1, sends this node to 192\.0\.2\.7"):
        fetched(ftp_server, "a.csv")
    ftp_server.address = ""
    assert isinstance(fetched(ftp_server, "a.csv"), Fetched), "by PASV"


def test_a_server_that_sends_to_a_service_of_its_own_is_refused(
    ftp_server: FtpServed, monkeypatch: pytest.MonkeyPatch
) -> None:
    ftp_server.put("a.csv", b"1\n")
    monkeypatch.setattr(ftp_process, "_FIRST_PORT", 1 << 16)
    with breaks("ftp-redirect", Refused, match="to its port"):
        fetched(ftp_server, "a.csv")


def test_lines_and_bytes_of_a_server_of_ftp_are_bounded(ftp_server: FtpServed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack T-SOURCE-04: answers of an FTP server without end, or a file with more bytes than announced.

    Defence: lines, bytes and time have limits, in a process of its own.
    """
    ftp_server.put("large", LARGE)
    for hidden in (set(), {"SIZE"}):
        ftp_server.without = hidden
        with breaks("max-source-bytes", Refused):
            fetched(ftp_server, "large", max_source_bytes=1000)
    monkeypatch.setattr(ftp_process, "MAX_LINES", 5)
    with pytest.raises(Remote, match="more than 5 lines"):
        fetched(ftp_server, "large")


def test_a_file_that_is_missing_is_told(ftp_server: FtpServed) -> None:
    with pytest.raises(NotFound, match=r"there is no file 'a\.csv'"):
        fetched(ftp_server, "a.csv")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(Remote, match="cannot be reached"):
        asked(ftp_server, FetchUrl(url=f"ftp://127.0.0.1:{port}/a"))


@pytest.mark.slow
def test_over_tls_user_password_and_files_are_encrypted(secure: FtpServed) -> None:
    secure.put("large", LARGE)
    found = fetched(secure, "large", user=READER)
    assert found.path.read_bytes() == LARGE
    names = [name for name, _ in secure.commands]
    assert names[: names.index("USER")] == (["AUTH"] if secure.tls == "explicit" else [])
    assert ("PROT", "P") in secure.commands
    assert isinstance(fetched(secure, "large", found.state), Unchanged)
    secure.breaks = 2
    assert fetched(secure, "large").path.read_bytes() == LARGE
    assert len([name for name, _ in secure.commands if name == "REST"]) == 2
    secure.put("daily/1.csv", b"1\n", LONG_AGO)
    assert listed(secure, "daily/*.csv").path.read_bytes() == b"1\n"


def test_a_server_of_another_certificate_or_without_tls_is_refused(
    secure: FtpServed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is told who comes."""
    secure.put("a.csv", b"1\n")
    url = secure.url("a.csv", READER)
    with breaks("ftp-tls", Refused, match="is not that of localhost"):
        asked(secure, FetchUrl(url=url.replace("127.0.0.1", "localhost")))
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(Refused, match=r"is not that of 127\.0\.0\.1"):
        asked(secure, FetchUrl(url=url))
    assert "USER" not in [name for name, _ in secure.commands]


def test_a_server_that_takes_no_tls_hears_no_password(ftp_server: FtpServed) -> None:
    """Attack T-SOURCE-01: a man in the middle before a server of FTPS, MQTT or Kafka, or a server that asks for the
    password in plain text.

    Defence: certificates and names are checked, and no setting turns that off; user and password are sent only after
    TLS began, and files come encrypted or not at all.
    """
    ftp_server.put("a.csv", b"1\n")
    with pytest.raises(Refused, match=r"the server takes no TLS \(50\d\)"):
        asked(ftp_server, FetchUrl(url=ftp_server.url("a.csv", READER).replace("ftp://", "ftps://")))
    assert [name for name, _ in ftp_server.commands] == ["AUTH"]


def test_a_file_that_is_still_written_is_left(ftp_server: FtpServed) -> None:
    path = ftp_server.put("daily/1.csv", b"1\n", int(NOW / SECOND) - 5)
    with pytest.raises(NotFound, match="written just now"):
        listed(ftp_server, "daily/*.csv")
    os.utime(path, (LONG_AGO, LONG_AGO))
    ftp_server.on_read = lambda: os.utime(path, (1, 1))
    with breaks("source-changed", Remote):
        listed(ftp_server, "daily/*.csv")


def test_a_listing_of_ftp_has_a_form(ftp_server: FtpServed) -> None:
    ftp_server.put("daily/1.csv", b"1", LONG_AGO)
    ftp_server.without = {"MLSD"}
    with breaks("ftp-listing", Refused, match=r"does not list its files by MLSD \(502\)"):
        listed(ftp_server, "daily/*.csv")


@given(st.text(max_size=60))
def test_any_line_of_a_listing_is_an_entry_or_a_told_mistake(line: str) -> None:
    with suppress(Refused):
        facts, name = ftp_process._read(line)
        assert "/" not in name
        assert ftp_process._file(name, facts).size >= 0


def test_a_value_of_a_variable_ends_no_command(ftp_server: FtpServed) -> None:
    """Attack T-SOURCE-04: an FTP command within a path, a user or a variable's value.

    Defence: line ends and other control characters are refused before a connection is made.
    """
    with pytest.raises(Invalid, match="no command of FTP"):
        fetched(ftp_server, "${{ env.WHAT }}", variables={"WHAT": "a%0d%0aDELE%20b"})
    assert ftp_server.commands == []


def test_headers_have_no_meaning(tmp_path: Path) -> None:
    step = FetchUrl(url="ftp://a.example/a", headers=(RequestHeader(name="a", value="b"),))
    with pytest.raises(Invalid, match="headers have no meaning"):
        check_fetch(step, IngestSettings(staging=tmp_path))


# SFTP alone: keys of servers and users, and the order of files.


@pytest.mark.slow
def test_large_files_and_the_folder_where_a_user_arrives(sftp_server: SftpServed) -> None:
    body = os.urandom(3 << 20)
    sftp_server.put("large", body)
    assert asked(sftp_server, FetchUrl(url=sftp_server.url("/~/large"))).path.read_bytes() == body
    with breaks("max-source-bytes", Refused):
        asked(sftp_server, FetchUrl(url=sftp_server.url("/large")), max_source_bytes=1000)


def test_a_server_with_another_key_is_refused_by_name(sftp_server: SftpServed) -> None:
    """Attack T-SOURCE-01: another server in the place of an SFTP server, to get the password, or to serve other files.

    Defence: the source names the server's key; a source without one, and another key, are refused before the node signs
    in.
    """
    sftp_server.put("a.csv", b"1\n")
    step = FetchUrl(url=sftp_server.url("/a.csv"))
    with breaks("sftp-host-key", Refused, match=r"the server's key is SHA256:\S+, and the source names SHA256:"):
        asked(sftp_server, step, access=SftpAccess(host_key=OTHER_KEY))
    with breaks("sftp-host-key", Refused, match="the key of the server is not known"):
        asked(sftp_server, step, access=SftpAccess())
    assert sftp_server.reads == 0


@pytest.mark.slow
def test_a_user_signs_in_by_password_or_key_and_a_wrong_one_is_refused(
    sftp_server: SftpServed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack T-SOURCE-01: SSH keys, agents or settings of the machine's user, used for a source.

    Defence: none of them is read; a source signs in only with its own secrets.

    The key that would open lies in the folder where clients of SSH look for it, and is not taken from there.
    """
    home = sftp_server.folder.parent / ".ssh"
    home.mkdir()
    (home / "id_ed25519").write_text(sftp_server.private_key)
    (home / "id_ed25519").chmod(0o600)
    monkeypatch.setenv("HOME", str(home.parent))
    sftp_server.put("a.csv", b"1\n")
    key = SftpAccess(host_key=sftp_server.host_key, private_key="${{ env.KEY }}")
    assert isinstance(asked(sftp_server, FetchUrl(url=sftp_server.url("/a.csv", "reader")), access=key), Fetched)
    for user, access in (("nobody:${{ env.SFTP }}", None), ("reader", None), ("nobody", key)):
        with breaks("sftp-credentials", Refused, match="the server refuses") as caught:
            asked(sftp_server, FetchUrl(url=sftp_server.url("/a.csv", user)), access=access)
        assert PASSWORD not in str(caught.value)
    broken = SftpAccess(host_key=sftp_server.host_key, private_key="${{ env.SFTP }}")
    with pytest.raises(Invalid, match="no private key"):
        asked(sftp_server, FetchUrl(url=sftp_server.url("/a.csv", "reader")), access=broken)


FILES = st.lists(
    st.builds(
        RemoteFile,
        key=st.text("ab/.", min_size=1, max_size=4).map(lambda name: f"d/{name.replace('/', '')}x"),
        size=st.integers(1, 3),
        modified=st.integers(0, 30),
    ),
    max_size=8,
    unique_by=lambda each: each.key,
)


@pytest.mark.slow
@given(FILES, st.sampled_from(list(SourceOrdering)), st.randoms())
def test_each_file_is_taken_once_in_any_order_of_the_listing(
    files: list[RemoteFile], order: SourceOrdering, chance: Any
) -> None:
    """At 20 s, and again when all of them are old."""
    taken: list[RemoteFile] = []
    last: ObjectPosition | None = None
    for now in (20, 100):
        while True:
            chance.shuffle(files)
            pattern = Pattern(order=order.value, last=last, now=now * SECOND)
            found, behind = next_files(files, "/d/*", pattern)
            assert sorted(each.key for each in behind) == sorted(each.key for each in taken)
            if not found:
                break
            assert found[0].modified <= now - 10
            taken.append(found[0])
            last = ObjectPosition.of(found[0].as_object(), order)
    assert sorted(taken, key=lambda each: each.key) == sorted(files, key=lambda each: each.key)
