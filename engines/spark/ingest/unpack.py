"""Unpacks files, recognised by their first bytes: gzip, bzip2, xz, zstandard, and members of a zip.

Strangers' bytes are unpacked in the engine's process, where they can do no harm, a block at a time, up to a limit of
size and of the ratio to the packed size. A packed file inside a packed file is unpacked too, a few times.
"""

from __future__ import annotations

import bz2
import fnmatch
import gzip
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final, NamedTuple, TypeAlias

from chain.errors import Environment, Invalid
from chain.libraries import pa
from chain.wording import plural

CHUNK: Final = 1 << 20
FREE: Final = 16 << 20
"""Bytes to which any file may unpack, whatever the ratio."""
LAYERS: Final = 3
"""Most packings inside one another that are undone."""
XZ_MEMORY: Final = 256 << 20
"""Most bytes of memory for xz; files of ``xz -9`` need 65 MiB."""
_TOLD: Final = 8
_OFFICE: Final = frozenset({"[Content_Types].xml", "META-INF/manifest.xml"})
OF_LIMITS: Final = frozenset({"max-source-bytes", "unpack-ratio"})
"""Rules for limits of our own settings: a file that breaks them may be fine elsewhere."""
_MAGIC: Final = ((b"\x1f\x8b", "gzip"), (b"BZh", "bzip2"), (b"\xfd7zXZ\x00", "xz"), (b"\x28\xb5\x2f\xfd", "zstandard"))
_ZIP: Final = (b"PK\x03\x04", b"PK\x05\x06")
_BEGIN: Final = 8
_BROKEN: Final = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)
_NOT_OURS: Final = (NotImplementedError, RuntimeError)
"""Errors of a zip with an unknown method of packing, or a password."""


RECORD_BYTES: Final = 16 << 20
"""Most bytes of a record, unless the settings say otherwise."""


class SourceFile(NamedTuple):
    """A file by its path for the engine, and its name for people."""

    path: Path
    name: str
    record_bytes: int = RECORD_BYTES
    """Most bytes of one of its records, if it is a text."""


class UnpackBounds(NamedTuple):
    """The bounds of one file."""

    size: int = 64 << 30
    ratio: int = 250
    """Most times the packed size, beyond ``FREE`` bytes."""
    record: int = RECORD_BYTES


class Unpacking:
    """The sizes that one packed file unpacks to, checked against its bounds."""

    def __init__(self, name: str, packed: int, bounds: UnpackBounds) -> None:
        self._name = name
        self._packed = max(packed, 1)
        self._bounds = bounds
        self.size = 0

    def add(self, count: int) -> None:
        """Counts unpacked bytes. Raises Invalid if a bound is exceeded."""
        self.size += count
        if self.size > self._bounds.size:
            raise Invalid(
                f"{self._name} unpacks to more than {self._bounds.size} bytes",
                rule="max-source-bytes",
                hint="raise ingest.source-bytes of the settings",
            )
        if self.size > max(FREE, self._packed * self._bounds.ratio):
            raise Invalid(
                f"{self._name} unpacks to more than {plural(self._bounds.ratio, 'time')} its {self._packed:,} bytes",
                rule="unpack-ratio",
                hint="is it a decompression bomb? Raise ingest.unpack-ratio of the settings if you know that it is not",
            )


_Coder: TypeAlias = bz2.BZ2Decompressor | lzma.LZMADecompressor


def packing_of(begin: bytes) -> str | None:
    """Returns the packing of a file, recognised by its first bytes; ``None`` for an unpacked one."""
    found = next((kind for magic, kind in _MAGIC if begin.startswith(magic)), None)
    return "zip" if found is None and begin.startswith(_ZIP) else found


def unpack_source(
    source: SourceFile, folder: Path, bounds: UnpackBounds, members: str | None = None, *, keeps_zip: bool = False
) -> list[SourceFile]:
    """Returns the files in a packed file, written to ``folder``, or the file itself. ``members``: a pattern for names
    in a zip.

    ``keeps_zip``: the format to be read is a zip itself. Raises Invalid; Environment for faults of our disk.
    """
    for layer in range(LAYERS + 1):
        with source.path.open("rb") as file:
            kind = packing_of(file.read(_BEGIN))
        if kind is None or (kind == "zip" and keeps_zip):
            return [source]
        if layer == LAYERS:
            break
        growth = Unpacking(source.name, source.path.stat().st_size, bounds)
        target = folder / f"{source.path.name[-64:]}-{layer}"
        if kind == "zip":
            return _members(source, folder, growth, members)
        with UnpackFaults(source.name, kind):
            write(target, _stream(source.path, kind), growth)
        source = SourceFile(target, source.name)
    raise Invalid(
        f"{source.name} is packed more than {LAYERS} times over", rule="unpack-layers", hint="unpack it before"
    )


