"""Defines the bundle: one file with all the evidence of a mismatch, which anyone can check.

It is a ustar archive: ``bundle.json``, a canonical manifest, then ``objects/<hash>`` in the manifest's order. The
manifest holds the accused head as it was signed, the step, the result of the reporter's re-run, and the list of
objects. The reporter's own claims do not count: a reader hashes every object, and follows the links from the signature
to the step, and from the step to its inputs. Read as a stream under limits; no name in the file ever becomes a path.
Spec: docs/spec/trust.md#bundles.

Chooses the bytes that prove a step wrong, after this node's own re-runs gave another answer. A bundle holds complete
ranges of blocks, from each chain's first to the last that matters. A path into the signed tree shows that a block is in
the chain, but only the links between blocks show that none was left out: a reporter who could omit the newest
SetTransform could accuse an honest publisher. It holds the slices that the step reads, if it starts from a published
checkpoint which this node's own run made bit for bit; else all slices from the first, so that the re-run can begin
where nothing has to be believed. Spec: docs/spec/trust.md#bundles.

Reads a bundle into a temporary store, and verifies the path from the accused signature to the step and its inputs.
Every object is hashed. Then the links are followed from the accused's signature to the step, to its chain, and to the
chains of its inputs; every block is checked against the append rules, and every slice against its block. The result
contains what the accused signed, and nothing that the reporter says. Spec: docs/spec/trust.md#bundles.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, TypeAlias

import msgspec

from chain.codec.blocks import MAX_BLOCK, decode_block
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.model.block import Block
from chain.model.events import AddData, DataSlice, ExecuteTransform
from chain.multihash import SHA3_256, Multihash
from chain.rules import check_block
from chain.state import ChainState
from chain.statements import authority, canonical, envelope, statement
from chain.statements.envelope import Signed
from chain.statements.predicate import NS, Count
from chain.statements.statement import MAX_VERSION, Actual, Authority, HeadStatement, from_text
from chain.statements.tree import MAX_PATH, Tree, root_from_inclusion
from chain.store.base import Append, ChainReader, ChainStore, ObjectReader, leaves_of
from chain.store.database import open_database
from chain.store.files import disk
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChains
from chain.wording import plural
from odfd.transform.driver import recorded_cuts
from odfd.transform.plan import TransformPlan
from odfd.transform.replay import plan_recorded
from odfd.verify.objects import SliceClaim, check_slice
from odfd.verify.report import VerifyFinding
from odfd.verify.terms import ChainTerms

BUNDLE: Final = NS + "bundle/v1"
MANIFEST: Final = "bundle.json"
MAX_MANIFEST: Final = 2 << 20
"""Bytes of the manifest; at 190 for an object, and more for a path, enough for MAX_OBJECTS."""
MAX_OBJECTS: Final = 8192
MAX_BUNDLE: Final = 256 << 20
"""Bytes of all objects that a reader accepts; writers stay well below (``evidence.BUDGET``)."""
_BLOCK: Final = tarfile.BLOCKSIZE
_CHUNK: Final = 1 << 20
_HINT: Final = "get it again from a node that keeps it: odfctl trust evidence ID -O FILE"

_Node = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class Listed(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One object of a bundle. ``path``: the Merkle path from a block of the accused chain to the root of the head's
    tree."""

    hash: Multihash
    size: Count
    sequence_number: Count | None = None
    path: Annotated[tuple[_Node, ...], msgspec.Meta(max_length=MAX_PATH)] | None = None


class BundleManifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The table of contents of a bundle. Only ``head`` and ``authority`` are signed; the rest says where to look."""

    type: str
    head: dict[str, Any]
    """The envelope of the accused head."""
    sequence_number: Count
    """The number of the accused step's block."""
    actual: Actual
    """The result of the reporter's re-runs."""
    objects: Annotated[tuple[Listed, ...], msgspec.Meta(max_length=MAX_OBJECTS)]
    authority: Annotated[tuple[dict[str, Any], ...], msgspec.Meta(max_length=MAX_VERSION)] = ()
    """Envelopes of the versions 1, 2, … of the dataset's authority, up to the one that the head names."""

    @property
    def size(self) -> int:
        """Returns the bytes of all objects together."""
        return sum(object_.size for object_ in self.objects)

    def encode(self) -> bytes:
        """Encodes the manifest in canonical form."""
        return canonical.encode(msgspec.json.decode(msgspec.json.encode(self, enc_hook=str)))

    @property
    def id(self) -> Multihash:
        return Multihash.sha3_256(self.encode())

    def accused(self) -> tuple[HeadStatement, Signed]:
        """Returns the accused head, on which all evidence rests.
        Raises Invalid if no writer of its dataset signed it."""
        signed = envelope.unseal(canonical.encode(self.head), HeadStatement.MAX_ENVELOPE)
        head = statement.decode(signed.payload)
        if not isinstance(head, HeadStatement):
            raise Invalid("the bundle accuses something that is not a head", rule="bundle-head")
        walk = authority.walk(head.dataset, map(_version, self.authority))
        if head.authority >= len(walk):
            raise Invalid(
                f"the bundle does not hold version {head.authority} of the authority",
                rule="bundle-authority",
                hint=_HINT,
            )
        if not any(walk[head.authority].may_write(key, head.issued) for key in signed.signers):
            raise Invalid("the accused head is not signed by a writer of its dataset", rule="bundle-head")
        return head, signed


def _version(sealed: dict[str, Any]) -> tuple[Authority, Signed]:
    signed = envelope.unseal(canonical.encode(sealed), Authority.MAX_ENVELOPE)
    predicate = statement.decode_any(signed.payload)
    if not isinstance(predicate, Authority):
        raise Invalid("the list of authority versions contains something else", rule="bundle-authority")
    return predicate, signed


def decode_manifest(raw: bytes) -> BundleManifest:
    """Decodes a manifest. Raises Invalid."""
    value = canonical.decode(raw)
    try:
        manifest = msgspec.convert(value, BundleManifest, dec_hook=from_text)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Invalid(f"not a bundle's manifest: {error}", rule="bundle-manifest", hint=_HINT) from error
    if manifest.type != BUNDLE:
        raise Invalid(f"a bundle of type {manifest.type[:80]!r}", rule="bundle-type", hint=BUNDLE)
    if manifest.size > MAX_BUNDLE:
        raise Invalid(
            f"the bundle's objects have {manifest.size:,} bytes, the limit is {MAX_BUNDLE:,}", rule="bundle-size"
        )
    if len({object_.hash for object_ in manifest.objects}) != len(manifest.objects):
        raise Invalid("the bundle lists an object twice", rule="bundle-manifest")
    return manifest


Source = Callable[[Listed], BinaryIO]


def write(manifest: BundleManifest, source: Source, out: BinaryIO) -> None:
    """Writes the bundle's file. ``source`` opens the bytes of an object.
    Raises Invalid if their size or hash differs."""
    raw = manifest.encode()
    out.write(_header(MANIFEST, len(raw)))
    out.write(raw + _padding(len(raw)))
    for object_ in manifest.objects:
        out.write(_header(_name(object_), object_.size))
        digest = hashlib.sha3_256()
        left = object_.size
        with source(object_) as file:
            while left and (data := file.read(min(left, _CHUNK))):
                digest.update(data)
                out.write(data)
                left -= len(data)
        if left or digest.digest() != object_.hash.digest:
            raise Invalid(
                f"object {object_.hash.short} is damaged here", rule="bundle-object", hint="odfctl verify REF"
            )
        out.write(_padding(object_.size))
    out.write(bytes(2 * _BLOCK))


