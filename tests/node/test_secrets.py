"""A value of a variable that a source is filled with: nobody finds it in log, events, answers or blocks."""

from __future__ import annotations

import base64
import http.server
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
import trio

from chain.errors import Invalid
from config.model import Ingest
from odfd.control import wire
from odfd.resources.sets import named_binding
from odfd.services.resources.planning import PartsKeeper, Planning
from odfd.services.resources.reading import read_drafts
from odfd.services.resources.set_controllers import SetValues
from odfd.store.keys.secret_keys import SecretKeys, seal_to
from worlds.eventually import PATIENCE
from worlds.http_served import HttpServer, serving
from worlds.node_world import Node, World

TOKEN = "s3cr3t-t0ken"
MANIFEST = """kind: DatasetSnapshot
version: 1
content:
  name: cities
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch:
        kind: Url
        url: %s/${{ env.KEY }}/cities.csv?key=${{ env.KEY }}
        headers: [{name: X-Key, value: '${{ env.KEY }}'}]
      read:
        kind: Csv
        header: true
        ddlSchema: ['event_time TIMESTAMP, city STRING, population BIGINT']
      merge: {kind: Append}
"""


class Server(http.server.BaseHTTPRequestHandler):
    """Gives what is next, and repeats what it was asked with wherever HTTP lets it."""

    status = 200

    def do_GET(self) -> None:
        key = self.headers["X-Key"]
        body = b"event_time,city,population\n2020-01-01T00:00:00Z,graz,7\n" if self.status == 200 else b""
        self.send_response(self.status, f"with {key} {self.path}" if self.status != 200 else None)
        self.send_header("ETag", f'"{key}"')
        self.send_header("Last-Modified", "Wed, 01 Jan 2020 00:00:00 GMT")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def server() -> Iterator[str]:
    with serving(HttpServer(Server)) as made:
        yield made.url


SECRET = f"$schema: SecretSet\nheaders: {{name: cities}}\nspec: {{secrets: {{KEY: {TOKEN}}}}}\n"


@pytest.mark.parametrize("status", [200, 404, 503])
@pytest.mark.parametrize("by", ["variable", "SecretSet"])
async def test_a_filled_value_is_nowhere_to_be_read(
    world: World, server: str, monkeypatch: Any, status: int, by: str
) -> None:
    """Attack T-SOURCE-01: values of variables and secrets in errors, logs, events, blocks, lineage, answers; secrets in
    the database and its backups.

    Defence: secrets are encrypted at rest, superseded ones overwritten; a filled text keeps its template and shows only
    that; values in texts that leave ingestion, causes included, are replaced by templates.
    """
    if by == "variable":
        monkeypatch.setenv("KEY", TOKEN)
    monkeypatch.setattr(Server, "status", status)
    async with world.running("alice", ingest=Ingest(variables=("KEY",))) as alice:
        await alice.apply(MANIFEST % server)
        if by == "SecretSet":
            assert TOKEN not in repr(await alice.apply(SECRET))
        (item,) = await alice.pull("cities")
        assert item.outcome == ("updated" if status == 200 else "failed")
        api, chain = alice.api, alice.home.chains.chain(alice.dataset("cities"))
        told: list[object] = [
            item,
            await api.datasets.describe("cities"),
            await api.datasets.log("cities", (), 10, None),
            *[await api.datasets.block("cities", str(number)) for number in range(alice.size("cities"))],
            await api.lineage.graph("cities"),
            [await api.tasks.get(each.id) for each in alice.board.list()],
            await api.declarations.list(None, None),
            await api.about.status(),
        ]
        if status == 200:
            told.append(await alice.done(api.lineage.trace("cities", wire.LineageRequest(record=0))))
        shown = b"".join(map(msgspec.json.encode, told)).decode()
        assert "${{ env.KEY }}" in shown
        assert TOKEN not in shown
        assert TOKEN not in repr(alice.logger.said)
        assert TOKEN not in repr(alice.events.list_kept())
        assert TOKEN.encode() not in b"".join(chain.raw_blocks(0, alice.size("cities")))
        assert not found_in(alice.home.directory, TOKEN)
        assert status != 200 or alice.size("cities") == 4


