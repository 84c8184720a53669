"""Three real daemons: one publishes, one witnesses and mirrors nothing, one comes new and asks for a witness."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from worlds.eventually import until
from worlds.manifests import ROOT

pytestmark = pytest.mark.e2e


def write(folder: Path, number: int) -> None:
    row = f"2024-01-{number + 1:02}T00:00:00Z,c{number},{number}"
    (folder / f"{number:02}.csv").write_text(f"event_time,city,population\n{row}\n")


def settings(daemon: Any, text: str) -> None:
    file = daemon.folder / "odfd.toml"
    file.write_text(text)
    daemon.more["ODFD_CONFIG"] = str(file)


def test_a_witness_without_a_block_lets_a_newcomer_in(make_daemon: Callable[..., Any]) -> None:
    alice, witness, carol = (make_daemon(name, listens=True, ODFD_NODE_NAME=name) for name in ("a", "w", "c"))
    for daemon in (alice, witness, carol):
        daemon.small = True
    alice.start()
    (alice.folder / "m.yaml").write_text(ROOT)
    write(alice.folder, 0)
    alice.ask("apply", "-f", str(alice.folder / "m.yaml"))
    alice.ask("pull", "cities")
    alice.ask("network", "join", "n")
    address = alice.ask("status")["listen"][0]
    (mine,) = alice.datasets()

    settings(witness, f'[policy.publish]\nwitness = ["{mine["id"]}"]\n')
    witness.start()
    key = witness.ask("status")["nodeId"]
    witness.ask("network", "join", "n", "--bootstrap", address)
    settings(carol, f'[policy.witness]\nquorum = 1\n[[policy.witness.groups]]\nname = "w"\nkeys = ["{key}"]\n')
    carol.start()
    carol.ask("network", "join", "n", "--bootstrap", address)
    carol.ask("peer", "connect", witness.ask("status")["listen"][0])
    carol.ask("mirror", "add", mine["id"], "--as", "theirs")

    def facts() -> Any:
        return carol.ask("trust", "show", "theirs")["facts"]

    until(lambda: facts().get("met") == "witnessed")
    for number in (1, 2):
        write(alice.folder, number)
        alice.ask("pull", "cities")
    (mine,) = alice.datasets()

    def caught_up() -> bool:
        (theirs,) = carol.datasets()
        return bool(theirs["head"] == mine["head"]) and facts().get("witnessed") is True

    until(caught_up)
    assert witness.datasets() == [], "it has no block"
    assert [each.stop() for each in (carol, witness, alice)] == [0, 0, 0]
