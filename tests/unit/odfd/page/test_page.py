"""The page of a node: its files, and the server that gives them."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Environment
from config.check import cross
from config.model import Http, Settings
from odfd.control import wire
from odfd.page.application import FOLDER, MAX_TOKEN_BODY, PageApplication, PageEndpoint, page_files
from odfd.page.server import LIMITS, PageServer
from odfd.page.sessions import SESSION_SECONDS, SESSIONS, TOKEN_SECONDS, TOKENS, PageSecrets, PageSessions
from odfd.runtime.http_server import HANDSHAKE_SECONDS, ConnectionHandler, HttpServer
from odfd.runtime.supervision import Life
from odfd.runtime.tls import tls_context
from package.libraries import LIBRARIES, LOCK, as_shown
from package.staging import stage
from worlds.certificates import certified
from worlds.eventually import PATIENCE
from worlds.node_world import Lines

# The files of the page: those of the lock file, nothing from elsewhere, no text that becomes markup.


OURS = sorted(FOLDER.glob("*.js"))
DIGESTS = {
    "axe.min.js": "188dc50c7c68617d089b37fcb2d6376ce35488958baa977cd7c35cc1391e592e",
    "hooks.js": "5c65ab263688d0805862fd0807c779af02c2799c44fda0873dfcb870d0da70a0",
    "htm.js": "ab33dd3f38059b9be4d5f5350128eefb2356639c4e0bbe9d9e8b3ba75847e9e4",
    "marked.js": "c622dc6824a1c92c2d10ea9ede2fc872e46128afcc34b298e6ddee6f387ace8e",
    "preact.js": "225d7a773766e6fb2cfcc45274fe41d2059f5782f3f2c4569aa5132a2d3a2902",
}
"""Of what ``make ui`` writes, by the versions of package/page/package-lock.json."""


def test_libraries_are_those_of_the_lock_file() -> None:
    found = {each.target.name: hashlib.sha256(each.target.read_bytes()).hexdigest() for each in LIBRARIES
             if each.target.suffix == ".js"}  # fmt: skip
    assert found == DIGESTS, "make ui writes them; change these digests with the lock file alone"


@pytest.mark.slow
def test_they_are_made_again_to_the_same_bytes(tmp_path: Path) -> None:
    """From npm's packages, where they can be had."""
    if shutil.which("npm") is None:
        pytest.skip("no npm here")
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile(LOCK / name, tmp_path / name)
    command = [
        "npm",
        "ci",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--silent",
        "--prefer-offline",
        "--fetch-retries=0",
    ]
    try:
        subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=PATIENCE, check=True)
    except subprocess.SubprocessError:
        pytest.skip("npm cannot give the packages here")
    for each in LIBRARIES:
        made = as_shown((tmp_path / "node_modules" / each.source).read_bytes(), each.target)
        assert made == each.target.read_bytes(), each.target.name


def test_versions_are_pinned_with_hashes() -> None:
    wanted = json.loads((LOCK / "package.json").read_text())
    locked = json.loads((LOCK / "package-lock.json").read_text())["packages"]
    for name, version in (wanted["dependencies"] | wanted["devDependencies"]).items():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version), name
        assert locked[f"node_modules/{name}"]["version"] == version
        assert locked[f"node_modules/{name}"]["integrity"].startswith("sha512-")


def test_each_library_has_its_license_beside_it() -> None:
    for each in LIBRARIES:
        if each.target.suffix == ".js" and each.target.parent.name == "vendor" and each.target.name != "hooks.js":
            assert each.target.with_suffix(".LICENSE").is_file()


def test_scripts_import_files_that_are_there() -> None:
    for path in OURS:
        for name in re.findall(r'(?:from |import\()"([^"]+)"', path.read_text()):
            assert name in page_files(), f"{path.name} imports {name}"


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_no_text_becomes_markup_or_code(path: Path) -> None:
    """What the browser's policy would stop is not tried either."""
    text = path.read_text()
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "srcdoc",
        "DOMParser",
    ):
        assert word not in text
    assert "https://" not in text, "nothing is fetched from elsewhere"


