"""Prepares the datasets of an apply: what its manifest changes, and whether its sources and its query can work.

The dataset may be one that was deleted and whose data is kept.

The engine judges a transform first: a query that it cannot promise to compute alike everywhere is refused here, not
when data comes. Nothing is written.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import trio

from chain.codec.arrow_schema import schema_of
from chain.data.partition import MAX_SHARDS
from chain.errors import Environment, Fault, Invalid, NotFound, Refused
from chain.ids import DatasetId, parse_own_name
from chain.model.events import (
    AddPushSource,
    DatasetKind,
    DatasetSnapshot,
    MetadataEvent,
    SetDataSchema,
    SetPollingSource,
    SetTransform,
    SetVocab,
    Vocab,
)
from chain.model.source import Transform, TransformSql
from chain.state import ChainState, load_state
from chain.store.base import Head
from chain.store.former_epochs import SET_ASIDE
from chain.wording import plural
from engines.contract import Diagnostic, Severity
from engines.errors import EngineFault, EngineLost
from engines.spark.analysis.source_declarations import read_source
from odfd.control import wire
from odfd.datasets.commit import CommitPart
from odfd.datasets.creation import changed_events, founding_events
from odfd.datasets.engine_pins import ENGINE_CHANGED, Engines, engine_for, short
from odfd.datasets.manifest import MAX_SHARD_COLUMNS
from odfd.ingest import sharded_writes
from odfd.ingest.acceptance import check_source
from odfd.ingest.alteration import ChangeKind, change_kind_of
from odfd.ingest.settings import IngestSettings
from odfd.ingest.templates import check_text
from odfd.obs.events import EventLog
from odfd.renditions.sharded_inputs import over
from odfd.resources.controller import ApplyBatch, Intent
from odfd.resources.plan import PlannedResource
from odfd.runtime.subjects import about
from odfd.services.datasets.batch import DatasetBatch, PlannedDataset, found_dataset
from odfd.services.datasets.desired import DesiredSnapshot, desired_of, in_order, inputs_of
from odfd.services.execution.transforms import EvolutionCheck, TransformCheck, judge_preprocess, read_schema
from odfd.services.resources.set_controllers import SetValues
from odfd.store import captures, collections, unmanaged
from odfd.store.catalog import resolve_dataset
from odfd.store.directory import StateDirectory

_LATER: Final = "is not judged yet, but with the first data: "
_UNBORN: Final = DatasetId.from_public_key(bytes(32))
"""Placeholder for a new dataset, whose key is made only if nothing is wrong with it."""

_LookedUp: TypeAlias = tuple[DesiredSnapshot, tuple[DatasetId, ChainState] | None, bool]


class DatasetPlanning:
    """Plans datasets; writes only the keys of new ones, which their batch deletes if they are not committed."""

    def __init__(
        self,
        home: StateDirectory,
        engines: Engines,
        ingestion: Callable[[], IngestSettings],
        events: EventLog,
        adopt: Callable[[str, wire.AdoptRequest], Awaitable[object]],
        rename: Callable[[DatasetId], Awaitable[None]],
    ) -> None:
        """``ingestion`` returns what sources may do here; ``adopt`` takes back a deleted dataset whose data is kept.

        ``rename`` lets what runs for a dataset go on under its new name.
        """
        self._home = home
        self._engines, self._engine = engines, engines.engine("spark")
        self._ingestion = ingestion
        self._values = SetValues(home)
        self._events, self._adopt, self._rename = events, adopt, rename

    def order(self, planned: Sequence[PlannedResource], batch: ApplyBatch) -> Sequence[PlannedResource]:
        """Returns the datasets of an apply in the order in which they can be made."""
        drafts = [batch.drafts.get(each.after.id) for each in planned]
        said = [() if draft is None else draft.spec.metadata or () for draft in drafts]
        named = [
            (each.after.name, inputs_of(each.after.name, events)) for each, events in zip(planned, said, strict=True)
        ]
        return [planned[place] for place in in_order(named)]

    async def prepare(self, planned: PlannedResource, batch: ApplyBatch) -> Intent | None:
        """Prepares a declared dataset. Raises whatever refuses it."""
        desired, before = desired_of(planned, batch), planned.before
        try:
            intent = None if desired is None else await self._intent(desired, DatasetBatch(self._home, batch))
        except Fault as fault:
            assert desired is not None
            fault.place = desired.place_of(fault)
            raise
        if before is None or before.did is None or not planned.gives_up_name:
            return intent
        note, given = await trio.to_thread.run_sync(self._values.noting, before), intent or Intent()

        def record(connection: sqlite3.Connection) -> None:
            note(connection)
            given.record(connection)

        return given._replace(record=record)

    async def follow_names(self, changed: Sequence[PlannedResource]) -> None:
        """Lets what runs for datasets with other names go on under these, and tells of it."""
        for each in changed:
            before, after = each.before, each.after
            if before is not None and before.did is not None and before.name != after.name:
                await self._rename(DatasetId.parse(before.did))
                told = about(before.did)
                self._events.emit("dataset.renamed", after.name, f"it was {before.name}", about=told, id=before.did)

    async def _intent(self, desired: DesiredSnapshot, batch: DatasetBatch) -> Intent:
        parse_own_name(desired.name)
        pin = (await self._engine.identity()).digest if _asks_engine(desired.snapshot) else None

        def pin_of(transform: TransformSql) -> str | None:
            return pin if transform.engine == "spark" else None

        (desired, held, is_kept), events = await trio.to_thread.run_sync(self._changes, desired, batch, pin_of)
        warnings = await self._check_pins(events, desired, forced=batch.whole.forced)
        warnings += await self._validate(events, desired, held[1] if held else None, batch)

        def add() -> tuple[PlannedDataset, ChangeKind | None, Sequence[CommitPart]]:
            if held is None:
                dataset, *others = batch.new_ids(desired)
                planned, course = PlannedDataset(desired, dataset, None, found_dataset(events, dataset), others), None
            else:
                dataset, state = held
                head = Head(state.head, state.sequence_number) if state.head else None
                planned = PlannedDataset(desired, dataset, head, events)
                course = self._course(desired.name, held, events)
            batch.add(planned, ChainState() if held is None else held[1])
            return planned, course, batch.parts(planned)

        planned, course, blocks = await trio.to_thread.run_sync(add)
        is_new = held is None
        item = {
            "action": "adopted" if is_kept else "unchanged" if not events else "created" if is_new else "updated",
            "id": None if is_new and batch.whole.dry_run else str(planned.dataset),
            "changes": tuple(type(event).__name__ for event in events),
            "warnings": warnings,
            "course": None if course is None else course.word,
            "course_text": "" if course is None else course.text,
        }
        request = wire.AdoptRequest(name=desired.name)
        return Intent(
            record=partial(batch.record, each=planned),
            first=partial(self._adopt, str(planned.dataset), request) if is_kept else None,
            tell=partial(self._tell, desired.name, planned.dataset, len(events), is_new=is_new),
            did=planned.dataset,
            blocks=blocks,
            item=item,
        )

    def _changes(
        self, desired: DesiredSnapshot, batch: DatasetBatch, pinned: Callable[[TransformSql], str | None]
    ) -> tuple[_LookedUp, Sequence[MetadataEvent]]:
        """Returns what ``_look_up`` does, and the events that are missing. Raises whatever refuses them or a source."""
        desired, held, is_kept = self._look_up(desired)
        resolve = partial(batch.resolve, desired=desired)
        if held is None:
            events = founding_events(desired.snapshot, _UNBORN, resolve, pinned)
            _check_birth(desired, events)
        else:
            events = changed_events(held[1], desired.snapshot, resolve, pinned)
            batch.check_circle(desired, held[0], events)
        for event in events:
            if isinstance(event, SetPollingSource | AddPushSource):
                self._check_source(event, desired)
        return (desired, held, is_kept), events

    def _look_up(self, desired: DesiredSnapshot) -> _LookedUp:
        """Returns what is declared, over shards, the dataset that stands, and whether its data was kept."""
        held, is_kept = dataset_of(self._home, desired)
        return over_shards(self._home, desired, held and held[0]), held, is_kept

    def _tell(self, name: str, dataset: DatasetId, blocks: int, *, is_new: bool) -> None:
        if blocks:
            done, text = "created" if is_new else "updated", plural(blocks, "block")
            self._events.emit(f"dataset.{done}", name, text, about=about(str(dataset)), id=str(dataset))

    def _course(
        self, name: str, held: tuple[DatasetId, ChainState], events: Sequence[MetadataEvent]
    ) -> ChangeKind | None:
        """Returns whether a change evolves a dataset or rewrites it. Blocking."""
        dataset, state = held
        with self._home.database.read() as connection:
            kept = captures.count(connection, dataset)
        return change_kind_of(name, state, events, kept)

    async def _check_pins(
        self, events: Sequence[MetadataEvent], desired: DesiredSnapshot, *, forced: bool
    ) -> tuple[str, ...]:
        """Raises Refused for a query that pins an engine which is not here; returns a warning if that is forced."""
        warnings = []
        for event in events:
            transform, place = _pinned_query(event, desired)
            if transform is None or transform.version is None:
                continue
            _, by = await engine_for(self._engines, transform)
            if not by.differs:
                continue
            text = f"no engine here is {short(by.pin)}"
            if not forced:
                own = f"leave out version, and this node's is pinned: {by.identity.digest}"
                hint = f"{own}; --force pins it, and nothing is computed until it is here"
                raise Refused(text, rule="engine-not-here", hint=hint, place=place)
            warnings.append(f"{text}: nothing is computed until it is (rule {ENGINE_CHANGED})")
        return tuple(warnings)

    def _check_source(self, event: SetPollingSource | AddPushSource, desired: DesiredSnapshot) -> None:
        """Checks a source now as its first data would be. Raises Invalid, Refused. Blocking."""
        given, base = self._ingestion(), Path(desired.draft.base) if desired.draft.base else None
        named = {*given.allowed, *desired.variables, *self._values.names(desired.name, desired.account, desired.held)}
        settings = msgspec.structs.replace(given, base=base, allowed=named)
        refused = check_source(event, settings)
        if refused is not None:
            part, fault = refused
            fault.place = desired.source_place(event, part)
            raise fault

    async def _check_preprocess(
        self, event: SetPollingSource | AddPushSource, names: Vocab, desired: DesiredSnapshot
    ) -> tuple[str, ...]:
        """Lets the engine check the query; returns warnings, also why it cannot be checked yet.

        Raises Invalid with all that the engine refuses.
        """
        query, _ = read_source(event.preprocess)
        if query is None:
            return ()
        later = f"the preprocess query {_LATER}"
        columns = read_schema(event.read)
        if columns is None:
            return (f"{later}the read step states no columns (read.schema)",)
        try:
            answer = await judge_preprocess(query, columns, names, self._engine)
        except Environment as fault:
            if _was_with_engine(fault):
                raise
            return (f"{later}{fault.message}",)
        if not answer.ok:
            raise refusal(answer.diagnostics, desired.source_place(event, "preprocess"))
        return tuple(_diagnostic_text(diagnostic) for diagnostic in answer.diagnostics)

    async def _validate(
        self,
        events: Sequence[MetadataEvent],
        desired: DesiredSnapshot,
        state: ChainState | None,
        batch: DatasetBatch,
    ) -> tuple[str, ...]:
        """Lets the engine check each transform, and the queries of sources. Returns warnings.

        Raises Invalid with all refusals.
        """
        warnings: list[str] = []
        check = TransformCheck(self._home, self._engine, batch.state)
        stated = [event for event in events if isinstance(event, SetVocab)]
        names = ChainState(set_vocab=stated[-1]).vocab if stated else state.vocab if state is not None else Vocab()
        for event in events:
            if isinstance(event, SetPollingSource | AddPushSource):
                warnings += await self._check_preprocess(event, names, desired)
            if not isinstance(event, SetTransform):
                continue
            if event.transform.engine != "spark":
                raise Invalid(
                    f"no engine {event.transform.engine!r} here",
                    rule="engine-unknown",
                    hint="write engine: spark; for words of other engines see odfctl docs kamu-compatibility",
                    place=desired.transform_place(),
                )
            _check_no_variable(event, desired)
            try:
                answer = await check.validate(event, names)
                why = await check.unknown_input(event) if answer is None else ""
            except Environment as fault:
                if _was_with_engine(fault):
                    raise
                answer, why = None, fault.message
            if answer is None:
                warnings.append(f"the query {_LATER}{why}")
                continue
            if not answer.ok:
                raise refusal(answer.diagnostics, desired.transform_place())
            warnings += [_diagnostic_text(diagnostic) for diagnostic in answer.diagnostics]
            warnings += await check.remarks(event, answer)
            if state is not None:
                succession = EvolutionCheck(self._home, self._engine, check)
                await succession.check(desired.name, state, event, batch.whole.now)
        return tuple(warnings)


def _pinned_query(event: MetadataEvent, desired: DesiredSnapshot) -> tuple[Transform | None, str]:
    """Returns the query of an event that may pin an engine, and where it is written."""
    match event:
        case SetTransform(transform=transform):
            return transform, desired.transform_place()
        case SetPollingSource(preprocess=transform) | AddPushSource(preprocess=transform) if transform is not None:
            return transform, desired.source_place(event, "preprocess")
        case _:
            return None, ""


def _check_no_variable(event: SetTransform, desired: DesiredSnapshot) -> None:
    """Raises Invalid for a query that uses a variable, since it has to be the same on every machine."""
    for step in event.transform.queries or ():
        try:
            check_text(step.query, "the query")
        except Invalid as fault:
            fault.place = desired.transform_place()
            raise


def _was_with_engine(fault: Environment) -> bool:
    """Whether the engine may have failed because of the request; false if it never got it, as after a failed start."""
    return isinstance(fault, EngineFault) or (isinstance(fault, EngineLost) and fault.at_work)


def _asks_engine(snapshot: DatasetSnapshot) -> bool:
    return snapshot.kind is DatasetKind.DERIVATIVE and any(isinstance(e, SetTransform) for e in snapshot.metadata)


def refusal(diagnostics: Sequence[Diagnostic], place: str) -> Invalid:
    """Joins an engine's errors and warnings about a query in one message, with the remedies as the hint."""
    if all(diagnostic.severity is not Severity.ERROR for diagnostic in diagnostics):
        return Invalid("the engine refuses this query without a reason", rule="query", place=place)
    diagnostics = sorted(diagnostics, key=lambda each: each.severity is not Severity.ERROR)
    remedies = dict.fromkeys(diagnostic.replace for diagnostic in diagnostics if diagnostic.replace)
    hint = f"instead: {'; '.join(remedies)}" if remedies else ""
    return Invalid(
        "; ".join(diagnostic.message for diagnostic in diagnostics), rule=diagnostics[0].code, hint=hint, place=place
    )


