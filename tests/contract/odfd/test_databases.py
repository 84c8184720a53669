"""What a query of a source means, whatever database answers it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio

from chain import instant
from chain.errors import Invalid, NotFound, Refused, Remote
from chain.model.events import SourceState
from chain.model.fetch_options import SqlQuery, fetch_options
from chain.model.source import FetchUrl
from odfd.ingest.acceptance import check_source
from odfd.ingest.clients import databases
from odfd.ingest.clients.databases import QueryJob, answer
from odfd.ingest.fetch import sql
from odfd.ingest.fetch.dispatch import check_fetch, fetch
from odfd.ingest.fetch.source import Fetched, FetchJob, Unchanged
from odfd.ingest.local_files import LocalFiles
from odfd.ingest.settings import PATIENCE, IngestSettings
from odfd.ingest.templates import redact
from worlds.databases import PASSWORD, Served, mysql_served, postgres_served, sqlite_served
from worlds.sources import asked_here, examples, source

EXAMPLES = examples("Sql")
NOW = instant.parse("2050-01-01T12:00:00Z")
TABLES = {
    "sqlite": "CREATE TABLE orders (id integer primary key, changed text not null, name text)",
    "mysql": "CREATE TABLE orders (id bigint primary key, changed datetime not null, name varchar(99))",
    "postgresql": "CREATE TABLE orders (id bigint primary key, changed timestamp not null, name text)",
}


@pytest.fixture(scope="module")
def postgres() -> Iterator[Served]:
    with postgres_served() as served:
        yield served


@pytest.fixture(scope="module")
def mysql() -> Iterator[Served]:
    with mysql_served() as served:
        yield served


@pytest.fixture(
    params=["sqlite", *(pytest.param(server, marks=pytest.mark.slow) for server in ("postgres", "mysql"))],
)
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Served:
    """``make quick`` starts no server, and asks SQLite alone."""
    served: Served = sqlite_served(tmp_path) if request.param == "sqlite" else request.getfixturevalue(request.param)
    served.run("DROP TABLE IF EXISTS orders", TABLES[served.kind])
    return served


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, which starts at once; ``test_it_is_asked_by_a_process_of_its_own`` starts another."""
    monkeypatch.setattr(sql, "ask", asked_here(answer))


@pytest.fixture
def ask(base: Served, tmp_path: Path, here: None) -> Callable[..., tuple[list[dict[str, Any]], SourceState | None]]:
    """Rows of one fetch, and the source state behind them."""

    def pull(query: SqlQuery, state: SourceState | None = None, **settings: Any) -> Any:
        return rows_of(one_fetch(base, tmp_path, query, state, **settings), state)

    return pull


def one_fetch(base: Served, folder: Path, query: SqlQuery, state: SourceState | None = None, **more: Any) -> Any:
    columns = more.pop("columns", None)
    settings = IngestSettings(staging=folder, **({"variables": {"DB": PASSWORD}} | more))
    job = FetchJob(state=state, now=NOW, folder=folder, settings=settings, options=query, columns=columns)
    return trio.run(fetch, FetchUrl(url=base.url), job)


def rows_of(found: Any, state: SourceState | None) -> tuple[list[dict[str, Any]], SourceState | None]:
    if isinstance(found, Unchanged):
        return [], state
    assert isinstance(found, Fetched)
    return pq.read_table(found.path).to_pylist(), found.state


def orders(*ids: int, at: str = "2024-01-01 00:00:00") -> str:
    return "INSERT INTO orders VALUES " + ", ".join(f"({each}, '{at}', 'order {each}')" for each in ids)


ALL = "SELECT id, changed, name FROM orders"


