"""Lists the kinds of thing that ``get``, ``describe``, ``delete`` and ``wait`` know: their paths and their tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeAlias, TypeVar

from chain.instant import Instant
from odfd import output
from odfd.cli import formatting
from odfd.cli.session import NAMES, Session
from odfd.cli.table import WHOLE, TableColumn, clean, render
from odfd.control import wire
from odfd.control.client import Answer
from odfd.errors import Usage

V = TypeVar("V", bound=wire.Value)
_Named: TypeAlias = (
    wire.DatasetView | wire.FlowView | wire.MirrorView | wire.EngineView | wire.NetworkView | wire.ResourceView
)


@dataclass(frozen=True, slots=True)
class Kind(Generic[V]):
    name: str
    aliases: tuple[str, ...]
    path: str
    key: Callable[[V], str]
    """What names one in the API's paths."""
    columns: Callable[[Instant], tuple[TableColumn[V], ...]]
    """Made for the time of looking: some say how long ago."""
    view: type[V]
    """What the API says of one."""
    single: bool = True
    """The API answers for one of them; else it is picked from the list."""

    def all(self, session: Session) -> Answer[list[V]]:
        return session.client.get(self.path, list[self.view])  # type: ignore[name-defined]  # a type that is a value

    def show(self, session: Session, answer: Answer[V]) -> None:
        session.answer(answer, lambda row: self._table([row], session))

    def show_all(self, session: Session, answer: Answer[list[V]], none: str = "") -> None:
        """Shows all resources of the kind, or the text ``none``."""
        session.answer(answer, lambda rows: self._table(rows, session))
        if not answer.value and none:
            session.remark(none)

    def show_shaped(self, session: Session, answer: Answer[list[V]]) -> None:
        """Names alone, or a table with ids in which no cell is cut short."""
        if session.output == NAMES:
            prefix = "" if self.name == "resource" else f"{self.name}/"
            text = "\n".join(clean(f"{prefix}{self.key(row)}", WHOLE) for row in answer.value)
        else:
            ids = {id(row): str(sent.get("id") or "") for row, sent in zip(answer.value, answer.sent, strict=True)}
            columns = tuple(column._replace(most=WHOLE) for column in self.columns(session.clock.now()))
            has_ids = any(ids.values()) and all(column.title != "ID" for column in columns)
            column = TableColumn[V]("ID", lambda row: ids[id(row)] or formatting.NOTHING, most=WHOLE)
            more = (column,) if has_ids else ()
            text = render((*columns, *more), answer.value)
        if text:
            output.say(text)

    def _table(self, rows: Sequence[V], session: Session) -> str:
        return render(self.columns(session.clock.now()), rows)


def _share(share: wire.Share | None) -> str:
    return f"{share.have:,}/{share.want:,}" if share else formatting.NOTHING


def _datasets(_now: Instant) -> tuple[TableColumn[wire.DatasetView], ...]:
    return (
        TableColumn("NAME", lambda row: row.name),
        TableColumn("KIND", lambda row: row.kind),
        TableColumn("BLOCKS", lambda row: formatting.count(row.blocks), right=True),
        TableColumn("RECORDS", lambda row: formatting.count(row.records), right=True),
        TableColumn("WATERMARK", lambda row: formatting.moment(row.watermark)),
        TableColumn("STATE", _state),
        TableColumn("RELY ON", _rely),
        TableColumn("PUBLISHED", _published),
        TableColumn("PEERS", lambda row: formatting.count(row.peers), right=True),
    )


def _state(row: wire.DatasetView) -> str:
    """Beside the state, what it does not say by itself."""
    beside = [each.lower() for each in row.conditions if each.lower() != row.state]
    return ", ".join([row.state, *beside])


def _published(row: wire.DatasetView) -> str:
    shared = len(row.shared_with)
    return "yes" if row.published else f"to {formatting.plural(shared, 'peer')}" if shared else "no"


def _rely(row: wire.DatasetView) -> str:
    rely = row.rely_on
    return f"{rely.blocks}/{row.blocks} {rely.fact}".rstrip() if rely else formatting.NOTHING


def _mirrors(_now: Instant) -> tuple[TableColumn[wire.MirrorView], ...]:
    return (
        TableColumn("NAME", lambda row: row.name),
        TableColumn("ID", lambda row: formatting.identity(row.id)),
        TableColumn("STATE", lambda row: row.state),
        TableColumn("BLOCKS", lambda row: _share(row.blocks), right=True),
        TableColumn("SLICES", lambda row: _share(row.slices), right=True),
        TableColumn("KEEP", _kept),
        TableColumn("HELD", lambda row: formatting.size(row.held), right=True),
        TableColumn("PEERS", lambda row: formatting.count(row.peers), right=True),
        TableColumn("SERVING", lambda row: "yes" if row.serving else "no"),
        TableColumn("MET BY", lambda row: met(row.contact)),
        TableColumn("", lambda row: row.message, most=WHOLE),
    )


