"""Instances of the ingest of one collection over a folder that may fail, each with a clock and a copy of its own."""

from __future__ import annotations

import contextlib
import functools
import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from trio.testing import MockClock

from chain import instant
from chain.codec.blocks import decode_block
from chain.ids import DatasetId
from chain.instant import MILLISECOND, Instant, to_millis
from chain.model.block import Block, objects_of
from chain.model.events import AddPushSource, SetInfo, SetPollingSource
from chain.model.source import FetchFilesGlob, MergeAppend, MergeLedger, ReadCsv, SourceOrdering
from chain.multihash import Multihash
from chain.statements.keys import SigningKey
from chain.store.layout import DATA
from chain.store.shards import CommitPoint, Proposal, Shard, View
from odfd.ingest.capture_bindings import FOUNDING, layout_of
from odfd.ingest.driver import IngestDependencies
from odfd.ingest.settings import IngestSettings
from odfd.reclock.addresses import Addresses
from odfd.reclock.creation import Declared, ShardsWanted, begin
from odfd.reclock.instance import Instance
from odfd.reclock.shared_chains import SharedChains
from odfd.repositories.folder import Folder
from odfd.repositories.shards import FileShards
from worlds.fake_engine import FakeEngine
from worlds.one_thread import IdleClock, ran
from worlds.topics import TOPIC, ModelPositions, ModelTopic, topic_source

START: Final = instant.parse("2026-01-01T00:00:00Z")
COLUMNS: Final = ("event_time TIMESTAMP", "city STRING", "population BIGINT")


class Died(BaseException):
    """The process ended at a write."""


