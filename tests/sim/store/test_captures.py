"""A capture and its block are there together or not at all, wherever the process dies; bytes come before both."""

from __future__ import annotations

import contextlib
import tempfile
from itertools import count
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from chain import instant
from chain.instant import Instant, from_millis, to_millis
from chain.model.events import AddData, DatasetKind, Seed, SourceState
from chain.state import load_state
from chain.store.base import Head
from chain.store.collect import collect
from chain.store.database import open_database
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChains
from odfd.datasets.commit import Commit, CommitPart
from odfd.ingest.driver import keep_raw
from odfd.ingest.plan import Batch
from odfd.ingest.sharded_writes import ShardedWrites
from odfd.renditions.timeline import RenditionRow, Switch, Timeline
from odfd.store import captures, collections, references
from odfd.store.collections import CollectionState, Member
from odfd.store.keys.keystore import KeyStore
from odfd.store.ledger import log
from odfd.trust.signing.owner_commit import OwnerCommitter
from worlds.depth import share

START = instant.parse("2026-01-01T00:00:00Z")
STEPS = (
    "object-hashed",
    "object-synced",
    "object-renamed",
    "object-folder-synced",
    "commit-begun",
    "commit-objects",
    "commit-blocks",
    "commit-also",
    "commit-durable",
    "",
)


SHARDS = st.sampled_from([1, 3])


class Died(Exception):
    pass


class Node:
    def __init__(self, folder: Path, shards: int = 1) -> None:
        self.folder, self.dies_at, self._draws = folder, "", count()
        self._open()
        self.shards = [self.keys.new_dataset_key().dataset_id for _ in range(shards)]
        self.dataset = self.shards[0]
        for each in self.shards:
            seed = Seed(dataset_id=each, dataset_kind=DatasetKind.ROOT)
            part = CommitPart(dataset=each, expected=None, events=(seed,), time=START)
            self.committer.commit_now(Commit(parts=(part,)))
        if shards > 1:
            row = RenditionRow(number=0, shards=tuple(map(str, self.shards)), by=("city",))
            with self.database.write() as connection:
                timeline = Timeline((Switch(0, "", row),), 0)
                members = (Member(row=row, origin="first"),)
                collections.keep(connection, CollectionState(id=self.dataset, members=members, timeline=timeline))

    def _open(self) -> None:
        self.database = open_database(self.folder / "odfd.sqlite")
        self.objects = DiskObjects(self.folder / "objects", self.database, self._step)
        self.chains = SqliteChains(self.database, self.objects, self._step)
        for room in (references, log, captures, collections):
            self.database.migrate(room.ROOM, room.STEPS)
        self.keys = KeyStore(self.folder / "keys", lambda size: next(self._draws).to_bytes(size))
        shards = ShardedWrites(self.database, self.chains, self.objects)
        self.committer = OwnerCommitter(
            self.database, self.chains, self.keys, lambda: START, lambda *_: None, shards, lambda _: False, lambda _: 0
        )

    def _step(self, name: str) -> None:
        if name == self.dies_at:
            raise Died(name)

    def ingest(self, number: int, size: int, dies_at: str) -> None:
        """As the driver does: bytes, then block and capture."""
        state = load_state(self.chains.chain(self.dataset))
        assert state.head is not None
        label = SourceState(source_name="s", kind="k", value=str(number))
        source = self.folder / f"{number}.csv"
        source.write_bytes(b"%d " % number * size)
        self.dies_at = dies_at
        batch = Batch(paths=(source,), names=(source.name,), identity="", state=label)
        with contextlib.suppress(Died):
            capture = keep_raw(self.objects, batch, "")
            event = AddData(new_watermark=Instant(START + number * 10**6), new_source_state=label)
            time = START if len(self.shards) == 1 else from_millis(self.chains.upper(self.dataset))
            expected = Head(state.head, state.sequence_number)
            part = CommitPart(dataset=self.dataset, expected=expected, events=(event,), time=time, records=(capture,))
            trio.run(self.committer.commit, Commit(parts=(part,)))
        self.dies_at = ""
        if dies_at:
            self.database.close()
            self._open()
            for each in self.shards:
                self.committer.sign_unsigned(each)

    def check(self) -> None:
        with self.database.read() as connection:
            bound = captures.of(connection, self.dataset)
        for number, shard in enumerate(self.shards):
            chain = self.chains.chain(shard)
            head = chain.head()
            assert head is not None
            parts = [each.parts[number] for each in bound]
            assert [each.block for each in parts] == [chain.block_at(number).hash for number in range(1, head.size)]
            for each, part in zip(bound, parts, strict=True):
                block = chain.block_at(part.last)
                assert isinstance(block.event, AddData)
                assert (part.dataset, part.first, each.time) == (shard, part.last, to_millis(block.system_time))
                assert each.capture.label == block.event.new_source_state
        for each in bound:
            (file,) = each.capture.files
            assert self.objects.read(file.object) == (self.folder / file.name).read_bytes()


@pytest.mark.slow
@settings(max_examples=share(50))
@given(st.lists(st.tuples(st.sampled_from([1, 40_000]), st.sampled_from(STEPS), st.booleans()), max_size=4), SHARDS)
def test_a_capture_and_its_block_are_there_together(lives: list[tuple[int, str, bool]], shards: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder), shards)
        for number, (size, dies_at, collects) in enumerate(lives):
            node.ingest(number, size, dies_at)
            node.check()
            if collects:
                collect(node.chains, node.objects, captures.objects(node.database))
                node.check()
        node.database.close()


def test_a_damaged_row_stops_the_collector(tmp_path: Path) -> None:
    """What it names cannot be told, so nothing may be freed."""
    node = Node(tmp_path)
    node.ingest(0, 1, "")
    with node.database.write() as connection:
        connection.execute("UPDATE captures SET body = x'7b7d'")
    with pytest.raises(Exception, match="damaged on disk"):
        captures.objects(node.database)
    node.database.close()
