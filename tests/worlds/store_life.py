"""Lives of a store: a seeded program over all that makes things durable, and one fault somewhere in it.

A program appends opaque objects and Parquet slices, rewinds, compacts, keeps metadata only, collects, imports and
exports. ``live`` runs it with the seed's fault at one of the named steps that it passes: the process is killed, the
power fails, so that what was not synced is lost in part, the disk fails or is full from there on, writes are cut short,
object files cannot be read. A fault that does not kill is
met with a fault of the house, leaves nothing staged, and, in half of the lives, the same process then goes on.
"""

from __future__ import annotations

import ctypes
import os
import random
import resource
import shutil
import signal
import struct
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from chain.codec.blocks import decode_block
from chain.compaction import Limits
from chain.data.arrow_schema import from_arrow
from chain.data.logical_hash import logical_hash_file
from chain.data.parquet import write_slice
from chain.errors import Conflict, Environment
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import Block
from chain.model.events import (
    AddData,
    Checkpoint,
    DatasetKind,
    DataSlice,
    MetadataEvent,
    OffsetInterval,
    Seed,
    SetDataSchema,
)
from chain.multihash import Multihash
from chain.state import load_state
from chain.store.base import Append, Rewrite, no_step
from chain.store.collect import collect
from chain.store.database import open_database
from chain.store.files import disk
from chain.store.layout import DirectoryChain, DirectoryObjects, is_dataset, read_head
from chain.store.objects import SMALL, DiskObjects, staged_in
from chain.store.rewriting import RewritePlan, plan_merging, plan_metadata, prepare
from chain.store.sqlite import SqliteChains
from odfd.store.directory import StateLock
from odfd.transfer.folders import export_dataset, import_dataset
from odfd.verify.report import Level, VerificationResult
from odfd.verify.verify import VerificationRequest, verify_chain
from worlds.chains import following
from worlds.power import PowerDisk

OPAQUE = [DatasetId.from_public_key(bytes([n]) * 32) for n in (1, 2)]
TABLE, IMPORTED = (DatasetId.from_public_key(bytes([n]) * 32) for n in (3, 4))
DATASETS = [*OPAQUE, TABLE, IMPORTED]
OPERATIONS = 14
STAGES = 3
"""Folders that IMPORTED comes from, each a part of the next."""
KILLED, FAILED = 9, 8
REQUEST = VerificationRequest(ref="x", level=Level.DATA, workers=1)
WAYS = ("kill", "fail", "full", "short", "unreadable", "power")
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("op", pa.int32(), nullable=False),
        pa.field("system_time", pa.timestamp("ms", "UTC"), nullable=False),
        pa.field("event_time", pa.timestamp("ms", "UTC")),
        pa.field("k", pa.int64()),
    ]
)
State: TypeAlias = tuple[tuple[Multihash | None, int], ...]
"""Head and length of each chain; then the head of each folder, and 0."""


class Store(NamedTuple):
    chains: SqliteChains
    objects: DiskObjects
    out: Path
    """Where exports go."""

    def state(self) -> State:
        heads = [self.chains.chain(each).head() for each in DATASETS]
        held = [(head.hash, head.size) if head else (None, 0) for head in heads]
        return (*held, *((read_head(self.folder(each)), 0) for each in DATASETS))

    def folder(self, dataset: DatasetId, number: int = 0) -> Path:
        """The newest that is a dataset, and those after it: a chain that was rewritten is exported anew."""
        folders = sorted(self.out.glob(f"{dataset.multibase}-*"))
        newest = max((int(each.name[-3:]) for each in folders if is_dataset(each)), default=0)
        return self.out / f"{dataset.multibase}-{newest + number:03}"

    def staged(self) -> list[Path]:
        return list(self.objects.stage().parent.iterdir())


@contextmanager
def opened(directory: Path, step: Callable[[str], None] = no_step) -> Iterator[Store]:
    directory.mkdir(exist_ok=True)
    with StateLock(directory):
        database = open_database(directory / "odfd.sqlite")
        try:
            objects = DiskObjects(directory / "objects", database, step)
            yield Store(SqliteChains(database, objects, step), objects, directory / "out")
        finally:
            database.close()


class Program(NamedTuple):
    seed: int
    sources: Path
    """Where the folders ``0`` to ``STAGES - 1`` of IMPORTED lie."""

    def operate(self, store: Store, number: int, step: Callable[[str], None] = no_step) -> None:
        """The ``number``-th operation: a function of the seed, ``number`` and what the store holds."""
        lot = random.Random(f"{self.seed}/{number}")
        way = lot.random()
        time = Instant((number + 1) * 10**12)
        if way < 0.1:
            self._rewind(store, lot)
        elif way < 0.2:
            collect(store.chains, store.objects)
        elif way < 0.35:
            _export(store, lot, step)
        elif way < 0.45:
            _import(store, self.sources)
        elif way < 0.57 and store.chains.chain(TABLE).head():
            chain = store.chains.chain(TABLE)
            _rewrite(store, plan_merging(chain, TABLE, Limits(rows=lot.choice([2_000, 50_000]))), time)
        elif way < 0.6 and store.chains.chain(TABLE).head():
            _rewrite(store, plan_metadata(store.chains.chain(TABLE), TABLE), time)
        elif way < 0.82:
            append_slices(store, TABLE, lot, time)
        else:
            _append_opaque(store, lot, time)

    def _rewind(self, store: Store, lot: random.Random) -> None:
        dataset = lot.choice([*OPAQUE, TABLE])
        head = store.chains.chain(dataset).head()
        if head is not None and head.size > 3:
            store.chains.rewrite(Rewrite(dataset=dataset, expected=head, keep=lot.randrange(2, head.size)))


