"""Encrypts and decrypts values of SecretSets: compact JWE under a key of this node, bound to the place of each value.

``keys/secrets.jwks`` (mode 0600) holds the key, made when the first value is sealed. A sealed value names the place
that it is for in its protected header: one that is copied into another set, or to another node, is refused and never
opened. Without the file no value can be recovered, so it must be backed up apart from the database.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from chain.errors import Environment, Invalid
from chain.store import durable

if TYPE_CHECKING:
    from joserfc.jwk import OKPKey

FILE: Final = "secrets.jwks"
ALGORITHMS: Final = ["ECDH-ES+A256KW", "A256GCM"]
MAX_SEALED: Final = 128 * 1024
"""Bytes of a sealed value: 64 KiB and the overhead of sealing."""
BINDING: Final = "odf"
PUBLIC: Final = ("kty", "crv", "x", "kid")
"""Members of the public half of a key in JWK form (RFC 8037)."""
_HINT: Final = "apply the SecretSet again with the values; keys/secrets.jwks is to be backed up"


@final
class Opened:
    """A decrypted value, which ``str`` and ``repr`` hide."""

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
        """Returns the secret value in clear, only to send it to its recipient."""
        return self._text


class SecretKeys:
    """Manages the keys to which values are sealed on this node. Blocking; safe to use from any thread."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._kept: list[OKPKey] = []
        """The keys in the file: new values are sealed to the first; others belong to a rotation that has not ended."""
        self._keys: dict[str, OKPKey] = {}
        """All keys that can open values, by their ids; includes former ones until this process ends."""
        self._making = threading.Lock()

    def seal(self, text: str, binding: str) -> str:
        """Seals a value for one place, ``binding``; makes the key the first time. Raises Environment."""
        return _seal(text, self._active() or self._make(), binding)

    def public(self) -> dict[str, str]:
        """Returns, as a JWK, the public half of the key to which values are sealed now;
        makes the key the first time."""
        key = self._active() or self._make()
        return {name: str(value) for name, value in key.as_dict(private=False).items() if name in PUBLIC}

    def binding_of(self, sealed: str) -> str:
        """Returns the place for which a value says it was sealed. Raises Invalid if it is no sealed value."""
        return str(_header(sealed).get(BINDING))

    def open(self, sealed: str, bindings: Collection[str]) -> Opened:
        """Decrypts a value. Raises Invalid if it is no value or bound to another place;
        Environment if its key is not here."""
        from joserfc import jwe
        from joserfc.errors import JoseError

        if len(sealed) > MAX_SEALED:
            raise Invalid("a sealed value larger than 128 KiB", rule="sealed-size")
        header = _header(sealed)
        if header.get(BINDING) not in bindings:
            raise Invalid(
                "a sealed value that was made for another field",
                rule="wrong-binding",
                hint="write the value itself; it is sealed when it is applied",
            )
        self._active()
        key = self._keys.get(str(header.get("kid")))
        if key is None:
            raise Environment("the key of a sealed value is not here", rule="undecryptable", hint=_HINT)
        try:
            found = jwe.decrypt_compact(sealed, key, registry=_registry()).plaintext
            return Opened((found or b"").decode())
        except (JoseError, ValueError) as error:
            raise Environment("a sealed value cannot be opened", rule="undecryptable", hint=_HINT) from error

    def is_current(self, sealed: str) -> bool:
        """Whether a value is sealed to the key that new values are sealed to.
        Raises Invalid if it is no sealed value."""
        active = self._active()
        return active is not None and _header(sealed).get("kid") == active.kid

    def begin_rotation(self) -> None:
        """Makes a new key to seal to from now on; former ones still open values, also after a crash.

        Does nothing if there is no key yet. After a rotation that did not end, continues that one.
        """
        with self._making:
            if self._active() is not None and len(self._kept) == 1:
                self._keep([_new_key(), *self._kept])

    def end_rotation(self) -> None:
        """Destroys former keys, as no stored value is sealed to one; in this process they still open values."""
        with self._making:
            if len(self._kept) > 1:
                self._keep(self._kept[:1])

    def _active(self) -> OKPKey | None:
        """Returns the first key in the file; ``None`` if there is none. Raises Environment."""
        from joserfc.jwk import OKPKey

        if not self._kept and self._path.exists():
            try:
                stored = [OKPKey.import_key(load) for load in json.loads(self._path.read_bytes())["keys"]]
                self._hold(stored)
            except (OSError, ValueError, KeyError, TypeError) as error:
                text = f"{self._path} cannot be read as a set of keys"
                raise Environment(text, rule="secret-key", hint="restore it from a backup") from error
        return self._kept[0] if self._kept else None

    def _make(self) -> OKPKey:
        """Makes the first key and stores it durably, before anything is sealed to it."""
        with self._making:
            if self._active() is None:
                self._keep([_new_key()])
            return self._kept[0]

    def _keep(self, keys: Sequence[OKPKey]) -> None:
        """Writes keys to the file, and then keeps them in memory. Raises Environment."""
        text = json.dumps({"keys": [key.as_dict(private=True) for key in keys]}).encode()
        try:
            durable.write(self._path, text)
        except OSError as error:
            raise Environment(f"cannot keep {self._path}: {error}", rule="secret-key") from error
        self._hold(keys)

    def _hold(self, keys: Sequence[OKPKey]) -> None:
        self._kept = list(keys)
        self._keys = {**self._keys, **{str(key.kid): key for key in keys}}


