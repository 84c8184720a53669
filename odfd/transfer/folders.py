"""Exports and imports one dataset as a directory in the ODF layout; blocks and objects stay byte for byte.

Export continues a folder that holds an earlier part of the same chain. Import verifies what the store lacks at level
data before anything is stored, then appends it; a head never moves past an unverified block, and an interrupted run
continues where it stopped. Synchronous; ``progress`` is called on the same thread and may raise
to stop. Spec: Recommended Dataset Layout; Simple Transfer Protocol.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeAlias

import msgspec

from chain.codec.blocks import decode_block
from chain.compare import Relation, compare
from chain.errors import Conflict, Environment, Invalid, NotFound
from chain.ids import DatasetId
from chain.model.block import SealedBlock
from chain.model.events import Seed
from chain.multihash import Multihash
from chain.rules.check import ChainChecker
from chain.state import load_state
from chain.store.base import Append, ChainReader, ChainStore, Head, ObjectReader, ObjectStore, Step, StoredPage, no_step
from chain.store.files import disk, make_folder
from chain.store.layout import PARTS, DirectoryChain, DirectoryObjects, DirectoryWriter, block_names, read_head
from chain.store.objects import staged_in
from chain.wording import plural
from odfd.store.resume import CheckedOnArrival
from odfd.transfer.object_list import NamedObjects
from odfd.verify.report import VerificationResult
from odfd.verify.verify import VerificationRequest, verify_chain

COMMIT_BLOCKS: Final = 16_384
COMMIT_BYTES: Final = 16 << 20
"""Bytes of a commit, about: each touches the whole index by hash, so larger ones write less for each block."""


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """The amounts transferred."""

    dataset: DatasetId
    head: Multihash
    blocks: int = 0
    objects: int = 0
    bytes: int = 0
    """Bytes of the objects."""


class NotVerified(Invalid):
    """Raised for a copy whose dataset is invalid; ``report`` has each failure."""

    def __init__(self, place: str, report: VerificationResult, hint: str) -> None:
        first = report.failures[0]
        failures = plural(len(report.failures), "failure")
        super().__init__(
            f"{failures} in {place}, first at #{first.block.sequence_number}: {first.message}",
            rule=first.rule,
            hint=hint,
        )
        self.report = report


OnProgress: TypeAlias = Callable[[Transfer], None]


def export_dataset(
    chains: ChainStore,
    objects: ObjectStore,
    dataset: DatasetId,
    directory: Path,
    progress: OnProgress | None = None,
    step: Step = no_step,
    head: Head | None = None,
) -> Transfer:
    """Writes a dataset to a folder, or updates one. Returns the head and the amounts that were written.

    ``head``: the block up to which it is written; ``None``: all blocks. A folder that has more is left as it is.
    Raises NotFound when there is no such dataset or an object of it is missing, Conflict when the folder holds another
    dataset or has parted from this one, Environment when the disk refuses.
    """
    chain = chains.chain(dataset)
    head = head or chain.head()
    if head is None:
        raise NotFound(f"no dataset {dataset.short}", rule="dataset-unknown", hint="odfctl get datasets")
    make_folder(directory)
    with _alone(directory):
        there = read_head(directory)
        if there is None and not _was_begun(chain, directory):
            raise Conflict(
                f"{directory} is not empty, and not a dataset",
                rule="export-target",
                hint="name a new or an empty folder",
            )
        start = 0 if there is None else _continues(chain, directory)
        if start >= head.size:
            return Transfer(dataset=dataset, head=head.hash)
        writer = DirectoryWriter(directory, step)
        return write_dataset(Missing(chain, objects, dataset, start, head, there), writer, progress)


class LayoutWriter(Protocol):
    """Makes or continues a dataset in the ODF layout. Its parts are added before ``set_head``, not after."""

    def add_object(self, folder: str, name: Multihash, source: Path) -> None: ...
    def add_block(self, name: Multihash, raw: bytes) -> None: ...

    def set_head(self, name: Multihash, expected: Multihash | None) -> None:
        """Sets the head. Raises Conflict when it is not as expected."""


class Missing(NamedTuple):
    """The parts of a chain that a copy lacks."""

    chain: ChainReader
    objects: ObjectReader
    dataset: DatasetId
    start: int
    """Number of blocks that the copy has."""
    head: Head
    there: Multihash | None
    """The present head of the copy; ``None`` without one."""


def write_dataset(missing: Missing, writer: LayoutWriter, progress: OnProgress | None) -> Transfer:
    """Writes objects before the blocks that name them, the head last. Raises what the writer raises."""
    chain, objects, dataset, start, head, there = missing
    done = Transfer(dataset=dataset, head=head.hash)
    named = NamedObjects(load_state(chain, start), objects)
    for raw in chain.raw_blocks(start, head.size):
        block = decode_block(raw)
        for folder, name, size in named.of(block):
            writer.add_object(folder, name, objects.path(name))
            done = msgspec.structs.replace(done, objects=done.objects + 1, bytes=done.bytes + size)
        writer.add_block(block.hash, raw)
        done = msgspec.structs.replace(done, blocks=done.blocks + 1)
        if progress is not None:
            progress(done)
    if there != head.hash:
        writer.set_head(head.hash, there)
    return done


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Locks a folder on this machine. Raises Conflict while another process writes to it."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise Conflict(
            f"someone else is writing to {directory}", rule="compare-and-append", hint="try again when they are done"
        ) from error
    finally:
        os.close(opened)


@contextmanager
def whole_or_gone(directory: Path) -> Iterator[None]:
    """Removes everything written within it to a new or empty folder if the disk fails."""
    with disk(directory):
        is_there = directory.exists()
        is_new = not is_there or not any(directory.iterdir())
    try:
        yield
    except Environment:
        if is_new and directory.exists():
            for path in directory.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            if not is_there:
                directory.rmdir()
        raise


def _was_begun(chain: ChainReader, directory: Path) -> bool:
    """Whether a folder without a head is empty, or the leftover of an interrupted export of this chain."""
    if any(path.name not in PARTS for path in directory.iterdir()):
        return False
    try:
        for name in block_names(directory):
            chain.block_by_hash(name)
    except NotFound:
        return False
    return True


def _continues(chain: ChainReader, directory: Path) -> int:
    """Returns the number of blocks of this chain in the folder. Raises Conflict when it has others."""
    found = compare(chain, DirectoryChain(directory))
    if found.relation in (Relation.EQUAL, Relation.AHEAD):
        return found.common
    difference = found.describe("the node", str(directory))
    if found.relation is Relation.BEHIND:
        raise Conflict(difference, rule="export-behind", hint=f"take it in first: odfctl import {directory}")
    raise Conflict(
        difference,
        rule="export-diverged",
        hint="two histories of one dataset, or one that was rewritten: name a new folder to keep both",
    )


def import_dataset(
    directory: Path, chains: ChainStore, objects: ObjectStore, progress: OnProgress | None = None
) -> Transfer:
    """Imports a folder's dataset into the store. Returns what was added: nothing when the store has it all.

    Raises NotVerified (Invalid) when what the store lacks is not valid at level data, Conflict when the store's copy
    has parted from it or is ahead, NotFound when the folder is not a dataset, Environment.
    """
    copy = Copy(str(directory), DirectoryChain(directory), DirectoryObjects(directory))
    return import_copy(copy, chains, objects, progress)


class Copy(NamedTuple):
    """A dataset outside the store, and its place for messages."""

    place: str
    chain: DirectoryChain
    files: ObjectReader
    hint: str = ""
    """Advice for people if the copy is invalid."""
    checked: Head | None = None
    """The last block, if all objects were checked against their blocks while they were fetched; else ``None``."""


def import_copy(copy: Copy, chains: ChainStore, objects: ObjectStore, progress: OnProgress | None = None) -> Transfer:
    """Imports as ``import_dataset``; the copy's objects may be in the store already."""
    source, files, place = copy.chain, copy.files, copy.place
    here = blocks_here(source, chains)
    if not here or here < _head_of(source).size:
        memory = None if copy.checked is None else CheckedOnArrival(copy.checked)
        report = verify_chain(source, files, VerificationRequest(ref=place, start=here), memory=memory)
        if not report.ok:
            raise NotVerified(place, report, copy.hint or f"see them all: odfctl verify {place}")
    dataset, ours = _identity(source), _head_of(source)
    kept = chains.chain(dataset)
    start = _missing_from(kept, source, place)
    done = Transfer(dataset=dataset, head=ours.hash)
    state = load_state(kept, start)
    checker, named = ChainChecker(state), NamedObjects(state, files)
    for batch in _batches(source.stored_pages(start, ours.size), checker, place):
        names = []
        for block in batch:
            for _, name, size in named.of_sealed(block):
                _take(name, files, objects)
                names.append(name)
                done = msgspec.structs.replace(done, objects=done.objects + 1, bytes=done.bytes + size)
        chains.commit([Append(dataset=dataset, expected=kept.head(), blocks=batch, objects=names)])
        done = msgspec.structs.replace(done, blocks=done.blocks + len(batch))
        if progress is not None:
            progress(done)
    return done


