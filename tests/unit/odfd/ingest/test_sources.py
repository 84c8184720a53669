"""Sources: their kinds, variables, times and preparation."""

from __future__ import annotations

import base64
import gzip
import http.server
import os
import select
import struct
import subprocess
import sys
import urllib.parse
import zipfile
from collections.abc import Iterator
from contextlib import nullcontext
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar
from urllib.error import URLError

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Environment, Fault, Invalid, NotFound, Refused, Remote
from chain.instant import SECOND, Instant, parse, render
from chain.model.events import DatasetKind, SetPollingSource, SourceState
from chain.model.fetch_options import BUCKET, KINDS, SFTP, Plugin, SqlQuery, fetch_options
from chain.model.source import (
    CompressionFormat,
    Decompress,
    EnvVar,
    FetchContainer,
    FetchFilesGlob,
    FetchStep,
    FetchUrl,
    MergeAppend,
    Pipe,
    ReadNdJson,
    RequestHeader,
)
from chain.state import ChainState
from odfd.errors import to_problem
from odfd.flows.schedule import Cron, Every, offset_at
from odfd.ingest import preparation
from odfd.ingest.fetch import dispatch
from odfd.ingest.fetch.source import DEFAULT_SOURCE, ETAG, Fetched, FetchJob, FetchOutcome, Source, Unchanged
from odfd.ingest.refetch import refetch
from odfd.ingest.settings import IngestSettings
from odfd.ingest.templates import SHORT, check_secret, check_url_password, check_user_info, fill, redact
from odfd.ingest.trigger import (
    SPECIMEN,
    STATE,
    TriggerTime,
    _state_for,
    _with_time,
    at_time,
    check_trigger,
    is_uncacheable,
)
from odfd.runtime import extensions
from p2p.ip import is_global, parse_ip
from worlds.eventually import PATIENCE
from worlds.faults import breaks
from worlds.http_served import HttpServer, serving
from worlds.sources import fetch, prepare, prepared, source

# A kind of source is found by its step and options: odfd's own, and those that other packages add.

TEXT = """fetch:
  kind: Plugin
  source: Counter
  url: counter:/7
  options: {most: 3, names: [a, "${{ trigger.date }}"]}
read:
  kind: NdJson
  ddlSchema: ['n BIGINT']
"""


class CounterOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    most: int
    names: tuple[str, ...] = ()


class CounterSource(Source[FetchUrl, CounterOptions]):
    options_type = CounterOptions

    def check(self, settings: IngestSettings) -> None:
        pass

    async def fetch(self, job: FetchJob) -> FetchOutcome:
        return Unchanged()


class PlainSource(CounterSource):
    options_type = None


class Entry:
    """An entry point of a package that is installed."""

    def __init__(self, row: type[Any]) -> None:
        self.load = lambda: row


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"Counter": Entry(CounterSource), "Plain": Entry(PlainSource)}
    monkeypatch.setattr(extensions, "extensions", lambda group: found)


def test_every_kind_of_a_manifest_is_a_row_or_an_entry_point() -> None:
    own = {each.name: each.load() for each in entry_points(group=extensions.SOURCES)}
    assert {*KINDS, SFTP, BUCKET} <= {"Plugin", "Http", *own}
    assert all(issubclass(row, Source) for row in own.values())


@pytest.mark.parametrize(
    ("step", "options", "name"),
    [
        (FetchUrl(url="sftp://u@h/a"), None, "SftpSource"),
        (FetchFilesGlob(path="sftp://u@h/*.csv"), None, "SftpSource"),
        (FetchFilesGlob(path="ftp://h/*.csv"), None, "FtpSource"),
        (FetchUrl(url="ftp://h/a"), None, "UrlSource"),
        (FetchFilesGlob(path="s3+https://h/b/*.csv"), None, "BucketSource"),
        (FetchFilesGlob(path="data/*.csv"), None, "FilesSource"),
        (FetchUrl(url="sftp://u@h/a"), SqlQuery(query="select 1"), "SqlSource"),
        (FetchContainer(image="a"), None, "ContainerSource"),
    ],
)
def test_a_kind_is_found_by_options_then_by_scheme(step: Any, options: Any, name: str) -> None:
    assert type(dispatch.source_of(step, options)).__name__ == name


