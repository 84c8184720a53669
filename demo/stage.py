"""Holds the shared state of the acts: the nodes, the datasets by name, and the results so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from demo.nodes import Broken, Node
from demo.story import Story

NETWORK: Final = "demo"
DERIVED: Final = ("nyc.flights.delays", "nyc.flights.long")
HONEST: Final = ("nyc.flights", "nyc.airlines", *DERIVED)
BAD: Final = "nyc.flights.bad"
_LISTEN: Final = '[p2p]\nlisten = ["/ip4/127.0.0.1/tcp/0"]\n'
_HEAD: Final = '[node]\nname = "{name}"\n[engine]\nidle-seconds = 600\nquick-start = true\n'
AT_ONCE: Final = "[policy.publish]\nattest-seconds = 1\n"
"""For a validator in a story that nobody waits ten minutes for."""
_TREE: Final = Path(__file__).parents[1]


@dataclass
class Stage:
    """The shared state of the acts."""

    folder: Path
    story: Story
    nodes: dict[str, Node] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    address: str = ""
    rows: dict[str, int] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    """What the picture shows."""

    @property
    def sources(self) -> Path:
        return self.folder / "sources"

    def node(self, letter: str, name: str, settings: str, program: tuple[str, ...] = ()) -> Node:
        made = Node(letter, name, self.folder / letter, settings_of(name, settings))
        if program:
            made.program = program
            made.environment = {"PYTHONPATH": str(_TREE)}
        self.nodes[letter] = made
        made.start()
        return made

    def dataset(self, node: Node, name: str) -> dict[str, Any]:
        found: dict[str, Any] = node.datasets()[name]
        return found


def settings_of(name: str, more: str) -> str:
    """Formats settings, by which nodes derive on request only, unless they set flows."""
    flows = "" if "[flows]" in more else "[flows]\nfollow = false\n"
    return _HEAD.format(name=name) + _LISTEN + flows + more


def all_good(items: dict[str, Any]) -> None:
    """Raises Broken when a dataset was not brought up to date."""
    for item in items.values():
        if item["outcome"] in ("failed", "blocked"):
            raise Broken(f"pull of {item['ref']}: {item['message']}")


def relies(stage: Stage, node: Node, name: str, fact: str) -> bool:
    """Whether a node relies on all of a dataset, for this fact."""
    view = stage.dataset(node, name)
    return bool(view["relyOn"]["fact"] == fact and view["relyOn"]["blocks"] == view["blocks"])