def test_all_scripts_that_the_page_begins_with_are_fetched_at_once() -> None:
    """All that ``main.js`` imports, however far; what it asks for later is not among them."""
    named = set(re.findall(r'(?:src|href)="([^"]+\.js)"', (FOLDER / "index.html").read_text()))
    reached, waiting = set(), ["/main.js"]
    while waiting:
        if (path := waiting.pop()) not in reached:
            reached.add(path)
            waiting += re.findall(r'^import [^(].* from "([^"]+)"', page_files()[path].content.decode(), re.MULTILINE)
    assert named == reached
    assert len(reached) < len(page_files()) / 2


def test_every_script_is_imported_by_another() -> None:
    scripts = {path: file.content.decode() for path, file in page_files().items() if path.endswith(".js")}
    imported = set(re.findall(r'(?:from |import\()"([^"]+)"', "".join(scripts.values())))
    assert imported == {*scripts} - {"/main.js"}


def test_html_holds_no_script_and_no_style() -> None:
    text = (FOLDER / "index.html").read_text()
    assert not re.search(r"<script(?![^>]* src=)|<style|\son\w+=|\sstyle=|https?:", text)


@pytest.mark.slow
def test_the_page_is_inside_the_wheel(tmp_path: Path) -> None:
    stage(tmp_path / "wheel")
    inside = {path.name for path in (tmp_path / "wheel").rglob("odfd/page/static/**/*") if path.is_file()}
    assert inside == {path.name for path in FOLDER.rglob("*") if path.is_file()}


PINS = (
    wire.UnheldPin(first=3, last=3, digest=f"sha256:{'d' * 64}"),
    wire.UnheldPin(first=4, last=17, digest="latest"),
    wire.UnheldPin(first=4, last=5),
)
SAID = (
    "#3 pinned to sha256:dddddddddddd…: this engine is not available",
    "#4-#17 pinned to latest: this engine is not available",
    "#4-#5 pinned to no engine: no verdict is possible",
)


@pytest.mark.slow
def test_blocks_whose_engine_nobody_here_has_are_told_as_odfctl_tells_them(tmp_path: Path) -> None:
    assert tuple(each.text for each in PINS) == SAID
    if shutil.which("node") is None:
        pytest.skip("no program here runs scripts of the page")
    for name in ("text", "words"):
        script = (FOLDER / f"{name}.js").read_text().replace('from "/text.js"', 'from "./text.mjs"')
        (tmp_path / f"{name}.mjs").write_text(script)
    asked = f"console.log(JSON.stringify({msgspec.json.encode(PINS).decode()}.map(unheld)))"
    (tmp_path / "ask.mjs").write_text(f'import {{ unheld }} from "./words.mjs";\n{asked}\n')
    told = subprocess.run(["node", "ask.mjs"], cwd=tmp_path, capture_output=True, timeout=PATIENCE, check=True)
    assert tuple(json.loads(told.stdout)) == SAID


# The server of the page: its address, its sessions, and who is answered with what.


# The page is served once somebody asks for it, at its own address, until the node stops.


async def api(scope: Any, receive: Any, send: Any) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"6")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b'"told"'})


def made(address: str = "", **more: str) -> PageServer:
    numbers = iter(range(100))
    return PageServer(Http(ui=address, **more), lambda: f"secret-{next(numbers)}", Lines(), lambda: api)


def answer_of(url: str, headers: dict[str, str], data: bytes | None = None) -> Any:
    return urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=PATIENCE)


def looked(address: str) -> bytes:
    """As a browser does it: the files, the session, the API."""
    place, _, token = address.partition("/#token=")
    assert b"/main.js" in answer_of(place, {}).read()
    began = answer_of(f"{place}/session", {"origin": place}, json.dumps({"token": token}).encode())
    headers = {"cookie": began.headers["set-cookie"].partition(";")[0], "x-odfd-key": json.loads(began.read())["key"]}
    with pytest.raises(urllib.error.HTTPError):
        answer_of(f"{place}/node/v1alpha1/status", {})
    return bytes(answer_of(f"{place}/node/v1alpha1/status", headers).read())


