"""Calls the control API. Imports little, so that ``odfctl`` starts quickly.

One connection a request. ``odfd.control.calls`` makes the calls, each with the type of its answer. An ``Answer`` also
holds the JSON as received, which ``-o json`` prints, with fields of a newer daemon that the types here lack. A problem
is raised as the fault that it describes.

``msgspec`` and the types are loaded when a value is first used: ``ask`` and ``stream_json`` take and give JSON alone,
for a command that asks before it loads what it shows.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Generic, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

from chain.errors import Environment, Invalid, Refused
from odfd.control import wire
from odfd.control.exchange import CutOff, Exchange
from odfd.errors import Bug, Unreachable, Usage, from_problem

if TYPE_CHECKING:
    from odfd.control.remote_node import RemoteNode

ANSWER_SECONDS: Final = 60.0
"""Most seconds until an answer begins. Longer work is a task, which is followed instead."""
SILENT_SECONDS: Final = 5.0
"""Seconds without an answer after which a person is told what is waited for."""
MAX_ANSWER: Final = 256 * 1024 * 1024
"""Largest answer held in memory, in bytes."""
MAX_LINE: Final = 16 * 1024 * 1024

Query = Mapping[str, object]
Body: TypeAlias = "wire.Request | Sequence[wire.Request] | Mapping[str, object]"
"""One or several requests, or their JSON."""
JSON: Final = "application/json"
OCTETS: Final = "application/octet-stream"
MANIFESTS: Final = "application/vnd.odfd.manifests+json"
"""Media type of a list of texts of manifests with their names."""
T = TypeVar("T")


class Answer(Generic[T]):
    """A response of the daemon."""

    __slots__ = ("sent", "value")

    def __init__(self, value: T, sent: Any) -> None:
        self.value = value
        self.sent = sent
        """The JSON that ``value`` was decoded from, with the fields that its type does not have."""

    @classmethod
    def of(cls, sent: Any, kind: type[T]) -> Answer[T]:
        """Decodes an answer. Raises Bug if ``sent`` is not of type ``kind``."""
        wire.import_msgspec()
        import msgspec

        try:
            return cls(msgspec.convert(sent, kind), sent)
        except msgspec.ValidationError as error:
            raise Bug(
                f"the daemon's answer is not of the type {getattr(kind, '__name__', kind)}: {error}",
                rule="answer-type",
                hint="odfctl and the daemon may be of different versions: compare odfctl --version with odfctl status",
            ) from error


class ApiCall(Generic[T]):
    """A call of an operation. ``odfd.control.calls`` makes them."""

    __slots__ = ("kind", "media_type", "method", "path", "query", "request")

    def __init__(
        self, method: str, path: str, kind: Callable[[], type[T]], request: Body | None = None,
        query: Query | None = None, media_type: str = JSON,
    ) -> None:  # fmt: skip
        """``kind``: loads the type of the answer. ``query``: parameters; one that is ``None`` is not sent."""
        self.method, self.path, self.kind, self.request, self.media_type = method, path, kind, request, media_type
        said = {} if query is None else {key: value for key, value in query.items() if value is not None}
        self.query = {key: "true" if value is True else value for key, value in said.items() if value is not False}


class ControlClient:
    """Calls the daemon that listens at ``path``. Methods raise the fault that the daemon reports, or Unreachable."""

    def __init__(
        self,
        path: Path,
        account: str = "",
        remote: RemoteNode | None = None,
        told: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Sets the node. ``account``: name or id to act as, by default the user's own. ``remote``: a node over TCP.

        ``told`` gets a sentence for people while the node does not answer.
        """
        self._told = told
        self._place: Path | RemoteNode = remote or path
        self.path = remote.url if remote is not None else path
        self._acting = {"odfd-account": account} if account else {}
        if remote is not None:
            self._acting |= remote.headers

    def do(self, call: ApiCall[T]) -> Answer[T]:
        """Performs a call. The type of the answer is loaded while the daemon works."""
        with self._exchange(call, meanwhile=call.kind) as answer:
            return Answer.of(_parse(answer.whole(MAX_ANSWER)), call.kind())

    def ask(self, call: ApiCall[Any]) -> Any:
        """Performs a call; returns the JSON of the response."""
        return _parse(self.raw(call))

    def raw(self, call: ApiCall[Any]) -> bytes:
        with self._exchange(call) as answer:
            return answer.whole(MAX_ANSWER)

    def download(self, call: ApiCall[bytes], out: BinaryIO) -> int:
        """Writes the bytes of a response to ``out`` as they arrive; returns their number."""
        total = 0
        with self._exchange(call) as answer:
            for data in answer.chunks():
                out.write(data)
                total += len(data)
        return total

    def send(self, call: ApiCall[T], source: BinaryIO) -> Answer[T]:
        """Performs a call whose body is the bytes of ``source``."""
        with self._exchange(call, source) as answer:
            return Answer.of(_parse(answer.whole(MAX_ANSWER)), call.kind())

    def stream(self, call: ApiCall[T], begun: Callable[[], None] | None = None) -> Generator[Answer[T], None, None]:
        """Yields values of an NDJSON response as they arrive; faults as of ``stream_json``."""
        for sent in self.stream_json(call, begun):
            yield Answer.of(sent, call.kind())

    def stream_json(self, call: ApiCall[Any], begun: Callable[[], None] | None = None) -> Generator[Any, None, None]:
        """Yields the JSON of each line of an NDJSON response as it arrives.

        Raises the fault in its last line, if there is one. A daemon that stops may end the stream regularly; a caller
        that expects more raises ``lost_connection()``. ``begun`` is called when the daemon has accepted the request.
        """
        with self._exchange(call, patience=None) as answer:
            if begun is not None:
                begun()
            for line in answer.lines(MAX_LINE):
                sent = _parse(line)
                if isinstance(sent, dict) and set(sent) == {"problem"}:
                    raise from_problem(sent["problem"])
                yield sent

    @contextlib.contextmanager
    def frames(
        self, call: ApiCall[bytes], meanwhile: Callable[[], object] | None = None
    ) -> Iterator[Iterator[tuple[bytes, bytes]]]:
        """Yields an iterator over the frames of an answer; the fault that ends the answer is raised.

        Leaving the block earlier cancels the daemon's work for it. ``meanwhile`` is called while the daemon works.
        """
        with self._exchange(call, patience=None, meanwhile=meanwhile) as answer:
            yield self._read_frames(answer)

    def _read_frames(self, answer: Exchange) -> Iterator[tuple[bytes, bytes]]:
        from engines.query.frames import END, FAULT, AnswerFrameReader

        reader = AnswerFrameReader()
        for data in answer.chunks():
            for kind, content in reader.feed(data):
                if kind == FAULT:
                    raise from_problem(_parse(content))
                yield kind, content
                if kind == END:
                    return
        raise self.lost_connection()

    def lost_connection(self) -> Unreachable:
        return Unreachable(
            f"the daemon at {self.path} went away in the middle of an answer",
            rule="connection",
            hint="odfctl status shows whether it is back; its log says why it stopped",
        )

    @contextlib.contextmanager
    def _exchange(
        self,
        call: ApiCall[Any],
        source: BinaryIO | None = None,
        patience: float | None = ANSWER_SECONDS,
        meanwhile: Callable[[], object] | None = None,
    ) -> Iterator[Exchange]:
        """Sends a request; yields the exchange with the head of the answer read.

        ``source``: the body, in place of the call's. ``patience``: most seconds to wait for bytes; ``None``: any.
        """
        target = call.path + ("?" + urlencode(call.query, doseq=True) if call.query else "")
        body = source if source is not None or call.request is None else _encode(call.request)
        headers = {} if body is None else {"content-type": call.media_type if source is None else OCTETS}
        connection = _connect(self._place, patience)
        try:
            exchange = Exchange(connection)
            exchange.send(call.method, target, {**self._acting, **headers}, body)
            if meanwhile is not None:
                meanwhile()
            is_query = patience is None and call.method == "POST"  # it takes the time that it takes
            if not is_query and not select.select([connection], [], [], SILENT_SECONDS)[0]:
                self._told(f"no answer from the daemon at {self.path} yet; waiting for it")
            status = exchange.begin()
            if status >= 400:
                raise from_problem(_problem(exchange, status))
            yield exchange
        except BrokenPipeError:
            raise  # of the caller's output (odfctl sql … | head): reading what the daemon says raises none
        except TimeoutError as error:
            raise Unreachable(
                f"the daemon at {self.path} did not answer within {ANSWER_SECONDS:g} s",
                rule="answer-deadline",
                hint="its log shows its work; a stopped process continues by: kill -CONT PID",
            ) from error
        except (CutOff, ConnectionError) as error:
            raise self.lost_connection() from error
        finally:
            connection.close()


