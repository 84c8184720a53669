"""Values of the control API. Their JSON (camelCase, times in RFC 3339) is the contract of ``odfctl -o json``.

Plain values: they hold no truth of their own, are made for one answer and forgotten. Fields are only ever added.
An optional field is ``null`` when it does not apply; hashes and identities are text as the format spells them.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from chain.errors import Fault
from odfd import errors


class Value(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Something the API says."""


class Request(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Something the API is asked. An unknown field is a mistake of the caller, not a wish to be ignored."""


class Problem(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A fault inside a larger answer: the members of ``odfd.errors.to_problem``."""

    title: str = ""
    status: int = 0
    detail: str = ""
    family: str = ""
    exit_code: int = 70
    rule: str = ""
    hint: str = ""
    place: str = ""
    causes: tuple[str, ...] = ()

    @classmethod
    def of(cls, fault: Fault) -> Problem:
        return msgspec.convert(errors.to_problem(fault), cls)


# --- node


class EngineView(Value, frozen=True, kw_only=True):
    name: str
    digest: str | None = None
    sandbox: str | None = None
    """Level in use: ``image``, ``host`` or ``none``."""
    state: str = "idle"
    """``stopped``, ``starting``, ``idle``, ``busy``, ``failed``."""


class DiskView(Value, frozen=True, kw_only=True):
    """Bytes, of the file system that holds the state directory, and of the state directory itself."""

    path: str
    total: int
    free: int
    objects: int | None = None
    database: int | None = None


class Status(Value, frozen=True, kw_only=True):
    node_id: str
    """``did:key:…`` of the node."""
    version: str
    name: str = ""
    peer_id: str | None = None
    listen: tuple[str, ...] = ()
    """Multiaddrs, each with ``/p2p/<peer id>``: what another node puts after ``--bootstrap``."""
    networks: tuple[str, ...] = ()
    peers: int = 0
    """Connected now."""
    datasets: dict[str, int] = {}
    """Count by state."""
    engine: EngineView | None = None
    disk: DiskView | None = None
    tasks: int = 0
    """Running or waiting."""
    started_at: str | None = None
    pid: int | None = None
    memory: int | None = None
    """Resident bytes of the daemon."""


class Probe(Value, frozen=True, kw_only=True):
    """One thing that ``odfctl doctor`` tried."""

    name: str
    result: Literal["ok", "warning", "failed"]
    message: str
    hint: str = ""


# --- datasets


class Reliance(Value, frozen=True, kw_only=True):
    """How far a dataset may be relied on for use: blocks ``0 .. blocks-1``, and by which fact."""

    blocks: int
    fact: str = ""
    """``data``, ``attested 2/3``, ``refuted at #7``."""


class DatasetView(Value, frozen=True, kw_only=True):
    """A row of ``odfctl get datasets``."""

    name: str
    id: str
    kind: Literal["root", "derivative"]
    blocks: int
    records: int | None = None
    bytes: int | None = None
    """Of all slices."""
    watermark: str | None = None
    head: str | None = None
    state: str = "fresh"
    """``fresh``, ``stale``, ``syncing``, ``blocked``, ``refuted``, ``forked``, ``failed``."""
    owner: bool = False
    """This node holds the key that signs its heads."""
    rely_on: Reliance | None = None
    peers: int | None = None
    """How many peers are known to hold it."""


class DatasetDetail(Value, frozen=True, kw_only=True):
    dataset: DatasetView
    description: str | None = None
    keywords: tuple[str, ...] = ()
    source: dict[str, Any] | None = None
    """The polling or push source in force, as its manifest."""
    transform: dict[str, Any] | None = None
    inputs: tuple[str, ...] = ()
    """``name (did)`` of each input, in order."""
    outputs: tuple[str, ...] = ()
    """Names of datasets here that are derived from it."""
    created_at: str | None = None
    updated_at: str | None = None


class BlockView(Value, frozen=True, kw_only=True):
    """A row of ``odfctl log``."""

    sequence_number: int
    hash: str
    system_time: str
    event: str
    """Name of the event: ``AddData``."""
    summary: str = ""
    """What it says, in one line: ``28,834 records, watermark 2013-02-28``."""
    size: int = 0


class BlockDetail(Value, frozen=True, kw_only=True):
    """``block show``: the MetadataBlock manifest, and what stands beside it."""

    hash: str
    manifest_version: int
    size: int
    manifest: dict[str, Any]


class Column(Value, frozen=True, kw_only=True):
    name: str
    type: str
    """ODF spelling: ``Int64``, ``Timestamp(Millisecond, UTC)``."""
    optional: bool = True


class Records(Value, frozen=True, kw_only=True):
    """Rows as JSON values; decimals and 64-bit numbers beyond 2^53 as text."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]


class Schema(Value, frozen=True, kw_only=True):
    ref: str
    fields: tuple[Column, ...]
    manifest: dict[str, Any] | None = None
    """The DataSchema as a manifest."""


class ManifestText(Request, frozen=True, kw_only=True):
    """A YAML stream of manifests, and the name of where it came from, for messages."""

    source: str
    text: str


class ApplyRequest(Request, frozen=True, kw_only=True):
    manifests: tuple[ManifestText, ...]
    dry_run: bool = False
    base: str = ""
    """Folder that relative paths in manifests start from; absolute."""


class ApplyItem(Value, frozen=True, kw_only=True):
    kind: str
    name: str
    action: Literal["created", "updated", "unchanged", "failed"]
    id: str | None = None
    changes: tuple[str, ...] = ()
    """What differs, one line each."""
    warnings: tuple[str, ...] = ()
    fault: Problem | None = None


class ApplyResult(Value, frozen=True, kw_only=True):
    """Result of the task ``apply``. ``dry_run``: nothing was changed."""

    items: tuple[ApplyItem, ...]
    dry_run: bool = False


class Upload(Value, frozen=True, kw_only=True):
    """Bytes that a client brought and the daemon keeps until they are ingested, or for a while."""

    id: str
    name: str
    size: int


class IngestRequest(Request, frozen=True, kw_only=True):
    uploads: tuple[str, ...]
    """Ids of uploads, in order."""
    format: str | None = None
    """``csv``, ``ndjson``, ``json``, ``parquet``; ``None``: as the push source says."""
    event_time: str | None = None
    source: str | None = None
    """Name of the push source; ``None``: the only one."""


class PullRequest(Request, frozen=True, kw_only=True):
    refs: tuple[str, ...] = ()
    all: bool = False
    recursive: bool = False
    repair: bool = False
    """Look at every object again and fetch the damaged ones anew."""


class PullItem(Value, frozen=True, kw_only=True):
    ref: str
    outcome: Literal["updated", "up-to-date", "blocked", "failed"]
    message: str = ""
    blocks: int = 0
    """Blocks that came with it."""
    records: int = 0
    head: str | None = None
    fault: Problem | None = None


class PullResult(Value, frozen=True, kw_only=True):
    """Result of the tasks ``pull`` and ``ingest``."""

    items: tuple[PullItem, ...]


class ExportRequest(Request, frozen=True, kw_only=True):
    to: str
    """Absolute path or URL, as the daemon sees it."""


class ImportRequest(Request, frozen=True, kw_only=True):
    source: str
    """Absolute path or URL, as the daemon sees it."""
    as_name: str | None = None


class TransferResult(Value, frozen=True, kw_only=True):
    """Result of the tasks ``export`` and ``import``."""

    ref: str
    place: str
    blocks: int
    objects: int
    bytes: int


# --- mirrors, networks, peers


class Share(Value, frozen=True, kw_only=True):
    """How much of something is here."""

    have: int
    want: int


class MirrorRequest(Request, frozen=True, kw_only=True):
    source: str
    """``did:odf:…``, a name that one peer announces, or a URL."""
    as_name: str | None = None
    network: str | None = None
    want: Literal["chain", "data"] = "data"
    use: str | None = None
    """An expression of policy, for using it here; ``None``: the node's."""
    serve: str | None = None
    expect: str | None = None
    """Hash that the chain must contain: a head learned from a person, not from the network."""


class MirrorView(Value, frozen=True, kw_only=True):
    name: str
    id: str
    state: str
    """``syncing``, ``current``, ``waiting``, ``stalled``, ``refused``, ``failed``."""
    want: str = "data"
    network: str | None = None
    use: str | None = None
    serve: str | None = None
    serving: bool = False
    blocks: Share | None = None
    slices: Share | None = None
    bytes: Share | None = None
    peers: int = 0
    message: str = ""


class NetworkRequest(Request, frozen=True, kw_only=True):
    name: str
    bootstrap: tuple[str, ...] = ()
    """Multiaddrs with ``/p2p/…``."""


class NetworkView(Value, frozen=True, kw_only=True):
    name: str
    bootstrap: tuple[str, ...] = ()
    peers: int = 0
    datasets: tuple[Announced, ...] = ()
    """What is announced in it."""


class Announced(Value, frozen=True, kw_only=True):
    """A dataset that somebody signs heads of, whether we hold it or not."""

    id: str
    name: str | None = None
    blocks: int = 0
    head: str | None = None
    signed_at: str | None = None
    peers: int = 0
    held: bool = False


class PeerInfo(Value, frozen=True, kw_only=True):
    peer_id: str
    addresses: tuple[str, ...] = ()
    connected: bool = False
    score: float = 0.0
    last_seen: str | None = None
    blocked: bool = False
    datasets: int | None = None
    """How many it is known to hold."""


# --- verification and trust


class VerifyRequest(Request, frozen=True, kw_only=True):
    level: Literal["chain", "data", "reproduced"] = "data"
    from_block: int = 0
    full: bool = False
    """Forget what was verified before."""


class FailedBlock(Value, frozen=True, kw_only=True):
    hash: str | None
    sequence_number: int | None


class Failure(Value, frozen=True, kw_only=True):
    block: FailedBlock
    rule: str
    message: str
    expected: Any = None
    actual: Any = None


class Checked(Value, frozen=True, kw_only=True):
    """How much was looked at."""

    blocks: int = 0
    slices: int = 0
    bytes: int = 0
    transforms: int = 0


class VerifyReport(Value, frozen=True, kw_only=True):
    """Result of the task ``verify``, and the answer of ``odfctl verify``."""

    ref: str
    dataset_id: str
    head: str | None
    blocks: int
    level: str
    ok: bool
    checked: Checked
    failures: tuple[Failure, ...] = ()


class Reach(Value, frozen=True, kw_only=True):
    """Last block that a purpose may rely on; -1: none."""

    use: int
    serve: int


class Why(Value, frozen=True, kw_only=True):
    """The rule that ends the reach, at which block, because of which statements."""

    rule: str
    block: int | None = None
    sids: tuple[str, ...] = ()
    message: str = ""


class Attested(Value, frozen=True, kw_only=True):
    have: int
    needed: int


class TrustFacts(Value, frozen=True, kw_only=True):
    reproduced: bool = False
    attested: Attested | None = None
    witnessed: bool | None = None
    fresh: bool | None = None
    forked: bool = False


class AttestationView(Value, frozen=True, kw_only=True):
    validator: str
    group: str | None = None
    spans: tuple[str, ...] = ()
    """``reproduced 0-13``, ``mismatch at #7``."""
    at: str | None = None
    engine: str | None = None
    platform: str | None = None


class CellView(Value, frozen=True, kw_only=True):
    """One difference between what was published and what was computed."""

    block: int
    row: int
    column: str
    published: Any = None
    computed: Any = None
    context: dict[str, Any] = {}
    """Other columns of the row, to know it by."""


class EvidenceView(Value, frozen=True, kw_only=True):
    id: str
    kind: str
    dataset: str
    block: int | None = None
    at: str | None = None
    message: str = ""
    cells: tuple[CellView, ...] = ()


class TrustView(Value, frozen=True, kw_only=True):
    ref: str
    dataset_id: str
    head: str | None = None
    epoch: int = 0
    signed_at: str | None = None
    blocks: int = 0
    reach: Reach
    why: Why | None = None
    facts: TrustFacts
    attestations: tuple[AttestationView, ...] = ()
    dissent: tuple[AttestationView, ...] = ()
    unlisted: int = 0
    """Validators that spoke and stand in no group of ours."""
    evidence: tuple[EvidenceView, ...] = ()


class ValidatorRequest(Request, frozen=True, kw_only=True):
    key: str
    """``did:key:…``"""
    group: str


class ValidatorView(Value, frozen=True, kw_only=True):
    key: str
    group: str
    attestations: int = 0
    last_seen: str | None = None


class PolicyView(Value, frozen=True, kw_only=True):
    """The policy in force, and where each part of it comes from."""

    profile: str
    use: str
    serve: str
    groups: dict[str, tuple[str, ...]] = {}
    publish: tuple[str, ...] = ()
    """What this node signs and gossips: ``attest``, ``cosign``, ``gossip``."""
    settings: dict[str, Any] = {}


# --- tasks and events


class TaskRef(Value, frozen=True, kw_only=True):
    """A long operation that goes on, whether or not anyone watches."""

    id: str
    kind: str
    target: str = ""


class TaskView(Value, frozen=True, kw_only=True):
    id: str
    kind: str
    target: str = ""
    state: Literal["waiting", "running", "done", "failed", "cancelled"]
    done: int = 0
    total: int | None = None
    unit: str = ""
    """What ``done`` and ``total`` count: ``blocks``, ``bytes``, ``transforms``."""
    message: str = ""
    """What it is at now."""
    started_at: str | None = None
    finished_at: str | None = None
    result: Any = None
    """The result's own JSON, once done."""
    fault: Problem | None = None


class EventView(Value, frozen=True, kw_only=True):
    """A line of ``odfctl watch``. The kind ``lagged`` says that events were lost to this reader: ``data.missed``."""

    sequence: int
    time: str
    kind: str
    """``dataset.appended``, ``mirror.synced``, ``verdict.mismatch``, ``peer.connected``, ``task.done``, …"""
    subject: str = ""
    """The dataset, peer or task it is about."""
    message: str = ""
    data: dict[str, Any] = {}
