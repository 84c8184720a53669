"""Which commands there are, what each is for, and which module knows it. What is not here is not in the help."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    help: str
    module: str
    """Has ``register(subparsers)``; a parser sets ``run``, a function from arguments to exit code."""
    offline: bool = False
    """Works with no daemon."""


@dataclass(frozen=True, slots=True)
class Group:
    title: str
    entries: tuple[Entry, ...]


_HERE: Final = "odfd.cli.commands."
_OFFLINE: Final = "odfd.cli.offline."
GROUPS: Final = (
    Group(
        "The node",
        (
            Entry("status", "who this node is, its peers, datasets, engine and disk", _HERE + "node"),
            Entry("doctor", "try everything the node stands on, and say what to mend", _HERE + "node"),
            Entry("watch", "what happens, as it happens", _HERE + "node"),
            Entry("gc", "free the disk of what nobody names any more", _HERE + "rewriting"),
        ),
    ),
    Group(
        "Resources",
        (
            Entry("apply", "make it so: manifests in, what was created or updated out", _HERE + "apply"),
            Entry("get", "list datasets, mirrors, networks, peers, validators or tasks", _HERE + "resources"),
            Entry("describe", "all there is to know of one of them", _HERE + "resources"),
            Entry("delete", "remove one of them; a task is cancelled", _HERE + "resources"),
            Entry("rename", "call a dataset something else on this node", _HERE + "resources"),
            Entry("wait", "until something is so", _HERE + "wait"),
        ),
    ),
    Group(
        "Datasets",
        (
            Entry("log", "blocks of a dataset, newest first", _HERE + "reading"),
            Entry("tail", "last records of a dataset", _HERE + "reading"),
            Entry("schema", "columns of a dataset and their types", _HERE + "reading"),
            Entry("lineage", "where a dataset or a record came from, down to the first ingest", _HERE + "lineage"),
            Entry("ingest", "push files or standard input into a dataset", _HERE + "flow"),
            Entry("watermark", "say that nothing older will come into a root", _HERE + "watermark"),
            Entry("correct", "give a row of a ledger other values, or take it back", _HERE + "correct"),
            Entry("pull", "bring up to date: poll the source, run the transform, sync the mirror", _HERE + "flow"),
            Entry("reset", "make an earlier block the head", _HERE + "rewriting"),
            Entry("compact", "merge small slices, or keep metadata alone", _HERE + "rewriting"),
            Entry("export", "write a dataset as a directory in the ODF layout", _HERE + "flow"),
            Entry("import", "take in a dataset from a directory in the ODF layout", _HERE + "flow"),
        ),
    ),
    Group(
        "Others",
        (
            Entry("network", "join and leave networks, see what is announced there", _HERE + "network"),
            Entry("mirror", "hold datasets of others, verified as they arrive", _HERE + "mirror"),
            Entry("publish", "let others see and take datasets", _HERE + "publishing"),
            Entry("unpublish", "say and give no more of them", _HERE + "publishing"),
            Entry("peer", "see, connect and block peers", _HERE + "peer"),
            Entry("ipfs", "publish datasets on IPFS", _HERE + "ipfs"),
        ),
    ),
    Group(
        "Truth",
        (
            Entry("verify", "check a dataset or a directory (†), now, by this machine itself", _HERE + "verify"),
            Entry("engine", "prove that another engine gives the same, and take it", _HERE + "engine"),
            Entry("trust", "how far a dataset may be relied on, and who says so", _HERE + "trust"),
        ),
    ),
    Group(
        "Files (†: no daemon needed)",
        (
            Entry("block", "show, hash and encode blocks of metadata †", _OFFLINE + "block", offline=True),
            Entry("data", "show and hash slices of data †", _OFFLINE + "data", offline=True),
            Entry("completions", "completions for bash, zsh or fish †", _HERE + "completions", offline=True),
        ),
    ),
)


def entries() -> dict[str, Entry]:
    return {entry.name: entry for group in GROUPS for entry in group.entries}


def load(entry: Entry, subparsers: Any) -> None:
    """Let the entry's module add its parsers."""
    importlib.import_module(entry.module).register(subparsers)
