"""Reads the transactions of a derived dataset, to write them as runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from chain.errors import Invalid
from odfd.cli import kinds
from odfd.cli.standards.openlineage import Derivation, run_events
from odfd.control import calls, wire

if TYPE_CHECKING:
    from odfd.control.client import Client

_PAGE: Final = 500
"""Blocks of one request."""


class TransactionRuns:
    """The newest transactions of one dataset. Raises Invalid for a root, which has no runs."""

    def __init__(self, client: Client, ref: str, limit: int) -> None:
        self._client, self._ref = client, ref
        view = kinds.dataset_view(client, ref)
        if view.kind == "root":
            raise Invalid(
                f"{view.name} is a root: nothing derives it", rule="lineage-events",
                hint=f"odfctl lineage {view.name} names what is derived from it",
            )  # fmt: skip
        graph = client.do(calls.lineage_graph(ref)).value
        names = {each.id: each.ref for each in graph.nodes if not each.ref.startswith("did:")}
        self._about = Derivation(view, names)
        self._blocks = self._newest("ExecuteTransform", limit + 1)
        self.left_out = len(self._blocks) > limit
        """Whether there are older transactions."""
        self._blocks = self._blocks[:limit][::-1]
        self._transforms = self._newest("SetTransform", None)
        self._known: dict[str, dict[str, Any]] = {}

    def events(self) -> Iterator[dict[str, Any]]:
        """Yields the events, oldest first."""
        for block in self._blocks:
            yield from run_events(self._about, self._detail(block.hash), self._transform_at(block.sequence_number))

    def _transform_at(self, number: int) -> dict[str, Any]:
        declared = next((each for each in self._transforms if each.sequence_number < number), None)
        if declared is None:
            raise Invalid(f"block #{number} runs a transform that no block before it sets", rule="lineage-events")
        if declared.hash not in self._known:
            transform: dict[str, Any] = self._detail(declared.hash).manifest["event"]["transform"]
            self._known[declared.hash] = transform
        return self._known[declared.hash]

    def _detail(self, block: str) -> wire.BlockDetail:
        return self._client.do(calls.datasets_block(self._ref, block)).value

    def _newest(self, kind: str, most: int | None) -> list[wire.BlockView]:
        """Returns the newest blocks with such an event, newest first. ``most``: how many; ``None``: all."""
        found: list[wire.BlockView] = []
        before = None
        while most is None or len(found) < most:
            limit = _PAGE if most is None else min(_PAGE, most - len(found))
            page = self._client.do(calls.datasets_log(self._ref, kind=[kind], limit=limit, before=before)).value
            found += page
            if len(page) < limit:
                break
            before = str(page[-1].sequence_number)
        return found
