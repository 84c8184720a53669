"""Declares every setting: its type, default, unit, bounds and reason. Frozen values; nothing here reads anything.

Each class is a table of the file, each field a key of it (``state_dir`` is written ``state-dir``). A default of
``None`` means that the setting is not given; the code that uses it decides, and the reason says how.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from config.log_levels import LEVELS


@dataclass(frozen=True, slots=True)
class About:
    """Unit, bounds and reason of a setting, next to its type and default."""

    why: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    secret: bool = False
    door: str = ""
    """The door of the node that a value opens (``odfd.queries.doors``)."""
    example: Any = None
    """Example value of a setting whose default is ``None``."""


def setting(default: Any, why: str, **about: Any) -> Any:
    """Declares a field with its ``About`` in the metadata."""
    return field(default=default, metadata={"about": About(why, **about)})


def about(of: dataclasses.Field[Any]) -> About | None:
    """Returns what is declared about a setting; ``None`` for a field that is itself a table."""
    found = of.metadata.get("about")
    return found if isinstance(found, About) else None


@dataclass(frozen=True, slots=True)
class Node:
    name: str = setting("", "display name of the node in tables, logs and on cards; never an identity")
    contact: str = setting("", "where its operator can be reached; one line, on the node's card")
    about: str = setting("", "what its operator says about it; one line, on the node's card")
    state_dir: str = setting(
        "", "folder of chains, objects and keys; empty: systemd's StateDirectory, else XDG_STATE_HOME/odfd"
    )
    log_level: str = setting("info", "least important lines to log", choices=LEVELS)
    log_levels: tuple[str, ...] = setting(
        (), "levels of single parts, like p2p.driver=debug or events=debug; each line of the log names its part"
    )
    log_format: str = setting(
        "auto", "format of the log; auto: text on a terminal, JSON elsewhere", choices=("auto", "text", "json")
    )
    drain_seconds: float = setting(
        30.0,
        "time for work in progress when the daemon is asked to stop; must be below TimeoutStopSec",
        unit="s",
        low=0,
        high=3600,
    )
    memory_mib: int = setting(
        4096,
        "memory of the daemon without engines and queries; enforced where control groups are "
        "delegated, as by systemd; 0: no limit",
        unit="MiB",
        low=0,
    )
    doors: tuple[str, ...] = setting(
        (), "listeners of other packages to open, by name; each package says how its listener is set up"
    )
    collect_hours: float = setting(
        24.0,
        "time between collections of objects that nothing refers to; 0: only by odfctl gc",
        unit="h",
        low=0,
        high=8760,
    )


@dataclass(frozen=True, slots=True)
class Control:
    socket: str = setting(
        "", "socket at which odfctl finds the daemon; empty: in the runtime folder, or the state folder"
    )
    group: str = setting(
        "", "group whose members may command the node, beside its own user and root; empty: no other user"
    )


@dataclass(frozen=True, slots=True)
class P2p:
    listen: tuple[str, ...] | None = setting(
        None,
        "multiaddrs to listen at; not said: port 4150 of all addresses, or the next free one, while a network is "
        "joined; empty: only dial",
        example=("/ip4/0.0.0.0/tcp/4150",),
    )
    announce: tuple[str, ...] = setting((), "multiaddrs to announce in place of those found; for a node behind a NAT")
    card: bool = setting(
        False, "announce node.name, node.contact and node.about to its networks, signed by the node's key"
    )
    lookup: str = setting(
        "auto",
        "look up who serves a dataset beyond the directory of nodes: auto: when the directory is full",
        choices=("auto", "on", "off"),
    )
    relays: tuple[str, ...] = setting(
        (),
        "relays through which others reach this node, with /p2p/…; for a node behind a closed router",
    )
    relay: bool = setting(False, "be such a relay for members of the joined networks")
    relay_rate: int = setting(4_194_304, "most bytes per second relayed for others; 0: no limit", unit="B/s", low=0)
    network: str = setting("", "network to join at start; empty: those joined by odfctl")
    bootstrap: tuple[str, ...] = setting((), "peers to contact first in that network, with /p2p/…")
    max_peers: int = setting(64, "most connections at once; each costs about 1 MB of buffers", low=1, high=4096)
    max_streams: int = setting(256, "most streams of one connection; further ones are reset", low=8, high=4096)
    dial_seconds: float = setting(
        10.0, "time to connect to a peer and to secure the connection", unit="s", low=0.1, high=300
    )
    inside: tuple[str, ...] | None = setting(
        None,
        "private networks, like 192.168.1.0/24, in which addresses that peers announce are "
        "dialled; not said: only this machine, while listen, announce, bootstrap and relays "
        "name nothing beyond it",
        example=("192.168.1.0/24",),
    )
    mdns: bool = setting(False, "find peers of the same network on the LAN, and be found there, by multicast DNS")
    download_rate: int = setting(
        0, "most bytes per second of chains and objects to download from all; 0: no limit", unit="B/s", low=0
    )
    upload_rate: int = setting(
        0, "most bytes per second to upload to all peers together; 0: no limit", unit="B/s", low=0
    )
    idle_seconds: float = setting(30.0, "time without a byte before a transfer moves to another peer", unit="s", low=1)


@dataclass(frozen=True, slots=True)
class Http:
    listen: tuple[str, ...] = setting(
        (),
        "addresses that serve published datasets over HTTP to any client, like 127.0.0.1:8080 or "
        "[::]:8080; empty: none",
    )
    query: bool = setting(
        False,
        "answer queries there over published datasets, as a kamu node does: /query, /NAME/tail, /NAME/metadata",
        door="kamu",
    )
    prove: bool = setting(
        False, "sign answers there with the node's key for callers that ask with include=proof; needs query"
    )
    push: bool = setting(
        False, "accept pushes of datasets there from callers with a token, as a kamu node does: /NAME/push"
    )
    witness: bool = setting(
        False, "accept tree notes there of the datasets in policy.publish.witness, at /witness/add-checkpoint"
    )
    ui: str = setting(
        "",
        "address of the web UI (odfctl ui), like 127.0.0.1:7464; empty: a free port of this "
        "machine, on request; addresses beyond this machine need TLS and tokens",
    )
    ui_certificate: str = setting("", "PEM file with the web UI's certificates, which name its host; empty: no TLS")
    ui_key: str = setting("", "PEM file with the certificate's private key")
    ui_tokens: str = setting("", "file readable by its owner only, NAME TOKEN per line: each token opens the web UI")


@dataclass(frozen=True, slots=True)
class Metrics:
    listen: tuple[str, ...] = setting(
        (), "addresses of /metrics, /livez and /readyz, on this machine only, like 127.0.0.1:9464; empty: none"
    )


@dataclass(frozen=True, slots=True)
class Traces:
    endpoint: str = setting(
        "",
        "OpenTelemetry collector that takes traces by OTLP over HTTP, like "
        "http://127.0.0.1:4318/v1/traces; beyond this machine by https://; empty: no traces",
    )


@dataclass(frozen=True, slots=True)
class Engine:
    cores: int = setting(0, "threads of Spark; 0: as many as the machine has", low=0, high=1024)
    heap_mib: int = setting(2048, "heap of the JVM", unit="MiB", low=256)
    quick_start: bool = setting(
        False, "compile only with the JVM's first compiler: half the CPU of a start, but slower for large transactions"
    )
    idle_seconds: float = setting(
        300.0, "time before an unused engine is stopped; a running one keeps its heap", unit="s", low=1
    )
    isolation: str = setting(
        "shared", "shared: datasets share one engine process; dataset: each has its own", choices=("shared", "dataset")
    )
    max_processes: int = setting(
        4, "most engine processes at once, if each dataset has its own; each may take its heap", low=1, high=1024
    )
    start_seconds: float = setting(
        120.0, "time for an engine to start, 300 s more on a cluster; then the start has failed", unit="s", low=1
    )
    request_seconds: float = setting(3600.0, "time of one transaction; then the engine is stopped", unit="s", low=1)
    transaction_rows: int = setting(
        10_000_000, "input rows that one transaction takes, about; a longer backlog takes several transactions", low=1
    )
    sandbox: str = setting(
        "auto",
        "weakest isolation to accept; auto: host under systemd, none (with a warning) elsewhere",
        choices=("auto", "none", "host", "image", "container"),
    )
    java_home: str = setting(
        "", "home of a Java 17 or newer, in place of JAVA_HOME; empty: JAVA_HOME, the PATH, or the wheel"
    )
    master: str = setting(
        "", "Spark cluster to run on: spark://HOST:PORT, yarn or k8s://…; empty: this machine; see odfctl docs cluster"
    )
    cluster_address: str = setting("127.0.0.1", "address of this machine at which the cluster's executors reach it")
    cluster_settings: str = setting(
        "", "file with further settings of Spark for the cluster, a name and value per line"
    )


@dataclass(frozen=True, slots=True)
class Query:
    readers: int = setting(4, "most queries at once; further ones wait for a slot", low=1, high=256)
    threads: int = setting(2, "threads of one query", low=1, high=256)
    memory_mib: int = setting(
        1024, "memory of one query; what does not fit goes to its temporary disk", unit="MiB", low=64
    )
    temporary_mib: int = setting(4096, "temporary disk of one query; beyond it the query is refused", unit="MiB", low=0)
    folds_mib: int = setting(
        1024, "disk for cached current rows of datasets; 0: each query folds all rows", unit="MiB", low=0
    )
    seconds: float = setting(300.0, "time of one query, from its text to its last row", unit="s", low=1)


@dataclass(frozen=True, slots=True)
class Api:
    listen: tuple[str, ...] = setting(
        (),
        "addresses at which odfctl and programs of other machines command the node, by tokens "
        "of accounts, like 127.0.0.1:7465 or [::]:7465; addresses beyond this machine need "
        "TLS; empty: none",
    )
    certificate: str = setting("", "PEM file with the certificates for TLS, which name its host; empty: no TLS")
    key: str = setting("", "PEM file with the certificate's private key")


@dataclass(frozen=True, slots=True)
class Flight:
    listen: tuple[str, ...] = setting(
        (),
        "addresses of Arrow Flight SQL, like 127.0.0.1:50050; addresses beyond this machine "
        "need TLS and tokens; empty: none",
        door="flight",
    )
    certificate: str = setting("", "PEM file with the certificates for TLS; empty: no TLS")
    key: str = setting("", "PEM file with the certificate's private key")
    tokens: str = setting(
        "",
        "file readable by its owner only, NAME TOKEN per line: callers with a token read what "
        "odfctl sql reads, others what is published",
    )
    connections: int = setting(64, "most connections at once", low=1, high=4096)


@dataclass(frozen=True, slots=True)
class Ingest:
    variables: tuple[str, ...] = setting(
        (),
        "variables of the daemon's environment that sources may use as ${{ env.NAME }}; all "
        "others are hidden from them",
    )
    source_bytes: int = setting(
        64 * 2**30, "largest size of a source file, as received and after each step of its preparation", unit="B", low=1
    )
    unpack_ratio: int = setting(
        250, "most times that unpacking may enlarge a source file; beyond it the file is refused as a bomb", low=2
    )
    record_bytes: int = setting(
        16 * 2**20,
        "largest record of a text: a line, a row of CSV, an element of a JSON document; an engine takes several times "
        "as much memory for it",
        unit="B",
        low=1024,
    )
    folders: tuple[str, ...] = setting(
        (),
        "folders that sources may read by FilesGlob or file://, with all below them; empty: any except the node's own",
    )
    connect_seconds: float = setting(
        10.0, "time to resolve a web server's name, to connect, and for TLS, each", unit="s", low=0.1
    )
    silence_seconds: float = setting(
        60.0, "time without a byte before a fetch from a web server fails", unit="s", low=0.1
    )
    least_rate: int = setting(
        1024,
        "least bytes per second of a web server, measured over silence-seconds; a slower fetch fails",
        unit="B/s",
        low=0,
    )
    fetch_seconds: float = setting(
        14_400.0, "time to fetch one file, from the request to its last byte", unit="s", low=0.1
    )
    settle_seconds: float = setting(1.0, "time since its last change before a local file is taken", unit="s", low=0)
    settle_closed_seconds: float = setting(
        0.05, "the same for a file that no program has open for writing, where the system reports that", unit="s", low=0
    )
    pipe: str = setting(
        "sandbox",
        "where commands of prepare: Pipe run; sandbox: without network and files; user: as the daemon's user",
        choices=("sandbox", "user", "never"),
    )
    pipe_memory_mib: int = setting(1024, "memory of one such command", unit="MiB", low=16)
    pipe_seconds: float = setting(3600.0, "time of one such command; then it is stopped", unit="s", low=0.1)
    container: str = setting(
        "never",
        "whether podman runs images of fetch: Container; offline: without a network; network: "
        "with one, if the source asks",
        choices=("never", "offline", "network"),
    )
    container_memory_mib: int = setting(1024, "memory of one such container", unit="MiB", low=16)


@dataclass(frozen=True, slots=True)
class Flows:
    follow: bool = setting(True, "derive datasets without a flow automatically when their inputs have new data")
    cooldown_seconds: float = setting(
        60.0, "least time from the end of such a run to the next, so that news in quick succession "
"take one run", unit="s", low=0,
        high=86_400,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Webhooks:
    inside: tuple[str, ...] = setting(
        (),
        "private networks in which WebhookTargets may be, also without TLS",
        example=("192.168.1.0/24",),
    )


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keys of one operator, which have one vote together."""

    name: str
    """Name of the group, for people."""
    keys: tuple[str, ...]
    """The keys, each as ``did:key:…``."""


