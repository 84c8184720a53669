"""The machines that decide how a node is reached, in worlds that lose, delay, crash, move and lie: promises hold.

``worlds.seeds`` says how many worlds of each kind are run. A failing seed is in the message.
"""

from __future__ import annotations

from collections import Counter
from types import ModuleType
from typing import Any

import pytest

from p2p.machines import dial_back, hole_punch, reachability, relay
from worlds.seeds import batches

KINDS = ("outlook", "carriage", "punches")


def world(routed: ModuleType, kind: str, seed: int) -> Any:
    return getattr(getattr(routed, kind), kind.capitalize())(seed)


@pytest.mark.slow
@pytest.mark.parametrize("batch", batches(75), ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_reach_keeps_its_promises(routed: ModuleType, kind: str, batch: range) -> None:
    for seed in batch:
        try:
            world(routed, kind, seed).converge()
        except Exception as error:
            raise AssertionError(f"{kind}, seed {seed}: {error}; run with ODFD_SIM_SEED={seed}") from error


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_tells_all(routed: ModuleType, kind: str) -> None:
    """The same seed is the same world, to the last event."""
    ends = [(one.converge(), one.events.steps) for one in (world(routed, kind, 11), world(routed, kind, 11))]
    assert ends[0] == ends[1]
    assert ends[0][0] != world(routed, kind, 12).converge()


@pytest.mark.slow
def test_worlds_hold_what_they_should(routed: ModuleType) -> None:
    """A storm that never blows proves nothing."""
    seen: Counter[str] = Counter()
    for kind in KINDS:
        for seed in range(12):
            one = world(routed, kind, seed)
            one.converge()
            seen += one.seen
    assert {"moved", "flickered", "attacked", "yes", "no", "left", "direct", "broke", "gave up"} <= set(seen)
    assert {"kept back", "_squat", "start", "NO_RESERVATION", "RESOURCE_LIMIT_EXCEEDED"} <= set(seen)


BROKEN = {
    "one network decides": ("outlook", reachability, "ENOUGH", 1),
    "words count for ever": ("outlook", reachability, "COUNTS", 1e9),
    "an address is gone at the first look": ("outlook", reachability.AddressWatch, "look", None),
    "any place is dialled": ("outlook", dial_back, "_is_fit", lambda address, _allows: address.relay is None),
    "no room for chosen peers": ("carriage", relay, "RESERVED", 10**9),
    "a slow answer is waited for": ("punches", hole_punch, "MOST_WAIT", 1e9),
    "as many tries as one likes": ("punches", hole_punch, "TRIES", 99),
    "a victim is dialled as often as it is named": ("punches", hole_punch.PunchBudget, "fit", None),
}
"""What is changed of which module, and the kind of world that notices."""


def hasty(self: Any, now: Any) -> Any:
    found = reachability._usable(now)
    move = reachability.Moved(found - self._known, self._known - found)
    self._known = found
    return move if any(move) else None


def credulous(self: Any, named: Any, _now: float) -> Any:
    found = [each for each in dict.fromkeys(named) if each is not None]
    return [each for each in found if self._allows(hole_punch.parse_ip(each.host))][:4]


@pytest.mark.slow
@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_noticed(routed: ModuleType, monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    kind, where, name, value = BROKEN[rule]
    broken: Any = {"look": hasty, "fit": credulous}.get(name, value)
    monkeypatch.setattr(where, name, broken)
    with pytest.raises(AssertionError):
        all(world(routed, kind, seed).converge() for seed in range(60))
