"""Keeps the answers to requests that carry an ``Idempotency-Key``, so that a repeated request acts once.

A request is claimed before it acts, durably, and settled with its answer. One that a crash interrupted stays claimed:
its effect is not known, and acting again could act twice. Neither keys nor requests are stored: a row is found by a
hash of its key, and the hash of its request is keyed with it, so that a stolen database does not help to guess a secret
in a request. Synchronous, and its calls are atomic.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import threading
from collections.abc import Callable
from typing import Final

import msgspec

from chain.errors import Conflict, Environment, Invalid
from chain.instant import SECOND, Instant
from chain.store.database import Database
from chain.store.seals import Sealed
from odfd.errors import Usage

HEADER: Final = "Idempotency-Key"
KEPT_FOR: Final = 24 * 3600 * SECOND
MAX_KEPT: Final = 4096
"""Most answers kept at a time; at their largest they take 256 MiB."""
MAX_ANSWER: Final = 64 * 1024
"""Largest answer that is kept, in bytes; answers to POSTs are tasks and short lists."""
ROOM: Final = "idempotency"
STEPS: Final = (
    """
    CREATE TABLE idempotency (
        id BLOB NOT NULL,
        request BLOB NOT NULL,
        at INTEGER NOT NULL,
        answer BLOB,
        seal BLOB,
        PRIMARY KEY (id)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX idempotency_at ON idempotency (at);
    """,
)
_TABLE: Final = Sealed("idempotency", ("id", "request", "at", "answer"), f"send the request with another {HEADER}")
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}\Z")


class KeptAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The first answer to a request."""

    status: int
    media_type: str
    body: bytes


class AnswerStore:
    """Keeps the answers of a node in its database."""

    def __init__(self, database: Database, now: Callable[[], Instant]) -> None:
        self._database, self._now = database, now
        self._lock = threading.Lock()
        self._under_way: set[bytes] = set()

    def claim(self, key: str, request: bytes) -> KeptAnswer | None:
        """Returns the kept answer; ``None`` for a new request, which the caller performs and then settles.

        Raises Usage for a malformed key, Invalid for the key of another request, Conflict for a request in progress or
        interrupted, and Environment if too many are kept.
        """
        row_id, digest = _hashes(key, request)
        with self._lock:
            is_under_way = row_id in self._under_way
            with self._database.write() as connection:
                connection.execute("DELETE FROM idempotency WHERE at < ?", (self._now() - KEPT_FOR,))
                row = _TABLE.one(connection, "id = ?", (row_id,))
                if row is None:
                    (count,) = connection.execute("SELECT count(*) FROM idempotency").fetchone()
                    if count >= MAX_KEPT:
                        raise _full()
                    _TABLE.put(connection, row_id, digest, self._now(), None)
            if row is None:
                self._under_way.add(row_id)
                return None
        if not hmac.compare_digest(bytes(row[1]), digest):
            raise Invalid(
                f"this {HEADER} was sent with another request", rule="idempotency-key", hint="use a new key for it"
            )
        if row[3] is None:
            raise _under_way() if is_under_way else _cut_off()
        return msgspec.msgpack.decode(row[3], type=KeptAnswer)

    def settle(self, key: str, request: bytes, answer: KeptAnswer) -> None:
        """Keeps the answer to a claimed request; of one that is too large, only that there was one."""
        row_id, digest = _hashes(key, request)
        kept = msgspec.msgpack.encode(answer) if len(answer.body) <= MAX_ANSWER else None
        with self._lock, self._database.write() as connection:
            self._under_way.discard(row_id)
            _TABLE.put(connection, row_id, digest, self._now(), kept)

    def abandon(self, key: str, request: bytes) -> None:
        """Ends a claimed request whose effect is not known: it stays claimed."""
        with self._lock:
            self._under_way.discard(_hashes(key, request)[0])


def _hashes(key: str, request: bytes) -> tuple[bytes, bytes]:
    """Returns the id of the row, and the hash of its request. Raises Usage for a malformed key."""
    if not _KEY.match(key):
        raise Usage(
            f"{HEADER} is 1 to 255 visible ASCII characters", rule="idempotency-key", hint="a random UUID will do"
        )
    secret = key.encode()
    return hashlib.sha3_256(b"odfd idempotency key\0" + secret).digest(), hmac.digest(secret, request, "sha3_256")


def _under_way() -> Conflict:
    return Conflict("this request is still under way", rule="idempotency-key", hint="send it again in a moment")


def _cut_off() -> Conflict:
    return Conflict(
        "this request was begun before, and its answer is not kept: the node stopped meanwhile, or it was too large",
        rule="idempotency-key",
        hint=f"look at its result; to repeat it, send it with another {HEADER}",
    )


def _full() -> Environment:
    return Environment(
        f"{MAX_KEPT} answers are kept for requests with {HEADER}, and no more",
        rule="idempotency-limit",
        hint="send it without the header, or wait: each is kept for 24 hours",
    )
