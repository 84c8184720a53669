"""What plans, applies and shows resources of all types names none: a type is asked by its value and its controller."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from odfd.resources import registry
from odfd.resources.resource import ACCOUNT
from worlds.source_tree import parsed

TREE: Final = Path(__file__).parents[2]
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
