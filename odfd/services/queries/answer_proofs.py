"""Signs statements about answers: spools the rows to disk until the last arrives, hashes them, and signs the hash."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple

from chain.data.logical_hash import logical_hash
from chain.errors import Refused
from chain.instant import Instant
from chain.libraries import pa
from chain.statements import answer
from chain.statements.answer import DIALECT, AnswerColumn, AnswerPin, AnswerStatement
from chain.statements.keys import SigningKey
from chain.statements.statement import when
from odfd.control import wire

_IN_MEMORY: Final = 8 << 20


class Signer(NamedTuple):
    """The key, the clock and the spool folder of proofs. ``most``: bytes of an answer."""

    key: Callable[[], SigningKey]
    now: Callable[[], Instant]
    folder: Path
    most: int


class AnswerProof:
    """The proof of one answer. Use it as a context."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer
        self._rows: Any = tempfile.SpooledTemporaryFile(_IN_MEMORY, dir=str(signer.folder))  # noqa: SIM115  close() is below

    def __enter__(self) -> AnswerProof:
        return self

    def __exit__(self, *_: object) -> None:
        self._rows.close()

    def take(self, content: bytes | memoryview) -> None:
        """Adds the next bytes of the Arrow stream. Raises Refused."""
        self._rows.write(content)
        if self._rows.tell() > self._signer.most:
            raise Refused(
                "the answer is too large to be proven", rule="query-prove", hint="query.temporary-mib sets the limit"
            )

    def sign(self, sql: str, head: wire.QueryHead, rows: int) -> dict[str, Any]:
        """Signs the spooled answer; returns the envelope. Raises Invalid for columns without a hash. Blocking."""
        self._rows.seek(0)
        with pa.ipc.open_stream(self._rows) as reader:
            schema = reader.schema
            digest = logical_hash(reader)
        standings = {standing.name: standing.fact for standing in head.standings}
        predicate = AnswerStatement(
            query=sql,
            dialect=DIALECT,
            engine=engine(),
            pins=tuple(
                AnswerPin(
                    name=pin.name, id=pin.id, block=pin.block, sequence_number=pin.sequence_number, at=pin.at,
                    standing=standings.get(pin.name, ""),
                )
                for pin in head.pins
            ),
            columns=tuple(AnswerColumn(name=field.name, type=str(field.type)) for field in schema),
            rows=rows,
            logical_hash=str(digest),
            standing=head.standing,
            time=when(self._signer.now()),
        )  # fmt: skip
        found: dict[str, Any] = json.loads(answer.seal(predicate, self._signer.key()))
        return found


def engine() -> str:
    """Returns the name of the engine that answers queries here."""
    return f"{DIALECT} {version('duckdb')}"
