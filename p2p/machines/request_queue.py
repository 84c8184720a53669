"""Decides which request is answered next: fair between address blocks, peers, and the subjects that one peer requests.

One machine per node serves both data protocols. While one answer to a peer is written, only the next one is read: a
slow reader holds two answers in memory and delays nobody. At most ``readers`` reads from disk run at a time. The
subjects of one peer take turns by bytes (deficit round robin), so a million-block chain does not hold up a small one.
The machine does no I/O: the driver performs each ``ReadRequest`` and reports when it is done.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, NamedTuple, TypeAlias

import msgspec

from p2p.ports import PeerId
from p2p.wire.chains import BlockRange
from p2p.wire.limits import MAX_RANGE_BYTES
from p2p.wire.objects import ObjectRange, ObjectsAsk
from p2p.wire.refusal import PeerRefusal, RefusalReason

MAX_WAITING: Final = 64
"""Requests of one peer that may wait: 64 MiB of answers, far more than a fetching node has under way."""
AHEAD: Final = 2
"""Answers to one asker that are read and not yet sent."""
ROOMY: Final = 32 << 20
"""Bytes of unsent answers, of all askers, below which one is read while the one before it is written."""
READERS: Final = 4
"""Reads from disk at a time: enough to keep one disk busy, few enough to leave worker threads to others."""
LEAST: Final = 4 << 10
"""Bytes that even the smallest answer counts for in turns."""
MAX_BLOCKS: Final = 1024
"""Blocks of addresses remembered; those without a debt are forgotten."""
QUANTUM: Final = MAX_RANGE_BYTES
"""Bytes that a subject may take in its turn."""

Request: TypeAlias = BlockRange | ObjectRange | ObjectsAsk


class RequestStream(NamedTuple):
    """One stream of a peer. The driver allows each peer few of them, so that opening streams gains no turns."""

    peer: PeerId
    stream: int
    block: str = ""
    """The peer's block of addresses. Turns are shared among blocks, so that more keys gain no turns either."""


class Asked(msgspec.Struct, frozen=True):
    asker: RequestStream
    request: Request


class ReadDone(msgspec.Struct, frozen=True):
    """Event: an answer of so many bytes was read, so the disk is free for the next."""

    asker: RequestStream
    bytes: int


class AnswerWritten(msgspec.Struct, frozen=True):
    """Event: the peer has taken its answer, or never will; it may have its next turn."""

    asker: RequestStream


class Gone(msgspec.Struct, frozen=True):
    """Event: no stream to this peer remains, so its requests are dropped."""

    asker: RequestStream


class ReadRequest(msgspec.Struct, frozen=True):
    """Asks the driver to read what the request names, write it to the stream, and report both."""

    asker: RequestStream
    request: Request


class RefuseRequest(msgspec.Struct, frozen=True):
    asker: RequestStream
    refusal: PeerRefusal


Input: TypeAlias = Asked | ReadDone | AnswerWritten | Gone
Effect: TypeAlias = ReadRequest | RefuseRequest


class _Lane:
    """The requests of one peer by subject, in turns; ``deficit``: the bytes that a subject may still take."""

    def __init__(self) -> None:
        self.subjects: OrderedDict[bytes, deque[Request]] = OrderedDict()
        self.deficit: dict[bytes, int] = {}
        self.waiting = 0
        self.reading: bytes | None = None
        self.answers = 0
        """Answers that are being read, or are read and not yet written."""
        self.untaken = deque[int]()
        """The sizes, in bytes, of the answers that are read and not yet written."""

    def may_read(self, ahead: int) -> bool:
        return bool(self.waiting) and self.answers < ahead

    def put(self, request: Request) -> None:
        subject = _subject(request)
        self.subjects.setdefault(subject, deque()).append(request)
        self.waiting += 1

    def take(self) -> Request:
        """Removes and returns the next request; a subject that has used up its bytes goes to the end of the line."""
        while True:
            subject, requests = next(iter(self.subjects.items()))
            if self.deficit.setdefault(subject, QUANTUM) <= 0:
                self.deficit[subject] += QUANTUM
                self.subjects.move_to_end(subject)
                continue
            request = requests.popleft()
            self.waiting -= 1
            if not requests:
                del self.subjects[subject]
                self.deficit.pop(subject)
            self.reading = subject if requests else None
            self.answers += 1
            return request

    def charge(self, amount: int) -> None:
        if self.reading is not None and self.reading in self.deficit:
            self.deficit[self.reading] -= max(1, amount)
        self.reading = None


