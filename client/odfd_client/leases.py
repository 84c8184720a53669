"""Holds a dataset's history while a program reads it: a lease at the node, renewed by a thread.

The thread renews whether rows are read or not, so a slow reader loses nothing. If the node reports that the hold is
lost, or could not be reached until the hold expired, ``check`` and the end raise HoldLost.
"""

from __future__ import annotations

import datetime
import math
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

from odfd_client.errors import Bug, HoldLost, NotFound, OdfdError, Refused
from odfd_client.expressions import instant
from odfd_client.transport import Transport, part
from odfd_client.values import Pin

SECONDS: Final = 900
_RENEWALS: Final = 3
"""Renewals in the lifetime of a hold: two may fail."""

When = str | datetime.date | None
"""A time, as ``Dataset.at`` takes it; ``None``: none is asked for."""


class Lease:
    """A hold of a dataset's history, until it is released or its ``with`` block ends. ``pin`` reads the held rows."""

    def __init__(
        self,
        transport: Transport,
        answer: Mapping[str, Any],
        seconds: int,
        begun: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``begun``: a time before the hold was requested, by ``clock``, a monotonic clock in seconds."""
        try:
            self.id, self.time, self.pin = str(answer["id"]), str(answer["time"]), Pin.of(answer["pin"])
            shards = tuple(map(Pin.of, answer.get("shards", ())))
        except (KeyError, TypeError) as error:
            raise Bug("the node's hold is not understood", rule="answer") from error
        fence = answer.get("fence")
        self.fence = fence if isinstance(fence, int) else None
        """The number of this process among those that took the hold for its owner; ``None``: it is leased."""
        self.pins = shards or (self.pin,)
        """The pin of each shard, if all shards of a collection are held."""
        self._transport, self._seconds, self._clock = transport, seconds, clock
        self._until = begun + seconds if self.fence is None else math.inf
        self._lost: HoldLost | None = None
        self._ended = threading.Event()
        self._renewer = threading.Thread(target=self._keep, name=f"hold {self.id}", daemon=True)

    @classmethod
    def take(cls, transport: Transport, ref: str, at: When, seconds: int, note: str, owner: str = "") -> Self:
        """Takes a hold. Raises NotFound, Invalid, Refused, Unreachable."""
        if transport.is_remote:
            raise Refused(
                "holds are taken at the node's own socket", rule="hold-remote", hint="connect() without a URL"
            )
        said = {"ref": ref, "seconds": seconds, "note": note} | ({} if at is None else {"at": _format_time(at)})
        said |= {"owner": owner} if owner else {}
        begun = time.monotonic()
        answer = transport.post("/node/v1alpha1/holds", said)
        if not isinstance(answer, dict):
            raise Bug("the node's hold is not understood", rule="answer")
        if ref.startswith("did:"):
            answer = answer | {"shards": ()}
        return cls(transport, answer, seconds, begun)

    def check(self) -> None:
        """Raises HoldLost if the history may have changed by now."""
        if self._lost is None and not self._ended.is_set() and self._clock() >= self._until:
            self._lost = HoldLost(
                f"hold {self.id} could not be renewed in its {self._seconds} seconds",
                rule="hold-lost",
                hint="take a new one, and read again",
            )
        if self._lost is not None:
            raise self._lost

    def release(self) -> None:
        """Ends the hold; a second call does nothing. Raises HoldLost if it had ended before, Unreachable."""
        if self._ended.is_set():
            return
        self.check()
        self._ended.set()
        if self._renewer.is_alive():
            self._renewer.join()
        try:
            fence = "" if self.fence is None else f"?fence={self.fence}"
            self._transport.ask("DELETE", f"/node/v1alpha1/holds/{part(self.id)}" + fence).close()
        except NotFound as error:
            self._lost = HoldLost(f"hold {self.id} is lost", rule="hold-lost", hint="take a new one, and read again")
            raise self._lost from error

    def renew(self) -> None:
        """Extends the hold by its seconds from now, as the thread does regularly. Raises HoldLost, Unreachable.

        One that is owned lasts anyway: the thread finds out whether another process of the owner took over.
        """
        begun = self._clock()
        self._extend({} if self.fence is None else {"fence": self.fence})
        self._until = max(self._until, begun + self._seconds)

    def move(self, at: When) -> None:
        """Moves an owned hold to a later time that is complete: what is before may go. Raises HoldLost, Refused."""
        self.check()
        self._extend({"fence": self.fence, "at": _format_time(at)})

    def _extend(self, more: Mapping[str, object]) -> None:
        """Asks the node to extend the hold. Raises HoldLost, also by ``check`` from then on, Refused, Unreachable."""
        body = {"seconds": self._seconds, **more}
        try:
            self._transport.ask("PUT", f"/node/v1alpha1/holds/{part(self.id)}", body=body).close()
        except HoldLost as lost:
            self._lost = lost
            raise

    def __enter__(self) -> Self:
        self._renewer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.fence is None:
                self.release()
            else:
                self.check()  # an owned hold outlives its process
        except OdfdError:
            if error is None:
                raise
        finally:
            self._ended.set()

    def _keep(self) -> None:
        while not self._ended.wait(self._seconds / _RENEWALS):
            try:
                self.renew()
            except HoldLost:
                return
            except OdfdError:
                continue  # the thread tries again; `check` reports when it takes too long


def _format_time(at: When) -> str | None:
    """Formats a time with its zone; one without is in UTC, and a day is its begin."""
    if at is None:
        return None
    said = instant(at)
    try:
        found = datetime.datetime.fromisoformat(said)
    except ValueError:  # the node says what a time is
        return said
    return said if found.tzinfo is not None else instant(found)