def _connect(path: Path | RemoteNode, patience: float | None) -> socket.socket:
    if not isinstance(path, Path):
        return path.connect(patience)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(patience)
    try:
        connection.connect(os.fspath(path))
    except OSError as error:
        connection.close()
        raise _why_not(path, error) from error
    return connection


def _why_not(path: Path, error: OSError) -> Unreachable | Refused | Environment | Invalid:
    if error.errno in (errno.EACCES, errno.EPERM):
        return Refused(
            f"you may not open the socket {path}",
            rule="control-access",
            hint=f"{_join_group(path)} and log in again, or use sudo",
        )
    if path.exists() and not path.is_socket():
        return Invalid(
            f"{path} is not a socket",
            rule="control-socket",
            hint="a daemon started with --state DIR listens at DIR/control.sock; name that with --socket PATH",
        )
    if error.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTSOCK):
        return Unreachable(
            f"no daemon listens at {path}",
            rule="control-socket",
            hint="start one with `odfd run`, or name its socket with --socket PATH or ODFD_SOCKET",
        )
    if error.errno is None and "too long" in str(error):
        return Invalid(f"the socket path is too long: {path}", rule="socket-path-length", hint="at most 107 bytes")
    return Unreachable(f"cannot reach the daemon at {path}: {error.strerror or error}", rule="control-socket")


