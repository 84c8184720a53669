"""Requests rows of queries and the list of datasets from the node over its socket, by HTTP/1.1.

The node is trusted, but its responses are checked all the same. Blocking; used by the threads of the server.
"""

from __future__ import annotations

import http.client
import io
import socket
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from chain.errors import Environment, Fault, Invalid, NotFound, Refused
from engines.flight.metadata import ListedDataset
from engines.query.frames import END, FAULT, HEAD, AnswerFrameReader, frame, split_frame

ANSWER_SECONDS: Final = 60.0
"""Seconds for a short answer."""
MAX_ANSWER: Final = 256 << 20
"""Most bytes of a short answer."""
_PIECE: Final = 1 << 20
_BUFFER: Final = 1 << 16
"""Bytes buffered for the small pieces of an Arrow stream; larger ones are read directly to their place."""
_MOST_FILES: Final = 16
"""Most file descriptors received with one piece of an answer."""
_CLOSE_ON_EXEC: Final = socket.MSG_CMSG_CLOEXEC
_FAMILIES: Final[dict[str, type[Fault]]] = {each.__name__: each for each in (Invalid, NotFound, Refused)}


class QueryInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The head of an answer."""

    pins: list[dict[str, Any]]
    standing: str
    standings: list[dict[str, Any]] = []
    remarks: list[str] = []
    parameters: list[str] = []


class QueryEnd(msgspec.Struct, frozen=True, kw_only=True):
    rows: int


class _Socket(socket.socket):
    """A socket that keeps the file descriptors received with bytes."""

    def __init__(self) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self._files: list[io.FileIO] = []

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        into = [memoryview(buffer)[: nbytes or None]]
        count, rights, _, _ = self.recvmsg_into(into, socket.CMSG_SPACE(4 * _MOST_FILES), flags | _CLOSE_ON_EXEC)
        for level, kind, data in rights:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers = array("i")
                numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
                self._files += [io.FileIO(number, "rb") for number in numbers]
        return count

    def files(self) -> list[io.FileIO]:
        """Returns the files received since the last call."""
        found, self._files = self._files, []
        return found


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float | None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = _Socket()
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class NodeRows:
    """An answer: its head, then batches as they come through a pipe. ``close`` ends the node's work on it.

    ``begin`` waits for the first rows; another thread may interrupt that.
    """

    told: QueryInfo
    schema: pa.Schema

    def __init__(self, connection: _Connection) -> None:
        assert isinstance(connection.sock, _Socket)
        self._socket, self._connection = connection.sock, connection
        self._response: http.client.HTTPResponse | None = None
        self._pipe: io.BufferedReader | None = None

    def begin(self) -> None:
        """Reads the head, and the columns. Raises the fault that the node reports, OSError, HTTPException."""
        self._response = self._connection.getresponse()
        if self._response.status >= 400:
            raise _fault(self._response.read(MAX_ANSWER))
        self._frames = self._read_frames()
        kind, content = next(self._frames)
        pipes = self._socket.files()
        if kind != HEAD or len(pipes) != 1:
            raise Environment("the node's answer is not understood", rule="flight-answer")
        self.told = msgspec.json.decode(content, type=QueryInfo)
        self._pipe = io.BufferedReader(pipes[0], _BUFFER)
        with self._translate_faults():
            self._batches = pa.ipc.open_stream(self._pipe)
        self.schema = self._batches.schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yields the batches. Raises the fault that the answer ends with: an answer that was cut off
        never passes for a short one."""
        count = 0
        with self._translate_faults():
            for batch in self._batches:
                count += batch.num_rows
                yield batch
        if self._end().rows != count:
            raise _cut_off()

    def interrupt(self) -> None:
        """Ends the response for a reader in another thread: the node then stops writing into the pipe."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.interrupt()
        if self._pipe is not None:
            self._pipe.close()
        for file in self._socket.files():
            file.close()
        if self._response is not None:
            self._response.close()
        self._connection.close()

    @contextmanager
    def _translate_faults(self) -> Iterator[None]:
        """Raises the fault that the node reports, if the stream breaks off within it."""
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            self._end()
            raise _cut_off() from error

    def _end(self) -> QueryEnd:
        for kind, content in self._frames:
            if kind == END:
                return msgspec.json.decode(content, type=QueryEnd)
        raise _cut_off()

    def _read_frames(self) -> Iterator[tuple[bytes, bytes | memoryview]]:
        assert self._response is not None
        reader = AnswerFrameReader()
        while data := self._response.read1(_PIECE):
            for kind, whole in reader.wholes(data):
                content = split_frame(whole)[1]
                if kind == FAULT:
                    raise _fault(content)
                yield kind, content
        raise _cut_off()


class NodeSocket:
    """Sends requests to the node at a unix socket."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def query(self, body: dict[str, Any], seen: Callable[[NodeRows], None]) -> NodeRows:
        """Runs a query; ``seen`` is called with the response before it starts. Raises the node's fault, Environment."""
        rows = NodeRows(self._connect("/query", body | {"piped": True}, None))
        seen(rows)
        try:
            rows.begin()
            return rows
        except (OSError, http.client.HTTPException) as error:
            rows.close()
            raise _no_answer() from error
        except BaseException:
            rows.close()
            raise

    def pass_on(self, path: str, body: dict[str, Any], seen: Callable[[NodeRows], None]) -> Iterator[bytes]:
        """Yields the bytes of a response, or one frame with the fault if the request is refused. Raises Environment."""
        connection = self._connect(path, body, None)
        rows = NodeRows(connection)
        seen(rows)
        try:
            response = connection.getresponse()
            if response.status >= 400:
                yield frame(FAULT, response.read(MAX_ANSWER))
            while response.status < 400 and (data := response.read1(_PIECE)):
                yield data
        except (OSError, http.client.HTTPException) as error:
            raise _no_answer() from error
        finally:
            rows.close()

    def datasets(self, token: str) -> list[ListedDataset]:
        """Lists the datasets that the token may read. Raises the node's fault, Environment."""
        connection = self._connect("/datasets", {"token": token}, ANSWER_SECONDS)
        try:
            response = connection.getresponse()
            data = response.read(MAX_ANSWER)
            if response.status >= 400:
                raise _fault(data)
            return msgspec.json.decode(data, type=list[ListedDataset])
        except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
            raise _no_answer() from error
        finally:
            connection.close()

    def _connect(self, path: str, body: dict[str, Any], patience: float | None) -> _Connection:
        connection = _Connection(self._path, patience)
        try:
            connection.request("POST", path, msgspec.json.encode(body), {"content-type": "application/json"})
        except OSError as error:
            connection.close()
            raise _no_answer() from error
        return connection


def _cut_off() -> Environment:
    return Environment("the answer was cut off", rule="flight-answer", hint="ask again")


def _no_answer() -> Environment:
    return Environment("the node does not answer", rule="flight-node", hint="ask again in a while")


def _fault(data: bytes | memoryview) -> Fault:
    try:
        problem = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError:
        return _no_answer()
    words = {name: str(problem.get(name, "")) for name in ("rule", "hint", "place")}
    return _FAMILIES.get(str(problem.get("family")), Environment)(str(problem.get("detail", "it failed")), **words)
