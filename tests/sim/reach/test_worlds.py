"""The machines that decide how a node is reached, in worlds that lose, delay, crash, move and lie: promises hold."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from p2p.ip import parse_ip
from p2p.machines import dial_back, hole_punch, reachability, relay
from sim.kernel import Simulation, batches, hold
from sim.reach.carriage import Carriage
from sim.reach.outlook import Outlook
from sim.reach.punches import Punches

Kind = type[Simulation]
KINDS: tuple[Kind, ...] = (Outlook, Carriage, Punches)


def converged(kind: Kind, seed: int) -> Simulation:
    world = kind(seed)
    world.converge()
    return world


@pytest.mark.slow
@pytest.mark.parametrize("batch", batches(25), ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_reach_keeps_its_promises(kind: Kind, batch: range) -> None:
    """Attack T-REACH-01: attacks on reachability together with crashes, losses, slow circuits and moves.

    Defence: the limits of dials, relays and punches hold in every world: simulated, 10,000 seeds of each of three kinds
    in `make soak`.
    """
    hold(batch, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_tells_all(kind: Kind) -> None:
    """The same seed is the same world, to the last event."""
    assert converged(kind, 11).end == converged(kind, 11).end != converged(kind, 12).end


@pytest.mark.slow
def test_worlds_hold_what_they_should() -> None:
    """A storm that never blows proves nothing."""
    seen: Counter[str] = Counter()
    for kind in KINDS:
        for seed in range(12):
            seen += converged(kind, seed).seen
    assert {"moved", "flickered", "attacked", "yes", "no", "left", "direct", "broke", "gave up"} <= set(seen)
    assert {"kept back", "_squat", "start", "NO_RESERVATION", "RESOURCE_LIMIT_EXCEEDED"} <= set(seen)


def hasty(self: Any, now: Any) -> Any:
    found = reachability._usable(now)
    move = reachability.Moved(found - self._known, self._known - found)
    self._known = found
    return move if any(move) else None


def credulous(self: Any, named: Any, _now: float) -> Any:
    found = [each for each in dict.fromkeys(named) if each is not None]
    return [each for each in found if self._allows(parse_ip(each.host))][:4]


BROKEN: dict[str, tuple[Kind, Any, str, Any]] = {
    "one network decides": (Outlook, reachability, "ENOUGH", 1),
    "words count for ever": (Outlook, reachability, "COUNTS", 1e9),
    "an address is gone at the first look": (Outlook, reachability.AddressWatch, "look", hasty),
    "any place is dialled": (Outlook, dial_back, "_is_fit", lambda address, _allows: address.relay is None),
    "no room for chosen peers": (Carriage, relay, "RESERVED", 10**9),
    "a slow answer is waited for": (Punches, hole_punch, "MOST_WAIT", 1e9),
    "as many tries as one likes": (Punches, hole_punch, "TRIES", 99),
    "a victim is dialled as often as it is named": (Punches, hole_punch.PunchBudget, "fit", credulous),
}
"""What is changed of which module, and the kind of world that notices."""


@pytest.mark.nightly
@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_noticed(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    kind, where, name, broken = BROKEN[rule]
    monkeypatch.setattr(where, name, broken)
    with pytest.raises(AssertionError):
        hold(range(60), kind)
