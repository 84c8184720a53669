"""waits.md is whole and right: every module that waits for others has a row, every bound is what the code says."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from contract.waits.test_dripping import ASKS

from config import schema
from worlds.source_tree import called, nodes

TREE: Final = Path(__file__).parents[2]
ROOTS: Final = ("config", "chain", "engines", "p2p", "odfd")
TABLE: Final = Path(__file__).with_name("waits.md").read_text()
PAGE: Final = (TREE / "docs" / "reference" / "waits.md").read_text()
"""What a reader needs of it: each number of the page is one of the code, too."""
ROWS: Final = [line for line in TABLE.splitlines() if line.startswith("| ") and not line.startswith("| wait ")]
WAITING: Final = {
    "AsyncClient", "new_client", "getaddrinfo", "open_tcp_stream", "open_unix_socket", "create_connection",
    "receive_some", "open_process", "run_process", "Popen", "urlopen", "insecure_channel", "accept",
    "HTTPResponse", "HTTPConnection", "check_output", "check_call", "AsyncHTTPTransport",
}  # fmt: skip
"""Names of calls that wait for another program or machine, or open what does; and ``subprocess.run``."""
ELSEWHERE: Final = dict.fromkeys(
    ("p2p.host.muxer", "config.load", "odfd.api.actions", "odfd.services.trust.policies", "odfd.daemon.init"), "accept"
) | {"p2p.web.client": "AsyncClient"}
"""Names that stand for something of our own there, or for what the callers of that module wait for."""
BOUND: Final = re.compile(r"`([\w.]+):([\w.]+)`(?: (\d[\d.]*))?")
SETTING: Final = re.compile(r"`([a-z0-9]+\.[a-z-]+)`(?: (\d[\d.]*))?")


def waiting() -> Iterator[str]:
    for root in ROOTS:
        for path in sorted((TREE / root).rglob("*.py")):
            name = ".".join(path.relative_to(TREE).with_suffix("").parts).removesuffix(".__init__")
            for node in nodes(path):
                if isinstance(node, ast.Call):
                    last = called(node)
                    waits = last in WAITING or (last == "run" and ast.unparse(node.func) == "subprocess.run")
                    if waits and ELSEWHERE.get(name) != last:
                        yield name


def value_of(module: str, path: str) -> Any:
    """What the code says; of a class the default of its field."""
    found: Any = importlib.import_module(module)
    for step in path.split("."):
        if dataclasses.is_dataclass(found) and isinstance(found, type):
            found = next(each.default for each in dataclasses.fields(found) if each.name == step)
        elif hasattr(found, "__struct_fields__") and isinstance(found, type):
            found = dict(zip(found.__struct_fields__[-len(found.__struct_defaults__):], found.__struct_defaults__,
                             strict=True))[step]  # fmt: skip
        else:
            found = getattr(found, step)
    return found


def test_whoever_waits_has_a_row() -> None:
    named = {name for row in ROWS for name in re.findall(r"`([\w.]+)`", row.split("|")[2])}
    missing = sorted(set(waiting()) - named)
    assert not missing, f"these wait for others, and tests/meta/waits.md does not say how long: {missing}"
    for name in named:
        importlib.import_module(name)


def test_bounds_are_what_the_code_says() -> None:
    defaults = {key.name: key.default for key in schema.every()}
    page = [line for line in PAGE.splitlines() if line.startswith("| ")]
    for row, bounds in (*((row, row.split("|")[3]) for row in ROWS), *((row, row) for row in page)):
        for module, path, value in BOUND.findall(row):
            assert value == "" or float(value_of(module, path)) == float(value), f"{module}:{path}"
        for name, value in SETTING.findall(bounds):
            assert name in defaults, name
            assert value == "" or float(defaults[name]) == float(value), name


def test_each_round_with_a_peer_has_an_end_and_a_budget() -> None:
    """Whoever opens a stream to a peer has a row among the rounds, with seconds and with bytes."""
    rows = TABLE.partition("## Rounds with a peer")[2].partition("## Engines")[0].splitlines()
    rows = [row for row in rows if row.startswith("| ") and not row.startswith("| wait ")]
    named = {name for row in rows for name in re.findall(r"`([\w.]+)`", row.split("|")[2])}
    opening = set()
    for path in (TREE / "p2p" / "driver").glob("*.py"):
        if re.search(r"\.(open_stream|_standing\.open|framed)\(", path.read_text()):
            opening.add(f"p2p.driver.{path.stem}")
    # It serves, and its bounds are in other rows; the network hands on.
    assert opening - {"p2p.driver.serve", "p2p.driver.network"} <= named
    for row in rows:
        bounds = row.split("|")[3]
        assert BOUND.search(bounds), row
        assert re.search(r"\d B\b|bytes", bounds), row


def test_rows_are_tried() -> None:
    """Each by a test that there is, and every case of the dripping server has a row."""
    cases = re.findall(r"dripping\[([\w-]+)\]", TABLE)
    assert set(cases) == set(ASKS)
    for file, _, name in re.findall(r"`(tests/[\w/]+\.py)(::(\w+))?`", TABLE):
        text = (TREE / file).read_text()
        assert not name or f"def {name}(" in text, f"{file}::{name}"