def _diagnostic_text(each: Diagnostic) -> str:
    place = f"line {each.line}, column {each.column}: " if each.line is not None else ""
    remedy = f"; instead: {each.replace}" if each.replace else ""
    return f"{place}{each.message}{remedy} (rule {each.code})"


def dataset_of(home: StateDirectory, desired: DesiredSnapshot) -> tuple[tuple[DatasetId, ChainState] | None, bool]:
    """Returns the dataset with its state, or ``None`` for a new one; and whether it is a deleted one with kept data.

    Raises Invalid for a ``did`` of another dataset than the name's, NotFound for one that is not here at all. Blocking.
    """
    with home.catalog() as catalog:
        entry = None if desired.held is None else catalog.find(desired.held)
        known = None if desired.did is None else catalog.find(desired.did)
    if entry is None and desired.did is not None and known is None:
        return (desired.did, _kept_state(home, desired.did)), True
    if known is not None and known.is_inner and entry is not None and entry.id == _whole(home, known.id):
        known = entry  # the did of a rendition from before a handover, or of a shard
    is_same = entry is not None and entry.id in (desired.did, None if known is None else known.id)
    if desired.did is not None and not is_same:
        text = f"{desired.did.short} is {known.name}" if known else f"{desired.name} is another dataset"
        hint = f"odfctl rename {known.name} {desired.name}" if known else "choose another name, or leave out spec.did"
        raise Invalid(text, rule="dataset-did", hint=hint, place=desired.place("did"))
    return (None if entry is None else (entry.id, load_state(home.chains.chain(entry.id)))), False


