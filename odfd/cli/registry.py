"""Lists the commands of ``odfctl``: their groups, help texts and modules. A command that is not listed has no help."""

from __future__ import annotations

import importlib
from typing import Final, NamedTuple

from odfd.cli.command import Subparsers


class CommandEntry(NamedTuple):
    """A command of ``odfctl`` with its help text and module."""

    name: str
    help: str
    module: str
    """The module whose ``commands`` declare the command."""


class CommandGroup(NamedTuple):
    """Commands that help lists under one title."""

    title: str
    entries: tuple[CommandEntry, ...]


_HERE: Final = "odfd.cli.commands."
_OFFLINE: Final = "odfd.cli.offline."
GROUPS: Final = (
    CommandGroup(
        "The node",
        (
            CommandEntry("status", "who this node is, its peers, datasets, engine and disk", _HERE + "node"),
            CommandEntry("doctor", "check everything that the node depends on, and say what to repair", _HERE + "node"),
            CommandEntry("watch", "print events as they happen", _HERE + "node"),
            CommandEntry("top", "a live view on a terminal: tasks, mirrors, peers, rates", _HERE + "top"),
            CommandEntry("ui", "the web UI of the node, in a browser", _HERE + "page"),
            CommandEntry("backup", "back up the running node into a folder", _HERE + "node"),
            CommandEntry("support", "write a bundle for support, without secrets", _HERE + "support"),
            CommandEntry("gc", "free the disk of objects that no block names", _HERE + "node"),
        ),
    ),
    CommandGroup(
        "Resources",
        (
            CommandEntry("apply", "create and update resources as manifests say", _HERE + "apply"),
            CommandEntry("edit", "change a resource in an editor", _HERE + "edit"),
            CommandEntry("types", "list the types of resources", _HERE + "explain"),
            CommandEntry("explain", "describe the fields of a type, or what a rule means (†)", _HERE + "explain"),
            CommandEntry("get", "list datasets, flows, mirrors, networks, peers or tasks", _HERE + "resources"),
            CommandEntry("describe", "print all about one of them", _HERE + "resources"),
            CommandEntry("delete", "delete them; cancel a task", _HERE + "resources"),
            CommandEntry("adopt", "restore a deleted dataset whose data was kept", _HERE + "resources"),
            CommandEntry("rename", "give a resource another name on this node", _HERE + "resources"),
            CommandEntry("label", "set labels of a resource, to select by", _HERE + "edit"),
            CommandEntry("annotate", "set annotations of a resource", _HERE + "edit"),
            CommandEntry("account", "show which account you act as, and its rights", _HERE + "account"),
            CommandEntry("token", "tokens of an account, for use from other machines", _HERE + "account"),
            CommandEntry("secret", "the key that values of SecretSets are sealed to", _HERE + "account"),
            CommandEntry("events", "what happened to resources: created, changed, deleted, failed", _HERE + "events"),
            CommandEntry("logs", "the last lines of the daemon's log, of all or of a task", _HERE + "events"),
            CommandEntry("wait", "wait until a condition holds", _HERE + "wait"),
        ),
    ),
    CommandGroup(
        "Datasets",
        (
            CommandEntry("log", "blocks of a dataset, newest first", _HERE + "reading"),
            CommandEntry("tail", "last records of a dataset", _HERE + "reading"),
            CommandEntry("sql", "query datasets in SQL", _HERE + "sql"),
            CommandEntry(
                "diff",
                "rows that differ between two cuts or datasets; changes that an apply would make",
                _HERE + "diff",
            ),
            CommandEntry(
                "schema", "columns of a dataset and their types; add more to a source dataset", _HERE + "schema"
            ),
            CommandEntry("lineage", "where a dataset or a record came from, back to the source", _HERE + "lineage"),
            CommandEntry("ingest", "push files or standard input into a dataset", _HERE + "ingest_pull"),
            CommandEntry("watermark", "move the watermark of a source dataset", _HERE + "ingest_pull"),
            CommandEntry("advance", "promise that the times up to now are complete", _HERE + "ingest_pull"),
            CommandEntry("hold", "keep the history of a dataset as it is for a reader", _HERE + "hold"),
            CommandEntry("source", "push to the endpoint of a Source, show what waits", _HERE + "source"),
            CommandEntry("raw", "capture the bytes of a source, and replay blocks from them", _HERE + "source"),
            CommandEntry("gap", "what a source deleted before it was ingested; continue without it", _HERE + "source"),
            CommandEntry("rendition", "decode a history again, and make it the active one", _HERE + "rendition"),
            CommandEntry(
                "correct", "correct or retract a row of a dataset with the ledger strategy", _HERE + "correct"
            ),
            CommandEntry(
                "pull", "bring up to date: poll the source, run the transform, sync the mirror", _HERE + "ingest_pull"
            ),
            CommandEntry("push", "push datasets to a repository", _HERE + "repository"),
            CommandEntry("repo", "named repositories to push to and pull from", _HERE + "repository"),
            CommandEntry("flow", "pause and resume flows", _HERE + "flow"),
            CommandEntry("reset", "make an earlier block the head", _HERE + "rewriting"),
            CommandEntry("compact", "merge small slices, or drop all data", _HERE + "rewriting"),
            CommandEntry("export", "write a dataset as a directory, or its rows as a file", _HERE + "import_export"),
            CommandEntry("import", "import a dataset from a directory in the ODF layout", _HERE + "import_export"),
        ),
    ),
    CommandGroup(
        "Others",
        (
            CommandEntry("join", "join a network by an invitation", _HERE + "network"),
            CommandEntry("search", "find datasets of other nodes by words", _HERE + "search"),
            CommandEntry("network", "join and leave networks, list what is announced there", _HERE + "network"),
            CommandEntry("mirror", "mirror datasets of other nodes, verified as they arrive", _HERE + "mirror"),
            CommandEntry("publish", "let other nodes see and fetch datasets", _HERE + "publishing"),
            CommandEntry("unpublish", "make published datasets private again", _HERE + "publishing"),
            CommandEntry("portal", "open a portal to auditors, and audit those of other nodes", _HERE + "portal"),
            CommandEntry("share", "share a private dataset with some peers", _HERE + "publishing"),
            CommandEntry("peer", "see, connect and block peers", _HERE + "network"),
            CommandEntry("ipfs", "publish datasets on IPFS", _HERE + "publishing"),
        ),
    ),
    CommandGroup(
        "Truth",
        (
            CommandEntry("verify", "check a dataset or a directory (†) on this machine", _HERE + "verify"),
            CommandEntry(
                "engine", "prove that another engine gives the same results, and move to it", _HERE + "verify"
            ),
            CommandEntry(
                "trust", "the trust level and reach of a dataset, and the statements behind it", _HERE + "trust"
            ),
        ),
    ),
    CommandGroup(
        "Files (†: no daemon needed)",
        (
            CommandEntry("restore", "make a state directory from a backup †", _OFFLINE + "restore"),
            CommandEntry("upgrade", "check whether this version can take over a node's state †", _OFFLINE + "restore"),
            CommandEntry("demo", "run the recorded node of the demo, and open its web UI †", _OFFLINE + "demo"),
            CommandEntry("docs", "print a page of the documentation †", _OFFLINE + "docs"),
            CommandEntry("new", "write a manifest for a file from a sample †", _OFFLINE + "new"),
            CommandEntry("catalog", "write manifests for the datasets of a DCAT feed †", _OFFLINE + "catalog"),
            CommandEntry("block", "show, hash and encode blocks of metadata †", _OFFLINE + "block"),
            CommandEntry("data", "show and hash slices of data †", _OFFLINE + "data"),
            CommandEntry("completions", "completions for bash, zsh or fish †", _HERE + "completions"),
        ),
    ),
)


def entries() -> dict[str, CommandEntry]:
    return {entry.name: entry for group in GROUPS for entry in group.entries}


def load(entry: CommandEntry, subparsers: Subparsers) -> None:
    """Imports the entry's module and adds its parser."""
    importlib.import_module(entry.module).commands.register(subparsers, only=entry.name)
