"""The check of the network says what is so, and what to do about it."""

from __future__ import annotations

from odfd.services.network.netcheck import probes
from p2p.driver.net_facts import DialBackResult, NetFacts, dialable
from p2p.machines.reachability import Reached

HERE = "/ip4/20.1.0.1/tcp/4150"
PEER = "12D3KooWM57jXdhtZT4ZEcdNbTo5JiKUxMZHg143ugaEYH8CNUMh"
PUBLIC = NetFacts(
    listening=("/ip4/0.0.0.0/tcp/4150", "/ip6/::/tcp/4150"), interfaces=("20.1.0.1", "2a00::1"), seen=(HERE,),
    reached=(DialBackResult(HERE, Reached.YES, 2, 0),), mapped=(HERE, HERE), peers=3,
)  # fmt: skip


def results(facts: NetFacts) -> dict[str, tuple[str, str, str]]:
    return {each.name: (each.result, each.message, each.hint) for each in probes(facts)}


def test_nothing_is_to_do_where_all_works() -> None:
    assert {result for result, _, _ in results(PUBLIC).values()} == {"ok"}
    assert results(PUBLIC)["relays"][1] == "none named, none needed"


def test_a_node_behind_a_nat_is_told_what_to_do() -> None:
    facts = NetFacts(
        listening=("/ip4/0.0.0.0/tcp/4150",), interfaces=("192.168.1.2",), seen=("/ip4/20.1.0.1/tcp/4150",),
        reached=(DialBackResult(HERE, Reached.NO, 0, 2),), mapped=("/ip4/20.1.0.1/tcp/1", "/ip4/20.1.0.1/tcp/2"),
        clock_behind=700.0,
    )  # fmt: skip
    found = results(facts)
    assert "behind a NAT" in found["observed"][1]
    for name in ("dial-back", "relays"):
        assert found[name][0] == "warning"
        assert "p2p.relays" in found[name][2]
    assert "symmetric" in found["mapping"][1]
    assert "700 s behind" in found["clock"][1]
    assert all(hint for result, _, hint in found.values() if result == "warning")


def test_what_is_not_known_is_said_to_be_so() -> None:
    found = results(NetFacts())
    assert [name for name, (result, _, _) in found.items() if result == "warning"] == [
        "listening", "observed", "dial-back", "mapping", "relays",
    ]  # fmt: skip
    half = NetFacts(reached=(DialBackResult(HERE, Reached.UNKNOWN, 1, 0),), relays_named=2)
    assert "two that agree" in results(half)["dial-back"][1]
    assert "rule relay-refused" in results(half)["relays"][2]
    assert results(NetFacts(interfaces=("2a00::1",), listening=(HERE,)))["ipv6"][0] == "warning"


def test_it_says_whether_ipv6_works() -> None:
    there = "/ip6/2a00::1/tcp/4150"

    def said(*results: Reached, by_ip6: int = 0, **facts: tuple[str, ...]) -> tuple[str, str]:
        reached = tuple(DialBackResult(there, each, 2, 2) for each in results)
        told = {"listening": PUBLIC.listening, "interfaces": PUBLIC.interfaces, **facts}
        found = probes(NetFacts(**told, reached=reached, by_ip6=by_ip6))  # type: ignore[arg-type]
        return next((each.result, each.message) for each in found if each.name == "ipv6")

    assert said(interfaces=("20.1.0.1", "fe80::1", "fd00::1"))[1].startswith("does not work: this machine has no IPv6")
    alone = "no peer is connected over it"
    assert said(listening=(HERE,)) == ("warning", f"does not work inwards: 2a00::1 is not listened on; {alone}")
    assert said(Reached.YES, by_ip6=2) == ("ok", "works: others reach this node at 2a00::1; 2 peers connected over it")
    unreached = "does not work inwards: nobody reaches 2a00::1; 1 peer connected over it"
    assert said(Reached.NO, by_ip6=1) == ("warning", unreached)
    assert said(Reached.UNKNOWN, by_ip6=1)[1].startswith("works outwards: 1 peer")
    assert said(Reached.UNKNOWN)[1].startswith("not known: 2a00::1 is listened on")


def test_a_nat_of_ipv4_is_seen_beside_an_address_of_ipv6() -> None:
    seen = ("/ip4/20.1.0.1/tcp/4150", "/ip6/2a00::1/tcp/4150")
    assert "behind a NAT" in results(NetFacts(seen=seen, interfaces=("192.168.1.2", "2a00::1")))["observed"][1]
    assert "an address of this machine" in results(NetFacts(seen=seen, interfaces=("20.1.0.1",)))["observed"][1]
    assert "an address of this machine" in results(NetFacts(seen=seen[1:], interfaces=("2a00::1",)))["observed"][1]


def test_only_places_of_the_internet_are_probed_one_of_each_host() -> None:
    others = ("/ip4/20.1.0.1/tcp/9", "/ip4/10.0.0.1/tcp/4150", "/ip6/2a00::1/tcp/1")
    told = [f"{HERE}/p2p/{PEER}", *(f"{each}/p2p/{PEER}" for each in others), HERE]
    assert [str(each) for each in dialable(told)] == [f"{HERE}/p2p/{PEER}"]
