"""Implements the signing journal: the last statement of a key on each topic, so that it never contradicts itself.

Before a signature leaves the node, a line ``<topic> <order> <subject> <sum>`` is appended to ``keys/<did>.journal`` and
fsynced (docs/spec/trust.md#journals). The order of a topic never decreases, and one order never has two subjects. The
file is kept out of the database and its backups on purpose: restoring a backup must not make a signer forget.

A journal is begun with its key: its first line is ``journal 0 new``. A journal that is missing or empty although its
key is here is lost. It then lets nothing be signed until it is begun again, with whatever others know of the key's
statements.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from chain.errors import Environment, Refused
from chain.store import durable

Order: TypeAlias = tuple[int, ...]
COMPACT_AT: Final = 1 << 20
"""Bytes from which a journal is rewritten, when it is opened, with only the last line of each topic."""
BEGUN: Final = "journal"
"""Topic of the first line. Its order is the time when the journal was begun, in Unix seconds; 0 for a new key."""
NEW: Final = "new"
"""Subject of the first line if the key was made with the journal; else it says who told the key's last statements."""
_PARTS: Final = 4
"""Number of parts of a line."""


class JournalEntry(msgspec.Struct, frozen=True):
    order: Order
    subject: str
    """The hash of the signed statement; two different ones at one order are a contradiction."""


class SigningJournal:
    """The journal of one key; read once, then appended to."""

    is_lost: bool = False
    """Whether it is missing although its key is here. Its statements are then unknown, and the key signs no more."""

    def __init__(self, path: Path, *, begun: bool = False) -> None:
        """``begun``: whether the key is here, so that its journal was begun with it."""
        self._path = path
        self._last, self._size = _load(path)
        self.is_lost = begun and not self._last
        if self._size > COMPACT_AT:
            # If the disk has no room even for a shorter file, the present one stays as it is.
            with suppress(Environment):
                self._replace(self._last)

    @property
    def is_new(self) -> bool:
        """Whether its key has never signed anything."""
        return self._last == _START

    def last(self, topic: str) -> JournalEntry | None:
        """Returns the last entry of a topic. Raises Refused (``trust.journal``) if the journal is lost."""
        self._check_kept()
        return self._last.get(topic)

    def begin(self, how: str, at: int, last: Mapping[str, JournalEntry]) -> None:
        """Starts the journal again, atomically, with the known last statements of its key. Raises Environment."""
        entries = {**last, BEGUN: JournalEntry((at,), how)}
        self._replace(entries)
        self.is_lost = False

    def check(self, topic: str, order: Order, subject: str) -> None:
        """Checks that ``subject`` may be signed.

        Raises Refused: ``trust.behind`` if a later or another statement was signed already, ``trust.journal`` if the
        journal is lost.
        """
        last = self.last(topic)
        # The same statement may be signed again: after a crash it may be in the journal and nowhere else.
        if last is not None and last != JournalEntry(order, subject) and order <= last.order:
            raise Refused(
                f"this key has already signed {topic} at {last.order}; it will not sign another at {order}",
                rule="trust.behind",
                hint="the state here is older than the signing journal: odfctl pull REF --repair fetches what is newer",
            )

    def promise(self, topic: str, order: Order, subject: str) -> None:
        """Notes durably that ``subject`` is about to be signed. Raises Refused as ``check`` does, or Environment."""
        self.check(topic, order, subject)
        entry = JournalEntry(order, subject)
        if self._last.get(topic) == entry:
            return
        if _size(self._path) == self._size:
            self._size = _append(self._path, self._size, _line(topic, entry))
            self._last[topic] = entry
        else:
            # Its first line; or it was deleted, or left with part of a line by a full disk, under a running node, which
            # still knows all of it.
            self._replace({**_START, **self._last, topic: entry})

    def _check_kept(self) -> None:
        if self.is_lost:
            raise Refused(
                f"the signing journal {self._path.name} is lost, and with it the record of what this key signed",
                rule="trust.journal",
                hint="odfctl trust sign asks peers for it; if no peer can know, odfctl trust sign --alone",
            )

    def _replace(self, entries: dict[str, JournalEntry]) -> None:
        text = "".join(_line(topic, entry) for topic, entry in sorted(entries.items(), key=_place))
        self._size = _replace(self._path, text)
        self._last = entries


_START: Final = {BEGUN: JournalEntry((0,), NEW)}


