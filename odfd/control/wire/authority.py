"""Defines values about authorities (who may sign for a dataset, drafts of a version) and keys that resume signing."""

from __future__ import annotations

from typing import Literal

import msgspec

from odfd.control.wire.value import Request, Value


class SignRequest(Request, frozen=True, kw_only=True):
    alone: bool = False
    """Whether to go on even if no listed peer can be asked what the keys have signed before."""


class SignerView(Value, frozen=True, kw_only=True):
    """A key with a new journal."""

    key: str
    dataset: str | None = None
    """Local name of the dataset whose key it is; ``null`` for the node's own."""
    said: int
    """Number of topics whose last statement is known: heads of datasets, verdicts, cosigned trees."""


class SigningView(Value, frozen=True, kw_only=True):
    """The result of a recovery; empty if no journal was lost."""

    begun: tuple[SignerView, ...] = ()
    peers: int = 0
    """Listed groups that reported what they know."""


class WriterView(Value, frozen=True, kw_only=True):
    key: str
    expires_at: str | None = None
    """Time until which it may sign; ``None``: the dataset's own key under version 0, without end."""
    mine: bool = False
    """Whether this node holds the key."""


class EpochView(Value, frozen=True, kw_only=True):
    number: int
    reason: str
    kept: int
    """Number of blocks kept of the epoch before."""
    ended: int
    """Number of blocks of the epoch before."""


class AuthorityView(Value, frozen=True, kw_only=True):
    """The newest known version of an authority."""

    ref: str
    dataset_id: str
    version: int
    threshold: int
    roots: tuple[str, ...]
    writers: tuple[WriterView, ...]
    epoch: int = 0
    epochs: tuple[EpochView, ...] = ()
    dataset_key: Literal["here", "offline", "elsewhere"]
    disputed: bool = False
    """Whether two statements of this version are known."""


class AuthorityDraftRequest(Request, frozen=True, kw_only=True):
    """The request of a draft; ``rotate``: this node's key becomes the only writer."""

    action: Literal["rotate", "add-writer", "remove-writer"]
    key: str | None = None
    days: int = 365
    """Days that an added writer may write; at most 400."""
    reason: Literal["rotation", "recovery", "fork"] = "rotation"
    """Reason that is stated for the epoch that ``rotate`` opens."""


class AuthorityDraft(Value, frozen=True, kw_only=True):
    """A version to be signed: Ed25519 over DSSE's encoding of ``payload``."""

    payload: str
    """The payload, in base64."""
    version: int
    roots: tuple[str, ...]
    """Keys whose signatures count; this node signs with those that it holds."""
    writers: tuple[WriterView, ...]
    opens: EpochView | None = None


class SignatureText(Request, frozen=True, kw_only=True):
    key: str
    signature: str
    """The signature, in base64."""


class AuthorityRequest(Request, frozen=True, kw_only=True):
    """An unchanged draft with signatures made elsewhere."""

    payload: str
    signatures: tuple[SignatureText, ...] = ()
    drop_key: bool = False
    """Whether to delete the dataset's key here once this is in force; it must be kept elsewhere by then."""


class DatasetKey(Value, frozen=True, kw_only=True):
    """The secret key of a dataset, for export to a file."""

    key: str
    seed: str = msgspec.field(default="")
    """The secret key, as 64 hexadecimal digits."""
