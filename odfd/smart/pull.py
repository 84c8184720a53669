"""Implements a pull by the smart protocol as two machines: the side that asks for blocks, and the side that has them.

A machine takes each message and returns effects, which its driver performs in order. It uses no sockets, clocks or
chains. A message that does not belong to the present step is Invalid; the driver then ends the conversation with
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
"""The folder of objects of each type below the URL of their dataset, in the simple protocol."""
SHORT: Final = 40
"""Characters of a failure's text that fit into the reason of a close frame, which has room for 123 bytes."""
LONG: Final = 1000
"""Characters of a failure's text in an answer."""
BROKEN: Final = 1011
"""Close code with which kamu's client looks for a failure in the reason."""
DENIED: Final = 1008
"""Close code for failures that kamu's client would otherwise take for a confirmation."""


class Say(NamedTuple):
    """Effect: send a message."""

    text: str


class Bye(NamedTuple):
    """Effect: end the conversation, which succeeded."""


class Fail(NamedTuple):
    """Effect: end the conversation, which failed."""

    code: int
    reason: str


class Resolve(NamedTuple):
    """Effect: find the requested blocks; the driver answers with ``planned`` or ``no_interval``."""

    begin_after: Multihash | None
    stop_at: Multihash | None
    is_forced: bool


class GiveBlocks(NamedTuple):
    """Effect: send the planned blocks as one message; the driver answers with ``given``."""


class TakeBlocks(NamedTuple):
    """Effect: read the next message as a batch of blocks, and stage them; the driver answers with ``taken``."""

    plan: TransferPlan


class NoBlocks(NamedTuple):
    """Effect: both sides have the same blocks, so there are none to send."""


class ReadAt(NamedTuple):
    """Effect: objects can be read by these requests."""

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
    """The side of a pull that has the blocks.
    ``url``: of the dataset, with its last slash; ``headers``: to read objects with."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url
        self._headers = tuple(Header(name=name, value=value) for name, value in headers.items())
        self._step = _Step.REQUEST

    @property
    def limit(self) -> int:
        """The most characters that the next message may have."""
        return messages.MAX_LIST if self._step is _Step.OBJECTS else messages.MAX_SMALL

    @property
    def is_idle(self) -> bool:
        """Whether the other side may be reading objects over other connections now, which may take any time."""
        return self._step is _Step.OBJECTS

    @property
    def phase(self) -> Phase:
        return Phase(pull=self._step.value.strip())

    def receive(self, text: str) -> ServerEffect:
        """Takes a message, and returns what to do. Raises Invalid."""
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
        raise Invalid("a message was received before the answer to the previous one", rule=messages.RULE)

    def answer_plan(self, plan: TransferPlan) -> Say:
        self._step = _Step.METADATA
        return Say(encode(PullAnswer(ok=PullPlan(transfer_plan=plan))))

    def no_interval(self, head: Multihash, tail: Multihash) -> Say:
        """Returns the answer that the interval does not exist; the other side may begin again in a new conversation."""
        self._step = _Step.OVER
        said = InvalidInterval(head=str(head), tail=str(tail))
        return Say(encode(PullAnswer(err=PullFailure(interval=said))))

    def end_metadata(self) -> None:
        self._step = _Step.OBJECTS

    def failure(self, fault: Fault) -> Say | Fail:
        """Returns how to report a fault to the other side:
        in an answer if one is due, else in the reason of the close frame."""
        if self._step is _Step.PLAN:
            return Say(encode(PullAnswer(err=PullFailure(internal=internal(self.phase, fault, LONG)))))
        return Fail(BROKEN, encode(PullAnswer(err=PullFailure(internal=internal(self.phase, fault)))))

    def _strategy(self, file: ObjectFile) -> PullStrategy:
        url = f"{self._url}{FOLDERS[file.object_type]}/{hash_of(file.physical_hash)}"
        return PullStrategy(
            object_file=file, pull_strategy="HttpDownload", download_from=TransferUrl(url=url, headers=self._headers)
        )


class PullClient:
    """The side of a pull that asks for blocks."""

    def __init__(self) -> None:
        self._step = _Step.REQUEST
        self._asked: Sequence[ObjectFile] = ()
        self._is_waiting = False

    @property
    def limit(self) -> int:
        """The most characters that the next message may have; each object's place has room for its URL and headers."""
        return 4 * messages.MAX_LIST if self._step is _Step.OBJECTS else messages.MAX_SMALL

    def begin(self, begin_after: Multihash | None, stop_at: Multihash | None) -> Say:
        self._step = _Step.PLAN
        return Say(encode(OpenPull(begin_after=_text(begin_after), stop_at=_text(stop_at))))

    def receive(self, text: str) -> list[ClientEffect]:
        """Takes a message, and returns what to do.
        Raises Invalid if it is no answer; Conflict, Remote for a reported failure."""
        if self._step is _Step.PLAN:
            answer = decode(text, PullAnswer)
            if answer.err is not None:
                raise _to_fault(answer.err)
            assert answer.ok is not None
            plan = answer.ok.transfer_plan
            if not plan.num_blocks:
                self._step = _Step.OVER
                return [NoBlocks(), Bye()]
            self._step = _Step.BLOCKS
            return [Say(encode(Empty())), TakeBlocks(plan)]
        if self._step is _Step.OBJECTS and self._is_waiting:
            return [ReadAt(self._check(decode(text, PullStrategies).object_transfer_strategies))]
        raise Invalid("a message was received that was not requested", rule=messages.RULE)

    def note_taken(self, plan: TransferPlan, count: int) -> None:
        """Notes that blocks were staged. Raises Invalid if their number is not the planned one."""
        self._step = _Step.OBJECTS
        if count != plan.num_blocks:
            text = f"{plural(plan.num_blocks, 'block')} promised, and {count:,} came"
            raise Invalid(text, rule="smart-plan")

    def ask(self, files: Sequence[ObjectFile]) -> Say:
        """Asks where objects can be read; one question at a time, after the blocks."""
        assert self._step is _Step.OBJECTS
        assert not self._is_waiting
        self._asked, self._is_waiting = files, True
        return Say(encode(PullObjects(object_files=tuple(files))))

    def end(self) -> Bye:
        self._step = _Step.OVER
        return Bye()

    def fault_of_close(self, reason: str) -> Fault:
        """Returns the fault for a close by the other side, given its reason."""
        try:
            answer = decode(reason, PullAnswer)
        except Invalid:
            return ended_early(self._step.value.strip(), reason)
        return _to_fault(answer.err) if answer.err is not None else ended_early(self._step.value.strip(), "")

    def _check(self, found: Sequence[PullStrategy]) -> Sequence[PullStrategy]:
        self._is_waiting = False
        check_same(self._asked, [each.object_file for each in found])
        return found


