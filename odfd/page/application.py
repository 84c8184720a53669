"""Serves a browser: the page's files to anyone on this machine, the API to its sessions, nothing to other pages.

The API is that of the control socket, limited to the requests that the page makes: a session cannot read files of the
machine, change who may write, or delete a dataset.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Final, NamedTuple

import trio

from chain.errors import Fault, Refused
from odfd.control.endpoint import OWNED
from odfd.control.tokens import Tokens
from odfd.errors import PROBLEM_JSON, Usage, http_status, to_problem
from odfd.page.sessions import SESSION_SECONDS, PageSessions
from odfd.resources.registry import VERSION
from odfd.runtime.http import Application, Message, Receive, Send

FOLDER: Final = Path(__file__).with_name("static")
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
MAX_TOKEN_BODY: Final = 1024
"""Bytes of a request that brings a token."""
KEY_HEADER: Final = b"x-odfd-key"
POLICY: Final = "; ".join((
    "default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "img-src 'self'",
    "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
    "require-trusted-types-for 'script'", "trusted-types 'none'",
))  # fmt: skip
"""Only the page's own scripts run; no text becomes markup, whoever writes the code; nothing goes to other origins."""
_ALWAYS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}
_ACTS: Final = (
    "POST /node/v1alpha1/query", "POST /node/v1alpha1/search", "POST /node/v1alpha1/pull",
    "POST /node/v1alpha1/publish", "POST /node/v1alpha1/unpublish", "POST /node/v1alpha1/mirrors",
    "DELETE /net/v1alpha1/mirrors/*", "PUT /net/v1alpha1/mirrors/*/pause", "DELETE /net/v1alpha1/mirrors/*/pause",
    "PUT /flow/v1alpha1/flows/*/pause", "DELETE /flow/v1alpha1/flows/*/pause", "DELETE /flow/v1alpha1/tasks/*",
    "POST /dataset/v1alpha1/datasets/*/verify", "POST /dataset/v1alpha1/datasets/*/lineage",
    "POST /dataset/v1alpha1/datasets/*/trust/resolve", "POST /node/v1alpha1/evidence/*",
)  # fmt: skip
"""Requests that a session may make besides reading; ``*`` is one step of a path."""
_DOES: Final = re.compile("|".join(re.escape(act).replace(r"\*", "[^/]+") for act in _ACTS))
_VERSIONED: Final = re.compile(f"/[^/]+/{VERSION}/")
_NO_SESSION: Final = Refused(
    "this browser has no session with the node", rule="page-session", hint="open the web UI again: odfctl ui"
)


class PageFile(NamedTuple):
    """A file of the page, with its media type."""

    content: bytes
    media_type: str


@cache
def page_files() -> Mapping[str, PageFile]:
    """Returns the files by path. Requests are looked up here, so that no request names a path of the disk."""
    found = {
        f"/{path.relative_to(FOLDER).as_posix()}": PageFile(path.read_bytes(), _TYPES[path.suffix])
        for path in sorted(FOLDER.rglob("*"))
        if path.suffix in _TYPES
    }
    return {"/": found.pop("/index.html"), **found}


class PageEndpoint(NamedTuple):
    """The addresses and tokens by which the page is requested."""

    places: frozenset[str]
    """Hosts with ports by which a browser may address the page."""
    scheme: str = "http"
    tokens: Tokens | None = None
    """Tokens that open a session, besides the addresses of ``odfctl ui``."""


