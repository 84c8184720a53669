"""Who may import what: roots, layers, bundles of parts, and what other distributions give."""

from __future__ import annotations

import ast
import graphlib
import importlib
import importlib.metadata
import importlib.util
import re
import sys
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Final

import pytest

from engines.identity import find_imports
from odfd.resources import registry
from odfd.resources.resource import ACCOUNT
from worlds.source_tree import called, nodes, parsed

# The law of imports is a test, not a diagram. ``config`` and ``chain`` know nobody; ``engines`` and ``p2p`` know
# those two, never each other; ``odfd`` knows all; nobody imports ``odfd``, and ``client`` none of them. Inside a
# root, a line of LAYERS may import lower lines only; entries on one line never meet.


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
DOES_IO = ["chain.store", "chain.data.parquet", "chain.libraries"]
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


# What is imported is declared: each third-party module belongs to a distribution that pyproject.toml names.


SHIPPED = ("chain", "config", "engines", "odfd", "p2p")
"""These may import what is installed with odfd alone; the others have the extras too."""
BESIDE = ("bench", "demo", "tests", "examples")
ASKED_FOR = ("bucket", "evm", "kafka", "mqtt", "sftp", "sql", "top")
"""Extras whose absence is told by name, as tests of what needs them show."""
ABSENT = {"fastecdsa", "_typeshed"}
"""One that a test replaces, since it is never installed; and one that type checkers alone have."""
NAME = re.compile(r"[A-Za-z0-9._-]+")


def files(folder: Path) -> Iterator[Path]:
    return iter(sorted(folder.rglob("*.py")))


