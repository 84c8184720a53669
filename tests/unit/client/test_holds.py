"""The client's hold by itself: renewals that fail, a node that is away, the end."""

from __future__ import annotations

from typing import Any

import pytest

from odfd_client.errors import HoldLost, Refused, Unreachable, from_problem
from odfd_client.holds import Hold

ANSWER = {
    "id": "h",
    "time": "2026-01-01T00:00:00Z",
    "pin": {"name": "c", "id": "did", "block": "f", "sequenceNumber": 1},
}


class Node:
    """Its answers, one after the other."""

    is_remote = False

    def __init__(self, *faults: Exception | None) -> None:
        self.faults, self.asked = list(faults), list[tuple[str, str]]()

    def ask(self, method: str, path: str, **_: Any) -> Node:
        self.asked.append((method, path))
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            raise fault
        return self

    def close(self) -> None: ...


def held(node: Any, now: list[float]) -> Hold:
    return Hold(node, ANSWER, 60, 0.0, lambda: now[0])


def test_a_node_that_is_away_for_a_while_costs_nothing() -> None:
    now = [0.0]
    node = Node(Unreachable("away"), None)
    hold = held(node, now)
    now[0] = 40.0
    with pytest.raises(Unreachable):
        hold.renew()
    hold.renew()
    now[0] = 99.9
    hold.check()
    now[0] = 100.0
    with pytest.raises(HoldLost, match="could not be renewed in its 60 seconds"):
        hold.check()
    with pytest.raises(HoldLost):
        hold.release()


def test_the_end_is_told_to_the_node_once() -> None:
    node = Node()
    hold = held(node, [0.0])
    with hold as same:
        assert same is hold
    hold.release()
    assert node.asked == [("DELETE", "/node/v1alpha1/holds/h")]


def test_what_ends_a_block_is_told_first() -> None:
    lost = from_problem({"family": "Refused", "rule": "hold-lost", "detail": "lost"})
    assert isinstance(lost, HoldLost)
    with pytest.raises(ZeroDivisionError), held(Node(Unreachable("away")), [0.0]):
        raise ZeroDivisionError
    with pytest.raises(Unreachable), held(Node(Unreachable("away")), [0.0]):
        pass


def test_a_node_elsewhere_gives_none() -> None:
    node: Any = Node()
    node.is_remote = True
    with pytest.raises(Refused, match="own socket"):
        Hold.take(node, "c", None, 60, "")


def test_one_that_is_owned_outlives_its_block_and_its_time_until_another_takes_over() -> None:
    now, node = [0.0], Node(None, from_problem({"family": "Refused", "rule": "hold-fenced", "detail": "fence 3"}))
    hold = Hold(node, ANSWER | {"fence": 2}, 60, 0.0, lambda: now[0])  # type: ignore[arg-type]
    with hold:
        now[0] = 1e9
        hold.check()
    assert node.asked == [], "nothing was released"
    hold.renew()
    with pytest.raises(HoldLost, match="fence 3"):
        hold.renew()
    for told in (hold.check, lambda: hold.dataset):
        with pytest.raises(HoldLost):
            told()
    owned = Hold(Node(), ANSWER | {"fence": 2}, 60, 0.0, lambda: now[0])  # type: ignore[arg-type]
    owned.release()
    assert owned._transport.asked == [("DELETE", "/node/v1alpha1/holds/h?fence=2")]  # type: ignore[attr-defined]
