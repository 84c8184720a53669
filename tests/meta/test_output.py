"""One writer for all output: nothing of ours but ``odfd.output`` and the log writes to standard output or error."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from worlds.source_tree import called, nodes

TREE: Final = Path(__file__).parents[2]
ROOTS: Final = ("config", "chain", "engines", "p2p", "odfd", "client")
ALLOWED: Final = {
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
    for root in ROOTS:
        for path in sorted((TREE / root).rglob("*.py")):
            name = ".".join(path.relative_to(TREE).with_suffix("").parts).removesuffix(".__init__")
            if name not in ALLOWED and (found := sorted(set(writes(nodes(path))))):
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
