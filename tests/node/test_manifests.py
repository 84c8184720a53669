"""The manifest of a dataset, as it is declared now: applied again it changes nothing, anywhere it makes the same."""

from __future__ import annotations

import pytest

from chain.codec.manifest import parse_manifests
from engines.contract import ValidateRequest, ValidateResponse
from worlds.fake_engine import FakeEngine
from worlds.manifests import DERIVED, ROOT, text_of
from worlds.node_world import World

TALKATIVE = """kind: DatasetSnapshot
version: 1
content:
  name: readings
  kind: Root
  metadata:
    - kind: SetVocab
      eventTimeColumn: at
    - kind: AddPushSource
      sourceName: gate
      read: {kind: NdJson}
      preprocess: {kind: Sql, engine: spark, query: 'select * from input'}
      merge: {kind: Ledger, primaryKey: [at]}
    - kind: AddPushSource
      sourceName: archive
      read: {kind: Csv, header: true, separator: ';'}
      merge: {kind: Append}
    - {kind: SetInfo, description: 'What "sensors" said: all of it', keywords: [on, 'no', '1']}
    - {kind: SetLicense, shortName: CC0, name: Creative Commons Zero, websiteUrl: 'https://example.org'}
    - kind: SetAttachments
      attachments: {kind: Embedded, items: [{path: README.md, content: "two\\nlines\\n"}]}
"""


@pytest.mark.parametrize("which", ["ROOT", "DERIVED", "TALKATIVE"])
async def test_what_is_declared_applied_again_is_unchanged(world: World, which: str) -> None:
    manifest = {"ROOT": ROOT, "DERIVED": DERIVED, "TALKATIVE": TALKATIVE}[which]
    world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,300000")
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.apply(*dict.fromkeys((ROOT, manifest)))
        await alice.pull("cities")
        (name,) = [each.content.name for each in parse_manifests(manifest, "m")]
        text = text_of(await alice.manifest(name))
        (item,) = (await alice.apply(text)).items
        assert (item.action, item.changes) == ("unchanged", ())
        if which == "DERIVED":
            await bob.mirror(alice.dataset("cities"), "cities")
        await bob.apply(text)
        theirs = text_of(await bob.manifest(name))
        assert theirs == text


async def test_a_later_declaration_takes_the_place_of_the_one_before(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(TALKATIVE)
        await alice.apply(TALKATIVE.replace("all of it", "some of it"))
        text = text_of(await alice.manifest("readings"))
        assert ("some of it" in text, "all of it" in text) == (True, False)


async def test_a_transform_is_checked_with_the_names_of_its_own_dataset(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a new manifest, in one that only names a column, and of a dataset that has said so before."""
    asked: list[tuple[str, str]] = []
    validate = FakeEngine.validate

    async def seen(engine: FakeEngine, request: ValidateRequest) -> ValidateResponse:
        inputs = [given.vocab.event_time for given in request.inputs if given.query_alias == "cities"]
        asked.extend((each, request.vocab.event_time) for each in inputs)
        return await validate(engine, request)

    monkeypatch.setattr(FakeEngine, "validate", seen)
    world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,300000")
    named = DERIVED.replace("  metadata:\n", "  metadata:\n    - {kind: SetVocab, eventTimeColumn: at}\n")
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        await alice.pull("cities")
        await alice.apply(named)
        await alice.apply(named.replace("select", "SELECT"))
    assert set(asked) == {("event_time", "at")}
    assert len(asked) >= 2


async def test_what_is_declared_is_described(world: World) -> None:
    """Licence, attachments and comments of columns; columns by their files, and no row is read for it."""
    world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,300000\n2024-01-02T00:00:00Z,Wien,1900000")
    async with world.running("alice") as alice:
        await alice.apply(TALKATIVE, ROOT)
        await alice.pull("cities")
        said = await alice.api.datasets.describe("readings")
        assert (said.license.short_name, said.license.website_url) == ("CC0", "https://example.org")
        assert [(each.path, each.content) for each in said.attachments] == [("README.md", "two\nlines\n")]
        assert said.profile is None
        found = (await alice.api.datasets.describe("cities", profile=True)).profile
        assert (found.slices, found.unread, found.is_whole, found.records) == (1, 0, True, 2)
        city = next(each for each in found.columns if each.name == "city")
        assert (city.nulls, city.minimum, city.maximum) == (0, "Graz", "Wien")
        assert (city.distinct.at_least, city.distinct.at_most) == (2, 2)
        empty = (await alice.api.datasets.describe("readings", profile=True)).profile
        assert (empty.columns, empty.message) == ((), "it has no data yet")
