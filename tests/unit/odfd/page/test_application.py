"""Who is answered by the page's server, with what, and what the page cannot do."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

import pytest

from odfd.page.application import MAX_TOKEN_BODY, PageApplication, PageEndpoint
from odfd.page.sessions import PageSessions

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
    """Though the browser has a session: by another name of this machine, from another origin, or another port."""
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