@dataclass(frozen=True, slots=True)
class Validators:
    f: int = setting(1, "groups that may be faulty or dishonest at the same time", low=0, high=100)
    min_sandbox: str | None = setting(
        None, "weakest isolation under which a verdict counts; not said: by profile", example="image"
    )
    min_engines: int = setting(1, "number of different engine digests that must agree", low=1, high=100)
    spot_check: float | None = setting(
        None, "share of steps to run again without attesting; not said: by profile", low=0, high=1, example=0.01
    )
    step_seconds: int = setting(
        600, "time of an engine for one step of others; beyond it the step is reported as too costly", unit="s", low=1
    )
    recheck: bool = setting(
        True, "fetch evidence of listed validators about datasets that are here, and run the step again"
    )
    groups: tuple[Group, ...] = setting((), "validators whose verdicts count, by group")


@dataclass(frozen=True, slots=True)
class Witness:
    f: int = setting(0, "witnesses that may be dishonest at the same time", low=0, high=100)
    quorum: int = setting(0, "cosignatures that make a head witnessed; 0: none are required", low=0, high=100)
    max_age: str = setting("7d", "greatest age of a cosignature")
    groups: tuple[Group, ...] = setting(
        (), "witnesses whose cosignatures count, by group: a did:key:…, or the NAME+ID+KEY of a public one"
    )
    public: tuple[str, ...] = setting(
        (), "public witnesses (c2sp.org/tlog-witness) that cosign what is published here: NAME+ID+KEY https://HOST/…"
    )


