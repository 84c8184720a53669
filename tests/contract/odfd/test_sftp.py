"""What files of SFTP mean as a source, asked of a server of asyncssh on loopback."""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.codec.manifest import from_builtins, to_builtins
from chain.errors import Fault, Invalid, NotFound, Refused, Remote
from chain.instant import SECOND, Instant
from chain.model.events import SetPollingSource, SourceState
from chain.model.fetch_options import SftpAccess, fetch_options
from chain.model.source import FetchFilesGlob, FetchUrl, FromMetadata, FromPath, SourceOrdering
from odfd.ingest.acceptance import check_source
from odfd.ingest.bucket_objects import ObjectPosition
from odfd.ingest.clients import sftp as process
from odfd.ingest.clients.remote_files import Pattern, RemoteFile, SftpJob, SftpResult, next_files
from odfd.ingest.consumed_files import ConsumedFiles
from odfd.ingest.fetch import sftp
from odfd.ingest.fetch.dispatch import check_fetch, fetch
from odfd.ingest.fetch.fetch_process import without_fault
from odfd.ingest.fetch.source import Fetched, FetchJob, Unchanged
from odfd.ingest.settings import PATIENCE, IngestSettings
from odfd.ingest.templates import redact
from p2p.dial import NotAllowed
from p2p.ip import is_global
from worlds.sftp import LONG_AGO, PASSWORD, Served, sftp_served
from worlds.sources import examples, source

NOW = instant.parse("2050-01-01T12:00:00Z")
OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKcYrxHBQ6Q5DpNvBqNRDgSZzYjVxQmY6Xb0t1J8mDdL"
EXAMPLES = [each for each in (*examples("Url"), *examples("FilesGlob")) if "sftp://" in each]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Asked from this process, which starts at once."""

    async def ask(_main: object, job: SftpJob, _kind: object, shown: str, _time: object) -> SftpResult:
        return without_fault(await trio.to_thread.run_sync(process.answer, job), shown)

    monkeypatch.setattr(sftp, "ask", ask)
    (tmp_path / "served").mkdir()
    with sftp_served(tmp_path / "served") as served:
        yield served


def asked(
    served: Served,
    step: FetchUrl | FetchFilesGlob,
    state: SourceState | None = None,
    access: SftpAccess | None = None,
    taken: ConsumedFiles | None = None,
    **settings: Any,
) -> Any:
    variables = {"SFTP": PASSWORD, "KEY": served.private_key}
    folder = served.folder.parent
    given = {"staging": folder, "variables": variables, "patience": PATIENCE._replace(silence=15.0), **settings}
    job = FetchJob(
        state=state,
        now=NOW,
        folder=folder,
        settings=IngestSettings(**given),
        options=access or SftpAccess(host_key=served.host_key),
        taken=taken,
    )
    with redact(variables):
        return trio.run(fetch, step, job)


@pytest.mark.slow
def test_a_file_comes_again_only_when_it_changed(server: Served) -> None:
    server.put("data/a b.csv", b"1\n")
    step = FetchUrl(url=server.url("/data/a%20b.csv"))
    first = asked(server, step)
    assert (first.path.read_bytes(), first.name) == (b"1\n", "a b.csv")
    assert first.event_time == instant.parse("2023-11-14T22:13:20Z")
    assert first.state == SourceState(source_name="default", kind="odf/etag", value="2-1700000000")
    server.reads = 0
    assert isinstance(asked(server, step, first.state), Unchanged)
    assert server.reads == 0
    server.put("data/a b.csv", b"2\n", LONG_AGO + 1)
    assert asked(server, step, first.state).path.read_bytes() == b"2\n"


@pytest.mark.slow
def test_large_files_and_the_folder_where_a_user_arrives(server: Served) -> None:
    body = os.urandom(3 << 20)
    server.put("large", body)
    assert asked(server, FetchUrl(url=server.url("/~/large"))).path.read_bytes() == body
    with pytest.raises(Refused) as caught:
        asked(server, FetchUrl(url=server.url("/large")), max_source_bytes=1000)
    assert caught.value.rule == "max-source-bytes"


def test_a_server_with_another_key_is_refused_by_name(server: Served) -> None:
    server.put("a.csv", b"1\n")
    step = FetchUrl(url=server.url("/a.csv"))
    with pytest.raises(Refused, match=r"the server's key is SHA256:\S+, and the source names SHA256:") as caught:
        asked(server, step, access=SftpAccess(host_key=OTHER_KEY))
    assert caught.value.rule == "sftp-host-key"
    with pytest.raises(Refused, match="the key of the server is not known") as unknown:
        asked(server, step, access=SftpAccess())
    assert unknown.value.rule == "sftp-host-key"
    assert server.reads == 0


@pytest.mark.slow
def test_a_user_signs_in_by_password_or_key_and_a_wrong_one_is_refused(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key that would open lies in the folder where clients of SSH look for it, and is not taken from there."""
    home = server.folder.parent / ".ssh"
    home.mkdir()
    (home / "id_ed25519").write_text(server.private_key)
    (home / "id_ed25519").chmod(0o600)
    monkeypatch.setenv("HOME", str(home.parent))
    server.put("a.csv", b"1\n")
    key = SftpAccess(host_key=server.host_key, private_key="${{ env.KEY }}")
    assert isinstance(asked(server, FetchUrl(url=server.url("/a.csv", "reader")), access=key), Fetched)
    for user, access in (("nobody:${{ env.SFTP }}", None), ("reader", None), ("nobody", key)):
        with pytest.raises(Refused, match="the server refuses") as caught:
            asked(server, FetchUrl(url=server.url("/a.csv", user)), access=access)
        assert caught.value.rule == "sftp-credentials"
        assert PASSWORD not in str(caught.value)
    broken = SftpAccess(host_key=server.host_key, private_key="${{ env.SFTP }}")
    with pytest.raises(Invalid, match="no private key"):
        asked(server, FetchUrl(url=server.url("/a.csv", "reader")), access=broken)


