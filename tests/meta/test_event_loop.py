"""Async methods leave reads of the database to threads: one on the event loop keeps every client waiting."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from worlds.source_tree import parsed

TREE = Path(__file__).parents[2]

BLOCKING = ("database.read", "database.write", ".catalog", "_home.resolve")
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
    return ast.unparse(call.func).endswith(BLOCKING) or own_method(call) in methods


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
