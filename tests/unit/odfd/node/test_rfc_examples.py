"""The examples of RFC-018's repository, and what its text writes otherwise, on a running node."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parents[3] / "golden" / "rfc018"
REFUSED = {
    "sink-webhook-dataset-events.webhook-target": "its secret is <jwe>, and no value",
    "sink-webhook-dataset-events.webhook-target-canonical": "a view of a resource",
    "source-polling-url.proj-latest": "latest is a function of kamu's engine",
    "source-push-http.dataset-aggregates": "its engine is flink",
}
GROUPS = sorted({path.stem.partition(".")[0] for path in GOLDEN.glob("*.yaml")})
SEALED = re.compile(r"(\w+):[^\n]*\n\s+value: <jwe>\s+contentEncoding: jwe")
"""A placeholder, for which the test writes a value as the document says that plain ones may be written."""
TEXT = """$schema: Flow
headers: {name: periodic-compaction}
spec:
  target:
    type: Dataset
    name: org.opendatafabric.%
    labels: {datasetKind: Root, env: prod}
  triggers:
  - kind: Cron
    cron: "@daily"
  steps:
  - kind: Compaction
    maxSliceSize: 100MiB
    maxSliceRecords: 10_000
"""
CHECKS = """$schema: Flow
headers: {{name: checks}}
spec:
  target: {{type: Dataset, account: {{name: {}}}, name: temps}}
  triggers: [{{kind: Schedule, cron: "@daily"}}]
  tasks: [{{kind: Verify}}]
"""
ACCOUNT = "$schema: Account\nheaders: {name: sergiimk}\nspec: {email: s@example.com}\n"
SLICES = "params.targetSliceRecords is passed over: each fetch becomes a slice, and a Compaction merges them"
WARNED = {
    "auth-accounts-permissions": {
        "spec.password is passed over, and kept nowhere: an Account is known by its unixCallers (odfctl docs access)"
    },
    "flow-compact": {
        "spec.target.labels.kind is read as datasetKind, the label that the node gives",
        "spec.tasks[0].params is read as fields of the task",
    },
    "sink-webhook-dataset-events": {
        "m1.yaml:13: no webhooktarget 'com.example.hook' here; it begins when that is here",
        "spec.tasks[0].target is read as endpoint",
    },
    "source-polling-url": {
        f"spec.tasks[0].{SLICES}",
        *(
            f"m2.yaml:8: no {kind} 'ca.bankofcanada' here; it begins when that is here"
            for kind in ("secretset", "variableset")
        ),
    },
    "source-push-http": {f"spec.tasks[0].{SLICES}", "spec.triggers[0]: kind: Source is read as kind: SourceUpdated"},
}


def examples(group: str) -> list[str]:
    found = sorted(path for path in GOLDEN.glob(f"{group}.*.yaml") if path.stem not in REFUSED)
    return [SEALED.sub(r"\1: sesame", path.read_text()) for path in found]


@pytest.mark.parametrize("group", GROUPS)
async def test_r62_the_examples_of_the_rfc_apply_and_are_unchanged_when_they_come_again(world: Any, group: str) -> None:
    texts = examples(group)
    async with world.running("alice") as alice:
        await alice.apply(ACCOUNT)
        done = await alice.apply(*texts)
        assert {each.action for each in done.items} == {"created"}
        assert {text for each in done.items for text in each.warnings} == WARNED.get(group, set())
        await alice.parts.reconciler.settled()
        again = await alice.apply(*texts)
        assert {each.action for each in again.items} == {"unchanged"}
        state = b"".join(each.read_bytes() for each in alice.home.directory.glob("state.db*"))
        assert b"swordfish" not in state


async def test_r62_the_dialect_of_the_text_is_read_with_a_warning_for_each_word(world: Any) -> None:
    async with world.running("alice") as alice:
        (item,) = (await alice.apply(TEXT)).items
        assert (item.action, set(item.warnings)) == (
            "created",
            {
                "spec.steps is read as tasks",
                "spec.triggers[0]: kind: Cron is read as kind: Schedule",
                "spec.tasks[0].maxSliceRecords: 10_000 is read as 10000",
            },
        )
        kept = (await alice.api.declarations.get("flow", "periodic-compaction")).spec
        labels = {"datasetKind": "Root", "env": "prod"}
        assert kept["target"] == {"type": "Dataset", "name": "org.opendatafabric.%", "labels": labels}
        assert kept["tasks"] == [{"kind": "Compaction", "maxSliceSize": "100MiB", "maxSliceRecords": 10000}]


async def test_r62_a_dataset_that_is_named_with_its_account_is_found_if_it_is_of_that_one(world: Any) -> None:
    owned = "$schema: Dataset\nheaders: {name: temps, account: sergiimk}\nspec: {kind: Root, metadata: []}\n"
    async with world.running("alice") as alice:
        done = await alice.apply(ACCOUNT, owned, CHECKS.format("sergiimk"))
        assert {(each.action, each.warnings) for each in done.items} == {("created", ())}
        await alice.parts.reconciler.settled()
        view = await alice.api.declarations.get("flow", "checks")
        assert (view.spec["target"], view.status["phase"]) == ("Dataset:sergiimk/temps", "Ready")
        assert (await alice.api.flows.get("checks")).target == "temps"
        await alice.api.flows.delete("checks")
        await alice.apply(CHECKS.format("nobody"))
        await alice.parts.reconciler.settled()
        view = await alice.api.declarations.get("flow", "checks")
        assert (view.status["phase"], view.status["code"]) == ("Failed", "unresolved-reference")
