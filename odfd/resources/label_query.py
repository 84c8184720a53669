"""Reads labels of resources from their table, without the kind of datasets, which the node sets.

Synchronous, on the given connection.
"""

from __future__ import annotations

import json
import sqlite3

from odfd.resources.label_schemas import DATASET_KIND
from odfd.resources.resource import Json


def labels_by_did(connection: sqlite3.Connection, type_: str) -> dict[str, dict[str, Json]]:
    """Returns the labels of a type's resources by did; resources without labels cost nothing."""
    found: dict[str, dict[str, Json]] = {}
    for did, key, value in connection.execute(
        "SELECT did, l.key, l.value FROM res_labels AS l JOIN declarations USING (id)"
        " WHERE l.type = ? AND l.key != ? AND did IS NOT NULL ORDER BY l.key",
        (type_, DATASET_KIND),
    ):
        found.setdefault(did, {})[key] = json.loads(value)
    return found


def labels_of(connection: sqlite3.Connection, did: str) -> dict[str, Json]:
    """Returns the labels of one resource, at a cost that does not grow with the number of others."""
    rows = connection.execute(
        "SELECT key, value FROM res_labels WHERE id ="
        " (SELECT id FROM declarations WHERE type = 'Dataset' AND did = ?) AND key != ? ORDER BY key",
        (did, DATASET_KIND),
    )
    return {key: json.loads(value) for key, value in rows}