async def test_it_is_served_once_somebody_asks_for_it() -> None:
    page, life = made(), Life()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(page.run, life)
            await life.wait_ready()
            assert not page.server.listeners, "nobody asked"
            first, second = (await page.open()).url, (await page.open()).url
            assert first.partition("#")[0] == second.partition("#")[0]
            assert urlparse(first).hostname == "127.0.0.1"
            for url in (first, second):
                assert await trio.to_thread.run_sync(looked, url) == b'"told"'
            life.stopping.set()
    with pytest.raises(OSError, match="failed"):
        await trio.open_tcp_stream("127.0.0.1", urlparse(first).port or 0)


async def test_one_that_nobody_asks_for_stops_too() -> None:
    life = Life()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made().run, life)
            await life.wait_ready()
            life.stopping.set()


async def test_settings_may_name_its_address() -> None:
    page, life = made("127.0.0.1:0"), Life()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(page.run, life)
            await life.wait_ready()
            assert page.server.listeners
            assert await trio.to_thread.run_sync(looked, (await page.open()).url) == b'"told"'
            life.stopping.set()


async def test_a_port_that_is_taken_is_told_with_its_setting() -> None:
    with trio.socket.socket() as other:
        await other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(Environment, match="cannot serve HTTP") as caught:
            await made(f"127.0.0.1:{other.getsockname()[1]}").open()
    assert "http.ui" in caught.value.hint


@pytest.mark.parametrize("address", ["0.0.0.0:7464", "[::]:7464", "192.0.2.1:7464"])
def test_beyond_this_machine_it_needs_tls_and_tokens(address: str) -> None:
    """Attack T-HTTP-02: unprotected access to the page from other machines.

    Defence: settings with such an address are refused without TLS and tokens.
    """
    tls = {"ui_certificate": "c", "ui_key": "k"}
    for said in ({}, tls, {"ui_tokens": "t"}):
        (problem,) = cross(Settings(http=Http(ui=address, **said)), {})
        assert "not an address of this machine alone" in str(problem)
    assert not cross(Settings(http=Http(ui=address, ui_tokens="t", **tls)), {})
    assert not cross(Settings(http=Http(ui="127.0.0.1:7464")), {})
    (problem,) = cross(Settings(http=Http(ui_certificate="c")), {})
    assert "its key" in str(problem)


@pytest.mark.parametrize("address", ["localhost:7464", "7464"])
def test_its_address_is_an_ip_address_and_a_port(address: str) -> None:
    (problem,) = cross(Settings(http=Http(ui=address)), {})
    assert "not an IP address and a port" in str(problem)


TOKEN = "t0123456789abcdef"


def secured(folder: Path, *names: str) -> dict[str, str]:
    certificate, key = certified(folder, *names)
    tokens = folder / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text(f"anna {TOKEN}\n")
    return {"ui_certificate": str(certificate), "ui_key": str(key), "ui_tokens": str(tokens)}


def over_tls(page: PageServer, certificate: str, ask: Any) -> Any:
    """What a client makes of a page that is served over TLS: ``ask(place, opened)``."""

    async def run() -> Any:
        life, context = Life(), ssl.create_default_context(cafile=certificate)
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(page.run, life)
                await life.wait_ready()
                place = (await page.open()).url.partition("/#")[0]

                def opened(path: str, headers: dict[str, str], data: bytes | None = None) -> Any:
                    request = urllib.request.Request(place + path, data, headers)
                    return urllib.request.urlopen(request, timeout=PATIENCE, context=context)

                answer = await trio.to_thread.run_sync(ask, place, opened)
                life.stopping.set()
                return answer

    return trio.run(run)


