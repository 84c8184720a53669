"""Computes the difference of a handover once, and keeps it as a chain, so that readers need not compare all rows.

The chain is a private root inside the collection, called ``NAME.hN`` after the handover's number. Its one transaction
has the time of the handover and pins the cuts of both renditions. It counts only after it was compared with both. Spec:
docs/spec/collections.md#differences.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import trio

from chain.data.arrow_schema import to_arrow
from chain.data.parquet import SliceWriter, open_slice
from chain.errors import Refused
from chain.ids import DatasetId
from chain.instant import Instant, parse, to_millis
from chain.libraries import np, pa
from chain.model.events import AddData, DatasetKind, MetadataEvent, Seed, SetDataSchema, Vocab
from chain.model.schema import DataSchema
from chain.multihash import Multihash
from chain.state import load_state
from chain.store.objects import staged_in
from chain.wording import plural
from engines.query.views import quote_name
from odfd.control import wire
from odfd.datasets.commit import Commit, CommitPart, Committer
from odfd.ingest.file_writer import staged_folder
from odfd.ingest.plan import schema_in_force
from odfd.ingest.slices import keep_slice
from odfd.queries.askers import Bound
from odfd.renditions.timeline import find_switch
from odfd.runtime.clock import Clock
from odfd.services.renditions.effects import RenditionEffects
from odfd.services.renditions.reading import EXTRA, columns_of, cuts_of, pinned_head, reading_at_the_end
from odfd.store import collections
from odfd.store.collections import CollectionState, KeptDifference
from odfd.store.directory import StateDirectory
from odfd.store.visibility import Marks, VisibilityMark

RULE: Final = "rendition-difference"
WriteAnswer = Callable[[str, Mapping[str, Bound], Path], Awaitable[None]]
"""Writes the answer to a query over bound names to a Parquet file."""


class RenditionDifferences:
    """Computes and checks differences of handovers on one node."""

    def __init__(
        self,
        home: StateDirectory,
        staging: Path,
        committer: Committer,
        clock: Clock,
        effects: RenditionEffects,
        write: WriteAnswer,
        delete: Callable[[DatasetId], Awaitable[object]],
    ) -> None:
        self._home, self._staging, self._committer, self._clock = home, staging, committer, clock
        self._effects, self._write, self._delete = effects, write, delete

    def check_comparable(self, state: CollectionState, number: int) -> None:
        """Raises Refused if rows of the active rendition and of another one cannot be compared.

        Raises Invalid if another dataset has the name of the difference.
        """
        with self._home.catalog() as catalog:
            catalog.check_difference(state.active.dataset, len(state.timeline.switches))
        new = state.member(number)
        usual = all(load_state(self._home.chains.chain(each.dataset)).vocab == Vocab() for each in (state.active, new))
        if columns_of(self._home, state.active, new) is None or not usual:
            raise Refused(
                f"rendition {number} has other columns than the active one, or system columns with names of their own:"
                " there is no difference of rows",
                rule=RULE,
                hint="hand over without --difference: readers get all rows of both",
            )

    async def make(self, dataset: DatasetId, command: str) -> None:
        """Computes and records the difference of the handover that a command made, unless both contents are equal.

        What was checked already stays, and what was not is made again. Raises Refused if it is not the difference, and
        what a query may raise.
        """
        due = await trio.to_thread.run_sync(self._look, dataset, command)
        if due is None:
            return
        state, reading, unchecked = due
        if unchecked is not None:
            await self._delete(unchecked.dataset)
        kept = await self._compute(state, reading)
        self._effects.step("difference-written")
        await self._check(reading, kept.dataset)
        await trio.to_thread.run_sync(self._record, kept, msgspec.structs.replace(kept, is_checked=True))

    def _look(
        self, dataset: DatasetId, command: str
    ) -> tuple[CollectionState, wire.HandoverReading, KeptDifference | None] | None:
        """Returns what is to be compared, and a difference that was written and not checked before a crash.

        ``None`` if there is nothing to record.
        """
        state = self._effects.state(dataset)
        switch = find_switch(state.timeline, command)
        assert switch is not None
        place = state.timeline.switches.index(switch)
        known = next((each for each in state.differences if each.time == switch.time), None)
        if known is not None and known.is_checked:
            return None
        reading = reading_at_the_end(self._home, state, state.timeline.switches[place - 1].to.number)
        if reading.equal or to_millis(parse(reading.time)) != switch.time:
            return None
        return state, reading, known

    async def _compute(self, state: CollectionState, reading: wire.HandoverReading) -> KeptDifference:
        assert reading.columns is not None
        async with staged_folder(self._staging) as folder:
            path = folder / "difference"
            await self._write(difference_sql(reading.columns, reading), _bind(reading), path)
            return await trio.to_thread.run_sync(self._keep, state, reading, path)

    def _keep(self, state: CollectionState, reading: wire.HandoverReading, path: Path) -> KeptDifference:
        """Begins the chain with the rows in a file; nobody checked it yet."""
        time = parse(reading.time)
        known = load_state(self._home.chains.chain(state.active.dataset))
        schema = schema_in_force(known)
        assert schema is not None, "rows that differ have columns"
        objects = self._home.objects
        with staged_in(objects) as staged:
            rows = _slice(path, staged, schema, time)
            data = keep_slice(objects, staged, schema, "offset") if rows else None
        made = AddData(new_data=data, new_watermark=time, extra={EXTRA: cuts_of(reading)})
        with self._home.newborn() as born:
            events: Sequence[MetadataEvent] = (
                Seed(dataset_id=born, dataset_kind=DatasetKind.ROOT), SetDataSchema(schema=schema), made,
            )  # fmt: skip

            kept = KeptDifference(time=to_millis(time), dataset=born, is_checked=False)

            def together(connection: sqlite3.Connection) -> None:
                Marks(connection).put(born, VisibilityMark.PRIVATE, self._clock.now())
                latest = collections.of(connection, state.active.dataset)
                collections.keep(connection, msgspec.structs.replace(latest, differences=(*latest.differences, kept)))

            names = () if data is None else (data.physical_hash,)
            part = CommitPart(dataset=born, expected=None, events=events, objects=names, time=time)
            self._committer.commit_now(Commit(parts=(part,), also=together))
            return kept

    async def _check(self, reading: wire.HandoverReading, kept: DatasetId) -> None:
        """Raises Refused unless a chain has exactly the rows by which both cuts differ."""
        assert reading.columns is not None
        head = await trio.to_thread.run_sync(pinned_head, self._home, kept, reading)
        bound = {**_bind(reading), "kept": Bound(kept, head.hash)}
        async with staged_folder(self._staging) as folder:
            path = folder / "check"
            await self._write(check_sql(reading.columns, reading), bound, path)
            with open_slice(path) as file:
                wrong = sum(batch.column(0)[0].as_py() for batch in file.batches())
        if wrong:
            name = self._home.name_of(kept)
            raise Refused(
                f"{name} is not the difference of both renditions: {plural(wrong, 'row')} of it, or missing in it",
                rule=RULE,
                hint="repeat the command with its --id: it is made again; readers compare all rows until then",
            )

    def _record(self, kept: KeptDifference, checked: KeptDifference) -> None:
        with self._home.database.write() as connection:
            state = collections.whole(connection, kept.dataset)
            found = tuple(checked if each == kept else each for each in state.differences)
            collections.keep(connection, msgspec.structs.replace(state, differences=found))


def difference_sql(columns: Sequence[str], reading: wire.HandoverReading) -> str:
    """Builds SQL for the rows that one of both cuts has more often, as many times: operation 1 retracts, 0 adds."""
    chosen = ", ".join(map(quote_name, columns))
    sums = _sums(chosen, _sides(chosen, reading))
    each = f'SELECT *, unnest(range(abs("odfd s")::BIGINT)) AS "odfd r" FROM ({sums})'  # noqa: S608  quoted
    return f'SELECT if("odfd s" < 0, 1, 0) AS op, {chosen} FROM ({each}) ORDER BY op DESC, {chosen}'  # noqa: S608


def check_sql(columns: Sequence[str], reading: wire.HandoverReading) -> str:
    """Builds SQL for the number of rows by which ``kept`` is not the difference of both cuts."""
    chosen = ", ".join(map(quote_name, columns))
    sides = [*_sides(chosen, reading), f'SELECT {chosen}, if(op = 1, 1, -1) AS "odfd w" FROM kept']  # noqa: S608
    return f'SELECT coalesce(sum(abs("odfd s")), 0)::BIGINT AS n FROM ({_sums(chosen, sides)})'  # noqa: S608


def _sums(chosen: str, sides: Sequence[str]) -> str:
    both = " UNION ALL ".join(sides)
    return f'SELECT {chosen}, sum("odfd w") AS "odfd s" FROM ({both}) GROUP BY ALL HAVING sum("odfd w") <> 0'  # noqa: S608


def _sides(chosen: str, reading: wire.HandoverReading) -> list[str]:
    weights = {"old": -1, "new": 1}
    return [
        f'SELECT {chosen}, {weights[name[:3]]} AS "odfd w" FROM current.{name}'  # noqa: S608  quoted
        for name in _bind(reading)
    ]


def _bind(reading: wire.HandoverReading) -> dict[str, Bound]:
    """Binds ``old0``, ``new0`` and so on to the cuts of all shards."""
    sides = {"old": reading.old_shards or (reading.old,), "new": reading.new_shards or (reading.new,)}
    return {
        f"{side}{number}": Bound(DatasetId.parse(pin.id), Multihash.parse(pin.block))
        for side, pins in sides.items()
        for number, pin in enumerate(pins)
    }


def _slice(path: Path, target: Path, schema: DataSchema, time: Instant) -> int:
    """Writes the rows of an answer as a slice of ``schema``. Returns their number."""
    arrow = to_arrow(schema).remove_metadata()
    stamp = pa.scalar(to_millis(time), pa.int64()).cast(pa.timestamp("ms", "UTC"))
    with open_slice(path) as file, SliceWriter(target, arrow) as writer:
        for batch in file.batches():
            offsets = pa.array(np.arange(writer.rows, writer.rows + batch.num_rows), pa.int64())
            system = {"offset": offsets, "system_time": pa.repeat(stamp, batch.num_rows)}
            columns = [system[field.name] if field.name in system else batch.column(field.name) for field in arrow]
            arrays = [column.cast(field.type) for column, field in zip(columns, arrow, strict=True)]
            writer.write(pa.Table.from_arrays(arrays, schema=arrow))
        return writer.rows
