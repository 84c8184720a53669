"""Defines an append rule: a clause of the format with a stable name, checked on a block and the state before it.

Rules are stateless and pure, made once at import. Only this module says who is bound by a rule: EVERYONE, if no honest
writer ever breaks it; AUTHORS, if it is demanded of our own blocks only and tolerated in others'.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import msgspec

from chain.libraries import np
from chain.model.block import Block
from chain.rules.columns import Mask, Run
from chain.state import ChainState


class Binds(enum.Enum):
    EVERYONE = "everyone"
    AUTHORS = "authors"


class Violation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One broken rule, described so that a person can correct it."""

    rule: str
    message: str
    expected: str = ""
    actual: str = ""
    hint: str = ""


class Rule(ABC):
    """One append rule. ``name`` is kebab-case, documented and never changed: programs match on it."""

    name: ClassVar[str]
    clause: ClassVar[str]
    """Source of the rule: a section of the specification or of the RFC, or the reference's own error."""
    binds: ClassVar[Binds] = Binds.EVERYONE
    concerns: ClassVar[tuple[type, ...]] = ()
    """Event classes that the rule looks at; empty: blocks of every kind."""

    @abstractmethod
    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        """Yields the violations of this rule by ``block`` after a chain in ``state``; ``concerns`` has its event."""

    def doubts(self, run: Run) -> Mask:
        """Marks the blocks of a run, ``(n,)``, that may break this rule; ``check`` would find nothing in all others.

        A rule without this method marks every block, which is slow and never wrong.
        """
        return np.ones(run.size, np.bool_)

    def broken(self, message: str, *, expected: object = "", actual: object = "", hint: str = "") -> Violation:
        return Violation(rule=self.name, message=message, expected=str(expected), actual=str(actual), hint=hint)