def found_in(folder: Path, value: str) -> list[str]:
    """Files that hold a value, also as it is spelt elsewhere: the database and its log, keys, work folders."""
    raw = value.encode()
    spelt = (raw, base64.b64encode(raw).rstrip(b"="), raw.hex().encode(), quote(value, safe="").encode())
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert any(path.name == "odfd.sqlite-wal" for path in files)
    return [str(path) for path in files if any(each in path.read_bytes() for each in spelt)]


async def test_secrets_are_sealed_for_their_place_and_told_by_nobody(world: World) -> None:
    """Attack T-KEY-02: a sealed value copied into another manifest, to send it elsewhere.

    Defence: it is bound to its resource and key, and refused before it is decrypted.

    Not by what is printed, not by a dry run, not by what was superseded, not to another set.
    """
    async with world.running("alice") as alice:
        dry = await alice.apply(SECRET, dry_run=True)
        assert [item.action for item in dry.items] == ["created"]
        assert not (alice.home.directory / "keys" / "secrets.jwks").exists()
        await alice.apply(SECRET)
        assert (alice.home.directory / "keys" / "secrets.jwks").stat().st_mode & 0o777 == 0o600
        first = await alice.api.declarations.get("secretset", "cities")
        (again,) = (await alice.apply(SECRET)).items
        assert again.action == "unchanged"
        printed = msgspec.json.encode(
            {"$schema": first.schema, "headers": {"name": "cities"}, "spec": first.spec}
        ).decode()
        (again,) = (await alice.apply(printed)).items
        assert again.action == "unchanged"
        (again,) = (await alice.apply(SECRET.replace(TOKEN, "another"), dry_run=True)).items
        assert again.changes == ("~ spec.secrets.KEY: (sensitive, changed)",)
        with pytest.raises(Invalid, match="made for another field"):
            await alice.apply(printed.replace('"cities"', '"mallory"'))
        with pytest.raises(Invalid, match="made for another field"):
            await alice.apply(printed.replace('"KEY"', '"OTHER"'))
        await alice.apply(SECRET.replace(TOKEN, "another"))
        sealed = first.spec["secrets"]["KEY"]["value"]
        assert sealed not in "\n".join(dump(alice))
        assert SetValues(alice.home).values_of("cities", None) == {"KEY": "another"}
        await alice.api.declarations.delete("ss", "cities")
        assert "contentEncoding" not in "\n".join(dump(alice))


async def test_what_is_sealed_away_from_the_node_opens_for_the_named_set_and_key_alone(world: World) -> None:
    async with world.running("alice") as alice:
        public = msgspec.to_builtins(await alice.api.declarations.secret_key())
        assert set(public) == {"kty", "crv", "x", "kid"}
        sealed = seal_to(public, TOKEN, named_binding("Cities", "KEY"))
        entry = f"{{value: {sealed}, contentEncoding: jwe}}"
        manifest = f"$schema: SecretSet\nheaders: {{name: cities}}\nspec: {{secrets: {{KEY: {entry}}}}}\n"
        for wrong in (manifest.replace("name: cities", "name: mallory"), manifest.replace("{KEY:", "{OTHER:")):
            with pytest.raises(Invalid, match="made for another field"):
                await alice.apply(wrong)
        await alice.apply(manifest)
        assert SetValues(alice.home).values_of("cities", None) == {"KEY": TOKEN}
        kept = await alice.api.declarations.get("ss", "cities")
        assert kept.spec["secrets"]["KEY"]["value"] != sealed, "sealed anew for the id of the set"
        assert [each.action for each in (await alice.apply(manifest)).items] == ["unchanged"]
        assert (await alice.api.declarations.get("ss", "cities")).spec == kept.spec
        (again,) = (await alice.apply(SECRET)).items
        assert again.action == "unchanged", "the same value in clear"