class BundleReader:
    """Reads a bundle: the manifest first, then each object once, in order. ``place`` is its name in messages."""

    def __init__(self, file: BinaryIO, place: str) -> None:
        """Reads the manifest. Raises Invalid."""
        self._file, self._place = file, place
        with self._place_faults():
            found, size = self._entry()
            if found != MANIFEST or not 0 < size <= MAX_MANIFEST:
                raise Invalid("not a bundle: it does not begin with bundle.json", rule="bundle-file", hint=_HINT)
            self.manifest = decode_manifest(self._bytes(size))
            self._bytes(-size % _BLOCK)

    def objects(self) -> Iterator[tuple[Listed, Iterable[bytes]]]:
        """Yields each object and its bytes in pieces, which must be read before the next; checks the hash at their end.

        Raises Invalid if a hash or size differs, an entry is not the expected one, or the file has more entries.
        """
        with self._place_faults():
            for object_ in self.manifest.objects:
                if self._entry() != (_name(object_), object_.size):
                    raise Invalid(
                        f"where {object_.hash.short} should be there is something else", rule="bundle-file", hint=_HINT
                    )
                yield object_, self._pieces(object_)
                self._bytes(-object_.size % _BLOCK)
            rest = self._bytes(2 * _BLOCK) + self._file.read(tarfile.RECORDSIZE)
            # tar fills up a record with zeros; anything else would be stored and given on unsigned
            # (test_a_reporter_adds_nothing).
            if any(rest) or len(rest) > tarfile.RECORDSIZE:
                raise Invalid("the file has bytes after its last object", rule="bundle-file", hint=_HINT)

    def _pieces(self, listed: Listed) -> Iterator[bytes]:
        digest = hashlib.sha3_256()
        left = listed.size
        while left:
            data = self._bytes(min(left, _CHUNK))
            digest.update(data)
            left -= len(data)
            yield data
        found = Multihash.from_digest(SHA3_256, digest.digest())
        if found != listed.hash:
            raise Invalid(
                f"the object listed as {listed.hash.short} hashes to {found.short}: the file was altered",
                rule="bundle-object",
                hint=_HINT,
                place=self._place,
            )

    def _entry(self) -> tuple[str, int]:
        """Reads the name and size of the next entry, which must be a plain file."""
        header = self._bytes(_BLOCK)
        try:
            entry = tarfile.TarInfo.frombuf(header, "ascii", "strict")
        except (tarfile.HeaderError, UnicodeDecodeError) as error:
            raise Invalid("not a bundle: it is no ustar archive", rule="bundle-file", hint=_HINT) from error
        # A link or a folder could lead outside (test_names_in_the_file_never_become_paths).
        if entry.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            raise Invalid("the archive holds something that is not a plain file", rule="bundle-file", hint=_HINT)
        return entry.name, entry.size

    def _bytes(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) < count:
            raise Invalid("the file ends too early: it was cut off", rule="bundle-file", hint=_HINT)
        return data

    @contextmanager
    def _place_faults(self) -> Iterator[None]:
        try:
            yield
        except Invalid as fault:
            fault.place = fault.place or self._place
            raise


def copy(pieces: Iterable[bytes], target: Path) -> None:
    """Writes an object's pieces to a file whose name we chose."""
    with target.open("xb") as file:
        for piece in pieces:
            file.write(piece)


def _name(listed: Listed) -> str:
    return f"objects/{listed.hash}"