def refused(opened: Any, *words: Any) -> str:
    with pytest.raises(urllib.error.HTTPError) as caught:
        opened(*words)
    return str(json.loads(caught.value.read())["rule"])


def test_over_tls_a_token_of_the_file_opens_a_session(tmp_path: Path) -> None:
    """Attack T-HTTP-02: a guessed token of the web UI, or a session intercepted on the line.

    Defence: tokens have 16 characters or more and are compared as digests; the cookie is for TLS and this host alone.
    """
    said = secured(tmp_path)

    def ask(place: str, opened: Any) -> None:
        assert place.startswith("https://localhost:")
        body = json.dumps({"token": TOKEN}).encode()
        for _ in range(2):
            began = opened("/session", {"origin": place}, body)
            cookie = began.headers["set-cookie"]
            assert cookie.startswith("__Host-odfd-page-")
            assert cookie.endswith("; Secure")
            headers = {"cookie": cookie.partition(";")[0], "x-odfd-key": json.loads(began.read())["key"]}
            assert opened("/node/v1alpha1/status", headers).read() == b'"told"'
        assert refused(opened, "/node/v1alpha1/status", {}) == "page-session"
        assert refused(opened, "/session", {"origin": place}, b'{"token": "0123456789abcdef"}') == "http-ui-tokens"

    over_tls(made("127.0.0.1:0", **said), said["ui_certificate"], ask)


def test_over_tls_only_names_of_the_certificate_are_answered(tmp_path: Path) -> None:
    """Attack T-HTTP-03: a web page that leads a browser to ours by another name, where it is reachable from other
    machines.

    Defence: only names in its certificate are answered, and only its own origin.

    Another page, by a name of its own for this address, or without TLS, opens nothing.
    """
    said = secured(tmp_path)

    def ask(place: str, opened: Any) -> None:
        port = place.rpartition(":")[2]
        body = json.dumps({"token": TOKEN}).encode()
        for headers in ({"host": f"evil.example:{port}", "origin": place}, {"host": f"127.0.0.1:{port}"}):
            assert refused(opened, "/session", headers, body) == "page-host"
        for origin in ("https://evil.example", place.replace("https", "http")):
            assert refused(opened, "/session", {"origin": origin}, body) == "page-origin"
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            answer_of(place.replace("https", "http"), {})

    over_tls(made("127.0.0.1:0", **said), said["ui_certificate"], ask)


def test_tokens_that_others_may_read_open_nothing(tmp_path: Path) -> None:
    """Attack T-HTTP-02: another user of this machine who reads the tokens.

    Defence: tokens of a file with open permissions are refused, and the reason is shown.
    """
    said = secured(tmp_path)
    Path(said["ui_tokens"]).chmod(0o644)

    def ask(place: str, opened: Any) -> None:
        body = json.dumps({"token": TOKEN}).encode()
        assert refused(opened, "/session", {"origin": place}, body) == "http-ui-tokens"

    over_tls(made("127.0.0.1:0", **said), said["ui_certificate"], ask)


async def test_a_certificate_that_names_no_host_is_told(tmp_path: Path) -> None:
    for names, more in ((("*.example",), {}), ((), {"ui_key": "/nowhere"})):
        said = {**secured(tmp_path, *names), **more}
        with pytest.raises(Environment, match=r"http\.ui-certificate cannot be used"):
            await made("127.0.0.1:0", **said).open()


async def test_who_does_not_speak_tls_keeps_nobody_out(tmp_path: Path, autojump_clock: Any) -> None:
    """Attack T-HTTP-01: connections to the page that begin TLS and stop.

    Defence: a handshake has ten seconds; silent connections are closed for newcomers.

    A handshake has its time; of many that say nothing the oldest make room before.
    """
    server = HttpServer("page", [], lambda _: nullcontext(ConnectionHandler(api)), Lines(), LIMITS)
    certificate, key = certified(tmp_path)
    server.tls = tls_context(str(certificate), str(key), "http.ui-certificate", ("http/1.1",))
    ours, theirs = trio.socket.socketpair()
    await server._slots.acquire()
    with theirs:
        began = trio.current_time()
        await server._serve(trio.SocketStream(ours))
        assert trio.current_time() - began == HANDSHAKE_SECONDS
    assert server.connections == 0


