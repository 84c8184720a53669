"""What people write for a peer."""

from __future__ import annotations

import pytest

from chain.errors import Invalid, NotFound
from odfd.network.node_names import peer_named
from p2p.identity import peer_of_seed


def test_a_peer_is_named_by_its_id() -> None:
    peer = peer_of_seed(bytes(32))
    assert peer_named([], peer) == peer


def test_an_address_is_no_name_and_leads_to_one() -> None:
    with pytest.raises(Invalid, match="is an address") as refused:
        peer_named([], f"/ip4/127.0.0.1/tcp/4001/p2p/{peer_of_seed(bytes(32))}")
    assert refused.value.hint is not None
    assert "odfctl peer connect" in refused.value.hint


def test_a_beginning_that_nobody_has_is_not_found() -> None:
    with pytest.raises(NotFound, match="no peer"):
        peer_named([], "12D3KooW")