def test_what_is_written_while_sftp_reads_it_is_refused(server: Served) -> None:
    path = server.put("a.csv", b"1\n")
    server.on_read = lambda: os.utime(path, (1, 1))
    with pytest.raises(Remote) as caught:
        asked(server, FetchUrl(url=server.url("/a.csv")))
    assert caught.value.rule == "source-changed"


@pytest.mark.slow
def test_files_that_appear_come_one_by_one(server: Served) -> None:
    for name in ("2.csv", "1.csv", "1.txt", "deep/0.csv"):
        server.put(f"daily/{name}", name.encode())
    (server.folder / "daily" / "3.csv").symlink_to("1.csv")
    step = FetchFilesGlob(path=server.url("/daily/*.csv"), event_time=FromMetadata())
    first = asked(server, step)
    assert (first.name, first.path.read_bytes(), first.has_more) == ("1.csv", b"1.csv", True)
    second = asked(server, step, first.state)
    assert (second.name, second.has_more, second.event_time) == ("2.csv", False, LONG_AGO * SECOND)
    assert isinstance(asked(server, step, second.state), Unchanged)
    server.put("daily/0.csv", b"late", LONG_AGO + 100)
    server.put("daily/1.csv", b"again", LONG_AGO + 100)
    taken = ConsumedFiles()
    taken.add("daily/1.csv", Instant(LONG_AGO * SECOND), f"5-{LONG_AGO}")
    taken.add("daily/2.csv", Instant(LONG_AGO * SECOND), f"5-{LONG_AGO}")
    told = asked(server, step, second.state, taken=taken)
    assert isinstance(told, Unchanged)
    assert [each.name for each in told.skipped] == ["daily/0.csv", "daily/1.csv"]


@pytest.mark.slow
def test_folders_below_and_times_in_names(server: Served) -> None:
    for name in ("2024/01/b.csv", "2023/12/a.csv", "c.csv"):
        server.put(f"all/{name}", name.encode())
    by_path = FromPath(pattern=r"(\d+/\d+)/", timestamp_format="%Y/%m")
    step = FetchFilesGlob(path=server.url("/all/2*/**/*.csv"), event_time=by_path)
    first = asked(server, step)
    second = asked(server, step, first.state)
    assert [first.name, second.name, second.has_more] == ["a.csv", "b.csv", False]
    assert first.event_time == instant.parse("2023-12-01T00:00:00Z")
    with pytest.raises(NotFound, match="no file matches"):
        asked(server, FetchFilesGlob(path=server.url("/all/*.txt")))
    with pytest.raises(NotFound, match="there is no"):
        asked(server, FetchFilesGlob(path=server.url("/none/*.txt")))
    with pytest.raises(Invalid) as caught:
        asked(server, FetchFilesGlob(path=step.path, order=SourceOrdering.BY_EVENT_TIME), first.state)
    assert caught.value.rule == "files-order"


