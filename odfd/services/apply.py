"""Apply: manifests in, a table of created, updated and unchanged out.

Manifests are read and every mistake told before anything is touched. Then each snapshot becomes one commit of its own,
inputs before what derives from them; a refused one is an item of the result and harms no other. A transform is shown to
the engine first: what it cannot promise to compute alike everywhere is refused here, not when data comes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec
import trio

from chain.codec.manifest import Manifest, parse_manifests
from chain.errors import Fault, Invalid, NotFound
from chain.ids import DatasetId, parse_name
from chain.instant import MILLISECOND, Instant
from chain.model.events import DatasetKind, DatasetSnapshot, MetadataEvent, SetTransform
from chain.model.source import TransformSql
from chain.state import ChainState, load_state
from engines.contract import Diagnostic, Engine, Severity
from odfd.control import wire
from odfd.control.board import task_ref
from odfd.datasets.catalog import Catalog
from odfd.datasets.creation import changed_events, founding_events
from odfd.kit.clock import Clock
from odfd.kit.tasks import Report, TaskBoard
from odfd.obs.events import EventLog
from odfd.resources.store import Resources
from odfd.services.checking import TransformCheck
from odfd.services.home import Home
from odfd.trust.signing import OwnerCommitter

BASE_KIND = "source-base"
"""Resource that keeps, on this node only, the folder that a dataset's relative source paths start from."""


_UNBORN = DatasetId.from_public_key(bytes(32))
"""Stands for a dataset whose key is made only when it is committed."""


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """One snapshot of an apply, and where it was written."""

    snapshot: DatasetSnapshot
    manifest: Manifest
    base: str
    """Folder that relative source paths start from."""

    @property
    def name(self) -> str:
        return self.snapshot.name

    def transform_place(self) -> str:
        """``file:line`` of the query."""
        number = next(i for i, event in enumerate(self.snapshot.metadata) if isinstance(event, SetTransform))
        return self.manifest.place(f"metadata[{number}].transform")

    def refs(self) -> list[str]:
        """What it derives from, itself aside."""
        transforms = [event for event in self.snapshot.metadata if isinstance(event, SetTransform)]
        refs = [each.dataset_ref.casefold() for event in transforms for each in event.inputs]
        return [ref for ref in refs if ref != self.name.casefold()]


class Applying:
    """Plans and performs applies."""

    def __init__(
        self, home: Home, committer: OwnerCommitter, engine: Engine, board: TaskBoard, events: EventLog, clock: Clock
    ) -> None:
        self._home = home
        self._committer = committer
        self._engine = engine
        self._check = TransformCheck(home, engine)
        self._board = board
        self._events = events
        self._clock = clock

    async def submit(self, request: wire.ApplyRequest) -> wire.TaskRef:
        """Raises Invalid at once for manifests that cannot be read, with every mistake."""
        wishes = read_wishes(request.manifests)

        async def work(report: Report) -> wire.ApplyResult:
            report.begin("applying", len(wishes), "manifests")
            items = []
            for wish in in_order(wishes):
                items.append(await self._apply(wish, dry_run=request.dry_run))
                report.advance()
            return wire.ApplyResult(items=tuple(items), dry_run=request.dry_run)

        target = ", ".join(wish.name for wish in wishes)
        return task_ref(self._board.submit("apply", target, work))

    async def _apply(self, wish: Wish, *, dry_run: bool) -> wire.ApplyItem:
        try:
            return await self._bring_about(wish, dry_run=dry_run)
        except Fault as fault:
            fault.place = fault.place or wish.manifest.place()
            return wire.ApplyItem(kind="dataset", name=wish.name, action="failed", fault=wire.Problem.of(fault))

    async def _bring_about(self, wish: Wish, *, dry_run: bool) -> wire.ApplyItem:
        parse_name(wish.name)
        held = await trio.to_thread.run_sync(self._held, wish.name)
        pin = (await self._engine.identity()).digest if _asks_engine(wish.snapshot) else None

        def pinned(transform: TransformSql) -> str | None:
            return pin if transform.engine == "spark" else None

        if held is None:
            events = founding_events(wish.snapshot, _UNBORN, self._resolve, pinned)
        else:
            events = changed_events(held[1], wish.snapshot, self._resolve, pinned)
        warnings = await self._validate(events, wish)
        dataset = held[0] if held else None
        if events and not dry_run:
            dataset = await trio.to_thread.run_sync(self._commit, wish, dataset, events)
            done = "updated" if held else "created"
            self._events.emit(f"dataset.{done}", wish.name, f"{len(events)} blocks", id=str(dataset))
        return wire.ApplyItem(
            kind="dataset",
            name=wish.name,
            action="unchanged" if not events else "updated" if held else "created",
            id=None if dataset is None else str(dataset),
            changes=tuple(type(event).__name__ for event in events),
            warnings=warnings,
        )

    def _held(self, name: str) -> tuple[DatasetId, ChainState] | None:
        with self._home.catalog() as catalog:
            try:
                entry = catalog.resolve(name)
            except NotFound:
                return None
        return entry.id, load_state(self._home.chains.chain(entry.id))

    def _resolve(self, ref: str) -> DatasetId:
        if ref.startswith("did:"):
            return DatasetId.parse(ref)
        with self._home.catalog() as catalog:
            return catalog.resolve(ref).id

    def _commit(self, wish: Wish, dataset: DatasetId | None, events: Sequence[MetadataEvent]) -> DatasetId:
        """A new dataset gets a key of its own; its chain's beginning and its name are one commit."""
        now = self._clock.now()
        head = None
        if dataset is None:
            dataset = self._home.keys.new_dataset_key().dataset_id
            events = (msgspec.structs.replace(events[0], dataset_id=dataset), *events[1:])
        else:
            head = self._home.chains.chain(dataset).head()
        target = dataset

        def name_it(connection: sqlite3.Connection) -> None:
            resources = Resources(connection)
            Catalog(resources).add(wish.name, target, now)
            resources.apply(BASE_KIND, str(target), wish.base.encode(), now)

        self._committer.commit_now(target, head, events, (), _whole(now), name_it)
        return target

    async def _validate(self, events: Sequence[MetadataEvent], wish: Wish) -> tuple[str, ...]:
        """Show the engine each transform. Raises Invalid with all that it refuses; warnings are returned."""
        warnings: list[str] = []
        for event in events:
            if not isinstance(event, SetTransform):
                continue
            if event.transform.engine != "spark":
                raise Invalid(
                    f"no engine {event.transform.engine!r} here", rule="engine-unknown", hint="write engine: spark"
                )
            answer = await self._check.validate(event)
            if answer is None:
                warnings.append("an input has no schema yet: the query will be checked when its first data comes")
                continue
            errors = [each for each in answer.diagnostics if each.severity is Severity.ERROR]
            if errors or not answer.ok:
                raise refusal(errors, wish.transform_place())
            warnings += [_told(each) for each in answer.diagnostics]
        return tuple(warnings)


