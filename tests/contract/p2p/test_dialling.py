"""Dialling a peer that has several addresses, and peers that a person has blocked, on real sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio
import trio.testing

from p2p.errors import BadAddress, PeerUnreachable, WrongIdentity
from p2p.host.host import PeerConnected, open_host
from p2p.host.limits import HostLimits
from p2p.ip import Ip
from p2p.machines.dial_order import HEAD_START, MAX_TRIED
from p2p.ports import PeerId
from worlds.eventually import PATIENCE, became

ANY_PORT = "/ip4/127.0.0.1/tcp/0"
ALICE, BOB, EVE = (bytes([letter]) * 32 for letter in b"abe")


@contextmanager
def silent() -> Iterator[str]:
    """A port that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"/ip4/127.0.0.1/tcp/{listener.getsockname()[1]}"


def refused() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"/ip4/127.0.0.1/tcp/{listener.getsockname()[1]}"


@pytest.mark.slow
async def test_the_address_that_answers_is_taken(mock_clock: trio.testing.MockClock) -> None:
    """Time goes on only when everybody waits for it."""
    mock_clock.autojump_threshold = 0.2
    with silent() as dead:
        async with open_host(ALICE, [ANY_PORT]) as alice, open_host(BOB) as bob:
            (good,) = alice.addresses()
            others = [f"{refused()}/p2p/{alice.peer_id}", f"{dead}/p2p/{alice.peer_id}"]
            began = trio.current_time()
            assert await bob.connect(*others, good) == alice.peer_id
            took = trio.current_time() - began
            assert took == pytest.approx(HEAD_START), "the refused one cost nothing, the silent one its head start"
            assert len(bob._connections(alice.peer_id)) == 1


@pytest.mark.parametrize("named_by_the_owner", [True, False])
async def test_all_addresses_that_the_owner_named_are_tried_and_few_that_others_did(named_by_the_owner: bool) -> None:
    def others_allow(_ip: Ip) -> bool:
        return True

    with trio.fail_after(PATIENCE):
        async with open_host(ALICE, [ANY_PORT]) as alice, open_host(BOB) as bob:
            bad = [f"{refused()}/p2p/{alice.peer_id}" for _ in range(MAX_TRIED)]
            told = [*bad, *alice.addresses()]
            if named_by_the_owner:
                assert await bob.connect(*told) == alice.peer_id
                return
            with pytest.raises(PeerUnreachable):
                await bob.connect(*told, allows=others_allow)


@pytest.mark.slow
async def test_when_none_answers_the_first_says_why(mock_clock: trio.testing.MockClock) -> None:
    mock_clock.autojump_threshold = 0.2
    with trio.fail_after(PATIENCE), silent() as dead:
        async with open_host(BOB, [], HostLimits(dial_timeout=3.0)) as bob, open_host(ALICE, [ANY_PORT]) as alice:
            async with open_host(EVE, [ANY_PORT]) as eve:
                taken = eve.addresses()[0].replace(eve.peer_id, alice.peer_id)
                with pytest.raises(WrongIdentity):
                    await bob.connect(taken, f"{dead}/p2p/{alice.peer_id}", f"{refused()}/p2p/{alice.peer_id}")
            assert not bob.peers()


async def test_addresses_of_two_peers_are_not_one() -> None:
    async with open_host(BOB) as bob, open_host(ALICE, [ANY_PORT]) as alice, open_host(EVE, [ANY_PORT]) as eve:
        with pytest.raises(BadAddress):
            await bob.connect(*alice.addresses(), *eve.addresses())


@pytest.mark.slow
async def test_who_is_blocked_neither_comes_in_nor_is_dialled() -> None:
    with trio.fail_after(PATIENCE):
        async with open_host(ALICE, [ANY_PORT]) as alice, open_host(EVE, [ANY_PORT]) as eve, open_host(BOB) as bob:
            alice.block([eve.peer_id])
            with pytest.raises(PeerUnreachable, match="blocked"):
                await alice.connect(eve.addresses()[0])
            try:
                await eve.connect(alice.addresses()[0])
            except PeerUnreachable:
                pass
            else:
                while eve.peers():
                    await eve.notices.receive()
            assert not alice.peers()
            assert await bob.connect(alice.addresses()[0]) == alice.peer_id
            alice.block([])
            assert await eve.connect(alice.addresses()[0]) == alice.peer_id
            await became(lambda: eve.peer_id in alice.peers())