@pytest.mark.parametrize("wrong", [{}, {"crv": "P-256"}, {"x": "short"}, {"d": "private"}])
def test_a_value_is_sealed_to_no_other_kind_of_key(tmp_path: Path, wrong: dict[str, str]) -> None:
    public = SecretKeys(tmp_path).public()
    with pytest.raises(Invalid) as refused:
        seal_to({**public, **wrong} if wrong else {}, TOKEN, "place")
    assert refused.value.rule == "secret-key"


async def test_secrets_are_lost_with_their_key_and_said_to_be(world: World, server: str) -> None:
    async with world.running("alice") as alice:
        await alice.apply(SECRET, MANIFEST % server)
        (alice.home.directory / "keys" / "secrets.jwks").unlink()
    async with world.running("alice") as alice:
        (item,) = await alice.pull("cities")
        assert item.fault is not None
        assert (item.fault.rule, item.outcome) == ("undecryptable", "failed")
        (item,) = (await alice.apply(SECRET)).items
        assert item.action == "updated"
        (item,) = await alice.pull("cities")
        assert item.outcome == "updated"


async def test_secrets_are_sealed_to_a_new_key_and_the_former_is_destroyed(world: World) -> None:
    """Attack T-KEY-02: a copied key of secrets.

    Defence: `odfctl secret rotate` encrypts all values for a new key in one transaction, and destroys the former; older
    backups stay readable with the former key.

    A rotation that a crash cut off loses nothing, and the next one ends it; as does one under an apply.
    """

    def keys() -> list[str]:
        text = (alice.home.directory / "keys" / "secrets.jwks").read_text()
        return [each["d"] for each in json.loads(text)["keys"]]

    async with world.running("alice") as alice:
        await alice.apply(SECRET)
        before = await alice.api.declarations.get("ss", "cities")
        (first,) = keys()
        planning = Planning(alice.home, alice.parts.context, PartsKeeper(alice.home, alice.clock, lambda: ""))
        planned = planning.plan(read_drafts([text(SECRET.replace("KEY:", "NEW:"))]))
        assert (await alice.api.declarations.rotate_secrets()).values == 1
        (second,) = keys()
        assert first != second
        assert SetValues(alice.home).values_of("cities", None) == {"KEY": TOKEN}
        after = await alice.api.declarations.get("ss", "cities")
        assert (after.generation, after.spec == before.spec) == (before.generation, False)
        assert before.spec["secrets"]["KEY"]["value"] not in "\n".join(dump(alice))
        assert [item.action for item in (await alice.apply(SECRET)).items] == ["unchanged"]
        with alice.home.database.write() as connection:
            planning.commit(connection, planned)
        alice.home.secrets.begin_rotation()
        assert len(keys()) == 2
    async with world.running("alice") as alice:
        assert SetValues(alice.home).values_of("cities", None) == {"NEW": TOKEN}
        assert (await status(alice))["phase"] == "Ready"
        await alice.api.declarations.rotate_secrets()
        (third,) = keys()
        assert third not in (first, second)
    async with world.running("alice") as alice:
        assert SetValues(alice.home).values_of("cities", None) == {"NEW": TOKEN}
        assert not found_in(alice.home.directory, second)


async def status(node: Node) -> dict[str, Any]:
    with trio.fail_after(PATIENCE):
        await node.parts.reconciler.wait_settled()
    found: dict[str, Any] = (await node.api.declarations.get("ss", "cities")).status
    return found


def text(manifest: str) -> wire.ManifestText:
    return wire.ManifestText(source="m.yaml", text=manifest, base="")


NO_SECRETS = ["5", "{value: x, contentEncoding: rot13}", "{value: x, contentEncoding: jwe}", "[x]"]


