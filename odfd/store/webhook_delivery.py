"""Decides which webhook messages a dataset's events cause, signs them (Standard Webhooks), and plans retries. Pure.

A message tells the way from the head that was reported last to the present one. So a dataset has one open delivery at a
time, news that come meanwhile become one delivery after it, and waiting deliveries do not grow with events.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any, Final

import msgspec

from chain import instant
from chain.instant import SECOND, Instant
from chain.store.base import Head
from odfd.store.webhook_target import CREATED, DELETED, UPDATED

FIRST_PAUSE: Final = 5 * SECOND
LONGEST_PAUSE: Final = 3600 * SECOND
GIVEN_UP_AFTER: Final = 24 * 3600 * SECOND
LEAST_ATTEMPTS: Final = 8
"""Least attempts before a delivery is given up, however old it is, since the node may have been off for a day."""


class NotifiedHead(msgspec.Struct, frozen=True, rename="camel"):
    hash: str
    sequence_number: int


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One call with all its attempts, which have the same id and body."""

    id: str
    body: str
    head: NotifiedHead | None
    """The head that it reports; ``None`` for a deleted dataset."""
    name: str
    made: Instant
    attempts: int = 0


class NotifiedDataset(msgspec.Struct, frozen=True, kw_only=True):
    """Records which head of one dataset one target was told of."""

    name: str
    head: NotifiedHead | None
    delivery: Delivery | None = None


class CallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The results of the calls of one target."""

    generation: int
    """Generation of the declaration since which it is told of changes, but not of what was there already."""
    delivered: int = 0
    """Calls of this generation that were answered."""
    dead: int = 0
    """Number of deliveries that were given up."""
    failures: int = 0
    """Calls that failed in a row."""
    said: str = ""
    """The result of the last call, for people."""


def notified_head(head: Head | None) -> NotifiedHead | None:
    return None if head is None else NotifiedHead(str(head.hash), head.sequence_number)


def event_of(before: NotifiedHead | None, head: NotifiedHead | None) -> str | None:
    """Returns the event between two heads; ``None`` if they are equal."""
    if before == head:
        return None
    return CREATED if before is None else DELETED if head is None else UPDATED


def new_delivery(
    event: str, dataset: str, name: str, way: tuple[NotifiedHead | None, NotifiedHead | None], new_id: str, now: Instant
) -> Delivery:
    """Makes a delivery. ``way``: the heads before and after."""
    before, head = way
    data: dict[str, Any] = {
        "dataset": {"id": dataset, "name": name},
        "oldRef": before and msgspec.to_builtins(before),
        "newRef": head and msgspec.to_builtins(head),
    }
    body = json.dumps({"type": event, "timestamp": instant.render(now), "data": data}, separators=(",", ":"))
    return Delivery(id=f"msg_{new_id}", body=body, head=head, name=name, made=now)


def pause_after(attempts: int, draw: Callable[[int], int]) -> int:
    """Returns the nanoseconds to the next attempt. ``draw`` returns a random number below its argument."""
    most = min(LONGEST_PAUSE, FIRST_PAUSE << min(attempts - 1, 20))
    # Half of it at random, lest all that waited for a receiver call it at one moment.
    return most // 2 + draw(most // 2)


def is_dead(delivery: Delivery, now: Instant) -> bool:
    """Whether a delivery is to be given up after a failed attempt."""
    return delivery.attempts >= LEAST_ATTEMPTS and now - delivery.made >= GIVEN_UP_AFTER


def signed_headers(delivery: Delivery, key: bytes | None, now: Instant) -> dict[str, str]:
    """Returns the headers of one attempt; its time is signed too, so that a receiver detects replays.

    ``key``: ``None`` if the target has no secret, so that nothing is signed.
    """
    at = str(now // SECOND)
    headers = {"Content-Type": "application/json", "webhook-id": delivery.id, "webhook-timestamp": at}
    if key is None:
        return headers
    mac = hmac.new(key, f"{delivery.id}.{at}.{delivery.body}".encode(), hashlib.sha256).digest()
    return headers | {"webhook-signature": f"v1,{base64.b64encode(mac).decode()}"}