@pytest.mark.usefixtures("added")
def test_a_kind_of_another_package_gets_its_own_options_and_url() -> None:
    event = source(TEXT)
    assert isinstance(event.fetch, FetchUrl)
    assert event.fetch.url == "odfd+counter:/7"
    step, options = at_time((event.fetch, fetch_options(event.read.schema)), SPECIMEN)
    found = dispatch.source_of(step, options)
    assert isinstance(found, CounterSource)
    assert found.step.url == found.address == "counter:/7"
    assert found.options == CounterOptions(most=3, names=("a", "1970-01-01"))
    assert dispatch.address_of(event.fetch) == "odfd+counter:/7"


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize(
    ("plugin", "said"),
    [
        (Plugin(source="Counter"), "options of Counter: .*most"),
        (Plugin(source="Counter", options={"most": 1, "least": 0}), "options of Counter: .*least"),
        (Plugin(source="Plain", options={"most": 1}), "Plain have no options"),
    ],
)
def test_options_that_the_package_does_not_know_are_refused(plugin: Plugin, said: str) -> None:
    with breaks("fetch-option", Invalid, match=said):
        dispatch.source_of(FetchUrl(url="odfd+counter:/7"), plugin)


def test_a_kind_that_nobody_installed_is_refused_by_name(tmp_path: Path) -> None:
    with breaks("source-kind", Refused, match="kind Counter are not installed"):
        dispatch.check_fetch(
            FetchUrl(url="odfd+counter:/7"), IngestSettings(staging=tmp_path), Plugin(source="Counter")
        )


@pytest.mark.parametrize("kind", ["Sql", "Sftp"])
def test_a_kind_of_odfd_has_one_spelling(kind: str) -> None:
    with pytest.raises(Invalid, match=f"{kind} is a kind of odfd itself"):
        source(TEXT.replace("Counter", kind))


@pytest.mark.parametrize("client", ["databases", "evm", "ftp", "kafka", "mqtt", "sftp"])
def test_a_process_of_a_source_starts_without_what_the_node_needs(client: str) -> None:
    """Each fetch starts one, so that what it imports is paid each time."""
    if client == "sftp":
        pytest.importorskip("asyncssh")
    said = f"import sys, odfd.ingest.clients.{client}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True).stdout.split()
    assert not {"trio", "httpx", "pyarrow", "grpc", "odfd.ingest.settings"} & set(loaded)


# Values of variables go to who is to be sent them, and stand in nothing that is told.

TOKEN = "hush/4f & <é>"
SPELLINGS = (TOKEN, urllib.parse.quote(TOKEN), urllib.parse.quote(TOKEN, safe=""), urllib.parse.quote_plus(TOKEN))


def told(error: BaseException) -> str:
    """All that anybody is ever shown of an error: the answer on the socket, its causes, and the trace in the log."""
    problem = msgspec.json.encode(to_problem(error)).decode() if isinstance(error, Fault) else ""
    chain, each = [], error
    while each is not None:
        chain += [str(each), repr(each)]
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return problem + "".join(chain)


def test_a_filled_text_shows_what_the_manifest_says() -> None:
    filled = fill("https://h/?k=${{ env.KEY }}", {"KEY": TOKEN})
    assert filled.reveal() == f"https://h/?k={TOKEN}"
    assert {str(filled), repr(filled), f"{filled}"} == {"https://h/?k=${{ env.KEY }}"}
    assert filled.is_template
    assert not fill("https://h/", {}).is_template
    with pytest.raises(Invalid, match="no variable 'KEY'") as caught:
        fill("${{ env.KEY }}", {})
    assert '[ingest] variables = ["KEY"]' in caught.value.hint


PRINTED = st.characters(min_codepoint=0x20, exclude_categories=("Cs", "Cc"))
VALUES = st.text(PRINTED, min_size=SHORT, max_size=40)


