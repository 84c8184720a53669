"""Counts the work of our own modules, so that tests can say how it grows with its input, without a clock.

Seconds depend on the machine, and lines that Python runs do not show what one line costs: ``names.count(name)`` walks
through a list in C. So our modules are rewritten while they are imported: each function, turn of a loop and element of
a comprehension counts one, and what Python does in C with a list or a text (``in``, ``count``, ``index``, ``pop(0)``,
concatenation, slices, ``sorted``, ``set``) counts the elements that it walks through, sixteen characters of a text as
one. The number is the same in every run. Not counted is what libraries do: Arrow, msgspec, DuckDB, ``re``.
"""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import json
import operator
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

OURS: Final = frozenset({"chain", "config", "engines", "odfd", "p2p"})
T = TypeVar("T")
_HERE: Final = "__counted_work__"
_TEXTS: Final = (str, bytes, bytearray)
_ROWS: Final = (list, tuple)
_OF_TEXT: Final = 4
"""Sixteen characters of a text count as one: they are copied or compared several at a time."""
_WHOLE: Final = frozenset({set, frozenset, list, tuple, dict, sorted, sum, min, max, any, all, bytes, bytearray})
"""What walks through its arguments."""
_OF_ROWS: Final = frozenset({"count", "index", "remove", "insert", "copy", "reverse", "sort"})
_OF_SETS: Final = frozenset({"union", "intersection", "difference", "update", "copy", "issubset", "issuperset"})
_OF_FRAMES: Final = frozenset({"super", "locals", "globals", "vars", "TypeVar", "NewType"})
"""What looks at its caller's frame."""
_FRESH: Final = frozenset({"names", "column_names", "columns", "types", "chunks"})
"""Attributes of Arrow that are a new list each time."""

spent = 0
"""What was counted so far."""


def tick() -> None:
    global spent
    spent += 1


def _charge(found: object) -> None:
    global spent
    if isinstance(found, _TEXTS):
        spent += 1 + (len(found) >> _OF_TEXT)
    elif isinstance(found, _ROWS):
        spent += 1 + len(found)


def made(found: T) -> T:
    _charge(found)
    return found


def walk(values: Iterable[T]) -> Iterator[T]:
    for value in values:
        tick()
        yield value


def within(value: object, among: Any) -> bool:
    _charge(among)
    return value in (walk(among) if isinstance(among, Iterator) else among)


def added(one: Any, other: Any) -> Any:
    return made(one + other)


def grown(one: Any, other: Any) -> Any:
    result = operator.iadd(one, other)  # type: ignore[no-untyped-call]
    _charge(other if isinstance(one, list | bytearray) else result)
    return result


def attribute(of: Any, name: str) -> Any:
    found = getattr(of, name)
    if type(of).__module__.startswith("pyarrow") and not callable(found):
        _charge(found)
    return found


def call(function: Callable[..., T], /, *given: Any, **named: Any) -> T:
    global spent
    result = function(*given, **named)
    if isinstance(function, types.BuiltinFunctionType | type) and function in _WHOLE:
        spent += sum(len(each) for each in given if hasattr(each, "__len__"))
    elif isinstance(function, types.BuiltinFunctionType):
        of, name = function.__self__, function.__name__
        if isinstance(of, _ROWS) and (name in _OF_ROWS or (name == "pop" and given and given[0] != -1)):
            spent += len(of)
        elif isinstance(of, _TEXTS) and name not in ("startswith", "endswith", "append", "extend"):
            if name in ("find", "index") and isinstance(result, int) and result >= 0:
                spent += 1 + (max(0, result - (given[1] if len(given) > 1 else 0)) >> _OF_TEXT)
            else:
                _charge(result if name == "join" else of)
        elif isinstance(of, set | frozenset | dict) and name in _OF_SETS:
            sizes = [len(each) for each in given if hasattr(each, "__len__")]
            spent += min([len(of), *sizes]) if name == "intersection" else len(of) * (name != "update") + sum(sizes)
    return result