class MortalFolder(Folder):
    """A folder whose user dies before or after its nth write, and whose conditional write others may come before."""

    def __init__(self, name: str, root: Path) -> None:
        super().__init__(name, root)
        self.root = root
        self.dies_at = 0
        self.after = False
        self.before_commit: Callable[[], None] | None = None

    def put(self, path: str, content: bytes | Iterator[bytes]) -> None:
        self.dies_at -= 1
        if self.dies_at == 0 and not self.after:
            raise Died
        self._keep(path, content)
        if self.dies_at == 0:
            raise Died

    def _keep(self, path: str, content: bytes | Iterator[bytes]) -> None:
        """Writes whole files, but does not wait for the disk."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        staged = target.parent / f".staged-{id(self)}"
        staged.write_bytes(content if isinstance(content, bytes) else b"".join(content))
        staged.rename(target)

    def put_if(self, path: str, content: bytes, tag: str | None) -> bool:
        first, self.before_commit = self.before_commit, None
        if first is not None:
            first()
        return super().put_if(path, content, tag)


def declared(source: Path, *, ledger: bool) -> SetPollingSource:
    """A source of the CSV files in a folder, in the order of their names."""
    merge = MergeLedger(primary_key=("city",)) if ledger else MergeAppend()
    return SetPollingSource(
        fetch=FetchFilesGlob(path=f"{source}/*.csv", order=SourceOrdering.BY_NAME),
        read=ReadCsv(header=True, ddl_schema=COLUMNS),
        merge=merge,
    )


def pushed(*, ledger: bool) -> AddPushSource:
    """A source of CSV files that clients push."""
    merge = MergeLedger(primary_key=("city",)) if ledger else MergeAppend()
    return AddPushSource(source_name="cities", read=ReadCsv(header=True, ddl_schema=COLUMNS), merge=merge)


def end_of(kill: Callable[[], None]) -> type[MortalFolder]:
    """A durable folder whose user ends by ``kill`` where the other one dies."""

    class Deadly(MortalFolder):
        def put(self, path: str, content: bytes | Iterator[bytes]) -> None:
            try:
                super().put(path, content)
            except Died:
                kill()

        def _keep(self, path: str, content: bytes | Iterator[bytes]) -> None:
            Folder.put(self, path, content)

    return Deadly


_DATABASE: Final = "chains.sqlite"


@functools.cache
def _empty_copy() -> bytes:
    """The database of a copy with no chains, as the product makes it: bytes are written sooner than tables are made."""
    with tempfile.TemporaryDirectory() as folder:
        SharedChains(MortalFolder("none", Path(folder) / "none"), Path(folder), "none").close()
        return (Path(folder) / _DATABASE).read_bytes()


def dependencies(place: SharedChains, staging: Path, now: Callable[[], Instant]) -> IngestDependencies:
    committer: Any = None  # nothing is committed to a chain of this node
    settings = IngestSettings(staging=staging)
    return IngestDependencies(place.chains, place.objects, FakeEngine(), committer, now, settings)


class House:
    """A commit point in a folder, with a source beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = folder / "source"
        self.source.mkdir()
        self.declared: Declared = declared(self.source, ledger=False)
        self.takes_pushes = False
        self._names, self._keys = itertools.count(), itertools.count(1)
        self.files = 0
        self.topic: ModelTopic | None = None
        """The source, if it is no folder of files."""
        self.url: str | None = None
        """That of a topic at a real broker, likewise."""

    def add(self, *cities: str) -> None:
        """Adds a file with a row for each city."""
        self.files += 1
        rows = "".join(f"2024-01-01T00:00:00Z,{city},{self.files}\n" for city in cities)
        (self.source / f"f{self.files:04}.csv").write_text(f"event_time,city,population\n{rows}")

    def place(self, root: str = "house") -> tuple[SharedChains, MortalFolder]:
        """The commit point, as one process opens it, with a new copy."""
        name = f"copy{next(self._names)}"
        (self.folder / name).mkdir()
        (self.folder / name / _DATABASE).write_bytes(_empty_copy())
        files = MortalFolder("house", self.folder / root)
        return SharedChains(files, self.folder / name, name), files

    def store(self, root: str = "house") -> FileShards:
        """The commit point, without a copy."""
        return FileShards(MortalFolder("house", self.folder / root), f"store{next(self._names)}")

    def begin(
        self, shards: int, *, ledger: bool = False, now: Instant = START, by_part: bool = False, keep_raw: bool = False
    ) -> DatasetId:
        def new_id() -> DatasetId:
            return SigningKey(bytes([next(self._keys)]) * 32).dataset_id

        by = ("city",) if shards > 1 and not by_part else ()
        is_topic = self.topic is not None or self.url is not None
        self.declared = topic_source(self.url or TOPIC) if is_topic else declared(self.source, ledger=ledger)
        if self.takes_pushes:
            self.declared = (pushed(ledger=ledger),)
        events = self.declared if isinstance(self.declared, tuple) else (self.declared,)
        return begin(self.store(), new_id, events, ShardsWanted(shards, by, by_part, keep_raw), now)

    def instance(self, chain: DatasetId, now: Callable[[], Instant]) -> tuple[Instance, SharedChains, MortalFolder]:
        place, files = self.place()
        staging = self.folder / f"staging{next(self._names)}"
        staging.mkdir()
        return self._made(dependencies(place, staging, now), place, chain), place, files

    def _made(
        self, deps: IngestDependencies, place: SharedChains, chain: DatasetId, *, remembers: bool = False
    ) -> Instance:
        """``remembers``: reads what the topic has forgotten, too."""
        if (topic := self.topic) is None:
            return Instance(deps, place, chain, self.declared)

        def addresses(_deps: object, _shard: object, _source: object, *, one_part: bool) -> Addresses:
            return ModelPositions(topic, one_part=one_part, remembers=remembers)

        return Instance(deps, place, chain, self.declared, addresses=addresses)

    def chains(self, chain: DatasetId, root: str = "house") -> dict[DatasetId, tuple[Shard, list[bytes]]]:
        """All bytes of all blocks, and the frontiers, of the reclocking chain and the shards.

        Each object that a block names is there, with its bytes.
        """
        found: dict[DatasetId, tuple[Shard, list[bytes]]] = {}
        for each, view in self._views(chain, root).items():
            blocks, data = blocks_in(view), self.folder / root / each.multibase / DATA
            for name, size in (named for block in blocks for named in objects_of(block)):
                content = (data / str(name)).read_bytes()
                assert (Multihash.sha3_256(content), len(content)) == (name, size)
            found[each] = view.shard, [block.raw for block in blocks]
        return found

    def _views(self, chain: DatasetId, root: str) -> Mapping[DatasetId, View]:
        """The reclocking chain and the shards that it names, as they are at the commit point."""
        store = self.store(root)
        founding = blocks_in(store.read([chain]).views[chain])[:FOUNDING]
        (info,) = (block.event for block in founding if isinstance(block.event, SetInfo))
        return store.read([chain, *layout_of(info, chain.short).shards]).views

    def as_one_alone(self, chain: DatasetId, now: Instant = START) -> dict[DatasetId, tuple[Shard, list[bytes]]]:
        """What one instance writes from the bindings that came out, in another folder, without a death."""
        root = self.replayed(chain, "alone")
        place, _ = self.place(root)
        staging = self.folder / f"staging{next(self._names)}"
        staging.mkdir()
        ran(self._made(dependencies(place, staging, lambda: now), place, chain, remembers=True).run)
        place.close()
        return self.chains(chain, root)

    def replayed(self, chain: DatasetId, root: str) -> str:
        """Writes the founding of a collection and its bindings to another folder, without the shards' transactions."""
        views, point = self._views(chain, "house"), CommitPoint(self.store(root))
        for each, view in views.items():
            blocks = blocks_in(view)
            point.append([_proposal(each, [one for one in blocks if one.system_time == blocks[0].system_time])])
        captured = Path(chain.multibase) / DATA
        if (self.folder / "house" / captured).is_dir():
            shutil.copytree(self.folder / "house" / captured, self.folder / root / captured)
        for block in blocks_in(views[chain])[FOUNDING:]:
            point.append([_proposal(chain, [block])])
        return root


