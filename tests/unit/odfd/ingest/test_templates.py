"""Values of variables go to who is to be sent them, and stand in nothing that is told."""

from __future__ import annotations

import base64
import http.server
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar
from urllib.error import URLError

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Environment, Fault, Invalid, Refused, Remote
from chain.instant import Instant
from chain.model.source import FetchUrl, Pipe, RequestHeader
from odfd.errors import to_problem
from odfd.ingest.fetch.source import FetchJob
from odfd.ingest.settings import IngestSettings
from odfd.ingest.templates import SHORT, check_secret, check_url_password, check_user_info, fill, redact
from p2p.ip import is_global, parse_ip
from worlds.sources import fetch, prepare

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
    made = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo) for _ in range(2)]
    threads = [threading.Thread(target=server.serve_forever, args=(0.01,)) for server in made]
    for thread in threads:
        thread.start()
    one, other = (f"http://127.0.0.1:{server.server_address[1]}" for server in made)
    Echo.elsewhere = other
    yield one, other
    for server, thread in zip(made, threads, strict=True):
        server.shutdown()
        thread.join()
        server.server_close()


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
    headers = (*KEYED, RequestHeader(name="Cookie", value="c=1"), RequestHeader(name="Accept", value="text/csv"))
    fetch(FetchUrl(url=f"{servers[0]}/home", headers=headers), job(tmp_path, may_dial=may_dial))
    fetch(FetchUrl(url=f"{servers[0]}/away", headers=headers), job(tmp_path, may_dial=may_dial))
    home, away = (found for path, found in Echo.asked if path == "/plain")
    assert {name.casefold(): value for name, value in home.items()}["x-key"] == "s3cr3t-token"
    assert "s3cr3t-token" not in str(away)
    assert "c=1" not in str(away)
    assert away["Accept"] == "text/csv"


def test_nobody_is_sent_on_to_what_is_no_page(servers: tuple[str, str], tmp_path: Path) -> None:
    """An ``ftp://`` address was dialled wherever it was, also for sources that strangers declared."""
    with pytest.raises(Refused) as caught:
        fetch(FetchUrl(url=f"{servers[0]}/ftp"), job(tmp_path, may_dial=lambda _: True))
    assert caught.value.rule == "source-redirect"
    assert not is_global(parse_ip("127.0.0.1"))


def test_user_and_password_of_a_url_are_a_header(servers: tuple[str, str], tmp_path: Path) -> None:
    url = servers[0].replace("//", "//ann:${{ env.KEY }}@")
    fetch(FetchUrl(url=f"{url}/plain"), job(tmp_path))
    told_to_server = Echo.asked[-1][1]["Authorization"].removeprefix("Basic ")
    assert base64.b64decode(told_to_server) == b"ann:s3cr3t-token"
    with pytest.raises(Remote) as caught:
        fetch(FetchUrl(url=f"{url}/reason"), job(tmp_path))
    assert "${{ env.KEY }}" in str(caught.value)
    assert "s3cr3t-token" not in told(caught.value)
    with pytest.raises(Invalid) as refused:
        fetch(FetchUrl(url=servers[0].replace("//", "//ann:plain-password@") + "/plain"), job(tmp_path))
    assert refused.value.rule == "source-password"
    assert "plain-password" not in told(refused.value)


def test_a_value_that_ends_a_header_is_refused_by_name(servers: tuple[str, str], tmp_path: Path) -> None:
    broken = (RequestHeader(name="X-Key", value="${{ env.BROKEN }}"),)
    with pytest.raises(Invalid) as caught:
        fetch(FetchUrl(url=f"{servers[0]}/plain", headers=broken), job(tmp_path))
    assert caught.value.rule == "source-header"
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
    for check in (lambda: check_user_info(user), lambda: check_url_password(f"https://{user}@a.example/b?c=d:e@f")):
        with pytest.raises(Invalid, match="would be in the chain") if is_refused else nullcontext():
            check()


def test_a_secret_is_wholly_a_variable() -> None:
    check_secret("${{ env.KEY }}", "a key")
    for text in ("word", "${{ env.KEY }}x", "${{ env.KEY || 'word' }}", ""):
        with pytest.raises(Invalid, match="a key in a source would be in the chain"):
            check_secret(text, "a key")
