"""Fetching: what is new, when it happened, how it is packed, and what is said when it cannot be had."""

from __future__ import annotations

import gzip
import http.server
import os
import secrets
import threading
import urllib.parse
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from chain import instant
from chain.errors import Conflict, Environment, Fault, Invalid, NotFound, Refused, Remote
from chain.instant import Instant
from chain.model.events import SourceState
from chain.model.source import (
    FetchFilesGlob,
    FetchUrl,
    Forever,
    FromMetadata,
    FromPath,
    FromSystemTime,
    RequestHeader,
    SourceOrdering,
)
from chain.store import durable
from chain.store.database import Database
from odfd.ingest.fetch.dispatch import check_fetch
from odfd.ingest.fetch.files import time_in_path
from odfd.ingest.fetch.source import ETAG, LAST_MODIFIED, Fetched, FetchJob, Unchanged
from odfd.ingest.fetch.url import ContentDecoder
from odfd.ingest.progress import LOOK_SECONDS, IngestStep, watch
from odfd.ingest.settings import IngestSettings
from odfd.ingest.templates import fill
from odfd.store.directory import open_state_directory
from odfd.store.spool import SMALL, Buffer, OverflowPolicy, Pushed, PushSpool, Receipt
from worlds.eventually import PATIENCE
from worlds.faults import breaks
from worlds.http_served import HttpServer, serving
from worlds.sources import fetch

# Fetching: what is new, when it happened, and what is said when it cannot be had.

NOW = instant.parse("2050-01-01T12:00:00Z")


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., FetchJob]:
    (tmp_path / "work").mkdir()

    def make(state: tuple[str, str] | None = None, **settings: Any) -> FetchJob:
        known = SourceState(source_name="default", kind=state[0], value=state[1]) if state else None
        return FetchJob(
            state=known, now=NOW, folder=tmp_path / "work", settings=IngestSettings(staging=tmp_path, **settings)
        )

    return make


def test_files_come_in_the_order_of_their_names(tmp_path: Path, job: Callable[..., FetchJob]) -> None:
    for name in ("b-2020-01-02.csv", "a-2020-01-01.csv", "c-2020-01-03.csv"):
        (tmp_path / name).write_text("x")
    step = FetchFilesGlob(path=str(tmp_path / "*.csv"), event_time=FromPath(pattern=r"(\d{4}-\d\d-\d\d)"))
    seen, state = [], None
    while isinstance(found := fetch(step, job(state)), Fetched):
        seen.append((found.name, instant.render(found.event_time), found.has_more))
        state = (found.state.kind, found.state.value)
    assert seen == [
        ("a-2020-01-01.csv", "2020-01-01T00:00:00Z", True),
        ("b-2020-01-02.csv", "2020-01-02T00:00:00Z", True),
        ("c-2020-01-03.csv", "2020-01-03T00:00:00Z", False),
    ]
    assert state == (ETAG, "c-2020-01-03.csv")
    assert fetch(FetchFilesGlob(path=step.path), job()).event_time is None
    assert fetch(FetchFilesGlob(path=step.path, event_time=FromSystemTime()), job()).event_time == NOW


def test_identity_follows_the_bytes(tmp_path: Path, job: Callable[..., FetchJob]) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x")
    step = FetchFilesGlob(path=str(path))
    one = fetch(step, job())
    assert fetch(step, job()) == one
    path.write_text("y")
    os.utime(path, ns=(1, 1))
    assert fetch(step, job()).identity != one.identity