# Tokens and sessions of the page: good once, for so long, so many.


@pytest.fixture
def sessions() -> PageSessions:
    numbers = itertools.count()
    return PageSessions(lambda: f"secret-{next(numbers)}")


def opened(sessions: PageSessions, now: float = 0.0) -> PageSecrets:
    found = sessions.begin(sessions.invite(now), now)
    assert found is not None
    return found


def test_a_token_opens_one_session(sessions: PageSessions) -> None:
    """Attack T-HTTP-02: the page's address, found later in a browser history or seen by others.

    Defence: its token opens one session, within two minutes.
    """
    token = sessions.invite(0)
    assert sessions.begin(token, 1) is not None
    assert sessions.begin(token, 1) is None
    assert sessions.begin("secret", 1) is None


def test_a_token_is_good_for_a_while(sessions: PageSessions) -> None:
    early, late = sessions.invite(0), sessions.invite(0)
    assert sessions.begin(early, TOKEN_SECONDS - 1) is not None
    assert sessions.begin(late, TOKEN_SECONDS) is None


def test_neither_half_of_a_session_opens_anything(sessions: PageSessions) -> None:
    """Attack T-HTTP-03: another program on this machine that receives the session cookie of the web UI, since cookies
    ignore ports.

    Defence: a session needs a cookie and a key that only scripts of the page's origin and port can read.

    A cookie goes to every port of this machine, and a key is read by whoever reads the browser's disk.
    """
    mine, other = opened(sessions), opened(sessions)
    assert sessions.admits(mine.cookie, mine.key, 0)
    for cookie, key in (
        (mine.cookie, ""),
        ("", mine.key),
        (mine.cookie, other.key),
        (other.cookie, mine.key),
        ("", ""),
    ):
        assert not sessions.admits(cookie, key, 0)


def test_a_session_ends_when_it_rests_too_long_or_is_left(sessions: PageSessions) -> None:
    used, left = opened(sessions), opened(sessions)
    assert sessions.admits(used.cookie, used.key, SESSION_SECONDS - 1)
    assert sessions.admits(used.cookie, used.key, 2 * SESSION_SECONDS - 2)
    assert not sessions.admits(used.cookie, used.key, 4 * SESSION_SECONDS)
    sessions.end(left.cookie)
    assert not sessions.admits(left.cookie, left.key, 0)


def test_there_are_so_many_and_the_oldest_makes_room(sessions: PageSessions) -> None:
    first, *tokens = (sessions.invite(0) for _ in range(TOKENS + 1))
    assert sessions.begin(first, 0) is None
    assert all(sessions.begin(token, 0) for token in tokens)
    some = [opened(sessions, at) for at in range(SESSIONS)]
    assert sessions.admits(some[0].cookie, some[0].key, SESSIONS)
    opened(sessions, SESSIONS)
    assert sessions.admits(some[0].cookie, some[0].key, SESSIONS)
    assert not sessions.admits(some[1].cookie, some[1].key, SESSIONS)


@given(st.text(), st.text())
def test_no_words_of_others_open_a_session(cookie: str, key: str) -> None:
    numbers = itertools.count()
    sessions = PageSessions(lambda: f"\x00{next(numbers)}")
    opened(sessions)
    assert not sessions.admits(cookie, key, 0) or cookie.startswith("\x00")
    assert sessions.begin(cookie, 0) is None


# Who is answered by the page's server, with what, and what the page cannot do.

PLACE = "127.0.0.1:7464"
ORIGIN = {"host": PLACE, "origin": f"http://{PLACE}"}
COOKIE = "odfd-page-7464"


