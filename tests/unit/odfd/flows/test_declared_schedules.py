"""The schedule that a dataset declares for itself: for what can be pulled, and as often as its owner may."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from chain.errors import Invalid
from chain.instant import Instant
from odfd.flows.manifest import schedule_of
from odfd.resources.resource import Resource


def made(every: str, spec: Any = None, account: str | None = None) -> list[str]:
    owner = Resource(
        id="1",
        type="Dataset",
        name="one",
        account=account,
        annotations={"schedule": {"every": every}},
        spec=spec,
        created_at=Instant(0),
        updated_at=Instant(0),
    )
    return [each.type for each in schedule_of(owner)]


@pytest.mark.parametrize(
    "kinds,refused",
    [
        (["AddPushSource"], True),
        (["SetInfo", "AddPushSource", "AddPushSource"], True),
        (["SetPollingSource"], False),
        (["AddPushSource", "SetPollingSource"], False),
        (["SetTransform"], False),
        ([], False),
    ],
)
def test_what_is_only_pushed_to_is_not_pulled_on_a_schedule(kinds: list[str], refused: bool) -> None:
    """Its flow would fail each time, and each time say so, for ever."""
    spec = {"kind": "Root", "metadata": [{"kind": kind} for kind in kinds]}
    with pytest.raises(Invalid, match="nothing to pull from") if refused else contextlib.nullcontext() as caught:
        assert made("1h", spec) == ["Flow"]
    assert caught is None or caught.value.rule == "flow-trigger"


@pytest.mark.parametrize(
    "account,every,refused", [("bob", "59s", True), ("bob", "1s", True), ("bob", "1min", False), (None, "1s", False)]
)
def test_an_account_has_a_dataset_pulled_once_a_minute_at_the_most_often(
    account: str | None, every: str, refused: bool
) -> None:
    with pytest.raises(Invalid, match="every 1min at the most often") if refused else contextlib.nullcontext():
        assert made(every, account=account) == ["Flow"]
