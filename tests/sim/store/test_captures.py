"""A capture and its block are there together or not at all, wherever the process dies; bytes come before both."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from chain import instant
from chain.instant import Instant, to_millis
from chain.model.events import AddData, DatasetKind, Seed, SourceState
from chain.state import load_state
from chain.store.base import Head
from chain.store.collect import collect
from chain.store.database import open_database
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChains
from odfd.datasets import captures, references
from odfd.datasets.commit import CommitExtras
from odfd.ingest.capturing import captured
from odfd.ingest.plan import Batch
from odfd.renditions import tables
from odfd.trust.keys.keystore import KeyStore
from odfd.trust.ledger import log
from odfd.trust.signing.owner_commit import OwnerCommitter

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


class Died(Exception):
    pass


class Node:
    def __init__(self, folder: Path) -> None:
        self.folder, self.dies_at = folder, ""
        self._open()
        self.dataset = self.keys.new_dataset_key().dataset_id
        seed = Seed(dataset_id=self.dataset, dataset_kind=DatasetKind.ROOT)
        self.committer.commit_now(self.dataset, None, [seed], (), START)

    def _open(self) -> None:
        self.database = open_database(self.folder / "odfd.sqlite")
        self.objects = DiskObjects(self.folder / "objects", self.database, self._step)
        self.chains = SqliteChains(self.database, self.objects, self._step)
        for room in (references, log, captures, tables):
            self.database.migrate(room.ROOM, room.STEPS)
        self.keys = KeyStore(self.folder / "keys", lambda count: bytes(range(count)))
        self.committer = OwnerCommitter(self.database, self.chains, self.keys, lambda: START, lambda *_: None)

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
            capture = captured(self.objects, batch, "")
            event = AddData(new_watermark=Instant(START + number * 10**6), new_source_state=label)
            work = (self.dataset, Head(state.head, state.sequence_number), [event], (), START, None)
            trio.run(self.committer.commit, *work, CommitExtras(capture=capture))
        self.dies_at = ""
        if dies_at:
            self.database.close()
            self._open()
            self.committer.sign_unsigned(self.dataset)

    def check(self) -> None:
        chain = self.chains.chain(self.dataset)
        head = chain.head()
        assert head is not None
        with self.database.read() as connection:
            bound = captures.of(connection, self.dataset)
        assert [each.block for each in bound] == [chain.block_at(number).hash for number in range(1, head.size)]
        for each in bound:
            block = chain.block_at(each.last)
            assert isinstance(block.event, AddData)
            assert (each.first, each.time) == (each.last, to_millis(block.system_time))
            assert each.capture.label == block.event.new_source_state
            (file,) = each.capture.files
            assert self.objects.read(file.object) == (self.folder / file.name).read_bytes()


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from([1, 40_000]), st.sampled_from(STEPS), st.booleans()), max_size=4))
def test_a_capture_and_its_block_are_there_together(lives: list[tuple[int, str, bool]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder))
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
