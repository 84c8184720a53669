"""The log of resources in words: the change of each event, and its details."""

from __future__ import annotations

from typing import Any

from chain.instant import Instant
from odfd.resources.changes import told
from odfd.resources.resource import Resource, ResourceEvent
from odfd.resources.status import Condition, ResourceStatus


def resource(**conditions: Any) -> Resource:
    at = Instant(0)
    held = {key: Condition(value=value, updated_at=at, observed_generation=1) for key, value in conditions.items()}
    status = ResourceStatus(phase="Ready", conditions=held)
    return Resource(id="1", type="Flow", name="hourly", spec={}, status=status, created_at=at, updated_at=at)


def test_values_of_conditions_are_told_as_json() -> None:
    """A text stands as it is."""
    after = resource(Outcome={"kind": "Failed", "recoverable": True}, State="fresh", Synced=False)
    event = ResourceEvent(rv=2, at=Instant(0), op="Observed", resource=after)
    said = told(resource(), event)
    assert said == ("Observed", ('Outcome={"kind":"Failed","recoverable":true}', "State=fresh", "Synced=false"))
