"""Values of renditions: several histories of one collection. Spec: docs/spec/collections.md#renditions."""

from __future__ import annotations

from typing import Literal

from odfd.control.wire.queries import Pin
from odfd.control.wire.value import Request, Value


class RenditionRequest(Request, frozen=True, kw_only=True):
    """Asks for a new rendition."""

    origin: Literal["raw", "snapshot"] = "raw"
    """From the captured bytes, or from what the active rendition contains."""
    id: str | None = None
    """Of the command: repeated with it, it goes on where it was; else it is a new one."""
    shards: int | None = None
    """From a snapshot: how many chains its rows are in; null: as the active one's."""
    by: tuple[str, ...] = ()
    """Columns whose hash decides the shard of a row."""


class HandoverRequest(Request, frozen=True, kw_only=True):
    """Asks to make a rendition the active one."""

    at: str | None = None
    """Not before this time."""
    id: str | None = None


class HandoverReading(Value, frozen=True, kw_only=True):
    """Holds the reading at the end of a former rendition: the difference between two cuts, at one time."""

    time: str
    """Of the handover."""
    old: Pin
    """All of the former one before that time."""
    new: Pin
    """All of the next one up to that time."""
    old_shards: tuple[Pin, ...] = ()
    """Of several shards, the pin of each, that of the first too."""
    new_shards: tuple[Pin, ...] = ()
    equal: bool = False
    """Whether both have the same contents there, so nothing is to be compared."""
    columns: tuple[str, ...] | None = None
    """Of what the rows say, where both have the same ones; null: rows of one are none of the other."""


class RenditionView(Value, frozen=True, kw_only=True):
    """One rendition of a collection."""

    number: int
    dataset: str
    """Its name here; empty once it is deleted."""
    dataset_id: str
    origin: Literal["first", "raw", "snapshot", "inputs", "owner"]
    """``inputs``: derived, over other inputs. ``owner``: made by another node, and mirrored here."""
    state: Literal["Building", "Active", "Superseded", "Sealed", "Dropped"]
    active_since: str | None = None
    """Time of the last handover to it; null: of none, or from the beginning of time."""
    since: str | None = None
    """The history from this time on is in it; null: all of it."""
    upper: str | None = None
    """Times before it are complete."""
    shards: tuple[str, ...] = ()
    """Ids of its chains, where there are several; ``dataset_id`` is the first of them."""
    by: tuple[str, ...] = ()
    """Columns whose hash decides the shard of a row."""