def met(contact: wire.Contact | None) -> str:
    """Formats how a dataset of others was met; nothing for what was not met."""
    return formatting.NOTHING if contact is None else contact.by.replace("-", " ")


def _kept(row: wire.MirrorView) -> str:
    if row.want == "chain":
        return "chain"
    first = row.held_from
    return (row.keep or "all") + (f", from #{first}" if first else "")


def _networks(_now: Instant) -> tuple[TableColumn[wire.NetworkView], ...]:
    return (
        TableColumn("NAME", lambda row: row.name),
        TableColumn("PEERS", lambda row: formatting.count(row.peers), right=True),
        TableColumn("DATASETS", lambda row: formatting.count(len(row.datasets)), right=True),
        TableColumn("BOOTSTRAP", lambda row: ", ".join(row.bootstrap), most=100),
    )


def _peers(now: Instant) -> tuple[TableColumn[wire.PeerInfo], ...]:
    return (
        TableColumn("PEER", lambda row: row.peer_id),
        TableColumn("STATE", lambda row: "blocked" if row.blocked else "connected" if row.connected else "away"),
        TableColumn("SCORE", lambda row: f"{row.score:.1f}", right=True),
        TableColumn("DATASETS", lambda row: formatting.count(row.datasets), right=True),
        TableColumn("SEEN", lambda row: formatting.ago(row.last_seen, now)),
        TableColumn("ADDRESS", lambda row: next(iter(row.addresses), formatting.NOTHING), most=80),
    )


def _validators(now: Instant) -> tuple[TableColumn[wire.ValidatorView], ...]:
    return (
        TableColumn("VALIDATOR", lambda row: row.key),
        TableColumn("GROUP", lambda row: row.group),
        TableColumn("ATTESTATIONS", lambda row: formatting.count(row.attestations), right=True),
        TableColumn("SEEN", lambda row: formatting.ago(row.last_seen, now)),
        TableColumn("", lambda row: f"suspended: {row.reason}" if row.suspended else "", most=WHOLE),
    )


def _tasks(now: Instant) -> tuple[TableColumn[wire.TaskView], ...]:
    return (
        TableColumn("ID", lambda row: row.id),
        TableColumn("KIND", lambda row: row.kind),
        TableColumn("TARGET", lambda row: row.target),
        TableColumn("STATE", lambda row: row.state),
        TableColumn("DONE", _task_done, right=True),
        TableColumn("STARTED", lambda row: formatting.ago(row.started_at, now)),
        TableColumn("", lambda row: (row.fault and row.fault.detail) or row.message, most=WHOLE),
    )


def _task_done(row: wire.TaskView) -> str:
    done, total, unit = row.done, row.total, row.unit
    if unit == "bytes":
        return f"{formatting.size(done)} of {formatting.size(total)}" if total else formatting.size(done)
    return (
        f"{done:,}/{total:,} {unit}".rstrip() if total else f"{done:,} {unit}".rstrip() if done else formatting.NOTHING
    )


def _flows(now: Instant) -> tuple[TableColumn[wire.FlowView], ...]:
    return (
        TableColumn("NAME", lambda row: row.name),
        TableColumn("KIND", lambda row: row.kind),
        TableColumn("TARGET", lambda row: row.target),
        TableColumn("TASKS", lambda row: ",".join(row.tasks)),
        TableColumn("WHEN", lambda row: row.when, most=80),
        TableColumn("STATE", lambda row: row.state),
        TableColumn("NEXT", lambda row: formatting.moment(row.next)),
        TableColumn("LAST", lambda row: formatting.ago(row.last, now)),
        TableColumn("OUTCOME", lambda row: row.outcome or formatting.NOTHING),
        TableColumn("RUNS", lambda row: formatting.count(row.runs), right=True),
        TableColumn("FAILED", lambda row: formatting.count(row.failures), right=True),
        TableColumn("MISSED", lambda row: formatting.count(row.missed), right=True),
        TableColumn("", lambda row: row.message, most=WHOLE),
    )


