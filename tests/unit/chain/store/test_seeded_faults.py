"""A hundred seeded lives of a store, each with one fault somewhere: killed, disk full, write cut short.

Every life runs the same kind of program (commits to two chains with large and small objects, rewinds, collections) in a
child process. Whatever happened, the store reopens in the state before or after the operation that was hit, everything
in it is whole, and the rest of the program runs to its end as if nothing had been.
ODFD_FAULT_RUNS=5000 makes it a long run.
"""

from __future__ import annotations

import os
import random
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pytest

from chain.codec.blocks import decode_block, encode_block
from chain.errors import Environment
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import Block, MetadataBlock
from chain.model.events import AddData, Checkpoint, DatasetKind, Seed
from chain.multihash import Multihash
from chain.store.base import Append, Rewrite
from chain.store.collect import collect
from chain.store.database import open_database
from chain.store.lock import StateLock
from chain.store.objects import SMALL, DiskObjects
from chain.store.sqlite import SqliteChains
from odfd.verify.report import Level
from odfd.verify.verify import Request, verify_chain

RUNS = int(os.environ.get("ODFD_FAULT_RUNS", "100"))
DATASETS = [DatasetId.from_public_key(bytes([n]) * 32) for n in (1, 2)]
OPERATIONS = 12
KILLED, FAILED = 9, 8

State: TypeAlias = tuple[tuple[Multihash | None, int], ...]
"""Head and length of each chain."""


class Store(NamedTuple):
    chains: SqliteChains
    objects: DiskObjects

    def state(self) -> State:
        heads = [self.chains.chain(each).head() for each in DATASETS]
        return tuple((head.hash, head.size) if head else (None, 0) for head in heads)


@contextmanager
def opened(directory: Path, step: Callable[[str], None] = lambda _: None) -> Iterator[Store]:
    with StateLock(directory):
        database = open_database(directory / "odfd.sqlite")
        try:
            objects = DiskObjects(directory / "objects", database, step)
            yield Store(SqliteChains(database, objects, step), objects)
        finally:
            database.close()


def operate(store: Store, seed: int, number: int) -> None:
    """The ``number``-th operation of a program: a function of ``seed``, ``number`` and what the store holds."""
    lot = random.Random(f"{seed}/{number}")
    dataset = lot.choice(DATASETS)
    head = store.chains.chain(dataset).head()
    way = lot.random()
    if head is not None and head.size > 2 and way < 0.2:
        store.chains.rewrite(Rewrite(dataset=dataset, expected=head, keep=lot.randrange(1, head.size)))
    elif way < 0.35:
        collect(store.chains, store.objects)
    else:
        blocks, names = [], []
        last = store.chains.chain(dataset).block_at(head.sequence_number) if head else None
        for _ in range(lot.randrange(1, 4)):
            data = lot.randbytes(lot.choice([100, SMALL + lot.randrange(1, 200_000)]))
            names.append(add(store, data))
            last = following(dataset, last, Checkpoint(physical_hash=names[-1], size=len(data)))
            blocks.append(last)
        store.chains.commit([Append(dataset=dataset, expected=head, blocks=blocks, objects=names)])


def add(store: Store, data: bytes) -> Multihash:
    if len(data) % 2:
        return store.objects.add_bytes(data)
    staged = store.objects.stage()
    staged.write_bytes(data)
    return store.objects.add_file(staged)


def following(dataset: DatasetId, last: Block | None, saved: Checkpoint) -> Block:
    event: Seed | AddData = Seed(dataset_id=dataset, dataset_kind=DatasetKind.ROOT)
    if last is not None:
        before = last.event.new_checkpoint if isinstance(last.event, AddData) else None
        event = AddData(prev_checkpoint=before.physical_hash if before else None, new_checkpoint=saved)
    return encode_block(
        MetadataBlock(
            system_time=Instant(last.system_time + 10**6 if last else 0),
            prev_block_hash=last.hash if last else None,
            sequence_number=last.sequence_number + 1 if last else 0,
            event=event,
        )
    )


def states_of(directory: Path, seed: int) -> list[State]:
    """The state before and after each operation, when nothing goes wrong."""
    directory.mkdir()
    with opened(directory) as store:
        states = [store.state()]
        for number in range(OPERATIONS):
            operate(store, seed, number)
            states.append(store.state())
    return states


def live(directory: Path, seed: int, acknowledge: int) -> None:
    """In the child: runs the program with the seed's fault in it, saying which operations are done."""
    lot = random.Random(f"fault/{seed}")
    left = lot.randrange(1, 60)
    way = lot.choice(["kill", "fail", "full"])

    def step(_: str) -> None:
        nonlocal left
        left -= 1
        if left == 0 and way == "kill":
            os._exit(KILLED)
        if left == 0 and way == "fail":
            raise Environment("the disk failed", rule="disk")

    if way == "full":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limit = lot.randrange(70_000, 400_000)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    with opened(directory, step) as store:
        for number in range(OPERATIONS):
            operate(store, seed, number)
            os.write(acknowledge, b".")


def run_in_child(directory: Path, seed: int) -> tuple[int, int]:
    """The child's exit code, and the number of operations it said were done."""
    done, acknowledge = os.pipe()
    child = os.fork()
    if child == 0:
        code = FAILED
        try:
            live(directory, seed, acknowledge)
            code = 0
        except (Environment, OSError):
            pass
        finally:
            os._exit(code)
    os.close(acknowledge)
    with os.fdopen(done, "rb") as file:
        said = len(file.read())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


def check_whole(store: Store) -> None:
    for dataset, (_, size) in zip(DATASETS, store.state(), strict=True):
        if size:
            chain = store.chains.chain(dataset)
            assert verify_chain(chain, store.objects, Request(ref="x", level=Level.DATA, workers=1)).failures == ()
            assert [decode_block(raw).sequence_number for raw in chain.raw_blocks(0, 999)] == list(range(size))


@pytest.mark.parametrize("batch", range(10))
def test_a_fault_anywhere_leaves_the_old_state_or_the_new(batch: int, tmp_path: Path) -> None:
    ends = []
    for seed in range(batch, RUNS, 10):
        directory = tmp_path / f"{seed}"
        directory.mkdir()
        states = states_of(tmp_path / f"{seed}.well", seed)
        code, done = run_in_child(directory, seed)
        ends.append(code)
        assert code in (0, KILLED, FAILED), f"seed {seed} ended with {code}"
        with opened(directory) as store:
            assert store.state() in states[done : done + 2], f"seed {seed}, after {done} operations"
            check_whole(store)
            resumed = done if store.state() == states[done] else done + 1
            for number in range(resumed, OPERATIONS):
                operate(store, seed, number)
            assert store.state() == states[-1], f"seed {seed}"
            check_whole(store)
        with opened(directory) as store:
            collect(store.chains, store.objects)
            assert collect(store.chains, store.objects, dry_run=True).objects == 0
            check_whole(store)
    assert any(code != 0 for code in ends), "no life met a fault: the program is too short"
