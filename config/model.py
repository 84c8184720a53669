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
    name: str = setting("", "what people call this node in tables, logs and on cards; never an identity")
    contact: str = setting("", "where its operator can be reached, for the node's card; one line")
    about: str = setting("", "what its operator says of it, for the node's card; one line")
    state_dir: str = setting("", "chains, objects, keys; empty: systemd's StateDirectory, else XDG_STATE_HOME/odfd")
    log_level: str = setting("info", "what is worth a line", choices=LEVELS)
    log_levels: tuple[str, ...] = setting(
        (), "of single parts, like p2p.driver=debug or events=debug; the part stands in each line of the log"
    )
    log_format: str = setting("auto", "auto is text on a terminal, JSON elsewhere", choices=("auto", "text", "json"))
    drain_seconds: float = setting(
        30.0, "for work under way when the daemon is asked to stop; below TimeoutStopSec", unit="s", low=0, high=3600
    )
    memory_mib: int = setting(
        4096,
        "of the daemon, engines and queries apart; kept where control groups are delegated, as by systemd; 0: none",
        unit="MiB",
        low=0,
    )
    collect_hours: float = setting(
        24.0, "between collections of objects that nobody names; 0: only by odfctl gc", unit="h", low=0, high=8760
    )


@dataclass(frozen=True, slots=True)
class Control:
    socket: str = setting("", "where odfctl finds the daemon; empty: the runtime folder, or the state folder")
    group: str = setting("", "members may command the node beside its own user and root; empty: nobody else")


@dataclass(frozen=True, slots=True)
class P2p:
    listen: tuple[str, ...] | None = setting(
        None,
        "multiaddrs; not said: port 4150 of all addresses while a network is joined; empty: dial only",
        example=("/ip4/0.0.0.0/tcp/4150",),
    )
    announce: tuple[str, ...] = setting((), "multiaddrs told to others in place of those found; behind a NAT")
    card: bool = setting(
        False, "tell the other nodes of its networks node.name, node.contact and node.about, signed with its key"
    )
    lookup: str = setting(
        "auto",
        "look up who serves a dataset beyond the directory of the network's nodes: when it is full (auto), on, or off",
        choices=("auto", "on", "off"),
    )
    relays: tuple[str, ...] = setting(
        (), "relays by which others come to this node, with /p2p/…; behind a router that lets nobody in"
    )
    relay: bool = setting(False, "be such a relay, for members of the network that is joined")
    relay_rate: int = setting(4_194_304, "of all that is carried for others; 0: no cap", unit="B/s", low=0)
    network: str = setting("", "network to join at start; empty: those joined by odfctl")
    bootstrap: tuple[str, ...] = setting((), "peers to meet first in that network, with /p2p/…")
    max_peers: int = setting(64, "connections at once; each costs about 1 MB of buffers", low=1, high=4096)
    max_streams: int = setting(256, "streams of one connection; more are reset", low=8, high=4096)
    dial_seconds: float = setting(10.0, "to connect and secure a connection", unit="s", low=0.1, high=300)
    inside: tuple[str, ...] | None = setting(
        None,
        "networks that are not of the Internet, like 192.168.1.0/24, in which peers are dialled that others tell of; "
        "not said: this machine, while listen, announce, bootstrap and relays name nothing beyond it",
        example=("192.168.1.0/24",),
    )
    mdns: bool = setting(False, "find peers of the same network on the LAN, and be found there, by multicast")
    download_rate: int = setting(0, "of chains and objects, from wherever they come; 0: no cap", unit="B/s", low=0)
    upload_rate: int = setting(0, "the same, to all peers together", unit="B/s", low=0)
    idle_seconds: float = setting(30.0, "without a byte, before a transfer is given to another peer", unit="s", low=1)


