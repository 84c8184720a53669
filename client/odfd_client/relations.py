"""Defines queries and datasets, which are lazy; each object is always read at one cut.

Nothing is requested before rows, pins or other facts of the answer are read. The first answer tells where each dataset
was cut; later readings of the same object are pinned there. A new ``open`` or ``sql`` reads the newest.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from odfd_client.answer_stream import Answer
from odfd_client.errors import Bug, Environment, Invalid, NotFound, Refused
from odfd_client.expressions import Parameters, Predicate, literal, plain, quote_name
from odfd_client.proofs import Proof
from odfd_client.slice_files import OFFSET, LogRows, SliceAnswer, SliceFiles, ask_slices
from odfd_client.subscription import MARK, Look, Rows, Source
from odfd_client.transport import Transport
from odfd_client.values import NodeMetadata, Pin, Position, ReadStanding

_AS_OF, _AT_BLOCK, _AS_AT = "FOR SYSTEM_TIME AS OF", "AT BLOCK", "AS AT"
CLAUSES = {_AS_OF: "as-of", _AT_BLOCK: "at-block", _AS_AT: "as-at"}
"""The node's names for clauses of time in requests without SQL."""
Statement: TypeAlias = "tuple[str, dict[str, Any] | list[Any] | None]"


@dataclass(frozen=True, slots=True)
class Demand:
    """The requirement on all data that is read. ``cut``: read only the part that satisfies it, instead of an error."""

    require: str | None = None
    cut: bool = False


