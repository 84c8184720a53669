"""Joins calls that come at the same time into one, in a worker thread: what each would wait for alone is done once.

A call that comes alone begins at once, and nothing waits on purpose: those that come while one is at work make the
next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import trio

Q = TypeVar("Q")
A = TypeVar("A")


class _Call(Generic[Q, A]):
    def __init__(self, question: Q) -> None:
        self.question = question
        self.turn = trio.Event()
        """Set when the call has its answer, or leads the next work."""
        self.leads = False
        self.answer: A | Exception | None = None


class SharedCalls(Generic[Q, A]):
    """Calls ``work`` in a thread, for all calls that wait; used in one event loop."""

    def __init__(self, work: Callable[[Sequence[Q]], Sequence[A | Exception]], most: int) -> None:
        """``work`` returns for each of at most ``most`` questions an answer, or the exception that its caller gets."""
        self._work, self._most = work, most
        self._waiting: list[_Call[Q, A]] = []
        self._is_working = False

    async def call(self, question: Q) -> A:
        """Returns the answer; raises what ``work`` returned for it, or raised.

        A caller that is cancelled leaves the work of others alone; its own is done if it has begun.
        """
        own: _Call[Q, A] = _Call(question)
        self._waiting.append(own)
        if self._is_working:
            try:
                await own.turn.wait()
            except BaseException:
                if own in self._waiting:
                    self._waiting.remove(own)
                # Cancelled after it was chosen: nobody would work for those who wait.
                if own.leads:
                    self._pass_on()
                raise
        if own.answer is None:
            await self._lead(own)
        if isinstance(own.answer, Exception):
            raise own.answer
        assert own.answer is not None
        return own.answer

    async def _lead(self, own: _Call[Q, A]) -> None:
        """Works for the first calls that wait, of which ``own`` is one; then lets another lead."""
        self._is_working = True
        some, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
        answers: Sequence[A | Exception] | None = None

        def work() -> None:
            nonlocal answers
            try:
                answers = self._work([each.question for each in some])
            except Exception as error:  # noqa: BLE001  each caller gets it
                answers = [error] * len(some)

        try:
            await trio.to_thread.run_sync(work)
        finally:
            if answers is None:  # cancelled before it began: the others are still to be worked for
                self._waiting = [each for each in some if each is not own] + self._waiting
            else:
                for each, answer in zip(some, answers, strict=True):
                    each.answer = answer
                    each.turn.set()
            self._pass_on()

    def _pass_on(self) -> None:
        self._is_working = bool(self._waiting)
        if self._waiting:
            self._waiting[0].leads = True
            self._waiting[0].turn.set()
