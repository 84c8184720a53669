"""What is known of peers, and a directory of them that is bounded and fair."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable
from random import Random

import pytest
import trio
import trio.testing
from hypothesis import example, given
from hypothesis import strategies as st
from multiaddr import Multiaddr

from chain.backoff import Backoff
from chain.errors import Invalid
from p2p.address import by_peer, network_of, parse_address, prefix_of
from p2p.budget.buckets import MAX_KEYS, Budget, Rate
from p2p.dial import first_of, resolve
from p2p.errors import BadAddress, PeerFault, StreamBroken, TooManyStreams, TooSlow
from p2p.ip import anywhere, is_global, parse_ip, stands_for, within
from p2p.peers import directory as directory_module
from p2p.peers.book import BAD_BYTES, HALF_LIFE, MAX_ADDRESSES, MAX_PEERS, SHUT_OUT, PeerBook, Score
from p2p.peers.directory import MAX_TAGS_KEPT, AddressFilter, Directory, lots
from p2p.ports import Judgement, PeerId
from p2p.web.folder_url import place_of
from p2p.wire import presence as wire
from p2p.wire.limits import MAX_TAGS
from p2p.wire.presence import PeersAsk, Presence
from worlds.watchdog import held

# Scores fade, budgets refill, waits grow, the book is bounded and survives in its snapshot.

ANNA = PeerId("anna")


def test_a_penalty_fades_by_half() -> None:
    score = Score().lower(BAD_BYTES, 100.0)
    assert score.as_of(100.0 + HALF_LIFE).value == pytest.approx(-BAD_BYTES / 2)


def test_shut_out_at_the_threshold_and_let_in_later() -> None:
    score = Score()
    for _ in range(10):
        assert not score.shut_out
        score = score.lower(-SHUT_OUT / 10, 0.0)
    assert score.shut_out
    assert score.as_of(HALF_LIFE * 0.9).shut_out
    assert not score.as_of(HALF_LIFE * 1.1).shut_out


@given(st.floats(allow_nan=False), st.floats(0, 1e9))
def test_prop_no_weight_is_a_reward_or_for_ever(weight: float, now: float) -> None:
    score = Score().lower(weight, now)
    assert 10 * SHUT_OUT <= score.value <= 0
    assert not score.as_of(now + 6 * HALF_LIFE).shut_out


@given(st.integers(1, 10_000), st.integers())
def test_prop_waits_stay_within_bounds(failures: int, seed: int) -> None:
    backoff = Backoff(first=1.0, most=300.0)
    whole = min(300.0, 2.0 ** min(failures - 1, 16))
    assert backoff.whole(failures) == whole
    assert 0.5 * whole <= backoff.wait(failures, Random(seed)) <= whole


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0.1, 20)), max_size=60))
def test_prop_a_budget_is_never_overdrawn(spending: list[tuple[float, float]]) -> None:
    budget: Budget[str] = Budget(Rate(per_second=2.0, burst=10.0))
    now = spent = 0.0
    for wait, amount in spending:
        now += wait
        spent += amount if budget.spend("k", now, amount) else 0.0
        assert spent <= 10.0 + 2.0 * now + 1e-6


@given(
    st.lists(st.tuples(st.floats(0, 3), st.floats(0, 1)), max_size=200),
    st.floats(0.9, 1.1),
)
def test_prop_who_keeps_to_a_rate_is_never_over_it(asking: list[tuple[float, float]], clock: float) -> None:
    """Whatever the line does to what was asked in time, and however the clocks run."""
    rate = Rate(per_second=2.0, burst=20.0)
    ours: Budget[str] = Budget(rate.within_limit())
    theirs: Budget[str] = Budget(rate)
    now, arrivals = 0.0, []
    for pause, delay in asking:
        now += pause
        now += ours.reserve("k", now, 60.0) or 0.0
        arrivals.append((now + delay) * clock)
    assert all(theirs.spend("k", arrival) for arrival in sorted(arrivals))


def test_who_gives_up_waiting_owes_no_more_than_its_patience() -> None:
    budget: Budget[str] = Budget(Rate(per_second=2.0, burst=1.0))
    waits = [budget.reserve("k", 0.0, 1.0) for _ in range(100)]
    assert waits == [0.0, 0.5, 1.0, *[None] * 97]
    assert budget.reserve("k", 1.5, 0.0) == 0.0


def test_a_budget_forgets_the_longest_silent() -> None:
    budget: Budget[int] = Budget(Rate(per_second=0.0, burst=1.0))
    assert budget.spend(0, 0.0)
    assert not budget.spend(0, 0.0)
    for key in range(1, MAX_KEYS + 1):
        budget.spend(key, 0.0)
    assert budget.spend(0, 0.0)


def test_the_book_keeps_the_newest_addresses() -> None:
    book = PeerBook(Random(1))
    for number in range(20):
        book.learn(ANNA, [f"/a/{number}", "x" * 300])
    assert book.get(ANNA).addresses == tuple(f"/a/{number}" for number in range(19, 19 - MAX_ADDRESSES, -1))


def test_the_book_is_bounded_and_keeps_who_matters() -> None:
    book = PeerBook(Random(1))
    book.note_connected(PeerId("connected"), 0)
    book.learn(PeerId("boot"), ["/a"], bootstrap=True)
    book.penalise(PeerId("bad"), 50.0, 0.0)
    for number in range(MAX_PEERS + 10):
        book.learn(PeerId(f"p{number}"), ["/a"])
    assert len(book) == MAX_PEERS
    assert book.connected_peers() == ["connected"]
    assert book.get(PeerId("bad")).score.value == -50
    assert book.get(PeerId("boot")).bootstrap


def test_dialling_waits_and_starts_anew_when_connected() -> None:
    book = PeerBook(Random(1))
    book.learn(ANNA, ["/a"], bootstrap=True)
    assert book.get(ANNA).dial_after <= 0
    waits = [book.dial_failed(ANNA, 0.0) for _ in range(5)]
    assert waits[4] > waits[0]
    assert (book.get(ANNA).dial_after, book.get(ANNA).failures) == (waits[4], 5)
    book.note_connected(ANNA, 5)
    book.note_disconnected(ANNA, 6)
    assert book.get(ANNA).failures == 0
    assert book.get(ANNA).dial_after <= 6


def test_a_snapshot_keeps_what_outlives_the_process() -> None:
    book = PeerBook(Random(1))
    book.note_connected(ANNA, 77)
    book.learn(ANNA, ["/a"])
    book.penalise(PeerId("bad"), 500.0, 1000.0)
    book.note_connected(PeerId("nobody in particular"), 5)
    again = PeerBook(Random(2))
    again.restore(book.snapshot(1000.0), 3.0)
    assert len(again) == 2
    assert (again.get(ANNA).addresses, again.get(ANNA).last_seen, again.get(ANNA).connected) == (("/a",), 77, False)
    assert again.is_shut_out(PeerId("bad"), 3.0)


@pytest.mark.parametrize("snapshot", [b"", b"{}", b'[{"peer":3}]', b"\xff", b"[" * 100_000])
def test_a_snapshot_that_is_none(snapshot: bytes) -> None:
    book = PeerBook(Random(1))
    with pytest.raises(Invalid, match="peer book"):
        book.restore(snapshot, 0.0)
    assert len(book) == 0


# Where others may lead a node, by what its owner named.

HERE = ["/ip4/127.0.0.1/tcp/4150"]
LAN = ["/ip4/192.168.1.5/tcp/4150"]
PEER = "/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"


def told(reach: AddressFilter, ours: list[str], *texts: str) -> list[str]:
    allows = reach.allows(ours)
    return [text for text in texts if allows(parse_ip(text))]


ALL = ("127.0.0.1", "::1", "192.168.1.1", "8.8.8.8")


@pytest.mark.parametrize(
    "inside, bootstrap, ours, allowed",
    [
        (None, [], HERE, ["127.0.0.1", "::1", "8.8.8.8"]),
        (None, ["/ip4/127.0.0.1/tcp/1" + PEER], HERE, ["127.0.0.1", "::1", "8.8.8.8"]),
        (None, ["/dns4/localhost/tcp/1" + PEER], [], ["127.0.0.1", "::1", "8.8.8.8"]),
        (None, ["/ip4/203.0.113.7/tcp/1" + PEER], HERE, ["8.8.8.8"]),
        (None, ["/dns4/node.example/tcp/1" + PEER], HERE, ["8.8.8.8"]),
        (None, [], LAN, ["8.8.8.8"]),
        (None, ["/ip4/127.0.0.1/tcp/1" + PEER], LAN, ["8.8.8.8"]),
        (("192.168.1.0/24",), [], LAN, ["192.168.1.1", "8.8.8.8"]),
        (("192.168.1.0/24",), [], HERE, ["192.168.1.1", "8.8.8.8"]),
        ((), [], HERE, ["8.8.8.8"]),
    ],
)
def test_others_lead_where_the_owner_says(
    inside: tuple[str, ...] | None, bootstrap: list[str], ours: list[str], allowed: list[str]
) -> None:
    assert told(AddressFilter(inside, bootstrap), ours, *ALL) == allowed


def test_a_peer_elsewhere_that_is_named_later_ends_what_was_allowed() -> None:
    reach = AddressFilter(None, [])
    assert told(reach, HERE, *ALL) == ["127.0.0.1", "::1", "8.8.8.8"]
    reach.name("/ip4/127.0.0.1/tcp/9" + PEER)
    assert told(reach, HERE, "127.0.0.1")
    reach.name("/ip4/8.8.4.4/tcp/9" + PEER)
    assert told(reach, HERE, *ALL) == ["8.8.8.8"]


def test_a_peer_is_dialled_again_where_it_was_met_and_nowhere_else() -> None:
    """Attack T-REACH-01: a name that resolves elsewhere after the first contact.

    Defence: for names from others, the address of the first connection is kept.
    """
    allows = AddressFilter(None, []).again(["/ip4/192.168.1.7/tcp/1", "/dns4/nas.example/tcp/1", "/memory/x"], LAN)
    assert allows(parse_ip("192.168.1.7"))
    assert not allows(parse_ip("192.168.1.8"))
    assert not allows(parse_ip("127.0.0.1"))


# Addresses, and what dialling them comes to.


# Addresses of peers, grouped by whom they lead to.

ALICE = "12D3KooWM57jXdhtZT4ZEcdNbTo5JiKUxMZHg143ugaEYH8CNUMh"
RELAY = "12D3KooWMbbPVGsZYh3ChQjue712NHHGNybRRXwnuSpezYjGbCDS"


def test_addresses_are_grouped_by_the_peer_that_they_lead_to() -> None:
    ip4, ip6 = f"/ip4/192.0.2.1/tcp/1/p2p/{ALICE}", f"/ip6/2001:db8::1/tcp/1/p2p/{ALICE}"
    relay, circuit = f"/ip4/192.0.2.2/tcp/1/p2p/{RELAY}", f"/ip4/192.0.2.2/tcp/1/p2p/{RELAY}/p2p-circuit/p2p/{ALICE}"
    nobody, elsewhere = "/ip4/192.0.2.1/tcp/1", "/ip4/192.0.2.1/tcp/2"
    told = [ip4, relay, nobody, ip6, ip4, circuit, elsewhere]
    assert by_peer(told) == [(ip4, ip6, circuit), (relay,), (nobody,), (elsewhere,)]
    assert by_peer([]) == []


# Which addresses are of the Internet, whatever they are written as.

INSIDE = (
    "127.0.0.1",
    "10.1.2.3",
    "169.254.169.254",
    "172.16.0.1",
    "192.168.0.1",
    "100.64.0.1",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "239.1.1.1",
    "240.0.0.1",
    "255.255.255.255",
)
OUTSIDE = ("93.184.216.34", "1.1.1.1", "8.8.8.8", "192.0.0.9")


def wrapped(text: str) -> dict[str, str]:
    """An address of IPv4, in all that IPv6 carries it in."""
    number = int(ipaddress.IPv4Address(text))
    high, low = number >> 16, number & 0xFFFF
    return {
        "mapped": f"::ffff:{text}",
        "6to4": f"2002:{high:x}:{low:x}::1",
        "nat64": f"64:ff9b::{high:x}:{low:x}",
        "compatible": f"::{high:x}:{low:x}",
        "teredo": f"2001:0:{high:x}:{low:x}::1",
    }


@pytest.mark.parametrize("text", [*INSIDE, "::", "::1", "fe80::1%eth0", "fd00::1", "fec0::1", "ff02::1", "2001:db8::1",
                                  "3fff::1", "5f00::1", "4000::1", "100::1", "64:ff9b:1::a00:1"])  # fmt: skip
def test_what_is_not_of_the_internet(text: str) -> None:
    assert not is_global(parse_ip(text))


@pytest.mark.parametrize("text", [*OUTSIDE[:3], "2606:2800:220:1::1", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_what_is_of_the_internet(text: str) -> None:
    assert is_global(parse_ip(text))


@pytest.mark.parametrize("text", INSIDE)
@pytest.mark.parametrize("way", wrapped("0.0.0.1"))
def test_no_wrapping_makes_an_address_one_of_the_internet(text: str, way: str) -> None:
    ip = parse_ip(wrapped(text)[way])
    assert not is_global(ip)
    assert way == "compatible" or ipaddress.ip_address(text) in stands_for(ip)


ODD = st.text(alphabet="0123456789abcdefx:.%/[]- \x00\x1bé٣", max_size=12)
WORDS = st.sampled_from(
    [
        "fe80::1",
        "::ffff:10.0.0.1",
        "2001:db8::1",
        "10.0.0.1",
        "::",
        "%eth0",
        "%25eth0",
        "%",
        "%1",
        "0x7f.1",
        "a.example",
    ]
)
HOSTS = st.lists(WORDS | ODD, min_size=1, max_size=3).map("".join) | st.ip_addresses().map(str)


@pytest.mark.slow
@given(HOSTS)
def test_any_text_is_an_address_in_a_block_or_none(text: str) -> None:
    try:
        ip = parse_ip(text)
    except ValueError:
        assert (prefix_of(text), network_of(text)) == ("", "")
        return
    assert "%" not in str(ip)
    assert parse_ip(str(ip)) == ip
    for length, block in (
        (24 if ip.version == 4 else 48, prefix_of(text)),
        (16 if ip.version == 4 else 32, network_of(text)),
    ):
        network = ipaddress.ip_network(block)
        assert (network.prefixlen, ip in network) == (length, True)


def test_a_zone_makes_no_other_address() -> None:
    """Attack T-REACH-01: one address in many forms, such as `fe80::1%a`, `fe80::1%b`, or one that no socket accepts.

    Defence: an address with a zone is refused for nodes, peers and hosts; budgets use the address alone.

    One link has many names of zones: no budget is escaped by another.
    """
    assert (
        {prefix_of(f"fe80::1%{zone}") for zone in ("eth0", "1", "x" * 300)} == {prefix_of("fe80::1")} == {"fe80::/48"}
    )
    assert parse_ip("fe80::1%eth0") == parse_ip("fe80::1")
    for text in ("10.0.0.1%eth0", "fe80::1%", "%eth0"):
        with pytest.raises(ValueError, match="does not appear"):
            parse_ip(text)


@pytest.mark.slow
@example("ip6", "fe80::1%eth0")
@given(st.sampled_from(["ip4", "ip6", "dns", "dns4", "dns6"]), HOSTS)
def test_any_text_is_a_place_that_can_be_dialled_or_is_explained(network: str, host: str) -> None:
    try:
        address = parse_address(f"/{network}/{host}/tcp/4001")
    except BadAddress as error:
        assert error.hint  # noqa: PT017 - a refusal is one of two right answers
        return
    assert "%" not in address.host
    assert str(Multiaddr(address.transport)).startswith(f"/{network}/")
    assert parse_address(str(address)) == address
    assert (address.ip is None) == network.startswith("dns")


@pytest.mark.parametrize("host", ["fe80::1%eth0", "::1%1", "2001:db8::1%"])
def test_an_address_with_a_zone_is_no_address_of_a_node(host: str) -> None:
    with pytest.raises(BadAddress, match="zone"):
        parse_address(f"/ip6/{host}/tcp/4001")
    with pytest.raises(Invalid, match="zone"):
        place_of(f"http://[{host.replace('%', '%25')}]/folder")


@pytest.mark.parametrize("host", ["fe80::1%lo", "::1%lo", "a\x00b", "é" * 70, "a..b"])
async def test_what_is_no_host_is_told_as_one_that_is_not_there(host: str) -> None:
    with pytest.raises(OSError, match=r"zone|null|label|IDN|codec|not known"):
        await resolve(host, 80, anywhere)


@given(st.ip_addresses())
def test_what_is_of_the_internet_is_so_by_all_that_it_stands_for(ip: ipaddress.IPv4Address) -> None:
    if is_global(parse_ip(str(ip))):
        for each in stands_for(ip):
            assert not any((each.is_loopback, each.is_link_local, each.is_multicast, each.is_unspecified))
            assert each.version == 6 or not each.is_private


def test_a_network_that_is_named_is_allowed_and_no_other() -> None:
    allows = within((ipaddress.ip_network("192.168.1.0/24"), ipaddress.ip_network("fd00::/64")))
    assert [text for text in ("192.168.1.7", "192.168.2.7", "fd00::1", "fd01::1", "127.0.0.1", "8.8.8.8")
            if allows(parse_ip(text))] == ["192.168.1.7", "fd00::1", "8.8.8.8"]  # fmt: skip


# Attempts that run side by side: one result is kept, every other is discarded.


class Door:
    """Something that must be closed unless somebody has it."""

    def __init__(self) -> None:
        self.open = True

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
        self.open = False


def opening(door: Door, meanwhile: Callable[[], object] = lambda: None) -> Callable[[], Awaitable[Door]]:
    async def attempt() -> Door:
        meanwhile()
        return door

    return attempt


async def test_who_is_cancelled_while_an_attempt_succeeds_leaves_nothing_open() -> None:
    door = Door()
    with trio.CancelScope() as leaving:
        await first_of([opening(door, leaving.cancel)], OSError, Door.aclose)
    assert (leaving.cancelled_caught, door.open) == (True, False)


async def test_what_another_attempt_opened_is_closed_when_one_breaks(autojump_clock: object) -> None:
    door = Door()

    async def breaks() -> Door:
        try:
            await trio.sleep_forever()
        finally:
            raise ZeroDivisionError

    with pytest.raises(ExceptionGroup):
        await first_of([breaks, opening(door)], OSError, Door.aclose)
    assert not door.open


async def test_a_late_result_is_discarded_and_the_first_is_kept(autojump_clock: object) -> None:
    late, first = Door(), Door()

    async def comes_late() -> Door:
        with trio.CancelScope(shield=True):
            await trio.sleep(10)
        return late

    assert await first_of([comes_late, opening(first)], OSError, Door.aclose) is first
    assert (first.open, late.open) == (True, False)


# Faults of peers say what to do next, their own hint or that of their kind.


@pytest.mark.parametrize("kind", [TooSlow, StreamBroken, TooManyStreams])
def test_a_fault_without_a_hint_has_that_of_its_kind(kind: type[PeerFault]) -> None:
    assert "try again" in kind("12D3", "said nothing").hint
    assert kind("12D3", "said nothing", hint="wait a minute").hint == "wait a minute"


# The directory is bounded in presences and tags, fair to those who bring them, and never walks through all.

ME = PeerId("me")
NOW = 1_700_000_000_000


@pytest.fixture(autouse=True)
def unsigned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signatures are verified elsewhere."""
    monkeypatch.setattr(directory_module.wire, "is_signed", lambda *_: True)


