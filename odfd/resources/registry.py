"""Registers the types of resources: the names of each, who may own it, the module that declares it, and its columns.

What a type is stands in its own module (``odfd.resources.types.ResourceType``), which is loaded where resources are
read or served. This is all that the command line needs of it, which starts in a few ms. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

ODF: Final = "https://opendatafabric.org/schemas"
OURS: Final = "https://w3id.org/odfd/schemas"
VERSION: Final = "v1alpha1"
OWNER: Final = "node"
"""The name of the account of the node's owner, unless an Account has it. It is no resource, and cannot be changed."""
STATE: Final = "State"
"""The condition with what only the running node knows of a resource: computed when it is read, and kept nowhere."""
Form: TypeAlias = Literal[
    "text", "reference", "count", "size", "rate", "share", "progress", "moment", "ago", "digest", "did", "node",
    "phase", "labels", "conditions",
]  # fmt: skip


class Row(Protocol):
    """A resource as it is printed."""

    @property
    def name(self) -> str: ...
    @property
    def headers(self) -> Mapping[str, Any]: ...
    @property
    def spec(self) -> Any: ...
    @property
    def status(self) -> Mapping[str, Any]: ...
    @property
    def problem(self) -> Mapping[str, Any]: ...


class PrintedColumn(NamedTuple):
    """A column of the table that ``odfctl get`` prints."""

    title: str
    value: str | Callable[[Row], object]
    """A path, such as ``spec.url``, or ``told.Usage.bytes`` of the value of a condition; or a function."""
    form: Form = "text"
    most: int | None = 60
    """Characters of a cell; a longer one ends in an ellipsis. ``None``: none is cut short."""
    absent: str = ""
    """Stands for what is not there; empty for a dash."""
    optional: bool = False
    """Whether the column is left out where no row has a value."""

    def of(self, row: Row) -> object:
        """Returns the value of a row; ``None`` if there is none."""
        if callable(self.value):
            return self.value(row)
        head, _, rest = self.value.partition(".")
        if head == "told":
            name, _, rest = rest.partition(".")
            found = condition_value(row, name)
        else:
            found = getattr(row, head)
        for part in filter(None, rest.split(".")):
            found = found.get(part) if isinstance(found, dict) else None
        return found


class Registration(NamedTuple):
    """The entry of a type."""

    name: str
    """The short name, which stands for the URI in manifests."""
    context: str
    plural: str
    declared_in: str = ""
    """The module and the name of its ``ResourceType``."""
    aliases: tuple[str, ...] = ()
    base: str = ODF
    is_of_accounts: bool = False
    """Whether any account may own resources of the type, as its own matter. All others are the node's owner's."""
    acts: bool = False
    """Whether a resource of the type acts by itself, with the rights of the account that has it."""
    columns: tuple[PrintedColumn, ...] = ()
    """The columns after the name."""
    state: str = ""
    """The class in ``odfd.control.wire`` of what only the running node knows of a resource of the type."""
    schemas: str = ""
    """The context that its schema has in the format, if it is another one than that of its paths."""

    @property
    def collection(self) -> str:
        """The path of its resources in the API."""
        return f"/{self.context}/{VERSION}/{self.plural}"

    @property
    def uri(self) -> str:
        return f"{self.base}/{self.path}"

    @property
    def path(self) -> str:
        """The path of the type's schema."""
        return f"{self.schemas or self.context}/{VERSION}/{self.name}"


def condition_value(row: Row, condition: str) -> Any:
    """Returns the value of a condition by the last part of its URI; ``None`` if it is not told."""
    return _fields(row, condition).get("value")


def state(row: Row) -> Mapping[str, Any]:
    """Returns what only the running node knows of a resource; empty if nothing."""
    return condition_value(row, STATE) or {}


def _number_announced(row: Row) -> int | None:
    """Returns the number of datasets that are announced in a Network."""
    return len(state(row)["datasets"]) if state(row) else None


def _show_kept(row: Row) -> str:
    """Returns how much of the data of a Mirror is kept, and since which block."""
    if row.spec.get("want") == "chain":
        return "chain"
    first, keep = state(row).get("heldFrom"), row.spec.get("keep", "all")
    return f"{keep}, from #{first}" if first else str(keep)


