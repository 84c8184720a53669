"""Defines values of renditions: several histories of one collection. Spec: docs/spec/collections.md#renditions."""

from __future__ import annotations

from typing import Literal

from odfd.control.wire.queries import Pin
from odfd.control.wire.value import Request, Value


class RenditionRequest(Request, frozen=True, kw_only=True):
    """Asks for a new rendition."""

    origin: Literal["raw", "snapshot"] = "raw"
    """Whether it is made from the captured bytes, or from the contents of the active rendition."""
    id: str | None = None
    """Id of the command: repeated with it, it continues; ``None``: a new command."""
    shards: int | None = None
    """For a snapshot: the number of chains for its rows; null: that of the active one."""
    by: tuple[str, ...] = ()
    """Columns whose hash decides the shard of a row."""


class HandoverRequest(Request, frozen=True, kw_only=True):
    """Asks to make a rendition the active one."""

    at: str | None = None
    """The earliest time of the handover; ``None``: any."""
    id: str | None = None
    difference: bool = False
    """Whether to compute the difference once and keep it, so that no reader has to compare all rows."""


class HandoverReading(Value, frozen=True, kw_only=True):
    """Holds the reading at the end of a former rendition: the difference between two cuts, at one time."""

    time: str
    """Time of the handover."""
    old: Pin
    """All of the former rendition before that time."""
    new: Pin
    """All of the next rendition up to that time."""
    old_shards: tuple[Pin, ...] = ()
    """The pin of each shard, if there are several; the first one is ``old`` or ``new``."""
    new_shards: tuple[Pin, ...] = ()
    equal: bool = False
    """Whether both have the same contents there, so that there is nothing to compare."""
    columns: tuple[str, ...] | None = None
    """Columns of the data, if both have the same; null: their rows cannot be compared."""
    offsets: tuple[int, ...] = ()
    """The offset of the last row of each shard of the next rendition at its pin; -1: it has none."""
    difference: Pin | None = None
    """The rows by which both differ, each with its operation (1 retracts, 0 adds), if they were kept."""


class RenditionView(Value, frozen=True, kw_only=True):
    """One rendition of a collection."""

    number: int
    dataset: str
    """Its name here; empty once it is deleted, and for one that is not here, as its owner tells of it. The number is
    then the owner's."""
    dataset_id: str
    origin: Literal["first", "raw", "snapshot", "inputs", "owner", "difference"]
    """``inputs``: derived, over other inputs. ``owner``: made by another node, and mirrored here. ``difference``: the
    recorded difference of a handover, by its own name; it is no rendition."""
    state: Literal["Building", "Active", "Superseded", "Sealed", "Dropped"]
    active_since: str | None = None
    """Time of the last handover to it; null: there was none, or it is active from the beginning of time."""
    since: str | None = None
    """Time from which on it has the history; null: all of it."""
    upper: str | None = None
    """Time before which it is complete."""
    shards: tuple[str, ...] = ()
    """Ids of its chains, if several; ``dataset_id`` is the first of them."""
    by: tuple[str, ...] = ()
    """Columns whose hash decides the shard of a row."""
    until: str | None = None
    """Time before which it is known to be the active one, from ``active_since`` on: that of the handover that ended it,
    or, of the active one, the frontier of the timeline, since no handover will be before it. Null: it was never active,
    or nobody told."""
