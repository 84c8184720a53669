"""``kill -9`` in the middle of an apply of datasets, a network, a validator and a mirror: all is there, or none."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from odfd.services.resources.types import TYPES
from worlds.eventually import PATIENCE

pytestmark = pytest.mark.e2e
DATASETS: Final = 3
INTENTS: Final = ("network", "validator", "mirror")
"""What concerns others is in the same transaction; also a peer, of which ``get`` lists those that are met."""
WRITTEN, DURABLE = 4, 5
"""Steps of the one transaction: all is written and not committed; it is committed."""


@pytest.mark.parametrize("step", [WRITTEN, DURABLE])
def test_all_datasets_of_a_killed_apply_are_there_or_none(
    make_daemon: Callable[..., Any], tmp_path: Path, step: int
) -> None:
    names = [f"d{number}" for number in range(DATASETS)]
    spec = "spec: {kind: Root, metadata: []}"
    manifests = [f"$schema: Dataset\nheaders: {{name: {name}}}\n{spec}\n" for name in names]
    manifests.append("$schema: VariableSet\nheaders: {name: v}\nspec: {variables: {x: '1'}}\n")
    manifests += [kind.example for word in INTENTS if (kind := TYPES.word(word)) is not None]
    (tmp_path / "m.yaml").write_text("---\n".join(manifests))
    daemon = make_daemon("a", KILL_AT=str(step), small=True)
    daemon.start()
    assert daemon.said("apply", "-f", str(tmp_path / "m.yaml")).code, "it was killed before it could answer"
    assert daemon.process.wait(PATIENCE) == -signal.SIGKILL
    daemon.process = None
    del daemon.more["KILL_AT"]
    daemon.start()
    expected = names if step == DURABLE else []
    assert [each["name"] for each in daemon.datasets() if each["name"] != "covid"] == expected
    for kind in ("vs", *INTENTS):
        assert len(daemon.ask("get", kind)) == bool(expected), kind
    items = daemon.ask("apply", "-f", str(tmp_path / "m.yaml"))["items"]
    assert {each["action"] for each in items} == {"unchanged" if expected else "created"}
