"""Commands that make a resource apply the manifest of it, and print it where asked."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from odfd.cli import main
from odfd.cli.session import Session
from odfd.control.client import MANIFESTS, Answer, ApiCall, ControlClient

PEER = "12D3KooWM57jXdhtZT4ZEcdNbTo5JiKUxMZHg143ugaEYH8CNUMh"
KEY = "did:key:z6Mkqi1cNkNci6HXwDxeeS1aP1neHbnW4CDve788zZwKPkR9"
LISTS = {
    "/net/v1alpha1/networks", "/net/v1alpha1/peers", "/net/v1alpha1/repositories", "/trust/v1alpha1/validators",
}  # fmt: skip
VIEWS: dict[str, Any] = {
    "/net/v1alpha1/networks/demo": {"$schema": "Network", "headers": {"name": "demo"}, "spec": {"bootstrap": []}},
    f"/net/v1alpha1/peers/{PEER}": {
        "$schema": "Peer",
        "headers": {"name": PEER},
        "spec": {"peerId": PEER, "blocked": True},
    },
    f"/trust/v1alpha1/validators/{KEY}": {
        "$schema": "Validator",
        "headers": {"name": KEY},
        "spec": {"did": KEY, "group": "uni"},
    },
}


class Daemon(ControlClient):
    """Answers as one that applies whatever comes."""

    def __init__(self, standing: list[dict[str, Any]]) -> None:
        self.standing = standing
        self.applied: list[dict[str, Any]] = []

    def do(self, call: ApiCall[Any]) -> Any:
        return Answer.of(self.ask(call), call.kind())

    def ask(self, call: ApiCall[Any]) -> Any:
        if (call.method, call.path) == ("POST", "/resource/v1alpha1/apply"):
            assert (call.query, call.media_type) == ({"task": "true"}, MANIFESTS)
            (manifest,) = call.request  # type: ignore[misc]
            self.applied.append(json.loads(manifest.text))
            return {"id": "task"}
        if call.path in LISTS:
            return {"resourceVersion": "f00-1", "items": self.standing}
        assert not call.query
        return VIEWS[call.path]

    def stream_json(self, call: ApiCall[Any], begun: Any = None) -> Any:
        assert (call.path, call.query) == ("/node/v1alpha1/tasks/task", {"follow": "true"})
        manifest = self.applied[-1]
        kind, name = manifest["$schema"].lower(), manifest["headers"]["name"]
        items = [{"kind": kind, "name": name, "action": "created"}]
        yield {"state": "done", "result": {"items": items, "dryRun": False}}


def view(type_: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    headers = {"name": name, "labels": {"team": "x"}, "generation": 3}
    return {"$schema": f"https://example.org/{type_}", "headers": headers, "spec": spec}


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


def test_what_is_printed_to_be_applied_is_what_is_declared(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Peers that were met are listed too, and nothing can be applied of them."""
    met = view("Peer", PEER, {"peerId": PEER, "blocked": False})
    met["headers"]["generation"] = 0
    declared = view("Peer", "mallory", {"peerId": "12D3KooWX", "blocked": True})
    monkeypatch.setattr(Session, "client", Daemon([met, declared]))
    assert main.main(["get", "peers", "-o", "yaml"]) == 0
    assert list(yaml.safe_load_all(capsys.readouterr().out)) == [declared]
    assert main.main(["get", "peers", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [met, declared]
