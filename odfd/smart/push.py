"""Implements a push by the smart protocol as two machines: the side that gives a chain, and the side that takes it.

The taker checks the head, then takes blocks, then the objects that it lacks, and moves its head last. A machine takes
each message and returns effects, which its driver performs in order. Spec: RFC-008, as kamu 0.265 speaks it: a question
for progress and the final confirmation look the same, so when a message may be either, the giver asks for the head.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from chain.errors import Conflict, Fault, Invalid, Remote
from chain.multihash import Multihash
from chain.wording import plural
from odfd.smart import messages
from odfd.smart.messages import (
    Empty,
    Header,
    InvalidHead,
    ObjectFile,
    OpenPush,
    Phase,
    PushAnswer,
    PushFailure,
    PushObjects,
    PushObjectsAnswer,
    PushStrategies,
    PushStrategy,
    Running,
    TransferPlan,
    TransferUrl,
    UploadedCount,
    UploadProgress,
    decode,
    encode,
    hash_of,
)
from odfd.smart.pull import (
    BROKEN,
    DENIED,
    FOLDERS,
    LONG,
    Bye,
    Fail,
    GiveBlocks,
    Say,
    TakeBlocks,
    check_same,
    ended_early,
    failed_there,
    internal,
)

RACED: Final = "compare-and-append"
TICK_SECONDS: Final = 10.0
"""Seconds between two questions for progress, while the other side uploads."""


class CheckHead(NamedTuple):
    """Effect: find the head; the driver answers with ``head_is``."""

    plan: TransferPlan
    is_forced: bool


class Negotiate(NamedTuple):
    """Effect: find out which of these objects are missing, and expect their uploads;
    the driver answers with ``lacking``."""

    files: Sequence[ObjectFile]


class Wait(NamedTuple):
    """Effect: wait for the next message."""


class CommitStaged(NamedTuple):
    """Effect: verify what is staged, and move the head; the driver answers with ``committed``."""


class NextObjects(NamedTuple):
    """Effect: name the next objects; the driver answers with ``objects``."""


class UploadObjects(NamedTuple):
    """Effect: upload these objects, calling ``uploaded`` for each, and then ``upload_over``."""

    strategies: Sequence[PushStrategy]


class LookAtHead(NamedTuple):
    """Effect: ask for the head of the other side; the driver answers with ``head_seen``."""


ServerEffect: TypeAlias = Say | CheckHead | TakeBlocks | Negotiate | Wait | CommitStaged
ClientEffect: TypeAlias = Say | GiveBlocks | NextObjects | UploadObjects | LookAtHead | Wait | Bye


class _Step(enum.Enum):
    REQUEST = "InitialRequest"
    HEAD = "InitialRequest "
    BLOCKS = "MetadataRequest"
    OBJECTS = "ObjectsRequest"
    PLACES = "ObjectsRequest "
    UPLOADS = "ObjectsUploadProgress"
    COMPLETE = "CompleteRequest"
    COMMIT = "CompleteRequest "
    OVER = "CompleteRequest  "


class PushServer:
    """The side of a push that takes a chain.
    ``url``: of the dataset, with its last slash; ``headers``: to upload with."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url
        self._headers = tuple(Header(name=name, value=value) for name, value in headers.items())
        self._step = _Step.REQUEST
        self._request: OpenPush | None = None
        self._files: Sequence[ObjectFile] = ()
        self._is_truncated = False

    @property
    def limit(self) -> int:
        """The most characters that the next message may have."""
        return messages.MAX_LIST if self._step is _Step.OBJECTS else messages.MAX_SMALL

    @property
    def is_asking(self) -> bool:
        """Whether to ask for progress at intervals."""
        return self._step is _Step.UPLOADS

    @property
    def phase(self) -> Phase:
        return Phase(push=self._step.value.strip())

    def receive(self, text: str) -> ServerEffect:
        """Takes a message, and returns what to do. Raises Invalid."""
        match self._step:
            case _Step.REQUEST:
                self._request = decode(text, OpenPush)
                self._step = _Step.HEAD
                return CheckHead(self._request.transfer_plan, self._request.force_update_if_diverged)
            case _Step.OBJECTS:
                asked = decode(text, PushObjects)
                for file in asked.object_files:
                    hash_of(file.physical_hash)
                self._files, self._is_truncated, self._step = asked.object_files, asked.is_truncated, _Step.PLACES
                return Negotiate(self._files)
            case _Step.UPLOADS:
                if decode(text, UploadProgress).details == "Complete":
                    self._step = _Step.OBJECTS if self._is_truncated else _Step.COMPLETE
                return Wait()
            case _Step.COMPLETE:
                decode(text, Empty)
                self._step = _Step.COMMIT
                return CommitStaged()
        raise Invalid("a message was received before the answer to the previous one", rule=messages.RULE)

    def head_is(self, actual: Multihash | None) -> list[ServerEffect]:
        """Continues if the other side named this head; otherwise answers which head it is."""
        assert self._request is not None
        believed = self._request.current_head
        if (None if believed is None else hash_of(believed)) != actual:
            self._step = _Step.OVER
            said = InvalidHead(actual_head=believed, expected_head=None if actual is None else str(actual))
            return [Say(encode(PushAnswer(err=PushFailure(head=said))))]
        self._step = _Step.BLOCKS
        return [Say(encode(PushAnswer(ok=Empty()))), TakeBlocks(self._request.transfer_plan)]

    def note_taken(self, count: int) -> Say:
        """Notes that blocks were staged. Raises Invalid if their number is not the planned one."""
        assert self._request is not None
        planned = self._request.transfer_plan.num_blocks
        if count != planned:
            raise Invalid(f"{plural(planned, 'block')} promised, and {count:,} came", rule="smart-plan")
        self._step = _Step.OBJECTS if count else _Step.COMPLETE
        return Say(encode(PushAnswer(ok=Empty())))

    def lacking(self, names: Collection[Multihash]) -> Say:
        """Answers with the places for the missing objects, ``names``."""
        self._step = _Step.UPLOADS
        found = tuple(self._strategy(file, is_lacking=file.hash in names) for file in self._files)
        self._files = ()
        return Say(encode(PushObjectsAnswer(ok=PushStrategies(object_transfer_strategies=found))))

    def tick(self) -> Say:
        """Asks for progress, which also shows that both sides are there."""
        return Say(encode(Empty()))

    def note_commit(self) -> Say:
        self._step = _Step.OVER
        return Say(encode(Empty()))

    @property
    def is_over(self) -> bool:
        return self._step is _Step.OVER

    def failure(self, fault: Fault) -> Say | Fail:
        """Returns how to report a fault to the other side:
        in an answer if one is due, else in the reason of the close frame."""
        if self._step in (_Step.HEAD, _Step.BLOCKS, _Step.PLACES):
            return Say(encode(PushAnswer(err=PushFailure(internal=internal(self.phase, fault, LONG)))))
        said = encode(PushAnswer(err=PushFailure(internal=internal(self.phase, fault))))
        return Fail(DENIED if self._step is _Step.COMMIT else BROKEN, said)

    def _strategy(self, file: ObjectFile, *, is_lacking: bool) -> PushStrategy:
        if not is_lacking:
            return PushStrategy(object_file=file, push_strategy="SkipUpload")
        place = TransferUrl(url=f"{self._url}{FOLDERS[file.object_type]}/{file.hash}", headers=self._headers)
        return PushStrategy(object_file=file, push_strategy="HttpUpload", upload_to=place)


