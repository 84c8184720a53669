"""Parses references to datasets: a name, an account's, a repository's, an identity, a URL; and patterns of names.

Text to values and back; whether anything is there is for others to say. Spec: the reference's grammar of names.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias
from urllib.parse import urlsplit

import msgspec

from chain.errors import Invalid
from chain.ids import DID_ODF, MAX_NAME, DatasetId, DatasetName, parse_name, same_name

_PATTERN_SUB: Final = r"[A-Za-z0-9%]+(?:-[A-Za-z0-9%]+)*"
_PATTERN: Final = re.compile(rf"{_PATTERN_SUB}(?:\.{_PATTERN_SUB})*\Z", re.ASCII)
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
MAX_REF: Final = 2048
"""Characters; what browsers and proxies bear as a URL."""


class LocalAlias(msgspec.Struct, frozen=True):
    """``name`` or ``account/name`` in this workspace."""

    name: DatasetName
    account: str | None = None

    def __str__(self) -> str:
        return f"{self.account}/{self.name}" if self.account else self.name


class AmbiguousAlias(msgspec.Struct, frozen=True):
    """``first/name``: only a list of known repositories tells whether ``first`` is an account or a repository."""

    first: str
    name: DatasetName

    def __str__(self) -> str:
        return f"{self.first}/{self.name}"


class RemoteAlias(msgspec.Struct, frozen=True):
    """``repository/name`` or ``repository/account/name``."""

    repository: str
    name: DatasetName
    account: str | None = None

    def __str__(self) -> str:
        return "/".join(part for part in (self.repository, self.account, self.name) if part)


class Identity(msgspec.Struct, frozen=True):
    """``did:odf:…``, perhaps as found in a repository."""

    dataset: DatasetId
    repository: str | None = None

    def __str__(self) -> str:
        return f"{self.repository}/{self.dataset}" if self.repository else str(self.dataset)


class Url(msgspec.Struct, frozen=True):
    url: str

    def __str__(self) -> str:
        return self.url


class Repository(msgspec.Struct, frozen=True):
    """A whole repository, as the target of a push."""

    repository: str

    def __str__(self) -> str:
        return self.repository


DatasetRef: TypeAlias = LocalAlias | AmbiguousAlias | RemoteAlias | Identity | Url
PushTarget: TypeAlias = Repository | RemoteAlias | Url


def parse_local_alias(text: str) -> LocalAlias:
    """``name`` or ``account/name``. Raises Invalid."""
    *account, name = _parts(text, 2)
    return LocalAlias(parse_name(name), _checked(account[0]) if account else None)


def parse_own_name(text: str) -> DatasetName:
    """A name where there are no accounts. Raises Invalid: to drop the account would make one of two datasets."""
    if "/" not in text:
        return parse_name(text)
    alias = parse_local_alias(text)
    raise Invalid(
        f"{text!r} names an account, and on a node with one owner names have none",
        rule="dataset-account",
        hint=f"write {alias.name}",
    )


def parse_remote_alias(text: str) -> RemoteAlias:
    """``repository/name`` or ``repository/account/name``. Raises Invalid."""
    parts = _parts(text, 3)
    if len(parts) == 1:
        raise _not_a_ref(text)
    repository, *account, name = parts
    return RemoteAlias(_checked(repository), parse_name(name), _checked(account[0]) if account else None)


def parse_ref(text: str) -> DatasetRef:
    """Any way to point at a dataset. Raises Invalid."""
    if _SCHEME.match(text):
        return _url(text)
    head, _, rest = text.partition("/")
    if text.startswith(DID_ODF):
        return Identity(DatasetId.parse(text))
    if rest.startswith(DID_ODF):
        return Identity(DatasetId.parse(rest), _checked(head))
    match _parts(text, 3):
        case [name]:
            return LocalAlias(parse_name(name))
        case [first, name]:
            return AmbiguousAlias(_checked(first), parse_name(name))
        case _:
            return parse_remote_alias(text)


def parse_push_target(text: str) -> PushTarget:
    """Where a dataset may be pushed: a repository, a name in one, or a URL. Raises Invalid."""
    if _SCHEME.match(text):
        return _url(text)
    return parse_remote_alias(text) if "/" in text else Repository(_checked(text))


class NamePattern(msgspec.Struct, frozen=True):
    """A name or ``account/name`` in which ``%`` stands for any characters, letters without regard to case."""

    name: str
    account: str | None = None

    @classmethod
    def parse(cls, text: str) -> NamePattern:
        """Raises Invalid."""
        parts = _parts(text, 2)
        if any(_PATTERN.match(part) is None or len(part) > MAX_NAME for part in parts):
            raise Invalid(f"not a pattern of names: {text[:60]!r}", rule="name-pattern", hint="like nyc.% or %flights")
        return cls(parts[-1], parts[0] if len(parts) > 1 else None)

    def matches(self, alias: LocalAlias) -> bool:
        """A pattern without an account matches names of every account."""
        if self.account is not None and (alias.account is None or not same_name(self.account, alias.account)):
            return False
        return _like(self.name.casefold(), alias.name.casefold())


def _like(pattern: str, name: str) -> bool:
    """Leftmost greedy search of the pieces between wildcards: linear, where a regular expression may explode."""
    first, *rest = pattern.split("%")
    if not rest:
        return name == pattern
    *middle, last = rest
    if not name.startswith(first) or not name.endswith(last) or len(name) < len(first) + len(last):
        return False
    position, end = len(first), len(name) - len(last)
    for piece in middle:
        found = name.find(piece, position, end)
        if found < 0:
            return False
        position = found + len(piece)
    return True


def _url(text: str) -> Url:
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise _not_a_ref(text) from error
    if len(text) > MAX_REF or not (parts.netloc or parts.path):
        raise _not_a_ref(text)
    return Url(text)


def _parts(text: str, most: int) -> list[str]:
    parts = text.split("/", most)
    if len(parts) > most:
        raise _not_a_ref(text)
    return parts


def _checked(name: str) -> str:
    return parse_name(name)


def _not_a_ref(text: str) -> Invalid:
    return Invalid(
        f"not a reference to a dataset: {text[:60]!r}",
        rule="dataset-ref",
        hint="a name, account/name, repository/account/name, did:odf:… or a URL",
    )
