"""A real kamu-cli and a node speak kamu's smart transfer protocol with each other, in both roles of it.

``ODF_KAMU`` names the program of kamu-cli. It is in no registry of packages, so most machines do not have it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from worlds.kamu_program import NEEDS_KAMU, Node, Workspace, started
from worlds.s3_server import new_bucket, s3_server

pytestmark = [pytest.mark.e2e, pytest.mark.slow, NEEDS_KAMU]


@pytest.fixture
def node(make_daemon: Callable[..., Any]) -> Node:
    return started(make_daemon)


@pytest.fixture
def kamu(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "kamu")


def test_kamu_pulls_from_a_node_and_goes_on(node: Node, kamu: Workspace) -> None:
    node.begin("cities")
    node.add("cities", 1, "Graz")
    kamu.did("pull", f"{node.url}/cities", "--as", "cities")
    assert kamu.head("cities") == node.head("cities")
    node.add("cities", 2, "Linz")
    kamu.did("pull", "cities")
    assert kamu.head("cities") == node.head("cities")
    kamu.did("verify", "cities")
    found = json.loads(kamu.did("sql", "-c", "select city from cities order by offset", "-o", "json"))
    assert found == [{"city": "Graz"}, {"city": "Linz"}]


def test_kamu_pushes_to_a_node_and_who_comes_second_is_told(node: Node, kamu: Workspace, tmp_path: Path) -> None:
    place = f"{node.url}/cities"
    kamu.begin("cities")
    kamu.add("cities", 1, "Graz")
    assert "nauthorized" in kamu.refused("push", "cities", "--to", place)
    kamu.log_in(node)
    kamu.did("push", "cities", "--to", place)
    assert kamu.head("cities") == node.head("cities")
    other = kamu.copy(tmp_path / "other")
    kamu.add("cities", 2, "Linz")
    other.add("cities", 2, "Wels")
    kamu.did("push", "cities", "--to", place)
    assert kamu.head("cities") == node.head("cities")
    assert "Failed to push cities" in other.refused("push", "cities", "--to", place)
    assert "smart-force: no history is overwritten here" in other.refused("push", "cities", "--to", place, "--force")
    assert kamu.head("cities") == node.head("cities")
    assert node.holds("cities")
    kamu.did("verify", "cities")


def test_what_kamu_pulled_from_a_node_is_pushed_to_it_further(node: Node, kamu: Workspace) -> None:
    node.begin("towns")
    node.add("towns", 1, "Enns")
    kamu.did("pull", f"{node.url}/towns", "--as", "towns")
    node.add("towns", 2, "Melk")
    with node.repository(kamu):
        node.push("towns", "kamu")
    assert node.head("towns") == kamu.head("towns")


def test_a_node_pulls_from_kamu_and_pushes_to_it(node: Node, kamu: Workspace) -> None:
    kamu.begin("cities")
    node.begin("towns")
    for day, name in enumerate(("first", "second"), 1):
        kamu.add("cities", day, "Graz")
        node.add("towns", day, "Enns")
        with node.repository(kamu, name):
            node.daemon.ask("pull", f"{name}/cities")
            node.push("towns", name)
        assert node.head("cities") == kamu.head("cities")
        assert node.head("towns") == kamu.head("towns")
    assert node.holds("cities")
    kamu.did("verify", "towns")


def parted(node: Node, kamu: Workspace) -> tuple[str, str]:
    """One dataset at both, to which each added something else. Returns the two heads."""
    kamu.begin("cities")
    kamu.add("cities", 1, "Graz")
    kamu.log_in(node)
    kamu.did("push", "cities", "--to", f"{node.url}/cities")
    other = kamu.copy(kamu.folder.with_name("other"))
    other.add("cities", 2, "Wels")
    other.did("push", "cities", "--to", f"{node.url}/cities")
    kamu.add("cities", 2, "Linz")
    heads = node.head("cities"), kamu.head("cities")
    assert heads[0] != heads[1]
    return heads


def test_each_is_told_when_histories_parted_and_keeps_its_own(node: Node, kamu: Workspace) -> None:
    heads = parted(node, kamu)
    place = f"{node.url}/cities"
    node.daemon.ask("publish", "cities")
    assert "interval" in kamu.refused("push", "cities", "--to", place).lower()
    assert "diverged" in kamu.refused("pull", place, "--as", "cities")
    with node.repository(kamu):
        pulled = node.daemon.said("pull", "kamu/cities")
        assert (pulled.code != 0, "diverged" in pulled.err) == (True, True), pulled
        pushed = node.daemon.said("push", "cities", "--to", "kamu/cities", "--private")
        assert (pushed.code != 0, "push-diverged" in pushed.err) == (True, True), pushed
    assert (node.head("cities"), kamu.head("cities")) == heads
    assert node.holds("cities")
    kamu.did("verify", "cities")


KEYS: Final = {"AWS_ACCESS_KEY_ID": "AKIAnobody", "AWS_SECRET_ACCESS_KEY": "of-nobody", "AWS_REGION": "us-east-1"}
BUCKET: Final = """$schema: SecretSet
headers: {name: house-key}
spec: {secrets: {accessKeyId: AKIAnobody, secretAccessKey: of-nobody}}
"""


def test_a_bucket_is_a_repository_of_both(node: Node, kamu: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with s3_server() as server:
        bucket = new_bucket(server, "house")
        node.apply("bucket.yaml", BUCKET)
        node.daemon.ask("repo", "add", "house", bucket, "--credentials", "house-key")
        kamu.begin("cities")
        node.begin("towns")
        for day in (1, 2):
            kamu.add("cities", day, "Graz")
            kamu.did("push", "cities", "--to", f"{bucket}/cities")
            node.daemon.ask("pull", "house/cities")
            assert node.head("cities") == kamu.head("cities")
            node.add("towns", day, "Enns")
            node.push("towns", "house")
            kamu.did("pull", f"{bucket}/towns", "--as", "towns")
            assert kamu.head("towns") == node.head("towns")
        assert node.holds("cities")
        kamu.did("verify", "towns")
