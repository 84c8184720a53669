"""Removes from libraries what only debuggers read: tables of symbols and lines, behind all that the loader maps.

It is a function of the bytes alone, and no program of the machine, so that all machines build the same.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final, NamedTuple

_ELF64: Final = b"\x7fELF\x02\x01"
"""Of 64 bits, least byte first; other files stay as they are."""
_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_MAPPED: Final = 0x2
"""``SHF_ALLOC``"""
_EMPTY: Final = 8
"""``SHT_NOBITS``: takes memory and no place in the file."""


class _Section(NamedTuple):
    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry_size: int


def strip_libraries(folder: Path) -> None:
    """Strips the libraries below a folder, in place."""
    for path in sorted(folder.rglob("*.so*")):
        if path.is_file() and not path.is_symlink():
            before = path.read_bytes()
            after = stripped(before)
            if after != before:
                path.write_bytes(after)


def stripped(library: bytes) -> bytes:
    """Returns a library without the sections that are not mapped, but for their names.

    Returns what is no library as it is, and one in which a section that is mapped follows one that is not: symbols name
    sections by their numbers, which would change.
    """
    if not library.startswith(_ELF64):
        return library
    *head, segments, table, flags, size, _, many, section_size, count, names = _HEADER.unpack_from(library)
    sections = [_Section(*_SECTION.unpack_from(library, table + at * section_size)) for at in range(count)]
    mapped = [at for at, each in enumerate(sections) if at == 0 or each.flags & _MAPPED]
    if mapped != [*range(len(mapped))] or not names:
        return library
    ends = [_end_of_segments(library, segments, many)]
    ends += [each.offset + each.size for each in sections[1 : len(mapped)] if each.type != _EMPTY]
    named = sections[names]
    texts = library[named.offset : named.offset + named.size]
    body = _aligned(library[: max(ends)]) + texts
    kept = [*sections[: len(mapped)], named._replace(offset=len(body) - len(texts))]
    body = _aligned(body)
    sizes = (flags, size, _SEGMENT.size, many, _SECTION.size, len(kept), len(mapped))
    header = _HEADER.pack(*head, segments, len(body), *sizes)
    return header + body[len(header) :] + b"".join(_SECTION.pack(*each) for each in kept)


def _end_of_segments(library: bytes, segments: int, many: int) -> int:
    """Where the last segment ends in the file, and the table of segments if that is later."""
    ends = [segments + many * _SEGMENT.size]
    for at in range(many):
        _, _, offset, _, _, stored, _, _ = _SEGMENT.unpack_from(library, segments + at * _SEGMENT.size)
        ends.append(offset + stored)
    return max(ends)


def _aligned(body: bytes) -> bytes:
    return body + bytes(-len(body) % 8)
