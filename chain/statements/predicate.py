"""Declares the base of all predicates: their numbers, their times and the checks of every kind of statement."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar, Final

import msgspec

from chain import instant
from chain.instant import Instant
from chain.statements import canonical

NS: Final = "https://w3id.org/odfd/trust/"

Count = Annotated[int, msgspec.Meta(ge=0, le=canonical.MAX_INTEGER)]
When = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
"""A time as statements contain it: whole seconds, UTC."""


class StatementPart(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A JSON object inside a statement."""


class PredicateBase(StatementPart, frozen=True, kw_only=True):
    """Base of predicates. A subclass defines a kind of statement: its name, size limit, fields and checks."""

    KIND: ClassVar[str]
    """The predicate type, a URI."""
    MAX_ENVELOPE: ClassVar[int]
    """Largest envelope of this kind, in bytes."""

    def times(self) -> Iterable[str]:
        """Yields all times in the predicate, because their pattern alone permits a thirteenth month."""
        raise NotImplementedError

    def trees(self) -> Iterable[tuple[int, bytes]]:
        """Yields size and root of all trees that the predicate names."""
        return ()

    def check(self) -> None:
        """Raises Invalid if fields that are valid by themselves contradict each other."""


class Issued(PredicateBase, frozen=True, kw_only=True):
    """A predicate with a time of issue, by the signer's clock."""

    issued_at: When

    @property
    def issued(self) -> Instant:
        return instant.parse(self.issued_at)


class Expiring(Issued, frozen=True, kw_only=True):
    """A predicate that also has a time of expiry."""

    expires_at: When

    @property
    def expires(self) -> Instant:
        return instant.parse(self.expires_at)
