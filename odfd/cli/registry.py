"""Lists the commands of ``odfctl``: their groups, help texts and modules. A command that is not listed has no help."""

from __future__ import annotations

import importlib
from typing import Final, NamedTuple

from odfd.cli.command import Subparsers


class CommandEntry(NamedTuple):
    name: str
    help: str
    module: str
    """Declares it in ``commands``."""


class CommandGroup(NamedTuple):
    title: str
    entries: tuple[CommandEntry, ...]


_HERE: Final = "odfd.cli.commands."
_OFFLINE: Final = "odfd.cli.offline."
GROUPS: Final = (
    CommandGroup(
        "The node",
        (
            CommandEntry("status", "who this node is, its peers, datasets, engine and disk", _HERE + "node"),
            CommandEntry("doctor", "try everything the node stands on, and say what to mend", _HERE + "node"),
            CommandEntry("watch", "what happens, as it happens", _HERE + "node"),
            CommandEntry("top", "the node on a terminal, live: tasks, mirrors, peers, rates", _HERE + "top"),
            CommandEntry("ui", "look at the node in a browser", _HERE + "page"),
            CommandEntry("backup", "copy what the node holds into a folder, while it runs", _HERE + "node"),
            CommandEntry("support", "write a file of what helps others to help, without secrets", _HERE + "support"),
            CommandEntry("gc", "free the disk of what nobody names any more", _HERE + "rewriting"),
        ),
    ),
    CommandGroup(
        "Resources",
        (
            CommandEntry("apply", "make it so: manifests in, what was created or updated out", _HERE + "apply"),
            CommandEntry("edit", "change a resource in an editor", _HERE + "edit"),
            CommandEntry("types", "types of resources that manifests can be of", _HERE + "explain"),
            CommandEntry("explain", "what the fields of a type mean", _HERE + "explain"),
            CommandEntry("get", "list datasets, flows, mirrors, networks, peers or tasks", _HERE + "resources"),
            CommandEntry("describe", "all there is to know of one of them", _HERE + "resources"),
            CommandEntry("delete", "remove one of them; a task is cancelled", _HERE + "resources"),
            CommandEntry("rename", "call a dataset something else on this node", _HERE + "resources"),
            CommandEntry("label", "set labels of a resource, to select by", _HERE + "resources"),
            CommandEntry("annotate", "set annotations of a resource", _HERE + "resources"),
            CommandEntry("account", "who you are here, and whose rights you have", _HERE + "account"),
            CommandEntry("token", "tokens by which an account is asked for from other machines", _HERE + "token"),
            CommandEntry("secret", "the key that values of SecretSets are sealed to", _HERE + "secret"),
            CommandEntry("events", "what became of resources: who came, changed, went, failed", _HERE + "events"),
            CommandEntry("logs", "the last lines of the daemon's log, of all or of a task", _HERE + "logs"),
            CommandEntry("wait", "until something is so", _HERE + "wait"),
        ),
    ),
    CommandGroup(
        "Datasets",
        (
            CommandEntry("log", "blocks of a dataset, newest first", _HERE + "reading"),
            CommandEntry("tail", "last records of a dataset", _HERE + "reading"),
            CommandEntry("sql", "ask datasets a question in SQL", _HERE + "sql"),
            CommandEntry(
                "diff", "rows by which two cuts or two datasets differ; what an apply would change", _HERE + "diff"
            ),
            CommandEntry("schema", "columns of a dataset and their types; add more to a root", _HERE + "schema"),
            CommandEntry(
                "lineage", "where a dataset or a record came from, down to the first ingest", _HERE + "lineage"
            ),
            CommandEntry("ingest", "push files or standard input into a dataset", _HERE + "ingest_pull"),
            CommandEntry("watermark", "say that nothing older will come into a root", _HERE + "ingest_pull"),
            CommandEntry("advance", "promise that the times up to now are complete", _HERE + "ingest_pull"),
            CommandEntry("hold", "keep the history of a dataset as it is for a reader", _HERE + "hold"),
            CommandEntry("raw", "keep the bytes of a source; compute blocks again from them", _HERE + "raw"),
            CommandEntry("rendition", "decode a history anew, and switch readers to it", _HERE + "rendition"),
            CommandEntry("correct", "give a row of a ledger other values, or take it back", _HERE + "correct"),
            CommandEntry(
                "pull", "bring up to date: poll the source, run the transform, sync the mirror", _HERE + "ingest_pull"
            ),
            CommandEntry("push", "give datasets to a repository", _HERE + "repository"),
            CommandEntry("repo", "repositories: places to push to and to pull from, by name", _HERE + "repository"),
            CommandEntry("flow", "rest or go on with what is pulled by itself", _HERE + "ingest_pull"),
            CommandEntry("reset", "make an earlier block the head", _HERE + "rewriting"),
            CommandEntry("compact", "merge small slices, or keep metadata alone", _HERE + "rewriting"),
            CommandEntry("export", "write a dataset as a directory, or its rows as a file", _HERE + "import_export"),
            CommandEntry("import", "take in a dataset from a directory in the ODF layout", _HERE + "import_export"),
        ),
    ),
    CommandGroup(
        "Others",
        (
            CommandEntry("join", "follow an invitation into a network", _HERE + "network"),
            CommandEntry("search", "find datasets of others by words", _HERE + "search"),
            CommandEntry("network", "join and leave networks, see what is announced there", _HERE + "network"),
            CommandEntry("mirror", "hold datasets of others, verified as they arrive", _HERE + "mirror"),
            CommandEntry("publish", "let others see and take datasets", _HERE + "publishing"),
            CommandEntry("unpublish", "say and give no more of them", _HERE + "publishing"),
            CommandEntry("share", "give a private dataset to some peers", _HERE + "publishing"),
            CommandEntry("peer", "see, connect and block peers", _HERE + "network"),
            CommandEntry("ipfs", "publish datasets on IPFS", _HERE + "publishing"),
        ),
    ),
    CommandGroup(
        "Truth",
        (
            CommandEntry("verify", "check a dataset or a directory (†), now, by this machine itself", _HERE + "verify"),
            CommandEntry("engine", "prove that another engine gives the same, and take it", _HERE + "verify"),
            CommandEntry("trust", "how far a dataset may be relied on, and who says so", _HERE + "trust"),
        ),
    ),
    CommandGroup(
        "Files (†: no daemon needed)",
        (
            CommandEntry("restore", "make a state directory from a backup †", _OFFLINE + "restore"),
            CommandEntry("upgrade", "try whether this version can take over a node's state †", _OFFLINE + "restore"),
            CommandEntry("new", "a manifest for a file, by a look into it †", _OFFLINE + "new"),
            CommandEntry("catalog", "manifests for the datasets of a DCAT feed †", _OFFLINE + "catalog"),
            CommandEntry("block", "show, hash and encode blocks of metadata †", _OFFLINE + "block"),
            CommandEntry("data", "show and hash slices of data †", _OFFLINE + "data"),
            CommandEntry("completions", "completions for bash, zsh or fish †", _HERE + "completions"),
        ),
    ),
)


def entries() -> dict[str, CommandEntry]:
    return {entry.name: entry for group in GROUPS for entry in group.entries}


def load(entry: CommandEntry, subparsers: Subparsers) -> None:
    """Lets the entry's module add its parser."""
    importlib.import_module(entry.module).commands.register(subparsers, only=entry.name)
