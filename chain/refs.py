"""Parses the names by which people point at datasets of a node: ``name`` or ``account/name``.

Text to values and back; whether anything is there is for others to say. Spec: the reference's grammar of names.
"""

from __future__ import annotations

import msgspec

from chain.errors import Invalid
from chain.ids import DatasetName, parse_name


class LocalAlias(msgspec.Struct, frozen=True):
    """``name`` or ``account/name`` in this workspace."""

    name: DatasetName
    account: str | None = None

    def __str__(self) -> str:
        return f"{self.account}/{self.name}" if self.account else self.name


def parse_local_alias(text: str) -> LocalAlias:
    """``name`` or ``account/name``. Raises Invalid."""
    *account, name = text.split("/", 2)
    if len(account) > 1:
        raise Invalid(f"not a name of a dataset: {text[:60]!r}", rule="dataset-ref", hint="a name, or account/name")
    return LocalAlias(parse_name(name), parse_name(account[0]) if account else None)


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
