"""What was verified is remembered: for the chain it was, under the rules there were, and never instead of hashing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chain.codec.blocks import decode_block
from chain.ids import DatasetId
from chain.model.events import AddData, Seed
from chain.store.base import Append
from chain.store.database import Database, open_database
from chain.store.layout import DirectoryChain, DirectoryObjects
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChain, SqliteChains
from odfd.store import resume
from odfd.store.resume import Remembered, StoredMemory
from odfd.transfer.folders import import_dataset
from odfd.verify import objects, verify
from odfd.verify.report import Progress, VerificationResult
from odfd.verify.verify import VerificationRequest, verify_chain

FLIGHTS = Path(__file__).parents[3] / "golden" / "kamu" / "flights"


class Node:
    """A store with the golden flights in it."""

    def __init__(self, directory: Path) -> None:
        self.database: Database = open_database(directory / "odfd.sqlite")
        self.objects = DiskObjects(directory / "objects", self.database)
        self.chains = SqliteChains(self.database, self.objects)
        self.dataset: DatasetId = import_dataset(FLIGHTS, self.chains, self.objects).dataset
        self.read: list[str] = []
        self.cut = threading.Event()
        """Set where a verification is stopped: the last slice is not read ahead of that."""

    @property
    def chain(self) -> SqliteChain:
        return self.chains.chain(self.dataset)

    def verify(self, forget: bool = False, stop_after: int | None = None) -> VerificationResult:
        def show(progress: Progress) -> None:
            if stop_after is not None and progress.objects >= stop_after:
                self.cut.set()
                raise KeyboardInterrupt

        kept = StoredMemory(self.database, self.dataset, forget)
        return verify_chain(self.chain, self.objects, VerificationRequest(ref="x", workers=1), show, kept)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    made = Node(tmp_path)
    rows, bytes_ = objects.check_slice, objects.check_object
    monkeypatch.setattr(verify, "check_slice", lambda *args: (made.read.append("rows"), rows(*args))[1])
    monkeypatch.setattr(verify, "check_object", lambda *args: (made.read.append("bytes"), bytes_(*args))[1])
    yield made
    made.database.close()


def slices() -> int:
    blocks = [decode_block(raw) for raw in DirectoryChain(FLIGHTS).raw_blocks(0, 10**6)]
    return sum(isinstance(each.event, AddData) and each.event.new_data is not None for each in blocks)


@pytest.mark.slow
def test_rows_are_read_once_and_bytes_always(node: Node) -> None:
    first = node.verify()
    assert (first.ok, first.checked.remembered, node.read) == (True, 0, ["rows"] * slices())
    node.read.clear()
    again = node.verify()
    assert (again.ok, again.checked.slices) == (True, first.checked.slices)
    assert node.read == ["bytes"] * slices()
    assert again.checked.remembered == slices()
    node.read.clear()
    assert node.verify(forget=True).checked.remembered == 0
    assert node.read == ["rows"] * slices()


@pytest.mark.slow
def test_a_bit_that_flips_after_a_verification_is_found(node: Node) -> None:
    assert node.verify().ok
    event = next(
        each.event
        for n in range(19)
        if isinstance((each := node.chain.block_at(n)).event, AddData) and each.event.new_data
    )
    name = event.new_data.physical_hash
    file = node.objects._file(name)
    if file.is_file():
        raw = bytearray(file.read_bytes())
        raw[len(raw) // 2] ^= 1
        file.chmod(0o644)
        file.write_bytes(raw)
        assert {failure.rule for failure in node.verify().failures} == {"slice-physical-hash"}
    else:
        with node.database.write() as connection:
            connection.execute("UPDATE small_objects SET data = zeroblob(length(data)) WHERE name = ?", (name,))
        assert not node.verify().ok


@pytest.mark.slow
def test_a_verification_cut_short_goes_on(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "_KEEP_EVERY", 1)
    check = verify.check_slice

    def ahead(*args: Any) -> Any:
        if node.read.count("rows") == slices() - 1:
            node.cut.wait()
        return check(*args)

    with monkeypatch.context() as patch:
        patch.setattr(verify, "check_slice", ahead)
        with pytest.raises(KeyboardInterrupt):
            node.verify(stop_after=4)
    done = StoredMemory(node.database, node.dataset).recall(node.chain)
    assert 0 < done.done < 19
    node.read.clear()
    answer = node.verify()
    assert answer.ok
    assert 0 < node.read.count("rows") < slices()
    assert "bytes" not in node.read
    assert StoredMemory(node.database, node.dataset).recall(node.chain) == Remembered(rows=19, done=0)


@pytest.mark.slow
def test_other_rules_or_another_chain_forget(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.verify()
    kept = StoredMemory(node.database, node.dataset)
    assert kept.recall(node.chain).rows == 19
    with monkeypatch.context() as patch:
        patch.setattr(resume, "EDITION", resume.EDITION + 1)
        assert kept.recall(node.chain) == Remembered()
    with node.database.write() as connection:
        connection.execute("UPDATE verified SET name = zeroblob(34)")
    assert kept.recall(node.chain) == Remembered()


@pytest.mark.slow
def test_more_blocks_are_read_on_top_of_what_is_known(node: Node, tmp_path: Path) -> None:
    blocks = [decode_block(raw) for raw in DirectoryChain(FLIGHTS).raw_blocks(0, 10**6)]
    files = DirectoryObjects(FLIGHTS)
    assert isinstance(blocks[0].event, Seed)
    node.chains.drop(node.dataset)
    node.chains.commit([Append(dataset=node.dataset, expected=None, blocks=blocks[:12])])
    assert node.verify().ok
    node.read.clear()
    head = node.chain.head()
    node.chains.commit([Append(dataset=node.dataset, expected=head, blocks=blocks[12:])])
    assert node.verify().ok
    late = [each for each in blocks[12:] if isinstance(each.event, AddData) and each.event.new_data]
    assert node.read.count("rows") == len(late)
    assert all(files.has(each.event.new_data.physical_hash) for each in late)  # type: ignore[union-attr]
