"""Keeps keys on disk: ``keys/node.key``, and ``keys/<did>.key`` for each dataset of this node, mode 0600.

``keys/validator.key`` exists if verdicts have a key of their own.

A key signs only through its journal, which is begun before the key is kept. If a key has no journal, nobody knows what
it has said, and it signs nothing until ``renew``. The key of a dataset may be taken offline: then
``keys/<did>.offline`` says that the dataset is still ours, and heads are signed by the node's own key, as far as the
authority allows. The key of a dataset that is not committed yet has ``keys/<did>.unborn`` beside it, from before the
key is written until after the commit. If that file is there after a crash, the dataset was not created, unless there is
a chain. Secrets are made from the caller's entropy; they are not printed, logged or backed up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from chain.errors import Environment, NotFound
from chain.ids import DID_ODF, DatasetId, KeyDid
from chain.instant import SECOND, Instant
from chain.statements import envelope
from chain.statements.keys import SigningKey
from chain.store import durable
from odfd.store.keys.journal import BEGUN, NEW, JournalEntry, Order, SigningJournal

_NODE: Final = "node"
_VALIDATOR: Final = "validator"
_OWN: Final = (_NODE, _VALIDATOR)
_UNBORN: Final = ".unborn"
_COPY: Final = "restore the file from a copy: no other node has it"


class KeyStore:
    """Manages the directory ``keys/``. ``entropy`` returns secret random bytes. Safe to use from any thread."""

    def __init__(self, directory: Path, entropy: Callable[[int], bytes]) -> None:
        self._directory = directory
        self._entropy = entropy
        self._journals: dict[bytes, SigningJournal] = {}
        self._own: SigningKey | None = None
        self._signing = threading.Lock()
        try:
            durable.make_folder(directory, 0o700)
        except OSError as error:
            raise Environment(f"cannot make {directory}: {error}", rule="key-directory") from error

    def node_seed(self) -> bytes:
        """Returns the 32 secret bytes of this node's own key; makes them the first time."""
        path = self._directory / f"{_NODE}.key"
        if not path.exists():
            self._make(path, self._entropy(32))
        return self._read(path)

    def node_key(self) -> SigningKey:
        """Returns this node's own key, which is read once, as it is used for every dataset."""
        if self._own is None:
            self._own = SigningKey(self.node_seed())
        return self._own

    def validator_key(self) -> SigningKey:
        """Returns a key for verdicts only, which does not identify this node; makes it the first time."""
        path = self._directory / f"{_VALIDATOR}.key"
        if not path.exists():
            self._make(path, self._entropy(32))
        return SigningKey(self._read(path))

    def new_dataset_key(self) -> SigningKey:
        """Makes the key of a new dataset; ``keep_dataset_key`` or ``discard_dataset_key`` follows."""
        seed = self._entropy(32)
        key = SigningKey(seed)
        try:
            durable.create(self._unborn_path(key.dataset_id))
        except OSError as error:
            raise Environment(f"cannot write to {self._directory}: {error}", rule="key-file") from error
        self._make(self._key_path(key.dataset_id), seed)
        return key

    def unborn(self) -> list[DatasetId]:
        """Lists datasets whose keys were made and neither kept nor discarded."""
        return sorted(DatasetId.parse(DID_ODF + path.stem) for path in self._directory.glob(f"*{_UNBORN}"))

    def keep_dataset_key(self, dataset: DatasetId) -> None:
        """Keeps a new key, since the dataset's chain has begun."""
        durable.remove(self._unborn_path(dataset))  # a dataset that is deleted later keeps its key

    def has_dataset_key(self, dataset: DatasetId) -> bool:
        """Whether this node publishes the dataset, even if its key is offline."""
        return self._key_path(dataset).exists() or self.is_offline(dataset)

    def is_offline(self, dataset: DatasetId) -> bool:
        """Whether this node publishes the dataset while its key is kept elsewhere."""
        return self._offline_path(dataset).exists() and not self._key_path(dataset).exists()

    def take_offline(self, dataset: DatasetId) -> None:
        """Deletes the dataset's key but stays its publisher. The journal stays, as the key may come back."""
        try:
            # Before the key goes: after a crash in between the key still counts as here (is_offline).
            durable.create(self._offline_path(dataset))
            durable.remove(self._key_path(dataset))
        except OSError as error:
            raise Environment(f"cannot take the key of {dataset.short} away: {error}", rule="key-file") from error

    def keys_for(self, dataset: DatasetId) -> list[SigningKey]:
        """Returns the keys here that may have rights in a dataset: its own, if it is here, and the node's."""
        own = [self.dataset_key(dataset)] if self._key_path(dataset).exists() else []
        return [*own, self.node_key()]

    def dataset_key(self, dataset: DatasetId) -> SigningKey:
        """Returns the dataset's key. Raises NotFound if this node is not the dataset's owner."""
        path = self._key_path(dataset)
        if self.is_offline(dataset):
            raise NotFound(
                f"the key of {dataset.short} was taken offline",
                rule="dataset-key",
                hint="give the file it is kept in: --offline-key FILE",
            )
        if not path.exists():
            raise NotFound(
                f"this node does not hold the key of {dataset.short}", rule="dataset-key", hint="its owner signs"
            )
        key = SigningKey(self._read(path))
        if key.dataset_id != dataset:
            raise _spoilt(path)
        return key

    def dataset_seed(self, dataset: DatasetId) -> bytes:
        """Returns the 32 secret bytes of a dataset's key, for its owner to keep elsewhere. Raises NotFound."""
        self.dataset_key(dataset)
        return self._read(self._key_path(dataset))

    def discard_dataset_key(self, dataset: DatasetId) -> None:
        """Deletes the key of a dataset that was not created, or was deleted for good; a journal with entries stays."""
        with self._signing:
            unused = self._journal_of(dataset.public_key).is_new
            key = self._key_path(dataset)
            # A crash while a key is written leaves its secret in the draft.
            durable.remove(key, durable.draft_of(key))
            if unused:
                self._journal_path(dataset.public_key).unlink(missing_ok=True)
                del self._journals[dataset.public_key]
            # Last: after a crash before this the next start discards the rest again.
            self._unborn_path(dataset).unlink(missing_ok=True)

    def check(self) -> int:
        """Reads every key and journal; returns the number of keys.
        Raises Environment at the first that cannot be read."""
        paths = sorted(self._directory.glob("*.key"))
        for path in paths:
            if path.stem in _OWN:
                key = SigningKey(self._read(path))
            else:
                key = self.dataset_key(DatasetId.parse(DID_ODF + path.stem))
            with self._signing:
                self._journal(key)
        return len(paths)

    def list_lost(self) -> list[KeyDid]:
        """Lists keys of this node whose journals are lost, its own first; ``check`` reports unreadable ones."""
        paths = [*self._directory.glob("*.key"), *self._directory.glob("*.offline")]
        datasets = sorted({DatasetId.parse(DID_ODF + path.stem) for path in paths if path.stem not in _OWN})
        keys = [*self._own_keys(), *(KeyDid.from_public_key(dataset.public_key) for dataset in datasets)]
        return [key for key in keys if self._is_lost(key)]

    def renew(self, key: KeyDid, last: Mapping[str, JournalEntry], how: str, now: Instant) -> bool:
        """Restarts a lost journal from what others know (``how``); returns whether it was lost. Raises Environment."""
        with self._signing:
            journal = self._journal_of(key.public_key)
            if not journal.is_lost:
                return False
            journal.begin(how, now // SECOND, last)
            return True

    def is_new(self, dataset: DatasetId) -> bool:
        """Whether the dataset's key is here and has never signed; then no other key can have signed for the dataset."""
        with self._signing:
            return self._journal_of(dataset.public_key).is_new

    def last_signed(self, key: KeyDid, topic: str) -> JournalEntry | None:
        """Returns the last entry of a topic in a key's journal here.
        Raises Refused (``trust.journal``) if that is lost."""
        with self._signing:
            return self._journal_of(key.public_key).last(topic)

    def sign(self, key: SigningKey, topic: str, order: Order, subject: str, payload: bytes) -> bytes:
        """Journals the statement on ``subject`` at ``order``, then seals ``payload`` in a signed envelope.

        Raises Refused if the journal forbids it (``trust.behind``) or is lost (``trust.journal``).
        """
        with self._signing:
            # Durable before there is a signature: a crash in between leaves a promise that nobody saw
            # (docs/spec/trust.md#journals, test_restored_signer_refuses).
            self._journal(key).promise(topic, order, subject)
        return envelope.seal(payload, key)

    def may_note(self, key: KeyDid, topic: str, order: Order, subject: str) -> None:
        """Checks, before an action, that it can be noted afterwards. Raises Refused (``trust.behind``)."""
        with self._signing:
            self._journal_of(key.public_key).check(topic, order, subject)

    def note(self, key: KeyDid, topic: str, order: Order, subject: str) -> None:
        """Journals a statement whose signature was made elsewhere, before it is published. Raises Refused."""
        with self._signing:
            self._journal_of(key.public_key).promise(topic, order, subject)

    def _journal(self, key: SigningKey) -> SigningJournal:
        return self._journal_of(key.public)

    def _journal_of(self, public: bytes) -> SigningJournal:
        if public not in self._journals:
            self._journals[public] = SigningJournal(self._journal_path(public), begun=self._is_own(public))
        return self._journals[public]

    def _is_lost(self, key: KeyDid) -> bool:
        with self._signing:
            try:
                return self._journal_of(key.public_key).is_lost
            except Environment:
                return False  # damaged: it is there, and nothing is signed either

    def _is_own(self, public: bytes) -> bool:
        """Whether the key is this node's; keys of others are journalled too, as far as they sign here."""
        if self.has_dataset_key(DatasetId.from_public_key(public)):
            return True
        paths = [self._directory / f"{name}.key" for name in _OWN]
        return any(path.exists() and SigningKey(self._read(path)).public == public for path in paths)

    def _own_keys(self) -> list[KeyDid]:
        """Lists the key of the node, and that of its verdicts if there is one."""
        has_other = (self._directory / f"{_VALIDATOR}.key").exists()
        return [self.node_key().did, *([self.validator_key().did] if has_other else [])]

    def _journal_path(self, public: bytes) -> Path:
        return self._directory / f"{DatasetId.from_public_key(public).multibase}.journal"

    def _offline_path(self, dataset: DatasetId) -> Path:
        return self._directory / f"{dataset.multibase}.offline"

    def _unborn_path(self, dataset: DatasetId) -> Path:
        return self._directory / f"{dataset.multibase}{_UNBORN}"

    def _key_path(self, dataset: DatasetId) -> Path:
        return self._directory / f"{dataset.multibase}.key"

    def _read(self, path: Path) -> bytes:
        """Reads the secret on the first line; checks it against the DID on the second line, if there is one."""
        try:
            secret, *whose = path.read_text().split()
            seed = bytes.fromhex(secret)
        except (OSError, ValueError) as error:
            raise Environment(f"cannot read the key {path.name}: {error}", rule="key-file", hint=_COPY) from error
        if len(seed) != 32:
            raise Environment(f"the key {path.name} holds {len(seed)} bytes, not 32", rule="key-file", hint=_COPY)
        if whose and whose != [str(SigningKey(seed).did)]:
            raise _spoilt(path)
        return seed

    def _make(self, path: Path, seed: bytes) -> None:
        """Writes the journal and then the key: a crash in between leaves a journal without a key, which does no
        harm."""
        public = SigningKey(seed).public
        with self._signing:
            journal = SigningJournal(self._journal_path(public))
            if journal.last(BEGUN) is None:
                journal.begin(NEW, 0, {})
            self._journals[public] = journal
        self._write(path, seed)

    def _write(self, path: Path, seed: bytes) -> None:
        try:
            durable.write(path, f"{seed.hex()}\n{SigningKey(seed).did}\n".encode())
        except OSError as error:
            raise Environment(f"cannot write the key {path.name}: {error}", rule="key-file") from error


def _spoilt(path: Path) -> Environment:
    return Environment(f"the key {path} is damaged: it is not the one it says", rule="key-file", hint=_COPY)