def _met_by(row: Row) -> str | None:
    """Returns how the first head of a Mirror was accepted."""
    contact = state(row).get("contact")
    return None if contact is None else str(contact["by"]).replace("-", " ")


def _mirror_message(row: Row) -> str:
    at = state(row).get("withdrawnAt")
    told = at and f"withdrawn by its publisher on {at[:10]}: odfctl describe dataset {row.name}"
    return "; ".join(filter(None, [told, state(row).get("message")]))


def _peer_state(row: Row) -> str:
    return "blocked" if row.spec["blocked"] else "connected" if state(row).get("connected") else "away"


def _show_suspended(row: Row) -> str | None:
    return f"suspended: {state(row).get('reason')}" if state(row).get("suspended") else None


def _processes(row: Row) -> str:
    """Returns the processes of an Engine, each by its pid and dataset; a star marks busy ones."""
    return ", ".join(
        f"{one['pid']}{'*' if one['state'] == 'busy' else ''}"
        + (f" {one['name']}" if one["name"] else "")
        + (f" (Java {one['session']})" if one["session"] != "ready" else "")
        for one in state(row).get("processes", ())
    )


def _dataset_state(row: Row) -> str:
    """Returns the state of a Dataset, with the rule by which newer blocks of it are refused, and its conditions."""
    found = state(row)
    word, at = found.get("state", ""), found.get("withdrawnAt")
    said = f"{word} by {found['refusedBy']}" if found.get("refusedBy") else word
    beside = [each.lower() for each in found.get("conditions", ()) if each.lower() not in (word, "withdrawn")]
    return ", ".join([said, *beside, *([f"withdrawn by its publisher on {at[:10]}"] if at else [])])


def _reliance(row: Row) -> str | None:
    found = state(row).get("relyOn")
    return f"{found['blocks']}/{state(row)['blocks']} {found['fact']}".rstrip() if found else None


def _show_published(row: Row) -> str:
    """Returns to whom a Dataset is shown."""
    networks, peers = state(row).get("publishedIn"), len(state(row).get("sharedWith", ()))
    if networks:
        return f"in {', '.join(networks)}"
    return "yes" if state(row).get("published") else f"to {peers} peer{'s' * (peers != 1)}" if peers else "no"


def _endpoint(row: Row) -> object:
    """Returns the kind of a Source's ingress."""
    return (row.spec.get("ingress") or {"kind": "RestEndpoint"})["kind"]


def _raw(row: Row) -> object:
    """Returns what becomes of the bytes that are taken from a Source."""
    return "kept" if row.spec.get("keepRaw") else None


def _origin(row: Row) -> object:
    ingress = row.spec.get("ingress") or {}
    return next((ingress[part] for part in ("url", "path", "image") if part in ingress), None)


def _rule(row: Row) -> str:
    """Returns what a Portal withholds."""
    k = (row.spec.get("kAnonymity") or {}).get("k")
    parts = [] if k is None else [f"k = {k}"]
    return ", ".join([*parts, *(f"{each['count']} >= {each['below']}" for each in row.spec.get("suppress") or ())])


def _place(row: Row) -> str:
    """Returns the place of a PersistentVolume."""
    spec = row.spec
    if spec["kind"] == "HostPath":
        return str(spec["path"])
    return "/".join(filter(None, (spec.get("endpoint", "s3:/"), spec["bucket"], spec.get("prefix"))))


def _callers(row: Row) -> str:
    """Returns the users of the machine that act as an Account."""
    said = row.headers.get("annotations", {})
    found: Mapping[str, Any] = next((said[key] for key in said if key.rpartition("/")[2].lower() == "unixcallers"), {})
    return ", ".join([*found.get("users", ()), *(f"group {each}" for each in found.get("groups", ()))])


def _relations(row: Row) -> str:
    relations, attributes = row.spec.get("relations") or (), row.spec.get("attributes") or ()
    texts = [
        f"{relation['subject']} {relation.get('value') or relation['relation']} of {relation['object']}"
        for relation in relations
    ]
    return "; ".join(
        [*texts, *(f"{attribute['object']} {attribute['name']}" for attribute in attributes if attribute["value"])]
    )


