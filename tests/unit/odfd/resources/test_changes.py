"""The log of resources in words, and which events tell that a resource may have changed."""

from __future__ import annotations

from typing import Any

from chain.instant import Instant
from odfd.obs.events import Event
from odfd.resources.changes import describe
from odfd.resources.controller import Controller, Controllers
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
    said = describe(resource(), event)
    assert said == ("Observed", ('Outcome={"kind":"Failed","recoverable":true}', "State=fresh", "Synced=false"))


def test_a_controller_names_the_events_that_tell_of_its_resources() -> None:
    class Flows(Controller):
        type, hears = "Flow", ("flow",)

    class Datasets(Controller):
        type, hears = "Dataset", ("dataset", "mirror")

    class Mirrors(Controller):
        type, hears = "Mirror", ("mirror",)

    controllers = Controllers([Flows(), Datasets(), Mirrors()])

    def told_by(kind: str, subject: str) -> set[tuple[str, str]]:
        return controllers.told_by(Event(sequence=1, time=Instant(0), kind=kind, subject=subject))

    assert told_by("flow.ended", "hourly") == {("Flow", "hourly")}
    assert told_by("mirror.synced", "copy") == {("Dataset", "copy"), ("Mirror", "copy")}
    assert told_by("peer.met", "12D3") == told_by("flow.ended", "") == set()
