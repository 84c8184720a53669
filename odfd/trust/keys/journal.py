"""Implements the signing journal: the last statement of a key on each topic, so that it never contradicts itself.

Before a signature leaves, a line ``<topic> <order> <subject> <sum>`` is appended to ``keys/<did>.journal`` and fsynced
(docs/spec/trust.md#journals). The order of a topic never goes back, and one order never carries two subjects.
The file is outside the database and its backups on purpose: restoring a backup must not make a signer forget.

A journal is begun with its key: ``journal 0 new`` is its first line. One that is gone or empty although its key is here
is lost. It then lets nothing be signed until it is begun again, with whatever others know of the key's words.
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

Order: TypeAlias = tuple[int, ...]
COMPACT_AT: Final = 1 << 20
"""Bytes from which a journal is rewritten, when it is opened, with the last line of each topic only."""
BEGUN: Final = "journal"
"""Topic of the first line. Its order is when the journal was begun, in seconds of Unix time, and 0 for a new key."""
NEW: Final = "new"
"""Its subject where the key was made with the journal; else who told what the key had said (``remembering``)."""
_MODE: Final = 0o600
_PARTS: Final = 4
"""Of a line."""


class JournalEntry(msgspec.Struct, frozen=True):
    order: Order
    subject: str
    """The hash of the signed statement: two different ones at one order are a contradiction."""


class SigningJournal:
    """One key's journal; read once, then appended to."""

    is_lost: bool = False
    """Whether it is missing although its key is here: then its statements are unknown, and the key signs no more."""

    def __init__(self, path: Path, *, begun: bool = False) -> None:
        """``begun``: the key is here, and its journal was begun with it."""
        self._path = path
        self._last, self._size = _load(path)
        self.is_lost = begun and not self._last
        if self._size > COMPACT_AT:
            # A disk that has no room for a shorter one leaves this one as it is.
            with suppress(Environment):
                self._replace(self._last)

    @property
    def is_new(self) -> bool:
        """Whether its key has never signed anything."""
        return self._last == _START

    def last(self, topic: str) -> JournalEntry | None:
        """The last entry. Raises Refused (``trust.journal``) when the journal is lost."""
        self._check_kept()
        return self._last.get(topic)

    def begin(self, how: str, at: int, last: Mapping[str, JournalEntry]) -> None:
        """Starts the journal again, atomically, with the known last statements of its key. Raises Environment."""
        entries = {**last, BEGUN: JournalEntry((at,), how)}
        self._replace(entries)
        self.is_lost = False

    def check(self, topic: str, order: Order, subject: str) -> None:
        """Whether ``subject`` may be signed.

        Raises Refused: ``trust.behind`` when more was said already, ``trust.journal`` when nobody knows what was.
        """
        last = self.last(topic)
        if last is not None and last != JournalEntry(order, subject) and order <= last.order:
            raise Refused(
                f"this key has already signed {topic} at {last.order}; it will not sign another at {order}",
                rule="trust.behind",
                hint="the state here is older than the signing journal: odfctl pull REF --repair fetches what is newer",
            )

    def promise(self, topic: str, order: Order, subject: str) -> None:
        """Note, durably, that ``subject`` is about to be signed. Raises Refused as ``check`` does, or Environment."""
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
    """The first line first."""
    return item[0] != BEGUN, item[0]


def _line(topic: str, entry: JournalEntry) -> str:
    text = f"{topic} {','.join(map(str, entry.order))} {entry.subject}"
    return f"{text} {_sum(text)}\n"


def _sum(text: str) -> str:
    """A bit that flips in a journal must not let a key say something else."""
    return hashlib.sha3_256(text.encode()).hexdigest()[:8]


def _entry(line: str, *, is_old: bool = False) -> tuple[str, JournalEntry]:
    """Raises ValueError. ``is_old``: lines from before there were sums have none."""
    topic, order, subject, *sums = line.split(" ")
    if sums != [_sum(f"{topic} {order} {subject}")] and (sums or not is_old):
        raise ValueError(f"the line {line[:40]!r}… is damaged")
    return topic, JournalEntry(tuple(int(part) for part in order.split(",")), subject)


def _entries(line: str, *, is_old: bool) -> list[tuple[str, JournalEntry]]:
    """Parses one line, which may begin with a part of another line that a full disk cut off.

    Such a part was never followed by a signature. Raises ValueError.
    """
    try:
        return [_entry(line, is_old=is_old)]
    except ValueError:
        for start in range(1, len(line)):
            if line.count(" ", start) == _PARTS - 1:
                with suppress(ValueError):
                    found = _entry(line[start:])
                    return [*_unended(line[:start]), found]
        raise


def _unended(part: str) -> list[tuple[str, JournalEntry]]:
    """Parses a line without its end, or with a flipped bit there: a whole entry counts, a part does not."""
    for text in (part, part[:-1]):
        with suppress(ValueError):
            return [_entry(text)]
    return []


def _load(path: Path) -> tuple[dict[str, JournalEntry], int]:
    """The last entry of each topic, and the size of the file: -1 where it is to be written anew.

    A torn last line was never followed by a signature: it is cut off, which needs no room on the disk.
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
        raw = path.read_bytes()
        size = raw.rfind(b"\n") + 1
        for line in raw[:size].decode().split("\n")[:-1]:
            take(_entries(line, is_old=is_old))
            is_old = is_old and line.count(" ") < _PARTS - 1
        if unended := _unended(raw[size:].decode(errors="replace")):
            take(unended)
            size = -1
        elif size < len(raw):
            os.truncate(path, size)
    except (OSError, ValueError) as error:
        raise Environment(
            f"the signing journal {path.name} cannot be read: {error}",
            rule="signing-journal",
            hint="this key signs nothing: restore the file, or move it away and let odfctl trust sign ask peers",
        ) from error
    return last, size


def _size(path: Path) -> int | None:
    """``None`` when it is not there."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _cannot_write(path, error) from error


def _append(path: Path, size: int, line: str) -> int:
    """To a file of ``size`` that is there, the whole line or nothing of it; its size then.

    One that was deleted meanwhile must not come back with its last line alone.
    """
    data = line.encode()
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.fchmod(file, _MODE)
            _write(file, data)
            os.fsync(file)
        except OSError:
            # Else it would stand before the next line. Where not even that can be done, the file's size tells.
            with suppress(OSError):
                os.ftruncate(file, size)
            raise
        finally:
            os.close(file)
    except OSError as error:
        raise _cannot_write(path, error) from error
    return size + len(data)


def _replace(path: Path, text: str) -> int:
    """The whole file or nothing of it; its size then."""
    fresh, data = path.with_suffix(".new"), text.encode()
    try:
        file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _MODE)
        try:
            os.fchmod(file, _MODE)
            _write(file, data)
            os.fsync(file)
        finally:
            os.close(file)
        fresh.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise _cannot_write(path, error) from error
    return len(data)


def _write(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _cannot_write(path: Path, error: OSError) -> Environment:
    return Environment(
        f"cannot write {path.name}: {error.strerror or error}",
        rule="signing-journal",
        hint="is the disk full, or the folder read-only?",
    )


def sync_folder(folder: Path) -> None:
    """Make names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
