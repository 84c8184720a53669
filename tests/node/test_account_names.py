"""Names of accounts: each has its own, side by side with those of others, and learns nothing of these."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from chain.errors import Fault
from chain.ids import DatasetId
from chain.state import transform_of
from config import model
from odfd.control.endpoint import CALLER, Caller
from odfd.datasets.creation import input_ids
from odfd.errors import to_problem
from odfd.resources.store import ResourceStore
from odfd.services.ingest.sources import SourceReader
from odfd.services.resources.set_controllers import SetValues
from worlds.accounts_world import ACCOUNT, ALICE, BOB, DATASET, GRANT, NOBODY, settled, steady
from worlds.faults import breaks
from worlds.flow_world import entries, flow_of, flows
from worlds.manifests import ROOT
from worlds.node_world import World, until

SET = """$schema: SecretSet
headers: {{name: db{more}}}
spec: {{secrets: {{key: {value}}}}}
"""
READING = """$schema: Source
headers: {name: feed}
spec:
  config: {k: "SecretSet:db#key"}
  ingress: {kind: RestEndpoint, signature: {kind: StandardWebhooks, secret: "${{ config.k }}"}}
  read: {kind: NdJson}
"""


async def test_accounts_have_the_same_names_side_by_side_and_each_reads_its_own(world: World) -> None:
    """Attack T-ACCOUNT-02: taking the name of another's resource, to change it or to get its secrets.

    Defence: a name without an account is one of the account that asks or refers.

    Nothing of alice changes by what bob applies, labels or deletes under the same names.
    """
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        for uid in (ALICE, BOB):
            made = (await asking.apply(uid, SET.format(value=f"of-{uid}", more=""), READING)).items
            assert [each.action for each in made] == ["created", "created"]
        sources, ids = SourceReader(node.home), {}
        for uid in (ALICE, BOB):
            for kind in ("secretsets", "sources"):
                group = "config" if kind == "secretsets" else "source"
                (view,) = (await asking.ask(uid, "GET", f"/{group}/v1alpha1/{kind}"))[1]["items"]
                ids[uid, kind] = view["headers"]["id"]
            assert sources.open(ids[uid, "sources"]).values == {"k": f"of-{uid}"}
        assert len(set(ids.values())) == 4
        for kind in ("secretset", "source"):  # two of one name, each on a page of its own
            first = await node.api.declarations.page(kind, None, 1, None)
            last = await node.api.declarations.page(kind, None, 1, first.rest)
            paged = {each.id for each in (*first.views, *last.views)}
            assert (paged, last.rest) == ({ids[uid, f"{kind}s"] for uid in (ALICE, BOB)}, None)
        alices = {each: await asking.ask(ALICE, "GET", f"/{each}/v1alpha1/{of}") for each, of in
                  (("config", "secretsets/db"), ("source", "sources/feed"))}  # fmt: skip
        assert {status for status, _ in alices.values()} == {200}

        (item,) = (await asking.apply(BOB, SET.format(value="new", more=", labels: {a: b}"))).items
        assert (item.action, item.id) == ("updated", ids[BOB, "secretsets"])
        assert sources.open(ids[BOB, "sources"]).values == {"k": "new"}
        for name in ("feed", ids[BOB, "sources"]):
            labels = {"labels": {"by": name}}
            assert (await asking.ask(BOB, "PUT", f"/source/v1alpha1/sources/{name}/labels", labels))[0] == 200
        assert (await asking.ask(BOB, "DELETE", "/config/v1alpha1/secretsets/db"))[0] == 200
        assert (await asking.ask(BOB, "GET", "/config/v1alpha1/secretsets/db"))[0] == 404
        assert sources.open(ids[ALICE, "sources"]).values == {"k": f"of-{ALICE}"}
        for each, of in (("config", "secretsets/db"), ("source", "sources/feed")):
            assert steady(await asking.ask(ALICE, "GET", f"/{each}/v1alpha1/{of}")) == steady(alices[each])
        # The set of alice does not take the place of the one that is gone.
        with breaks("unresolved-reference"):
            sources.open(ids[BOB, "sources"])


async def test_deleting_one_by_its_id_deletes_none_of_the_same_name(world: World) -> None:
    """Attack T-ACCOUNT-02: a resource of the same name as the one that is meant, to have the wrong one deleted.

    Defence: what is deleted is found by its id.
    """
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        for uid in (ALICE, BOB):
            await asking.apply(uid, SET.format(value="v", more=""))
        await node.apply(SET.format(value="v", more=""))
        alices = (await asking.ask(ALICE, "GET", "/config/v1alpha1/secretsets/db"))[1]["headers"]["id"]
        grant = GRANT.replace("Dataset:{what}", "SecretSet:{what}")
        await asking.apply(ALICE, grant.format(name="g", who="bob", role="owner", what="db"))
        status, gone = await asking.ask(BOB, "DELETE", f"/config/v1alpha1/secretsets/{alices}")
        assert (status, gone["headers"]["id"]) == (200, alices)
        assert [(await asking.ask(uid, "GET", "/config/v1alpha1/secretsets/db"))[0] for uid in (BOB, 0)] == [200, 200]
        assert (await asking.ask(ALICE, "GET", f"/config/v1alpha1/secretsets/{alices}"))[0] == 404


async def test_the_owner_names_what_accounts_have_with_the_account_and_is_told_where_several_have_it(
    world: World,
) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        resolve, get = node.home.resolve, node.api.declarations.get
        for uid in (ALICE, BOB):
            await asking.apply(uid, DATASET.format(name="sales", more=""), SET.format(value="v", more=""))
        alices, bobs = resolve("alice/sales"), resolve("bob/Sales")
        assert alices.id != bobs.id
        for kind, name in (("Dataset", "sales"), ("SecretSet", "db")):
            with breaks("ambiguous-name") as several:
                await get(kind, name)
            assert "(alice's)" in several.value.hint
            assert "(bob's)" in several.value.hint
        owners = {(await get("SecretSet", f"{each}/db")).headers["account"]["name"] for each in ("alice", "bob")}
        assert owners == {"alice", "bob"}
        await node.apply(DATASET.format(name="sales", more=""), SET.format(value="v", more=""))
        assert resolve("sales").id not in (alices.id, bobs.id)
        assert "account" not in (await get("SecretSet", "db")).headers
        assert resolve("hers").id == resolve("alice/hers").id


async def test_a_flow_that_nothing_declares_is_named_with_its_account_where_several_have_it(world: World) -> None:
    async with world.running("node", private=True, flows=model.Flows(follow=True)) as node:
        asking, get = await settled(node), node.api.declarations.get
        derived = DERIVED.replace("name: derived", "name: towns").replace("raw", "sales")
        for uid in (ALICE, BOB):
            items = (await asking.apply(uid, DATASET.format(name="sales", more=""), derived)).items
            assert [each.fault for each in items] == [None, None]
        await until(lambda: len(list(node.parts.flows.scheduler.entries())) == 2)
        with breaks("ambiguous-name") as several:
            await get("Flow", "towns")
        assert "(alice's)" in several.value.hint
        assert "(bob's)" in several.value.hint
        found = [await get("Flow", f"{each}/towns") for each in ("alice", "bob")]
        assert [each.headers["account"]["name"] for each in found] == ["alice", "bob"]
        assert [(await get("Flow", each.id)).id for each in found] == [each.id for each in found]


async def test_an_account_learns_nothing_of_a_name_that_others_have(world: World) -> None:
    """Attack T-ACCOUNT-02: asking for a name, or taking it, to learn what others have under it.

    Defence: each account has names of its own: taking one succeeds whatever others have, for an apply and for a rename;
    asking for `account/name` answers alike for what is hidden, what is missing and an account that is not here.

    Neither by taking it, in an apply or a rename, nor by asking for it with the account.
    """
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await asking.apply(BOB, DATASET.format(name="his", more=""), SET.format(value="v", more=""))
        services, told = await asking.services(ALICE), []
        for name in ("theirs", "his", "nothing"):
            (made,) = (await asking.apply(ALICE, DATASET.format(name=name, more=""), dry_run=True)).items
            told.append((made.action, made.changes, made.warnings))
            assert (await services.applying.rename("Dataset", "hers", name)).name == name
            await services.applying.rename("Dataset", name, "hers")
        assert told == [("created", ("Seed", "AddPushSource"), ())] * 3
        asked = {
            "Dataset": ("bob/his", "owner/theirs", "bob/nothing", "nobody/his"),
            "SecretSet": ("bob/db", "owner/db", "nobody/db", "db"),
        }
        for kind, names in asked.items():
            answers = set()
            for name in names:
                with pytest.raises(Fault) as missing:
                    await services.declarations.get(kind, name)
                answers.add(json.dumps(to_problem(missing.value)).replace(name, "NAME"))
            assert len(answers) == 1, answers
        answers = set()
        for name in asked["Dataset"]:
            with pytest.raises(Fault) as missing:
                await services.datasets.describe(name)
            answers.add(json.dumps(to_problem(missing.value)).replace(name, "NAME"))
        assert len(answers) == 1, answers
        # Two of its own still may not have one name.
        await asking.apply(ALICE, DATASET.format(name="more", more=""))
        with breaks("name-taken"):
            await services.applying.rename("Dataset", "hers", "MORE")


async def test_a_renamed_dataset_of_an_account_leaves_those_of_its_names_alone(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        for uid in (ALICE, BOB):
            await asking.apply(uid, DATASET.format(name="old", more=""))
        await node.apply(DATASET.format(name="new", more=""))
        alices, bobs, owners = (node.home.resolve(each).id for each in ("alice/old", "bob/old", "new"))
        assert (await asking.ask(ALICE, "POST", "/dataset/v1alpha1/datasets/old/rename", {"name": "new"}))[0] == 200
        assert [node.home.resolve(each).id for each in ("alice/new", "bob/old", "new")] == [alices, bobs, owners]
        assert (await asking.ask(ALICE, "GET", "/dataset/v1alpha1/datasets/old"))[0] == 404
        await node.api.applying.rename("Dataset", "bob/old", "new")
        assert [node.home.resolve(each).id for each in ("alice/new", "bob/new", "new")] == [alices, bobs, owners]


async def test_sources_of_a_dataset_read_the_sets_of_its_account(world: World) -> None:
    """Attack T-ACCOUNT-02: a set of values of the same name as another's dataset, to give its sources values or to take
    those.

    Defence: the sources of a dataset read the sets of its account alone.
    """
    sets = "$schema: VariableSet\nheaders: {{name: sales{more}}}\nspec: {{variables: {{who: {who}}}}}\n"
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await node.apply(DATASET.format(name="sales", more=""), sets.format(more="", who="owner"))
        await asking.apply(ALICE, DATASET.format(name="sales", more=""), sets.format(more="", who="alice"))
        await asking.apply(BOB, DATASET.format(name="sales", more=""))
        values = SetValues(node.home).of
        said = [values(node.home.resolve(each).id) for each in ("sales", "alice/sales", "bob/sales")]
        assert said == [{"who": "owner"}, {"who": "alice"}, {}]


async def test_a_name_that_others_have_is_free_to_be_posted(world: World) -> None:
    posted = {"$schema": "SecretSet", "headers": {"name": "db"}, "spec": {"secrets": {"key": "v"}}}
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        for uid in (ALICE, BOB, 0):  # the owner posts it where several others have it
            for status in (201, 409):
                assert (await asking.ask(uid, "POST", "/config/v1alpha1/secretsets", posted))[0] == status, uid
        accounts = [
            each.headers.get("account", {}).get("name") for each in await node.api.declarations.list("SecretSet", None)
        ]
        assert sorted(map(str, accounts)) == ["None", "alice", "bob"]


DERIVED = """$schema: Dataset
headers: {name: derived}
spec:
  kind: Derivative
  metadata:
  - kind: SetTransform
    inputs: [{datasetRef: raw, alias: a}]
    transform: {kind: Sql, engine: spark, query: select * from a}