def _proposal(dataset: DatasetId, blocks: list[Block]) -> Proposal:
    return Proposal(dataset=dataset, blocks=blocks, new_upper=to_millis(blocks[0].system_time) + 1)


def blocks_in(view: View) -> list[Block]:
    head = view.shard.head
    return [] if head is None else [view._block_at(number) for number in range(head.size)]


def rows_in(raws: Sequence[bytes]) -> int:
    """The number of rows in the blocks of a chain."""
    slices = [getattr(decode_block(raw).event, "new_data", None) for raw in raws]
    return sum(each.offset_interval.end - each.offset_interval.start + 1 for each in slices if each is not None)


class ThreeInstances:
    """Three instances of one collection, each with a clock; one that died begins anew with an empty copy."""

    def __init__(self, house: House, chain: DatasetId) -> None:
        self.house, self.chain = house, chain
        self.clocks = [int(START) + 1] * 3
        self.alive: list[tuple[Instance, SharedChains, MortalFolder] | None] = [None] * 3

    def instance(self, number: int) -> tuple[Instance, SharedChains, MortalFolder]:
        found = self.alive[number]
        if found is None:
            found = self.alive[number] = self.house.instance(self.chain, lambda: self.now(number))
        return found

    def now(self, number: int) -> Instant:
        """Each look at a clock is a little later."""
        self.clocks[number] += 7 * MILLISECOND
        return Instant(self.clocks[number])

    def step(self, number: int) -> None:
        ran(self.instance(number)[0].step)

    def race(self, number: int, other: int) -> None:
        """One step, and before its commit a step of another instance."""
        if number != other:
            self.instance(number)[2].before_commit = lambda: self.step(other)
        self.step(number)

    def die(self, number: int, at: int, *, after: bool) -> None:
        """One step, which ends before or after write ``at``, if it comes to that."""
        _, place, files = self.instance(number)
        files.dies_at, files.after = at, after
        with contextlib.suppress(Died):
            ran(self.instance(number)[0].step)
            files.dies_at = 0
            return
        place.close()
        self.alive[number] = None

    def turn(self, number: int) -> float | None:
        """One turn, which may be a look while it stands by."""
        return ran(self.instance(number)[0].turn, 0.5, clock=MockClock())

    def drain(self, number: int = 0) -> None:
        ran(self.instance(number)[0].run, clock=IdleClock())

    def close(self) -> None:
        for each in self.alive:
            if each is not None:
                each[1].close()