def _rewrite(store: Store, plan: RewritePlan | None, time: Instant) -> None:
    if plan is not None:
        store.chains.rewrite(prepare(store.chains.chain(TABLE), store.objects, plan, time))


def _export(store: Store, lot: random.Random, step: Callable[[str], None]) -> None:
    held = [each for each in DATASETS if store.chains.chain(each).head()]
    if held:
        dataset = lot.choice(held)
        store.out.mkdir(exist_ok=True)
        try:
            export_dataset(store.chains, store.objects, dataset, store.folder(dataset), step=step)
        except Conflict:
            export_dataset(store.chains, store.objects, dataset, store.folder(dataset, 1), step=step)


def _import(store: Store, sources: Path) -> None:
    head = store.chains.chain(IMPORTED).head()
    stages = [DirectoryChain(sources / f"{stage}").snapshot() for stage in range(STAGES)]
    sizes = [stage.head.size for stage in stages if stage is not None]
    assert len(sizes) == STAGES
    longer = [stage for stage, size in enumerate(sizes) if head is None or size > head.size]
    if longer:
        import_dataset(sources / f"{longer[0]}", store.chains, store.objects)


def append_slices(store: Store, dataset: DatasetId, lot: random.Random, time: Instant) -> None:
    head = store.chains.chain(dataset).head()
    state = load_state(store.chains.chain(dataset))
    events: list[MetadataEvent] = []
    if head is None:
        events = [Seed(dataset_id=dataset, dataset_kind=DatasetKind.ROOT), SetDataSchema(schema=from_arrow(SCHEMA))]
    before, offset, names = state.last_offset, state.next_offset, []
    for _ in range(lot.randrange(1, 4)):
        data = _slice(store, lot.choice([20, 300, 15_000]), offset, lot, time)
        events.append(AddData(prev_offset=before, new_data=data))
        names.append(data.physical_hash)
        before, offset = data.offset_interval.end, data.offset_interval.end + 1
    blocks: list[Block] = []
    last = store.chains.chain(dataset).block_at(head.sequence_number) if head else None
    for event in events:
        last = following(last, event, max(time, last.system_time) if last else time)
        blocks.append(last)
    store.chains.commit([Append(dataset=dataset, expected=head, blocks=blocks, objects=names)])


