"""Faults of peers say what to do next, their own hint or that of their kind."""

from __future__ import annotations

import pytest

from p2p.errors import PeerFault, StreamBroken, TooManyStreams, TooSlow


@pytest.mark.parametrize("kind", [TooSlow, StreamBroken, TooManyStreams])
def test_a_fault_without_a_hint_has_that_of_its_kind(kind: type[PeerFault]) -> None:
    assert "try again" in kind("12D3", "said nothing").hint
    assert kind("12D3", "said nothing", hint="wait a minute").hint == "wait a minute"