def said(seed: int, tags: tuple[int, ...] = (), issued: int = NOW, lifetime: int = 3600) -> bytes:
    key = seed.to_bytes(32, "big")
    address = ("/ip4/10.0.0.1/tcp/1",)
    return wire.encode(Presence(key=key, issued=issued, lifetime=lifetime, tags=tags, addresses=address)) + bytes(64)


@pytest.mark.slow
def test_a_full_directory_answers_and_admits_without_holding_the_loop() -> None:
    """Attack T-PEER-04: questions about a full directory of presences with the maximum of tags.

    Defence: presences are found by an index of tags; 131,072 tags in all.

    87 ms for a question and 2 ms for each admission; and 150 MiB of tags, which nothing bounded.
    """
    directory, rng = Directory("test", ME), Random(1)
    for seed in range(1, 5000):
        tags = sorted(rng.sample(range(1 << 20), MAX_TAGS if seed % 20 == 0 else 16))
        directory.admit(said(seed, tuple(tags)), f"net{seed % 300}", NOW)
    assert directory._tags <= MAX_TAGS_KEPT
    ask = PeersAsk(wanted=64, tags=tuple(range(0, 160, 10)))
    more = [said(seed, tuple(range(seed, seed + 32))) for seed in range(9000, 9400)]
    with held(0.020) as spent:
        directory.tell(ask, ANNA, NOW, rng)
        spent.turn()
        directory.tell(PeersAsk(wanted=64), ANNA, NOW, rng)
        spent.turn()
        directory.holders(7, NOW)
    with held(0.2):
        for raw in more:
            directory.admit(raw, "net1", NOW)