class _Counting(ast.NodeTransformer):
    def _ask(self, name: str, *given: ast.expr) -> ast.expr:
        return ast.Call(ast.Attribute(ast.Name(_HERE, ast.Load()), name, ast.Load()), list(given), [])

    def _begins(self, body: list[ast.stmt]) -> list[ast.stmt]:
        at = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
        return [*body[:at], ast.Expr(self._ask("tick")), *body[at:]]

    def _function(self, node: Any) -> Any:
        node.body = self._begins([self.visit(each) for each in node.body])
        node.decorator_list = [self.visit(each) for each in node.decorator_list]
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = _function

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        node.value = None if node.value is None else self.visit(node.value)
        return node

    def visit_For(self, node: ast.For) -> Any:
        self.generic_visit(node)
        node.iter = self._ask("walk", node.iter)
        return node

    def visit_While(self, node: ast.While) -> Any:
        self.generic_visit(node)
        node.body = [ast.Expr(self._ask("tick")), *node.body]
        return node

    def visit_comprehension(self, node: ast.comprehension) -> Any:
        self.generic_visit(node)
        if not node.is_async:
            node.iter = self._ask("walk", node.iter)
        return node

    def visit_Starred(self, node: ast.Starred) -> Any:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load):
            node.value = self._ask("walk", node.value)
        return node

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        if len(node.ops) > 1 or not isinstance(node.ops[0], ast.In | ast.NotIn):
            return node
        found = self._ask("within", node.left, node.comparators[0])
        return ast.UnaryOp(ast.Not(), found) if isinstance(node.ops[0], ast.NotIn) else found

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        self.generic_visit(node)
        return self._ask("added", node.left, node.right) if isinstance(node.op, ast.Add) else node

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        self.generic_visit(node)
        target = node.target
        plain = isinstance(target, ast.Name) or (
            isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)
        )
        if not isinstance(node.op, ast.Add) or not plain:
            return node
        before = ast.parse(ast.unparse(target), mode="eval").body
        return ast.Assign([target], self._ask("grown", before, node.value))

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load) and node.attr in _FRESH:
            return self._ask("attribute", node.value, ast.Constant(node.attr))
        return node

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        self.generic_visit(node)
        sliced = isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Slice)
        return self._ask("made", node) if sliced else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> Any:
        return self._ask("made", node)

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in _OF_FRAMES:
            return node
        node.args, node.func = [node.func, *node.args], ast.Attribute(ast.Name(_HERE, ast.Load()), "call", ast.Load())
        return node

    def visit_MatchClass(self, node: ast.MatchClass) -> Any:
        return node

    def visit_MatchValue(self, node: ast.MatchValue) -> Any:
        return node


def rewritten(source: str | bytes, path: str) -> types.CodeType:
    """Compiles a module so that it counts."""
    tree = _Counting().visit(ast.parse(source, path))
    after = next(
        (
            place
            for place, each in enumerate(tree.body)
            if not (isinstance(each, ast.ImportFrom) and each.module == "__future__")
            and not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
        ),
        len(tree.body),
    )
    tree.body[after:after] = ast.parse(f"import sys as {_HERE}\n{_HERE} = {_HERE}.modules[{__name__!r}]").body
    return compile(ast.fix_missing_locations(tree), path, "exec")


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        return rewritten(self.get_data(path), path)


class _Finder:
    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> Any:
        if name.partition(".")[0] not in OURS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader) and spec.origin:
            spec.loader = _Loader(name, spec.origin)
        return spec


def count_from_now() -> None:
    """Rewrites those of our modules that are imported from now on; none may be there yet."""
    assert not OURS & sys.modules.keys(), "modules that are imported already are not counted"
    sys.meta_path.insert(0, _Finder)


def cost(work: Callable[[], object]) -> int:
    before = spent
    work()
    return spent - before


def main(cases: str) -> None:
    """Prints what each case of a module costs, at each of its sizes."""
    count_from_now()
    for name, (make, sizes) in importlib.import_module(cases).CASES.items():
        make(sizes[0])()  # imports, and what is kept from the first time
        print(json.dumps([name, [cost(make(size)) for size in sizes]]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