"""


async def test_an_account_derives_from_its_own_dataset_of_a_name_that_the_owner_has_too(world: World) -> None:
    """Of one batch, too: the name found the dataset of the node's owner before the new one."""
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await node.apply(DATASET.format(name="raw", more=""))
        made = (await asking.apply(BOB, DATASET.format(name="raw", more=""), DERIVED)).items
        assert [each.fault for each in made] == [None, None]
        ids = {each.name: each.id for each in made}
        transform = transform_of(node.home.chains.chain(DatasetId.parse(ids["derived"])))
        assert transform is not None
        assert [str(each) for each in input_ids(transform)] == [ids["raw"]]
        assert ids["raw"] != str(node.home.resolve("raw").id)


TEAM = """$schema: Account
headers: {name: team}
spec: {email: team@example.com, accountType: Organization}
---
$schema: Relations
headers: {name: members}
spec: {relations: [{subject: "Account:bob", relation: member, object: "Account:team"}]}
"""


@pytest.mark.parametrize("trick", ["a set of the team", "a set that is renamed", "a source of the team"])
async def test_no_batch_reads_a_set_of_the_owner_that_has_the_name(world: World, trick: str) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await node.apply(SET.format(value="of-the-owner", more=""), *TEAM.split("---\n"))
        source = READING
        if trick == "a set of the team":
            batch = [SET.format(value="v", more=", account: team")]
        else:
            (held,) = (await asking.apply(BOB, SET.format(value="v", more=""))).items
            batch = [SET.format(value="v", more=f", id: {held.id}").replace("name: db", "name: other")]
        if trick == "a source of the team":
            batch, source = [], READING.replace("{name: feed}", "{name: feed, account: team}")
        with suppress(Fault):
            await asking.apply(BOB, *batch, source)
        await node.parts.reconciler.wait_settled()
        with node.home.database.read() as connection:
            found = ResourceStore(connection).namesakes("Source", "feed")
        for each in found:
            with pytest.raises(Fault):
                SourceReader(node.home).open(each.id)


