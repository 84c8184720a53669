"""Checks a mounted folder without waiting for ever: a hung mount blocks one thread of a node, not all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

PATIENCE: Final = 5.0
"""Seconds to wait for the answer of a folder."""


class MountCheck:
    """One check of a folder, repeated at each call. Safe to use from many threads.

    A call to a mount whose server is gone cannot be cancelled. So a thread of its own makes the check, one at a time,
    and all callers that come meanwhile share its result.
    """

    def __init__(self, ask: Callable[[], bool], patience: float = PATIENCE) -> None:
        """``ask`` makes the check, and may raise OSError."""
        self._ask, self._patience = ask, patience
        self._lock = threading.Lock()
        self._asked: _Question | None = None

    def __call__(self) -> bool:
        """Returns the result. Raises what the check does, and TimeoutError; at once while an earlier check hangs."""
        with self._lock:
            if self._asked is None or self._asked.is_answered:
                self._asked = _Question(self._ask)
            asked = self._asked
        return asked.answer(self._patience)


class _Question:
    def __init__(self, ask: Callable[[], bool]) -> None:
        self._ask = ask
        self._done = threading.Event()
        self._hangs = False
        self._answer = False
        self._error: OSError | None = None
        # A daemon thread: a call that hangs in the kernel would keep the process from ending.
        threading.Thread(target=self._run, name="volume mount", daemon=True).start()

    @property
    def is_answered(self) -> bool:
        return self._done.is_set()

    def answer(self, patience: float) -> bool:
        """Waits for the result. Raises OSError, and TimeoutError."""
        # The first caller has waited already; the others must not each hold a worker thread for as long.
        if not self._done.wait(0 if self._hangs else patience):
            self._hangs = True
            raise TimeoutError("it does not answer")
        if self._error is not None:
            raise self._error
        return self._answer

    def _run(self) -> None:
        try:
            self._answer = self._ask()
        except OSError as error:
            self._error = error
        finally:
            self._done.set()
