"""A coordinator that keeps slices and checkpoints in a folder, and the troubles that it lives through.

The engine is killed in the middle of a transaction and asked again; it is restarted between transactions, so that it
forgets what it read; checkpoints get lost and are made again from the chains alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import engines.spark.execution.transform as transform
from chain.data.parquet import write_slice
from chain.ids import DatasetId
from chain.instant import from_millis
from chain.model.source import TransformSql
from chain.multihash import Multihash
from conformance.histories import START, Block, Histories, History, Row, Take
from engines.contract import InputBlock, Success, TransformRequest, TransformRequestInput, Vocab
from engines.request_control import RequestControl
from engines.spark.planning.slice_facts import SliceReader
from engines.spark.sql.queries import Analyst
from engines.spark.state.checkpoint import open_blocks

TIME = pa.timestamp("ms", "UTC")
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("op", pa.int32(), nullable=False),
        pa.field("system_time", TIME, nullable=False),
        pa.field("event_time", TIME),
        pa.field("k", pa.string()),
        pa.field("v", pa.int64()),
    ]
)
OUT = DatasetId.from_public_key(b"o" * 32)
SYSTEM_TIME = from_millis(START * 2)


class Killed(BaseException):
    """The engine is no more."""


class Troubles:
    """Kills the engine at a point that it comes to: ``query``, or ``checkpoint`` or ``data`` being written."""

    KINDS = (
        ("query", ""),
        *((point, manner) for point in ("checkpoint", "data") for manner in ("before", "half", "after")),
    )

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._armed: tuple[str, str] | None = None
        save, write = transform.save, transform.write_slice
        patch.setattr(transform, "save", lambda path, *rest: self._write("checkpoint", Path(path), save, path, *rest))
        patch.setattr(transform, "write_slice", lambda table, path: self._write("data", path, write, table, path))

    def arm(self, point: str, manner: str) -> None:
        self._armed = (point, manner)

    def disarm(self) -> None:
        self._armed = None

    def query(self) -> None:
        if self._armed is not None and self._armed[0] == "query":
            raise Killed

    def _write(self, point: str, path: Path, write: Callable[..., Any], *given: Any) -> None:
        mine = self._armed is not None and self._armed[0] == point
        manner = self._armed[1] if self._armed is not None and mine else None
        if manner == "before":
            raise Killed
        write(*given)
        if manner == "half":
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        if mine:
            raise Killed


@dataclass(frozen=True)
class Bed:
    """Where engines run."""

    session: Callable[[], Any]
    analyst: Analyst


@dataclass(frozen=True)
class Laid:
    """An input in the folder."""

    dataset: DatasetId
    blocks: tuple[InputBlock, ...]
    schema_file: str


def dataset_of(alias: str) -> DatasetId:
    return DatasetId.from_public_key((alias.encode() * 32)[:32])


def lay_out(folder: Path, histories: Histories) -> dict[str, Laid]:
    """Slices and blocks of all inputs."""
    empty = folder / "schema"
    write_slice(SCHEMA.empty_table(), empty)
    return {alias: Laid(dataset_of(alias), tuple(_blocks(folder, alias, blocks)), str(empty))
            for alias, blocks in histories.items()}  # fmt: skip


def _blocks(folder: Path, alias: str, blocks: History) -> list[InputBlock]:
    made, offset = [], 0
    for number, block in enumerate(blocks):
        path = folder / f"in-{alias}-{number}"
        if block.rows:
            columns = [
                range(offset, offset + len(block.rows)), [row.op for row in block.rows],
                [START + 1000 * number] * len(block.rows), *([row[at] for row in block.rows] for at in range(3)),
            ]  # fmt: skip
            arrays = [pa.array(list(each)).cast(field.type) for each, field in zip(columns, SCHEMA, strict=True)]
            write_slice(pa.table(arrays, schema=SCHEMA), path)
            offset += len(block.rows)
        made.append(block_of(f"{alias}-{number}", path if block.rows else None, block.before, block.after))
    return made


def block_of(name: str, path: Path | None, before: int | None, after: int | None) -> InputBlock:
    return InputBlock(
        data_path=None if path is None else str(path),
        watermark_before=None if before is None else from_millis(before),
        watermark_after=None if after is None else from_millis(after),
        block_hash=Multihash.sha3_256(name.encode()),
    )


def as_input(alias: str, steps: Sequence[tuple[Path | None, int | None]]) -> Laid:
    """The output of a transform as the input of another: a block for every transaction that left a trace."""
    made, before = [], None
    for number, (path, after) in enumerate(steps):
        if path is not None or after != before:
            made.append(block_of(f"{alias}={number}", path, before, after))
        before = after
    schema = next(block.data_path for block in made if block.data_path)
    return Laid(dataset_of(alias), tuple(made), schema or "")


def history_of(laid: Laid) -> History:
    """Of an input whose slices have the columns event_time, k and v: what its blocks say."""
    made = []
    for block in laid.blocks:
        table = rows_of(Path(block.data_path)) if block.data_path else SCHEMA.empty_table()
        times = table["event_time"].cast(pa.int64()).to_pylist()
        rows = zip(times, table["k"].to_pylist(), table["v"].to_pylist(), table["op"].to_pylist(), strict=True)
        marks = (None if mark is None else mark // 10**6 for mark in (block.watermark_before, block.watermark_after))
        made.append(Block(tuple(Row(*row) for row in rows), *marks))
    return tuple(made)


def reopened(blocks: Sequence[InputBlock], dataset: DatasetId, checkpoint: Path | None) -> list[InputBlock]:
    """Which of the blocks so far are mounted again, as the checkpoint says."""
    if checkpoint is None:
        return []
    hashes = [block.block_hash for block in blocks]
    wanted: set[int] = set()
    for first, last in open_blocks(checkpoint.read_bytes()).get(dataset, []):
        wanted.update(range(hashes.index(first), hashes.index(last) + 1))
    return [msgspec.structs.replace(blocks[at], reopened=True) for at in sorted(wanted) if blocks[at].data_path]


def rows_of(path: Path) -> pa.Table:
    """Of a slice, as it lies in the file."""
    with pq.ParquetFile(path) as file:
        return file.read(use_threads=False)


@dataclass
class Coordinator:
    """Of one derived dataset."""

    folder: Path
    bed: Bed
    sql: TransformSql
    inputs: Mapping[str, Laid]
    changelogs: Sequence[str] = ()
    done: dict[str, int] = field(default_factory=dict)
    previous: Path | None = None
    steps: list[tuple[Path | None, int | None]] = field(default_factory=list)
    """Slice and output watermark (milliseconds) of every transaction."""
    rows: int = 0
    late: int = 0
    attempts: int = 0
    troubles: int = 0
    """That came."""
    held_back: bool = False
    """The state is that of a cut and of an emission limit."""

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.done = dict.fromkeys(self.inputs, 0)
        self._caches = self._fresh()

    def _fresh(self) -> transform.SharedCaches:
        return transform.SharedCaches(self.bed.analyst, SliceReader())

    def restart(self) -> None:
        self._caches = self._fresh()

    def request(self, takes: Mapping[str, int], same_place: bool = False, limit: int | None = None) -> TransformRequest:
        self.attempts += not same_place
        given = []
        for alias, laid in self.inputs.items():
            at = self.done[alias]
            given.append(TransformRequestInput(
                dataset_id=laid.dataset, dataset_alias=alias, query_alias=alias, vocab=Vocab(),
                blocks=(*reopened(laid.blocks[:at], laid.dataset, self.previous), *laid.blocks[at : at + takes[alias]]),
                schema_file=laid.schema_file, changelog=alias in self.changelogs,
            ))  # fmt: skip
        return TransformRequest(
            dataset_id=OUT, dataset_alias="out", system_time=SYSTEM_TIME, vocab=Vocab(), transform=self.sql,
            query_inputs=tuple(given), next_offset=self.rows,
            prev_checkpoint_path=None if self.previous is None else str(self.previous),
            new_checkpoint_path=str(self.folder / f"checkpoint-{self.attempts}"),
            new_data_path=str(self.folder / f"out-{self.attempts}"),
            emission_limit=None if limit is None else from_millis(limit),
        )  # fmt: skip

    def ask(self, request: TransformRequest) -> Success:
        answer = transform.run_transform(self.bed.session(), request, RequestControl(), self._caches)
        assert isinstance(answer, Success), answer
        return answer

    def transact(self, takes: Mapping[str, int], same_place: bool = False, limit: int | None = None) -> None:
        request = self.request(takes, same_place, limit)
        answer = self.ask(request)
        path = None
        if answer.new_offset_interval is not None:
            path = Path(request.new_data_path)
            assert answer.new_offset_interval.start == self.rows
            self.rows = answer.new_offset_interval.end + 1
        self.previous = Path(request.new_checkpoint_path)
        self.done = {alias: count + takes[alias] for alias, count in self.done.items()}
        mark = answer.new_watermark
        self.steps.append((path, None if mark is None else mark // 10**6))
        self.late += answer.late or 0
        self.held_back = limit is not None

    def transact_in_trouble(
        self, takes: Mapping[str, int], limit: int | None, rng: random.Random, troubles: Troubles
    ) -> None:
        """A transaction in a world where things go wrong; it is done in the end."""
        if rng.random() < 0.3:
            self.restart()
        if self.previous is not None and not self.held_back and rng.random() < 0.12:
            self.lose_checkpoint()
        same_place = False
        while rng.random() < 0.2:
            troubles.arm(*rng.choice(troubles.KINDS))
            try:
                self.ask(self.request(takes, same_place, limit))
            except Killed:
                self.troubles += 1
                self.restart()
                same_place = rng.random() < 0.5
            finally:
                troubles.disarm()
        self.transact(takes, same_place, limit)

    def lose_checkpoint(self) -> None:
        """Make it again from the chains, in one transaction over all that was consumed."""
        assert self.previous is not None
        lost = self.previous.read_bytes()
        self.previous.unlink()
        anew = Coordinator(self.folder / f"anew-{self.attempts}", self.bed, self.sql, self.inputs, self.changelogs)
        anew.transact(self.done)
        assert anew.previous is not None
        assert anew.previous.read_bytes() == lost, "state must be a function of the cut"
        assert (anew.rows, anew.late) == (self.rows, self.late)
        self.previous = anew.previous
        self.troubles += 1

    def run(self, steps: Sequence[Take], rng: random.Random, troubles: Troubles | None) -> Outcome:
        """The whole schedule."""
        for takes, limit in steps:
            if troubles is None:
                self.transact(takes, limit=limit)
            else:
                self.transact_in_trouble(takes, limit, rng, troubles)
        assert self.done == {alias: len(laid.blocks) for alias, laid in self.inputs.items()}
        return self.outcome()

    def outcome(self) -> Outcome:
        assert self.previous is not None
        tables = [rows_of(path) for path, _ in self.steps if path is not None]
        rows = [tuple(row) for table in tables for row in _plain(table)]
        offsets = [offset for table in tables for offset in table["offset"].to_pylist()]
        assert offsets == list(range(self.rows))
        return Outcome(rows, self.previous.read_bytes(), self.late, self.steps[-1][1], len(tables))


def _plain(table: pa.Table) -> list[list[Any]]:
    """Of each row: op, event time in milliseconds, the other columns."""
    names = [name for name in table.column_names if name not in ("offset", "op", "system_time", "event_time")]
    time = table["event_time"].cast(pa.int64()).to_pylist()
    rest = [table[name].cast(pa.int64()) if pa.types.is_timestamp(table[name].type) else table[name] for name in names]
    return [list(row) for row in zip(table["op"].to_pylist(), time, *(each.to_pylist() for each in rest), strict=True)]


@dataclass(frozen=True)
class Outcome:
    """What a dataset's readers see, and the state at its cut."""

    rows: list[tuple[Any, ...]]
    """(op, event time in milliseconds, columns)."""
    state: bytes
    late: int
    watermark: int | None
    with_data: int
