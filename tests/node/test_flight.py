"""Arrow Flight SQL of a node, asked by drivers of others over real sockets; the process that speaks it is confined."""

from __future__ import annotations

import dataclasses
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
import trio

import odfd_client
from config import model
from engines.flight.messages import CLASSES, pack_any, unpack_any
from engines.query.reader import QueryProcess
from worlds.certificates import certified
from worlds.eventually import PATIENCE, became
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World

ROWS = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000", "2024-01-03T00:00:00Z,Wels,62000")
TOKEN = "owner-token-of-sixteen"
LOOPBACK = IPv4Address("127.0.0.1")
CITIES = "select city, population from cities order by city"


def door(folder: Path) -> model.Flight:
    tokens = folder / "tokens"
    tokens.write_text(f"# who\nowner {TOKEN}\n")
    tokens.chmod(0o600)
    return model.Flight(listen=("127.0.0.1:0",), tokens=str(tokens))


def with_tls(folder: Path) -> tuple[Path, model.Flight]:
    """A certificate, and the same door with it."""
    certificate, key = certified(folder, addresses=[LOOPBACK])
    return certificate, dataclasses.replace(door(folder), certificate=str(certificate), key=str(key))


async def filled(world: World, node: Node) -> None:
    world.write("alice", "a.csv", *ROWS)
    await node.apply(ROOT, DERIVED)
    await node.pull()
    await node.publish("cities")


def url_of(node: Node) -> str:
    (url,) = node.parts.doors["flight"].urls
    return str(url)


def connected(url: str, token: str = "") -> Any:
    adbc = pytest.importorskip("adbc_driver_flightsql.dbapi")
    options = {"adbc.flight.sql.authorization_header": f"Bearer {token}"} if token else {}
    return adbc.connect(url, db_kwargs=options, autocommit=True)


def rows(connection: Any, sql: str, parameters: Any = None) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return list(cursor.fetchall())


async def test_our_client_asks(world: World, tmp_path: Path) -> None:
    def ask(url: str) -> None:
        client = odfd_client.connect(url)
        assert [each.name for each in client.datasets()] == ["cities"]
        large = client.open("cities").where(odfd_client.col("population") > 100_000).select("city")
        assert large.to_arrow().to_pydict() == {"city": ["Graz", "Linz"]}
        assert (large.pin.name, large.standing) == ("cities", "data")
        for update in client.open("cities").listen(follow=False):
            assert update.batch.num_rows == 3
        assert client.sql("select * from range(300000)").reader().read_all().num_rows == 300_000
        with pytest.raises(odfd_client.Invalid, match="citi") as wrong:
            client.sql("select citi from cities").to_arrow()
        assert (wrong.value.place, wrong.value.rule) == ("line 1, column 8", "query-names")
        for refused, error in (
            (client.sql("select 1").prove, odfd_client.Refused),
            (client.sql("select * from towns").to_arrow, odfd_client.NotFound),
            (lambda: client.open("towns"), odfd_client.NotFound),
            (lambda: odfd_client.connect(url, token="x" * 20), odfd_client.Refused),
        ):
            with pytest.raises(error):
                refused()
        owner = odfd_client.connect(url, token=TOKEN)
        assert [each.name for each in owner.datasets()] == ["cities", "towns"]
        assert owner.open("towns").current().to_arrow().num_rows == 3

    async with world.running("alice", private=True, flight=door(tmp_path)) as alice:
        await filled(world, alice)
        with trio.fail_after(PATIENCE):
            await trio.to_thread.run_sync(ask, url_of(alice))


async def test_the_adbc_driver_asks(world: World, tmp_path: Path) -> None:
    def ask(url: str) -> None:
        with connected(url) as con:
            assert rows(con, CITIES) == [("Graz", 300000), ("Linz", 210000), ("Wels", 62000)]
            assert rows(con, "select city from cities where population > ? order by city", [100_000]) == [
                ("Graz",),
                ("Linz",),
            ]
            assert rows(con, "select count(*) from cities for system_time as of '2099-01-01'") == [(3,)]
            assert rows(con, "select max(city) from current.cities as at '2024-01-02'") == [("Linz",)]
            found = con.adbc_get_objects(depth="all").read_all().to_pylist()
            schemas = {each["db_schema_name"]: each for each in found[0]["catalog_db_schemas"]}
            for schema in ("", "current"):
                assert [each["table_name"] for each in schemas[schema]["db_schema_tables"]] == ["cities"]
            assert con.adbc_get_info()["vendor_name"] == "odfd"
            with con.cursor() as cursor:
                cursor.execute("select * from cities")
                answered = cursor.fetch_arrow_table().schema
            told = con.adbc_get_table_schema("cities")
            assert (told.names, told.types) == (answered.names, answered.types)
            assert told.names[-2:] == ["city", "population"]
            for sql, word in (("select * from towns", "no dataset"), ("select citi from cities", "city"),
                              ("select * from read_csv('/etc/passwd')", "read_csv")):  # fmt: skip
                with pytest.raises(Exception, match=word):
                    rows(con, sql)
        with connected(url, TOKEN) as con:
            assert rows(con, "select count(*) from towns") == [(3,)]
        with connected(url, "x" * 20) as con, pytest.raises(Exception, match="token"):
            rows(con, CITIES)

    async with world.running("alice", private=True, flight=door(tmp_path)) as alice:
        await filled(world, alice)
        assert (await alice.api.about.status()).flight == (url_of(alice),)
        with trio.fail_after(PATIENCE):
            await trio.to_thread.run_sync(ask, url_of(alice))