def _sets(part: str, now: Instant) -> tuple[TableColumn[wire.ResourceView], ...]:
    """``part``: of the spec that holds the keys of a set."""
    return (
        TableColumn("NAME", lambda row: row.name),
        TableColumn("KEYS", lambda row: ", ".join(sorted(row.spec[part])), most=80),
        TableColumn("PHASE", phase_text),
        TableColumn("LABELS", lambda row: labels_text(row.labels), most=80),
        TableColumn("GENERATION", lambda row: formatting.count(row.generation), right=True),
        TableColumn("CHANGED", lambda row: formatting.ago(row.updated_at, now)),
    )


def _elements(now: Instant) -> tuple[TableColumn[wire.ResourceView], ...]:
    """Of sets."""
    return (
        TableColumn("NAME", lambda row: row.name),
        TableColumn("SET", lambda row: row.spec["set"].partition(":")[2]),
        TableColumn("KEY", lambda row: row.spec["key"]),
        TableColumn("LABELS", lambda row: labels_text(row.labels), most=80),
        TableColumn("CHANGED", lambda row: formatting.ago(row.updated_at, now)),
    )


def _projections(now: Instant) -> tuple[TableColumn[wire.ResourceView], ...]:
    def told(row: wire.ResourceView, part: str) -> str:
        conditions = row.status.get("conditions", {})
        table = next((each["value"] for key, each in conditions.items() if key.endswith("/Table")), None)
        return formatting.NOTHING if table is None else formatting.count(table[part])

    return (
        TableColumn("NAME", lambda row: row.name),
        TableColumn("ROWS", lambda row: told(row, "rows"), right=True),
        TableColumn("LAG", lambda row: told(row, "lag"), right=True),
        TableColumn("PHASE", phase_text),
        TableColumn("LABELS", lambda row: labels_text(row.labels), most=80),
        TableColumn("CHANGED", lambda row: formatting.ago(row.updated_at, now)),
    )


def _sources(now: Instant) -> tuple[TableColumn[wire.ResourceView], ...]:
    def where(row: wire.ResourceView) -> str:
        ingress = row.spec["ingress"]
        return str(next((ingress[part] for part in ("url", "path", "image") if part in ingress), formatting.NOTHING))

    return (
        TableColumn("NAME", lambda row: row.name),
        TableColumn("INGRESS", lambda row: row.spec["ingress"]["kind"]),
        TableColumn("FROM", where, most=80),
        TableColumn("PHASE", phase_text),
        TableColumn("LABELS", lambda row: labels_text(row.labels), most=80),
        TableColumn("CHANGED", lambda row: formatting.ago(row.updated_at, now)),
    )


def _volumes(now: Instant) -> tuple[TableColumn[wire.ResourceView], ...]:
    def told(row: wire.ResourceView) -> Mapping[str, Any]:
        conditions = row.status.get("conditions", {})
        return next((each["value"] for key, each in conditions.items() if key.endswith("/Usage")), {})

    def where(row: wire.ResourceView) -> str:
        spec = row.spec
        if spec["kind"] == "HostPath":
            return str(spec["path"])
        return "/".join(filter(None, (spec.get("endpoint", "s3:/"), spec["bucket"], spec.get("prefix"))))

    return (
        TableColumn("NAME", lambda row: row.name),
        TableColumn("PLACE", where, most=WHOLE),
        TableColumn("SLICES", lambda row: formatting.count(told(row).get("slices", 0)), right=True),
        TableColumn("USED", lambda row: formatting.size(told(row).get("bytes", 0)), right=True),
        TableColumn("CAPACITY", lambda row: (row.spec.get("capacity") or {}).get("storage", formatting.NOTHING)),
        TableColumn("PHASE", phase_text),
        TableColumn("CHANGED", lambda row: formatting.ago(row.updated_at, now)),
        TableColumn("", lambda row: row.status.get("message", ""), most=WHOLE),
    )


def _accounts(now: Instant) -> tuple[TableColumn[wire.ResourceView], ...]:
    def callers(row: wire.ResourceView) -> str:
        said = row.headers.get("annotations", {})
        found: Mapping[str, Any] = next(
            (said[key] for key in said if key.rpartition("/")[2].lower() == "unixcallers"), {}
        )
        named = [*found.get("users", ()), *(f"group {each}" for each in found.get("groups", ()))]
        return ", ".join(named) or formatting.NOTHING

    return (
        TableColumn("NAME", lambda row: row.name),
        TableColumn("TYPE", lambda row: row.spec.get("accountType") or "User"),
        TableColumn("EMAIL", lambda row: row.spec["email"], most=80),
        TableColumn("CALLERS", callers, most=80),
        TableColumn("CHANGED", lambda row: formatting.ago(row.updated_at, now)),
    )