def test_a_listing_of_sftp_has_an_end(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in range(5):
        server.put(f"daily/{name}.csv", b"1")
    monkeypatch.setattr("odfd.ingest.clients.sftp.MAX_LISTED", 4)
    with pytest.raises(Refused, match="more than 4 entries"):
        asked(server, FetchFilesGlob(path=server.url("/daily/*.csv")))


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


def test_only_judged_addresses_are_dialled(server: Served) -> None:
    server.put("a.csv", b"1\n")
    with pytest.raises(NotAllowed):
        asked(server, FetchUrl(url=server.url("/a.csv")), may_dial=is_global)


@pytest.mark.parametrize(
    ("url", "access", "rule"),
    [
        ("sftp://a.example/a", SftpAccess(host_key=OTHER_KEY), "url-host"),
        ("sftp://me@a.example", SftpAccess(host_key=OTHER_KEY), "url-host"),
        ("sftp://me@a.example/a/../b", SftpAccess(host_key=OTHER_KEY), "url-host"),
        ("sftp://me@a.example:99999/a", SftpAccess(host_key=OTHER_KEY), "url-host"),
        ("sftp://me@a.example/a%00b", SftpAccess(host_key=OTHER_KEY), "url-host"),
        ("sftp://me:secret@a.example/a", SftpAccess(host_key=OTHER_KEY), "source-password"),
        ("sftp://me:${{ env.NONE }}@a.example/a", SftpAccess(host_key=OTHER_KEY), "source-variable"),
        ("sftp://me@a.example/a", SftpAccess(host_key=OTHER_KEY, private_key="secret"), "source-password"),
        ("sftp://me@a.example/a", SftpAccess(host_key="a.example ssh-ed25519 AAAA"), "sftp-host-key"),
        ("sftp://me@a.example/a", None, "sftp-host-key"),
    ],
)
def test_what_no_server_of_sftp_can_be_asked_is_refused(
    url: str, access: SftpAccess | None, rule: str, tmp_path: Path
) -> None:
    for step in (FetchUrl(url=url), FetchFilesGlob(path=url)):
        if step == FetchFilesGlob(path="sftp://me@a.example/a%00b"):
            continue  # patterns are not decoded
        with pytest.raises(Fault) as caught:
            check_fetch(step, IngestSettings(staging=tmp_path), access)
        assert caught.value.rule == rule


def test_without_the_client_such_a_source_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(Refused, match="asyncssh") as caught:
        check_fetch(
            FetchUrl(url="sftp://me@a.example/a"), IngestSettings(staging=tmp_path), SftpAccess(host_key=OTHER_KEY)
        )
    assert caught.value.rule == "sftp-extra"


@pytest.mark.slow
def test_the_process_answers_and_a_silent_server_is_left(tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    with sftp_served(tmp_path / "served") as served:
        served.put("a.csv", b"1\n")
        assert asked(served, FetchUrl(url=served.url("/a.csv"))).path.read_bytes() == b"1\n"
        with socket.create_server(("127.0.0.1", 0)) as deaf:
            served.port = deaf.getsockname()[1]
            with pytest.raises(Remote, match=r"no rows came in 0\.05 s"):
                asked(served, FetchUrl(url=served.url("/a.csv")), patience=PATIENCE._replace(total=0.05))


def test_the_examples_of_the_page_are_accepted_and_keep_their_options(tmp_path: Path) -> None:
    assert len(EXAMPLES) == 2
    settings = IngestSettings(staging=tmp_path, variables={"SFTP": PASSWORD, "KEY": "key"})
    for each in EXAMPLES:
        event = source(each)
        assert check_source(event, settings) is None
        assert isinstance(fetch_options(event.read.schema), SftpAccess)
        assert from_builtins(SetPollingSource, to_builtins(event)) == event