class UnpackFaults:
    """Converts faults of the unpacking libraries to ours. ``kind``: the packing."""

    def __init__(self, name: str, kind: str) -> None:
        self._name = name
        self._kind = kind

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, _NOT_OURS):
            raise Invalid(
                f"{self._name}: {error}", rule="unpack", hint="pack it with deflate, and without a password"
            ) from error
        if isinstance(error, (*_BROKEN, pa.ArrowException)):
            why = (str(error).splitlines() or ["it ends early"])[0]
            raise Invalid(
                f"{self._name} is not whole {self._kind}: {why}", rule="unpack", hint="check that the file is complete"
            ) from error


def write(target: Path, blocks: Iterator[bytes], growth: Unpacking) -> None:
    """Writes blocks to a file. Raises Invalid; Environment for faults of our disk."""
    with target.open("wb") as out:
        for block in blocks:
            growth.add(len(block))
            try:
                out.write(block)
            except OSError as error:
                raise Environment(
                    f"cannot unpack: {error.strerror}", rule="disk", hint="check that the disk is not full"
                ) from error


def _stream(path: Path, kind: str) -> Iterator[bytes]:
    """Yields unpacked blocks of at most ``CHUNK`` bytes."""
    match kind:
        case "gzip":
            with gzip.open(path, "rb") as packed:
                yield from blocks(packed)
        case "bzip2":
            yield from _decompress(path, bz2.BZ2Decompressor)
        case "xz":
            yield from _decompress(path, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY))
        case _:
            with pa.CompressedInputStream(pa.OSFile(str(path)), "zstd") as packed:
                yield from blocks(packed)


def blocks(packed: IO[bytes] | gzip.GzipFile | zipfile.ZipExtFile | pa.NativeFile) -> Iterator[bytes]:
    while block := packed.read(CHUNK):
        yield block


def _decompress(path: Path, fresh: Callable[[], _Coder]) -> Iterator[bytes]:
    """Yields the content of concatenated streams; xz pads them with zeros."""
    with path.open("rb") as file:
        coder, data = fresh(), b""
        while True:
            if coder.eof:
                data = coder.unused_data.lstrip(b"\0")
                while not data and (more := file.read(CHUNK)):
                    data = more.lstrip(b"\0")
                if not data:
                    return
                coder = fresh()
            elif coder.needs_input:
                data = file.read(CHUNK)
                if not data:
                    raise EOFError("it ends early")
            if block := coder.decompress(data, CHUNK):
                yield block
            data = b""


def choose_members(names: list[str], pattern: str) -> list[str]:
    """Returns the member with this name, or else those that the pattern matches."""
    return [pattern] if pattern in names else [name for name in names if fnmatch.fnmatchcase(name, pattern)]


def member_names(archive: zipfile.ZipFile) -> list[str]:
    """Lists members that hold data: no folders, and no metadata files of macOS."""
    names = (entry.filename for entry in archive.infolist() if not entry.is_dir())
    return [name for name in names if not name.startswith("__MACOSX/") and name.rpartition("/")[2] != ".DS_Store"]


def _members(source: SourceFile, folder: Path, growth: Unpacking, pattern: str | None) -> list[SourceFile]:
    made = []
    with UnpackFaults(source.name, "zip"), zipfile.ZipFile(source.path) as archive:
        names = member_names(archive)
        wanted = names if pattern is None else choose_members(names, pattern)
        if not wanted or (pattern is None and len(wanted) > 1):
            raise _which(source.name, names, pattern)
        for number, name in enumerate(sorted(wanted)):
            target = folder / f"{source.path.name[-64:]}-member-{number}"
            with archive.open(name) as member:
                write(target, blocks(member), growth)
            made.append(SourceFile(target, f"{source.name}/{name}"))
    return made


def _which(name: str, names: list[str], pattern: str | None) -> Invalid:
    listed = ", ".join(names[:_TOLD]) + (", …" if len(names) > _TOLD else "")
    if pattern is not None:
        return Invalid(
            f"no file in {name} is called {pattern!r}", rule="unpack-members", hint=f"it holds {listed or 'nothing'}"
        )
    if not _OFFICE.isdisjoint(names):
        return Invalid(
            f"{name} is a table of an office program",
            rule="unpack-members",
            hint="say kind: Spreadsheet in the read step",
        )
    return Invalid(
        f"{name} holds {plural(len(names), 'file')}",
        rule="unpack-members",
        hint=f"say which are read, in the read step: members: '*.csv' (it holds {listed})" if names else "",
    )
