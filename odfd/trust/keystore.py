"""Keys on disk, and the journal that keeps a signer from contradicting itself (trust.md section 1, "Signing safely").

``keys/<did>.key`` holds 32 secret bytes as hex, mode 0600. Before a signature leaves, type, order and sid are appended
to ``keys/<did>.journal`` and fsynced; a signer whose state lies behind its journal refuses to sign. The journal is
outside the database and its backups on purpose: it must survive a restored backup.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from chain.errors import Environment, NotFound, Refused
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements import envelope
from chain.statements.keys import SigningKey

NODE_KEY: Final = "node"
_MODE: Final = 0o600


class KeyStore:
    """The directory ``keys/``. ``entropy`` gives secret random bytes."""

    def __init__(self, directory: Path, entropy: Callable[[int], bytes]) -> None:
        self._directory = directory
        self._entropy = entropy
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def node_key(self) -> SigningKey:
        """This node's own key; made the first time."""
        path = self._directory / f"{NODE_KEY}.key"
        if not path.exists():
            self._write(path, self._entropy(32))
        return self._read(path)

    def new_dataset_key(self) -> SigningKey:
        seed = self._entropy(32)
        key = SigningKey(seed)
        self._write(self._key_path(key.dataset_id), seed)
        return key

    def has_dataset_key(self, dataset: DatasetId) -> bool:
        return self._key_path(dataset).exists()

    def dataset_key(self, dataset: DatasetId) -> SigningKey:
        """Raises NotFound when this node is not the dataset's owner."""
        path = self._key_path(dataset)
        if not path.exists():
            raise NotFound(
                f"the key of {dataset.short} is not on this node", rule="dataset-key", hint="its owner signs"
            )
        return self._read(path)

    def sign(self, key: SigningKey, kind: str, order: tuple[int, ...], payload: bytes) -> bytes:
        """A sealed envelope of ``payload``, journalled first. Signing the same statement again is allowed.

        ``order`` must not go back, and one order may not carry two statements. Raises Refused (``trust.behind``).
        """
        sid = envelope.sid(payload)
        journal = self._directory / f"{key.dataset_id.multibase}.journal"
        last = self._last(journal, kind)
        if last is not None:
            last_order, last_sid = last
            if last_sid != sid and order <= last_order:
                raise Refused(
                    f"{key.did.short} has already signed a later {kind} than {order}: {last_order}",
                    rule="trust.behind",
                    hint="this state is older than the signing journal; pull the dataset from a peer, then sign",
                )
        line = f"{kind} {','.join(map(str, order))} {sid}\n"
        self._append(journal, line.encode())
        return envelope.seal(payload, key)

    def _key_path(self, dataset: DatasetId) -> Path:
        return self._directory / f"{dataset.multibase}.key"

    def _read(self, path: Path) -> SigningKey:
        try:
            return SigningKey(bytes.fromhex(path.read_text().strip()))
        except (OSError, ValueError) as error:
            raise Environment(f"cannot read the key {path.name}: {error}", rule="key-file") from error

    def _write(self, path: Path, seed: bytes) -> None:
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
            with os.fdopen(handle, "w") as file:
                file.write(seed.hex() + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise Environment(f"cannot write the key {path.name}: {error}", rule="key-file") from error
        self._sync_directory()

    def _append(self, journal: Path, line: bytes) -> None:
        fresh = not journal.exists()
        try:
            handle = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, _MODE)
            with os.fdopen(handle, "wb") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise Environment(f"cannot write {journal.name}: {error}", rule="signing-journal") from error
        if fresh:
            self._sync_directory()

    def _last(self, journal: Path, kind: str) -> tuple[tuple[int, ...], Multihash] | None:
        """The greatest entry of this kind. A torn last line was never followed by a signature and is passed over."""
        if not journal.exists():
            return None
        found = None
        for line in _tail(journal):
            words = line.split(" ")
            if len(words) == 3 and words[0] == kind:
                entry = (tuple(int(part) for part in words[1].split(",")), Multihash.parse(words[2]))
                found = entry if found is None or entry[0] >= found[0] else found
        return found

    def _sync_directory(self) -> None:
        handle = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


_TAIL: Final = 64 << 10
"""Bytes of the journal that are read: orders only grow, so its end says all (a few hundred entries)."""


def _tail(journal: Path) -> list[str]:
    with journal.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL))
        text = file.read().decode(errors="replace")
    lines = text.split("\n")[:-1]
    return lines[1:] if size > _TAIL else lines