async def test_a_maintainer_makes_itself_no_owner_in_the_batch_that_changes_the_dataset(world: World) -> None:
    """What an apply changed counted as its own, so a maintainer could take the dataset over."""
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await asking.apply(ALICE, GRANT.format(name="g", who="bob", role="maintainer", what="hers"))
        changed = DATASET.format(name="hers", more=", account: alice, labels: {a: b}")
        with breaks("access-role"):
            await asking.apply(BOB, changed, GRANT.format(name="mine", who="bob", role="owner", what="alice/hers"))


FLOW = """$schema: Flow
headers: {{name: often{more}}}
spec:
  target: Dataset:raw
  triggers: [{{kind: Schedule, every: {every}}}]
"""


async def test_two_flows_of_one_name_are_each_looked_at_by_themselves(world: World) -> None:
    """The owner's stood in for one of an account that has its name."""
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await asking.apply(ALICE, DATASET.format(name="raw", more=""))
        await node.apply(DATASET.format(name="raw", more=""))
        await node.apply(FLOW.format(more="", every="1min"))
        await node.apply(FLOW.format(more=", account: alice", every="2min"))
        with node.home.database.read() as connection:
            flows = ResourceStore(connection).namesakes("Flow", "often")
        found = {(each.account is None, (await node.api.flows.in_force(each)).when) for each in flows}
        assert found == {(True, "every 1min"), (False, "every 2min")}


