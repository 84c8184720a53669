"""The calls that tasks of flows make."""

from __future__ import annotations

import msgspec

from chain.instant import Instant
from odfd.services.webhooks.flow_call import FlowRun, call_of

RUN = FlowRun(
    id="one", flow="often", dataset="did:odf:a", name="a", time=Instant(1), is_update=False, before=None, head=None
)


def test_a_call_has_the_id_of_its_flow_and_of_what_it_is_about_alone() -> None:
    """Flows of two accounts may have one name, and call one target: neither is a repetition of the other."""
    same = msgspec.structs.replace(RUN, flow="renamed")
    assert call_of(RUN, "body", 0).id == call_of(same, "body", 0).id
    others = [{"id": "two"}, {"dataset": "did:odf:b"}, {"time": Instant(2)}]
    ids = {call_of(msgspec.structs.replace(RUN, **each), "body", 0).id for each in ({}, *others)}
    assert len(ids | {call_of(RUN, "body", 1).id}) == 5
