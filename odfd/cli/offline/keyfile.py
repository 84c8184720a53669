"""Reads a dataset's key from a file of 64 hexadecimal digits, and signs with it; the key is never sent anywhere."""

from __future__ import annotations

import base64
from pathlib import Path

from chain.errors import Environment, Invalid
from chain.instant import Instant
from chain.statements import envelope
from chain.statements.keys import SigningKey
from odfd.cli.new_file import NewFile
from odfd.control import wire
from odfd.ipfs.delegation import delegate


class KeyFile:
    """A key file, which may not exist yet."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def write(self, seed: str) -> None:
        """Writes the key durably before the user is told to delete copies. Raises as ``NewFile``."""
        NewFile(self.path, is_private=True).write(seed + "\n")

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