class PushClient:
    """The side of a push that gives a chain."""

    def __init__(self) -> None:
        self._step = _Step.REQUEST
        self._asked: Sequence[ObjectFile] = ()
        self._is_last = False
        self._uploaded = 0

    @property
    def limit(self) -> int:
        """The most characters that a message may have;
        the same in all steps, as the step may change while one is awaited."""
        return messages.MAX_LIST

    @property
    def is_committing(self) -> bool:
        """Whether the other side is verifying now, which may take long."""
        return self._step in (_Step.BLOCKS, _Step.COMMIT)

    def begin(self, current_head: Multihash | None, plan: TransferPlan) -> Say:
        """Opens the push. ``current_head``: the head of the other side; ``plan``: the amounts that it lacks."""
        self._step = _Step.HEAD
        head = None if current_head is None else str(current_head)
        return Say(encode(OpenPush(current_head=head, transfer_plan=plan)))

    def receive(self, text: str) -> ClientEffect:
        """Takes a message, and returns what to do.
        Raises Invalid if it is no answer; Conflict, Remote for a reported failure."""
        step: Mapping[_Step, Callable[[str], ClientEffect]] = {
            _Step.HEAD: self._accept,
            _Step.BLOCKS: self._stage,
            _Step.PLACES: self._place,
            _Step.UPLOADS: self._asked_for_progress,
            _Step.COMMIT: self._confirm,
        }
        if self._step not in step:
            if self._step is _Step.OBJECTS:  # a question for progress that crossed the end of the uploads
                decode(text, Empty)
                return Wait()
            raise Invalid("a message was received that was not requested", rule=messages.RULE)
        return step[self._step](text)

    def objects(self, files: Sequence[ObjectFile], *, is_last: bool) -> Say:
        self._asked, self._is_last, self._step = files, is_last, _Step.PLACES
        return Say(encode(PushObjects(object_files=tuple(files), is_truncated=not is_last)))

    def note_upload(self) -> None:
        self._uploaded += 1

    def upload_over(self) -> list[ClientEffect]:
        complete = Say(encode(UploadProgress(details="Complete")))
        if not self._is_last:
            self._step = _Step.OBJECTS
            return [complete, NextObjects()]
        self._step = _Step.COMMIT
        return [complete, Say(encode(Empty()))]

    def head_seen(self, *, is_ours: bool) -> Bye | Wait:
        """Decides what the last message was: the confirmation if the head is ours now, else a question for progress."""
        return Bye() if is_ours else Wait()

    def fault_of_close(self, reason: str) -> Fault:
        """Returns the fault for a close by the other side, given its reason."""
        try:
            answer = decode(reason, PushAnswer)
        except Invalid:
            return ended_early(self._step.value.strip(), reason)
        return _to_fault(answer.err) if answer.err is not None else ended_early(self._step.value.strip(), "")

    def _accept(self, text: str) -> ClientEffect:
        _ok(decode(text, PushAnswer))
        self._step = _Step.BLOCKS
        return GiveBlocks()

    def _stage(self, text: str) -> ClientEffect:
        _ok(decode(text, PushAnswer))
        self._step = _Step.OBJECTS
        return NextObjects()

    def _place(self, text: str) -> ClientEffect:
        if "object_transfer_strategies" not in text and text.strip() == "{}":
            return Wait()  # a question for progress that crossed ours
        answer = decode(text, PushObjectsAnswer)
        if answer.err is not None:
            raise _to_fault(answer.err)
        assert answer.ok is not None
        found = answer.ok.object_transfer_strategies
        check_same(self._asked, [each.object_file for each in found])
        if any(each.push_strategy == "HttpUpload" and each.upload_to is None for each in found):
            raise Invalid("the server requested an object without an upload URL", rule="smart-objects")
        self._asked, self._step = (), _Step.UPLOADS
        return UploadObjects(found)

    def _asked_for_progress(self, text: str) -> ClientEffect:
        decode(text, Empty)
        return Say(
            encode(UploadProgress(details=Running(running=UploadedCount(uploaded_objects_count=self._uploaded))))
        )

    def _confirm(self, text: str) -> ClientEffect:
        decode(text, Empty)
        return LookAtHead()


def _ok(answer: PushAnswer) -> None:
    if answer.err is not None:
        raise _to_fault(answer.err)


def _to_fault(failure: PushFailure) -> Fault:
    if failure.head is not None:
        there = failure.head.expected_head
        return Conflict(f"its head is {'gone' if there is None else there[:160]} now", rule=RACED)
    if failure.internal is not None:
        if failure.internal.error_message.startswith((RACED, "import-diverged", "import-behind")):
            return Conflict("its head moved while the push was under way", rule=RACED)
        return failed_there(failure.internal)
    if failure.reference is not None:
        text = f"the dataset {failure.reference.dataset_id[:120]} is there under another name"
        return Remote(text, rule="smart-collision", hint="push to that name: --to REPOSITORY/NAME")
    if failure.name is not None:
        text = f"{failure.name.dataset_alias[:120]} is the name of another dataset there"
        return Remote(text, rule="smart-collision", hint="push under another name: --to REPOSITORY/NAME")
    return Conflict("another dataset has the name there: its first block would be replaced", rule="export-diverged")