def read_wishes(texts: Sequence[wire.ManifestText]) -> list[Wish]:
    """All snapshots of all texts. Raises Invalid."""
    wishes: list[Wish] = []
    for each in texts:
        for manifest in parse_manifests(each.text, each.source):
            if not isinstance(manifest.content, DatasetSnapshot):
                raise Invalid(
                    f"a {manifest.kind} cannot be applied",
                    rule="manifest-kind",
                    hint="write a DatasetSnapshot",
                    place=manifest.place(),
                )
            wishes.append(Wish(snapshot=manifest.content, manifest=manifest, base=each.base))
    if not wishes:
        raise Invalid("there is no manifest to apply", rule="manifest-empty", hint="a manifest begins with kind: …")
    names = [wish.name.casefold() for wish in wishes]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise Invalid(f"applied twice in one go: {', '.join(twice)}", rule="manifest-twice", hint="keep one of them")
    return wishes


def in_order(wishes: Sequence[Wish]) -> list[Wish]:
    """Inputs before what derives from them; otherwise as written. A cycle stays as written and fails by name."""
    waiting = list(wishes)
    names = {wish.name.casefold() for wish in waiting}
    ordered: list[Wish] = []
    done: set[str] = set()
    while waiting:
        ready = next(
            (each for each in waiting if all(ref in done or ref not in names for ref in each.refs())), waiting[0]
        )
        waiting.remove(ready)
        ordered.append(ready)
        done.add(ready.name.casefold())
    return ordered


def _asks_engine(snapshot: DatasetSnapshot) -> bool:
    return snapshot.kind is DatasetKind.DERIVATIVE and any(isinstance(e, SetTransform) for e in snapshot.metadata)


def refusal(errors: Sequence[Diagnostic], place: str) -> Invalid:
    """All that an engine refuses of a query, in one message; what to write instead is the hint."""
    if not errors:
        return Invalid("the engine refuses this query without a reason", rule="query", place=place)
    hint = next((f"write  {each.replace}  instead" for each in errors if each.replace), "")
    return Invalid("; ".join(each.message for each in errors), rule=errors[0].code, hint=hint, place=place)


def _told(each: Diagnostic) -> str:
    return f"{each.message} ({each.code})"


def _whole(now: Instant) -> Instant:
    return Instant(now // MILLISECOND * MILLISECOND)
