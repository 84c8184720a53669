"""Values about datasets published on IPFS, or made public to other nodes."""

from __future__ import annotations

from odfd.control.wire.value import Request, Value


class VisibilityRequest(Request, frozen=True, kw_only=True):
    """Either ``refs`` or ``all``."""

    refs: tuple[str, ...] = ()
    all: bool = False
    """Every dataset that is here now."""


class VisibilityView(Value, frozen=True, kw_only=True):
    """What became of one dataset."""

    name: str
    id: str
    published: bool
    """Whether anything of it is said or given to others."""
    changed: bool
    notes: tuple[str, ...] = ()
    """What is to know beside, for people."""


class PublishRequest(Request, frozen=True, kw_only=True):
    ref: str
    once: bool = False
    """Do not keep it up to date."""
    delegation: str | None = None
    """Base64 of an IPNS record, signed by the dataset's own key, that points to the name this node signs."""


class PublicationView(Value, frozen=True, kw_only=True):
    """Result of the task ``publish``: what is on IPFS, and what was added just now."""

    ref: str
    dataset_id: str
    root: str
    """``/ipfs/CID`` of the folder."""
    name: str | None = None
    """IPNS name that points to it, of the key that signs here; ``None``: somebody else's dataset."""
    home: str
    """The name that is made of the dataset's own key: where others look."""
    head: str
    blocks: int
    at: str
    """When it was published or its record renewed."""
    expires: str | None = None
    """Until when the name is found while nobody renews it."""
    standing: bool = True
    """It is kept up to date."""
    added_blocks: int = 0
    added_objects: int = 0
    added_bytes: int = 0
    message: str = ""
    """Why it is not up to date."""