def blocks_here(source: DirectoryChain, chains: ChainStore) -> int:
    """Returns how many of the copy's first blocks the store has, by one hash; 0 if one of the two does not go on.

    These were verified when they came, and a hash stands for all blocks before it.
    """
    with suppress(Invalid, NotFound):  # verification reports why the copy cannot be read
        seed, theirs = source.block_at(0).event, source.head()
        kept = chains.chain(seed.dataset_id) if isinstance(seed, Seed) else None
        ours = kept.head() if kept is not None else None
        if kept is not None and ours is not None and theirs is not None:
            common = min(ours.size, theirs.size)
            if kept.block_at(common - 1).hash == source.block_at(common - 1).hash:
                return common
    return 0


def _identity(source: DirectoryChain) -> DatasetId:
    event = source.block_at(0).event
    assert isinstance(event, Seed), "a verified chain begins with its Seed"
    return event.dataset_id


def _head_of(source: DirectoryChain) -> Head:
    head = source.head()
    assert head is not None, "a verified chain has a head"
    return head


def _missing_from(kept: ChainReader, source: DirectoryChain, place: str) -> int:
    """Returns the first block that the store lacks. Raises Conflict unless the folder continues the store's chain."""
    if kept.head() is None:
        return 0
    found = compare(source, kept)
    if found.relation in (Relation.EQUAL, Relation.AHEAD):
        return found.common
    difference = found.describe(place, "the node")
    if found.relation is Relation.BEHIND:
        raise Conflict(
            difference, rule="import-behind", hint="there is nothing to import; export to bring the folder up to date"
        )
    raise Conflict(
        difference,
        rule="import-diverged",
        hint="two histories of one dataset: ask its owner, or delete the node's copy to take this one",
    )


