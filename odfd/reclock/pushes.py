"""Pushes into a reclocked collection: each is bound once, by the id that its client gave, for as long as the chain is.

The binding of a push has its id as the state of the source, so the reclocking chain alone says what was taken. An index
of the ids is kept beside the copy of the chain; it may be deleted with the copy. Spec:
docs/spec/collections.md#reclocked-pushes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from chain.errors import Refused, Remote
from chain.ids import DatasetId
from chain.model.events import AddData, SourceState
from chain.state import ChainState
from chain.store.database import Database
from chain.store.sqlite import SqliteChains
from odfd.ingest.fetch.kafka_ranges import AddressRange
from odfd.reclock.addresses import Offer

UPLOAD: Final = "w3id.org/odfd/upload"
"""Kind of a source state: the id of the push."""
_ROOM: Final = "bound_pushes"
_STEPS: Final = (
    """
    CREATE TABLE bound_pushes (
        chain BLOB NOT NULL,
        number INTEGER NOT NULL,
        id TEXT NOT NULL,
        PRIMARY KEY (chain, number)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX bound_pushes_id ON bound_pushes (chain, id);
    CREATE TABLE indexed_chains (chain BLOB PRIMARY KEY, size INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    """,
)


class PushIndex:
    """The bindings of a copy of a reclocking chain by the ids of their pushes. Blocking; one thread at a time."""

    def __init__(self, database: Database, chains: SqliteChains, chain: DatasetId) -> None:
        self._database, self._chain, self._reader = database, chain, chains.chain(chain)
        database.migrate(_ROOM, _STEPS)

    def of(self, push_id: str) -> list[int]:
        """Returns the numbers of the blocks that bind a push: one, or none. Reads only blocks since the last call."""
        self._bring_up()
        asked = "SELECT number FROM bound_pushes WHERE chain = ? AND id = ? ORDER BY number"
        with self._database.read() as connection:
            return [number for (number,) in connection.execute(asked, (self._chain, push_id))]

    def _bring_up(self) -> None:
        head = self._reader.head()
        size = 0 if head is None else head.size
        with self._database.read() as connection:
            row = connection.execute("SELECT size FROM indexed_chains WHERE chain = ?", (self._chain,)).fetchone()
        known = 0 if row is None else row[0]
        if known >= size:
            return
        new = []
        for number in range(known, size):
            event = self._reader.block_at(number).event
            state = event.new_source_state if isinstance(event, AddData) else None
            if state is not None and state.kind == UPLOAD:
                new.append((self._chain, number, state.value))
        with self._database.write() as connection:
            connection.executemany("INSERT OR REPLACE INTO bound_pushes VALUES (?, ?, ?)", new)
            connection.execute("INSERT OR REPLACE INTO indexed_chains VALUES (?, ?)", (self._chain, size))


class Pushes:
    """The addresses of pushes: nothing is fetched; bytes come from clients, are kept, and have an id."""

    def __init__(self, index: PushIndex) -> None:
        self._index = index

    async def offered(self, _state: ChainState, _last: str | None, _folder: Path) -> Offer | None:
        return None

    async def check(self, _offer: Offer) -> None:
        """Files of a push are the node's own."""

    async def again(self, _state: ChainState, _ranges: Sequence[AddressRange], _folder: Path) -> Sequence[Path | None]:
        raise Refused("pushed bytes are beside the chain, or lost", rule="reclock-addresses")

    async def forgotten(self, _state: ChainState, _before: SourceState | None, _folder: Path) -> Sequence[AddressRange]:
        return ()

    def check_follows(
        self, _before: SourceState | None, after: SourceState | None, ranges: Sequence[AddressRange]
    ) -> None:
        if ranges or after is None or after.kind != UPLOAD:
            raise Remote("a binding of a push has no id", rule="reclock-addresses", hint="report it")
        if len(self._index.of(after.value)) > 1:
            raise Remote(
                f"the reclocking chain binds the push {after.value!r} twice",
                rule="reclock-addresses",
                hint="something else wrote to it",
            )
