"""Defines the messages of kamu's smart transfer protocol, version 1: JSON texts, one a frame, parsed under limits.

Names and shapes are those that kamu 0.265 sends. Unknown fields are ignored, as kamu does. An answer is ``{"Ok": …}``
or ``{"Err": {KIND: …}}``. Blocks are in ``batches``. Pure. Spec: RFC-008.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

import msgspec

from chain.errors import Invalid
from chain.multihash import Multihash

VERSION: Final = 1
VERSION_HEADER: Final = "x-odf-smtp-version"
"""The header with the protocol's version, in each request of either side that belongs to the protocol."""
MAX_SMALL: Final = 64 << 10
"""Characters of a message without a list."""
MAX_LIST: Final = 16 << 20
"""Characters of a message that lists objects."""
MAX_OBJECTS: Final = 100_000
"""Objects in one message; a side that has more asks several times."""
MAX_HEADERS: Final = 16
MAX_URL: Final = 4096
RULE: Final = "smart-message"
M = TypeVar("M")

_Hash: TypeAlias = Annotated[str, msgspec.Meta(max_length=160)]
_Word: TypeAlias = Annotated[str, msgspec.Meta(max_length=64)]
_Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=4096)]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
ObjectType: TypeAlias = Literal["DataSlice", "Checkpoint"]
Visibility: TypeAlias = Literal["Private", "Public"]


class _Message(msgspec.Struct, frozen=True, kw_only=True):
    """The base of messages whose fields are always written, ``null`` included."""