def top_names(path: Path) -> Iterator[str]:
    """Top-level names that a file imports."""
    for node in statements(parsed(path)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [str(node.module)]
        yield from (name.partition(".")[0] for name in names)


def looks_like(path: Path) -> set[str]:
    """The same names and more: texts with the form of an import count too, and nothing is parsed."""
    return {name.partition(".")[0] for name in find_imports(path.read_text())} - {""}


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All below a node, to any depth; not the expressions, of which there are twenty times as many."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from statements(child)


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared() -> tuple[set[str], set[str]]:
    """Distributions that odfd needs, with those of extras that it asks for by name, and those of all extras."""
    project = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    extras = [each for group in project["optional-dependencies"].values() for each in group]
    asked = [each for name in ASKED_FOR for each in project["optional-dependencies"][name]]
    project["dependencies"] += asked
    first, more = ({plain(NAME.match(each)[0]) for each in group} for group in (project["dependencies"], extras))
    return first, more


def undeclared(folders: Iterable[Path], known: set[str]) -> set[tuple[str, str]]:
    """Names of modules, with the folder's files that import them. A file is parsed if its text has such a name."""
    folders_of_ours = (TREE, TREE / "tests", TREE / "client")
    local = {path.name.removesuffix(".py") for folder in folders_of_ours for path in folder.iterdir()}
    local |= {path.stem for path in TREE.glob("examples/*/*.py")}  # a package of its own, which its test imports
    known = known | {plain(name) for name in {*sys.stdlib_module_names, *local, *ABSENT}}

    def unknown(names: Iterable[str]) -> set[str]:
        return {name for name in names if not {plain(each) for each in (name, *owners().get(name, ()))} & known}

    suspects = (path for folder in folders for path in files(folder) if unknown(looks_like(path)))
    return {(name, path.name) for path in suspects for name in unknown(top_names(path))}


@cache
def owners() -> Mapping[str, list[str]]:
    """Distributions by the modules that they install. Reads the lists of files of all."""
    return importlib.metadata.packages_distributions()


def test_what_we_ship_imports_what_it_declares() -> None:
    assert not undeclared(map(TREE.joinpath, SHIPPED), declared()[0])


def test_what_lies_beside_it_imports_what_the_extras_declare() -> None:
    assert not undeclared(map(TREE.joinpath, BESIDE), set().union(*declared()))


def test_the_test_sees_what_is_not_declared(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(
        "def late():\n    import os, flask_of_theirs.parts as flask\n    return flask, os\n"
    )
    (tmp_path / "text.py").write_text('TEXT = """\nfrom django_of_theirs import urls\n"""\n')
    assert undeclared([tmp_path], set()) == {("flask_of_theirs", "late.py")}


def test_the_client_imports_pyarrow_alone() -> None:
    """It is installed by itself. What people may have beside it (pandas, polars) is imported when it is asked for."""
    beside = "client/odfd_client/spark.py"  # who imports it has Spark; its extra says so
    found = [(name, str(path.relative_to(TREE))) for path in files(TREE / "client") for name in top_names(path)]
    assert {name for name, at in found if at != beside} - sys.stdlib_module_names == {"odfd_client", "pyarrow"}
    assert {name for name, at in found if at == beside} - sys.stdlib_module_names == {
        "odfd_client",
        "pyarrow",
        "pyspark",
    }
    others = [path for path in (TREE / "client").rglob("*.py") if path != TREE / beside]
    assert not [path for path in others if "odfd_client.spark" in path.read_text()]


def test_every_dependency_has_its_reason_and_its_version() -> None:
    text = (TREE / "pyproject.toml").read_text()
    (block,) = re.findall(r"^dependencies = \[\n(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    bare = [line for line in block.splitlines() if not re.match(r' +"[\w.-]+==[\w.]+", +# \S', line)]
    assert not bare


# Constructors name what they work with: a tuple of collaborators hides how many there are.


ROOTS = ("config", "chain", "engines", "p2p", "odfd", "client", "demo", "bench")
BUNDLES = {
    "AccessControl.about",
    "Membership.shelves",
    "NodeSmartBackend.access",
    "_Side.store",
}
"""Parameters of constructors that take several collaborators as one tuple. Give each a name; add none."""
VALUES = ("dataclass", "Struct", "Enum", "NamedTuple", "Error", "Fault", "Value", "Request", "str", "int", "bytes")
"""Words in the head of a class by which it is a value, which may well be in a tuple."""


def sources() -> Iterator[Path]:
    for root in ROOTS:
        yield from sorted((TREE / root).rglob("*.py"))


def collaborators() -> set[str]:
    """The classes of ours that are no values."""
    found = set()
    for path in sources():
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                head = " ".join(map(ast.unparse, [*node.decorator_list, *node.bases]))
                if not any(word in head for word in VALUES):
                    found.add(node.name)
    return found


def bundles_collaborators(annotation: ast.expr, classes: set[str]) -> bool:
    """Whether a type has a tuple of fixed length with a callable or a collaborator in it, perhaps an optional one."""

    def is_one(element: ast.expr) -> bool:
        if isinstance(element, ast.BinOp):
            return is_one(element.left) or is_one(element.right)
        plain = element.value if isinstance(element, ast.Subscript) else element
        return ast.unparse(plain).rpartition(".")[2] in {*classes, "Callable"}

    for node in ast.walk(annotation):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "tuple" and isinstance(node.slice, ast.Tuple):
            elements = node.slice.elts
            if ast.unparse(elements[-1]) != "..." and any(map(is_one, elements)):
                return True
    return False


def bundles() -> Iterator[str]:
    classes = collaborators()
    for path in sources():
        for node in nodes(path):
            for made in node.body if isinstance(node, ast.ClassDef) else []:
                if isinstance(made, ast.FunctionDef) and made.name == "__init__":
                    for given in [*made.args.posonlyargs, *made.args.args, *made.args.kwonlyargs]:
                        if given.annotation is not None and bundles_collaborators(given.annotation, classes):
                            yield f"{node.name}.{given.arg}"


def test_constructors_take_each_collaborator_by_its_name() -> None:
    found = set(bundles())
    assert not found - BUNDLES, "a tuple of collaborators: give each a parameter"
    assert not BUNDLES - found, "these are unbundled now: take them from BUNDLES"


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ("tuple[Store, Clock]", True),
        ("tuple[Store | None, int] | None", True),
        ("tuple[int, Callable[[], int]]", True),
        ("tuple[Store, ...]", False),
        ("tuple[int, str]", False),
        ("Store", False),
    ],
)
def test_a_bundle_is_recognized(annotation: str, expected: bool) -> None:
    assert bundles_collaborators(ast.parse(annotation, mode="eval").body, {"Store", "Clock"}) == expected


# What plans, applies and shows resources of all types names none: a type is asked by its value and its controller.


COMMON: Final = (
    "odfd.api.resource_operations", "odfd.services.resources.apply", "odfd.services.resources.declarations",
    "odfd.services.resources.pages", "odfd.services.resources.planning", "odfd.services.resources.reading",
    "odfd.services.resources.watches", "odfd.resources.controller", "odfd.resources.plan", "odfd.resources.store",
)  # fmt: skip
NAMES: Final = {each.name for each in registry.ALL} - {ACCOUNT}
"""Not the type of what owns resources: it is a part of the identity of each."""


def named(tree: ast.Module) -> Iterator[str]:
    """The types that a module names, as texts or by what it imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in NAMES:
            yield node.value
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("odfd."):
            module = importlib.import_module(node.module)
            for each in node.names:
                value = getattr(module, each.name, None)
                name = getattr(value, "name", value)
                if isinstance(name, str) and name in NAMES:
                    yield name


@pytest.mark.parametrize("name", COMMON)
def test_common_code_names_no_type(name: str) -> None:
    assert set(named(parsed(TREE / f"{name.replace('.', '/')}.py"))) == set()


def test_a_name_is_noticed() -> None:
    text = "from odfd.store.catalog import TYPE\nfrom odfd.flows.manifest import FLOW_TYPE\nx = 'Mirror', 'Account'\n"
    assert set(named(ast.parse(text))) == {"Dataset", "Flow", "Mirror"}


# The import roots are ours: their names are generic, and something installed beside us could stand in front.


@pytest.mark.parametrize("root", ["config", "chain", "engines", "p2p", "odfd", "odfd_client"])
def test_root_is_ours(root: str) -> None:
    spec = importlib.util.find_spec(root)
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).is_relative_to(TREE)
