"""``ipfshttpclient``, the Python client of Kubo, reads what odfd published, and adds what odfd mirrors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import ipfshttpclient
import pytest
import trio
from ipfshttpclient.exceptions import ErrorResponse, VersionMismatch

from odfd.cli.kinds import with_state
from worlds import foreign
from worlds.daemons import Daemon

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    # It passes urllib3 a call that is refused from version 3 on: pyproject.toml says so.
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:ipfshttpclient"),
]


def address(kubo: Any) -> str:
    place = urlsplit(kubo.api)
    return f"/ip4/{place.hostname}/tcp/{place.port}/http"


def published(alice: Any, golden: Path) -> dict[str, Any]:
    alice.start()
    (alice.folder / "m.yaml").write_text(
        "{kind: DatasetSnapshot, version: 1, content: {name: cities, kind: Root, metadata: [{kind: AddPushSource,"
        " sourceName: default, read: {kind: NdJson, ddlSchema: [city STRING]}, merge: {kind: Append}}]}}"
    )
    (alice.folder / "rows.json").write_text('{"city": "Graz"}\n{"city": "Linz"}\n')
    alice.ask("apply", "-f", str(alice.folder / "m.yaml"))
    alice.ask("ingest", "cities", str(alice.folder / "rows.json"))
    said: dict[str, Any] = alice.ask("ipfs", "publish", "cities")
    return said


def read_and_added(hers: str, his: str, said: dict[str, Any], folder: Path) -> str:
    """Takes the dataset from her Kubo, adds it to his, and gives the CID that his has."""
    with ipfshttpclient.Client(hers) as client:
        assert client.version()["Version"].startswith("0.43.")
        place = "/odfd/" + said["datasetId"].removeprefix("did:odf:")
        assert {each["Name"] for each in client.files.ls(place)["Entries"]} >= {"refs", "blocks", "data", "trust"}
        assert client.files.read(f"{place}/refs/head").decode() == said["head"]
        assert client.files.stat(place)["Hash"] == said["root"].removeprefix("/ipfs/")
        assert client.cat(f"{said['root']}/refs/head").decode() == said["head"]
        client.get(said["root"], target=folder)
        with pytest.raises(ErrorResponse, match="removed"):
            client.dht.put("/ipns/" + said["home"], b"")
    got = folder / said["root"].removeprefix("/ipfs/")
    with ipfshttpclient.Client(his) as client:
        added = client.add(str(got), recursive=True, cid_version=1, raw_leaves=True)
        root = next(each["Hash"] for each in added if each["Name"] == got.name)
        client.files.mkdir("/kept")
        client.files.cp(f"/ipfs/{root}", "/kept/cities")
        assert client.files.stat("/kept/cities")["Hash"] == root
    return str(root)


async def test_it_reads_what_is_published_and_adds_what_is_mirrored(
    make_daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    in_thread = trio.to_thread.run_sync
    async with foreign.open_kubo(tmp_path / "ka") as hers, foreign.open_kubo(tmp_path / "kb") as his:
        alice, carol = (
            make_daemon("a", small=True, ODFD_IPFS_API=hers.api),
            make_daemon("c", small=True),
        )
        said = await in_thread(published, alice, tmp_path)
        root = await in_thread(read_and_added, address(hers), address(his), said, tmp_path / "got")
        got = tmp_path / "got" / said["root"].removeprefix("/ipfs/")
        checked = await in_thread(partial(alice.said, "verify", str(got), "--level", "data"))
        assert checked.out.startswith(f"yes: {said['addedBlocks']} blocks"), checked
        await in_thread(alice.stop)

        await in_thread(carol.start)
        gateway = (await in_thread((tmp_path / "kb" / "gateway").read_text)).strip()
        mirror = with_state(
            await in_thread(partial(carol.ask, "mirror", "add", f"{gateway}/ipfs/{root}", "--as", "theirs"))
        )
        assert (mirror["state"], mirror["blocks"]["have"]) == ("current", said["addedBlocks"])
        shown = await in_thread(carol.ask, "tail", "theirs")
        assert "Graz" in str(shown)
        assert (await in_thread(partial(carol.ask, "verify", "theirs", "--level", "data")))["ok"]
        await in_thread(carol.stop)


async def test_it_connects_to_no_kubo_of_today(tmp_path: Path) -> None:
    """Why odfd has ten plain calls of HTTP of its own: this, and that records cannot be put."""
    async with foreign.open_kubo(tmp_path / "k") as kubo:
        with pytest.raises(VersionMismatch):
            await trio.to_thread.run_sync(ipfshttpclient.connect, address(kubo))
