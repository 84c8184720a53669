"""Names the datasets and resources that flows are about, which decides who may see their runs."""

from __future__ import annotations

from odfd.flows.plan import FlowPlan
from odfd.resources.store import ResourceStore
from odfd.runtime.subjects import Subjects, about
from odfd.store.directory import StateDirectory


def about_flow(home: StateDirectory, plan: FlowPlan) -> Subjects:
    """Returns the datasets and other resources that a flow names. Blocking.

    A reference that resolves to nothing stands for itself, so that only the node's owner sees the flow.
    """
    keys = {arrival.source for arrival in plan.arrivals} | {task.uses for task in plan.tasks if task.uses is not None}
    datasets = (plan.target, *plan.inputs, *(task.dataset for task in plan.tasks if task.dataset is not None))
    if not keys:
        return about(*datasets, inputs=True)
    with home.database.read() as connection:
        flow = ResourceStore(connection).get(plan.id)
    held = {} if flow is None else flow.references
    others = [key if (handle := held.get(key)) is None else handle.id for key in keys]
    return about(*datasets, *others, inputs=True)