def check_same(asked: Sequence[ObjectFile], found: Sequence[ObjectFile]) -> None:
    """Raises Invalid if the answered places are for other objects than were asked for."""
    if len(found) != len(asked) or _names(found) != _names(asked):
        raise Invalid("the server returned URLs for other objects than requested", rule="smart-objects")


def _names(files: Sequence[ObjectFile]) -> set[tuple[str, Multihash]]:
    return {(file.object_type, file.hash) for file in files}


def internal(phase: Phase, fault: Fault, room: int = SHORT) -> InternalError:
    """Makes the message of a failure: its rule, by which the meaning can be looked up, and as much of its text as fits.

    Characters that JSON would write in more than one byte are replaced.
    """
    told = f"{fault.rule}: {fault.message}" if fault.rule else fault.message
    if fault.hint:
        told = f"{told} ({fault.hint})"
    plain = told.replace('"', "'").replace("\\", "/").encode("ascii", "replace").decode()
    return InternalError(
        phase=phase, error_message="".join(each if each.isprintable() else " " for each in plain)[:room]
    )


def ended_early(step: str, reason: str) -> Remote:
    """Makes the fault for a conversation that ended too early."""
    told = f", saying {reason[:200]!r}" if reason else ""
    return Remote(
        f"the other side ended the transfer at the step {step}{told}",
        rule="smart-ended",
        hint="try again: the received bytes are kept",
    )


def _to_fault(failure: PullFailure) -> Fault:
    if failure.interval is not None:
        tail, head = failure.interval.tail[:160], failure.interval.head[:160]
        return Conflict(f"block {tail} does not come before {head} in the chain there", rule=INTERVAL)
    if failure.internal is not None:
        return failed_there(failure.internal)
    return Remote("the other side refuses to replace the first block of a dataset", rule="smart-seed")


def failed_there(error: InternalError) -> Remote:
    """Makes the fault for a failure that the other side reported."""
    text = f"the other side failed ({error.phase}): {error.error_message[:200]}"
    return Remote(text, rule="smart-failed", hint="try again later; its operator sees more in its log")


def _optional(text: str | None) -> Multihash | None:
    return None if text is None else hash_of(text)


def _text(name: Multihash | None) -> str | None:
    return None if name is None else str(name)
