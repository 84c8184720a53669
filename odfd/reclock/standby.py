"""Decides when an instance lets another one go on, and when it takes over. Pure: no clock, and randomness is given.

An instance that came second has done work that another one had done already. It then stands by: it fetches, decodes and
writes nothing, but looks at the frontiers of the commit point now and then. While they move between two looks another
instance goes on; as soon as they do not, it acts again. This only saves work: whoever acts, and when, the commit point
decides as always, so no error here can change a byte. An instance that stands by acts after one pause without progress,
so several that stand by at once do not wait for each other. Spec: docs/spec/collections.md#standby.
"""

from __future__ import annotations

from typing import Final

LEAST: Final = 0.25
"""Seconds of the shortest pause, without what is added by chance."""
MOST: Final = 300.0
"""Seconds of the longest one, likewise."""


class Standby:
    """Whether one instance stands by."""

    def __init__(self) -> None:
        self._patience = 0.0
        """Seconds without progress after which it acts; 0: it does not stand by."""
        self._seen: object = None
        """The frontiers before the last pause; ``None``: there was none since it acted."""

    @property
    def is_on(self) -> bool:
        return self._patience > 0

    def came_first(self) -> None:
        """Notes that it did something which no other instance had done: it acts from now on."""
        self._patience, self._seen = 0.0, None

    def came_second(self, took: float) -> None:
        """Notes that another instance had done what this one did in ``took`` seconds: it stands by from now on.

        The other one may need as long, and more while both work. If that was too early again, patience is doubled.
        """
        self._patience, self._seen = min(MOST, max(LEAST, 2 * took, 2 * self._patience)), None

    def pause(self, seen: object, chance: float) -> float | None:
        """Returns the seconds until the next look; ``None``: nothing moved during the last pause, so it is to act.

        ``seen``: the frontiers now, not ``None``. ``chance``, from 0 to 1, lengthens the pause by up to its length, so
        that of several that stand by one acts before the others.
        """
        if not self.is_on or seen == self._seen:
            self._seen = None
            return None
        self._seen = seen
        return self._patience * (1 + chance)
