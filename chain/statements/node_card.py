"""Declares node cards: an operator's description of a node, signed with the node's key.

All of it is the operator's word, which nothing checks: names are not unique, and keys distinguish two nodes of one
name. A card without claims withdraws the one before. Spec: docs/spec/trust.md#node-cards.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar, Final

import msgspec

from chain import instant
from chain.errors import Invalid
from chain.ids import DatasetId, KeyDid
from chain.multihash import Multihash
from chain.statements import canonical
from chain.statements.predicate import NS, Expiring, StatementPart
from chain.terminal_text import is_one_line, is_visible

NODE_CARD: Final = NS + "node-card/v1"
MAX_NODE_NAME: Final = 64
MAX_CONTACT: Final = 128
MAX_ABOUT: Final = 256
"""Most characters of ``about``; the other two bound the name and the contact."""
NODE_CARD_LIFETIME: Final = 90 * 86400 * instant.SECOND
"""Longest time that a card may be valid, in nanoseconds."""
ID_LIKE: Final = ("12d3koow", "did:", "z6mk", "odf:")
"""Beginnings of ids, in lower case: a name with one of them would be taken for an id."""


class NodeClaims(StatementPart, frozen=True, kw_only=True):
    """Texts of one line each, as the node's operator wrote them."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NODE_NAME)]
    contact: Annotated[str, msgspec.Meta(max_length=MAX_CONTACT)] = ""
    """A way to reach the operator: an address, a URL, a room."""
    about: Annotated[str, msgspec.Meta(max_length=MAX_ABOUT)] = ""

    @property
    def digest(self) -> Multihash:
        return Multihash.sha3_256(canonical.encode(msgspec.to_builtins(self)))

    def check(self) -> None:
        """Raises Invalid for texts that do not appear as they are, and for names that look like ids."""
        for field, text in (("name", self.name), ("contact", self.contact), ("about", self.about)):
            if not is_visible(text):
                raise Invalid(
                    f"the {field} of a node contains control characters, or characters that are not seen",
                    rule="node-card-text",
                    hint="one line without control characters and without marks that turn the direction of text",
                )
            if not is_one_line(text):
                raise Invalid(
                    f"the {field} of a node has other spaces than single ones between words",
                    rule="node-card-text",
                    hint="one line, single spaces, none at its ends",
                )
        if self.name.casefold().startswith(ID_LIKE):
            raise Invalid(
                f"the name {self.name!r} looks like an id", rule="node-card-name", hint="choose a name of words"
            )


NOTHING_SAID: Final = Multihash.sha3_256(canonical.encode({}))
"""The subject of a card that withdraws the one before."""


class NodeCard(Expiring, frozen=True, kw_only=True):
    """A node's card. The next one replaces it; its subject is the digest of the claims."""

    KIND: ClassVar[str] = NODE_CARD
    MAX_ENVELOPE: ClassVar[int] = 4 << 10

    node: KeyDid
    claims: NodeClaims | None = None
    head: Annotated[Multihash, "subject"]

    @property
    def dataset(self) -> DatasetId:
        """The node's key, in the place where other statements name a dataset."""
        return DatasetId(self.node)

    @property
    def author(self) -> KeyDid:
        return self.node

    @property
    def is_withdrawal(self) -> bool:
        return self.claims is None

    def times(self) -> Iterable[str]:
        return self.issued_at, self.expires_at

    def check(self) -> None:
        if self.head != (NOTHING_SAID if self.claims is None else self.claims.digest):
            raise Invalid("the subject of a node's card is not what it states", rule="statement-subject")
        if not self.issued < self.expires <= self.issued + NODE_CARD_LIFETIME:
            raise Invalid("a node's card lives at most 90 days", rule="node-card-lifetime")
        if self.claims is not None:
            self.claims.check()
