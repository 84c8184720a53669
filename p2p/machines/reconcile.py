"""Runs anti-entropy with one peer: compares sums, lists differences, fetches missing statements.

``Reconcile`` is the requesting side, one per round with one peer: it takes each answer and returns the next request,
until ``Done``. ``answer`` is the responding side, a pure function of a request and of the statements held. The caller
decides whether a statement is valid or wanted. Spec: docs/spec/trust.md#gossip.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import msgspec

from chain.errors import Invalid, NotFound
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.wording import plural
from p2p.ports import StatementRef, Topic
from p2p.wire import trust
from p2p.wire.limits import BUCKETS, MAX_DATASETS, MAX_ENVELOPE, MAX_LISTED, MAX_SIDS, MAX_TRUST_REPLY
from p2p.wire.trust import (
    GetAsk,
    ListAsk,
    Listing,
    ProofAnswer,
    ProveAsk,
    Statements,
    SumAsk,
    Sums,
    TopicEnvelope,
    TrustAsk,
    TrustRefusal,
    TrustTell,
)

MAX_WANTED: Final = 65_536
"""Statements that one round may fetch; the rest of a longer listing is fetched in later rounds."""
MAX_PAGES: Final = 64
"""Pages of listings in one round: 262,144 names. A peer with more pages may never come to an end."""


class Fetch(msgspec.Struct, frozen=True):
    """Asks the driver to send this question and pass its answer to ``handle``."""

    ask: TrustAsk


class Show(msgspec.Struct, frozen=True):
    """Asks the driver to give these statements to the node, in order, and to proceed when they were judged."""

    statements: tuple[TopicEnvelope, ...]


class Done(msgspec.Struct, frozen=True):
    """The round is over. ``refused``: the reason that the peer gave if it refused to answer."""

    refused: str = ""


Effect: TypeAlias = Fetch | Show | Done
Refs: TypeAlias = Callable[[Sequence[DatasetId] | None], Sequence[StatementRef]]
"""Returns the statements held about some datasets, or about all (``None``)."""


class Reconcile:
    """The requesting side of one round with one peer.
    ``mine``: the statements held of ``datasets``, or (``None``) of all.

    ``declined`` tells which names are not worth fetching: sids, and the ``compared`` sums of both sides. ``may_go_on``
    is asked before each question but the first; once it says no, at most one more question follows, for statements
    known to be missing. ``private``: this node passes on nothing that it is told of ``datasets``.
    """

    def __init__(
        self,
        mine: Sequence[StatementRef],
        datasets: Sequence[DatasetId] | None = None,
        declined: Callable[[bytes], bool] = lambda _: False,
        may_go_on: Callable[[], bool] = lambda: True,
        *,
        private: bool = False,
    ) -> None:
        self._mine = mine
        self._declined = declined
        self._may_go_on = may_go_on
        self.compared: bytes | None = None
        """A hash of the compared sums of both sides; ``None`` before the comparison."""
        self.is_whole = True
        """Whether everything that the peer listed could be considered in this round."""
        self._held = {ref.sid for ref in mine}
        self._lists: deque[ListAsk] = deque()
        self._scope: set[DatasetId] | None = None if datasets is None else set(datasets)
        if datasets is not None:
            for at in range(0, len(datasets), MAX_DATASETS):
                self._lists.append(ListAsk(datasets=tuple(datasets[at : at + MAX_DATASETS]), private=private))
        self._wanted: dict[Multihash, None] = {}
        self._asked: TrustAsk | None = None
        self._pages = 0
        self._is_ending = False

    def start(self) -> list[Effect]:
        return [self._fetch(SumAsk())] if self._scope is None else [self._next()]

    def handle(self, tell: TrustTell) -> list[Effect]:
        """Takes the answer to the last question, and returns what to do next.

        Raises Invalid if it is no answer to that question; the peer is then to be penalised.
        """
        match self._asked, tell:
            case _, TrustRefusal(reason):
                return [Done(refused=reason)]
            case SumAsk(), Sums():
                mine = trust.sums(self._mine)
                differing = tuple(trust.differing(mine, tell))
                self.compared = trust.hash_sums(mine, tell)
                if differing and not self._declined(self.compared):
                    self._lists.append(ListAsk(buckets=differing))
            case ListAsk() as ask, Listing():
                self._take_page(ask, tell)
            case GetAsk(sids), Statements(statements, done):
                if done > len(sids) or len(statements) > done:
                    raise Invalid(f"asked for {len(sids)} statements, got {done}", rule="trust-get")
                for sid in sids[:done]:
                    self._wanted.pop(sid, None)
                return [Show(statements), self._next()]
            case _:
                raise Invalid(f"{type(tell).__name__} does not answer {type(self._asked).__name__}", rule="trust-reply")
        return [self._next()]

    def _take_page(self, ask: ListAsk, page: Listing) -> None:
        refs = trust.refs_of(page)
        floor = ask.after or Multihash()
        if any(not self._in_scope(ask, ref) or ref.sid <= floor for ref in refs):
            raise Invalid("a listing of statements that were not asked for", rule="trust-list")
        for ref in refs:
            if ref.sid in self._held or self._declined(ref.sid):
                continue
            if len(self._wanted) < MAX_WANTED:
                self._wanted[ref.sid] = None
            else:
                self.is_whole = False
        self._pages += 1
        if page.more is not None and self._pages >= MAX_PAGES:
            self.is_whole = False
        elif page.more is not None:
            if not refs or page.more != refs[-1].sid:
                raise Invalid("a page of a listing that does not say where it ends", rule="trust-list")
            self._lists.appendleft(msgspec.structs.replace(ask, after=page.more))

    def _in_scope(self, ask: ListAsk, ref: StatementRef) -> bool:
        return ref.dataset in ask.datasets if ask.datasets else trust.bucket(ref.dataset) in ask.buckets

    def _next(self) -> Effect:
        if not self._may_go_on():
            return self._last()
        if len(self._wanted) >= MAX_SIDS or (self._wanted and not self._lists):
            return self._fetch(GetAsk(tuple(list(self._wanted)[:MAX_SIDS])))
        if self._lists:
            return self._fetch(self._lists.popleft())
        return Done()

    def _last(self) -> Effect:
        self.is_whole = self.is_whole and not self._lists and not self._wanted
        if self._is_ending or not self._wanted:
            return Done()
        self._is_ending = True
        return self._fetch(GetAsk(tuple(list(self._wanted)[:MAX_SIDS])))

    def _fetch(self, ask: TrustAsk) -> Fetch:
        self._asked = ask
        return Fetch(ask)


def answer(
    ask: TrustAsk,
    refs: Refs,
    envelope: Callable[[Multihash], tuple[Topic, bytes] | None],
    prove: Callable[[ProveAsk], Sequence[bytes]] | None = None,
    kept: Refs | None = None,
) -> TrustTell:
    """Returns the answer to ``ask`` from a node that holds ``refs``; always within the limits of the wire.

    ``kept``: replaces ``refs`` for an asker that names datasets and passes nothing on.
    """
    match ask:
        case SumAsk():
            return Sums({f"{number:02x}": value for number, value in trust.sums(refs(None)).items()})
        case ListAsk(buckets, datasets, after, private):
            chosen = set(buckets) if buckets else set(range(BUCKETS))
            floor = after or Multihash()
            told = kept if kept is not None and private and datasets else refs
            held = [r for r in told(datasets or None) if r.sid > floor and trust.bucket(r.dataset) in chosen]
            held.sort(key=lambda ref: ref.sid)
            return trust.page(held[:MAX_LISTED], more=len(held) > MAX_LISTED)
        case GetAsk(sids):
            return _gather(sids, envelope)
        case ProveAsk():
            return _proven(ask, prove)


def _proven(ask: ProveAsk, prove: Callable[[ProveAsk], Sequence[bytes]] | None) -> ProofAnswer | TrustRefusal:
    if prove is None:
        return TrustRefusal("nothing is proven here")
    try:
        return ProofAnswer(tuple(node.hex() for node in prove(ask)))
    except NotFound:
        return TrustRefusal(f"a tree of {plural(ask.size, 'block')} of that dataset is not served here")


def _gather(sids: Sequence[Multihash], envelope: Callable[[Multihash], tuple[Topic, bytes] | None]) -> Statements:
    """Returns as many statements as fit in a reply, counted in base64, which makes four bytes of three."""
    room = MAX_TRUST_REPLY - 1024
    gathered: list[TopicEnvelope] = []
    for done, sid in enumerate(sids):
        found = envelope(sid)
        if found is None or len(found[1]) > MAX_ENVELOPE:
            continue
        room -= len(found[1]) * 4 // 3 + 64
        if room < 0:
            return Statements(tuple(gathered), done)
        gathered.append(TopicEnvelope(*found))
    return Statements(tuple(gathered), len(sids))