def test_of_files_that_were_taken_only_names_are_looked_at(
    tmp_path: Path, job: Callable[..., FetchJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder grows for years; folders in it count for nothing, wherever their names sort."""
    for number in range(500):
        (tmp_path / f"{number:03}.csv").touch()
    for name in ("100a.csv", "498a.csv", "498b.csv", "499a.csv"):
        (tmp_path / name).mkdir()
    looked: list[str] = []
    is_folder = os.path.isdir
    monkeypatch.setattr(os.path, "isdir", lambda path: looked.append(Path(path).name) or is_folder(path))
    step = FetchFilesGlob(path=str(tmp_path / "*.csv"))
    found = fetch(step, job((ETAG, "497.csv")))
    assert isinstance(found, Fetched)
    assert (found.name, found.has_more) == ("498.csv", True)
    assert looked == ["498.csv", "498a.csv", "498b.csv", "499.csv"]
    assert isinstance(fetch(step, job((ETAG, "499.csv"))), Unchanged)


def test_a_folder_that_is_gone_is_no_source_without_news(tmp_path: Path, job: Callable[..., FetchJob]) -> None:
    """One that is empty is: files that were taken may be deleted."""
    step = FetchFilesGlob(path=str(tmp_path / "days" / "20*" / "*.csv"))
    with pytest.raises(NotFound, match=r"no folder .*days$") as told:
        fetch(step, job((ETAG, "1.csv")))
    assert told.value.hint is not None
    assert "1.csv was taken from it" in told.value.hint
    (tmp_path / "days").mkdir()
    assert isinstance(fetch(step, job((ETAG, "1.csv"))), Unchanged)


def test_files_that_cannot_be_ordered_or_timed(tmp_path: Path, job: Callable[..., FetchJob]) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.csv").write_text("x")
    pattern = str(tmp_path / "*" / "*.csv")
    with pytest.raises(Invalid, match="have one name"):
        fetch(FetchFilesGlob(path=pattern), job())
    with pytest.raises(Invalid, match="ByEventTime"):
        fetch(FetchFilesGlob(path=pattern, order=SourceOrdering.BY_EVENT_TIME), job())
    with pytest.raises(NotFound, match="no file matches"):
        fetch(FetchFilesGlob(path=str(tmp_path / "*.json")), job())
    with pytest.raises(Invalid, match="FromMetadata has no meaning"):
        fetch(FetchFilesGlob(path=str(tmp_path / "one" / "*"), event_time=FromMetadata()), job())


@pytest.mark.parametrize(
    "path,pattern,form,said",
    [
        ("/x/2020.csv", r"(\d{2})-", "%Y", "matches nothing"),
        ("/x/2020.csv", r"\d{4}", "%Y", "matches nothing"),
        ("/x/2020.csv", r"(\d", "%Y", "not a regular expression"),
        ("/x/9999-99.csv", r"(\d{4}-\d\d)", "%Y-%m", "is not a time like"),
    ],
)
def test_times_in_paths_that_are_none(path: str, pattern: str, form: str, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        time_in_path(path, pattern, form)


def test_times_in_paths_may_have_zones() -> None:
    found = time_in_path("/x/20200101T0000+0200.csv", r"(\d{8}T\d{4}\+\d{4})", "%Y%m%dT%H%M%z")
    assert instant.render(found) == "2019-12-31T22:00:00Z"


def test_a_file_url(tmp_path: Path, job: Callable[..., FetchJob]) -> None:
    path = tmp_path / "a b.csv"
    path.write_text("x")
    os.utime(path, ns=(0, 1_577_836_800_123_456_789))
    step = FetchUrl(url=path.as_uri())
    found = fetch(step, job())
    assert found.path == path
    assert found.state == SourceState(source_name="default", kind=LAST_MODIFIED, value="2020-01-01T00:00:00.123Z")
    assert instant.render(found.event_time) == "2020-01-01T00:00:00.123Z"
    assert fetch(step, job((LAST_MODIFIED, "2020-01-01T00:00:00.123Z"))) == Unchanged()
    assert isinstance(fetch(step, job((LAST_MODIFIED, "2019-01-01T00:00:00Z"))), Fetched)
    assert fetch(FetchUrl(url=step.url, event_time=FromSystemTime()), job()).event_time == NOW
    assert fetch(FetchUrl(url=step.url, cache=Forever()), job((LAST_MODIFIED, "x"))) == Unchanged()
    with pytest.raises(NotFound, match="no file"):
        fetch(FetchUrl(url=(tmp_path / "gone").as_uri()), job())
    said_of = {"gopher://h/x": "cannot fetch gopher", "/x": "cannot fetch a path", "file://h/x": "this machine"}
    for url, said in said_of.items():
        with pytest.raises(Invalid, match=said):
            fetch(FetchUrl(url=url), job())


TEXT = b"a,b\n1,2\n"
CODED = {
    "gzip": gzip.compress(TEXT, mtime=0),
    "members": gzip.compress(TEXT[:3], mtime=0) + gzip.compress(TEXT[3:], mtime=0),
    "zlib": zlib.compress(TEXT),
    "raw": zlib.compress(TEXT)[2:-4],
    "twice": gzip.compress(gzip.compress(TEXT)),
    "torn": gzip.compress(TEXT)[:-5],
    "behind": gzip.compress(TEXT) + b"more",
    "plain": TEXT,
    "bomb": gzip.compress(bytes(64 << 20)),
}


class Web(http.server.BaseHTTPRequestHandler):
    """Answers by path; remembers what was asked."""

    asked: list[dict[str, str]]

    def do_GET(self) -> None:
        type(self).asked.append(dict(self.headers))
        etag, modified = '"v1"', "Wed, 01 Jan 2020 00:00:00 GMT"
        if self.headers.get("If-None-Match") == etag or self.headers.get("If-Modified-Since") == modified:
            self.answer(304)
        elif self.path == "/both.csv":
            self.answer(200, {"ETag": etag, "Last-Modified": modified})
        elif self.path == "/dated.csv":
            self.answer(200, {"Last-Modified": modified})
        elif self.path == "/plain.csv":
            self.answer(200)
        elif self.path == "/moved.csv":
            self.answer(302, {"Location": "/plain.csv"})
        elif self.path.startswith("/coded/"):
            _, _, coding, name = urllib.parse.unquote(self.path).split("/")
            body = CODED[name]
            self.answer(200, {"Content-Encoding": coding, "Content-Length": str(len(body))}, body)
        elif self.path == "/cut.csv":
            self.answer(200, {"Content-Length": "1000"})
        else:
            self.answer(int(self.path.strip("/")))

    def answer(self, status: int, headers: dict[str, str] | None = None, body: bytes | None = None) -> None:
        body = body if body is not None else TEXT if status == 200 else b""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def web() -> Iterator[str]:
    Web.asked = []
    with serving(HttpServer(Web)) as server:
        yield server.url


def test_http_answers(web: str, job: Callable[..., FetchJob]) -> None:
    found = fetch(FetchUrl(url=f"{web}/both.csv"), job())
    assert found.path.read_bytes() == b"a,b\n1,2\n"
    assert found.state == SourceState(source_name="default", kind=ETAG, value='"v1"')
    assert instant.render(found.event_time) == "2020-01-01T00:00:00Z"
    assert found.name == "both.csv"
    assert fetch(FetchUrl(url=f"{web}/both.csv"), job((ETAG, '"v1"'))) == Unchanged()
    dated = fetch(FetchUrl(url=f"{web}/dated.csv"), job())
    assert dated.state == SourceState(source_name="default", kind=LAST_MODIFIED, value="2020-01-01T00:00:00Z")
    assert fetch(FetchUrl(url=f"{web}/dated.csv"), job((LAST_MODIFIED, dated.state.value))) == Unchanged()
    plain = fetch(FetchUrl(url=f"{web}/moved.csv"), job())
    assert (plain.state, plain.event_time) == (None, None)
    assert plain.identity == found.identity


@pytest.mark.parametrize(
    "way",
    ["gzip/gzip", "x-gzip/gzip", "GZIP/members", "deflate/zlib", "deflate/raw", "gzip,%20gzip/twice", "identity/plain"],
)
def test_content_codings_are_undone(web: str, job: Callable[..., FetchJob], way: str) -> None:
    """The bytes of the coding were taken for the file."""
    found = fetch(FetchUrl(url=f"{web}/coded/{way}"), job())
    assert found.path.read_bytes() == TEXT
    assert found.identity == fetch(FetchUrl(url=f"{web}/plain.csv"), job()).identity
    assert found.decoded is ("gzip" in way.lower())


@pytest.mark.parametrize("way", ["br/plain", "zstd/gzip", "gzip/torn", "gzip/plain", "gzip/behind", "gzip,br/gzip"])
def test_content_codings_that_are_none_are_refused(web: str, job: Callable[..., FetchJob], way: str) -> None:
    with breaks("content-encoding", Remote):
        fetch(FetchUrl(url=f"{web}/coded/{way}"), job())


@pytest.mark.slow
def test_what_is_packed_for_the_way_keeps_the_limit(web: str, job: Callable[..., FetchJob]) -> None:
    with pytest.raises(Refused, match="is larger than 1048576 bytes"):
        fetch(FetchUrl(url=f"{web}/coded/gzip/bomb"), job(max_source_bytes=1 << 20))
    assert sum(path.stat().st_size for path in job().folder.iterdir()) <= 1 << 20
    with breaks("unpack-ratio", Refused, match="unpacks to more than 250 times"):
        fetch(FetchUrl(url=f"{web}/coded/gzip/bomb"), job())
    found = fetch(FetchUrl(url=f"{web}/coded/gzip/bomb"), job(max_unpack_ratio=2000))
    assert found.path.stat().st_size == 64 << 20


@pytest.mark.parametrize("status", [201, 202, 204, 205, 206])
def test_an_answer_without_a_file_is_no_empty_file(web: str, job: Callable[..., FetchJob], status: int) -> None:
    with pytest.raises(Remote, match=f"answers {status} .*, which brings no file"):
        fetch(FetchUrl(url=f"{web}/{status}"), job())


@pytest.mark.parametrize(
    ("status", "hint"),
    [(400, "check the URL"), (401, "[ingest] variables"), (403, "[ingest] variables"),
     (503, "try again later")],
)  # fmt: skip
def test_what_to_do_is_said_by_what_the_server_says(
    web: str, job: Callable[..., FetchJob], status: int, hint: str
) -> None:
    with pytest.raises(Remote, match=f"answers {status} ") as told:
        fetch(FetchUrl(url=f"{web}/{status}"), job())
    assert told.value.hint is not None
    assert hint in told.value.hint


def test_http_refusals(web: str, job: Callable[..., FetchJob]) -> None:
    with pytest.raises(NotFound, match="answers 404"):
        fetch(FetchUrl(url=f"{web}/404"), job())
    with pytest.raises(Remote, match="answers 500"):
        fetch(FetchUrl(url=f"{web}/500"), job())
    with pytest.raises(Remote, match="cannot reach"):
        fetch(FetchUrl(url=f"{web}/cut.csv"), job())
    with pytest.raises(Refused, match="is larger than 3 bytes"):
        fetch(FetchUrl(url=f"{web}/plain.csv"), job(max_source_bytes=3))
    with pytest.raises(Remote, match="cannot reach"):
        fetch(FetchUrl(url="http://127.0.0.1:1/x"), job())


def test_a_promise_that_is_too_large_is_not_waited_for(web: str, job: Callable[..., FetchJob]) -> None:
    with pytest.raises(Refused, match="is larger than 999 bytes") as caught:
        fetch(FetchUrl(url=f"{web}/cut.csv"), job(max_source_bytes=999))
    assert "ingest.source-bytes" in caught.value.hint


def test_a_download_keeps_the_reserve_of_the_disk(web: str, job: Callable[..., FetchJob]) -> None:
    """Attack T-SOURCE-04: a source that would fill the disk.

    Defence: its size is bounded, and the reserve stays free.

    One filled the disk to its last byte, and all else that the node writes failed.
    """
    with breaks("disk-reserve", Environment):
        fetch(FetchUrl(url=f"{web}/plain.csv"), job(disk_reserve=1 << 60))


@pytest.mark.parametrize(
    "url", ["http://[x]/a.csv", "https://[::1/a.csv", "file://[x]/a.csv", "http://]/", "http://[${{ env.HOST }}]/"]
)
def test_brackets_that_hold_no_address_are_refused(job: Callable[..., FetchJob], url: str) -> None:
    for ask in (lambda: check_fetch(FetchUrl(url=url), job().settings), lambda: fetch(FetchUrl(url=url), job())):
        with pytest.raises(Invalid, match="is no URL"):
            ask()


def test_headers_and_templates(web: str, job: Callable[..., FetchJob]) -> None:
    step = FetchUrl(
        url=web + "/${{ env.NAME || 'plain' }}.csv", headers=(RequestHeader(name="X-Key", value="k-${{ env.KEY }}"),)
    )
    fetch(step, job(variables={"KEY": "7"}))
    assert Web.asked[-1]["X-Key"] == "k-7"
    with pytest.raises(Invalid, match="no variable 'KEY'"):
        fetch(step, job())
    assert fill("${{env.A||'x'}}${{ env.A }}", {"A": "1"}).reveal() == "11"


# Content codings are undone in proportion to what came, whatever a server packed into it.

EMPTY = gzip.compress(b"")
RATIO = 250


class Stop(Exception):
    pass


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(1, 70_000), st.sampled_from(["gzip", "gzip, gzip"]))
def test_how_it_comes_changes_nothing(parts: list[bytes], size: int, header: str) -> None:
    packed = b"".join(map(gzip.compress, parts))
    if header != "gzip":
        packed = gzip.compress(packed)
    undoing = ContentDecoder(header, "u", RATIO)
    assert b"".join(part for piece in pieces(packed, size) for part in undoing.feed(piece)) == b"".join(parts)
    undoing.finish()


@pytest.mark.slow
def test_members_that_hold_nothing_cost_what_they_weigh(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that lay behind a member was copied for the next one: a mebibyte held a core for seconds."""
    looked_at, real = 0, zlib.decompressobj

    class Counted:
        def __init__(self, window: int) -> None:
            self._real = real(window)

        def decompress(self, data: bytes, most: int) -> bytes:
            nonlocal looked_at
            looked_at += len(data)
            return self._real.decompress(data, most)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

    monkeypatch.setattr(zlib, "decompressobj", Counted)

    def cost(members: int) -> int:
        nonlocal looked_at
        looked_at = 0
        assert list(ContentDecoder("gzip", "u", RATIO).feed(EMPTY * members)) == []
        return looked_at

    assert cost(20_000) < 2.5 * cost(10_000)


@pytest.mark.slow
@pytest.mark.parametrize("last", [EMPTY * 1000, gzip.compress(bytes(1 << 20))])
def test_packings_in_one_another_keep_to_what_came(last: bytes) -> None:
    """Attack T-BYTES-02: `Content-Encoding` that expands without end, with nested codings, or with members without
    content that never reach a size limit.

    Defence: the output of each coding is compared with the bytes received, 16 KiB at a time; it can be stopped in
    between.

    Some kilobytes that would unpack to gigabytes on the way, also where nothing comes out behind the last coding.
    """
    bomb = gzip.compress(gzip.compress(last * 2000))
    with breaks("unpack-ratio", Refused, match="unpacks to more than 250 times"):
        for _ in ContentDecoder("gzip, gzip, gzip", "u", RATIO).feed(bomb):
            pass


def test_a_check_stops_it_also_where_nothing_comes_out() -> None:
    checks = 0

    def check() -> None:
        nonlocal checks
        checks += 1
        if checks > 3:
            raise Stop

    with pytest.raises(Stop):
        list(ContentDecoder("gzip", "u", RATIO, check).feed(EMPTY * 10_000))


# What a fetch has written is reported while it writes.

FETCHING = IngestStep(file="its source", phase="fetching", rows=7)


async def test_bytes_that_came_are_reported_when_they_are_more(tmp_path: Path, autojump_clock: object) -> None:
    steps: list[IngestStep] = []
    came = [trio.Event(), trio.Event()]

    def report(step: IngestStep) -> None:
        steps.append(step)
        came[len(steps) - 1].set()

    async with watch(tmp_path, FETCHING, report):
        (tmp_path / "below").mkdir()
        (tmp_path / "a").write_bytes(b"12345")
        await came[0].wait()
        (tmp_path / "b").write_bytes(b"123")
        await came[1].wait()
    (tmp_path / "c").write_bytes(b"1")
    await trio.sleep(2 * LOOK_SECONDS)
    assert [(each.phase, each.rows, each.bytes_done, each.bytes_total) for each in steps] == [
        ("fetching", 7, 5, None),
        ("fetching", 7, 8, None),
    ]


async def test_a_fault_of_the_fetch_is_raised_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(Remote, match="gone"):
        async with watch(tmp_path, FETCHING, lambda _: None):
            raise Remote("gone", rule="source")


async def test_a_folder_that_goes_ends_nothing(tmp_path: Path, autojump_clock: object) -> None:
    async with watch(tmp_path / "none", FETCHING, lambda _: None):
        await trio.sleep(5 * LOOK_SECONDS)


# Pushes that come at the same time: each is kept once under a number of its own, and they share one transaction.


BEGINNING = Instant(1)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[tuple[PushSpool, Path]]:
    with open_state_directory(tmp_path / "state") as home:
        for source in ("one", "two"):
            (tmp_path / "spool" / source).mkdir(parents=True)
        yield PushSpool(home.database, tmp_path / "spool", lambda: 1 << 20), tmp_path / "spool"


def together(spool: PushSpool, *pushes: Callable[[], Receipt]) -> list[Any]:
    """The answers of pushes that all wait while another thread has the lock."""
    answers: list[Any] = [None] * len(pushes)

    def run(number: int) -> None:
        try:
            answers[number] = pushes[number]()
        except Fault as error:
            answers[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(pushes))]
    queued = threading.Semaphore(0)

    class Told(list[Any]):
        def extend(self, items: Any) -> None:
            super().extend(items)
            queued.release()

    with spool._lock:
        spool._queue = Told()
        for each in threads:
            each.start()
            assert queued.acquire(timeout=PATIENCE)
    for each in threads:
        each.join()
    return answers


def adding(spool: PushSpool, data: bytes, push_id: str | None = None, source: str = "one") -> Callable[[], Receipt]:
    return lambda: spool.add(source, data, 1, BEGINNING, None, push_id)


def numbers(answers: Sequence[Any]) -> list[int]:
    return [each.number for each in answers]


def bodies(spool: PushSpool, source: str = "one") -> list[bytes]:
    """As a dataset takes them."""
    return [each.path.read_bytes() for each in spool.after(source, 0, 1000, 1 << 30)[0]]


def large(text: bytes) -> bytes:
    return text.ljust(SMALL + 1)


@pytest.mark.parametrize("is_large", [False, True])
def test_pushes_that_wait_are_kept_in_one_transaction(
    kept: tuple[PushSpool, Path], monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    spool, folder = kept
    writes, synced, write, sync = [], [], Database.write, durable.sync_folder
    monkeypatch.setattr(Database, "write", lambda self: (writes.append(1), write(self))[1])
    monkeypatch.setattr(durable, "sync_folder", lambda path: (synced.append(path.name), sync(path))[1])
    content = large if is_large else bytes
    made = [adding(spool, content(b"%d" % each), source="one" if each % 2 else "two") for each in range(8)]
    answers = together(spool, *made)
    assert numbers(answers) == [1, 1, 2, 2, 3, 3, 4, 4]
    assert all(each.durable for each in answers)
    assert (len(writes), sorted(synced)) == (1, ["one", "two"] if is_large else [])
    assert len(list(folder.glob("*/*"))) == (8 if is_large else 0)
    assert [each.strip() for each in bodies(spool, "two")] == [b"0", b"2", b"4", b"6"]
    assert spool.waiting("one").pushes == spool._held_of("one").pushes == 4
    assert spool.add("one", b"9", 1, BEGINNING, None).number == 5


def test_an_id_counts_once_among_pushes_that_wait(kept: tuple[PushSpool, Path]) -> None:
    spool, _ = kept
    answers = together(spool, adding(spool, b"a", "x"), adding(spool, b"a", "x"), adding(spool, b"b", "x"))
    assert [(each.number, each.repeated) for each in answers[:2]] == [(1, False), (1, True)]
    assert isinstance(answers[2], Conflict)
    assert bodies(spool) == [b"a"]
    assert adding(spool, b"a", "x")().repeated


def test_pushes_that_wait_take_no_more_room_than_there_is(kept: tuple[PushSpool, Path]) -> None:
    spool, _ = kept
    spool._limit = lambda: 100
    answers = together(spool, *[adding(spool, b"x" * 40) for _ in range(3)])
    assert numbers(answers[:2]) == [1, 2]
    assert isinstance(answers[2], Refused)
    assert len(bodies(spool)) == 2
    with pytest.raises(Refused, match="2 pushes of 80 B wait: 100 B is the most"):
        adding(spool, b"x" * 40)()
    spool.drop("one", 1)
    assert adding(spool, b"x" * 40)().number == 3


def test_pushes_whose_rows_cannot_be_written_are_all_told_and_come_again(
    kept: tuple[PushSpool, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    spool, folder = kept

    a = large(b"a")

    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(durable, "sync_folder", full)
        answers = together(spool, adding(spool, a, "x"), adding(spool, a, "x"), adding(spool, b"b"))
        assert [type(each) for each in answers] == [Environment] * 3
    assert spool.waiting("one").pushes == 0
    assert numbers([adding(spool, a, "x")(), adding(spool, b"b")()]) == [1, 2]
    assert bodies(spool) == [a, b"b"]
    assert spool.sweep() == 0
    assert [each.name for each in folder.glob("*/*")] == [f"{1:012d}"], "what is in the database is made again"
    assert bodies(spool) == [a, b"b"]


IDS = st.sampled_from([None, "x", "y"])
BODIES = st.sampled_from([b"a", b"bb", large(b"c")])
PUSHES = st.lists(st.tuples(st.sampled_from(["one", "two"]), BODIES, IDS, st.booleans()), max_size=8)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PushSpool]:
    folder = tmp_path_factory.mktemp("spool")
    with open_state_directory(folder / "state") as home:
        yield PushSpool(home.database, folder / "spool", lambda: SMALL + 40)


@pytest.mark.slow
@given(PUSHES, st.lists(st.integers(1, 4), min_size=8, max_size=8))
@settings(max_examples=20, deadline=None)
def test_pushes_together_are_answered_as_one_by_one(
    shared: PushSpool, pushes: list[tuple[str, bytes, str | None, bool]], cuts: list[int]
) -> None:
    """Also where some have a buffer, bodies are large, ids repeat, and a body does not fit."""
    case = secrets.token_hex(8)
    made = [
        Pushed(source, data, 1, Buffer(2, OverflowPolicy.DROP_OLDEST) if is_buffered else None, push_id)
        for source, data, push_id, is_buffered in pushes
        if not is_buffered or source == "two"
    ]
    for start, end in pairwise([0, *accumulate(cuts)]):
        some = sorted(made[start:end], key=lambda each: each.buffer is None)  # those with a buffer come first
        alone = [shared.add_all([each._replace(source=f"{case}-a-{each.source}")], BEGINNING)[0] for each in some]
        together = shared.add_all([each._replace(source=f"{case}-t-{each.source}") for each in some], BEGINNING)
        assert [told(each) for each in together] == [told(each) for each in alone]
    for source in ("one", "two"):
        one, other = f"{case}-a-{source}", f"{case}-t-{source}"
        assert bodies(shared, one) == bodies(shared, other)
        assert shared.waiting(one) == shared.waiting(other)
        assert shared._held_of(one).bytes == shared.waiting(one).bytes == shared._held_of(other).bytes
    for push in made:
        shared.remove(f"{case}-a-{push.source}")
        shared.remove(f"{case}-t-{push.source}")


def told(answer: Receipt | Exception) -> object:
    """Without the number of pushes that wait: a body without room may be refused before others of its batch count."""
    return answer if isinstance(answer, Receipt) else (type(answer), getattr(answer, "rule", ""))
