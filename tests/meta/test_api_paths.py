"""Whoever asks the API names a context that it has: a path of none is found by the one command that asks it alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from odfd.api.resources.types import TYPES
from odfd.resources.types import VERSION
from worlds.source_tree import nodes

TREE: Final = Path(__file__).parents[2]
ASKING: Final = ("odfd/cli", "client", "demo", "bench", "examples")
CONTEXTS: Final = "|".join({"resource", *(each.context for each in TYPES)})
ASKS: Final = {"ask", "delete", "get", "patch", "post", "put", "stream", "submit"}
BESIDE: Final = {"/graphql", "/livez", "/metrics", "/openapi.json", "/readyz", "/schemas/", "/version"}
OF_OTHERS: Final = {"client/odfd_client/flight_transport.py", "client/odfd_client/site_transport.py"}
"""Modules that ask others than the API of a node."""
KNOWN: Final = re.compile(rf"/({CONTEXTS})/{VERSION}(/|$)")
IN_PAGE: Final = re.compile(r"""\b(?:useAsk|ask|act)\(\s*["`](/[^"`$?]*)""")


def paths(path: Path) -> Iterator[tuple[int, str]]:
    """(line, beginning of a path) of each call that asks for one which is written there."""
    for node in nodes(path):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        for argument in node.args[:2] if name in ASKS else ():
            text = argument.values[0] if isinstance(argument, ast.JoinedStr) and argument.values else argument
            if isinstance(text, ast.Constant) and isinstance(text.value, str) and text.value.startswith("/"):
                yield node.lineno, text.value


def is_known(path: str) -> bool:
    return bool(KNOWN.match(path)) or any(path == each or path.startswith(each + "?") for each in BESIDE)


def test_every_path_that_is_asked_is_in_a_context_of_the_api() -> None:
    asked = [
        (f"{path.relative_to(TREE)}:{line}", text)
        for folder in ASKING
        for path in sorted((TREE / folder).rglob("*.py"))
        if str(path.relative_to(TREE)) not in OF_OTHERS
        for line, text in paths(path)
    ]
    asked += [
        (str(path.relative_to(TREE)), text)
        for path in sorted((TREE / "odfd" / "page" / "static").glob("*.js"))
        for text in IN_PAGE.findall(path.read_text())
    ]
    assert len(asked) > 100
    assert not [each for each in asked if not is_known(each[1])]


def test_a_path_of_no_context_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "asking.py"
    file.write_text('client.get(f"/datasets/{ref}/schema", Schema)\nsubmit(session, "/node/v1alpha1/pull", request)\n')
    assert [(line, is_known(text)) for line, text in paths(file)] == [(1, False), (2, True)]
    assert IN_PAGE.findall('useAsk(`/events?kept=1`, 30); ask("/status")') == ["/events", "/status"]