@dataclass(frozen=True, slots=True)
class Http:
    listen: tuple[str, ...] = setting(
        (), "where datasets are given to anybody over HTTP, like 127.0.0.1:8080 or [::]:8080; an empty list: nowhere"
    )
    query: bool = setting(
        False, "answer questions there over published datasets, as a kamu node does: /query, /NAME/tail, /NAME/metadata"
    )
    prove: bool = setting(
        False, "sign answers there for whoever asks with include=proof, with the node's key; needs query"
    )
    push: bool = setting(
        False, "take pushes of datasets there from whoever gives a token, as a kamu node does: /NAME/push"
    )
    witness: bool = setting(
        False, "take checkpoints there of the datasets in policy.publish.witness, at /witness/add-checkpoint"
    )
    ui: str = setting(
        "",
        "where the page of odfctl ui is, like 127.0.0.1:7464; empty: a free port of this machine, once asked; "
        "addresses beyond this machine need TLS and tokens",
    )
    ui_certificate: str = setting("", "file of the certificates for the page, PEM, naming its host; empty: no TLS")
    ui_key: str = setting("", "file of the certificate's private key, PEM")
    ui_tokens: str = setting(
        "", "file of its owner alone, NAME TOKEN a line: each opens the page, and does there what the page does"
    )


@dataclass(frozen=True, slots=True)
class Metrics:
    listen: tuple[str, ...] = setting(
        (), "where /metrics, /livez and /readyz are, on this machine alone, like 127.0.0.1:9464; an empty list: nowhere"
    )


@dataclass(frozen=True, slots=True)
class Traces:
    endpoint: str = setting(
        "",
        "collector of OpenTelemetry that takes traces by OTLP over HTTP, like http://127.0.0.1:4318/v1/traces; beyond "
        "this machine by https://; empty: no traces are made",
    )


@dataclass(frozen=True, slots=True)
class Engine:
    cores: int = setting(0, "threads of Spark; 0: all of the machine", low=0, high=1024)
    heap_mib: int = setting(2048, "heap of the JVM; the windows test suite needs 1.2 GiB", unit="MiB", low=256)
    quick_start: bool = setting(
        False, "compile with the JVM's first compiler alone: half the CPU of a start, slower where much is computed"
    )
    idle_seconds: float = setting(300.0, "before an unused engine is stopped; it costs its heap", unit="s", low=1)
    isolation: str = setting(
        "shared", "whether datasets share one engine process or each has its own", choices=("shared", "dataset")
    )
    max_processes: int = setting(4, "at once, where each dataset has its own; each may take its heap", low=1, high=1024)
    start_seconds: float = setting(
        120.0, "of a start of the engine, 300 s more on a cluster; over it the start has failed", unit="s", low=1
    )
    request_seconds: float = setting(3600.0, "of one transaction; over it the engine is stopped", unit="s", low=1)
    transaction_rows: int = setting(
        10_000_000, "of inputs that one transaction settles, about; a longer backlog leaves in several", low=1
    )
    sandbox: str = setting(
        "auto",
        "least isolation that is accepted; auto: host under systemd, none (with a warning) elsewhere",
        choices=("auto", "none", "host", "image", "container"),
    )
    java_home: str = setting("", "a Java 17 or newer, in place of JAVA_HOME; empty: JAVA_HOME, the PATH, or the wheel")
    master: str = setting(
        "", "a Spark cluster to run on: spark://HOST:PORT, yarn or k8s://…; empty: this machine; see docs/cluster.md"
    )
    cluster_address: str = setting("127.0.0.1", "of this machine, as the cluster's executors reach it")
    cluster_settings: str = setting("", "file with more settings of Spark for the cluster, a name and value a line")


@dataclass(frozen=True, slots=True)
class Query:
    readers: int = setting(4, "queries at once; more wait for their turn", low=1, high=256)
    threads: int = setting(2, "of one query", low=1, high=256)
    memory_mib: int = setting(1024, "of one query; what does not fit goes to its temporary disk", unit="MiB", low=64)
    temporary_mib: int = setting(4096, "on disk of one query; over it the query is refused", unit="MiB", low=0)
    folds_mib: int = setting(
        1024, "on disk for what held of datasets at earlier cuts; 0: every query folds all rows", unit="MiB", low=0
    )
    seconds: float = setting(300.0, "of one query, from its text to its last row", unit="s", low=1)


@dataclass(frozen=True, slots=True)
class Api:
    listen: tuple[str, ...] = setting(
        (),
        "for odfctl and programs of other machines, by tokens of accounts, like 127.0.0.1:7465 or [::]:7465; addresses "
        "beyond this machine need TLS; an empty list: nowhere",
    )
    certificate: str = setting("", "file of the certificates for TLS, PEM, naming its host; empty: no TLS")
    key: str = setting("", "file of the certificate's private key, PEM")