class Kind(flight.ClientMiddlewareFactory):  # type: ignore[misc]
    """Who asks."""

    def __init__(self, header: str) -> None:
        self.header = header

    def start_call(self, _: Any) -> Any:
        return Asking(self.header)


class Asking(flight.ClientMiddleware):  # type: ignore[misc]
    def __init__(self, header: str) -> None:
        self.header = header

    def sending_headers(self) -> dict[str, str]:
        return {"authorization": self.header} if self.header else {}


def client_of(node: Node, token: str = "", **more: Any) -> Any:
    return flight.connect(url_of(node), middleware=[Kind(f"Bearer {token}" if token else "")], **more)


def asked(client: Any, sql: str, options: Any = None) -> Any:
    """The FlightInfo of a query."""
    descriptor = flight.FlightDescriptor.for_command(pack_any("CommandStatementQuery", query=sql))
    return client.get_flight_info(descriptor, options)


def fetched(client: Any, sql: str) -> Any:
    return client.do_get(asked(client, sql).endpoints[0].ticket).read_all()


def acted(client: Any, kind: str, **values: Any) -> bytes:
    (result,) = client.do_action(flight.Action(kind, pack_any(f"Action{kind}Request", **values)))
    return bytes(result.body.to_pybytes())


async def in_thread(call: Any, *args: Any) -> Any:
    with trio.fail_after(PATIENCE):
        return await trio.to_thread.run_sync(call, *args)


async def at_work(node: Node, begun: trio.Event) -> None:
    """Until a process works at a query."""
    await became(lambda: node.parts.readers._turns.borrowed_tokens)
    begun.set()


async def idle(node: Node) -> None:
    """Until no process works at a query."""
    turns = node.parts.readers._turns
    tasks = [object() for _ in range(int(turns.total_tokens))]
    with trio.fail_after(PATIENCE):
        for each in tasks:
            await turns.acquire_on_behalf_of(each)
    for each in tasks:
        turns.release_on_behalf_of(each)


async def test_an_answer_comes_again_at_the_same_cut_and_ends_when_nobody_wants_it(
    world: World, tmp_path: Path
) -> None:
    """Attack T-QUERY-04: clients of Flight that begin answers and leave them, or disconnect while a query runs.

    Defence: two answers wait, for ten seconds; disconnected clients are detected twice a second, and the query's
    process ends.
    """
    async with world.running("alice", private=True, flight=door(tmp_path)) as alice:
        await filled(world, alice)
        client = client_of(alice)
        info = await in_thread(asked, client, "select count(*) n from cities")
        (endpoint,) = info.endpoints
        assert info.schema.names == ["n"]
        world.write("alice", "b.csv", "2024-01-04T00:00:00Z,Enns,12000")
        await alice.pull("cities")
        for _ in range(2):
            table = await in_thread(lambda: client.do_get(endpoint.ticket).read_all())
            assert table.to_pylist() == [{"n": 3}]
        await idle(alice)

        # Its first rows come at once, and the rest never.
        endless = "select a.range from range(100000000000) a"
        info = await in_thread(asked, client, endless)
        reader = await in_thread(client.do_get, info.endpoints[0].ticket)
        await in_thread(reader.read_chunk)
        assert alice.parts.readers._turns.borrowed_tokens == 1
        await in_thread(reader.cancel)
        await idle(alice)

        # The answer of a FlightInfo, before anybody fetched it.
        info = await in_thread(asked, client, endless)
        body = CLASSES["CancelFlightInfoRequest"](info=info.serialize()).SerializeToString()
        (result,) = await in_thread(lambda: list(client.do_action(flight.Action("CancelFlightInfo", body))))
        assert CLASSES["CancelFlightInfoResult"].FromString(result.body.to_pybytes()).status == 1
        await idle(alice)

        # Whoever goes while it waits for the first row.
        never = "select sum(a.range * b.range) from range(100000000) a, range(100000000) b"
        for seconds in (2.0, 20.0, PATIENCE):
            async with trio.open_nursery() as nursery:
                begun = trio.Event()
                nursery.start_soon(at_work, alice, begun)
                with pytest.raises(flight.FlightTimedOutError):
                    await in_thread(asked, client, never, flight.FlightCallOptions(timeout=seconds))
                nursery.cancel_scope.cancel()
            await idle(alice)
            if begun.is_set():
                break


