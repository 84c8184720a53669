"""Reads a dataset's key from a file of 64 hexadecimal digits, and signs with it; the key is never sent anywhere."""

from __future__ import annotations

import base64
import os
from pathlib import Path

from chain.errors import Environment, Invalid
from chain.instant import Instant
from chain.statements import envelope
from chain.statements.keys import SigningKey
from chain.store.layout import sync_folder
from odfd.control import wire
from odfd.ipfs.delegation import delegate

_MODE = 0o600


class KeyFile:
    """A key file, which may not exist yet."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def write(self, seed: str) -> None:
        """Writes the key durably before the user is told to delete copies. Raises Environment, also if it exists."""
        try:
            opened = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
            try:
                with os.fdopen(opened, "w") as file:
                    os.fchmod(opened, _MODE)  # independent of the umask
                    file.write(seed + "\n")
                    file.flush()
                    os.fsync(file.fileno())
                sync_folder(self.path.absolute().parent)
            except OSError:
                # A part of a key is useless, and would prevent the next attempt.
                self.path.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise Environment(f"cannot write {self.path}: {error.strerror}", rule="offline-key") from error

    def dataset(self) -> str:
        """Returns the DID of the dataset of this key."""
        return str(self._key().dataset_id)

    def signature(self, payload: str) -> wire.SignatureText:
        """Signs the base64 ``payload`` of a statement, in the form of the API."""
        key = self._key()
        made = key.sign(envelope.preauth(base64.b64decode(payload)))
        return wire.SignatureText(key=str(key.did), signature=base64.b64encode(made).decode())

    def delegation(self, name: str, now: Instant) -> str:
        """Builds a base64 IPNS record by which the key's own name points to ``name``."""
        return base64.b64encode(delegate(self._key(), name, now)).decode()

    def _key(self) -> SigningKey:
        try:
            seed = bytes.fromhex(self.path.read_text().strip())
        except OSError as error:
            raise Environment(f"cannot read {self.path}: {error.strerror}", rule="offline-key") from error
        except ValueError:
            seed = b""
        if len(seed) != 32:
            raise Invalid(f"{self.path} holds no key", rule="offline-key", hint="it is 64 hexadecimal digits")
        return SigningKey(seed)