class Query:
    """A statement of SQL; ``docs/reference/sql.md`` of the node defines the dialect."""

    def __init__(
        self, transport: Transport, statement: Statement, pins: Sequence[Pin] = (), demand: Demand | None = None
    ) -> None:
        self._transport, self._statement, self._demand = transport, statement, demand or Demand()
        self._pins = tuple(pins)
        self._told: NodeMetadata | None = None

    def __repr__(self) -> str:
        """Shows the statement, and the cut of each dataset once that is known; asks the node nothing."""
        cuts = "".join(f", {pin.name} at block #{pin.sequence_number}" for pin in self._pins)
        return f"<{type(self).__name__} {self._statement[0]}{cuts}>"

    def answer(self) -> Answer:
        """Runs the query. Raises its fault before any row."""
        return self._ask()

    def reader(self) -> pa.RecordBatchReader:
        """Returns the rows as they arrive, once, in bounded memory. The node's ``query.seconds`` limits its time."""
        files = self.files()
        return self._ask().reader().arrow() if files is None else files.reader(self._columns)

    def to_arrow(self) -> pa.Table:
        files = self.files()
        return self._ask().to_arrow() if files is None else files.table(self._columns)

    def to_pandas(self, **options: Any) -> Any:
        """Returns a DataFrame; ``options``: those of ``pyarrow.Table.to_pandas``."""
        _library("pandas")
        return self.to_arrow().to_pandas(**options)

    def to_polars(self) -> Any:
        return _library("polars").from_arrow(self.to_arrow())

    def duckdb(self, connection: Any, name: str) -> Any:
        """Fills the temporary table ``name`` of a DuckDB connection from the stream, and returns it; atomic."""
        with self._ask() as answer:
            source, rows = "odfd client rows", answer.reader()
            connection.register(source, rows.arrow())
            try:
                connection.execute(
                    f"CREATE OR REPLACE TEMP TABLE {quote_name(name)} AS SELECT * FROM {quote_name(source)}"
                )
            except Exception as error:
                if rows.error is None:
                    raise
                raise rows.error from error
            finally:
                connection.unregister(source)
        return connection.table(name)

    @property
    def pins(self) -> tuple[Pin, ...]:
        """The cut of each dataset."""
        return self._ask_metadata().pins

    @property
    def pin(self) -> Pin:
        """The cut of the query's only dataset. Raises Invalid for none or several."""
        pins = self.pins
        if len(pins) != 1:
            raise Invalid(f"the query reads {len(pins)} datasets", rule="query-pin", hint="`pins` has the pin of each")
        return pins[0]

    @property
    def standing(self) -> str:
        """How far the data may be relied on: the weakest standing of all datasets."""
        return self._ask_metadata().standing

    @property
    def standings(self) -> tuple[ReadStanding, ...]:
        return self._ask_metadata().standings

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks on data that is missing from the answer."""
        return self._ask_metadata().remarks

    def prove(self) -> Proof:
        """Returns the answer with the node's signature, for others to check: see ``docs/reference/sql.md`` of the node.

        Raises Refused if another run could give other rows: the error says what to write instead.
        """
        with self._ask(prove=True) as answer:
            rows = answer.to_arrow()
        if answer.proof is None:
            raise Bug("the answer came without its statement", rule="answer")
        return Proof(rows, answer.proof)

    _columns: Sequence[str] = ()

    def files(self, *, keep: bool = False, offsets: tuple[int, int] | None = None) -> SliceFiles | None:  # noqa: ARG002
        """Returns the slices that hold the rows; ``None`` if they are not a whole log, or the node is remote.

        ``keep``: their descriptors stay open until ``close``. ``offsets``: only slices with rows of these offsets, from
        the first to the last.
        """
        return None

    def listed(self) -> SliceFiles | None:
        """Returns the schema and the offsets of the slices, without their files; ``None`` as for ``files``."""
        return self.files()

    def _ask_metadata(self) -> NodeMetadata:
        if self._told is None:
            self._ask(explain=True).close()
        assert self._told is not None
        return self._told

    def _ask(self, *, explain: bool = False, prove: bool = False) -> Answer:
        asked = ask(self._transport, self._statement, self._pins, self._demand, explain=explain, prove=prove)
        answer = Answer(asked)
        self._told, self._pins = answer.told, answer.told.pins
        return answer


@dataclass(frozen=True, slots=True)
class Selection:
    """Selects rows of a dataset: by time, columns, condition and limit."""

    name: str
    current: bool = False
    clauses: tuple[tuple[str, str], ...] = ()
    """Clauses of time, and their values."""
    columns: tuple[str, ...] = ()
    where: Predicate | None = None
    limit: int | None = None

    def sql(self) -> tuple[str, Parameters]:
        parameters: Parameters = {}
        columns = ", ".join(map(quote_name, self.columns)) or "*"
        text = f"SELECT {columns} FROM {self.source()}"
        if self.where is not None:
            text += f" WHERE {self.where.sql(parameters)}"
        return text + (f" LIMIT {self.limit}" if self.limit is not None else ""), parameters

    def source(self) -> str:
        """Formats the table, with its clauses of time."""
        times = "".join(f" {words} {literal(said)}" for words, said in self.clauses)
        return ("current." if self.current else "") + quote_name(self.name) + times


def last_offset(transport: Transport, selection: Selection, pins: Sequence[Pin], demand: Demand) -> int:
    """Asks for the offset of the last row of one chain at its pin; -1: there is none."""
    text = f'SELECT max("offset") AS last FROM {selection.source()}'
    (found,) = Query(transport, (text, None), pins, demand).to_arrow().to_pylist()
    return -1 if found["last"] is None else int(found["last"])


class Log(Source):
    """The log of a dataset as the source of a listener."""

    def __init__(self, transport: Transport, selection: Selection, demand: Demand) -> None:
        super().__init__(transport, selection.name, always=demand.require is not None, whole=selection.where is None)
        self._selection, self._demand = selection, demand
        self._gives_news = True

    def rows(self, dataset: str, position: Position | None, mark: str, pin: Pin | None = None) -> Rows:
        """Reads rows from their files, or by a query where these do not hold them as they are read."""
        found, _ = self._news(dataset, position, mark, pin)
        return found or super().rows(dataset, position, mark, pin)

    def look(self, dataset: str, position: Position | None, *, together: bool, follow: bool) -> Look:
        rows, asked = (None, None) if together else self._news(dataset, position, MARK, None)
        if asked is None:
            asked = self._slices(self._asking(dataset, None) | {"explain": True}, ())
        if asked is None:
            return super().look(dataset, position, together=together, follow=follow)
        pins = asked.told.pins
        return Look("" if together else pins[0].block, asked.ended, pins, rows)

    def _asking(self, dataset: str, pin: Pin | None) -> dict[str, object]:
        """Builds the part of a request that names a log: as the collection's name reads it, or one chain by its id."""
        return {"dataset": dataset} | ({"together": True} if self.together and pin is None else {})

    def _news(
        self, dataset: str, position: Position | None, mark: str, pin: Pin | None
    ) -> tuple[LogRows | None, SliceAnswer | None]:
        """Asks for the files of the rows after a position. The rows are ``None`` if files do not hold them."""
        if self._selection.where is not None or not name_once(self._selection.columns):
            return None, None
        offset = -1 if position is None else position.offset
        after: dict[str, object] = {"offset": offset}
        if position is not None and position.block:
            after |= {"block": position.block, "sequenceNumber": position.sequence_number}
        asked = self._slices(self._asking(dataset, pin) | {"after": after}, () if pin is None else (pin,))
        files = None if asked is None else asked.files
        if files is None or not {*self._selection.columns, OFFSET} <= {*files.schema.names}:
            return None, asked
        return LogRows(files, self._selection.columns, mark, offset), asked

    def _slices(self, body: dict[str, object], pins: Sequence[Pin]) -> SliceAnswer | None:
        """Asks for files of a log; ``None`` if they do not hold its rows as they are read, or the node gives none."""
        if self.transport.is_remote or not self._gives_news:
            return None
        try:
            return ask_slices(self.transport, body | reading_of(pins, self._demand))
        except Refused as refusal:
            if refusal.rule != "query-slices":
                raise
        except Invalid:  # an older node, which does not know all of the request
            self._gives_news = False
        return None

    def after(self, dataset: str, offset: int, mark: str, pin: Pin | None = None) -> Answer:
        parameters: Parameters = {}
        columns = ", ".join(map(quote_name, self._selection.columns)) or "*"
        text = f'SELECT {columns}, "offset" AS {quote_name(mark)} FROM {quote_name(dataset)} WHERE "offset" > {offset}'
        if self._selection.where is not None:
            text += f" AND {self._selection.where.sql(parameters)}"
        return Answer(ask(self.transport, (text, parameters), () if pin is None else (pin,), self._demand))

    def cut(self, name: str) -> tuple[Pin, ...]:
        with Answer(
            ask(self.transport, (f"SELECT 1 FROM {quote_name(name)} LIMIT 0", None), (), self._demand)
        ) as answer:
            return answer.told.pins


