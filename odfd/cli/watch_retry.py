"""Keeps a watch going while its daemon is away: asks again after growing pauses, and says so on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeAlias, TypeVar

from chain.instant import SECOND
from odfd.cli.session import Session
from odfd.errors import Unreachable

FIRST_PAUSE: Final = 0.1
"""Seconds before the first attempt to reach a daemon that went away."""
LONGEST_PAUSE: Final = 5.0
"""Most seconds between two attempts."""
STEADY_SECONDS: Final = 10.0
"""Seconds that a connection must have lasted, for pauses to be short again after its loss."""
T = TypeVar("T")
Open: TypeAlias = Callable[[Callable[[], None]], Iterator[T]]
"""Opens a stream at the position reached so far; calls its argument when the daemon has accepted the request."""


class Outage:
    """Decides when an absent daemon is asked again, and what is said of it. Takes the time as an argument.

    A daemon that was never reached is no outage: the first failure is that of the command.
    """

    def __init__(self) -> None:
        self._pause = FIRST_PAUSE
        self._connected_at: int | None = None
        self._is_known = False
        """Whether the daemon was reached at least once."""

    def came(self, now: int) -> str:
        """Notes at monotonic time ``now`` that the daemon answers. Returns what to say; empty: nothing."""
        was_lost = self._is_known and self._connected_at is None
        if self._connected_at is None:
            self._connected_at = now
        self._is_known = True
        return "the daemon is back" if was_lost else ""

    def note_fault(self, now: int, fault: Unreachable) -> tuple[float, str]:
        """Notes that the daemon does not answer. Returns the seconds until the next attempt, and what to say.

        Raises ``fault`` if the daemon was never reached.
        """
        if not self._is_known:
            raise fault
        said = ""
        if self._connected_at is not None:
            lasted = now - self._connected_at
            self._pause = FIRST_PAUSE if lasted >= STEADY_SECONDS * SECOND else self._pause
            said, self._connected_at = f"{fault.message}; asking again until it is back (^C ends this)", None
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        return pause, said


class WatchPosition(Generic[T]):
    """How far a watch of resources has got: its lines are told once each, over any number of connections.

    The list of what stands is held back until its bookmark, since it cannot be continued from its middle.
    """

    def __init__(self, version: str = "") -> None:
        self.version = version
        """The version to continue from; empty: list anew."""
        self._held: list[T] = []
        self._is_listing = self._resumes = self._was_told = False

    def begin(self) -> None:
        """Notes that a stream begins at ``version``."""
        self._held, self._is_listing = [], not self.version
        self._resumes = self._was_told and not self._is_listing

    def take(self, op: str, version: str, line: T) -> list[T]:
        """Takes a line of the stream; returns the lines to tell now."""
        if op == "Reset":
            self.version, self._held = "", []
            return [line]
        if op == "Bookmark":
            told = [*self._held, *([] if self._resumes else [line])]
            self.version, self._held, self._is_listing, self._was_told = version, [], False, True
            return told
        if self._is_listing:
            self._held.append(line)
            return []
        self.version = version
        return [line]


def resume(session: Session, open_: Open[T]) -> Iterator[T]:
    """Yields what a stream yields, and goes on with a stream opened anew whenever the daemon went away. Does not end.

    The first connection must succeed; Unreachable is raised otherwise.
    """
    outage = Outage()

    def note_begin() -> None:
        _say(session, outage.came(session.clock.monotonic()))

    while True:
        try:
            yield from open_(note_begin)
            raise session.client.lost_connection()
        except Unreachable as fault:
            pause, said = outage.note_fault(session.clock.monotonic(), fault)
            _say(session, said)
            session.clock.sleep(pause)


def ask_again(session: Session, ask: Callable[[], T], outage: Outage, left: Callable[[], float]) -> T:
    """Returns the answer of ``ask``, which is repeated while a daemon that answered before does not.

    ``left``: seconds that remain. Raises Unreachable when none remains.
    """
    while True:
        try:
            answer = ask()
        except Unreachable as fault:
            remaining = left()
            if remaining <= 0:
                raise
            pause, said = outage.note_fault(session.clock.monotonic(), fault)
            _say(session, said)
            session.clock.sleep(min(pause, remaining))
        else:
            _say(session, outage.came(session.clock.monotonic()))
            return answer


def _say(session: Session, text: str) -> None:
    if text:
        session.remark(text)
