"""Strangers against daemons with their own settings: peers that take too much, and requests that are mutated."""

from __future__ import annotations

import json
import os
import random
import re
import socket
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight as flight
import pytest
import trio

from chain.errors import Invalid
from engines.flight.messages import CLASSES, pack_any, unpack_any
from engines.flight.server import ACTIONS
from odfd.cli.kinds import with_state
from p2p.errors import PeerFault
from p2p.host.host import Host, open_host
from p2p.host.stream import BrokenStream, Stream
from p2p.ports import PeerId
from p2p.wire.circuit import CircuitStatus, HopKind, HopMessage
from p2p.wire.reach import LEAST_DATA, DialDataRequest, ResponseStatus
from worlds.eventually import PATIENCE, until
from worlds.hostile import from_address, joins, processor_seconds, subscriptions
from worlds.hostile_members import PORT, asks_for_dial, connected, hop, reserves
from worlds.manifests import ROOT
from worlds.mutation import walk
from worlds.nat_world import Internet, NoNat, Place, open_internet

# Programs of a few dozen lines against a daemon with its own settings: what they take of it is bounded. Many
# addresses are those of 127.0.0.0/8. What is measured is the processor's time of the daemon, never the wall's.


pytestmark = pytest.mark.e2e
NETWORK = "hostile"
HEADS = f"/odf/1/{NETWORK}/heads"
MESHSUB = "/meshsub/1.2.0"


async def swallow(stream: Stream, _peer: PeerId) -> None:
    async for _ in stream:
        pass


def attacked(daemon: Any, attack: Callable[[Host, PeerId, str], Awaitable[None]]) -> float:
    """Seconds of the processor that an attack by a stranger costs; afterwards the daemon answers."""
    daemon.ask("network", "join", NETWORK)
    address = daemon.ask("status")["listen"][0]

    async def mount() -> float:
        with trio.fail_after(PATIENCE):
            async with open_host(b"e" * 32) as eve:
                for version in ("1.1.0", "1.2.0"):
                    eve.set_handler(f"/meshsub/{version}", swallow)
                peer = await eve.connect(address)
                await eve.ping(peer)
                before = processor_seconds(daemon.process.pid)
                with suppress(BrokenStream):
                    await attack(eve, peer, address)
                return before

    before = trio.run(mount)
    assert daemon.lives
    return processor_seconds(daemon.process.pid) - before


def test_two_frames_of_gossip_cost_a_node_a_moment(make_daemon: Callable[..., Any]) -> None:
    """Attack T-PEER-04: costly gossip frames against a daemon as installed.

    Defence: two frames take much less time than its watchdog allows.

    25 seconds of a node's loop, longer than systemd waits for a sign of life.
    """

    async def join_and_leave(eve: Host, peer: PeerId, _address: str) -> None:
        stream = await eve.open_stream(peer, MESHSUB)
        await stream.send_all(joins(HEADS, graft=True))
        for _ in range(2):
            await stream.send_all(subscriptions(HEADS, 2400))
        await eve.ping(peer)

    daemon = make_daemon(listens=True, small=True).start()
    assert attacked(daemon, join_and_leave) < 4.0


def test_silent_connections_and_free_keys_keep_nobody_out_of_a_node(make_daemon: Callable[..., Any]) -> None:
    """Attack T-PEER-03: silent connections of many addresses, and a key for each connection, against a daemon as
    installed.

    Defence: an honest peer connects, and the daemon uses little processor time.

    Sixty-three connections that say nothing shut everyone out; so did sixty-four keys.
    """

    async def crowd(eve: Host, peer: PeerId, address: str) -> None:
        port = int(address.split("/")[4])
        async with AsyncExitStack() as stack:
            for number in range(20):
                other = await stack.enter_async_context(open_host(bytes([number + 1]) * 32))
                with from_address("127.0.1.1"), suppress(PeerFault):
                    await other.connect(address)
            for number in range(160):
                source = f"127.0.{2 + number % 4}.{1 + number // 4}"
                stream = await trio.open_tcp_stream("127.0.0.1", port, local_address=source)
                stack.push_async_callback(stream.aclose)
            honest = await stack.enter_async_context(open_host(b"h" * 32))
            with from_address("127.0.9.9"):
                await honest.connect(address)
            await honest.ping(peer)

    daemon = make_daemon(listens=True, small=True).start()
    assert attacked(daemon, crowd) < 6.0


