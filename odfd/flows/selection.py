"""Selects the datasets that a flow is for, by patterns of their names and by labels. Pure.

A flow of a selection is one plan for each selected dataset, with its own runs and record; datasets that appear later
join by themselves. A flow that only collects garbage has no dataset of its own, and is one plan for all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from chain.errors import Invalid
from chain.ids import DatasetId
from odfd.flows.plan import FlowPlan, GarbageCollection, Selection
from odfd.resources.resource import Json
from odfd.resources.selectors import matches, names, parse_selector

EVERY: Final = DatasetId.from_public_key(bytes(32))
"""Stands for the target of a selection, which is not one dataset."""
_PATTERN: Final = re.compile(r"[A-Za-z0-9.\-%_]{1,100}\Z")
_WILD: Final = "%_"


def is_pattern(text: str) -> bool:
    """Whether a target is a pattern: it has a wildcard, which no name has."""
    return any(each in text for each in _WILD)


def parse_pattern(text: str) -> str:
    """Returns a pattern of names, in which ``%`` stands for any text and ``_`` for a character. Raises Invalid."""
    if _PATTERN.match(text) is None:
        hint = "% stands for any text and _ for one character: Dataset:house.%"
        raise Invalid(f"not a pattern of names of datasets: {text[:80]!r}", rule="flow-target", hint=hint)
    return text


def selects(selection: Selection, name: str, labels: Mapping[str, Json]) -> bool:
    """Whether a dataset is selected."""
    if not names((selection.name,), name):
        return False
    return selection.labels is None or matches(parse_selector(selection.labels), labels)


def is_one_for_all(plan: FlowPlan) -> bool:
    """Whether the plan is run once, and not for each selected dataset."""
    return not plan.on_update and all(isinstance(each, GarbageCollection) for each in plan.tasks)


def is_template(plan: FlowPlan) -> bool:
    """Whether the plan is not run itself, but has a plan for each selected dataset."""
    return plan.selection is not None and plan.target == EVERY and not is_one_for_all(plan)


def for_dataset(plan: FlowPlan, dataset: DatasetId) -> FlowPlan:
    """Returns a selection's plan for one dataset, whose own news never make it pull itself."""
    return msgspec.structs.replace(plan, target=dataset, inputs=plan.inputs - {dataset})