def _slice(store: Store, rows: int, offset: int, lot: random.Random, time: Instant) -> DataSlice:
    at = np.full(rows, time // 10**6)
    columns = [
        np.arange(offset, offset + rows),
        np.zeros(rows, np.int32),
        at,
        at,
        np.random.default_rng(lot.randrange(2**32)).integers(0, 2**60, rows),
    ]
    arrays = [pa.array(values).cast(field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    table = pa.table(arrays, schema=SCHEMA)
    with staged_in(store.objects) as staged:
        write_slice(table, staged)
        logical, size = logical_hash_file(staged), staged.stat().st_size
        name = store.objects.add_file(staged)
    interval = OffsetInterval(start=offset, end=offset + rows - 1)
    return DataSlice(logical_hash=logical, physical_hash=name, offset_interval=interval, size=size)


def _append_opaque(store: Store, lot: random.Random, time: Instant) -> None:
    dataset = lot.choice(OPAQUE)
    head = store.chains.chain(dataset).head()
    blocks, names = [], []
    last = store.chains.chain(dataset).block_at(head.sequence_number) if head else None
    for _ in range(lot.randrange(1, 4)):
        data = lot.randbytes(lot.choice([100, SMALL + lot.randrange(1, 200_000)]))
        names.append(_add(store, data))
        event: MetadataEvent = Seed(dataset_id=dataset, dataset_kind=DatasetKind.ROOT)
        if last is not None:
            before = last.event.new_checkpoint if isinstance(last.event, AddData) else None
            saved = Checkpoint(physical_hash=names[-1], size=len(data))
            event = AddData(prev_checkpoint=before.physical_hash if before else None, new_checkpoint=saved)
        last = following(last, event, max(time, last.system_time) if last else time)
        blocks.append(last)
    store.chains.commit([Append(dataset=dataset, expected=head, blocks=blocks, objects=names)])


def _add(store: Store, data: bytes) -> Multihash:
    if len(data) % 2:
        return store.objects.add_bytes(data)
    with staged_in(store.objects) as staged:
        with disk(staged):
            staged.write_bytes(data)
        return store.objects.add_file(staged)


def make_sources(directory: Path) -> Path:
    """Folders that IMPORTED is taken from."""
    with opened(directory / "store") as store:
        for stage in range(STAGES):
            append_slices(store, IMPORTED, random.Random(stage), Instant((stage + 1) * 10**12))
            export_dataset(store.chains, store.objects, IMPORTED, directory / f"{stage}")
    return directory


def run_well(directory: Path, program: Program) -> tuple[list[State], list[str]]:
    """The state before and after each operation, when nothing goes wrong; the steps that were passed."""
    steps: list[str] = []
    with opened(directory, steps.append) as store:
        states = [store.state()]
        for number in range(OPERATIONS):
            program.operate(store, number, steps.append)
            states.append(store.state())
    return states, steps


class Fault:
    """What goes wrong, once, after so many steps."""

    def __init__(self, way: str, left: int, directory: Path, lot: random.Random) -> None:
        self._way = way
        self._left = left
        self._directory = directory
        self._objects = directory / "objects"
        self._lot = lot
        self._room = lot.randrange(0, 100_000)
        self._on = True
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        if way == "unreadable":
            obey_permissions()
        directory.mkdir(exist_ok=True)
        self.disk = PowerDisk(directory)

    def step(self, _: str) -> None:
        self._left -= 1
        if self._way == "kill" and self._left == 0:
            os._exit(KILLED)
        if self._way == "power" and self._left == 0:
            self.disk.image(after(self._directory), self._lot if self._lot.random() < 0.8 else None)
            os._exit(KILLED)
        if self._way == "fail" and self._left == 0:
            raise Environment("the disk failed", rule="disk")
        if self._way == "full" and self._left <= 0 and self._on:
            raise Environment("the disk is full", rule="disk-full")
        if self._left == 0 and self._way == "short":
            resource.setrlimit(resource.RLIMIT_FSIZE, (self._room, resource.RLIM_INFINITY))
        if self._left == 0 and self._way == "unreadable":
            _set_modes(self._objects, 0)

    def mend(self) -> None:
        self._on = False
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        _set_modes(self._objects, 0o444)


def after(directory: Path) -> Path:
    """Returns where the directory is made that is found after the power failed."""
    return directory.with_name(f"{directory.name}-after")


def _set_modes(objects: Path, mode: int) -> None:
    for file in objects.rglob("f1620*"):
        file.chmod(mode)


def obey_permissions() -> None:
    """From here on this process is refused what a file's mode refuses, also when it is root's."""
    if os.geteuid():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))
    data = ctypes.create_string_buffer(24)
    assert libc.capget(header, data) == 0
    words = list(struct.unpack("6I", data.raw))
    words[0] &= ~(1 << 1 | 1 << 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert libc.capset(header, ctypes.create_string_buffer(struct.pack("6I", *words))) == 0


def live(directory: Path, program: Program, way: str, at: int, say: int) -> None:
    """In a child: runs the program with a fault in it, saying a dot for each operation that is done.

    A life that goes on after its fault says an exclamation mark for it.
    """
    lot = random.Random(f"fault/{program.seed}")
    fault = Fault(way, at, directory, lot)
    goes_on = lot.random() < 0.5
    watch = fault.disk.watching() if way == "power" else nullcontext()
    with watch, opened(directory, fault.step) as store:
        number = 0
        while number < OPERATIONS:
            before = store.state()
            try:
                program.operate(store, number, fault.step)
            except Environment:
                assert store.staged() == [], "a fault left something staged"
                if not goes_on:
                    raise
                fault.mend()
                os.write(say, b"!")
                if store.state() == before:
                    continue
            number += 1
            os.write(say, b".")


def run_in_child(directory: Path, program: Program, way: str, at: int) -> tuple[int, str]:
    """How a life ended, and what it said."""
    said, say = os.pipe()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            live(directory, program, way, at, say)
            code = 0
        except Environment:
            code = FAILED
        except BaseException:  # noqa: BLE001  # the parent sees the code and fails
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(say)
    with os.fdopen(said, "rb") as file:
        words = file.read().decode()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if after(directory).exists():
        shutil.rmtree(directory)
        after(directory).rename(directory)
    _set_modes(directory / "objects", 0o444)
    return code, words


def check_whole(store: Store) -> None:
    """Every chain and every folder, at level data."""
    assert store.staged() == []
    for dataset, (_, size) in zip(DATASETS, store.state(), strict=False):
        chain = store.chains.chain(dataset)
        if size:
            _check(verify_chain(chain, store.objects, REQUEST))
            assert [decode_block(raw).sequence_number for raw in chain.raw_blocks(0, 999)] == list(range(size))
        if is_dataset(folder := store.folder(dataset)):
            _check(verify_chain(DirectoryChain(folder), DirectoryObjects(folder), REQUEST))


def _check(found: VerificationResult) -> None:
    assert found.failures == ()
