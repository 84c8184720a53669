"""The kinds of thing that ``get``, ``describe``, ``delete`` and ``wait`` know: where they are, how they are shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from chain.instant import Instant
from odfd.cli import words
from odfd.cli.table import Column
from odfd.errors import Usage


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    aliases: tuple[str, ...]
    path: str
    key: str
    """The field that names one in the API's paths."""
    columns: Callable[[Instant], tuple[Column, ...]]
    """Made for the time of looking: some say how long ago."""
    view: str
    """The name in ``odfd.control.wire`` of what the API says of one; that module is read only where it is needed."""
    single: bool = True
    """The API answers for one of them; else it is picked from the list."""


def _share(share: dict[str, int] | None) -> str:
    return f"{share['have']:,}/{share['want']:,}" if share else words.NOTHING


def _datasets(_now: Instant) -> tuple[Column, ...]:
    return (
        Column("NAME", lambda row: row["name"]),
        Column("KIND", lambda row: row["kind"]),
        Column("BLOCKS", lambda row: words.count(row["blocks"]), right=True),
        Column("RECORDS", lambda row: words.count(row.get("records")), right=True),
        Column("WATERMARK", lambda row: words.moment(row.get("watermark"))),
        Column("STATE", _state),
        Column("RELY ON", _rely),
        Column("PUBLISHED", lambda row: "yes" if row.get("published") else "no"),
        Column("PEERS", lambda row: words.count(row.get("peers")), right=True),
    )


def _state(row: dict[str, Any]) -> str:
    """Beside the state, what it does not say by itself."""
    beside = [each.lower() for each in row.get("conditions") or () if each.lower() != row["state"]]
    return ", ".join([row["state"], *beside])


def _rely(row: dict[str, Any]) -> str:
    rely = row.get("relyOn")
    return f"{rely['blocks']}/{row['blocks']} {rely['fact']}".rstrip() if rely else words.NOTHING


def _mirrors(_now: Instant) -> tuple[Column, ...]:
    return (
        Column("NAME", lambda row: row["name"]),
        Column("ID", lambda row: words.identity(row["id"])),
        Column("STATE", lambda row: row["state"]),
        Column("BLOCKS", lambda row: _share(row.get("blocks")), right=True),
        Column("SLICES", lambda row: _share(row.get("slices")), right=True),
        Column("KEEP", _kept),
        Column("HELD", lambda row: words.size(row.get("held", 0)), right=True),
        Column("PEERS", lambda row: words.count(row.get("peers")), right=True),
        Column("SERVING", lambda row: "yes" if row.get("serving") else "no"),
        Column("", lambda row: row.get("message", ""), most=80),
    )


def _kept(row: dict[str, Any]) -> str:
    if row["want"] == "chain":
        return "chain"
    first = row.get("heldFrom", 0)
    return (row.get("keep") or "all") + (f", from #{first}" if first else "")


def _networks(_now: Instant) -> tuple[Column, ...]:
    return (
        Column("NAME", lambda row: row["name"]),
        Column("PEERS", lambda row: words.count(row["peers"]), right=True),
        Column("DATASETS", lambda row: words.count(len(row.get("datasets", []))), right=True),
        Column("BOOTSTRAP", lambda row: ", ".join(row.get("bootstrap", [])), most=100),
    )


def _peers(now: Instant) -> tuple[Column, ...]:
    return (
        Column("PEER", lambda row: row["peerId"]),
        Column("STATE", lambda row: "blocked" if row.get("blocked") else "connected" if row["connected"] else "away"),
        Column("SCORE", lambda row: f"{row.get('score', 0):.1f}", right=True),
        Column("DATASETS", lambda row: words.count(row.get("datasets")), right=True),
        Column("SEEN", lambda row: words.ago(row.get("lastSeen"), now)),
        Column("ADDRESS", lambda row: next(iter(row.get("addresses", [])), words.NOTHING), most=80),
    )


def _validators(now: Instant) -> tuple[Column, ...]:
    return (
        Column("VALIDATOR", lambda row: row["key"]),
        Column("GROUP", lambda row: row["group"]),
        Column("ATTESTATIONS", lambda row: words.count(row.get("attestations")), right=True),
        Column("SEEN", lambda row: words.ago(row.get("lastSeen"), now)),
        Column("", lambda row: f"suspended: {row['reason']}" if row.get("suspended") else "", most=160),
    )


def _tasks(now: Instant) -> tuple[Column, ...]:
    return (
        Column("ID", lambda row: row["id"]),
        Column("KIND", lambda row: row["kind"]),
        Column("TARGET", lambda row: row.get("target", "")),
        Column("STATE", lambda row: row["state"]),
        Column("DONE", _task_done, right=True),
        Column("STARTED", lambda row: words.ago(row.get("startedAt"), now)),
        Column("", lambda row: (row.get("fault") or {}).get("detail", "") or row.get("message", ""), most=80),
    )


def _task_done(row: dict[str, Any]) -> str:
    done, total, unit = row.get("done", 0), row.get("total"), row.get("unit", "")
    if unit == "bytes":
        return f"{words.size(done)} of {words.size(total)}" if total else words.size(done)
    return f"{done:,}/{total:,} {unit}".rstrip() if total else f"{done:,} {unit}".rstrip() if done else words.NOTHING


def _engines(_now: Instant) -> tuple[Column, ...]:
    return (
        Column("ENGINE", lambda row: row["name"]),
        Column("DIGEST", lambda row: words.digest(row.get("digest"))),
        Column("SANDBOX", lambda row: row.get("sandbox") or words.NOTHING),
        Column("ISOLATION", lambda row: row.get("isolation", "shared")),
        Column("STATE", lambda row: row["state"]),
        Column("PROCESSES", _processes, most=200),
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
