"""Two nodes of ours as log and public witness, over real HTTP: they know of each other by the settings alone."""

from __future__ import annotations

import httpx
import trio

from chain.statements import checkpoint
from chain.statements.checkpoint import COSIGNATURE_KEY
from chain.statements.submission import MAX_SUBMISSION
from config import model
from config.load import cross
from odfd.policy.witness_quorum import read_witness
from odfd.services.trust.witness_submission import PAUSE, WitnessSubmission
from odfd.site.application import SUBMIT
from odfd.store.ledger.cosignatures import Cosignatures
from p2p.web.client import Posts
from worlds.eventually import PATIENCE
from worlds.manifests import ROOT
from worlds.node_world import World

ROWS = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000")
HTTP = model.Http(listen=("127.0.0.1:0",), witness=True)


async def test_a_node_is_a_public_witness_for_another(world: World) -> None:
    """They are in no network together: what one cosigns is brought there and back by the publisher alone."""
    world.write("alice", "a.csv", *ROWS)
    async with world.running("alice") as alice, Posts() as posts:
        await alice.apply(ROOT)
        await alice.pull()
        cities = alice.dataset("cities")
        policy = model.Policy(publish=model.Publish(witness=(str(cities),)))
        world.wires.cut.add(alice.member.peer_id)
        async with world.running("witness", policy, http=HTTP) as witness:
            key = witness.home.keys.node_key()
            vkey = checkpoint.verifier_key(str(key.did), COSIGNATURE_KEY, key.public)
            asked = read_witness(f"{vkey} {witness.parts.site.urls[0]}{SUBMIT.rpartition('/')[0]}")
            made = alice.submissions()
            log = WitnessSubmission(made._home, lambda: (asked,), world.clock, made._cosigned, alice.logger, posts)
            for number in range(3):
                world.write("alice", f"b{number}.csv", f"2024-02-0{number + 1}T00:00:00Z,Wels,{number}")
                await alice.pull("cities")
                log.loop.touch(cities)
                world.clock.instant += int(PAUSE * 1e9)
                await log._round()
                with alice.home.database.read() as connection:
                    (kept,) = Cosignatures(connection).of(cities)
                assert (kept.witness, kept.checkpoint.size) == (key.did, alice.size("cities"))
            assert log.miss(kept.checkpoint.origin, key.did).why == ""
            await witness.heard("cosignature.signed", 3)
            assert witness.home.chains.datasets() == []


async def test_requests_over_the_limit_end_unread(world: World) -> None:
    dataset = "did:odf:fed01" + "3b" * 32
    policy = model.Policy(publish=model.Publish(witness=(dataset,)))
    async with world.running("witness", policy, http=HTTP) as witness, httpx.AsyncClient() as client:
        url = witness.parts.site.urls[0] + SUBMIT
        assert (await client.post(url, content=b"x" * (MAX_SUBMISSION + 1))).status_code == 413
        assert (await client.post(url, content=b"x" * MAX_SUBMISSION)).status_code == 400
        assert (await client.get(url)).status_code == 404


async def test_a_site_takes_nothing_unless_it_was_asked_to(world: World) -> None:
    async with world.running("plain", http=model.Http(listen=("127.0.0.1:0",))) as plain, httpx.AsyncClient() as client:
        with trio.fail_after(PATIENCE):
            answer = await client.post(plain.parts.site.urls[0] + SUBMIT, content=b"old 0\n\n")
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


def test_settings_say_whole_what_a_witness_needs() -> None:
    problems = [str(each) for each in cross(model.Settings(http=model.Http(witness=True)), {})]
    assert any("nothing to witness" in each for each in problems)