class RequestQueue:
    """Schedules the requests of all peers of a node."""

    def __init__(self, readers: int = READERS) -> None:
        self._readers = readers
        self._reading: set[RequestStream] = set()
        self._lanes: dict[RequestStream, _Lane] = {}
        self._line: OrderedDict[RequestStream, None] = OrderedDict()
        self._untaken = 0
        self._used: dict[str, int] = {}
        """Bytes given to each block of addresses, as far as they matter for its next turn."""
        self._least = 0

    def handle(self, event: Input) -> list[Effect]:
        """Takes an event, and returns what to do now; independent of time."""
        match event:
            case Asked(asker, request):
                refused = self._take_request(asker, request)
                return [refused] if refused else self._turns()
            case ReadDone(asker, count):
                self._reading.discard(asker)
                if lane := self._lanes.get(asker):
                    lane.charge(count)
                    self._used[asker.block] = self._used.get(asker.block, self._least) + max(LEAST, count)
                    lane.untaken.append(count)
                    self._untaken += count
                    self._line_up(asker, lane)
                return self._turns()
            case AnswerWritten(asker):
                self._note_written(asker)
                return self._turns()
            case Gone(asker):
                if gone := self._lanes.pop(asker, None):
                    self._untaken -= sum(gone.untaken)
                self._line.pop(asker, None)
                return self._turns()

    def _take_request(self, asker: RequestStream, request: Request) -> RefuseRequest | None:
        lane = self._lanes.setdefault(asker, _Lane())
        # More than any honest asker has under way (test_a_flood_of_questions_is_refused_and_noted).
        if lane.waiting >= MAX_WAITING:
            text = f"{MAX_WAITING} requests of yours wait already"
            return RefuseRequest(asker, PeerRefusal(request.request, RefusalReason.BUSY, text))
        lane.put(request)
        self._line_up(asker, lane)
        return None

    def _line_up(self, asker: RequestStream, lane: _Lane) -> None:
        # A block that requested nothing for a while gains no advantage by it.
        self._used[asker.block] = max(self._used.get(asker.block, 0), self._least)
        if lane.may_read(AHEAD if self._untaken < ROOMY else 1) and asker not in self._reading:
            self._line.setdefault(asker)

    def _note_written(self, asker: RequestStream) -> None:
        lane = self._lanes.get(asker)
        if lane is None:
            return
        lane.answers -= 1
        if lane.untaken:
            self._untaken -= lane.untaken.popleft()
        if lane.waiting or lane.answers:
            self._line_up(asker, lane)
        else:
            del self._lanes[asker]

    def _turns(self) -> list[Effect]:
        effects: list[Effect] = []
        while self._line and len(self._reading) < self._readers:
            # By what its block of addresses was given: keys are free (test_keys_buy_no_turns).
            asker = min(self._line, key=lambda each: self._used.get(each.block, 0))
            self._least = max(self._least, self._used.get(asker.block, 0))
            del self._line[asker]
            self._reading.add(asker)
            effects.append(ReadRequest(asker, self._lanes[asker].take()))
        if len(self._used) > MAX_BLOCKS:
            self._used = {block: used for block, used in self._used.items() if used > self._least}
        return effects


def _subject(request: Request) -> bytes:
    """Returns the subject by which an asker's requests take turns: a dataset, or the first requested object."""
    match request:
        case BlockRange(dataset=dataset):
            return bytes(dataset)
        case ObjectRange(name=name):
            return bytes(name)
        case ObjectsAsk(names=names):
            return bytes(names[0])