@pytest.mark.slow
@given(
    VALUES,
    st.text(PRINTED, max_size=20),
    st.text(PRINTED, max_size=20),
    st.lists(st.sampled_from(range(4)), max_size=4),
)
def test_no_error_or_cause_of_it_tells_a_value(value: str, before: str, after: str, kinds: list[int]) -> None:
    """Attack T-SOURCE-01: a server, library or engine that quotes a sent value, encoded as in URLs or HTML.

    Defence: values in texts that leave ingestion, in these encodings too, are replaced by templates; an `ETag` that
    contains a value is not kept.
    """
    text = f"{before}{value}{after}"

    def made(kinds: list[int]) -> Exception:
        if not kinds:
            return OSError(2, text, text)
        kind, *rest = kinds
        inner = made(rest)
        found = (Environment(text, hint=text, place=text), ValueError(text), ExceptionGroup("several", [inner]))
        error = URLError(inner) if kind == 3 else found[kind]  # type: ignore[arg-type]  # its way with sockets' errors
        error.__cause__, error.__context__ = (inner, None) if kind % 2 else (None, inner)
        return error

    error = made(kinds)
    plain = told(error).replace(repr(value)[1:-1], "").replace(value, "")
    with pytest.raises(type(error)) as caught, redact({"KEY": value}):
        raise error
    if value not in plain + "${{ env.KEY }}":  # else our own words hold it
        assert value not in told(caught.value)


@pytest.mark.parametrize("spelled", SPELLINGS)
def test_a_value_is_found_as_urls_spell_it(spelled: str) -> None:
    with pytest.raises(Remote) as caught, redact({"KEY": TOKEN}):
        raise Remote(f"cannot reach http://h/{spelled}")
    assert caught.value.message == "cannot reach http://h/${{ env.KEY }}"


def test_short_values_are_words() -> None:
    with pytest.raises(Remote) as caught, redact({"PIN": "7", "NONE": ""}):
        raise Remote("127.0.0.1:5717 refuses pin=7&x")
    assert caught.value.message == "127.0.0.1:5717 refuses pin=${{ env.PIN }}&x"


def test_an_error_that_keeps_its_text_elsewhere_is_not_told() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            return TOKEN

    with pytest.raises(RuntimeError) as caught, redact({"KEY": TOKEN}):
        raise Odd
    assert TOKEN not in told(caught.value)
    with pytest.raises(Invalid) as caught_too, redact({"KEY": TOKEN}):
        raise Invalid("no") from Odd()
    assert TOKEN not in told(caught_too.value)


