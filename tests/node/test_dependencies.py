"""What a node depends on beyond itself is tried, and told wherever people and programs look: nothing is ok unasked."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import trio

from chain.errors import Environment
from config import model, schema
from odfd.node.readings import Readings
from odfd.obs.metric_table import DEPENDENCIES
from odfd.runtime.supervision import Health
from odfd.services.maintenance import dependencies
from odfd.services.maintenance.dependencies import TRIED_BY
from worlds.memory_ipfs import MemoryIpfs
from worlds.node_world import Node, World

NOTHING = {
    "node.name", "node.contact", "node.about", "node.log-levels", "control.group", "p2p.announce", "p2p.inside",
    "ingest.variables", "webhooks.inside", "policy.validators.groups", "policy.validators.min-sandbox",
    "policy.witness.groups", "policy.witness.max-age", "policy.fresh.max-stale", "policy.use", "policy.serve",
    "policy.network-key", "policy.publish.witness", "node.doors",
}  # fmt: skip
"""Settings of texts that name nothing beyond the process that could be asked."""


def closed() -> str:
    """An address of this machine where nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as once:
        return f"127.0.0.1:{once.getsockname()[1]}"


async def probed(node: Node) -> dict[str, Any]:
    return {probe.name: probe for probe in await node.api.about.doctor()}


def test_every_setting_that_names_something_is_tried_by_a_probe() -> None:
    """A new setting of a text says here, or in ``TRIED_BY``, what it names."""
    texts = {key.name for key in schema.every() if key.type is not bool and key.type not in (int, float)}
    chosen = {key.name for key in schema.every() if key.about.choices}
    assert texts - chosen - NOTHING == TRIED_BY.keys() - chosen
    assert not NOTHING & TRIED_BY.keys()
    assert set(TRIED_BY.values()) - {"disk", "parts", "network", "engine", "witnesses"} <= set(DEPENDENCIES)


async def test_what_is_not_set_is_not_told_of(world: World) -> None:
    async with world.running("alice") as alice:
        found = await probed(alice)
        assert found.keys() & set(DEPENDENCIES) == {"listening"}
        assert {"parts", "network", "engine", "disk"} <= found.keys()
        assert found["parts"].result == "ok"


