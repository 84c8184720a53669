"""The signing journal: what a key has said last of each thing, kept so that it never contradicts itself.

Before a signature leaves, a line ``<topic> <order> <subject> <sum>`` is appended to ``keys/<did>.journal`` and fsynced
(trust.md section 1, "Signing safely"). The order of a topic never goes back, and one order never carries two subjects.
The file is outside the database and its backups on purpose: restoring a backup must not make a signer forget.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from chain.errors import Environment, Refused

Order: TypeAlias = tuple[int, ...]
COMPACT_AT: Final = 1 << 20
"""Bytes from which a journal is rewritten, when it is opened, with the last line of each topic only."""
_MODE: Final = 0o600


class Entry(msgspec.Struct, frozen=True):
    order: Order
    subject: str
    """What was said, by its hash: two different ones at one order are a contradiction."""


class Journal:
    """One key's journal; read once, then appended to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = _load(path)
        if path.exists() and path.stat().st_size > COMPACT_AT:
            _replace(path, "".join(_line(topic, entry) for topic, entry in sorted(self._last.items())))

    def last(self, topic: str) -> Entry | None:
        return self._last.get(topic)

    def check(self, topic: str, order: Order, subject: str) -> None:
        """Whether ``subject`` may be signed. Raises Refused (``trust.behind``) when more was said already."""
        last = self._last.get(topic)
        if last is not None and last != Entry(order, subject) and order <= last.order:
            raise Refused(
                f"this key has already signed {topic} at {last.order}; it will not sign another at {order}",
                rule="trust.behind",
                hint="the state here is older than the signing journal: pull the dataset from a peer, then sign",
            )

    def promise(self, topic: str, order: Order, subject: str) -> None:
        """Note, durably, that ``subject`` is about to be signed. Raises Refused (``trust.behind``) or Environment."""
        self.check(topic, order, subject)
        entry = Entry(order, subject)
        if self._last.get(topic) != entry:
            _append(self._path, _line(topic, entry))
            self._last[topic] = entry


def _line(topic: str, entry: Entry) -> str:
    said = f"{topic} {','.join(map(str, entry.order))} {entry.subject}"
    return f"{said} {_sum(said)}\n"


def _sum(said: str) -> str:
    """A bit that flips in a journal must not let a key say something else."""
    return hashlib.sha3_256(said.encode()).hexdigest()[:8]


def _entry(line: str) -> tuple[str, Entry]:
    """Raises ValueError. Lines from before there were sums have none."""
    topic, order, subject, *sums = line.split(" ")
    if sums and sums != [_sum(f"{topic} {order} {subject}")]:
        raise ValueError(f"the line {line[:40]!r}… is damaged")
    return topic, Entry(tuple(int(part) for part in order.split(",")), subject)


def _load(path: Path) -> dict[str, Entry]:
    """The last entry of each topic. A torn last line was never followed by a signature and is cut off."""
    last: dict[str, Entry] = {}
    if not path.exists():
        return last
    try:
        text = path.read_text()
        whole, _, torn = text.rpartition("\n")
        for line in whole.splitlines():
            topic, entry = _entry(line)
            if topic not in last or entry.order >= last[topic].order:
                last[topic] = entry
        if torn:
            _replace(path, f"{whole}\n" if whole else "")
    except (OSError, ValueError) as error:
        raise Environment(
            f"the signing journal {path.name} cannot be read: {error}",
            rule="signing-journal",
            hint="without it this key must not sign: restore the file, or retire the key",
        ) from error
    return last


def _append(path: Path, line: str) -> None:
    fresh = not path.exists()
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, _MODE), "w") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        if fresh:
            sync_folder(path.parent)
    except OSError as error:
        raise Environment(f"cannot write {path.name}: {error}", rule="signing-journal") from error


def _replace(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _MODE), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