def _batches(pages: Iterable[StoredPage], checker: ChainChecker, place: str) -> Iterator[list[SealedBlock]]:
    """Groups blocks by commit: a page, and further pages without objects, because each commit costs pages too."""
    batch: list[SealedBlock] = []
    size = 0
    for page in pages:
        taken = _read_unchanged(page, checker, place)
        batch += taken
        size += sum(len(block.raw) for block in taken)
        if len(batch) >= COMMIT_BLOCKS or size >= COMMIT_BYTES or any(block.objects for block in taken):
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _read_unchanged(page: StoredPage, checker: ChainChecker, place: str) -> list[SealedBlock]:
    """Returns the verified blocks, read once more. Raises Invalid when a file has changed since."""
    sealed = checker.take([raw for raw in page.raws if raw is not None])
    if b"".join(block.hash for block in sealed) != page.names:
        raise Invalid(
            f"blocks from #{page.start} of {place} changed while they were imported",
            rule="block-hash",
            hint="try again when the folder does not change",
        )
    return sealed


def _take(name: Multihash, files: ObjectReader, objects: ObjectStore) -> None:
    """Copies one object, hashing the copy, so that a file that changed since its check is refused."""
    if objects.has(name):
        return
    with staged_in(objects) as staged:
        with disk(staged):
            shutil.copyfile(files.path(name), staged)
        taken = objects.add_file(staged)
    if taken != name:
        raise Invalid(
            f"object {name.short} changed while it was imported", rule="slice-physical-hash", hint="try again"
        )