class PageApplication:
    """The application; ``api`` serves the paths that contain a version."""

    def __init__(
        self, api: Application, sessions: PageSessions, endpoint: PageEndpoint, now: Callable[[], float]
    ) -> None:
        self._api, self._sessions, self._endpoint, self._now = api, sessions, endpoint, now

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        try:
            self._check_place(scope, headers)
            if scope["path"] == "/session":
                await self._session(scope, headers, receive, send)
            elif _is_asked(scope):
                self._check_session(scope, headers)
                await self._api({**scope, OWNED: True}, receive, _guarding(send))
            else:
                await _file(scope, send)
        except Fault as fault:
            await _respond(send, http_status(fault), json.dumps(to_problem(fault)).encode(), PROBLEM_JSON)

    def _check_place(self, scope: Message, headers: Mapping[bytes, bytes]) -> None:
        """Raises Refused for a request from another page, or one by a host name that is not the page's."""
        host, origin = (_text(headers, name) for name in (b"host", b"origin"))
        if host not in self._endpoint.places:
            raise Refused("the web UI answers only at the address that odfctl ui prints", rule="page-host")
        is_file = scope["method"] in ("GET", "HEAD") and not _is_asked(scope)
        foreign = _text(headers, b"sec-fetch-site") in ("cross-site", "same-site") and not is_file
        other = origin and origin != f"{self._endpoint.scheme}://{host}"
        if foreign or other or not (origin or scope["method"] in ("GET", "HEAD")):
            raise Refused("the request comes from another page, or has no origin", rule="page-origin")

    def _check_session(self, scope: Message, headers: Mapping[bytes, bytes]) -> None:
        cookie, key = _cookie(headers, self._name(headers)), _text(headers, KEY_HEADER)
        if not self._sessions.admits(cookie, key, self._now()):
            raise _NO_SESSION
        text = f"{scope['method']} {scope['path']}"
        if scope["method"] != "GET" and not _DOES.fullmatch(text):
            raise Refused("the web UI cannot do this", rule="page-act", hint="use odfctl: odfctl -h")

    async def _session(self, scope: Message, headers: Mapping[bytes, bytes], receive: Receive, send: Send) -> None:
        if scope["method"] == "DELETE":
            self._check_key(headers)
            self._sessions.end(_cookie(headers, self._name(headers)))
            return await _respond(
                send, 200, b"{}", "application/json", {"set-cookie": self._set_cookie(headers, "", 0)}
            )
        if scope["method"] != "POST":
            raise Usage("a session is begun with POST", rule="route")
        token = await _token(receive)
        opened = self._sessions.begin(token, self._now())
        if opened is None and await self._is_known(token):
            opened = self._sessions.open(self._now())
        if opened is None:
            raise Refused(
                "this address was opened before, or too long ago", rule="page-token", hint="ask for another: odfctl ui"
            )
        cookie = {"set-cookie": self._set_cookie(headers, opened.cookie, int(SESSION_SECONDS))}
        return await _respond(send, 200, json.dumps({"key": opened.key}).encode(), "application/json", cookie)

    async def _is_known(self, token: str) -> bool:
        """Whether a token is in the file of tokens. Raises Refused for one that is not, Environment for a bad file."""
        tokens = self._endpoint.tokens
        return tokens is not None and await trio.to_thread.run_sync(tokens.admits, token)

    def _check_key(self, headers: Mapping[bytes, bytes]) -> None:
        if not self._sessions.admits(_cookie(headers, self._name(headers)), _text(headers, KEY_HEADER), self._now()):
            raise _NO_SESSION

    def _name(self, headers: Mapping[bytes, bytes]) -> str:
        """Returns the name of the cookie. Ports share cookies, so two nodes of one machine need two names."""
        return f"{self._secure and '__Host-'}odfd-page-{_text(headers, b'host').rpartition(':')[2]}"

    def _set_cookie(self, headers: Mapping[bytes, bytes], value: str, seconds: int) -> str:
        return f"{self._name(headers)}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{self._secure}"

    @property
    def _secure(self) -> str:
        return "; Secure" if self._endpoint.scheme == "https" else ""


def _is_asked(scope: Message) -> bool:
    """Whether a path is one of the API, and not of a file."""
    return _VERSIONED.match(scope["path"]) is not None


async def _token(receive: Receive) -> str:
    """Reads the token in a request's body. Raises Refused if there is none."""
    body, more = b"", True
    while more and len(body) <= MAX_TOKEN_BODY:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    try:
        document = json.loads(body) if len(body) <= MAX_TOKEN_BODY else None
    except ValueError:
        document = None
    if not isinstance(document, dict) or not isinstance(document.get("token"), str):
        raise Refused("this is no token", rule="page-token", hint="ask for another: odfctl ui")
    return str(document["token"])


async def _file(scope: Message, send: Send) -> None:
    if scope["method"] not in ("GET", "HEAD"):
        raise Usage("files are read with GET", rule="route")
    found = page_files().get(scope["path"])
    if found is None:
        return await _respond(send, 404, b"there is nothing here\n", "text/plain; charset=utf-8")
    return await _respond(send, 200, found.content, found.media_type)


def _guarding(send: Send) -> Send:
    """Adds headers to the API's answers that keep them from other pages and from caches."""

    async def send_guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *_headers({})]}
        await send(message)

    return send_guarded


async def _respond(send: Send, status: int, body: bytes, kind: str, more: Mapping[str, str] | None = None) -> None:
    headers = _headers({"content-type": kind, "content-length": str(len(body)), **(more or {})})
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})


def _headers(more: Mapping[str, str]) -> Iterator[tuple[bytes, bytes]]:
    yield from ((name.encode(), value.encode()) for name, value in {**_ALWAYS, **more}.items())


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")


def _cookie(headers: Mapping[bytes, bytes], name: str) -> str:
    read = SimpleCookie()
    try:
        read.load(_text(headers, b"cookie"))
    except CookieError:
        return ""
    found = read.get(name)
    return found.value if found is not None else ""
