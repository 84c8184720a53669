"""Portals: rows of a private dataset are published by a rule, and nothing else of it leaves the node."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from chain.codec.arrow_schema import schema_of
from chain.data.parquet import open_slice
from chain.errors import Fault, Invalid, Refused
from chain.ids import DatasetId
from chain.model.portal import PORTAL, portal_rule
from chain.multihash import Multihash
from chain.state import load_state
from chain.store.layout import DirectoryChain, DirectoryObjects
from config import model
from odfd.control import wire
from odfd.services.portals import publication
from odfd.services.queries.public_queries import ReaderQueries
from odfd.store.references import objects_of
from odfd.verify.report import VerificationRequest
from odfd.verify.verify import verify_chain
from worlds.accounts_world import ACCOUNT, BOB, NOBODY, Asking
from worlds.eventually import PATIENCE
from worlds.manifests import DERIVED, ROOT
from worlds.memory_ipfs import MemoryIpfs, Swarm
from worlds.node_world import Node, World, until

PUBLISHED = """$schema: Dataset
headers: {name: census}
spec: {kind: Root, metadata: [{kind: SetInfo, description: People of places}]}
"""
_PORTAL = "$schema: Portal\nheaders: {name: census}\nspec: {input: Dataset:cities, dataset: Dataset:census, %s}\n"
COUNTS = _PORTAL % "suppress: [{count: population, below: 5, groups: [event_time, city]}]"
ALIKE = _PORTAL % "kAnonymity: {k: 2, quasiIdentifiers: [city]}"
TOWNS = COUNTS.replace("cities", "towns")
HTTP = model.Http(listen=("127.0.0.1:0",))
CENSUS = "/dataset/v1alpha1/datasets/census"
ANSWERS = (
    *(
        CENSUS + end
        for end in (
            "",
            "/detail",
            "/snapshot",
            "/blocks",
            "/blocks/3",
            "/tail",
            "/schema",
            "/lineage",
            "/trust",
            "/opening",
            "/renditions",
        )
    ),
    "/dataset/v1alpha1/datasets",
    "/dataset/v1alpha1/portals",
    "/dataset/v1alpha1/portals/census",
    *(f"/node/v1alpha1/{end}" for end in ("datasets", "tasks", "flows", "status")),
    *(f"/resource/v1alpha1/{end}" for end in ("resources", "events", "changes")),
)
"""Paths that answer with something of a dataset."""


def row(day: int, city: str, people: int) -> str:
    return f"2024-01-{day:02}T00:00:00Z,{city},{people}"


async def begun(world: World, node: Node, portal: str, *rows: str) -> Any:
    """The item of the first pull of the portal."""
    world.write("alice", "1.csv", *rows)
    await node.apply(ROOT)
    await node.pull("cities")
    await node.apply(PUBLISHED, portal)
    (item,) = await node.pull("census")
    return item


async def more(world: World, node: Node, file: int, *rows: str) -> Any:
    world.write("alice", f"{file}.csv", *rows)
    await node.pull("cities")
    (item,) = await node.pull("census")
    return item


def rows_of(node: Node, name: str = "census") -> list[tuple[Any, ...]]:
    """City and people of each row, in the order of their offsets."""
    chain, found = node.home.chains.chain(node.dataset(name)), []
    for at in range(node.size(name)):
        for each, _ in objects_of(chain.block_at(at)):
            with open_slice(node.home.objects.content(each)) as file:
                found += [(one["city"], one["population"]) for one in file.read().to_pylist()]
    return found


def events_of(node: Node, name: str = "census") -> list[str]:
    chain = node.home.chains.chain(node.dataset(name))
    return [type(chain.block_at(at).event).__name__ for at in range(node.size(name))]


async def verified(node: Node, name: str = "census") -> wire.VerifyReport:
    found = await node.done(node.api.verification.verify(name, wire.VerifyRequest(level="data")))
    assert isinstance(found, wire.VerifyReport)
    return found


async def test_small_counts_are_left_out_and_rows_tell_no_order(world: World) -> None:
    async with world.running("alice", private=True) as alice:
        await begun(world, alice, COUNTS, row(1, "Wien", 7), row(1, "Graz", 4), row(1, "Linz", 5))
        assert rows_of(alice) == [("Linz", 5), ("Wien", 7)], "sorted"
        assert events_of(alice) == ["Seed", "SetInfo", "SetDataSchema", "AddData"]
        await more(world, alice, 2, row(2, "Wien", 8), row(2, "Graz", 1))
        assert rows_of(alice) == [("Linz", 5), ("Wien", 7), ("Wien", 8)]
        (item,) = await alice.pull("census")
        assert (item.outcome, item.blocks) == ("up-to-date", 0)
        assert (await verified(alice)).checked.portal == "population at least 5, once for each event_time, city"
        state = load_state(alice.home.chains.chain(alice.dataset("census")))
        assert state.schema is not None
        assert {each.name for each in schema_of(state.schema).fields} == {
            "offset", "op", "system_time", "event_time", "city", "population",
        }  # fmt: skip


async def test_a_group_is_not_published_twice(world: World) -> None:
    """Attack T-PRIVATE-05: a group whose count is published twice.

    Defence: a block that repeats a group is withheld.

    Two counts of one group tell by their difference of fewer than each does.
    """
    async with world.running("alice", private=True) as alice:
        await begun(world, alice, COUNTS, row(1, "Wien", 7), row(1, "Linz", 5))
        item = await more(world, alice, 2, row(1, "Wien", 8), row(2, "Wien", 9))
        assert (item.outcome, item.records) == ("blocked", 0)
        assert "1 group of event_time, city is published again" in item.message
        assert rows_of(alice) == [("Linz", 5), ("Wien", 7)]


async def test_rows_wait_until_k_of_them_are_alike(world: World) -> None:
    """Attack T-PRIVATE-05: a small group inferred from the difference of two versions of a portal.

    Defence: a block publishes a group only with at least k rows of that group in this block.

    In what one block adds, and not in all that is there: two versions tell what came between them.
    """
    async with world.running("alice", private=True) as alice:
        item = await begun(world, alice, ALIKE, row(1, "Wien", 1), row(1, "Graz", 2), row(2, "Wien", 3))
        assert item.outcome == "blocked"
        assert "1 group of fewer rows than 2 among 2 groups alike in city" in item.message
        assert "Graz" not in item.message
        assert events_of(alice) == ["Seed", "SetInfo"], "not even its rule"
        await more(world, alice, 2, row(3, "Graz", 4))
        assert sorted(rows_of(alice)) == [("Graz", 2), ("Graz", 4), ("Wien", 1), ("Wien", 3)]
        item = await more(world, alice, 3, row(4, "Wien", 5))
        assert item.outcome == "blocked", "Wien has two rows already, and this one would be told by the difference"
        assert len(rows_of(alice)) == 4
        assert (await verified(alice)).checked.portal == "k = 2 in city"


async def test_a_portal_follows_its_input_by_itself(world: World) -> None:
    async with world.running("alice", private=True) as alice:
        world.write("alice", "1.csv", row(1, "Wien", 7))
        await alice.apply(ROOT, PUBLISHED, COUNTS)
        await alice.pull("cities")
        await until(lambda: alice.size("census") == 4)
        assert rows_of(alice) == [("Wien", 7)]


async def test_a_derived_dataset_is_an_input_too_and_stays_private(world: World) -> None:
    async with world.running("alice", private=True) as alice:
        world.write("alice", "1.csv", row(1, "Wien", 7), row(1, "Graz", 2))
        await alice.apply(ROOT, DERIVED, PUBLISHED, TOWNS)
        await alice.pull()
        await alice.pull("census")
        await alice.publish("census")
        assert rows_of(alice) == [("Wien", 7)]
        views = {each.name: each.published for each in await alice.dataset_views()}
        assert views == {"cities": False, "towns": False, "census": True}


async def test_what_would_change_the_promise_is_refused(world: World) -> None:
    """Attack T-PRIVATE-05: an owner, or a compromised account, that loosens the rule of a portal, or rewrites or adds
    rows around it.

    Defence: rule, schema and history of a portal cannot change; ingests, corrections, rewrites and altered schemas are
    refused.
    """
    async with world.running("alice", private=True) as alice:
        await begun(world, alice, COUNTS, row(1, "Wien", 7))
        await alice.apply(COUNTS.replace("below: 5", "below: 2"))
        for portal, why in (("below: 2", "has another rule"), ("below: 5", "")):
            await alice.apply(COUNTS.replace("below: 5", portal))
            (item,) = await alice.pull("census")
            assert why in item.message
            assert item.outcome == ("failed" if why else "up-to-date")
        await alice.apply(ROOT.replace("name: cities", "name: others"), COUNTS.replace("cities", "others"))
        (item,) = await alice.pull("census")
        assert "takes from another dataset" in item.message
        rewrite = wire.RewriteRequest(action="reset", to="#2")
        with pytest.raises(Refused, match="its rule holds over all that was published"):
            await alice.done(alice.api.rewriting.rewrite("census", rewrite))
        with pytest.raises(Refused, match="its rows come from the dataset that its Portal names"):
            await alice.done(alice.api.flow.set_watermark("census", wire.WatermarkRequest(time="2024-02-01T00:00:00Z")))
        asked = wire.AlterSchemaRequest(action="add", columns=("gate STRING",))
        with pytest.raises(Refused, match="its columns are those that its rule was made for"):
            await alice.done(alice.api.flow.alter_schema("census", asked))
        state = load_state(alice.home.chains.chain(alice.dataset("census")))
        assert state.schema is not None
        fields = json.loads(msgspec.json.encode(schema_of(state.schema).fields))
        without = {"kind": "SetDataSchema", "schema": {"fields": fields}}
        spec = {"kind": "Root", "metadata": [without]}
        done = await alice.apply(json.dumps({"$schema": "Dataset", "headers": {"name": "census"}, "spec": spec}))
        assert "its schema and its rule stay as they are" in str(done.items)


async def test_what_cannot_be_a_portal_is_refused(world: World) -> None:
    async with world.running("alice", private=True) as alice:
        world.write("alice", "1.csv", row(1, "Wien", 7))
        await alice.apply(ROOT, ROOT.replace("name: cities", "name: census"), COUNTS)
        await alice.pull("cities")
        (item,) = await alice.pull("census")
        assert "census is not a source dataset (kind: Root) without a source" in item.message
        good = COUNTS.replace("Dataset:census", "Dataset:other")
        # Never with the good rule first: the portal follows its input by itself, and would begin by that.
        await alice.apply(PUBLISHED.replace("census", "other"), good.replace("[event_time, city]", "[nowhere]"))
        (item,) = await alice.pull("other")
        assert "no column 'nowhere'" in item.message
        await alice.apply(good)
        (item,) = await alice.pull("other")
        assert item.outcome != "failed"
        await alice.apply(COUNTS.replace("name: census", "name: again").replace("Dataset:census", "Dataset:other"))
        (item,) = await alice.pull("other")
        assert "are Portals of one dataset" in item.message


@pytest.mark.parametrize(
    ("spec", "rule"),
    [
        ("input: cities, dataset: census", "protects no individual"),
        ("input: cities, dataset: cities, kAnonymity: {k: 2, quasiIdentifiers: [city]}", "another dataset than"),
        ("input: cities, dataset: census, kAnonymity: {k: 1, quasiIdentifiers: [city]}", "1 protects no individual"),
        ("input: cities, dataset: census, kAnonymity: {k: 2, quasiIdentifiers: []}", "names of columns are missing"),
        ("input: cities, dataset: census, suppress: [{count: n, below: 5, groups: [n]}]", "distinguishes no groups"),
        ("input: cities, dataset: census, suppress: [{count: n, below: 5, groups: [a, a]}]", "named twice"),
    ],
)
async def test_a_rule_that_protects_nobody_is_refused(world: World, spec: str, rule: str) -> None:
    async with world.running("alice", private=True) as alice:
        with pytest.raises((Fault, ExceptionGroup)) as told:
            await alice.apply(_PORTAL.replace("input: Dataset:cities, dataset: Dataset:census, %s", spec))
        assert rule in str(getattr(told.value, "exceptions", [told.value])[0])


async def test_rows_that_no_portal_would_publish_are_found_by_whoever_has_them(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack T-PRIVATE-05: a publisher that does not keep the rule of its own portal.

    Defence: every node that has the rows checks the rule again, and the failure is not taken for disk damage.

    A publisher that does not check its own rule is found out, in a folder as on a node.
    """
    async with world.running("alice") as alice, world.running("bob") as bob:
        monkeypatch.setattr("odfd.services.portals.publication.breaches", lambda *_: ())
        monkeypatch.setattr("odfd.services.portals.publication.filter_rows", lambda _, rows: rows)
        await begun(world, alice, COUNTS, row(1, "Wien", 7), row(1, "Graz", 4))
        await more(world, alice, 2, row(1, "Wien", 8))
        monkeypatch.undo()
        await world.spread(alice, "census")
        await bob.mirror(alice.dataset("census"), "theirs")
        found = await verified(bob, "theirs")
        assert [each.rule for each in found.failures] == ["portal-small-count", "portal-difference"]
        assert (found.ok, (await bob.dataset_view("theirs")).state) == (False, "fresh"), "no disk is damaged"
        folder = tmp_path / "copy"
        await alice.done(alice.api.flow.export("census", wire.ExportRequest(to=str(folder))))
        report = verify_chain(DirectoryChain(folder), DirectoryObjects(folder), VerificationRequest(ref="copy"))
        assert [each.rule for each in report.failures] == ["portal-small-count", "portal-difference"]


