"""``kill -9`` before and after what a deleted resource made is undone: the next start does it."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from p2p.identity import did_of_seed, peer_of_seed
from worlds.eventually import PATIENCE, until

pytestmark = pytest.mark.e2e
KEY, PEER = did_of_seed(b"s" * 32), peer_of_seed(b"s" * 32)
DID: Final = f"did:odf:fed01{'ab' * 32}"
GONE: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "Dataset": ("{name: cities}\nspec: {kind: Root, metadata: []}", ("delete", "dataset", "cities", "--yes")),
    "Mirror": (f"{{name: theirs}}\nspec: {{source: '{DID}'}}", ("mirror", "remove", "theirs")),
    "Network": ("{name: demo}\nspec: {bootstrap: []}", ("network", "leave", "demo")),
    "Peer": (f"{{name: other}}\nspec: {{peerId: {PEER}, blocked: true}}", ("peer", "unblock", PEER)),
    "Validator": (f"{{name: v}}\nspec: {{did: '{KEY}', group: others}}", ("trust", "validator", "remove", str(KEY))),
}  # fmt: skip
"""Manifests, without their types, and the commands that delete what they declare."""


def ids(daemon: Any, table: str, type_: str) -> list[str]:
    """Lists the resources of a type in a table of the store."""
    with closing(sqlite3.connect(daemon.state / "odfd.sqlite")) as connection:
        return [row[0] for row in connection.execute(f"SELECT id FROM {table} WHERE {type_}")]


@pytest.mark.parametrize("when", ["before", "after"])
def test_r54_what_was_deleted_when_the_node_was_killed_is_undone_after_the_next_start(
    make_daemon: Callable[..., Any], tmp_path: Path, when: str
) -> None:
    daemon = make_daemon("a", listens=True, small=True)
    file = tmp_path / "m.yaml"
    file.write_text("\n---\n".join(f"$schema: {word}\nheaders: {text}" for word, (text, _) in GONE.items()))
    daemon.start()
    assert {each["action"] for each in daemon.ask("apply", "-f", str(file))["items"]} == {"created"}
    for word, (_, command) in reversed(GONE.items()):
        daemon.kill()
        daemon.more["KILL_FINALIZER"] = when
        daemon.start()
        del daemon.more["KILL_FINALIZER"]
        assert daemon.ctl(*command).code, "it was killed before it could answer"
        assert daemon.process.wait(PATIENCE) == -signal.SIGKILL
        daemon.process = None
        assert ids(daemon, "res_deleting", "TRUE")
        assert not ids(daemon, "declarations", f"type = '{word}' AND name <> 'theirs'")
        daemon.start()
        until(lambda: not ids(daemon, "res_deleting", "TRUE"))
    actions = [each["action"] for each in daemon.ask("apply", "-f", str(file))["items"]]
    assert actions == ["created"] * len(GONE)
    assert daemon.ask("get", "unmanaged")[0]["name"] == "cities"
