"""Every decoder of a peer's bytes is a fuzz target: who writes a new one gives it valid messages to begin from.

A decoder is a public function that takes bytes or text and says that it raises Invalid, Misbehaviour or BadAddress, or
gives a Judgement of bytes, or the ``decode`` of a layout; wherever what comes from peers is read.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from worlds.peer_bytes import OURS, TARGETS
from worlds.source_tree import parsed

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
