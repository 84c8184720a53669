"""The law of imports is a test, not a diagram.

``config`` and ``chain`` know nobody; ``engines`` and ``p2p`` know those two, never each other; ``odfd`` knows all;
nobody imports ``odfd``, and ``client`` none of them. Inside a root, a line of LAYERS may import lower lines only;
entries on one line never meet.
"""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Collection, Iterator
from functools import cache
from itertools import chain
from pathlib import Path

from worlds.source_tree import called, nodes

TREE = Path(__file__).parents[2]

MAY: dict[str, set[str]] = {
    "config": set(),
    "chain": set(),
    "engines": {"chain", "config"},
    "p2p": {"chain", "config"},
    "odfd": {"chain", "config", "engines", "p2p"},
}
LAYERS = {
    "config": ["load", "check render", "schema paths", "model", "log_levels", "."],
    "chain": [
        "store",
        "data compaction",
        "rules",
        "state compare walk",
        "statements",
        "codec",
        "model",
        "ids",
        "multihash yaml_text",
        "digits multibase instant backoff repeats terminal_text wording struct_types libraries",
        "errors",
        ".",
    ],
    "engines": [
        "flight",
        "provision query",
        "spark",
        "client service sandbox",
        "image",
        "staging output_check request_control",
        "codec io_plan identity listen_address footers",
        "contract",
        "errors",
        ".",
    ],
    "p2p": [
        "driver",
        "host kubo",
        "web",
        "dial",
        "lookup machines",
        "peers",
        "budget",
        "yamux ipfs",
        "wire",
        "address",
        "identity ip",
        "ports files",
        "errors pace",
        ".",
    ],
    "odfd": [
        "daemon",
        "node",
        "api cli",
        "flight kamu services",
        "ipfs mirrors network queries smart",
        "repositories trust",
        "ingest site transfer transform",
        "datasets published verify",
        "page store",
        "control flows",
        "access policy portals renditions",
        "resources",
        "obs",
        "output runtime usage",
        "errors rules terminal",
        ".",
    ],
}
ROOMS = ["odfd.services", "odfd.store", "odfd.trust", "odfd.datasets", "odfd.ingest", "engines.spark"]
"""Packages whose parts depend on each other in one direction."""
# No I/O, no clock, no randomness: what such a module needs, its caller passes in.
PURE = [
    "config.model",
    "chain",
    "p2p.machines",
    "p2p.wire",
    "p2p.yamux",
    "p2p.peers",
    "p2p.budget",
    "p2p.pace",
    "p2p.address",
    "p2p.ip",
    "p2p.ipfs",
    "p2p.identity",
    "engines.contract",
    "engines.codec",
    "engines.io_plan",
    "odfd.access",
    "odfd.flows.manifest",
    "odfd.flows.plan",
    "odfd.flows.schedule",
    "odfd.flows.scheduler",
    "odfd.ingest.plan",
    "odfd.ingest.settlement",
    "odfd.store.retention",
    "odfd.repositories.manifest",
    "odfd.renditions.reader_position",
    "odfd.renditions.handover",
    "odfd.renditions.timeline",
    "odfd.smart.batches",
    "odfd.smart.messages",
    "odfd.smart.pull",
    "odfd.smart.push",
    "odfd.resources.manifest",
    "odfd.resources.plan",
    "odfd.resources.schema",
    "odfd.resources.selectors",
    "odfd.resources.sets",
    "odfd.resources.status",
    "odfd.resources.types",
    "odfd.services.volumes.manifest",
    "odfd.store.webhook_delivery",
    "odfd.store.webhook_target",
    "odfd.resources.workqueue",
    "odfd.transform.plan",
    "odfd.transform.pacing",
    "odfd.transform.checkpoint_info",
    "odfd.trust.judgement.verdicts",
    "odfd.policy.policy",
    "odfd.trust.admission.rules",
    "odfd.trust.judgement.suspension_rules",
    "odfd.policy.policy_merge",
]
DOES_IO = ["chain.store", "chain.data.parquet"]
WORLD = {
    "trio", "socket", "ssl", "subprocess", "sqlite3", "libp2p", "grpc", "httpx",
    "time", "random", "secrets", "os", "asyncio", "threading",
}  # fmt: skip
CLI_SEES = [
    "odfd.cli", "odfd.control.calls", "odfd.control.client", "odfd.control.remote_node",
    "odfd.control.wire", "odfd.rules", "odfd.runtime", "odfd.errors", "odfd.output", "odfd.terminal", "odfd.usage",
    "odfd.resources.registry",  # the names of types, which are words of commands and parts of paths
    "chain.terminal_text", "chain.yaml_text",
    "chain.store.durable",  # files that a command writes
    "chain.data.json_values", "chain.data.uuids", "engines.query.frames",  # rows of an answer, and how they come
    "engines.query.installed",  # whether what only queries need was installed
    "odfd.__version__", "chain.digits", "chain.errors", "chain.instant", "chain.repeats", "chain.wording",
]  # fmt: skip
CLI_OFFLINE = "odfd.cli.offline"
"""Commands that work on files with no daemon: the one part of the command line that may know chain and verify."""


