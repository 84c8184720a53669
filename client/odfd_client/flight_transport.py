"""Connects to a node by Arrow Flight: the same requests and frames as over HTTP, as actions of its Flight server."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.flight as flight

from odfd_client.answer_stream import FAULT, HEADER
from odfd_client.errors import Bug, NotFound, Refused, Unreachable, from_problem
from odfd_client.transport import ANSWER_SECONDS, PAGE, Exchange, Transport, connection_lost, parse_json

DATASETS, QUERY = "odfd.datasets", "odfd.query"


class FlightExchange(Exchange):
    """Reads an answer from the results of a Flight action."""

    def __init__(self, client: flight.FlightClient, results: Iterator[flight.Result], path: str) -> None:
        self._client, self._results, self._path = client, results, path
        self._rest = memoryview(b"")

    def exactly(self, count: int) -> bytes:
        """Reads exactly ``count`` bytes. Raises Unreachable if the answer ends before."""
        pieces = []
        while count:
            while not self._rest:
                with _translated_faults(str(self._path)):
                    result = next(self._results, None)
                if result is None:
                    raise connection_lost(self._path)
                self._rest = memoryview(result.body)
            piece, self._rest = self._rest[:count], self._rest[count:]
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        self._results = iter(())
        self._client.close()


def _other(path: str) -> Refused:
    hint = "connect() to the socket, or to https://HOST:PORT"
    return Refused(f"{path} is not told over Flight", rule="flight-question", hint=hint)


class FlightTransport(Transport):
    """Connects to ``grpc://HOST:PORT`` or ``grpc+tls://HOST:PORT``; a token grants the owner's access."""

    def __init__(self, url: str, token: str = "", ca_file: str | os.PathLike[str] | None = None) -> None:
        super().__init__(url, ca_file)
        self._token = token
        self._roots = {} if ca_file is None else {"tls_root_certs": Path(ca_file).read_bytes()}

    def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: Mapping[str, object] | IO[bytes] | None = None,
        patience: float | None = ANSWER_SECONDS,
    ) -> Exchange:
        """Sends a query, the only request over Flight besides ``get``. Raises Refused, Unreachable."""
        if (method, path) != ("POST", "/node/v1alpha1/query") or query or not isinstance(body, Mapping):
            raise _other(path)
        return self._perform(QUERY, json.dumps(body, allow_nan=False).encode(), patience)

    def get(self, path: str, _query: Mapping[str, object] | None = None) -> Any:
        """Raises Refused: only datasets and queries are told over Flight."""
        raise _other(path)

    def datasets(self, page: int = PAGE) -> Iterator[Mapping[str, Any]]:  # noqa: ARG002  see above
        """Yields the node's datasets, which come all at once. Raises Refused, Unreachable."""
        exchange = self._perform(DATASETS, b"", ANSWER_SECONDS)
        try:
            with _translated_faults(str(self.path)):
                data = b"".join(result.body.to_pybytes() for result in exchange._results)
        finally:
            exchange.close()
        if data.startswith(FAULT):
            raise from_problem(parse_json(data[HEADER.size :]))
        value = parse_json(data)
        if not isinstance(value, list):
            raise Bug("the node's list of datasets is not understood", rule="answer")
        yield from value

    def dataset(self, ref: str) -> dict[str, Any]:
        """Returns what the node tells of a dataset. Raises NotFound, Refused, Unreachable."""
        found = next((dataset for dataset in self.datasets() if ref in (dataset.get("name"), dataset.get("id"))), None)
        if found is None:
            raise NotFound(f"no dataset {ref!r} here", rule="query-dataset", hint="c.datasets() lists them")
        return dict(found)

    def _perform(self, kind: str, body: bytes, patience: float | None) -> FlightExchange:
        headers = [(b"authorization", f"Bearer {self._token}".encode())] if self._token else []
        with _translated_faults(str(self.path)):
            client = flight.connect(str(self.path), **self._roots)
            try:
                options = flight.FlightCallOptions(headers=headers, timeout=patience)
                results = iter(client.do_action(flight.Action(kind, body), options))
            except BaseException:
                client.close()
                raise
        return FlightExchange(client, results, str(self.path))


@contextmanager
def _translated_faults(path: str) -> Iterator[None]:
    """Converts errors of the connection within the block to errors of this package."""
    try:
        yield
    except (flight.FlightUnauthenticatedError, flight.FlightUnauthorizedError) as error:
        reason = str(error).partition(". Detail:")[0]
        raise Refused(reason, rule="flight-token", hint="connect(url, token=…), of the node's flight.tokens") from error
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition(". gRPC client debug")[0][:300]
        raise Unreachable(
            f"no node answers at {path}: {reason}", rule="connection", hint="flight.listen says where"
        ) from error