# Daemons in namespaces whose addresses count as of the Internet, attacked by strangers: honest service goes on.


TOWN = "town"


@pytest.fixture
def internet() -> Iterator[Internet]:
    try:
        with open_internet() as net:
            yield net
    except NoNat as reason:
        pytest.skip(f"no namespaces can be made here: {reason}")


def started(make: Callable[..., Any], name: str, place: Place, *bootstrap: str, **settings: str) -> Any:
    daemon = make(name, ODFD_NODE_NAME=name, ODFD_P2P_LISTEN=f"/ip4/0.0.0.0/tcp/{PORT}", **settings)
    daemon.small, daemon.inside = True, place.namespaces
    daemon.start()
    daemon.ask("network", "join", TOWN, *(word for each in bootstrap for word in ("--bootstrap", each)))
    return daemon


def address_of(daemon: Any) -> str:
    return str(next(each for each in daemon.ask("status")["listen"] if each.startswith("/ip4/20.")))


def published(daemon: Any) -> str:
    (daemon.folder / "1.csv").write_text("event_time,city,population\n2024-01-01T00:00:00Z,c1,7\n")
    (daemon.folder / "m.yaml").write_text(ROOT)
    daemon.ask("apply", "-f", str(daemon.folder / "m.yaml"))
    daemon.ask("pull", "cities")
    return str(daemon.dataset("cities")["id"])


def sources_at(place: Place, blocks: int, hosts: int) -> list[str]:
    """More addresses of a place: so many in each of so many /24s; the first is the one that it has."""
    operator = place.address.rpartition(".0.1")[0]
    found = [f"{operator}.{block}.{host}" for block in range(blocks) for host in range(1, hosts + 1)]
    for each in found[1:]:
        place.run("ip", "address", "add", f"{each}/8", "dev", "wan")
    return found


@contextmanager
def counting(place: Place) -> Iterator[Counter[str]]:
    """Counts connections, and the bytes that come over them before anything is answered; then closes them."""
    seen, ready, ends = Counter[str](), Event(), list[Callable[[], None]]()

    async def heard(stream: trio.SocketStream) -> None:
        seen["dials"] += 1
        async with stream:
            with suppress(trio.BrokenResourceError):
                seen["bytes"] += len(await stream.receive_some())

    async def listen() -> None:
        token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_tcp, heard, PORT)
            ends.append(lambda: trio.from_thread.run_sync(nursery.cancel_scope.cancel, trio_token=token))
            ready.set()

    listening = place.within(listen)
    assert ready.wait(PATIENCE)
    try:
        yield seen
    finally:
        ends[0]()
        listening.result(PATIENCE)


@pytest.mark.slow
def test_squatters_and_hogs_of_a_relay_leave_room_for_others(
    internet: Internet, make_daemon: Callable[..., Any]
) -> None:
    """Attack T-REACH-02: squatting on reservations, and circuits that flood, at a daemon with its own settings, while
    two others need it.

    Defence: eight reservations of a line and sixteen of a block; the flood has its share of the bytes, and a node
    behind a router mirrors through the relay meanwhile.

    One operator's keys reserve and hold circuits to the limits of its addresses, and send what nobody reads.
    """
    relay = started(make_daemon, "relay", internet.public(), ODFD_P2P_RELAY="true")
    there = address_of(relay)
    home = started(make_daemon, "home", internet.home("symmetric"), there, ODFD_P2P_RELAYS=there)
    dataset, target = published(home), PeerId(home.ask("status")["peerId"])
    until(lambda: relay.ask("status")["reserved"] == 1)
    mallory = internet.public()
    sources = sources_at(mallory, 1, 10)
    got: Counter[tuple[str, object]] = Counter()

    def reads() -> None:
        reader = started(make_daemon, "reader", internet.home("symmetric"), there, ODFD_P2P_RELAYS=there)
        assert with_state(reader.ask("mirror", "add", dataset, "--as", "cities"))["state"] == "current"

    async def flood(stream: Any) -> None:
        with suppress(PeerFault, trio.BrokenResourceError, trio.ClosedResourceError):
            while True:
                await stream.send_all(bytes(1 << 16))
                got["sent", "MiB"] += 1

    async def attack() -> None:
        circuits = []
        async with AsyncExitStack() as stack:
            stranger = await stack.enter_async_context(connected(99, sources[0], there))
            got["stranger", await reserves(*stranger)] += 1
            for number in range(18):
                source = sources[max(0, number - 8)]
                member = await stack.enter_async_context(connected(number, source, there, TOWN))
                got["one line" if source == sources[0] else "its block", await reserves(*member)] += 1
                for _ in range(3 if number < 6 else 1):
                    status, stream = await hop(*member, HopMessage(kind=HopKind.CONNECT, peer=target))
                    got["circuit", status] += 1
                    if status == CircuitStatus.OK:
                        circuits.append(stream)
            async with trio.open_nursery() as nursery:
                for stream in circuits:
                    nursery.start_soon(flood, stream)
                await trio.to_thread.run_sync(reads)
                nursery.cancel_scope.cancel()

    mallory.within(attack).result(PATIENCE)
    assert got["stranger", False] == 1
    assert (got["one line", True], got["its block", True], got["its block", False]) == (8, 8, 1)
    assert got["circuit", CircuitStatus.OK] > 0
    assert got["circuit", CircuitStatus.RESOURCE_LIMIT_EXCEEDED] > 0
    assert got["sent", "MiB"] > 0