@dataclass(frozen=True, slots=True)
class Fresh:
    max_stale: str | None = setting(
        None, "time past a head's end until it is stale: 14d, 36h, never; not said: by profile", example="14d"
    )


@dataclass(frozen=True, slots=True)
class Rewrite:
    follow: str | None = setting(None, "what to do with a rewritten history (a new epoch); not said: by profile",
                                 choices=("ask", "follow", "refuse"), example="ask")  # fmt: skip
    keep_epochs: int | None = setting(
        None,
        "epochs whose blocks are kept, including the present one; not said: by profile",
        low=1,
        high=1_000_000,
        example=2,
    )


@dataclass(frozen=True, slots=True)
class Publish:
    datasets: bool = setting(
        False,
        "publish every dataset of this node's own, later ones too; otherwise each is private until odfctl publish",
    )
    attest: bool | None = setting(
        None, "run derived datasets again and sign verdicts; not said: by profile", example=True
    )
    attest_seconds: float = setting(
        600.0,
        "least time between two attestations of one dataset; what is wrong is reported at once",
        unit="s",
        low=0,
        high=86_400,
    )
    own_key: bool = setting(
        False, "sign verdicts and observations by keys/validator.key, not by the node's key; from the next start on"
    )
    observe: bool = setting(
        False, "fetch the declared web sources of other nodes' source datasets, and sign the results"
    )
    cosign: bool | None = setting(None, "sign heads of mirrors as a witness; not said: by profile", example=True)
    witness: tuple[str, ...] = setting(
        (), "did:odf:… of further datasets whose heads to sign as a witness, mirrored here or not"
    )
    ipfs: bool = setting(False, "publish every published dataset of this node's own on IPFS, too")


