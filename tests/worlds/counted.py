"""Counts what is asked of a node's database, so that tests can say how it grows without a clock."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from chain.store.database import Database


@dataclass
class Questions:
    """Statements that were run, but those that begin and end a transaction."""

    asked: list[str] = field(default_factory=list)

    def note(self, statement: str) -> None:
        if not statement.startswith(("BEGIN", "COMMIT", "ROLLBACK", "PRAGMA")):
            self.asked.append(statement)

    @contextmanager
    def during(self) -> Iterator[list[str]]:
        """The statements of a block."""
        before = len(self.asked)
        found: list[str] = []
        yield found
        found.extend(self.asked[before:])


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> Questions:
    """Of all databases that are opened from now on."""
    counted, connect = Questions(), Database._connect

    def watched(self: Database, *args: Any) -> sqlite3.Connection:
        connection = connect(self, *args)
        connection.set_trace_callback(counted.note)
        return connection

    monkeypatch.setattr(Database, "_connect", watched)
    return counted
