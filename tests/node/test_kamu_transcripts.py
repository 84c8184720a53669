"""Replays what a real kamu-cli said, without it: a node answers and asks as it did when kamu was there.

The transcripts (``tests/golden/kamu-smart``) are of all that passed between the two, in both roles of each; ``worlds.
transcripts`` says what is masked. ``tests/e2e/node/test_kamu.py`` makes them anew.
"""

from __future__ import annotations

from pathlib import Path

from chain.store.layout import HEAD
from worlds.kamu_sessions import (
    EVENTS,
    ORDERS,
    TAKES,
    TRANSCRIPTS,
    bring,
    half,
    head_of,
    host_of,
    know,
    pull,
    push,
    token_of,
)
from worlds.node_world import World
from worlds.replaying import as_client, kamu_server
from worlds.transcripts import Mask, read

WHOLE = (EVENTS / HEAD).read_text().strip()


async def test_kamu_gets_the_answers_that_it_pulled_by(world: World, tmp_path: Path) -> None:
    sessions = read(TRANSCRIPTS / "kamu-pulls.json")
    async with world.running("alice", http=TAKES) as node:
        mask = Mask(host_of(node), await token_of(node))
        await bring(node, half(tmp_path / "half"))
        await as_client(sessions["first"], mask)
        await bring(node, EVENTS)
        await as_client(sessions["later"], mask)
        await as_client(sessions["same"], mask)


async def test_kamu_pushes_once_more(world: World) -> None:
    sessions = read(TRANSCRIPTS / "kamu-pushes.json")
    async with world.running("alice", http=TAKES) as node:
        mask = Mask(host_of(node), await token_of(node))
        await as_client(sessions["first"], mask)
        assert head_of(node) != WHOLE
        await as_client(sessions["later"], mask)
        assert head_of(node) == WHOLE
        await as_client(sessions["same"], mask)


async def test_a_node_pulls_from_kamu_as_before(world: World, tmp_path: Path) -> None:
    sessions = read(TRANSCRIPTS / "kamu-is-pulled-from.json")
    async with kamu_server() as kamu, world.running("alice") as node, world.running("bob") as other:
        await know(node, kamu.host, "of-kamu")
        async with kamu.session(sessions["first"]):
            await pull(node)
        assert head_of(node) == (half(tmp_path / "half") / HEAD).read_text()
        async with kamu.session(sessions["later"]):
            await pull(node)
        assert head_of(node) == WHOLE
        async with kamu.session(sessions["same"]):
            await pull(node)
        await know(other, kamu.host, "of-kamu")
        await bring(other, ORDERS)
        async with kamu.session(sessions["another by that name"]):
            await pull(other, as_name="more")
        assert head_of(other, "more") == WHOLE


async def test_a_node_pushes_to_kamu_as_before(world: World, tmp_path: Path) -> None:
    sessions = read(TRANSCRIPTS / "kamu-is-pushed-to.json")
    async with kamu_server() as kamu, world.running("alice") as node:
        await know(node, kamu.host, "of-kamu")
        await bring(node, half(tmp_path / "half"))
        async with kamu.session(sessions["first"]):
            await push(node)
        await bring(node, EVENTS)
        async with kamu.session(sessions["later"]):
            await push(node)
        async with kamu.session(sessions["same"]):
            await push(node)