class RemoteLog(Log):
    """The log of a dataset at a node that answers only public requests: datasets, and rows."""

    def newest(self, dataset: str) -> str:
        return str(self.transport.dataset(dataset)["head"])

    def holds(self, position: Position) -> bool:
        pin = Pin(position.id, position.id, position.block, position.sequence_number)
        try:
            Answer(ask(self.transport, (f"SELECT 1 FROM {quote_name(pin.id)} LIMIT 0", None), (pin,), Demand())).close()
        except NotFound:
            return False
        return True


def ask(
    transport: Transport, statement: Statement, pins: Sequence[Pin], demand: Demand, *, explain: bool = False,
    prove: bool = False,
) -> Any:  # fmt: skip
    """Sends a query and returns the exchange."""
    body = body_of(statement, pins, demand)
    if explain:
        body["explain"] = True
    if prove:
        body["prove"] = True
    return transport.ask("POST", "/node/v1alpha1/query", body=body, patience=None)


def body_of(statement: Statement, pins: Sequence[Pin], demand: Demand) -> dict[str, Any]:
    """Builds the body of a query."""
    text, parameters = statement
    body: dict[str, Any] = {"sql": text}
    if parameters:
        body["parameters"] = parameters
    return body | reading_of(pins, demand)


def reading_of(pins: Sequence[Pin], demand: Demand) -> dict[str, Any]:
    """Builds the part of a body that selects the cut to read."""
    body: dict[str, Any] = {"pins": [pin.said() for pin in pins]} if pins else {}
    if len({(pin.name, pin.at) for pin in pins}) < len(pins):
        body["byPins"] = True  # shards of one name, which may have other shards by now
    if demand.require is not None:
        body |= {"require": demand.require} | ({"cut": True} if demand.cut else {})
    return body


def name_once(columns: Sequence[str]) -> bool:
    """Whether each column is named once; SQL compares names without case."""
    return len({column.lower() for column in columns}) == len(columns)


def parameters_of(given: Mapping[str, Any] | Collection[Any] | None) -> dict[str, Any] | list[Any] | None:
    """Converts the parameters of a query. Raises Invalid."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        return {name: plain(value) for name, value in given.items()}
    if isinstance(given, str | bytes):
        raise Invalid("parameters are a list, or a mapping by name", rule="parameter", hint="write [value]")
    return [plain(value) for value in given]


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Environment(f"{name} is not installed here", rule="library", hint=f"pip install {name}") from error