def seal_to(public: Mapping[str, str], text: str, binding: str) -> str:
    """Seals a value for a node from elsewhere. ``public``: the result of ``SecretKeys.public``. Raises Invalid."""
    from joserfc.jwk import OKPKey

    hint = "odfctl secret key of the node prints it"
    if {"kty", "crv", "x", "kid"} - public.keys() or public["crv"] != "X25519" or "d" in public:
        raise Invalid("not the public key of a node for secrets", rule="secret-key", hint=hint)
    try:
        key = OKPKey.import_key({name: str(public[name]) for name in PUBLIC})
        return _seal(text, key, binding)
    except (ValueError, TypeError) as error:
        raise Invalid(f"not a key: {error}", rule="secret-key", hint=hint) from error


def _seal(text: str, key: OKPKey, binding: str) -> str:
    from joserfc import jwe

    header = {"alg": ALGORITHMS[0], "enc": ALGORITHMS[1], "kid": key.kid, BINDING: binding}
    return jwe.encrypt_compact(header, text.encode(), key, registry=_registry())


def _new_key() -> OKPKey:
    from joserfc.jwk import OKPKey

    made = OKPKey.generate_key("X25519")
    made.ensure_kid()
    return made


def _registry() -> Any:
    from joserfc.jwe import JWERegistry
    from joserfc.registry import HeaderParameter

    # A value names its own algorithm: only these are taken (RFC 8725, section 3.1). joserfc refuses headers that are
    # not registered.
    return JWERegistry({BINDING: HeaderParameter("what a value is for", "str")}, ALGORITHMS)


def _header(sealed: str) -> dict[str, Any]:
    """Reads the header of a compact JWE, without verifying it. Raises Invalid."""
    import base64

    first = sealed.partition(".")[0]
    try:
        # A compact JWE has no padding (RFC 7515, section 2), and Python's decoder wants it.
        found = json.loads(base64.urlsafe_b64decode(first + "=" * (-len(first) % 4)))
    # JSON in thousands of brackets ends in RecursionError.
    except (ValueError, RecursionError) as error:
        raise _no_jwe() from error
    if not isinstance(found, dict) or sealed.count(".") != 4:
        raise _no_jwe()
    return found


def _no_jwe() -> Invalid:
    return Invalid("not a sealed value (compact JWE)", rule="sealed", hint="write the value itself as text")