def _relations(now: Instant) -> tuple[TableColumn[wire.ResourceView], ...]:
    def said(row: wire.ResourceView) -> str:
        relations, attributes = row.spec.get("relations") or (), row.spec.get("attributes") or ()
        texts = [f"{each['subject']} {each.get('value') or each['relation']} of {each['object']}" for each in relations]
        texts += [f"{each['object']} {each['name']}" for each in attributes if each["value"]]
        return "; ".join(texts) or formatting.NOTHING

    return (
        TableColumn("NAME", lambda row: row.name),
        TableColumn("SAYS", said, most=200),
        TableColumn("CHANGED", lambda row: formatting.ago(row.updated_at, now)),
    )


def _repositories(now: Instant) -> tuple[TableColumn[wire.ResourceView], ...]:
    return (
        TableColumn("NAME", lambda row: row.name),
        TableColumn("URL", lambda row: row.spec["url"], most=WHOLE),
        TableColumn("PHASE", phase_text),
        TableColumn("CHANGED", lambda row: formatting.ago(row.updated_at, now)),
    )


def _webhooks(now: Instant) -> tuple[TableColumn[wire.ResourceView], ...]:
    return (
        TableColumn("NAME", lambda row: row.name),
        TableColumn("URL", lambda row: row.spec["url"], most=80),
        TableColumn("PHASE", phase_text),
        TableColumn("CONDITIONS", lambda row: conditions_text(row.status), most=80),
        TableColumn("CHANGED", lambda row: formatting.ago(row.updated_at, now)),
        TableColumn("", lambda row: row.status.get("message", ""), most=WHOLE),
    )


def _resources(now: Instant) -> tuple[TableColumn[wire.ResourceView], ...]:
    return (
        TableColumn("TYPE", lambda row: row.type),
        TableColumn("NAME", lambda row: row.name),
        TableColumn("PHASE", phase_text),
        TableColumn("CONDITIONS", lambda row: conditions_text(row.status), most=80),
        TableColumn("RETRY", lambda row: formatting.moment(row.status.get("retryAt"))),
        TableColumn("GENERATION", lambda row: formatting.count(row.generation), right=True),
        TableColumn("CHANGED", lambda row: formatting.ago(row.updated_at, now)),
        TableColumn("", lambda row: row.status.get("message", ""), most=WHOLE),
    )


def phase_text(row: wire.ResourceView) -> str:
    """Formats the phase: ``Failed(code)`` after a failure; with a star where an older declaration was acted upon."""
    phase, code = row.status.get("phase", formatting.NOTHING), row.status.get("code")
    behind = "" if row.status.get("observedGeneration") == row.generation else "*"
    return (f"{phase}({code})" if phase == "Failed" else phase) + behind


def conditions_text(status: Mapping[str, Any]) -> str:
    """Formats conditions by the last part of their URIs."""
    conditions = {key.rpartition("/")[2]: each["value"] for key, each in status.get("conditions", {}).items()}
    return labels_text(conditions)


def labels_text(labels: Mapping[str, Any]) -> str:
    """Formats labels as ``-l`` takes them."""
    shown = (f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in sorted(labels.items()))
    return ",".join(shown) or formatting.NOTHING


def _renditions(_now: Instant) -> tuple[TableColumn[wire.RenditionView], ...]:
    return (
        TableColumn("NAME", lambda row: row.dataset or formatting.NOTHING),
        TableColumn("N", lambda row: str(row.number), right=True),
        TableColumn("STATE", lambda row: row.state),
        TableColumn("FROM", lambda row: row.origin),
        TableColumn("ACTIVE SINCE", lambda row: row.active_since or formatting.NOTHING),
        TableColumn("COMPLETE BEFORE", lambda row: row.upper or formatting.NOTHING),
    )


def _engines(_now: Instant) -> tuple[TableColumn[wire.EngineView], ...]:
    return (
        TableColumn("ENGINE", lambda row: row.name),
        TableColumn("DIGEST", lambda row: formatting.digest(row.digest)),
        TableColumn("SANDBOX", lambda row: row.sandbox or formatting.NOTHING),
        TableColumn("ISOLATION", lambda row: row.isolation),
        TableColumn("STATE", lambda row: row.state),
        TableColumn("PROCESSES", _processes, most=200),
    )


def _processes(row: wire.EngineView) -> str:
    """Each by its pid, with the dataset that it is for; a star beside those that work."""
    return ", ".join(
        f"{one.pid}{'*' if one.state == 'busy' else ''}" + (f" {one.name}" if one.name else "") for one in row.processes
    )


