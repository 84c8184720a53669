"""Describes how others reach this node, what does not work, and what to do next. Pure: turns facts into probes."""

from __future__ import annotations

from collections.abc import Iterator

from chain.wording import plural
from odfd.control import wire
from p2p.address import parse_address
from p2p.driver.net_facts import NetFacts
from p2p.ip import is_global, parse_ip
from p2p.machines.reachability import Reached

CLOCK_SLACK = 60.0
"""Seconds that a clock may be behind without a warning; a clock ten minutes behind shuts a node out."""
_FORWARD = (
    "forward the port in the router and name it in p2p.announce, or name a relay in p2p.relays (odfctl docs reach)"
)


def probes(facts: NetFacts) -> list[wire.Probe]:
    """Returns one probe for each question, in the order in which they build on each other."""
    return [
        _listening(facts),
        _ipv6(facts),
        _probe_seen(facts),
        *_dial_backs(facts),
        _mapping(facts),
        _forwarding(),
        _relays(facts),
        _direct(facts),
        _clock(facts),
    ]


def _listening(facts: NetFacts) -> wire.Probe:
    if not facts.listening:
        return _warning("listening", "nowhere: no node dials this one", "set p2p.listen")
    return _ok("listening", ", ".join(facts.listening))


def _ipv6(facts: NetFacts) -> wire.Probe:
    ours = [interface for interface in facts.interfaces if ":" in interface and is_global(parse_ip(interface))]
    connected = f"{plural(facts.by_ip6, 'peer')} connected over it" if facts.by_ip6 else "no peer is connected over it"
    if not ours:
        return _ok("ipv6", "does not work: this machine has no IPv6 address of the Internet; IPv4 is used")
    if not any(each.startswith("/ip6/") for each in facts.listening):
        said = f"does not work inwards: {ours[0]} is not listened on; {connected}"
        return _warning("ipv6", said, 'add "/ip6/::/tcp/4150" to p2p.listen')
    results = [each for each in facts.reached if each.address.startswith("/ip6/")]
    if any(result.reached is Reached.YES for result in results):
        return _ok("ipv6", f"works: others reach this node at {', '.join(ours)}; {connected}")
    if results and all(result.reached is Reached.NO for result in results):
        said = f"does not work inwards: no node reaches {', '.join(ours)}; {connected}"
        return _warning("ipv6", said, "open the port in the firewalls of the router and of this machine")
    if facts.by_ip6:
        return _ok("ipv6", f"works outwards: {connected}; it is not known whether others reach {', '.join(ours)}")
    return _ok("ipv6", f"not known: {', '.join(ours)} is listened on, but {connected}")


def _probe_seen(facts: NetFacts) -> wire.Probe:
    if not facts.seen:
        return _warning(
            "observed", "no peer has said where it sees this node", "check that a peer is connected: odfctl peer list"
        )
    hosts = {parse_address(each).host for each in facts.seen}
    behind = not ({host for host in hosts if ":" not in host} or hosts) & set(facts.interfaces)
    where = "behind a NAT: no interface has this address" if behind else "an address of this machine"
    return _ok("observed", f"{', '.join(sorted(facts.seen))} ({where})")


def _dial_backs(facts: NetFacts) -> Iterator[wire.Probe]:
    if not facts.reached:
        hint = "two peers in different networks must be connected that are not relays of this node"
        yield _warning("dial-back", "no address of the Internet to be tried", hint)
    for each in facts.reached:
        tried = [f"reached from {plural(each.yes, 'subnet')}"] * bool(each.yes or not each.no)
        tried += [f"not reached from {plural(each.no, 'subnet')}"] * bool(each.no)
        said = f"{each.address}: {', '.join(tried)}"
        if each.reached is Reached.YES:
            yield _ok("dial-back", said)
        elif each.reached is Reached.NO:
            yield _warning("dial-back", said, "" if facts.relays_used else _FORWARD)
        else:
            yield _warning("dial-back", f"{said}; two that agree decide", "wait a minute, or connect to more peers")


def _mapping(facts: NetFacts) -> wire.Probe:
    if len(facts.mapped) < 2:
        hint = "two peers at addresses of the Internet are needed; try again when more are connected"
        return _warning("mapping", f"not known: {plural(len(facts.mapped), 'peer')} answered", hint)
    if len(set(facts.mapped)) == 1:
        return _ok("mapping", f"the same for two peers ({facts.mapped[0]}): holes can be punched")
    hint = "direct connections succeed only with peers whose router lets any port of this address in; keep a relay"
    return _warning("mapping", f"another port for each peer ({', '.join(facts.mapped)}): a symmetric NAT", hint)


def _forwarding() -> wire.Probe:
    return _ok("upnp, nat-pmp, pcp", "not used: a port is forwarded by hand")


def _relays(facts: NetFacts) -> wire.Probe:
    is_reached = any(each.reached is Reached.YES for each in facts.reached)
    used = f"{plural(facts.relays_used, 'reservation')} at {plural(facts.relays_named, 'relay')} named"
    if facts.relays_named and not facts.relays_used:
        return _warning("relays", used, "the log says why (rule relay-refused, relay-gone); odfctl docs reach")
    if not facts.relays_named and not is_reached:
        return _warning("relays", "none named, and it is not known that others reach this node", _FORWARD)
    return _ok("relays", used if facts.relays_named else "none named, none needed")


def _direct(facts: NetFacts) -> wire.Probe:
    tries = f"{facts.direct} of {plural(facts.direct + facts.failed, 'hole punch', 'hole punches')} succeeded"
    return _ok("direct", f"{plural(facts.peers, 'peer')}, {facts.by_relay} by a relay alone; {tries}")


def _clock(facts: NetFacts) -> wire.Probe:
    if facts.clock_behind > CLOCK_SLACK:
        hint = "set the clock of this machine: others ignore what is signed more than ten minutes ahead or too long ago"
        return _warning("clock", f"at least {facts.clock_behind:.0f} s behind that of a peer", hint)
    return _ok("clock", "no peer's is ahead of it" if facts.peers else "no peer to compare it with")


def _ok(name: str, message: str) -> wire.Probe:
    return wire.Probe(name=name, result="ok", message=message)


def _warning(name: str, message: str, hint: str) -> wire.Probe:
    return wire.Probe(name=name, result="warning", message=message, hint=hint)
