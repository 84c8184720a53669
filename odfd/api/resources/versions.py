"""Reads the versions of the log of resources that watches give out and take back."""

from __future__ import annotations

from chain.errors import Invalid
from odfd.resources.store import ResourceStore


def position(store: ResourceStore, since: str) -> int:
    """Returns the position of a version in this log. Raises Invalid for one of another log, or no longer kept."""
    epoch, floor = store.epoch(), store.floor()
    said, _, number = since.rpartition("-")
    hint = "list anew: odfctl get KIND -w without --since"
    if said != epoch or not number.isdecimal() or int(number) > store.newest():
        text = f"{since[:60]!r} is no version of this node's log of resources"
        raise Invalid(text, rule="resource-version", hint=hint)
    if int(number) < floor:
        text = f"{since[:60]} is too old: this node keeps what came after {epoch}-{floor}"
        raise Invalid(text, rule="resource-version-too-old", hint=hint)
    return int(number)


def number_of(version: str) -> int:
    """Returns the number of a version of the log."""
    return int(version.rpartition("-")[2])