def over_shards(home: StateDirectory, desired: DesiredSnapshot, dataset: DatasetId | None) -> DesiredSnapshot:
    """Replaces each input that has several shards by its shards, as inputs of their own. Blocking.

    ``dataset``: the declared dataset, if it is here already. Raises Refused and Invalid, also for impossible shards.
    """
    _check_shards(home, desired, dataset)
    metadata = tuple(
        _over_shards(home, each, desired) if isinstance(each, SetTransform) else each
        for each in desired.snapshot.metadata
    )
    snapshot = msgspec.structs.replace(desired.snapshot, metadata=metadata)
    return desired if snapshot == desired.snapshot else msgspec.structs.replace(desired, snapshot=snapshot)


def _over_shards(home: StateDirectory, transform: SetTransform, desired: DesiredSnapshot) -> SetTransform:
    for ref in [input_.dataset_ref for input_ in transform.inputs]:
        if ref.removeprefix("Dataset:").startswith("did:"):
            continue  # an id names one chain
        with suppress(NotFound, Invalid), home.catalog() as catalog:  # told when it is resolved, if it is missing
            shards = home.shards_of(resolve_dataset(ref, desired.meant, catalog, desired.account).id)
            if len(shards) > 1:
                transform = over(transform, (ref,), [str(shard) for shard in shards])
    return transform


