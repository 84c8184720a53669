"""Converts WebhookTargets of former states, whose ``secret`` was a reference: it is ``secretRef`` now."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec


def converted(connection: sqlite3.Connection) -> Sequence[str]:
    """Rewrites their specs; returns a line for each."""
    from odfd.resources.store import ResourceStore  # it names this step of its tables

    store, lines = ResourceStore(connection), []
    for each in store.all("WebhookTarget"):
        if each.spec is not None and isinstance(each.spec.get("secret"), str):
            rest = {key: value for key, value in each.spec.items() if key != "secret"}
            spec = {**rest, "secretRef": each.spec["secret"]}
            store.rewrite(msgspec.structs.replace(each, spec=spec), each.updated_at)
            lines.append(f"WebhookTarget {each.name} has its secret as secretRef: a secret is the value itself")
    return lines
