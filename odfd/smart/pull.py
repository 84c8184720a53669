"""Implements a pull by the smart protocol as two machines: the side that asks for blocks, and the side that has them.

A machine takes what came and returns effects, which its driver performs in order. It knows no sockets, clocks or
chains. What does not belong to the step that it is in is Invalid; the driver then ends the conversation with
``failure``. Spec: RFC-008, as kamu 0.265 speaks it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from chain.errors import Conflict, Fault, Invalid, Remote
from chain.multihash import Multihash
from chain.wording import plural
from odfd.smart import messages
from odfd.smart.messages import (
    Empty,
    Header,
    InternalError,
    InvalidInterval,
    ObjectFile,
    OpenPull,
    Phase,
    PullAnswer,
    PullFailure,
    PullObjects,
    PullPlan,
    PullStrategies,
    PullStrategy,
    TransferPlan,
    TransferUrl,
    decode,
    encode,
    hash_of,
)

INTERVAL: Final = "smart-interval"
FOLDERS: Final = {"DataSlice": "data", "Checkpoint": "checkpoints"}
"""Where an object of each type lies below the URL of its dataset, for the simple protocol."""
SHORT: Final = 40
"""Characters of a failure's text that fit into the reason of an end, which has room for 123 bytes."""
LONG: Final = 1000
"""Characters of it in an answer."""
BROKEN: Final = 1011
"""The code of an end by which kamu's client looks for a failure in its reason."""
DENIED: Final = 1008
"""The code where it would take a failure for a confirmation."""


class Say(NamedTuple):
    """Send a message."""

    text: str


class Bye(NamedTuple):
    """End the conversation, as all is done."""


class Fail(NamedTuple):
    """End the conversation, as it failed."""

    code: int
    reason: str


class Resolve(NamedTuple):
    """Find the blocks that are asked for; ``planned`` or ``no_interval`` is the answer."""

    begin_after: Multihash | None
    stop_at: Multihash | None
    is_forced: bool


class GiveBlocks(NamedTuple):
    """Send the blocks that were planned, as one message; ``given`` is the answer."""


class TakeBlocks(NamedTuple):
    """Read the next message as a batch of blocks, and stage them; ``taken`` is the answer."""

    plan: TransferPlan


class NoBlocks(NamedTuple):
    """Both sides have the same: there are no blocks to give."""


class ReadAt(NamedTuple):
    """Objects may be read so."""

    strategies: Sequence[PullStrategy]


ServerEffect: TypeAlias = Say | Resolve | GiveBlocks
ClientEffect: TypeAlias = Say | TakeBlocks | NoBlocks | ReadAt | Bye


class _Step(enum.Enum):
    REQUEST = "InitialRequest"
    PLAN = "InitialRequest "
    METADATA = "MetadataRequest"
    BLOCKS = "MetadataRequest "
    OBJECTS = "ObjectsRequest"
    OVER = "ObjectsRequest "


class PullServer:
    """The side that has the blocks. ``url``: of the dataset, with its last slash; ``headers``: to read objects with."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url
        self._headers = tuple(Header(name=name, value=value) for name, value in headers.items())
        self._step = _Step.REQUEST

    @property
    def limit(self) -> int:
        """Characters that the next message may have."""
        return messages.MAX_LIST if self._step is _Step.OBJECTS else messages.MAX_SMALL

    @property
    def is_idle(self) -> bool:
        """Whether the other side may be reading objects now, over other connections, for as long as it takes."""
        return self._step is _Step.OBJECTS

    @property
    def phase(self) -> Phase:
        return Phase(pull=self._step.value.strip())

    def receive(self, text: str) -> ServerEffect:
        """Raises Invalid."""
        if self._step is _Step.REQUEST:
            asked = decode(text, OpenPull)
            self._step = _Step.PLAN
            return Resolve(_optional(asked.begin_after), _optional(asked.stop_at), asked.force_update_if_diverged)
        if self._step is _Step.METADATA:
            decode(text, Empty)
            self._step = _Step.BLOCKS
            return GiveBlocks()
        if self._step is _Step.OBJECTS:
            asked_for = decode(text, PullObjects).object_files
            return Say(encode(PullStrategies(object_transfer_strategies=tuple(map(self._strategy, asked_for)))))
        raise Invalid("a message came before the answer to the one before", rule=messages.RULE)

    def planned(self, plan: TransferPlan) -> Say:
        self._step = _Step.METADATA
        return Say(encode(PullAnswer(ok=PullPlan(transfer_plan=plan))))

    def no_interval(self, head: Multihash, tail: Multihash) -> Say:
        """The other side may begin again, with another request, in another conversation."""
        self._step = _Step.OVER
        said = InvalidInterval(head=str(head), tail=str(tail))
        return Say(encode(PullAnswer(err=PullFailure(interval=said))))

    def given(self) -> None:
        self._step = _Step.OBJECTS

    def failure(self, fault: Fault) -> Say | Fail:
        """Tells a fault that the other side may know of: by an answer where one is due, else by the end's reason."""
        if self._step is _Step.PLAN:
            return Say(encode(PullAnswer(err=PullFailure(internal=internal(self.phase, fault, LONG)))))
        return Fail(BROKEN, encode(PullAnswer(err=PullFailure(internal=internal(self.phase, fault)))))

    def _strategy(self, file: ObjectFile) -> PullStrategy:
        url = f"{self._url}{FOLDERS[file.object_type]}/{hash_of(file.physical_hash)}"
        return PullStrategy(
            object_file=file, pull_strategy="HttpDownload", download_from=TransferUrl(url=url, headers=self._headers)
        )


