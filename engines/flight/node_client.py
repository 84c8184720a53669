"""Requests rows of queries and the list of datasets from the node over its socket. HTTP/1.1.

The node is trusted, and what it says is parsed all the same. Blocking; for the threads of the server.
"""

from __future__ import annotations

import http.client
import io
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from chain.errors import Environment, Fault, Invalid, NotFound, Refused
from engines.flight.metadata import Dataset
from engines.query.frames import END, FAULT, HEAD, ROWS, FrameReader, frame, parted

ANSWER_SECONDS: Final = 60.0
"""For a short answer."""
MAX_ANSWER: Final = 256 << 20
"""Bytes of it."""
_PIECE: Final = 1 << 20
_FAMILIES: Final[dict[str, type[Fault]]] = {each.__name__: each for each in (Invalid, NotFound, Refused)}


class QueryInfo(msgspec.Struct, frozen=True, kw_only=True):
    pins: list[dict[str, Any]]
    standing: str
    standings: list[dict[str, Any]] = []
    remarks: list[str] = []
    parameters: list[str] = []


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float | None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Rows(io.RawIOBase):
    """A response: its head, then bytes of one Arrow stream. ``close`` ends the node's work for it.

    ``begin`` waits for the first rows; another thread may interrupt that.
    """

    told: QueryInfo

    def __init__(self, connection: _Connection) -> None:
        super().__init__()
        assert connection.sock is not None
        self._socket, self._connection = connection.sock, connection
        self._response: http.client.HTTPResponse | None = None

    def begin(self) -> None:
        """Reads the head. Raises the fault that the node reports, OSError, HTTPException."""
        self._response = self._connection.getresponse()
        if self._response.status >= 400:
            raise _fault(self._response.read(MAX_ANSWER))
        self._frames = self._come()
        self._rest: bytes | memoryview = b""
        kind, content = next(self._frames)
        if kind != HEAD:
            raise Environment("the node's answer is not understood", rule="flight-answer")
        self.told = msgspec.json.decode(content, type=QueryInfo)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            kind, content = next(self._frames)
            if kind == END:
                return 0
            self._rest = content
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def interrupt(self) -> None:
        """Ends the response for a reader in another thread."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if not self.closed:
            self.interrupt()
            if self._response is not None:
                self._response.close()
            self._connection.close()
        super().close()

    def _come(self) -> Iterator[tuple[bytes, bytes | memoryview]]:
        assert self._response is not None
        reader = FrameReader()
        while data := self._response.read1(_PIECE):
            for kind, whole in reader.wholes(data):
                content = parted(whole)[1]
                if kind == FAULT:
                    raise _fault(content)
                if kind in (HEAD, ROWS, END):
                    yield kind, content
        raise Environment("the answer was cut off", rule="flight-answer", hint="ask again")


class NodeSocket:
    def __init__(self, path: Path) -> None:
        self._path = path

    def query(self, body: dict[str, Any], seen: Callable[[Rows], None]) -> tuple[Rows, pa.RecordBatchReader]:
        """Runs a query; ``seen`` is called with the response before it starts. Raises the node's fault, Environment."""
        rows = Rows(self._connected("/query", body, None))
        seen(rows)
        try:
            rows.begin()
            return rows, pa.ipc.open_stream(io.BufferedReader(rows, _PIECE))
        except (OSError, http.client.HTTPException) as error:
            rows.close()
            raise _gone() from error
        except BaseException:
            rows.close()
            raise

    def passed(self, path: str, body: dict[str, Any], seen: Callable[[Rows], None]) -> Iterator[bytes]:
        """Yields the bytes of a response, or one frame with the fault of a refused request. Raises Environment."""
        connection = self._connected(path, body, None)
        rows = Rows(connection)
        seen(rows)
        try:
            response = connection.getresponse()
            if response.status >= 400:
                yield frame(FAULT, response.read(MAX_ANSWER))
            while response.status < 400 and (data := response.read1(_PIECE)):
                yield data
        except (OSError, http.client.HTTPException) as error:
            raise _gone() from error
        finally:
            rows.close()

    def datasets(self, token: str) -> list[Dataset]:
        """Lists the datasets that the token may read. Raises the node's fault, Environment."""
        connection = self._connected("/datasets", {"token": token}, ANSWER_SECONDS)
        try:
            response = connection.getresponse()
            data = response.read(MAX_ANSWER)
            if response.status >= 400:
                raise _fault(data)
            return msgspec.json.decode(data, type=list[Dataset])
        except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
            raise _gone() from error
        finally:
            connection.close()

    def _connected(self, path: str, body: dict[str, Any], patience: float | None) -> _Connection:
        connection = _Connection(self._path, patience)
        try:
            connection.request("POST", path, msgspec.json.encode(body), {"content-type": "application/json"})
        except OSError as error:
            connection.close()
            raise _gone() from error
        return connection


def _gone() -> Environment:
    return Environment("the node does not answer", rule="flight-node", hint="ask again in a while")


def _fault(data: bytes | memoryview) -> Fault:
    try:
        problem = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError:
        return _gone()
    words = {name: str(problem.get(name, "")) for name in ("rule", "hint", "place")}
    return _FAMILIES.get(str(problem.get("family")), Environment)(str(problem.get("detail", "it failed")), **words)