def test_strangers_can_be_dialled_and_were_not_met() -> None:
    directory = Directory("test", ME)
    for seed, lifetime in ((1, 3600), (2, 60), (3, 3600)):
        directory.admit(said(seed, lifetime=lifetime), "net", NOW)
    nowhere = Presence(key=(4).to_bytes(32, "big"), issued=NOW, lifetime=3600)
    directory.admit(wire.encode(nowhere) + bytes(64), "net", NOW)
    keys = [int.from_bytes(one.key, "big") for one in directory.strangers(set(), NOW)]
    assert keys == [1, 2, 3]
    met = Presence(key=(3).to_bytes(32, "big"), issued=0, lifetime=1).peer
    assert [int.from_bytes(one.key, "big") for one in directory.strangers({met}, NOW + 120_000)] == [1]


@pytest.mark.slow
def test_many_keys_of_one_network_push_out_nobody_elses() -> None:
    directory = Directory("test", ME, capacity=100)
    for seed in range(1, 21):
        directory.admit(said(seed), "honest", NOW)
    for seed in range(1000, 4000):
        directory.admit(said(seed), "evil", NOW)
    known = [
        directory.of(Presence(key=seed.to_bytes(32, "big"), issued=0, lifetime=1).peer, NOW) for seed in range(1, 21)
    ]
    assert all(known)
    assert len(directory) == 100