async def test_what_is_announced_is_what_is_told() -> None:
    async with open_host(ALICE, [ANY_PORT], announce=["/dns4/node.example/tcp/4150"]) as alice:
        assert alice.addresses() == [f"/dns4/node.example/tcp/4150/p2p/{alice.peer_id}"]
        assert alice.listening()[0].startswith("/ip4/127.0.0.1/tcp/")


@pytest.fixture
def ip6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")


@pytest.mark.usefixtures("ip6")
async def test_a_peer_with_both_families_is_dialled_over_ipv6() -> None:
    """At one port, which both families listen on; the addresses are told with those of IPv4 first."""
    with trio.fail_after(PATIENCE):
        async with open_host(ALICE, [ANY_PORT]) as alice, open_host(BOB) as bob:
            (ip4,) = alice.addresses()
            port = ip4.split("/")[4]
            await alice.listen(f"/ip6/::1/tcp/{port}")
            assert set(alice.listening()) == {f"/ip4/127.0.0.1/tcp/{port}", f"/ip6/::1/tcp/{port}"}
            assert await bob.connect(*sorted(alice.addresses())) == alice.peer_id
            while not alice.peers():
                await alice.notices.receive()
            assert (bob.remote_of(alice.peer_id), alice.remote_of(bob.peer_id)) == ("::1", "::1")
            assert bob.peers()[alice.peer_id].startswith("/ip6/::1/")


@pytest.mark.usefixtures("ip6")
async def test_one_port_is_listened_on_by_both_families() -> None:
    """The addresses that a node listens on where nobody said otherwise, and of IPv4 none looks like one of IPv6."""
    with trio.fail_after(PATIENCE):
        async with open_host(ALICE, ["/ip6/::/tcp/0"]) as alice, open_host(BOB) as bob:
            port = alice.listening()[0].split("/")[4]
            await alice.listen(f"/ip4/0.0.0.0/tcp/{port}")
            await bob.connect(f"/ip4/127.0.0.1/tcp/{port}/p2p/{alice.peer_id}")
            while not alice.peers():
                await alice.notices.receive()
            assert alice.remote_of(bob.peer_id) == "127.0.0.1"


@pytest.mark.slow
@pytest.mark.usefixtures("ip6")
async def test_where_ipv6_is_silent_the_other_wins_after_a_head_start(mock_clock: trio.testing.MockClock) -> None:
    """The attempt over IPv6 is then closed: whoever listens there reads its end."""
    mock_clock.autojump_threshold = 0.2
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        dead = f"/ip6/::1/tcp/{listener.getsockname()[1]}"
        async with open_host(ALICE, [ANY_PORT]) as alice, open_host(BOB) as bob:
            (good,) = alice.addresses()
            began = trio.current_time()
            await bob.connect(good, f"{dead}/p2p/{alice.peer_id}")
            assert trio.current_time() - began == pytest.approx(HEAD_START)
            assert bob.remote_of(alice.peer_id) == "127.0.0.1"
            loser, _ = listener.accept()
            with loser:
                loser.settimeout(PATIENCE)
                while loser.recv(4096):  # what it said before; then its end
                    pass
            assert len(bob._connections(alice.peer_id)) == 1


async def test_a_hole_punch_does_not_end_the_connection_that_it_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full machine, the parts of a host hear of a connection when the punch has seen it and ends its dials."""
    seen = trio.Event()
    with trio.fail_after(PATIENCE):
        async with open_host(ALICE, [ANY_PORT]) as alice, open_host(BOB, [ANY_PORT]) as bob:
            is_direct, connected = alice.direct.is_direct, alice._notices.connected

            def looked(peer: PeerId) -> bool:
                if found := is_direct(peer):
                    seen.set()
                return found

            async def heard(network: object, conn: object) -> None:
                await seen.wait()
                await trio.lowlevel.checkpoint()  # here a dial that was ended would end
                await connected(network, conn)

            monkeypatch.setattr(alice.direct, "is_direct", looked)
            monkeypatch.setattr(alice._notices, "connected", heard)
            assert await alice.direct.punch(bob.direct.listening(), bob.peer_id, PATIENCE, as_client=True)
            assert isinstance(await alice.notices.receive(), PeerConnected)
            assert await alice.ping(bob.peer_id) >= 0