def _flow_target(row: Row) -> str:
    """Returns the name of the dataset of a Flow, or the selector of several."""
    target = row.spec["target"]
    if isinstance(target, str):
        key = f"Dataset:{target.removeprefix('Dataset:')}"
        named = (
            each["name"]
            for each in condition_value(row, "References") or ()
            if each["reference"].casefold() == key.casefold() and "name" in each
        )
        return next(named, key.removeprefix("Dataset:"))
    labels = ",".join(f"{key}={value}" for key, value in target.get("labels", {}).items())
    return f"{target.get('name', '%')}" + (f" ({labels})" if labels else "")


def _flow_state(row: Row) -> object:
    """Returns what a Flow does; of one that is not in force, its phase."""
    return state(row).get("state") or row.status.get("phase")


def _tasks(row: Row) -> str:
    """Returns the kinds of the tasks of a Flow or a FlowRun, in order."""
    return ", ".join(each["kind"].rpartition("/")[2] for each in row.spec["tasks"])


def _task_message(row: Row) -> object:
    """Returns what went wrong, or the stage that a Task is at. One that is done is at none any more."""
    now = state(row)
    is_done = now.get("state") == "done"
    return (now.get("fault") or {}).get("detail") or now.get("finding") or (None if is_done else now.get("message"))


def _outcome(row: Row) -> Any:
    """Returns how a FlowRun ended; ``None`` if it has not."""
    return _fields(row, "RunOutcome").get("kind")


def _cause(row: Row) -> str:
    """Returns the kinds of the triggers that caused a FlowRun."""
    causes = _fields(row, "FlowRunActivationCauses").get("activationCauses", ())
    return ", ".join(dict.fromkeys(cause["trigger"]["kind"] for cause in causes))


def _fields(row: Row, condition: str) -> Mapping[str, Any]:
    """Returns a condition by the last part of its URI."""
    conditions: Mapping[str, Mapping[str, Any]] = row.status.get("conditions", {})
    return next((each for key, each in conditions.items() if key.rpartition("/")[2] == condition), {})


_PHASE: Final = PrintedColumn("PHASE", "status.phase", "phase")
_CONDITIONS: Final = PrintedColumn("CONDITIONS", "status", "conditions", 80)
_LABELS: Final = PrintedColumn("LABELS", "labels", "labels", 80)
_CHANGED: Final = PrintedColumn("CHANGED", "updated_at", "ago")
_GENERATION: Final = PrintedColumn("GENERATION", "generation", "count")
_MESSAGE: Final = PrintedColumn("", "problem.message", most=None)
_ELEMENT: Final = (PrintedColumn("SET", "spec.set", "reference"), PrintedColumn("KEY", "spec.key"), _LABELS, _CHANGED)
ANY: Final = (
    PrintedColumn("TYPE", "type"), PrintedColumn("NAME", "name"), _PHASE, _CONDITIONS,
    PrintedColumn("RETRY", "problem.retryAt", "moment"),
    _GENERATION, _CHANGED, _MESSAGE,
)  # fmt: skip
"""The columns of resources of several types."""

