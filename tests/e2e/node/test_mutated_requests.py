"""Mutated requests over HTTP and Flight SQL to a daemon: each is answered in words or ends its connection, and
afterwards the same processes answer.

``ODFD_FUZZ`` says how many are sent, ``ODFD_FUZZ_SEED`` which. A question that is well formed costs a process of the
node: of those one in fifty is asked.
"""

from __future__ import annotations

import json
import os
import random
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from chain.errors import Invalid
from engines.flight.messages import CLASSES, pack_any, unpack_any
from engines.flight.server import ACTIONS
from worlds.eventually import PATIENCE
from worlds.manifests import ROOT
from worlds.mutation import walk

pytestmark = pytest.mark.e2e

MUTANTS = int(os.environ.get("ODFD_FUZZ", "0")) or 400
SEED = int(os.environ.get("ODFD_FUZZ_SEED", "1"))
ASKED = 50
ASKING = ("CommandStatementQuery", "TicketStatementQuery", "ActionCreatePreparedStatementRequest")
"""Messages of which a process of the node is wanted."""
AT_ONCE = 2000
"""Mutants of one walk."""
Show = Callable[[bytes], bool]


def place_of(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname
    assert parts.port
    return parts.hostname, parts.port


def exchanged(place: tuple[str, int], raw: bytes, *, last: bool = False) -> bytes:
    """All that is answered to these bytes, until the other end closes. ``last``: it is told that no more will come."""
    said = []
    with socket.create_connection(place, PATIENCE) as line:
        with suppress(OSError):  # it may close before all has come
            line.sendall(raw)
            if last:
                line.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while data := line.recv(1 << 16):
                said.append(data)
    return b"".join(said)


def recorded(place: tuple[str, int], speak: Callable[[str], object]) -> bytes:
    """What a client of gRPC says."""
    heard = bytearray()

    def passed(source: socket.socket, target: socket.socket, kept: bytearray) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                kept += data
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        speaking = threading.Thread(target=speak, args=(f"grpc://127.0.0.1:{listener.getsockname()[1]}",))
        speaking.start()
        outside, _ = listener.accept()
        with outside, socket.create_connection(place) as inside:
            back = threading.Thread(target=passed, args=(inside, outside, bytearray()))
            back.start()
            passed(outside, inside, heard)
            back.join(PATIENCE)
        speaking.join(PATIENCE)
    return bytes(heard)


class Sent:
    """Counts what is sent, and thins out what is well formed."""

    def __init__(self, seed: int) -> None:
        self.lot, self.count, self.seed = random.Random(seed), 0, seed
        self.answers: Counter[str] = Counter()

    def until(
        self, count: int, parents: list[bytes], asks: Callable[[bytes], bool], send: Callable[[bytes], str]
    ) -> None:
        def shown(raw: bytes) -> bool:
            if asks(raw) and self.lot.randrange(ASKED):
                return True
            self.count += 1
            answer = send(raw)
            self.answers[answer] += 1
            return answer == "answered"

        goal = self.count + count
        while self.count < goal:
            self.seed += 1
            walk(parents, min(AT_ONCE, goal - self.count), self.seed, shown)


def is_question(raw: bytes) -> bool:
    """Of HTTP."""
    head, _, body = raw.partition(b"\r\n\r\n")
    if re.match(rb"GET /+(query\?|[^ ]*tail)", head):
        return True
    with suppress(ValueError, RecursionError):
        said = json.loads(body)
        return isinstance(said, dict) and "query" in said
    return False


def http_of(target: str, body: bytes | None = None) -> bytes:
    method, length = ("GET", 0) if body is None else ("POST", len(body))
    head = f"{method} {target} HTTP/1.1\r\nhost: node\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    return head.encode("latin-1") + (body or b"")


def mutated_http(place: tuple[str, int], dataset: str, sent: Sent, count: int) -> None:
    def send(raw: bytes, *, last: bool = True) -> str:
        said = exchanged(place, raw, last=last)
        assert b"Traceback" not in said, raw
        if not said:
            return "closed"
        status = re.match(rb"HTTP/1\.1 ([2-5]\d\d)[ \r]", said)
        assert status, (raw, said[:200])
        assert status[1] != b"500", (raw, said)
        return "answered" if status[1] < b"300" else status[1].decode()

    body = json.dumps({
        "query": "select 1", "queryDialect": "SqlDataFusion", "dataFormat": "JsonAoS", "include": ["Input"], "skip": 0,
        "datasets": [{"id": dataset, "alias": "x", "blockHash": None}], "limit": 9, "parameters": {"a": [1]},
    }).encode()  # fmt: skip
    verify = json.dumps({
        "input": {"query": "select 1", "datasets": [{"id": dataset, "alias": "x", "blockHash": "f1620"}]},
        "subQueries": [], "commitment": {"inputHash": "f1620", "outputHash": "f1620", "subQueriesHash": "f1620"},
        "proof": {"type": "Ed25519Signature2020", "verificationMethod": dataset, "proofValue": "u00"},
    }).encode()  # fmt: skip
    bodies = {"/query": [body, b'{"query":"select 1"}'], "/verify": [verify], "/node/v1alpha1/query": [body]}
    for target, parents in bodies.items():
        sent.until(
            count // 4,
            parents,
            lambda raw: is_question(http_of("/", raw)),
            lambda raw, target=target: send(http_of(target, raw), last=False),  # type: ignore[misc]
        )
    targets = (
        "/cities/metadata?include=seed,vocab,schema&schemaFormat=ArrowJson",
        "/cities/tail?limit=2",
        "/query?query=select%201&include=input&skip=1",
        "/dataset/v1alpha1/datasets/cities/detail",
        "/cities/refs/head",
        "/",
    )
    whole = [*map(http_of, targets), http_of("/query", body), http_of("/verify", verify)]
    sent.until(count // 4, whole, is_question, send)


def is_flight_question(raw: bytes) -> bool:
    with suppress(Invalid):
        return unpack_any(raw)[0] in ASKING
    return False


def mutated_flight(url: str, sent: Sent, count: int) -> None:
    client = flight.connect(url)
    rows = pa.table({"1": ["x"]})

    def call(raw: bytes) -> None:
        header = bytes(byte for byte in raw[:60] if 0x20 <= byte < 0x7F)
        headers = [(b"authorization", b"Bearer " + header)] if not sent.lot.randrange(5) else []
        options = flight.FlightCallOptions(timeout=PATIENCE, headers=headers)
        descriptor = flight.FlightDescriptor.for_command(raw)
        match sent.lot.randrange(5):
            case 0:
                client.get_flight_info(descriptor, options)
            case 1:
                client.get_schema(descriptor, options)
            case 2:
                client.do_get(flight.Ticket(raw), options).read_all()
            case 3:
                writer, _ = client.do_put(descriptor, rows.schema, options)
                with writer:
                    writer.write_table(rows)
            case _:
                kind = sent.lot.choice([*ACTIONS, header.decode() or "x"])
                list(client.do_action(flight.Action(kind, raw), options))

    def send(raw: bytes) -> str:
        try:
            call(raw)
        except flight.FlightTimedOutError:
            raise
        except pa.ArrowException as error:
            return type(error).__name__ + " with a trace" * ("Traceback" in str(error))
        return "answered"

    made = pack_any("ActionCreatePreparedStatementRequest", query="select ?")
    commands = [
        pack_any("CommandStatementQuery", query="select 1", transaction_id=b"x"),
        pack_any("CommandPreparedStatementQuery", prepared_statement_handle=b"0123456789abcdef"),
        pack_any("CommandGetTables", table_types=["TABLE"], table_name_filter_pattern="c%\\_", include_schema=True),
        pack_any("CommandGetSqlInfo", info=[1, 2, 507]),
        pack_any("CommandGetXdbcTypeInfo", data_type=12),
        pack_any("CommandGetDbSchemas", db_schema_filter_pattern="c%"),
        pack_any("CommandGetPrimaryKeys", table="cities", db_schema="current"),
        pack_any("TicketStatementQuery", statement_handle=b'{"sql":"select 1","parameters":null,"pins":[],"held":"a"}'),
        pack_any("ActionClosePreparedStatementRequest", prepared_statement_handle=b"0123456789abcdef"),
        pack_any("ActionCancelQueryRequest", info=client.get_flight_info(
            flight.FlightDescriptor.for_command(pack_any("CommandGetSqlInfo", info=[1]))).serialize()),
        CLASSES["CancelFlightInfoRequest"](info=b"info").SerializeToString(),
        b'{"sql":"select 1","parameters":[1],"pins":[]}', made,
    ]  # fmt: skip
    with client:
        sent.until(count * 4 // 5, commands, is_flight_question, send)
    raws = [recorded(place_of(url), speaker(command)) for command in commands[2:5]]

    def spoken(raw: bytes) -> str:
        return "frames" if exchanged(place_of(url), raw, last=True) else "closed"

    sent.until(count // 5, raws, lambda _: False, spoken)


def speaker(command: bytes) -> Callable[[str], object]:
    def speak(url: str) -> None:
        with flight.connect(url) as client:
            client.get_flight_info(flight.FlightDescriptor.for_command(command))

    return speak


def children(pid: int) -> Iterator[int]:
    """Of a process, those that serve Flight SQL."""
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            words = (each / "cmdline").read_bytes().split(b"\0")
            parent = int((each / "stat").read_text().rpartition(")")[2].split()[1])
            if b"engines.flight" in words and parent == pid:
                yield int(each.name)


def test_a_node_outlives_mutated_requests(make_daemon: Callable[..., Any]) -> None:
    """Attack T-BYTES-01: mutated requests to a daemon, and mutated bytes of HTTP and gRPC.

    Defence: each gets an error or the end of its connection; afterwards the same processes run and answer.
    """
    doors = {"ODFD_HTTP_LISTEN": "127.0.0.1:0", "ODFD_HTTP_QUERY": "true", "ODFD_FLIGHT_LISTEN": "127.0.0.1:0"}
    daemon = make_daemon(**doors, small=True)
    daemon.start()
    (daemon.folder / "m.yaml").write_text(ROOT)
    (daemon.folder / "a.csv").write_text("event_time,city,population\n2024-01-01T00:00:00Z,Graz,1\n")
    daemon.ask("apply", "-f", str(daemon.folder / "m.yaml"))
    daemon.ask("pull", "cities")
    daemon.ask("publish", "cities")
    status = daemon.ask("status")
    (url,), (flights,) = status["http"], status["flight"]
    (dataset,) = (each["id"] for each in daemon.datasets())
    assert daemon.process is not None
    pid, serving = daemon.process.pid, set(children(daemon.process.pid))
    assert len(serving) == 1
    sent = Sent(SEED * 1_000_000)
    mutated_http(place_of(url), dataset, sent, MUTANTS // 2)
    mutated_flight(flights, sent, MUTANTS - MUTANTS // 2)
    print(f"{sent.count} requests: {dict(sent.answers.most_common())}")
    assert sent.count >= MUTANTS - 10
    assert sent.answers["answered"] < sent.count // 2
    assert not any("trace" in each for each in sent.answers)
    said = exchanged(place_of(url), http_of("/query", b'{"query":"select count(*) n from cities"}'))
    assert b'"n":' in said, said
    with flight.connect(flights) as client:
        asked = flight.FlightDescriptor.for_command(pack_any("CommandStatementQuery", query="select 7 as n"))
        info = client.get_flight_info(asked)
        assert client.do_get(info.endpoints[0].ticket).read_all().to_pylist() == [{"n": 7}]
    assert (daemon.process.pid, set(children(pid))) == (pid, serving)
    assert "Traceback" not in daemon.told()
    assert daemon.stop() == 0