@pytest.mark.parametrize("said", [*NO_SECRETS, "{value: 'a.b.c.d.e', contentEncoding: jwe}"])
async def test_what_is_no_secret_is_refused_without_being_told(world: World, said: str) -> None:
    async with world.running("alice") as alice:
        with pytest.raises(Invalid) as caught:
            await alice.apply(SECRET.replace(TOKEN, said))
        assert "m0.yaml" in str(caught.value)


def dump(node: Node) -> list[str]:
    """What SQL reads, blobs as text."""
    with node.home.database.read() as connection:
        tables = ("res_events", "declarations")
        return [str(row) for table in tables for row in connection.execute(f"SELECT * FROM {table}")]


async def test_a_source_reads_the_set_that_is_named_as_its_dataset(world: World, server: str) -> None:
    """Of its own dataset, and before what the daemon was started with."""
    sets = "$schema: VariableSet\nheaders: {name: %s}\nspec: {variables: {KEY: there}}\n"
    async with world.running("alice") as alice:
        await alice.apply(sets % "others")
        (item,) = (await alice.apply(MANIFEST % server)).items
        assert item.fault is not None
        assert item.fault.rule == "source-variable"
        await alice.apply(sets % "Cities", MANIFEST % server)
        (item,) = await alice.pull("cities")
        assert item.outcome == "updated"
        await alice.api.declarations.delete("VariableSet", "Cities")
        (item,) = await alice.pull("cities")
        assert item.fault is not None
        assert item.fault.rule == "source-variable"


NAMED = "$schema: SecretSet\nheaders: {name: %s%s}\nspec: {secrets: {KEY: %s}}\n"


@pytest.mark.parametrize("is_read", [True, False])
async def test_a_source_goes_on_with_its_set_when_the_set_or_the_dataset_is_renamed(
    world: World, server: str, is_read: bool
) -> None:
    """Nothing that is named so later is sent in its place. ``is_read``: whether it was pulled before."""
    async with world.running("alice") as alice:
        declarations = alice.api.declarations
        await alice.apply(NAMED % ("cities", "", "its-own"), NAMED % ("towns", "", "of-others"), MANIFEST % server)
        dataset = alice.dataset("cities")
        if is_read:
            assert (await alice.pull("cities"))[0].outcome == "updated"
        await alice.api.applying.rename("Dataset", "cities", "towns")
        assert (await alice.pull("towns"))[0].outcome in ("updated", "up-to-date")
        assert SetValues(alice.home).of(dataset) == {"KEY": "its-own"}
        own = (await declarations.get("SecretSet", "cities")).id
        await alice.apply(NAMED % ("former", f", id: {own}", "its-own"), NAMED % ("cities", "", "new"))
        await alice.api.applying.rename("Dataset", "towns", "cities")
    async with world.running("alice") as alice:
        assert SetValues(alice.home).of(dataset) == {"KEY": "its-own"}
        await alice.api.declarations.delete("SecretSet", "former")
        assert SetValues(alice.home).of(dataset) == {"KEY": "new"}, "as its name says, when there is no other"


async def test_a_dataset_that_goes_to_another_account_takes_no_secret_along(world: World, server: str) -> None:
    account = "$schema: Account\nheaders: {name: bob}\nspec: {email: b@example.org}\n"
    async with world.running("alice") as alice:
        await alice.apply(account, NAMED % ("cities", "", "of-the-owner"), MANIFEST % server)
        dataset = alice.dataset("cities")
        assert (await alice.pull("cities"))[0].outcome == "updated"
        id_ = (await alice.api.declarations.get("Dataset", "cities")).id
        given = f"$schema: Dataset\nheaders: {{name: cities, id: {id_}, account: bob}}\nspec: {{did: '{dataset}'}}\n"
        await alice.apply(given)
        assert SetValues(alice.home).of(dataset) == {}
