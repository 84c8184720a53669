"""Converts labels of former states: URIs of labels with a schema become short names, and what acts now is told."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from odfd.resources.label_schemas import ACCESS, by_short_name


def converted(connection: sqlite3.Connection) -> Sequence[str]:
    """Rewrites labels; returns a line for each resource that others may read by a label that had no effect before."""
    from odfd.resources.store import ResourceStore  # it names this step of its tables

    store, lines = ResourceStore(connection), []
    for each in store.all():
        labels = by_short_name(each.labels)
        if labels != each.labels:
            store.rewrite(msgspec.structs.replace(each, labels=labels), each.updated_at)
        acting = sorted(key for key in ACCESS if labels.get(key) is True) if each.type == "Dataset" else ()
        lines += [f"Dataset {each.name} is read as its label {key} says, which had no effect before" for key in acting]
    return lines


def indexed(connection: sqlite3.Connection) -> Sequence[str]:
    """Writes the kinds of datasets into the index of labels."""
    from odfd.resources.store import ResourceStore  # as above

    store = ResourceStore(connection)
    for each in store.all("Dataset"):
        store.index_labels(each)
    return ()