async def test_an_auditor_who_was_given_the_input_vouches_for_it(world: World) -> None:
    """Carol, who has only the portal, relies on what Bob signed of it."""
    async with world.running("alice", private=True) as alice, world.running("bob") as bob:
        await begun(world, alice, COUNTS, row(1, "Wien", 7), row(1, "Graz", 4))
        await more(world, alice, 2, row(2, "Wien", 8))
        await alice.publish("census")
        await world.spread(alice, "census")
        census, cities = alice.dataset("census"), alice.dataset("cities")
        opening = await alice.api.portals.open("census")
        await bob.mirror(census, "census")
        request = wire.AuditRequest(opening=opening.text)
        with pytest.raises(Fault):  # he has the opening, and not the dataset
            await bob.api.portals.audit("census", request)
        await alice.api.visibility.share(wire.ShareRequest(ref="cities", peers=(bob.key,)))
        await bob.mirror(cities, "cities", peers=(alice.member.peer_id,))
        done = await bob.done(bob.api.portals.audit("census", request))
        assert (done.blocks, done.same, done.signed, done.differences) == (2, 2, 2, ())
        assert (await bob.done(bob.api.portals.audit("census", request))).signed == 0, "it was said already"
        groups = (model.Group(name="bob", keys=(bob.key,)),)
        counts = model.Policy(use="data & observed:1", validators=model.Validators(f=0, groups=groups))
        world.clock.instant += 90 * 86_400 * 10**9  # what it is made of does not change, so he may come late
        async with world.running("carol", counts) as carol:
            await carol.mirror(census, "census")
            await carol.heard("observation.heard", 2)
            facts = (await carol.api.datasets.describe("census")).portal
            assert facts is not None
            assert (facts.auditors, facts.contradicted) == (1, 0)
            assert (await carol.api.trust.show("census")).reach.use == carol.size("census")


