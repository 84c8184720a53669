"""Rules of the tree that its sources are read for: what is called where, and what is not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from odfd.cli.offline.docs import list_pages
from worlds.messages import Text, messages
from worlds.peer_bytes import OURS, TARGETS
from worlds.source_tree import called, nodes, parsed

# No test is decided by a real clock: a bound in seconds is the last net, or passes in virtual time.


TESTS: Final = Path(__file__).parents[1]
NETS: Final = {"PATIENCE", "ENGINE_START"}
"""What a bound in real time may be made of."""
VIRTUAL: Final = ("autojump_clock", "mock_clock", "MockClock")
"""What a test, a fixture of its own, or the conftest beside it has whose time is virtual."""
SCOPES: Final = {"fail_after", "fail_at", "move_on_after", "move_on_at"}
BLOCKING: Final = {"wait", "join", "settimeout", "acquire", "result", "communicate"}
CLOCKS: Final = {"monotonic", "perf_counter", "sleep"}
"""Of ``time``."""
EXCEPT: Final = {
    "Terminal": "a key that is pressed again and again",
    "Town": "a siege lasts as long as it is told",
    "besieged": "a siege lasts as long as it is told",
    "main": "tells how long it took",
    "test_a_caller_that_leaves_stops_the_work": "a caller who leaves",
    "test_a_node_has_its_memory_and_its_engines_theirs": "the last net around a whole machine",
    "test_a_server_that_drips_is_left": "drips",
    "test_a_slow_answer_is_left": "drips",
    "test_an_answer_a_byte_at_a_time_is_left": "drips",
    "test_an_hour_of_bad_weather_leaves_memory_and_descriptors_flat": "how long a soak lasts",
    "test_apart_who_stops_waiting_for_a_place_takes_none": "gives up in vain, whenever",
    "test_every_row_with_spark_can_be_measured": "the last net around a whole bench",
    "test_peers": "a stranger who waits for no answer",
    "test_the_publisher_on_a_slow_line_gives_two_copies_at_most": "tells how long it took",
    "scripted_engine": "an engine that takes as long as it is told",
    "besieger": "a siege lasts as long as it is told",
    "siege_attacks": "a siege lasts as long as it is told",
    "siege_doors": "a siege lasts as long as it is told",
    "siege_host": "a siege lasts as long as it is told",
    "eventually": "the last net",
    "foreign": "then it is killed",
    "ftp": "how often a server looks whether it is over",
    "lan": "lines that are slow on purpose",
    "sse": "how often a server says that it is still there",
}
"""Modules of helpers, and names in modules of tests, in which seconds pass that decide nothing, and what they are."""


def bounds(tree: ast.AST) -> Iterator[str]:
    """Yields where real time is looked at."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        of = getattr(node.func.value, "id", "") if isinstance(node.func, ast.Attribute) else ""
        given = [each.value for each in node.keywords if each.arg == "timeout"]
        if name in SCOPES or (name in BLOCKING and len(node.args) == 1 and of != "path"):
            given += node.args[:1]
        is_clock = of == "time" and name in CLOCKS
        if is_clock or any(is_bound(each, name in SCOPES) for each in given):
            yield f"{node.lineno}: {ast.unparse(node)[:80]}"


def is_bound(given: ast.expr, is_scope: bool) -> bool:
    """Whether it is some seconds, and not the last net; what a scope is given are always seconds."""
    if {each.id for each in ast.walk(given) if isinstance(each, ast.Name)} & NETS:
        return False
    if isinstance(given, ast.Constant):
        return isinstance(given.value, int | float) and not isinstance(given.value, bool) and given.value > 0
    return is_scope


