"""Nexmark, the benchmark of streaming queries: its auction house as small input chains, and its queries.

People register, sell, and bid: of fifty events one is a person, three are auctions, the others bids, with the published
generator's prices (spread over six powers of ten), channels and links. Everything follows from one seed. The queries
stand in ``tests/golden/nexmark``: as published, and in the words in which they are transforms, where those differ.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from chain.data.parquet import write_slice
from chain.model.source import SqlQueryStep, TemporalTable, TransformSql
from conformance.coordinator import TIME, Bed, Coordinator, Laid, Outcome, as_input, block_of, dataset_of
from conformance.duck import MICROS, Duck
from conformance.histories import DAY, START, schedule

QUERIES: Final = Path(__file__).parents[1] / "golden" / "nexmark" / "queries.yaml"
EVENTS: Final = 600
STEP: Final = 200
"""Milliseconds between events."""
BEGIN: Final = START + 86_340_000
"""A minute before midnight: the auction house is open on two days."""
DISORDER: Final = 1_500
"""Milliseconds by which an event may be written down later than one that came after it."""
BLOCKS: Final = 3
"""Of each input; after them one without rows says that all is over."""
_FIRST: Final = 1_100
"""Number of the first auction."""
_CITIES: Final = (("Phoenix", "AZ"), ("Palo Alto", "CA"), ("Boise", "ID"), ("Portland", "OR"), ("Bend", "OR"))
_COLUMNS: Final[Mapping[str, Mapping[str, pa.DataType]]] = {
    "person": {
        "id": pa.int64(), "name": pa.string(), "emailAddress": pa.string(), "creditCard": pa.string(),
        "city": pa.string(), "state": pa.string(), "extra": pa.string(),
    },
    "auction": {
        "id": pa.int64(), "itemName": pa.string(), "description": pa.string(), "initialBid": pa.int64(),
        "reserve": pa.int64(), "expires": TIME, "seller": pa.int64(), "category": pa.int64(), "extra": pa.string(),
    },
    "bid": {
        "auction": pa.int64(), "bidder": pa.int64(), "price": pa.int64(), "channel": pa.string(), "url": pa.string(),
        "extra": pa.string(),
    },
    "side_input": {"key": pa.int64(), "value": pa.string()},
}  # fmt: skip
"""Besides event_time, which the published queries call dateTime."""


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A transform."""

    sql: str
    temporal: dict[str, list[str]] = {}
    """Primary keys of inputs that are seen as versions."""
    name: str = ""
    """Under which later steps read it."""

    @property
    def transform(self) -> TransformSql:
        tables = tuple(TemporalTable(name=name, primary_key=tuple(keys)) for name, keys in self.temporal.items())
        steps = (SqlQueryStep(query=self.sql),)
        return TransformSql(engine="spark", queries=steps, temporal_tables=tables or None)

    def inputs(self, known: Mapping[str, Any]) -> list[str]:
        """Those of the known names that it reads."""
        words = set(self.sql.replace(",", " ").replace("(", " ").replace(")", " ").replace(";", " ").split())
        return [alias for alias in known if alias in words]


class Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of the benchmark's."""

    title: str
    published: str
    """In Spark's words, with the event time selected, which every dataset has."""
    refused: list[str] = []
    """What is found wrong with that; nothing: it is a transform."""
    steps: list[Step] = []
    """What computes the same then."""
    duck: str = ""
    """The whole result in DuckDB's words, if they are not those of the only step; named steps are tables to it."""
    differs: str = ""
    """In what our words say more than the published ones."""

    @property
    def transforms(self) -> list[Step]:
        """None where nothing computes the same yet."""
        return self.steps if self.refused else [Step(self.published)]


def queries() -> dict[str, Query]:
    return msgspec.convert(yaml.safe_load(QUERIES.read_text()), dict[str, Query])


