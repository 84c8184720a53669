"""Defines identities (the key of a dataset) and names (what people call it).

``did:odf:f…`` and ``did:key:z…`` are two spellings of one Ed25519 public key; the first names a dataset,
the second a node, a writer or a validator. Names follow the grammar of the reference (compared without case).
"""

from __future__ import annotations

import re
from typing import Final, NewType

import msgspec

from chain import multibase
from chain.errors import Invalid
from chain.wording import a

ED25519_PUB: Final = b"\xed\x01"
"""varint of multicodec ed25519-pub, 0xed."""
DID_ODF: Final = "did:odf:"
DID_KEY: Final = "did:key:"


_SPELLED: Final = "did:odf:fed01 and 64 hexadecimal digits, or did:key:z6Mk and 44 letters; is it cut short?"


def _decoded(text: str, prefix: str) -> bytes:
    try:
        return multibase.decode(text[len(prefix) :])
    except Invalid as fault:
        raise Invalid(f"not an Ed25519 identity: {text[:60]!r}", rule=fault.rule, hint=_SPELLED) from fault


class _KeyId(bytes):
    """The bytes ``ed01`` and the 32 bytes of an Ed25519 public key."""

    __slots__ = ()

    @property
    def public_key(self) -> bytes:
        return bytes(self[2:])

    @staticmethod
    def _checked(raw: bytes, text: str) -> bytes:
        if len(raw) != 34 or not raw.startswith(ED25519_PUB):
            raise Invalid(f"not an Ed25519 identity: {text[:60]!r}", rule="did", hint=_SPELLED)
        return raw


class DatasetId(_KeyId):
    """The identity of a dataset: ``did:odf:fed01…``."""

    __slots__ = ()

    @classmethod
    def from_public_key(cls, key: bytes) -> DatasetId:
        return cls.from_bytes(ED25519_PUB + key)

    @classmethod
    def from_bytes(cls, raw: bytes) -> DatasetId:
        """Checks the bytes of an identity. Raises Invalid."""
        return cls(cls._checked(raw, raw.hex()))

    @classmethod
    def parse(cls, text: str) -> DatasetId:
        """Parses ``did:odf:…`` in any multibase. Raises Invalid."""
        if not text.startswith(DID_ODF):
            raise Invalid(f"not a dataset identity: {text[:60]!r}", rule="did", hint="it begins with did:odf:")
        return cls(cls._checked(_decoded(text, DID_ODF), text))

    def __str__(self) -> str:
        return DID_ODF + multibase.encode_base16(self)

    def __repr__(self) -> str:
        return f"DatasetId({self})"

    @property
    def multibase(self) -> str:
        """The key as ``fed01…``: the name of the dataset's folder in a workspace of the reference."""
        return multibase.encode_base16(self)

    @property
    def short(self) -> str:
        text = str(self)
        return f"{text[:15]}…{text[-2:]}"


class KeyDid(_KeyId):
    """The identity of a key that signs for itself (node, writer, validator, witness): ``did:key:z6Mk…``."""

    __slots__ = ()

    @classmethod
    def from_public_key(cls, key: bytes) -> KeyDid:
        return cls(cls._checked(ED25519_PUB + key, key.hex()))

    @classmethod
    def parse(cls, text: str) -> KeyDid:
        """Parses ``did:key:…`` or ``did:odf:…``: one key has several DIDs. Raises Invalid."""
        for prefix in (DID_KEY, DID_ODF):
            if text.startswith(prefix):
                return cls(cls._checked(_decoded(text, prefix), text))
        raise Invalid(f"not a key's DID: {text[:60]!r}", rule="did", hint="it begins with did:key:")

    def __str__(self) -> str:
        return DID_KEY + multibase.encode_base58(self)

    def __repr__(self) -> str:
        return f"KeyDid({self})"

    @property
    def short(self) -> str:
        text = str(self).removeprefix(DID_KEY)
        return f"{text[:5]}…{text[-3:]}"


DatasetName = NewType("DatasetName", str)
_SUB: Final = r"[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*"
_NAME: Final = re.compile(rf"{_SUB}(?:\.{_SUB})*\Z", re.ASCII)
MAX_NAME: Final = 253
"""Longest name, in characters; names are shaped like host names, and have their limit."""


def parse_name(text: str, what: str = "dataset") -> DatasetName:
    """Parses a name of a dataset, account or repository; ``what`` is the word for it in messages. Raises Invalid."""
    if len(text) > MAX_NAME or _NAME.match(text) is None:
        hint = "letters, digits and single inner hyphens, in parts joined by dots, like nyc.flights"
        if what == "dataset" and "@" in text:
            hint = "a dataset at a block, NAME@N, is of odfctl diff and sql; other commands take --at-block N, if any"
        elif len(text) > MAX_NAME:
            hint = f"at most {MAX_NAME} characters; this one has {len(text)}"
        raise Invalid(
            f"not {a(what)} name: {text[:60]!r}",
            rule="dataset-name" if what == "dataset" else "resource-name",
            hint=hint,
        )
    return DatasetName(text)


class LocalAlias(msgspec.Struct, frozen=True):
    """A dataset's name in this workspace: ``name`` or ``account/name``."""

    name: DatasetName
    account: str | None = None

    def __str__(self) -> str:
        return f"{self.account}/{self.name}" if self.account else self.name


def parse_local_alias(text: str) -> LocalAlias:
    """Parses ``name`` or ``account/name``, without a check that such a dataset exists. Raises Invalid."""
    *account, name = text.split("/", 2)
    if len(account) > 1:
        raise Invalid(f"not a name of a dataset: {text[:60]!r}", rule="dataset-ref", hint="a name, or account/name")
    return LocalAlias(parse_name(name), parse_name(account[0]) if account else None)


def parse_own_name(text: str, what: str = "dataset") -> DatasetName:
    """Parses a name on a node without accounts. Raises Invalid for ``account/name``, which is another dataset."""
    if "/" not in text or what != "dataset":
        return parse_name(text, what)
    alias = parse_local_alias(text)
    raise Invalid(
        f"{text!r} names an account, and on a node with one owner names have none",
        rule="dataset-account",
        hint=f"write {alias.name}",
    )