def _name(row: _Named) -> str:
    return row.name


DATASET: Final = Kind("dataset", ("datasets", "ds"), "/datasets", _name, _datasets, wire.DatasetView)
FLOW: Final = Kind("flow", ("flows",), "/flows", _name, _flows, wire.FlowView, single=False)
MIRROR: Final = Kind("mirror", ("mirrors",), "/mirrors", _name, _mirrors, wire.MirrorView, single=False)
ENGINE: Final = Kind("engine", ("engines",), "/engines", _name, _engines, wire.EngineView, single=False)
NETWORK: Final = Kind("network", ("networks", "net"), "/networks", _name, _networks, wire.NetworkView)
PEER: Final = Kind("peer", ("peers",), "/peers", lambda row: row.peer_id, _peers, wire.PeerInfo)
VALIDATOR: Final = Kind(
    "validator", ("validators",), "/validators", lambda row: row.key, _validators, wire.ValidatorView, single=False
)
RENDITION: Final = Kind(
    "rendition", ("renditions",), "/renditions", lambda row: row.dataset, _renditions, wire.RenditionView, single=False
)
TASK: Final = Kind("task", ("tasks",), "/tasks", lambda row: row.id, _tasks, wire.TaskView)
VARIABLE_SET: Final = Kind(
    "variableset",
    ("variablesets", "vs"),
    "/resources/variableset",
    _name,
    partial(_sets, "variables"),
    wire.ResourceView,
)
WEBHOOK: Final = Kind(
    "webhooktarget",
    ("webhooktargets", "webhook", "webhooks", "wh"),
    "/resources/webhooktarget",
    _name,
    _webhooks,
    wire.ResourceView,
)
SECRET_SET: Final = Kind(
    "secretset", ("secretsets", "ss"), "/resources/secretset", _name, partial(_sets, "secrets"), wire.ResourceView
)
VARIABLE: Final = Kind("variable", ("variables",), "/resources/variable", _name, _elements, wire.ResourceView)
SECRET: Final = Kind("secret", ("secrets",), "/resources/secret", _name, _elements, wire.ResourceView)
PROJECTION: Final = Kind(
    "projection", ("projections", "proj"), "/resources/projection", _name, _projections, wire.ResourceView
)
SOURCE: Final = Kind("source", ("sources",), "/resources/source", _name, _sources, wire.ResourceView)
VOLUME: Final = Kind(
    "persistentvolume",
    ("persistentvolumes", "pv", "volume", "volumes"),
    "/resources/persistentvolume",
    _name,
    _volumes,
    wire.ResourceView,
)
REPOSITORY: Final = Kind(
    "repository", ("repositories", "repo"), "/resources/repository", _name, _repositories, wire.ResourceView
)
ACCOUNT: Final = Kind("account", ("accounts",), "/resources/account", _name, _accounts, wire.ResourceView)
RELATIONS: Final = Kind("relations", ("relation",), "/resources/relations", _name, _relations, wire.ResourceView)
RESOURCE: Final = Kind(
    "resource", ("resources", "all"), "/resources", lambda row: f"{row.type}/{row.name}", _resources, wire.ResourceView,
    single=False,
)  # fmt: skip
"""Of all types; one is named by its type too: ``Flow/hourly``."""
KINDS: Final[tuple[Kind[Any], ...]] = (
    DATASET, FLOW, MIRROR, ENGINE, NETWORK, PEER, VALIDATOR, RENDITION, TASK, VARIABLE_SET, VARIABLE, SECRET_SET,
    SECRET, REPOSITORY, SOURCE, PROJECTION, WEBHOOK, VOLUME, ACCOUNT, RELATIONS, RESOURCE,
)  # fmt: skip
DECLARED: Final = (
    DATASET, FLOW, MIRROR, NETWORK, PEER, VALIDATOR, VARIABLE_SET, VARIABLE, SECRET_SET, SECRET, REPOSITORY,
    SOURCE, PROJECTION, WEBHOOK, VOLUME, ACCOUNT, RELATIONS,
)  # fmt: skip
"""Those that have labels, and can be watched."""


def find(word: str) -> Kind[Any]:
    """Returns a kind by name or alias, ignoring case. Raises Usage."""
    low = word.lower()
    for kind in KINDS:
        if low == kind.name or low in kind.aliases:
            return kind
    raise Usage(f"there is no kind {word!r}", hint="kinds are " + ", ".join(kind.name for kind in KINDS))