class Echo(http.server.BaseHTTPRequestHandler):
    """A hostile server: whatever it was asked with it says again."""

    asked: ClassVar[list[tuple[str, dict[str, str]]]] = []
    elsewhere: ClassVar[str] = ""

    def do_GET(self) -> None:
        self.asked.append((self.path, dict(self.headers)))
        secret = self.headers.get("X-Key", "none")
        kind = self.path.split("?")[0].strip("/")
        if kind == "reason":
            self.send_response(500, f"no {secret} {self.path}")
        elif kind in ("away", "home", "ftp"):
            places = {"away": f"{self.elsewhere}/plain", "home": "/plain", "ftp": f"ftp://127.0.0.1/{secret}"}
            self.send_response(302)
            self.send_header("Location", places[kind])
        elif kind == "loop":
            self.send_response(302)
            self.send_header("Location", self.path)
        else:
            self.send_response(200)
            self.send_header("ETag", f'"{secret}"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def servers() -> Iterator[tuple[str, str]]:
    """Two origins."""
    Echo.asked.clear()
    with serving(HttpServer(Echo)) as one, serving(HttpServer(Echo)) as other:
        Echo.elsewhere = other.url
        yield one.url, other.url


def job(folder: Path, **settings: Any) -> FetchJob:
    (folder / "work").mkdir(exist_ok=True)
    return FetchJob(
        state=None,
        now=Instant(0),
        folder=folder / "work",
        settings=IngestSettings(
            staging=folder, variables={"KEY": "s3cr3t-token", "BROKEN": "a\r\nX-More: b"}, **settings
        ),
    )


KEYED = (RequestHeader(name="X-Key", value="${{ env.KEY }}"),)


@pytest.mark.parametrize("path", ["reason?k=${{ env.KEY }}", "loop?k=${{ env.KEY }}", "ftp?k=${{ env.KEY }}"])
def test_what_a_server_or_a_library_quotes_is_not_told(path: str, servers: tuple[str, str], tmp_path: Path) -> None:
    this = job(tmp_path)
    with pytest.raises(Fault) as caught, redact(this.settings.variables):
        fetch(FetchUrl(url=f"{servers[0]}/{path}", headers=KEYED), this)
    assert "s3cr3t-token" not in told(caught.value)


@pytest.mark.parametrize("may_dial", [None, lambda _: True])
def test_what_was_meant_for_one_origin_is_not_sent_to_another(
    servers: tuple[str, str], tmp_path: Path, may_dial: Any
) -> None:
    """Attack T-SOURCE-01: a server that redirects our credentials to another.

    Defence: headers and values for one origin are not sent to another origin.
    """
    headers = (*KEYED, RequestHeader(name="Cookie", value="c=1"), RequestHeader(name="Accept", value="text/csv"))
    fetch(FetchUrl(url=f"{servers[0]}/home", headers=headers), job(tmp_path, may_dial=may_dial))
    fetch(FetchUrl(url=f"{servers[0]}/away", headers=headers), job(tmp_path, may_dial=may_dial))
    home, away = (found for path, found in Echo.asked if path == "/plain")
    assert {name.casefold(): value for name, value in home.items()}["x-key"] == "s3cr3t-token"
    assert "s3cr3t-token" not in str(away)
    assert "c=1" not in str(away)
    assert away["Accept"] == "text/csv"


def test_nobody_is_sent_on_to_what_is_no_page(servers: tuple[str, str], tmp_path: Path) -> None:
    """Attack T-SOURCE-05: a server that redirects to `ftp://` in our network.

    Defence: only redirects to HTTP and HTTPS are followed.

    An ``ftp://`` address was dialled wherever it was, also for sources that strangers declared.
    """
    with breaks("source-redirect", Refused):
        fetch(FetchUrl(url=f"{servers[0]}/ftp"), job(tmp_path, may_dial=lambda _: True))
    assert not is_global(parse_ip("127.0.0.1"))


def test_user_and_password_of_a_url_are_a_header(servers: tuple[str, str], tmp_path: Path) -> None:
    """Attack T-SOURCE-01: a password in a manifest, which the chain makes public.

    Defence: refused, with the way to name a variable.
    """
    url = servers[0].replace("//", "//ann:${{ env.KEY }}@")
    fetch(FetchUrl(url=f"{url}/plain"), job(tmp_path))
    told_to_server = Echo.asked[-1][1]["Authorization"].removeprefix("Basic ")
    assert base64.b64decode(told_to_server) == b"ann:s3cr3t-token"
    with pytest.raises(Remote) as caught:
        fetch(FetchUrl(url=f"{url}/reason"), job(tmp_path))
    assert "${{ env.KEY }}" in str(caught.value)
    assert "s3cr3t-token" not in told(caught.value)
    with breaks("source-password", Invalid) as refused:
        fetch(FetchUrl(url=servers[0].replace("//", "//ann:plain-password@") + "/plain"), job(tmp_path))
    assert "plain-password" not in told(refused.value)


def test_a_value_that_ends_a_header_is_refused_by_name(servers: tuple[str, str], tmp_path: Path) -> None:
    broken = (RequestHeader(name="X-Key", value="${{ env.BROKEN }}"),)
    with breaks("source-header", Invalid) as caught:
        fetch(FetchUrl(url=f"{servers[0]}/plain", headers=broken), job(tmp_path))
    assert "X-More" not in told(caught.value)
    assert not Echo.asked


def test_a_url_is_asked_for_as_urls_are_spelled(servers: tuple[str, str], tmp_path: Path) -> None:
    fetch(FetchUrl(url=f"{servers[0]}/orte/städte 1.csv?q=ö&k=%20"), job(tmp_path))
    assert Echo.asked[-1][0] == "/orte/st%C3%A4dte%201.csv?q=%C3%B6&k=%20"


def test_a_version_that_quotes_a_value_is_no_state(servers: tuple[str, str], tmp_path: Path) -> None:
    """It would stand in the chain."""
    found: Any = fetch(FetchUrl(url=f"{servers[0]}/plain", headers=KEYED), job(tmp_path))
    assert found.state is None
    other: Any = fetch(FetchUrl(url=f"{servers[0]}/plain"), job(tmp_path))
    assert other.state.value == '"none"'


def test_a_file_is_told_as_the_manifest_names_it(tmp_path: Path) -> None:
    this = job(tmp_path)
    (tmp_path / "s3cr3t-token.csv").write_text("a\n")
    found: Any = fetch(FetchUrl(url=f"file://{tmp_path}/${{{{ env.KEY }}}}.csv"), this)
    assert found.name == "${{ env.KEY }}.csv"
    with pytest.raises(Fault) as caught:
        fetch(FetchUrl(url=f"file://{tmp_path}/not/${{{{ env.KEY }}}}.csv"), this)
    assert "s3cr3t-token" not in str(caught.value)


def test_a_command_sees_no_more_of_the_environment_than_a_template(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("OTHER_TOKEN", "of-the-daemon")
    (tmp_path / "in").touch()
    settings = IngestSettings(
        staging=tmp_path, pipe="user", variables={"KEY": "allowed"}, environment={"PATH": "/usr/bin:/bin"}
    )
    seen = prepare(tmp_path / "in", [Pipe(command=("env",))], tmp_path, settings).read_text()
    assert "of-the-daemon" not in seen
    assert "KEY=allowed" in seen


@pytest.mark.parametrize(
    ("user", "is_refused"),
    [
        ("ann:word", True),
        ("ann:word:", True),
        ("ann:word:${{ env.KEY }}", True),
        ("ann:${{ env.KEY }}word", True),
        ("ann:${{ env.KEY || 'word' }}", True),
        ("${{ env.BOTH || 'ann:word' }}", True),
        ("ann:${{ env.KEY }}", False),
        ("ann:${{ env.KEY || '' }}", False),
        ("${{ env.NAME || 'ann' }}:${{ env.KEY }}", False),
        ("ann", False),
    ],
)
def test_a_password_that_stands_in_a_source_is_refused(user: str, is_refused: bool) -> None:
    """Attack T-SOURCE-01: a password that evades the refusal: behind a second colon, or as the default of a variable.

    Defence: everything behind the first colon is the password, and defaults count as text.
    """
    for check in (lambda: check_user_info(user), lambda: check_url_password(f"https://{user}@a.example/b?c=d:e@f")):
        with pytest.raises(Invalid, match="would be in the chain") if is_refused else nullcontext():
            check()


def test_a_secret_is_wholly_a_variable() -> None:
    check_secret("${{ env.KEY }}", "a key")
    for text in ("word", "${{ env.KEY }}x", "${{ env.KEY || 'word' }}", ""):
        with pytest.raises(Invalid, match="a key in a source would be in the chain"):
            check_secret(text, "a key")


# The time that a fetch is for stands in its source; what a source said for one time says nothing of another.

DAY = TriggerTime.read("2024-05-01T00:00:00+02:00")
NEXT = TriggerTime.read("2024-05-02T00:00:00+02:00")
ASKED = "https://example.org/${{ trigger.date }}?to=${{trigger.time}}"


def polling(step: FetchStep) -> SetPollingSource:
    return SetPollingSource(fetch=step, read=ReadNdJson(), merge=MergeAppend())


def fetched(state: SourceState | None) -> Fetched:
    return Fetched(path=Path("a"), name="a", identity="a", state=state)


def test_the_time_stands_in_all_texts() -> None:
    url = at_time(FetchUrl(url=ASKED, headers=(RequestHeader(name="From", value="${{ trigger.time }}"),)), DAY)
    assert url.url == "https://example.org/2024-05-01?to=2024-04-30T22:00:00Z"
    assert url.headers is not None
    assert url.headers[0].value == "2024-04-30T22:00:00Z"
    step = FetchContainer(
        image="x", args=("${{ trigger.date }}",), env=(EnvVar(name="DAY", value="${{ trigger.date }}"),)
    )
    assert at_time(step, DAY).args == ("2024-05-01",)
    assert at_time(step, DAY).env == (EnvVar(name="DAY", value="2024-05-01"),)
    assert at_time(SqlQuery(query="select '${{ trigger.time }}'"), DAY).query == "select '2024-04-30T22:00:00Z'"
    assert at_time(FetchUrl(url="https://${{ env.HOST }}/"), DAY).url == "https://${{ env.HOST }}/"


def test_a_variable_that_no_trigger_has_is_refused() -> None:
    with pytest.raises(Invalid, match=r"unknown variable 'trigger.day'") as caught:
        check_trigger(FetchUrl(url="https://x/${{ trigger.day }}"), ReadNdJson())
    assert "trigger.date" in caught.value.hint


def test_sources_that_go_on_where_they_ended_have_no_time() -> None:
    check_trigger(FetchUrl(url=ASKED), ReadNdJson())
    check_trigger(FetchFilesGlob(path="/data/*.csv"), ReadNdJson())
    with pytest.raises(Invalid, match="continues where the last pull ended"):
        check_trigger(FetchFilesGlob(path="/data/${{ trigger.date }}/*.csv"), ReadNdJson())


@given(st.sampled_from([None, SourceState(source_name=DEFAULT_SOURCE, kind=ETAG, value='W/"a b"')]))
def test_what_was_said_of_one_time_is_not_asked_of_another(said: SourceState | None) -> None:
    found = _with_time(fetched(said), DAY)
    assert isinstance(found, Fetched)
    assert found.state is not None
    assert found.state.kind == STATE
    assert _state_for(found.state, DAY) == said
    assert _state_for(found.state, NEXT) is None
    assert is_uncacheable(polling(FetchUrl(url=ASKED)), found.state, DAY) is (said is None), "it is not read twice"
    assert not is_uncacheable(polling(FetchUrl(url=ASKED)), found.state, NEXT)
    assert _with_time(Unchanged(), DAY) == Unchanged()


def test_a_state_of_before_is_of_no_time() -> None:
    before = SourceState(source_name=DEFAULT_SOURCE, kind=ETAG, value="a")
    assert _state_for(before, DAY) is None
    assert not is_uncacheable(polling(FetchUrl(url=ASKED)), None, DAY)
    assert is_uncacheable(polling(FetchUrl(url="https://example.org/")), None, DAY)


def test_the_day_is_that_of_the_schedule() -> None:
    midnight = parse("2024-04-30T22:00:00Z")
    vienna = TriggerTime(midnight, offset_at(Cron("@daily", "Europe/Vienna"), midnight))
    assert vienna.values == {"trigger.time": "2024-04-30T22:00:00Z", "trigger.date": "2024-05-01"}
    for schedule in (None, Every(60 * SECOND), Cron("@daily")):
        assert TriggerTime(midnight, offset_at(schedule, midnight)).values["trigger.date"] == "2024-04-30"


@given(st.integers(-(10**18), 4 * 10**18), st.integers(-14 * 60, 14 * 60))
def test_a_written_time_is_read_with_its_day(nanoseconds: int, minutes: int) -> None:
    time = Instant(nanoseconds)
    sign, apart = "+" if minutes >= 0 else "-", divmod(abs(minutes), 60)
    local = render(Instant(time // SECOND * SECOND + minutes * 60 * SECOND)).removesuffix("Z")
    read = TriggerTime.read(f"{local}{sign}{apart[0]:02d}:{apart[1]:02d}")
    assert read == msgspec.structs.replace(TriggerTime.of(time), offset=minutes * 60)
    assert read.values["trigger.date"] == local.partition("T")[0]


async def test_validators_do_not_fetch_it_again() -> None:
    state = ChainState(kind=DatasetKind.ROOT, set_polling_source=polling(FetchUrl(url=ASKED)))
    with pytest.raises(Refused, match="asked for a time"):
        await refetch(NotImplemented, NotImplemented, state, DAY.time)


# Preparation: bytes out are the bytes meant, bombs and torn files are refused, commands only where allowed.

GZIP = Decompress(format=CompressionFormat.GZIP)
ZIP = Decompress(format=CompressionFormat.ZIP)


def settings(folder: Path, **more: Any) -> IngestSettings:
    return IngestSettings(staging=folder, **more)


def test_gzip_and_zip(tmp_path: Path) -> None:
    packed = tmp_path / "a.gz"
    packed.write_bytes(gzip.compress(b"one") + gzip.compress(b"two"))
    assert prepare(packed, [GZIP], tmp_path, settings(tmp_path)).read_bytes() == b"onetwo"
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("d/", "")
        archive.writestr("d/first.csv", "1")
        archive.writestr("second.csv", gzip.compress(b"2"))
    path = tmp_path / "a.zip"
    assert prepare(path, [ZIP], tmp_path, settings(tmp_path)).read_bytes() == b"1"
    second = Decompress(format=CompressionFormat.ZIP, sub_path="second.csv")
    assert prepare(path, [second, GZIP], tmp_path, settings(tmp_path)).read_bytes() == b"2"
    with pytest.raises(NotFound, match=r"no third\.csv in a\.zip") as caught:
        prepare(path, [Decompress(format=CompressionFormat.ZIP, sub_path="third.csv")], tmp_path, settings(tmp_path))
    assert "d/first.csv" in caught.value.hint
    assert prepare(path, [], tmp_path, settings(tmp_path)) == path


def test_which_file_of_a_zip_was_read_is_said(tmp_path: Path) -> None:
    path = tmp_path / "download"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("b.csv", "a.csv", "LICENSE"):
            archive.writestr(name, name)
    first = prepared(path, [ZIP], tmp_path, settings(tmp_path), name="data.zip")
    assert first.path.read_text() == "b.csv"
    assert first.remarks == ("data.zip holds 3 files: b.csv was read, and not a.csv, LICENSE (subPath chooses)",)
    chosen = Decompress(format=CompressionFormat.ZIP, sub_path="a.csv")
    assert prepared(path, [chosen], tmp_path, settings(tmp_path)).remarks == ()


def test_what_a_server_packed_for_the_way_needs_no_step(tmp_path: Path) -> None:
    """Web servers send ``data.csv.gz`` as a CSV with gzip around it; manifests unpack it."""
    path = tmp_path / "download"
    path.write_bytes(b"a,b\n")
    done = prepared(path, [GZIP], tmp_path, settings(tmp_path), name="data.csv.gz", decoded=True)
    assert (done.path, len(done.remarks)) == (path, 1)
    with pytest.raises(Invalid, match=r"data\.csv\.gz is not whole gzip") as told:
        prepare(path, [GZIP], tmp_path, settings(tmp_path), name="data.csv.gz")
    assert "leave out the step" in told.value.hint
    path.write_bytes(gzip.compress(b"a,b\n"))
    twice = prepared(path, [GZIP], tmp_path, settings(tmp_path), decoded=True)
    assert (twice.path.read_bytes(), twice.remarks) == (b"a,b\n", ())


@pytest.mark.parametrize("cut", [0, 1, 5, 12, 20])
def test_torn_files(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "torn"
    path.write_bytes(gzip.compress(b"some text")[:cut] if cut else b"plain")
    with pytest.raises(Invalid, match="torn is not whole gzip"):
        prepare(path, [GZIP], tmp_path, settings(tmp_path))
    with pytest.raises(Invalid, match="torn is not a zip file"):
        prepare(path, [ZIP], tmp_path, settings(tmp_path))


def test_bombs_stop_at_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(10 << 20)))
    with pytest.raises(Refused, match="larger than 1048576 bytes"):
        prepare(path, [GZIP], tmp_path, settings(tmp_path, max_source_bytes=1 << 20))
    assert (tmp_path / "prepared-0").stat().st_size <= 1 << 20


def test_a_check_stops_the_work(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"x"))

    def stop() -> None:
        raise Environment("enough")

    with pytest.raises(Environment, match="enough"):
        preparation.inflate(preparation.PackedFile(path, "a.gz", settings(tmp_path), stop), GZIP, tmp_path / "out")


def test_a_check_stops_what_gives_nothing(tmp_path: Path) -> None:
    """A gzip of nothing but empty members: its reader went through all of them before anybody was asked."""
    packed = tmp_path / "empty.gz"
    packed.write_bytes(gzip.compress(b"") * 10_000)
    checks = iter(range(100))
    with pytest.raises(StopIteration):
        preparation.inflate(
            preparation.PackedFile(packed, "x", settings(tmp_path), lambda: next(checks) and None),
            GZIP,
            tmp_path / "out",
        )


def test_a_zip_of_members_beyond_measure_is_refused_unread(tmp_path: Path) -> None:
    """Attack T-BYTES-02: a zip with millions of members, whose directory the daemon would read whole.

    Defence: a directory over 8 MiB is refused before it is read.

    The list of them is read whole, in the daemon; here 9 MiB of it, for a file that holds nothing.
    """
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", 20, 3, 20, *(0,) * 8, 1, *(0,) * 6) + b"a"
    count = (9 << 20) // len(entry)
    size = count * len(entry)
    end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, 0)
    end += struct.pack("<4sLQL", b"PK\6\7", 0, size, 1)
    end += struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    packed = tmp_path / "many"
    packed.write_bytes(entry * count + end)
    with breaks("prepare-zip", Invalid, match="the list of files in many has more than"):
        prepare(packed, [ZIP], tmp_path, settings(tmp_path))


def test_pipes_run_only_where_allowed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("b\na\n")
    with pytest.raises(Refused, match="would run 'sort'"):
        prepare(path, [Pipe(command=("sort",))], tmp_path, settings(tmp_path, pipe="never"))
    allowed = settings(tmp_path, pipe="user")
    assert prepare(path, [Pipe(command=("sort",))], tmp_path, allowed).read_text() == "a\nb\n"
    with pytest.raises(Invalid, match="sh ended with 3: oh"):
        prepare(path, [Pipe(command=("sh", "-c", "echo oh >&2; exit 3"))], tmp_path, allowed)
    with pytest.raises(Environment, match="cannot run no-such-program"):
        prepare(path, [Pipe(command=("no-such-program",))], tmp_path, allowed)


@pytest.mark.parametrize("step", [GZIP, Pipe(command=("cat",))], ids=["unpacked", "piped"])
def test_the_disk_keeps_its_reserve(tmp_path: Path, step: Any) -> None:
    """An unpacked file filled the disk to its last byte."""
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"x"))
    with breaks("disk-reserve", Environment):
        prepare(path, [step], tmp_path, settings(tmp_path, disk_reserve=1 << 60, pipe="user"))
    assert not (tmp_path / "prepared-0").stat().st_size


