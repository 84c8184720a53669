"""Names of rules in the source tree: of faults, findings of ``verify``, append rules and refused queries."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from worlds.source_tree import called, nodes, parsed

TREE: Final = Path(__file__).parents[2]
FOLDERS: Final = ("chain", "config", "engines", "p2p", "odfd", "client/odfd_client")
NAME: Final = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*|If-(None-)?Match")
CODES: Final = frozenset({"Denial", "OperatorRefusal", "Phrase", "QueryFinding", "Diagnostic"})
"""Classes of which ``code`` is the rule of the refusal that it becomes."""
OTHERS: Final = frozenset({"note", "connect", "reach", "number_of", "_forget", "ReachBound"})
"""Names of functions with a ``rule`` that other functions have too: only a text with a hyphen or a dot counts."""
TABLES: Final = {
    "chain/store/database.py": ("_FULL", "_HINTS"),
    "odfd/services/peers/invitation_uses.py": ("_SAID",),
}
"""Constants whose tuples hold a rule beside a text."""
SPARK: Final = ("engines/spark/sql/diagnostics.py", ("_HINTS", "_DATA_HINTS"))
"""Conditions of Spark with a hint of ours. Their names in small letters are rules, and so are those of all others."""
MADE: Final = {
    "odfd/runtime/http_server.py": (
        "http-listen", "http-ui", "api-listen", "metrics-listen", "flight-listen",
    ),
    "odfd/runtime/tls.py": ("http-ui-certificate", "api-certificate", "flight-certificate"),
    "odfd/control/tokens.py": ("http-ui-tokens", "flight-tokens"),
    "odfd/verify/objects.py": tuple(
        f"{kind}-{what}" for kind in ("slice", "checkpoint", "linked-object")
        for what in ("missing", "size", "physical-hash")
    ),
    "odfd/api/endpoints.py": ("If-Match", "If-None-Match"),
    "engines/query/duckdb_faults.py": ("query-syntax", "query-names", "query"),
}  # fmt: skip
"""Rules that are put together, by the module that does: settings, and objects of a chain."""


class Raised(NamedTuple):
    """One place at which a rule is named."""

    rule: str
    place: str
    text: str
    """The expression."""


@cache
def raised() -> dict[str, list[Raised]]:
    found: dict[str, list[Raised]] = defaultdict(list)
    for each in _raised():
        found[each.rule].append(each)
    return dict(found)


def _raised() -> Iterator[Raised]:
    positions = dict(_positions())
    for module, path in _modules().items():
        shown = path.relative_to(TREE).as_posix()
        for rule in MADE.get(shown, ()):
            yield Raised(rule, shown, "")
        for node in nodes(path):
            if isinstance(node, ast.Call):
                for rule in _of_call(module, node, positions):
                    yield Raised(rule, f"{shown}:{node.lineno}", ast.unparse(node))
            elif isinstance(node, ast.FunctionDef):
                for rule in _of_defaults(module, node):
                    yield Raised(rule, f"{shown}:{node.lineno}", node.name)
            elif isinstance(node, ast.ClassDef):
                for rule in _of_class(node, shown):
                    yield Raised(rule, f"{shown}:{node.lineno}", f"{node.name}: {ast.get_docstring(node) or ''}")
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                for rule in _of_assignment(node, shown):
                    yield Raised(rule, f"{shown}:{node.lineno}", ast.unparse(node.value)[:300])


def _of_call(module: str, call: ast.Call, positions: dict[str, set[int]]) -> Iterator[str]:
    name = called(call)
    words = {"rule", "code"} if name in CODES else {"rule"}
    if name == "check_client" and isinstance(extra := call.args[2], ast.Constant):
        yield f"{extra.value!s}-extra"
    for keyword in call.keywords:
        if keyword.arg in words:
            yield from (each for each in _texts(module, keyword.value) if NAME.fullmatch(each))
    if any(isinstance(each, ast.Starred) for each in call.args):
        return
    for index in positions.get(name, ()):
        if index < len(call.args):
            for text in _texts(module, call.args[index]):
                if NAME.fullmatch(text) and (name not in OTHERS or "-" in text or "." in text):
                    yield text


def _of_defaults(module: str, function: ast.FunctionDef) -> Iterator[str]:
    """The rule of a fault whose maker names none."""
    known = function.args
    named = [*zip(known.kwonlyargs, known.kw_defaults, strict=True)]
    named += zip([*known.posonlyargs, *known.args][::-1], known.defaults[::-1], strict=False)
    for argument, default in named:
        if argument.arg == "rule" and default is not None:
            yield from (each for each in _texts(module, default) if NAME.fullmatch(each))


def _of_class(node: ast.ClassDef, shown: str) -> Iterator[str]:
    """The name of an append rule, and the rule that all faults of a class have."""
    names = {"rule", "_rule", "common_rule"} | ({"name"} if shown.startswith("chain/rules/") else set())
    for each in node.body:
        target = each.targets[0] if isinstance(each, ast.Assign) else getattr(each, "target", None)
        value = getattr(each, "value", None)
        if isinstance(target, ast.Name) and target.id in names and isinstance(value, ast.Constant) and value.value:
            yield str(value.value)


def _of_assignment(node: ast.Assign | ast.AnnAssign, shown: str) -> Iterator[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    names = {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
    assert node.value is not None
    if names & set(TABLES.get(shown, ())):
        texts = (each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant))
        yield from (each for each in texts if isinstance(each, str) and "-" in each and NAME.fullmatch(each))
    elif shown == SPARK[0] and names & set(SPARK[1]) and isinstance(node.value, ast.Dict):
        texts = (each.value for each in node.value.keys if isinstance(each, ast.Constant))
        yield from {str(each).partition(".")[0].lower().replace("_", "-") for each in texts}
    elif "rule" in names:
        texts = (each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant))
        yield from (each for each in texts if isinstance(each, str) and "-" in each and NAME.fullmatch(each))


def _texts(module: str, node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.IfExp(body=first, orelse=second):
            yield from (*_texts(module, first), *_texts(module, second))
        case ast.BoolOp(values=values):
            for each in values:
                yield from _texts(module, each)
        case ast.JoinedStr(values=[ast.FormattedValue(), ast.Constant(value=str(end))]):
            yield from _KNOWN_ENDS.get(end, ())
        case ast.Name(id=name):
            yield from filter(None, [_constant(module, name)])
        case ast.Attribute(value=ast.Name(id=first), attr=name):
            where = _imports(module).get(first)
            if where is not None:
                yield from filter(None, [_constant(".".join(where), name)])


_KNOWN_ENDS: Final = {
    "-inside": ("p2p-inside", "webhooks-inside"),
    "-of-others": ("sample-of-others", "words-of-others"),
}
"""Rules that an f-string makes, by its end."""


def _positions() -> Iterator[tuple[str, set[int]]]:
    """Positions of a text called ``rule`` among the arguments of functions and classes, by their names."""
    found: dict[str, set[int]] = defaultdict(set)
    for path in _modules().values():
        classes = [node for node in nodes(path) if isinstance(node, ast.ClassDef)]
        makers = {each: node.name for node in classes for each in node.body if getattr(each, "name", "") == "__init__"}
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                known = [*node.args.posonlyargs, *node.args.args]
                shift = 1 if known and known[0].arg in ("self", "cls") else 0
                name = makers.get(node, node.name)
                for index, each in enumerate(known):
                    if each.arg == "rule" and _is_text(each.annotation):
                        found[name].add(index - shift)
            elif isinstance(node, ast.ClassDef):
                fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
                for index, field in enumerate(fields):
                    name = field.target.id if isinstance(field.target, ast.Name) else ""
                    wanted = name == "rule" or (name == "code" and node.name in CODES)
                    if wanted and _is_text(field.annotation):
                        found[node.name].add(index)
    yield from found.items()


def _is_text(annotation: ast.expr | None) -> bool:
    return annotation is None or ast.unparse(annotation) in ("str", "str | None")


@cache
def _modules() -> dict[str, Path]:
    paths = [path for folder in FOLDERS for path in sorted((TREE / folder).rglob("*.py"))]
    return {_module(path): path for path in paths}


def _module(path: Path) -> str:
    name = ".".join(path.relative_to(TREE).with_suffix("").parts)
    return name.removesuffix(".__init__").removeprefix("client.")


@cache
def _imports(module: str) -> dict[str, tuple[str, str]]:
    found = (node for node in nodes(_modules()[module]) if isinstance(node, ast.ImportFrom) and node.module)
    return {each.asname or each.name: (str(node.module), each.name) for node in found for each in node.names}


def _constant(module: str, name: str, depth: int = 0) -> str | None:
    """The text of a constant of a module, also of one that the module imports."""
    path = _modules().get(module)
    if path is None or depth > 5:
        return None
    for node in parsed(path).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and target.id == name and isinstance(node.value, ast.Constant):
                return node.value.value if isinstance(node.value.value, str) else None
    where = _imports(module).get(name)
    return None if where is None else _constant(*where, depth + 1)
