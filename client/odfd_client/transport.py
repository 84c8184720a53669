"""Speaks HTTP/1.1 to a node, over its control socket or a URL, with one connection for each request."""

from __future__ import annotations

import errno
import http.client
import json
import os
import socket
import ssl
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlencode, urlsplit

from odfd_client.errors import Bug, Invalid, OdfdError, Refused, Unreachable, from_problem

ANSWER_SECONDS = 60.0
"""Seconds until a short answer has to begin."""
MAX_ANSWER = 256 << 20
"""Bytes of one JSON answer."""
PAGE = 5_000
"""Datasets that a node tells in one answer."""
_DATASETS = "/dataset/v1alpha1/datasets"
_STATE = "odfd/schemas/resource/v1alpha1/State"
_MOST_TOGETHER = 253
"""Descriptors that a kernel passes in one message."""
_SYSTEM_SOCKET = Path("/run/odfd/control.sock")


def socket_path(given: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> Path:
    """Returns the given path, ``ODFD_SOCKET``, the user's own daemon, the system's: the first that is set or exists."""
    named = given or environ.get("ODFD_SOCKET")
    if named:
        return Path(named)
    folders = [environ.get(name) for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME")]
    places = [Path(folder) / "odfd" / "control.sock" for folder in folders if folder]
    if environ.get("HOME"):
        places.append(Path(environ["HOME"]) / ".local" / "state" / "odfd" / "control.sock")
    places.append(_SYSTEM_SOCKET)
    return next((place for place in places if place.exists()), places[0])


def part(text: str) -> str:
    """Encodes any text as one segment of a path."""
    return quote(text, safe=":")


def is_url(text: object) -> bool:
    """Whether a node is named by a URL. Raises Invalid for a URL of neither HTTP nor Flight."""
    if not isinstance(text, str) or "://" not in text:
        return False
    scheme = text.partition("://")[0]
    if scheme not in ("http", "https", "grpc", "grpc+tls"):
        hint = "http://HOST:PORT, where its http.query is on, or grpc://HOST:PORT, where it speaks Flight"
        raise Invalid(f"a node is not reached by {scheme}://", rule="url", hint=hint)
    return True


class _Connection(http.client.HTTPConnection):
    opened: socket.socket | None = None
    """The socket, kept here as the library takes ``sock`` away if the node closes the connection after an answer."""

    def connect(self) -> None:
        super().connect()
        self.opened = self.sock


class _TlsConnection(http.client.HTTPSConnection, _Connection):
    def connect(self) -> None:
        http.client.HTTPSConnection.connect(self)
        self.opened = self.sock


class _UnixSocket(socket.socket):
    """A socket that keeps the file descriptors received with its bytes."""

    def __init__(self) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self.descriptors: list[int] = []

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        room = socket.CMSG_SPACE(4 * _MOST_TOGETHER)
        flags |= getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        count, rights, _, _ = self.recvmsg_into([memoryview(buffer)[: nbytes or None]], room, flags)
        for level, kind, data in rights:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                found = array("i")
                found.frombytes(data[: len(data) - len(data) % found.itemsize])
                self.descriptors += found
        return count


class _SocketConnection(_Connection):
    def __init__(self, path: Path, timeout: float | None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        made = _UnixSocket()
        made.settimeout(self.timeout)
        try:
            made.connect(os.fspath(self._path))
        except OSError as error:
            made.close()
            raise _why_not(self._path, error) from error
        self.sock = self.opened = made


class Exchange:
    """An answer whose head was read. ``close`` ends the node's work for it; another thread may call it."""

    def __init__(self, connection: _Connection, response: http.client.HTTPResponse, path: Path | str) -> None:
        self._connection, self._response, self._path = connection, response, path

    def exactly(self, count: int) -> bytes:
        """Reads exactly ``count`` bytes. Raises Unreachable if the answer ends before."""
        with translated_faults(self._path):
            data = self._response.read(count)
        if len(data) < count:
            raise connection_lost(self._path)
        return data

    def line(self, most: int) -> bytes:
        """Returns a line with its end. Raises Unreachable if the answer ends before."""
        with translated_faults(self._path):
            data = self._response.readline(most)
        if not data.endswith(b"\n"):
            raise connection_lost(self._path)
        return data

    def whole(self) -> bytes:
        with translated_faults(self._path):
            data = self._response.read(MAX_ANSWER + 1)
        if len(data) > MAX_ANSWER:
            raise Invalid("the answer is too large", rule="answer-size", hint="ask for less")
        return data

    def descriptors(self) -> list[int]:
        """Returns the received file descriptors, in order, which the caller has to close."""
        opened = self._connection.opened
        found = opened.descriptors if isinstance(opened, _UnixSocket) else []
        taken = found[:]
        found.clear()
        return taken

    def interrupt(self) -> None:
        """Makes a read in another thread fail as if the node had disconnected."""
        if self._connection.opened is not None:
            with suppress(OSError):  # it is closed already
                self._connection.opened.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.interrupt()  # else closing would wait for a reader in another thread
        for descriptor in self.descriptors():
            os.close(descriptor)
        self._response.close()
        self._connection.close()


class Transport:
    """Sends requests to the node at ``path``: a socket, or a URL of HTTP, with its own TLS authorities if given.

    ``token``: that of an account, for a node that answers accounts at its URL.
    """

    def __init__(self, path: Path | str, ca_file: str | os.PathLike[str] | None = None, token: str = "") -> None:
        """Raises Invalid if the file of certificates cannot be used, or a token would be sent unencrypted."""
        self.path = path
        if token and not _is_kept_to(str(path)):
            raise Invalid("a token is not sent unencrypted", rule="url", hint="https://HOST:PORT")
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._tls = None if ca_file is None else _tls(ca_file)
        self._url = urlsplit(path) if isinstance(path, str) else None

    @property
    def is_remote(self) -> bool:
        """Whether the node is at a URL, where without a token it serves only public data."""
        return self._url is not None

    def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: Mapping[str, object] | IO[bytes] | None = None,
        patience: float | None = ANSWER_SECONDS,
    ) -> Exchange:
        """Sends a request, with JSON or the bytes of a file. Raises the node's error, Unreachable, Refused."""
        target = path + ("?" + urlencode(query, doseq=True) if query else "")
        data: bytes | IO[bytes] | None
        if isinstance(body, Mapping):
            data, more = json.dumps(body, allow_nan=False).encode(), {"content-type": "application/json"}
        elif body is not None:
            data, more = body, {"content-type": "application/octet-stream", "content-length": str(_size(body))}
        else:
            data, more = None, {}
        connection = self._connection(patience)
        try:
            with translated_faults(self.path):
                connection.request(method, target, data, {**self._headers, **more})
                response = connection.getresponse()
            exchange = Exchange(connection, response, self.path)
            if response.status >= 400:
                raise _problem(exchange, response.status)
        except BaseException:
            connection.close()
            raise
        return exchange

    def _connection(self, patience: float | None) -> _Connection:
        if self._url is None:
            return _SocketConnection(Path(self.path), patience)
        host, port = self._url.hostname or "", self._url.port
        if self._url.scheme == "https":
            return _TlsConnection(host, port, timeout=patience, context=self._tls)
        return _Connection(host, port, timeout=patience)

    def get(self, path: str, query: Mapping[str, object] | None = None) -> Any:
        """Sends a GET request. Returns the JSON of the answer."""
        exchange = self.ask("GET", path, query)
        try:
            return parse_json(exchange.whole())
        finally:
            exchange.close()

    def datasets(self, page: int = PAGE) -> Iterator[Mapping[str, Any]]:
        """Yields the node's datasets by name, each with its state. ``page``: how many are asked for at a time."""
        query: dict[str, object] = {"limit": page}
        while True:
            found = self.get(_DATASETS, query)
            try:
                yield from map(_describe, found["items"])
                rest = found.get("continue")
            except (AttributeError, KeyError, TypeError) as error:
                raise Bug("the node's list of datasets is not understood", rule="answer") from error
            if rest is None:
                return
            query["continue"] = rest

    def dataset(self, ref: str) -> dict[str, Any]:
        """Returns the state of a dataset, or of a chain inside it, with its name and id. Raises NotFound."""
        found: dict[str, Any] = self.get(f"{_DATASETS}/{part(ref)}/detail")["dataset"]
        return found

    def post(self, path: str, body: Mapping[str, object] | IO[bytes], query: Mapping[str, object] | None = None) -> Any:
        """Sends a POST request. Returns the JSON of the answer."""
        exchange = self.ask("POST", path, query, body)
        try:
            return parse_json(exchange.whole())
        finally:
            exchange.close()


def _describe(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the state in a manifest of a dataset, with its name and id."""
    told = manifest["status"]["conditions"].items()
    state: Mapping[str, Any] = next((each["value"] for key, each in told if key.endswith(_STATE)), {})
    return {**state, "name": manifest["headers"]["name"], "id": manifest["spec"]["did"]}


def _size(file: IO[bytes]) -> int:
    """Returns the bytes from the place where a file is read."""
    here = file.tell()
    size = file.seek(0, os.SEEK_END) - here
    file.seek(here)
    return size


def _is_kept_to(url: str) -> bool:
    """Whether only the node can read requests to a URL: they are encrypted, or stay on this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return parts.scheme == "https" or host in ("localhost", "::1") or host.startswith("127.")


def _tls(ca_file: str | os.PathLike[str]) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # or ssl.SSLError, a subclass
        raise Invalid(
            f"no certificates can be read from {os.fspath(ca_file)}: {error}", rule="ca-file", hint="a file in PEM"
        ) from error


@contextmanager
def translated_faults(path: Path | str) -> Iterator[None]:
    """Converts connection errors within the block to errors of this package."""
    try:
        yield
    except TimeoutError as error:
        raise Unreachable(f"the node at {path} did not answer in time", rule="answer-deadline") from error
    except (http.client.HTTPException, ConnectionError, ValueError, AttributeError) as error:
        # A response that another thread closed raises the last two.
        raise connection_lost(path) from error
    except OSError as error:  # for a URL: an unknown host, or no route to it
        hint = "is its http.query on, and is this its address?"
        raise Unreachable(f"no node answers at {path}: {error}", rule="connection", hint=hint) from error


def connection_lost(path: Path | str) -> Unreachable:
    return Unreachable(
        f"the node at {path} went away in the middle of an answer",
        rule="connection",
        hint="odfctl status shows whether it is back; its log says why it stopped",
    )


def parse_json(data: bytes) -> Any:
    """Decodes JSON. Raises Bug."""
    try:
        return json.loads(data)
    except ValueError as error:
        raise Bug(f"the node's answer is not JSON: {data[:60]!r}", rule="answer") from error


def _problem(exchange: Exchange, status: int) -> OdfdError:
    try:
        problem = json.loads(exchange.whole())
    except ValueError:
        problem = None
    finally:
        exchange.close()
    if isinstance(problem, dict):
        return from_problem(problem)
    return Bug(f"the node answered {status} without saying why", rule="answer")


def _why_not(path: Path, error: OSError) -> OdfdError:
    if error.errno in (errno.EACCES, errno.EPERM):
        hint = "become a member of its group (ls -l shows which) and log in again"
        return Refused(f"you may not open the socket {path}", rule="control-access", hint=hint)
    if error.errno is None and "too long" in str(error):
        return Invalid(f"the socket path is too long: {path}", rule="socket-path-length", hint="at most 107 bytes")
    hint = "start one with `odfd run`, or name its socket: connect(PATH) or ODFD_SOCKET"
    return Unreachable(f"no node listens at {path}", rule="control-socket", hint=hint)