@pytest.mark.parametrize("gone", ["the process of the query", "the process of Flight SQL"])
async def test_an_answer_that_is_cut_off_never_looks_like_one_with_fewer_rows(
    gone: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack T-QUERY-05: an answer over Flight whose query, or process, ends amid its rows.

    Defence: rows are complete only with the end marker and the count from the node.
    """
    asked_of: list[QueryProcess] = []
    execute = QueryProcess.execute

    def noted(process: QueryProcess, request: Any) -> Any:
        asked_of.append(process)
        return execute(process, request)

    monkeypatch.setattr(QueryProcess, "execute", noted)
    async with world.running("alice", private=True, flight=door(tmp_path)) as alice:
        await filled(world, alice)
        client = client_of(alice)
        info = await in_thread(asked, client, "select range from range(100000000000)")
        reader = await in_thread(client.do_get, info.endpoints[0].ticket)
        await in_thread(reader.read_chunk)
        ended = asked_of[-1]._process if gone == "the process of the query" else alice.parts.doors["flight"].process
        ended.kill()
        with pytest.raises((flight.FlightUnavailableError, pa.ArrowException)):
            await in_thread(reader.read_all)
        await idle(alice)


async def test_a_fault_amid_rows_is_told_in_words(world: World, tmp_path: Path) -> None:
    # Rows before it have left already.
    amid = "select cast(case range when 1000000 then 'hot' else range::varchar end as bigint) x from range(2000000)"
    async with world.running("alice", private=True, flight=door(tmp_path)) as alice:
        await filled(world, alice)
        client = client_of(alice, TOKEN)
        info = await in_thread(asked, client, amid)
        reader = await in_thread(client.do_get, info.endpoints[0].ticket)
        with pytest.raises((pa.ArrowInvalid, flight.FlightUnavailableError), match="hot"):
            await in_thread(reader.read_all)
        assert (await in_thread(fetched, client, "select range from range(1000000)")).num_rows == 1_000_000
        assert (await in_thread(fetched, client, "select range from range(0)")).num_rows == 0
        await idle(alice)


async def test_private_datasets_are_not_there_without_a_token_of_flight(world: World, tmp_path: Path) -> None:
    """Attack T-PRIVATE-01: a client of Flight that asks for private data, without a token, with another's statement or
    ticket.

    Defence: the token identifies the caller, the same predicate decides what it reads; statements belong to the caller
    that prepared them.
    """
    async with world.running("alice", private=True, flight=door(tmp_path)) as alice:
        await filled(world, alice)
        anybody, owner = client_of(alice), client_of(alice, TOKEN)

        def tables(client: Any) -> list[str]:
            command = pack_any("CommandGetTables", include_schema=True)
            info = client.get_flight_info(flight.FlightDescriptor.for_command(command))
            return sorted(set(client.do_get(info.endpoints[0].ticket).read_all()["table_name"].to_pylist()))

        assert await in_thread(tables, anybody) == ["cities"]
        assert await in_thread(tables, owner) == ["cities", "towns"]
        info = await in_thread(asked, owner, "select count(*) n from towns")
        for sql in ("select * from towns", f'select * from "{alice.dataset("towns")}"', "select 1 from current.towns"):
            with pytest.raises(pa.ArrowKeyError, match="the tables of Flight, or GET /, list them") as refusal:
                await in_thread(asked, anybody, sql)
            assert "Traceback" not in str(refusal.value)
        with pytest.raises(pa.ArrowKeyError):
            await in_thread(lambda: anybody.do_get(info.endpoints[0].ticket).read_all())
        made = await in_thread(lambda: acted(owner, "CreatePreparedStatement", query="select 1"))
        handle = unpack_any(made)[1].prepared_statement_handle
        command = flight.FlightDescriptor.for_command(
            pack_any("CommandPreparedStatementQuery", prepared_statement_handle=handle)
        )
        assert (await in_thread(owner.get_flight_info, command)).schema.names == ["1"]
        with pytest.raises(pa.ArrowKeyError, match="prepare it again"):
            await in_thread(anybody.get_flight_info, command)
        with pytest.raises(flight.FlightUnauthenticatedError, match="not known"):
            await in_thread(asked, client_of(alice, "another-token-of-sixteen"), CITIES)


async def test_a_process_of_flight_that_dies_is_started_again(world: World, tmp_path: Path) -> None:
    """Attack T-BYTES-01: bytes that end the gRPC process.

    Defence: its only state is its clients' connections, and it is restarted.
    """
    async with world.running("alice", private=True, flight=door(tmp_path)) as alice:
        await filled(world, alice)
        server = alice.parts.doors["flight"]
        born = server.born
        server.process.kill()
        with trio.fail_after(PATIENCE):
            await born.wait()
        assert (await in_thread(fetched, client_of(alice), CITIES)).num_rows == 3
        assert (await alice.dataset_view("cities")).records == 3


async def test_kamus_own_client_asks_over_tls(world: World, tmp_path: Path) -> None:
    kamu = pytest.importorskip("kamu")
    certificate, door_of_tls = with_tls(tmp_path)
    count = "select count(*) n from towns"

    def ask(url: str) -> None:
        authorities = {"adbc.flight.sql.client_option.tls_root_certs": certificate.read_text()}
        with kamu.connect(url, connection_params=dict(authorities)) as anybody:
            assert anybody.query(CITIES)["city"].tolist() == ["Graz", "Linz", "Wels"]
            with pytest.raises(Exception, match="no dataset"):
                anybody.query(count)
        with kamu.connect(url, token=TOKEN, connection_params=dict(authorities)) as owner:
            assert owner.query(count)["n"].tolist() == [3]
        stranger = kamu.connect(url, token="x" * 20, connection_params=dict(authorities))
        with stranger, pytest.raises(Exception, match="the token is not known"):
            stranger.query(count)

    async with world.running("alice", private=True, flight=door_of_tls) as alice:
        await filled(world, alice)
        await in_thread(ask, url_of(alice))


async def test_sqlalchemy_reflects_tables_and_asks(world: World, tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy_adbc")
    import sqlalchemy as sa

    certificate, door_of_tls = with_tls(tmp_path)

    def ask(url: str) -> None:
        options = {
            "adbc.flight.sql.client_option.tls_root_certs": certificate.read_text(),
            "adbc.flight.sql.authorization_header": f"Bearer {TOKEN}",
        }
        engine = sa.create_engine(
            f"adbc+flightsql://{url.partition('://')[2]}", connect_args={"autocommit": True, "db_kwargs": options}
        )
        inspector = sa.inspect(engine)
        assert inspector.get_schema_names() == ["current"]
        assert (inspector.has_table("towns"), inspector.has_table("toms")) == (True, False)
        log = sa.Table("cities", sa.MetaData(), autoload_with=engine)
        kinds = {column.name: type(column.type) for column in log.columns}
        assert kinds["offset"] is kinds["population"] is sa.BigInteger
        assert (kinds["city"], kinds["event_time"]) == (sa.String, sa.DateTime)
        current = sa.Table("cities", sa.MetaData(), autoload_with=engine, schema="current")
        large = sa.select(log.c.city).where(log.c.population > 100_000, log.c.city != "Linz")
        newest = sa.select(current.c.city, sa.func.max(current.c.population)).group_by(current.c.city)
        with engine.connect() as connection:
            assert connection.execute(large).all() == [("Graz",)]
            assert connection.execute(newest.order_by(current.c.city).limit(2)).all() == [
                ("Graz", 300_000),
                ("Linz", 210_000),
            ]
            with pytest.raises(sa.exc.ProgrammingError, match="did you mean city"):
                connection.execute(sa.text("select citi from cities"))
        engine.dispose()

    async with world.running("alice", private=True, flight=door_of_tls) as alice:
        await filled(world, alice)
        await in_thread(ask, url_of(alice))


async def test_flight_over_tls(world: World, tmp_path: Path) -> None:
    certificate, tls = with_tls(tmp_path)
    key = tmp_path / "key.pem"

    def ask(url: str) -> None:
        owner = odfd_client.connect(url, token=TOKEN, ca_file=certificate)
        assert owner.open("towns").to_arrow().num_rows == 3
        anybody = odfd_client.connect(url, ca_file=certificate)
        assert [each.name for each in anybody.datasets()] == ["cities"]
        with pytest.raises(odfd_client.Unreachable):
            odfd_client.connect(url)
        with pytest.raises(odfd_client.Invalid, match="no certificates"):
            odfd_client.connect(url, ca_file=key)
        with pytest.raises(odfd_client.Invalid, match="for TLS"):
            odfd_client.connect(url.replace("+tls", ""), ca_file=certificate)

    async with world.running("alice", private=True, flight=tls) as alice:
        await filled(world, alice)
        assert url_of(alice).startswith("grpc+tls://")
        await in_thread(ask, url_of(alice))
        client = client_of(alice, TOKEN, tls_root_certs=certificate.read_bytes(), override_hostname="localhost")
        assert (await in_thread(fetched, client, "select count(*) n from towns")).to_pylist() == [{"n": 3}]