class _OneOf(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The base of messages that are an object with exactly one member."""

    def __post_init__(self) -> None:
        if sum(getattr(self, name) is not None for name in self.__struct_fields__) != 1:
            names = ", ".join(self.__struct_encode_fields__)
            raise ValueError(f"expected exactly one of {names}")


class Empty(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An object without members: a request, a confirmation or a question for progress, depending on the step.

    It may have no members: kamu ignores unknown ones, and so would take a failure for a confirmation.
    """


class Phase(_OneOf, frozen=True, kw_only=True):
    """The step of a transfer in which it failed."""

    pull: _Word | None = msgspec.field(default=None, name="Pull")
    push: _Word | None = msgspec.field(default=None, name="Push")

    def __str__(self) -> str:
        return f"pull, {self.pull}" if self.pull is not None else f"push, {self.push}"


class InternalError(_Message, frozen=True, kw_only=True):
    """A failure that the protocol has no name for."""

    phase: Phase
    error_message: _Text


class TransferPlan(_Message, frozen=True, kw_only=True):
    """The estimated amounts of a transfer; bytes are those of the files."""

    num_blocks: _Count
    num_objects: _Count
    num_records: _Count
    bytes_in_raw_blocks: _Count
    bytes_in_raw_objects: _Count


class ObjectFile(_Message, frozen=True, kw_only=True):
    """A slice or a checkpoint, by its hash and its size in bytes."""

    object_type: ObjectType
    physical_hash: _Hash
    size: _Count

    @property
    def hash(self) -> Multihash:
        """Parses the hash. Raises Invalid."""
        return Multihash.parse(self.physical_hash)


class Header(_Message, frozen=True, kw_only=True):
    """A header of an HTTP request."""

    name: Annotated[str, msgspec.Meta(max_length=256)]
    value: _Text


class TransferUrl(_Message, frozen=True, kw_only=True):
    """The HTTP request that transfers an object. ``expires_at``: RFC 3339, until when it is answered."""

    url: Annotated[str, msgspec.Meta(max_length=MAX_URL)]
    headers: Annotated[tuple[Header, ...], msgspec.Meta(max_length=MAX_HEADERS)] = ()
    expires_at: _Word | None = None


_Objects: TypeAlias = Annotated[tuple[ObjectFile, ...], msgspec.Meta(max_length=MAX_OBJECTS)]


class OpenPull(_Message, frozen=True, kw_only=True):
    """Opens a pull of the blocks after one (``null``: all) up to another (``null``: the head)."""

    begin_after: _Hash | None = None
    stop_at: _Hash | None = None
    force_update_if_diverged: bool = False
    """Whether all blocks are wanted if the first one named is not in the chain."""


class InvalidInterval(_Message, frozen=True, kw_only=True):
    """One of the two blocks does not follow the other in this chain."""

    head: _Hash
    tail: _Hash


class PullFailure(_OneOf, frozen=True, kw_only=True):
    seed: Empty | None = msgspec.field(default=None, name="SeedBlockOverwriteRestricted")
    internal: InternalError | None = msgspec.field(default=None, name="Internal")
    interval: InvalidInterval | None = msgspec.field(default=None, name="InvalidInterval")


class PullPlan(_Message, frozen=True, kw_only=True):
    transfer_plan: TransferPlan


class PullAnswer(_OneOf, frozen=True, kw_only=True):
    """Answers ``OpenPull``; ``Empty`` then asks for the blocks."""

    ok: PullPlan | None = msgspec.field(default=None, name="Ok")
    err: PullFailure | None = msgspec.field(default=None, name="Err")


class PullObjects(_Message, frozen=True, kw_only=True):
    """Asks where objects can be read."""

    object_files: _Objects


class PullStrategy(_Message, frozen=True, kw_only=True):
    object_file: ObjectFile
    pull_strategy: Literal["HttpDownload"]
    download_from: TransferUrl


class PullStrategies(_Message, frozen=True, kw_only=True):
    """Answers ``PullObjects``."""

    object_transfer_strategies: Annotated[tuple[PullStrategy, ...], msgspec.Meta(max_length=MAX_OBJECTS)]


class OpenPush(_Message, frozen=True, kw_only=True):
    """Opens a push. ``current_head``: the head that the sender believes the other side has; ``null``: no dataset."""

    current_head: _Hash | None = None
    transfer_plan: TransferPlan
    force_update_if_diverged: bool = False
    visibility_for_created_dataset: Visibility = "Private"


class InvalidHead(_Message, frozen=True, kw_only=True):
    """The head is another one. ``actual_head``: the head that the sender believed; ``expected_head``: the real one."""

    actual_head: _Hash | None = None
    expected_head: _Hash | None = None


class RefCollision(_Message, frozen=True, kw_only=True):
    """The dataset exists there under another name."""

    dataset_id: _Text


class NameCollision(_Message, frozen=True, kw_only=True):
    """The name belongs to another dataset there."""

    dataset_alias: _Text


class PushFailure(_OneOf, frozen=True, kw_only=True):
    """All failures of a push, in whichever of its answers they come."""

    seed: Empty | None = msgspec.field(default=None, name="SeedBlockOverwriteRestricted")
    internal: InternalError | None = msgspec.field(default=None, name="Internal")
    head: InvalidHead | None = msgspec.field(default=None, name="InvalidHead")
    reference: RefCollision | None = msgspec.field(default=None, name="RefCollision")
    name: NameCollision | None = msgspec.field(default=None, name="NameCollision")


class PushAnswer(_OneOf, frozen=True, kw_only=True):
    """Answers ``OpenPush``, and later the blocks."""

    ok: Empty | None = msgspec.field(default=None, name="Ok")
    err: PushFailure | None = msgspec.field(default=None, name="Err")


class PushObjects(_Message, frozen=True, kw_only=True):
    """Asks where objects can be written. ``is_truncated``: another such message follows once these are uploaded."""

    object_files: _Objects
    is_truncated: bool


class PushStrategy(_Message, frozen=True, kw_only=True):
    object_file: ObjectFile
    push_strategy: Literal["SkipUpload", "HttpUpload"]
    upload_to: TransferUrl | None = None


class PushStrategies(_Message, frozen=True, kw_only=True):
    object_transfer_strategies: Annotated[tuple[PushStrategy, ...], msgspec.Meta(max_length=MAX_OBJECTS)]


class PushObjectsAnswer(_OneOf, frozen=True, kw_only=True):
    """Answers ``PushObjects``."""

    ok: PushStrategies | None = msgspec.field(default=None, name="Ok")
    err: PushFailure | None = msgspec.field(default=None, name="Err")


class UploadedCount(_Message, frozen=True, kw_only=True):
    uploaded_objects_count: _Count


class Running(_Message, frozen=True, kw_only=True):
    running: UploadedCount = msgspec.field(name="Running")


class UploadProgress(_Message, frozen=True, kw_only=True):
    """Reports the state of the uploads: in answer to ``Empty`` while they run, and unasked when they are done."""

    details: Running | Literal["Complete"]


def decode(text: str, kind: type[M]) -> M:
    """Parses a message of a kind. Raises Invalid."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        reason = str(error)[:200]
        raise Invalid(f"not a {kind.__name__} of the smart transfer protocol: {reason}", rule=RULE) from None


def encode(message: Any) -> str:
    return msgspec.json.encode(message).decode()


def hash_of(text: str) -> Multihash:
    """Parses a hash of a message. Raises Invalid."""
    return Multihash.parse(text)