def test_large_presences_push_out_those_of_their_own_source() -> None:
    directory = Directory("test", ME, most_tags=3000)
    for seed in range(1, 51):
        directory.admit(said(seed, (seed,)), "honest", NOW)
    for seed in range(1000, 1100):
        directory.admit(said(seed, tuple(range(MAX_TAGS))), "evil", NOW)
    assert directory._tags <= 3000
    assert all(directory.holders(tag, NOW) for tag in range(1, 51))


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 3), st.integers(0, 5), st.integers(1, 100))))
def test_prop_what_is_found_by_tag_is_what_is_known(steps: list[tuple[int, ...]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(directory_module.wire, "is_signed", lambda *_: True)
        directory, now = Directory("test", ME, capacity=6, most_tags=12), NOW
        for seed, source, tag, pause in steps:
            now += pause * 1000
            raw = said(seed, (tag, tag + 10), issued=now, lifetime=60)
            assert directory.admit(raw, f"net{source}", now) is Judgement.ACCEPT
            assert len(directory) <= 6
            assert directory._tags <= 12
            for wanted in range(16):
                living = [each.presence for each in directory._known.values() if each.presence.expires > now]
                assert set(directory.holders(wanted, now)) == {one for one in living if wanted in one.tags}
            weights = {source: 32 * len(brought) + 2 * len(brought) for source, brought in directory._brought.items()}
            assert directory._weights == weights


@given(st.integers(0, 50), st.integers())
def test_prop_lots_are_all_of_the_pool(size: int, seed: int) -> None:
    pool = [PeerId(str(number)) for number in range(size)]
    assert sorted(lots(list(pool), Random(seed))) == sorted(pool)
