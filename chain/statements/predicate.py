"""Declares what the predicates of all kinds of statements share: their frame, their numbers and their times."""

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
"""A time as it is signed: whole seconds, UTC."""


class StatementPart(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A JSON object inside a statement."""


class PredicateBase(StatementPart, frozen=True, kw_only=True):
    """The predicate of a kind of statement, its class is its row in ``KINDS``: name, size limit, fields and checks."""

    KIND: ClassVar[str]
    """The predicate type."""
    MAX_ENVELOPE: ClassVar[int]
    """Bytes of its envelope."""

    def times(self) -> Iterable[str]:
        """Yields all times in the predicate, because their pattern alone permits a thirteenth month."""
        raise NotImplementedError

    def trees(self) -> Iterable[tuple[int, bytes]]:
        """Size and root of all trees that it names."""
        return ()

    def check(self) -> None:
        """Raises Invalid where fields that are right by themselves do not fit together."""


class Issued(PredicateBase, frozen=True, kw_only=True):
    """A predicate with a time of issue, by the signer's clock."""

    issued_at: When

    @property
    def issued(self) -> Instant:
        return instant.parse(self.issued_at)


class Expiring(Issued, frozen=True, kw_only=True):
    """And until a time."""

    expires_at: When

    @property
    def expires(self) -> Instant:
        return instant.parse(self.expires_at)