def table(found: Mapping[str, Query]) -> str:
    """What becomes of each query, in Markdown."""
    lines = ["| query | what it asks | as published | in other words |", "|---|---|---|---|"]
    for name, query in found.items():
        verdict = ", ".join(f"`{code}`" for code in query.refused) or "accepted"
        other = "" if not query.refused else query.differs if query.steps else "none yet"
        lines.append(f"| {name} | {query.title} | {verdict} | {other} |")
    accepted = sum(not query.refused for query in found.values())
    other = sum(bool(query.refused and query.steps) for query in found.values())
    lines.append("")
    missing = len(found) - accepted - other
    rest = f"{other} in other words, and {missing} cannot be asked yet" if missing else f"and {other} in other words"
    lines.append(f"Of {len(found)} queries {accepted} are accepted as published, {rest}.")
    return "\n".join(lines)


def schemas() -> dict[str, pa.Schema]:
    """Of the slices of each input."""
    return {name: _slice(name, [], 0).schema for name in _COLUMNS}


Row = dict[str, Any]


def events(seed: int = 1) -> dict[str, list[Row]]:
    """By table the rows in the order in which they were written down; times are in milliseconds."""
    rng = random.Random(f"nexmark {seed}")
    made: dict[str, list[Row]] = {name: [] for name in _COLUMNS}
    for number in range(EVENTS):
        time = BEGIN + number * STEP
        place = number % 50
        kind = "person" if place == 0 else "auction" if place <= 3 else "bid"
        made[kind].append({"event_time": time, **_MAKERS[kind](rng, made, time), "extra": _letters(rng, 12)})
    keys = range(_FIRST, _FIRST + 20)
    made["side_input"] = [{"event_time": BEGIN - 1000, "key": key, "value": f"side {key}"} for key in keys]
    for name in ("auction", "bid", "person"):
        made[name].sort(key=lambda row: row["event_time"] + rng.randrange(DISORDER))
    for rows in made.values():
        for number, row in enumerate(rows):
            row["system_time"] = BEGIN + 20_000 * (number // block_size(rows))
    return made


def block_size(rows: Sequence[Row]) -> int:
    return -(-len(rows) // BLOCKS)


def _letters(rng: random.Random, count: int) -> str:
    return "".join(rng.choice("abcdefgh") for _ in range(count))


def _person(rng: random.Random, made: Mapping[str, list[Row]], time: int) -> Row:
    city, state = rng.choice(_CITIES)
    name = f"{rng.choice(['Peter', 'Kate', 'Sarah'])} {rng.choice(['Jones', 'Smith', 'White'])}"
    return {
        "id": 1000 + len(made["person"]), "name": name, "emailAddress": f"{_letters(rng, 5)}@{_letters(rng, 4)}.com",
        "creditCard": " ".join(f"{rng.randrange(10_000):04}" for _ in range(4)), "city": city, "state": state,
    }  # fmt: skip


def _price(rng: random.Random) -> int:
    return round(10 ** (rng.random() * 6) * 100)


def _auction(rng: random.Random, made: Mapping[str, list[Row]], time: int) -> Row:
    first = _price(rng)
    return {
        "id": _FIRST + len(made["auction"]), "itemName": _letters(rng, 6), "description": _letters(rng, 20),
        "initialBid": first, "reserve": first + _price(rng), "expires": time + rng.randrange(1, 30) * 1000,
        "seller": rng.choice(made["person"][-4:])["id"], "category": 10 + rng.randrange(3),
    }  # fmt: skip


def _bid(rng: random.Random, made: Mapping[str, list[Row]], time: int) -> Row:
    channel = rng.choice(["Google", "Facebook", "Baidu", "Apple", f"channel-{rng.randrange(20)}"])
    url = f"https://www.nexmark.com/{_letters(rng, 3)}/{_letters(rng, 3)}/{_letters(rng, 3)}/item.htm?query=1"
    return {
        "auction": rng.choice(made["auction"][-6:])["id"], "bidder": rng.choice(made["person"][-8:])["id"],
        "price": _price(rng), "channel": channel, "url": url + rng.choice(["", f"&channel_id={rng.randrange(100)}"]),
    }  # fmt: skip


_MAKERS: Final = {"person": _person, "auction": _auction, "bid": _bid}


def lay_out(folder: Path, made: Mapping[str, Sequence[Row]]) -> dict[str, Laid]:
    """Input chains: blocks of equal size, each with the time up to which its chain is complete after it."""
    end = BEGIN + EVENTS * STEP + 2 * DAY
    return {name: _laid(folder, name, rows, end) for name, rows in made.items()}


def _laid(folder: Path, name: str, rows: Sequence[Row], end: int) -> Laid:
    empty, blocks = folder / f"{name}-schema", []
    write_slice(_slice(name, [], 0).slice(0, 0), empty)
    size, before = block_size(rows), None
    for number, start in enumerate(range(0, len(rows), size)):
        path = folder / f"{name}-{number}"
        write_slice(_slice(name, rows[start : start + size], start), path)
        after = min((row["event_time"] for row in rows[start + size :]), default=rows[-1]["event_time"])
        blocks.append(block_of(f"{name}-{number}", path, before, after))
        before = after
    return Laid(dataset_of(name), (*blocks, block_of(f"{name}-end", None, before, end)), str(empty))


def _slice(name: str, rows: Sequence[Row], offset: int) -> pa.Table:
    columns: dict[str, pa.Array] = {
        "offset": pa.array(range(offset, offset + len(rows)), pa.int64()),
        "op": pa.array([0] * len(rows), pa.int32()),
        "system_time": _column(rows, "system_time", TIME),
        "event_time": _column(rows, "event_time", TIME),
        **{each: _column(rows, each, kind) for each, kind in _COLUMNS[name].items()},
    }
    required = ("offset", "op", "system_time")
    fields = [pa.field(each, column.type, nullable=each not in required) for each, column in columns.items()]
    return pa.table(list(columns.values()), schema=pa.schema(fields))


def _column(rows: Sequence[Row], name: str, kind: pa.DataType) -> pa.Array:
    values = [row[name] for row in rows]
    return pa.array(values, pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else pa.array(values, kind)


SLICINGS: Final = ("at once", "in pieces", "block by block")


def cuts(slicing: str, sizes: Mapping[str, int]) -> list[Mapping[str, int]]:
    """How many blocks of each input every transaction takes."""
    if slicing == "at once":
        return [sizes]
    if slicing == "in pieces":
        return [*schedule(random.Random(str(sorted(sizes))), sizes)]
    turns = itertools.zip_longest(*([alias] * size for alias, size in sizes.items()))
    return [dict.fromkeys(sizes, 0) | {alias: 1} for turn in turns for alias in turn if alias is not None]


@dataclass(frozen=True)
class Came:
    """What came of all steps of a query."""

    outcomes: tuple[Outcome, ...]
    columns: tuple[tuple[str, ...], ...]
    """Of each step: names of its rows' values after op and event time."""


def compute(query: Query, slicing: str, inputs: Mapping[str, Laid], bed: Bed, folder: Path) -> Came:
    """Run all steps of a query, each over the outputs of those before it as they were cut."""
    known, outcomes, columns = dict(inputs), [], []
    for number, step in enumerate(query.transforms):
        read = {alias: known[alias] for alias in step.inputs(known)}
        coordinator = Coordinator(folder / f"{slicing}-{number}", bed, step.transform, read)
        sizes = {alias: len(laid.blocks) for alias, laid in read.items()}
        for takes in cuts(slicing, sizes):
            coordinator.transact(takes)
        outcomes.append(coordinator.outcome())
        path = next(path for path, _ in coordinator.steps if path is not None)
        columns.append(tuple(pq.read_schema(path).names[4:]))
        if step.name:
            known[step.name] = as_input(step.name, coordinator.steps)
    return Came(tuple(outcomes), tuple(columns))


def expected(
    query: Query, made: Mapping[str, Sequence[Row]], duck: Duck, names: Sequence[str]
) -> list[tuple[Any, ...]]:
    """The whole result over all events, as DuckDB has it: event time in milliseconds, then the named columns."""
    duck.newSession()
    for name, rows in made.items():
        slice_ = _slice(name, rows, 0)
        micros = [field.with_type(MICROS) if field.type == TIME else field for field in slice_.schema]
        duck.name(name, slice_.cast(pa.schema(micros)))
    found = duck.query([("", query.duck or query.transforms[-1].sql)])
    columns = [found[name] for name in ("event_time", *names)]
    shown = [each.cast(pa.timestamp("ms", "UTC")).cast(pa.int64()) if each.type == MICROS else each for each in columns]
    return list(zip(*(each.to_pylist() for each in shown), strict=True))