@pytest.mark.slow
def test_over_tls_the_database_has_the_certificate_of_its_host(
    mysql: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a process of its own, which trusts whom the daemon's environment names."""
    mysql.run("DROP TABLE IF EXISTS orders", TABLES["mysql"], orders(1))
    mysql.run("ALTER USER reader@'127.0.0.1' REQUIRE SSL")
    secure = mysql._replace(url=f"{mysql.url}?ssl-mode=verify-identity")
    try:
        with pytest.raises(Remote, match="certificate verify failed"):
            one_fetch(secure, tmp_path, SqlQuery(query=ALL))
        monkeypatch.setenv("SSL_CERT_FILE", str(mysql.folder / "certificate.pem"))
        assert [row["id"] for row in rows_of(one_fetch(secure, tmp_path, SqlQuery(query=ALL)), None)[0]] == [1]
        with pytest.raises(Remote):  # the server asks for TLS, and this machine was meant
            one_fetch(mysql, tmp_path, SqlQuery(query=ALL))
        elsewhere = secure._replace(url=secure.url.replace("127.0.0.1", "localhost"))
        with pytest.raises(Remote, match="certificate verify failed"):
            one_fetch(elsewhere, tmp_path, SqlQuery(query=ALL))
        unchecked = elsewhere._replace(url=elsewhere.url.replace("verify-identity", "required"))
        assert one_fetch(unchecked, tmp_path, SqlQuery(query=ALL)) is not None
    finally:
        mysql.run("ALTER USER reader@'127.0.0.1' REQUIRE NONE")


def test_rows_come_once_in_the_order_of_the_cursor(base: Served, ask: Callable[..., Any]) -> None:
    base.run(orders(3, 1, 2, 5, 4))
    query, state, seen = SqlQuery(query=f"{ALL};", cursor=("id",), batch_rows=2), None, []
    for _ in range(4):
        rows, state = ask(query, state)
        seen.append([row["id"] for row in rows])
    assert seen == [[1], [2], [3], [4]], "of a full batch the last row waits for others with its cursor"
    base.run(orders(6))
    assert [row["id"] for row in ask(query, state)[0]] == [5]


def test_every_stop_goes_on_where_the_state_says(base: Served, ask: Callable[..., Any]) -> None:
    """A pull that was killed has committed some batches; whatever it fetched beside, the chain says what is next."""
    base.run(*(orders(each, at=f"2024-01-0{1 + each % 3} 00:00:00") for each in range(1, 16)))
    query = SqlQuery(query=ALL, cursor=("changed", "id"), batch_rows=7)
    for stop in (0, 1):
        state, seen = None, []
        for number in range(40):
            rows, state_behind = ask(query, state)
            if number == stop:
                continue  # killed before the commit
            seen += [row["id"] for row in rows]
            if not rows:
                break
            state = state_behind
        assert sorted(seen) == list(range(1, 16))
        assert seen == sorted(seen, key=lambda each: (each % 3, each))


def test_rows_with_one_cursor_are_never_parted(base: Served, ask: Callable[..., Any]) -> None:
    base.run(orders(1, 2), orders(3, 4, 5, at="2024-02-01 00:00:00"))
    query = SqlQuery(query=ALL, cursor=("changed",), batch_rows=4)
    rows, state = ask(query)
    assert sorted(row["id"] for row in rows) == [1, 2]
    assert sorted(row["id"] for row in ask(query, state)[0]) == [3, 4, 5]
    with pytest.raises(Refused, match="a batch of 2 rows has one cursor"):
        ask(SqlQuery(query=ALL, cursor=("changed",), batch_rows=2))


def test_without_a_cursor_all_rows_come_when_they_changed(base: Served, ask: Callable[..., Any]) -> None:
    base.run(orders(1, 2))
    query = SqlQuery(query=f"{ALL} ORDER BY id -- all of them")
    rows, state = ask(query)
    assert [row["name"] for row in rows] == ["order 1", "order 2"]
    assert ask(query, state) == ([], state)
    base.run("UPDATE orders SET name = 'other' WHERE id = 1")
    assert [row["name"] for row in ask(query, state)[0]] == ["other", "order 2"]


@pytest.mark.parametrize(
    "query,cursor,said",
    [
        (ALL, ("nothing",), "refuses the query|no column 'nothing'"),
        ("SELECT id FROM nowhere", (), "refuses the query"),
        ("SELECT id, 1.5 AS part FROM orders", ("part",), "by which nothing is ordered|'part'"),
        ("SELECT id, NULLIF(id, 2) AS part FROM orders", ("part",), "no value in some rows"),
        ("INSERT INTO orders SELECT 9, changed, name FROM orders", (), "refuses the query"),
    ],
)
def test_what_is_refused(base: Served, ask: Callable[..., Any], query: str, cursor: tuple[str, ...], said: str) -> None:
    base.run(orders(1, 2))
    with pytest.raises(Invalid, match=said):
        ask(SqlQuery(query=query, cursor=cursor))


def test_a_query_writes_nothing(base: Served, ask: Callable[..., Any]) -> None:
    """Attack T-SOURCE-03: a query of a source that changes the database, or a value of a cursor that becomes part of a
    statement.

    Defence: the transaction is read-only; values are parameters, or escaped by the driver for the server.
    """
    base.run(orders(1))
    with pytest.raises(Invalid):
        ask(SqlQuery(query="WITH x AS (SELECT 1) DELETE FROM orders"))
    assert [row["id"] for row in ask(SqlQuery(query=ALL))[0]] == [1]


def test_another_cursor_needs_a_reset(base: Served, ask: Callable[..., Any]) -> None:
    base.run(orders(1))
    _, state = ask(SqlQuery(query=ALL, cursor=("id",)))
    with pytest.raises(Refused, match="by id, and the source now goes by changed") as fault:
        ask(SqlQuery(query=ALL, cursor=("changed",)), state)
    assert "odfctl reset" in fault.value.hint


def test_a_batch_is_bounded(base: Served, ask: Callable[..., Any]) -> None:
    base.run(orders(*range(200)))
    with pytest.raises(Refused, match="larger than 100 bytes"):
        ask(SqlQuery(query=ALL), max_source_bytes=100)


def test_texts_of_a_cursor_are_values(base: Served, ask: Callable[..., Any]) -> None:
    base.run("INSERT INTO orders VALUES (1, '2024-01-01', 'a'' OR 1=1 --')")
    query = SqlQuery(query=ALL, cursor=("name",))
    _, state = ask(query)
    assert ask(query, state) == ([], state)


@pytest.mark.slow
def test_exact_numbers_of_postgres(postgres: Served, tmp_path: Path) -> None:
    query = SqlQuery(query="SELECT 1::bigint AS id, 12345678901234567890.01::numeric AS amount, NULL::date AS day")
    declared = pa.schema([("id", pa.int64()), ("amount", pa.decimal128(38, 2)), ("day", pa.date32())])
    job = QueryJob(
        url=postgres.url.replace("${{ env.DB }}", "p%40ss%2Fword%3A1"), query=query.query, cursor=(), after=None,
        batch_rows=1, target=str(tmp_path / "rows"), limit=1 << 20, columns=bytes(declared.serialize()),
    )  # fmt: skip
    assert answer(job).fault == ""
    assert pq.read_table(tmp_path / "rows").schema == declared
    assert str(pq.read_table(tmp_path / "rows")["amount"][0]) == "12345678901234567890.01"


@pytest.mark.slow
def test_types_of_mysql_are_those_of_the_server(mysql: Served, tmp_path: Path) -> None:
    mysql.run(
        "DROP TABLE IF EXISTS kinds",
        "CREATE TABLE kinds (a decimal(20,4), b timestamp(6) NULL, c date, d double, e blob, f json, g tinyint(1))",
        "SET time_zone = '+02:00'",
        "INSERT INTO kinds VALUES (1.5, '2024-05-01 12:00:00.000001', '2024-05-01', 0.1, x'00ff', '{}', 1)",
    )
    one_fetch(mysql, tmp_path, SqlQuery(query="SELECT * FROM kinds WHERE f LIKE '%'"))
    found = pq.read_table(tmp_path / "rows.parquet")
    kinds = [pa.decimal128(38, 4), pa.timestamp("us", "UTC"), pa.date32(), pa.float64(), pa.binary(), pa.string()]
    assert found.schema.types == [*kinds, pa.int64()]
    told = [str(each) for each in found.to_pylist()[0].values()]
    at = "2024-05-01 10:00:00.000001+00:00"
    assert told == ["1.5000", at, "2024-05-01", "0.1", "b'\\x00\\xff'", "{}", "1"]


def test_percent_signs_of_a_query_are_its_own(base: Served, ask: Callable[..., Any]) -> None:
    base.run(orders(1, 2))
    query = SqlQuery(query=f"{ALL} WHERE name LIKE 'order%' AND 5 % 3 = 2", cursor=("id",), batch_rows=2)
    rows, state = ask(query)
    assert [row["id"] for row in [*rows, *ask(query, state)[0]]] == [1, 2]


@pytest.mark.slow
def test_it_is_asked_by_a_process_of_its_own(base: Served, tmp_path: Path) -> None:
    base.run(orders(1))
    rows, _ = rows_of(one_fetch(base, tmp_path, SqlQuery(query=ALL, cursor=("id",))), None)
    assert [row["id"] for row in rows] == [1]


def test_of_an_error_with_a_number_its_words_are_told() -> None:
    assert databases._words(Exception(2003, "Can't connect\n to it")) == "Can't connect to it"
    assert databases._words(Exception("no such table: t")) == "no such table: t"


@pytest.mark.slow
def test_what_does_not_answer_is_told_without_its_password(tmp_path: Path) -> None:
    """Attack T-SOURCE-01: the password of a database, in the words of its driver or in a list of processes.

    Defence: it is a variable, refused in the URL itself; the request goes by standard input to a process without our
    environment; values in its messages are replaced by templates.
    """
    closed = Served("postgresql://reader:${{ env.DB }}@127.0.0.1:1/shop", tmp_path, "postgresql")
    with pytest.raises(Remote) as fault, redact({"DB": PASSWORD}):
        one_fetch(closed, tmp_path, SqlQuery(query=ALL))
    told = f"{fault.value.message} {fault.value.hint}"
    assert "does not answer" in told
    assert "p@ss" not in told
    assert "p%40ss" not in told


@pytest.mark.parametrize("text", EXAMPLES)
def test_the_examples_of_the_page_are_asked(base: Served, here: None, tmp_path: Path, text: str) -> None:
    event = source(text)
    settings = IngestSettings(staging=tmp_path, variables={"DB": PASSWORD})
    assert check_source(event, settings) is None
    query = fetch_options(event.read.schema)
    assert query is not None
    base.run(orders(1, 2))
    rows, state = rows_of(one_fetch(base, tmp_path, query, columns=event.read.schema), None)
    assert [(row["id"], f"{row['changed']:%Y-%m-%d}") for row in rows] == [(1, "2024-01-01"), (2, "2024-01-01")]
    assert (state or SourceState(source_name="", kind="", value="")).kind == sql.CURSOR


def test_mistakes_of_a_query_stand_at_their_line() -> None:
    with pytest.raises(Invalid) as fault:
        source(EXAMPLES[0].replace("batchRows: 50000", "batchRows: 0"))
    assert fault.value.place == "example.yaml:6"
    assert "batchRows" in fault.value.message


def test_a_file_outside_of_the_folders_is_no_database(tmp_path: Path) -> None:
    settings = IngestSettings(staging=tmp_path, readable=LocalFiles((tmp_path,)))
    with pytest.raises(Invalid, match="the node's own directory"):
        check_fetch(FetchUrl(url=f"sqlite://{tmp_path}/node.sqlite"), settings, SqlQuery(query="select 1"))
    with pytest.raises(NotFound):
        one_fetch(Served(f"sqlite://{tmp_path}/gone", tmp_path, "sqlite"), tmp_path, SqlQuery(query="select 1"))


@pytest.mark.slow
def test_a_database_that_is_silent_is_left(tmp_path: Path) -> None:
    """It takes connections, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        served = Served(f"postgresql://reader@127.0.0.1:{deaf.getsockname()[1]}/shop", tmp_path, "postgresql")
        patience = PATIENCE._replace(total=0.05)
        with pytest.raises(Remote, match=r"no rows came in 0\.05 s"):
            one_fetch(served, tmp_path, SqlQuery(query=ALL), patience=patience)