@dataclass(frozen=True, slots=True)
class Policy:
    profile: str = setting(
        "laptop", "sets the defaults of all that is not set below", choices=("laptop", "mirror", "validator", "archive")
    )  # fmt: skip
    use: str | None = setting(
        None,
        "facts that a transform needs to read a block of others; queries read any, and report it; not said: by profile",
        example="data & reproduced",
    )
    serve: str | None = setting(
        None, "facts required before data is served to others; not said: by profile", example="data"
    )
    network_key: str = setting(
        "", "did:key:… whose signed policies apply here: stricter rules at once, others once accepted"
    )
    validators: Validators = field(default_factory=Validators)
    witness: Witness = field(default_factory=Witness)
    fresh: Fresh = field(default_factory=Fresh)
    rewrite: Rewrite = field(default_factory=Rewrite)
    publish: Publish = field(default_factory=Publish)


@dataclass(frozen=True, slots=True)
class Ipfs:
    api: str = setting("", "RPC address of a Kubo, like http://127.0.0.1:5001; empty: no IPFS")
    token: str = setting("", "token that the Kubo requires as Authorization: Bearer", secret=True)


@dataclass(frozen=True, slots=True)
class Limits:
    object_bytes: int = setting(
        16 * 2**30, "largest object to take from others; slices are far smaller", unit="B", low=1
    )
    upload_bytes: int = setting(16 * 2**30, "largest file to ingest by upload", unit="B", low=1)
    spool_bytes: int = setting(2**30, "most bytes of waiting pushes of one Source", unit="B", low=1)
    disk_reserve_bytes: int = setting(2**30, "bytes to leave free on the state directory's disk; below, take nothing",
                                      unit="B", low=0)  # fmt: skip
    mirror_bytes: int = setting(
        0,
        "most bytes of mirrors on disk: data, blocks, and what is unfinished or staged; 0: as much as the disk has",
        unit="B",
        low=0,
    )
    tasks_running: int = setting(16, "most long operations at once; further ones wait", low=1, high=1024)
    tasks_kept: int = setting(500, "finished tasks that odfctl get tasks still shows", low=1, high=100_000)
    events_kept: int = setting(4096, "events kept for odfctl watch --since", low=16, high=1_000_000)


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings. After ``load``, ``state_dir``, ``socket`` and ``sandbox`` hold their effective values."""

    node: Node = field(default_factory=Node)
    control: Control = field(default_factory=Control)
    p2p: P2p = field(default_factory=P2p)
    http: Http = field(default_factory=Http)
    metrics: Metrics = field(default_factory=Metrics)
    traces: Traces = field(default_factory=Traces)
    engine: Engine = field(default_factory=Engine)
    query: Query = field(default_factory=Query)
    flight: Flight = field(default_factory=Flight)
    api: Api = field(default_factory=Api)
    ingest: Ingest = field(default_factory=Ingest)
    flows: Flows = field(default_factory=Flows)
    webhooks: Webhooks = field(default_factory=Webhooks)
    policy: Policy = field(default_factory=Policy)
    ipfs: Ipfs = field(default_factory=Ipfs)
    limits: Limits = field(default_factory=Limits)


MAX_FILE: Final = 1 << 20
"""Largest settings file, in bytes."""
