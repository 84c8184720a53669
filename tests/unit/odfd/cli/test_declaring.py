"""Commands that make a resource apply the manifest of it, and print it where asked."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from odfd.cli import main
from odfd.cli.session import Session
from odfd.control.client import Client

PEER = "12D3KooWM57jXdhtZT4ZEcdNbTo5JiKUxMZHg143ugaEYH8CNUMh"
KEY = "did:key:z6Mkqi1cNkNci6HXwDxeeS1aP1neHbnW4CDve788zZwKPkR9"
VIEWS: dict[str, Any] = {
    "/networks/demo": {"name": "demo"},
    f"/peers/{PEER}": {"peerId": PEER, "connected": False, "score": 0, "blocked": True},
    "/validators": [{"key": KEY, "group": "uni"}],
}


class Daemon(Client):
    """Answers as one that applies whatever comes."""

    def __init__(self, standing: list[dict[str, Any]]) -> None:
        self.standing = standing
        self.applied: list[dict[str, Any]] = []

    def ask(self, method: str, path: str, body: Any = None, query: Any = None) -> Any:
        assert query is None
        if (method, path) == ("POST", "/apply"):
            (manifest,) = body.manifests
            self.applied.append(json.loads(manifest.text))
            return {"id": "task"}
        if path.startswith("/resources/"):
            return self.standing
        return VIEWS[path]

    def stream_json(self, path: str, query: Any = None) -> Any:
        assert (path, query) == ("/tasks/task", {"follow": "1"})
        manifest = self.applied[-1]
        kind, name = manifest["$schema"].lower(), manifest["headers"]["name"]
        items = [{"kind": kind, "name": name, "action": "created"}]
        yield {"state": "done", "result": {"items": items, "dryRun": False}}


def view(type_: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    headers = {"name": name, "labels": {"team": "x"}, "generation": 3}
    more = {"labels": headers["labels"], "generation": 3, "updatedAt": "2026-01-01T00:00:00Z"}
    return {"type": type_, "name": name, "schema": "s", "headers": headers, "spec": spec, "id": "i", **more}


@pytest.mark.parametrize(
    ("words", "type_", "spec"),
    [
        (("network", "join", "demo"), "Network", {"bootstrap": []}),
        (("peer", "block", PEER), "Peer", {"peerId": PEER, "blocked": True}),
        (("trust", "validator", "add", KEY, "--group", "uni"), "Validator", {"did": KEY, "group": "uni"}),
        (("repo", "add", "demo", "https://example.org/odf"), "Repository", {"url": "https://example.org/odf"}),
    ],
)
def test_r08_a_command_applies_the_manifest_that_it_prints(
    words: tuple[str, ...], type_: str, spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    daemon = Daemon([])
    monkeypatch.setattr(Session, "client", daemon)
    assert main.main([*words, "-v"]) == 0
    (manifest,) = daemon.applied
    assert (manifest["$schema"], manifest["spec"]) == (type_, spec)
    assert yaml.safe_load(capsys.readouterr().err) == manifest
    assert main.main([*words, "-q"]) == 0
    assert (daemon.applied[1], capsys.readouterr().err) == (manifest, "")


def test_r08_what_stands_keeps_its_name_and_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon([view("Validator", "graz", {"did": KEY, "group": "old"})])
    monkeypatch.setattr(Session, "client", daemon)
    assert main.main(["trust", "validator", "add", KEY, "--group", "uni", "-q"]) == 0
    (manifest,) = daemon.applied
    assert manifest["headers"] == {"name": "graz", "labels": {"team": "x"}}
