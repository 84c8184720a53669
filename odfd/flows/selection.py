"""Selects the datasets that a flow is for, by patterns of their names and by labels. Pure.

A flow of a selection is one plan for each selected dataset, with its own runs and record; datasets that appear later
join by themselves. A flow that only collects garbage has no dataset of its own, and is one plan for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import msgspec

from chain.ids import DatasetId
from odfd.flows.plan import FlowPlan, Selection
from odfd.flows.spec import GarbageCollectionTask
from odfd.resources.resource import Json
from odfd.resources.selectors import LabelFilter, matches, names, parse_selector

EVERY: Final = DatasetId.from_public_key(bytes(32))
"""Stands for the target of a selection, which is not one dataset."""


def selects(selection: Selection, name: str, labels: Mapping[str, Json], account: str | None) -> bool:
    """Whether a dataset is selected. ``account``: the name of the account that owns it."""
    if selection.account is not None and selection.account.casefold() != (account or "").casefold():
        return False
    if not names((selection.name,), name):
        return False
    return selection.labels is None or matches(_filter(selection.labels), name, labels)


@lru_cache(maxsize=1024)
def _filter(text: str) -> LabelFilter:
    """Returns a selector of a flow as a filter; one is asked for each dataset whenever one changes."""
    return parse_selector(text)


def is_one_for_all(plan: FlowPlan) -> bool:
    """Whether the plan is run once, and not for each selected dataset."""
    return not plan.on_update and all(isinstance(each.said, GarbageCollectionTask) for each in plan.tasks)


def is_template(plan: FlowPlan) -> bool:
    """Whether the plan is not run itself, but has a plan for each selected dataset."""
    return plan.selection is not None and plan.target == EVERY and not is_one_for_all(plan)


def for_dataset(plan: FlowPlan, dataset: DatasetId) -> FlowPlan:
    """Returns a selection's plan for one dataset, whose own news never make it pull itself."""
    return msgspec.structs.replace(plan, target=dataset, inputs=plan.inputs - {dataset})