def in_virtual_time(module: ast.Module) -> set[str]:
    """Returns the names in a module of tests whose time is virtual in all tests that come to them."""
    items = {
        each.name: each
        for each in module.body
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    named = {name: set(names_in(item)) for name, item in items.items()}
    told: dict[str, set[bool]] = {}
    for test in items:
        if test.lower().startswith("test"):
            met, waiting = {test}, [test]
            while waiting:
                further = named[waiting.pop()] & items.keys() - met
                met |= further
                waiting += further
            is_virtual = any(not named[name].isdisjoint(VIRTUAL) for name in met)
            for name in met:
                told.setdefault(name, set()).add(is_virtual)
    return {name for name, kinds in told.items() if kinds == {True}}


def names_in(item: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> Iterator[str]:
    """Yields what it uses, and as a test asks for: names of others, arguments, and texts of its decorators."""
    names = [node for node in ast.walk(item) if isinstance(node, ast.Name)]
    yield from {node.id for node in names} - {node.id for node in names if isinstance(node.ctx, ast.Store)}
    for node in ast.walk(item):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Attribute) and node.attr in VIRTUAL:
            yield node.attr
    for node in (each for decorator in item.decorator_list for each in ast.walk(decorator)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def found() -> dict[str, list[str]]:
    """Returns where real time is looked at, by modules of helpers and by names in modules of tests."""
    told: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("*.py")):
        source, beside = path.read_text(), path.with_name("conftest.py")
        is_test = path.name.startswith("test_")
        if any(each in (beside.read_text() if beside.is_file() else source * (not is_test)) for each in VIRTUAL):
            continue
        module = ast.parse(source)
        virtual = in_virtual_time(module) if is_test else set[str]()
        for each in module.body:
            name = getattr(each, "name", "")
            for where in bounds(each) if name not in virtual else ():
                told.setdefault(name if is_test else path.stem, []).append(f"{path.relative_to(TESTS)}:{where}")
    return told


def test_seconds_decide_nothing() -> None:
    told = found()
    assert {name: lines for name, lines in told.items() if name not in EXCEPT} == {}
    assert told.keys() >= EXCEPT.keys(), "an exception that nothing needs"


@pytest.mark.parametrize(
    ("line", "is_refused"),
    [
        ("trio.fail_after(5)", True),
        ("trio.move_on_after(SECONDS)", True),
        ("trio.fail_after(2 * PATIENCE)", False),
        ("subprocess.run(['a'], timeout=60)", True),
        ("subprocess.run(['a'], timeout=PATIENCE)", False),
        ("thread.join(10)", True),
        ("thread.join()", False),
        ("','.join(names)", False),
        ("event.wait(1.0)", True),
        ("time.sleep(1)", True),
        ("time.monotonic()", True),
    ],
)
def test_the_law_sees(line: str, is_refused: bool) -> None:
    assert bool(list(bounds(ast.parse(line)))) == is_refused


# Every decoder of a peer's bytes is a fuzz target: who writes a new one gives it valid messages to begin from. A
# decoder is a public function that takes bytes or text and says that it raises Invalid, Misbehaviour or BadAddress,
# or gives a Judgement of bytes, or the ``decode`` of a layout; wherever what comes from peers is read.


TREE = Path(__file__).parents[2]
ROOMS = (
    "p2p", "chain/codec/protobuf.py", "chain/statements", "chain/ids.py", "chain/multihash.py", "odfd/network",
    "odfd/ipfs", "odfd/published",
    "odfd/trust/evidence/bundle.py", "odfd/trust/evidence/bundle.py",
)  # fmt: skip
TAKES = re.compile(r"\b(bytes|bytearray|memoryview|Buffer|BinaryIO)\b")
TAKES_TEXT = re.compile(r"^str$")
REFUSES = re.compile(r"Raises [\w, ]*\b(Invalid|Misbehaviour|BadAddress)\b")
FIRST_WORD = re.compile(r"^(decode|parse|read|unseal|verify|check|feed|receive|restore|from_|.*_of)")


def functions(node: ast.Module | ast.ClassDef, before: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and not each.name.startswith("_"):
            yield f"{before}.{each.name}", each
        elif isinstance(each, ast.ClassDef) and not each.name.startswith("_") and "Protocol" not in ast.dump(each):
            yield from functions(each, f"{before}.{each.name}")


def decodes(function: ast.FunctionDef) -> bool:
    arguments = [*function.args.posonlyargs, *function.args.args]
    types = [ast.unparse(argument.annotation) for argument in arguments if argument.annotation is not None]
    takes_bytes = any(TAKES.search(each) for each in types)
    takes_text = bool(types) and bool(TAKES_TEXT.match(types[0])) and bool(FIRST_WORD.match(function.name))
    if takes_bytes and function.returns is not None and ast.unparse(function.returns) == "Judgement":
        return True
    return (takes_bytes or takes_text) and bool(REFUSES.search(ast.get_docstring(function) or ""))


def layouts(module: ast.Module, before: str) -> Iterator[str]:
    """Names that a module gives to the decoders of its layouts."""
    for node in module.body:
        if isinstance(node, ast.Assign):
            names = [name.id for name in ast.walk(node.targets[0]) if isinstance(name, ast.Name)]
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            pairs = zip(names, values, strict=True) if len(names) == len(values) else ()
            yield from (f"{before}.{name}" for name, value in pairs if ast.unparse(value).endswith(".decode"))


def decoders() -> Iterator[str]:
    for room in ROOMS:
        place = TREE / room
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            module = ".".join(path.relative_to(TREE).with_suffix("").parts)
            yield from (name for name, each in functions(parsed(path), module) if decodes(each))
            yield from layouts(parsed(path), module)


def test_every_decoder_is_fuzzed() -> None:
    found = set(decoders())
    assert len(found) > 25, "the law no longer finds what it is about"
    assert "p2p.wire.objects.decode_object_reply" in found, "the law no longer finds layouts"
    missing = found - {target.name for target in TARGETS} - set(OURS)
    assert not missing, f"add these to tests/worlds/peer_bytes.py: {sorted(missing)}"


def test_what_needs_no_fuzzing_exists() -> None:
    assert set(OURS) <= set(decoders())


def test_a_target_is_named_once() -> None:
    names = [target.name for target in TARGETS]
    assert len(names) == len(set(names))


# One opener for all: nothing of ours but ``p2p.dial`` resolves a name, and nothing opens a connection beside it.


ROOTS: Final = ("config", "chain", "engines", "p2p", "odfd")
OPENING: Final = {
    "getaddrinfo", "gethostbyname", "gethostbyname_ex", "open_tcp_stream", "open_ssl_over_tcp_stream", "urlopen",
    "create_connection", "open_connection", "HTTPConnection", "HTTPSConnection", "AsyncClient",
    "AsyncConnectionPool", "AsyncHTTPTransport", "dial_addr", "insecure_channel", "secure_channel",
}  # fmt: skip
MAY_DIAL: Final = {
    ("p2p.dial", "getaddrinfo"): "the opener",
    ("p2p.web.client", "AsyncClient"): "its connections are opened by the opener",
    ("p2p.host.host", "dial_addr"): "what the opener resolved",
    ("engines.listen_address", "getaddrinfo"): "where to listen",
    ("engines.client", "insecure_channel"): "a unix socket",
    ("engines.spark.runtime.settings", "create_connection"): "the Spark cluster of the settings",
    ("engines.sandbox.escape_probe", "create_connection"): "an attempt to break out, which must fail",
    ("odfd.cli.commands.apply", "urlopen"): "a manifest whose URL a person types, in their own process",
    ("odfd.control.client", "HTTPConnection"): "a unix socket",
    ("odfd.ingest.clients.ftp", "create_connection"): "what the opener resolved, in a process apart",
    ("odfd.control.remote_node", "create_connection"): "a node whose URL a person types, in their own process",
}


def openings() -> Iterator[tuple[str, str]]:
    for root in ROOTS:
        for path in sorted((TREE / root).rglob("*.py")):
            name = ".".join(path.relative_to(TREE).with_suffix("").parts).removesuffix(".__init__")
            for node in nodes(path):
                if isinstance(node, ast.Call) and called(node) in OPENING:
                    yield name, called(node)


def test_nothing_opens_a_connection_beside_the_opener() -> None:
    found = set(openings())
    beside = sorted(found - MAY_DIAL.keys())
    assert not beside, f"these dial by themselves; p2p.dial judges what is dialled: {beside}"
    assert ("p2p.dial", "getaddrinfo") in found


# One way to the disk: nothing but ``chain.store.durable`` syncs, and files get names through it, or may be lost.


WRITING_ROOTS: Final = ("config", "chain", "engines", "p2p", "odfd", "client")
SEAM: Final = "chain.store.durable"
MAY_WRITE: Final = {
    "client.odfd_client.proofs": "fetched again",
    "chain.store.database": "SQLite syncs by itself, as this module tells it to",
    "chain.store.objects": "synced apart, with a step between",
    "chain.store.layout": "synced with its whole file system, before the head",
    "engines.identity": "a cache",
    "engines.image.build": "a cache",
    "engines.image.installed": "unpacked again if it is not whole",
    "engines.image.oci": "built again, and unpacked again if it is not whole",
    "engines.provision.archive": "a cache",
    "engines.query.reader": "the folder of one query",
    "engines.staging": "the folder of one request",
    "engines.spark.ingest.range_tasks": "a part that one request reads",
    "engines.spark.ingest.foreign.sqlite_file": "a file of others, read",
    "odfd.cli.new_file": "syncs what is private; a person looks at the rest",
    "odfd.ingest.clients.databases": "a file of others, read",
    "odfd.ingest.slices": "a cache",
    "odfd.ingest.raw_replay": "the folder of one replay",
    "odfd.ingest.segments": "a cache",
    "odfd.store.spool": "synced for all pushes at once; a copy of a row",
    "odfd.network.card_index": "in memory",
    "odfd.network.peer_book_file": "peers are met again",
    "odfd.network.unheld_statements": "in memory",
    "odfd.published.packs": "synced with the folder's head",
    "odfd.published.signed": "synced with the folder's head",
    "odfd.queries.folds": "a cache",
    "odfd.repositories.sftp": "the disk of a server",
    "odfd.cli.offline.sampling.inference": "a file of others, read",
    "odfd.services.maintenance.upgrade": "a copy to try on",
    "odfd.transform.driver": "a draft of one transaction",
    "odfd.transform.execute": "a draft of one transaction",
    "odfd.store.ledger.live_set": "in memory",
    "odfd.services.volumes.cache": "a cache",
}  # fmt: skip


def _is_one(node: ast.AST) -> bool:
    """Whether it syncs, names a file or opens a database; ``text.replace(old, new)`` has two arguments."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    owner = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
    match called(node):
        case "connect":
            return owner == "sqlite3"
        case "link":
            return owner == "os"
        case "fsync" | "fdatasync" | "syncfs" | "hardlink_to":
            return True
        case "rename" | "replace":
            return owner == "os" or (owner != "durable" and len(node.args) == 1 and not node.keywords)
    return False


def test_what_must_last_goes_through_one_module() -> None:
    found = {
        ".".join(path.relative_to(TREE).with_suffix("").parts)
        for root in WRITING_ROOTS
        for path in (TREE / root).rglob("*.py")
        if any(map(_is_one, nodes(path)))
    }
    assert SEAM in found
    beside = sorted(found - MAY_WRITE.keys() - {SEAM})
    assert not beside, f"these sync or name files by themselves; use {SEAM}, or say why the file may be lost: {beside}"
    assert sorted(MAY_WRITE.keys() - found) == [], "these do so no more"


# Async methods leave reads of the database to threads: one on the event loop keeps every client waiting.


DISK_CALLS = ("database.read", "database.write", ".catalog", "_home.resolve")
"""Ends of calls that wait for the disk. To name a chain (``chains.chain``) reads nothing."""


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Of a function itself; what it defines may run anywhere."""
    for child in ast.iter_child_nodes(tree):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            if isinstance(child, ast.Call):
                yield child
            yield from calls(child)


def own_method(call: ast.Call) -> str | None:
    target = call.func
    is_own = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    return target.attr if is_own and isinstance(target, ast.Attribute) else None


def blocks(call: ast.Call, methods: set[str]) -> bool:
    return ast.unparse(call.func).endswith(DISK_CALLS) or own_method(call) in methods


def blocking_methods(cls: ast.ClassDef) -> set[str]:
    found: set[str] = set()
    while True:
        more = {
            each.name
            for each in cls.body
            if isinstance(each, ast.FunctionDef) and any(blocks(call, found) for call in calls(each))
        }
        if more <= found:
            return found
        found |= more


def on_the_loop(tree: ast.Module) -> Iterator[str]:
    for cls in [each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)]:
        methods = blocking_methods(cls)
        for function in [each for each in ast.walk(cls) if isinstance(each, ast.AsyncFunctionDef)]:
            for call in calls(function):
                if blocks(call, methods):
                    yield f"{call.lineno}: {cls.name}.{function.name} waits for {ast.unparse(call.func)}"


@pytest.mark.parametrize("root", ["p2p", "odfd"])
def test_no_async_method_reads_the_database_itself(root: str) -> None:
    found = [
        f"{path.relative_to(TREE)}:{each}"
        for path in sorted((TREE / root).rglob("*.py"))
        for each in on_the_loop(parsed(path))
    ]
    assert not found, found


def test_a_read_within_a_method_of_its_own_is_found() -> None:
    source = """
class A:
    def _look(self):
        with self._home.database.read() as connection:
            return connection
    def _two(self):
        return self._look()
    async def bad(self):
        return self._two()
    async def good(self):
        def look():
            return self._two()
        await to_thread(look)
        return await to_thread(self._two)
"""
    assert list(on_the_loop(ast.parse(source))) == ["9: A.bad waits for self._two"]


# What a message tells people to run or to read is there where odfd is installed: no targets of make, no files.


IN_A_CHECKOUT: Final = {"engines/image/build.py", "odfd/obs/metric_document.py"}
"""Modules that nobody runs but who builds releases."""
TARGET: Final = re.compile(
    r"`make [a-z][a-z-]*|\bmake (?:engine|engine-image|install|demo|deb|lock|docs|image|wheel|ui)\b"
)
FILE: Final = re.compile(r"\bdocs/[\w./-]*|\b(?:README|CONTRIBUTING|ARCHITECTURE|THREATS)\b|\btests/|\bADR \d")
PAGE: Final = re.compile(r"\bodfctl docs ((?:spec/)?[a-z][a-z-]*)")


def wrong(text: Text) -> list[str]:
    if text.place.rpartition(":")[0] in IN_A_CHECKOUT:
        return []
    found = [*FILE.findall(text.text)]
    if "in a checkout" not in text.text:
        found += TARGET.findall(text.text)
    found += [page for page in PAGE.findall(text.text) if page not in list_pages()]
    return [f"{text.place}: {each}: an installed node has no such thing" for each in found]


def test_hints_can_be_followed_where_odfd_is_installed() -> None:
    found = [each for text in messages() for each in wrong(text)]
    assert not found, "\n".join(found)
    assert sum(bool(PAGE.search(text.text)) for text in messages()) > 30, "hints name pages"


@pytest.mark.parametrize(
    "text",
    ["run `make engine-image`", "see docs/sources.md", "make install first", "odfctl docs nothing", "as ADR 46 says"],
)
def test_what_nobody_can_follow_is_found(text: str) -> None:
    assert wrong(Text("odfd/cli/here.py:1", text))


@pytest.mark.parametrize("text", ["make it again", "in a checkout, make demo KEEP=1", "odfctl docs spec/trust"])
def test_what_can_be_followed_is_not(text: str) -> None:
    assert wrong(Text("odfd/cli/here.py:1", text)) == []


# One writer for all output: nothing of ours but ``odfd.output`` and the log writes to standard output or error.


MAY_PRINT: Final = {
    "odfd.output": "the writer",
    "odfd.terminal": "what the writer has drawn on a terminal, of visible text (tests/unit/odfd/cli/test_text.py)",
    "odfd.obs.log": "the log, of which each line is visible (tests/unit/odfd/obs/test_log.py)",
    "engines.image.build": "a tool by itself; what it quotes is made visible",
    "engines.provision.archive": "likewise",
    "engines.provision.preparation": "likewise",
    "engines.spark.__main__": "the engine by itself, whose first line the node reads; likewise",
    "engines.spark.runtime.jvm": "what an engine's JVM said before it died; likewise",
    "odfd.trust.evidence.comparison_process": "its answer, to the pipe of the node that started it",
    "engines.query.__main__": "frames of an answer, to the pipe of the node that started it",
    "engines.flight.__main__": "that it serves, to the pipe of the node that started it",
    "engines.flight.server": "traces, for the node that reads its last words",
    "engines.sandbox.escape_probe": "its answer, to the pipe of whoever started it",
}
STREAMS: Final = ("sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__")
LAST: Final = frozenset(each.rpartition(".")[2] for each in STREAMS)
PRINTING: Final = ("print", "pprint", "print_exc", "print_exception", "print_stack", "print_help", "print_usage")


def writes(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Mentions of a standard stream, but to ask whether it is a terminal; and calls of what writes to one."""
    asked = {
        id(node.func.value)
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "isatty"
    }
    for node in nodes:
        if isinstance(node, ast.Call) and called(node) in PRINTING:
            yield ast.unparse(node.func)
        elif (
            isinstance(node, ast.Attribute)
            and node.attr in LAST
            and ast.unparse(node) in STREAMS
            and id(node) not in asked
        ):
            yield ast.unparse(node)


def test_nothing_is_written_beside_the_writer() -> None:
    beside: dict[str, list[str]] = {}
    for root in WRITING_ROOTS:
        for path in sorted((TREE / root).rglob("*.py")):
            name = ".".join(path.relative_to(TREE).with_suffix("").parts).removesuffix(".__init__")
            if name not in MAY_PRINT and (found := sorted(set(writes(nodes(path))))):
                beside[name] = found
    assert not beside, f"these write by themselves; odfd.output lets nothing through that a terminal obeys: {beside}"


def test_the_test_sees_what_is_written() -> None:
    text = (
        "import sys\nprint(1)\nsys.stderr.write('x')\nsys.stdout.isatty()\nf(file=sys.stderr)\ntraceback.print_exc()\n"
    )
    assert sorted(writes(list(ast.walk(ast.parse(text))))) == [
        "print",
        "sys.stderr",
        "sys.stderr",
        "traceback.print_exc",
    ]