@dataclass(frozen=True, slots=True)
class Flight:
    listen: tuple[str, ...] = setting(
        (), "for Arrow Flight SQL, like 127.0.0.1:50050; addresses beyond this machine need TLS and tokens"
    )
    certificate: str = setting("", "file of the certificates for TLS, PEM; empty: no TLS")
    key: str = setting("", "file of the certificate's private key, PEM")
    tokens: str = setting(
        "", "file of its owner alone, NAME TOKEN a line: they read what odfctl sql reads; others what is published"
    )
    connections: int = setting(64, "at once", low=1, high=4096)


@dataclass(frozen=True, slots=True)
class Ingest:
    variables: tuple[str, ...] = setting(
        (), "variables of the daemon's environment that ${{ env.NAME }} in sources may name; others are not seen"
    )
    source_bytes: int = setting(
        64 * 2**30, "of one file of a source, as it comes and after each step of its preparation", unit="B", low=1
    )
    unpack_ratio: int = setting(
        250, "of the bytes of a source file to those that it was packed in, at most; beyond, it is a bomb", low=2
    )
    folders: tuple[str, ...] = setting(
        (), "whose files sources may name, by FilesGlob or file://, with all below them; none: any but the node's own"
    )
    connect_seconds: float = setting(10.0, "to find a web server, to connect, for TLS, each", unit="s", low=0.1)
    silence_seconds: float = setting(60.0, "without a byte, before a web server is given up", unit="s", low=0.1)
    least_rate: int = setting(
        1024, "of a web server, over silence-seconds of waiting; one that drips is given up", unit="B/s", low=0
    )
    fetch_seconds: float = setting(14_400.0, "of one file, from the question to its last byte", unit="s", low=0.1)
    settle_seconds: float = setting(
        1.0, "that a file of a folder, or at file://, has to be left alone before it is taken", unit="s", low=0
    )
    settle_closed_seconds: float = setting(
        0.05, "the same of a file that no program has open for writing, where the system can tell", unit="s", low=0
    )
    pipe: str = setting(
        "sandbox",
        "where commands of prepare: Pipe run; sandbox: without network and files; user: as the daemon's user",
        choices=("sandbox", "user", "never"),
    )
    pipe_memory_mib: int = setting(1024, "of one such command", unit="MiB", low=16)
    pipe_seconds: float = setting(3600.0, "of one such command; over it the command is stopped", unit="s", low=0.1)
    container: str = setting(
        "never",
        "whether podman runs images of fetch: Container; offline: without a network; network: with it, where asked",
        choices=("never", "offline", "network"),
    )
    container_memory_mib: int = setting(1024, "of one such container", unit="MiB", low=16)


