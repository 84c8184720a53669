"""Defines packs: files of many blocks next to the ODF layout, to fetch long chains fast. ADR 9.

``packs/K`` holds the blocks from number K · PACK on, oldest first, each with its length before it (``u32``, network
order): PACK of them, or fewer where the chain ends or MAX_PACK bytes are reached. A pack is a hint and never trusted:
readers identify each block by its hash, and fetch blocks that a pack lacks by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from chain.codec.blocks import MAX_BLOCK
from chain.errors import Invalid
from chain.store.base import ChainReader
from chain.store.files import disk, make_folder
from p2p.wire.frames import PREFIX, frame

PACKS: Final = "packs"
PACK: Final = 1024
"""Most blocks of a pack. Most blocks have 600 bytes: 0.6 MB, which saves dozens of round trips."""
MAX_PACK: Final = 8 << 20
"""Most bytes of a pack, which readers and writers hold in memory."""


def pack_file(number: int) -> str:
    return f"{PACKS}/{number}"


def number_in(path: str) -> int | None:
    """Returns the number of the pack that a path of the layout names, if any."""
    folder, _, text = path.partition("/")
    is_number = text.isascii() and text.isdecimal() and (text == "0" or not text.startswith("0"))
    return int(text) if folder == PACKS and is_number and len(text) <= 15 else None


def pack(blocks: Iterable[bytes]) -> bytes:
    """Packs as many of the first blocks as a pack may hold."""
    out = bytearray()
    for count, raw in enumerate(blocks):
        if count == PACK or len(out) + PREFIX + len(raw) > MAX_PACK:
            break
        out += frame(raw)
    return bytes(out)


def read_pack(raw: bytes) -> list[bytes]:
    """Returns the unchecked blocks of a pack. Raises Invalid for a malformed pack."""
    view, at = memoryview(raw), 0
    blocks: list[bytes] = []
    while at < len(raw):
        length, at = int.from_bytes(view[at : at + PREFIX], "big"), at + PREFIX
        if not 0 < length <= MAX_BLOCK or at + length > len(raw) or len(blocks) == PACK:
            raise Invalid("a file of packed blocks is invalid", rule="pack", place=f"byte {at}")
        blocks.append(bytes(view[at : at + length]))
        at += length
    return blocks


def write_packs(folder: Path, chain: ChainReader, size: int) -> None:
    """Writes packs of the first ``size`` blocks into a dataset's folder; keeps complete ones. Raises Environment."""
    make_folder(folder / PACKS)
    there = {number for path in (folder / PACKS).iterdir() if (number := number_in(f"{PACKS}/{path.name}")) is not None}
    last = max(there, default=0)
    for number in range(-(-size // PACK)):
        # Only the last one may have been written when the chain was shorter.
        if number in there and number != last:
            continue
        target = folder / pack_file(number)
        staged = target.with_name("." + target.name)
        start = number * PACK
        with disk(target):
            staged.write_bytes(pack(chain.raw_blocks(start, min(start + PACK, size))))
            staged.rename(target)