DATASET: Final = Registration(
    "Dataset", "dataset", "datasets", "odfd.datasets.manifest:DATASET_TYPE", ("ds",), is_of_accounts=True,
    state="DatasetState",
    columns=(
        PrintedColumn("KIND", "told.State.kind"), PrintedColumn("BLOCKS", "told.State.blocks", "count"),
        PrintedColumn("RECORDS", "told.State.records", "count"),
        PrintedColumn("WATERMARK", "told.State.watermark", "moment"), PrintedColumn("STATE", _dataset_state),
        PrintedColumn("RELY ON", _reliance), PrintedColumn("PUBLISHED", _show_published),
        PrintedColumn("PEERS", "told.State.peers", "count"),
    ),
)  # fmt: skip
FLOW: Final = Registration(
    "Flow", "flow", "flows", "odfd.flows.manifest:FLOW_TYPE", is_of_accounts=True, acts=True, schemas="flows",
    state="FlowState",
    columns=(
        PrintedColumn("TARGET", _flow_target), PrintedColumn("TASKS", _tasks),
        PrintedColumn("WHEN", "told.State.when", most=80), PrintedColumn("STATE", _flow_state),
        PrintedColumn("NEXT", "told.State.next", "moment"), PrintedColumn("LAST", "told.State.last", "ago"),
        PrintedColumn("OUTCOME", "told.State.outcome"), PrintedColumn("RUNS", "told.State.runs", "count"),
        PrintedColumn("FAILED", "told.State.failures", "count"), PrintedColumn("MISSED", "told.State.missed", "count"),
        PrintedColumn("OWED", lambda row: state(row).get("owed") or None, "count", optional=True),
        PrintedColumn("", lambda row: state(row).get("message") or row.problem.get("message"), most=None),
    ),
)  # fmt: skip
SOURCE: Final = Registration(
    "Source", "source", "sources", "odfd.ingest.source_manifest:SOURCE_TYPE", is_of_accounts=True,
    columns=(
        PrintedColumn("INGRESS", _endpoint), PrintedColumn("FROM", _origin, most=80), PrintedColumn("RAW", _raw),
        _PHASE, _LABELS, _CHANGED,
    ),
)  # fmt: skip
VARIABLE_SET: Final = Registration(
    "VariableSet", "config", "variablesets", "odfd.resources.sets:VARIABLE_SET_TYPE", ("vs",), is_of_accounts=True,
    columns=(PrintedColumn("KEYS", "spec.variables", most=80), _PHASE, _LABELS, _GENERATION, _CHANGED),
)  # fmt: skip
SECRET_SET: Final = Registration(
    "SecretSet", "config", "secretsets", "odfd.resources.sets:SECRET_SET_TYPE", ("ss",), is_of_accounts=True,
    columns=(PrintedColumn("KEYS", "spec.secrets", most=80), _PHASE, _LABELS, _GENERATION, _CHANGED),
)  # fmt: skip
WEBHOOK_TARGET: Final = Registration(
    "WebhookTarget", "sink", "webhooktargets", "odfd.store.webhook_target:WEBHOOK_TARGET_TYPE",
    ("wh", "webhook", "webhooks"), is_of_accounts=True, acts=True,
    columns=(PrintedColumn("URL", "spec.url", most=80), _PHASE, _CONDITIONS, _CHANGED, _MESSAGE),
)  # fmt: skip
PROJECTION: Final = Registration(
    "Projection", "dataset", "projections", "odfd.queries.projections:PROJECTION_TYPE", ("proj",),
    is_of_accounts=True, acts=True,
    columns=(
        PrintedColumn("ROWS", "told.Table.rows", "count"), PrintedColumn("LAG", "told.Table.lag", "count"),
        _PHASE, _LABELS, _CHANGED,
    ),
)  # fmt: skip
PERSISTENT_VOLUME: Final = Registration(
    "PersistentVolume", "storage", "persistentvolumes", "odfd.services.volumes.manifest:PERSISTENT_VOLUME_TYPE",
    ("pv", "volume", "volumes"),
    columns=(
        PrintedColumn("PLACE", _place, most=None), PrintedColumn("SLICES", "told.Usage.slices", "count", absent="0"),
        PrintedColumn("USED", "told.Usage.bytes", "size", absent="0 B"),
        PrintedColumn("CAPACITY", "spec.capacity.storage"), _PHASE, _CHANGED, _MESSAGE,
    ),
)  # fmt: skip
PORTAL: Final = Registration(
    "Portal", "dataset", "portals", "odfd.portals.manifest:PORTAL_TYPE", base=OURS, is_of_accounts=True, acts=True,
    columns=(
        PrintedColumn("FROM", "spec.input", "reference", 80), PrintedColumn("TO", "spec.dataset", "reference", 80),
        PrintedColumn("RULE", _rule, most=80), _PHASE, _CHANGED,
    ),
)  # fmt: skip
MIRROR: Final = Registration(
    "Mirror", "net", "mirrors", "odfd.services.network.network_types:MIRROR_TYPE", base=OURS, state="MirrorState",
    columns=(
        PrintedColumn("NAME", "name"), PrintedColumn("ID", "spec.source", "did"),
        PrintedColumn("STATE", "told.State.state"), PrintedColumn("BLOCKS", "told.State.blocks", "share"),
        PrintedColumn("SLICES", "told.State.slices", "share"), PrintedColumn("KEEP", _show_kept),
        PrintedColumn("HELD", "told.State.held", "size"), PrintedColumn("PEERS", "told.State.peers", "count"),
        PrintedColumn("SERVING", lambda row: "yes" if state(row).get("serving") else "no"),
        PrintedColumn("NODE", "told.State.node", "node", 100, optional=True), PrintedColumn("MET BY", _met_by),
        PrintedColumn("", _mirror_message, most=None),
    ),
)  # fmt: skip
NETWORK: Final = Registration(
    "Network", "net", "networks", "odfd.services.network.network_types:NETWORK_TYPE", ("net",), base=OURS,
    state="NetworkState",
    columns=(
        PrintedColumn("PEERS", "told.State.peers", "count"), PrintedColumn("DATASETS", _number_announced, "count"),
        PrintedColumn("BOOTSTRAP", "spec.bootstrap", most=100),
    ),
)  # fmt: skip
PEER: Final = Registration(
    "Peer", "net", "peers", "odfd.services.network.network_types:PEER_TYPE", base=OURS, state="PeerState",
    columns=(
        PrintedColumn("PEER", "spec.peerId"), PrintedColumn("NAME", "told.State.name", most=64, optional=True),
        PrintedColumn("STATE", _peer_state),
        PrintedColumn("SCORE", lambda row: f"{state(row).get('score', 0):.1f}", "count"),
        PrintedColumn("DATASETS", "told.State.datasets", "count"),
        PrintedColumn("IN", "told.State.receivedRate", "rate", optional=True),
        PrintedColumn("OUT", "told.State.sentRate", "rate", optional=True),
        PrintedColumn("SEEN", "told.State.lastSeen", "ago"),
        PrintedColumn("ADDRESS", lambda row: next(iter(state(row).get("addresses", ())), None), most=80),
    ),
)  # fmt: skip
REPOSITORY: Final = Registration(
    "Repository", "net", "repositories", "odfd.repositories.manifest:REPOSITORY_TYPE", ("repo",), base=OURS,
    columns=(
        PrintedColumn("URL", "spec.url", most=None), _PHASE,
        PrintedColumn("SIGNED UNTIL", "told.NameRecord.expiresAt", "moment"),
        PrintedColumn("RENEWED", "told.NameRecord.renewsAt", "moment"), _CHANGED,
    ),
)  # fmt: skip
VALIDATOR: Final = Registration(
    "Validator", "trust", "validators", "odfd.policy.manifest:VALIDATOR_TYPE", base=OURS, state="ValidatorState",
    columns=(
        PrintedColumn("VALIDATOR", "spec.did"), PrintedColumn("GROUP", "spec.group"),
        PrintedColumn("", _show_suspended, most=None),
    ),
)  # fmt: skip
ACCOUNT: Final = Registration(
    "Account", "auth", "accounts", "odfd.access.manifest:ACCOUNT_TYPE",
    columns=(
        PrintedColumn("TYPE", "spec.accountType", absent="User"), PrintedColumn("EMAIL", "spec.email", most=80),
        PrintedColumn("CALLERS", _callers, most=80), _CHANGED,
    ),
)  # fmt: skip
GROUP: Final = Registration(
    "Group", "auth", "groups", "odfd.access.manifest:GROUP_TYPE", is_of_accounts=True, columns=(_CHANGED,)
)
RELATIONS: Final = Registration(
    "Relations", "auth", "relations", "odfd.access.manifest:RELATIONS_TYPE", ("relation",), is_of_accounts=True,
    columns=(PrintedColumn("SAYS", _relations, most=200), _CHANGED),
)  # fmt: skip
VARIABLE: Final = Registration(
    "Variable",
    "config",
    "variables",
    "odfd.resources.sets:VARIABLE_TYPE",
    base=OURS,
    is_of_accounts=True,
    columns=_ELEMENT,
)
SECRET: Final = Registration(
    "Secret", "config", "secrets", "odfd.resources.sets:SECRET_TYPE", base=OURS, is_of_accounts=True, columns=_ELEMENT
)
TASK: Final = Registration(
    "Task", "flow", "tasks", "odfd.flows.tasks:TASK_TYPE", is_of_accounts=True, acts=True, schemas="tasks",
    state="TaskState",
    columns=(
        PrintedColumn("KIND", "told.State.kind"), PrintedColumn("TARGET", "told.State.target"),
        PrintedColumn("STATE", lambda row: "not ok" if state(row).get("finding") else state(row).get("state")),
        PrintedColumn("DONE", "told.State", "progress"), PrintedColumn("STARTED", "told.State.startedAt", "ago"),
        PrintedColumn("", _task_message, most=None),
    ),
)  # fmt: skip
FLOW_RUN: Final = Registration(
    "FlowRun", "flow", "flowruns", "odfd.flows.tasks:FLOW_RUN_TYPE", is_of_accounts=True, acts=True, schemas="flows",
    columns=(
        PrintedColumn("TARGET", "spec.target", "reference"), PrintedColumn("TASKS", _tasks),
        PrintedColumn("CAUSE", _cause), PrintedColumn("OUTCOME", _outcome), _PHASE, _CHANGED, _MESSAGE,
    ),
)  # fmt: skip
TRUST_POLICY: Final = Registration(
    "TrustPolicy", "trust", "trustpolicies", "odfd.policy.manifest:TRUST_POLICY_TYPE", ("tp",), base=OURS,
    columns=(
        PrintedColumn("DATASETS", "spec.datasets"), PrintedColumn("USE", "spec.use"),
        PrintedColumn("SERVE", "spec.serve"),
        PrintedColumn("PRIORITY", "spec.priority", "count", absent="0"), _PHASE, _LABELS, _CHANGED,
    ),
)  # fmt: skip
ENGINE: Final = Registration(
    "Engine", "node", "engines", "odfd.services.resources.node_types:ENGINE_TYPE", base=OURS, state="EngineView",
    columns=(
        PrintedColumn("ENGINE", "told.State.name"), PrintedColumn("DIGEST", "told.State.digest", "digest"),
        PrintedColumn("SANDBOX", "told.State.sandbox"), PrintedColumn("ISOLATION", "told.State.isolation"),
        PrintedColumn("STATE", "told.State.state"), PrintedColumn("PROCESSES", _processes, most=200),
    ),
)  # fmt: skip
NODE: Final = Registration(
    "Node", "node", "nodes", "odfd.services.resources.node_types:NODE_TYPE", base=OURS, state="NodeState",
    columns=(
        PrintedColumn("NAME", lambda row: row.spec.get("name", row.name)),
        PrintedColumn("PEER ID", "told.State.peerId", most=None),
        PrintedColumn("VERSION", "told.State.version"), PrintedColumn("LISTEN", "told.State.listen", most=200),
        PrintedColumn("NETWORKS", "told.State.networks", most=80), PrintedColumn("STARTED", "updated_at", "ago"),
    ),
)  # fmt: skip
ALL: Final = (
    DATASET, FLOW, SOURCE, VARIABLE_SET, SECRET_SET, WEBHOOK_TARGET, PROJECTION, PERSISTENT_VOLUME, PORTAL, MIRROR,
    NETWORK, PEER, REPOSITORY, VALIDATOR, ACCOUNT, GROUP, RELATIONS, VARIABLE, SECRET, TASK, FLOW_RUN, TRUST_POLICY,
    ENGINE, NODE,
)  # fmt: skip
OF_ACCOUNTS: Final = frozenset(each.name for each in ALL if each.is_of_accounts)
"""The types of resources that any account may own and apply: its own matters, bounded by its rights at each use.

All others are of the node, and so of its owner.
"""
ACTING: Final = frozenset(each.name for each in ALL if each.acts)
"""The types of what acts by itself: nobody but its account changes it, and it is looked at again when rights change."""
