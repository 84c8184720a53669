"""Lists the kinds of thing that ``get``, ``describe``, ``delete`` and ``wait`` know: their paths and their tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from chain.instant import Instant
from odfd.cli import words
from odfd.cli.table import TableColumn
from odfd.errors import Usage


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    aliases: tuple[str, ...]
    path: str
    key: str
    """The field that names one in the API's paths."""
    columns: Callable[[Instant], tuple[TableColumn, ...]]
    """Made for the time of looking: some say how long ago."""
    view: str
    """The name in ``odfd.control.wire`` of what the API says of one; that module is read only where it is needed."""
    single: bool = True
    """The API answers for one of them; else it is picked from the list."""


def _share(share: dict[str, int] | None) -> str:
    return f"{share['have']:,}/{share['want']:,}" if share else words.NOTHING


def _datasets(_now: Instant) -> tuple[TableColumn, ...]:
    return (
        TableColumn("NAME", lambda row: row["name"]),
        TableColumn("KIND", lambda row: row["kind"]),
        TableColumn("BLOCKS", lambda row: words.count(row["blocks"]), right=True),
        TableColumn("RECORDS", lambda row: words.count(row.get("records")), right=True),
        TableColumn("WATERMARK", lambda row: words.moment(row.get("watermark"))),
        TableColumn("STATE", _state),
        TableColumn("RELY ON", _rely),
        TableColumn("PUBLISHED", lambda row: "yes" if row.get("published") else "no"),
        TableColumn("PEERS", lambda row: words.count(row.get("peers")), right=True),
    )


def _state(row: dict[str, Any]) -> str:
    """Beside the state, what it does not say by itself."""
    beside = [each.lower() for each in row.get("conditions") or () if each.lower() != row["state"]]
    return ", ".join([row["state"], *beside])


def _rely(row: dict[str, Any]) -> str:
    rely = row.get("relyOn")
    return f"{rely['blocks']}/{row['blocks']} {rely['fact']}".rstrip() if rely else words.NOTHING


def _mirrors(_now: Instant) -> tuple[TableColumn, ...]:
    return (
        TableColumn("NAME", lambda row: row["name"]),
        TableColumn("ID", lambda row: words.identity(row["id"])),
        TableColumn("STATE", lambda row: row["state"]),
        TableColumn("BLOCKS", lambda row: _share(row.get("blocks")), right=True),
        TableColumn("SLICES", lambda row: _share(row.get("slices")), right=True),
        TableColumn("KEEP", _kept),
        TableColumn("HELD", lambda row: words.size(row.get("held", 0)), right=True),
        TableColumn("PEERS", lambda row: words.count(row.get("peers")), right=True),
        TableColumn("SERVING", lambda row: "yes" if row.get("serving") else "no"),
        TableColumn("", lambda row: row.get("message", ""), most=80),
    )


def _kept(row: dict[str, Any]) -> str:
    if row["want"] == "chain":
        return "chain"
    first = row.get("heldFrom", 0)
    return (row.get("keep") or "all") + (f", from #{first}" if first else "")


def _networks(_now: Instant) -> tuple[TableColumn, ...]:
    return (
        TableColumn("NAME", lambda row: row["name"]),
        TableColumn("PEERS", lambda row: words.count(row["peers"]), right=True),
        TableColumn("DATASETS", lambda row: words.count(len(row.get("datasets", []))), right=True),
        TableColumn("BOOTSTRAP", lambda row: ", ".join(row.get("bootstrap", [])), most=100),
    )


def _peers(now: Instant) -> tuple[TableColumn, ...]:
    return (
        TableColumn("PEER", lambda row: row["peerId"]),
        TableColumn(
            "STATE", lambda row: "blocked" if row.get("blocked") else "connected" if row["connected"] else "away"
        ),
        TableColumn("SCORE", lambda row: f"{row.get('score', 0):.1f}", right=True),
        TableColumn("DATASETS", lambda row: words.count(row.get("datasets")), right=True),
        TableColumn("SEEN", lambda row: words.ago(row.get("lastSeen"), now)),
        TableColumn("ADDRESS", lambda row: next(iter(row.get("addresses", [])), words.NOTHING), most=80),
    )


def _validators(now: Instant) -> tuple[TableColumn, ...]:
    return (
        TableColumn("VALIDATOR", lambda row: row["key"]),
        TableColumn("GROUP", lambda row: row["group"]),
        TableColumn("ATTESTATIONS", lambda row: words.count(row.get("attestations")), right=True),
        TableColumn("SEEN", lambda row: words.ago(row.get("lastSeen"), now)),
        TableColumn("", lambda row: f"suspended: {row['reason']}" if row.get("suspended") else "", most=160),
    )


def _tasks(now: Instant) -> tuple[TableColumn, ...]:
    return (
        TableColumn("ID", lambda row: row["id"]),
        TableColumn("KIND", lambda row: row["kind"]),
        TableColumn("TARGET", lambda row: row.get("target", "")),
        TableColumn("STATE", lambda row: row["state"]),
        TableColumn("DONE", _task_done, right=True),
        TableColumn("STARTED", lambda row: words.ago(row.get("startedAt"), now)),
        TableColumn("", lambda row: (row.get("fault") or {}).get("detail", "") or row.get("message", ""), most=80),
    )


def _task_done(row: dict[str, Any]) -> str:
    done, total, unit = row.get("done", 0), row.get("total"), row.get("unit", "")
    if unit == "bytes":
        return f"{words.size(done)} of {words.size(total)}" if total else words.size(done)
    return f"{done:,}/{total:,} {unit}".rstrip() if total else f"{done:,} {unit}".rstrip() if done else words.NOTHING


def _engines(_now: Instant) -> tuple[TableColumn, ...]:
    return (
        TableColumn("ENGINE", lambda row: row["name"]),
        TableColumn("DIGEST", lambda row: words.digest(row.get("digest"))),
        TableColumn("SANDBOX", lambda row: row.get("sandbox") or words.NOTHING),
        TableColumn("ISOLATION", lambda row: row.get("isolation", "shared")),
        TableColumn("STATE", lambda row: row["state"]),
        TableColumn("PROCESSES", _processes, most=200),
    )


def _processes(row: dict[str, Any]) -> str:
    """Each by its pid, with the dataset that it is for; a star beside those that work."""
    return ", ".join(
        f"{one['pid']}{'*' if one['state'] == 'busy' else ''}" + (f" {one['name']}" if one.get("name") else "")
        for one in row.get("processes", ())
    )


KINDS: Final = (
    Kind("dataset", ("datasets", "ds"), "/datasets", "name", _datasets, "DatasetView"),
    Kind("mirror", ("mirrors",), "/mirrors", "name", _mirrors, "MirrorView", single=False),
    Kind("engine", ("engines",), "/engines", "name", _engines, "EngineView", single=False),
    Kind("network", ("networks", "net"), "/networks", "name", _networks, "NetworkView"),
    Kind("peer", ("peers",), "/peers", "peerId", _peers, "PeerInfo"),
    Kind("validator", ("validators",), "/validators", "key", _validators, "ValidatorView", single=False),
    Kind("task", ("tasks",), "/tasks", "id", _tasks, "TaskView"),
)


def find(word: str) -> Kind:
    """By name or alias, whatever the case. Raises Usage."""
    low = word.lower()
    for kind in KINDS:
        if low == kind.name or low in kind.aliases:
            return kind
    raise Usage(f"there is no kind {word!r}", hint="kinds are " + ", ".join(kind.name for kind in KINDS))