async def test_what_does_not_answer_is_told_everywhere(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By doctor, status, /readyz and metrics, with what to do; and no longer once it answers."""
    monkeypatch.setenv("PATH", str(tmp_path))
    folder, volume = tmp_path / "shelf", tmp_path / "volume"
    settings = {
        "traces": model.Traces(endpoint=f"http://{closed()}/v1/traces"),
        "ingest": model.Ingest(settle_seconds=0, folders=(str(tmp_path / "none"),), container="offline"),
    }
    dead = MemoryIpfs()
    dead.away = True
    async with world.running("alice", ipfs=dead, **settings) as alice:
        shelf = f"$schema: Repository\nheaders: {{name: shelf}}\nspec: {{url: 'file://{folder}'}}\n"
        web = f"---\n$schema: Repository\nheaders: {{name: web}}\nspec: {{url: 'http://{closed()}/data'}}\n"
        kept = f"{{kind: HostPath, path: {volume}, capacity: {{storage: 1Gi}}}}"
        cold = f"---\n$schema: PersistentVolume\nheaders: {{name: cold}}\nspec: {kept}\n"
        await alice.apply(shelf + web + cold)
        assert (await probed(alice))["volumes"].result == "ok"
        alice.member.answers = False
        await trio.to_thread.run_sync(volume.rename, tmp_path / "elsewhere")
        found = await probed(alice)
        wrong = {name: found[name].message for name in DEPENDENCIES if found[name].result == "failed"}
        assert wrong.keys() == set(DEPENDENCIES), found
        assert all(found[name].hint for name in ("ipfs", "traces", "folders", "containers", "repositories"))
        assert "shelf: " in wrong["repositories"]
        assert "web: " in wrong["repositories"]
        status = await alice.api.about.status()
        assert status.troubles == {name: f"does not answer: {text}" for name, text in wrong.items()}
        readings = Readings(alice.features)
        assert readings.dependencies() == wrong
        text = (await readings.scrape()).decode()
        assert all(f'odfd_dependency_up{{dependency="{name}"}} 0.0' in text for name in DEPENDENCIES)
        folder.mkdir()
        dead.away, alice.member.answers = False, True
        monkeypatch.undo()
        found = await probed(alice)
        assert found["ipfs"].result == "ok"
        assert "shelf" not in found["repositories"].message
        assert "ipfs" not in (await alice.api.about.status()).troubles


async def test_a_part_that_is_down_is_told_everywhere(world: World) -> None:
    async with world.running("alice") as alice:
        ready = alice.parts.context.readiness
        ready.started = True
        fault = Environment("/ip6/::/tcp/4150: the port is in use", rule="listen", hint="set another port")
        ready.parts["network"] = Health(fault=fault, restarts=8)
        probe = (await probed(alice))["parts"]
        assert (probe.result, probe.hint) == ("failed", "set another port")
        assert probe.message == f"network is started again and again (8 restarts): {fault}"
        assert (await alice.api.about.status()).troubles == {"network": str(ready.parts["network"])}
        readings = Readings(alice.features)
        assert (await readings.why_not_ready())["network"] == str(ready.parts["network"])
        text = (await readings.scrape()).decode()
        assert 'odfd_part_up{part="network"} 0.0' in text
        assert 'odfd_part_restarts_total{part="network"} 8.0' in text
        assert 'odfd_part_up{part="heads"} 1.0' in text


async def test_a_network_that_does_not_listen_is_not_well(world: World) -> None:
    """Whoever joins is told, with the fault itself, and doctor says no more that the network is ok."""
    async with world.running("alice") as alice:
        assert (await probed(alice))["network"].result == "ok"
        alice.member.failure = Environment("the port is in use", rule="listen", hint="set p2p.listen")
        probe = (await probed(alice))["network"]
        assert (probe.result, probe.message, probe.hint) == ("failed", "the port is in use", "set p2p.listen")
        shown = await alice.api.networks.state("wires")
        assert shown.trouble is not None
        assert (shown.trouble.detail, shown.trouble.rule) == ("the port is in use", "listen")


async def test_own_addresses_are_dialled_and_those_that_answered_are_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the site over HTTP, whatever it answers; of two, that which is silent is told apart."""
    async with world.running("alice", http=model.Http(listen=("127.0.0.1:0",))) as alice:
        (url,) = (await alice.api.about.status()).http
        peers = "/ip4/127.0.0.1/tcp/4150"
        probe = (await probed(alice))["listening"]
        assert (probe.result, probe.message) == (
            "ok", f"{peers}, {url}: dialled from this machine, all answer; odfctl peer netcheck tells of others"
        )  # fmt: skip
        monkeypatch.setattr(alice.parts.site, "urls", (url, f"http://{closed()}"))
        probe = (await probed(alice))["listening"]
        assert (probe.result, probe.hint) == (
            "failed", "does a firewall of this machine close it, or is the node too busy? odfctl logs"
        )  # fmt: skip
        assert probe.message.startswith("dialled from this machine, nobody answers at http://127.0.0.1:")
        assert probe.message.endswith(f"; {peers}, {url} answers")


async def test_what_does_not_answer_in_time_is_told_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = MemoryIpfs()

    async def forever() -> str:
        await trio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(silent, "version", forever)
    monkeypatch.setattr(dependencies, "TRY_SECONDS", 0.0)
    async with world.running("alice", ipfs=silent) as alice:
        probe = (await probed(alice))["ipfs"]
        assert (probe.result, probe.message) == ("failed", "no answer in 0 s")