@pytest.mark.slow
def test_a_daemon_that_dials_back_is_no_weapon_and_serves_whom_strangers_name(
    internet: Internet, make_daemon: Callable[..., Any]
) -> None:
    """Attack T-REACH-01: aimed and unpaid dial-backs against a daemon with its own settings, from five subnets.

    Defence: the victim is dialled when it asks for itself, and once for each price of 30 kB or more; nothing for unpaid
    questions.

    Questions that are never paid are held open from many blocks; then one is paid.
    """
    there = address_of(started(make_daemon, "server", internet.public()))
    victim, mallory = internet.public(), internet.public()
    sources = sources_at(mallory, 5, 2)
    named = f"/ip4/{victim.address}/tcp/{PORT}"
    got: Counter[object] = Counter()

    async def asks_itself() -> None:
        async with connected(500, victim.address, there) as member:
            answer, paid = await asks_for_dial(*member, named)
            got["itself", answer.status, paid] += 1

    async def attack() -> None:
        async with AsyncExitStack() as stack:
            members = [
                await stack.enter_async_context(connected(number, source, there))
                for number, source in enumerate(sources)
            ]
            for private in ("127.0.0.1", "10.0.0.1"):
                answer, _ = await asks_for_dial(*members[0], f"/ip4/{private}/tcp/{PORT}")
                got["private", answer.status] += 1
            held = await stack.enter_async_context(trio.open_nursery())
            for host, peer in members[:8]:
                answer, _ = await asks_for_dial(host, peer, named, pays=False, held=held)
                got["unpaid", type(answer)] += 1
            await trio.to_thread.run_sync(lambda: victim.within(asks_itself).result(PATIENCE))
            answer, got["bytes"] = await asks_for_dial(*members[-1], named)
            got["paid", answer.status] += 1
            held.cancel_scope.cancel()

    with counting(victim) as seen:
        mallory.within(attack).result(PATIENCE)
    assert got["private", ResponseStatus.DIAL_REFUSED] == 2
    assert got["unpaid", DialDataRequest] == 8, "they may pay, and do not"
    assert got["itself", ResponseStatus.OK, 0] == 1, "whoever is named may ask for itself meanwhile"
    assert seen["dials"] == 1 + got["paid", ResponseStatus.OK], "nothing for nothing"
    assert got["bytes"] >= LEAST_DATA * got["paid", ResponseStatus.OK] > 0
    assert seen["bytes"] < got["bytes"] / 10


# Mutated requests over HTTP and Flight SQL to a daemon: each is answered in words or ends its connection, and
# afterwards the same processes answer.
# ``ODF_FUZZ`` says how many are sent, ``ODF_FUZZ_SEED`` which. A question that is well formed costs a process of
# the node: of those one in fifty is asked.

MUTANTS = int(os.environ.get("ODF_FUZZ", "0")) or 400
SEED = int(os.environ.get("ODF_FUZZ_SEED", "1"))
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
