"""Defines the bundle: one file with all the evidence of a mismatch, which anyone can check.

It is a ustar archive: ``bundle.json``, a canonical manifest, then ``objects/<hash>`` in the manifest's order. The
manifest holds the accused head as it was signed, the step, the result of the reporter's re-run, and the list of
objects. The reporter's own claims do not count: a reader hashes every object, and follows the links from the signature
to the step, and from the step to its inputs. Read as a stream under limits; no name in the file ever becomes a path.
Spec: docs/spec/trust.md#bundles.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import msgspec

from chain.errors import Invalid
from chain.multihash import SHA3_256, Multihash
from chain.statements import authority, canonical, envelope, statement
from chain.statements.envelope import Signed
from chain.statements.predicate import NS, Count
from chain.statements.statement import MAX_VERSION, Actual, Authority, HeadStatement, from_text
from chain.statements.tree import MAX_PATH

BUNDLE: Final = NS + "bundle/v1"
MANIFEST: Final = "bundle.json"
MAX_MANIFEST: Final = 2 << 20
"""Bytes of the manifest; at 190 for an object, and more for a path, enough for MAX_OBJECTS."""
MAX_OBJECTS: Final = 8192
MAX_BUNDLE: Final = 256 << 20
"""Bytes of all objects that a reader accepts; writers stay well below (``evidence.BUDGET``)."""
_BLOCK: Final = tarfile.BLOCKSIZE
_CHUNK: Final = 1 << 20
_HINT: Final = "get it again from whoever keeps it: odfctl trust evidence ID -O FILE"

_Node = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class Listed(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One object of a bundle. ``path``: the Merkle path from a block of the accused chain to the root of the head's
    tree."""

    hash: Multihash
    size: Count
    sequence_number: Count | None = None
    path: Annotated[tuple[_Node, ...], msgspec.Meta(max_length=MAX_PATH)] | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
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
        return sum(each.size for each in self.objects)

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


def decode_manifest(raw: bytes) -> Manifest:
    """Decodes a manifest. Raises Invalid."""
    value = canonical.decode(raw)
    try:
        manifest = msgspec.convert(value, Manifest, dec_hook=from_text)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Invalid(f"not a bundle's manifest: {error}", rule="bundle-manifest", hint=_HINT) from error
    if manifest.type != BUNDLE:
        raise Invalid(f"a bundle of type {manifest.type[:80]!r}", rule="bundle-type", hint=BUNDLE)
    if manifest.size > MAX_BUNDLE:
        raise Invalid(
            f"the bundle's objects have {manifest.size:,} bytes, the limit is {MAX_BUNDLE:,}", rule="bundle-size"
        )
    if len({each.hash for each in manifest.objects}) != len(manifest.objects):
        raise Invalid("the bundle lists an object twice", rule="bundle-manifest")
    return manifest


Source = Callable[[Listed], BinaryIO]


def write(manifest: Manifest, source: Source, out: BinaryIO) -> None:
    """Writes the bundle's file. ``source`` opens the bytes of an object.
    Raises Invalid if their size or hash differs."""
    raw = manifest.encode()
    out.write(_header(MANIFEST, len(raw)))
    out.write(raw + _padding(len(raw)))
    for each in manifest.objects:
        out.write(_header(_name(each), each.size))
        digest = hashlib.sha3_256()
        left = each.size
        with source(each) as file:
            while left and (data := file.read(min(left, _CHUNK))):
                digest.update(data)
                out.write(data)
                left -= len(data)
        if left or digest.digest() != each.hash.digest:
            raise Invalid(f"object {each.hash.short} is damaged here", rule="bundle-object", hint="odfctl verify REF")
        out.write(_padding(each.size))
    out.write(bytes(2 * _BLOCK))


class Reader:
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
            for each in self.manifest.objects:
                if self._entry() != (_name(each), each.size):
                    raise Invalid(
                        f"where {each.hash.short} should be there is something else", rule="bundle-file", hint=_HINT
                    )
                yield each, self._pieces(each)
                self._bytes(-each.size % _BLOCK)
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
