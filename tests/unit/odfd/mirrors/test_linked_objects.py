"""What a row links to has no signed size: each peer is taken at its word, and none of them delays the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from chain.errors import Environment, Invalid, Refused, Remote
from chain.multihash import Multihash
from chain.store.database import open_database
from chain.store.objects import DiskObjects
from odfd.datasets.uncommitted_objects import UncommittedObjects
from odfd.mirrors import object_fetcher
from odfd.mirrors.object_fetcher import HASTE, PATIENCE, WAIT, ObjectFetcher, ObjectLimits
from odfd.published.staging import StagingQuota
from p2p.ports import PeerId

THING = b"a song" * 1000
NAME = Multihash.sha3_256(THING)


class Network:
    """``mute`` peers answer nothing, ``boasts`` offer it and give nothing, ``wrong`` lie about the size, ``slow`` ones
    let us wait for ten seconds; ``large`` ones say that it is four times as large, ``giant`` ones that no disk has
    room for it, ``short`` ones that it is nearly nothing."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.taken: list[tuple[str, int]] = []
        """From whom, and how many bytes by their word."""

    async def object_size(self, peer: PeerId, _name: Multihash) -> int | None:
        self.asked.append(peer)
        if peer.startswith("mute"):
            await trio.sleep(30)
            raise Remote("no answer in 30 s")
        await trio.sleep(0.01)
        lies = {"wrong": len(THING) + 1, "large": 4 * len(THING), "giant": 1 << 60, "short": 10}
        return None if peer.startswith("empty") else lies.get(peer.rstrip("0123456789"), len(THING))

    async def fetch_object(self, peers: list[PeerId], _name: Multihash, size: int, sink: Any, _pace: Any) -> None:
        (peer,) = peers
        self.taken.append((peer, size))
        await trio.sleep({"boasts": 80.0, "slow": 10.0}.get(peer.rstrip("0123456789"), 0.01))
        if peer.startswith("boasts"):
            raise Remote("no peer could give it")
        sink.write((THING + b"?")[:size])
        try:
            sink.finish()
        except Invalid as fault:
            raise Remote(fault.message) from fault


@pytest.fixture
def in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual time does not know that a thread is at work, so here none is."""

    async def run_sync(work: Callable[..., Any], *args: Any) -> Any:
        return work(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)


@pytest.fixture
def fetcher(tmp_path: Path) -> Iterator[Callable[[Network], ObjectFetcher]]:
    database = open_database(tmp_path / "odfd.sqlite")
    objects, partial = DiskObjects(tmp_path / "objects", database), tmp_path / "partial"
    partial.mkdir()
    yield lambda network: ObjectFetcher(
        objects,
        cast(Any, None),
        partial,
        cast(Any, network),
        ObjectLimits,
        UncommittedObjects(),
        StagingQuota(int, lambda _: None),
    )
    database.close()


async def took(fetching: ObjectFetcher, *names: str) -> float:
    began = trio.current_time()
    assert await fetching.linked(None, [PeerId(name) for name in names], NAME) == len(THING)
    assert fetching.objects.read(NAME) == THING
    fetching.objects.remove(NAME)
    return trio.current_time() - began


async def test_those_who_let_us_wait_delay_no_other(in_place: None, autojump_clock: Any, fetcher: Any) -> None:
    fetching = fetcher(Network())
    assert await took(fetching, "mute1", "mute2", "empty", "mute3", "wrong", "giver") <= 4 * WAIT
    fetching = fetcher(Network())
    waited = [await took(fetching, "boasts1", "giver", "boasts2", "boasts3") for _ in range(8)]
    assert sum(waited) <= 3 * HASTE + 8 * 4 * 0.02, "each is waited for once, and then comes last"


async def test_nobody_else_is_asked_while_one_gives_it(in_place: None, autojump_clock: Any, fetcher: Any) -> None:
    network = Network()
    await took(fetcher(network), *(f"giver{number}" for number in range(20)))
    assert len(network.asked) == 1


async def test_a_slow_one_is_waited_for_where_nobody_else_gives_it(
    in_place: None, autojump_clock: Any, fetcher: Any
) -> None:
    fetching = fetcher(Network())
    assert await took(fetching, "boasts", "slow", "empty") <= 2 * HASTE + PATIENCE + 10.1
    assert await took(fetching, "slow") <= HASTE + 10.1
    with pytest.raises(Remote, match=f"boasts: gave nothing of it in {PATIENCE:g} s"):
        await took(fetching, "boasts")


async def test_of_what_is_large_no_more_is_taken_falsely_than_there_is(
    in_place: None, autojump_clock: Any, fetcher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever claims more is not begun with while another says less, though it answers first."""
    lies, mutes = [f"large{number}" for number in range(5)], [f"mute{number}" for number in range(20)]
    monkeypatch.setattr(object_fetcher, "WORD", 5)
    for peers in ([*lies, "short", "wrong", "giver"], ["mute", *lies, "short", *mutes, "giver"]):
        network = Network()
        assert await took(fetcher(network), *peers) <= HASTE + 3 * WAIT
        assert network.taken == [("short", 10), ("giver", len(THING))]


async def test_a_size_for_which_there_is_no_room_ends_nothing_while_others_say_less(
    in_place: None, autojump_clock: Any, fetcher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_fetcher, "WORD", 1 << 62)
    fetching = fetcher(Network())
    fetching._limits = lambda: ObjectLimits(object_bytes=1 << 62)
    await took(fetching, "giant1", "giant2", "giver")
    with pytest.raises(Environment, match="bytes are missing"):
        await took(fetching, "giant1", "empty")


async def test_nothing_of_what_is_above_the_limit_is_taken(in_place: None, autojump_clock: Any, fetcher: Any) -> None:
    """Whether a peer offers it by its word, or a block names its size; not a byte is asked for, or reserved."""
    network = Network()
    fetching = fetcher(network)
    fetching._limits = lambda: ObjectLimits(object_bytes=len(THING))
    await took(fetching, "large1", "giver")
    assert network.taken == [("giver", len(THING))]
    fetching._limits = lambda: ObjectLimits(object_bytes=len(THING) - 1)
    with pytest.raises(Remote, match=r"giver: it has 6,000 bytes, and limits\.object-bytes allows 5,999"):
        await took(fetching, "giver")
    with pytest.raises(Refused, match="has 6,000 bytes") as refused:
        await fetching._fetch_promised(None, PeerId("giver"), NAME, len(THING), PATIENCE)
    assert (refused.value.rule, len(network.taken)) == ("object-bytes", 1)