def _place(item: tuple[str, JournalEntry]) -> tuple[bool, str]:
    """Returns a sort key that puts the first line first."""
    return item[0] != BEGUN, item[0]


def _line(topic: str, entry: JournalEntry) -> str:
    text = f"{topic} {','.join(map(str, entry.order))} {entry.subject}"
    return f"{text} {_sum(text)}\n"


def _sum(text: str) -> str:
    """Returns a checksum, so that a flipped bit in a journal cannot allow another statement."""
    return hashlib.sha3_256(text.encode()).hexdigest()[:8]


def _entry(line: str, *, is_old: bool = False) -> tuple[str, JournalEntry]:
    """Parses one entry. Raises ValueError. ``is_old``: lines from before there were checksums have none."""
    topic, order, subject, *sums = line.split(" ")
    if sums != [_sum(f"{topic} {order} {subject}")] and (sums or not is_old):
        raise ValueError(f"the line {line[:40]!r}… is damaged")
    return topic, JournalEntry(tuple(int(part) for part in order.split(",")), subject)


def _entries(line: str, *, is_old: bool) -> list[tuple[str, JournalEntry]]:
    """Parses one line, which may begin with a part of another line that a full disk cut off.

    No signature followed such a part. Raises ValueError.
    """
    try:
        return [_entry(line, is_old=is_old)]
    except ValueError:
        for start in range(1, len(line)):
            if line.count(" ", start) == _PARTS - 1:
                with suppress(ValueError):
                    found = _entry(line[start:])
                    return [*_parse_unended(line[:start]), found]
        raise


def _parse_unended(part: str) -> list[tuple[str, JournalEntry]]:
    """Parses a last line whose newline is missing or flipped: a whole entry counts, a part does not."""
    for text in (part, part[:-1]):
        with suppress(ValueError):
            return [_entry(text)]
    return []


def _load(path: Path) -> tuple[dict[str, JournalEntry], int]:
    """Returns the last entry of each topic, and the size of the file; -1 if it has to be rewritten.

    A torn last line is cut off, which needs no room on the disk; no signature followed it.
    """
    last: dict[str, JournalEntry] = {}
    is_old = True

    def take(found: list[tuple[str, JournalEntry]]) -> None:
        for topic, entry in found:
            if topic not in last or entry.order >= last[topic].order:
                last[topic] = entry

    try:
        if not path.exists():
            return last, 0
        whole = path.read_bytes()
        raw = _without_lost(whole)
        size = raw.rfind(b"\n") + 1
        for line in raw[:size].decode().split("\n")[:-1]:
            take(_entries(line, is_old=is_old))
            is_old = is_old and line.count(" ") < _PARTS - 1
        if unended := _parse_unended(raw[size:].decode(errors="replace")):
            take(unended)
            size = -1
        elif size < len(whole):
            os.truncate(path, size)
    except (OSError, ValueError) as error:
        raise Environment(
            f"the signing journal {path.name} cannot be read: {error}",
            rule="signing-journal",
            hint="this key signs nothing: restore the file, or move it away and let odfctl trust sign ask peers",
        ) from error
    return last, size


def _without_lost(raw: bytes) -> bytes:
    """Cuts off a last line of which the power's failure left zeros; it was never durable, so no signature followed it.

    A flipped bit makes no two zeros.
    """
    lost = raw.find(b"\0\0")
    return raw if lost < 0 or b"\n" in raw[lost:-1] else raw[: raw.rfind(b"\n", 0, lost) + 1]


def _size(path: Path) -> int | None:
    """Returns the size of a file; ``None`` if it does not exist."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _cannot_write(path, error) from error


def _append(path: Path, size: int, line: str) -> int:
    """Appends a line, entirely or not at all, to an existing file of ``size`` bytes; returns its new size.

    A file that was deleted meanwhile is not made again: it would have its last line only.
    """
    data = line.encode()
    try:
        durable.append(path, size, data)
    except OSError as error:
        raise _cannot_write(path, error) from error
    return size + len(data)


def _replace(path: Path, text: str) -> int:
    """Replaces a file, entirely or not at all; returns its size."""
    data = text.encode()
    try:
        durable.write(path, data)
    except OSError as error:
        raise _cannot_write(path, error) from error
    return len(data)


def _cannot_write(path: Path, error: OSError) -> Environment:
    return Environment(
        f"cannot write {path.name}: {error.strerror or error}",
        rule="signing-journal",
        hint="check that the disk is not full, and the folder not read-only",
    )
