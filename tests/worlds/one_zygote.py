"""One zygote for the queries of all nodes of a test process: each node would load the modules of three processes anew.

``tests/contract/engines`` and ``tests/unit/engines/query`` are about zygotes of one's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import trio

from engines.query.reader import QueryProcesses, _command
from engines.sandbox.base import SandboxLevel
from engines.sandbox.bubblewrap import Bubblewrap
from engines.sandbox.forking import Zygote
from engines.sandbox.probe import SandboxChoice, trial
from worlds.leaks import keep, release


class SharedZygote(Zygote):
    """A zygote that outlives the nodes which it is lent to."""

    def stop(self) -> None:
        """Does nothing: ``end`` does it."""

    def end(self) -> None:
        """Ends it outside of the event loop, where its socket cannot be closed by Trio."""
        os.close(self._line.detach())
        self._popen.kill()
        self._popen.wait()
        self._said.close()


class Lender:
    """Has a zygote from the first query on, if its sandbox holds here."""

    def __init__(self) -> None:
        self._zygote: SharedZygote | None = None
        self._was_tried = False
        self._making = trio.Lock()

    async def lend(self, choice: SandboxChoice) -> Zygote | None:
        async with self._making:
            if self._zygote is not None and not self._zygote.is_alive:
                self.end()
            if not self._was_tried and isinstance(choice.sandbox, Bubblewrap) and choice.level is SandboxLevel.HOST:
                with trio.CancelScope(shield=True):
                    self._was_tried = True
                    await self._hatch(choice, choice.sandbox)
        return self._zygote

    async def _hatch(self, choice: SandboxChoice, sandbox: Bubblewrap) -> None:
        with keep(self):
            self._zygote = SharedZygote(sandbox, choice.groups, (*_command(sys.executable), "zygote"))
        await self._zygote.ready()
        tried = await trial(sandbox, choice.groups, partial(self._zygote.start, execute=True))
        if tried.problems:
            self.end()
            self._was_tried = True

    def end(self) -> None:
        if self._zygote is not None:
            self._zygote.end()
            release(self)
        self._zygote, self._was_tried = None, False


@contextmanager
def one_zygote(lender: Lender) -> Iterator[None]:
    """Has all query processes forked from one zygote, the first of each node too."""
    isolation = QueryProcesses._isolation

    async def isolated(self: QueryProcesses) -> SandboxChoice:
        choice = await isolation(self)
        if self._zygote is None and self._forking:
            self._zygote = await lender.lend(choice)
        return choice

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(QueryProcesses, "_isolation", isolated)
        yield