@dataclass(frozen=True, slots=True)
class Flows:
    follow: bool = setting(True, "derive datasets that no flow names by themselves, when their inputs have new data")
    cooldown_seconds: float = setting(
        60.0, "from the end of such a run to the next, so that news in quick succession join one", unit="s", low=0,
        high=86_400,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Webhooks:
    inside: tuple[str, ...] = setting(
        (),
        "networks that are not of the Internet in which WebhookTargets may be, also without TLS",
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
    f: int = setting(1, "groups that may be wrong or lie at the same time", low=0, high=100)
    min_sandbox: str | None = setting(
        None, "least isolation under which a verdict counts; not said: by profile", example="image"
    )
    min_engines: int = setting(1, "different engine digests that must agree", low=1, high=100)
    spot_check: float | None = setting(
        None, "share of steps re-run without attesting; not said: by profile", low=0, high=1, example=0.01
    )
    step_seconds: int = setting(
        600, "of an engine, for one step of others; over it the step is told to be too costly", unit="s", low=1
    )
    recheck: bool = setting(
        True, "fetch the evidence that listed validators name of datasets held here, and run the step again"
    )
    groups: tuple[Group, ...] = setting((), "whose verdicts count")


@dataclass(frozen=True, slots=True)
class Witness:
    f: int = setting(0, "witnesses that may lie at the same time", low=0, high=100)
    quorum: int = setting(0, "cosignatures that make a head witnessed; 0: not asked for", low=0, high=100)
    max_age: str = setting("7d", "of a cosignature")
    groups: tuple[Group, ...] = setting((), "whose cosignatures count: a did:key:…, or the NAME+ID+KEY of a public one")
    public: tuple[str, ...] = setting(
        (), "public witnesses (c2sp.org/tlog-witness) that cosign what is published here: NAME+ID+KEY https://HOST/…"
    )


@dataclass(frozen=True, slots=True)
class Fresh:
    max_stale: str | None = setting(
        None, "past a head's end, before it is not fresh: 14d, 36h, never; not said: by profile", example="14d"
    )


@dataclass(frozen=True, slots=True)
class Rewrite:
    follow: str | None = setting(None, "a new epoch: ask, follow or refuse; not said: by profile",
                                 choices=("ask", "follow", "refuse"), example="ask")  # fmt: skip
    keep_epochs: int | None = setting(
        None,
        "epochs of which blocks are kept, with the present one; not said: by profile",
        low=1,
        high=1_000_000,
        example=2,
    )


@dataclass(frozen=True, slots=True)
class Publish:
    datasets: bool = setting(
        False, "publish every dataset of this node's own, later ones too; else each is private until odfctl publish"
    )
    attest: bool | None = setting(None, "re-run derived datasets and sign verdicts; not said: by profile", example=True)
    attest_seconds: float = setting(
        600.0, "between two attestations of one dataset; what is wrong is told at once", unit="s", low=0, high=86_400
    )
    own_key: bool = setting(
        False, "sign verdicts and observations by keys/validator.key, not by the node's key; from the next start on"
    )
    observe: bool = setting(False, "fetch the declared web sources of others' root datasets, and sign what they gave")
    cosign: bool | None = setting(
        None, "sign heads of what is mirrored here, as a witness; not said: by profile", example=True
    )
    witness: tuple[str, ...] = setting((), "did:odf:… of datasets to cosign as well, whether mirrored here or not")
    ipfs: bool = setting(False, "keep every published dataset of this node's own on IPFS")


@dataclass(frozen=True, slots=True)
class Policy:
    profile: str = setting(
        "laptop", "fills what is not said", choices=("laptop", "mirror", "validator", "archive")
    )  # fmt: skip
    use: str | None = setting(
        None, "facts before data feeds a query or a transform; not said: by profile", example="data & reproduced"
    )
    serve: str | None = setting(None, "facts before data is passed on; not said: by profile", example="data")
    network_key: str = setting("", "did:key:… whose policies hold here: what tightens at once, the rest when accepted")
    validators: Validators = field(default_factory=Validators)
    witness: Witness = field(default_factory=Witness)
    fresh: Fresh = field(default_factory=Fresh)
    rewrite: Rewrite = field(default_factory=Rewrite)
    publish: Publish = field(default_factory=Publish)


@dataclass(frozen=True, slots=True)
class Ipfs:
    api: str = setting("", "RPC of a Kubo, like http://127.0.0.1:5001; empty: no IPFS")
    token: str = setting("", "what that Kubo asks for in Authorization: Bearer", secret=True)


@dataclass(frozen=True, slots=True)
class Limits:
    object_bytes: int = setting(16 * 2**30, "of one object from others; slices are far smaller", unit="B", low=1)
    upload_bytes: int = setting(16 * 2**30, "of one ingested file", unit="B", low=1)
    spool_bytes: int = setting(2**30, "of pushes that wait for the datasets of one Source", unit="B", low=1)
    disk_reserve_bytes: int = setting(2**30, "left free on the state directory's disk; below it we take no more",
                                      unit="B", low=0)  # fmt: skip
    mirror_bytes: int = setting(
        0, "of mirrors on disk: data, blocks, what is unfinished or staged; 0: as much as the disk has", unit="B", low=0
    )
    tasks_running: int = setting(16, "long operations at once; more wait", low=1, high=1024)
    tasks_kept: int = setting(500, "finished ones that odfctl get tasks still shows", low=1, high=100_000)
    events_kept: int = setting(4096, "for odfctl watch --since", low=16, high=1_000_000)


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