class Asked:
    """The application over an API that says what it was asked."""

    def __init__(self) -> None:
        numbers = itertools.count()
        self.sessions = PageSessions(lambda: f"secret-{next(numbers)}")
        self.passed: list[str] = []
        door = PageEndpoint(frozenset({PLACE, "localhost:7464"}))
        self.application = PageApplication(self._api, self.sessions, door, lambda: 0.0)

    async def _api(self, scope: Any, receive: Any, send: Any) -> None:
        self.passed.append(f"{scope['method']} {scope['path']}")
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": b"[]"})

    async def ask(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> tuple[int, dict[str, str], bytes]:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self.application({"method": method, "path": path, "headers": raw}, receive, send)
        start, *rest = sent
        told = {name.decode(): value.decode() for name, value in start["headers"]}
        return start["status"], told, b"".join(one["body"] for one in rest)

    async def session(self) -> dict[str, str]:
        """The headers of one who has a session."""
        token = json.dumps({"token": self.sessions.invite(0)}).encode()
        status, told, body = await self.ask("POST", "/session", ORIGIN, token)
        assert status == 200
        cookie, *rest = told["set-cookie"].split("; ")
        assert cookie.startswith(f"{COOKIE}=")
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(rest)
        return {**ORIGIN, "cookie": cookie, "x-odfd-key": json.loads(body)["key"]}


@pytest.fixture
def asked() -> Asked:
    return Asked()


async def test_a_session_reads_the_api(asked: Asked) -> None:
    mine = await asked.session()
    status, told, body = await asked.ask("GET", "/node/v1alpha1/status", mine)
    assert (status, body, asked.passed) == (200, b"[]", ["GET /node/v1alpha1/status"])
    assert told["cache-control"] == "no-store"
    assert told["x-content-type-options"] == "nosniff"


async def test_without_a_session_nothing_of_the_api_is_told(asked: Asked) -> None:
    mine = await asked.session()
    for without in ("cookie", "x-odfd-key"):
        headers = {name: value for name, value in mine.items() if name != without}
        status, _, body = await asked.ask("GET", "/node/v1alpha1/status", headers)
        assert (status, json.loads(body)["rule"]) == (403, "page-session")
    assert not asked.passed


@pytest.mark.parametrize(
    "changed",
    [
        {"host": "rebound.example:7464"}, {"host": "127.0.0.1"}, {"host": "127.0.0.1:80"}, {"host": ""},
        {"origin": "http://evil.example"}, {"origin": "null"}, {"origin": "http://localhost:7464"},
        {"origin": "http://127.0.0.1:9999"}, {"origin": f"https://{PLACE}"},
        {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"},
    ],
)  # fmt: skip
async def test_another_page_gets_nothing_from_the_page(asked: Asked, changed: dict[str, str]) -> None:
    """Attack T-HTTP-03: another web page in the same browser that sends requests to the node's page, by its name or
    from another port.

    Defence: requests with another host, another origin, or actions without an origin are refused; no CORS.

    Though the browser has a session: by another name of this machine, from another origin, or another port.
    """
    mine = await asked.session()
    for method, path in (
        ("GET", "/dataset/v1alpha1/datasets"),
        ("POST", "/node/v1alpha1/pull"),
        ("POST", "/session"),
        ("DELETE", "/session"),
    ):
        status, told, _ = await asked.ask(method, path, mine | changed)
        assert status == 403, (method, path)
        assert "set-cookie" not in told
        assert not any(name.startswith("access-control") for name in told)
    assert not asked.passed
    assert (await asked.ask("GET", "/node/v1alpha1/status", mine))[0] == 200


async def test_what_acts_says_where_it_comes_from(asked: Asked) -> None:
    mine = await asked.session()
    silent = {name: value for name, value in mine.items() if name != "origin"}
    assert (await asked.ask("GET", "/node/v1alpha1/status", silent))[0] == 200
    assert (await asked.ask("POST", "/node/v1alpha1/pull", silent))[0] == 403


@pytest.mark.parametrize(
    "act",
    [
        "DELETE /dataset/v1alpha1/datasets/x", "DELETE /dataset/v1alpha1/Dataset/x", "PUT /flow/v1alpha1/tasks/x",
        *(f"POST /dataset/v1alpha1/datasets/x/{act}" for act in ("export", "authority", "rewrite", "verify/more")),
        *(f"POST /node/v1alpha1/{act}" for act in ("import", "backup", "signers", "uploads", "page", "collect")),
        "POST /resource/v1alpha1/apply", "POST /trust/v1alpha1/validators", "POST /net/v1alpha1/networks",
        "PUT /dataset/v1alpha1/datasets/x/watermark", "TRACE /node/v1alpha1/status",
    ],
)  # fmt: skip
async def test_a_session_reads_no_files_and_deletes_nothing(asked: Asked, act: str) -> None:
    """Attack T-HTTP-03: a stolen session of the page.

    Defence: it may do what the page does: no files of the machine, no keys, no deletion.
    """
    mine = await asked.session()
    method, path = act.split()
    status, _, body = await asked.ask(method, path, mine)
    assert (status, json.loads(body)["rule"]) == (403, "page-act")
    assert not asked.passed


async def test_what_the_page_does_reaches_the_api(asked: Asked) -> None:
    mine = await asked.session()
    acts = (
        "POST /node/v1alpha1/search", "POST /node/v1alpha1/pull", "POST /dataset/v1alpha1/datasets/a b/verify",
        "DELETE /net/v1alpha1/mirrors/x", "DELETE /flow/v1alpha1/tasks/x",
        "PUT /flow/v1alpha1/flows/x/pause",
    )  # fmt: skip
    for act in acts:
        assert (await asked.ask(*act.split(" ", 1), mine))[0] == 200
    assert asked.passed == list(acts)


async def test_every_answer_says_what_a_browser_may_do_with_it(asked: Asked) -> None:
    mine = await asked.session()
    for path in ("/", "/main.js", "/node/v1alpha1/status", "/none"):
        _, told, _ = await asked.ask("GET", path, mine)
        policy = dict(part.partition(" ")[::2] for part in told["content-security-policy"].split("; "))
        assert (policy["default-src"], policy["script-src"], policy["style-src"]) == ("'none'", "'self'", "'self'")
        assert policy["frame-ancestors"] == policy["form-action"] == policy["base-uri"] == "'none'"
        assert policy["require-trusted-types-for"] == "'script'"
        assert told["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize(
    "path", ["/../application.py", "//etc/passwd", "/vendor", "/static/main.js", "/\x00", "/MAIN.JS"]
)
async def test_no_path_reaches_the_disk(asked: Asked, path: str) -> None:
    """Attack T-HTTP-03: a request path outside of the page's files.

    Defence: files are looked up in a table built before.
    """
    assert (await asked.ask("GET", path, ORIGIN))[0] == 404


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"token": 1}', b'{"token": "x"}', b"\xff", b'{"token": "' + b"x" * MAX_TOKEN_BODY]
)
async def test_what_is_no_token_opens_nothing(asked: Asked, body: bytes) -> None:
    status, told, said = await asked.ask("POST", "/session", ORIGIN, body)
    assert (status, json.loads(said)["rule"]) == (403, "page-token")
    assert "set-cookie" not in told


async def test_who_leaves_has_no_session(asked: Asked) -> None:
    mine = await asked.session()
    _, told, _ = await asked.ask("DELETE", "/session", mine)
    assert "Max-Age=0" in told["set-cookie"]
    assert (await asked.ask("GET", "/node/v1alpha1/status", mine))[0] == 403


@pytest.mark.parametrize("cookie", ["", "=", "\x01", f"{COOKIE}=x; {COOKIE}=y", "a" * 5000, f'{COOKIE}="\\000"'])
async def test_no_cookie_breaks_it(asked: Asked, cookie: str) -> None:
    mine = await asked.session()
    assert (await asked.ask("GET", "/node/v1alpha1/status", mine | {"cookie": cookie}))[0] == 403
