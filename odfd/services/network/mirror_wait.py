"""Waits for a new mirror on behalf of a person, and says what was tried if nothing of it came."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import trio

from chain.errors import NotFound, Refused, Remote
from chain.wording import plural
from odfd.mirrors.mirror_state import Mirror, SchedulerState
from odfd.mirrors.scheduler import MirrorScheduler
from odfd.runtime.tasks import Report
from odfd.services.views.task_progress import show_mirror
from p2p.ports import PeerId, PeerView

PATIENCE_SECONDS: Final = 60.0
"""Seconds without progress after which the task of a new mirror ends; the mirror itself goes on."""
SHOW_SECONDS: Final = 0.2
"""Seconds between two updates of the task."""
_UNSETTLED: Final = (SchedulerState.WAITING, SchedulerState.STALLED)


class MirrorWait:
    """One wait for a mirror: asks all connected peers once if the first pass found nobody, and counts who was asked."""

    def __init__(self, scheduler: MirrorScheduler, mirror: Mirror, views: Callable[[], Sequence[PeerView]]) -> None:
        self._scheduler = scheduler
        self._mirror = mirror
        self._views = views
        self._asked: set[PeerId] = set()
        self._began = trio.current_time()

    async def settled(self, report: Report) -> None:
        """Waits until all that is announced is here, or cannot come, or nothing came for a while; shows progress."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_showing, report)
            await self._until_settled()
            nursery.cancel_scope.cancel()
        self._show(report)

    def lack(self) -> Remote | None:
        """Returns why nothing more came, with what was tried and what to do; ``None`` for a mirror that has settled."""
        mirror = self._mirror
        if mirror.is_settled or mirror.state not in _UNSETTLED:
            return None
        name = mirror.spec.name
        tried, advice = self._describe_tries()
        return Remote(
            f"no peer served {name} ({mirror.spec.id.short}): {tried}",
            rule="mirror-waits",
            hint=f"{advice}; the mirror stays and continues by itself: odfctl mirror remove {name} ends it",
        )

    def _describe_tries(self) -> tuple[str, str]:
        """Returns what was tried, and what a person can do."""
        if self._is_in_no_network():
            return "this node is in no network, so no peer was asked", "join one: odfctl join INVITATION"
        seconds = round(trio.current_time() - self._began)
        if self._mirror.spec.peers:
            return (
                f"asked {plural(len(self._asked), 'peer')} in {seconds} s: {self._mirror.message}",
                "its owner shares it by odfctl share NAME --with THIS-PEER (odfctl status shows the id)",
            )
        if not self._asked:
            said = f"; {self._mirror.message}" if self._mirror.state is SchedulerState.STALLED else ""
            return f"for {seconds} s no peer was connected{said}", "odfctl peer netcheck says what is wrong"
        is_unheard = self._mirror.state is SchedulerState.WAITING and not self._mirror.tally.blocks_wanted
        said = ", and received no signed head of it" if is_unheard else f": {self._mirror.message}"
        return (
            f"asked {plural(len(self._asked), 'peer')} in {seconds} s{said}",
            "check its id (odfctl search, odfctl network show), and whether its publisher is online",
        )

    def _is_in_no_network(self) -> bool:
        """Whether nobody can be asked for the dataset before this node joins a network."""
        return not self._scheduler.is_joined() and self._mirror.spec.via is None

    async def _until_settled(self) -> None:
        mirror = self._mirror
        seen, since = mirror.tally.progress(), trio.current_time()
        has_asked = False
        while not mirror.is_settled and not mirror.ended.is_set():
            turned = mirror.turned
            idle = mirror.state is not SchedulerState.SYNCING
            with trio.move_on_at(since + PATIENCE_SECONDS if idle else float("inf")) as patience:
                if not has_asked and mirror.passes >= mirror.fresh:
                    has_asked = True
                    await self._ask()
                elif mirror.passes >= mirror.fresh and (mirror.rests or self._is_in_no_network()):
                    return  # nothing can come
                else:
                    await turned.wait()
            if patience.cancelled_caught and mirror.state is not SchedulerState.SYNCING:
                return
            if mirror.tally.progress() != seen:
                seen, since = mirror.tally.progress(), trio.current_time()

    async def _ask(self) -> None:
        """Asks all connected peers for statements, and runs a pass with what they said."""
        with suppress(Refused, NotFound):  # paused or removed meanwhile
            await self._scheduler.pass_now(self._mirror.spec.id)

    async def _keep_showing(self, report: Report) -> None:
        while True:
            self._note_peers()
            self._show(report)
            await trio.sleep(SHOW_SECONDS)

    def _note_peers(self) -> None:
        peers = {view.peer for view in self._views() if view.connected and not view.blocked}
        named = {PeerId(peer) for peer in self._mirror.spec.peers}
        self._asked |= peers & named if named else peers

    def _show(self, report: Report) -> None:
        show_mirror(report, self._mirror)
        if self._mirror.state is SchedulerState.WAITING and not self._mirror.tally.blocks_wanted:
            asked = plural(len(self._asked), "peer")
            report.message = f"asked {asked}, waiting: {self._mirror.message or 'no answer yet'}"
        elif self._mirror.state is SchedulerState.STALLED:
            report.message = f"it is tried again: {self._mirror.message}"