class PullClient:
    """The side that asks for blocks."""

    def __init__(self) -> None:
        self._step = _Step.REQUEST
        self._asked: Sequence[ObjectFile] = ()
        self._is_waiting = False

    @property
    def limit(self) -> int:
        """Characters that the next message may have: a place of an object has room for its URL and headers."""
        return 4 * messages.MAX_LIST if self._step is _Step.OBJECTS else messages.MAX_SMALL

    def begin(self, begin_after: Multihash | None, stop_at: Multihash | None) -> Say:
        self._step = _Step.PLAN
        return Say(encode(OpenPull(begin_after=_text(begin_after), stop_at=_text(stop_at))))

    def receive(self, text: str) -> list[ClientEffect]:
        """Raises Invalid for what is no answer; Conflict, Remote for what the other side says."""
        if self._step is _Step.PLAN:
            answer = decode(text, PullAnswer)
            if answer.err is not None:
                raise _told(answer.err)
            assert answer.ok is not None
            plan = answer.ok.transfer_plan
            if not plan.num_blocks:
                self._step = _Step.OVER
                return [NoBlocks(), Bye()]
            self._step = _Step.BLOCKS
            return [Say(encode(Empty())), TakeBlocks(plan)]
        if self._step is _Step.OBJECTS and self._is_waiting:
            return [ReadAt(self._checked(decode(text, PullStrategies).object_transfer_strategies))]
        raise Invalid("a message came that nothing was asked for", rule=messages.RULE)

    def taken(self, plan: TransferPlan, count: int) -> None:
        """Raises Invalid for another number of blocks than was planned."""
        self._step = _Step.OBJECTS
        if count != plan.num_blocks:
            text = f"{plural(plan.num_blocks, 'block')} promised, and {count:,} came"
            raise Invalid(text, rule="smart-plan")

    def ask(self, files: Sequence[ObjectFile]) -> Say:
        """Asks where objects are read: once at a time, after the blocks."""
        assert self._step is _Step.OBJECTS
        assert not self._is_waiting
        self._asked, self._is_waiting = files, True
        return Say(encode(PullObjects(object_files=tuple(files))))

    def end(self) -> Bye:
        self._step = _Step.OVER
        return Bye()

    def closed(self, reason: str) -> Fault:
        """Returns the fault for an end that the other side made, with its reason."""
        try:
            answer = decode(reason, PullAnswer)
        except Invalid:
            return gone(self._step.value.strip(), reason)
        return _told(answer.err) if answer.err is not None else gone(self._step.value.strip(), "")

    def _checked(self, found: Sequence[PullStrategy]) -> Sequence[PullStrategy]:
        self._is_waiting = False
        check_same(self._asked, [each.object_file for each in found])
        return found


def check_same(asked: Sequence[ObjectFile], found: Sequence[ObjectFile]) -> None:
    """Raises Invalid where places of other objects come than were asked for."""
    if len(found) != len(asked) or _names(found) != _names(asked):
        raise Invalid("the places of other objects came than were asked for", rule="smart-objects")


def _names(files: Sequence[ObjectFile]) -> set[tuple[str, Multihash]]:
    return {(each.object_type, each.hash) for each in files}


def internal(phase: Phase, fault: Fault, room: int = SHORT) -> InternalError:
    """Makes the message of a failure: its rule, by which the meaning can be looked up, and its text, as far as it fits.

    What JSON would write in more than one byte is replaced.
    """
    told = f"{fault.rule}: {fault.message}" if fault.rule else fault.message
    if fault.hint:
        told = f"{told} ({fault.hint})"
    plain = told.replace('"', "'").replace("\\", "/").encode("ascii", "replace").decode()
    return InternalError(
        phase=phase, error_message="".join(each if each.isprintable() else " " for each in plain)[:room]
    )


def gone(step: str, reason: str) -> Remote:
    """Makes the fault for a conversation that ended before it was over."""
    told = f", saying {reason[:200]!r}" if reason else ""
    return Remote(
        f"the other side ended the transfer at the step {step}{told}", rule="smart-ended",
        hint="try again: what came is kept",
    )  # fmt: skip


def _told(failure: PullFailure) -> Fault:
    if failure.interval is not None:
        tail, head = failure.interval.tail[:160], failure.interval.head[:160]
        return Conflict(f"block {tail} does not come before {head} in the chain there", rule=INTERVAL)
    if failure.internal is not None:
        return failed(failure.internal)
    return Remote("the other side refuses to replace the first block of a dataset", rule="smart-seed")


def failed(error: InternalError) -> Remote:
    """Makes the fault for a failure of the other side."""
    text = f"the other side failed ({error.phase}): {error.error_message[:200]}"
    return Remote(text, rule="smart-failed", hint="try again later; its operator sees more in its log")


def _optional(text: str | None) -> Multihash | None:
    return None if text is None else hash_of(text)


def _text(name: Multihash | None) -> str | None:
    return None if name is None else str(name)