async def test_what_an_account_has_is_not_pruned_with_what_the_owner_leaves_out(world: World) -> None:
    labelled = (
        "$schema: VariableSet\nheaders: {{name: {name}, labels: {{env: prod}}}}\nspec: {{variables: {{x: '1'}}}}\n"
    )
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await asking.apply(ALICE, labelled.format(name="a"), labelled.format(name="b"))
        await node.apply(labelled.format(name="a"), labelled.format(name="b"))
        done = await node.apply(labelled.format(name="a"), prune="env=prod")
        assert [(each.name, each.action) for each in done.items] == [("a", "unchanged"), ("b", "deleted")]
        with node.home.database.read() as connection:
            assert [each.name for each in ResourceStore(connection).all("VariableSet")] == ["a", "a", "b"]


async def test_a_path_names_what_an_account_has_in_one_segment(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        for uid in (ALICE, BOB):
            await asking.apply(uid, SET.format(value="v", more=""))

        async def named(path: str) -> tuple[int, Any]:
            caller = {CALLER: Caller(1, 0, 0), "raw_path": path.encode()}
            status, body = await asking.ask(0, "GET", unquote(path), scope=caller)
            return status, body.get("headers", {}).get("account", {}).get("name", body.get("rule"))

        for account in ("alice", "bob"):
            for slash in ("%2F", "%2f"):
                assert await named(f"/config/v1alpha1/secretsets/{account}{slash}db") == (200, account)
        assert await named("/config/v1alpha1/secretsets/nobody%2Fdb") == (404, "resource")
        status, hers = await asking.ask(
            0, "GET", "/dataset/v1alpha1/datasets/alice/hers",
            scope={CALLER: Caller(1, 0, 0), "raw_path": b"/dataset/v1alpha1/datasets/alice%2Fhers"},
        )  # fmt: skip
        assert (status, hers["spec"]["did"]) == (200, str(node.home.resolve("alice/hers").id))


async def test_a_batch_gives_a_thing_to_another_account_and_makes_a_new_one_of_its_name(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        (held,) = (await asking.apply(BOB, SET.format(value="old", more=""))).items
        moved, new = SET.format(value="old", more=f", account: alice, id: {held.id}"), SET.format(value="new", more="")
        for batch in ((new.replace("name: db", "name: db, account: bob"), moved),):
            items = (await node.apply(*batch)).items
            assert [(each.action, each.fault) for each in items] == [("created", None), ("updated", None)]
            assert "~ account: bob -> alice" in items[1].changes
        with node.home.database.read() as connection:
            store = ResourceStore(connection)
            names = {store.account_name(each.account or ""): each.id for each in store.namesakes("SecretSet", "db")}
            parts = {store.account_name(each.account or "") for each in store.namesakes("Secret", "db#key")}
        assert names["alice"] == held.id
        assert names.keys() == parts == {"alice", "bob"}
        # The two change places, in one batch.
        swapped = [SET.format(value="v", more=f", account: {who}, id: {names[other]}")
                   for who, other in (("alice", "bob"), ("bob", "alice"))]  # fmt: skip
        assert {each.action for each in (await node.apply(*swapped)).items} == {"updated"}
        with node.home.database.read() as connection:
            store = ResourceStore(connection)
            after = {store.account_name(each.account or ""): each.id for each in store.namesakes("SecretSet", "db")}
        assert after == {"alice": names["bob"], "bob": names["alice"]}


async def test_a_flow_is_paused_by_its_account_and_name_and_none_of_the_same_name_is(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        for uid, account in ((ALICE, "alice"), (BOB, "bob")):
            await asking.apply(uid, DATASET.format(name="raw", more=""))
            await node.apply(FLOW.format(more=f", account: {account}", every="1min"))
        await node.api.flows.pause("bob/often")
        with node.home.database.read() as connection:
            held = {each.id: each.account for each in ResourceStore(connection).namesakes("Flow", "often")}
        paused = [held[entry.plan.id] for _, entry in node.parts.flows.scheduler.entries() if entry.is_paused]
        bob = (await node.api.declarations.get("Account", "bob")).id
        assert paused == [bob]
        assert (await flow_of(node, "alice/often")).state != "paused"


async def test_a_flow_that_selects_nothing_is_listed_beside_one_of_its_name(world: World) -> None:
    text = (
        "$schema: Flow\nheaders: {{name: wide{more}}}\n"
        'spec: {{target: "Dataset:{target}", triggers: [{{kind: Interval, interval: 1h}}], tasks: [{{kind: Pull}}]}}\n'
    )
    async with world.running("node", private=True) as node:
        await settled(node)
        await node.apply(text.format(more="", target="the%"), text.format(more=", account: bob", target="none.%"))
        assert {each.target for each in await flows(node)} == {"none.%", "the%"}
        assert list(entries(node, "wide")) == ["theirs"]
        assert (await flow_of(node, "bob/wide")).target == "none.%"
        assert (await flow_of(node, "wide")).target == "the%"


async def test_an_account_has_a_did_by_which_it_is_referred_to(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        _, alice = await asking.ask(0, "GET", "/auth/v1alpha1/accounts/alice")
        did = alice["headers"]["account"]["did"]
        assert str(DatasetId.parse(did)) == did
        (again,) = (await node.apply(json.dumps({key: alice[key] for key in ("$schema", "headers", "spec")}))).items
        assert again.action == "unchanged"
        assert (await asking.ask(0, "GET", f"/auth/v1alpha1/accounts/{did}"))[1]["headers"]["name"] == "alice"
        _, view = await asking.ask(ALICE, "GET", "/dataset/v1alpha1/datasets/hers")
        assert view["headers"]["account"] == {"id": alice["headers"]["id"], "did": did, "name": "alice"}
        # In all places where its name is.
        for said in (did, f"{{did: '{did}'}}", json.dumps(view["headers"]["account"])):
            (item,) = (await asking.apply(ALICE, DATASET.format(name="hers", more=f", account: {said}"))).items
            assert item.action == "unchanged"
        _, listed = await asking.ask(0, "GET", "/dataset/v1alpha1/datasets", query=f"account={did}")
        assert [each["headers"]["name"] for each in listed["items"]] == ["hers"]
        _, bob = await asking.ask(0, "GET", "/auth/v1alpha1/accounts/bob")
        by_did = GRANT.format(name="g", who=bob["headers"]["account"]["did"], role="reader", what="hers")
        await asking.apply(ALICE, by_did)
        assert await asking.datasets(BOB) == ["hers"]
        assert (await asking.ask(0, "GET", "/auth/v1alpha1/self", as_=did))[1]["name"] == "alice"
        with breaks("access-account"):
            await asking.apply(BOB, DATASET.format(name="his", more=f", account: {did}"))
        # It stays over a rename, and another account of the name has another.
        await node.apply(
            ACCOUNT.format(name="al", uid=ALICE).replace("name: al", f"name: al, id: {alice['headers']['id']}")
        )
        assert (await asking.ask(0, "GET", f"/auth/v1alpha1/accounts/{did}"))[1]["headers"]["name"] == "al"
        await node.apply(ACCOUNT.format(name="alice", uid=70009))
        assert (await asking.ask(0, "GET", "/auth/v1alpha1/accounts/alice"))[1]["headers"]["account"]["did"] != did


async def test_the_account_of_the_nodes_owner_has_a_name(world: World) -> None:
    grant = GRANT.format(name="g", who="bob", role="maintainer", what="theirs")
    source = """$schema: Dataset
headers: {name: mine}
spec: {kind: Derivative, metadata: [{kind: SetTransform, inputs: [{datasetRef: "%s", alias: a}],
  transform: {kind: Sql, engine: spark, query: select * from a}}]}
"""
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        told = []
        for name in ("node/theirs", "node/absent"):  # also beside one of its own that the batch makes
            with pytest.raises(Fault) as refused:
                await asking.apply(BOB, DATASET.format(name="theirs", more=""), source % name)
            told.append(json.dumps(to_problem(refused.value)).replace(name, "REF"))
        assert told[0] == told[1]
        await node.apply(grant)
        (made,) = (await asking.apply(BOB, source % "node/theirs")).items
        assert made.action == "created"
        # What is printed of it is taken again by who maintains it; nobody else is given the account by its handle.
        view = await (await asking.services(BOB)).declarations.get("Dataset", str(node.dataset("theirs")))
        for account in ("node", json.dumps(view.account)):
            (again,) = (
                await asking.apply(BOB, DATASET.format(name="theirs", more=f", id: {view.id}, account: {account}"))
            ).items
            assert again.action == "unchanged"
            with breaks("access-account"):
                await asking.apply(BOB, DATASET.format(name="new", more=f", account: {account}"))
        # An account that has the name keeps it.
        await node.apply(ACCOUNT.format(name="node", uid=70009))
        await node.apply(DATASET.format(name="new", more=", account: node"))
        assert (await node.api.declarations.get("Dataset", "node/new")).account["id"] != view.account["id"]


async def test_the_owner_pulls_what_an_account_has_by_its_name(world: World, tmp_path: Path) -> None:
    """A repository that has the name of the account goes before."""
    body = ROOT.partition("content:\n")[2].replace("  name: cities\n", "")
    text = f"$schema: Dataset\nheaders: {{name: cities, account: alice}}\nspec:\n{body}"
    place = f"$schema: Repository\nheaders: {{name: alice}}\nspec: {{url: '{tmp_path.as_uri()}/nothing'}}\n"
    async with world.running("node", private=True) as node:
        await settled(node)
        (item,) = await node.take_in(text, files={"1.csv": ["2024-01-01T00:00:00Z,Graz,1"]}, pulls=["alice/cities"])
        assert item.outcome == "updated"
        with pytest.raises(Fault, match="no repository 'bob', and no dataset 'bob/"):
            await node.pull("bob/cities")
        await node.apply(place)
        (item,) = await node.pull("alice/cities")
        assert item.outcome == "failed"


async def test_the_bytes_that_are_kept_of_a_dataset_are_listed_to_the_account_that_has_it(world: World) -> None:
    body = ROOT.partition("content:\n")[2].replace("  name: cities\n", "")
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        world.write("node", "1.csv", "2024-01-01T00:00:00Z,Graz,1")
        await node.apply(f"$schema: Dataset\nheaders: {{name: cities, account: alice}}\nspec:\n{body}")
        await node.keep_raw("alice/cities")
        await node.pull("alice/cities")
        path = f"/dataset/v1alpha1/datasets/{node.dataset('alice/cities')}/raw"
        status, said = await asking.ask(ALICE, "GET", "/dataset/v1alpha1/datasets/cities/raw")
        assert (status, said["count"], said["dataset"]) == (200, 1, "cities")
        assert said["captures"], "each with its bytes"
        assert (await asking.ask(ALICE, "GET", path)) == (status, said)
        assert (await asking.ask(ALICE, "DELETE", f"{path}/captures"))[0] == 403, "that is the node's owner's"
        for uid in (BOB, NOBODY):
            status, refused = await asking.ask(uid, "GET", path)
            assert (status, refused["rule"]) == (404, "dataset-ref")
        await node.apply(GRANT.format(name="g", who="bob", role="maintainer", what="alice/cities"))
        status, refused = await asking.ask(BOB, "GET", path)
        assert (status, refused["rule"]) == (403, "access-role")
