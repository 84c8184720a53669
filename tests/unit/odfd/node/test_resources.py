"""Resources as they are applied to a node."""

from __future__ import annotations

from typing import Any

from odfd.api.resource_types import TYPES

EXAMPLES = [each.example for each in TYPES.acting]


async def test_the_examples_of_the_reference_are_applied_and_then_unchanged(world: Any) -> None:
    async with world.running("alice") as alice:
        first = await alice.apply(*EXAMPLES)
        assert {item.action for item in first.items} == {"created"}
        assert not [item.warnings for item in first.items if item.warnings]
        again = await alice.apply(*reversed(EXAMPLES))
        assert {item.action for item in again.items} == {"unchanged"}
        assert len(first.items) == len(again.items) == len(TYPES.acting)


async def test_r61_a_snapshot_and_the_resource_of_it_are_one_dataset(world: Any, worlds: Any) -> None:
    """What is written the old way and the new is the same chain."""
    body = worlds.ROOT.partition("content:\n")[2].replace("  name: cities\n", "")
    resource = f"$schema: Dataset\nheaders: {{name: cities}}\nspec:\n{body}"
    async with world.running("alice") as alice:
        (made,) = (await alice.apply(worlds.ROOT)).items
        (again,) = (await alice.apply(resource)).items
        assert (made.action, again.action, made.id) == ("created", "unchanged", again.id)


async def test_what_is_wrong_with_a_dataset_is_told_at_its_line(world: Any) -> None:
    lines = [
        "$schema: Dataset",
        "headers: {name: a}",
        "spec:",
        "  kind: Derivative",
        "  metadata:",
        "  - kind: SetTransform",
    ]
    lines += ["    inputs:", "    - datasetRef: nowhere", "    transform: {kind: Sql, engine: spark, query: select 1}"]
    text = "\n".join(lines)
    async with world.running("alice") as alice:
        (item,) = (await alice.apply(text)).items
        assert item.fault is not None
        assert (item.action, item.fault.place) == ("failed", "m0.yaml:8")