async def test_an_auditor_finds_rows_that_come_from_elsewhere(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack T-PRIVATE-05: rows of a portal that its private input does not give.

    Defence: an auditor who was given the input computes each block again, and signs the difference.
    """
    async with world.running("alice") as alice, world.running("bob") as bob:
        monkeypatch.setattr("odfd.services.portals.publication.filter_rows", lambda _, rows: rows.slice(1))
        await begun(world, alice, COUNTS, row(1, "Wien", 7), row(1, "Linz", 9))
        monkeypatch.undo()
        await world.spread(alice, "census", "cities")
        for name in ("census", "cities"):
            await bob.mirror(alice.dataset(name), name)
        text = (await alice.api.portals.open("census")).text
        done = await bob.done(bob.api.portals.audit("census", wire.AuditRequest(opening=text)))
        assert (done.same, done.differences[0].why) == (0, "the private dataset gives other rows")
        assert (await bob.heard("observation.signed"))[0].data["result"] == "differs"
        other = publication.opening_text(alice.dataset("census"), alice.dataset("cities"), b"x" * 32).decode()
        with pytest.raises(Refused, match="by this opening the portal is not made of"):
            await bob.done(bob.api.portals.audit("census", wire.AuditRequest(opening=other)))
        with pytest.raises(Invalid, match="it cannot be read"):
            await bob.api.portals.audit("census", wire.AuditRequest(opening="{}"))


class Private:
    """All by which the private dataset could be known."""

    def __init__(self, node: Node, *names: str) -> None:
        self.words = [b"Gmunden", b"4444"]
        for name in names:
            dataset, chain = node.dataset(name), node.home.chains.chain(node.dataset(name))
            self.words += [name.encode(), str(dataset).encode(), bytes(dataset), bytes(dataset)[-32:]]
            hashes: list[Multihash] = [chain.block_at(at).hash for at in range(node.size(name))]
            hashes += [each for at in range(node.size(name)) for each, _ in objects_of(chain.block_at(at))]
            for each in hashes:
                self.words += [str(each).encode(), bytes(each.digest), bytes(each.digest).hex().encode()]
                self.words += [base64.b64encode(each.digest).rstrip(b"=")]

    def found_in(self, data: bytes) -> list[bytes]:
        return [each for each in self.words if each in data]


async def test_nothing_but_the_rows_of_a_portal_leaves(world: World) -> None:
    """Attack T-PRIVATE-05: the private input of a portal, by gossip, presence, search, blocks, the site, or the API of
    other accounts.

    Defence: the chain has only salted hashes; the Portal is the owner's resource, and only readers of the input see
    what it withholds.

    Gossip, presence, search, evidence, blocks and objects, the site, IPFS names, and the API of other accounts.
    """
    async with world.running("alice", private=True, http=HTTP) as alice, world.running("bob") as bob:
        world.write("alice", "1.csv", row(1, "Wien", 7), row(1, "Gmunden", 4), row(1, "Linz", 4444))
        text = ROOT.replace("name: cities", "name: wages9")
        derived = DERIVED.replace("cities", "wages9").replace("name: towns", "name: means9")
        await alice.apply(text, derived, PUBLISHED, COUNTS.replace("cities", "means9"))
        await alice.pull()
        await alice.pull("census")
        await alice.publish("census")
        await world.spread(alice, "census")
        census: DatasetId = alice.dataset("census")
        private = Private(alice, "wages9", "means9")
        private.words.remove(b"4444")  # it is published
        text = (await alice.api.portals.open("census")).text
        salt = json.loads(text)["salt"]
        private.words += [salt.encode(), bytes.fromhex(salt)]
        seen: dict[str, bytes] = {}
        seen["gossip"] = b"".join(envelope for _, envelope in alice.member.announced)
        seen["gossip"] += b"".join(
            base64.urlsafe_b64decode(json.loads(each)["payload"] + "==") for _, each in alice.member.announced
        )
        library, board = alice.member.library, alice.member.board
        assert list(library.datasets(100)) == [census], "presence"
        seen["statements"] = b"".join(board.envelope(each.sid)[1] for each in board.refs())
        seen["blocks"] = b"".join(library.blocks(census, 0, 10**6))
        for name in ("wages9", "means9"):
            assert not library.blocks(alice.dataset(name), 0, 10**6)
        rows = [each for at in range(alice.size("census"))
                for each, _ in objects_of(alice.home.chains.chain(census).block_at(at))]  # fmt: skip
        seen["objects"] = b"".join(bytes(alice.home.objects.read(each)) for each in rows)
        (address,) = alice.parts.site.urls
        async with httpx.AsyncClient() as client:
            for path in ("", "/catalog.jsonld", "/census", "/census/refs/head", "/census/trust/head", "/means9",
                         "/datasets", "/census/metadata", "/census/lineage", "/info"):  # fmt: skip
                found = await client.get(f"{address}{path}")
                seen[f"site {path}"] = found.content.replace(path.encode() if path == "/means9" else b"\0", b"")
        seen["search"] = msgspec.json.encode(await bob.api.search.search(wire.SearchRequest(words="people")))
        assert b"census" in seen["search"]
        await alice.apply(ACCOUNT.format(name="bob", uid=BOB))
        asking = Asking(alice)
        for uid in (BOB, NOBODY):
            for path in ANSWERS:
                query = "kept=true" if path.endswith("/events") else ""
                seen[f"{uid} {path}"] = str((await asking.ask(uid, "GET", path, query=query))[1]).encode()
        assert {way: private.found_in(data) for way, data in seen.items() if private.found_in(data)} == {}
        assert b"Linz" in seen["objects"]
        assert b"Linz" in seen[f"{BOB} {CENSUS}/tail"]
        assert b"portal" in seen[f"{BOB} {CENSUS}/detail"]
        state = load_state(alice.home.chains.chain(census))
        assert state.schema is not None
        rule = portal_rule(schema_of(state.schema))
        assert rule is not None
        assert state.source_state is not None
        assert (state.source_state.kind, len(rule.input)) == (PORTAL, len(str(Multihash.sha3_256(b""))))


async def test_no_question_is_answered_with_more_than_the_rows_of_a_portal(world: World) -> None:
    """Attack T-PRIVATE-05: the private input of a portal, by IPFS, queries and tails over HTTP, what Flight lists, or
    SQL of another account.

    Defence: the answer equals that for a dataset that does not exist.

    IPFS; queries, tail and metadata over HTTP; what Flight lists; SQL of an account without relations.

    A private dataset is answered for as one that is not there.
    """
    ipfs = MemoryIpfs(Swarm())
    asked = model.Http(listen=("127.0.0.1:0",), query=True, prove=True)
    async with world.running("alice", private=True, http=asked, ipfs=ipfs) as alice:
        world.write("alice", "1.csv", row(1, "Wien", 7), row(1, "Gmunden", 4), row(1, "Linz", 4444))
        text = ROOT.replace("name: cities", "name: wages9")
        await alice.apply(text, PUBLISHED, COUNTS.replace("cities", "wages9"))
        await alice.pull()
        await alice.pull("census")
        await alice.publish("census")
        await alice.done(alice.api.publications.publish(wire.PublishRequest(ref="census")))
        private = Private(alice, "wages9")
        private.words.remove(b"4444")  # it is published
        private.words.append(json.loads((await alice.api.portals.open("census")).text)["salt"].encode())
        seen = {f"ipfs {path}": content for path, content in ipfs.files.items()}
        assert seen, "it is on IPFS"
        flight = ReaderQueries(alice.home, alice.parts.queries, alice.parts.public_queries)
        seen["flight"] = repr(flight.states(owner=False)).encode()
        assert [name for name, _ in flight.states(owner=False)] == ["census"]
        (address,) = alice.parts.site.urls
        columns = "select * from census order by city"
        async with httpx.AsyncClient(base_url=address, timeout=PATIENCE) as client:
            for path in ("/census/tail", "/census/metadata", "/census/blocks", "/datasets"):
                seen[path] = (await client.get(path)).content
            body = {"query": columns, "include": ["input", "schema", "proof"]}
            found = await client.post("/query", json=body)
            assert b"Linz" in found.content
            seen["/query"] = found.content
            for sql in ("select * from {}", "select count(*) from census join {} using (city)", "describe {}"):
                answers = [
                    (said.status_code, said.text.replace(name, "NAME"))
                    for name in ("wages9", "nobody9")
                    for said in [await client.post("/query", json={"query": sql.format(name)})]
                ]
                assert answers[0] == answers[1]
                assert answers[0][0] >= 400
            for path in ("/{}/tail", "/{}/metadata", "/{}/refs/head"):
                answers = [(await client.get(path.format(name))).status_code for name in ("wages9", "nobody9")]
                assert answers == [404, 404]
        await alice.apply(ACCOUNT.format(name="bob", uid=BOB))
        asking = Asking(alice)
        for sql in (columns, "select * from wages9"):
            status, said = await asking.ask(BOB, "POST", "/node/v1alpha1/query", {"sql": sql})
            assert status >= 400 or "wages9" not in sql
            seen[f"sql of bob {sql}"] = str(said).encode().replace(b"wages9" if "wages9" in sql else b"\0", b"")
        assert {way: private.found_in(data) for way, data in seen.items() if private.found_in(data)} == {}