EXTRAS = [
    ["odfd.flight", "engines.flight"],
    ["odfd.kamu"],
    ["odfd.cli.commands.top", "odfd.cli.top"],
    ["odfd.cli.standards"],
    ["odfd.published.dcat"],
    ["odfd.cli.offline.catalog", "odfd.cli.offline.sampling.dcat_feed"],
    ["odfd.transfer.delta_log"],
    ["odfd.transfer.odf018", "chain.codec.former_blocks"],
    ["odfd.ingest.fetch.bucket"],
    ["odfd.ingest.fetch.kafka", "odfd.ingest.clients.kafka"],
    ["odfd.ingest.fetch.sftp", "odfd.ingest.clients.sftp"],
    ["odfd.ingest.fetch.sql", "odfd.ingest.clients.databases"],
    ["odfd.ingest.fetch.sse"],
]
"""What is reached by entry points and names of commands alone, a list each: all else works without it."""
CLIENT = TREE / "client"
"""A distribution of its own: its package is ``odfd_client``."""


def within(name: str, entries: list[str]) -> bool:
    return any(name == entry or name.startswith(entry + ".") for entry in entries)


def modules() -> Iterator[tuple[str, Path]]:
    for root in MAY:
        for path in sorted((TREE / root).rglob("*.py")):
            yield ".".join(path.relative_to(TREE).with_suffix("").parts).removesuffix(".__init__"), path


def modules_of_the_client() -> Iterator[tuple[str, Path]]:
    for path in sorted((CLIENT / "odfd_client").rglob("*.py")):
        yield ".".join(path.relative_to(CLIENT).with_suffix("").parts).removesuffix(".__init__"), path


@cache
def imports(name: str, path: Path) -> list[str]:
    return list(_imports(name, path))


def _imports(name: str, path: Path) -> Iterator[str]:
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *([node.module] if node.module else [])]
            yield from (".".join([*base, alias.name]) for alias in node.names)
        elif isinstance(node, ast.Call) and called(node).endswith("import_module"):
            yield from (each.value for each in node.args[:1] if isinstance(each, ast.Constant))


def height(name: str) -> tuple[int, str]:
    root, _, rest = name.partition(".")
    head = rest.partition(".")[0]
    for line, entries in enumerate(LAYERS[root]):
        if head in entries.split():
            return line, head
    return len(LAYERS[root]), ""


def problems() -> Iterator[str]:
    for name, path in modules():
        root = name.partition(".")[0]
        for target in imports(name, path):
            top = target.partition(".")[0]
            if top == root and height(name)[1] != height(target)[1] and height(target)[0] <= height(name)[0]:
                yield f"{name} -> {target}: points up or sideways"
            if top in MAY and top != root and top not in MAY[root]:
                yield f"{name} -> {target}: {root} may not import {top}"
            if top in WORLD and within(name, PURE) and not within(name, DOES_IO):
                yield f"{name} -> {target}: a pure module reached for the world"
            reaches = within(name, ["odfd.cli"]) and not within(name, [CLI_OFFLINE])
            if reaches and top in MAY and top != "config" and not within(target, CLI_SEES):
                yield f"{name} -> {target}: the command line knows the daemon only by its wire"


def test_imports_point_downwards() -> None:
    found = sorted(set(problems()))
    assert not found, "\n".join(found)


def test_nothing_imports_what_is_found_by_entry_points() -> None:
    found = [
        f"{name} -> {target}"
        for name, path in modules()
        for target in imports(name, path)
        for extra in EXTRAS
        if within(target, extra) and not within(name, extra)
    ]
    assert not found, "\n".join(found)


def imported(name: str, names: Collection[str]) -> str:
    """The module that an import names, which may be a name in it."""
    return name if name in names else name.rpartition(".")[0]


def test_imports_form_no_circle() -> None:
    """Those for types alone count too: modules of a circle cannot be understood one after the other."""
    files = dict(chain(modules(), modules_of_the_client()))
    graph = {name: {imported(each, files) for each in imports(name, path)} & set(files) for name, path in files.items()}
    for package in [name for name, path in files.items() if path.name == "__init__.py"]:
        graph.pop(package)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def test_the_client_imports_none_of_the_roots() -> None:
    found = [
        f"{name} -> {target}"
        for name, path in modules_of_the_client()
        for target in imports(name, path)
        if target.partition(".")[0] in MAY
    ]
    assert not found, found


def test_packages_of_a_room_form_no_circle() -> None:
    """The packages inside a package, each taken as a whole."""
    files = dict(modules())
    for room in ROOMS:
        graph: dict[str, set[str]] = {}
        for name, path in files.items():
            if within(name, [room]) and name != room:
                inside = {each for each in imports(name, path) if within(each, [room]) and each != room}
                part = name.split(".")[room.count(".") + 1]
                targets = {each.split(".")[room.count(".") + 1] for each in inside}
                graph.setdefault(part, set()).update(targets - {part})
        try:
            graphlib.TopologicalSorter(graph).prepare()
        except graphlib.CycleError as error:
            raise AssertionError(f"{room}: " + " -> ".join(error.args[1])) from None


def test_every_module_that_a_rule_names_is_there() -> None:
    names = {"odfd.__version__", *(name for name, _ in modules())}
    gone = {*PURE, *DOES_IO, *CLI_SEES, CLI_OFFLINE, *ROOMS} - names
    assert not gone, f"the rules name what is not there: {sorted(gone)}"


def test_every_entry_has_a_layer() -> None:
    homeless = {name for name, _ in modules() if name.count(".") and not height(name)[1]}
    assert not homeless, f"give these a line in LAYERS: {sorted(homeless)}"