def _whole(home: StateDirectory, dataset: DatasetId) -> DatasetId:
    """Returns the chain that stands for the collection of one."""
    with home.database.read() as connection:
        return collections.whole(connection, dataset).active.dataset


def _kept_state(home: StateDirectory, dataset: DatasetId) -> ChainState:
    with home.database.read() as connection:
        unmanaged.find(connection, dataset)
    return load_state(home.chains.former(dataset, SET_ASIDE))


def _check_shards(home: StateDirectory, desired: DesiredSnapshot, dataset: DatasetId | None) -> None:
    """Checks the declared shards of a dataset. ``dataset``: its id, if it is here already.

    Raises Invalid for an impossible number, Refused for other shards than those that the dataset has.
    """
    wanted = desired.shards
    if wanted is None:
        return
    place = desired.place("shards")
    if not 1 <= wanted.number <= MAX_SHARDS or (wanted.number > 1) != bool(wanted.by):
        raise Invalid(
            f"{plural(wanted.number, 'shard')} by {plural(len(wanted.by), 'column')}",
            rule="shard-number",
            hint=f"1 without a column, or 2 to {MAX_SHARDS} by 1 to {MAX_SHARD_COLUMNS}",
            place=place,
        )
    if desired.snapshot.kind is DatasetKind.DERIVATIVE:
        raise Refused(f"{desired.name} is derived, and has one shard", rule="rendition-derived", place=place)
    if dataset is None:
        return
    with home.database.read() as connection:
        row = collections.of(connection, dataset).active.row
    if (len(row.shards), row.by) != (wanted.number, wanted.by):
        raise Refused(
            f"{desired.name} has {plural(len(row.shards), 'shard')}, and its rows stay where they are",
            rule="shard-number",
            hint=f"odfctl rendition create {desired.name} --from snapshot --shards {wanted.number}"
            f"{' --by ' + ','.join(wanted.by) if wanted.by else ''}, and hand over to it",
            place=place,
        )


def _check_birth(desired: DesiredSnapshot, events: Sequence[MetadataEvent]) -> None:
    """Raises Refused or Invalid for sources that would part rows of one key, and for unsuitable columns."""
    if desired.shards is None:
        return
    try:
        for event in events:
            sharded_writes.check_source(desired.shards.by, event)
            if isinstance(event, SetDataSchema):
                sharded_writes.check_columns(desired.shards.by, schema_of(event))
    except (Invalid, Refused) as fault:
        fault.place = desired.place("shards")
        raise
