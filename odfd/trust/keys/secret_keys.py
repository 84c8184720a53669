"""Seals values of SecretSets, and opens them: compact JWE under a key of this node, bound to the place of each value.

``keys/secrets.jwks`` (mode 0600) holds the key, made when the first value is sealed. A sealed value names in its
protected header what it is for: one that is copied into another set, or onto another node, is refused and never opened.
Without the file no value comes back: it is to be backed up apart from the database.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from chain.errors import Environment, Invalid
from odfd.trust.keys.journal import sync_folder

if TYPE_CHECKING:
    from joserfc.jwk import OKPKey

FILE: Final = "secrets.jwks"
ALGORITHMS: Final = ["ECDH-ES+A256KW", "A256GCM"]
MAX_SEALED: Final = 128 * 1024
"""Bytes of a sealed value: 64 KiB and what sealing adds."""
BINDING: Final = "odf"
_HINT: Final = "apply the SecretSet again with the values; keys/secrets.jwks is to be backed up"


@final
class Opened:
    """A value that was opened; ``str`` and ``repr`` do not tell it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return "***"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opened) and self._text == other._text

    __hash__ = None  # type: ignore[assignment]  # nothing is kept by it

    def reveal(self) -> str:
        """For who is to be sent it, and nobody else."""
        return self._text


class SecretKeys:
    """The key of this node that values are sealed to. Blocking; safe to use from any thread."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._key: OKPKey | None = None
        self._making = threading.Lock()

    def seal(self, text: str, binding: str) -> str:
        """For one place alone: ``binding``. Makes the key the first time. Raises Environment."""
        from joserfc import jwe

        key = self._load() or self._make()
        header = {"alg": ALGORITHMS[0], "enc": ALGORITHMS[1], "kid": key.kid, BINDING: binding}
        return jwe.encrypt_compact(header, text.encode(), key, registry=_registry())

    def open(self, sealed: str, bindings: Collection[str]) -> Opened:
        """Raises Invalid for what is none, or is bound to another place; Environment where its key is not here."""
        from joserfc import jwe
        from joserfc.errors import JoseError

        if len(sealed) > MAX_SEALED:
            raise Invalid("a sealed value larger than 128 KiB", rule="sealed-size")
        header = _header(sealed)
        if header.get(BINDING) not in bindings:
            raise Invalid(
                "a sealed value that was made for another place", rule="wrong-binding",
                hint="write the value itself; it is sealed when it is applied",
            )  # fmt: skip
        key = self._load()
        if key is None or header.get("kid") != key.kid:
            raise Environment("the key of a sealed value is not here", rule="undecryptable", hint=_HINT)
        try:
            found = jwe.decrypt_compact(sealed, key, registry=_registry()).plaintext
            return Opened((found or b"").decode())
        except (JoseError, ValueError) as error:
            raise Environment("a sealed value cannot be opened", rule="undecryptable", hint=_HINT) from error

    def _load(self) -> OKPKey | None:
        from joserfc.jwk import OKPKey

        if self._key is None and self._path.exists():
            try:
                (stored,) = json.loads(self._path.read_bytes())["keys"]
                self._key = OKPKey.import_key(stored)
            except (OSError, ValueError, KeyError, TypeError) as error:
                text = f"{self._path} cannot be read as a set of one key"
                raise Environment(text, rule="secret-key", hint="restore it from a backup") from error
        return self._key

    def _make(self) -> OKPKey:
        """Durable before anything is sealed to it."""
        from joserfc.jwk import OKPKey

        with self._making:
            found = self._load()
            if found is not None:
                return found
            made = OKPKey.generate_key("X25519")
            made.ensure_kid()
            text = json.dumps({"keys": [made.as_dict(private=True)]}).encode()
            partial = self._path.with_suffix(".partial")
            partial.unlink(missing_ok=True)
            try:
                with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                partial.rename(self._path)
                sync_folder(self._path.parent)
            except OSError as error:
                raise Environment(f"cannot keep {self._path}: {error}", rule="secret-key") from error
            self._key = made
            return made


def _registry() -> Any:
    from joserfc.jwe import JWERegistry
    from joserfc.registry import HeaderParameter

    return JWERegistry({BINDING: HeaderParameter("what a value is for", "str")}, ALGORITHMS)


def _header(sealed: str) -> dict[str, Any]:
    """Of a compact JWE, not yet believed. Raises Invalid."""
    import base64

    first = sealed.partition(".")[0]
    try:
        found = json.loads(base64.urlsafe_b64decode(first + "=" * (-len(first) % 4)))
    except (ValueError, RecursionError) as error:
        raise _no_jwe() from error
    if not isinstance(found, dict) or sealed.count(".") != 4:
        raise _no_jwe()
    return found


def _no_jwe() -> Invalid:
    return Invalid("not a sealed value (compact JWE)", rule="sealed", hint="write the value itself as text")