def _header(name: str, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size = size
    return entry.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")


def _padding(size: int) -> bytes:
    return bytes(-size % _BLOCK)


BUDGET: Final = 64 << 20
"""Bytes of objects in one bundle; a step that needs more is accused without a bundle."""


class Accusation(msgspec.Struct, frozen=True, kw_only=True):
    """An accused step, the signature that covers it, and the result of the reporter's re-run."""

    head: HeadStatement
    signed: Signed
    step: Block
    checkpoint: bytes | None
    """The checkpoint that this node's own run of the step before made."""
    actual: Actual
    authority: tuple[Signed, ...] = ()
    """The known versions 1, 2, … of the dataset's authority."""


class GatheredBundle(msgspec.Struct, frozen=True):
    """A manifest and where the bytes of its objects are."""

    manifest: BundleManifest
    sources: Mapping[Multihash, bytes | Path]


class TooLarge(msgspec.Struct, frozen=True):
    """The bundle would exceed its limits; ``reason`` is for people."""

    reason: str


def gather(chains: ChainStore, objects: ObjectReader, case: Accusation) -> GatheredBundle | TooLarge:
    """Gathers the objects of a bundle; TooLarge if they exceed the limits.

    Raises NotFound if a slice is no longer here, Invalid if the head's tree is not that of this chain.
    """
    event = case.step.event
    assert isinstance(event, ExecuteTransform)
    pile = _Pile(objects)
    pile.add_chain(chains.chain(case.head.dataset), case.step.sequence_number + 1, _path(chains, case))
    cuts = recorded_cuts(event.query_inputs)
    for dataset, cut in cuts.items():
        reader = chains.chain(dataset)
        pile.add_chain(reader, reader.block_by_hash(cut).sequence_number + 1)
    own = None if case.checkpoint is None else Multihash.sha3_256(case.checkpoint)
    if own == event.prev_checkpoint:
        if case.checkpoint is not None:
            pile.add_bytes(case.checkpoint)
        pile.add_slices(_read_by(chains, case))
    else:
        pile.add_slices(_all_of(chains, cuts))
    if pile.size > BUDGET or len(pile.listed) > MAX_OBJECTS:
        return TooLarge(f"{plural(len(pile.listed), 'object')} of {pile.size:,} bytes; a bundle has at most {BUDGET:,}")
    if event.new_data is not None and pile.size + event.new_data.size <= BUDGET:
        pile.add_slices([event.new_data])
    manifest = BundleManifest(
        type=BUNDLE,
        head=_envelope(case.signed),
        authority=tuple(_envelope(each) for each in case.authority[: case.head.authority]),
        sequence_number=case.step.sequence_number,
        actual=case.actual,
        objects=tuple(pile.listed.values()),
    )
    return GatheredBundle(manifest, pile.sources)


class _Pile:
    """The objects gathered so far, each once, in the order in which they were added."""

    def __init__(self, objects: ObjectReader) -> None:
        self._objects = objects
        self.listed: dict[Multihash, Listed] = {}
        self.sources: dict[Multihash, bytes | Path] = {}
        self.size = 0

    def add_chain(self, reader: ChainReader, size: int, path: tuple[bytes, ...] | None = None) -> None:
        """Adds blocks ``0 <= n < size`` of a chain; ``path`` is the Merkle path of the last."""
        for number, raw in enumerate(reader.raw_blocks(0, min(size, MAX_OBJECTS + 1))):
            self._add(
                Listed(
                    hash=Multihash.sha3_256(raw),
                    size=len(raw),
                    sequence_number=number,
                    path=path if number == size - 1 else None,
                ),
                raw,
            )

    def add_bytes(self, raw: bytes) -> None:
        self._add(Listed(hash=Multihash.sha3_256(raw), size=len(raw)), raw)

    def add_slices(self, slices: Iterable[DataSlice]) -> None:
        for slice_ in slices:
            path = self._objects.path(slice_.physical_hash)
            self._add(Listed(hash=slice_.physical_hash, size=slice_.size), path)

    def _add(self, listed: Listed, source: bytes | Path) -> None:
        if listed.hash not in self.listed:
            self.listed[listed.hash] = listed
            self.sources[listed.hash] = source
            self.size += listed.size


def _path(chains: ChainStore, case: Accusation) -> tuple[bytes, ...]:
    """Returns the Merkle path from the step's block to the root that the head signs. Raises Invalid if roots differ."""
    tree = Tree(partial(leaves_of, chains, case.head.dataset))
    if tree.root(case.head.size) != case.head.root_hash:
        raise Invalid("the newest signed head is not of the chain that is here", rule="trust.tree")
    return tuple(tree.inclusion(case.step.sequence_number, case.head.size))


def _read_by(chains: ChainStore, case: Accusation) -> tuple[DataSlice, ...]:
    _, plan = plan_recorded(chains, case.head.dataset, case.step.sequence_number, case.checkpoint)
    return plan.input_slices if isinstance(plan, TransformPlan) else ()


def _all_of(chains: ChainStore, cuts: Mapping[DatasetId, Multihash]) -> Iterable[DataSlice]:
    for dataset, cut in cuts.items():
        reader = chains.chain(dataset)
        for number in range(reader.block_by_hash(cut).sequence_number + 1):
            event = reader.block_at(number).event
            if isinstance(event, AddData | ExecuteTransform) and event.new_data is not None:
                yield event.new_data


def _envelope(signed: Signed) -> dict[str, canonical.Json]:
    value = canonical.decode(signed.envelope)
    assert isinstance(value, dict)
    return value


@dataclass(frozen=True, slots=True)
class AccusedStep:
    """The accused step of an unpacked bundle whose links were found to be complete."""

    manifest: BundleManifest
    head: HeadStatement
    step: Block
    chains: SqliteChains
    objects: DiskObjects
    published: DataSlice | None
    """The slice that the accused published, if the file holds it and it agrees with its block."""


@dataclass(frozen=True, slots=True)
class IncompleteBundle:
    """A valid bundle that lacks blocks which the re-run needs."""

    manifest: BundleManifest
    head: HeadStatement
    missing: str


Unpacked: TypeAlias = AccusedStep | IncompleteBundle
_OMIT: Final = "a report may leave objects out, not add any: nodes keep and serve evidence alone"


@contextmanager
def unpacked(file: BinaryIO, place: str, folder: Path) -> Iterator[Unpacked]:
    """Unpacks the bundle in ``file`` for use inside the block. Synchronous; ``place`` is its name in messages.

    Raises Invalid if anything is not as a bundle has to be, Environment if our disk fails.
    """
    reader = BundleReader(file, place)
    head, _ = reader.manifest.accused()
    with closing(open_database(folder / "recheck.sqlite")) as database:
        objects = DiskObjects(folder / "objects", database)
        with disk(folder):
            for each, pieces in reader.objects():
                staged = objects.stage()
                copy(pieces, staged)
                objects.adopt(staged, each.hash)
        listed = {object_.hash: object_ for object_ in reader.manifest.objects}
        yield _hang_together(reader.manifest, head, _Stores(listed, objects, SqliteChains(database, objects)))


def _hang_together(manifest: BundleManifest, head: HeadStatement, stores: _Stores) -> Unpacked:
    try:
        step = _accused_step(head, manifest, stores.objects)
        accused = _restore(head.dataset, step.hash, stores)
        before, _ = accused[-1]
        assert isinstance(step.event, ExecuteTransform)
        named = {block.hash for _, block in accused} | _named_by(step.event)
        for dataset, cut in recorded_cuts(step.event.query_inputs).items():
            for state, block in _restore(dataset, cut, stores):
                named |= {block.hash} | _slice_of(block)
                for wrong in _check_slice(stores.objects, state, block):
                    raise Invalid(wrong.message, rule=wrong.rule, place=f"{dataset.short} #{block.sequence_number}")
    except _Missing as missing:
        return IncompleteBundle(manifest, head, str(missing))
    # Nobody's signature answers for it (test_a_reporter_adds_nothing).
    if strange := stores.listed.keys() - named:
        raise Invalid(
            f"it holds {min(strange).short}, which nothing that was signed names", rule="bundle-object", hint=_OMIT
        )
    published = step.event.new_data
    is_whole = published is not None and stores.objects.has(published.physical_hash)
    is_sound = is_whole and not _check_slice(stores.objects, before, step)
    return AccusedStep(manifest, head, step, stores.chains, stores.objects, published if is_sound else None)


def _named_by(event: ExecuteTransform) -> set[Multihash]:
    """Returns the objects that a step reads and made, beside its inputs."""
    made = None if event.new_data is None else event.new_data.physical_hash
    return {name for name in (event.prev_checkpoint, made) if name is not None}


def _slice_of(block: Block) -> set[Multihash]:
    event = block.event
    if isinstance(event, AddData | ExecuteTransform) and event.new_data is not None:
        return {event.new_data.physical_hash}
    return set()


class _Missing(Exception):
    """A block is missing that the file should hold."""


def _accused_step(head: HeadStatement, manifest: BundleManifest, objects: DiskObjects) -> Block:
    """Returns the accused block, after its path showed that it is in the tree that the accused signed."""
    number = manifest.sequence_number
    for object_ in manifest.objects:
        if object_.sequence_number != number or object_.path is None:
            continue
        if root_from_inclusion(object_.hash.digest, number, head.size, object_.path) == head.root_hash:
            block = _block(object_, objects)
            if block.sequence_number != number or not isinstance(block.event, ExecuteTransform):
                raise Invalid(f"block #{number} is no transaction of a transform", rule="bundle-step")
            return block
    if any(object_.path is not None for object_ in manifest.objects):
        raise Invalid("the accused step is not in the tree that was signed", rule="bundle-path")
    raise _Missing(f"block #{number} with its path into the signed tree is not in the file")


def _block(listed: Listed, objects: DiskObjects) -> Block:
    if listed.size > MAX_BLOCK:
        raise Invalid(f"a block of {listed.size:,} bytes", rule="block-size")
    return decode_block(objects.read(listed.hash))


@dataclass(frozen=True, slots=True)
class _Stores:
    """The contents that the file listed, and where each is stored now."""

    listed: Mapping[Multihash, Listed]
    objects: DiskObjects
    chains: SqliteChains


def _restore(dataset: DatasetId, last: Multihash, stores: _Stores) -> list[tuple[ChainState, Block]]:
    """Restores a chain up to ``last``: walks back by links, judges forwards, stores.
    Returns blocks with the state before."""
    blocks = _walk_back(dataset, last, stores)
    if stores.chains.chain(dataset).head() is not None:
        raise Invalid("a chain is an input of itself, or named twice", rule="bundle-chain")
    state = ChainState.EMPTY
    states = []
    for block in blocks:
        for broken in check_block(state, block, as_author=False):
            raise Invalid(broken.message, rule=broken.rule, hint=broken.hint, place=f"block #{block.sequence_number}")
        states.append(state)
        state = state.advance(block)
    if state.dataset != dataset:
        raise Invalid(f"the chain shown for {dataset.short} is another dataset's", rule="graft")
    stores.chains.commit([Append(dataset=dataset, expected=None, blocks=blocks)])
    return list(zip(states, blocks, strict=True))


def _walk_back(dataset: DatasetId, last: Multihash, stores: _Stores) -> list[Block]:
    """Returns the blocks up to ``last``, oldest first. A chain cannot contain a cycle unless sha3-256 is broken."""
    blocks: list[Block] = []
    name: Multihash | None = last
    while name is not None:
        if name not in stores.listed:
            raise _Missing(f"block {name.short} of {dataset.short} is not in the file")
        blocks.append(_block(stores.listed[name], stores.objects))
        name = blocks[-1].prev_block_hash
    return blocks[::-1]


def _check_slice(objects: DiskObjects, state: ChainState, block: Block) -> list[VerifyFinding]:
    """Checks the block's slice against the block, if the file holds it; a re-run reads no others."""
    event = block.event
    if not isinstance(event, AddData | ExecuteTransform) or event.new_data is None:
        return []
    if not objects.has(event.new_data.physical_hash):
        return []
    claim = SliceClaim(slice=event.new_data, terms=ChainTerms.of(state), system_time=block.system_time)
    return check_slice(objects, claim)