def _join_group(path: Path) -> str:
    """Formats how a user gets the right to open the socket; a folder that they may not enter hides its group."""
    import grp

    with contextlib.suppress(OSError, KeyError):
        return f"become a member of the group {grp.getgrgid(path.stat().st_gid).gr_name} (adduser USER GROUP)"
    return "become a member of its group (ls -l shows which)"


def part(text: str) -> str:
    """Encodes a name, or ``account/name``, as one segment of a path. Raises Usage for what would be another path."""
    halves = text.split("/")
    if not text or len(halves) > 2 or (len(halves) == 2 and not all(halve.strip(".") for halve in halves)):
        said = f"{text[:100]!r} is no name: it has a slash" if text else "an empty name names nothing"
        raise Usage(said, hint="odfctl get KIND lists what there is")
    return quote(text, safe=":")


def _problem(answer: Exchange, status: int) -> dict[str, Any]:
    try:
        problem = json.loads(answer.whole(MAX_ANSWER))
    except ValueError:
        problem = None
    if isinstance(problem, dict):
        return problem
    return {"family": "Bug", "detail": f"the daemon answered {status} without saying why", "rule": "answer"}


def _encode(body: Body) -> bytes:
    if isinstance(body, Mapping):
        return json.dumps(body).encode()
    import msgspec

    return msgspec.json.encode(body)


def _parse(data: bytes) -> Any:
    try:
        return json.loads(data) if data else None
    except ValueError as error:
        raise Bug(f"the daemon's answer is not JSON: {data[:60]!r}", rule="answer") from error