@pytest.mark.slow
def test_what_a_command_gives_is_bounded(tmp_path: Path) -> None:
    """In bytes and in time; whatever it started ends with it, and its complaints are cut."""
    path = tmp_path / "a"
    path.write_text("")
    allowed = settings(tmp_path, pipe="user", max_source_bytes=1 << 20)
    with pytest.raises(Refused, match="what yes gave is larger than 1048576 bytes"):
        prepare(path, [Pipe(command=("yes",))], tmp_path, allowed)
    child = tmp_path / "child"
    sleeping = Pipe(command=("sh", "-c", f"sleep 1000 & echo $! > {child}; wait"))
    for seconds in (1, 10, 100):  # on a full machine, a command has done nothing yet when a second is over
        with pytest.raises(Refused, match=f"sh ran over {seconds} s") as caught:
            prepare(path, [sleeping], tmp_path, settings(tmp_path, pipe="user", pipe_timeout=seconds))
        assert "ingest.pipe-seconds" in caught.value.hint
        if child.exists() and child.read_text():
            break
    assert ends(int(child.read_text()))
    with pytest.raises(Invalid) as failed:
        prepare(path, [Pipe(command=("sh", "-c", "head -c 1000000 /dev/zero >&2; exit 1"))], tmp_path, allowed)
    assert len(failed.value.message) < 1000


async def test_a_command_ends_when_nobody_waits(tmp_path: Path) -> None:
    """It held a worker thread, and with it the end of the daemon."""
    path, child = tmp_path / "a", tmp_path / "child"
    path.write_text("")
    os.mkfifo(child)
    step = Pipe(command=("sh", "-c", f"echo $$ > {child}; exec sleep 1000"))
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(preparation.prepare, path, [step], tmp_path, settings(tmp_path, pipe="user"))
            process = int(await trio.to_thread.run_sync(child.read_text))
            nursery.cancel_scope.cancel()
    assert ends(process)


def ends(process: int) -> bool:
    """Whether it has ended, or does within a while: it was killed, and the system gets round to it."""
    try:
        watched = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], PATIENCE)[0])
    finally:
        os.close(watched)
